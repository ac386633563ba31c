"""Conversations in files: one line of JSON, which `bench --prompts` and `bench --replay` read, too."""

import json
from pathlib import Path

from dflash.errors import RequestError
from dflash.evaluation.json_lines import read_value
from dflash.json_types import JsonObject

ROLES = {"system", "user", "assistant", "tool"}


def save_messages(path: Path, messages: list[JsonObject]) -> None:
    """Write messages to a file; only a conversation is replaced."""
    if path.exists():
        try:
            load_messages(path)
        except RequestError as error:
            raise RequestError(f"/save {path}: the file exists and holds no conversation; choose another name") from error
    try:
        path.write_text(json.dumps({"messages": messages}, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise RequestError(f"/save {path}: {error.strerror}") from error


def load_messages(path: Path) -> list[JsonObject]:
    """Read messages from a file: ``{"messages": [...]}``, or the array alone."""
    value = read_value(path, name=f"/load {path}")
    messages = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        raise RequestError(f"/load {path}: must hold an array of messages with role and content")
    return messages


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and value.get("role") in ROLES and isinstance(value.get("content"), str)
