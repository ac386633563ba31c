"""Embeddings, the first norm and rotary angles of a pass in one launch."""

from pathlib import Path
from typing import Self

from dflash.kernels.arrays import Stream
from dflash.kernels.embed.cuda import Embed
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.norm.cuda import RmsNorm, threads
from dflash.kernels.rope.cuda import Angles

_LARGEST = 10240  # elements of a row that a block has static shared memory for


class PassStart:
    """`Embed`, `RmsNorm` of its result, and `Angles`: one launch in place of three, with the same bits.

    norm: of the embeddings, with a float16 result only.
    """

    def __init__(self, embed: Embed, norm: RmsNorm, angles: Angles) -> None:
        width, block = embed.width, threads(embed.width)
        macros = embed.macros | {"ROW_DIM": width, "THREADS": block}
        run = kernel(Path(__file__).with_name("pass_start.cu"), "pass_start", dependent=True, **macros)
        _, weight, half, _, eps = norm.arguments
        self._run = run.bind((1, 2), block, (*embed.arguments, weight, half, eps, *angles.arguments))

    @classmethod
    def of(cls, embed: Embed, norm: RmsNorm, angles: Angles) -> Self | None:
        """Return the three ops as one, if the norm is that of the embeddings and a row fits a block."""
        x, _, half, full, _ = norm.arguments
        fits = embed.width % 4 == 0 and embed.width <= _LARGEST
        return cls(embed, norm, angles) if fits and x is embed.arguments[2] and half is not None and full is None else None

    def __call__(self, n_rows: int, stream: Stream = None) -> None:
        """Run for the first `n_rows` rows."""
        self._run(stream, grid=(n_rows, 2))
