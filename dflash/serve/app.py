"""The application: routes, keys, and what a failure looks like."""

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dflash.serve.api import API, Backend
from dflash.serve.health import MAX_CLOSING
from dflash.serve.problems import Problem, problem_of

Endpoint = Callable[[Request], Awaitable[Response]]

GONE = 499
"""Status of an answer that nobody waits for any more (nginx's)."""


def build_app(backend: Backend, *, api_key: str | None = None) -> Starlette:
    """Make the application.

    Parameters
    ----------
    backend : Backend
        A model's, or a stand-in. Its worker is closed with the application.
    api_key : str, optional
        What requests must show as ``Authorization: Bearer ...``; ``/health`` needs none.

    Returns
    -------
    Starlette
        Serves ``/v1/chat/completions``, ``/v1/completions``, ``/v1/models`` and ``/health``.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.to_thread(backend.worker.close, MAX_CLOSING)

    api = API(backend)
    routes = [
        Route("/v1/chat/completions", answered(api.chat, api_key), methods=["POST"]),
        Route("/v1/completions", answered(api.completions, api_key), methods=["POST"]),
        Route("/v1/models", answered(api.models, api_key)),
        Route("/v1/models/{name:path}", answered(api.model, api_key)),
        Route("/health", api.health),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _no_route})


def answered(endpoint: Endpoint, api_key: str | None) -> Endpoint:
    """Check the key and turn whatever `endpoint` raises into OpenAI's error object."""

    async def run(request: Request) -> Response:
        try:
            _check_key(request, api_key)
            return await endpoint(request)
        except ClientDisconnect:
            return Response(status_code=GONE)
        except Exception as error:
            return refusal(problem_of(error))

    return run


def refusal(problem: Problem) -> Response:
    """Write a problem as a response."""
    headers = {"Retry-After": "1"} if problem.status == 503 else None
    return JSONResponse(problem.body(), status_code=problem.status, headers=headers)


def _check_key(request: Request, api_key: str | None) -> None:
    if api_key is None:
        return
    shown = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(shown.encode(), api_key.encode()):
        raise Problem(401, "the API key is missing or wrong", code="invalid_api_key")


async def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = f"{request.method} {request.url.path}"
    message = f"there is no {what}" if status == 404 else f"{what} is not possible"
    return refusal(Problem(status, message))
