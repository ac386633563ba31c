"""Repeated lines, repeated calls and text after calls end at the same token on every path, unless a grammar binds."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import Toy
from watching import WAYS, script, way, written
from word_grammar import WordGrammar

import dflash
from dflash.decode.grammar.after import AfterToken
from dflash.decode.output_part import OutputPart
from dflash.decode.recoveries.call_limits import CallLimits
from dflash.decode.recoveries.loop_guard import LoopGuard
from dflash.decode.recoveries.repetitions import RepeatedLines
from dflash.decode.special_tokens import SpecialTokens
from dflash.errors import RequestError

PROMPT = [7, 7, 7, 7]
END, BREAK, A, B, RULE, PARAGRAPH, OPEN, CLOSE, THINK, THOUGHT = range(10)
TEXTS = {BREAK: "\n", A: "a", B: " b", RULE: "---", PARAGRAPH: ".\n\n"}
MARKS = SpecialTokens(call=(OPEN, CLOSE), think=(THINK, THOUGHT))
OFF = {"same": 0, "max_period": 0, "lines": 0, "calls": 0}


def detokenize(ids):
    return "".join(TEXTS.get(token, "<>") for token in ids)


def ended(kind, text, *, grammar=None, **limits):
    toy = Toy(law=script(len(PROMPT), text))
    strategy = way(kind, [*PROMPT, *text, END]) | LoopGuard(**{**OFF, **limits})
    session = written(
        toy, PROMPT, strategy, max_tokens=400, eos=[END], special_tokens=MARKS, detokenize=detokenize, grammar=grammar
    )
    return session, toy


def cut_at(kind, text, n, reason, **limits):
    """Check that a text ends after `n` tokens with this reason, and that no forward follows."""
    session, toy = ended(kind, text, **limits)
    assert (session.output_ids, session.finish_reason) == (text[:n], "length")
    assert [(each.recovery, each.action, each.reason) for each in session.interventions] == [("LoopGuard", "cut", reason)]
    assert len(toy.forwards) == len(session.steps)


def left_alone(kind, text, **limits):
    session, _ = ended(kind, text, **limits)
    assert (session.output_ids, session.interventions) == ([*text, END], [])


def equal_lines(text, count, window):
    """Length of the shortest prefix of `text` with so many equal lines among the last ones, by looking at every line."""
    lines, line = [], ()
    for n, token in enumerate(text, 1):
        line = (*line, token)
        if token in (BREAK, PARAGRAPH):
            if {A, B} & {*line}:
                lines.append(line)
                if Counter(lines[-window:])[line] >= count:
                    return n
            line = ()
    return None


@given(st.data())
@settings(max_examples=100)
def test_lines_end_where_the_definition_says(data):
    text = data.draw(st.lists(st.sampled_from([BREAK, BREAK, A, B, RULE, PARAGRAPH]), max_size=60))
    count = data.draw(st.integers(2, 5))
    window = data.draw(st.integers(count, 9))
    end = equal_lines(text, count, window)
    session, _ = ended(data.draw(st.sampled_from(WAYS)), text, lines=count, line_window=window)
    assert session.output_ids == (text[:end] if end is not None else [*text, END])
    assert session.finish_reason == ("length" if end is not None else "stop")


@pytest.mark.parametrize("kind", WAYS)
def test_equal_lines_of_ordinary_text_are_left_alone(kind):
    line, other = [A, B, BREAK], [B, BREAK]
    cut_at(kind, line * 9, 12, "a line came 4 times among the last 4", lines=4, line_window=4)
    cut_at(kind, (line + other) * 9, 18, "a line came 4 times among the last 7", lines=4, line_window=8)
    left_alone(kind, (line + other) * 9, lines=4, line_window=6)
    left_alone(kind, [*[RULE, BREAK] * 40, *[BREAK] * 40], lines=2, line_window=4)


@pytest.mark.parametrize("kind", WAYS)
def test_the_same_call(kind):
    call, other = [OPEN, A, B, CLOSE], [OPEN, B, A, CLOSE]
    cut_at(kind, (call + other) * 4, 20, "the same tool call was made 3 times", calls=3)
    cut_at(kind, [*call, A, A, *call, *call], 14, "the same tool call was made 3 times", calls=3)
    left_alone(kind, [*(call + other) * 2, A, B, CLOSE, A, B, CLOSE], calls=3)


@pytest.mark.parametrize("kind", WAYS)
def test_text_after_a_call(kind):
    call = [OPEN, *[A, B] * 9, CLOSE]
    cut_at(kind, [*[A] * 9, *call, A, B, A, *call, *[A, B] * 9], 56, "4 tokens of text followed a tool call", prose=4)
    left_alone(kind, [*[A] * 9, *call, A, B, A, *call, A, B, A], prose=4)
    left_alone(kind, [*call, THINK, *[A, B] * 9, THOUGHT, *call], prose=4)


def test_only_so_many_calls_are_remembered():
    limits, outside, inside = CallLimits(0, 2, 0), OutputPart.CONTENT, OutputPart.CALL

    def called(n):
        steps = (OPEN, outside, inside), (100 + n, inside, inside), (CLOSE, inside, outside)
        return [reason for step in steps if (reason := limits.feed(*step))]

    for n in range(256):
        assert called(n) == []
    assert called(1) == ["the same tool call was made 2 times"]
    assert called(256) == called(0) == []
    assert called(1)
    assert len(limits._counts) == 256


@pytest.mark.parametrize("kind", WAYS)
def test_it_sleeps_where_a_grammar_binds(kind):
    """The grammar allows A alone between OPEN and CLOSE; outside it the output is free."""
    inner = WordGrammar(lambda path: {END} if path[-1:] == [CLOSE] else {A, CLOSE}, n_vocab=13)
    bound = [OPEN, *[A] * 20, CLOSE]
    text = [A, A, *bound, A, A, *bound, *[A] * 9]
    session, _ = ended(kind, text, same=3, grammar=AfterToken(inner, OPEN, repeats=True))
    assert session.error is None
    assert session.output_ids == text[: 2 + len(bound) + 2 + len(bound) + 3]
    assert session.finish_reason == "length"
    assert ended(kind, text, same=3)[0].output_ids == [A, A, OPEN, A, A, A]


def test_ordinary_text_is_left_alone(lm):
    """The sources and pages of this project: tables, code and lists, none of which is a loop."""
    package = Path(dflash.__file__).parent
    paths = [*(package / "kernels" / "delta").glob("*"), *(package / "serve").glob("*.py"), *(package / "cli").glob("*.py")]
    paths += (package.parent / "docs").glob("*.md")
    guard = LoopGuard()
    ids = [lm.tokenizer.encode(path.read_text(encoding="utf-8"), special=False) for path in paths if path.is_file()]
    assert sum(map(len, ids)) > 50_000
    for text in ids:
        lines = RepeatedLines(guard.lines, guard.line_window, lm.tokenizer.decode)
        assert [reason for token in text if (reason := lines.feed(token))] == []


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"lines": 1}, "lines: must be 0 or at least 2, got 1"),
        ({"calls": -1}, "calls: must be 0 or at least 2, got -1"),
        ({"prose": -1}, "prose: must be 0 or more, got -1"),
        ({"lines": 8, "line_window": 7}, "line_window: must be 8 to 4096, got 7"),
        ({"line_window": 5000}, "line_window: must be 32 to 4096, got 5000"),
    ],
)
def test_what_is_no_limit(limits, message):
    with pytest.raises(RequestError, match=message):
        LoopGuard(**limits)
