"""Attention with a window and large heads on a GPU: against the definition, and the same bits in any company."""

import numpy as np
import pytest
from batches import as_stored, batch, chain, fill, fitting, ragged, stored
from compare import assert_close, assert_same_bits

from dflash.errors import KernelError
from dflash.kernels.attention import reference
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.ragged import PAGE

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("dflash.kernels.attention.cuda")
rows_of = pytest.importorskip("dflash.kernels.attention.cuda_fallback")
gates_of = pytest.importorskip("dflash.kernels.attention.cuda_gate")

KINDS = {"halves": np.float16, "float32": np.float32, "q8_0": np.int8, "q4_0": np.uint8}
KINDS = {name: (kind, kind) for name, kind in KINDS.items()} | {"q8_0/q4_0": (np.int8, np.uint8)}
QUANTIZED = np.int8, np.uint8
SHAPES = [(0, 8, 2, 512), (20, 8, 4, 256), (300, 6, 1, 128), (1, 2, 2, 64), (12, 3, 1, 48)]
"""Window, query heads, KV heads, head size."""
BATCHES = {
    "pending rows": [(0, 3, "tree"), (255, 16, "chain"), (600, 1, "chain"), (257, 30, "tree")],
    "prompts": [(130, 70, "prefill"), (0, 9, "prefill")],
}


@pytest.fixture(params=KINDS)
def kinds(request):
    return KINDS[request.param]


def inputs(rows, shape, kinds, seed=5):
    """Queries, and keys and values with NaN or garbage in places that the batch does not have."""
    _, heads, kv, width = shape
    rng, n = np.random.default_rng(seed), int(rows.row_starts[-1])
    made = []
    for kind in kinds:
        cache = fill(kind, (rows.pages.max() + 2, PAGE, kv, stored(kind, width)))
        cache = cache if kind in QUANTIZED else np.full(cache.shape, np.nan, kind)
        for s, length in enumerate(rows.length):
            index = np.arange(length + rows.row_starts[s + 1] - rows.row_starts[s])
            values = rng.standard_normal((len(index), kv, width)).astype(np.float32)
            values = as_stored(kind, values) if kind in QUANTIZED else values
            cache[rows.pages[s, index // PAGE], index % PAGE] = values
        made.append(cache)
    q = rng.standard_normal((n, heads, width)).astype(np.float16 if kinds[0] in QUANTIZED else kinds[0])
    return q, *made


def run(q, k, v, rows, window):
    """Output; a row beyond is still NaN."""
    n = len(q)
    here = DeviceBatch(n + 1, len(rows.slot) + 1, rows.pages.shape[1])
    here.upload(np.zeros(n, np.int32), rows)
    out = cupy.asarray(fill(np.uint16, (n + 1, q.shape[1] * q.shape[2])))
    padded = cupy.asarray(np.resize(q, (n + 1, *q.shape[1:])))
    rows_of.AttendRows(padded, cupy.asarray(k), cupy.asarray(v), here, out, window=window)(n + 1)
    out = out.get().view(np.float16)
    assert np.isnan(out[n:]).all()
    return out[:n]


def skip_what_is_not_stored(shape, kinds):
    if fitting(kinds, shape[3]) != shape[3] or (kinds[0] in QUANTIZED and shape[3] > 256):
        pytest.skip("a quantized cache has heads of 32, 64, ... or 256")


@pytest.mark.parametrize("sequences", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_definition(shape, sequences, kinds):
    skip_what_is_not_stored(shape, kinds)
    rows = batch(sequences)
    q, k, v = inputs(rows, shape, kinds)
    want = np.empty((len(q), shape[1] * shape[3]))
    reference.attend(q, k, v, rows, out=want, window=shape[0])
    assert_close("rows", run(q, k, v, rows, shape[0]), want, 5e-4)


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_chains_prompts_and_paths_of_trees_agree(shape, kinds):
    """Bit for bit: rows alone, in a chain, in a prompt, and a path of a tree after it was moved."""
    skip_what_is_not_stored(shape, kinds)
    rows = ragged([(250, chain(40), False)])
    q, k, v = inputs(rows, shape, kinds)
    together = run(q, k, v, rows, shape[0])
    assert_same_bits("prompt", run(q, k, v, ragged([(250, chain(40), True)], pages=rows.pages), shape[0]), together)
    for i in (0, 7, 39):
        alone = ragged([(250 + i, [-1], False)], pages=rows.pages)
        assert_same_bits(f"row {i}", run(q[i : i + 1], k, v, alone, shape[0])[0], together[i])
    tree = batch([(250, 40, "tree")])
    q, k, v = inputs(tree, shape, kinds)
    out, path = run(q, k, v, tree, shape[0]), [int(tree.depth.argmax())]
    while tree.parent[path[0]] >= 0:
        path.insert(0, int(tree.parent[path[0]]))
    moved = [cupy.asarray(a) for a in (k, v)]
    cuda.compact(*moved, pages=tree.pages[0], length=250, path=path)
    straight = ragged([(250, chain(len(path)), False)], pages=tree.pages)
    assert_same_bits("path", run(q[path], moved[0].get(), moved[1].get(), straight, shape[0]), out[path])


@pytest.mark.parametrize("gates", [4, 64])
def test_the_gate_of_heads(gates):
    rng = np.random.default_rng(0)
    out, gate = rng.standard_normal((4, 64)).astype(np.float16), rng.normal(0, 30, (4, gates)).astype(np.float32)
    got = cupy.asarray(out)
    gates_of.HeadGate(cupy.asarray(gate), got)(3)
    want = out * np.repeat(np.logaddexp(gate.astype(np.float64), 0), 64 // gates, axis=1)
    assert_close("gate", got.get()[:3], want[:3], 5e-4)
    assert_same_bits("a row more", got.get()[3:], out[3:])


def test_refuses_what_does_not_fit():
    rows = batch([(10, 2, "chain")])
    here, out = DeviceBatch.of(rows), cupy.zeros((2, 64), np.float16)
    k, v = cupy.zeros((2, 3, PAGE, 2, 32), np.float16)
    with pytest.raises(KernelError, match="window is -1, must be at least 0"):
        rows_of.AttendRows(cupy.zeros((2, 2, 32), np.float16), k, v, here, out, window=-1)
    with pytest.raises(KernelError, match="D a multiple of 16 up to 512"):
        rows_of.AttendRows(cupy.zeros((2, 2, 528), np.float16), *cupy.zeros((2, 3, PAGE, 2, 528), np.float16), here, out)
    with pytest.raises(KernelError, match=r"gate must be \(T, G\) with G a divisor of 64, got \(2, 3\)"):
        gates_of.HeadGate(cupy.zeros((2, 3), np.float32), out)
