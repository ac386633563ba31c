"""Launch shapes of the multiplies of half a 27B: a chain of launches with weights of their own for each shape.

python benchmarks/gpu_part_shapes.py [--rows 1] [--device 0]

The slices of K are those of the whole matrix, so that no shape changes a bit. Prints the shape in use and the fastest ones.
"""

import argparse
from itertools import product

import cupy
import numpy as np
from timing import microseconds

from dflash.kernels.formats.cuda import PackedWeight
from dflash.kernels.linear import cuda
from dflash.kernels.linear.tile_config import shape, tile_bytes

HALVES = {
    "gate and up": ((("Q4_K", 8704), ("Q4_K", 8704)), 5120, 1088),
    "down, Q4_K": ((("Q4_K", 2560),), 17408, 320),
    "down, Q6_K": ((("Q6_K", 2560),), 17408, 320),
    "output": ((("Q4_K", 2560),), 6144, 320),
    "inputs": ((("Q4_K", 5120), ("Q4_K", 3072), ("F16", 24), ("F16", 24)), 5120, 1030),
    "queries, keys, values": ((("Q4_K", 6144), ("Q4_K", 512), ("Q6_K", 512)), 5120, 896),
}
"""Types and rows of the weights of a launch, width, and tiles of the whole matrix."""
COLD, SHOWN = 260 << 20, 5  # bytes of the weights of a chain, several times the L2 cache; shapes printed
WARPS, FRAGMENTS = {8: 28, 16: 24}, {8: 56, 16: 72}  # largest number in a block, by bucket


def candidates(parts, width, whole, n, chip):
    """Return the shape in use, and others of about one wave of blocks."""
    sides, types = (2 if width == 5120 and len(parts) == 2 else 1), tuple(sorted({kind for kind, _ in parts}))
    tiles = sum(-(-rows // 16) for _, rows in (parts[:1] if sides == 2 else parts))
    used = shape(n, tiles, width, types, chip, gated=sides == 2, whole=whole)
    found, slices, largest = [used], used["K_SLICES"] * used["CLUSTER"], max(map(tile_bytes, types))
    for cluster, mt, blocks_per_sm, stages in product((1, 2, 4, 8), (1, 2, 3), (1, 2), (4, 2)):
        ks, at_once = slices // cluster, chip.processors * blocks_per_sm // cluster
        units = sides * -(-tiles // (at_once * mt))
        warps, shared = ks * units, ((chip.shared + 1) // blocks_per_sm - 4) * 1024
        fits = ks * stages * n * 608 + warps * mt * largest <= shared
        if slices % cluster or ks > 8 or not fits or not 4 <= warps <= WARPS[n] // blocks_per_sm:
            continue
        if warps * mt * (n // 8) > FRAGMENTS[n] // blocks_per_sm:
            continue
        found.append(
            used
            | {"K_SLICES": ks, "CLUSTER": cluster, "ROW_UNITS": units, "MT": mt}
            | {"X_STAGES": stages, "BLOCKS_PER_SM": blocks_per_sm, "SMEM_BYTES": shared}
        )
    return found


def weights_of(parts, width):
    """Return enough copies of the weights that a chain reads none from a cache."""
    copies = []
    while not copies or len(copies) < 4 or sum(w.data.nbytes for ws in copies for w in ws) < COLD:
        copies.append([PackedWeight.empty(kind, (rows, width)) for kind, rows in parts])
        for weight in copies[-1]:
            weight.data[:] = 1
            weight.whole_rows = 2 * weight.shape[0]
    return copies


def measured(x, copies, outs, n, one, **settings):
    """Return the microseconds of a launch of a shape."""
    rule = cuda.shape
    cuda.shape = lambda bucket, *given, **about: one if bucket == n else rule(bucket, *given, **about)
    try:
        chain = [cuda.DecodeLinear(x, weights, outs, **settings) for weights in copies]
    finally:
        cuda.shape = rule
    return microseconds(lambda stream: [launch(len(x), stream) for launch in chain], len(chain))


def main():
    """Print a table for each multiply."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--device", type=int, default=0)
    options = parser.parse_args()
    cupy.cuda.Device(options.device).use()
    n, chip = cuda.bucket(options.rows), cuda._chip()
    for name, (parts, width, whole) in HALVES.items():
        gated, copies = name == "gate and up", weights_of(parts, width)
        x = cupy.ones((options.rows, width), cupy.float16)
        dtype, of = (np.float16, parts[:1]) if gated else (np.float32, parts)
        outs = [cupy.zeros((options.rows, rows), dtype) for _, rows in of]
        add = len(parts) == 1
        shapes = candidates(parts, width, whole, n, chip)
        times = [measured(x, copies, outs, n, one, gated=gated, add=add) for one in shapes]
        n_bytes = sum(weight.data.nbytes for weight in copies[0])
        print(f"{name}: {times[0]:.2f} us, {n_bytes / times[0] / 1e3:.0f} GB/s as it is", flush=True)
        for us, one in sorted(zip(times, shapes, strict=True), key=lambda pair: pair[0])[:SHOWN]:
            print(f"  {us:6.2f} us {one}", flush=True)


if __name__ == "__main__":
    main()
