"""Constraints on the demo model: the same text with every strategy, reasoning first, an end of its own."""

import json
import re

import pytest

from dflash.decode.recoveries.min_tokens import MinTokens

STRATEGIES = ["lookup", "mtp", "dflash", "ddtree:22", "adaptive", "first(lookup,mtp)"]
OFF = {"chat_template_kwargs": {"enable_thinking": False}}
QUESTION = [{"role": "user", "content": "Read the file notes.txt and tell me the name of the city."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 30}, "sizes": {"type": "array", "items": {"enum": [1, 20, 300]}}},
    "required": ["city", "sizes"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}


def tool(name, strict=False, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {"type": "function", "function": {"name": name, "parameters": parameters} | ({"strict": True} if strict else {})}


TOOLS = [
    tool("read_file", path={"type": "string"}, limit={"type": "integer"}),
    tool("list_files", path={"type": "string"}, mode={"enum": ["short", "long"]}),
]
CONSTRAINTS = {
    "schema": {"response_format": FORMAT},
    "call": {"tools": TOOLS, "tool_choice": "required"},
    "regex": {"regex": r"The (city|town) is [A-Z][a-z]{2,8}(, [a-z]{1,6}){0,3}\."},
}
TEMPERATURES = {"greedy": {}, "T 1": {"temperature": 1.0, "seed": 5}, "T 0.8": {"temperature": 0.8, "top_p": 0.9, "seed": 6}}


@pytest.mark.parametrize(
    ("name", "sampling", "strategies"),
    [("schema", "T 1", STRATEGIES), ("call", "greedy", STRATEGIES), ("regex", "T 0.8", ["mtp", "ddtree:22"])],
    ids=["schema", "call", "regex"],
)
def test_every_strategy_gives_the_same_text(lm, pools, name, sampling, strategies):
    settings = {"max_tokens": 24, **OFF, **CONSTRAINTS[name], **TEMPERATURES[sampling]}
    plain = lm.generate(QUESTION, **settings)
    for strategy in strategies:
        found = lm.generate(QUESTION, strategy=strategy, **settings)
        assert (found.tokens, found.finish_reason) == (plain.tokens, plain.finish_reason), strategy
    if plain.finish_reason == "stop":
        assert plain.text
    assert plain.acceptance in (None, 1.0), "forced tokens are always accepted"


def test_a_batch_gives_what_each_gives_alone(lm, pools):
    questions = [QUESTION, [{"role": "user", "content": "Name a city."}], [{"role": "user", "content": "Oslo?"}]]
    settings = {"max_tokens": 24, "temperature": 0.7, "seed": 9, **CONSTRAINTS["schema"], **OFF}
    alone = [lm.generate(one, **settings).tokens for one in questions]
    for strategy in ("mtp", "ddtree:22"):
        assert [one.tokens for one in lm.generate(questions, strategy=strategy, **settings)] == alone


def test_without_constraints_nothing_changes(lm, pools):
    settings = {"max_tokens": 8, "seed": 3, "temperature": 1.0, **OFF}
    plain = lm.generate(QUESTION, tools=TOOLS, **settings)
    for choice in ({}, {"tool_choice": "auto"}, {"response_format": {"type": "text"}}):
        assert lm.generate(QUESTION, tools=TOOLS, **choice, **settings).tokens == plain.tokens


def test_without_a_choice_of_tools_no_call_is_written(lm, pools):
    question = [{"role": "user", "content": "What is the weather in Oslo? Call the tool."}]
    settings = {"max_tokens": 24, "temperature": 1.0, **OFF}
    free = [lm.generate(question, tools=TOOLS, seed=seed, **settings) for seed in range(6)]
    barred = [lm.generate(question, tools=TOOLS, tool_choice="none", seed=seed, **settings) for seed in range(6)]
    assert any("<tool_call>" in one.text for one in free)
    assert not any("<tool_call>" in one.text or one.tool_calls for one in barred)


@pytest.mark.parametrize("seed", range(2))
def test_calls_of_the_demo_are_calls(lm, pools, seed):
    named = {"type": "function", "function": {"name": "list_files"}}
    for choice in ("required", named):
        found = lm.generate(
            QUESTION, tools=TOOLS, tool_choice=choice, max_tokens=60, temperature=1.5, seed=seed, strategy="lookup", **OFF
        )
        if found.finish_reason != "length":
            assert found.finish_reason == "tool_calls"
            assert {call.name for call in found.tool_calls} <= {"read_file", "list_files"}
            value = r"<parameter=(path|limit|mode)>\n(?s:.*?)\S(?s:.*?)\n</parameter>\n"
            call = rf"<tool_call>\n<function=(read_file|list_files)>\n({value})*</function>\n</tool_call>"
            assert re.fullmatch(rf"{call}(\n{call})*", found.text)
            assert "<parameter=path>" in found.text or "<function=list_files>" not in found.text
            assert choice == "required" or found.text.count("<function=") == found.text.count("<function=list_files>") == 1


def test_the_grammar_begins_after_reasoning(lm, pools):
    """The prompt opens reasoning. Whatever is thought is free; the schema holds for the rest."""
    answered = 0
    for settings in ({"strategy": "ddtree:22"}, {"temperature": 0.9, "seed": 2}):
        found = lm.generate(QUESTION, response_format=FORMAT, max_tokens=80, **settings)
        free = lm.generate(
            QUESTION, max_tokens=len(lm.tokenizer.encode(found.text.partition("</think>")[0])) + 1, **settings
        )
        thought, closed, answer = found.text.partition("</think>")
        assert free.text.startswith(thought)
        if closed and found.finish_reason == "stop":
            answered += 1
            assert set(json.loads(answer)) == {"city", "sizes"}
    assert answered


@pytest.mark.parametrize("strategy", [None, "lookup", "dflash"])
def test_strict_tools_leave_free_text_alone(lm, pools, strategy):
    tools = [tool("read_file", strict=True, path={"type": "string"}), TOOLS[1]]
    settings = {"tools": tools, "max_tokens": 32, **OFF}
    found = lm.generate(QUESTION, strategy=strategy, **settings)
    _, opened, call = found.text.partition("<tool_call>")
    assert opened, "the demo calls a tool here"
    assert re.match(r"\n<function=(read_file>\n<parameter=path>\n\s*\S|list_files>\n)", call)
    assert found.tokens == lm.generate(QUESTION, **settings).tokens


def test_a_minimum_length_yields_to_the_end_of_the_grammar(lm, pools):
    found = lm.generate("Say", regex="yes|no", recover=MinTokens(20), max_tokens=30)
    assert (found.text in ("yes", "no"), found.finish_reason) == (True, "stop")
    longer = lm.generate("Say", regex="(yes ){1,40}", recover=MinTokens(20), max_tokens=21)
    assert len(longer.tokens) == 21


@pytest.mark.parametrize("strategy", [None, "lookup", "mtp:3"])
def test_a_budget_of_reasoning_before_a_grammar(lm, pools, strategy):
    question = [{"role": "user", "content": "What is 2 + 2?"}]
    found = lm.generate(question, regex="yes|no", recover="think:3", strategy=strategy, max_tokens=60)
    reasoning, _, content = found.text.partition("\n</think>")
    assert reasoning.startswith("I need to\n\nConsidering the limited time")
    assert (content in ("yes", "no"), found.finish_reason) == (True, "stop")
