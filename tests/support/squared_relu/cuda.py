"""Squared ReLU on a GPU, and its place in programs."""

from pathlib import Path

from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.launch import RowLaunch
from dflash.model.run.cuda import launch
from squared_relu import SquaredReluOp


class SquaredRelu(RowLaunch):
    """`squared_relu` on device arrays, float32 (T, D)."""

    def __init__(self, x, out):
        run = kernel(Path(__file__).with_name("squared_relu.cu"), "squared_relu", dependent=True, ROW_DIM=x.shape[1])
        super().__init__(run.bind(1, 256, (x, out)), -(-x.shape[1] // 256))


@launch.register
def _(op: SquaredReluOp, on, _):
    return (SquaredRelu(on[op.x], on[op.out]),)
