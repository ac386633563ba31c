"""Conversion of Anthropic's tools and tool choice to OpenAI's chat format."""

from collections.abc import Sequence

from dflash.generation.messages.fields import Fields, shown
from dflash.json_types import JsonMapping, JsonObject

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def function_tools(fields: Fields) -> tuple[JsonObject, ...]:
    """Convert the tools of a body.

    Returns: functions in OpenAI's chat format. Tools of a type other than ``custom``, such as ``web_search_20250305``, are
        left out: they run on Anthropic's servers or have no schema. Tools with ``defer_loading`` keep that mark.
    """
    return tuple(_function(tool) for tool in fields.objects("tools") if tool.text("type", "custom") == "custom")


def deferred_tool(tool: Fields) -> JsonObject:
    """Convert a tool that is defined in a message: it stands in the prompt where the message refers to it."""
    return {**_function(tool), "defer_loading": True}


def _function(tool: Fields) -> JsonObject:
    function: JsonObject = {"name": tool.text("name", required=True)}
    description, schema = tool.text("description"), tool.object("input_schema")
    if description is not None:
        function["description"] = description
    if schema is not None:
        function["parameters"] = schema.values
    if tool.flag("strict"):
        function["strict"] = True
    deferred = {"defer_loading": True} if tool.flag("defer_loading") else {}
    return {"type": "function", "function": function, **deferred}


def tool_choice(fields: Fields, tools: Sequence[JsonMapping]) -> tuple[str | JsonObject | None, bool]:
    """Convert the field ``tool_choice``.

    Returns: tool choice in OpenAI's chat format; None if the body has none.
    Returns: true if several calls in one answer are allowed.
    """
    choice = fields.object("tool_choice")
    if choice is None:
        return None, True
    kind, parallel = choice.text("type", required=True), not choice.flag("disable_parallel_tool_use")
    if kind == "tool":
        name = choice.text("name", required=True)
        if name not in [tool["function"]["name"] for tool in tools]:
            raise choice.error("name", f"{shown(name)} is not among the tools that this server can offer")
        return {"type": "function", "function": {"name": name}}, parallel
    if kind not in _CHOICES:
        raise choice.error("type", f"must be one of {', '.join(_CHOICES)}, tool, got {shown(kind)}")
    if kind == "any" and not tools:
        raise choice.error("type", "is 'any', but tools holds none that this server can offer")
    return _CHOICES[kind], parallel
