"""A linear-attention mixer between its projections: conv, delta rule and gated norm, in one launch where that pays."""

from dataclasses import dataclass

import numpy as np
from numba import get_num_threads
from numpy.typing import NDArray

from dflash.kernels import conv, delta
from dflash.kernels.arrays import check, check_rows
from dflash.kernels.conv import causal_conv
from dflash.kernels.delta import gated_delta
from dflash.kernels.mixer import cpu
from dflash.kernels.norm import gated_rms_norm
from dflash.kernels.ragged import Ragged

Floats = NDArray[np.float32]

_LANES = 16
_MANY = 4


@dataclass(frozen=True, slots=True)
class Weights:
    """What a mixer multiplies with besides its projections.

    Parameters
    ----------
    taps : float32 (taps, C)
        As for `causal_conv`.
    ssm_a, dt_bias : float32 (H,)
        As for `gated_delta`.
    norm : float32 (V,)
        As for `gated_rms_norm`.
    eps : float
        As for `gated_rms_norm`.
    """

    taps: Floats
    ssm_a: Floats
    dt_bias: Floats
    norm: Floats
    eps: float


@dataclass(frozen=True, slots=True)
class Memory:
    """What a mixer remembers of each slot.

    Parameters
    ----------
    conv : conv.Memory
        The last inputs.
    delta : delta.Memory
        What was made of all before.
    """

    conv: conv.Memory
    delta: delta.Memory


def mixer(
    x: Floats,
    z: Floats,
    alpha: Floats,
    beta: Floats,
    weights: Weights,
    batch: Ragged,
    memory: Memory,
    *,
    y: Floats,
    o: Floats,
    out: Floats,
) -> None:
    """Mix each row with the text before it: `causal_conv`, `gated_delta`, `gated_rms_norm`, with their very bits.

    Parameters
    ----------
    x : float32 (N, C)
        Queries, keys and values before the conv, ``C = 2 * G * K + H * V``.
    z : float32 (N, H * V)
        The gate.
    alpha, beta : float32 (N, H)
        As for `gated_delta`.
    weights : Weights
    batch : Ragged
        Where the rows belong.
    memory : Memory
        Updated in place.
    y : float32 (N, C)
        Takes the result of the conv.
    o : float32 (N, H, V)
        Takes the result of the delta rule.
    out : float32 (N, H * V)
        Where the result goes.

    Raises
    ------
    KernelError
        If an array is strided or of another shape, or a sequence that is not `whole` has more than `PENDING` rows.

    Notes
    -----
    One launch if a task for each sequence and key head keeps all threads busy, else three with finer tasks.
    """
    n_groups = memory.delta.k.shape[3]
    tasks, threads = n_groups * len(batch.slot), get_num_threads()
    if tasks % threads and tasks < _MANY * threads:
        causal_conv(x, weights.taps, batch, memory.conv, out=y)
        gated_delta(y, alpha, beta, weights.ssm_a, weights.dt_bias, batch, memory.delta, out=o)
        gated_rms_norm(o, z, weights.norm, weights.eps, out=out)
        return
    _check(x, z, alpha, beta, weights, batch, memory, y, o, out)
    c, d = memory.conv, memory.delta
    cpu.mixer(
        (0,) * (d.state.shape[3] // _LANES), x, z, alpha, beta,
        weights.taps, weights.ssm_a, weights.dt_bias, weights.norm, weights.eps,
        batch.first, batch.parent, batch.slot, batch.whole, batch.kept, batch.n_kept, batch.side,
        c.tail, c.inputs, d.state, d.k, d.u, d.decay, y, o, out,
    )  # fmt: skip


def apply_kept(
    slot: NDArray[np.int32], kept: NDArray[np.int32], n_kept: NDArray[np.int32], side: NDArray[np.int32], memory: Memory
) -> None:
    """Apply kept rows to both memories without reading any token, as before a snapshot.

    Parameters
    ----------
    slot, n_kept, side : int32 (S,)
        As in `Ragged`.
    kept : int32 (S, PENDING)
        As in `Ragged`.
    memory : Memory
        Updated in place; afterwards nothing counts as kept.
    """
    conv.apply_kept(slot, kept, n_kept, side, memory.conv)
    delta.apply_kept(slot, kept, n_kept, side, memory.delta)


def _check(x, z, alpha, beta, weights, batch, memory, y, o, out) -> None:
    (_, n_heads, n_values, width), n_groups = memory.delta.state.shape, memory.delta.k.shape[3]
    n, n_channels = len(x), 2 * n_groups * width + n_heads * n_values
    check("x", x, (n, n_channels))
    check("z", z, (n, n_heads * n_values))
    check("alpha", alpha, (n, n_heads))
    check("beta", beta, (n, n_heads))
    check("taps", weights.taps, (memory.conv.tail.shape[1] + 1, n_channels))
    check("ssm_a", weights.ssm_a, (n_heads,))
    check("dt_bias", weights.dt_bias, (n_heads,))
    check("norm", weights.norm, (n_values,))
    check("y", y, (n, n_channels))
    check("o", o, (n, n_heads, n_values))
    check("out", out, (n, n_heads * n_values))
    check_rows(batch, n)
