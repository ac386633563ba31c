"""A scripted server of chat completions behind the real page, which records what the page sends."""

import asyncio
import json
from collections import deque

from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from dflash.serve.page.catalog import catalog_endpoint
from dflash.serve.page.document import page
from dflash.serve.strategy_choice import Defaults


def content(text, **more):
    """Chunk with text."""
    return delta(content=text, **more)


def reasoning(text):
    """Chunk with reasoning."""
    return delta(reasoning_content=text)


def call(index, **function):
    """Chunk with a part of a tool call."""
    named = {"id": f"call_{index}", "type": "function"} if "name" in function else {}
    return delta(tool_calls=[{"index": index, **named, "function": function}])


def delta(finish=None, **fields):
    """Chunk with any fields of a delta, and of the chunk beside it."""
    beside = {name: fields.pop(name) for name in ("dflash", "interventions") if name in fields}
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}], **beside}


def step(tokens, drafted=0, accepted=0, **more):
    """Field ``dflash`` of a chunk."""
    return {"dflash": {"index": 0, "tokens": tokens, "drafted": drafted, "accepted": accepted, "seconds": 0.01, **more}}


def usage(prompt, output, cached=0):
    """Last chunk of a stream."""
    details = {"prompt_tokens_details": {"cached_tokens": cached}} if cached else {}
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output, **details}}


class ChatFake:
    """Answers each request with the next script: a list of chunks, and of events to wait for.

    Attributes
    ----------
    bodies : list of dict
        Bodies of the requests so far.
    open, left : int
        Streams that are open, and those that the client has closed before their end.
    """

    def __init__(self, defaults=None):
        self.scripts, self.bodies, self.open, self.left = deque(), [], 0, 0
        routes = [
            Route("/", page),
            Route("/v1/strategies", catalog_endpoint(defaults or Defaults())),
            Route("/health", lambda _: JSONResponse({"status": "ok"})),
            Route("/v1/models", lambda _: JSONResponse({"object": "list", "data": [{"id": "scripted"}]})),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes)

    def then(self, *script):
        """Add the script of one more request."""
        self.scripts.append(script)

    async def _chat(self, request):
        self.bodies.append(json.loads(await request.body()))
        script = self.scripts.popleft()
        if isinstance(script[0], JSONResponse):
            return script[0]
        return StreamingResponse(self._events(script), media_type="text/event-stream")

    async def _events(self, script):
        self.open += 1
        ended = False
        try:
            for item in script:
                if isinstance(item, dict):
                    yield f"data: {json.dumps(item)}\n\n"
                else:
                    while not item.is_set():
                        await asyncio.sleep(0.002)
            yield "data: [DONE]\n\n"
            ended = True
        finally:
            self.open -= 1
            self.left += not ended
