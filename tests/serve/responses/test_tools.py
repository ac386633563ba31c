"""Tools and tool choice."""

import pytest

from dflash.generation.messages.fields import FieldError, Fields
from dflash.serve.responses.tools import Tool, parse_tool_choice, parse_tools

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
LS = {"type": "function", "name": "ls", "description": "List", "parameters": SCHEMA, "strict": False}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /x+/"}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Patch", "format": GRAMMAR}
AGENTS = {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "stop"}, LS, PATCH]}


def parsed(*tools):
    return parse_tools(Fields({"tools": list(tools)}))


def chosen(choice, *tools):
    return parse_tool_choice(Fields({"tool_choice": choice}), parsed(*tools))


def test_functions_are_offered_in_the_form_of_chat_completions():
    tools = parsed(LS, {**LS, "name": "strict", "strict": True}, {"type": "function", "name": "bare", "parameters": None})
    assert [tool["function"] for tool in tools.functions] == [
        {"name": "ls", "description": "List", "parameters": SCHEMA},
        {"name": "strict", "description": "List", "parameters": SCHEMA, "strict": True},
        {"name": "bare"},
    ]


def test_a_custom_tool_is_a_function_with_one_text():
    tools = parsed(PATCH, {"type": "custom", "name": "free"})
    patch, free = (tool["function"] for tool in tools.functions)
    assert (patch["name"], patch["description"], patch["parameters"]["required"]) == ("apply_patch", "Patch", ["input"])
    assert "start: /x+/" in patch["parameters"]["properties"]["input"]["description"]
    assert free["parameters"]["properties"] == {"input": {"type": "string"}}
    assert tools.known["apply_patch"] == Tool("apply_patch", is_custom=True)


def test_tools_of_a_namespace_keep_their_names_unless_taken():
    tools = parsed(AGENTS, LS)
    assert [tool["function"]["name"] for tool in tools.functions] == ["ls", "stop", "agents.ls", "apply_patch"]
    assert tools.known["stop"] == Tool("stop", "agents")
    assert tools.known["agents.ls"] == Tool("ls", "agents")
    assert tools.known["apply_patch"] == Tool("apply_patch", "agents", is_custom=True)


def test_of_two_tools_with_one_name_the_last_counts():
    tools = parsed(LS, {"type": "custom", "name": "ls"})
    assert tools.known == {"ls": Tool("ls", is_custom=True)}
    assert [tool["function"]["parameters"]["required"] for tool in tools.functions] == [["input"]]


def test_tools_that_run_elsewhere_are_skipped():
    kinds = ("web_search", "tool_search", "mcp", "code_interpreter", "local_shell", "namespaces")
    assert parsed(*({"type": kind} for kind in kinds), LS).known == {"ls": Tool("ls")}


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        ({"name": "x"}, "tools[0].type"),
        ({"type": "function"}, "tools[0].name"),
        ({"type": "custom"}, "tools[0].name"),
        ({"type": "namespace", "tools": [LS]}, "tools[0].name"),
        ({"type": "namespace", "name": "n", "tools": [{"type": "function"}]}, "tools[0].tools[0].name"),
        ({"type": "function", "name": "x", "parameters": []}, "tools[0].parameters"),
    ],
)
def test_malformed_tools_are_refused(tool, field):
    with pytest.raises(FieldError) as caught:
        parsed(tool)
    assert caught.value.field == field


def test_tool_choices_are_read():
    ls = {"type": "function", "function": {"name": "ls"}}
    assert chosen(None, LS)[0] is None
    assert chosen("none")[0] == "none"
    assert chosen("required", LS)[0] == "required"
    assert chosen({"type": "function", "name": "ls"}, LS)[0] == ls
    assert chosen({"type": "custom", "name": "apply_patch"}, PATCH)[0]["function"]["name"] == "apply_patch"
    assert (
        chosen({"type": "function", "name": "ls", "namespace": "agents"}, LS, AGENTS)[0]["function"]["name"] == "agents.ls"
    )


def test_allowed_tools_are_the_only_ones_offered():
    allowed = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "ls"}, {"type": "web_search"}],
    }
    choice, tools = chosen(allowed, PATCH, LS)
    assert (choice, list(tools.known), len(tools.functions)) == ("required", ["ls"], 1)


@pytest.mark.parametrize(
    ("choice", "field"),
    [
        ("any", "tool_choice"),
        (5, "tool_choice"),
        ({"type": "function", "name": "cd"}, "tool_choice.name"),
        ({"type": "web_search"}, "tool_choice.type"),
        ({"type": "allowed_tools", "mode": "auto"}, "tool_choice.tools"),
        ({"type": "allowed_tools", "tools": [{"type": "function", "name": "cd"}]}, "tool_choice.tools[0].name"),
    ],
)
def test_malformed_choices_are_refused(choice, field):
    with pytest.raises(FieldError) as caught:
        chosen(choice, LS)
    assert caught.value.field == field


def test_a_required_call_needs_a_tool():
    with pytest.raises(FieldError, match="no function"):
        chosen("required", {"type": "web_search"})
