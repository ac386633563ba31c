"""Attention of one row over a KV cache of 4 or 8 bits, as a kernel for this measurement alone, beside that of q8_0 in use.

    python benchmarks/gpu_attend_bits.py

A layer of a 27B model: 24 query heads, 4 KV heads, heads of 256 elements with one float16 scale for 32. See
`gpu_attend_bits.cu`. Times of the copies alone, with scores and with values are given, too.
"""

from pathlib import Path

import cupy
import numpy as np
from gpu_kv_depth import attention
from timing import copy_bandwidth, microseconds

from dflash.kernels.gpu.jit import kernel

SOURCE = Path(__file__).with_name("gpu_attend_bits.cu")
HEAD, KV, GROUP, PAGE, GRID, SCALES = 256, 4, 6, 256, 132, 16
CHECKED, DEPTHS = 8192, (65536, 262144)
SHAPES = {4: ((2, 2, 3), (2, 1, 6), (3, 1, 4), (4, 1, 3)), 8: ((2, 1, 3), (3, 1, 2))}
"""Groups of four warps, tiles of 16 positions of a stage, and stages of a warp, by bits."""
WORK = {0: "copies", 1: "scores", 2: "values", 3: "all"}


def quantized(values, bits):
    """Return unsigned numbers and float16 scales of blocks of 32, and the values that they stand for."""
    most = (1 << bits - 1) - 1
    blocks = values.reshape(*values.shape[:-1], HEAD // 32, 32)
    scales = (np.abs(blocks).max(-1) / most).astype(np.float16)
    numbers = np.clip(np.rint(blocks / scales[..., None].astype(np.float32)), -most, most)
    offset = 8 if bits == 4 else 0
    stored = (numbers + offset).astype(np.int8).view(np.uint8).reshape(values.shape)
    return stored, scales, (numbers * scales[..., None].astype(np.float32)).reshape(values.shape)


def order(bits, *, keys):
    """Return the element that is stored at each place of a head: of 4 bits, the lower nibble of a byte first."""
    place = np.arange(HEAD)
    per_word = 32 // bits
    line, word, at = place // (4 * per_word), place // per_word % 4, place % per_word
    if keys and bits == 4:
        return 32 * (line % 2 * 4 + word) + 8 * (line // 2) + at
    if keys:
        half = (line // 8 * 2 + line % 2) * 4 + word
        return 32 * (half // 2) + 16 * (half % 2) + 4 * (line % 8 // 2) + at
    if bits == 4:
        return 32 * (2 * word + at // 4) + 16 * (at % 4 // 2) + 8 * (at % 2) + line
    return 32 * (line // 8 * 4 + word) + 4 * (line % 8) + at


def packed(stored, scales, bits, *, keys):
    """Return a cache (pages, KV, PAGE, head bytes) of (positions, KV, HEAD) numbers."""
    numbers = stored[..., order(bits, keys=keys)]
    if bits == 4:
        numbers = numbers[..., ::2] | numbers[..., 1::2] << 4
    heads = np.concatenate([numbers, scales.view(np.uint8)], axis=-1)
    return np.ascontiguousarray(heads.reshape(-1, PAGE, KV, heads.shape[-1]).transpose(0, 2, 1, 3))


def made(bits, shape, work):
    """Return the kernel of a shape; it may still be compiling."""
    groups, sub, stages = shape
    return kernel(SOURCE, "attend", dependent=True, BITS=bits, GROUPS=groups, SUB=sub, STAGES=stages, WORK=work)


class Attend:
    """The kernel over caches of one number of bits."""

    def __init__(self, bits):
        rng = np.random.default_rng(bits)
        self.bits, self.q = bits, rng.standard_normal((KV * GROUP, HEAD)).astype(np.float16)
        k, v = (rng.standard_normal((CHECKED, KV, HEAD), dtype=np.float32) for _ in range(2))
        (k_stored, k_scales, self.k), (v_stored, v_scales, self.v) = quantized(k, bits), quantized(v, bits)
        self.some = packed(k_stored, k_scales, bits, keys=True), packed(v_stored, v_scales, bits, keys=False)
        self.partial = cupy.zeros((GRID, KV, 8, HEAD), np.float32)
        self.stats = cupy.zeros((GRID, KV, 8, 2), np.float32)
        self.head_bytes = self.some[0].shape[-1]

    def bound(self, depth, shape, work, turn=0):
        """Return a launch over a cache of its own."""
        groups, sub, stages = shape
        pages = depth // PAGE
        k, v = (cupy.resize(cupy.asarray(cache), (pages, *cache.shape[1:])) for cache in self.some)
        table = np.arange(pages) if depth == CHECKED else np.random.default_rng(turn).permutation(pages)
        shared = stages * groups * sub * 16 * 2 * KV * self.head_bytes
        shared = max(shared, 4 * groups * KV * 8 * HEAD)
        args = cupy.asarray(self.q), k, v, cupy.asarray(table.astype(np.int32)), depth, self.partial, self.stats
        return made(self.bits, shape, work).bind(GRID, 128 * groups, args, shared)

    def check(self, shape):
        """Compare the result over few positions with that in float32."""
        self.bound(CHECKED, shape, 3)(None)
        cupy.cuda.Device().synchronize()
        partial, stats = self.partial.get()[:, :, :GROUP], self.stats.get()[:, :, :GROUP]
        factors = np.exp2(stats[..., 0] - stats[..., 0].max(0))
        got = (partial * factors[..., None]).sum(0) / (factors * stats[..., 1]).sum(0)[..., None]
        scores = np.einsum("hgd,phd->hgp", self.q.astype(np.float32).reshape(KV, GROUP, HEAD), self.k) / np.sqrt(HEAD)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        want = np.einsum("hgp,phd->hgd", weights / weights.sum(-1, keepdims=True), self.v)
        error = np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2))
        print(f"{self.bits} bits {shape}: error {error:.1e} of the result", flush=True)
        if not error < 5e-3:
            raise SystemExit("the result is wrong")


def main():
    """Print a row for each shape and depth."""
    cases = {}
    for bits, shapes in SHAPES.items():
        cases[bits] = [(shapes[0], work) for work in WORK] + [(shape, 3) for shape in shapes[1:]]
    for bits, several in cases.items():
        for case in several:
            made(bits, *case)
    copy = copy_bandwidth()
    print(f"copy {copy:.0f} GB/s", flush=True)
    for bits, several in cases.items():
        ops = Attend(bits)
        for shape in SHAPES[bits]:
            ops.check(shape)
        for depth in DEPTHS:
            for shape, work in several:
                bound = [ops.bound(depth, shape, work, turn) for turn in range(2)]
                us = microseconds(lambda stream, bound=bound: [one(stream) for one in bound], 2)
                rate = 2 * depth * KV * ops.head_bytes / us / 1e3
                print(
                    f"{bits} bits depth {depth:7} groups, tiles, stages {shape} {WORK[work]:7} {us:7.1f} us "
                    f"{rate:6.0f} GB/s {rate / copy:6.1%}",
                    flush=True,
                )
    for depth in DEPTHS:
        for rows in (1, 16):
            attention(depth - 64, rows, "q8_0", copy)


if __name__ == "__main__":
    main()
