"""The packed multiply of a 27B model on a GPU, as a share of what a plain copy moves in the same run.

``python benchmarks/gpu_linear.py [--json FILE]``. Weights are random bytes, rotated so that none is in the cache; the
launches of a round are one CUDA graph; a figure is the median of the rounds. Activations are packed beforehand, which is
timed by itself.
"""

import argparse
import json
import statistics
from pathlib import Path

import cupy
import numpy as np

from dflash.kernels.formats.cuda import TILE_ROWS, Tiles, tile_bytes, tile_width
from dflash.kernels.jit import kernel
from dflash.kernels.linear.cuda import Launch, Tokens, Workspace

SHAPES = {
    "attn_qkv": ((10240,), 5120),
    "ssm_out": ((5120,), 6144),
    "ffn_gate+up": ((17408, 17408), 5120),
    "ffn_down": ((5120,), 17408),
    "output": ((248320,), 5120),
}
TYPES = "Q4_K", "Q6_K", "Q8_0"
TOKENS = 1, 8, 16, 32, 64
ROUNDS = 7
COLD = 400 << 20


class RandomTiles(Tiles):
    """A weight of random bytes, without a file behind it."""

    def __init__(self, kind, rows, width):
        self.type, self.shape, self.name = kind, (rows, width), "random"
        self.tiles_of_row = -(-width // tile_width(kind))
        size = -(-rows // TILE_ROWS) * self.tiles_of_row * tile_bytes(kind)
        self.data = cupy.random.randint(0, 255, size, cupy.uint8)


def microseconds(run, calls):
    """Median time of one of the `calls` that `run` makes on the current stream, replayed as a graph."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        run()
        stream.synchronize()
        stream.begin_capture()
        run()
        graph = stream.end_capture()
        times = []
        for _ in range(ROUNDS + 1):
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record()
            graph.launch()
            end.record()
            end.synchronize()
            times.append(cupy.cuda.get_elapsed_time(start, end) * 1e3 / calls)
    return statistics.median(times[1:])


def copy_bandwidth():
    """Bytes read and written by a copy of 2 GiB, in GB/s."""
    copy = kernel(Path(__file__).with_name("copy.cu"), "copy")
    a, b = cupy.zeros(1 << 29, cupy.float32), cupy.zeros(1 << 29, cupy.float32)
    return 2 * a.nbytes / microseconds(lambda: copy(a.nbytes // 32768, 256, (a, b)), 1) / 1e3


def measure(kind, name, counts):
    """Microseconds of one launch for each of `counts` tokens, and the bytes of its weights."""
    rows, width = SHAPES[name]
    n_bytes = sum(-(-r // TILE_ROWS) * -(-width // tile_width(kind)) * tile_bytes(kind) for r in rows)
    copies = max(2, -(-COLD // n_bytes))
    sets = [[RandomTiles(kind, r, width) for r in rows] for _ in range(copies)]
    x = cupy.asarray(np.random.default_rng(5).standard_normal((64, width)).astype(np.float32))
    tokens, space, outs = Tokens(x), Workspace(), (cupy.zeros((64, rows[0]), cupy.float32),)
    tokens.pack(64)
    launches = [Launch(tokens, weights, outs, gated=len(rows) == 2, workspace=space) for weights in sets]
    cupy.cuda.get_current_stream().synchronize()
    times = {}
    for n in counts:
        times[n] = microseconds(lambda n=n: [launch(n, cupy.cuda.get_current_stream()) for launch in launches], copies)
    return times, n_bytes


def main():
    """Print a table, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    copy = copy_bandwidth()
    print(f"copy: {copy:.0f} GB/s")
    print("type  shape        " + "".join(f"{f'{n} tokens':>24}" for n in TOKENS))
    table = []
    for kind in TYPES:
        for name in SHAPES:
            times, n_bytes = measure(kind, name, TOKENS)
            cells = ""
            for n, us in times.items():
                rate = n_bytes / us / 1e3
                table.append({"type": kind, "shape": name, "tokens": n, "us": us, "gb_s": rate, "share": rate / copy})
                cells += f"{us:9.1f} us {rate:5.0f} {rate / copy:5.0%}"
            print(f"{kind}  {name:12} {cells}", flush=True)
    for width in (5120, 17408):
        tokens = Tokens(cupy.ones((64, width), cupy.float32))
        for n in (1, 16, 64):
            us = microseconds(lambda n=n, t=tokens: [t.pack(n, cupy.cuda.get_current_stream()) for _ in range(20)], 20)
            print(f"pack {n} tokens of {width}: {us:.1f} us")
    if options.json:
        options.json.write_text(json.dumps({"copy_gb_s": copy, "results": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
