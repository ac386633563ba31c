"""Rows that a resting block draft keeps: each sequence gets its own in order, and a step of all is one copy."""

import numpy as np
import pytest

pytest.importorskip("cupy")
device = pytest.importorskip("dflash.kernels.gpu.device")
feature_buffer = pytest.importorskip("dflash.model.cuda.draft.feature_buffer")
FeatureBuffer, ROOM = feature_buffer.FeatureBuffer, feature_buffer.ROOM

TAPS, SLOTS, WIDTH, SOURCES = (3, 5), 6, 8, 6


class State:
    """Counts positions, buffered ones included."""

    length = 0


def features(values):
    """Return features whose rows hold their value and their layer."""
    return {tap: device.array(np.array([[value, tap] * (WIDTH // 2) for value in values], np.float32)) for tap in TAPS}


def values_of(buffer, states):
    """Take buffered rows of sequences; yield each with the values of its rows."""
    items, found = buffer.take(states)
    for state, rows in items:
        one, other = (found[tap].get()[rows] for tap in TAPS)
        np.testing.assert_array_equal(one[:, 0], other[:, 0])
        assert (set(one[:, 1]), set(other[:, 1])) == ({TAPS[0]}, {TAPS[1]})
        yield state, one[:, 0].tolist()


def test_a_step_of_all_sequences_is_one_copy(monkeypatch):
    copied = []

    class Counted(feature_buffer.StashRows):
        def __call__(self, first, n_rows, at, stream=None):
            copied.append((first, n_rows, at))
            super().__call__(first, n_rows, at, stream)

    monkeypatch.setattr(feature_buffer, "StashRows", Counted)
    buffer, states = FeatureBuffer(TAPS, SLOTS, WIDTH), [State() for _ in range(SLOTS)]
    buffer.add([(state, [i]) for i, state in enumerate(states)], features(range(SLOTS)))
    buffer.add([(states[0], [0, 2]), (states[1], [3])], features(range(10, 14)))
    assert copied == [(0, SLOTS, 0), (0, 1, SLOTS), (2, 2, SLOTS + 1)]
    assert [state.length for state in states] == [3, 2, 1, 1, 1, 1]
    assert dict(values_of(buffer, states[:2])) == {states[0]: [0, 10, 12], states[1]: [1, 13]}
    assert [state.length for state in states] == [0, 0, 1, 1, 1, 1]


def test_every_sequence_gets_its_rows_in_order():
    rng, buffer, states = np.random.default_rng(0), FeatureBuffer(TAPS, SLOTS, WIDTH), [State() for _ in range(SLOTS)]
    expected, number = {}, 0
    sources = [features([0] * 6 * SLOTS) for _ in range(SOURCES)]

    def read(some):
        for state, values in values_of(buffer, some):
            assert values == expected.pop(state)
            state.length += len(values)

    for _ in range(150):
        source = sources[rng.integers(SOURCES)]
        new, items = features(range(number, number + 6 * SLOTS)), []
        for tap, array in source.items():
            device.copy(array, new[tap])
        for place, i in enumerate(rng.permutation(SLOTS)[: rng.integers(1, SLOTS + 1)]):
            rows = np.sort(rng.choice(6, rng.choice([1, 1, 1, 3, 6]), replace=False)) + 6 * place
            items.append((states[i], rows.tolist()))
        read(list(dict.fromkeys(buffer.behind(items))))
        buffer.add(items, source)
        for state, rows in items:
            expected.setdefault(state, []).extend(number + row for row in rows)
            assert len(expected[state]) <= ROOM
        number += 6 * SLOTS
        if rng.random() < 0.2:
            read([states[rng.integers(SLOTS)]])
        if rng.random() < 0.05:
            buffer.take(states[:1])
            expected.pop(states[0], None)
            states[0] = State()
    read(states)
    assert not expected
