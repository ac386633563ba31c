"""Lists of the input items of stored responses."""

import json
from collections.abc import Mapping

from dflash.json_types import JsonObject
from dflash.serve.http_errors import Problem

MAX_ITEMS = 100
"""Items of one list, as in OpenAI's API."""

_ORDERS = ("desc", "asc")


def listed(items: bytes, response_id: str, query: Mapping[str, str]) -> JsonObject:
    """Return a page of items in OpenAI's form. Takes time that grows with the items.

    query: ``limit`` (1 to 100, by default 20), ``order`` (``desc``, the newest first, or ``asc``), ``after`` (an item's id).
    Raises Problem: 400 if a parameter is not valid.
    """
    limit, order, after = query.get("limit", "20"), query.get("order", "desc"), query.get("after")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and 1 <= int(limit) <= MAX_ITEMS):
        raise Problem(400, f"limit: must be a whole number from 1 to {MAX_ITEMS}, got {limit[:20]!r}", param="limit")
    if order not in _ORDERS:
        raise Problem(400, f"order: must be one of {', '.join(_ORDERS)}, got {order[:20]!r}", param="order")
    found = [_with_id(item, f"item_{response_id}_{number}") for number, item in enumerate(json.loads(items))]
    found = found[::-1] if order == "desc" else found
    start = 0
    if after is not None:
        start = next((number for number, item in enumerate(found, 1) if item["id"] == after), -1)
        if start < 0:
            raise Problem(400, f"after: no item has the id {after[:100]!r}", param="after")
    page = found[start : start + int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + len(page) < len(found),
    }


def _with_id(item: JsonObject, id_: str) -> JsonObject:
    """Return an item with an id and a type; a message has an array of parts as its content."""
    full = {"id": id_, "type": "message", **item}
    content = full.get("content")
    if full["type"] == "message" and isinstance(content, str):
        kind = "output_text" if full.get("role") == "assistant" else "input_text"
        full["content"] = [{"type": kind, "text": content}]
    return full if full["id"] else {**full, "id": id_}
