"""Tokens a second of many plain sequences together, and the time of their steps on the GPU and on the host.

    python benchmarks/gpu_sequences.py FILE [--sequences 16 64 128] [--tokens 48] [--pending 8]

Prompts are 16 random tokens. The rate is that of the steps in which all sequences decode, without the first and last ones. A
run of each number before it captures the graphs. Passes are timed as they run: one replayed later would have another batch.
The host's time is that of a step without its wait for the sampled tokens.
"""

import argparse
import time
from pathlib import Path

import cupy
import numpy as np

from dflash.decode import engine as engine_module
from dflash.decode.drafting.drafter import Plain
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.model.config import Config
from dflash.model.cuda.load import load_on_gpu
from dflash.model.gguf.file import GGUFFile
from dflash.model.loading.settings import LoadSettings

CONTEXT, PROMPT, FIRST, LAST = 2048, 16, 8, 4
SAMPLINGS = {"greedy": Sampling(), "temperature 1": Sampling(temperature=1.0, seed=1)}


class TimedGraphs:
    """Graphs of a decode pass, with the events before and after each replay."""

    def __init__(self, graphs):
        self._graphs, self.events = graphs, []

    def __getattr__(self, name):
        return getattr(self._graphs, name)

    def __call__(self, key):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        self._graphs(key)
        end.record()
        self.events.append((start, end))


class Waits:
    """Stands for the engine's wait for samples, and adds up its seconds."""

    def __init__(self):
        self._wait, self.seconds = engine_module.wait, 0.0
        engine_module.wait = self

    def __call__(self, samples):
        start = time.perf_counter()
        self._wait(samples)
        self.seconds += time.perf_counter() - start


def run(model, n, sampling, tokens, waits):
    """Return the time, the number of all tokens, of passes and the seconds of waits after each step."""
    engine, random = Engine(model), np.random.default_rng(n)
    prompts = random.integers(0, model.n_vocab, (n, PROMPT)).tolist()
    settings = {"sampling": sampling, "strategy": Plain(), "max_tokens": tokens, "eos": []}
    sessions, marks = [engine.add(Session(prompt, **settings)) for prompt in prompts], []
    while engine.busy:
        engine.step()
        n_passes = len(model._decode.graphs.events)
        marks.append((time.perf_counter(), sum(len(session.output_ids) for session in sessions), n_passes, waits.seconds))
    failed = [session.error for session in sessions if session.error]
    if failed:
        raise failed[0]
    return marks


def main():
    """Print a line for each number of sequences and sampling."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--sequences", type=int, nargs="+", default=[16, 64, 128])
    parser.add_argument("--tokens", type=int, default=48, help="tokens of a sequence, at least 16")
    parser.add_argument("--pending", type=int, default=64, help="most pending rows of a sequence")
    options = parser.parse_args()
    file, most = GGUFFile.open(options.file), max(options.sequences)
    config = Config.from_gguf(file.metadata, file.tensors, pending=options.pending)
    settings = LoadSettings(context=CONTEXT, sequences=most, pending=options.pending)
    model = load_on_gpu(file, config, settings, threads=16, tell=lambda _: None)
    graphs, waits = TimedGraphs(model._decode.graphs), Waits()
    model._decode.graphs = graphs
    for n in options.sequences:
        run(model, n, Sampling(), FIRST + LAST, waits)
        for name, sampling in SAMPLINGS.items():
            marks = run(model, n, sampling, options.tokens, waits)
            steps = [mark for mark in marks if FIRST * n <= mark[1] <= (options.tokens - LAST) * n]
            (start, before, first, waited), (end, after, last, waited_until) = steps[0], steps[-1]
            n_steps = len(steps) - 1
            cupy.cuda.Device().synchronize()
            on_gpu = sum(cupy.cuda.get_elapsed_time(*events) for events in graphs.events[first:last]) / n_steps
            step, host = (end - start) / n_steps * 1e3, (end - start - waited_until + waited) / n_steps * 1e3
            print(
                f"{n} sequences, {name}: {(after - before) / (end - start):.0f} tok/s, {step:.2f} ms a step; "
                f"passes {on_gpu:.2f}, host {host:.2f}",
                flush=True,
            )
            graphs.events.clear()


if __name__ == "__main__":
    main()
