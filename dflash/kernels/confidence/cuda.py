"""`confidence.reach` of the blocks of several sequences, on a GPU."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.arrays import GpuArray
from dflash.kernels.gpu import device
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.launch import RowLaunch

_SOURCE = Path(__file__).with_name("confidence.cu")


class Reach(RowLaunch):
    """Computes the draft length of each block of a batch from its confidences.

    stream: float32 (R, D); hidden states of the blocks before the last norm, on the device.
    codes: float32 (each, S, K); code of the token before each row of each block, on the device.
    gain: float32 (D,); gain of the last norm.
    lead: leading rows of a block without draft tokens.
    least: smallest allowed product of confidences.
    reach: int32 (S,); number of draft positions of each sequence, on the device.

    One launch, for the first sequences. The bits of a sequence do not depend on other sequences.
    """

    def __init__(
        self,
        stream: Any,
        codes: GpuArray,
        gain: NDArray[np.float32],
        weight: NDArray[np.float32],
        *,
        bias: float,
        eps: float,
        lead: int,
        least: float,
    ) -> None:
        (each, texts, rank), width = codes.shape, len(gain)
        self.reach = device.zeros(texts, dtype=np.int32)
        constants = {"MODEL_DIM": width, "RANK": rank, "BLOCK_ROWS": each, "FIRST_DRAFT_ROW": lead}
        gained = device.array(np.concatenate([weight[:width] * gain, weight[width:]]))
        made = kernel(_SOURCE, "confidence", dependent=True, **constants)
        args = stream, codes, gained, bias, eps, least, texts, self.reach
        super().__init__(made.bind(1, 32 * (each - lead), args))
