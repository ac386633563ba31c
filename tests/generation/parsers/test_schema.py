"""Values of parameters under JSON schemas."""

import json
from itertools import pairwise

import pytest
from parsing import call, parsed, tool

from dflash.generation.parsers.schema import coerce, members

DEFINITIONS = {
    "$defs": {
        "Color": {"enum": ["red", "green"]},
        "Size": {"$ref": "#/$defs/Whole"},
        "Whole": {"type": "integer"},
        "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "null"}]},
        "a/b ~": {"type": "boolean"},
    }
}
BOTH = ["string", "null"]
STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
BOOLEAN, NULL, ARRAY, OBJECT = {"type": "boolean"}, {"type": "null"}, {"type": "array"}, {"type": "object"}


def ref(name):
    return {"$ref": f"#/$defs/{name}"}


def quoted(text):
    return json.dumps(text, ensure_ascii=False)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        *((STRING, text, quoted(text)) for text in ("1", "true", "None", '"a"', "[1]", "", " a ")),
        *((INTEGER, text, text) for text in ("5", "-0", "1.0", "1e3", "5.5", "9" * 5000)),
        *((INTEGER, text, quoted(text)) for text in ("", "five", "007", "+5", "1.", ".5", "0x1F", "1_000", "NaN", "٣")),
        (INTEGER, " 5\n", "5"),
        (INTEGER, '"5"', '"5"'),
        (INTEGER, "[1]", "[1]"),
        *((NUMBER, text, text) for text in ("1.0", "1", "0.1000", "1e400", "-1.5E-7", "123456789012345678901.10")),
        *((NUMBER, text, quoted(text)) for text in ("Infinity", "1,5", "")),
        *((BOOLEAN, text, text.lower()) for text in ("true", "false", "True", "False")),
        *((BOOLEAN, text, quoted(text)) for text in ("TRUE", "yes", "")),
        (BOOLEAN, "1", "1"),
        *((NULL, text, "null") for text in ("null", "None")),
        *((ARRAY, text, text) for text in ("[]", '[1.0, "a",\n {}]', "{}", "[" * 50 + "]" * 50)),
        *((ARRAY, text, quoted(text)) for text in ("['a']", "[1", "[NaN]", "a, b", "[" * 100_000)),
        *((OBJECT, text, text) for text in ("{}", '{"a": 1.0, "a": 2}', '{ "b" : "\\u00e9" }', f'{{"n": {"9" * 5000}}}')),
        *((OBJECT, text, quoted(text)) for text in ("{a: 1}", '{"a": True}', '{"a": "\n"}')),
        ({"type": BOTH}, "None", "null"),
        ({"type": BOTH}, "none", '"none"'),
        ({"type": BOTH}, "5", '"5"'),
        ({"type": ["string", "integer"]}, "5", "5"),
        ({"type": ["string", "integer"]}, "5.5", '"5.5"'),
        ({"type": ["string", "integer"]}, "5.0", "5.0"),
        ({"type": ["string", "number"]}, "5.5", "5.5"),
        ({"type": ["string", "integer"]}, '"5"', quoted('"5"')),
        ({"anyOf": [STRING, NULL]}, "null", "null"),
        ({"anyOf": [STRING, ARRAY]}, '["a"]', '["a"]'),
        ({"anyOf": [STRING, ARRAY]}, '{"a": 1}', quoted('{"a": 1}')),
        ({"oneOf": [BOOLEAN, STRING]}, "True", "true"),
        ({"oneOf": [{"anyOf": [INTEGER, NULL]}, BOOLEAN]}, "None", "null"),
        ({"anyOf": [INTEGER, NULL]}, "x", '"x"'),
        ({"enum": ["a", "1"]}, "1", '"1"'),
        ({"enum": ["a", 1]}, "1", "1"),
        ({"enum": ["a", 1]}, "1.0", "1.0"),
        ({"enum": ["a", 1]}, "2", '"2"'),
        ({"enum": ["a", 1]}, "True", '"True"'),
        ({"enum": ["a", True]}, "1", '"1"'),
        ({"enum": ["a", 2.5]}, "2.50", "2.50"),
        ({"enum": ["a", None, False]}, "False", "false"),
        ({"enum": ["a", [1]]}, "[1]", "[1]"),
        ({"enum": ["a", {"b": None}]}, '{"b": null}', '{"b": null}'),
        ({"enum": ["a", 1]}, "9" * 5000, quoted("9" * 5000)),
        ({"enum": [1, 2]}, "7", "7"),
        ({"type": "string", "enum": ["1"]}, "1", '"1"'),
        ({"type": BOTH, "enum": ["1", None]}, "None", "null"),
        ({"const": 5}, "5", "5"),
        ({"const": "5"}, "5", '"5"'),
        (ref("Color"), "1", '"1"'),
        (ref("Size"), "12", "12"),
        ({"anyOf": [ref("Color"), ref("Size")]}, "12", "12"),
        ({"anyOf": [ref("Color"), ref("Size")]}, "red", '"red"'),
        (ref("Loop"), "None", "null"),
        (ref("a~1b%20~0"), "True", "true"),
        ({"allOf": [ref("Size")], "default": 1}, "12", "12"),
        ({"allOf": [STRING, {"minLength": 1}]}, "12", '"12"'),
        *(
            (schema, "1.0", "1.0")
            for schema in ({}, True, None, ref("Missing"), {"$ref": "http://x/y"}, {"description": "any"})
        ),
        *((schema, "a", '"a"') for schema in ({}, True, {"enum": []}, {"type": "odd"}, {"type": 5}, {"anyOf": []})),
        ({"properties": {}}, "a", '"a"'),
        ({"items": STRING}, "[1]", "[1]"),
    ],
)
def test_values_are_written_as_json(schema, text, value):
    got = coerce(text, members(schema, DEFINITIONS))
    assert got == value
    tools = [tool("f", key=schema)]
    tools[0]["function"]["parameters"].update(DEFINITIONS)
    (one,) = parsed(call("f", key=text), tools).tool_calls
    assert one.arguments == f'{{"key": {value}}}'


def test_schemas_that_grow_when_expanded_take_linear_time():
    names = [f"T{n}" for n in range(200)]
    definitions = {name: {"anyOf": [ref(after), ref(after)]} for name, after in pairwise(names)}
    root = {"$defs": {**definitions, names[-1]: INTEGER}}
    assert coerce("5", members(ref("T0"), root)) == "5"
    deep = {"type": "integer"}
    for _ in range(5000):
        deep = {"anyOf": [deep, NULL]}
    assert coerce("None", members(deep, {})) == "null"


def test_parameters_by_reference_and_additional_ones():
    parameters = {"$ref": "#/$defs/Node", "$defs": {"Node": {"properties": {"n": INTEGER}, "additionalProperties": BOOLEAN}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    (one,) = parsed(call("f", n="1", other="True"), tools).tool_calls
    assert one.arguments == '{"n": 1, "other": true}'
