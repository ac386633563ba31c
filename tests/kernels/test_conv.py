"""The causal convolution: recorded results, the definition, and the same bits for any split of the sequence into passes."""

import itertools
from dataclasses import fields
from pathlib import Path

import numba
import numpy as np
import pytest
from batches import tree
from compare import assert_close, assert_same_bits
from recurrent import SLOTS, assert_guards, assert_untouched, batch, copy, guarded, path_to, poison, steps

from dflash.errors import KernelError
from dflash.kernels.arrays import zeros
from dflash.kernels.cases import BATCHES, Rows
from dflash.kernels.conv import ConvMemory, apply_accepted, causal_conv, cpu, reference, taps

DATA = Path(__file__).parent.parent / "data" / "kernels"
CASES = list(reference.cases())


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def random_memory(n_channels, n_taps):
    memory = ConvMemory.empty(SLOTS, n_taps, n_channels)
    for seed, field in enumerate(fields(memory)):
        array = getattr(memory, field.name)
        array[:] = random(*array.shape, seed=seed + 10)
    return memory


def run(x, weight, sequences, memory, parents=None):
    out = np.full_like(x, np.nan)
    causal_conv(x, weight, batch(sequences, parents=parents), memory, out=out)
    return out


def flush(sequences, memory):
    made = batch(sequences)
    apply_accepted(made.slot, made.accepted, made.n_accepted, made.buffer, memory)
    return memory.tail


@pytest.mark.parametrize("start", ["state0", None])
def test_convolution_is_as_recorded(start):
    g = np.load(DATA / "conv1d_silu.npz")
    memory = ConvMemory.empty(1, g["weight"].shape[1], g["x"].shape[1])
    if start:
        memory.tail[0] = g[start].T
    out = run(g["x"], taps(g["weight"]), [Rows(len(g["x"]), "prefill")], memory)
    np.testing.assert_allclose(out, g["y" if start else "y_zero_state"], rtol=0, atol=2e-6)
    assert_same_bits("tail", memory.tail[0], np.ascontiguousarray(g["state"].T))


@pytest.mark.parametrize(("name", "n_channels", "n_taps", "sequences"), CASES, ids=[name for name, *_ in CASES])
def test_convolution_equals_the_definition(name, n_channels, n_taps, sequences):
    rows, weight = batch(sequences), random(n_taps, n_channels)
    n = int(rows.row_starts[-1])
    x = random(n, n_channels, seed=1)
    memory = poison(random_memory(n_channels, n_taps), sequences)
    before, wanted = copy(memory), copy(memory)
    room, out = guarded(n, n_channels)
    causal_conv(x, weight, rows, memory, out=out)
    want = np.empty(x.shape)
    reference.causal_conv(x, weight, rows, wanted, out=want)
    assert_close(name, out, want, 2e-7)
    assert_guards(room)
    assert_same_bits("tail", memory.tail, wanted.tail)
    assert_same_bits("inputs", memory.inputs, wanted.inputs)
    assert_untouched(memory, before, sequences)


@pytest.mark.parametrize("n_taps", [2, 4, 7])
def test_a_prompt_has_the_bits_of_single_tokens(n_taps):
    """A prompt gives the same bits at once, in chunks, as single committed tokens, and as accepted drafts of one token."""
    n, weight = 21, random(n_taps, 40)
    x, memory = random(n, 40, seed=1), random_memory(40, n_taps)
    pieces, single, pending = copy(memory), copy(memory), copy(memory)
    want = run(x, weight, [Rows(n, "prefill")], memory)
    cuts = [0, 1, 3, 14, n]
    got = [run(x[a:b], weight, [Rows(b - a, "prefill")], pieces) for a, b in itertools.pairwise(cuts)]
    assert_same_bits("pieces", np.concatenate(got), want)
    for name, form, other in (("single", "prefill", single), ("pending", "chain", pending)):
        got = [run(x[i : i + 1], weight, [rows], other) for i, rows in enumerate(steps(n, form))]
        assert_same_bits(name, np.concatenate(got), want)
    flush([Rows(1, accepted=(0,), buffer=n % 2)], pending)
    for other in (pieces, single, pending):
        assert_same_bits("tail", other.tail, memory.tail)


def test_every_path_of_a_tree_equals_a_chain():
    """Every path through a tree equals a chain; an accepted path leaves the inputs as if nothing else had been drafted."""
    n, weight = 64, random(4, 24)
    x, after, memory = random(n, 24, seed=1), random(3, 24, seed=2), random_memory(24, 4)
    parents, before = tree(np.random.default_rng(3), n), copy(memory)
    out = run(x, weight, [Rows(n, "tree")], memory, [parents])
    for row in range(n):
        path = path_to(parents, row)
        chained, kept = copy(before), copy(memory)
        assert_same_bits("path", out[path], run(x[path], weight, [Rows(len(path))], chained))
        following = run(after, weight, [Rows(3, accepted=tuple(path), buffer=1)], kept)
        straight = copy(before)
        run(x[path], weight, [Rows(len(path), "prefill")], straight)
        assert_same_bits("after the path", following, run(after, weight, [Rows(3)], straight))
        assert_same_bits("tail", kept.tail, straight.tail)


def test_a_sequence_has_the_same_bits_in_every_batch():
    sequences, weight = BATCHES["everything"], random(4, 1000)
    rows = batch(sequences)
    x, memory = random(int(rows.row_starts[-1]), 1000, seed=1), random_memory(1000, 4)
    alone, one = copy(memory), copy(memory)
    out = run(x, weight, sequences, memory)
    for s, sequence in enumerate(sequences):
        own = slice(rows.row_starts[s], rows.row_starts[s + 1])
        got = run(x[own], weight, [sequence], alone, [rows.parent[own].tolist()])
        assert_same_bits(f"sequence {s}", got, out[own])
    numba.set_num_threads(1)
    try:
        assert_same_bits("one thread", run(x, weight, sequences, one), out)
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    serial, got = random_memory(1000, 4), np.empty_like(out)
    columns = (rows.row_starts, rows.parent, rows.slot, rows.prefill, rows.accepted, rows.n_accepted, rows.buffer)
    cpu.causal_conv(x, weight, *columns, serial.tail, serial.inputs, got)
    assert_same_bits("serial", got, out)
    for other in (alone, one, serial):
        assert_same_bits("tail", other.tail, memory.tail)
        assert_same_bits("inputs", other.inputs, memory.inputs)


def test_accepted_rows_are_applied_without_a_new_token():
    sequences = [Rows(1, slot=5, accepted=(3, 4)), Rows(1, slot=2), Rows(1, slot=0, accepted=(0, 1, 2, 9, 63), buffer=1)]
    memory = poison(random_memory(37, 4), sequences)
    before, wanted, made = copy(memory), copy(memory), batch(sequences)
    flush(sequences, memory)
    reference.apply_accepted(made.slot, made.accepted, made.n_accepted, made.buffer, wanted)
    assert_same_bits("tail", memory.tail, wanted.tail)
    assert_same_bits("inputs", memory.inputs, before.inputs)


def test_arrays_of_wrong_shape_are_refused():
    memory, x = ConvMemory.empty(1, 4, 16), random(65, 16)
    with pytest.raises(KernelError, match="65 pending rows"):
        causal_conv(x, random(4, 16), batch([Rows(65)]), memory, out=x.copy())
    with pytest.raises(KernelError, match="describes 3 rows"):
        causal_conv(x, random(4, 16), batch([Rows(3)]), memory, out=x.copy())
    with pytest.raises(KernelError, match="taps: wanted"):
        causal_conv(x, random(3, 16), batch([Rows(65, "prefill")]), memory, out=x.copy())
    with pytest.raises(KernelError, match="2 <= K <= 8"):
        taps(random(16, 9))
    with pytest.raises(KernelError, match="inputs: wanted"):
        ConvMemory(zeros(1, 3, 16), zeros(2, 1, 64, 15))
