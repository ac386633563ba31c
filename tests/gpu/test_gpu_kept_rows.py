"""Many sequences on a GPU whose steps keep accepted rows instead of writing the states: every bit of logits and states."""

import numpy as np
import pytest
from compare import assert_same_bits
from golden import chain, load

from dflash.model.batch import Span
from dflash.model.state import sequence_state

pytest.importorskip("cupy")
NAME = "qwen35-r2-untied-F32"
N, STEPS = 9, 12


def one(state, token):
    return Span(state, np.array([token], np.int32), chain(1), logits=True)


def steps(model):
    """Logits of steps with one row each, and a draft, a rejected row, a snapshot and a prompt between; then the states."""
    states, found = [model.state() for _ in range(N)], []
    model.forward([Span(s, np.arange(3 + i, dtype=np.int32), chain(3 + i), prefill=True) for i, s in enumerate(states)])
    for i in range(STEPS):
        spans = [one(state, (7 * i + j) % 50) for j, state in enumerate(states)]
        if i == 5:  # a tree in the batch
            spans[2] = Span(states[2], np.array([4, 5, 6], np.int32), np.array([-1, 0, 0], np.int32), logits=True)
        out = model.forward(spans)
        found.append(np.asarray(out.logits))
        for j, state in enumerate(states):
            state.commit([0, 2] if (i, j) == (5, 2) else [] if (i, j) == (7, 3) else [0])
        if i == 9:  # more of a prompt
            model.forward([Span(states[7], np.arange(5, dtype=np.int32), chain(5), prefill=True)])
        if i == 8:
            snapshot = states[4].snapshot()
            states[6].restore(snapshot)
            snapshot.close()
    kept = [len(state.accepted) for state in states]
    found += [array for state in states for name, array in state.host_arrays().items() if name.startswith("recurrent")]
    for state in states:
        state.close()
    return found, kept


@pytest.mark.parametrize("pending", [64, 16, 3])
def test_every_bit(pending, monkeypatch):
    got, kept = steps(load(NAME, kv="f16", device="cuda", pending=pending))
    assert max(kept) > 1, "rows were kept"
    monkeypatch.setattr(sequence_state, "LEAST_SEQUENCES", N + 1)
    want, kept = steps(load(NAME, kv="f16", device="cuda"))
    assert max(kept) == 1
    assert len(got) == len(want)
    for i, (one, other) in enumerate(zip(got, want, strict=True)):
        assert_same_bits(f"array {i}", one, other)
