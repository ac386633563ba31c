"""Token embeddings on a GPU."""

from pathlib import Path
from typing import Any

from dflash.errors import KernelError
from dflash.kernels.formats.cuda import PackedWeight
from dflash.kernels.gpu.jit import kernel

_SOURCE = Path(__file__).with_name("embed.cu")
_MOST_THREADS = 320


class Embed:
    """An `embed` on fixed arrays, to be run for any number of tokens.

    Parameters
    ----------
    tokens : int32 (T,)
        Rows of the table, on the device as all arrays; others than 0 to V - 1 give zeros.
    table : PackedWeight (V, D)
        Of any native type; the one that the head multiplies with, if they are the same.
    out : float32 (T, D)
        Where the rows go.
    scale : float
        Times every value.

    Raises
    ------
    KernelError
        If an array is strided or of another type or shape.

    Notes
    -----
    With a scale of 1 exactly the values of the table. Reads about twice their bytes, since a row is spread over tiles.
    """

    def __init__(self, tokens: Any, table: PackedWeight, out: Any, *, scale: float = 1.0) -> None:
        n_known, width = table.shape
        if out.shape != (len(tokens), width):
            raise KernelError(f"{table.name}: out must be {(len(tokens), width)}, got {out.shape}")
        self._rows = len(tokens)
        block = min(-(-width // 32) * 4, _MOST_THREADS)
        run = kernel(_SOURCE, "embed", dependent=True, QUANT=table.type, MODEL_DIM=width)
        self._run = run.bind(1, block, (tokens, table.data, out, n_known, scale))

    def __call__(self, n_rows: int, stream: Any = None) -> None:
        """Look the first `n_rows` tokens up."""
        assert 0 < n_rows <= self._rows
        self._run(stream, grid=n_rows)
