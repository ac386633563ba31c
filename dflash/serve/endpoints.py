"""The endpoints: from the body of a request, in any dialect, to completions and a response."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dflash.decode.drafting.drafter import Strategy
from dflash.generation.completion import Completion
from dflash.generation.engine_thread import EngineThread
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer
from dflash.serve.access import check_key
from dflash.serve.admin.model_facts import ModelFacts
from dflash.serve.admin.model_list import check_model
from dflash.serve.admin.used_strategies import UsedStrategies
from dflash.serve.dialect import AnswerFormat, AnswerHead, ServerDialect
from dflash.serve.event_stream import EventStream
from dflash.serve.health import health_of
from dflash.serve.http_errors import Problem
from dflash.serve.jobs import Running, until_gone
from dflash.serve.limits import MAX_PREPARING, Limits
from dflash.serve.parsing.body import parse_json, read_body
from dflash.serve.parsing.sampling_defaults import filled
from dflash.serve.parsing.session_id import cache_salt, session_id
from dflash.serve.preparing.completions import ReadRequest
from dflash.serve.requests import ChatRequest, Options
from dflash.serve.strategy_choice import PLAIN, Defaults, strategy_of

T = TypeVar("T")

_THREADS = 2
"""Threads that parse and tokenize requests; two, so that one long body does not block the next request."""


@dataclass(frozen=True, slots=True)
class Backend:
    """Model, engine thread and settings of the endpoints.

    names: names of the model. Responses to requests that give none use the first.
    limits: limits of a request; the default is for a context of 262,144 tokens.
    strict_names: refuse requests for other names. Otherwise every name is served, since many clients have a fixed one.
    offered_tools_only: calls of functions that a request does not offer are text. Otherwise they reach the client as calls.
    template_kwargs: variables of the chat template for requests that do not set them, such as ``{"preserve_thinking":
        True}``.
    facts: facts about the model; None for a fake.
    id_prefix: hexadecimal digits with which the ids of responses begin; the others are random.
    """

    engine_thread: EngineThread
    tokenizer: Tokenizer
    template: ChatTemplate | None
    names: Sequence[str]
    defaults: Defaults = PLAIN
    limits: Limits = field(default_factory=Limits)
    strict_names: bool = False
    offered_tools_only: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    facts: ModelFacts | None = None
    id_prefix: str = ""


class API:
    """The endpoints of one backend.

    Bodies are parsed, rendered and tokenized in separate threads, so that streams are not delayed. Grammars are compiled in
    one more thread, so that they delay no request without a grammar.

    preparing: number of requests that are being read and have not reached the engine.
    """

    def __init__(self, backend: Backend, api_key: str | None = None) -> None:
        self._backend, self._api_key = backend, api_key
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="dflash-request")
        self._grammar_thread = ThreadPoolExecutor(1, thread_name_prefix="dflash-grammar")
        self._used = UsedStrategies()
        backend.engine_thread.observers.append(self._used)
        self.preparing = 0

    def close(self) -> None:
        """End the threads; safe to call twice."""
        if self._used in self._backend.engine_thread.observers:
            self._backend.engine_thread.observers.remove(self._used)
        for threads in (self._threads, self._grammar_thread):
            threads.shutdown(wait=False, cancel_futures=True)

    def answering(self, dialect: ServerDialect[Any]) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint that answers requests in a dialect."""

        async def answer(request: Request) -> Response:
            return await self._answer(request, dialect)

        return answer

    def counting(self, dialect: ServerDialect[Any], **fields: str) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint that counts the prompt tokens of requests in a dialect, also of prompts beyond the context.

        Other fields of its answers are parameters.
        """

        async def count(request: Request) -> Response:
            with self._place():
                read = await self._read(request, dialect, Limits(self._backend.limits.prompt_tokens))
            return JSONResponse({**fields, "input_tokens": sum(map(len, read.prompts))})

        return count

    async def health(self, _: Request) -> Response:
        """Answer ``/health``: 200 while requests are accepted and steps finish; see `health_of`."""
        status, body = health_of(self._backend.engine_thread)
        verifier = self._backend.defaults.verifier
        body |= {"verifier": repr(verifier), "guarantee": verifier.guarantee}
        if verifier.warning:
            body["warning"] = verifier.warning
        return JSONResponse(body, status_code=status)

    async def _answer(self, request: Request, dialect: ServerDialect[Any]) -> Response:
        """Answer a request. Everything that can be refused is refused before the first byte of a stream."""
        options, completions, answer = await self._prepare(request, dialect)
        running = Running(self._backend.engine_thread, completions, self._backend.limits.request_seconds)
        if options.stream:
            return EventStream(running, answer)
        try:
            await until_gone(request.receive, running.finish())
            return await asyncio.to_thread(lambda: JSONResponse(answer.whole(completions)))
        finally:
            running.close()

    async def _prepare(
        self, request: Request, dialect: ServerDialect[Any]
    ) -> tuple[Options, Sequence[Completion], AnswerFormat]:
        """Do all work before the first forward."""
        backend = self._backend
        with self._place():
            read = await self._read(request, dialect, backend.limits)
            preparing = strategy_of(read.request.options.decoding, backend.defaults, read.language, backend.engine_thread)
            strategy = await until_gone(request.receive, preparing)
            if read.is_constrained:
                read = await until_gone(request.receive, self._with_grammars(read))
            completions, answer = await self._in_thread(self._format, dialect, read, strategy)
            return read.request.options, completions, answer

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Hold one of `MAX_PREPARING` places for requests in preparation."""
        if self.preparing >= MAX_PREPARING:
            raise Problem(503, f"{self.preparing} requests are already being prepared; try again later", code="overloaded")
        self.preparing += 1
        try:
            yield
        finally:
            self.preparing -= 1

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def _with_grammars(self, read: ReadRequest) -> ReadRequest:
        return await asyncio.get_running_loop().run_in_executor(self._grammar_thread, read.with_grammars)

    async def _read(self, request: Request, dialect: ServerDialect[Any], limits: Limits) -> ReadRequest:
        body = await read_body(request, self._backend.limits.body_bytes)
        return await self._in_thread(self._parse, dialect, body, request.headers, limits)

    def _parse(self, dialect: ServerDialect[Any], body: bytes, headers: Mapping[str, str], limits: Limits) -> ReadRequest:
        backend = self._backend
        fields = parse_json(body, backend.limits)
        wanted = dialect.parse(filled(fields, backend.defaults.sampling), headers)
        if backend.strict_names and wanted.options.model is not None:
            check_model(wanted.options.model, backend.names)
        if isinstance(wanted, ChatRequest) and backend.template_kwargs:
            kwargs = {**backend.template_kwargs, **(wanted.template_kwargs or {})}
            wanted = replace(wanted, template_kwargs=kwargs)
        read = ReadRequest.of(wanted, backend.tokenizer, backend.template, limits)
        salt = cache_salt(wanted.options.cache_salt, check_key(headers, self._api_key))
        conversation = session_id(fields, headers)
        return replace(
            read,
            cache_salt=salt,
            conversation=f"{salt} {conversation}" if salt and conversation else conversation,
            offered_tools_only=backend.offered_tools_only,
        )

    def _format(
        self, dialect: ServerDialect[Any], read: ReadRequest, strategy: Strategy
    ) -> tuple[Sequence[Completion], AnswerFormat]:
        completions = read.completions(strategy)
        model = read.request.options.model or self._backend.names[0]
        facts = self._backend.facts
        fingerprint = None if facts is None else facts.fingerprint
        prefix = self._backend.id_prefix
        name = prefix + uuid4().hex[len(prefix) :]
        warm_up = strategy not in self._used
        head = AnswerHead(name, int(time.time()), model, self._backend.tokenizer, completions, fingerprint, warm_up)
        return completions, dialect.format(read.request, head)
