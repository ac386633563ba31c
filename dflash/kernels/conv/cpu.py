"""The causal convolution along parents with numba: a task is a sequence and a range of channels."""

import numpy as np
from numba import prange

from dflash.kernels.cpu import simd
from dflash.kernels.cpu.jit import inline, kernel

CHANNELS = 512
"""Channels of a task."""

_LINE = 4 * simd.LANES


@inline
def _copy(target, source, start, stop):
    """Copy channels start to stop of one row, by address."""
    at = 4 * start
    while at + _LINE <= 4 * stop:
        simd.store_f32(target + at, simd.load_f32(source + at))
        at += _LINE
    while at < 4 * stop:
        simd.write_f32(target + at, simd.read_f32(source + at))
        at += 4


@inline
def fold_accepted(s, start, stop, slot, accepted, n_accepted, buffer, tail, inputs):
    """Move the accepted inputs of sequence `s` into its tail, for channels start to stop."""
    slots, rows, n_channels = tail.shape
    stride, n = 4 * n_channels, n_accepted[s]
    text = tail.ctypes.data + slot[s] * rows * stride
    pending = inputs.ctypes.data + (buffer[s] * slots + slot[s]) * inputs.shape[2] * stride
    for i in range(rows if n else 0):
        source = text + (n + i) * stride if n + i < rows else pending + accepted[s, n + i - rows] * stride
        _copy(text + i * stride, source, start, stop)


@inline
def _remember(s, start, stop, x, row_starts, slot, prefill, buffer, tail, inputs):
    """Store the rows of this pass: in the tail if the sequence is `prefill`, else as pending inputs."""
    slots, rows, n_channels = tail.shape
    stride, n = 4 * n_channels, row_starts[s + 1] - row_starts[s]
    read = x.ctypes.data + row_starts[s] * stride
    if prefill[s] == 0:
        pending = inputs.ctypes.data + ((1 - buffer[s]) * slots + slot[s]) * inputs.shape[2] * stride
        for i in range(n):
            _copy(pending + i * stride, read + i * stride, start, stop)
        return
    text = tail.ctypes.data + slot[s] * rows * stride
    for i in range(rows):
        source = text + (n + i) * stride if n + i < rows else read + (n + i - rows) * stride
        _copy(text + i * stride, source, start, stop)


@inline
def _row(start, stop, above, taps, n_taps, stride, out):
    """Compute one row of `out` from the inputs at the addresses `above`, oldest first."""
    at = 4 * start
    while at + _LINE <= 4 * stop:
        total = simd.mul(simd.load_f32(taps + at), simd.load_f32(above[0] + at))
        for j in range(1, n_taps):
            total = simd.fma(simd.load_f32(taps + j * stride + at), simd.load_f32(above[j] + at), total)
        simd.store_f32(out + at, simd.silu(total))
        at += _LINE
    while at < 4 * stop:
        value = simd.read_f32(taps + at) * simd.read_f32(above[0] + at)
        for j in range(1, n_taps):
            value = simd.fma1(simd.read_f32(taps + j * stride + at), simd.read_f32(above[j] + at), value)
        simd.write_f32(out + at, simd.hmax(simd.silu(simd.splat(value))))
        at += 4


@inline
def convolve(s, start, stop, x, taps, row_starts, parent, slot, prefill, accepted, n_accepted, buffer, tail, inputs, out):
    """Process all rows of sequence `s` for channels start to stop; no other task uses these channels."""
    fold_accepted(s, start, stop, slot, accepted, n_accepted, buffer, tail, inputs)
    n_taps, n_channels = taps.shape
    stride = 4 * n_channels
    text = tail.ctypes.data + (slot[s] + 1) * (n_taps - 1) * stride
    above = np.empty(8, np.int64)
    for row in range(row_starts[s], row_starts[s + 1]):
        ancestor = row - row_starts[s]
        for j in range(n_taps - 1, -1, -1):
            if ancestor >= 0:
                above[j] = x.ctypes.data + (row_starts[s] + ancestor) * stride
                ancestor = parent[row_starts[s] + ancestor]
            else:
                above[j] = text + ancestor * stride
                ancestor -= 1
        _row(start, stop, above, taps.ctypes.data, n_taps, stride, out.ctypes.data + row * stride)
    _remember(s, start, stop, x, row_starts, slot, prefill, buffer, tail, inputs)


@inline
def causal_conv(x, taps, row_starts, parent, slot, prefill, accepted, n_accepted, buffer, tail, inputs, out):
    """Run on one thread: for few rows a parallel launch costs more than the work."""
    for s in range(slot.shape[0]):
        convolve(
            s, 0, taps.shape[1], x, taps, row_starts, parent, slot, prefill, accepted, n_accepted, buffer, tail, inputs, out
        )


@kernel
def causal_conv_parallel(x, taps, row_starts, parent, slot, prefill, accepted, n_accepted, buffer, tail, inputs, out):
    """Run on all threads; sequences vary fastest, so that threads get equal shares of long and short ones."""
    n_sequences, n_channels = slot.shape[0], taps.shape[1]
    n_ranges = (n_channels + CHANNELS - 1) // CHANNELS
    for task in prange(n_ranges * n_sequences):
        s, start = task % n_sequences, task // n_sequences * CHANNELS
        stop = min(start + CHANNELS, n_channels)
        convolve(s, start, stop, x, taps, row_starts, parent, slot, prefill, accepted, n_accepted, buffer, tail, inputs, out)


@inline
def apply_accepted(slot, accepted, n_accepted, buffer, tail, inputs):
    """Move accepted inputs into the tails, on one thread: only a few rows are copied."""
    for s in range(slot.shape[0]):
        fold_accepted(s, 0, tail.shape[2], slot, accepted, n_accepted, buffer, tail, inputs)
