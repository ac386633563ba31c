"""The Starlette application: routes, access control, error responses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from dflash.serve.access import check_head, check_key
from dflash.serve.admin.admin import Admin
from dflash.serve.admin.debug_log import DebugLog
from dflash.serve.admin.request_log import RequestLog
from dflash.serve.anthropic.dialect import MessagesDialect
from dflash.serve.dialect import ErrorFormat, ServerDialect
from dflash.serve.endpoints import API, Backend
from dflash.serve.health import MAX_CLOSING
from dflash.serve.http_errors import Problem, problem_of
from dflash.serve.openai.dialects import ChatCompletions, Completions
from dflash.serve.openai.errors import OpenAIErrors
from dflash.serve.page.catalog import catalog_endpoint
from dflash.serve.page.document import page
from dflash.serve.responses.dialect import ResponsesDialect

Endpoint = Callable[[Request], Awaitable[Response]]

GONE = 499
"""HTTP status for a client that has closed the connection (nginx's code)."""

_MESSAGES = "/v1/messages"
"""Path of Anthropic's API; paths below it that no route serves have errors in its format."""

_SHOWN = 80
"""Characters of an unknown path that the error repeats."""


def build_app(
    backend: Backend,
    *,
    api_key: str | None = None,
    hosts: Collection[str] | None = None,
    keep_billing_header: bool = False,
    debug_log: DebugLog | None = None,
    origins: Sequence[str] = (),
) -> Starlette:
    """Build the application.

    backend: model and engine thread, or a fake. Its engine thread is closed at shutdown.
    api_key: keys of which requests must carry one, see `check_key`; ``/health`` and the page need none.
    hosts: accepted values of ``Host``, without a port; any if None.
    debug_log: receives the content of requests and responses. The caller closes it.
    origins: origins whose web pages may use the server from a browser, as ``https://chat.example``; ``*`` stands for any.
    Returns: serves OpenAI's ``/v1/chat/completions``, ``/v1/completions`` and ``/v1/responses`` with stored items and
        ``input_tokens``, Anthropic's ``/v1/messages`` and ``/v1/messages/count_tokens``, ``/v1/strategies``, ``/health``,
        the page at ``/``, and the routes of `Admin`.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            api.close()
            admin.close()
            await asyncio.to_thread(backend.engine_thread.close, MAX_CLOSING)

    api, admin, responses = API(backend, api_key), Admin(backend), ResponsesDialect(api_key=api_key, limits=backend.limits)

    def guarded(endpoint: Endpoint, *, key: str | None = api_key) -> Endpoint:
        return answered(endpoint, key, hosts)

    def chat(path: str, dialect: ServerDialect[Any]) -> Route:
        return Route(path, answered(api.answering(dialect), api_key, hosts, dialect), methods=["POST"])

    messages, counted = (MessagesDialect(keep_billing_header, counting) for counting in (False, True))
    counted_input = api.counting(responses, object="response.input_tokens")
    routes = [
        chat("/v1/chat/completions", ChatCompletions()),
        chat("/v1/completions", Completions()),
        chat("/v1/messages", messages),
        Route("/v1/messages/count_tokens", answered(api.counting(counted), api_key, hosts, counted), methods=["POST"]),
        chat("/v1/responses", responses),
        Route("/v1/responses/input_tokens", guarded(counted_input), methods=["POST"]),
        Route("/v1/responses/{id}/input_items", guarded(responses.input_items)),
        Route("/v1/responses/{id}", guarded(responses.retrieve)),
        Route("/v1/responses/{id}", guarded(responses.delete), methods=["DELETE"]),
        Route("/v1/strategies", guarded(catalog_endpoint(backend.defaults))),
        Route("/health", guarded(api.health, key=None)),
        Route("/", guarded(page, key=None)),
        *admin.routes(guarded),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: _no_route},
        middleware=[Middleware(RequestLog, admin.requests, debug_log), *_cors(origins)],
    )
    app.state.api = api
    return app


def _cors(origins: Sequence[str]) -> list[Middleware]:
    """Return the middleware that answers browsers about requests of other origins; none if there are no such origins."""
    if not origins:
        return []
    methods, shown = ["GET", "POST", "DELETE"], ["X-Request-Id", "Retry-After"]
    return [
        Middleware(CORSMiddleware, allow_origins=origins, allow_methods=methods, allow_headers=["*"], expose_headers=shown)
    ]


def answered(
    endpoint: Endpoint,
    api_key: str | None,
    hosts: Collection[str] | None = None,
    errors: ErrorFormat = OpenAIErrors(),  # noqa: B008 - immutable
) -> Endpoint:
    """Wrap an endpoint: check host and key, and convert exceptions to error responses."""

    async def run(request: Request) -> Response:
        try:
            check_head(request, hosts)
            check_key(request.headers, api_key)
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


def errors_of(path: str) -> ErrorFormat:
    """Return the form of errors on a path, also of one that no route serves."""
    return MessagesDialect() if path.startswith(_MESSAGES) else OpenAIErrors()


async def _no_route(request: Request, error: Exception) -> Response:
    """Refuse an unknown path with the list of those that exist, and a wrong method with the right ones."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    path, headers = request.url.path, getattr(error, "headers", None)
    message = f"{request.method} {path[:_SHOWN]} is not possible"
    if status == 404:
        paths = dict.fromkeys(route.path.replace(":path", "") for route in request.app.routes if isinstance(route, Route))
        message = f"there is no {path[:_SHOWN]}; this server has {', '.join(paths)}"
    elif status == 405:
        matching = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
        methods = {method for route in matching if isinstance(route, Route) for method in route.methods or ()}
        headers = {"Allow": ", ".join(sorted(methods))}
        message = f"{request.method} {path[:_SHOWN]} is not possible; use {headers['Allow']}"
    return refusal(Problem(status, message, headers=headers), errors_of(path))
