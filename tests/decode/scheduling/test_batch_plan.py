"""Where prompts are cut, and what a forward on a device costs in copies."""

import pytest
from oracles import Oracle, naive
from toy import Toy, finish

from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.engine import Engine
from dflash.decode.sampling.history import History
from dflash.decode.sampling.params import Sampling
from dflash.decode.sampling.sampler import Sampler
from dflash.decode.session import Session
from dflash.kernels.sample.params import HostSampleResult
from dflash.model.batch import Forward


class CutToy(Toy):
    """A target that wants prompts cut at multiples of `chunk_alignment`, and writes down where they were."""

    def __init__(self, cut, **arguments):
        super().__init__(**arguments)
        self.chunk_alignment, self.ends = cut, {}
        self.before_forward = self._note

    def _note(self, spans):
        for span in spans:
            if span.prefill:
                self.ends.setdefault(span.state, []).append(span.state.length + len(span.tokens))


@pytest.mark.parametrize("chunk", [64, 100, 128, 300])
@pytest.mark.parametrize("prompts", [(1,), (65,), (200, 64, 1, 129), (500, 500, 33, 70, 64)])
def test_prompts_are_cut_at_multiples(chunk, prompts):
    toy = CutToy(64, rows=512, slots=8)
    engine = Engine(toy, chunk=chunk)
    sessions = [Session([i % 13 for i in range(n)], max_tokens=3) for n in prompts]
    for i, session in enumerate(sessions):
        engine.add(session)
        for _ in range(i):
            engine.step()
    finish(engine)
    assert [session.output_ids for session in sessions] == [naive(toy, s.prompt_ids, Sampling(), 3) for s in sessions]
    lasts = sorted(n - 1 for n in prompts if n > 1)
    assert sorted(ends[-1] for ends in toy.ends.values()) == lasts
    assert all(end % 64 == 0 for ends in toy.ends.values() for end in ends[:-1])


def test_a_chunk_is_never_smaller_than_a_cut():
    toy = CutToy(64, rows=80)
    engine = Engine(toy, chunk=10)
    engine.add(Session([1] * 200, max_tokens=1))
    finish(engine)
    assert list(toy.ends.values()) == [[64, 128, 192, 199]]


class Away:
    """Logits that are elsewhere: draws cost one trip, a row one, and nothing else is to be had."""

    def __init__(self, rows, trips, start=0):
        self._rows, self._trips, self._start = rows, trips, start

    def __getitem__(self, which):
        if isinstance(which, slice):
            return Away(self._rows, self._trips, self._start + which.start)
        self._trips.append("row")
        return self._rows[self._start + which]

    def sample_rows(self, asks):
        assert self._start == 0
        self._trips.append([len(ask.positions) for ask in asks])
        return HostSampleResult(self._rows, asks)


class AwayToy(Toy):
    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.trips = []

    def forward(self, spans, *, capture=()):
        self.trips.clear()
        out = super().forward(spans, capture=capture)
        return Forward(Away(out.logits, self.trips), out.hidden, out.captured, out.spans)


SAMPLED = Sampling(temperature=0.8, top_k=9, top_p=0.9, seed=3, logprobs=2)
RULED = Sampling(temperature=1.0, presence_penalty=1.5, seed=4, logprobs=0)
EDITED = Sampling(temperature=0.9, repetition_penalty=1.3, frequency_penalty=0.5, logit_bias={3: 2.0}, seed=5, logprobs=1)


def nothing(logits, history):
    """A rule that has to be asked, for nothing."""
    return logits


@pytest.mark.parametrize("kind", ["plain", "tree"])
def test_logits_elsewhere_are_asked_once_a_step_for_all(kind):
    toy, prompts = AwayToy(), [[1, 2, 3], [4, 5], [7, 7, 8], [6]]
    samplings = [Sampling(), SAMPLED, EDITED, RULED]
    truths = [naive(toy, p, s, 12, seed=s.seed or 0) for p, s in zip(prompts, samplings, strict=True)]
    texts = tuple((*prompt, *truth) for prompt, truth in zip(prompts, truths, strict=True))
    strategy = Plain() if kind == "plain" else Strategy(Oracle(texts, kind))
    engine = Engine(toy)
    sessions = [
        engine.add(
            Session(
                prompt,
                sampling=sampling,
                strategy=strategy,
                max_tokens=12,
                processors=[nothing] if sampling is RULED else [],
            )
        )
        for prompt, sampling in zip(prompts, samplings, strict=True)
    ]
    engine.step()
    while engine.busy:
        steps = {event.session: event.step for event in engine.step()}
        drawn = [1 + step.drafted for session, step in steps.items() if session is not sessions[3]]
        picked = len(steps[sessions[3]].tokens) if sessions[3] in steps else 0
        assert toy.trips == [drawn] * bool(drawn) + ["row"] * (2 * picked)
    assert [session.output_ids for session in sessions] == truths
    assert [len(session.logprobs) for session in sessions] == [0, 12, 12, 12]


def test_positions_of_a_draft_are_those_of_its_levels():
    history = History([1] * 7)
    sampler = Sampler(SAMPLED, 0)
    assert list(sampler.request(EMPTY, history).positions) == [7]
    assert sampler.request(Draft([4, 5, 6]), history).positions.tolist() == [7, 8, 9, 10]
    assert sampler.request(Draft([4, 5, 6, 7], [-1, -1, 0, 2]), history).positions.tolist() == [7, 8, 8, 9, 10]


def test_sessions_that_need_verification_node_by_node():
    history = History([1, 2])
    history.count()
    assert Sampler(EDITED, 0).request(EMPTY, history) is None
    bias = Sampler(EDITED, 0).request(EMPTY, history, edits=True).edits.bias
    assert (bias.ids.tolist(), bias.values.tolist()) == ([3], [2.0])
    assert Sampler(EDITED, 0, [nothing]).request(EMPTY, history, edits=True) is None
    assert Sampler(SAMPLED, 0, [nothing]).request(EMPTY, history, edits=True) is None
    assert Sampler(SAMPLED, 0).request(EMPTY, history, edits=True).edits is None
