"""First tokens of a tool call, derived from the chat template of the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.decode.shared_prefix import n_shared
from dflash.errors import RequestError, TemplateError
from dflash.generation.parsers.registry import find
from dflash.json_types import JsonMapping
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer

Tool = JsonMapping
ToolChoice = str | JsonMapping | None

_TEXT, _VALUE, _NAME, _KEY, _NUMBER = "said-9f27c1", "value-9f27c1", "name-9f27c1", "key-9f27c1", 927061
_NEXT = ("a", "Z", "the", "src", "_", "7", '"', "[", "/", "{")
"""Possible continuations. Prefix tokens that change with the continuation are left to the model."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Token ids that open a call: `lead` separates it from the text before, `call` is the opening itself."""

    lead: tuple[int, ...]
    call: tuple[int, ...]


def opening(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    tools: Sequence[Tool],
    tool_choice: ToolChoice = None,
    *,
    default: str | None = None,
) -> Opening | None:
    """Build the shortest token prefix of a tool call.

    template: chat template of the model; renders an example call.
    tools: tools in OpenAI's format.
    tool_choice: field of a request. The tool is the function that it names, else the only tool, else `default`. If none of
        these determines a tool, the opening ends before the name.
    default: name of a tool; ignored if it is not among `tools`.
    Returns: None if there are no tools or the template can't render calls. If the tool is known, the opening includes the
        start of its first required parameter.
    """
    functions = {name: function for name, function in map(_function, tools) if name}
    if not functions or tool_choice == "none":
        return None
    name = _chosen(functions, tool_choice, default)
    try:
        text = _opened(template, name, {} if name is None else functions.get(name, {}))
    except TemplateError:
        return None
    form = find("tool", None, template.source)
    if form is not None and form.bound is not None:  # the form in which the model ends its calls
        text = text.replace(form.tokens[0], form.bound.line_openings[0], 1)
    call = text.lstrip()
    lead = text[: len(text) - len(call)]
    ids = _certain(tokenizer, call)
    return Opening(tuple(tokenizer.encode(lead, special=False)), ids) if ids else None


def _chosen(functions: JsonMapping, tool_choice: ToolChoice, default: str | None) -> str | None:
    if isinstance(tool_choice, Mapping):
        name = (tool_choice.get("function") or tool_choice).get("name")
        if name not in functions:
            raise RequestError(f"tool_choice: names {name!r}, which is not among the tools")
        return name
    return next(iter(functions)) if len(functions) == 1 else default if default in functions else None


def _function(tool: Tool) -> tuple[str | None, Tool]:
    function = tool.get("function", tool)
    return (function.get("name"), function) if isinstance(function, Mapping) else (None, {})


def _opened(template: ChatTemplate, name: str | None, function: Tool) -> str:
    """Return the text between the end of the assistant's text and the point where the model continues."""
    if name is None:
        return _between(_call(template, _NAME, {_KEY: _VALUE}), _NAME)
    parameters = _object(function.get("parameters"))
    required = parameters.get("required")
    key = required[0] if isinstance(required, list | tuple) and required else None
    if not key or not isinstance(key, str):
        bare, full = (_call(template, name, arguments) for arguments in ({}, {_KEY: _VALUE}))
        together = _between(bare[: n_shared(bare, full)])
        # an argument and the end of the call may share first characters
        return together[: max(map(together.rfind, ">\n{")) + 1]
    # a string value may begin with a quote; values of other or unknown type must not
    is_text = _object(_object(parameters.get("properties")).get(key)).get("type") == "string"
    value = _VALUE if is_text else _NUMBER
    return _between(_call(template, name, {key: value}), str(value))


def _object(value: object) -> JsonMapping:
    """Return a part of a schema; an empty mapping if it is not an object."""
    return value if isinstance(value, Mapping) else {}


def _call(template: ChatTemplate, name: str, arguments: Mapping[str, Any]) -> str:
    call = {"id": "call00000", "type": "function", "function": {"name": name, "arguments": arguments}}
    message = {"role": "assistant", "content": _TEXT, "tool_calls": [call]}
    return template.render([{"role": "user", "content": "?"}, message], add_generation_prompt=False)


def _between(text: str, end: str | None = None) -> str:
    start = text.rfind(_TEXT)
    stop = len(text) if end is None else text.find(end, start)
    if start < 0 or stop < 0:
        raise TemplateError("the chat template does not render tool calls after a text")
    return text[start + len(_TEXT) : stop]


def _certain(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Return the token ids that a text begins with for every continuation."""
    encodings = tokenizer.encode_batch([text, *(text + more for more in _NEXT)], special=False)
    return tuple(encodings[0][: n_shared(*encodings)])
