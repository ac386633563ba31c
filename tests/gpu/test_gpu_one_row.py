"""One row of each of few sequences on a GPU: the bits of step.cu and of the norm's own launch."""

import numpy as np
import pytest
from compare import assert_same_bits
from mixer import Mixer

from dflash.kernels.cases import Rows

pytest.importorskip("dflash.kernels.delta.cuda")
cuda_one_row = pytest.importorskip("dflash.kernels.delta.cuda_one_row")
SHAPES = [(2, 6, 32, 32), (1, 4, 48, 16), (1, 2, 64, 64), (2, 4, 128, 128), (16, 48, 128, 128), (3, 3, 80, 96)]
ACCEPTED = {
    "none": (),
    "one": (0,),
    "two of many": (3, 41),
    "as many as the conv state": (0, 1, 2),
    "sixteen": tuple(range(16)),
    "all": tuple(range(64)),
}


def assert_same_memories(got, want):
    for memory, wanted in zip(got, want, strict=True):
        for name in memory.__slots__:
            assert_same_bits(name, getattr(memory, name), getattr(wanted, name))


@pytest.mark.parametrize("fused", [None, False], ids=["norm in the launch", "norm apart"])
@pytest.mark.parametrize("accepted", ACCEPTED.values(), ids=ACCEPTED)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_bits_of_a_step(shape, accepted, fused):
    mixer = Mixer(*shape)
    tokens, memories = mixer.tokens(1), mixer.memories()
    wanted, rows = memories.copy(), [Rows(1, slot=4, accepted=accepted, buffer=len(accepted) % 2)]
    want = mixer.gpu(tokens, rows, wanted, value_rows=2, fused=fused)
    assert_same_bits("out", mixer.gpu(tokens, rows, memories, fused=fused), want)
    assert_same_memories(memories, wanted)


@pytest.mark.parametrize("fused", [None, False], ids=["norm in the launch", "norm apart"])
@pytest.mark.parametrize("n", [2, 3, 7])
def test_several_sequences(n, fused):
    """A launch may cover more sequences than there are."""
    mixer = Mixer(*SHAPES[0])
    tokens, memories = mixer.tokens(n), mixer.memories(slots=9)
    rows = [Rows(1, slot=(5 * s + 2) % 9, accepted=tuple(ACCEPTED.values())[s % 6], buffer=s % 2) for s in range(n)]
    wanted = memories.copy()
    want = mixer.gpu(tokens, rows, wanted, value_rows=2, fused=fused)
    assert_same_bits("out", mixer.gpu(tokens, rows, memories, fused=fused, longest=1, bucket=min(n + 1, 7)), want)
    assert_same_memories(memories, wanted)


@pytest.mark.parametrize(
    ("n", "options", "used"),
    [(1, {}, 1), (7, {"longest": 1}, 1), (7, {}, 0), (8, {"longest": 1}, 0), (1, {"value_rows": 2}, 0)],
    ids=str,
)
def test_which_launches_take_the_kernel(n, options, used, monkeypatch):
    """Without this the comparisons above could be those of step.cu with itself."""
    calls, run = [], cuda_one_row.LatencyStep.__call__
    monkeypatch.setattr(cuda_one_row.LatencyStep, "__call__", lambda self, *given: (calls.append(given), run(self, *given)))
    mixer = Mixer(*SHAPES[0])
    mixer.gpu(mixer.tokens(n), [Rows(1, slot=s) for s in range(n)], mixer.memories(slots=9), **options)
    assert len(calls) == used


@pytest.mark.parametrize("shape", [SHAPES[2], SHAPES[3]], ids=str)
def test_accepted_rows_that_are_kept(shape):
    """The row goes behind them into the same buffer; the states stay as they are."""
    mixer = Mixer(*shape)
    tokens, memories = mixer.tokens(1), mixer.memories()
    wanted, rows = memories.copy(), [Rows(1, slot=2, accepted=(0, 1, 2), buffer=1 + 2 * 3)]
    before = memories.delta.state.copy()
    want = mixer.gpu(tokens, rows, wanted, value_rows=2)
    assert_same_bits("out", mixer.gpu(tokens, rows, memories), want)
    assert_same_memories(memories, wanted)
    assert_same_bits("state", memories.delta.state, before)


def test_steps_one_after_another():
    """The conv states of the key heads, which several blocks read, are moved once in each step."""
    mixer = Mixer(*SHAPES[0])
    memories, wanted = (mixer.memories() for _ in range(2))
    for i in range(9):
        tokens, rows = mixer.tokens(1, seed=i), [Rows(1, accepted=(0,) if i else (), buffer=i % 2)]
        want = mixer.gpu(tokens, rows, wanted, value_rows=2)
        assert_same_bits(f"step {i}", mixer.gpu(tokens, rows, memories), want)
    assert_same_memories(memories, wanted)


def test_a_batch_without_rows_changes_nothing(monkeypatch):
    from dflash.kernels.gpu.batch import DeviceBatch

    mixer = Mixer(*SHAPES[0])
    tokens, memories = mixer.tokens(1), mixer.memories()
    before, upload = memories.copy(), DeviceBatch.upload
    monkeypatch.setattr(DeviceBatch, "upload", lambda self, *given: (upload(self, *given), self.clear()))
    out = mixer.gpu(tokens, [Rows(1, slot=1, accepted=(0,))], memories)
    assert np.isnan(out).all()
    assert_same_memories(memories, before)
