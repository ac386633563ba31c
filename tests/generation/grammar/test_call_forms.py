"""Calls of Qwen2.5, Llama 3 and Mistral: what a grammar allows validates, and what a template writes is legal."""

import json
import random

import numpy as np
import pytest
from demo_text import demo_metadata
from family_tokens import family_template, family_tokenizer
from jsonschema import Draft202012Validator
from parsing import LLAMA, MISTRAL, QWEN, parsed, tool
from strict_tools import legal_output, strict_tool

from dflash.errors import RequestError
from dflash.generation.grammar.build import grammars
from dflash.generation.grammar.params import GrammarParams
from dflash.model.text.tokenizer import Tokenizer

FAMILIES = {"qwen2_5": QWEN, "llama3": LLAMA, "mistral_list": MISTRAL, "mistral_args": MISTRAL}
WEATHER, TIME = tool("get_weather", city={"type": "string"}), tool("get_time")
ENDS = {"qwen2_5": "<|im_end|>\n", "llama3": "<|eot_id|>", "mistral_list": "</s>", "mistral_args": "</s>"}


def built(family, tools, choice="required"):
    return grammars(GrammarParams(tool_choice=choice), [([5], False)], family_tokenizer(), family_template(family), tools)[0]


def accepts(grammar, text):
    matcher = grammar.start()
    return all(matcher.advance(token) for token in family_tokenizer().encode(text)) and matcher.is_accepting


def written(family, calls, tools, *, must_call=True):
    """The text of calls as the chat template renders it after the prompt; in code fences where a call is required."""
    if family == "qwen2_5" and must_call:
        objects = (
            f'{{\n  "name": "{name}",\n  "arguments": {json.dumps(arguments, ensure_ascii=False)}\n}}'
            for name, arguments in calls
        )
        return "\n".join(f"```json\n{each}\n```" for each in objects)
    made = [
        {"id": f"abcdefgh{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(calls)
    ]
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": made}]
    whole = family_template(family).render(messages, tools=tools, add_generation_prompt=False).removesuffix(ENDS[family])
    start = {"qwen2_5": "<tool_call>", "llama3": '{"name": "'}.get(family, "[TOOL_CALLS]")
    return whole[whole.index(start, whole.index("?")) :]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_legal_output_parses_to_arguments_that_validate(family):
    finished = 0
    for seed in (2, 3, 4, 6):
        offered = strict_tool(seed)
        output = legal_output(built(family, [offered]).start(), seed, max_tokens=400)
        if output is None:
            continue
        finished += 1
        calls = parsed(
            family_tokenizer().decode(output), [offered], calls=FAMILIES[family], reasoning="none", bound=True
        ).tool_calls
        assert calls
        for call in calls:
            assert call.complete
            Draft202012Validator(offered["function"]["parameters"]).validate(call.parsed)
    assert finished >= 2


@pytest.mark.parametrize("family", FAMILIES)
def test_every_call_that_the_template_writes_is_legal(family):
    rng, tools = random.Random(2), [WEATHER, TIME]
    grammar = built(family, tools)
    for _ in range(30):
        city = "".join(rng.choices('ab "\\\n<>{}[]é🔎\t1', k=rng.randint(0, 12)))
        calls = [("get_weather", {"city": city}), ("get_time", {})]
        text = written(family, calls[:1] if family == "llama3" else calls[: rng.randint(1, 2)], tools)
        assert accepts(grammar, text), text
    for spoiled in ("", text[1:], text.replace("get_", "go_"), text + "x", text.replace('"city"', '"town"')):
        assert not accepts(grammar, spoiled), spoiled


@pytest.mark.parametrize("family", FAMILIES)
def test_a_named_function_is_called_once(family):
    tools, choice = [WEATHER, TIME], {"type": "function", "function": {"name": "get_time"}}
    grammar = built(family, tools, choice)
    assert accepts(grammar, written(family, [("get_time", {})], tools))
    assert not accepts(grammar, written(family, [("get_weather", {"city": "Oslo"})], tools))
    if family != "llama3":
        assert not accepts(grammar, written(family, [("get_time", {}), ("get_time", {})], tools))


@pytest.mark.parametrize("family", FAMILIES)
def test_strict_tools_leave_free_text_alone(family):
    strict = json.loads(json.dumps(WEATHER))
    strict["function"]["strict"] = True
    grammar, call = (
        built(family, [strict], "auto"),
        written(family, [("get_weather", {"city": "Oslo"})], [strict], must_call=False),
    )
    for text in ("It is cold.", call) if family == "llama3" else ("It is cold.", f"Now: {call}", call + call):
        assert accepts(grammar, text), text
    assert not accepts(grammar, call.replace('"Oslo"', "5"))
    assert not accepts(grammar, call.replace("get_weather", "get_whether"))


def test_untagged_calls_of_strict_tools_fit_wholly_or_stay_text():
    """No token marks them, so that no grammar binds them: they are checked when they are complete."""
    for schema, good, bad in (
        ({"type": "string"}, '"x"', "5"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "1.5", "1"),
        ({"type": "string", "description": "d", "title": "t"}, '"x"', "null"),
        ({"type": "string", "minLength": 2}, None, '"xyz"'),
        ({"type": "array", "items": {"pattern": "^a"}}, None, '["a"]'),
    ):
        offered = {"name": "f", "strict": True, "parameters": {"type": "object", "properties": {"q": schema}}}
        for value in (good, bad):
            text = f'```json\n{{"name": "f", "arguments": {{"q": {value}}}}}\n```'
            if value is not None:
                assert bool(parsed(text, [offered], calls=QWEN).tool_calls) is (value == good), (schema, value)
        extra = '{"name": "f", "arguments": {"r": 1}}'
        assert not parsed(extra, [offered], calls=QWEN).tool_calls
        assert parsed(extra, [{**offered, "strict": False}], calls=QWEN).tool_calls


def test_a_vocabulary_without_the_tokens_of_its_template():
    metadata = demo_metadata()
    with pytest.raises(RequestError, match=r"^tool_choice: the vocabulary has no token \[TOOL_CALLS\]"):
        params, plain = GrammarParams(tool_choice="required"), Tokenizer.from_gguf(metadata)
        grammars(params, [([5], False)], plain, family_template("mistral_list"), [TIME])
    assert np.all(metadata["tokenizer.ggml.token_type"] > 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_of_a_schema_may_be_a_call_instead(family):
    schema = {"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}}
    grammar = grammars(
        GrammarParams(response_format=schema), [([5], False)], family_tokenizer(), family_template(family), [TIME]
    )[0]
    call = written(family, [("get_time", {})], [TIME])
    assert accepts(grammar, "17")
    assert accepts(grammar, call)
    assert not accepts(grammar, "seventeen")
    settings = {"calls": FAMILIES[family], "reasoning": "none", "bound": True}
    assert [found.name for found in parsed(call, [TIME], **settings).tool_calls] == ["get_time"]
    assert parsed("17", [TIME], **settings).content == "17"


@pytest.mark.parametrize("family", FAMILIES)
def test_names_in_other_letters_are_written_as_the_template_writes_them(family):
    offered = tool("größe")
    assert accepts(built(family, [offered]), written(family, [("größe", {})], [offered]))
