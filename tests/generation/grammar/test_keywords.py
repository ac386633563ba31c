"""The table of keywords: the page shows it, and the code does what it says."""

from pathlib import Path

import pytest
from demo_text import DATA, demo_tokenizer

import dflash
from dflash.errors import RequestError
from dflash.generation.grammar.build import grammars
from dflash.generation.grammar.params import GrammarParams
from dflash.generation.grammar.schema.keywords import TABLE, Handling, markdown
from dflash.generation.grammar.schema.policy import Notes
from dflash.model.text.chat_template import ChatTemplate

XML = ChatTemplate((DATA / "demo" / "chat_template.jinja").read_text(encoding="utf-8"), tokens={})
STRINGS = "pattern", "format", "minLength", "maxLength"
TEXT, LIST, MAP, NUMBER = {"type": "string"}, {"type": "array"}, {"type": "object"}, {"type": "number"}
ENFORCED_TEXT = {
    "type": TEXT,
    "enum": {"enum": ["a"]},
    "const": {"const": "a"},
    "allOf": TEXT | {"allOf": [{"minLength": 1}]},
    "anyOf": {"anyOf": [TEXT, {"type": "null"}]},
    "oneOf": {"oneOf": [{"const": "a"}, {"const": "b"}]},
    "$ref": {"$ref": "#/properties/other"},
    "pattern": TEXT | {"pattern": "^a"},
    "format": TEXT | {"format": "uuid"},
    "minLength": TEXT | {"minLength": 2},
    "maxLength": TEXT | {"maxLength": 2},
    "not": TEXT | {"not": {"const": "a"}},
    "if": TEXT | {"if": {"const": "a"}, "then": False},
}
GIVEN_UP_TEXT = {
    "oneOf": {"oneOf": [TEXT | {"format": "date"}, TEXT | {"maxLength": 10}]},
    "$ref": {"$ref": "#/none"},
    "pattern": TEXT | {"pattern": "(?=a)"},
    "format": TEXT | {"format": "phone"},
    "minLength": TEXT | {"minLength": 10**9},
    "maxLength": TEXT | {"maxLength": 10**9},
    "not": TEXT | {"not": {"format": "date"}},
    "if": TEXT | {"if": {"format": "date"}, "then": False},
    "$dynamicRef": TEXT | {"$dynamicRef": "#a"},
    "$recursiveRef": TEXT | {"$recursiveRef": "#"},
}
ENFORCED_JSON = {
    "type": MAP,
    "enum": {"enum": [[1]]},
    "const": {"const": [1]},
    "allOf": {"allOf": [NUMBER]},
    "anyOf": {"anyOf": [NUMBER]},
    "oneOf": {"oneOf": [NUMBER, {"type": "null"}]},
    "$ref": {"$ref": "#/properties/number"},
    **{key: LIST | {"items": value} for key, value in ENFORCED_TEXT.items() if key in STRINGS},
    "properties": MAP | {"properties": {"a": TEXT}},
    "required": MAP | {"properties": {"a": TEXT}, "required": ["a"]},
    "additionalProperties": MAP | {"additionalProperties": NUMBER},
    "items": LIST | {"items": NUMBER},
    "prefixItems": LIST | {"prefixItems": [NUMBER]},
    "minItems": LIST | {"minItems": 1},
    "maxItems": LIST | {"maxItems": 1},
    **{key: NUMBER | {key: 5} for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")},
    "patternProperties": MAP | {"patternProperties": {"^a": NUMBER}},
    "propertyNames": MAP | {"propertyNames": {"pattern": "^a"}},
    "minProperties": MAP | {"minProperties": 1},
    "maxProperties": MAP | {"maxProperties": 1},
    "unevaluatedProperties": MAP | {"unevaluatedProperties": False},
}
GIVEN_UP_JSON = {
    "oneOf": {"oneOf": [NUMBER, {"type": "integer"}]},
    "$ref": LIST | {"items": {"$ref": "#/none"}},
    **{key: LIST | {"items": value} for key, value in GIVEN_UP_TEXT.items() if key in STRINGS},
    "not": NUMBER | {"not": {"const": 1}},
    "if": NUMBER | {"if": {"const": 1}, "then": False},
    **{key: NUMBER | {key: 1e300} for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")},
    "multipleOf": NUMBER | {"multipleOf": -1},
    "patternProperties": MAP | {"patternProperties": {"(?=a)": NUMBER}},
    "propertyNames": MAP | {"propertyNames": {"maxLength": 3}},
    "minProperties": MAP | {"properties": {"a": TEXT}, "minProperties": 1},
    "maxProperties": MAP | {"properties": {"a": TEXT}, "maxProperties": 1},
    "unevaluatedProperties": MAP | {"allOf": [MAP], "unevaluatedProperties": False},
    "uniqueItems": LIST | {"uniqueItems": True},
    "contains": LIST | {"contains": NUMBER},
    "dependentRequired": MAP | {"dependentRequired": {"a": ["b"]}},
    "dependentSchemas": MAP | {"dependentSchemas": {"a": False}},
    "dependencies": MAP | {"dependencies": {"a": ["b"]}},
    "unevaluatedItems": LIST | {"unevaluatedItems": False},
    "$dynamicRef": LIST | {"items": {"$dynamicRef": "#a"}},
    "$recursiveRef": LIST | {"items": {"$recursiveRef": "#"}},
}


def of_parameter(schema, notes, *, strict):
    properties = {"q": schema, "other": TEXT, "number": NUMBER}
    inner = {"type": "object", "properties": properties, "required": ["q"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "go", "strict": strict, "parameters": inner}}
    return grammars(GrammarParams(tool_choice="required"), [([5], False)], demo_tokenizer(), XML, [tool], notes=notes)


def of_answer(schema, notes, *, strict):
    root = {"type": "object", "properties": {"q": schema, "other": TEXT, "number": NUMBER}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": root, "strict": strict}}
    return grammars(GrammarParams(response_format=wanted), [([5], False)], demo_tokenizer(), notes=notes)


def check_enforced(build, schema):
    for strict in (True, False):
        notes = Notes()
        build(schema, notes, strict=strict)
        assert notes.texts == []


def check_given_up(build, keyword, schema):
    with pytest.raises(RequestError, match=r"#/properties/q\S*") as error:
        build(schema, Notes(), strict=True)
    assert f"/{keyword} can't be enforced" in str(error.value)
    notes = Notes()
    build(schema, notes, strict=False)
    assert any(f"/{keyword} is not enforced" in text for text in notes.texts)


def test_the_page_shows_the_table():
    page = Path(dflash.__file__).parents[1] / "docs" / "schema-keywords.md"
    assert markdown() in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("keyword", TABLE)
def test_a_keyword_is_treated_as_the_table_says(keyword):
    text, value = TABLE[keyword]
    if text in (Handling.ENFORCED, Handling.PARTLY):
        check_enforced(of_parameter, ENFORCED_TEXT[keyword])
    if text in (Handling.GIVEN_UP, Handling.PARTLY):
        check_given_up(of_parameter, keyword, GIVEN_UP_TEXT[keyword])
    for build in (of_parameter, of_answer):
        if value in (Handling.ENFORCED, Handling.PARTLY):
            check_enforced(build, ENFORCED_JSON[keyword])
        if value in (Handling.GIVEN_UP, Handling.PARTLY):
            check_given_up(build, keyword, GIVEN_UP_JSON[keyword])
    if value is Handling.PASSES:
        for build in (of_parameter, of_answer):
            for part in (TEXT, LIST):
                check_enforced(build, part | {keyword: {} if keyword in ("$defs", "definitions") else "x"})


def test_every_keyword_that_the_code_reads_is_in_the_table():
    from dflash.generation.grammar.schema.plain import _REDUCERS

    assert set(_REDUCERS) - {"minContains", "maxContains"} <= set(TABLE)
