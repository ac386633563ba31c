"""Kernels of the delta rule with memory for few pending rows: every bit is that with memory for 64."""

from dataclasses import replace

import numpy as np
import pytest
from compare import assert_same_bits
from mixer import Memories, Mixer

from dflash.errors import KernelError
from dflash.kernels.cases import Rows

cuda = pytest.importorskip("dflash.kernels.delta.cuda")
cuda_one_row = pytest.importorskip("dflash.kernels.delta.cuda_one_row")
SHAPES = [(2, 4, 32, 32), (1, 2, 64, 64)]
PASSES = {
    "a chain": (16, [Rows(16, slot=2, accepted=tuple(range(16)))]),
    "a tree": (16, [Rows(16, "tree", slot=2, accepted=(0, 3, 15), buffer=1)]),
    "several": (16, [Rows(13, "tree", slot=3, accepted=(0, 3)), Rows(2, accepted=(1,), buffer=1), Rows(1, slot=6)]),
    "few rows": (3, [Rows(3, slot=5, accepted=(0, 2)), Rows(2, "tree", slot=4, accepted=(2,), buffer=1)]),
    "a row": (16, [Rows(1, slot=4, accepted=(0, 3, 15), buffer=1)]),
    "a row and no other": (1, [Rows(1, slot=4, accepted=(0,), buffer=1)]),
    "a row behind accepted ones": (16, [Rows(1, slot=4, accepted=(0, 1, 14), buffer=1 + 2 * 15)]),
    "rows of many sequences": (16, [Rows(1, slot=s, accepted=(0, 9, 15)[: s % 4], buffer=s % 2) for s in range(7)]),
    "only rows of many sequences": (1, [Rows(1, slot=s, accepted=(0,) * (s % 2), buffer=s % 2) for s in range(7)]),
    "prompts": (16, [Rows(70, "prefill", slot=1, accepted=(3, 15), buffer=1), Rows(2, "prefill", slot=6, accepted=(1,))]),
    "a prompt after a row": (1, [Rows(130, "prefill", slot=3, accepted=(0,), buffer=1)]),
}


def narrow(memories, pending):
    """The same memories with the first `pending` stored rows of each slot."""
    conv, delta = memories.copy()
    rows = {name: np.ascontiguousarray(getattr(delta, name)[:, :, :pending]) for name in ("k", "u", "decay")}
    return Memories(replace(conv, inputs=np.ascontiguousarray(conv.inputs[:, :, :pending])), replace(delta, **rows))


def assert_same(got, wide, pending):
    """The narrow memories are the wide ones in every slot, so that no row went into another slot's."""
    want = narrow(wide, pending)
    for memory, wanted in zip(got, want, strict=True):
        for name in memory.__slots__:
            assert_same_bits(name, getattr(memory, name), getattr(wanted, name))


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_pass(shape, name):
    pending, sequences = PASSES[name]
    mixer, wide = Mixer(*shape), Mixer(*shape).memories()
    memories, tokens = narrow(wide, pending), mixer.tokens(sum(rows.n for rows in sequences))
    want = mixer.gpu(tokens, sequences, wide)
    assert_same_bits("out", mixer.gpu(tokens, sequences, memories), want)
    assert_same(memories, wide, pending)


@pytest.mark.parametrize("name", ["a row behind accepted ones", "rows of many sequences", "only rows of many sequences"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernel_of_many_sequences(shape, name, monkeypatch):
    for module in (cuda, cuda_one_row):
        monkeypatch.setattr(module, "LEAST_SEQUENCES", 1)
    pending, sequences = PASSES[name]
    mixer, wide = Mixer(*shape), Mixer(*shape).memories()
    memories, tokens = narrow(wide, pending), mixer.tokens(len(sequences))
    want = mixer.gpu(tokens, sequences, wide, longest=1)
    assert_same_bits("out", mixer.gpu(tokens, sequences, memories, longest=1), want)
    assert_same(memories, wide, pending)


@pytest.mark.parametrize(("pending", "accepted"), [(16, (0, 3, 15)), (1, (0,))])
def test_flush(pending, accepted):
    sequences = [Rows(1, slot=6, accepted=accepted, buffer=1), Rows(1, slot=2), Rows(1, slot=3, accepted=accepted[:1])]
    mixer, wide = Mixer(*SHAPES[0]), Mixer(*SHAPES[0]).memories()
    memories = narrow(wide, pending)
    mixer.flush(sequences, wide), mixer.flush(sequences, memories)
    assert_same(memories, wide, pending)


def test_both_memories_have_as_many():
    mixer = Mixer(*SHAPES[0])
    memories = mixer.memories()
    mixed = Memories(memories.conv, narrow(memories, 16).delta)
    with pytest.raises(KernelError, match="delta: 16 pending rows, but the convolution has 64"):
        mixer.gpu(mixer.tokens(1), [Rows(1)], mixed)
