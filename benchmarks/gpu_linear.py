"""The packed multiply of a 27B model on a GPU, as a share of a plain copy in the same run.

``python benchmarks/gpu_linear.py [--json FILE]``. Weights are random, rotated so that none is in the cache; the launches of
a round are one CUDA graph; a result is the median of the rounds. Each product is first compared with the definition.
"""

import argparse
import json
from pathlib import Path

import cupy
import numpy as np
from timing import copy_bandwidth, microseconds

from dflash.kernels.formats import BLOCKS, Matrix
from dflash.kernels.formats.cuda import PackedWeight
from dflash.kernels.linear.cuda import DecodeLinear

SHAPES = {
    "attn_qkv": ((10240,), 5120),
    "ssm_out": ((5120,), 6144),
    "ffn_gate+up": ((17408, 17408), 5120),
    "ffn_down": ((5120,), 17408),
    "output": ((248320,), 5120),
}
TYPES = "Q4_K", "Q6_K", "Q8_0"
MIXED = {
    "attn_qkv, attn_gate, ssm_alpha, ssm_beta": (("Q4_K", 10240), ("Q4_K", 6144), ("F16", 48), ("F16", 48)),
    "attn_q, attn_k, attn_v": (("Q4_K", 12288), ("Q4_K", 1024), ("Q6_K", 1024)),
}
TOKENS = 1, 8, 16, 24, 32, 64, 96, 128
COLD = 400 << 20
SCALES = {"Q4_K": (0, 2), "Q6_K": (208,), "Q8_0": (0,)}
AT_ONCE = 16384


def random_rows(kind, rows, width):
    """Rows of a file on the device, of random bits with small finite scales."""
    block = BLOCKS[kind]
    if block.elements == 1:
        values = cupy.random.standard_normal((rows, width), cupy.float32)
        return values.astype(cupy.float16 if kind == "F16" else cupy.float32).view(cupy.uint8)
    data = cupy.random.randint(0, 256, (rows, width // block.elements, block.n_bytes), cupy.uint8)
    for at in SCALES[kind]:
        data[..., at : at + 2] = cupy.asarray(np.frombuffer(np.float16(0.01).tobytes(), np.uint8))
    return data.reshape(rows, -1)


def random_tiles(kind, rows, width):
    """Return a weight, and its first rows in file format."""
    tiles, parts = PackedWeight.empty(kind, (rows, width)), []
    for start in range(0, rows, AT_ONCE):
        data = random_rows(kind, min(AT_ONCE, rows - start), width)
        tiles.fill(data.reshape(-1), start, len(data))
        parts.append(data[:64].get())
    return tiles, Matrix(parts[0], kind)


def check(x, launch, outs, matrices, *, gated):
    """Check the product against the definition."""
    launch(len(x))
    products = [x.get().astype(np.float64) @ m.unpacked().astype(np.float64).T for m in matrices]
    if gated:
        gate, up = products
        products = [np.clip(gate * up / (1 + np.exp(np.minimum(-gate, 700.0))) / 64, -65504, 65504)]
    for out, want in zip(outs, products, strict=True):
        error = np.sqrt(np.mean((out[:, : want.shape[1]].get() - want) ** 2) / np.mean(want**2))
        assert error < 1e-3, f"wrong product: error {error:.3g}"


def measure(weights, width, *, gated=False):
    """Microseconds of one launch for each of `TOKENS`, and the bytes of its weights."""
    n_bytes = sum(rows * width // BLOCKS[kind].elements * BLOCKS[kind].n_bytes for kind, rows in weights)
    made = [[random_tiles(*w, width) for w in weights] for _ in range(max(2, -(-COLD // n_bytes)))]
    x = cupy.asarray(np.random.default_rng(5).standard_normal((TOKENS[-1], width)).astype(np.float16))
    dtype = cupy.float16 if gated else cupy.float32
    outs = [cupy.zeros((TOKENS[-1], rows), dtype) for _, rows in (weights[:1] if gated else weights)]
    launches = [DecodeLinear(x, [tiles for tiles, _ in one], outs, gated=gated) for one in made]
    check(x, launches[0], outs, [matrix for _, matrix in made[0]], gated=gated)
    cupy.cuda.get_current_stream().synchronize()
    times = {n: microseconds(lambda s, n=n: [launch(n, s) for launch in launches], len(launches)) for n in TOKENS}
    return times, n_bytes


def cases():
    """Name, weights, width, whether gated."""
    for kind in TYPES:
        for name, (rows, width) in SHAPES.items():
            yield f"{kind} {name}", [(kind, r) for r in rows], width, len(rows) == 2
    for name, weights in MIXED.items():
        yield name, list(weights), 5120, False


def main():
    """Print a table, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    copy = copy_bandwidth()
    print(f"copy: {copy:.0f} GB/s")
    print(f"{'':42}" + "".join(f"{f'{n} tokens':>20}" for n in TOKENS))
    table = []
    for name, weights, width, gated in cases():
        times, n_bytes = measure(weights, width, gated=gated)
        cells = ""
        for n, us in times.items():
            share = n_bytes / us / 1e3 / copy
            table.append({"weights": name, "tokens": n, "us": us, "gb_s": n_bytes / us / 1e3, "share": share})
            cells += f"{us:9.1f} us {share:4.0%} {us / times[1]:4.2f}"
        print(f"{name:42}{cells}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"copy_gb_s": copy, "results": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
