"""Content blocks: the folded stream is the whole content, however the completion was split."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from message_stream import fold_blocks

from dflash.generation.parsers import ArgumentsDelta, CallEnd, CallStart, ContentDelta, ReasoningDelta
from dflash.serve.anthropic.blocks import SIGNATURE, BlockStream, content_blocks

SPACES = st.text(" \n", max_size=3)
WORDS = st.text("ab \n", max_size=8)
INPUT = st.sampled_from(['{"a": 1.0, "b": "é"}', "{}", '{"a": [1, {"b": null}]}'])


def streamed(events):
    stream = BlockStream()
    return [*stream.push(events), *stream.end()]


def split(draw, kind, text, *place):
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [kind(*place, text[a:b]) for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def completions(draw):
    """Events of a completion with any number of calls, the last of which may be cut off."""
    events = split(draw, ReasoningDelta, draw(WORDS))
    n_calls = draw(st.integers(0, 3))
    is_cut = draw(st.booleans())
    for n in range(n_calls):
        events += split(draw, ContentDelta, draw(st.one_of(SPACES, WORDS)))
        text = draw(INPUT)
        cut = is_cut and n == n_calls - 1
        text = text[: draw(st.integers(0, len(text) - 1))] if cut else text
        events += [CallStart(n, f"call_{n}", "ls"), *split(draw, ArgumentsDelta, text, n)]
        events += [] if cut else [CallEnd(n)]
    return events if is_cut and n_calls else events + split(draw, ContentDelta, draw(WORDS))


@given(completions())
def test_a_folded_stream_is_the_whole_content(events):
    assert fold_blocks(streamed(events)) == content_blocks(events)


@given(completions(), st.integers(0, 99))
def test_the_events_do_not_depend_on_steps(events, place):
    stream, place = BlockStream(), place % (len(events) + 1)
    parts = [*stream.push(events[:place]), *stream.push(events[place:]), *stream.end()]
    assert parts == streamed(events)


@given(completions())
def test_nothing_is_lost_but_blank_blocks(events):
    written = "".join(event.text for event in events if isinstance(event, ContentDelta)).split()
    shown = "".join(block["text"] for block in content_blocks(events) if block["type"] == "text").split()
    assert "".join(shown) == "".join(written)


def test_the_blocks_of_a_stream():
    events = [
        *[ReasoningDelta("h"), ReasoningDelta("m")],
        *[ContentDelta("\n"), ContentDelta("Look.\n")],
        *[CallStart(0, "call_0", "ls"), ArgumentsDelta(0, "{"), ArgumentsDelta(0, '"n": 1.0}'), CallEnd(0)],
        ContentDelta("\n"),
        *[CallStart(1, "call_1", "ls"), ArgumentsDelta(1, '{"pa')],
    ]
    kinds = [event.get("delta", event)["type"].removeprefix("content_block_") for event in streamed(events)]
    assert kinds == [
        *["start", "thinking_delta", "thinking_delta", "signature_delta", "stop"],
        *["start", "text_delta", "stop"],
        *["start", "input_json_delta", "input_json_delta", "stop"],
        *["start", "input_json_delta", "stop"],
    ]
    assert content_blocks(events) == [
        {"type": "thinking", "thinking": "hm", "signature": SIGNATURE},
        {"type": "text", "text": "\nLook.\n"},
        {"type": "tool_use", "id": "call_0", "name": "ls", "input": {"n": 1.0}},
        {"type": "tool_use", "id": "call_1", "name": "ls", "input": {"__unparsedToolInput": {"raw": '{"pa', "len": 4}}},
    ]


@pytest.mark.parametrize("text", ["", "[1]", '{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', '{"a": ' * 2000, "9" * 5000])
def test_an_input_that_no_response_can_hold_is_shown_as_written(text):
    (block,) = content_blocks([CallStart(0, "call_0", "ls"), ArgumentsDelta(0, text), CallEnd(0)])
    assert block["input"] == {"__unparsedToolInput": {"raw": text, "len": len(text)}}
    json.dumps(block, ensure_ascii=False, allow_nan=False).encode()
