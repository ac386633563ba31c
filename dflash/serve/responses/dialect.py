"""The Responses API as the server runs it."""

import asyncio
import json
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dflash.json_types import JsonObject
from dflash.serve.access import check_key
from dflash.serve.dialect import AnswerHead
from dflash.serve.http_errors import Problem
from dflash.serve.limits import Limits
from dflash.serve.openai.errors import OpenAIErrors
from dflash.serve.responses.format import ResponsesFormat
from dflash.serve.responses.request import ResponsesRequest, not_found, parse_responses
from dflash.serve.responses.store import ResponseStore

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


class ResponsesDialect(OpenAIErrors):
    """``POST /v1/responses``, and the responses that it keeps.

    store: holds finished responses; by default a new one.
    api_key: keys of the server, as `check_key` takes them: responses are stored for the user of one key.
    """

    prompt_field = "input"

    def __init__(
        self,
        store: ResponseStore | None = None,
        api_key: str | None = None,
        limits: Limits = Limits(),  # noqa: B008 - immutable
    ) -> None:
        self._store, self._api_key, self._limits = store or ResponseStore(), api_key, limits

    def parse(self, body: object, headers: Mapping[str, str]) -> ResponsesRequest:
        """Read the body of a request."""
        return parse_responses(body, self._store, check_key(headers, self._api_key), self._limits)

    def format(self, request: ResponsesRequest, head: AnswerHead) -> ResponsesFormat:
        """Return the format of the response."""
        return ResponsesFormat(request, head, self._store, self)

    async def retrieve(self, request: Request) -> Response:
        """Answer ``GET /v1/responses/ID``."""
        id_ = request.path_params["id"]
        if request.query_params.get("stream") == "true":
            raise Problem(400, "stream: a stored response is not streamed again; read it as a whole", param="stream")
        body = self._store.body(id_, check_key(request.headers, self._api_key))
        if body is None:
            raise not_found("Response", id_, 404)
        return Response(body, media_type="application/json")

    async def input_items(self, request: Request) -> Response:
        """Answer ``GET /v1/responses/ID/input_items`` with the items of the request itself, not of responses before it."""
        id_ = request.path_params["id"]
        items = self._store.items(id_, check_key(request.headers, self._api_key))
        if items is None:
            raise not_found("Response", id_, 404)
        return await asyncio.to_thread(lambda: JSONResponse(listed(items, id_, request.query_params)))

    async def delete(self, request: Request) -> Response:
        """Answer ``DELETE /v1/responses/ID``."""
        id_ = request.path_params["id"]
        if not self._store.delete(id_, check_key(request.headers, self._api_key)):
            raise not_found("Response", id_, 404)
        return JSONResponse({"id": id_, "object": "response", "deleted": True})
