"""The softplus gate of attention on a GPU."""

from pathlib import Path

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray, check
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.launch import RowLaunch
from dflash.kernels.rope.cuda import HALVES

_SOURCE = Path(__file__).with_name("head_gate.cu")


class HeadGate(RowLaunch):
    """Multiplies the output of attention by the softplus of a gate, in place, on fixed arrays.

    gate: float32 (T, G); gates before the softplus: one for each head or for each element.
    out: float16 (T, H * D); output of attention, a multiple of G elements a row; changed in place. May be given as uint16.

    ``out *= log(1 + exp(gate))``. Moves ``4 * H * D`` bytes a row.
    """

    def __init__(self, gate: GpuArray, out: GpuArray) -> None:
        n, width = out.shape
        if gate.ndim != 2 or width % gate.shape[1]:
            raise KernelError(f"head gate: gate must be (T, G) with G a divisor of {width}, got {gate.shape}")
        check("head gate: gate", gate, (n, gate.shape[1]))
        check("head gate: out", out, (n, width), HALVES)
        made = kernel(_SOURCE, "head_gate", dependent=True, ROW_DIM=width, GATES=gate.shape[1])
        super().__init__(made.bind(1, 256, (gate, out)))
