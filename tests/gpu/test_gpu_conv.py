"""The convolution in front of the delta rule on a GPU: what it remembers is copied bit for bit, for any number of taps."""

import numpy as np
import pytest
from batches import tree
from compare import assert_close, assert_same_bits
from mixer import Memories, Mixer
from recurrent import assert_untouched, batch, path_to, poison

from dflash.kernels.cases import Rows
from dflash.kernels.conv import reference

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("dflash.kernels.delta.cuda")

SHAPE = 2, 6, 16, 32
PENDING = [
    [Rows(1, accepted=(0,), buffer=1)],
    [Rows(2, accepted=(0, 1, 2)), Rows(9, "tree", slot=3, accepted=(4,), buffer=1)],
    [Rows(64, "tree")],
]
TEXT = [
    [Rows(1, "prefill", accepted=(3,))],
    [Rows(2, "prefill", slot=1, buffer=1), Rows(70, "prefill", slot=5, accepted=(0, 2, 5, 9, 63))],
]


@pytest.mark.parametrize("n_taps", [2, 3, 4, 5, 8])
@pytest.mark.parametrize(
    "sequences", PENDING + TEXT, ids=lambda sequences: " and ".join(f"{r.n} {r.form}" for r in sequences)
)
def test_reference(n_taps, sequences):
    mixer, rows = Mixer(*SHAPE, n_taps), batch(sequences)
    tokens = mixer.tokens(int(rows.row_starts[-1]))
    memories = Memories(*(poison(memory, sequences) for memory in mixer.memories()))
    before, wanted = memories.copy(), memories.copy()
    out = mixer.gpu(tokens, sequences, memories)
    assert_close("out", out, mixer.definition(tokens, rows, wanted), 2e-3 if rows.prefill.all() else 3e-4)
    assert_same_bits("tail", memories.conv.tail, wanted.conv.tail)
    assert_same_bits("inputs", memories.conv.inputs, wanted.conv.inputs)
    assert_untouched(memories.conv, before.conv, sequences)


@pytest.mark.parametrize("n_taps", [2, 4, 8])
def test_tree(n_taps):
    n, mixer = 24, Mixer(*SHAPE, n_taps)
    tokens, memories = mixer.tokens(n), mixer.memories()
    parents, before = tree(np.random.default_rng(4), n), memories.copy()
    out = mixer.gpu(tokens, [Rows(n, "tree")], memories, parents=[parents])
    for row in range(0, n, 3):
        path = path_to(parents, row)
        assert_same_bits("path", out[path], mixer.gpu(tokens[path], [Rows(len(path))], before.copy()))


@pytest.mark.parametrize("n_taps", [2, 4, 8])
def test_flush(n_taps):
    mixer = Mixer(*SHAPE, n_taps)
    sequences = [Rows(1, slot=5, accepted=(3, 4)), Rows(1, slot=2), Rows(1, slot=0, accepted=(0, 1, 2, 9, 63), buffer=1)]
    memories = Memories(*(poison(memory, sequences) for memory in mixer.memories()))
    before, wanted, made = memories.copy(), memories.copy(), batch(sequences)
    mixer.flush(sequences, memories)
    reference.apply_accepted(made.slot, made.accepted, made.n_accepted, made.buffer, wanted.conv)
    assert_same_bits("tail", memories.conv.tail, wanted.conv.tail)
    assert_same_bits("inputs", memories.conv.inputs, before.conv.inputs)
