"""An op that the package does not have: definition, CPU version, and its place in programs."""

import numpy as np

from dflash.model.network.ops import Buffer, Op
from dflash.model.run.cpu import bind


def squared_relu(x, *, out):
    """``out = max(x, 0) ** 2``, float32 (T, D)."""
    np.square(np.maximum(x, 0, out=out), out=out)


class SquaredReluOp(Op):
    """``out = max(x, 0) ** 2``."""

    x: Buffer
    out: Buffer


@bind.register
def _(op: SquaredReluOp, host):
    x, out = host[op.x], host[op.out]
    return lambda _, n: squared_relu(x[:n], out=out[:n])
