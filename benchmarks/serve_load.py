"""Load on the server: many clients over all APIs, drops, throughput of a batch, and a long prompt beside streams.

python benchmarks/serve_load.py [MODEL] [--clients 32] [--seconds 60] [--threads 1] [--max-step-ms MS]

The clients are another process, so that memory, threads and CPU time are those of the server alone. Times of steps are
those that the engine thread measures; "CPU" counts its processor time, which other load on the machine does not change.
"""

import argparse
import asyncio
import gc
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import uvicorn

from dflash.generation.load import start
from dflash.model.loading.settings import LoadSettings
from dflash.serve.app import build_app
from dflash.serve.endpoints import Backend
from dflash.serve.limits import MAX_WAITING, Limits

STRATEGIES = ["plain", "lookup", "mtp:2", "dflash"]
WORDS = "The quick brown fox jumps over the lazy dog, then it reads import os and def add(a, b): return a + b. "
N_FIXED = 8
"""Sampled requests whose outputs under load are compared with those alone."""

N_TOKENS = 128
"""Output tokens of a stream when throughput is measured."""

LONG_PROMPT = 4000
"""Tokens of the prompt that arrives beside streams."""


def chat(text, n, **settings):
    """Return path and body of a request for `n` tokens in each of the four forms of the API."""
    messages = [{"role": "user", "content": text}]
    return [
        ("/v1/chat/completions", {"messages": messages, "max_tokens": n, **settings}),
        ("/v1/completions", {"prompt": text, "max_tokens": n, **settings}),
        ("/v1/responses", {"input": text, "max_output_tokens": n, **settings}),
        ("/v1/messages", {"messages": messages, "max_tokens": n, **settings}),
    ]


def fixed(number):
    """Return path and body of a sampled request that is repeated; its output must always be the same."""
    settings = {"temperature": 0.8, "seed": number, "strategy": STRATEGIES[number % 4]}
    return "/v1/completions", {"prompt": WORDS[number * 5 :], "max_tokens": 24, **settings}


class Clients:
    """Requests of one client after another, with counts of what came back."""

    def __init__(self, http, n_drops=0.15):
        self.http, self.drops, self.counts, self.n_streaming, self.wrong = http, n_drops, Counter(), 0, []

    async def send(self, path, body, *, drop_after=None):
        """Send a request; return its events, or its body alone. `drop_after` events the connection is closed."""
        events = []
        async with self.http.stream("POST", path, json=body) as answer:
            if answer.status_code != 200:
                self.wrong.append((path, answer.status_code, (await answer.aread()).decode()[:200]))
                return events
            if not body.get("stream"):
                return [json.loads(await answer.aread())]
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    events.append(json.loads(line[6:]))
                    if len(events) == 3:
                        self.n_streaming += 1
                    if "error" in events[-1] and events[-1]["error"]:
                        self.wrong.append((path, 200, line[:200]))
                    if drop_after is not None and len(events) > drop_after:
                        self.counts["dropped"] += 1
                        break
        return events

    async def one(self, rng, until, expected):
        """Send random requests until a time."""
        while time.monotonic() < until:
            if rng.random() < 0.2:
                number = rng.randrange(N_FIXED)
                found = await self.send(*fixed(number))
                self.counts["compared"] += 1
                if found != [] and found[0]["choices"][0]["text"] != expected[number]:
                    self.wrong.append(("tokens differ", number, found[0]["choices"][0]["text"]))
                continue
            text = WORDS * rng.choice([1, 1, 1, 4, 20])
            settings = {"stream": rng.random() < 0.6, "strategy": rng.choice(STRATEGIES), "temperature": 0.7}
            path, body = rng.choice(chat(text[rng.randrange(40) :], rng.choice([1, 8, 32, 64]), **settings))
            await self.send(path, body, drop_after=rng.randrange(6) if rng.random() < self.drops else None)
            self.counts[path] += 1


async def run_clients(url, job, n, seconds):
    """Run one job against a server and return its results as JSON values."""
    limits = httpx.Limits(max_connections=n + 8)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as http:
        clients = Clients(http)
        if job == "load":
            expected = [(await clients.send(*fixed(number)))[0]["choices"][0]["text"] for number in range(N_FIXED)]
            until = time.monotonic() + seconds
            await asyncio.gather(*(clients.one(random.Random(number), until, expected) for number in range(n)))
            return {"counts": clients.counts, "wrong": clients.wrong}
        body = {"prompt": WORDS, "max_tokens": N_TOKENS, "stream": True, "logit_bias": {}}
        streams = [asyncio.create_task(clients.send("/v1/completions", {**body, "seed": i})) for i in range(n)]
        if job == "long":
            while clients.n_streaming < n:
                await asyncio.sleep(0.01)
            await clients.send("/v1/completions", {"prompt": [11, 12, 13, 14] * (LONG_PROMPT // 4), "max_tokens": 1})
        events = await asyncio.gather(*streams)
        return {"events": sum(map(len, events)), "wrong": clients.wrong}


def client_process(url, job, n, seconds=0.0):
    """Run clients in another process."""
    words = [sys.executable, __file__, "--job", job, "--url", url, "--clients", str(n), "--seconds", str(seconds)]
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


class Steps:
    """Observer of the engine: seconds, CPU seconds, tokens of each step, and shared prompts; times to first tokens."""

    def __init__(self):
        self.rows, self.first, self._cpu = [], [], None

    def __call__(self, events, seconds):
        """Note a step; called in the engine thread."""
        cpu = time.thread_time()
        kinds = {bool(event.step.prefilled) for event in events if event.step.prefilled or event.step.tokens}
        tokens = sum(len(event.step.tokens) for event in events)
        ended = [event.session for event in events if event.step.finish]
        self.first += [each.first_token_at - each.added_at for each in ended if each.first_token_at]
        if self._cpu is not None:
            self.rows.append((seconds, cpu - self._cpu, tokens, len(kinds) == 2))
        self._cpu = cpu


def state_of(engine_thread, pools):
    """Return free pages and slots after the prefix cache was cleared, memory in MB, and the number of threads."""
    cache = engine_thread.engine.prefix_cache
    if cache is not None:
        engine_thread.call(cache.clear)
    gc.collect()
    memory = int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20
    return {"pages": pools.free_pages, "slots": pools.free_slots, "MB": memory, "threads": threading.active_count()}


def measure(arguments):
    """Serve the model, run the jobs and print what was found."""
    limit = True if arguments.max_step_ms is None else arguments.max_step_ms
    loaded, engine_thread = start(
        arguments.model,
        LoadSettings(
            device=arguments.device, threads=arguments.threads, max_waiting=MAX_WAITING, max_step_ms=limit, prefix_cache=True
        ),
    )
    backend = Backend(engine_thread, loaded.tokenizer, loaded.template, ["demo"], limits=Limits(loaded.model.config.context))
    server = uvicorn.Server(uvicorn.Config(build_app(backend), port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    host, port = server.servers[0].sockets[0].getsockname()
    url, steps = f"http://{host}:{port}", Steps()
    engine_thread.observers.append(steps)
    try:
        n = arguments.clients
        client_process(url, "load", 4, 2.0)  # compiles what is used and fills caches
        before = state_of(engine_thread, loaded.model.pools)
        for part in range(2):
            steps.first.clear()
            found = client_process(url, "load", n, arguments.seconds / 2)
            after = state_of(engine_thread, loaded.model.pools)
            first, counts = sorted(steps.first), found["counts"]
            n_requests = sum(counts.values()) - counts.get("dropped", 0)
            print(f"half {part + 1}: {n_requests} requests {counts}, wrong: {found['wrong'][:3]}")
            print(f"  TTFT of {len(first)} sequences: median {first[len(first) // 2]:.2f} s, worst {first[-1]:.2f} s")
            print(f"  before {before}, after {after}")
        rates = {}
        for n in (1, 8):
            steps.rows.clear()
            client_process(url, "streams", n)
            rows = [row for row in steps.rows if row[2]]
            tokens = sum(row[2] for row in rows)
            rates[n] = tokens / sum(row[0] for row in rows), tokens / sum(row[1] for row in rows)
            print(f"{n} streams: {rates[n][0]:.0f} tok/s of step time, {rates[n][1]:.0f} tok per CPU second")
        print(f"8 against 1: {rates[8][0] / rates[1][0]:.2f}, by CPU time {rates[8][1] / rates[1][1]:.2f}")
        steps.rows.clear()
        client_process(url, "long", 7)
        shared = [row for row in steps.rows if row[3]]
        print(f"{LONG_PROMPT} tokens beside 7 streams: {len(shared)} shared steps, longest {max(shared)[0] * 1e3:.0f} ms,")
        print(f"  of CPU time {max(row[1] for row in shared) * 1e3:.0f} ms")
    finally:
        server.should_exit = True
        thread.join()
        engine_thread.close()


def main():
    """Measure, or run as the clients of a measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--max-step-ms", type=float)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job is None:
        measure(arguments)
    else:
        print(json.dumps(asyncio.run(run_clients(arguments.url, arguments.job, arguments.clients, arguments.seconds))))


if __name__ == "__main__":
    main()
