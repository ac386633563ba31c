"""OpenAI's endpoints: from the body of a request to completions and a response."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dflash.decode.drafting.drafter import Strategy
from dflash.decode.prompt_ids import PromptIds
from dflash.decode.session import TokenLogprobs
from dflash.errors import ContextOverflow
from dflash.generation.chat_prompt import chat_ids
from dflash.generation.completion import Completion
from dflash.generation.engine_thread import EngineThread
from dflash.generation.recovery.names import Language
from dflash.generation.recovery.tool_call_prefix import ToolChoice
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer
from dflash.serve.admin.model_facts import ModelFacts
from dflash.serve.event_stream import EventStream
from dflash.serve.health import health_of
from dflash.serve.http_errors import Problem
from dflash.serve.jobs import Running, until_gone
from dflash.serve.limits import MAX_PREPARING, Limits
from dflash.serve.parsing.body import parse_json, read_body
from dflash.serve.parsing.fields import FieldError
from dflash.serve.parsing.requests import Options, parse_chat, parse_completion
from dflash.serve.parsing.sampling_defaults import filled
from dflash.serve.responses import ChatShape, CompletionShape, ResponseShape, interventions, usage
from dflash.serve.strategy_choice import PLAIN, Defaults, strategy_of

_THREADS = 2
"""Threads that parse and tokenize requests; two, so that one long body does not block the next request."""


@dataclass(frozen=True, slots=True)
class Backend:
    """Model, engine thread and settings of the endpoints.

    Parameters
    ----------
    engine_thread : EngineThread
        Engine thread of the model.
    tokenizer : Tokenizer
        Tokenizer of the model.
    template : ChatTemplate or None
        Chat template of the model, if it has one.
    names : sequence of str
        Names of the model in requests; responses use the first.
    defaults : Defaults
        Strategy and recoveries of requests that name none.
    limits : Limits
        Limits of a request; the default is for a context of 262,144 tokens.
    facts : ModelFacts, optional
        Facts about the model; None for a fake.
    """

    engine_thread: EngineThread
    tokenizer: Tokenizer
    template: ChatTemplate | None
    names: Sequence[str]
    defaults: Defaults = PLAIN
    limits: Limits = field(default_factory=Limits)
    facts: ModelFacts | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A parsed request: token ids in `prompts`; `shape` formats its choices."""

    options: Options
    prompts: Sequence[PromptIds]
    shape: ResponseShape
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: ToolChoice = None


class API:
    """The endpoints of one backend.

    Bodies are parsed, rendered and tokenized in separate threads, so that streams are not delayed.

    Attributes
    ----------
    preparing : int
        Number of requests that are being read and have not reached the engine.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="dflash-request")
        self.preparing = 0

    def close(self) -> None:
        """End the threads; safe to call twice."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def chat(self, request: Request) -> Response:
        """Answer ``/v1/chat/completions``."""
        return await self._respond(request, self._read_chat)

    async def completions(self, request: Request) -> Response:
        """Answer ``/v1/completions``."""
        return await self._respond(request, self._read_completion)

    async def health(self, _: Request) -> Response:
        """Answer ``/health``: 200 while requests are accepted and steps finish; see `health_of`."""
        status, body = health_of(self._backend.engine_thread)
        return JSONResponse(body, status_code=status)

    def _check_model(self, name: str | None) -> None:
        if name is not None and name not in self._backend.names:
            served = ", ".join(self._backend.names)
            message = f"there is no model {name[:100]!r}, this server has {served}"
            raise Problem(404, message, param="model", code="model_not_found")

    async def _respond(self, request: Request, read: Callable[[bytes], Job]) -> Response:
        backend = self._backend
        job, completions = await self._prepare(request, read)
        head = {
            "id": f"{'chatcmpl' if isinstance(job.shape, ChatShape) else 'cmpl'}-{uuid4().hex}",
            "object": job.shape.chunk_kind if job.options.stream else job.shape.whole_kind,
            "created": int(time.time()),
            "model": job.options.model or backend.names[0],
        }
        running = Running(backend.engine_thread, completions)
        if job.options.stream:
            return EventStream(running, _chunks(running, head, job.options, job.shape))
        try:
            return JSONResponse(await until_gone(request.receive, _whole(running, head, job.options, job.shape)))
        finally:
            running.close()

    async def _prepare(self, request: Request, read: Callable[[bytes], Job]) -> tuple[Job, list[Completion]]:
        """Do all work before the first forward; at most `MAX_PREPARING` requests at the same time."""
        if self.preparing >= MAX_PREPARING:
            raise Problem(503, f"{self.preparing} requests are already being prepared; try again later", code="overloaded")
        self.preparing += 1
        try:
            backend, loop = self._backend, asyncio.get_running_loop()
            body = await read_body(request, backend.limits.body_bytes)
            job = await loop.run_in_executor(self._threads, read, body)
            language = Language(backend.tokenizer, backend.template, job.tools, job.tool_choice)
            preparing = strategy_of(job.options.decoding, backend.defaults, language, backend.engine_thread)
            strategy = await until_gone(request.receive, preparing)
            return job, await loop.run_in_executor(self._threads, self._completions, job, strategy)
        finally:
            self.preparing -= 1

    def _read_chat(self, body: bytes) -> Job:
        backend = self._backend
        wanted = parse_chat(filled(parse_json(body, backend.limits), backend.defaults.sampling))
        options = wanted.options
        self._check_model(options.model)
        ids = chat_ids(
            backend.tokenizer,
            backend.template,
            wanted.messages,
            tools=wanted.tools,
            settings=wanted.template_kwargs,
            max_tokens=backend.limits.context,
        )
        shape = ChatShape(backend.tokenizer, logprobs=options.logprobs is not None)
        return self._job(options, [ids], shape, wanted.tools, wanted.tool_choice)

    def _read_completion(self, body: bytes) -> Job:
        backend = self._backend
        wanted = parse_completion(filled(parse_json(body, backend.limits), backend.defaults.sampling))
        options, tokenizer, context = wanted.options, backend.tokenizer, backend.limits.context
        self._check_model(options.model)
        prompts = []
        for prompt in wanted.prompts:
            ids = tokenizer.encode(prompt, max_tokens=context) if isinstance(prompt, str) else prompt
            if len(ids) > context:
                raise ContextOverflow(f"the prompt has {len(ids)} tokens, the context holds {context}")
            prompts.append(ids)
        echoes = None
        if wanted.echo:
            texts = [prompt if isinstance(prompt, str) else tokenizer.decode(prompt) for prompt in wanted.prompts]
            echoes = [text for text in texts for _ in range(options.n)]
        shape = CompletionShape(tokenizer, logprobs=options.logprobs is not None, echoes=echoes)
        return self._job(options, prompts, shape)

    def _job(
        self,
        options: Options,
        prompts: Sequence[Sequence[int]],
        shape: ResponseShape,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: ToolChoice = None,
    ) -> Job:
        n_tokens, max_tokens = options.n * sum(map(len, prompts)), self._backend.limits.prompt_tokens
        if n_tokens > max_tokens:
            raise FieldError(
                "n", f"{options.n} choices take {n_tokens} prompt tokens, at most {max_tokens} are allowed in one request"
            )
        return Job(options, [PromptIds(prompt) for prompt in prompts], shape, tools, tool_choice)

    def _completions(self, job: Job, strategy: Strategy) -> list[Completion]:
        """Create one completion per choice. Choices of a prompt share its ids and all settings except the seed."""
        options = job.options
        sampling = replace(options.sampling, logprobs=options.logprobs)
        of_choice = [sampling.with_seed(_seed(options.sampling.seed, number)) for number in range(options.n)]
        return [
            Completion(
                self._backend.tokenizer,
                prompt,
                sampling=each,
                strategy=strategy,
                max_tokens=options.max_tokens,
                stop=options.stop,
            )
            for prompt in job.prompts
            for each in of_choice
        ]


def _seed(seed: int | None, number: int) -> int | None:
    """Return the seed of a choice: the given one plus the number of the choice."""
    return (seed + number) % 2**64 if seed is not None and number else seed


async def _whole(running: Running, head: Mapping[str, Any], options: Options, shape: ResponseShape) -> dict[str, Any]:
    logprobs: list[list[TokenLogprobs]] = [[] for _ in running.completions]
    async for index, delta in running.deltas():
        logprobs[index] += delta.logprobs
    choices = [shape.whole(index, completion, logprobs[index]) for index, completion in enumerate(running.completions)]
    return {**head, "choices": choices, "usage": usage(running.completions, options.n), **interventions(running.completions)}


async def _chunks(
    running: Running, head: Mapping[str, Any], options: Options, shape: ResponseShape
) -> AsyncIterator[dict[str, Any]]:
    tail = {"usage": None} if options.include_usage else {}
    for index in range(len(running.completions)):
        opening = shape.opening(index)
        if opening is not None:
            yield {**head, "choices": [opening], **tail}
    async for index, delta in running.deltas():
        if delta.text or delta.logprobs:
            yield {**head, "choices": [shape.piece(index, delta)], **tail}
        if delta.step.finish is not None:
            done = interventions(running.completions[index : index + 1])
            yield {**head, "choices": [shape.ending(index, delta.step.finish)], **tail, **done}
    if options.include_usage:
        yield {**head, "choices": [], "usage": usage(running.completions, options.n)}
