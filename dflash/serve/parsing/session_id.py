"""Names of conversations that clients send."""

import json
from collections.abc import Iterator, Mapping

from dflash.json_types import JsonMapping

MAX_SESSION_ID = 512
"""Characters of a session id. Claude Code's ``metadata.user_id`` has about 200; a longer id is ignored."""

_HEADERS = ("x-session-id", "x-session-affinity")
"""Headers of opencode and Kilo, whose bodies have no id."""


def session_id(body: object, headers: Mapping[str, str] | None = None) -> str | None:
    """Return the name that a client gives to a conversation: a hint, since requests with one name share their beginning.

    Returns: the first text that is neither empty nor longer than `MAX_SESSION_ID`, of: ``session_id``, ``prompt_cache_key``
        (Codex, Copilot), ``metadata.session_id``, ``metadata.user_id``, a header of opencode, ``user``. Claude Code writes a
        JSON object into ``metadata.user_id``; then its ``session_id`` counts. Values of other types are ignored: a hint is
        never an error.
    """
    return next((name for name in _names(body, headers or {}) if 0 < len(name) <= MAX_SESSION_ID), None)


def cache_salt(salt: str | None, user: str) -> str:
    """Return the text that separates states of the prefix cache: requests with different ones share none.

    salt: ``cache_salt`` of the request, as in vLLM: requests with the same one share states, whatever their keys.
    """
    return (user and f"user {user}") if salt is None else f"salt {salt}"


def _names(body: object, headers: Mapping[str, str]) -> Iterator[str]:
    metadata, values = _object(_object(body).get("metadata")), _object(body)
    candidates = (
        values.get("session_id"),
        values.get("prompt_cache_key"),
        metadata.get("session_id"),
        _of_user_id(metadata.get("user_id")),
        *(headers.get(name) for name in _HEADERS),
        values.get("user"),
    )
    return (name.strip() for name in candidates if isinstance(name, str))


def _of_user_id(value: object) -> object:
    """Return the session of Claude Code's ``user_id``, which is JSON; other values stay as they are."""
    if isinstance(value, str) and value.startswith("{") and len(value) <= MAX_SESSION_ID:
        try:
            return _object(json.loads(value)).get("session_id", value)
        except (ValueError, RecursionError):
            return value
    return value


def _object(value: object) -> JsonMapping:
    return value if isinstance(value, dict) else {}
