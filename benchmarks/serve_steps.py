"""Where the time of a server under load goes, with and without a drafter: its steps by kind, and how long they wait.

python benchmarks/serve_steps.py FILE -np 128 --context 2048 [--ways plain,mtp:3/rest,mtp:3] [--streams 32,64]

All other options are those of ``dflash.serve``. Streams arrive together, as in `serve_side.py`, and their clients are
another process. ``STRATEGY/rest`` is a strategy whose drafter never drafts: what remains over plain is what it costs to be
ready. Kinds of steps: prompts; drafts; ahead, whose forward was launched during the step before; late, of which the device
waited for the host. A period is the time from the end of one step to that of the next; in "waits" the engine waits for the
device, and "CPU" is the processor time of the engine's thread.
"""

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from types import SimpleNamespace

import httpx
import numpy as np
from serve_side import measure

from dflash.cli.serve import app_of, defaults_of, load_backend
from dflash.cli.serve_arguments import parse
from dflash.decode import engine as engine_module
from dflash.serve.server import Server
from dflash.serve.startup.sockets import listening, url_of

KINDS = "prompts", "drafts", "ahead", "late"
REST = "/rest"


class Steps:
    """Observes steps in the engine's thread: kind, period, seconds of waiting and of processor time."""

    def __init__(self):
        self.rows, self.last, self._waited, self._is_ahead = [], None, 0.0, False
        launch, wait = engine_module.launch, engine_module.wait

        def launching(model, parts, out):
            self._is_ahead = out is not None
            return launch(model, parts, out)

        def waiting(samples):
            began = time.perf_counter()
            wait(samples)
            self._waited += time.perf_counter() - began

        engine_module.launch, engine_module.wait = launching, waiting
        self.collected, self._began = 0.0, 0.0
        gc.callbacks.append(self._collecting)

    def _collecting(self, phase, _):
        now = time.perf_counter()
        self.collected += now - self._began if phase == "stop" else 0.0
        self._began = now

    def __call__(self, events, seconds):
        now = time.perf_counter(), time.thread_time()
        steps = [event.step for event in events]
        prefilled, drafted = (sum(getattr(step, name) for step in steps) for name in ("prefilled", "drafted"))
        kind = "prompts" if prefilled else "drafts" if drafted else "ahead" if self._is_ahead else "late"
        period, cpu = (now[i] - self.last[i] for i in range(2)) if self.last else (seconds, seconds)
        n_decoding = sum(bool(step.tokens) for step in steps)
        self.rows.append(
            (kind, period if period < 2 * seconds + 0.5 else seconds, self._waited, cpu, n_decoding, prefilled, drafted)
        )
        self.last, self._waited = now, 0.0


def clients(url, arguments):
    """Measure what standard input asks for, a line each: streams, seed and strategy as JSON."""

    async def answer():
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(timeout=600, limits=limits) as client:
            for line in sys.stdin:
                n, seed, strategy = json.loads(line)
                print(json.dumps(await measure(client, arguments, n, seed, (url, strategy))), flush=True)

    asyncio.run(answer())


def share(rows, name):
    """Return number, seconds of periods, and means of period, waiting and processor time of the steps of a kind, in ms."""
    some = np.array([row[1:] for row in rows if row[0] == name]).reshape(-1, 6)
    means = 1e3 * some[:, :3].mean(axis=0) if len(some) else np.zeros(3)
    return len(some), some[:, 0].sum(), means, some


def report(n, way, rate, rows):
    """Print the steps of a run by kind."""
    print(f"\n{n} streams, {way}: {rate:,.0f} tok/s")
    for name in KINDS:
        count, seconds, (period, waits, cpu), some = share(rows, name)
        if count:
            full = some[(some[:, 3] == n) & (some[:, 4] == 0), 0]
            line = (
                f"  {name:8} {count:5} steps {seconds:7.3f} s  period {period:6.2f} ms, waits {waits:6.2f}, CPU {cpu:5.2f}"
            )
            median = f", median with all streams {1e3 * np.median(full):.3f}" if len(full) else ""
            print(f"{line}{median}, {some[:, 4].sum():,.0f} prompt tokens, {some[:, 5].sum():,.0f} draft tokens")
    print(f"  steps that did not wait for the device (0.1 ms): {np.mean([row[2] < 1e-4 for row in rows]):.1%}")
    longest = sorted(((row[1:4], i) for i, row in enumerate(rows) if row[0] == "ahead"), reverse=True)[:6]
    shown = ", ".join(f"{i}: {1e3 * a:.0f} / {1e3 * b:.0f} / {1e3 * c:.0f}" for (a, b, c), i in longest)
    print(f"  longest steps that were launched ahead, period / waits / CPU in ms: {shown}")


def summary(found, ways):
    """Print how much longer each way takes than the first one, by kind of step, in shares of its time."""
    print(
        f"\n| streams | way | over {ways[0]} | {' | '.join(KINDS)} | all, s |\n| ---: | --- |{' ---: |' * (len(KINDS) + 2)}"
    )
    for n in dict.fromkeys(n for n, _ in found):
        base = np.array([[share(rows, name)[1] for name in KINDS] for _, rows in found[n, ways[0]]]).mean(axis=0)
        rates = [rate for rate, _ in found[n, ways[0]]]
        for way in ways:
            own = np.array([[share(rows, name)[1] for name in KINDS] for _, rows in found[n, way]]).mean(axis=0)
            ratio = np.median([rate / first for (rate, _), first in zip(found[n, way], rates, strict=True)])
            cells = " | ".join(f"{each:+.1%}" for each in (own - base) / base.sum())
            print(f"| {n} | {way} | {ratio:.3f} | {cells} | {own.sum():.2f} |")


def run(arguments, words):
    """Serve and measure each way in turns."""
    options = parse([*words, "--port", "0", "--no-access-log", "--prefix-cache-mib", "0"])
    backend = load_backend(options, defaults_of(options))
    thread, observer = backend.engine_thread, Steps()
    budget = thread.engine.draft_budget
    choose = budget._choose
    thread.observers.append(observer)
    gc.collect()
    gc.freeze()  # as the server does
    ready, holder = threading.Event(), SimpleNamespace(server=None)

    def serve(sockets):
        holder.server = Server(app_of(options, backend, None), thread, grace=1, ready=ready.set)
        holder.server.run(sockets)

    with listening(options.host, 0) as sockets:
        serving = threading.Thread(target=serve, args=(sockets,))
        serving.start()
        ready.wait()
        same = [f"--{name}={getattr(arguments, name)}" for name in ("prompt", "output", "vocab")]
        command = [sys.executable, __file__, "--clients-of", url_of(sockets), *same]
        client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        found = defaultdict(list)
        try:
            for turn in range(-1, arguments.repeat):  # the first one, with few streams, captures graphs
                for n in arguments.streams if turn >= 0 else [2]:
                    for way in arguments.ways:
                        budget._choose = (lambda records, *_: np.zeros(len(records), int)) if way.endswith(REST) else choose
                        budget._each = 0.0
                        rows = observer.rows = []
                        observer.collected, observer.last = 0.0, None
                        print(json.dumps((n, 1000 * n + turn, way.removesuffix(REST))), file=client.stdin, flush=True)
                        rate = json.loads(client.stdout.readline())["tokens_per_second"]
                        time.sleep(0.1)
                        if turn >= 0:
                            report(n, way, rate, rows)
                            outside = n * arguments.output / rate - sum(row[1] for row in rows)
                            print(f"  garbage collections {observer.collected:.3f} s, outside of steps {outside:.3f} s")
                            found[n, way].append((rate, rows))
        finally:
            client.stdin.close()
            client.wait()
            holder.server.should_exit = True
            serving.join()
            thread.close()
    summary(found, arguments.ways)


def main():
    """Serve, measure and print; or run as the clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", type=lambda text: text.split(","), default=["plain", "mtp:3/rest", "mtp:3"])
    parser.add_argument("--streams", type=lambda text: [int(n) for n in text.split(",")], default=[32, 64, 128])
    parser.add_argument("--prompt", type=int, default=200)
    parser.add_argument("--output", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--vocab", type=int, default=10_000)
    parser.add_argument("--clients-of", help=argparse.SUPPRESS)
    arguments, words = parser.parse_known_args()
    arguments.text = ()
    if arguments.clients_of:
        clients(arguments.clients_of, arguments)
    else:
        run(arguments, words)


if __name__ == "__main__":
    main()
