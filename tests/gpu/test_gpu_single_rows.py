"""One row of each of many sequences on a GPU: the bits of step.cu, and of steps that write the state each time."""

import numpy as np
import pytest
from compare import assert_same_bits
from mixer import Memories, Mixer

from dflash.kernels.cases import Rows

cuda = pytest.importorskip("dflash.kernels.delta.cuda")
cuda_one_row = pytest.importorskip("dflash.kernels.delta.cuda_one_row")
SHAPES = [(1, 2, 64, 64), (2, 6, 32, 32), (2, 4, 128, 128)]
SLOTS = 11
EVERYTHING = "state", "k", "u", "decay"


@pytest.fixture(params=SHAPES, ids=str)
def mixer(request):
    return Mixer(*request.param)


def run(mixer, tokens, sequences, memories, *, single, monkeypatch, **options):
    """Run rows of one sequence each, with either kernel."""
    least = 1 if single else 1 << 30
    monkeypatch.setattr(cuda, "LEAST_SEQUENCES", least)
    monkeypatch.setattr(cuda_one_row, "LEAST_SEQUENCES", least)
    return mixer.gpu(tokens, sequences, memories, longest=1, **options)


def assert_same_memories(got: Memories, want: Memories):
    for name in EVERYTHING:
        assert_same_bits(name, getattr(got.delta, name), getattr(want.delta, name))
    assert_same_bits("tail", got.conv.tail, want.conv.tail)
    assert_same_bits("inputs", got.conv.inputs, want.conv.inputs)


def some(n):
    """Sequences with few, many and no accepted rows, in either buffer."""
    accepted = [(), (0,), (0, 1, 2), tuple(range(8)), tuple(range(3, 24)), (5, 9), (0, 63), tuple(range(64)), (), (7,), (2,)]
    return [Rows(1, slot=(3 * s + 1) % SLOTS, accepted=accepted[s], buffer=s % 2) for s in range(n)]


@pytest.mark.parametrize("n", [1, 2, 11])
def test_the_bits_of_a_step(mixer, n, monkeypatch):
    tokens, memories = mixer.tokens(n), mixer.memories(SLOTS)
    wanted = memories.copy()
    want = run(mixer, tokens, some(n), wanted, single=False, monkeypatch=monkeypatch)
    out = run(mixer, tokens, some(n), memories, single=True, monkeypatch=monkeypatch, bucket=n + 3)
    assert_same_bits("out", out, want)
    assert_same_memories(memories, wanted)


@pytest.mark.parametrize("single", [False, True])
def test_kept_rows_change_no_bit(mixer, single, monkeypatch):
    """Steps that keep the accepted rows and apply them again give the bits of steps that write the states."""
    n, steps = 3, 12
    slots, memories = [4, 0, 9], mixer.memories(SLOTS)
    wanted, kept = memories.copy(), [[] for _ in slots]
    buffers, firsts = [0, 1, 0], [0, 0, 0]
    for i in range(steps):
        tokens = mixer.tokens(n, seed=i)
        every = [Rows(1, slot=slot, accepted=(0,) if i else (), buffer=i % 2) for slot in slots]
        want = run(mixer, tokens, every, wanted, single=False, monkeypatch=monkeypatch)
        rows = []
        for s, slot in enumerate(slots):
            first = kept[s][-1] + 1 if kept[s] and (i + s) % 5 else 0
            rows.append(Rows(1, slot=slot, accepted=tuple(kept[s]), buffer=buffers[s] + 2 * first))
            if first == 0:
                kept[s], buffers[s] = [], 1 - buffers[s]
            firsts[s] = first
            kept[s].append(first)
        state = memories.delta.state.copy()
        out = run(mixer, tokens, rows, memories, single=single, monkeypatch=monkeypatch)
        assert_same_bits(f"step {i}", out, want)
        for s, slot in enumerate(slots):
            if firsts[s]:
                assert_same_bits("a state whose rows are kept", memories.delta.state[slot], state[slot])
    mixer.flush([Rows(1, slot=slot, accepted=(0,), buffer=steps % 2) for slot in slots], wanted)
    ends = [Rows(1, slot=slot, accepted=tuple(kept[s]), buffer=buffers[s]) for s, slot in enumerate(slots)]
    mixer.flush(ends, memories)
    assert_same_bits("state", memories.delta.state, wanted.delta.state)
    assert_same_bits("tail", memories.conv.tail, wanted.conv.tail)


def test_sizes_without_the_kernel():
    assert not cuda_one_row.ThroughputStep.fits(Mixer(1, 4, 48, 16).memories().delta, 64)
    assert not cuda_one_row.ThroughputStep.fits(Mixer(1, 2, 64, 64).memories().delta, cuda_one_row.LEAST_SEQUENCES - 1)


def test_no_sequences(mixer, monkeypatch):
    """Rows beyond the batch are not read or written."""
    tokens, memories = mixer.tokens(1), mixer.memories(SLOTS)
    before = memories.copy()
    run(mixer, tokens, [Rows(1, slot=2)], memories, single=True, monkeypatch=monkeypatch, bucket=9, n_sequences=9)
    assert_same_bits("state", memories.delta.state, before.delta.state)
    assert not np.array_equal(memories.delta.u, before.delta.u)
