"""Two recoveries at a time, in either order, on every path; and all of them while sessions come and go."""

from itertools import permutations

import numpy as np
import pytest
from toy import Toy
from watching import WAYS, script, way, written

from dflash.decode.drafting.drafter import Plain
from dflash.decode.engine import Engine
from dflash.decode.recoveries.empty_retry import EmptyRetry
from dflash.decode.recoveries.loop_guard import LoopGuard
from dflash.decode.recoveries.min_tokens import MinTokens
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.decode.special_tokens import SpecialTokens
from dflash.generation.recovery.tool_stall import ToolStall

PROMPT = [12, 8, 7, 4]
END, BLANK, COLON, OPEN, CLOSE, NAME, WORD = range(7)
SAID = [WORD, 9, WORD, COLON]
MARKS = SpecialTokens(silent=frozenset([BLANK]), call=(OPEN, CLOSE))
RECOVERIES = {
    "empty": EmptyRetry(),
    "stall": ToolStall((OPEN, NAME), ((COLON,),)),
    "loop": LoopGuard(same=0, min_period=2, max_period=3, count=3),
    "min": MinTokens(2),
    "long min": MinTokens(6),
    "short loop": LoopGuard(same=2, max_period=0),
}


def wanted(text):
    """Logits: an announcement and the end; a call that is open goes on in circles."""
    logits = np.zeros(13)
    if OPEN in text:
        logits[[9, 10][text[-1] == 9]] = 9
    else:
        logits[SAID[len(text)] if len(text) < len(SAID) else END] = 9
        logits[11 if text[-1:] != [11] else 10] = 5
    return logits


class Agent(Toy):
    """Wants the end at once whenever it reads draft tokens."""

    def __init__(self, *, wavers, **arguments):
        super().__init__(**arguments)
        self.wavers, self.before_forward = wavers, self.look

    def look(self, spans):
        self.drafted = any(not span.prefill and len(span.tokens) > 1 for span in spans)

    def expect(self, memory, text):
        new = text[len(PROMPT) :]
        logits = wanted(new)
        if self.wavers and self.drafted and not new:
            logits[END] = 99
        return logits.astype(np.float32)


def expected(names):
    """The text by the recoveries' definitions, token by token."""
    least = max([RECOVERIES[name].n for name in names if "min" in name], default=0)
    text, stalled = [], False
    while len(text) < 40:
        logits = wanted(text)
        if len(text) < least:
            logits[END] = -np.inf
        token = int(logits.argmax())
        if token == END and "stall" in names and text[-1] == COLON and not stalled:
            text, stalled = [*text, OPEN, NAME], True
            continue
        text.append(token)
        if token == END:
            break
        if "loop" in names and any(text[-3 * p :] == text[-p:] * 3 for p in (2, 3) if len(text) >= 3 * p):
            break
        if "short loop" in names and text[-2:] == [token] * 2:
            break
    return text


@pytest.mark.parametrize("names", list(permutations(RECOVERIES, 2)), ids=" | ".join)
@pytest.mark.parametrize("kind", WAYS)
def test_two_at_a_time(kind, names):
    truth = expected(names)
    strategy = way(kind, [*PROMPT, *truth], size=4)
    for name in names:
        strategy |= RECOVERIES[name]
    toy = Agent(wavers="empty" in names)
    session = written(toy, PROMPT, strategy, eos=[END], special_tokens=MARKS)
    done = [each.recovery for each in session.interventions]
    if kind != "plain" and "empty" in names and not any("min" in name for name in names):
        assert done.pop(0) == "EmptyRetry"
    assert session.output_ids == truth
    assert done.count("ToolStall") == (OPEN in truth)
    assert done.count("LoopGuard") == (session.finish_reason == "length" and len(truth) < 40)


def test_what_holds_for_the_first_try_holds_for_the_second():
    """The least length is reached by tokens that are thrown away then."""
    toy = Agent(wavers=False)
    toy.expect = lambda memory, text: [[0, 9, 0], [9, 0, 5]][len(text) >= (6 if toy.drafted else 4)] + [0] * 10
    for names in permutations(["empty", "min"]):
        strategy = way("right", [*PROMPT, BLANK, BLANK, END])
        for name in names:
            strategy |= RECOVERIES[name]
        session = written(toy, PROMPT, strategy, eos=[END], special_tokens=MARKS)
        assert session.output_ids == [2, 2, END]
        assert [each.action for each in session.interventions] == ["restart", "mask", "mask"]


def test_a_thousand_sessions_that_come_and_go():
    rng = np.random.default_rng(11)
    toy = Agent(wavers=True, slots=4, pages=7)
    engine, sessions = Engine(toy, chunk=5), []
    names = list(RECOVERIES)
    while len(sessions) < 1000 or engine.busy:
        if len(sessions) < 1000 and rng.random() < 0.8:
            chosen = rng.permutation(names)[: rng.integers(0, 5)]
            strategy = way(rng.choice(WAYS), [*PROMPT, *SAID, END], size=int(rng.integers(1, 9)))
            for name in chosen:
                strategy |= RECOVERIES[name]
            sampling = Sampling(temperature=float(rng.choice([0.0, 3.0])), seed=1)
            settings = {"max_tokens": int(rng.integers(0, 40)), "sampling": sampling, "eos": [END], "special_tokens": MARKS}
            sessions.append(engine.add(Session(PROMPT, strategy=strategy, **settings)))
        if sessions and rng.random() < 0.3:
            sessions[-int(rng.integers(1, 9)) % len(sessions)].cancel()
        engine.step()
    reasons = [session.finish_reason for session in sessions]
    assert set(reasons) == {"stop", "length", "cancelled"}
    assert 100 < reasons.count("cancelled") < 900
    actions = {each.action for session in sessions for each in session.interventions}
    assert actions == {"restart", "inject", "cut", "mask"}
    for session in sessions:
        assert [token for step in session.steps for token in step.tokens] == session.output_ids
        assert (session.state, session.drafter_state, session.prompt_snapshot, session.held_steps) == (None, None, None, [])
    assert toy.leaked == (0, 0, 0)


def test_they_are_off_until_asked_for():
    assert Plain().recoveries == ()
    session = written(Agent(wavers=False), PROMPT, Plain(), eos=[END], special_tokens=MARKS)
    assert (session.output_ids, session.interventions, session.recovery_states) == ([*SAID, END], [], [])


def looped(kind, said, recoveries, text):
    """Announces in circles; no token marks a call."""
    toy, strategy = Toy(law=script(len(PROMPT), said, END)), way(kind, [*PROMPT, *text])
    for recovery in recoveries:
        strategy |= recovery
    return written(toy, PROMPT, strategy, eos=[END])


@pytest.mark.parametrize("kind", WAYS)
def test_interventions_that_a_cut_undoes_are_not_recorded(kind):
    """The circle is complete before the announcement ends."""
    text = [WORD, 9] * 3
    recoveries = [ToolStall((OPEN, NAME), ((COLON,),)), LoopGuard(same=0, min_period=2, max_period=2)]
    for order in permutations(recoveries):
        session = looped(kind, [*text, COLON], order, [*text, COLON, END])
        assert (session.output_ids, session.finish_reason) == (text, "length")
        assert [each.recovery for each in session.interventions] == ["LoopGuard"]


@pytest.mark.parametrize("kind", WAYS)
def test_a_circle_through_what_was_injected(kind):
    """The end that was taken away is no part of it."""
    text = [OPEN, NAME, COLON] * 3
    recoveries = [ToolStall((OPEN, NAME), ((COLON,),)), LoopGuard(same=0, min_period=3, max_period=3)]
    for order in permutations(recoveries):
        session = looped(kind, [*text[:6], END, END, *text[8:], WORD], order, text)
        assert (session.output_ids, session.finish_reason) == (text, "length")
        assert [each.recovery for each in session.interventions] == ["ToolStall", "LoopGuard"]
