"""Schemas in the style of public ones: none is refused without strict; with it, keyword and pointer are named."""

import json
import re

import pytest
from demo_text import demo_tokenizer
from jsonschema import Draft202012Validator
from public_schemas import public_schema
from strict_tools import legal_output

from dflash.errors import RequestError
from dflash.generation.grammar.build import grammars
from dflash.generation.grammar.params import GrammarParams
from dflash.generation.grammar.schema.policy import Notes

SEEDS = range(100)
REFUSAL = r"response_format: #(/[^ ]*)?/(\S+) can't be enforced, as strict demands"


def built(schema, *, strict=False, notes=None):
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": strict}}
    return grammars(GrammarParams(response_format=wanted), [([5], False)], demo_tokenizer(), notes=notes)[0]


def at(schema, pointer):
    """The part of a schema at a JSON pointer."""
    for key in pointer.split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        schema = schema[int(key)] if isinstance(schema, list) else schema[key]
    return schema


def test_none_is_refused_without_strict_and_notes_name_what_is_there():
    noted = 0
    for seed in SEEDS:
        notes, schema = Notes(), public_schema(seed)
        assert built(schema, notes=notes) is not None
        for text in notes.texts:
            at(schema, re.match(r"response_format: #(\S*) is not enforced", text)[1])
        noted += bool(notes.texts)
    assert 0 < noted < len(SEEDS)


def test_with_strict_a_refusal_names_keyword_and_pointer():
    refused = 0
    for seed in SEEDS:
        try:
            assert built(public_schema(seed), strict=True) is not None
        except RequestError as error:
            refused += 1
            found = re.match(REFUSAL, str(error))
            assert found[2] in at(public_schema(seed), found[1] or "")
    assert 0 < refused < len(SEEDS)


def test_outputs_of_strict_schemas_validate():
    finished = 0
    for seed in range(0, 60, 5):
        try:
            grammar = built(public_schema(seed), strict=True)
        except RequestError:
            continue
        output = legal_output(grammar.start(), seed, max_tokens=250)
        if output is not None:
            finished += 1
            Draft202012Validator(public_schema(seed)).validate(json.loads(demo_tokenizer().decode(output)))
    assert finished > 2


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "required": None, "properties": None, "additionalProperties": None, "enum": None},
        {"type": "OBJECT"},
        {"type": "object", "properties": {"a": {"type": "string", "format": "phone"}}, "uniqueItems": False},
        {"oneOf": [{"type": "object", "properties": {"a": {}}}, {"type": "object", "properties": {"b": {}}}]},
        {"type": "object", "dependencies": {"a": ["b"]}, "propertyNames": {"minLength": 2}},
        {"type": "array", "items": {"type": "string", "pattern": "^(?=a)"}},
        {"$ref": "https://example.com/schema.json"},
        {"type": "number", "minimum": -1e300, "multipleOf": 0},
        {"anyOf": []},
        {"type": []},
    ],
    ids=str,
)
def test_odd_schemas_are_approximated_without_strict(schema):
    assert built(schema) is not None
