"""Identifiers of tool calls in nine letters, for templates of Mistral that refuse others."""

import re
from hashlib import sha256

from dflash.json_types import JsonObject

_WANTED = re.compile(r"length\s*[!=]=\s*9\b")
_SHORT = re.compile("[A-Za-z0-9]{9}")


def wants_short_ids(source: str) -> bool:
    """Return True if the source of a chat template checks that identifiers have nine letters."""
    return _WANTED.search(source) is not None


def with_short_ids(message: JsonObject) -> JsonObject:
    """Return a message whose identifiers of calls are replaced by nine letters of their hash, unless they have nine."""
    changed = dict(message)
    if isinstance(message.get("tool_call_id"), str):
        changed["tool_call_id"] = _short(message["tool_call_id"])
    if isinstance(message.get("tool_calls"), list):
        changed["tool_calls"] = [
            {**call, "id": _short(call["id"])} if isinstance(call, dict) and isinstance(call.get("id"), str) else call
            for call in message["tool_calls"]
        ]
    return changed


def _short(text: str) -> str:
    return text if _SHORT.fullmatch(text) else sha256(text.encode(errors="replace")).hexdigest()[:9]
