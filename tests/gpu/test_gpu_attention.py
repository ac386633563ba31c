"""Attention over pages on a GPU: against the definition, and the same bits in any company.

Tolerances: with queries and a cache of halves taken as given, what remains is the rounding of the weights and of the result
to halves, an RMS error of at most 5e-4; over a float32 cache it is the rounding of the result.
"""

import numpy as np
import pytest
from batches import as_stored, batch, chain, fill, fitting, ragged, stored
from compare import assert_close, assert_same_bits

from dflash.errors import KernelError
from dflash.kernels.attention import reference
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.gpu.capabilities import capabilities
from dflash.kernels.kv_types import MAX_SCALE, SCALES, is_quantized, numbers
from dflash.kernels.ragged import PAGE

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("dflash.kernels.attention.cuda")
device = pytest.importorskip("dflash.kernels.gpu.device")

KINDS = "halves", "halves everywhere", "float32", "q8_0", "q8_0 everywhere", "q4_0", "q4_0 everywhere"
MIXED = "q8_0/q4_0", "q4_0/q8_0 everywhere"
STORED = {"halves": np.float16, "float32": np.float32, "q8_0": np.int8, "q4_0": np.uint8}
QUANTIZED = np.int8, np.uint8
LARGE = 24, 4, 256
SHAPES = [LARGE, (3, 1, 64)]
TRUE = [
    ("27B, first token", [(0, 1, "chain")], *LARGE),
    ("27B, one token", [(4097, 1, "chain")], *LARGE),
    ("27B, a block", [(2100, 16, "chain")], *LARGE),
    ("27B, a tree", [(700, 40, "tree")], *LARGE),
    ("27B, many", [(4220, 3, "chain"), (0, 1, "chain"), (65, 20, "tree"), (2111, 2, "chain")], *LARGE),
    ("27B, a prompt", [(192, 130, "prefill")], *LARGE),
    ("35B-A3B, a block", [(1000, 16, "chain")], 16, 2, 256),
    ("35B-A3B, two prompts", [(0, 70, "prefill"), (300, 100, "prefill")], 16, 2, 256),
    ("a draft", [(600, 16, "chain")], 32, 8, 128),
    ("a prompt of a draft", [(0, 90, "prefill")], 32, 8, 128),
    ("the longest text", [(262100, 3, "chain")], 6, 1, 64),
    ("as many heads as in the cache", [(500, 40, "tree"), (0, 1, "chain")], 2, 2, 256),
]
CASES = [*reference.cases(), *TRUE]
OF_KINDS = [(case, kind) for kind in KINDS for case in CASES] + [(case, kind) for kind in MIXED for case in TRUE[:5]]


@pytest.fixture(params=KINDS)
def kinds(request, monkeypatch):
    """Types of keys and values; also what runs on GPUs without products of four warps."""
    if request.param.endswith("everywhere"):
        monkeypatch.setattr(cuda, "capabilities", lambda: capabilities()._replace(has_wgmma=False))
    names = request.param.split()[0].split("/")
    return STORED[names[0]], STORED[names[-1]]


def blank(kind, shape):
    """A cache of NaN; halves as float16."""
    return fill(kind, shape) if kind in QUANTIZED else np.full(shape, np.nan, kind)


def louder(cache, width):
    """Heads of a cache times 8."""
    if cache.dtype not in QUANTIZED:
        return cache * 8
    scales = stored(cache.dtype.type, width) - SCALES
    cache = cache.copy()
    cache[..., scales:] = (8 * np.ascontiguousarray(cache[..., scales:]).view(np.float16)).view(cache.dtype)
    return cache


def caches(rows, kv, width, kinds, seed=5):
    """Keys and values of all that a batch reads; NaN in every other place and in a spare page."""
    rng, made = np.random.default_rng(seed), []
    for kind in kinds:
        cache = blank(kind, (rows.pages.max() + 2, PAGE, kv, stored(kind, width)))
        for s, length in enumerate(rows.length):
            index = np.arange(length + rows.row_starts[s + 1] - rows.row_starts[s])
            values = rng.standard_normal((len(index), kv, width))
            values = as_stored(kind, values.astype(np.float32)) if kind in QUANTIZED else values
            cache[rows.pages[s, index // PAGE], index % PAGE] = values
        made.append(cache)
    return made


def queries(rows, heads, width, kinds, seed=7):
    """Queries and the projection with the gates."""
    rng, n = np.random.default_rng(seed), rows.row_starts[-1]
    q, gate = (rng.standard_normal(shape, dtype=np.float32) for shape in ((n, heads, width), (n, heads * 2 * width)))
    return q.astype(np.float16 if kinds[0] in QUANTIZED else kinds[0]), gate


def run(q, k, v, rows, gate=None, *, bucket=None, whole=None):
    """Output; rows beyond are still NaN."""
    n, room = len(q), (bucket or len(q)) + 1
    here = DeviceBatch(room, len(rows.slot) + 1, rows.pages.shape[1])
    here.upload(np.zeros(n, np.int32), rows)
    out = cupy.asarray(fill(np.uint16, (room, q.shape[1] * q.shape[2])))
    padded = [a if a is None else cupy.asarray(np.resize(a, (room, *a.shape[1:]))) for a in (q, gate)]
    whole = rows.prefill.all() if whole is None else whole
    k, v = cupy.asarray(k), cupy.asarray(v)
    if whole and is_quantized(k):
        halves = [cupy.full((*k.shape[:3], q.shape[2]), np.nan, np.float16) for _ in range(2)]
        cuda.Unpack(k, v, here, *halves)()
        k, v = halves
    op = (cuda.Prefill if whole else cuda.Attend)(padded[0], k, v, here, out, gate=padded[1])
    op(bucket or n)
    out = out.get().view(np.float16)
    assert np.isnan(out[n:]).all()
    return out[:n]


def truth(q, k, v, rows, gate, only):
    """The definition, of some rows."""
    out = np.empty((len(only), q.shape[1] * q.shape[2]))
    for i, row in enumerate(only):
        page, at = reference.text(rows, row)
        keys, values = (numbers(cache[page, at]).astype(np.float64) for cache in (k, v))
        queries = q[row].astype(np.float64).reshape(k.shape[2], -1, q.shape[2])
        scores = np.einsum("ngd,tnd->ngt", queries, keys) / np.sqrt(q.shape[2])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        result = np.einsum("ngt,tnd->ngd", weights / weights.sum(-1, keepdims=True), values)
        if gate is not None:
            gates = gate[row].astype(np.float64).reshape(*result.shape[:2], 2, -1)[:, :, 1]
            result = result / (1 + np.exp(-gates))
        out[i] = result.reshape(-1)
    return out


def pending(sequences):
    return [(at, n, form) for at, n, form in sequences if form != "prefill"]


@pytest.mark.parametrize(
    ("case", "kinds"), OF_KINDS, indirect=["kinds"], ids=[f"{kind}-{case[0]}" for case, kind in OF_KINDS]
)
def test_attend(case, kinds):
    name, sequences, heads, kv, width = case
    width = fitting(kinds, width)
    for part in (pending(sequences), [s for s in sequences if s[2] == "prefill"]):
        if not part:
            continue
        while sum(n for _, n, form in part if form != "prefill") > 64:
            part.pop(0)
        rows = batch(part)
        k, v = caches(rows, kv, width, kinds)
        q, gate = queries(rows, heads, width, kinds)
        only = range(len(q)) if len(q) < 80 else range(0, len(q), 7)
        for opening in (None, gate):
            out = run(q, k, v, rows, opening)
            assert_close(name, out[only], truth(q, k, v, rows, opening, only), 5e-4)
            bucket = min(64, len(q) + 5) if part[0][2] != "prefill" else len(q) + 5
            assert_same_bits("again, in a larger bucket", run(q, k, v, rows, opening, bucket=bucket), out)


@pytest.mark.parametrize(("heads", "kv", "width"), SHAPES)
@pytest.mark.parametrize("length", [0, 50, 250, 2100, 4222])
@pytest.mark.parametrize("kinds", [*KINDS, *MIXED], indirect=True)
def test_a_chain_is_one_row_after_another(length, heads, kv, width, kinds):
    rows = ragged([(length, chain(16), False)])
    k, v = caches(rows, kv, width, kinds)
    q, gate = queries(rows, heads, width, kinds)
    together = run(q, k, v, rows, gate)
    for i in (0, 1, 7, 12, 15):
        alone = ragged([(length + i, [-1], False)], pages=rows.pages)
        later_k, later_v = k.copy(), v.copy()
        for at in range(length + i + 1, length + 16):
            for cache, kind in zip((later_k, later_v), kinds, strict=True):
                cache[rows.pages[0, at // PAGE], at % PAGE] = blank(kind, 1)[0]
        assert_same_bits(f"row {i}", run(q[i : i + 1], later_k, later_v, alone, gate[i : i + 1])[0], together[i])


@pytest.mark.parametrize("length", [0, 300, 2100])
def test_later_rows_change_nothing(length, kinds):
    rows = ragged([(length, chain(40), False)])
    k, v = caches(rows, 4, 256, kinds)
    q, gate = queries(rows, 24, 256, kinds)
    want = run(q, k, v, rows, gate)
    for cache in (k, v):
        for at in range(length + 20, length + 40):
            row = cache[rows.pages[0, at // PAGE], at % PAGE]
            if is_quantized(cache):
                row[:, -SCALES:] = np.full(8, MAX_SCALE, np.float16).view(row.dtype)
            else:
                row *= 9999
    assert_same_bits("large", run(q, k, v, rows, gate)[:20], want[:20])
    for n in (1, 2, 10, 11, 20):
        fewer = ragged([(length, chain(n), False)], pages=rows.pages)
        assert_same_bits(f"{n} rows", run(q[:n], k, v, fewer, gate[:n]), want[:n])


@pytest.mark.parametrize("n", [1, 2, 5, 10, 20])
def test_rows_at_a_depth_of_several_tiles_for_each_warp(n, kinds):
    rows = ragged([(70_000, chain(22), False)])
    k, v = caches(rows, 1, 64, kinds)
    q, gate = queries(rows, 3, 64, kinds)
    fewer = ragged([(70_000, chain(n), False)], pages=rows.pages)
    assert_same_bits(f"{n} rows", run(q[:n], k, v, fewer, gate[:n]), run(q, k, v, rows, gate)[:n])


def test_scores_far_above_and_below_those_before(kinds):
    depth, n, width = 70_000, 22, 64
    rows = ragged([(depth, chain(n), False)])
    k, v = caches(rows, 1, width, kinds)
    index = np.arange(depth + n)
    index = index[index // 64 % 2 == 1]  # every other tile
    place = rows.pages[0, index // PAGE], index % PAGE
    k[place] = louder(k[place], width)
    q, gate = queries(rows, 3, width, kinds)
    together = run(q, k, v, rows, gate)
    only = [0, n - 1]
    assert_close("together", together[only], truth(q, k, v, rows, gate, only), 5e-4)
    for some in (1, 4, 9):
        fewer = ragged([(depth, chain(some), False)], pages=rows.pages)
        assert_same_bits(f"{some} rows", run(q[:some], k, v, fewer, gate[:some]), together[:some])


def test_other_sequences_change_nothing(kinds):
    sequences = [(0, 3, "tree"), (255, 16, "chain"), (600, 1, "chain"), (257, 30, "tree"), (3000, 1, "chain")]
    rows = batch(sequences)
    k, v = caches(rows, 2, 256, kinds)
    q, gate = queries(rows, 12, 256, kinds)
    together = run(q, k, v, rows, gate)
    for s in range(len(sequences)):
        own = slice(rows.row_starts[s], rows.row_starts[s + 1])
        alone = ragged([(int(rows.length[s]), rows.parent[own].tolist(), False)], pages=rows.pages[s : s + 1])
        assert_same_bits(f"sequence {s}", run(q[own], k, v, alone, gate[own]), together[own])


@pytest.mark.parametrize(("heads", "kv", "width"), SHAPES)
def test_chunks_and_other_prompts_change_nothing(heads, kv, width, kinds):
    rows = ragged([(0, chain(800), True), (64, chain(30), True)])
    k, v = caches(rows, kv, width, kinds)
    q, gate = queries(rows, heads, width, kinds)
    whole = run(q, k, v, rows, gate)
    start = 0
    for end in (64, 320, 384, 800):
        chunk = ragged([(start, chain(end - start), True)], pages=rows.pages[:1])
        part = run(q[start:end], k, v, chunk, gate[start:end])
        assert_same_bits(f"{start}:{end}", part, whole[start:end])
        start = end


@pytest.mark.parametrize("length", [0, 210, 600])
@pytest.mark.parametrize("kinds", [*KINDS, *MIXED], indirect=True)
def test_a_path_of_a_tree_is_a_chain_after_compaction(length, kinds):
    rows = batch([(length, 64, "tree")])
    k, v = caches(rows, 2, 256, kinds)
    q, gate = queries(rows, 12, 256, kinds)
    out = run(q, k, v, rows, gate)
    path = [int(rows.depth.argmax())]
    while rows.parent[path[0]] >= 0:
        path.insert(0, int(rows.parent[path[0]]))
    own = [cupy.asarray(a) for a in (k, v)]
    cuda.compact(*own, pages=rows.pages[0], length=length, path=path)
    straight = ragged([(length, chain(len(path)), False)], pages=rows.pages)
    got = run(q[path], own[0].get(), own[1].get(), straight, gate[path])
    if kinds[0] == np.float32:
        assert_same_bits("path", got, out[path])
    assert_close("path", got, out[path], 5e-4)


def test_a_graph_reads_the_batch_anew():
    rows = [ragged([(at, chain(n), False)]) for at, n in ((3000, 3), (10, 2), (2100, 1))]
    halves = np.float16, np.float16
    k, v = caches(rows[0], 4, 256, halves)
    k, v = (np.nan_to_num(np.resize(a, (20, *a.shape[1:]))) for a in (k, v))
    q, gate = queries(rows[0], 24, 256, halves)
    here = DeviceBatch(4, 2, 16)
    out = cupy.zeros((4, 6144), np.float16)
    padded = [cupy.asarray(np.resize(a, (4, *a.shape[1:]))) for a in (q, gate)]
    op = cuda.Attend(padded[0], cupy.asarray(k), cupy.asarray(v), here, out, gate=padded[1])
    stream = cupy.cuda.Stream(non_blocking=True)
    here.upload(np.zeros(3, np.int32), rows[0], stream)
    op(4, stream)
    graph = device.captured(lambda: op(4, stream), stream)
    for one in (*rows, rows[0]):
        n = int(one.row_starts[-1])
        here.upload(np.zeros(n, np.int32), one, stream)
        graph.launch(stream)
        stream.synchronize()
        assert_same_bits("graph", out[:n].get(), run(q[:n], k, v, one, gate[:n]))


@pytest.mark.parametrize("kinds", [(np.int8, np.int8), (np.uint8, np.uint8), (np.int8, np.uint8)])
def test_unpack(kinds):
    """Everything that the sequences of a batch hold, and nothing else."""
    rows = batch([(300, 70, "prefill"), (0, 1, "prefill"), (511, 2, "prefill")])
    for kv, width in ((4, 256), (1, 96 if kinds[0] == np.int8 else 64)):
        k, v = caches(rows, kv, width, kinds)
        out = [cupy.asarray(fill(np.uint16, (*k.shape[:3], width))) for _ in range(2)]
        cuda.Unpack(cupy.asarray(k), cupy.asarray(v), DeviceBatch.of(rows), *out)()
        for got, cache in zip(out, (k, v), strict=True):
            want, written = numbers(cache).view(np.uint16), cache[..., -SCALES:].copy().view(np.uint16)[..., :1] != 0x7E7E
            assert written.any()
            assert_same_bits("values", got.get(), np.where(written, want, fill(np.uint16, want.shape)))


@pytest.mark.parametrize("kinds", [(kind, kind) for kind in STORED.values()] + [(np.int8, np.uint8)])
@pytest.mark.parametrize("layers", [(), (3,)])
def test_compact(layers, kinds):
    rng = np.random.default_rng(0)
    shape, pages = (*layers, 4, PAGE, 2, 32), np.array([2, 0, 3], np.int32)
    k, v = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    k, v = (as_stored(kind, x) if kind in QUANTIZED else x.astype(kind) for kind, x in zip(kinds, (k, v), strict=True))
    for path in ([0, 1, 2], [0, 3, 4, 30], [5], [*range(1, 64, 2)], []):
        want, got = [k.copy(), v.copy()], [cupy.asarray(k), cupy.asarray(v)]
        reference.compact(*want, pages=pages, length=250, path=np.array(path, np.int64))
        cuda.compact(*got, pages=pages, length=250, path=path)
        for a, b in zip(got, want, strict=True):
            assert_same_bits("cache", a.get(), b)


def test_refuses_what_does_not_fit():
    rows = batch([(10, 2, "chain")])
    here = DeviceBatch.of(rows)
    k, v = cupy.zeros((2, 3, PAGE, 2, 32), np.float16)
    q, out = cupy.zeros((2, 4, 32), np.float16), cupy.zeros((2, 128), np.float16)
    with pytest.raises(KernelError, match="H a multiple of 2"):
        cuda.Attend(cupy.zeros((2, 3, 32), np.float16), k, v, here, out)
    with pytest.raises(KernelError, match="attend: out: wanted"):
        cuda.Attend(q, k, v, here, out[:, ::2])
    with pytest.raises(KernelError, match="attend: gate: wanted"):
        cuda.Attend(q, k, v, here, out, gate=cupy.zeros((2, 128), np.float32))
    with pytest.raises(KernelError, match="a cache must be"):
        cuda.Prefill(q, k[:, :128], v, here, out)
    with pytest.raises(KernelError, match="at most 64 pending rows"):
        cuda.Attend(q, k, v, here, out)(65)
