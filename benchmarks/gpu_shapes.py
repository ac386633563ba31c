"""Times of the launch shapes of the packed multiply on a GPU whose blocks share no K slices, also as a target.

    DFLASH_TARGET=sm_86 python benchmarks/gpu_shapes.py [--tokens 8 16 24 32] [--best N]

For each multiply of a 27B and number of tokens, every number of K slices, units, tiles and stages of tokens that fits is
launched as in `gpu_linear.py`. The table has the shape of the rule first, then the fastest ones: slices, units, tiles of a
unit, stages of tokens. Shapes with equal slices must give equal bits.
"""

import argparse
from itertools import product

import cupy
import numpy as np
from gpu_linear import COLD, random_tiles
from timing import copy_bandwidth, microseconds

from dflash.kernels.linear import cuda, tile_config
from dflash.kernels.linear.shapes_without_clusters import WARPS
from dflash.kernels.linear.tile_config import tile_bytes

MULTIPLIES = {
    "attn_qkv, gate": ((("Q4_K", 16480),), 5120),
    "attn_qkv Q6_K, gate": ((("Q6_K", 10240), ("Q4_K", 6240)), 5120),
    "ssm_out": ((("Q4_K", 5120),), 6144),
    "ffn_gate+up": ((("Q4_K", 17408), ("Q4_K", 17408)), 5120),
    "ffn_down": ((("Q4_K", 5120),), 17408),
    "ffn_down Q6_K": ((("Q6_K", 5120),), 17408),
    "output Q6_K": ((("Q6_K", 248320),), 5120),
}
NAMES = "K_SLICES", "ROW_UNITS", "MT", "X_STAGES"


def fitting(n, weights, chip, *, gated):
    """Yield the constants of all shapes that fit and give each multiprocessor at most 24 warps and at least five."""
    types = {kind for kind, _ in weights}
    tiles, sides = sum(rows for _, rows in weights) // 16, 2 if gated else 1
    largest, shared = max(map(tile_bytes, types)), (chip.shared - 3) * 1024
    for slices, of_unit, ahead in product((1, 2, 3, 4), (1, 2, 3), (2, 3, 4)):
        one_wave = sides * -(-tiles // (sides * chip.processors * of_unit))
        for units in {one_wave, sides * -(-one_wave // (2 * sides)), 8, 16} if one_wave > 4 else {one_wave}:
            warps = slices * units
            fits = 5 <= warps <= min(24, WARPS[3][n][of_unit - 1])
            if fits and slices * (ahead * n * 608 + units * of_unit * max(largest, n // 8 * 512)) <= shared:
                values = slices, units, of_unit, ahead
                fixed = {"CLUSTER": 1, "X_COLUMNS": 256, "BLOCKS_PER_SM": 1, "SMEM_BYTES": shared}
                yield dict(zip(NAMES, values, strict=True)) | fixed


def launches(n, made, x, outs, constants, *, gated):
    """Return a multiply of `n` tokens for each of the rotated weights, with given constants or, if None, by the rule."""
    buckets, shape, most = cuda.BUCKETS, cuda.shape, cuda.most_tokens
    if constants:
        cuda.BUCKETS, cuda.shape, cuda.most_tokens = (n,), lambda *_, **__: constants, lambda **_: n
    try:
        return [cuda.DecodeLinear(x[:n], one, [out[:n] for out in outs], gated=gated) for one in made]
    finally:
        cuda.BUCKETS, cuda.shape, cuda.most_tokens = buckets, shape, most


def measure(n, weights, width, chip):
    """Return (microseconds, label) of the rule and of all shapes, and the bytes of the weights."""
    gated, n_bytes = (
        len(weights) == 2 and weights[0] == weights[1],
        sum(r // 16 * width // 256 * tile_bytes(k) for k, r in weights),
    )
    made = [[random_tiles(*weight, width)[0] for weight in weights] for _ in range(max(1, COLD // n_bytes))]
    x = cupy.asarray(np.random.default_rng(5).standard_normal((n, width)).astype(np.float16) / np.float16(8))
    outs = [cupy.empty((n, rows), np.float16 if gated else np.float32) for _, rows in (weights[:1] if gated else weights)]
    found, bits = [], {}
    for constants in (None, *fitting(n, weights, chip, gated=gated)):
        run = launches(n, made, x, outs, constants, gated=gated)
        label = "x".join(str(constants[name]) for name in NAMES) if constants else "rule"
        run[0](n)
        if constants:
            got = np.concatenate([out.get().view(np.uint8).reshape(n, -1) for out in outs], axis=1)
            assert (bits.setdefault(constants["K_SLICES"], got) == got).all(), f"other bits: {label}"
        found.append((microseconds(lambda s, run=run: [one(n, s) for one in run], len(run)), label))
    return found, n_bytes


def main():
    """Print a line for each multiply and number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8, 16, 24, 32], choices=tile_config.TOKENS)
    parser.add_argument("--best", type=int, default=4)
    options = parser.parse_args()
    copy, chip = copy_bandwidth(), cuda._chip()
    print(f"copy: {copy:.0f} GB/s, {chip}")
    for (name, (weights, width)), n in product(MULTIPLIES.items(), options.tokens):
        (rule, *found), n_bytes = measure(n, weights, width, chip)
        shown = (
            f"{label} {us:.1f} us {n_bytes / us / 1e3 / copy:.0%}" for us, label in (rule, *sorted(found)[: options.best])
        )
        print(f"{name:20} {n:2}  {'   '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
