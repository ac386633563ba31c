"""A whole model on a GPU: load, prompts, forwards of 1 to 64 rows, text through the loop.

python benchmarks/gpu_model.py FILE
"""

import argparse
import time

import cupy
import numpy as np

from dflash.decode.engine import Engine
from dflash.decode.session import Session
from dflash.model.batch import Span
from dflash.model.load import load_model

ROWS = 1, 2, 4, 8, 16, 24, 32, 48, 64
PROMPTS = 512, 2048, 8192
WRITTEN = 128
REPEAT = 12


def chain(n):
    """Parents of a chain."""
    return np.arange(-1, n - 1, dtype=np.int32)


class Runs:
    """Timed runs of one model on random tokens, in seconds."""

    def __init__(self, model):
        self.model, self._draws = model, np.random.default_rng(0)

    def ids(self, n):
        """Random tokens."""
        return self._draws.integers(0, self.model.n_vocab, n, dtype=np.int32)

    def read(self, state, n):
        """A prompt in the loop's chunks."""
        start = time.perf_counter()
        for at in range(0, n, self.model.chunk):
            tokens = self.ids(min(self.model.chunk, n - at))
            self.model.forward([Span(state, tokens, chain(len(tokens)), whole=True, logits=False)])
        self.model.finish()
        return time.perf_counter() - start

    def prompt(self, n):
        """The best of three."""
        took = []
        for _ in range(3):
            state = self.model.state()
            took.append(self.read(state, n))
            state.close()
        return min(took)

    def rows(self, state, n):
        """Median of a step of n pending rows, and of the part in which the host is busy."""
        whole, host = [], []
        for _ in range(REPEAT + 1):
            tokens = self.ids(n)
            start = time.perf_counter()
            self.model.forward([Span(state, tokens, chain(n))])
            host.append(time.perf_counter() - start)
            self.model.finish()
            whole.append(time.perf_counter() - start)
            state.commit([])
        return np.median(whole[1:]), np.median(host[1:])

    def write(self):
        """A token of a text, greedily, through the whole loop."""
        engine, session = Engine(self.model, chunk=self.model.chunk), Session(self.ids(128).tolist(), max_tokens=WRITTEN)
        engine.add(session)
        start = begun = None
        while engine.busy:
            engine.step()
            if start is None and session.n_tokens:
                start, begun = time.perf_counter(), session.n_tokens
        return (time.perf_counter() - start) / (session.n_tokens - begun)


def main():
    """Print one figure a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    start = time.perf_counter()
    loaded = load_model(parser.parse_args().file, device="cuda", context=16384, sequences=2)
    model = loaded.model
    used = cupy.cuda.Device().mem_info
    print(f"load {time.perf_counter() - start:.1f} s; the GPU's memory in use {(used[1] - used[0]) >> 20} MiB")
    runs = Runs(model)
    for n in PROMPTS:
        took = runs.prompt(n)
        print(f"prompt of {n}: {took * 1e3:.1f} ms, {n / took:.0f} tok/s")
    state = model.state()
    runs.read(state, 128)
    for n in ROWS:
        took, host = runs.rows(state, n)
        print(f"{n} rows: {took * 1e3:.3f} ms, the host busy for {host * 1e6:.0f} us, {model.launches.get(n, 0)} launches")
    state.close()
    for _ in range(2):
        took = runs.write()
        print(f"text: {1 / took:.1f} tok/s, {took * 1e3:.3f} ms a token")


if __name__ == "__main__":
    main()
