"""Norm, rotation and the way into the cache on a GPU: against the definition, and in any company."""

import numpy as np
import pytest
from batches import batch, fill, fitting, ragged, stored
from compare import assert_close, assert_same_bits

from dflash.errors import KernelError
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.kv_types import KV_TYPES, numbers, quantize
from dflash.kernels.ragged import PAGE
from dflash.kernels.rope import reference

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("dflash.kernels.rope.cuda")
device = pytest.importorskip("dflash.kernels.gpu.device")

PLAIN = (np.uint16, np.float32)
CACHES = {kind.__name__: (kind, kind) for kind in (*PLAIN, np.int8, np.uint8)}
CACHES |= {"int8 and uint8": (np.int8, np.uint8), "uint8 and int8": (np.uint8, np.int8)}
"""Types of keys and of values."""
KEY_ERRORS = {np.float32: 3e-7, np.int8: 2e-3, np.uint8: 2e-2}
"""RMS error over RMS of stored keys: a value that rounds to another step differs by it; 5e-4 of halves."""
TRUE = [
    ("27B", [(4090, 16, "chain")], 24, 4, 256, 64, True),
    ("35B-A3B", [(300, 64, "tree")], 16, 2, 256, 64, True),
    ("draft", [(70, 16, "chain"), (511, 5, "chain")], 32, 8, 128, 128, False),
]
CASES = [*reference.cases(), *TRUE]


def inputs(rows, heads, kv, width, rotated, gated, seed=1):
    """Projections, gains and tables of a batch."""
    rng, n = np.random.default_rng(seed), int(rows.row_starts[-1])
    angles = rng.uniform(0, 6, (n, rotated // 2))
    shapes = (n, heads * width * (2 if gated else 1)), (n, kv * width), (n, kv * width), (width,), (width,)
    return [*(rng.standard_normal(s, dtype=np.float32) for s in shapes), *np.float32([np.cos(angles), np.sin(angles)])]


def run(args, rows, heads, kv, width, kinds, *, bucket=None, **settings):
    """Queries with a guard row, and caches with a spare page; all were NaN."""
    n, room = int(rows.row_starts[-1]), (bucket or int(rows.row_starts[-1])) + 1
    here = DeviceBatch(room, len(rows.slot), rows.pages.shape[1])
    here.upload(np.zeros(n, np.int32), rows)
    q = cupy.asarray(fill(np.float32 if kinds[0] == np.float32 else np.uint16, (room, heads, width)))
    k, v = (cupy.asarray(fill(kind, (rows.pages.max() + 2, PAGE, kv, stored(kind, width)))) for kind in kinds)
    projections = (*args[:3], *args[5:])
    padded = [a if a is None else cupy.asarray(np.resize(a, (room, *a.shape[1:]))) for a in projections]
    gains = [a if a is None else cupy.asarray(a) for a in args[3:5]]
    op = cuda.Rotate(*padded[:3], *gains, *padded[3:], here, eps=1e-6, q=q, k=k, v=v, **settings)
    op(bucket or n)
    q, k, v = q.get(), k.get(), v.get()
    assert np.isnan(numbers(q[n:])).all()
    return q[:n], k, v


@pytest.mark.parametrize("kinds", CACHES.values(), ids=CACHES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_rotate(case, kinds):
    name, sequences, heads, kv, width, rotated, gated = case
    width = fitting(kinds, width)
    rows = batch(sequences)
    args = inputs(rows, heads, kv, width, rotated, gated)
    q, k, v = run(args, rows, heads, kv, width, kinds)
    want_q = np.empty((len(q), heads, width), np.float32)
    want_k, want_v = (fill(kind, cache.shape) for kind, cache in zip(kinds, (k, v), strict=True))
    reference.rotate(*args, rows, eps=1e-6, q=want_q, k=want_k, v=want_v)
    assert_close(name, numbers(q), want_q, 3e-7 if kinds[0] == np.float32 else 5e-4)
    assert_same_bits(name, v, want_v)
    written = ~np.isnan(numbers(want_k))
    assert_close(name, numbers(k)[written], numbers(want_k)[written], KEY_ERRORS.get(kinds[0], 5e-4))
    assert np.isnan(numbers(k)[~written]).all()
    for again, before in zip(run(args, rows, heads, kv, width, kinds, bucket=len(q) + 9), (q, k, v), strict=True):
        assert_same_bits("again, in a larger bucket", again, before)


@pytest.mark.parametrize("width", [32, 256, 512])
@pytest.mark.parametrize("kinds", CACHES.values(), ids=CACHES)
def test_normed_values_and_layers_without_keys(kinds, width):
    """Values are normed without a gain; without keys, queries have the same bits and the cache is not touched."""
    if kinds[0] in (np.int8, np.uint8) and width > 256:
        pytest.skip("a quantized cache has heads of up to 256")
    rows = batch([(250, 16, "chain"), (7, 9, "prefill")])
    args = inputs(rows, 4, 2, width, width, False)
    q, k, v = run(args, rows, 4, 2, width, kinds, value_norm=True)
    heads = args[2].astype(np.float64).reshape(-1, width)
    normed = heads / np.sqrt(np.mean(heads**2, axis=1, keepdims=True) + 1e-6)
    plain = run(args, rows, 4, 2, width, kinds)
    assert_same_bits("queries", q, plain[0])
    assert_same_bits("keys", k, plain[1])
    with_values = [*args[:2], normed.reshape(args[2].shape).astype(np.float32), *args[3:]]
    want_v = run(with_values, rows, 4, 2, width, kinds)[2]
    written = ~np.isnan(numbers(want_v))
    assert_close(
        "values", numbers(v)[written], numbers(want_v)[written], {np.float32: 3e-7, np.uint8: 2e-2}.get(kinds[1], 2e-3)
    )
    alone, *caches = run([args[0], None, None, args[3], None, *args[5:]], rows, 4, 2, width, kinds)
    assert_same_bits("queries alone", alone, q)
    for cache in caches:
        assert np.isnan(numbers(cache)).all()


@pytest.mark.parametrize("kinds", CACHES.values(), ids=CACHES)
def test_keys_and_values_alone_have_the_bits_of_those_beside_queries(kinds):
    rows, (heads, kv, width) = batch([(250, 16, "chain"), (7, 9, "prefill")]), (6, 2, 64)
    for args, bias in (
        (inputs(rows, heads, kv, width, width, True), None),
        (inputs(rows, heads, kv, width, width, False), 1),
    ):
        whole, own = {}, {}
        if bias is not None:
            values = np.random.default_rng(9).standard_normal((heads + 2 * kv) * width, dtype=np.float32)
            whole, own = {"bias": cupy.asarray(values)}, {"bias": cupy.asarray(values[heads * width :])}
        _, *want = run(args, rows, heads, kv, width, kinds, **whole)
        none = np.empty((len(args[0]), 0), np.float32)
        _, *got = run([none, *args[1:]], rows, 0, kv, width, kinds, **own)
        for name, a, b in zip(("keys", "values"), got, want, strict=True):
            assert_same_bits(name, a, b)


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(("heads", "kv", "width"), [(9, 3, 64), (12, 2, 128), (6, 2, 256)])
@pytest.mark.parametrize("kinds", CACHES.values(), ids=CACHES)
def test_a_bias_and_heads_without_a_norm(kinds, heads, kv, width, normed):
    """A bias gives the bits of projections that have it already."""
    rows = batch([(250, 16, "chain"), (7, 9, "prefill")])
    args = inputs(rows, heads, kv, width, width, False)
    args[3:5] = args[3:5] if normed else (None, None)
    bias = np.random.default_rng(9).standard_normal((heads + 2 * kv) * width, dtype=np.float32)
    added = np.split(bias, (heads * width, (heads + kv) * width))
    got = run(args, rows, heads, kv, width, kinds, bias=cupy.asarray(bias))
    want = run([*(x + b for x, b in zip(args, added, strict=False)), *args[3:]], rows, heads, kv, width, kinds)
    for name, a, b in zip(("queries", "keys", "values"), got, want, strict=True):
        assert_same_bits(name, a, b)
    want_q = np.empty((len(got[0]), heads, width), np.float32)
    want_k, want_v = (fill(kind, cache.shape) for kind, cache in zip(kinds, got[1:], strict=True))
    reference.rotate(*args, rows, eps=1e-6, q=want_q, k=want_k, v=want_v, bias=bias)
    assert_close("queries", numbers(got[0]), want_q, 3e-7 if kinds[0] == np.float32 else 5e-4)
    assert_same_bits("values", got[2], want_v)


def test_a_bias_of_queries_with_gates_is_refused():
    with pytest.raises(KernelError, match="rotate: bias: queries with gates have none"):
        rows = batch([(0, 2, "chain")])
        run(inputs(rows, 2, 1, 32, 16, True), rows, 2, 1, 32, PLAIN[:1] * 2, bias=cupy.zeros(4 * 32, np.float32))


@pytest.mark.parametrize("kinds", CACHES.values(), ids=CACHES)
def test_a_row_has_the_same_bits_in_every_batch(kinds):
    rows = batch([(250, 16, "chain"), (7, 40, "tree"), (0, 8, "prefill")])
    args = inputs(rows, 24, 4, 256, 64, True)
    q, k, v = run(args, rows, 24, 4, 256, kinds)
    for row in (0, 7, 15, 16, 40, 63):
        s = rows.sequence[row]
        at = int(rows.length[s] + row - rows.row_starts[s])
        lone = ragged([(at, [-1], False)], pages=rows.pages[s : s + 1])
        own = [a[row : row + 1] if i not in (3, 4) else a for i, a in enumerate(args)]
        one, keys, values = run(own, lone, 24, 4, 256, kinds)
        assert_same_bits("query", one[0], q[row])
        place = rows.pages[s, at // PAGE], at % PAGE
        assert_same_bits("key", keys[place], k[place])
        assert_same_bits("value", values[place], v[place])


def test_halves_saturate():
    rows = batch([(0, 2, "chain")])
    args = inputs(rows, 2, 1, 64, 32, False)
    args[2][:] = 1e6
    args[2][1] *= -1
    v = numbers(run(args, rows, 2, 1, 64, (np.uint16, np.uint16))[2])[rows.pages[0, 0], :2]
    assert (v == np.float16([65504, -65504])[:, None, None]).all()


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize(("kv", "width", "rotated"), [(8, 128, 128), (1, 48, 32)])
def test_layers_together_are_those_one_by_one(kv, width, rotated, kind):
    """Keys of all layers side by side, values one below the other."""
    rows, layers = batch([(70, 16, "chain"), (511, 5, "chain")]), 3
    n = int(rows.row_starts[-1])
    here = DeviceBatch(n + 1, len(rows.slot), rows.pages.shape[1])
    here.upload(np.zeros(n, np.int32), rows)
    of_layer = [inputs(rows, kv, kv, width, rotated, False, seed=i) for i in range(layers)]
    cos, sin = (cupy.asarray(table) for table in of_layer[0][5:])
    k, v = (cupy.asarray(fill(kind, (layers, rows.pages.max() + 2, PAGE, kv, width))) for _ in range(2))
    side = cupy.asarray(np.concatenate([args[1] for args in of_layer], axis=1))
    keys = [side[:, i * kv * width : (i + 1) * kv * width] for i in range(layers)]
    values = [cupy.asarray(args[2]) for args in of_layer]
    gains = cupy.asarray(np.stack([args[4] for args in of_layer]))
    cuda.Append(keys, values, gains, cos, sin, here, eps=1e-6, k=k, v=v)(n)
    for i, args in enumerate(of_layer):
        _, want_k, want_v = run([*args[:5], *of_layer[0][5:]], rows, kv, kv, width, (kind, kind))
        assert_same_bits("keys", k[i].get(), want_k)
        assert_same_bits("values", v[i].get(), want_v)
    with pytest.raises(KernelError, match="append: rows must be float32"):
        cuda.Append(keys, [value[:-1] for value in values], gains, cos, sin, here, eps=1e-6, k=k, v=v)


@pytest.mark.parametrize("kv", ["q8_0", "q4_0"])
def test_the_scale_of_a_quantized_block_saturates(kv):
    rows = batch([(0, 2, "chain")])
    args = inputs(rows, 2, 1, 64, 32, False)
    args[2][:] = 1e6
    args[2][1] *= -1
    kind = KV_TYPES[kv].dtype
    v = run(args, rows, 2, 1, 64, (kind, kind))[2][rows.pages[0, 0], :2]
    assert_same_bits("values", v, quantize(args[2].reshape(2, 1, 64), kv))
    assert np.isfinite(numbers(v)).all()


@pytest.mark.parametrize("gain", [1.0, 1.25])
def test_angles(gain):
    positions = np.array([0, 1, 4095, 262143, 77], np.int32)
    inv_freq = (1e7 ** (-np.arange(32) / 32)).astype(np.float32)
    want_cos, want_sin = np.empty((2, 5, 32), np.float32)
    reference.angles(positions, inv_freq, cos=want_cos, sin=want_sin)
    cos, sin = cupy.full((2, 5, 32), np.nan, np.float32)
    cuda.Angles(cupy.asarray(positions), cupy.asarray(inv_freq), cos, sin, gain=gain)(4)
    assert np.abs(cos.get()[:4] - want_cos[:4] * np.float32(gain)).max() < 1e-7
    assert np.abs(sin.get()[:4] - want_sin[:4] * np.float32(gain)).max() < 1e-7
    assert cupy.isnan(cos[4]).all()


def test_refuses_what_does_not_fit():
    rows = batch([(0, 2, "chain")])
    here = DeviceBatch.of(rows)
    args = [cupy.asarray(a) for a in inputs(rows, 2, 1, 32, 16, True)]
    k, v = cupy.zeros((2, 3, PAGE, 1, 32), np.float16)
    q = cupy.zeros((2, 2, 32), np.float16)
    with pytest.raises(KernelError, match="rotate: query: wanted"):
        cuda.Rotate(args[0][:, :-1], *args[1:], here, eps=1e-6, q=q, k=k, v=v)
    with pytest.raises(KernelError, match="a cache must be"):
        cuda.Rotate(*args, here, eps=1e-6, q=q, k=k[:, :100], v=v)
    with pytest.raises(KernelError, match="q must be contiguous float16"):
        cuda.Rotate(*args, here, eps=1e-6, q=q.astype(np.float32), k=k, v=v)
