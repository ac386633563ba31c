"""Calls of Mistral: an array of objects, or a name and its arguments, after a token."""

import pytest
from parsing import MISTRAL, TOOLS, calls_of, events, parser
from parsing import parsed as parsed_as

from dflash.generation.parsers import OutputFormat
from dflash.generation.recovery.special_tokens import special_tokens_of
from dflash.model.text.chat_template import ChatTemplate

LISTED = '{"name": "get_weather", "arguments": {"city": "Oslo"}}', '{"name": "get_time", "arguments": {}, "id": "abcdefghi"}'
BOTH = [("get_weather", '{"city": "Oslo"}'), ("get_time", "{}")]


def parsed(text, *args, **settings):
    return parsed_as(text, *args, calls=MISTRAL, reasoning="none", **settings)


class Vocabulary:
    """Control tokens, of which two belong to calls."""

    control_ids = frozenset([2, 5, 6, 7])

    def id_of(self, text):
        return {"</s>": 2, "[TOOL_CALLS]": 5, "[ARGS]": 6, "[IMG]": 7}.get(text)


def test_control_tokens_of_calls_are_visible():
    """`EmptyRetry` masks the others."""
    output_format = OutputFormat.of(ChatTemplate("", tokens={}), TOOLS, reasoning="none", tool=MISTRAL)
    found = output_format.with_calls(special_tokens_of(Vocabulary()), Vocabulary())
    assert found.call == (5, 5)
    assert found.control == found.silent == Vocabulary.control_ids - output_format.tokens(Vocabulary())
    assert {2, 7} <= found.control
    assert 5 not in found.control


@pytest.mark.parametrize(
    "text",
    [
        f"[TOOL_CALLS] [{LISTED[0]}, {LISTED[1]}]",
        f"[TOOL_CALLS][{LISTED[0]},\n{LISTED[1]} ]",
        f"[TOOL_CALLS][{LISTED[0]}, {LISTED[1]}",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]get_time[ARGS]{}',
        '[TOOL_CALLS] get_weather [ARGS] {"city": "Oslo"} [TOOL_CALLS]get_time[CALL_ID]abcdefghi[ARGS]{}',
        f'[TOOL_CALLS]get_weather[ARGS]{{"city": "Oslo"}}[TOOL_CALLS] [{LISTED[1]}]',
    ],
)
def test_calls_after_content_are_parsed_at_any_split_of_the_text(text):
    output = parsed("Now. " + text)
    assert calls_of(output) == BOTH
    assert output.content.strip() == "Now."
    assert all(call.complete for call in output.tool_calls)
    assert events([*text], calls=MISTRAL) == events([text], calls=MISTRAL)


@pytest.mark.parametrize(
    "text",
    [
        "[TOOL_CALLS]",
        "[TOOL_CALLS] none",
        "[TOOL_CALLS] [",
        "[TOOL_CALLS] []",
        "[TOOL_CALLS]get_time{}",
        "[TOOL_CALLS]get_time[ARGS]x",
        "[TOOL_CALLS]get_time[CALL_ID][ARGS]",
        "[TOOL_CALLS][ARGS]{}",
        "use [TOOL_CALLS",
        "a [list], [ARGS]{}",
    ],
)
def test_what_stays_text(text):
    output = parsed(text)
    assert (output.content, output.tool_calls) == (text, [])
    assert events([*text], calls=MISTRAL) == events([text], calls=MISTRAL)


def test_calls_of_functions_that_were_not_offered():
    for text in ('[TOOL_CALLS] [{"name": "none", "arguments": {}}]', "[TOOL_CALLS]none[ARGS]{}"):
        assert calls_of(parsed(text)) == [("none", "{}")]
        assert parsed(text, offered_only=True).content == text


@pytest.mark.parametrize("head", ['[TOOL_CALLS] [{"name": "get_time", "arguments": ', "[TOOL_CALLS]get_time[ARGS]"])
def test_a_call_that_the_run_cuts_is_not_closed(head):
    for arguments in ('{"a": [1', '{"a": "x\\'):
        output = parsed(head + arguments, cut=True)
        assert calls_of(output) == [("get_time", arguments)]
        assert not output.tool_calls[0].complete
    for cut in range(12, 19):
        assert parsed(head[:cut], cut=True) == parsed(""), "the start of a call is no text"


def test_arguments_are_passed_on_while_they_are_written():
    one = parser(calls=MISTRAL, reasoning="none")
    assert one.push("[TOOL_CALLS]get_time") == []
    names = [type(event).__name__ for event in one.push('[ARGS]{"a')]
    assert names == ["CallStart", "ArgumentsDelta"]
    assert [event.text for event in one.push('": 1')] == ['": 1']
