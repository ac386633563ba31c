"""How an answer is written: parts without tags, tokens by their origin."""

import io

import pytest
from terminals import styles, without_codes

from dflash.cli.answer.origin_runs import OriginRuns
from dflash.cli.answer.pen import COLORS
from dflash.cli.answer.writer import BEGIN, CUT, END, AnswerWriter
from dflash.decode.session import Step
from dflash.generation.completion import Delta
from dflash.generation.parsers.events import ArgumentsDelta, CallEnd, CallStart, ContentDelta, ReasoningDelta

QUESTION = [{"role": "user", "content": "Write a function that returns the greatest common divisor of a and b."}]
TOOL = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": TOOL}]
WEATHER = [{"role": "user", "content": "What is the weather in Oslo?"}]
TAGS = "<think", "</think", "<tool_call", "</tool_call", "<function", "<parameter", "<|im_end"

THOUGHT = [ReasoningDelta("I "), ReasoningDelta("think.\n"), ContentDelta("\n\nYes"), ContentDelta(".\n")]
CALLS = [ContentDelta("Let me see:\n\n"), CallStart(0, "a", "look"), ArgumentsDelta(0, '{"x": '), ArgumentsDelta(0, "1}")]
CALLS += [CallEnd(0), ContentDelta("\n"), CallStart(1, "b", "look"), ArgumentsDelta(1, '{"x"')]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def colors(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def written(events, reasoning="dim", file=None, tokenizer=None, step=None):
    writer = AnswerWriter(file or io.StringIO(), reasoning, tokenizer)
    for event in events:
        writer.write(Delta("", (), step or Step([]), [event]))
    writer.finish()
    return writer._pen._file.getvalue()


def test_reasoning_is_set_apart_and_the_answer_keeps_its_text():
    assert written(THOUGHT) == f"{BEGIN}\nI think.\n{END}\n\nYes.\n"
    assert written(THOUGHT, "hide") == "Yes.\n"
    assert written(THOUGHT, "fold") == "(reasoning, 2 words)\n\nYes.\n"
    assert written([ContentDelta("\n a\n\n")]) == "\n a\n\n"
    assert written([]) == ""


def test_reasoning_is_dim_on_a_terminal():
    shown = styles(written(THOUGHT, file=Terminal()))
    assert [text for style, text in shown if style == "2"] == [f"{BEGIN}\n", "I ", "think.", f"\n{END}\n"]
    assert "".join(text for style, text in shown if not style) == "\nYes.\n"


def test_folded_reasoning_counts_in_one_line():
    shown = written(THOUGHT, "fold", file=Terminal())
    assert without_codes(shown) == "(reasoning, 2 words)\n\nYes.\n"
    assert "(reasoning, 1 word)" in shown


@pytest.mark.parametrize("reasoning", ["dim", "fold", "hide"])
def test_an_output_that_ends_inside_its_reasoning_says_so(reasoning):
    assert written(THOUGHT[:2], reasoning).endswith(f"{CUT}\n")


def test_calls_stand_on_lines_of_their_own():
    first = 'tool call: look {"x": 1}\n'
    assert written(CALLS) == f'Let me see:\n\n{first}tool call: look {{"x" (not finished)\n'


@pytest.mark.parametrize("strategy", ["plain", "dflash", "ddtree:22"])
@pytest.mark.parametrize(("prompt", "tools"), [(QUESTION, None), (WEATHER, TOOLS)], ids=["code", "call"])
def test_the_origins_change_no_text_and_no_tag_is_shown(lm, strategy, prompt, tools):
    """Marks and rejected draft tokens taken away, the text is that without origins."""
    settings = {"strategy": strategy, "tools": tools, "max_tokens": 64, "recover": "min:60"}
    with lm.stream(prompt, **settings) as stream:
        deltas = list(stream)
    plain, shown = AnswerWriter(io.StringIO(), "dim"), AnswerWriter(Terminal(), "dim", lm.tokenizer)
    for delta in deltas:
        plain.write(delta)
        shown.write(delta)
    shown._origins.counts.clear()
    for writer in (plain, shown):
        writer.finish()
    text = shown._pen._file.getvalue()
    rejected = [part for style, part in styles(text) if COLORS["rejected"] in style]
    others = "".join(part for style, part in styles(text) if COLORS["rejected"] not in style)
    assert others.replace("(im_end)", "").rstrip("\n") == plain._pen._file.getvalue().rstrip("\n")
    assert [tag for tag in TAGS if tag in text] == [], text
    assert bool(rejected) == any(delta.step.accepted < delta.step.drafted for delta in deltas)


def test_every_letter_has_the_origin_of_its_token(lm):
    """A text without tags: runs that are not rejected, letter by letter, are those of the tokens."""
    with lm.stream("def gcd(a, b):", strategy="dflash", max_tokens=48) as stream:
        deltas = list(stream)
    origins, found = OriginRuns(lm.tokenizer), []
    for delta in deltas:
        origins.push(delta.step)
        for event in delta.events:
            found += [
                (letter, run.origin) for run in origins.take(event.text) for letter in run.text if run.origin != "rejected"
            ]
    wanted = []
    for delta in deltas:
        step = delta.step
        for i, token in enumerate(step.tokens):
            rest = "corrected" if step.accepted < step.drafted else "bonus"
            wanted += [(letter, "accepted" if i < step.accepted else rest) for letter in lm.tokenizer.decode([token])]
    assert found == wanted
    assert origins.counts["accepted"] == sum(delta.step.accepted for delta in deltas)
    assert origins.counts["rejected"] == sum(delta.step.drafted - delta.step.accepted for delta in deltas)


def test_marks_stand_in_for_colours(lm, monkeypatch):
    """Also on a terminal of a user who wants no colours."""
    with lm.stream("def gcd(a, b):", strategy="dflash", max_tokens=24, recover="min:4") as stream:
        deltas = list(stream)
    monkeypatch.setenv("NO_COLOR", "1")
    texts = []
    for file in (io.StringIO(), Terminal()):
        writer = AnswerWriter(file, "dim", lm.tokenizer)
        for delta in deltas:
            writer.write(delta)
        writer.finish()
        texts.append(file.getvalue())
    assert texts[0] == texts[1]
    assert "\x1b" not in texts[0]
    assert f"[{writer._origins.counts['accepted']} accepted]" in texts[0]
    assert texts[0].count("~~") >= 4


def test_a_token_of_a_recovery_has_a_style_of_its_own(lm):
    first, second = lm.encode("one two")
    delta = Delta("one two", (), Step([first, second], injected=1), [ContentDelta("one two")])
    texts = []
    for file in (io.StringIO(), Terminal()):
        writer = AnswerWriter(file, "dim", lm.tokenizer)
        writer.write(delta)
        writer.finish()
        texts.append(file.getvalue())
    assert texts[0] == "{one} two\n\n1 bonus  {1 injected}\n"
    assert (COLORS["injected"], "one") in styles(texts[1])


@pytest.mark.parametrize("columns", [30, 44, 60, 80])
def test_the_legend_breaks_between_its_entries(lm, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    writer = AnswerWriter(Terminal(), "dim", lm.tokenizer)
    names = ("accepted", "bonus", "corrected", "injected", "rejected")
    writer._origins.counts.update({name: 10**number for number, name in enumerate(names)})
    writer.finish()
    lines = without_codes(writer._pen._file.getvalue()).splitlines()
    assert max(map(len, lines)) <= columns
    assert "10,000 rejected" in "  ".join(lines)
