"""Layout of spans as rows, where results of a forward do not show it."""

import numpy as np
import pytest
from compare import assert_same_bits
from golden import PRIMARY, chain, load, prefill, step

from dflash.errors import KernelError
from dflash.kernels.ragged import PAGE
from dflash.model.batch import Span, next_rows, ragged, starts
from dflash.model.cuda.split_passes import grouped


def one(state, token=1):
    return Span(state, np.array([token], np.int32), chain(1))


@pytest.mark.parametrize("lengths", [(0,), (5,), (PAGE - 2,), (PAGE - 1,), (PAGE,), (3, PAGE - 1, 70)])
def test_a_row_ahead_is_the_next_row(lengths):
    """Rows laid out before a token is committed equal those laid out after."""
    model = load(PRIMARY[0])
    states = [model.state() for _ in lengths]
    for state, n in zip(states, lengths, strict=True):
        if n:
            prefill(model, state, np.ones(n, np.int32), logits=False)
        state.reserve(2)
    spans = [one(state) for state in states]
    model.forward(spans)
    ahead = next_rows(spans)
    for state in states:
        state.commit([0])
    _, _, want = ragged([one(state) for state in states])
    for name, got, wanted in zip(want._fields, ahead, want, strict=True):
        assert_same_bits(name, np.ascontiguousarray(got), wanted)
    for state in states:
        state.close()


def test_first_rows_of_spans():
    model = load(PRIMARY[0])
    state = model.state()
    spans = [Span(state, np.zeros(n, np.int32), chain(n), logits=n != 3) for n in (2, 3, 4)]
    assert starts(spans) == ([0, 2, 5, 9], [0, 2, 2, 6])
    state.close()


def test_passes_of_a_forward():
    model = load(PRIMARY[0])
    state = model.state()

    def groups(*sizes, chunk=100, prompts=3, rows=64):
        spans = [Span(state, np.zeros(abs(n), np.int32), chain(abs(n)), prefill=n < 0) for n in sizes]
        return grouped(spans, chunk, prompts, rows)

    assert groups(1) == [[0]]
    assert groups(-70, 30, 34, 1, -30, -1) == [[1, 2], [3], [0, 4], [5]]
    assert groups(1, 1, 1, 1) == [[0, 1, 2, 3]]
    assert groups(-1, -1, -1, -1, 1) == [[4], [0, 1, 2], [3]]
    assert list(map(len, groups(*[1] * 130, -5, rows=128))) == [128, 2, 1], "single rows of many sequences share a pass"
    assert list(map(len, groups(*[1] * 130, 2, rows=128))) == [64, 64, 3], "a pass with a draft has at most 64 rows"
    with pytest.raises(KernelError, match="at most 64"):
        groups(65)
    with pytest.raises(KernelError, match="at most 100"):
        groups(-101)
    state.close()


def test_pending_rows_are_reported():
    model = load(PRIMARY[0])
    state = model.state()
    assert state.pending is None
    step(model, state, [1, 2, 3], [-1, 0, 0])
    assert state.pending == (-1, 0, 0)
    state.commit([0, 2])
    assert state.pending is None
    state.close()
