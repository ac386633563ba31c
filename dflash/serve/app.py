"""The Starlette application: routes, access control, error responses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dflash.serve.access import check_host, check_key
from dflash.serve.admin.admin import Admin
from dflash.serve.admin.debug_log import DebugLog
from dflash.serve.admin.request_log import RequestLog
from dflash.serve.dialect import ErrorFormat, ServerDialect
from dflash.serve.endpoints import API, Backend
from dflash.serve.health import MAX_CLOSING
from dflash.serve.http_errors import Problem, problem_of
from dflash.serve.openai.dialects import ChatCompletions, Completions
from dflash.serve.openai.errors import OpenAIErrors

Endpoint = Callable[[Request], Awaitable[Response]]

GONE = 499
"""HTTP status for a client that has closed the connection (nginx's code)."""


def build_app(
    backend: Backend,
    *,
    api_key: str | None = None,
    hosts: Collection[str] | None = None,
    debug_log: DebugLog | None = None,
) -> Starlette:
    """Build the application.

    Parameters
    ----------
    backend : Backend
        Model and engine thread, or a fake. Its engine thread is closed at shutdown.
    api_key : str, optional
        Key that requests must carry as ``Authorization: Bearer KEY``; ``/health`` needs none.
    hosts : collection of str, optional
        Accepted values of ``Host``, without a port; any if None.
    debug_log : DebugLog, optional
        Receives the content of requests and responses. The caller closes it.

    Returns
    -------
    Starlette
        Serves ``/v1/chat/completions``, ``/v1/completions``, ``/health`` and the routes of `Admin`.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            api.close()
            admin.close()
            await asyncio.to_thread(backend.engine_thread.close, MAX_CLOSING)

    api, admin = API(backend), Admin(backend)

    def guarded(endpoint: Endpoint, *, key: str | None = api_key) -> Endpoint:
        return answered(endpoint, key, hosts)

    def chat(path: str, dialect: ServerDialect[Any]) -> Route:
        return Route(path, answered(api.answering(dialect), api_key, hosts, dialect), methods=["POST"])

    routes = [
        chat("/v1/chat/completions", ChatCompletions()),
        chat("/v1/completions", Completions()),
        Route("/health", guarded(api.health, key=None)),
        *admin.routes(guarded),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: _no_route},
        middleware=[Middleware(RequestLog, admin.requests, debug_log)],
    )
    app.state.api = api
    return app


def answered(
    endpoint: Endpoint,
    api_key: str | None,
    hosts: Collection[str] | None = None,
    errors: ErrorFormat = OpenAIErrors(),  # noqa: B008 - immutable
) -> Endpoint:
    """Wrap an endpoint: check host and key, and convert exceptions to error responses."""

    async def run(request: Request) -> Response:
        try:
            check_host(request, hosts)
            check_key(request, api_key)
            return await endpoint(request)
        except ClientDisconnect:
            return Response(status_code=GONE)
        except Exception as error:
            return refusal(problem_of(error), errors)

    return run


def refusal(problem: Problem, errors: ErrorFormat = OpenAIErrors()) -> Response:  # noqa: B008 - immutable
    """Return the response for a problem."""
    status, body, headers = errors.problem(problem)
    return JSONResponse(body, status_code=status, headers=dict(headers))


async def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    call = f"{request.method} {request.url.path}"
    message = f"there is no {call}" if status == 404 else f"{call} is not possible"
    return refusal(Problem(status, message, headers=getattr(error, "headers", None)))
