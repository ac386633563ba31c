"""Tools of the Responses API as functions of the chat template."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from dflash.generation.messages.fields import Fields, shown
from dflash.json_types import JsonMapping, JsonObject

INPUT = "input"
"""The parameter of a custom tool's function; it holds the tool's free text."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the model may call."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class Tools:
    """Tools of a request. functions: functions in OpenAI's chat format, for the chat template."""

    functions: tuple[JsonMapping, ...] = ()
    known: Mapping[str, Tool] = field(default_factory=dict)
    seen_as: Mapping[tuple[str, str | None], str] = field(default_factory=dict)

    def name_of(self, name: str, namespace: str | None = None) -> str:
        """Return the name under which the model sees a tool; a tool that is not offered keeps its own."""
        return self.seen_as.get((name, namespace), name)


def parse_tools(fields: Fields) -> Tools:
    """Read ``tools``.

    Functions and custom tools are offered to the model, also those of a namespace. A tool of a namespace has its own name,
    or ``NAMESPACE.NAME`` if another tool has that one; the description of the first one ends with that of its namespace.
    Of two plain tools with one name, the last counts. Other kinds, such as ``web_search``, run at OpenAI and are skipped.
    """
    functions: dict[str, JsonMapping] = {}
    known: dict[str, Tool] = {}
    notes: dict[str, str] = {}
    spaces: list[tuple[str | None, Iterable[Fields]]] = [(None, fields.objects("tools"))]
    for space, tools in spaces:  # namespaces are appended, so that plain tools keep their names
        for tool in tools:
            kind = tool.text("type", required=True)
            if kind == "namespace" and space is None:
                spaces.append((tool.text("name", required=True), tool.objects("tools")))
                notes[tool.text("name")] = tool.text("description", "")
            elif kind in ("function", "custom"):
                name = tool.text("name", required=True)
                seen = f"{space}.{name}" if space is not None and name in known else name
                known[seen] = Tool(name, space, kind == "custom")
                functions[seen] = _function(seen, tool) if kind == "function" else _custom(seen, tool)
                if space is not None and (about := notes.pop(space, None)):
                    functions[seen] = _with_note(functions[seen], f"About the tools of {space}: {about}")
    return Tools(tuple(functions.values()), known, {(tool.name, tool.namespace): seen for seen, tool in known.items()})


def input_arguments(text: str) -> str:
    """Return the arguments of a call to a custom tool's function, as JSON text."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def parse_tool_choice(fields: Fields, tools: Tools) -> tuple[str | JsonMapping | None, Tools]:
    """Read ``tool_choice``.

    Returns: the choice in OpenAI's chat format.
    Returns: the tools to offer: ``allowed_tools`` leaves out the others.
    """
    choice = fields.any("tool_choice")
    if isinstance(choice, Mapping):
        wanted = Fields(choice, fields.name("tool_choice"))
        kind = wanted.text("type", required=True)
        if kind in ("function", "custom"):
            return {"type": "function", "function": {"name": _chosen(wanted, tools)}}, tools
        if kind != "allowed_tools":
            raise wanted.error("type", f"must be function, custom or allowed_tools, got {shown(kind)}")
        allowed = {
            _chosen(tool, tools)
            for tool in wanted.objects("tools", required=True)
            if tool.text("type", "function") in ("function", "custom")
        }
        choice, tools = wanted.choice("mode", ("auto", "required"), "auto"), _only(tools, allowed)
    else:
        choice = fields.choice("tool_choice", ("none", "auto", "required"))
    if choice == "required" and not tools.functions:
        raise fields.error("tool_choice", "is 'required', but tools holds no function and no custom tool")
    return choice, tools


def _function(name: str, tool: Fields) -> JsonMapping:
    parameters = tool.object("parameters")
    function = {
        "name": name,
        "description": tool.text("description"),
        "parameters": parameters and parameters.values,
        "strict": tool.flag("strict") or None,
    }
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def _custom(name: str, tool: Fields) -> JsonMapping:
    form = tool.object("format")
    text: JsonObject = {"type": "string"}
    if form and form.text("type") == "grammar":
        text["description"] = f"Text of this {form.text('syntax', 'lark')} grammar:\n{form.text('definition', '')}"
    parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
    description = tool.text("description")
    about = {} if description is None else {"description": description}
    return {"type": "function", "function": {"name": name, **about, "parameters": parameters}}


def _with_note(tool: JsonMapping, note: str) -> JsonMapping:
    """Return a function with a note at the end of its description."""
    function = tool["function"]
    description = "\n\n".join(filter(None, (function.get("description"), note)))
    return {**tool, "function": {**function, "description": description}}


def _chosen(wanted: Fields, tools: Tools) -> str:
    name = tools.name_of(wanted.text("name", required=True), wanted.text("namespace"))
    if name not in tools.known:
        raise wanted.error("name", f"is {shown(name)}, which is not among the tools")
    return name


def _only(tools: Tools, names: Collection[str]) -> Tools:
    functions = tuple(each for each in tools.functions if each["function"]["name"] in names)
    return replace(tools, functions=functions, known={name: tools.known[name] for name in names})
