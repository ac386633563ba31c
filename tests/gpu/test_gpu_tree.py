"""Trees grown, written to a batch and walked on a GPU."""

import numpy as np
import pytest

from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.ragged import Ragged
from dflash.kernels.tree import grow, reference

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("dflash.kernels.tree.cuda")
device = pytest.importorskip("dflash.kernels.gpu.device")
arrays = pytest.importorskip("dflash.kernels.gpu.buffers")

RNG = np.random.default_rng(4)


def candidates(rows, pool, *, dependent, kind):
    ids = np.stack([RNG.permutation(1000)[:pool] for _ in range(rows)]).astype(np.int32)
    scores = -np.sort(RNG.gamma(1.0, 2.0, (rows, pool))).astype(np.float32)
    if kind == "ties":
        scores = np.round(scores)
    if kind == "fewer":
        ids[:, pool // 3 :], scores[:, pool // 3 :] = -1, -np.inf
        ids[rows - 2], scores[rows - 2] = -1, -np.inf
    edges = None
    if dependent:
        edges = -RNG.gamma(1.0, 2.0, (rows, pool, pool)).astype(np.float32)
        edges = np.round(edges) if kind == "ties" else edges
        if kind == "fewer":
            edges[RNG.random(edges.shape) < 0.4] = -np.inf
    return ids, scores, edges


@pytest.mark.parametrize("kind", ["", "ties", "fewer"])
@pytest.mark.parametrize("dependent", [False, True])
def test_grow(kind, dependent):
    """The nodes of the CPU in its order; what is missing is filled up with draft tokens that are never found, or a chain."""
    pool = 16 if dependent else 64
    sizes = [(0, 15, 1, 15), (15, 15, pool, 22), (30, 7, 4, 63), (37, 3, pool, 63), (40, 1, 5, 9), (41, 5, pool, 3)]
    ids, scores, edges = candidates(46, pool, dependent=dependent, kind=kind)
    out = cuda.draft_arrays(len(sizes))
    outlines = cupy.asarray(np.array(sizes, np.int32))
    ranked = cupy.asarray(edges if dependent else scores)
    cuda.BuildTree(cupy.asarray(ids), ranked, outlines, out)(len(sizes))
    got = out.download().wait()
    for s, (first, depth, width, nodes) in enumerate(sizes):
        part = slice(first, first + depth)
        own = np.ascontiguousarray(edges[part, :width, :width]) if dependent else None
        tokens, parents = np.empty(nodes, np.int32), np.empty(nodes, np.int32)
        given = (np.ascontiguousarray(array[part, :width]) for array in (ids, scores))
        n = grow(*given, own, tokens=tokens, parents=parents)
        assert got.grown[s] == n
        assert got.tokens[s, :n].tolist() == tokens[:n].tolist()
        assert got.parents[s, :n].tolist() == parents[:n].tolist()
        above = [0, *got.depths[s, :nodes]]
        assert [above[parent + 1] + 1 for parent in got.parents[s, :nodes]] == got.depths[s, :nodes].tolist()
        found = {}
        for i in range(nodes):
            found.setdefault((int(got.parents[s, i]), int(got.tokens[s, i])), i)
        assert width == 1 or all(i < n for i in found.values()) or n == 0


def test_grow_as_far_as_it_reaches():
    """A shorter outline makes the same tree, and a chain is filled up below its end."""
    ids, scores, _ = candidates(30, 64, dependent=False, kind="")
    reach, found = [3, 0, 15], []
    for depths, given in (([10, 10, 10], reach), (np.minimum(reach, 10).tolist(), None)):
        outlines = np.array([(10 * s, depth, 4, 22) for s, depth in enumerate(depths)], np.int32)
        out = cuda.draft_arrays(3)
        limit = None if given is None else cupy.asarray(np.array(given, np.int32))
        cuda.BuildTree(cupy.asarray(ids), cupy.asarray(scores), cupy.asarray(outlines), out, reach=limit)(3)
        got = out.download().wait()
        found.append([got.grown.tolist(), got.tokens[:3, :22].tolist(), got.parents[:3, :22].tolist()])
    assert found[0] == found[1]
    outlines, out = cupy.asarray(np.array([(0, 10, 1, 10)], np.int32)), cuda.draft_arrays(1)
    cuda.BuildTree(cupy.asarray(ids), cupy.asarray(scores), outlines, out, reach=cupy.asarray(np.array([3], np.int32)))(1)
    got = out.download().wait()
    assert got.tokens[0, :10].tolist() == [*ids[:3, 0].tolist(), *[0] * 7]
    assert got.parents[0, :10].tolist() == list(range(-1, 9))


def test_keep():
    sources = [cupy.asarray(RNG.standard_normal((9, 12)).astype(np.float32)) for _ in range(3)]
    out = cupy.zeros((3, 7, 12), np.float32)
    keep = cuda.StashRows(cupy.asarray(np.array([source.data.ptr for source in sources], np.uint64)), out)
    keep(2, 4, 1)
    want = np.zeros(out.shape, np.float32)
    want[:, 1:5] = np.stack([source.get()[2:6] for source in sources])
    np.testing.assert_array_equal(out.get(), want)


def batch_of(sizes, lengths):
    """A batch with a root and draft tokens for each sequence."""
    s = len(sizes)
    first = np.cumsum([0, *sizes], dtype=np.int32)
    sequence = np.repeat(np.arange(s, dtype=np.int32), sizes)
    zero, n = np.zeros(s, np.int32), int(first[-1])
    depth = np.arange(n, dtype=np.int32) - first[sequence]
    rows = Ragged(first, sequence, depth - 1, depth, np.array(lengths, np.int32), zero[:, None], zero, zero,
                  np.zeros((s, 64), np.int32), zero, zero)  # fmt: skip
    here = DeviceBatch(64, 64, 4)
    here.upload(np.arange(n, dtype=np.int32) + 500, rows)
    return here


def random_tree(n):
    parents = [int(RNG.integers(-1, i)) for i in range(n)]
    depths = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    return RNG.integers(0, 3, n).tolist(), parents, depths


def put(out, s, tree):
    for name, values in zip(("tokens", "parents", "depths"), tree, strict=True):
        getattr(out, name)[s, : len(values)] = cupy.asarray(values, cupy.int32)


ORDERS = {"all": [0, 1, 2, 3], "two": [3, 1], "one": [-1, 2], "far apart": [0, -1, -1, -1, 3, -1, 2, -1, 1]}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_draft_trees_are_written_below_their_roots(order):
    sizes, lengths = [1, 23, 16, 4], [10, 20, 30, 4000]
    batch, out = batch_of(sizes, lengths), cuda.draft_arrays(16)
    trees = [random_tree(n - 1) for n in sizes]
    for s, tree in enumerate(trees):
        put(out, order.index(s) if s in order else 9, tree)
    cuda.WriteDraft(out, batch)(order)
    want = {name: getattr(batch_of(sizes, lengths), name).get() for name in ("tokens", "parent", "depth", "position")}
    for s in set(order) - {-1}:
        tokens, parents, depths = trees[s]
        start = int(np.cumsum([0, *sizes])[s]) + 1
        part = slice(start, start + len(tokens))
        want["tokens"][part], want["parent"][part] = tokens, np.array(parents) + 1
        want["depth"][part], want["position"][part] = depths, np.array(depths) + lengths[s]
    for name, values in want.items():
        np.testing.assert_array_equal(getattr(batch, name).get(), values, name)


WALKS = {
    "16 rows": ([16], [0]),
    "23 rows": ([23], [0]),
    "64 rows": ([64], [0]),
    "four": ([16] * 4, range(4)),
    "five": ([1, 2, 30, 7, 24], range(5)),
    "three of five": ([1, 2, 30, 7, 24], [4, 0, 2]),
    "sixteen": ([4] * 16, range(16)),
    "nine of 46": ([1] * 40 + [4] * 6, range(45, 36, -1)),
}


@pytest.mark.parametrize(("sizes", "order"), WALKS.values(), ids=WALKS)
def test_walk(sizes, order):
    """The way of the drawn tokens of some sequences, and a block and a context that go on from its end."""
    block, places, s = 4, 512, len(order)
    lengths = RNG.integers(1, 3000, len(sizes)).tolist()
    batch, out = batch_of(sizes, lengths), cuda.draft_arrays(16)
    for k, i in enumerate(order):
        put(out, k, random_tree(sizes[i] - 1))
    cuda.WriteDraft(out, batch)(order)
    drawn = RNG.integers(0, 3, 64).astype(np.int32)
    of_block = {"begin": (16,), "tokens": (64,), "position": (64,), "length": (16,), "seen": (16,)}
    blocks, context = arrays.DeviceArrays(**of_block), arrays.DeviceArrays(**cuda.context_shapes())
    blocks.begin[:] = 5
    cuda.AcceptPath(batch, cupy.asarray(drawn), context, out, block=blocks, rows=block, places=places, mask=99)(order)
    position = device.zeros(3, 16, dtype=np.int32)
    cuda.AcceptPath(batch, cupy.asarray(drawn), other := arrays.DeviceArrays(**cuda.context_shapes()), out, rows=3,
              position=position)(order)  # fmt: skip
    at, first = 0, np.cumsum([0, *sizes])
    tokens, parents = batch.tokens.get(), batch.parent.get()
    seen, got, found = context.download().wait(), blocks.download().wait(), out.download().wait()
    for k, i in enumerate(order):
        own = slice(first[i], first[i + 1])
        path, anchor = reference.walk(tokens[own].tolist(), parents[own].tolist(), drawn[own].tolist())
        rows = slice(at, at + len(path))
        now = lengths[i] + len(path)
        assert seen.row[rows].tolist() == [first[i] + row for row in path]
        assert seen.position[rows].tolist() == list(range(lengths[i], now))
        assert (seen.sequence[rows] == k).all()
        assert seen.token[rows].tolist() == [drawn[first[i] + row] for row in path]
        assert seen.parent[rows].tolist() == list(range(-1, len(path) - 1))
        assert seen.depth[rows].tolist() == list(range(len(path)))
        assert seen.last[k] == at + len(path) - 1
        assert position.get()[:, k].tolist() == [now, now + 1, now + 2]
        assert other.length.get()[k] == lengths[i]
        assert (seen.row_starts[k], seen.length[k]) == (at, lengths[i] % places)
        assert got.tokens[block * k : block * (k + 1)].tolist() == [anchor, 99, 99, 99]
        assert got.position[block * k : block * (k + 1)].tolist() == list(range(now, now + block))
        assert (got.length[k], got.seen[k]) == (now, max(5, now + 64 - places))
        assert (found.anchors[k], found.lengths[k]) == (anchor, now)
        at += len(path)
    assert seen.counts.tolist() == [at, s]
    assert seen.row_starts[s] == at


@pytest.mark.parametrize("sizes", [[4], [4, 1, 7, 2], [4] * 16], ids=str)
def test_walks_whose_length_is_given(sizes):
    """A given number of tokens of a chain is accepted, whatever was sampled; sequences with -1 follow their samples."""
    s = len(sizes)
    batch, out = batch_of(sizes, lengths := list(range(10, 10 + s))), cuda.draft_arrays(16)
    for k, size in enumerate(sizes):
        n = size - 1
        put(out, k, (np.arange(3, 3 + n), np.arange(-1, n - 1), np.arange(1, n + 1)))
    cuda.WriteDraft(out, batch)(range(s))
    drawn, taken = np.full(64, 4, np.int32), [-1 if k % 3 == 2 else min(k, size - 1) for k, size in enumerate(sizes)]
    context, position = arrays.DeviceArrays(**cuda.context_shapes()), device.zeros(3, 16, dtype=np.int32)
    cuda.AcceptPath(batch, cupy.asarray(drawn), context, out, rows=3, position=position)(range(s), taken)
    tokens, parents, first, at = batch.tokens.get(), batch.parent.get(), np.cumsum([0, *sizes]), 0
    seen, found = context.download().wait(), out.download().wait()
    for k, n in enumerate(taken):
        own = slice(first[k], first[k + 1])
        path, anchor = reference.walk(tokens[own].tolist(), parents[own].tolist(), drawn[own].tolist(), n)
        rows = slice(at, at + len(path))
        assert seen.row[rows].tolist() == [first[k] + row for row in path]
        assert seen.token[rows].tolist() == [*(int(tokens[own][row]) for row in path[1:]), anchor]
        assert (found.anchors[k], found.lengths[k]) == (anchor, lengths[k] + len(path))
        at += len(path)


def test_rows_gathered_by_their_addresses():
    width = 96
    sources = [cupy.asarray(RNG.standard_normal((n, width)).astype(np.float32)) for n in (5, 9)]
    where = [(0, 4), (1, 8), (1, 0), (0, 4), (0, 1)]
    places = [sources[i].data.ptr + sources[i].strides[0] * row for i, row in where]
    out = cupy.full((7, width), np.nan, np.float32)
    cuda.GatherRows(cupy.asarray(np.array(places, np.uint64)), width)(out[:5])
    np.testing.assert_array_equal(out[:5].get(), np.stack([sources[i][row].get() for i, row in where]))
    assert np.isnan(out[5:].get()).all()


def test_features():
    width, n = 96, 11
    sources = [cupy.asarray(1e5 * RNG.standard_normal((40, width)).astype(np.float32)) for _ in range(3)]
    table = cupy.asarray([array.data.ptr for array in sources], cupy.uint64)
    row = RNG.permutation(40)[:16].astype(np.int32)
    out = cupy.full((16, 3 * width), cupy.nan, cupy.float16)
    counts = cupy.asarray([n, 2], cupy.int32)
    cuda.Features(table, counts, cupy.asarray(row), width, out)(16)
    whole = cupy.full((16, width), cupy.nan, cupy.float32)
    cuda.Features(table[:1], counts, cupy.asarray(row), width, whole, which=1)(16)
    np.testing.assert_array_equal(whole.get()[:2], sources[0].get()[row[:2]])
    assert np.isnan(whole.get()[2:]).all()
    want = np.concatenate([array.get()[row[:n]] for array in sources], axis=1).clip(-65504, 65504).astype(np.float16)
    np.testing.assert_array_equal(out.get()[:n], want)
    assert np.isnan(out.get()[n:]).all()


def test_pick():
    ids = RNG.integers(0, 1000, (5, 64)).astype(np.int32)
    out = device.zeros(5, dtype=np.int32)
    cuda.GatherTop1(cupy.asarray(ids), 64, out)()
    assert out.get().tolist() == ids[:, 0].tolist()
    ids[3, 0], targets = -1, RNG.permutation(1000).astype(np.int32)
    cuda.GatherTop1(cupy.asarray(ids), 64, out, targets=cupy.asarray(targets))()
    assert out.get().tolist() == [*targets[ids[:3, 0]].tolist(), -1, targets[ids[4, 0]]]


def test_rows_that_lie_apart():
    """Positions of a sequence that are not one after another."""
    ids, scores, _ = candidates(12, 8, dependent=False, kind="")
    trees = []
    for apart, back in ((1, np.arange(12)), (4, np.arange(12).reshape(4, 3).T.reshape(-1))):
        out = cuda.draft_arrays(4)
        first = [0, 3, 6, 9] if apart == 1 else [0, 1, 2, 3]
        outlines = cupy.asarray([(row, 3, 8, 20) for row in first], cupy.int32)
        cuda.BuildTree(cupy.asarray(ids[back]), cupy.asarray(scores[back]), outlines, out, apart=apart)(4)
        got = out.download().wait()
        trees.append((got.tokens.tolist(), got.parents.tolist()))
    assert trees[0] == trees[1]
