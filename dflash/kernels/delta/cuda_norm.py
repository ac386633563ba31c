"""The gated norm of heads on a GPU."""

from pathlib import Path
from typing import Any

from dflash.kernels.delta.cuda_memory import Inputs, Weights
from dflash.kernels.jit import kernel

_FOLDER = Path(__file__).parent
_HEADS_OF_BLOCK = 8
OWN = 16
"""Values of a head that are added up apart, and that a block of `step.cu` has: there are about as many as processors."""


class GatedNorm:
    """``half(x / rms(x) * weight * silu(gate))`` of each head of a row; takes as many rows as the batch counts.

    Parameters
    ----------
    read : float32 (T, W)
        Rows whose last ``H * V`` numbers are x.
    inputs : Inputs
    weights : Weights
    batch : DeviceBatch
    n_heads : int
        H.
    split : int, optional
        Parts of the sum of squares of a head; its last bits depend on it.
    """

    def __init__(
        self, read: Any, inputs: Inputs, weights: Weights, batch: Any, n_heads: int, split: int | None = None
    ) -> None:
        n_values, stride = len(weights.ssm_norm), read.shape[1]
        names = {"HEADS": n_heads, "VALUES": n_values, "SPLIT": split or n_values // OWN}
        places = {"STRIDE": stride, "OFFSET": stride - n_heads * n_values}
        run = kernel(_FOLDER / "gated_norm.cu", "gated_norm", dependent=True, **names, **places)
        arguments = read, inputs.gate, weights.ssm_norm, weights.eps, batch.counts, inputs.out
        self._heads, self._run = n_heads, run.bind(1, 32 * _HEADS_OF_BLOCK, arguments)

    def __call__(self, n_rows: int, stream: Any = None) -> None:
        """Norm the first `n_rows` rows."""
        self._run(stream, grid=-(-n_rows * self._heads // _HEADS_OF_BLOCK))
