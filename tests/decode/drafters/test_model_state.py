"""States of draft models: memory, batches of requests, and drafts that stay on a device."""

from types import SimpleNamespace

import numpy as np
import pytest

from dflash.decode.drafters.model_state import ModelDrafter, ModelDrafterState
from dflash.decode.drafting.device_draft import DeferredDraft
from dflash.decode.drafting.diagnostics import DraftDiagnostics
from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import DraftPlan, Strategy
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.decode.verifiers import RejectionSampling, SyntheticAcceptance
from dflash.errors import PoolExhausted
from dflash.model.candidates import Candidates
from dflash.model.draft import DraftRequest


class Memory:
    def __init__(self):
        self.closed = 0

    def close(self):
        self.closed += 1


class State(ModelDrafterState):
    """Drafts tokens 5, 6, 7, ... under any token, at most `room`."""

    def __init__(self, draft_model, *, room=3, full=False, nodes=4, **settings):
        session = Session([1, 2, 3], **settings)
        super().__init__(draft_model, session, DraftDiagnostics(session, draft_model, "Fake()"))
        self.room, self.nodes = room, nodes
        with self.owned(draft_model.memory):
            if full:
                raise PoolExhausted("the draft model has no free page")

    def request(self, max_draft):
        n = min(max_draft, self.room)
        return n if n > 0 else None

    def device_request(self):
        return DraftRequest(self.state, -1, 4, self.session.sampler.params, nodes=self.nodes), self.nodes

    @staticmethod
    def candidates(drafter_states, requests):
        drafter_states[0].draft_model.passes.append(list(requests))
        return [Candidates(5 + np.arange(n, dtype=np.int32)[:, None], np.zeros((n, 1), np.float32)) for n in requests]

    @staticmethod
    def device_drafts(drafter_states, requests, anchors):
        model = drafter_states[0].draft_model
        model.passes.append((list(requests), list(anchors)))
        return model.drafts


def fake(device="cpu", drafts=None):
    return SimpleNamespace(device=device, memory=Memory(), drafts=drafts, passes=[], attachments={})


def test_memory_is_released_once_after_a_failure_and_at_the_end():
    model = fake()
    with pytest.raises(PoolExhausted):
        State(model, full=True)
    assert model.memory.closed == 1
    model.memory.closed = 0
    state = State(model)
    assert model.memory.closed == 0
    state.close()
    assert model.memory.closed == 1


def test_sessions_without_a_request_get_no_draft_and_no_pass():
    model = fake()
    states = [State(model), State(model, room=0), State(model, room=1)]
    assert ModelDrafter().propose(states, [2, 5, 5]) == [Draft([5, 6]), EMPTY, Draft([5])]
    assert model.passes == [[2, 1]]
    assert states[2].propose(0) == EMPTY
    assert ModelDrafter().plan_next(states, [EMPTY] * 3) == [None] * 3
    assert len(model.passes) == 1


def test_drafts_stay_on_the_device_where_every_session_allows_it():
    model = fake("cuda", drafts=object())
    states = [State(model), State(model, nodes=9)]
    drafts = ModelDrafter().propose(states, [3, 60])
    assert all(type(draft) is DeferredDraft and draft.drafts is model.drafts for draft in drafts)
    assert [(len(draft), draft.index) for draft in drafts] == [(3, 0), (9, 1)]
    assert drafts[0].parents.tolist() == [-1, 0, 1], "a chain is known before it is made"
    ((requests, anchors),) = model.passes
    assert ([request.n_nodes for request in requests], anchors) == ([4, 9], [3, 3])
    plans = ModelDrafter().plan_next(states, drafts)
    assert [(type(plan), plan.drafter, plan.request.n_nodes) for plan in plans] == [
        (DraftPlan, model, 4),
        (DraftPlan, model, 9),
    ]


@pytest.mark.parametrize("verifier", [SyntheticAcceptance(2.5), RejectionSampling()], ids=repr)
def test_verifiers_that_know_before_what_they_accept_leave_drafts_on_the_device(verifier):
    model = fake("cuda", drafts=object())
    strategy = Strategy("lookup", verifier=verifier)
    (draft,) = ModelDrafter().propose([State(model, strategy=strategy, sampling=Sampling(temperature=1.0))], [3])
    assert (type(draft) is DeferredDraft) == isinstance(verifier, SyntheticAcceptance)


@pytest.mark.parametrize("why", ["no room", "forced tokens", "the device can't", "no device"])
def test_drafts_reach_the_host_where_they_must(why):
    model = fake("cpu" if why == "no device" else "cuda", drafts=None if why == "the device can't" else object())
    states = [State(model), State(model)]
    if why == "forced tokens":
        states[1].session.forced_ids = (4,)
    assert ModelDrafter().propose(states, [2, 0 if why == "no room" else 2]) == [
        Draft([5, 6]),
        EMPTY if why == "no room" else Draft([5, 6]),
    ]
    assert model.passes[-1] == ([2] if why == "no room" else [2, 2])


def test_accepted_rows_are_counted():
    model = fake()
    state = State(model)
    assert state.count_rows(slice(4, 6)) == 2
    for _ in range(64):
        state.propose(2)
        assert state.count_rows([7]) == 1
    assert state.n_seen == 66
    assert "no draft token accepted in 64 steps" in state.session.warnings[0]


def test_a_drafter_that_answers_fewer_requests_says_so(monkeypatch):
    monkeypatch.setattr(State, "candidates", staticmethod(lambda drafter_states, requests: []))
    with pytest.raises(AssertionError, match=r"State\.candidates: wanted 1, got 0"):
        State(fake()).propose(2)
