"""CPU time that the server adds to an engine of no cost: of a step at 8 streams, and of a request up to its first event.

python benchmarks/serve_overhead.py [--streams 8] [--steps 400] [--requests 200]

The engine gives every sequence one token a step and runs no model. So all CPU time of the process, apart from that of the
clients, which read an ASGI application directly, is the server's: detokenizing, parsing, events, the loop. "Step" includes
all streams.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

import dflash
from dflash.decode.session import Step
from dflash.generation.engine_thread import EngineThread
from dflash.serve.app import build_app
from dflash.serve.endpoints import Backend

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from serve_fakes import ScriptedEngine

SHORT = [{"role": "user", "content": "Why is the sky blue?"}]
FORMS = {
    "/v1/chat/completions": {"messages": SHORT, "stream": True},
    "/v1/completions": {"prompt": "Why is the sky blue?", "stream": True},
    "/v1/responses": {"input": "Why is the sky blue?", "stream": True},
    "/v1/messages": {"messages": SHORT, "max_tokens": 100000, "stream": True},
}


class NoEngine(ScriptedEngine):
    """Advances every session by one token of a text a step, without a model."""

    prefix_cache, n_preempted, errands = None, 0, ()

    def __init__(self, ids, n_steps):
        super().__init__(None, ())
        self.ids, self.n_steps = ids, n_steps

    def _advance(self, session):
        number = self.sessions[session]
        self.sessions[session] += 1
        if number < self.n_steps and not session.cancelled:
            ids = [self.ids[number % len(self.ids)]]
            session.observer(session, ids)
            return Step(ids)
        return self._end(session, "cancelled" if session.cancelled else "stop")


async def stream(app, path, body):
    """Send a request without sockets; return when its response has ended."""
    content, never = [{"type": "http.request", "body": json.dumps(body).encode()}], asyncio.Event()
    headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}

    async def receive():
        if content:
            return content.pop()
        await never.wait()
        return None

    async def send(message):
        assert message.get("status", 200) == 200

    await app(scope, receive, send)


def cpu_of(lm, path, n_streams, n_steps, n_rounds=1):
    """Return CPU seconds of the process for some rounds of streams side by side."""
    engine_thread = EngineThread(NoEngine(lm.tokenizer.encode("import os, then some words and 12 numbers: "), n_steps))
    app = build_app(Backend(engine_thread, lm.tokenizer, lm.template, ["demo"]))

    async def run():
        await stream(app, path, FORMS[path])  # fills caches
        began = time.process_time()
        for _ in range(n_rounds):
            await asyncio.gather(*(stream(app, path, FORMS[path]) for _ in range(n_streams)))
        return time.process_time() - began

    try:
        return min(asyncio.run(run()) for _ in range(3))
    finally:
        engine_thread.close()


def main():
    """Print a table of milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--requests", type=int, default=100)
    arguments = parser.parse_args()
    with dflash.load("demo", device="cpu", threads=1) as lm:
        for path in FORMS:
            few, many = (cpu_of(lm, path, arguments.streams, n) for n in (arguments.steps // 4, arguments.steps))
            step = (many - few) / (arguments.steps - arguments.steps // 4)
            request = cpu_of(lm, path, 1, 1, arguments.requests) / arguments.requests
            print(f"{path}: {step * 1e3:.3f} ms a step of {arguments.streams} streams, {request * 1e3:.2f} ms a request")


if __name__ == "__main__":
    main()
