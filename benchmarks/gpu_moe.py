"""The experts of a 35B-A3B model on a GPU: decode as a share of a plain copy in the same run, and prefill.

``python benchmarks/gpu_moe.py [--json FILE] [--rows N ...] [--prompts N ...]``. There are enough layers to keep their
experts out of the cache, and rows choose experts at random. The launches of all layers are one CUDA graph; a result is the
median of its replays. Bytes are those of the chosen experts, each once, and of the router. FLOP of a prompt are those of the
chosen experts, the shared one included.
"""

import argparse
import json
import statistics
from pathlib import Path

import cupy
import numpy as np
from timing import copy_bandwidth, microseconds

from dflash.kernels.formats import BLOCKS, Matrix
from dflash.kernels.formats.cuda import PackedWeight
from dflash.kernels.gpu.jit import warm
from dflash.kernels.moe import Experts
from dflash.kernels.moe.cuda import DecodeMoe, DecodeScratch
from dflash.kernels.moe.cuda_prefill import PrefillMoe, PrefillScratch

EXPERTS, USED, WIDTH, FFN = 256, 8, 2048, 512
ROWS = 1, 2, 4, 8, 16, 32, 64
PROMPTS = 512, 2048, 8192
LAYERS = 8
RNG = np.random.default_rng(5)
FACTORS = {"Q4_K": (0, 2), "Q6_K": (208,), "MXFP4": ()}


def one(rows, width, kind, scale):
    """A matrix of random codes, so small that the stream hardly changes from layer to layer."""
    block = BLOCKS[kind]
    data = RNG.integers(0, 256, (rows, width // block.elements, block.n_bytes), np.uint8)
    for at in FACTORS.get(kind, (0,)):
        data[..., at : at + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    if kind == "MXFP4":
        data[..., 0] = 118
    return PackedWeight(Matrix(data.reshape(rows, -1), kind))


def stack(rows, width, kind, scale):
    """The same matrix for every expert, each in memory of its own."""
    tiles = one(rows, width, kind, scale)
    tiles.data, tiles.shape = cupy.tile(tiles.data, EXPERTS), (EXPERTS, rows, width)
    return tiles


def random_layer(kind, down):
    """Experts of a layer on the device."""
    routers = [cupy.asarray(RNG.standard_normal((n, WIDTH)).astype(np.float32) / WIDTH**0.5) for n in (EXPERTS, 1)]
    return Experts(
        routers[0],
        stack(FFN, WIDTH, kind, 1e-4),
        stack(FFN, WIDTH, kind, 1e-4),
        stack(WIDTH, FFN, down, 2e-7),
        routers[1],
        one(FFN, WIDTH, kind, 1e-4),
        one(FFN, WIDTH, kind, 1e-4),
        one(WIDTH, FFN, down, 2e-7),
        USED,
    )


def decode(layers, counts):
    """Microseconds of a layer for each number of rows, and the bytes that it read."""
    stream = cupy.asarray(RNG.standard_normal((64, WIDTH)).astype(np.float32))
    gain, n, scratches = cupy.ones(WIDTH, np.float32), cupy.zeros(1, np.int32), [DecodeScratch(64, w) for w in layers]
    moes = [DecodeMoe(stream, gain, w, n, s, eps=1e-6) for w, s in zip(layers, scratches, strict=True)]
    warm()
    start = stream.copy()
    for rows in counts:
        n[:], stream[:] = rows, start
        us = microseconds(lambda s, rows=rows: [moe(rows, s) for moe in moes], len(moes))
        chosen = statistics.mean(len(np.unique(s.experts[:rows].get())) for s in scratches)
        w = layers[0]
        n_bytes = sum(chosen / EXPERTS * part.data.nbytes for part in (w.gate, w.up, w.down))
        n_bytes += sum(part.data.nbytes for part in (w.shared_gate, w.shared_up, w.shared_down)) + w.router.nbytes
        yield rows, us, chosen, n_bytes


def prefill(layers, counts):
    """Microseconds of a layer for each number of rows."""
    most = max(counts)
    stream = cupy.asarray(RNG.standard_normal((most, WIDTH)).astype(np.float32))
    gain, n, scratch = cupy.ones(WIDTH, np.float32), cupy.zeros(1, np.int32), PrefillScratch(most, layers[0])
    moes = [PrefillMoe(stream, gain, w, n, scratch, eps=1e-6) for w in layers]
    warm()
    start = stream.copy()
    for rows in counts:
        n[:], stream[:] = rows, start
        yield rows, microseconds(lambda s, rows=rows: [moe(rows, s) for moe in moes], len(moes))


def main():
    """Print a table, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--prompts", type=int, nargs="+", default=PROMPTS)
    options = parser.parse_args()
    copy = copy_bandwidth()
    print(f"copy: {copy:.0f} GB/s")
    table = []
    for kind, down in (("Q4_K", "Q4_K"), ("Q4_K", "Q6_K")):
        layers = [random_layer(kind, down) for _ in range(LAYERS)]
        for rows, us, chosen, n_bytes in decode(layers, options.rows):
            rate = n_bytes / us / 1e3
            table.append({"types": [kind, down], "rows": rows, "us": us, "experts": chosen, "share": rate / copy})
            print(
                f"{kind} {down} {rows:3} rows, {chosen:5.1f} experts: {us:7.1f} us {rate:5.0f} GB/s {rate / copy:5.0%}",
                flush=True,
            )
        for rows, us in prefill(layers, options.prompts):
            rate = 6 * rows * (USED + 1) * WIDTH * FFN / us / 1e6
            table.append({"types": [kind, down], "rows": rows, "us": us, "tflop_s": rate})
            print(f"{kind} {down} prompt of {rows}: {us / 1e3:.3f} ms {rate:.0f} TFLOP/s", flush=True)
        del layers
    if options.json:
        options.json.write_text(json.dumps({"copy_gb_s": copy, "results": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
