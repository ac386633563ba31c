"""Calls of Llama 3: an object that the message begins with."""

import pytest
from parsing import LLAMA, calls_of, events, parser
from parsing import parsed as parsed_as

CALL, TIME = '{"name": "get_weather", "parameters": {"city": "Oslo"}}', '{"name": "get_time", "parameters": {}}'


def parsed(text, *args, **settings):
    return parsed_as(text, *args, calls=LLAMA, reasoning="none", **settings)


@pytest.mark.parametrize("text", [CALL, f"\n {CALL}\n", f"<|python_tag|>{CALL}", f"Now. <|python_tag|> {CALL}"])
def test_a_call_is_parsed(text):
    output = parsed(text)
    assert calls_of(output) == [("get_weather", '{"city": "Oslo"}')]
    assert output.content.strip() in ("", "Now.")
    assert output.tool_calls[0].complete


def test_keys_in_any_order_and_with_other_names():
    for body in (
        '{"parameters": {"a": 1}, "name": "get_time"}',
        '{"type": "function", "name": "get_time", "arguments": {"a": 1}}',
    ):
        assert calls_of(parsed(body)) == [("get_time", '{"a": 1}')]


def test_calls_after_a_semicolon():
    for between in (";", "; ", " ;\n"):
        assert calls_of(parsed(f"{CALL}{between}{TIME}")) == [("get_weather", '{"city": "Oslo"}'), ("get_time", "{}")]
    assert parsed(f"{CALL}; done").content == "; done"
    assert parsed(f"{CALL};").content == ";"
    assert parsed(f'{CALL}; {{"name": "none", "parameters": {{}}}}').content == '; {"name": "none", "parameters": {}}'


@pytest.mark.parametrize(
    "text",
    [
        f"The call is {CALL}",
        f"One:\n{CALL}",
        '{"name": "none", "parameters": {}}',
        '{"city": "Oslo"}',
        "{",
        "<|python_tag|>print(1)",
        '<|python_tag|>brave_search.call(query="x")',
    ],
)
def test_what_stays_text(text):
    output = parsed(text)
    assert (output.content, output.tool_calls) == (text, [])
    assert events([*text], calls=LLAMA) == events([text], calls=LLAMA)


def test_a_tagged_call_of_a_function_that_was_not_offered():
    text = '<|python_tag|>{"name": "none", "parameters": {}}'
    assert calls_of(parsed(text)) == [("none", "{}")]
    assert parsed(text, offered_only=True).content == text


def test_arguments_are_passed_on_while_they_are_written():
    one = parser(calls=LLAMA, reasoning="none")
    assert one.push('{"name": "get_tim') == []
    assert [type(event).__name__ for event in one.push('e"')] == ["CallStart"]
    assert [event.text for part in (', "parameters": {"a"', ": 1", "}") for event in one.push(part)] == ['{"a"', ": 1", "}"]
    assert [type(event).__name__ for event in one.push("}")] == ["CallEnd"]
