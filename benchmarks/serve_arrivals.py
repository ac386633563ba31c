"""How long requests that arrive together take to reach a busy engine, and what the server costs beside it.

python benchmarks/serve_arrivals.py [--streams 128] [--prompt 1000] [--output 128] [--switch-ms 1,5] [--repeat 3]

The real server and engine, with a model whose passes take the time of a 27B on an H200 (`tests/support/simulated_gpu.py`)
and compute nothing, but for the Python of their launches, each of which gives up the interpreter. Clients are another
process, and all send at once. "Reached" is the time from then until the engine has a request; "late" that from the end of a
pass until the engine sees its tokens; "idle" the time in which the device had nothing to do between two passes; CPU time is
that of the engine's thread, of the event loop and of all others.
"""

import argparse
import asyncio
import ctypes
import json
import random
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import uvicorn

import dflash
from dflash.decode import engine as engine_module
from dflash.generation.engine_thread import EngineThread
from dflash.model.batch import Forward
from dflash.serve.app import build_app
from dflash.serve.endpoints import Backend
from dflash.serve.limits import Limits
from dflash.serve.server import SWITCH_SECONDS
from dflash.serve.startup.protocol import CONNECTIONS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from simulated_gpu import SimulatedGpu, server

VOCAB = 512
"""Ids of the simulated model; those below 256 are single bytes."""

LAUNCHES = {True: 900, False: 12}
"""Launches of a pass of prompts, and of one that decodes, which is a graph."""

_PID = ctypes.CDLL(None).getppid
"""A call that gives up the interpreter lock, as a launch does."""


LAUNCH_S = 8e-6
"""Seconds of a launch, Python and driver (estimated)."""


def _launch(n):
    """Take the time of `n` launches."""
    for _ in range(n):
        until = time.perf_counter() + LAUNCH_S
        while time.perf_counter() < until:
            pass
        _PID()


class SleepingGpu(SimulatedGpu):
    """A simulated GPU in real time: the clock is that of the machine, and who waits for the device sleeps."""

    idle = 0.0

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.late = []

    @property
    def now(self):
        return time.perf_counter()

    @now.setter
    def now(self, value):
        time.sleep(max(value - time.perf_counter(), 0.0))

    def work(self, ms):
        self.idle += max(self.now - self.free, 0.0) if self.free else 0.0
        return super().work(ms)

    def capture_graph(self, key):
        pass

    def host(self, ms):
        pass

    def _read(self, spans):
        _launch(LAUNCHES[spans[0].prefill])
        done, out = super()._read(spans)
        return done, self._sampled(out)

    def forward_overlapped(self, spans, *, capture=()):
        _launch(LAUNCHES[False])
        self.latest = self._sampled(super().forward_overlapped(spans, capture=capture))
        return self.latest

    def _sampled(self, out):
        logits = out.logits
        if len(logits):
            logits[:, 256 + len(self.forwards) % 256] = 1.0
        return Forward(logits, out.hidden, out.captured, out.spans)

    def wait(self, samples):
        if samples:
            waited = self.now < self.ready
            self.now = self.ready
            if waited:
                self.late.append(self.now - self.ready)
        self.ready = self.next_ready


@contextmanager
def serving(app):
    """Serve an app in a thread; yields address and thread."""
    uv = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", **CONNECTIONS))
    thread = threading.Thread(target=uv.run)
    thread.start()
    while not uv.started:
        time.sleep(0.01)
    host, port = uv.servers[0].sockets[0].getsockname()
    try:
        yield f"http://{host}:{port}", thread
    finally:
        uv.should_exit = True
        thread.join()


def cpu(threads):
    """Return the CPU seconds of threads."""
    return np.array([time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) for thread in threads])


async def client(url, arguments):
    """Send all requests at once; print when the first was sent, first tokens and gaps as JSON."""
    bodies = [
        json.dumps(
            {
                "prompt": random.Random(1000 * arguments.seed + i).choices(range(256, VOCAB), k=arguments.prompt),
                "max_tokens": arguments.output,
                "ignore_eos": True,
                "stream": True,
                "return_token_ids": True,
                "temperature": 0,
            }
        )
        for i in range(arguments.streams)
    ]

    async def stream(body):
        headers = {"content-type": "application/json"}
        async with http.stream("POST", f"{url}/v1/completions", content=body, headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            lines = answer.aiter_lines()
            return [time.perf_counter() async for line in lines if '"token_ids":[' in line and '"token_ids":[]' not in line]

    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=None)) as http:
        began = time.perf_counter()
        found = await asyncio.gather(*map(stream, bodies))
    gaps = np.concatenate([np.diff(times) for times in found])
    first = [times[0] - began for times in found]
    print(json.dumps({"began": began, "seconds": time.perf_counter() - began, "first": first, "gaps": gaps.tolist()}))


def measure(lm, arguments, seed):
    """Return what one run of streams saw."""
    gpu = SleepingGpu(arguments.streams, context=4096)
    gpu.n_vocab = gpu.config.n_vocab = VOCAB
    engine_module.wait = gpu.wait
    engine, added = server(gpu), []
    add_all, engine.add_all = engine.add_all, lambda sessions: (add_all(sessions), added.append(time.perf_counter()))[0]
    engine_thread = EngineThread(engine)
    app = build_app(Backend(engine_thread, lm.tokenizer, lm.template, ["demo"], limits=Limits(4096)))
    try:
        with serving(app) as (url, loop):
            command = [sys.executable, __file__, "--client", url, "--seed", str(seed), "--prompt", str(arguments.prompt)]
            sizes = ["--streams", str(arguments.streams), "--output", str(arguments.output)]
            before = cpu([engine_thread._thread, loop])
            process_before = time.process_time()
            out = subprocess.run([*command, *sizes], check=True, capture_output=True, text=True).stdout
            spent = cpu([engine_thread._thread, loop]) - before
            process = time.process_time() - process_before
    finally:
        engine_thread.close()
    found = json.loads(out)
    reached = np.sort(np.array(added) - found["began"])
    return {
        "tokens_per_second": arguments.streams * arguments.output / found["seconds"],
        "reached": [float(np.median(reached)), float(reached[-1])],
        "first": [float(np.median(found["first"])), float(np.max(found["first"]))],
        "gap": [float(np.median(found["gaps"])), float(np.percentile(found["gaps"], 99)), float(np.max(found["gaps"]))],
        "idle": gpu.idle,
        "late": [float(each) for each in np.percentile(gpu.late, [50, 90, 99])],
        "cpu": [float(spent[0]), float(spent[1]), float(process - spent.sum())],
    }


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=1000)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    milliseconds = lambda text: [float(each) for each in text.split(",")]  # noqa: E731
    parser.add_argument("--switch-ms", type=milliseconds, default=[1e3 * SWITCH_SECONDS], help="measured in turns")
    arguments = parser.parse_args()
    if arguments.client:
        asyncio.run(client(arguments.client, arguments))
        return
    ms = lambda seconds: " / ".join(f"{1e3 * each:,.0f}" for each in seconds)  # noqa: E731
    heads = ["switch, ms", "tok/s", "reached, median / last, ms", "first token, median / last"]
    heads += ["gap, median / p99 / longest", "late, 50 / 90 / 99 %", "idle, ms", "CPU of engine / loop / others, s"]
    print(f"| {' | '.join(heads)} |\n|{' ---: |' * len(heads)}")
    with dflash.load("demo", device="cpu", threads=1) as lm:
        for turn, switch in ((turn, each) for turn in range(arguments.repeat) for each in arguments.switch_ms):
            sys.setswitchinterval(1e-3 * switch)
            row = measure(lm, arguments, turn)
            cells = [f"{switch:g}", f"{row['tokens_per_second']:,.0f}", ms(row["reached"]), ms(row["first"]), ms(row["gap"])]
            cells += [" / ".join(f"{1e3 * each:.1f}" for each in row["late"]), f"{1e3 * row['idle']:.0f}"]
            print(f"| {' | '.join(cells)} | {' / '.join(f'{each:.2f}' for each in row['cpu'])} |", flush=True)


if __name__ == "__main__":
    main()
