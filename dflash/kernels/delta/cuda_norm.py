"""The gated norm of heads on a GPU."""

from pathlib import Path
from typing import Any

from dflash.kernels.arrays import GpuArray, Stream
from dflash.kernels.delta.cuda_arguments import Inputs, MixerWeights
from dflash.kernels.gpu.jit import kernel

_FOLDER = Path(__file__).parent
_HEADS_OF_BLOCK = 8  # a warp handles a head


class GatedNorm:
    """Computes ``float16(x / rms(x) * weight * silu(gate))`` for each head of the rows that the batch counts."""

    def __init__(self, read: GpuArray, inputs: Inputs, weights: MixerWeights, batch: Any, n_heads: int) -> None:
        shape = {"VALUE_HEADS": n_heads, "VALUE_DIM": len(weights.ssm_norm)}
        run = kernel(_FOLDER / "gated_norm.cu", "gated_norm", dependent=True, **shape)
        arguments = read, inputs.gate, weights.ssm_norm, weights.eps, batch.counts, inputs.out
        self._heads, self._run = n_heads, run.bind(1, 32 * _HEADS_OF_BLOCK, arguments)

    def __call__(self, n_rows: int, stream: Stream = None) -> None:
        """Norm the first `n_rows` rows."""
        self._run(stream, grid=-(-n_rows * self._heads // _HEADS_OF_BLOCK))
