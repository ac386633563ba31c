"""Attention of blocks over rings: the definition, paged attention, and bits that do not depend on other sequences."""

import numba
import numpy as np
import pytest
from batches import chain, ragged
from blocks import of, rings, rows_of
from compare import assert_close, assert_same_bits

from dflash.errors import KernelError
from dflash.kernels.attention import attend
from dflash.kernels.block_attention import append, block_attend, reference
from dflash.kernels.ragged import PAGE

RINGS = np.uint16, np.float32
CASES = list(reference.cases())


def run(arrays, blocks, window, causal):
    """Return an output with a guard row of NaN; `arrays` are q, k, v and both rings."""
    q = arrays[0]
    out = np.full((len(q) + 1, q.shape[1] * q.shape[2]), np.nan, np.float32)
    block_attend(*arrays, blocks, window=window, causal=causal, out=out[:-1])
    assert np.isnan(out[-1]).all()
    return out[:-1]


@pytest.mark.parametrize("kind", RINGS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_block_attention_equals_the_definition(case, kind):
    name, sequences, heads, kv, width, places, window, causal = case
    blocks = of(sequences)
    arrays = *rows_of(blocks, heads, kv, width), *rings(blocks, kv, width, places, window, kind)
    out, want = run(arrays, blocks, window, causal), np.empty((len(arrays[0]), heads * width))
    reference.block_attend(*arrays, blocks, window=window, causal=causal, out=want)
    assert_close(name, out, want, 1e-6)
    assert_same_bits("again", run(arrays, blocks, window, causal), out)


@pytest.mark.parametrize("case", [case for case in CASES if len(case[1]) > 1], ids=lambda case: case[0])
def test_other_sequences_change_nothing(case):
    _, sequences, heads, kv, width, places, window, causal = case
    blocks = of(sequences)
    arrays = *rows_of(blocks, heads, kv, width), *rings(blocks, kv, width, places, window, np.uint16)
    together = run(arrays, blocks, window, causal)
    for s, sequence in enumerate(sequences):
        own = slice(blocks.row_starts[s], blocks.row_starts[s + 1])
        alone = of([sequence])._replace(slot=blocks.slot[s : s + 1])
        got = run((*(a[own] for a in arrays[:3]), *arrays[3:]), alone, window, causal)
        assert_same_bits(f"sequence {s}", got, together[own])


@pytest.mark.parametrize("length", [0, 37, 600])
def test_a_causal_block_is_a_chain(length):
    """Without a window a row sees what a pending row of paged attention sees."""
    heads, kv, width = 4, 2, 64
    blocks, chained = of([(0, length, 16)]), ragged([(length, chain(16), False)])
    q, k, v = rows_of(blocks, heads, kv, width)
    ring_k, ring_v = rings(blocks, kv, width, 700, 0, np.float32)
    caches = [np.zeros((chained.pages.max() + 1, PAGE, kv, width), np.float32) for _ in range(2)]
    index = np.arange(length + 16)
    places = chained.pages[0, index // PAGE], index % PAGE
    for cache, ring, own in zip(caches, (ring_k, ring_v), (k, v), strict=True):
        cache[places] = np.concatenate([ring[blocks.slot[0], :length], own])
    want = np.empty((16, heads * width), np.float32)
    attend(q, *caches, chained, out=want)
    assert_close("chain", run((q, k, v, ring_k, ring_v), blocks, 0, True), want, 1e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_a_row_sees_its_window(causal):
    """Keys beyond the window have no effect; keys within it do."""
    blocks, window = of([(0, 100, 8)]), 20
    arrays = [*rows_of(blocks, 2, 1, 64), *rings(blocks, 1, 64, 128, 0, np.float32)]
    out = run(arrays, blocks, window, causal)
    slot = blocks.slot[0]
    for position in (70, 81, 84, 87, 88, 99):
        changed = [array.copy() for array in arrays]
        for ring in changed[3:]:
            ring[slot, position] *= -3
        differs = (run(changed, blocks, window, causal) != out).any(1)
        assert differs.tolist() == [100 + i - position < window for i in range(8)]
    for row in range(8):
        changed = [array.copy() for array in arrays]
        for own in changed[1:3]:
            own[row] *= -3
        differs = (run(changed, blocks, window, causal) != out).any(1)
        assert differs.tolist() == [row <= i or not causal for i in range(8)]


def test_threads_change_nothing():
    blocks = of([(0, 900, 16), (0, 30, 4)])
    arrays = *rows_of(blocks, 8, 4, 64), *rings(blocks, 4, 64, 1024, 500, np.uint16)
    before, results = numba.get_num_threads(), []
    for n in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
        numba.set_num_threads(n)
        results.append(run(arrays, blocks, 500, True))
    numba.set_num_threads(before)
    assert_same_bits("threads", *results)


@pytest.mark.parametrize("kind", RINGS)
def test_appended_rows_equal_the_definition(kind):
    rng = np.random.default_rng(2)
    got = [rng.integers(0, 1 << 14, (3, 50, 2, 32)).astype(np.uint16) for _ in range(2)]
    if kind == np.float32:
        got = [ring.view(np.float16).astype(np.float32) for ring in got]
    want = [ring.copy() for ring in got]
    slots = np.array([2, 2, 0, -1, 2, 0], np.int32)
    positions = np.array([49, 50, 7, 3, 1051, 100], np.int32)
    k, v = rng.standard_normal((2, 6, 2, 32), dtype=np.float32)
    append(k, v, *got, slots=slots, positions=positions)
    reference.append(k, v, *want, slots=slots, positions=positions)
    assert_same_bits("keys", got[0], want[0])
    assert_same_bits("values", got[1], want[1])


def test_refuses_what_does_not_fit():
    blocks = of([(0, 10, 3), (0, 4, 2)])
    arrays = q, k, v, ring_k, ring_v = *rows_of(blocks, 4, 2, 32), *rings(blocks, 2, 32, 16, 0, np.float32)
    refused = [
        ("H a multiple of 2", (q[:, :3], k, v, ring_k, ring_v), blocks, 0),
        ("k: wanted contiguous", (q, k[:, ::2], v, ring_k, ring_v), blocks, 0),
        ("a ring must be", (q, k, v, ring_k.astype(np.float64), ring_v), blocks, 0),
        ("ring_v is float32", (q, k, v, ring_k, ring_v[:1]), blocks, 0),
        ("must cover 5 rows", arrays, blocks._replace(row_starts=blocks.row_starts[[0, 1, 1]]), 0),
        ("slots must be", arrays, blocks._replace(slot=blocks.slot + 9), 0),
        ("begin must be 0 to length", arrays, blocks._replace(begin=blocks.length + 1), 0),
        ("a window must be", arrays, blocks, -1),
    ]
    for message, given, where, window in refused:
        with pytest.raises(KernelError, match=message):
            block_attend(*given, where, window=window, causal=True, out=np.empty((5, 128), np.float32))
    ones = np.ones(5, np.int32)
    with pytest.raises(KernelError, match="slots must be below"):
        append(k, v, ring_k, ring_v, slots=9 * ones, positions=ones)
    with pytest.raises(KernelError, match="positions not negative"):
        append(k, v, ring_k, ring_v, slots=ones, positions=-ones)
