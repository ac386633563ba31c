"""Attention over pages: recorded data, the definition, and the same bits for any split of the sequence into passes."""

from pathlib import Path

import numba
import numpy as np
import pytest
from batches import as_stored, batch, chain, fill, ragged, stored
from compare import assert_close, assert_same_bits

from dflash.errors import KernelError
from dflash.kernels.attention import attend, compact, reference
from dflash.kernels.kv_types import BLOCK, numbers
from dflash.kernels.ragged import PAGE
from dflash.kernels.rope import angles, rotate

DATA = Path(__file__).parent.parent / "data" / "kernels"
CACHES = (np.uint16, np.float32, np.int8, np.uint8)
SHAPES = [(4, 2, 256, np.uint16), (3, 1, 64, np.float32), (4, 2, 256, np.int8), (3, 1, 32, np.int8), (3, 1, 64, np.uint8)]


def caches(rows, kv, width, kind, seed=5):
    """Return keys and values of all places that a batch reads; all other places and a spare page are NaN."""
    rng, made = np.random.default_rng(seed), []
    for _ in range(2):
        cache = fill(kind, (rows.pages.max() + 2, PAGE, kv, stored(kind, width)))
        for s, length in enumerate(rows.length):
            index = np.arange(length + rows.row_starts[s + 1] - rows.row_starts[s])
            values = rng.standard_normal((len(index), kv, width), dtype=np.float32)
            cache[rows.pages[s, index // PAGE], index % PAGE] = as_stored(kind, values)
        made.append(cache)
    return made


def queries(rows, heads, width, seed=7):
    """Return queries, and the projection with the gates."""
    rng, n = np.random.default_rng(seed), rows.row_starts[-1]
    return [rng.standard_normal(shape, dtype=np.float32) for shape in ((n, heads, width), (n, heads * 2 * width))]


def run(q, k, v, rows, gate=None, window=0):
    """Return an output with a guard row of NaN."""
    out = np.full((len(q) + 1, q.shape[1] * q.shape[2]), np.nan, np.float32)
    attend(q, k, v, rows, out=out[:-1], gate=gate, window=window)
    assert np.isnan(out[-1]).all()
    return out[:-1]


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("case", list(reference.cases()), ids=lambda case: case[0])
def test_attention_equals_the_definition(case, kind):
    name, sequences, heads, kv, width = case
    width += -width % BLOCK if kind in (np.int8, np.uint8) else 0
    rows = batch(sequences)
    k, v = caches(rows, kv, width, kind)
    q, gate = queries(rows, heads, width)
    before = k.copy(), v.copy()
    for opening in (None, gate):
        out = run(q, k, v, rows, opening)
        want = np.empty(out.shape)
        reference.attend(q, k, v, rows, out=want, gate=opening)
        assert_close(name, out, want, 1e-6)
        assert_same_bits("again", run(q, k, v, rows, opening), out)
    assert_same_bits("keys", k, before[0])
    assert_same_bits("values", v, before[1])


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("window", [1, 5, 64, 300])
@pytest.mark.parametrize("case", list(reference.cases()), ids=lambda case: case[0])
def test_a_window_hides_older_positions(case, window, kind):
    name, sequences, heads, kv, width = case
    width += -width % BLOCK if kind in (np.int8, np.uint8) else 0
    rows = batch(sequences)
    k, v = caches(rows, kv, width, kind)
    q, gate = queries(rows, heads, width)
    out = run(q, k, v, rows, gate, window)
    want = np.empty(out.shape)
    reference.attend(q, k, v, rows, out=want, gate=gate, window=window)
    assert_close(name, out, want, 1e-6)
    assert_same_bits("a window of all tokens", run(q, k, v, rows, gate, 1 << 20), run(q, k, v, rows, gate))


@pytest.mark.parametrize("window", [3, 70, 257])
def test_chunks_with_a_window(window):
    """A prompt in chunks, in single rows, and with the pages as tasks of several threads has the bits of one pass."""
    n, width = 600, 64
    whole = ragged([(0, chain(n), True)])
    k, v = caches(whole, 2, width, np.float32)
    q, _ = queries(whole, 4, width)
    want = run(q, k, v, whole, window=window)
    for step in (1, 37, 256):
        for start in range(0, n, step):
            part = q[start : start + step].copy()
            rows = ragged([(start, chain(len(part)), True)], pages=whole.pages)
            assert_same_bits(f"{step} from {start}", run(part, k, v, rows, window=window), want[start : start + step])
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    assert_same_bits("one thread", run(q, k, v, whole, window=window), want)
    numba.set_num_threads(threads)


@pytest.mark.parametrize("name", ["attn_hd256", "attn_hd64_mqa"])
def test_recorded(name):
    z = np.load(DATA / f"{name}.npz")
    n, heads, kv, width, n_rot = len(z["x"]), *(int(z[x]) for x in ("n_head", "n_head_kv", "head_dim", "n_rot"))
    positions = np.arange(n, dtype=np.int32)
    inv_freq = (float(z["theta"]) ** (-np.arange(n_rot // 2) / (n_rot // 2))).astype(np.float32)
    cos, sin = np.empty((2, n, n_rot // 2), np.float32)
    angles(positions, inv_freq, cos=cos, sin=sin)
    projections = [(z["x"].astype(np.float64) @ z[f"attn_{x}"].T).astype(np.float32) for x in "qkv"]
    gains = z["attn_q_norm_gguf"], z["attn_k_norm_gguf"]
    k, v = (fill(np.float32, (2, PAGE, kv, width)) for _ in range(2))
    q, plain, gated = (np.full((n, *shape), np.nan, np.float32) for shape in ((heads, width), *((heads * width,),) * 2))
    first = int(z["n_first"])
    for part in (slice(0, first), slice(first, n)):
        rows = ragged([(part.start, chain(part.stop - part.start), True)], pages=[[1]])
        query, key, value = (p[part] for p in projections)
        rotate(query, key, value, *gains, cos[part], sin[part], rows, eps=float(z["eps"]), q=q[part], k=k, v=v)
        attend(q[part], k, v, rows, out=plain[part])
        attend(q[part], k, v, rows, out=gated[part], gate=query)
    assert np.abs(q - z["q"]).max() < 5e-6
    assert np.abs(k[1, :n].transpose(1, 0, 2) - z["k"]).max() < 5e-6
    assert np.abs(plain.reshape(z["o_pregate"].shape) - z["o_pregate"]).max() < 5e-6
    assert np.abs(gated.astype(np.float64) @ z["attn_output"].T - z["y"]).max() < 5e-6


@pytest.mark.parametrize(("heads", "kv", "width", "kind"), SHAPES)
@pytest.mark.parametrize("length", [0, 250, 600])
def test_a_chain_is_one_row_after_another(length, heads, kv, width, kind):
    rows = ragged([(length, chain(16), False)])
    k, v = caches(rows, kv, width, kind)
    q, gate = queries(rows, heads, width)
    together = run(q, k, v, rows, gate)
    for i in range(16):
        alone = ragged([(length + i, [-1], False)], pages=rows.pages)
        later_k, later_v = k.copy(), v.copy()
        for at in range(length + i + 1, length + 16):
            for cache in (later_k, later_v):
                cache[rows.pages[0, at // PAGE], at % PAGE] = fill(kind, 1)[0]
        assert_same_bits(f"row {i}", run(q[i : i + 1], later_k, later_v, alone, gate[i : i + 1])[0], together[i])


@pytest.mark.parametrize(("heads", "kv", "width", "kind"), SHAPES)
@pytest.mark.parametrize("length", [0, 210, 600])
def test_a_path_of_a_tree_is_a_chain_after_compaction(length, heads, kv, width, kind):
    rows = batch([(length, 64, "tree")])
    k, v = caches(rows, kv, width, kind)
    q, gate = queries(rows, heads, width)
    out = run(q, k, v, rows, gate)
    for leaf in (63, int(rows.depth.argmax())):
        path = [leaf]
        while rows.parent[path[0]] >= 0:
            path.insert(0, int(rows.parent[path[0]]))
        own_k, own_v = k.copy(), v.copy()
        compact(own_k, own_v, pages=rows.pages[0], length=length, path=path)
        straight = ragged([(length, chain(len(path)), False)], pages=rows.pages)
        assert_same_bits("chain", run(q[path], own_k, own_v, straight, gate[path]), out[path])
        last = ragged([(length + len(path) - 1, [-1], False)], pages=rows.pages)
        assert_same_bits("committed", run(q[[leaf]], own_k, own_v, last, gate[[leaf]]), out[[leaf]])


@pytest.mark.parametrize("kind", CACHES)
def test_other_sequences_change_nothing(kind):
    sequences = [
        (0, 3, "tree"),
        (255, 16, "chain"),
        (600, 1, "chain"),
        (257, 64, "tree"),
        (130, 70, "prefill"),
        (900, 1, "chain"),
    ]
    rows = batch(sequences)
    k, v = caches(rows, 2, 64, kind)
    q, gate = queries(rows, 4, 64)
    together = run(q, k, v, rows, gate)
    for s in range(len(sequences)):
        own = slice(rows.row_starts[s], rows.row_starts[s + 1])
        parents, whole = rows.parent[own].tolist(), bool(rows.prefill[s])
        alone = ragged([(int(rows.length[s]), parents, whole)], pages=rows.pages[s : s + 1])
        assert_same_bits(f"sequence {s}", run(q[own], k, v, alone, gate[own]), together[own])


@pytest.mark.parametrize(("heads", "kv", "width", "kind"), SHAPES)
def test_chunks_of_a_prompt_change_nothing(heads, kv, width, kind):
    rows = ragged([(0, chain(600), True)])
    k, v = caches(rows, kv, width, kind)
    q, gate = queries(rows, heads, width)
    whole = run(q, k, v, rows, gate)
    start = 0
    for end in (70, 256, 257, 258, 599, 600):
        chunk = ragged([(start, chain(end - start), True)], pages=rows.pages)
        part = run(q[start:end], k, v, chunk, gate[start:end])
        assert_same_bits(f"{start}:{end}", part, whole[start:end])
        start = end


def test_a_later_row_never_shows():
    rows = ragged([(20, chain(16), False)])
    k, v = caches(rows, 1, 64, np.float32)
    q, gate = queries(rows, 4, 64)
    want = run(q, k, v, rows, gate)
    for row in range(1, 16):
        for cache in (k, v):
            cache[rows.pages[0, 0], 20 + row :] = np.nan
        assert_same_bits(f"row {row}", run(q, k, v, rows, gate)[:row], want[:row])
        k, v = caches(rows, 1, 64, np.float32)


@pytest.mark.parametrize(
    ("keys", "values"),
    [(np.int8, np.int8), (np.int8, np.uint16), (np.uint16, np.int8), (np.uint8, np.uint8), (np.int8, np.uint8)],
)
def test_quantized_caches_have_the_bits_of_their_values_in_float16(keys, values):
    rows = batch([(250, 16, "chain"), (700, 20, "tree"), (30, 70, "prefill")])
    k, v = caches(rows, 2, 128, keys)[0], caches(rows, 2, 128, values)[1]
    q, gate = queries(rows, 6, 128)
    halves = [np.ascontiguousarray(numbers(cache)).view(np.uint16) for cache in (k, v)]
    assert_same_bits("halves", run(q, k, v, rows, gate), run(q, *halves, rows, gate))


@pytest.mark.parametrize("sequences", [[(3000, 1, "chain")], [(700, 64, "tree")], [(300, 200, "prefill"), (20, 5, "tree")]])
def test_threads_change_nothing(sequences):
    rows = batch(sequences)
    k, v = caches(rows, 2, 128, np.uint16)
    q, gate = queries(rows, 6, 128)
    before, results = numba.get_num_threads(), []
    for n in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
        numba.set_num_threads(n)
        results.append(run(q, k, v, rows, gate))
    numba.set_num_threads(before)
    assert_same_bits("threads", *results)


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("layers", [(), (3,)])
def test_compaction_moves_accepted_rows(layers, kind):
    rng = np.random.default_rng(0)
    shape, pages = (*layers, 4, PAGE, 2, 32), np.array([2, 0, 3], np.int32)
    k, v = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    k, v = as_stored(kind, k), as_stored(kind, v)
    for path in ([0, 1, 2], [0, 3, 4, 30], [5], [*range(1, 64, 2)], []):
        want_k, want_v, got_k, got_v = k.copy(), v.copy(), k.copy(), v.copy()
        reference.compact(want_k, want_v, pages=pages, length=250, path=np.array(path, np.int64))
        compact(got_k, got_v, pages=pages, length=250, path=path)
        assert_same_bits("keys", got_k, want_k)
        assert_same_bits("values", got_v, want_v)


def test_refuses_what_does_not_fit():
    rows = batch([(10, 2, "chain")])
    k, v = caches(rows, 2, 32, np.float32)
    q, gate = queries(rows, 4, 32)
    out = np.empty((2, 128), np.float32)
    with pytest.raises(KernelError, match="H a multiple of 2"):
        attend(q[:, :3], k, v, rows, out=out)
    with pytest.raises(KernelError, match="1 rows of q for a batch of 2"):
        attend(q[:1], k, v, rows, out=out)
    with pytest.raises(KernelError, match="out: wanted"):
        attend(q, k, v, rows, out=out[:, ::2])
    with pytest.raises(KernelError, match="gate: wanted"):
        attend(q, k, v, rows, out=out, gate=gate[:, :128])
    with pytest.raises(KernelError, match="a cache must be"):
        attend(q, k[:, :128], v, rows, out=out)
    with pytest.raises(KernelError, match="v is float32"):
        attend(q, k, v[:1], rows, out=out)
    with pytest.raises(KernelError, match="v is int8"):
        attend(q, k, fill(np.int8, k.shape), rows, out=out)
    with pytest.raises(KernelError, match="a cache is strided"):
        compact(k[..., ::2], v[..., ::2], pages=rows.pages[0], length=10, path=[0])
