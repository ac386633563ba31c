"""OpenAI's endpoints: from a body to answers and back."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dflash.decode.sampling import Sampling
from dflash.decode.session import TokenLogprobs
from dflash.errors import TemplateError
from dflash.model.template import ChatTemplate
from dflash.model.tokenizer import Tokenizer
from dflash.serve.answer import Answer
from dflash.serve.bodies import read_json
from dflash.serve.decoding import PLAIN, Defaults, strategy_of
from dflash.serve.openai import ChatRequest, CompletionRequest, Options, parse_chat, parse_completion
from dflash.serve.problems import Problem
from dflash.serve.recover import Language
from dflash.serve.running import Running, until_gone
from dflash.serve.sse import EventStream
from dflash.serve.wire import ChatShape, CompletionShape, Shape, interventions, usage
from dflash.serve.worker import Worker


@dataclass(frozen=True, slots=True)
class Backend:
    """What the endpoints work with.

    Parameters
    ----------
    worker : Worker
        Runs the model.
    tokenizer : Tokenizer
        The model's.
    template : ChatTemplate or None
        The model's, if it has one.
    names : sequence of str
        What requests may call the model; answers use the first.
    defaults : Defaults
        How texts are written where a request says nothing.
    """

    worker: Worker
    tokenizer: Tokenizer
    template: ChatTemplate | None
    names: Sequence[str]
    defaults: Defaults = PLAIN


class API:
    """The endpoints over one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._created = int(time.time())

    async def chat(self, request: Request) -> Response:
        """Answer ``/v1/chat/completions``."""
        wanted = parse_chat(await read_json(request))
        self._check_model(wanted.options.model)
        prompt = await asyncio.to_thread(self._chat_prompt, wanted)
        shape = ChatShape(self._backend.tokenizer, logprobs=wanted.options.logprobs is not None)
        return await self._respond(request, [prompt], wanted.options, shape, (wanted.tools, wanted.tool_choice))

    async def completions(self, request: Request) -> Response:
        """Answer ``/v1/completions``."""
        wanted = parse_completion(await read_json(request))
        self._check_model(wanted.options.model)
        prompts = await asyncio.to_thread(self._completion_prompts, wanted)
        echoes = None
        if wanted.echo:
            decode = self._backend.tokenizer.decode
            texts = [prompt if isinstance(prompt, str) else decode(prompt) for prompt in wanted.prompts]
            echoes = [text for text in texts for _ in range(wanted.options.n)]
        with_logprobs = wanted.options.logprobs is not None
        shape = CompletionShape(self._backend.tokenizer, logprobs=with_logprobs, echoes=echoes)
        return await self._respond(request, prompts, wanted.options, shape)

    async def models(self, _: Request) -> Response:
        """Answer ``/v1/models``."""
        return JSONResponse({"object": "list", "data": [self._about(name) for name in self._backend.names]})

    async def model(self, request: Request) -> Response:
        """Answer ``/v1/models/NAME``."""
        name = request.path_params["name"]
        self._check_model(name)
        return JSONResponse(self._about(name))

    async def health(self, _: Request) -> Response:
        """Answer ``/health``: 200 while work is taken, and how much there is."""
        worker = self._backend.worker
        engine = worker.engine
        about = {"status": "ok" if worker.alive else "closed", "active": engine.active, "waiting": engine.waiting}
        return JSONResponse(about, status_code=200 if worker.alive else 503)

    def _check_model(self, name: str | None) -> None:
        if name is not None and name not in self._backend.names:
            served = ", ".join(self._backend.names)
            message = f"there is no model {name[:100]!r}, this server has {served}"
            raise Problem(404, message, param="model", code="model_not_found")

    def _about(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "dflash"}

    def _chat_prompt(self, wanted: ChatRequest) -> list[int]:
        if self._backend.template is None:
            raise TemplateError("the model has no chat template: use /v1/completions")
        settings: Mapping[str, Any] = wanted.template_kwargs or {}
        text = self._backend.template.render(wanted.messages, tools=wanted.tools or None, **settings)
        return self._backend.tokenizer.encode(text)

    def _completion_prompts(self, wanted: CompletionRequest) -> list[list[int]]:
        encode = self._backend.tokenizer.encode
        return [encode(prompt) if isinstance(prompt, str) else list(prompt) for prompt in wanted.prompts]

    async def _respond(
        self,
        request: Request,
        prompts: Sequence[Sequence[int]],
        options: Options,
        shape: Shape,
        tools: tuple[Sequence[Mapping[str, Any]], str | Mapping[str, Any] | None] = ((), None),
    ) -> Response:
        backend = self._backend
        language = Language(backend.tokenizer, backend.template, *tools)
        strategy = await until_gone(
            request.receive, strategy_of(options.decoding, backend.defaults, language, backend.worker)
        )
        answers = [
            Answer(
                backend.tokenizer,
                prompt,
                sampling=_of_choice(options, number),
                strategy=strategy,
                max_tokens=options.max_tokens,
                stop=options.stop,
            )
            for prompt in prompts
            for number in range(options.n)
        ]
        head = {
            "id": f"{'chatcmpl' if isinstance(shape, ChatShape) else 'cmpl'}-{uuid4().hex}",
            "object": shape.chunk_kind if options.stream else shape.whole_kind,
            "created": int(time.time()),
            "model": options.model or backend.names[0],
        }
        running = Running(backend.worker, answers)
        if options.stream:
            return EventStream(running, _chunks(running, head, options, shape))
        try:
            return JSONResponse(await until_gone(request.receive, _whole(running, head, options, shape)))
        finally:
            running.close()


def _of_choice(options: Options, number: int) -> Sampling:
    """The choices of a prompt differ in their seed alone; the first has the seed that was asked for."""
    seed = options.sampling.seed
    if seed is not None and number:
        seed = (seed + number) % 2**64
    return replace(options.sampling, seed=seed, logprobs=options.logprobs)


async def _whole(running: Running, head: Mapping[str, Any], options: Options, shape: Shape) -> dict[str, Any]:
    logprobs: list[list[TokenLogprobs]] = [[] for _ in running.answers]
    async for index, delta in running.deltas():
        logprobs[index] += delta.logprobs
    choices = [shape.whole(index, answer, logprobs[index]) for index, answer in enumerate(running.answers)]
    return {**head, "choices": choices, "usage": usage(running.answers, options.n), **interventions(running.answers)}


async def _chunks(
    running: Running, head: Mapping[str, Any], options: Options, shape: Shape
) -> AsyncIterator[dict[str, Any]]:
    tail = {"usage": None} if options.include_usage else {}
    for index in range(len(running.answers)):
        opening = shape.opening(index)
        if opening is not None:
            yield {**head, "choices": [opening], **tail}
    async for index, delta in running.deltas():
        if delta.text or delta.logprobs:
            yield {**head, "choices": [shape.piece(index, delta)], **tail}
        if delta.step.finish is not None:
            done = interventions(running.answers[index : index + 1])
            yield {**head, "choices": [shape.ending(index, delta.step.finish)], **tail, **done}
    if options.include_usage:
        yield {**head, "choices": [], "usage": usage(running.answers, options.n)}
