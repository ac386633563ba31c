"""Conversations of Codex's rollouts (``~/.codex/sessions/**/rollout-*.jsonl``)."""

from collections.abc import Iterator, Sequence

from dflash.errors import RequestError
from dflash.evaluation.json_lines import Line
from dflash.evaluation.replay.messages import field
from dflash.evaluation.replay.request_body import item_messages, merged
from dflash.evaluation.replay.turn import Message, Turn, growing
from dflash.json_types import JsonMapping

_RECORDS = ("session_meta", "response_item", "event_msg", "turn_context", "compacted", "inter_agent_communication")
"""Types of records that have a payload."""

_ITEMS = (
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "reasoning",
    "local_shell_call",
    "web_search_call",
)
"""Types of items, which older rollouts hold without a record around them."""


def is_rollout(row: JsonMapping) -> bool:
    """Return True for a record of a rollout, also of an older one."""
    match row:
        case {"type": kind, "payload": dict()} if kind in _RECORDS:
            return True
        case {"type": kind} if kind in _ITEMS:
            return True
        case {"type": "message", "role": str(), "content": list()} | {"record_type": str()}:
            return "message" not in row and "uuid" not in row
    return {"id", "timestamp"} <= row.keys() and "type" not in row and "role" not in row


def rollout_turns(lines: Sequence[Line]) -> Iterator[Turn]:
    """Yield the turns of a rollout, in the order of the file.

    The items of the model's input are its messages; the instructions of the session are the system message. A compaction
    begins a new conversation with the history that replaces the old one. A rollout has no tools.
    """
    system: list[tuple[str, Message]] = []
    conversation: list[tuple[str, Message]] = []
    for line in lines:
        with line.located():
            kind, payload = line.row.get("type"), line.row.get("payload", line.row)
            if not isinstance(payload, dict):
                raise RequestError(f"payload: must be an object, got {payload!r:.60}")
            if kind == "session_meta" or ("instructions" in payload and kind not in _RECORDS):
                system = [(line.name, {"role": "system", "content": text}) for text in (_instructions(payload),) if text]
                continue
            if kind == "compacted":
                yield from growing([*system, *conversation])
                conversation = [(line.name, message) for message in _replacement(payload)]
                continue
            if kind in _RECORDS and kind != "response_item":
                continue
            for message in item_messages(payload):
                merged(conversation, line.name, message)
    yield from growing([*system, *conversation])


def _instructions(meta: JsonMapping) -> str:
    base = meta.get("base_instructions", meta.get("instructions"))
    text = field(base, "text", str) if isinstance(base, dict) else base
    return text if isinstance(text, str) else ""


def _replacement(payload: JsonMapping) -> list[Message]:
    """Return the messages that replace a history: the items of the record, or its summary."""
    found: list[tuple[str, Message]] = []
    for item in field(payload, "replacement_history", list) or ():
        if isinstance(item, dict):
            for message in item_messages(item):
                merged(found, "", message)
    text = field(payload, "message", str)
    return [message for _, message in found] or ([{"role": "user", "content": text}] if text else [])
