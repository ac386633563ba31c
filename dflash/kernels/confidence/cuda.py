"""`reach` of the blocks of some texts, on a GPU."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.gpu import device
from dflash.kernels.gpu.jit import kernel

_SOURCE = Path(__file__).with_name("confidence.cu")


class Reach:
    """How far the texts of a batch of blocks are guessed.

    Parameters
    ----------
    stream : float32 (R, D)
        Rows of blocks before the last norm, on the device.
    codes : float32 (each, S, K)
        Of the token before each row of each block, on the device.
    gain : float32 (D,)
        Of the last norm.
    weight : float32 (D + K,)
    bias, eps : float
        Of the head, and of the norm.
    lead : int
        Rows of a block that guess nothing.
    least : float
        What the product of confidences must be at least.

    Attributes
    ----------
    reach : int32 (S,)
        On the device: positions that are guessed.

    Notes
    -----
    A text has the same bits in any company. One launch.
    """

    def __init__(
        self,
        stream: Any,
        codes: Any,
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
        self._run = made.bind(1, 32 * (each - lead), (stream, codes, gained, bias, eps, least, texts, self.reach))

    def __call__(self, n_texts: int, stream: Any = None) -> None:
        """Run for the first so many texts."""
        self._run(stream, grid=n_texts)
