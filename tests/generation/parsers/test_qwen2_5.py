"""Calls that Qwen2.5-Coder writes without tags: what is one, and what stays text."""

import json

import pytest
from parsing import QWEN, calls_of, events, parser, tool
from parsing import parsed as parsed_as

from dflash.generation.parsers.arguments import fitting

CALL = '{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Oslo",\n    "days": 2\n  }\n}'
ARGUMENTS = '{\n    "city": "Oslo",\n    "days": 2\n  }'
TIME = '{"name": "get_time", "arguments": {}}'


def parsed(text, *args, **settings):
    return parsed_as(text, *args, calls=QWEN, reasoning="none", **settings)


def fenced(body, info="json"):
    return f"```{info}\n{body}\n```"


def test_references_that_multiply_make_no_work():
    """Each level refers twice to the next one: 22 levels would be four million checks."""
    levels = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(22)} | {"d22": {"type": "object"}}
    for n_levels, accepted in ((22, False), (3, True)):
        assert fitting("{}", {"$ref": f"#/$defs/d{22 - n_levels}", "$defs": levels}) is accepted


@pytest.mark.parametrize("text", [fenced(CALL), fenced(CALL, ""), CALL, f"<tools>\n{CALL}\n</tools>", f"\n{CALL}\n\n"])
@pytest.mark.parametrize("prose", ["", "I look it up:\n\n", "A `{` and ``` in a line.\n"])
def test_a_call_that_ends_the_message(text, prose):
    output = parsed(prose + text)
    assert calls_of(output) == [("get_weather", ARGUMENTS)]
    assert output.content.strip() == prose.strip()
    assert output.tool_calls[0].complete
    assert events([*prose, *text], calls=QWEN) == events([prose + text], calls=QWEN)


@pytest.mark.parametrize("closing", ["", "}", "\n}\n"])
@pytest.mark.parametrize("wrapped", ["{}", "```json\n{}\n```", "<tools>{}</tools>"])
def test_brackets_as_the_template_shows_them(wrapped, closing):
    """The templates of Qwen2.5 show calls with a doubled first bracket; the last one is doubled or not."""
    one = wrapped.replace("{}", "{" + CALL + closing)
    for text in (one, f"I look it up:\n{one}\n", f"{one}\n{one}"):
        assert calls_of(parsed(text)) == [("get_weather", ARGUMENTS)] * text.count("{{")
        assert events([*text], calls=QWEN) == events([text], calls=QWEN)
    for text in (f"{{{one}", f"{one}}}}}", wrapped.replace("{}", CALL + "}"), wrapped.replace("{}", "{ " + CALL)):
        output = parsed(text)
        assert (output.content, output.tool_calls) == (text, [])
        assert events([*text], calls=QWEN) == events([text], calls=QWEN)


def test_calls_in_a_row():
    """In one fence or in several, with white space between them only."""
    for text in (
        fenced(f"{CALL}\n{TIME}"),
        f"{fenced(CALL)}\n\n{fenced(TIME)}",
        f"{CALL}\n{TIME}",
        f"{fenced(CALL)}\n{TIME}",
    ):
        assert calls_of(parsed(text)) == [("get_weather", ARGUMENTS), ("get_time", "{}")]


def test_the_end_of_a_message_closes_its_fence():
    assert calls_of(parsed(f"```json\n{CALL}")) == calls_of(parsed(f"```json\n{CALL}\n``")) == [("get_weather", ARGUMENTS)]
    for text in (f"```json\n{CALL}", f"```json\n{CALL}\n``", f"```json\n{CALL[:-1]}"):
        output = parsed(text, cut=True)
        assert (output.content, output.tool_calls) == (text, []), "more could follow"
    assert calls_of(parsed(fenced(CALL), cut=True)) == [("get_weather", ARGUMENTS)]


@pytest.mark.parametrize(
    "text",
    [
        fenced(CALL) + "\nThis shows the weather.",
        fenced(CALL) + " is a call",
        fenced(CALL, "python"),
        fenced(CALL, "jsonc"),
        f"It is {CALL}",
        f"> {fenced(CALL)}",
        "```json\n" + CALL + "\nor\n```",
        fenced("[" + CALL + "]"),
        fenced(CALL.replace("get_weather", "get_whether")),
        fenced(CALL.replace("name", "title")),
        fenced(CALL.replace("{\n", '{\n  "id": 1,\n', 1)),
        fenced(CALL.replace('"days": 2', '"days": "2"')),
        fenced(CALL.replace('"city": "Oslo",', "")),
        fenced(CALL.replace('"Oslo"', "Oslo")),
        fenced('{"name": "get_time"}')[:-5],
        fenced('{"name": "get_time", "arguments": []}'),
        fenced('{"name": "get_time", "arguments": null}'),
        fenced('{"name": "get_time", "arguments": {}, "arguments": {}, "x": 1}'),
        fenced('{"name": "package", "version": "1.0", "arguments": {}}'),
        fenced("{}"),
        "```json\n```",
        "<tools>\n</tools>",
        "```",
        "`",
        "{",
        fenced('{"a": 1}') + "\n\n" + fenced(CALL) + "\n.",
        f"```json\n{CALL}\n````",
    ],
)
def test_what_stays_text(text):
    output = parsed(text)
    assert (output.content, output.tool_calls) == (text, [])
    assert events([*text], calls=QWEN) == events([text], calls=QWEN)


def test_tags_are_calls_as_ever():
    text = f"Now\n<tool_call>\n{CALL}\n</tool_call>\n{fenced(TIME)}"
    assert calls_of(parsed(text)) == [("get_weather", ARGUMENTS), ("get_time", "{}")]
    unknown = CALL.replace("get_weather", "get_whether")
    assert [name for name, _ in calls_of(parsed(f"<tool_call>\n{unknown}\n</tool_call>"))] == ["get_whether"]


def test_other_json_is_passed_on_at_once():
    one = parser(calls=QWEN, reasoning="none")
    assert one.push('```json\n{\n  "name": "get_') == []
    assert [event.text for event in one.push('x", "version"')] == ['```json\n{\n  "name": "get_x", "version"']
    assert [event.text for event in one.push("\n{")] == ["\n"]
    assert one.push('"a') == []
    assert [event.text for event in one.push('": ')] == ['{"a": ']


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, [1, 2.0], [1.5, "1", True, None]),
        ({"type": ["string", "null"]}, ["", None], [1]),
        ({"type": "STRING"}, ["x"], [1]),
        ({"enum": ["a", 1]}, ["a", 1], [True, "b"]),
        ({"const": {"x": 1}}, [{"x": 1}], [{}]),
        ({"type": "array", "items": {"type": "number"}}, [[], [1, 2.5]], [["1"], {}]),
        ({"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/word"}]}, [True, "ab"], [1]),
        (
            {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
            [{"x": ""}, {"x": "", "y": 1}],
            [{}],
        ),
        ({"type": "object", "properties": {}, "additionalProperties": False}, [{}], [{"x": 1}]),
        ({"type": "object", "additionalProperties": {"type": "string"}}, [{"x": ""}], [{"x": 1}]),
        ({"$ref": "#/properties/q"}, [], []),
        ({"anyOf": [{"$ref": "#/properties/q"}]}, [], [1]),
        (True, [1], []),
        (False, [], [1]),
        ({"type": "file"}, ["x"], []),
        ("odd", [1], []),
    ],
)
def test_arguments_must_fit(schema, good, bad):
    offered = tool("f", q=schema)
    offered["function"]["parameters"]["$defs"] = {"word": {"type": "string"}}
    for value in good + bad:
        text = fenced(json.dumps({"name": "f", "arguments": {"q": value}}))
        assert len(parsed(text, [offered]).tool_calls) == (value in good and type(value) in map(type, good)), value
