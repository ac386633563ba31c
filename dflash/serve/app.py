"""The HTTP face: routes, and the way from a body to an answer."""

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dflash.errors import TemplateError
from dflash.model.template import ChatTemplate
from dflash.model.tokenizer import Tokenizer
from dflash.serve.answer import Answer
from dflash.serve.bodies import read_json
from dflash.serve.openai import Options, parse_chat, parse_completion
from dflash.serve.problems import Problem, problem_of
from dflash.serve.running import Running, until_gone
from dflash.serve.wire import ChatShape, CompletionShape, Shape, usage
from dflash.serve.worker import Worker

Endpoint = Callable[[Request], Awaitable[Response]]
GONE = 499
"""Status of an answer that nobody waits for (nginx's)."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What the routes work with.

    Parameters
    ----------
    worker : Worker
        Runs the model; closed with the app.
    tokenizer : Tokenizer
        The model's.
    template : ChatTemplate or None
        The model's, if it has one.
    names : sequence of str
        What requests may call the model; answers use the first.
    api_key : str or None
        What requests must show, if anything.
    """

    worker: Worker
    tokenizer: Tokenizer
    template: ChatTemplate | None
    names: Sequence[str]
    api_key: str | None = None


def build_app(backend: Backend) -> Starlette:
    """Make the application.

    Parameters
    ----------
    backend : Backend
        A model's, or a stand-in.

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
            await asyncio.to_thread(backend.worker.close)

    api = Api(backend)
    routes = [
        Route("/v1/chat/completions", answered(api.chat, backend.api_key), methods=["POST"]),
        Route("/v1/completions", answered(api.completions, backend.api_key), methods=["POST"]),
        Route("/v1/models", answered(api.models, backend.api_key)),
        Route("/v1/models/{name:path}", answered(api.model, backend.api_key)),
        Route("/health", api.health),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _no_route})
