"""Strict calls: what a grammar allows validates, what a template writes is legal, and what can't be enforced is refused."""

import json
import random

import pytest
from demo_text import DATA, demo_tokenizer
from jsonschema import Draft202012Validator
from parsing import JSON, XML, parsed
from schemas import scribbler
from strict_tools import hostile_text, legal_output, strict_tool

from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.errors import RequestError
from dflash.generation.grammar.build import grammars
from dflash.generation.grammar.functions import functions_of
from dflash.generation.grammar.params import GrammarParams
from dflash.generation.grammar.schema.policy import Notes
from dflash.generation.grammar.xml_calls import xml_body
from dflash.model.text.chat_template import ChatTemplate

TEMPLATES = {
    "xml": ChatTemplate((DATA / "demo" / "chat_template.jinja").read_text(encoding="utf-8"), tokens={}),
    "json": ChatTemplate((DATA / "templates" / "json_calls.jinja").read_text(encoding="utf-8"), tokens={}),
}
CALLS = {"xml": XML, "json": JSON}
QUESTION = {"role": "user", "content": "?"}


def function(parameters, *, strict=True, name="go"):
    return {"type": "function", "function": {"name": name, "strict": strict, "parameters": parameters}}


def of_property(schema, *, strict=True, **more):
    inner = {"type": "object", "properties": {"q": schema}, "required": ["q"], "additionalProperties": False, **more}
    return function(inner, strict=strict)


def built(tool, form="xml", notes=None):
    params = GrammarParams(tool_choice="required")
    return grammars(params, [([5], False)], demo_tokenizer(), TEMPLATES[form], [tool], notes=notes)[0]


def accepts(grammar, text):
    matcher = grammar.start()
    return all(matcher.advance(token) for token in demo_tokenizer().encode(text)) and matcher.is_accepting


def allows(grammar, value):
    return accepts(grammar, f"<tool_call>\n<function=go>\n<parameter=q>\n{value}\n</parameter>\n</function>\n</tool_call>")


@pytest.mark.parametrize(("form", "seeds"), [("xml", range(14)), ("json", (2, 3, 4, 6))])
def test_every_legal_output_parses_to_arguments_that_validate(form, seeds):
    finished = 0
    for seed in seeds:
        tool = strict_tool(seed)
        output = legal_output(built(tool, form).start(), seed, max_tokens=400)
        if output is not None:
            finished += 1
            (call,) = parsed(
                demo_tokenizer().decode(output).partition("\n<tool_call>")[0], [tool], calls=CALLS[form]
            ).tool_calls
            assert call.complete
            Draft202012Validator(tool["function"]["parameters"]).validate(call.parsed)
    assert finished >= len(seeds) // 2


@pytest.mark.parametrize("form", TEMPLATES)
def test_every_call_that_the_template_writes_is_legal_and_parses_back(form):
    text, rng = {"type": "string"}, random.Random(4)
    schemas = {
        "path": text,
        "q": {"type": ["string", "null"]},
        "n": {"type": ["integer", "boolean"]},
        "deep": {"type": "object"},
    }
    tool = function({"type": "object", "properties": schemas, "required": ["path"], "additionalProperties": False})
    grammar, template = built(tool, form), TEMPLATES[form]
    prompt = template.render([QUESTION], enable_thinking=False)
    for _ in range(60):
        values = {
            "path": hostile_text(rng, added=form == "xml"),
            "q": rng.choice([None, hostile_text(rng, added=False)]),
            "n": rng.choice([True, -5, 0]),
        }
        arguments = {key: values[key] for key in schemas if key in values and (key == "path" or rng.random() < 0.7)}
        if arguments.get("q") in ("null", "None") or (
            form == "json" and any("\u2028" in str(each) for each in values.values())
        ):
            continue
        if rng.random() < 0.3:
            arguments["deep"] = {hostile_text(rng, added=False): [hostile_text(rng, added=False), 1.5]}
        call = {"type": "function", "function": {"name": "go", "arguments": arguments}}
        message = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": [call]}
        whole = template.render([QUESTION, message], add_generation_prompt=False)
        written = whole[whole.index("<tool_call>") :].removesuffix("<|im_end|>\n")
        assert accepts(grammar, written), written
        (found,) = parsed(written, [tool], calls=CALLS[form]).tool_calls
        assert found.parsed == arguments
    assert prompt


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {"anyOf": [{"type": "string", "enum": ["celsius", "kelvin"]}, {"type": "null"}]},
            ["celsius", "null"],
            ["rankine", ""],
        ),
        ({"type": "string", "pattern": "^[0-9]{4}$"}, ["2024"], ["abcd", "20245"]),
        ({"type": "string", "pattern": "b"}, ["abc", "b"], ["ac"]),
        ({"type": "string", "maxLength": 3}, ["", "é🔎x"], ["abcd"]),
        ({"type": "string", "minLength": 2}, ["ab", "a\n"], ["", "a"]),
        ({"type": "string", "format": "date"}, ["2024-02-29"], ["tomorrow", "2023-02-29"]),
        ({"type": "string", "not": {"const": "x"}}, ["y", ""], ["x"]),
        ({"const": "a"}, ["a"], ["b"]),
        ({"enum": ["a", 1, None, True]}, ["a", "1", "null", "None", "true", "True"], ["b", "2", "false", "False"]),
        ({"type": "boolean"}, ["true", "False"], ["yes", '"true"']),
        ({"type": "string", "allOf": [{"$ref": "#/properties/other"}]}, ["ab"], ["abc"]),
        ({"type": "string", "if": {"pattern": "^a"}, "then": {"maxLength": 2}}, ["ab", "bcd"], ["abc"]),
        ({"type": ["string", "integer"], "minLength": 3}, ["5", "abc"], ["ab"]),
        ({"type": "array", "items": {"$ref": "#/properties/other"}}, ['["ab"]'], ['["abc"]']),
    ],
)
def test_keywords_of_a_value(schema, good, bad):
    tool = of_property(schema)
    tool["function"]["parameters"]["properties"]["other"] = {"type": "string", "maxLength": 2}
    grammar = built(tool)
    assert [value for value in good if not allows(grammar, value)] == []
    assert [value for value in bad if allows(grammar, value)] == []


@pytest.mark.parametrize(
    ("form", "schema", "where"),
    [
        ("xml", {"type": "string", "pattern": "^(?!x)a"}, "#/properties/q/pattern"),
        ("xml", {"type": "string", "pattern": r"\bfoo"}, "#/properties/q/pattern"),
        ("xml", {"type": "string", "format": "phone"}, "#/properties/q/format"),
        ("xml", {"type": "string", "maxLength": 100_000}, "#/properties/q/maxLength"),
        ("xml", {"type": ["string", "integer"], "minimum": 3}, "#/properties/q/minimum"),
        ("xml", {"type": "array", "uniqueItems": True}, "#/properties/q/uniqueItems"),
        (
            "xml",
            {"anyOf": [{"type": "string"}, {"type": "array", "contains": {"const": 1}}]},
            "#/properties/q/anyOf/1/contains",
        ),
        ("xml", {"$ref": "#/$defs/none"}, "#/properties/q/$ref"),
        ("xml", {"type": "STRING"}, "#/properties/q/type"),
        ("json", {"type": "string", "not": {"const": "x"}}, "#/properties/q/not"),
        ("json", {"oneOf": [{"type": "number"}, {"type": "integer"}]}, "#/properties/q/oneOf"),
        ("json", {"type": "object", "dependentRequired": {"a": ["b"]}}, "#/properties/q/dependentRequired"),
        ("json", {"items": {"if": {}, "then": False}}, "#/properties/q/items/if"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_keyword_and_pointer_or_noted(form, schema, where):
    with pytest.raises(RequestError) as error:
        built(of_property(schema), form)
    assert str(error.value).startswith(f"tools: go: {where} can't be enforced")
    notes = Notes()
    assert built(of_property(schema, strict=False), form, notes) is not None
    assert any(text.startswith(f"tools: go: {where} is not enforced") for text in notes.texts)


@pytest.mark.parametrize("form", TEMPLATES)
@pytest.mark.parametrize("keyword", ["not", "if", "dependentRequired", "patternProperties", "propertyNames", "dependencies"])
def test_keywords_of_all_parameters(form, keyword):
    value = {"not": {"required": ["q"]}, "if": {}, "propertyNames": {"maxLength": 3}}.get(keyword, {"q": ["r"]})
    value = {"^x": {}} if keyword == "patternProperties" else value
    tool = of_property({"type": "string"}, **{keyword: value, "then": False} if keyword == "if" else {keyword: value})
    if form == "json" and keyword == "patternProperties":
        assert built(tool, form) is not None
        return
    with pytest.raises(RequestError, match=f"^tools: go: #/{keyword} can't be enforced"):
        built(tool, form)


@pytest.mark.parametrize("form", TEMPLATES)
@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "string",
            "title": "t",
            "description": "d",
            "default": "x",
            "examples": ["x"],
            "deprecated": True,
            "x-a": 1,
        },
        {"type": "string", "$comment": "c", "readOnly": True, "contentEncoding": "base64", "nullable": True},
        {"type": "array", "uniqueItems": False, "minItems": 0, "items": {}},
        {
            "type": "object",
            "dependencies": {},
            "propertyNames": {"type": "string"},
            "additionalProperties": True,
            "required": None,
        },
        {"type": "number", "maximum": 1.7976931348623157e308, "exclusiveMinimum": False},
    ],
)
def test_annotations_and_keywords_without_effect_pass(form, schema):
    notes = Notes()
    for strict in (True, False):
        assert built(of_property(schema, strict=strict), form, notes) is not None
    assert notes.texts == []


def test_parameters_behind_references_and_combinations():
    text, number = {"type": "string", "maxLength": 2}, {"type": "integer"}
    inner = {"type": "object", "properties": {"q": text}, "required": ["q"]}
    for parameters in (
        {"$ref": "#/$defs/args", "$defs": {"args": inner}},
        {"allOf": [inner, {"properties": {"q": {"type": "string"}}}]},
        {"type": "object", "anyOf": [inner, {"properties": {"n": number}, "required": ["n"]}]},
    ):
        grammar = built(function(parameters))
        assert allows(grammar, "ab")
        assert not allows(grammar, "abc")
    other = "<tool_call>\n<function=go>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>"
    assert accepts(grammar, other)
    assert not accepts(grammar, other.replace("5", "x"))
    assert not accepts(grammar, "<tool_call>\n<function=go>\n</function>\n</tool_call>")


@pytest.mark.parametrize("form", TEMPLATES)
@pytest.mark.parametrize(
    "parameters", [{"type": "object", "properties": {}}, {"type": "object"}, None, {"properties": None}]
)
def test_no_parameters_are_invented(form, parameters):
    calls = {
        "xml": "<tool_call>\n<function=go>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
        "json": '<tool_call>\n{"name": "go", "arguments": {"x": "1"}}\n</tool_call>',
    }
    tool = function(parameters, strict=False)
    assert not accepts(built(tool, form), calls[form])
    tool["function"]["parameters"] = {"type": "object", "additionalProperties": True}
    assert accepts(built(tool, form), calls[form])


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {"q": {"type": "string"}}, "required": None},
        {"type": "OBJECT", "properties": {"q": {"type": "STRING"}}},
        {"type": "object", "properties": {"q": "string", "r": {"type": "file"}, "s": {"items": 5}}},
        {"type": "object", "properties": None, "additionalProperties": {"type": "string", "pattern": "(?=x)"}},
        {"type": "object", "properties": {"q": {"type": "array", "items": {"type": "string", "pattern": "^(?!x).*$"}}}},
        {"type": "object", "properties": {"q": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}, "required": ["q"]},
    ],
)
def test_tools_without_strict_are_never_refused_for_a_keyword(parameters):
    for form in TEMPLATES:
        assert built(function(parameters, strict=False), form) is not None


@pytest.mark.parametrize("form", TEMPLATES)
def test_definitions_are_not_copied_for_each_parameter(form):
    """Sizes are known before anything is built; equal values are written once."""
    large = {"type": "object", "properties": {f"p{i}": {"type": "integer", "minimum": i} for i in range(400)}}
    refs = {f"k{i}": {"type": "array", "items": {"$ref": "#/$defs/large"}} for i in range(200)}
    assert built(function({"type": "object", "properties": refs, "$defs": {"large": large}}), form) is not None
    refs = {f"k{i}": {"type": "array", "items": {"$ref": "#/$defs/large"}, "maxItems": i} for i in range(200)}
    tool = function({"type": "object", "properties": refs, "$defs": {"large": large}})
    if form == "json":
        assert built(tool, form) is not None
    else:
        with pytest.raises(
            RequestError, match=r"^tools: go: the schemas, with the definitions that each parameter refers to"
        ):
            built(tool, form)


def test_messages_name_the_tool_and_nothing_of_the_generated_grammar():
    bad = of_property({"type": "array", "items": {"enum": ["a"], "type": "integer"}, "minItems": 1})
    other = function({"type": "object", "properties": {}}, name="other")
    with pytest.raises(RequestError) as error:
        params = GrammarParams(tool_choice="required")
        grammars(params, [([5], False)], demo_tokenizer(), TEMPLATES["xml"], [other, bad])
    assert str(error.value).startswith("tools: go: ")
    assert "failed to compile" not in str(error.value)
    assert json.dumps(str(error.value)).isascii()


CALL = demo_tokenizer().id_of("<tool_call>")


def calling(law):
    """A law that opens a call after seven tokens, and does not end before."""

    def logits(text):
        row = law(text).copy()
        row[list(demo_tokenizer().eos_ids)] -= 60 * (len(text) <= 7)
        row[CALL] += 60 * (len(text) == 7)
        return row

    return logits


@pytest.mark.parametrize("form", TEMPLATES)
@pytest.mark.parametrize("strategy", [Plain(), Strategy(PromptLookup())], ids=["plain", "lookup"])
def test_strict_calls_that_begin_in_reasoning_validate_with_every_strategy(form, strategy):
    toy, finished = scribbler(), 0
    toy.law = calling(toy.law)
    for seed in range(8):
        tool, prompt = strict_tool(6 * seed if form == "xml" else 6 * seed + 2), [5, demo_tokenizer().id_of("<think>")]
        try:
            (grammar,) = grammars(GrammarParams(), [(prompt, True)], demo_tokenizer(), TEMPLATES[form], [tool])
        except RequestError:
            continue
        settings = {"sampling": Sampling(temperature=1.0, seed=seed), "max_tokens": 400, "eos": demo_tokenizer().eos_ids}
        session = Session(prompt, grammar=grammar, strategy=strategy, **settings)
        list(Engine(toy).run([session]))
        assert session.error is None
        output = parsed(demo_tokenizer().decode(session.output_ids), [tool], calls=CALLS[form], prompt="<think>\n")
        assert output.tool_calls, "the call begins in reasoning"
        for call in output.tool_calls:
            if call.complete:
                finished += 1
                Draft202012Validator(tool["function"]["parameters"]).validate(call.parsed)
    assert finished


@pytest.mark.parametrize("form", TEMPLATES)
@pytest.mark.parametrize("strict", [True, False])
def test_long_chains_of_references_are_refused_or_followed(form, strict):
    for n in (100, 1500):
        chain = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}]} for i in range(n)} | {
            f"d{n}": {"type": "string", "maxLength": 3}
        }
        tool = of_property({"$ref": "#/$defs/d0"}, strict=strict)
        tool["function"]["parameters"]["$defs"] = chain
        try:
            grammar = built(tool, form)
        except RequestError as error:
            assert n > 1000
            assert str(error).startswith("tools: ")
        else:
            assert form == "json" or (allows(grammar, "abc") and not allows(grammar, "abcd"))


def test_many_parameters_make_no_grammar_that_grows_with_their_square():
    sizes = []
    for n in (100, 400):
        properties = {f"key_{i}": {"type": "string"} for i in range(n)}
        rules = xml_body(functions_of([function({"type": "object", "properties": properties})]), Notes())
        sizes.append(sum(map(len, rules)))
    assert sizes[1] < 5 * sizes[0]
    with pytest.raises(RequestError, match=r"^tools: go: has 5000 parameters in all its forms, at most 4096 are allowed"):
        built(function({"type": "object", "properties": {f"key_{i}": {} for i in range(5000)}}))
