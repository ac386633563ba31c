"""The Responses API as the server runs it."""

import asyncio
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dflash.serve.access import check_key
from dflash.serve.dialect import AnswerHead
from dflash.serve.http_errors import Problem
from dflash.serve.limits import Limits
from dflash.serve.openai.errors import OpenAIErrors
from dflash.serve.responses.format import ResponsesFormat
from dflash.serve.responses.input_items import listed
from dflash.serve.responses.request import ResponsesRequest, not_found, parse_responses
from dflash.serve.responses.store import ResponseStore


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
