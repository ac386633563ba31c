"""Tokens a second of many plain sequences together, and the time of their passes on the GPU.

    python benchmarks/gpu_sequences.py FILE [--sequences 16 64 128] [--tokens 48]

Prompts are 16 random tokens. The rate is that of the steps in which all sequences decode, without the first and last ones. A
run of each number before it captures the graphs.
"""

import argparse
import time
from pathlib import Path

import cupy
import numpy as np

from dflash.decode.drafting.drafter import Plain
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.model.config import Config
from dflash.model.cuda.load import load_on_gpu
from dflash.model.gguf.file import GGUFFile

CONTEXT, PROMPT, FIRST, LAST, REPLAYS = 2048, 16, 8, 4, 15
SAMPLINGS = {"greedy": Sampling(), "temperature 1": Sampling(temperature=1.0, seed=1)}


def run(model, n, sampling, tokens):
    """Return the time and the number of all tokens after each step."""
    engine, random = Engine(model), np.random.default_rng(n)
    prompts = random.integers(0, model.n_vocab, (n, PROMPT)).tolist()
    settings = {"sampling": sampling, "strategy": Plain(), "max_tokens": tokens, "eos": []}
    sessions, marks = [engine.add(Session(prompt, **settings)) for prompt in prompts], []
    while engine.busy:
        engine.step()
        marks.append((time.perf_counter(), sum(len(session.output_ids) for session in sessions)))
    failed = [session.error for session in sessions if session.error]
    if failed:
        raise failed[0]
    return marks


def milliseconds(graphs, key):
    """Return the median time of a pass on the GPU."""
    took = []
    for _ in range(REPLAYS):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        graphs(key)
        end.record()
        end.synchronize()
        took.append(cupy.cuda.get_elapsed_time(start, end))
    return float(np.median(took[2:]))


def main():
    """Print a line for each number of sequences and sampling, then the passes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--sequences", type=int, nargs="+", default=[16, 64, 128])
    parser.add_argument("--tokens", type=int, default=48, help="tokens of a sequence, at least 16")
    options = parser.parse_args()
    file = GGUFFile.open(options.file)
    config, most = Config.from_gguf(file.metadata, file.tensors), max(options.sequences)
    model = load_on_gpu(file, config, context=CONTEXT, sequences=most, kv="f16", threads=16, tell=lambda _: None)
    for n in options.sequences:
        run(model, n, Sampling(), FIRST + LAST)
        for name, sampling in SAMPLINGS.items():
            marks = run(model, n, sampling, options.tokens)
            steps = [mark for mark in marks if FIRST * n <= mark[1] <= (options.tokens - LAST) * n]
            (start, before), (end, after) = steps[0], steps[-1]
            step = (end - start) / (len(steps) - 1)
            print(
                f"{n} sequences, {name}: {(after - before) / (end - start):.0f} tok/s, {step * 1e3:.2f} ms a step",
                flush=True,
            )
    graphs = model._decode.graphs
    for key in graphs.launches:
        if key.single:
            print(f"pass of {key.rows} sequences: {milliseconds(graphs, key):.2f} ms on the GPU", flush=True)


if __name__ == "__main__":
    main()
