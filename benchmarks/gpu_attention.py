"""Attention and rope of a 27B model on a GPU, compared with a plain copy in the same run.

``python benchmarks/gpu_attention.py [--json FILE] [--quick]``. A round is the 16 attention layers of the model, each with
its own cache, as one CUDA graph; a result is the median of the rounds, for one layer. If PyTorch is installed, its
``scaled_dot_product_attention`` is measured too, on contiguous keys and values.
"""

import argparse
import json
import statistics
from pathlib import Path

import cupy
import numpy as np
from timing import copy_bandwidth, microseconds

from dflash.kernels.attention.cuda import Attend, Prefill, Workspace
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.ragged import PAGE, PENDING, Ragged
from dflash.kernels.rope.cuda import Angles, Rotate

HEADS, KV, WIDTH, PAIRS, LAYERS = 24, 4, 256, 32, 16
DEPTHS = 0, 4096, 16384, 65536, 131072
ROWS = 1, 8, 16, 64
PROMPTS = (2048, 0), (8192, 0), (32768, 0), (2048, 30720), (256, 16384)


def batch_of(length, rows, *, whole):
    """Return a batch of one sequence in the first pages."""
    n_pages = (length + rows - 1) // PAGE + 1
    one = np.zeros(1, np.int32)
    text = Ragged(
        row_starts=np.array([0, rows], np.int32),
        sequence=np.zeros(rows, np.int32),
        parent=np.arange(-1, rows - 1, dtype=np.int32),
        depth=np.arange(rows, dtype=np.int32),
        length=one + length,
        pages=np.random.default_rng(1).permutation(n_pages).astype(np.int32).reshape(1, -1),
        slot=one,
        prefill=one + int(whole),
        accepted=np.zeros((1, PENDING), np.int32),
        n_accepted=one,
        buffer=one,
    )
    return DeviceBatch.of(text)


def halves(*shape):
    """Return normal numbers; large arrays repeat a block of them."""
    numbers = cupy.asarray(np.random.default_rng(5).standard_normal(1 << 20).astype(np.float16))
    return cupy.resize(numbers, shape)


def decode_us(depth, rows):
    """Microseconds of a layer."""
    batch = batch_of(depth, rows, whole=False)
    n_pages = batch.max_pages
    q, out = halves(rows, HEADS, WIDTH), cupy.zeros((rows, HEADS * WIDTH), np.float16)
    gate, space = cupy.zeros((rows, HEADS * 2 * WIDTH), np.float32), Workspace()
    n_layers = LAYERS if n_pages < 300 else 2
    caches = [(halves(n_pages, PAGE, KV, WIDTH), halves(n_pages, PAGE, KV, WIDTH)) for _ in range(n_layers)]
    ops = [Attend(q, k, v, batch, out, gate=gate, workspace=space) for k, v in caches]
    return microseconds(lambda stream: [op(rows, stream) for op in ops], n_layers)


def rotate_us(rows):
    """Microseconds of a layer, and of the tables of a pass."""
    batch = batch_of(100, rows, whole=rows > PENDING)
    q = cupy.zeros((rows, HEADS, WIDTH), np.float16)
    query, cos = cupy.ones((rows, HEADS * 2 * WIDTH), np.float32), cupy.ones((rows, PAIRS), np.float32)
    key, gain = cupy.ones((rows, KV * WIDTH), np.float32), cupy.ones(WIDTH, np.float32)
    k, v = cupy.zeros((2, batch.max_pages, PAGE, KV, WIDTH), np.float16)
    op = Rotate(query, key, key, gain, gain, cos, cos, batch, eps=1e-6, q=q, k=k, v=v)
    tables = Angles(batch.position, cupy.ones(PAIRS, np.float32), cos, cos)
    return [microseconds(lambda stream, op=o: [op(rows, stream) for _ in range(20)], 20) for o in (op, tables)]


def prefill_us(rows, depth):
    """Microseconds of a layer."""
    batch = batch_of(depth, rows, whole=True)
    q, out = halves(rows, HEADS, WIDTH), cupy.zeros((rows, HEADS * WIDTH), np.float16)
    k, v = (halves(batch.max_pages, PAGE, KV, WIDTH) for _ in range(2))
    gate = cupy.zeros((rows, HEADS * 2 * WIDTH), np.float32)
    op = Prefill(q, k, v, batch, out, gate=gate)
    return microseconds(lambda stream: op(rows, stream), 1)


def torch_us(rows, depth):
    """Microseconds of PyTorch's attention; None without it."""
    try:
        import torch
    except ImportError:
        return None
    q = torch.randn(1, HEADS, rows, WIDTH, device="cuda", dtype=torch.float16)
    k, v = (torch.randn(1, KV, depth + rows, WIDTH, device="cuda", dtype=torch.float16) for _ in range(2))
    mask = None
    if depth and rows > 1:
        mask = torch.ones(rows, depth + rows, device="cuda", dtype=torch.bool).tril(depth)

    def run():
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=not depth and rows > 1, enable_gqa=True
        )

    times = []
    for _ in range(6):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times[1:])


def shown(us):
    """A time for the table."""
    return "      - " if us is None else f"{us:8.1f}"


def main():
    """Print tables, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="without PyTorch")
    options = parser.parse_args()
    beside = (lambda *_: None) if options.quick else torch_us
    copy, table = copy_bandwidth(), []
    print(f"copy: {copy:.0f} GB/s\ndecode    depth  rows      us    GB/s  share     torch us")
    for depth in DEPTHS:
        for rows in ROWS:
            us = decode_us(depth, rows)
            rate = 4 * (depth + rows) * KV * WIDTH / us / 1e3
            print(
                f"        {depth:7} {rows:5} {us:7.1f} {rate:7.0f} {rate / copy:6.0%}     {shown(beside(rows, depth))}",
                flush=True,
            )
            table.append({"depth": depth, "rows": rows, "us": us, "gb_s": rate, "share": rate / copy})
    print("prefill   depth  rows      us TFLOP/s           torch us")
    for rows, depth in PROMPTS:
        us = prefill_us(rows, depth)
        rate = 4 * HEADS * WIDTH * (rows * depth + rows * (rows + 1) / 2) / us / 1e6
        print(f"        {depth:7} {rows:5} {us:7.0f} {rate:7.0f}           {shown(beside(rows, depth))}", flush=True)
        table.append({"depth": depth, "rows": rows, "us": us, "tflop_s": rate})
    for rows in (1, 16, 64, 2048):
        us, tables = rotate_us(rows)
        print(f"rotate {rows:5} rows {us:7.1f} us, tables {tables:.1f} us")
        table.append({"rotate": rows, "us": us})
    if options.json:
        options.json.write_text(json.dumps({"copy_gb_s": copy, "results": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
