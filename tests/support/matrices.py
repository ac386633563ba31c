"""Random packed weights."""

import numpy as np

from dflash.kernels.formats import BLOCKS, FORMATS, Matrix

RNG = np.random.default_rng(5)


def random_matrix(rows, width, kind="Q4_K", divisor=1.0, rng=None):
    """Random bits with small finite scales, those of quantized blocks divided by `divisor`: at byte 0, unless named here."""
    rng, block = rng or RNG, BLOCKS[kind]
    if block.elements == 1:
        values = (rng.standard_normal((rows, width)) / np.sqrt(width)).astype(np.float32)
        if kind == "BF16":
            return Matrix((values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8), kind)
        return Matrix(values.astype(np.float16 if kind == "F16" else np.float32).view(np.uint8), kind)
    data = rng.integers(0, 256, (rows, width // block.elements, block.n_bytes), np.uint8)
    small = np.frombuffer(np.float16(0.01 / divisor).tobytes(), np.uint8)
    scales = {"Q6_K": (208,), "Q3_K": (108,), "Q2_K": (80, 82)}
    for at in scales.get(kind, (0, 2) if kind in FORMATS and FORMATS[kind].minima else (0,)):
        data[..., at : at + 2] = small
    if kind == "MXFP4":
        data[..., 0] = rng.integers(120, 126, data.shape[:2]) - round(np.log2(divisor))
    return Matrix(data.reshape(rows, -1), kind)
