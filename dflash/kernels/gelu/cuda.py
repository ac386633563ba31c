"""`gelu_gate` on a GPU."""

from pathlib import Path

import numpy as np

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray, check
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.launch import RowLaunch
from dflash.kernels.rope.cuda import HALVES

_SOURCE = Path(__file__).with_name("gelu_gate.cu")


class GeluGate(RowLaunch):
    """A `gelu_gate` on fixed arrays for any number of rows, whose gate was computed from normed rows.

    x: float32 (T, D); rows; the gate was computed from ``x / rms(x)``, ``rms(x) = sqrt(mean(x ** 2) + eps)``.
    gate: float32 (T, P); gate before GELU, without the factor ``rms(x)``.
    values: float32 (T, V); of which elements `first` to ``first + P - 1`` are multiplied with the gate.
    out: float16 (T, P); receives the product times `INNER_SCALE`, clamped to 65504; may be given as uint16.

    ``out = gelu(rms(x) gate) * values[:, first : first + P] * INNER_SCALE``. Reads ``4 * D + 8 * P`` bytes a row and
    writes ``2 * P``.
    """

    def __init__(self, x: GpuArray, eps: float, gate: GpuArray, values: GpuArray, first: int, out: GpuArray) -> None:
        n, gates = gate.shape
        check("gelu_gate: x", x, (n, x.shape[1]))
        check("gelu_gate: gate", gate, (n, gates))
        check("gelu_gate: out", out, (n, gates), HALVES)
        check("gelu_gate: values", values, (n, values.shape[1]))
        if not 0 <= first <= values.shape[1] - gates:
            raise KernelError(f"gelu_gate: first is {first}, must be from 0 to {values.shape[1] - gates}")
        run = kernel(_SOURCE, "gelu_gate", dependent=True, X_DIM=x.shape[1], GATES=gates)
        super().__init__(run.bind(1, 256, (x, np.float32(eps), gate, values, first, values.shape[1], out)))
