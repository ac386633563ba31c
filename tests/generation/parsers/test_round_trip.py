"""Calls that chat templates render from a history are parsed to the same calls."""

import json
import random
from pathlib import Path

import pytest
from parsing import JSON, LLAMA, MISTRAL, QWEN, XML, parsed, parser, tool

from dflash.generation.parsers import ParsedOutput
from dflash.generation.parsers.registry import matching
from dflash.model.text.chat_template import ChatTemplate

DATA = Path(__file__).parents[2] / "data"
RECORDED = json.loads((DATA / "tools" / "recorded_calls.json").read_text(encoding="utf-8"))
TEMPLATES = {
    XML: ChatTemplate((DATA / "demo" / "chat_template.jinja").read_text(encoding="utf-8"), tokens={}),
    JSON: ChatTemplate((DATA / "templates" / "json_calls.jinja").read_text(encoding="utf-8"), tokens={}),
}
FAMILIES = {
    "qwen2_5": (QWEN, "<|im_end|>\n"),
    "llama3": (LLAMA, "<|eot_id|>"),
    "mistral_list": (MISTRAL, "</s>"),
    "mistral_args": (MISTRAL, "</s>"),
}
QUESTION = {"role": "user", "content": "?"}


def rendered(calls, message, tools):
    """Generation prompt, and the rest of the history with one message of the assistant."""
    template = TEMPLATES[calls]
    prompt = template.render([QUESTION], tools=tools)
    whole = template.render([QUESTION, message], tools=tools, add_generation_prompt=False)
    assert whole.startswith(prompt)
    assert whole.endswith("<|im_end|>\n")
    return prompt, whole[len(prompt) : -len("<|im_end|>\n")]


def message(calls, *, content="", reasoning="I think."):
    written = [{"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    return {"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": written}


def check(calls, written, tools):
    prompt, text = rendered(calls, written, tools)
    output = parsed(text, tools, calls=calls, prompt=prompt)
    wanted = [(call["function"]["name"], call["function"]["arguments"]) for call in written["tool_calls"]]
    arguments = [json.loads(each) if isinstance(each, str) else each for _, each in wanted]
    assert [call.name for call in output.tool_calls] == [name for name, _ in wanted]
    assert [call.parsed for call in output.tool_calls] == arguments
    assert json.dumps([call.parsed for call in output.tool_calls]) == json.dumps(arguments)  # 1.0 is not 1 here
    assert (output.reasoning, output.content.strip()) == (written["reasoning_content"], written["content"])
    again = message([(call.name, call.arguments) for call in output.tool_calls], content=output.content.strip())
    assert rendered(calls, again, tools) == (prompt, text)


@pytest.mark.parametrize("calls", [XML, JSON])
@pytest.mark.parametrize("recorded", RECORDED, ids=lambda each: f"{each['client']} {each['name']}")
def test_recorded_calls_of_agents(recorded, calls):
    tools = [{"type": "function", "function": {key: recorded[key] for key in ("name", "parameters")}}]
    for arguments in recorded["calls"]:
        check(calls, message([(recorded["name"], arguments)]), tools)
    check(calls, message([(recorded["name"], each) for each in recorded["calls"]], content="Text before."), tools)


KINDS = {
    "string": lambda choice: "".join(choice.choices('ab "\\\n<>{}/é🔎\t1', k=choice.randint(0, 12))),
    "integer": lambda choice: choice.randint(-(10**20), 10**20),
    "number": lambda choice: choice.choice([choice.uniform(-1e9, 1e9), float(choice.randint(-5, 5)), 1e-300]),
    "boolean": lambda choice: choice.random() < 0.5,
    "null": lambda _: None,
    "array": lambda choice: [value(choice) for _ in range(choice.randint(0, 3))],
    "object": lambda choice: {KINDS["string"](choice): value(choice) for _ in range(choice.randint(0, 3))},
}


def value(choice):
    return KINDS[choice.choice([*KINDS])](choice)


@pytest.mark.parametrize("calls", [XML, JSON])
def test_values_of_all_types(calls):
    choice = random.Random(3)
    for _ in range(150):
        kinds = choice.sample([*KINDS], k=choice.randint(1, 5))
        arguments = {f"{kind} key": KINDS[kind](choice) for kind in kinds}
        schemas = {f"{kind} key": choice.choice([{"type": kind}, {"anyOf": [{"type": kind}]}]) for kind in kinds}
        tools = [tool("f", **schemas), tool("g")]
        check(calls, message([("f", arguments), ("g", {}), ("f", arguments)]), tools)


@pytest.mark.parametrize("calls", [XML, JSON])
def test_numbers_stay_as_the_model_wrote_them(calls):
    for literal in ("1.0", "1000.00", "1e5", "12345678901234567890", "0.1000000000000000055511151231257827"):
        tools = [tool("f", n={"type": "number"})]
        _, text = rendered(calls, message([("f", {"n": 7})]), tools)
        (call,) = parsed(text.replace("7", literal), tools, calls=calls, prompt="<think>\n").tool_calls
        assert call.arguments == f'{{"n": {literal}}}'


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_of_other_families(family):
    """The parser reads back the calls that the chat template renders, whole and character by character."""
    (name, end), choice = FAMILIES[family], random.Random(5)
    source = (DATA / "templates" / "families" / f"{family}.jinja").read_text(encoding="utf-8")
    template = ChatTemplate(source, tokens={"bos_token": "<s>", "eos_token": "</s>"})
    assert matching("tool", source) == name
    for _ in range(60):
        kinds = choice.sample([*KINDS], k=choice.randint(0, 4))
        arguments = {f"{kind} key": KINDS[kind](choice) for kind in kinds}
        tools = [tool("f", **{f"{kind} key": {"type": kind} for kind in kinds}), tool("g")]
        wanted = [("f", arguments)] if family == "llama3" else [("f", arguments), ("g", {})]
        calls = [
            {"id": f"abcdefgh{n}", "type": "function", "function": {"name": each, "arguments": json.dumps(inner)}}
            for n, (each, inner) in enumerate(wanted)
        ]
        written = {"role": "assistant", "content": "", "tool_calls": calls}
        prompt = template.render([QUESTION], tools=tools)
        whole = template.render([QUESTION, written], tools=tools, add_generation_prompt=False)
        text = whole.removesuffix(end)[len(prompt) if whole.startswith(prompt) else whole.index("[TOOL_CALLS]") :]
        output = parsed(text, tools, calls=name, reasoning="none")
        assert [(call.name, call.parsed) for call in output.tool_calls] == wanted
        assert output.content.strip() == ""
        one = parser(tools, calls=name, reasoning="none")
        events = [event for letter in text for event in one.push(letter)] + one.finish()
        assert [(call.name, call.parsed) for call in ParsedOutput.of(events).tool_calls] == wanted
