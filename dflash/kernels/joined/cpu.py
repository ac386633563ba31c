"""Kernels of a layer in one call: for one token, the calls from Python take longer than the smaller kernels.

The kernels are those of the separate ops, in the same order, so the results have the same bits. Arguments are not checked.
"""

from dflash.kernels.conv.cpu import causal_conv
from dflash.kernels.cpu.jit import inline
from dflash.kernels.delta.cpu import gated_delta
from dflash.kernels.linear.cpu import multiply
from dflash.kernels.norm.cpu import gated_rms_norm, rms_norm


@inline
def feed_forward(x, gain, eps, normed, gate_up, down):
    """Norm the rows `x` to `normed`, then run the plans of a gated product and of the product that follows it."""
    rms_norm(x, gain, eps, normed)
    multiply(gate_up)
    multiply(down)


@inline
def recurrent(
    gain, row_starts, parent, slot, prefill, accepted, n_accepted, buffer,
    x, eps, normed, project, mixed, taps, tail, inputs, convolved,
    lanes, size, alpha, beta, rate, shift, state, k, u, decay, run, read, gate, heads_gain, heads, output,
):  # fmt: skip
    """Norm, project, convolve, apply the gated delta rule, norm its heads, and run the plan of the output product."""
    rms_norm(x, gain, eps, normed)
    multiply(project)
    causal_conv(mixed, taps, row_starts, parent, slot, prefill, accepted, n_accepted, buffer, tail, inputs, convolved)
    gated_delta(
        lanes, size, convolved, alpha, beta, rate, shift,
        row_starts, parent, slot, prefill, accepted, n_accepted, buffer, state, k, u, decay, run, read,
    )  # fmt: skip
    gated_rms_norm(read, gate, heads_gain, eps, heads)
    multiply(output)
