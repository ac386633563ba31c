"""Accepted rows that stay in the pending buffer: no row is lost, applied twice or overwritten before it is applied."""

import numpy as np
import pytest
from compare import assert_same_bits
from golden import PRIMARY, chain, load

from dflash.kernels.ragged import PENDING
from dflash.model.batch import Span, next_rows, ragged
from dflash.model.state.sequence_state import LEAST_SEQUENCES, MOST_KEPT, State, first_row

N = LEAST_SEQUENCES


@pytest.fixture(params=[PENDING, 16, 5])
def states(request):
    model = load(PRIMARY[0], pending=request.param)
    made = [State(model.pools, model._flush, keeps_rows=True) for _ in range(N)]
    for state in made:
        state.reserve(100)
    yield made
    for state in made:
        state.close()


def one(state, *parents):
    return Span(state, np.ones(len(parents) or 1, np.int32), np.array(parents or (-1,), np.int32))


class Device:
    """Pending buffers and recurrent states that list the names of the rows they include."""

    def __init__(self, n, pending):
        self.buffers, self.states, self.written = [np.full((2, pending), -1) for _ in range(n)], [[] for _ in range(n)], 0

    def run(self, rows, names):
        """Run a pass as `Ragged.buffer` says; return the rows that each state would include after its accepted rows."""
        read = []
        for s, name in enumerate(names):
            buffer, first = rows.buffer[s] % 2, rows.buffer[s] // 2
            applied = self.states[s] + self.buffers[s][buffer, rows.accepted[s, : rows.n_accepted[s]]].tolist()
            read.append(applied)
            if first == 0:
                self.states[s], self.written = applied, self.written + (rows.n_accepted[s] > 0)
            to = self.buffers[s][buffer if first else 1 - buffer]
            assert first + len(name) <= len(to)
            to[first : first + len(name)] = name
        return read


def test_every_row_is_applied_once(states):
    """Steps of one row, of drafts and of rejected rows: each pass reads all committed rows, in order."""
    pending = states[0].pools.pending
    device, texts, random = Device(N, pending), [[] for _ in range(N)], np.random.default_rng(0)
    for i in range(60):
        drafts = [(-1, 0, 0, 2) if random.random() < 0.1 else (-1,) for _ in states]
        _, _, rows = ragged([one(state, *above) for state, above in zip(states, drafts, strict=True)])
        names = [[100 * i + j for j in range(len(above))] for above in drafts]
        assert device.run(rows, names) == texts
        for s, (state, above) in enumerate(zip(states, drafts, strict=True)):
            state.mark_read(above, prefill=False)
            path = [] if random.random() < 0.05 else [0, 2, 3] if len(above) > 1 else [0]
            state.commit(path)
            texts[s] += [names[s][row] for row in path]
    assert device.written < 60 * N / (4 if pending > MOST_KEPT else 2), "most passes write no state"


def test_a_row_ahead_is_the_next_row(states):
    """Rows laid out before a token is committed equal those laid out after, in each step of a cycle."""
    ragged([one(state) for state in states])
    for state in states:
        state.mark_read((-1,), prefill=False)
    seen = set()
    for _ in range(2 * MOST_KEPT):
        spans = [one(state) for state in states]
        ahead = next_rows(spans)
        for state in states:
            state.commit([0])
        _, _, want = ragged(spans)
        for name, got, wanted in zip(want._fields, ahead, want, strict=True):
            assert_same_bits(name, np.ascontiguousarray(got), wanted)
        for state in states:
            state.mark_read((-1,), prefill=False)
        seen |= set(ahead.n_accepted.tolist())
    assert seen == set(range(1, min(MOST_KEPT, states[0].pools.pending) + 1))


def test_what_writes_the_state(states):
    """A small batch, a prompt and a draft write the state, as does a CPU always."""
    spans = [one(state) for state in states]
    for state in states:
        state.accepted, state.length = [3], 1
    some = [i for i in range(N) if (1 + states[i].slot) % MOST_KEPT]
    assert set(ragged(spans)[2].buffer[some].tolist()) == {2 * 4}
    assert not ragged(spans[:-1])[2].buffer.any()
    spans[some[0]] = Span(states[some[0]], np.ones(2, np.int32), chain(2))
    spans[some[1]] = Span(states[some[1]], np.ones(1, np.int32), chain(1), prefill=True)
    assert not ragged(spans)[2].buffer[some[:2]].any()
    for pending in (PENDING, 16, 1):
        assert first_row([pending - 1], 1, 0, N, pending) == 0
    assert first_row(list(range(MOST_KEPT)), 1, 0, N, PENDING) == 0
    for state in states:
        state.close()
    plain = [load(PRIMARY[0]).state() for _ in range(N)]
    for state in plain:
        state.reserve(2)
        state.accepted, state.length = [3], 1
    assert not ragged([one(state) for state in plain])[2].buffer.any()
    for state in plain:
        state.close()
