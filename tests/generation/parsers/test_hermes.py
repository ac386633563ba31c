"""Calls as JSON objects: arguments are passed on as written."""

import pytest
from parsing import JSON, OPENED, calls_of, events, parser
from parsing import parsed as parsed_as


def parsed(text, *args, **settings):
    return parsed_as(text, *args, calls=JSON, **settings)


def call(body, closing="\n</tool_call>"):
    return f"<tool_call>\n{body}{closing}"


@pytest.mark.parametrize(
    "arguments",
    [
        '{"city": "Oslo"}',
        "{}",
        '{"a":1.0,"b" : 1e400, "c": 12345678901234567890, "d": -0}',
        '{"a": "</tool_call>", "b": "<tool_call>{\\"name\\": \\"get_time\\"}"}',
        '{"a": "\\"}\\\\", "b": {"c": [[], {}, [1, {"d": "]"}]]}}',
        '{"caf\\u00e9": "\\ud83d", "ü": " "}',
        '{\n  "a": 1\n}',
        "null",
        '""',
        "17",
        "[1, 2]",
        "{'a': True}",
        '{"a": [1, 2}',
        '{"a": <b>}',
    ],
)
def test_arguments_are_passed_on_as_written(arguments):
    text = "Now:\n" + call(f'{{"name": "get_weather", "arguments": {arguments}}}') + "\nand"
    output = parsed(text)
    if arguments == '{"a": [1, 2}':  # brackets are counted: the last one of the call belongs to the arguments
        arguments += "}"
    assert calls_of(output) == [("get_weather", arguments)]
    assert output.content == "Now:\n\nand"


def test_keys_in_any_order():
    assert calls_of(parsed(call('{"arguments": {"a": 1}, "id": [{}], "name": "get_time"}'))) == [("get_time", '{"a": 1}')]
    assert calls_of(parsed(call('{"type": "function", "name": "get_time", "id": 7, "arguments": {"a": 1}, "x": {}}'))) == [
        ("get_time", '{"a": 1}')
    ]


def test_of_repeated_arguments_the_first_are_passed_on():
    body = '{"name": "get_time", "arguments": {"a": 1}, "name": "none", "arguments": {"b": 2}}'
    assert calls_of(parsed(call(body))) == [("get_time", '{"a": 1}')]


def test_a_call_without_arguments():
    output = parsed(call('{"name": "get_time"}') + call('{"name": "get\\u005ftime" }', "</tool_call>"))
    assert calls_of(output) == [("get_time", "{}")] * 2


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name": "get_time", "arguments": {"a": 1}', '{"a": 1}'),
        ('{"name": "get_time", "arguments": {"a": 1', '{"a": 1\n'),
        ('{"name": "get_time", "arguments": {"a": 1} oops', '{"a": 1}'),
        ('{"name": "get_time", "arguments"= {"a": 1}}', '= {"a": 1}}\n'),
        ('{"name": "get_time"', ""),
    ],
)
def test_broken_json_is_not_repaired(body, arguments):
    output = parsed(call(body) + "x")
    assert calls_of(output) == [("get_time", arguments)]
    assert output.content == "x"


@pytest.mark.parametrize("key", ["arguments", "parameters"])
def test_arguments_under_another_key_or_as_json_text(key):
    for written in ('{"a": "<b>"}', '"{\\"a\\": \\"<b>\\"}"', '"{\\"a\\":\\n \\"\\\\u003cb>\\"}"'):
        for body in (f'{{"name": "get_time", "{key}": {written}}}', f'{{"{key}": {written}, "name": "get_time"}}'):
            (one,) = parsed(call(body)).tool_calls
            assert one.parsed == {"a": "<b>"}
            parts = [*call(body)]
            assert events(parts, calls=JSON) == events([call(body)], calls=JSON)


def test_calls_of_functions_that_were_not_offered():
    body = '{"name": "get_tim", "arguments": {"a": 1}}'
    assert calls_of(parsed(call(body))) == [("get_tim", '{"a": 1}')]
    assert parsed(call(body), offered_only=True).content == call(body)
    nested = call('{"name": "none", "arguments": {"a": "<tool_call>{\\"name\\": \\"get_time\\"}"}}')
    assert parsed(nested, offered_only=True).content == nested


@pytest.mark.parametrize("extra", ["}", " x", "</tool"])
def test_text_after_the_object_is_content(extra):
    output = parsed('<tool_call>{"name": "get_time"}' + extra)
    assert calls_of(output) == [("get_time", "{}")]
    assert output.content == extra


@pytest.mark.parametrize(
    "text",
    [
        call('{"arguments": {"name": "get_time"}}'),
        call('{"name": 5, "arguments": {}}'),
        call('{"name": "get_time'),
        call('{"name": "get_time\\x"}'),
        call("get_time"),
        call("{get_time: 1}"),
        call("{" + '"a": 1, ' * 20 + '"name": "get_time"}'),
        call('{"' + "n" * 300 + '": 1, "name": "get_time"}'),
        call("{"),
        "use <tool_call> tags",
        "<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
    ],
)
def test_text_that_never_became_a_call_is_text(text):
    output = parsed(text)
    assert output.content == text
    assert not output.tool_calls


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"name": "get_time"', ""),
        ('{"name": "get_time", "argum', ""),
        ('{"name": "get_time", "arguments": {"a": "x\\', '{"a": "x\\'),
        ('{"name": "get_time", "arguments": {"a": 1</tool', '{"a": 1</tool'),
        ('{"name": "get_time", "arguments": {"a": "</tool_call>', '{"a": "</tool_call>'),
    ],
)
def test_a_call_that_the_run_cuts_is_not_closed(text, arguments):
    output = parsed("<tool_call>" + text)
    assert calls_of(output) == [("get_time", arguments)]
    assert not output.tool_calls[0].complete


def test_the_start_is_sent_with_the_name():
    one = parser(calls=JSON)
    assert one.push('<tool_call>\n{"name": "get_tim') == []
    assert [type(event).__name__ for event in one.push('e"')] == ["CallStart"]
    assert [event.text for part in (', "arguments": {"a"', ": ", "[") for event in one.push(part)] == ['{"a"', ": ", "["]


def test_a_call_inside_reasoning_ends_it():
    output = parsed("Hm " + call('{"name": "get_time"}') + "\n x", prompt=OPENED)
    assert (output.reasoning, output.content) == ("Hm ", "\n x")
    assert [fields[0] for fields, _ in events(["Hm " + call('{"name": "none"}')], calls=JSON, prompt=OPENED)] == [
        "ReasoningDelta"
    ]
