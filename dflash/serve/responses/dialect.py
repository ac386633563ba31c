"""The Responses API as the server runs it."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dflash.serve.dialect import AnswerHead
from dflash.serve.http_errors import Problem
from dflash.serve.openai.errors import OpenAIErrors
from dflash.serve.responses.format import ResponsesFormat
from dflash.serve.responses.request import ResponsesRequest, not_found, parse_responses
from dflash.serve.responses.store import ResponseStore


class ResponsesDialect(OpenAIErrors):
    """``POST /v1/responses``, and the responses that it keeps.

    Parameters
    ----------
    store : ResponseStore, optional
        Holds finished responses; by default a new one.
    """

    prompt_field = "input"

    def __init__(self, store: ResponseStore | None = None) -> None:
        self._store = store or ResponseStore()

    def parse(self, body: object, headers: Mapping[str, str]) -> ResponsesRequest:  # noqa: ARG002 - no header matters
        """Read the body of a request."""
        return parse_responses(body, self._store)

    def format(self, request: ResponsesRequest, head: AnswerHead) -> ResponsesFormat:
        """Return the format of the response."""
        return ResponsesFormat(request, head, self._store, self)

    async def retrieve(self, request: Request) -> Response:
        """Answer ``GET /v1/responses/ID``."""
        id_ = request.path_params["id"]
        if request.query_params.get("stream") == "true":
            raise Problem(400, "stream: a stored response is not streamed again; read it as a whole", param="stream")
        body = self._store.body(id_)
        if body is None:
            raise not_found("Response", id_, 404)
        return JSONResponse(body)

    async def delete(self, request: Request) -> Response:
        """Answer ``DELETE /v1/responses/ID``."""
        id_ = request.path_params["id"]
        if not self._store.delete(id_):
            raise not_found("Response", id_, 404)
        return JSONResponse({"id": id_, "object": "response", "deleted": True})
