"""Conversations of Claude Code's transcripts (``~/.claude/projects/*/*.jsonl``)."""

from collections.abc import Iterator, Sequence

from dflash.errors import RequestError
from dflash.evaluation.json_lines import Line
from dflash.evaluation.replay.messages import chat_messages, joined
from dflash.evaluation.replay.turn import Turn, growing
from dflash.json_types import JsonObject


def transcript_turns(lines: Sequence[Line]) -> Iterator[Turn]:
    """Yield the turns of a transcript, in the order of the file.

    Each record holds a part of a message: records of one answer share ``message.id``, and results of tools may stand between
    them. Consecutive records of one role are one message. A compaction begins a new conversation. Records that the model
    never sees are skipped: notes, progress, errors of the API, and those of subagents unless the file holds nothing else.
    A transcript has neither the system prompt nor the tools.
    """
    conversation: list[tuple[str, JsonObject]] = []
    answers: dict[str, int] = {}
    for line in [line for line in lines if not line.row.get("isSidechain")] or lines:
        if line.row.get("subtype") == "compact_boundary":
            yield from growing(conversation)
            conversation, answers = [], {}
        if line.row.get("type") not in ("user", "assistant") or line.row.get("isApiErrorMessage"):
            continue
        with line.located():
            record = line.row.get("message")
            if not isinstance(record, dict):
                raise RequestError(f"message: must be an object, got {record!r:.60}")
            messages = chat_messages({"role": line.row["type"], **record})
        identifier = record["id"] if isinstance(record.get("id"), str) else ""
        at = answers.get(identifier)
        if at is not None:
            conversation[at] = conversation[at][0], joined(conversation[at][1], messages[0])
            continue
        for message in messages:
            last = conversation[-1] if conversation else ("", {"role": ""})
            if message["role"] == last[1]["role"] != "tool":
                conversation[-1] = last[0], joined(last[1], message)
            else:
                conversation.append((line.name, message))
        if messages[-1]["role"] == "assistant" and identifier:
            answers[identifier] = len(conversation) - 1
    yield from growing(conversation)
