"""Free text of custom tools, out of JSON arguments in parts."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.serve.responses.input_text import InputText
from dflash.serve.responses.tools import input_arguments

TEXTS = st.text(st.sampled_from('ab\\"\n\tu{}😀é\x00') | st.characters(exclude_categories=["Cs"]), max_size=30)


def read(pieces, *, complete=True):
    reader = InputText()
    texts = [reader.push(piece) for piece in pieces]
    return [*texts, reader.finish(complete=complete)]


def split(text, places):
    ends = sorted({place % (len(text) + 1) for place in places})
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.lists(st.integers(0, 200), max_size=6), st.booleans(), st.sampled_from(["", ', "more": [1, "}"]']))
def test_any_split_gives_the_text(text, places, ascii_only, more):
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)[:-1] + more + "}"
    parts = read(split(arguments, places))
    assert "".join(parts) == text
    assert parts[-1] == "", "nothing is left for the end"


@settings(max_examples=100, deadline=None)
@given(TEXTS, st.integers(0, 200))
def test_a_cut_call_gives_a_beginning_of_the_text(text, place):
    arguments = json.dumps({"input": text})
    assert text.startswith("".join(read([arguments[: place % len(arguments)]], complete=False)))


def test_the_text_arrives_while_it_is_written():
    assert read(['{"input": "*** Be', "gin", '\\n"', "}"]) == ["*** Be", "gin", "\n", "", ""]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"why": 1, "input": "x"}', "x"),
        ('{"patch": "x"}', '{"patch": "x"}'),
        ('{"input": 5}', '{"input": 5}'),
        ("[1]", "[1]"),
        ("{}", "{}"),
        ('{"input', '{"input'),
        (r'{"input": "a\d\nb"}', "a\\d\nb"),
        (r'{"input": "\ud83dx"}', "\ufffdx"),
        (r'{"input": "a\uZZZZ"}', r"a\uZZZZ"),
        (r'{"input": "\ud83d\u12"}', "\ufffd\\u12"),
        ('{"input"' + " " * 70 + ': "x"}', "x"),
    ],
)
def test_other_arguments_are_passed_on(arguments, text):
    assert "".join(read(list(arguments))) == "".join(read([arguments])) == text


def test_arguments_of_past_calls_are_read_back():
    assert read([input_arguments('say "é"')]) == ['say "é"', ""]


def test_long_arguments_take_linear_time():
    """Characters are looked at a bounded number of times, also if the text is missing or has a broken escape."""
    for start in ('{"x": "', '{"input": "', r'{"input": "\uZ'):
        reader = InputText()
        reader.push(start)
        for _ in range(1000):
            reader.push("word \\n")
            assert len(reader._rest) < 100
