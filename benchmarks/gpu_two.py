"""Speed of a model on two GPUs beside one: decode, a forward of 16 rows, a DFlash step and a long prompt.

python benchmarks/gpu_two.py FILE [DRAFT] [--split tensor|layer] [--json OUT]
"""

import argparse
import json
import statistics
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from dflash.cli.rates.measure import Bench
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain
from dflash.decode.engine import Engine
from dflash.decode.session import Session
from dflash.model.batch import Span
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

PROMPT, DECODED, DEPTH, REPEAT, STEPS = 8192, 200, 128, 8, 40


def dflash_step(model, draft):
    """Return the median milliseconds of an engine step with a chain of DFlash drafts."""
    engine, took = Engine(model, chunk=model.prefill_chunk), []
    ids = np.random.default_rng(0).integers(0, 50_000, 300, dtype=np.int32)
    session = engine.add(Session(ids.tolist(), strategy=Strategy(DFlash(draft), Chain(15)), max_tokens=16 * (STEPS + 12)))
    while len(took) < STEPS + 10:
        start = time.perf_counter()
        engine.step()
        if session.n_tokens > 1:
            took.append(time.perf_counter() - start)
    if session.error is not None:
        raise session.error
    session.cancel()
    engine.step()
    return statistics.median(took[10:]) * 1e3


def logits_of(model):
    """Return the logits of a prompt of 70 tokens and of 16 rows after it, for a comparison of bits."""
    ids = np.random.default_rng(1).integers(0, 50_000, 86, dtype=np.int32)
    with closing(model.state()) as state:
        found = [np.array(model.forward([Span.chain(state, ids[:70], prefill=True)]).logits)]
        found.append(np.array(model.forward([Span.chain(state, ids[70:])]).logits))
    return found


def measured(file, draft, **settings):
    """Return the speeds of one model, and logits."""
    start = time.perf_counter()
    loaded = load_model(file, LoadSettings(sequences=2, context=PROMPT + 1024, **settings))
    model, took = loaded.model, time.perf_counter() - start
    found = {"load_s": took}
    logits = logits_of(model)
    bench = Bench(model, repeat=REPEAT)
    found["plain_tok_s"] = bench.writing(DECODED, DEPTH)["mean"]
    found["forward_ms"] = {cost["tokens"]: cost["ms"] for cost in bench.forward_costs((1, 4, 8, 16, 24, 32, 64))}
    found["host_us"] = {cost["tokens"]: cost["host_us"] for cost in bench.forward_costs((1, 16))}
    found["prompt_tok_s"] = {n: bench.reading(n)["mean"] for n in (512, PROMPT)}
    if draft:
        found["dflash_step_ms"] = dflash_step(model, draft)
    bench.close()
    model.attachments.close()
    loaded.file.close()
    return found, logits


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("draft", nargs="?")
    parser.add_argument("--split", default="tensor")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results, logits = {}, {}
    for name, settings in (
        ("one", {"device": "cuda"}),
        ("two", {"devices": ["cuda:0", "cuda:1"], "split": arguments.split}),
    ):
        results[name], logits[name] = measured(arguments.file, arguments.draft, **settings)
        print(name, json.dumps(results[name]), flush=True)
    same = all(np.array_equal(a.view(np.int32), b.view(np.int32)) for a, b in zip(*logits.values(), strict=True))
    results["same_bits"] = same
    one, two = results["one"], results["two"]
    print(f"bits equal: {same}")
    plain = one["plain_tok_s"], two["plain_tok_s"]
    print(f"plain      {plain[0]:8.1f} {plain[1]:8.1f} tok/s  {plain[1] / plain[0]:.2f} x")
    for n, ms in one["forward_ms"].items():
        print(f"{n:>2} rows    {ms:8.3f} {two['forward_ms'][n]:8.3f} ms     {ms / two['forward_ms'][n]:.2f} x")
    for n, rate in one["prompt_tok_s"].items():
        print(f"prompt {n:>5} {rate:7.0f} {two['prompt_tok_s'][n]:7.0f} tok/s  {two['prompt_tok_s'][n] / rate:.2f} x")
    if arguments.draft:
        print(f"DFlash step {one['dflash_step_ms']:7.3f} {two['dflash_step_ms']:8.3f} ms")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
