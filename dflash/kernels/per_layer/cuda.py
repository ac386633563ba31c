"""Launches of the embeddings of all layers on a GPU."""

from pathlib import Path

import numpy as np

from dflash.kernels.arrays import GpuArray, check
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.launch import RowLaunch
from dflash.kernels.rope.cuda import HALVES

_HERE = Path(__file__).parent


class Halve(RowLaunch):
    """Copies rows as float16, times a factor, on fixed arrays.

    x: float32 (T, D); d is a multiple of 4.
    out: float16 (T, D); receives the values, clamped to 65504; may be given as uint16.
    """

    def __init__(self, x: GpuArray, out: GpuArray, *, scale: float) -> None:
        n, width = x.shape
        check("halve: x", x, (n, width // 4 * 4))
        check("halve: out", out, (n, width), HALVES)
        run = kernel(_HERE / "halve.cu", "halve", dependent=True)
        super().__init__(run.bind(1, 256, (x, width, scale, out)), -(-width // 1024))


class LayerEmbeddings(RowLaunch):
    """`dflash.kernels.per_layer.reference.layer_embeddings` on fixed arrays, in place of `projected`.

    projected: float32 (T, L * P); projections of the tokens' embeddings; receives the embeddings for all layers.
    token_part: float32 (T, L * P); embeddings of the tokens for all layers.
    weight: float32 (P,); gain of the norm.

    ``projected = (rms(projected) * weight + token_part) / sqrt(2)``, with the norm over the P elements of a layer. Moves
    ``12 * L * P`` bytes a row.
    """

    def __init__(self, projected: GpuArray, token_part: GpuArray, weight: GpuArray, eps: float) -> None:
        (n, every), size = projected.shape, weight.size
        check("layer_embeddings: projected", projected, (n, every // size * size))
        check("layer_embeddings: token_part", token_part, (n, every))
        constants = {"LAYERS": every // size, "LAYER_DIM": size}
        run = kernel(_HERE / "layer_embeddings.cu", "layer_embeddings", dependent=True, **constants)
        super().__init__(run.bind(1, 256, (projected, token_part, weight, np.float32(eps))), -(-(every // size) // 8))
