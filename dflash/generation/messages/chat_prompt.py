"""Conversion of chat messages to token ids."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Any

from dflash.errors import TemplateError
from dflash.generation.messages.deferred_tools import top_tools, write_references
from dflash.json_types import JsonMapping
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer
from dflash.model.text.written_numbers import with_written_numbers

Message = JsonMapping

_OPEN_END = "\ue000open end\ue001"
"""Text that marks the end of a message that is continued; private characters, which no text of a client needs."""


class PromptEnding(Enum):
    """End of a prompt after its messages."""

    NEW_TURN = auto()
    """The beginning of the assistant's next message."""
    CONTINUED = auto()
    """Nothing: the last message, which is the assistant's, stays open."""
    NOTHING = auto()
    """Nothing: the last message is closed."""


def chat_ids(
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    messages: Sequence[Message],
    *,
    tools: Sequence[JsonMapping] = (),
    settings: Mapping[str, Any] | None = None,
    ending: PromptEnding = PromptEnding.NEW_TURN,
    max_tokens: int | None = None,
) -> list[int]:
    """Render messages with `chat_text` and tokenize the result, which may have `max_tokens` tokens."""
    text = chat_text(template, messages, tools=tools, settings=settings, ending=ending)
    return tokenizer.encode(text, marked=True, max_tokens=max_tokens)


def chat_text(
    template: ChatTemplate | None,
    messages: Sequence[Message],
    *,
    tools: Sequence[JsonMapping] = (),
    settings: Mapping[str, Any] | None = None,
    ending: PromptEnding = PromptEnding.NEW_TURN,
) -> str:
    """Render messages with the chat template, with a mark in control tokens that they spell out.

    A past call whose arguments are no JSON object, since the output was cut or the model made a mistake, is shown to the
    model with the text as written in one parameter. Deferred tools stand where a message refers to them.

    The role ``developer`` is OpenAI's newer name of ``system`` and is rendered as ``system`` if the template does not know
    it. If a template refuses system messages after the start, they are rendered as user messages that hold a
    ``<system-reminder>`` block. Agents use the same form when a server refuses such a message. If a template refuses every
    system message, as that of Mistral 7B, the first user message begins with their text. Content in parts is joined for
    templates that do not know parts.
    """
    if template is None:
        raise TemplateError("the model has no chat template: use /v1/completions")
    renamed = [with_objects(message) for message in write_references(messages, tools)]
    if "developer" not in template.source:
        renamed = [{**each, "role": "system"} if each.get("role") == "developer" else each for each in renamed]
    if not template.takes_parts:
        renamed = [_with_text(message) for message in renamed]
    if "<function=" in template.source:
        renamed = [with_written_numbers(message) for message in renamed]
    variables = {"add_generation_prompt": ending is PromptEnding.NEW_TURN, **(settings or {})}
    if ending is PromptEnding.CONTINUED:
        renamed = [*renamed[:-1], _open_ended(renamed[-1])]
        variables["add_generation_prompt"] = False
    text = _rendered(template, renamed, tools=top_tools(tools) or None, **variables)
    if ending is not PromptEnding.CONTINUED:
        return text
    head, marker, _ = text.rpartition(_OPEN_END)
    if not marker:
        raise TemplateError("the chat template leaves out the last message, so it can't be continued")
    return head


def _rendered(template: ChatTemplate, messages: Sequence[Message], /, **variables: Any) -> str:
    """Render messages, or the first form of them that the template accepts; raise the first error if there is none."""
    try:
        return template.render(messages, **variables)
    except TemplateError:
        for moved in filter(None, (_only_first_system(messages), _without_system(messages))):
            with suppress(TemplateError):
                return template.render(moved, **variables)
        raise


def can_continue(message: Message) -> bool:
    """Return True for a message of the assistant with text or reasoning and without calls, which a model can continue."""
    if message.get("role") != "assistant" or message.get("tool_calls"):
        return False
    return bool(_text(message) or _reasoning_field(message))


def _open_ended(message: Message) -> Message:
    """Mark the end of a message: of its text, or of its reasoning if it has no text yet."""
    field = None if _text(message) else _reasoning_field(message)
    if field is not None:
        return {**message, field: message[field] + _OPEN_END}
    return {**message, "content": _text(message) + _OPEN_END}


def _reasoning_field(message: Message) -> str | None:
    names = ("reasoning_content", "thinking", "reasoning")
    return next((name for name in names if isinstance(message.get(name), str) and message[name]), None)


def _only_first_system(messages: Sequence[Message]) -> list[Message] | None:
    """Join the leading system messages and convert later ones to user messages; None if nothing would change."""
    n = next((i for i, message in enumerate(messages) if message.get("role") != "system"), len(messages))
    late = [i for i in range(n, len(messages)) if messages[i].get("role") == "system"]
    if n < 2 and not late:
        return None
    first: list[Message] = [{"role": "system", "content": "\n\n".join(map(_text, messages[:n]))}] if n else []
    rest = [_reminder(message) if message.get("role") == "system" else message for message in messages[n:]]
    return first + rest


def _without_system(messages: Sequence[Message]) -> list[Message] | None:
    """Put the text of system messages before that of the first user message; None if nothing would change."""
    system = [message for message in messages if message.get("role") == "system"]
    rest = [message for message in messages if message.get("role") != "system"]
    if not system or not rest or rest[0].get("role") != "user":
        return None
    return [{**rest[0], "content": "\n\n".join(map(_text, (*system, rest[0])))}, *rest[1:]]


def _reminder(message: Message) -> Message:
    return {"role": "user", "content": f"<system-reminder>\n{_text(message)}\n</system-reminder>"}


def _with_text(message: Message) -> Message:
    return {**message, "content": _text(message)} if isinstance(message.get("content"), list | tuple) else message


def _text(message: Message) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


BROKEN = "arguments"
"""Name of the parameter that holds arguments of a past call which are no JSON object."""

Part = JsonMapping


def with_objects(message: Part) -> Part:
    """Return a message whose calls all have arguments that a template can iterate over."""
    calls = message.get("tool_calls")
    if not calls or not any(_is_broken(call["function"].get("arguments")) for call in calls):
        return message
    return {**message, "tool_calls": [_mended(call) for call in calls]}


def _mended(call: Part) -> Part:
    arguments = call["function"].get("arguments")
    if not _is_broken(arguments):
        return call
    return {**call, "function": {**call["function"], "arguments": {} if arguments is None else {BROKEN: arguments}}}


def _is_broken(arguments: object) -> bool:
    if not isinstance(arguments, str):
        return arguments is None
    if not arguments.strip():
        return False
    try:
        return not isinstance(json.loads(arguments, parse_int=float), dict)
    except (ValueError, RecursionError):
        return True
