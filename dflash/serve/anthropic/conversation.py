"""Conversion of messages with Anthropic's content blocks to chat messages."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dflash.generation.messages.fields import Fields, shown
from dflash.generation.messages.row import ASSISTANT, MESSAGES, RESULT, SYSTEM, USER, Treatment
from dflash.generation.messages.table import treatment_of
from dflash.generation.messages.written import written
from dflash.json_types import JsonObject

BILLING = "x-anthropic-billing-header:"
"""Beginning of a line that Claude Code writes at the head of its system prompt. It differs between sessions."""

_PLACES = {"user": USER, "assistant": ASSISTANT, "system": SYSTEM}

Message = JsonObject


@dataclass(slots=True)
class Conversation:
    """Chat messages, and the definitions of tools that stand among them.

    messages: in the order of the blocks. Blocks of text that follow each other are joined by a line break.
    definitions: tools of Anthropic's format that ``tool_addition`` blocks define.
    """

    messages: list[Message] = field(default_factory=list)
    definitions: list[Fields] = field(default_factory=list)


def conversation(fields: Fields, *, keep_billing_header: bool = False) -> Conversation:
    """Convert ``system`` and ``messages`` of a body by the table of blocks, see `dflash.generation.messages`."""
    messages = list(fields.objects("messages", required=True))
    if not messages:
        raise fields.error("messages", "must hold at least one message")
    found = Conversation()
    _system(fields, found, keep_billing_header=keep_billing_header)
    for message in messages:
        _convert(message, found)
    return found


def _system(fields: Fields, found: Conversation, *, keep_billing_header: bool) -> None:
    texts = _texts(fields, "system")
    if not keep_billing_header:
        texts = [rest for text in texts if (rest := _without_billing(text)) is not None]
    if texts:
        found.messages.append({"role": "system", "content": "\n".join(texts)})


def _without_billing(text: str) -> str | None:
    """Return a block of the system prompt without a billing line at its head; None if nothing else is in it."""
    return text if not text.startswith(BILLING) else text.partition("\n")[2] or None


def _convert(message: Fields, found: Conversation) -> None:
    role = message.text("role", required=True)
    if role not in _PLACES:
        raise message.error("role", f"must be one of {', '.join(_PLACES)}, got {shown(role)}")
    content = message.any("content", required=True)
    if isinstance(content, str):
        found.messages.append({"role": role, "content": content})
        return
    blocks = [(block, treatment_of(block, MESSAGES, _PLACES[role])) for block in _blocks(message, "content")]
    blocks = _after_compaction(blocks, found)
    if role == "assistant":
        if blocks or content == []:
            found.messages.append(_assistant(blocks))
    elif blocks or content == []:
        found.messages += _others(role, blocks, found)


def _after_compaction(blocks: list[tuple[Fields, Treatment]], found: Conversation) -> list[tuple[Fields, Treatment]]:
    """Replace all before the last summary of a compaction by the summary, as a message of the user."""
    for place in reversed(range(len(blocks))):
        block, _ = blocks[place]
        summary = block.text("content") if block.any("type") == "compaction" else None
        if summary:
            kept = [message for message in found.messages[:1] if message["role"] == "system"]
            found.messages[:] = [*kept, {"role": "user", "content": summary}]
            blocks = blocks[place + 1 :]
            break
    return [(block, treatment) for block, treatment in blocks if block.any("type") != "compaction"]


def _others(role: str, blocks: Sequence[tuple[Fields, Treatment]], found: Conversation) -> Iterator[Message]:
    """Yield a message for each result of a tool and for each run of other blocks."""
    parts: list[dict[str, str]] = []
    for block, treatment in blocks:
        match block.any("type"):
            case "tool_result":
                if parts:
                    yield {"role": role, "content": _joined(parts)}
                    parts = []
                yield {"role": "tool", "tool_call_id": block.text("tool_use_id", required=True), "content": _result(block)}
            case "tool_addition" | "tool_removal":
                parts += _tool_change(block, found)
            case _:
                parts += _parts(block, treatment)
    if parts or not blocks:
        yield {"role": role, "content": _joined(parts)}


def _tool_change(block: Fields, found: Conversation) -> list[dict[str, str]]:
    """Return a note about a tool that is offered from here on, or no more; a definition is added to the tools."""
    tool = block.object("tool")
    if tool is None:
        raise block.error("tool", "is required")
    definition = tool.object("definition")
    if definition is not None:
        found.definitions.append(definition)
    name = (definition or tool).text("name") or tool.text("tool_name")
    if name is None:
        raise tool.error("name", "is required")
    if block.any("type") == "tool_removal":
        return [{"type": "text", "text": f"The tool {name} can't be called any more."}]
    return [
        {"type": "text", "text": f"The tool {name} can be called from here on:"},
        {"type": "tool_reference", "tool_name": name},
    ]


def _assistant(blocks: Iterable[tuple[Fields, Treatment]]) -> Message:
    parts, thoughts, calls = list[dict[str, str]](), list[str](), list[JsonObject]()
    for block, treatment in blocks:
        match block.any("type"):
            case "thinking":
                thoughts.append(block.text("thinking", ""))
            case "tool_use":
                calls.append(_call(block))
            case _:
                parts += _parts(block, treatment)
    message: Message = {"role": "assistant", "content": _joined(parts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    return {**message, "tool_calls": calls} if calls else message


def _call(block: Fields) -> JsonObject:
    arguments = block.object("input")
    function = {"name": block.text("name", required=True), "arguments": arguments.values if arguments else {}}
    return {"id": block.text("id"), "type": "function", "function": function}


def _result(block: Fields) -> str | list[dict[str, str]]:
    """Return the content of a result: a string, or a list of parts if it refers to tools."""
    content = block.any("content")
    if content is None or isinstance(content, str):
        return content or ""
    blocks = [(inner, treatment_of(inner, MESSAGES, RESULT)) for inner in _blocks(block, "content")]
    return _joined([part for inner, treatment in blocks for part in _parts(inner, treatment, strict=False)])


def _parts(block: Fields, treatment: Treatment, *, strict: bool = True) -> list[dict[str, str]]:
    """Return the parts of a chat message for a block of text, a reference to a tool, or one that is written as text."""
    if treatment is Treatment.LEFT_OUT:
        return []
    if treatment is Treatment.TEXT:
        return [{"type": "text", "text": written(block, strict=strict)}]
    if block.any("type") == "tool_reference":
        return [{"type": "tool_reference", "tool_name": block.text("tool_name", required=True)}]
    return [{"type": "text", "text": block.text("text", required=True)}]


def _joined(parts: list[dict[str, str]]) -> str | list[dict[str, str]]:
    """Return the texts joined by a line break, or the parts themselves if they refer to tools."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _texts(fields: Fields, name: str) -> list[str]:
    """Return the texts of a field that is a string or an array of blocks."""
    value = fields.any(name)
    if isinstance(value, str):
        return [value] if value else []
    if value is None:
        return []
    blocks = [(block, treatment_of(block, MESSAGES, SYSTEM)) for block in _blocks(fields, name)]
    return [part["text"] for block, treatment in blocks for part in _parts(block, treatment)]


def _blocks(fields: Fields, name: str) -> Iterable[Fields]:
    value = fields.any(name)
    if not isinstance(value, list):
        raise fields.error(name, f"must be a string or an array of blocks, got {shown(value)}")
    return fields.objects(name)
