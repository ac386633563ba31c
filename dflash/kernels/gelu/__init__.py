"""GELU of a gate, times values."""

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError
from dflash.kernels.arrays import check
from dflash.kernels.gelu import cpu

Floats = NDArray[np.float32]


def gelu_gate(gate: Floats, values: Floats, *, out: Floats) -> None:
    """Multiply values by the GELU of a gate.

    Parameters
    ----------
    gate : float32 (T, P)
        Gate before GELU; P is a multiple of 16.
    values : float32 (T, P)
        Rows contiguous, any number of elements apart.
    out : float32 (T, P)
        May be `gate`.

    Raises
    ------
    KernelError
        If a shape or a type does not fit; the message names the array.

    Notes
    -----
    ``out = gate (1 + tanh(sqrt(2 / pi) (gate + 0.044715 gate^3))) / 2 * values``. Moves ``12 * T * P`` bytes.

    References
    ----------
    Hendrycks, Gimpel 2016, arXiv 1606.08415.
    """
    shape = gate.shape
    if len(shape) != 2 or shape[1] % 16:
        raise KernelError(f"gelu_gate: gate must be float32 (T, P), P a multiple of 16, got {gate.dtype} {shape}")
    check("gelu_gate: gate", gate, shape)
    check("gelu_gate: out", out, shape)
    if values.dtype != np.float32 or values.shape != shape or (len(values) and values.strides[1] != 4):
        raise KernelError(f"gelu_gate: values must be float32 {shape} with whole rows, got {values.dtype} {values.shape}")
    cpu.gelu_gate(gate, values, out)
