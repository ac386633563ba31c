"""Definition in float64 NumPy, token by token."""

import numpy as np

from dflash.kernels.cases import BATCHES


def causal_conv(x, taps, batch, memory, *, out):
    """Compute ``silu(sum of taps[j] * input)`` over the row and the K - 1 inputs before it."""
    apply_accepted(batch.slot, batch.accepted, batch.n_accepted, batch.buffer, memory)
    n_taps = len(taps)
    for s, slot in enumerate(batch.slot):
        rows = range(batch.row_starts[s], batch.row_starts[s + 1])
        for row in rows:
            path, i = [], row - rows.start
            while i >= 0:
                path.insert(0, rows.start + i)
                i = batch.parent[rows.start + i]
            window = np.concatenate([memory.tail[slot], x[path]]).astype(np.float64)[-n_taps:]
            total = (window * taps).sum(axis=0)
            out[row] = total / (1 + np.exp(-total))
        if batch.prefill[s]:
            memory.tail[slot] = np.concatenate([memory.tail[slot], x[rows.start : rows.stop]])[len(rows) :]
        else:
            memory.inputs[1 - batch.buffer[s], slot, : len(rows)] = x[rows.start : rows.stop]


def apply_accepted(slot, accepted, n_accepted, buffer, memory):
    """Set the tail to the last K - 1 inputs, accepted rows included."""
    for s, here in enumerate(slot):
        inputs = memory.inputs[buffer[s], here, accepted[s, : n_accepted[s]]]
        memory.tail[here] = np.concatenate([memory.tail[here], inputs])[len(inputs) :]


def cases():
    """Yield names, channels, taps, sequences."""
    for name, sequences in BATCHES.items():
        yield name, 80, 4, sequences
    for n_channels, n_taps in ((1, 2), (37, 3), (256, 8), (273, 5)):
        for name in ("1 after 1", "2 after 3", "text after a path", "everything"):
            yield f"{name}, {n_channels} channels, {n_taps} taps", n_channels, n_taps, BATCHES[name]
