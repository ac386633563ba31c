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
from dflash.generation.preparation import PreparationJob
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
from dflash.serve.strategy_choice import PLAIN, Defaults, as_field, strategy_of

T = TypeVar("T")
_Answer = tuple[Sequence[Completion], AnswerFormat]
_Made = tuple[ReadRequest, Strategy, PreparationJob, _Answer | None]

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
                body = await read_body(request, self._backend.limits.body_bytes)
                limits = Limits(self._backend.limits.prompt_tokens)
                read = await self._in_thread(self._parse, dialect, body, request.headers, limits)
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
        options, (completions, answer) = await self._prepare(request, dialect)
        running = Running(self._backend.engine_thread, completions, self._backend.limits.request_seconds)
        if options.stream:
            return EventStream(running, answer)
        try:
            await until_gone(request.receive, running.finish())
            return await asyncio.to_thread(lambda: JSONResponse(answer.whole(completions)))
        finally:
            running.close()

    async def _prepare(self, request: Request, dialect: ServerDialect[Any]) -> tuple[Options, _Answer]:
        """Do all work before the first forward, in one job of a thread unless drafts are loaded or grammars compiled.

        Each job waits for the interpreter, which the engine and other streams use meanwhile.
        """
        with self._place():
            body = await read_body(request, self._backend.limits.body_bytes)
            read, strategy, loading, made = await self._in_thread(self._made, dialect, body, request.headers)
            if made is None:
                with as_field():
                    await until_gone(request.receive, loading.arrive())
                if read.is_constrained:
                    compiling = asyncio.wrap_future(self._grammar_thread.submit(read.with_grammars))
                    read = await until_gone(request.receive, compiling)
                made = await self._in_thread(self._format, dialect, read, strategy)
            return read.request.options, made

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

    def _made(self, dialect: ServerDialect[Any], body: bytes, headers: Mapping[str, str]) -> _Made:
        """Return a request, its strategy, and its completions and format unless these must wait for other threads."""
        backend = self._backend
        read = self._parse(dialect, body, headers, backend.limits)
        wanted, defaults = read.request.options.decoding, backend.defaults
        strategy, loading = strategy_of(wanted, defaults, read.language, backend.engine_thread)
        is_ready = loading.is_ready and not read.is_constrained
        return read, strategy, loading, self._format(dialect, read, strategy) if is_ready else None

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

    def _format(self, dialect: ServerDialect[Any], read: ReadRequest, strategy: Strategy) -> _Answer:
        completions, backend = read.completions(strategy), self._backend
        model, tokenizer = read.request.options.model or backend.names[0], backend.tokenizer
        fingerprint = None if backend.facts is None else backend.facts.fingerprint
        name, is_new = backend.id_prefix + uuid4().hex[len(backend.id_prefix) :], strategy not in self._used
        head = AnswerHead(name, int(time.time()), model, tokenizer, completions, fingerprint, is_new)
        return completions, dialect.format(read.request, head)
