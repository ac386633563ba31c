"""Attention of blocks on a GPU: against the definition, and the same bits in any company.

Tolerance: queries, keys and values are halves and taken as given; what remains is the rounding of the weights and of the
result to halves.
"""

import numpy as np
import pytest
from batches import fill
from blocks import of, rings, rows_of
from compare import assert_close, assert_same_bits

from dflash.errors import KernelError
from dflash.kernels.block_attention import reference
from dflash.kernels.block_attention.blocks import Blocks

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("dflash.kernels.block_attention.cuda")
device = pytest.importorskip("dflash.kernels.gpu.device")

DRAFT = 32, 8, 128
TRUE = [
    ("a full layer", [(0, 2048, 16)], *DRAFT, 4096, 0, False),
    ("a causal window", [(0, 5003, 16)], *DRAFT, 2304, 2048, True),
    ("a window both ways", [(0, 2500, 8)], *DRAFT, 2304, 2048, False),
    ("a long context", [(0, 16200, 16)], *DRAFT, 16384, 0, False),
    ("many", [(0, 100 * i, 1 + i) for i in range(12)], *DRAFT, 1280, 1000, True),
    ("one head", [(0, 500, 31)], 16, 1, 128, 512, 0, True),
    ("a narrow head", [(3, 77, 6)], 6, 2, 48, 512, 30, False),
]
CASES = [*reference.cases(), *TRUE]


def run(arrays, blocks, window, causal, *, rows=None, sequences=None):
    """Output of a launch with room for more rows and sequences than there are."""
    q, k, v, ring_k, ring_v = arrays
    n, s = len(q), len(blocks.slot)
    rows, sequences = rows or n, sequences or s
    padded = [cupy.asarray(np.resize(a, (rows, *a.shape[1:]))) for a in (q, k, v)]
    rest = np.full(sequences - s, 1 << 30, np.int32)
    room = Blocks(*(np.concatenate([array, rest]) for array in blocks))
    counts = cupy.asarray(np.array([n, s], np.int32))
    there = cuda.DeviceBlocks.of(room)._replace(counts=counts)
    out = cupy.asarray(fill(np.uint16, (rows + 1, q.shape[1] * q.shape[2])))
    held = [cupy.asarray(ring) for ring in (ring_k, ring_v)]
    op = cuda.BlockAttend(*padded, *held, there, window=window, causal=causal, out=out[:-1])
    op(rows, n_sequences=sequences)
    out = out.get().view(np.float16)
    assert np.isnan(out[n:]).all()
    return out[:n]


def made(case):
    _, sequences, heads, kv, width, places, window, _ = case
    blocks = of(sequences)
    return blocks, (*rows_of(blocks, heads, kv, width, np.float16), *rings(blocks, kv, width, places, window, np.uint16))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_block_attend(case):
    name, *_, window, causal = case
    blocks, arrays = made(case)
    out, want = run(arrays, blocks, window, causal), np.empty((len(arrays[0]), arrays[0][0].size))
    reference.block_attend(*arrays, blocks, window=window, causal=causal, out=want)
    assert_close(name, out, want, 5e-4)
    rows, sequences = len(out) + 9, len(blocks.slot) + 3
    again = run(arrays, blocks, window, causal, rows=rows, sequences=sequences)
    assert_same_bits("again, with room for more", again, out)


@pytest.mark.parametrize("case", [case for case in CASES if len(case[1]) > 1], ids=lambda case: case[0])
def test_other_sequences_change_nothing(case):
    *_, window, causal = case
    blocks, arrays = made(case)
    together = run(arrays, blocks, window, causal)
    for s, sequence in enumerate(case[1]):
        own = slice(blocks.row_starts[s], blocks.row_starts[s + 1])
        alone = of([sequence])._replace(slot=blocks.slot[s : s + 1])
        got = run((*(a[own] for a in arrays[:3]), *arrays[3:]), alone, window, causal)
        assert_same_bits(f"sequence {s}", got, together[own])


def test_a_graph_reads_the_blocks_anew():
    rng, places = np.random.default_rng(3), 600
    ring_k, ring_v = rng.standard_normal((2, 3, places, 2, 64)).astype(np.float16)
    q, k, v = (rng.standard_normal((20, heads, 64)).astype(np.float16) for heads in (4, 2, 2))
    there = cuda.DeviceBlocks(*(cupy.zeros(n, np.int32) for n in (2, 3, 2, 2, 2)))
    out = cupy.zeros((20, 256), np.float16)
    arrays = [cupy.asarray(a) for a in (q, k, v, ring_k, ring_v)]
    op = cuda.BlockAttend(*arrays, there, window=100, causal=True, out=out)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    op(20, stream)
    graph = device.captured(lambda: op(20, stream), stream)
    for sequences in ([(0, 700, 16)], [(5, 9, 4), (0, 300, 16)], [(0, 0, 1), (0, 40, 2)]):
        blocks = of(sequences)
        n = blocks.row_starts[-1]
        for array, values in zip(there, cuda.DeviceBlocks.of(blocks), strict=True):
            array[: values.size] = values
        cupy.cuda.get_current_stream().synchronize()
        graph.launch(stream)
        stream.synchronize()
        want = run((q[:n], k[:n], v[:n], ring_k, ring_v), blocks, 100, True)
        assert_same_bits("graph", out[:n].get(), want)


def test_refuses_what_does_not_fit():
    blocks = cuda.DeviceBlocks.of(of([(0, 10, 2)]))
    q, k, ring = (cupy.zeros(shape, np.float16) for shape in ((2, 4, 32), (2, 2, 32), (2, 64, 2, 32)))
    out = cupy.zeros((2, 128), np.float16)
    refused = [
        ("H a multiple of 2", (q[:, :3], k, k, ring, ring), 0),
        ("k: wanted", (q, k[:, ::2], k, ring, ring), 0),
        ("ring_v: wanted", (q, k, k, ring, ring.astype(np.float32)), 0),
        ("64 or more", (q, k, k, ring[:, :40], ring), 0),
        ("a window must be", (q, k, k, ring, ring), -1),
    ]
    for message, arrays, window in refused:
        with pytest.raises(KernelError, match=message):
            cuda.BlockAttend(*arrays, blocks, window=window, causal=True, out=out)
