"""Decode at great depth on a GPU with each type of the KV cache: attention alone, or a whole model.

``python benchmarks/gpu_kv_depth.py [--model FILE] [--depth 262080] [--rows 1,4,16] [--kv f16,q8_0,q4_0,q8_0/q4_0]``

Attention alone is one layer of a 27B model, with its share of a plain copy's bandwidth in the same run. The model reads
pending rows after `depth` positions whose keys and values are zero, in 24 forwards launched one after another, then the
prompt chunk that ends at `depth`. Depths must be multiples of 64.
"""

import argparse
from time import perf_counter

import cupy
import numpy as np
from gpu_attention import HEADS, KV, WIDTH, batch_of, halves
from timing import copy_bandwidth, microseconds

from dflash.kernels.attention.cuda import Attend, Workspace
from dflash.kernels.kv_types import KV_TYPES, quantize
from dflash.kernels.ragged import PAGE
from dflash.model.batch import Span
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

FORWARDS = 24


def cache_of(n_pages, kv):
    """Return random keys or values of a type; large arrays repeat a block of them."""
    if kv == "f16":
        return halves(n_pages, PAGE, KV, WIDTH)
    some = np.random.default_rng(5).standard_normal((4, PAGE, KV, WIDTH)).astype(np.float32)
    return cupy.resize(cupy.asarray(quantize(some, kv)), (n_pages, PAGE, KV, KV_TYPES[kv].head_elements(WIDTH)))


def attention(depth, rows, kv, copy):
    """Print the time of a layer."""
    batch = batch_of(depth, rows, whole=False)
    q, out = halves(rows, HEADS, WIDTH), cupy.zeros((rows, HEADS * WIDTH), np.float16)
    gate, space = cupy.zeros((rows, HEADS * 2 * WIDTH), np.float32), Workspace()
    types = kv.split("/")[0], kv.split("/")[-1]
    caches = [[cache_of(batch.max_pages, one) for one in types] for _ in range(2)]
    ops = [Attend(q, k, v, batch, out, gate=gate, workspace=space) for k, v in caches]
    us = microseconds(lambda stream: [op(rows, stream) for op in ops], 2)
    rate = (depth + rows) * KV * sum(KV_TYPES[one].head_bytes(WIDTH) for one in types) / us / 1e3
    print(f"{kv:9} depth {depth:7} rows {rows:3} {us:8.1f} us {rate:6.0f} GB/s {rate / copy:6.1%}", flush=True)


def model(path, depth, all_rows, kv):
    """Print the time of a forward of a model."""
    loaded = load_model(path, LoadSettings(device="cuda", context=depth + 64, sequences=1, kv=kv))
    target = loaded.model
    pools, state = target.pools, target.state()
    try:
        state.reserve(depth + 64)
        state.length = depth
        for rows in all_rows:
            span = Span(state, np.full(rows, 5, np.int32), np.arange(-1, rows - 1, dtype=np.int32))
            for turn in range(2):
                start = perf_counter()
                for _ in range(FORWARDS if turn else 2):
                    target.forward([span])
                    state.commit([])
                target.finish()
            ms = (perf_counter() - start) / FORWARDS * 1e3
            size = (pools.k.nbytes + pools.v.nbytes) / 1e9
            print(
                f"{kv:9} depth {depth:7} rows {rows:3} {ms:7.3f} ms {1e3 / ms:6.1f} forwards/s, cache {size:.2f} GB",
                flush=True,
            )
        chunk = target.prefill_chunk
        prompt = Span(
            state, np.full(chunk, 5, np.int32), np.arange(-1, chunk - 1, dtype=np.int32), prefill=True, logits=False
        )
        for _ in range(3):
            state.length = depth - chunk
            start = perf_counter()
            target.forward([prompt])
            target.finish()
            ms = (perf_counter() - start) * 1e3
        print(f"{kv:9} depth {depth:7} prompt chunk of {chunk}: {ms:7.1f} ms, {chunk / ms * 1e3:6.0f} tokens/s", flush=True)
    finally:
        state.close()
    loaded.file.close()


def main():
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--depth", default="65536,262080")
    parser.add_argument("--rows", default="1,4,16")
    parser.add_argument("--kv", default="f16,q8_0,q4_0")
    options = parser.parse_args()
    depths, rows = ([int(n) for n in text.split(",")] for text in (options.depth, options.rows))
    copy = copy_bandwidth()
    print(f"copy {copy:.0f} GB/s")
    for kv in options.kv.split(","):
        for depth in depths:
            if options.model:
                model(options.model, depth, rows, kv)
            else:
                for n in rows:
                    attention(depth, n, kv, copy)


if __name__ == "__main__":
    main()
