"""The matmuls of a layer of a 27B model over a prompt, unpacking included, compared with cuBLAS on unpacked halves.

``python benchmarks/gpu_prefill.py [--rows 2048] [--type Q4_K] [--int8] [--kept] [--json FILE]``. With ``--kept`` weights
stay unpacked, so that unpacking takes no time. Weights and tokens are random and normal; launches of a round are one CUDA
graph; a result is the median of the rounds. If PyTorch is installed, cuBLAS is measured through it: the same products in
float16, and a square one of 8192 as the peak rate.
"""

import argparse
import json
import statistics
from pathlib import Path

import cupy
import numpy as np
from timing import ROUNDS, microseconds

from dflash.kernels.formats import BLOCKS, Matrix
from dflash.kernels.formats.cuda import PackedWeight
from dflash.kernels.gpu.jit import warm
from dflash.kernels.linear.cuda_prefill import SCRATCH_BYTES, PrefillLinear, UnpackScratch, quantized_bytes

DELTA = {
    "qkv, gate, alpha, beta": ((10240, 6144, 48, 48), 5120, {}),
    "out": ((5120,), 6144, {"add": True}),
    "gate & up": ((17408, 17408), 5120, {"gated": True}),
    "down": ((5120,), 17408, {"add": True, "scale": 64.0}),
}
ATTENTION = {"q, k, v": ((12288, 1024, 1024), 5120, {}), "out": ((5120,), 6144, {"add": True})}
SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q8_0": (0,)}
RNG = np.random.default_rng(5)


def random_tiles(kind, rows, width):
    """A weight whose rows are 256 random ones again and again."""
    block = BLOCKS[kind]
    data = RNG.integers(0, 256, (256, width // block.elements, block.n_bytes), np.uint8)
    for at in SCALES[kind]:
        data[..., at : at + 2] = np.frombuffer(np.float16(1e-4).tobytes(), np.uint8)
    tiles = PackedWeight(Matrix(data.reshape(256, -1), kind))
    tiles.data = cupy.ascontiguousarray(cupy.tile(tiles.data, -(-rows // 256)))
    tiles.shape = rows, width
    return tiles


def cublas(rows, columns, width):
    """Microseconds of a product of halves by cuBLAS, or None without PyTorch."""
    try:
        import torch
    except ImportError:
        return None
    x = torch.randn(rows, width, device="cuda", dtype=torch.float16)
    w = torch.randn(columns, width, device="cuda", dtype=torch.float16)
    times = []
    for _ in range(ROUNDS + 2):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        x @ w.T
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times[2:])


def measure(kind, n_rows, shape, scratch, int8):
    """Microseconds of a launch, of its unpacking alone, and of cuBLAS; and the operations."""
    rows, width, options = shape
    x = cupy.random.standard_normal((n_rows, width), cupy.float32).astype(cupy.float16)
    weights = [random_tiles(kind, r, width) for r in rows]
    dtype = cupy.float16 if "gated" in options else cupy.float32
    outs = [cupy.zeros((n_rows, r), dtype) for r in rows[: 1 if "gated" in options else None]]
    launch = PrefillLinear(x, weights, outs, scratch=scratch, int8=int8, **options)
    warm()
    whole = microseconds(lambda stream: launch(n_rows, stream))
    unpacks = [unpack for piece in launch._pieces for unpack in piece.unpacks]
    alone = microseconds(lambda _: [unpack() for unpack in unpacks]) if unpacks else 0
    return whole, alone, cublas(n_rows, sum(rows), width), 2 * n_rows * sum(rows) * width


def main():
    """Print a table, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[2048])
    parser.add_argument("--type", nargs="*", default=["Q4_K"])
    parser.add_argument("--int8", action="store_true", help="round tokens and weights to int8")
    parser.add_argument("--kept", action="store_true", help="weights stay unpacked")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    peak = cublas(8192, 8192, 8192)
    peak = peak and 2 * 8192**3 / peak / 1e6
    print(f"square product by cuBLAS: {peak or 0:.0f} TFLOP/s")
    print(f"{'':38}{'whole us':>9}{'unpack':>9}{'cuBLAS':>9}{'TFLOP/s':>9}{'multiply':>9}{'of peak':>9}")
    tokens = quantized_bytes(max(options.rows), 17408) if options.int8 else 0
    kept, table = (1 << 35) * options.kept, []
    for kind in options.type:
        for n_rows in options.rows:
            totals = {"delta": np.zeros(4), "attention": np.zeros(4)}
            for layer, shapes in (("delta", DELTA), ("attention", ATTENTION)):
                for name, shape in shapes.items():
                    scratch = UnpackScratch(SCRATCH_BYTES + tokens, kept=kept)
                    found = measure(kind, n_rows, shape, scratch, options.int8)
                    totals[layer] += [f or 0 for f in found]
                    table.append(line(f"{kind} {n_rows} {layer}: {name}", found, peak))
            table.append(line(f"{kind} {n_rows} layer with delta rule", totals["delta"], peak))
    if options.json:
        options.json.write_text(json.dumps({"peak_tflops": peak, "results": table}, indent=1) + "\n")


def line(name, found, peak):
    """Print a line of the table; the same as a dict."""
    whole, alone, theirs, operations = map(float, (f or 0 for f in found))
    rate = operations / whole / 1e6
    share = rate / peak if peak else 0
    multiply = operations / (whole - alone) / 1e6
    print(f"{name:38}{whole:9.1f}{alone:9.1f}{theirs:9.1f}{rate:9.0f}{multiply:9.0f}{share:9.1%}", flush=True)
    return {"name": name, "us": whole, "unpack_us": alone, "cublas_us": theirs, "tflops": rate, "share": share}


if __name__ == "__main__":
    main()
