"""Endpoints for operators and tools, and the counters behind them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dflash.generation.engine_thread import EngineThread
from dflash.json_types import JsonMapping, JsonObject
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer
from dflash.serve.admin.engine_counters import EngineCounters
from dflash.serve.admin.metrics import ServerMetrics
from dflash.serve.admin.model_facts import ModelFacts
from dflash.serve.admin.model_list import check_model, model_entry, model_list
from dflash.serve.admin.openapi import openapi
from dflash.serve.admin.request_record import RequestCounts
from dflash.serve.admin.server_state import props, slots
from dflash.serve.admin.tokens import apply_template, detokenize, tokenize
from dflash.serve.http_errors import Problem
from dflash.serve.limits import MAX_PREPARING, Limits
from dflash.serve.parsing.body import parse_json, read_body
from dflash.serve.strategy_choice import Defaults

Endpoint = Callable[[Request], Awaitable[Response]]


class Served(Protocol):
    """Members of a backend that these endpoints use."""

    @property
    def engine_thread(self) -> EngineThread:
        """Engine thread of the model. Observed from the creation of `Admin` on."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the model."""

    @property
    def template(self) -> ChatTemplate | None:
        """Chat template of the model, if it has one."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the model in the API; at least one."""

    @property
    def defaults(self) -> Defaults:
        """Defaults of requests."""

    @property
    def limits(self) -> Limits:
        """Limits of a request."""

    @property
    def facts(self) -> ModelFacts | None:
        """Facts about the model; None for a fake."""


class Admin:
    """Endpoints for operators and tools of one backend.

    Bodies are tokenized in a thread of their own, so that neither streams nor other requests are delayed.
    """

    def __init__(self, backend: Served) -> None:
        self._backend, self._created = backend, int(time.time())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dflash-admin")
        self._n_open = 0
        self.requests = RequestCounts()
        self._counters = EngineCounters()
        backend.engine_thread.observers.append(self._counters)
        self._metrics = ServerMetrics(backend.engine_thread, self._counters, self.requests, backend.names[0], backend.facts)

    def routes(self, guarded: Callable[[Endpoint], Endpoint]) -> list[Route]:
        """Return the routes."""
        return [
            Route("/v1/models", guarded(self.models)),
            Route("/models", guarded(self.models)),
            Route("/v1/models/{name:path}", guarded(self.model)),
            Route("/props", guarded(self.props)),
            Route("/slots", guarded(self.slots)),
            Route("/metrics", guarded(self.metrics)),
            Route("/openapi.json", guarded(self.openapi)),
            Route("/tokenize", guarded(self.tokenize), methods=["POST"]),
            Route("/detokenize", guarded(self.detokenize), methods=["POST"]),
            Route("/apply-template", guarded(self.apply_template), methods=["POST"]),
        ]

    def close(self) -> None:
        """End the thread and stop counting; safe to call twice."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._counters in self._backend.engine_thread.observers:
            self._backend.engine_thread.observers.remove(self._counters)

    async def models(self, _: Request) -> Response:
        """Answer ``/v1/models``."""
        return JSONResponse(model_list([self._entry(name) for name in self._backend.names]))

    async def model(self, request: Request) -> Response:
        """Answer ``/v1/models/NAME``."""
        name = request.path_params["name"]
        check_model(name, self._backend.names)
        return JSONResponse(self._entry(name))

    async def props(self, _: Request) -> Response:
        """Answer ``/props``."""
        backend = self._backend
        body = await asyncio.get_running_loop().run_in_executor(
            self._thread,
            partial(
                props,
                name=backend.names[0],
                context=backend.limits.context,
                engine_thread=backend.engine_thread,
                tokenizer=backend.tokenizer,
                template=backend.template,
                strategy=backend.defaults.strategy,
                sampling=backend.defaults.sampling,
                facts=backend.facts,
            ),
        )
        return JSONResponse(body)

    async def slots(self, _: Request) -> Response:
        """Answer ``/slots``."""
        return JSONResponse(slots(self._backend.engine_thread, self._backend.limits.context))

    async def metrics(self, request: Request) -> Response:
        """Answer ``/metrics``."""
        content, content_type = self._metrics.exposition(request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": content_type})

    async def openapi(self, request: Request) -> Response:
        """Answer ``/openapi.json``."""
        return JSONResponse(openapi(request.app.routes))

    async def tokenize(self, request: Request) -> Response:
        """Answer ``/tokenize``."""
        backend = self._backend
        return await self._computed(
            request, partial(tokenize, tokenizer=backend.tokenizer, template=backend.template, limits=backend.limits)
        )

    async def detokenize(self, request: Request) -> Response:
        """Answer ``/detokenize``."""
        return await self._computed(request, partial(detokenize, tokenizer=self._backend.tokenizer))

    async def apply_template(self, request: Request) -> Response:
        """Answer ``/apply-template``."""
        return await self._computed(request, partial(apply_template, template=self._backend.template))

    async def _computed(self, request: Request, compute: Callable[[object], JsonMapping]) -> Response:
        """Read a body, and compute the response in the thread; at most `MAX_PREPARING` requests at the same time."""
        if self._n_open >= MAX_PREPARING:
            raise Problem(503, f"{self._n_open} such requests are already open; try again later", code="overloaded")
        self._n_open += 1
        try:
            limits = self._backend.limits
            body = await read_body(request, limits.body_bytes)

            def work() -> Response:
                return JSONResponse(compute(parse_json(body, limits)))

            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._n_open -= 1

    def _entry(self, name: str) -> JsonObject:
        backend = self._backend
        return model_entry(name, self._created, backend.limits.context, backend.tokenizer, backend.facts)
