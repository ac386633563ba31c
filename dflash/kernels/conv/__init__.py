"""The short causal convolution before the delta rule, along a chain or a tree of tokens."""

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError
from dflash.kernels.arrays import check, check_rows, zeros
from dflash.kernels.conv import cpu
from dflash.kernels.conv.memory import ConvMemory
from dflash.kernels.ragged import Ragged

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

_PARALLEL_SIZE = 1 << 14
_MOST_TAPS = 8


def taps(weight: Floats) -> Floats:
    """Transpose the weight, so that channels are contiguous.

    Parameters
    ----------
    weight : float32 (C, K)
        Weight as in the file; the last column applies to the current token.

    Returns
    -------
    float32 (K, C)

    Raises
    ------
    KernelError
        If there are fewer than 2 or more than 8 columns.
    """
    if weight.ndim != 2 or not 2 <= weight.shape[1] <= _MOST_TAPS:
        raise KernelError(f"conv weight: wanted (C, K) with 2 <= K <= {_MOST_TAPS}, got {weight.shape}")
    turned = zeros(*weight.T.shape)
    turned[:] = weight.T
    return turned


def causal_conv(x: Floats, taps: Floats, batch: Ragged, memory: ConvMemory, *, out: Floats) -> None:
    """Convolve each channel along the ancestors of a row, then apply SiLU.

    Parameters
    ----------
    x : float32 (N, C)
        Inputs, one row per token of the batch.
    taps : float32 (K, C)
        Weight as `taps` returns it; the last row applies to the token itself.
    batch : Ragged
        Description of the rows. A row is preceded by its ancestors, then accepted rows of the last pass, then the tail.
    memory : ConvMemory
        Updated in place: accepted rows of the last pass move into the tail. The rows of this pass follow them if the
        sequence is `prefill`; else they become the pending inputs of the other buffer.
    out : float32 (N, C)
        Receives the result; must not be `x`.

    Raises
    ------
    KernelError
        If an array is strided or of another shape, or a sequence that is not `prefill` has more rows than the memory's
        `n_pending`.

    Notes
    -----
    ``out = silu(sum_j taps[j] * input[K - 1 - j steps up])``, the oldest input first, each step rounded once. A row has
    the same bits in a chain, a tree, a prompt and alone. Moves ``12 * N * C`` bytes.
    """
    n = len(x)
    _, rows, width = memory.tail.shape
    check("x", x, (n, width))
    check("taps", taps, (rows + 1, width))
    check("out", out, (n, width))
    check_rows(batch, n, memory.n_pending)
    run = cpu.causal_conv if x.size <= _PARALLEL_SIZE else cpu.causal_conv_parallel
    run(
        x, taps, batch.row_starts, batch.parent, batch.slot, batch.prefill, batch.accepted, batch.n_accepted, batch.buffer,
        memory.tail, memory.inputs, out,
    )  # fmt: skip


def apply_accepted(slot: Ints, accepted: Ints, n_accepted: Ints, buffer: Ints, memory: ConvMemory) -> None:
    """Move accepted rows of the last pass into the tail without a new token, as before a snapshot.

    Parameters
    ----------
    slot, n_accepted, buffer : int32 (S,)
        As in `Ragged`.
    accepted : int32 (S, PENDING)
        As in `Ragged`.
    memory : ConvMemory
        Its tail is updated in place; afterwards no accepted rows are outstanding.
    """
    cpu.apply_accepted(slot, accepted, n_accepted, buffer, memory.tail, memory.inputs)
