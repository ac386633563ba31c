"""Synthetic acceptance: the mean is met, whatever the target predicts; tokens are those of the drafts."""

from dataclasses import dataclass

import numpy as np
import pytest
from toy import Toy, finish

import dflash
from dflash.__main__ import main
from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.drafter import Drafter, Strategy
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.decode.verifiers import AcceptanceSchedule, RejectionSampling, SyntheticAcceptance, golden, parse_length
from dflash.decode.verifiers.base import accepted_ahead
from dflash.errors import RequestError

TREE = [-1, -1, 0, 0, 1, 2, 5, 4, 6, 8]
"""Parents; node 9 is the only one of depth 6."""

LENGTHS = [
    SyntheticAcceptance(1.0),
    SyntheticAcceptance(2.52),
    SyntheticAcceptance(3.999),
    SyntheticAcceptance(4),
    SyntheticAcceptance(2.52, "multinomial"),
    SyntheticAcceptance(1.2, "multinomial"),
    SyntheticAcceptance((0.9, 0.61, 0.33, 0.33)),
]


@dataclass(frozen=True)
class FixedDrafts(Drafter):
    """Drafts tokens that the target almost never predicts."""

    parents: tuple[int, ...]

    def start(self, session, model, snapshot=None):
        return _FixedState(self, session)


class _FixedState:
    capture = ()

    def __init__(self, drafter, session):
        self.parents, self.session = drafter.parents, session

    def propose(self, max_draft):
        n = len(self.session.token_ids)
        return Draft([(7 * n + 5 * i) % 13 for i in range(len(self.parents))], list(self.parents)).cut(max_draft)

    def observe(self, step, out, rows):
        pass

    def snapshot(self):
        return None

    def close(self):
        pass


@pytest.mark.parametrize("acceptance", LENGTHS, ids=str)
@pytest.mark.parametrize("parents", [list(range(-1, 5)), TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("seed", [0, 1, 7777])
def test_the_mean_of_two_thousand_steps(acceptance, parents, seed):
    schedule, draft = AcceptanceSchedule(acceptance, seed), Draft(range(len(parents)), parents)
    taken = np.array([len(schedule.take(draft).tokens) for _ in range(2000)])
    assert 1 + taken.mean() == pytest.approx(acceptance.mean, abs=0.01)
    for place, share in enumerate(acceptance.shares(6)):
        assert (taken > place).mean() == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("acceptance", [LENGTHS[1], LENGTHS[4]], ids=str)
@pytest.mark.parametrize("parents", [tuple(range(-1, 5)), tuple(TREE)], ids=["chain", "tree"])
@pytest.mark.parametrize("n_sessions", [1, 5])
def test_steps_of_an_engine(acceptance, parents, n_sessions):
    toy = Toy()
    engine = Engine(toy)
    strategy = Strategy(FixedDrafts(parents), verifier=acceptance)
    sessions = [
        engine.add(Session([1, 2, 3], sampling=Sampling(seed=seed), strategy=strategy, max_tokens=500))
        for seed in range(n_sessions)
    ]
    finish(engine)
    steps = [step for session in sessions for step in session.steps[:-1] if step.tokens]
    assert np.mean([len(step.tokens) for step in steps]) == pytest.approx(acceptance.mean, abs=0.03)
    for step in steps:
        assert step.tokens[: step.accepted] == step.draft.tokens[[row - 1 for row in step.rows[1:]]].tolist()
        assert len(step.tokens) == step.accepted + 1
    engine.close()
    assert toy.leaked == (0, 0, 0)


def test_match_expected_takes_the_numbers_beside_the_mean():
    schedule, draft = AcceptanceSchedule(SyntheticAcceptance(3.25), seed=0), Draft(range(9))
    assert {len(schedule.take(draft).tokens) for _ in range(100)} == {2, 3}


def test_multinomial_spreads_by_one_around_the_mean():
    schedule, draft = AcceptanceSchedule(SyntheticAcceptance(7, "multinomial"), seed=0), Draft(range(15))
    taken = [len(schedule.take(draft).tokens) for _ in range(4000)]
    assert np.std(taken) == pytest.approx(1, abs=0.05)
    assert np.mean(taken) == pytest.approx(6, abs=0.01)


def test_a_short_draft_is_taken_whole():
    schedule = AcceptanceSchedule(SyntheticAcceptance(9.5), seed=3)
    assert [schedule.take(Draft([4, 5])).tokens for _ in range(5)] == [[4, 5]] * 5


@pytest.mark.parametrize(
    ("length", "method"),
    [
        *((length, "match-expected") for length in (0.5, float("nan"), float("inf"), "2", True, (0.5, 0.7), (1.1,), ())),
        *((length, "multinomial") for length in (0.5, (0.5,))),
        (2, "mean"),
    ],
)
def test_what_is_refused(length, method):
    with pytest.raises(RequestError, match=r"^acceptance: "):
        SyntheticAcceptance(length, method)


def test_published_acceptance_lengths_are_found():
    found = golden("qwen3.8-27b", "mtp", k=3, thinking=True)
    assert (found.mean, dflash.golden("qwen3.8-27b", "mtp", k=3).mean) == (2.52, 3.28)
    assert "golden" in str(found)
    assert "2.52" in str(found)
    with pytest.raises(RequestError, match=r"no length was published for qwen3.8-27b mtp k=7, only for .*k=3 thinking"):
        golden("qwen3.8-27b", "mtp", k=7)
    with pytest.raises(RequestError, match="no length was published for demo dflash"):
        golden("demo", "dflash", k=15)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2.52", SyntheticAcceptance(2.52)),
        ("multinomial:3", SyntheticAcceptance(3.0, "multinomial")),
        ("0.9,0.5", SyntheticAcceptance((0.9, 0.5))),
        ("golden:qwen3.8-27b:mtp:3:thinking", golden("qwen3.8-27b", "mtp", k=3, thinking=True)),
    ],
)
def test_acceptance_lengths_are_read_from_text(text, meant):
    assert parse_length(text) == meant


@pytest.mark.parametrize("acceptance", LENGTHS, ids=str)
def test_the_number_of_accepted_tokens_is_known_before_the_forward(acceptance):
    schedule = acceptance.start(7)
    for n in (3, 5, 1) * 20:
        known = [schedule.accepts(n), schedule.accepts(n), accepted_ahead(schedule, Draft(range(n)))]
        assert known == [len(schedule.take(Draft(range(n))).tokens)] * 3
    assert accepted_ahead(schedule, Draft(range(10), TREE)) is None
    assert accepted_ahead(schedule, Draft([])) == accepted_ahead(None, Draft([4])) == -1
    assert accepted_ahead(RejectionSampling(), Draft([4])) is None


@pytest.mark.parametrize("text", ["", "x", "golden", "golden:demo:mtp:3", "golden:qwen3.8-27b:mtp:x", "uniform:2", "0.9,"])
def test_misspelled_acceptance_lengths_are_refused(text):
    with pytest.raises(RequestError, match=r"^acceptance: "):
        parse_length(text)


@pytest.mark.parametrize(
    ("text", "reason"), [("0", "at least 1"), ("0.5,0.9", "must fall"), ("uniform:2", "method must be")]
)
def test_numbers_out_of_range_say_so(text, reason):
    with pytest.raises(RequestError, match=f"^acceptance: .*{reason}"):
        parse_length(text)


def test_measurements_without_strategies_refuse_it(capsys):
    assert main(["bench", "demo", "--synthetic-acceptance", "2"]) == 1
    assert "--synthetic-acceptance: not used by measurements without --strategies" in capsys.readouterr().err


def test_compare_marks_it_and_judges_no_text(lm):
    assumed = Strategy("lookup", verifier=SyntheticAcceptance(1.5))
    found = dflash.compare(lm, ["a = 1\na = 1\na = 1\na ="], ["plain", assumed], max_tokens=24)
    assert found.same_text
    assert "synthetic acceptance 1.5 (assumed)" in repr(found)
    assert found.rows[1].generations[0].warnings == ["synthetic acceptance 1.5 (assumed): the text is meaningless"]
