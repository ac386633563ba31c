"""Conversion of messages with Anthropic's content blocks to chat messages."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from dflash.serve.parsing.fields import Fields, shown

BILLING = "x-anthropic-billing-header:"
"""Beginning of a line that Claude Code writes at the head of its system prompt. It differs between sessions."""

_ROLES = ("user", "assistant", "system")

Message = dict[str, Any]


def conversation(fields: Fields, *, keep_billing_header: bool = False) -> tuple[Message, ...]:
    """Convert ``system`` and ``messages`` of a body.

    Returns
    -------
    tuple of dict
        Chat messages in the order of the blocks. Blocks of text that follow each other are joined by a line break.

    Raises
    ------
    FieldError
        If a message is not valid, or a block holds something other than text.

    Notes
    -----
    ``thinking`` becomes ``reasoning_content`` whatever its signature. ``redacted_thinking`` is left out: it holds no text.
    ``tool_use`` becomes an item of ``tool_calls`` with the input as it is, ``tool_result`` a message of the role ``tool``.
    """
    messages = list(fields.objects("messages", required=True))
    if not messages:
        raise fields.error("messages", "must hold at least one message")
    return (*_system(fields, keep_billing_header), *chain.from_iterable(map(_converted, messages)))


def _system(fields: Fields, keep_billing_header: bool) -> Iterator[Message]:
    texts = _texts(fields, "system")
    if texts and texts[0].startswith(BILLING) and not keep_billing_header:
        _, _, rest = texts[0].partition("\n")
        texts = [rest, *texts[1:]] if rest else texts[1:]
    if texts:
        yield {"role": "system", "content": "\n".join(texts)}


def _converted(message: Fields) -> Iterable[Message]:
    role = message.text("role", required=True)
    if role not in _ROLES:
        raise message.error("role", f"must be one of {', '.join(_ROLES)}, got {shown(role)}")
    content = message.any("content", required=True)
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if role == "system":
        return [{"role": role, "content": "\n".join(_texts(message, "content"))}]
    blocks = list(_blocks(message, "content"))
    return [_assistant(blocks)] if role == "assistant" else _user(blocks)


def _user(blocks: Sequence[Fields]) -> Iterator[Message]:
    """Yield a message for each result of a tool and for each run of text blocks."""
    texts: list[str] = []
    for block in blocks:
        if block.any("type") != "tool_result":
            texts.append(_text(block))
            continue
        if texts:
            yield {"role": "user", "content": "\n".join(texts)}
            texts = []
        yield {"role": "tool", "tool_call_id": block.text("tool_use_id", required=True), "content": _result(block)}
    if texts or not blocks:
        yield {"role": "user", "content": "\n".join(texts)}


def _assistant(blocks: Iterable[Fields]) -> Message:
    texts, thoughts, calls = list[str](), list[str](), list[dict[str, Any]]()
    for block in blocks:
        match block.any("type"):
            case "thinking":
                thoughts.append(block.text("thinking", ""))
            case "redacted_thinking":
                pass
            case "tool_use":
                calls.append(_call(block))
            case _:
                texts.append(_text(block))
    message: Message = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    return {**message, "tool_calls": calls} if calls else message


def _call(block: Fields) -> dict[str, Any]:
    arguments = block.object("input")
    function = {"name": block.text("name", required=True), "arguments": arguments.values if arguments else {}}
    return {"id": block.text("id"), "type": "function", "function": function}


def _result(block: Fields) -> str | list[dict[str, str]]:
    """Return the content of a result: a string, or a list of parts if it refers to tools."""
    content = block.any("content")
    if content is None or isinstance(content, str):
        return content or ""
    parts = [_part(part) for part in _blocks(block, "content")]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(block: Fields) -> dict[str, str]:
    if block.any("type") == "tool_reference":
        return {"type": "tool_reference", "tool_name": block.text("tool_name", required=True)}
    return {"type": "text", "text": _text(block)}


def _texts(fields: Fields, name: str) -> list[str]:
    """Return the texts of a field that is a string or an array of text blocks."""
    value = fields.any(name)
    if isinstance(value, str):
        return [value] if value else []
    return [] if value is None else [_text(block) for block in _blocks(fields, name)]


def _text(block: Fields) -> str:
    kind = block.text("type", required=True)
    if kind != "text":
        raise block.error("type", f"{shown(kind)} can't be read here: this model takes text only")
    return block.text("text", required=True)


def _blocks(fields: Fields, name: str) -> Iterable[Fields]:
    value = fields.any(name)
    if not isinstance(value, list):
        raise fields.error(name, f"must be a string or an array of blocks, got {shown(value)}")
    return fields.objects(name)
