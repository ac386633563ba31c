"""The gated delta rule: a recurrent state that each token decays, corrects towards its value, and reads."""

import numpy as np
from numba import get_num_threads
from numpy.typing import NDArray

from dflash.kernels.arrays import check, check_rows
from dflash.kernels.delta import cpu
from dflash.kernels.delta.memory import LANES, DeltaMemory
from dflash.kernels.ragged import Ragged

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


def gated_delta(
    y: Floats,
    alpha: Floats,
    beta: Floats,
    ssm_a: Floats,
    dt_bias: Floats,
    batch: Ragged,
    memory: DeltaMemory,
    *,
    out: Floats,
) -> None:
    """Update the state of each row's parent by the row, and read it out.

    Parameters
    ----------
    y : float32 (N, 2 * G * K + H * V)
        Queries of all key heads, keys of all key heads, values of all value heads, after conv and SiLU. Value head `h`
        uses key head ``h // R % G``, R the `head_run` of the memory.
    alpha, beta : float32 (N, H)
        Projections that determine decay and write strength of each token.
    ssm_a, dt_bias : float32 (H,)
        Weights as in the file: `ssm_a` is negative already.
    batch : Ragged
        Description of the rows.
    memory : DeltaMemory
        Updated in place: accepted rows of the last pass are applied to the state. Then the rows of this pass are applied if
        the sequence is `prefill`; else they become pending in the other buffer and leave the state unchanged.
    out : float32 (N, H, V)
        Receives the read-out.

    Raises
    ------
    KernelError
        If an array is strided or of another shape, or a sequence that is not `prefill` has more rows than the memory's
        `n_pending`.

    Notes
    -----
    With q and k over ``sqrt(sum of squares + 1e-6)``, q also times ``K ** -0.5``, and
    ``decay = exp(ssm_a * softplus(alpha + dt_bias))``:
    ``S = decay * S; u = sigmoid(beta) * (v - S @ k); S += outer(u, k); out = S @ q``. The CPU reads before it writes:
    ``out = decay * (S @ q) + (k . q) * u``. A row has the same bits in a chain, a tree, a prompt and alone.
    Moves ``8 * H * V * K`` bytes a sequence and computes ``8 * H * V * K`` operations a token: memory-bound for few tokens.

    References
    ----------
    Yang, Kautz, Hatamizadeh 2024, arXiv 2412.06464.
    """
    _, n_heads, n_values, width = memory.state.shape
    n = len(y)
    check("y", y, (n, 2 * memory.k.shape[3] * width + n_heads * n_values))
    check("alpha", alpha, (n, n_heads))
    check("beta", beta, (n, n_heads))
    check("ssm_a", ssm_a, (n_heads,))
    check("dt_bias", dt_bias, (n_heads,))
    check("out", out, (n, n_heads, n_values))
    check_rows(batch, n, memory.n_pending)
    cpu.gated_delta(
        *task_shape(memory, len(batch.slot)),
        y, alpha, beta, ssm_a, dt_bias,
        batch.row_starts, batch.parent, batch.slot, batch.prefill, batch.accepted, batch.n_accepted, batch.buffer,
        memory.state, memory.k, memory.u, memory.decay, memory.head_run, out,
    )  # fmt: skip


def apply_accepted(slot: Ints, accepted: Ints, n_accepted: Ints, buffer: Ints, memory: DeltaMemory) -> None:
    """Apply accepted rows of the last pass to the state without a new token, as before a snapshot.

    Parameters
    ----------
    slot, n_accepted, buffer : int32 (S,)
        As in `Ragged`.
    accepted : int32 (S, PENDING)
        As in `Ragged`.
    memory : DeltaMemory
        Its state is updated in place; afterwards no accepted rows are outstanding.
    """
    lanes = (0,) * (memory.state.shape[3] // LANES)
    states = memory.state, memory.k, memory.u, memory.decay, memory.head_run
    cpu.apply_accepted(lanes, slot, accepted, n_accepted, buffer, *states)


def task_shape(memory: DeltaMemory, n_sequences: int) -> tuple[tuple[int, ...], int]:
    """Return the first arguments of the kernel: a tuple with one item for each vector of a key, and value rows of a task.

    A task has the value rows of a whole head, unless there are too few heads for the threads.
    """
    _, n_heads, size, width = memory.state.shape
    while size % (2 * LANES) == 0 and n_sequences * n_heads * (memory.state.shape[2] // size) < 2 * get_num_threads():
        size //= 2
    return (0,) * (width // LANES), size
