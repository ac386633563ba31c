"""Random packed weights."""

from functools import cache

import numpy as np

from dflash.kernels.formats import BLOCKS, FORMATS, Matrix

RNG = np.random.default_rng(5)


@cache
def scales_of(kind):
    """Offsets of a block's float16 numbers: the first bytes that, made small, make the weights of random blocks small."""
    block, n = BLOCKS[kind], 2 if kind in FORMATS and FORMATS[kind].minima else 1
    data = np.random.default_rng(0).integers(0, 256, (500, block.n_bytes), np.uint8)
    for first in range(block.n_bytes - 2 * n + 1):
        blocks = data.copy()
        blocks[:, first : first + 2 * n] = np.full(n, 0.01, np.float16).view(np.uint8)
        with np.errstate(all="ignore"):
            if np.abs(Matrix(blocks, kind).unpacked()).max() < 100:
                return tuple(range(first, first + 2 * n, 2))
    return ()


def random_matrix(rows, width, kind="Q4_K", divisor=1.0, rng=None):
    """Random bits with small finite scales; those of quantized blocks are divided by `divisor`."""
    rng, block = rng or RNG, BLOCKS[kind]
    if block.elements == 1:
        values = (rng.standard_normal((rows, width)) / np.sqrt(width)).astype(np.float32)
        if kind == "BF16":
            return Matrix((values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8), kind)
        return Matrix(values.astype(np.float16 if kind == "F16" else np.float32).view(np.uint8), kind)
    data = rng.integers(0, 256, (rows, width // block.elements, block.n_bytes), np.uint8)
    small = np.frombuffer(np.float16(0.01 / divisor).tobytes(), np.uint8)
    for at in scales_of(kind):
        data[..., at : at + 2] = small
    if kind == "MXFP4":
        data[..., 0] = rng.integers(120, 126, data.shape[:2]) - round(np.log2(divisor))
    return Matrix(data.reshape(rows, -1), kind)
