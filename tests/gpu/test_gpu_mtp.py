"""The MTP head on a GPU: what was recorded, and texts that are written with it."""

from functools import cache
from itertools import cycle

import numpy as np
import pytest
from compare import assert_close
from draft_oracle import log_softmax
from golden import load, path_of, recorded
from mtp_text import NAME, reading, text
from written import come_and_go, run, tokens, written

from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.sampling.params import Sampling
from dflash.decode.scheduling.draft_budget import DraftBudget
from dflash.decode.session import Session
from dflash.kernels.sample import SampleParams
from dflash.model.export import export_draft
from dflash.model.loading.mtp import load_mtp
from dflash.model.recurrent_head import HeadRequest, Unread

SAMPLINGS = [Sampling(), Sampling(temperature=1.0, seed=3)]


@pytest.fixture(params=["f16", "f32"])
def model(request):
    model = load(NAME, kv=request.param, device="cuda")
    MTP().prepare(model)
    pools = model.pools, model.attachments[MTP()].pools
    before = [(each.free_pages, each.free_slots) for each in pools]
    yield model
    assert [(each.free_pages, each.free_slots) for each in pools] == before


def test_pairs_and_a_chain_as_recorded(model):
    """Activations are halves; near ties of a random model may go another way, so scores are compared."""
    head, want, (tokens, hidden) = model.attachments[MTP()], recorded(NAME), text("cuda")
    for i in range(0, 47, 5):
        state = reading(head, i)
        (found,) = head.propose([HeadRequest(state, tokens[i + 1 : i + 2], hidden[i : i + 1], 1, SampleParams(), i + 2, 64)])
        expected = log_softmax(want["mtp.logits"][i])
        assert_close(f"pair {i}", found.scores[0], expected[found.ids[0]], 4e-3)
        state.close()
    state = reading(head, 47)
    first = want["mtp.chain_inputs"][:1].astype(np.int32)
    (found,) = head.propose([HeadRequest(state, first, hidden[47:], 3, SampleParams(), 49, 4)])
    assert state.length == 48
    assert found.ids[:, 0].tolist() == want["mtp.chain_next"].tolist()
    for scores, logits in zip(found.scores, want["mtp.chain_logits"], strict=True):
        assert_close("scores", scores, np.sort(log_softmax(logits))[::-1][:4], 4e-3)
    state.close()


def test_a_head_in_a_folder(tmp_path):
    """The head that speculators holds drafts with the bits of the one in the model's file."""
    model, (tokens, hidden) = load(NAME, kv="f16", device="cuda"), text("cuda")
    export_draft(path_of(NAME), tmp_path / "head")
    found = []
    for file in (None, tmp_path / "head"):
        head = load_mtp(model, file)
        state = reading(head, 20)
        found += head.propose([HeadRequest(state, tokens[21:23], hidden[20:22], 2, SampleParams(), 23, 8)])
        state.close()
    np.testing.assert_array_equal(found[0].scores, found[1].scores)


@pytest.mark.parametrize("law", [SampleParams(), SampleParams(scale=1.0, seed=5)], ids=["greedy", "T 1"])
def test_company_and_chunks_change_nothing(model, law):
    head, (tokens, hidden) = model.attachments[MTP()], text("cuda")
    starts = [1, 20, 33, 40]
    states = [reading(head, n, chunk) for n, chunk in zip(starts, (1, 7, 40, 512), strict=True)]

    def ask(state, n, wanted):
        return HeadRequest(state, tokens[n + 1 : n + 4], hidden[n : n + 3], wanted, law, n + 4, 8)

    together = head.propose([ask(state, n, 1 + i) for i, (state, n) in enumerate(zip(states, starts, strict=True))])
    for i, n in enumerate(starts):
        state = reading(head, n)
        (alone,) = head.propose([ask(state, n, 1 + i)])
        np.testing.assert_array_equal(alone.ids, together[i].ids)
        np.testing.assert_array_equal(alone.scores, together[i].scores)
        assert (state.length, states[i].length) == (n + 3, n + 3)
        state.close()
        states[i].close()


def test_prompts_of_several_sequences_are_read_in_one_pass(model, monkeypatch):
    """Keys and values have the bits of prompts that are read alone, in parts of any size."""
    head, (tokens, hidden) = model.attachments[MTP()], text("cuda")
    sizes, launched = (20, 1, 47, 33), []
    monkeypatch.setattr(head._append, "_steps", [launched.append, *head._append._steps])
    states = [head.state() for _ in sizes]
    head.read_all([Unread(state, tokens[1 : n + 1], hidden[:n]) for state, n in zip(states, sizes, strict=True)])
    assert launched == [sum(sizes)]
    for state, n in zip(states, sizes, strict=True):
        other = reading(head, n, 7)
        for pages in (head.pools.k, head.pools.v):
            got, want = (pages[0].get()[each.pages].reshape(-1, *pages.shape[3:])[:n] for each in (state, other))
            np.testing.assert_array_equal(got, want)
        other.close()
        state.close()


@cache
def prompts():
    tokens = recorded(NAME)["tokens"].tolist()
    return [tokens[:20], tokens[:1], tokens[::-1], (8 * tokens)[:300]]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "T 1"])
@pytest.mark.parametrize("shape", [Chain(1), Chain(3), Chain(6), Tree(8, depth=3), Tree(20, depth=4)], ids=repr)
def test_texts_are_those_of_plain_decoding(model, shape, sampling):
    """Alone and together; draft tokens launched ahead, step by step, and shaped on the host: the same steps."""
    want = tokens(written(model, prompts(), Plain(), sampling))
    strategy, steps = Strategy(MTP(), shape), []
    with pytest.MonkeyPatch.context() as patch:
        for ahead, on_device in ((True, True), (False, True), (False, False)):
            patch.setattr(model, "can_overlap", ahead)
            if not on_device:
                patch.setattr(model.attachments[MTP()], "draft_on_device", lambda wishes, anchors, unread: None)
            sessions = written(model, prompts()[:2], strategy, sampling)
            assert tokens(sessions) == want[:2]
            steps.append([[(step.tokens, step.accepted) for step in session.steps] for session in sessions])
    assert steps[0] == steps[1]
    assert steps[0] == steps[2]
    assert tokens(written(model, prompts(), strategy, sampling)) == want


@pytest.mark.parametrize("shape", [Chain(3), Tree(8, depth=3)], ids=repr)
def test_texts_that_come_and_go(model, shape):
    want = tokens(written(model, prompts(), Plain(), SAMPLINGS[1]))
    assert tokens(come_and_go(model, prompts(), Strategy(MTP(), shape), SAMPLINGS[1])) == want


@pytest.mark.parametrize("shape", [Chain(3), Tree(8, depth=3)], ids=repr)
def test_a_draft_budget_changes_no_text_and_makes_the_head_draft_less(model, shape, monkeypatch):
    """Every size is chosen in turn; what is launched ahead has the size that is chosen."""
    head, asked, used = model.attachments[MTP()], set(), []
    sizes = cycle(np.repeat([3, 1, 0, 2], 5).tolist())

    def ready(requests, anchors, function=head.ready):
        asked.add(requests[0].n_draft)
        used.append(function(requests, anchors))
        return used[-1]

    monkeypatch.setattr(DraftBudget, "_choose", lambda budget, records, most, n: np.minimum(next(sizes), most))
    monkeypatch.setattr(head, "ready", ready)
    sessions = [
        Session(prompt, max_tokens=60, strategy=Strategy(MTP(), shape), sampling=SAMPLINGS[1]) for prompt in prompts()[:3]
    ]
    want = [Session(prompt, max_tokens=60, sampling=SAMPLINGS[1]) for prompt in prompts()[:3]]
    assert run(model, *sessions, draft_budget=True) == run(model, *want)
    assert {step.drafted for session in sessions for step in session.steps} >= {0, 1, 2, 3}
    assert asked == ({1, 3} if isinstance(shape, Chain) else {3})
    assert sum(one is not None for one in used) > len(used) // 2
