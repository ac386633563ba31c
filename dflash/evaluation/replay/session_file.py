"""Session files: transcripts, request bodies and messages, as JSONL."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from dflash.errors import NotFound, RequestError
from dflash.evaluation.json_lines import Line, read_lines
from dflash.evaluation.replay.messages import chat_messages, joined
from dflash.evaluation.replay.request_body import body_turn
from dflash.evaluation.replay.rollout import is_rollout, rollout_turns
from dflash.evaluation.replay.turn import Message, Turn, growing
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


_ROUTES = ("/chat/completions", "/messages", "/responses")
"""Ends of the paths of requests whose answers a model writes."""


def load_session(path: str | os.PathLike[str]) -> list[Turn]:
    """Read the prompts of a recorded session.

    Parameters
    ----------
    path : str or path
        A JSONL file, all lines in one form:

        * a transcript of Claude Code: a turn for each answer;
        * messages of OpenAI or Anthropic, one a line: a turn for each assistant message, and one if the last message is of
          another role;
        * request bodies of chat completions, Responses or Messages, one a line: a turn for each body. A single body is split
          into its turns;
        * recorded HTTP requests with ``path`` and ``body``, optionally ``n`` (order) and a first line about the client, or
          lines of an OpenAI batch with ``url`` and ``body``: a turn for each request;
        * a rollout of Codex: a turn for each answer.

        Objects may stand over several lines, also in an array.

    Raises
    ------
    NotFound
        If there is no such file.
    RequestError
        If a line is not valid, or the file holds no turn; the message names the line.
    """
    try:
        lines = [line for line in read_lines(Path(path)) if not {"client", "scenario"} <= line.row.keys()]
    except OSError as error:
        raise NotFound(f"session {os.fspath(path)!r}: {error.strerror}") from error
    forms = [_form(line) for line in lines]
    for line, form in zip(lines, forms, strict=True):
        if form != forms[0]:
            raise RequestError(f"{line.path}, line {line.number}: is a {form}, but the file began with a {forms[0]}")
    read = {
        "transcript record": transcript_turns,
        "message": _of_messages,
        "request body": _of_bodies,
        "request": _of_requests,
        "rollout record": rollout_turns,
    }
    turns = list(read[forms[0]](lines)) if lines else []
    if not turns:
        raise RequestError(f"{os.fspath(path)}: holds no prompt of an assistant's turn")
    return turns


def _form(line: Line) -> str:
    match line.row:
        case {"path": str(), "body": _} | {"url": str(), "body": _}:
            return "request"
        case {"messages": _} | {"input": _}:
            return "request body"
        case row if is_rollout(row):
            return "rollout record"
        case {"type": str(), "message": _} | {"type": "user" | "assistant" | "system", "uuid": _}:
            return "transcript record"
        case {"role": _}:
            return "message"
        case {"type": str()}:
            return "transcript record"
    raise RequestError(
        f"{line.path}, line {line.number}: must be a transcript record (type), a message (role), a request body (messages "
        "or input), a recorded request (path or url, and body) or a rollout record (type and payload), has "
        f"{', '.join(line.row) or 'no fields'!s:.60}"
    )


def _of_messages(lines: Sequence[Line]) -> Iterator[Turn]:
    def messages() -> Iterator[tuple[str, Message]]:
        for line in lines:
            with line.located():
                new = chat_messages(line.row)
            for message in new:
                yield line.name, message

    return growing(messages())


def _of_bodies(lines: Sequence[Line]) -> Iterator[Turn]:
    if len(lines) > 1:
        for line in lines:
            yield _turn(line, line.row)
        return
    whole = _turn(lines[0], lines[0].row)
    yield from growing(((f"message {i}", message) for i, message in enumerate(whole.messages, 1)), whole)


def _of_requests(lines: Sequence[Line]) -> Iterator[Turn]:
    for line in sorted(lines, key=_order):
        path = str(line.row.get("path") or line.row.get("url")).partition("?")[0]
        if path.endswith(_ROUTES) and isinstance(line.row["body"], dict):
            yield _turn(line, line.row["body"])


def _order(line: Line) -> tuple[float, int]:
    n = line.row.get("n")
    return (n if isinstance(n, int | float) else line.number), line.number


def _turn(line: Line, body: JsonObject) -> Turn:
    with line.located():
        return body_turn(line.name, body)
