"""Reasoning between think tags, opened by the prompt or by the model."""

import pytest
from parsing import CLOSED, OPENED, parsed

from dflash.errors import RequestError
from dflash.generation.parsers import BareCalls, FencedCalls, FunctionTags, JSONCalls, OutputFormat, ThinkTags, ToolCalls
from dflash.generation.parsers.registry import register
from dflash.model.text.chat_template import ChatTemplate

PLAIN = "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("prompt", "text", "reasoning", "content"),
    [
        (OPENED, "a\nb\n</think>\n\nc\n", "a\nb", "c\n"),
        (OPENED, "a</think>c", "a", "c"),
        (OPENED, "a\n\n</think>\n\n\nc", "a\n", "\nc"),
        (OPENED, "\n</think>\n\nc", "", "c"),
        (OPENED, "</think>", "", ""),
        (OPENED, "a\n</thin", "a\n</thin", ""),
        (OPENED, "\na", "\na", ""),
        (OPENED, "<think>\na\n</think>\n\nc", "a", "c"),
        (OPENED, "a <think> b</think>c", "a <think> b", "c"),
        (OPENED, "", "", ""),
        ("assistant: <think>", "\na</think>c", "a", "c"),
        (CLOSED, "c </think> d", "", "c </think> d"),
        (PLAIN, "<think>\na\n</think>\n\nc", "a", "c"),
        (PLAIN, " \n<think>a</think>\nc", "a", "c"),
        (PLAIN, "<think>\n", "", ""),
        (PLAIN, "c <think>d</think>", "", "c <think>d</think>"),
        (PLAIN, "\n\n<thin", "", "\n\n<thin"),
        (PLAIN, "c</think>", "", "c</think>"),
        ("What does <think> do?" + PLAIN, "It thinks.", "", "It thinks."),
    ],
)
def test_reasoning_and_content(prompt, text, reasoning, content):
    for tools in (None, []):
        output = parsed(text, tools, prompt=prompt)
        assert (output.reasoning, output.content) == (reasoning, content)


def test_without_a_format_all_text_is_content():
    assert parsed("a</think>b", reasoning="none", prompt=OPENED).content == "a</think>b"


THINK = "{{ '<think>' }} ... </think>"
XML_CALLS = "<tool_call>\n<function=' + name + '>\n<parameter='"
JSON_CALLS = """<tool_call>\n{"name": "' + name + '", "arguments": '"""


@pytest.mark.parametrize(
    ("source", "reasoning", "tools"),
    [
        (THINK + XML_CALLS, ThinkTags, FunctionTags),
        (JSON_CALLS, type(None), JSONCalls),
        ("{{ messages }}", type(None), type(None)),
        (XML_CALLS + JSON_CALLS, type(None), FunctionTags),
        (JSON_CALLS + "You are Qwen, created by Alibaba Cloud.", type(None), FencedCalls),
        ("""{{ '<tools>\\n{"name": "f", "arguments": {}}\\n</tools>' }}""", type(None), FencedCalls),
        ("""<|start_header_id|> {"name": "f", "parameters": {}}""", type(None), BareCalls),
        ("<|start_header_id|> Call functions with parameters as [f(x=1)].", type(None), type(None)),
        (JSON_CALLS + "<|start_header_id|> parameters", type(None), JSONCalls),
        ("[TOOL_CALLS]' ~ name ~ '[ARGS]", type(None), ToolCalls),
    ],
)
def test_the_template_chooses_the_formats(source, reasoning, tools):
    template, offered = ChatTemplate(source, tokens={}), [{"name": "f"}]
    chosen = OutputFormat.of(template, offered)
    assert (type(getattr(chosen, "reasoning", None)), type(getattr(chosen, "tools", None))) == (reasoning, tools)
    assert getattr(OutputFormat.of(template), "tools", None) is None
    assert OutputFormat.of(template, offered, reasoning="none", tool="none") is None


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"reasoning": "deepseek"}, "reasoning_parser: 'deepseek' is not known; there are none, qwen3"),
        (
            {"tool": "qwen3"},
            "tool_parser: 'qwen3' is not known; there are none, hermes, llama3, mistral, qwen2.5, qwen3-coder",
        ),
        ({"tool": 5}, "tool_parser: 5 is not known; there are none, hermes, llama3, mistral, qwen2.5, qwen3-coder"),
    ],
)
def test_an_unknown_name_is_refused(names, message):
    with pytest.raises(RequestError) as error:
        OutputFormat.of(None, **names)
    assert str(error.value) == message


def test_a_name_belongs_to_one_class():
    with pytest.raises(ValueError, match="'hermes' is the name of JSONCalls"):
        register("tool", "hermes")(type("Other", (), {}))
    assert register("tool", "hermes")(JSONCalls) is JSONCalls


def test_odd_tools_are_not_offered():
    tools = [None, "f", {"function": "f"}, {"function": {"name": 5}}, {"name": "f", "parameters": "odd"}]
    output = parsed("<function=f>\n<parameter=a>\n1\n</parameter>\n</function>", tools)
    assert [(call.name, call.parsed) for call in output.tool_calls] == [("f", {"a": "1"})]
