"""How a tool call begins, in the words of a model's own chat template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from dflash.errors import RequestError, TemplateError
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer

Tool = Mapping[str, Any]
ToolChoice = str | Mapping[str, Any] | None

_SAID, _VALUE, _NAME, _KEY, _NUMBER = "said-9f27c1", "value-9f27c1", "name-9f27c1", "key-9f27c1", 927061
_NEXT = ("a", "Z", "the", "src", "_", "7", '"', "[", "/", "{")
"""What may follow: an id that would be another one then is left to the model."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Ids that open a call: `lead` separates them from the text before, `call` is the opening itself."""

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
    """Build the least that makes a text a tool call.

    Parameters
    ----------
    tokenizer : Tokenizer
    template : ChatTemplate
        Shows how calls are written.
    tools : sequence of mapping
        In OpenAI's form.
    tool_choice : str or mapping, optional
        As in a request. A function that it names is the one; then the only tool there is; then `default`. Where that leaves
        several, the opening ends where the name would begin.
    default : str, optional
        Name of a tool, which is no matter where it is not among `tools`.

    Returns
    -------
    Opening or None
        None if there is nothing to call or the template has no way to write calls. A known tool's first required parameter
        is opened, too.
    """
    functions = {name: function for name, function in map(_function, tools) if name}
    if not functions or tool_choice == "none":
        return None
    name = _chosen(functions, tool_choice, default)
    try:
        text = _opened(template, name, functions.get(name, {}))
    except TemplateError:
        return None
    call = text.lstrip()
    lead = text[: len(text) - len(call)]
    ids = _certain(tokenizer, call)
    return Opening(tuple(tokenizer.encode(lead, special=False)), ids) if ids else None


def _chosen(functions: Mapping[str, Any], tool_choice: ToolChoice, default: str | None) -> str | None:
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
    """Text from the end of what was said to where the model goes on."""
    if name is None:
        return _between(_call(template, _NAME, {_KEY: _VALUE}), _NAME)
    parameters = _object(function.get("parameters"))
    required = parameters.get("required")
    key = required[0] if isinstance(required, list | tuple) and required else None
    if not key or not isinstance(key, str):
        both = (_call(template, name, arguments) for arguments in ({}, {_KEY: _VALUE}))
        together = _between(
            "".join(one for one, other in takewhile(lambda pair: pair[0] == pair[1], zip(*both, strict=False)))
        )
        # an argument and the end of the call may begin alike
        return together[: max(map(together.rfind, ">\n{")) + 1]
    # a text may begin with a quote, which any other value, and one of unknown type, must not
    is_text = _object(_object(parameters.get("properties")).get(key)).get("type") == "string"
    value = _VALUE if is_text else _NUMBER
    return _between(_call(template, name, {key: value}), str(value))


def _object(value: Any) -> Mapping[str, Any]:
    """A part of a schema; what is no object says nothing."""
    return value if isinstance(value, Mapping) else {}


def _call(template: ChatTemplate, name: str, arguments: Mapping[str, Any]) -> str:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    said = {"role": "assistant", "content": _SAID, "tool_calls": [call]}
    return template.render([{"role": "user", "content": "?"}, said], add_generation_prompt=False)


def _between(text: str, end: str | None = None) -> str:
    start = text.rfind(_SAID)
    stop = len(text) if end is None else text.find(end, start)
    if start < 0 or stop < 0:
        raise TemplateError("the chat template shows no tool calls beside a text")
    return text[start + len(_SAID) : stop]


def _certain(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Ids that a text begins with, whatever follows it."""
    ways = tokenizer.encode_batch([text, *(text + more for more in _NEXT)], special=False)
    n = next((i for i, ids in enumerate(zip(*ways, strict=False)) if len(set(ids)) > 1), min(map(len, ways)))
    return tuple(ways[0][:n])
