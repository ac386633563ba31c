"""The definition: three ops in a row."""

import numpy as np

from dflash.kernels.conv.reference import causal_conv
from dflash.kernels.delta.reference import cases, gated_delta
from dflash.kernels.norm.reference import gated_rms_norm

__all__ = ["cases", "mixer"]


def mixer(x, z, alpha, beta, weights, batch, memory, *, y, o, out):
    """Conv, delta rule, gated norm."""
    causal_conv(x, weights.taps, batch, memory.conv, out=y)
    gated_delta(y, alpha, beta, weights.ssm_a, weights.dt_bias, batch, memory.delta, out=o)
    gated_rms_norm(o.astype(np.float64), z, weights.norm, weights.eps, out=out)
