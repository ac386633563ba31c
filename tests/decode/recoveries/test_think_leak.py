"""A call inside reasoning ends the run before it; any other call does not."""

import pytest
from toy import Toy
from watching import WAYS, script, way, written

from dflash.decode.recoveries.think_leak import ThinkLeak
from dflash.decode.special_tokens import SpecialTokens

PROMPT = [12, 8, 7, 4]
END, OPEN, CLOSE, THINK, THOUGHT, WORD, OTHER = range(7)
MARKS = SpecialTokens(call=(OPEN, CLOSE), think=(THINK, THOUGHT))


def ended(kind, text, prompt=PROMPT, marks=MARKS):
    toy = Toy(law=script(len(prompt), text, END))
    strategy = way(kind, [*prompt, *text, END]) | ThinkLeak()
    session = written(toy, prompt, strategy, eos=[END], special_tokens=marks)
    return session, len(toy.forwards)


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("n", [0, 1, 6])
def test_a_call_inside_reasoning(kind, n):
    said = [WORD, OTHER] * n
    for prompt, text in ((PROMPT, [THINK, *said]), ([*PROMPT, THINK, WORD], said)):
        session, n_forwards = ended(kind, [*text, OPEN, WORD, CLOSE, THOUGHT], prompt)
        assert (session.output_ids, session.finish_reason) == (text, "length")
        (done,) = session.interventions
        assert (done.recovery, done.action) == ("ThinkLeak", "cut")
        assert str(len(text)) in done.reason
        # the prompt, then the steps: none after the one that holds the call
        assert n_forwards == len(session.steps)


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize(
    "text",
    [
        [OPEN, WORD, CLOSE],
        [THINK, WORD, THOUGHT, OPEN, WORD, CLOSE, OPEN, WORD, CLOSE],
        [THINK, WORD, THOUGHT, WORD],
        [THINK, WORD, CLOSE, WORD],
    ],
    ids=["no reasoning", "after it", "no call", "a close alone"],
)
def test_anything_else_is_left_alone(kind, text):
    session, _ = ended(kind, text)
    assert (session.output_ids, session.interventions) == ([*text, END], [])


def test_reasoning_of_an_earlier_message_has_ended():
    session, _ = ended("plain", [OPEN, WORD, CLOSE], [THINK, WORD, END, WORD])
    assert session.finish_reason == "stop"
    assert ended("plain", [OPEN, WORD, CLOSE], [END, THINK, WORD])[0].finish_reason == "length"


@pytest.mark.parametrize("marks", [SpecialTokens(call=(OPEN, CLOSE)), SpecialTokens(think=(THINK, THOUGHT))], ids=str)
def test_a_model_without_these_tokens(marks):
    session, _ = ended("plain", [THINK, OPEN, WORD], marks=marks)
    assert (session.finish_reason, session.recovery_states) == ("stop", [])
