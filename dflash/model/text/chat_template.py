"""Render messages as a prompt by the chat template of a model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash.errors import TemplateError
from dflash.json_types import JsonMapping, JsonObject
from dflash.model.text.short_ids import wants_short_ids, with_short_ids
from dflash.model.text.spelled_tokens import SpelledTokens

if TYPE_CHECKING:
    import jinja2

MAX_SOURCE = 1 << 18
"""Most characters of a template (262,144); the longest published ones have about 20,000."""

MAX_MESSAGE = 300
"""Most characters of a template's own error message that are passed on."""

_REASONING = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True, slots=True)
class Abilities:
    """Features that a chat template supports, found by rendering test messages.

    parallel_calls: the prompt includes all tool calls of a message that has several.
    variables: names that the template reads and may not set itself, including settings such as ``preserve_thinking``.
    """

    system: bool
    tools: bool
    parallel_calls: bool
    thinking: bool
    variables: frozenset[str]


class ChatTemplate:
    """The chat template of a model, rendered as ``apply_chat_template`` of Transformers does.

    source: Jinja source. It is compiled at first use, in a sandbox.
    tokens: texts of special tokens by the name that templates use, such as ``eos_token``.
    spelled: control tokens that are text where messages, tools and documents spell them out. The rendered prompt has marks
        there then, for `Tokenizer.encode` with `marked`.
    """

    def __init__(self, source: str, *, tokens: Mapping[str, str], spelled: SpelledTokens | None = None) -> None:
        self.source, self.tokens, self._spelled = source, dict(tokens), spelled

    def render(
        self,
        messages: Sequence[JsonMapping],
        /,
        *,
        tools: Sequence[JsonMapping] | None = None,
        documents: Sequence[JsonMapping] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """Render messages as the prompt text of the model.

        messages: messages with ``role`` and ``content``, and other keys that the template supports, such as
            ``reasoning_content`` and ``tool_calls``. Keys whose value is None count as absent. Tool calls may have
            ``arguments`` as JSON text, as in OpenAI's API. Their identifiers are shortened for templates that want nine
            letters. The caller's objects are not changed.
        tools, documents: passed to the template unchanged; tools are JSON schemas, preferably in OpenAI's format.
        """
        if not messages:
            raise TemplateError("messages is empty: a chat template needs at least one message")
        prepared = with_short_ids if wants_short_ids(self.source) else dict
        try:
            variables = {
                **self.tokens,
                **_plain(kwargs),
                "messages": [prepared(_message(message, index)) for index, message in enumerate(messages)],
                "tools": _mappings("tools", tools),
                "documents": _mappings("documents", documents),
                "add_generation_prompt": add_generation_prompt,
            }
            if self._spelled is not None:
                variables["messages"] = [self._spelled.marked_message(message) for message in variables["messages"]]
                variables |= {name: self._spelled.marked(variables[name]) for name in ("tools", "documents")}
        except RecursionError as error:
            raise TemplateError("messages or tools are nested too deeply for a chat template") from error
        return self._render(variables)

    @cached_property
    def takes_parts(self) -> bool:
        """True if the template writes content that is a list of text parts as their text; found at first use."""
        part = {"type": "text", "text": "probe_part"}
        text = self._probe([{"role": "user", "content": [part]}])
        return "probe_part" in text and text == self._probe([{"role": "user", "content": "probe_part"}])

    @cached_property
    def abilities(self) -> Abilities:
        """Features that the template supports, found at first use."""
        from jinja2 import meta

        environment = self._compiled.environment
        names = meta.find_undeclared_variables(environment.parse(self.source))
        user = {"role": "user", "content": "question"}
        tool = {"type": "function", "function": {"name": "probe_tool", "parameters": {"type": "object"}}}
        calls = [
            {"id": f"probe000{i}", "type": "function", "function": {"name": f"probe_{i}", "arguments": {}}} for i in range(2)
        ]
        called = self._probe([user, {"role": "assistant", "content": "", "tool_calls": calls}], tools=[tool])
        return Abilities(
            system="probe_system" in self._probe([{"role": "system", "content": "probe_system"}, user]),
            tools="probe_tool" in self._probe([user], tools=[tool]),
            parallel_calls="probe_0" in called and "probe_1" in called,
            thinking=self._probe([user], enable_thinking=True) != self._probe([user], enable_thinking=False),
            variables=frozenset(names - environment.globals.keys()),
        )

    @cached_property
    def _compiled(self) -> jinja2.Template:
        import jinja2

        from dflash.model.text.jinja_sandbox import environment
        from dflash.model.text.template_budget import Budget, Excess, spending

        if len(self.source) > MAX_SOURCE:
            raise TemplateError(f"the chat template has {len(self.source)} characters, must have at most {MAX_SOURCE}")
        try:
            with spending(Budget({})):
                return environment().from_string(self.source)
        except Excess as error:
            raise TemplateError(f"the chat template was stopped: {error}") from error
        except jinja2.TemplateSyntaxError as error:
            reason = f"{error.message} (line {error.lineno})"
            raise TemplateError(f"the chat template is not valid Jinja: {reason}") from error
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise TemplateError("the chat template is nested too deeply to be compiled") from error
        except ValueError as error:  # such as an integer of more digits than Python converts
            raise TemplateError(f"the chat template can't be compiled: {_short(error)}") from error

    def _render(self, variables: JsonObject) -> str:
        import jinja2

        from dflash.model.text.jinja_sandbox import Refusal
        from dflash.model.text.template_budget import Budget, Excess, spending

        template = self._compiled
        try:
            with spending(Budget(variables)):
                return template.render(variables)
        except Refusal as error:
            raise TemplateError(f"the chat template refused the messages: {_short(error)}") from error
        except Excess as error:
            raise TemplateError(f"the chat template was stopped: {error}") from error
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template failed on the messages: {_short(error)}") from error
        except Exception as error:
            reason = f"{type(error).__name__}: {_short(error)}"
            raise TemplateError(f"the chat template failed on the messages: {reason}") from error

    def _probe(self, messages: list[JsonObject], **kwargs: Any) -> str:
        from dflash.model.text.template_budget import Excess

        try:
            return self.render(messages, **kwargs)
        except TemplateError as error:
            if isinstance(error.__cause__, Excess):
                raise
            return ""


def _short(error: Exception) -> str:
    """Return the message of an error, shortened: a template controls its length."""
    text = str(error)
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 3] + "..."


def _message(message: object, index: int) -> JsonObject:
    """Copy a message into the form that templates expect."""
    copy = _plain(message)
    if not isinstance(copy, dict):
        raise TemplateError(f"messages[{index}] is a {type(message).__name__}, wanted a mapping with a role")
    copy = {key: value for key, value in copy.items() if value is not None}
    calls = copy.get("tool_calls")
    if isinstance(calls, list | tuple):
        copy["tool_calls"] = [_call(call, f"messages[{index}].tool_calls[{n}]") for n, call in enumerate(calls)]
    reasoning = next((copy[name] for name in _REASONING if name in copy), None)
    return copy if reasoning is None else {"thinking": reasoning, **copy, "reasoning_content": reasoning}


def _mappings(name: str, items: object) -> list[JsonObject] | None:
    if items is None:
        return None
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise TemplateError(f"{name} is {_shown(items)}, wanted an array of objects", argument=name)
    items = list(items)
    copies = [_plain(item) for item in items]
    for index, (item, copy) in enumerate(zip(items, copies, strict=True)):
        if not isinstance(copy, dict):
            raise TemplateError(f"{name}[{index}] is a {type(item).__name__}, wanted a mapping", argument=name)
    return copies


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or value.bit_length() < 256 else "a very large number"
    return text if len(text) <= 80 else text[:77] + "..."


def _call(call: object, where: str) -> Any:
    """Convert the arguments of a tool call from JSON text to a mapping, over which templates iterate."""
    if not isinstance(call, dict):
        return call
    if isinstance(call.get("function"), dict):
        return {**call, "function": _call(call["function"], f"{where}.function")}
    text = call.get("arguments")
    if not isinstance(text, str):
        return call
    try:
        arguments = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise TemplateError(f"{where}.arguments is not valid JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise TemplateError(f"{where}.arguments is a JSON {type(arguments).__name__}, wanted an object")
    return {**call, "arguments": arguments}


def _plain(value: Any) -> Any:
    """Copy a value with JSON types only; other objects have methods that a template must not call."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if type(value) is dict or isinstance(value, Mapping):  # the first is a fast path
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, np.generic):
        return _plain(value.item())
    if callable(getattr(value, "model_dump", None)):
        return _plain(value.model_dump())
    return f"<{type(value).__name__}>"
