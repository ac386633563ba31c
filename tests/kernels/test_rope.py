"""Norm, rotation and cache writes: recorded data, the definition, and bits that do not depend on other rows."""

from pathlib import Path

import numba
import numpy as np
import pytest
from batches import chain, fill, ragged, stored, tree
from compare import assert_close, assert_same_bits

from dflash.errors import KernelError
from dflash.kernels.kv_types import BLOCK, mixed, numbers
from dflash.kernels.ragged import PAGE
from dflash.kernels.rope import angles, reference, rotate, turn

DATA = Path(__file__).parent.parent / "data" / "kernels"
CACHES = (np.uint16, np.float32, np.int8, np.uint8)


def some(rng, *shape):
    return rng.standard_normal(shape, dtype=np.float32)


def inputs(rows, heads, kv, width, rotated, gated, seed=1):
    """Return projections, gains and tables of a batch."""
    rng, n = np.random.default_rng(seed), rows.row_starts[-1]
    positions = rows.length[rows.sequence] + rows.depth
    inv_freq = (10000.0 ** (-np.arange(rotated // 2) / max(1, rotated // 2))).astype(np.float32)
    cos, sin = np.full((2, n, rotated // 2), np.nan, np.float32)
    angles(positions, inv_freq, cos=cos, sin=sin)
    projections = [some(rng, n, heads * width * (2 if gated else 1)), some(rng, n, kv * width), some(rng, n, kv * width)]
    return [*projections, some(rng, width), some(rng, width), cos, sin]


def outputs(rows, heads, kv, width, kind):
    """Return queries with a guard row and caches with a spare page, all NaN."""
    q = np.full((rows.row_starts[-1] + 1, heads, width), np.nan, np.float32)
    return q, *(fill(kind, (rows.pages.max() + 2, PAGE, kv, stored(kind, width))) for _ in range(2))


def run(args, rows, heads, kv, width, kind, **settings):
    q, k, v = outputs(rows, heads, kv, width, kind)
    rotate(*args, rows, eps=1e-6, q=q[:-1], k=k, v=v, **settings)
    return q, k, v


@pytest.mark.parametrize("name", ["rope_hd256", "rope_hd64"])
@pytest.mark.parametrize("axes", ["1d", "3d"])
def test_rotation_is_as_recorded(name, axes):
    z = np.load(DATA / f"{name}.npz")
    positions, sections = (z["pos"], None) if axes == "1d" else (z["pos_thw"], tuple(z["sections"].tolist()))
    n, half, ratio = z["q"].shape[1], z["inv_freq"].size, 2e-6 if axes == "1d" else 5e-4
    cos, sin = np.full((2, n, half), np.nan, np.float32)
    angles(positions, z["inv_freq"], cos=cos, sin=sin, sections=sections)
    assert np.abs(cos - z[f"cos_{axes}"]).max() < ratio
    assert np.abs(sin - z[f"sin_{axes}"]).max() < ratio
    rows, one = ragged([(0, chain(n), False)]), np.ones(z["q"].shape[2], np.float32)
    q, k, v = outputs(rows, len(z["q"]), len(z["k"]), one.size, np.float32)
    query, key = (np.ascontiguousarray(z[x].transpose(1, 0, 2)).reshape(n, -1) for x in "qk")
    rotate(query, key, key, one, one, cos, sin, rows, eps=0.0, q=q[:-1], k=k, v=v)
    for part, got in (("q", q[:-1]), ("k", k[rows.pages[0, 0], :n])):
        norm = np.sqrt(np.mean(z[part].astype(np.float64) ** 2, axis=-1, keepdims=True))
        want = np.concatenate([z[f"{part}_{axes}"], z[part][..., 2 * half :]], -1)  # the record has what is rotated
        assert np.abs(got.transpose(1, 0, 2) * norm - want).max() < 2 * ratio


def test_angles_equal_the_definition():
    positions = np.array([0, 1, 4095, 262143], np.int32)
    inv_freq = (1e7 ** (-np.arange(32) / 32)).astype(np.float32)
    cos, sin, want_cos, want_sin = np.full((4, 4, 32), np.nan, np.float32)
    angles(positions, inv_freq, cos=cos, sin=sin)
    reference.angles(positions, inv_freq, cos=want_cos, sin=want_sin)
    assert np.abs(cos - want_cos).max() < 1e-7
    assert np.abs(sin - want_sin).max() < 1e-7


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("case", list(reference.cases()), ids=lambda case: case[0])
def test_rotation_equals_the_definition(case, kind):
    name, sequences, heads, kv, width, rotated, gated = case
    width += -width % BLOCK if kind == np.int8 else 0
    width = max(BLOCK, 1 << (width - 1).bit_length()) if kind == np.uint8 else width
    rng = np.random.default_rng(3)
    rows = ragged([(at, tree(rng, n) if form == "tree" else chain(n), form == "prefill") for at, n, form in sequences])
    args = inputs(rows, heads, kv, width, rotated, gated)
    q, k, v = run(args, rows, heads, kv, width, kind)
    want_q, want_k, want_v = outputs(rows, heads, kv, width, kind)
    reference.rotate(*args, rows, eps=1e-6, q=want_q[:-1], k=want_k, v=want_v)
    assert_close(name, q[:-1], want_q[:-1], 3e-7)
    assert np.isnan(q[-1]).all()
    assert_same_bits(name, v, want_v)
    written = ~np.isnan(numbers(want_k))
    assert_close(
        name,
        numbers(k)[written],
        numbers(want_k)[written],
        {np.float32: 3e-7, np.uint16: 5e-4, np.int8: 2e-3, np.uint8: 2e-2}[kind],
    )
    assert np.isnan(numbers(k)[~written]).all()
    for again, before in zip(run(args, rows, heads, kv, width, kind), (q, k, v), strict=True):
        assert_same_bits("again", again, before)


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("normed", [True, False])
def test_a_bias_is_added_before_the_norm(normed, kind):
    """It gives the bits of projections that have it already, and a row its own in every batch."""
    heads, kv, width = 6, 2, 64
    rows = ragged([(250, chain(16), False), (0, chain(70), True)])
    args = inputs(rows, heads, kv, width, 64, False)
    args[3:5] = args[3:5] if normed else (None, None)
    bias = some(np.random.default_rng(8), (heads + 2 * kv) * width)
    own = np.split(bias, (heads * width, (heads + kv) * width))
    got = run(args, rows, heads, kv, width, kind, bias=bias)
    want = run([*(x + b for x, b in zip(args, own, strict=False)), *args[3:]], rows, heads, kv, width, kind)
    for a, b in zip(got, want, strict=True):
        assert_same_bits("added before", a, b)
    want_q, want_k, want_v = outputs(rows, heads, kv, width, kind)
    reference.rotate(*args, rows, eps=1e-6, q=want_q[:-1], k=want_k, v=want_v, bias=bias)
    assert_close("queries", got[0][:-1], want_q[:-1], 3e-7)
    assert_same_bits("values", got[2], want_v)
    if kind == np.float32:
        assert_close("keys", got[1][rows.pages[1, 0], :70], want_k[rows.pages[1, 0], :70], 3e-7)
    row = run([None if x is None else x[:1] if len(x) == 86 else x for x in args], ragged([(250, [-1], False)]), heads, kv,
              width, kind, bias=bias)  # fmt: skip
    assert_same_bits("alone", row[0][0], got[0][0])


def test_a_bias_of_queries_with_gates_is_refused():
    rows = ragged([(0, chain(3), False)])
    args = inputs(rows, 2, 1, 64, 64, True)
    with pytest.raises(KernelError, match="rotate: bias: queries with gates have none"):
        run(args, rows, 2, 1, 64, np.float32, bias=np.zeros(4 * 64, np.float32))
    args = inputs(rows, 2, 1, 64, 64, False)
    with pytest.raises(KernelError, match="rotate: bias: wanted"):
        run(args, rows, 2, 1, 64, np.float32, bias=np.zeros(3 * 64, np.float32))


@pytest.mark.parametrize(
    ("n", "heads", "width", "rotated"), [(1, 1, 16, 2), (16, 8, 128, 128), (7, 3, 48, 32), (90, 8, 64, 64)]
)
def test_rotation_in_place_has_the_bits_of_rotate(n, heads, width, rotated):
    """In-place rotation matches the definition and has the bits of `rotate`."""
    rows = ragged([(5, chain(n), True)])
    query, key, value, gain, _, cos, sin = inputs(rows, heads, heads, width, rotated, False)
    x, want = key.reshape(n, heads, width).copy(), key.reshape(n, heads, width).astype(np.float64)
    turn(x, gain, cos, sin, eps=1e-6)
    reference.turn(want, gain, cos, sin, eps=1e-6)
    assert_close("turn", x, want, 3e-7)
    q, k, v = outputs(rows, heads, heads, width, np.float32)
    rotate(query, key, value, gain, gain, cos, sin, rows, eps=1e-6, q=q[:-1], k=k, v=v)
    assert_same_bits("as rotate", x, k[rows.pages[0, 0], 5 : 5 + n])
    if width & width - 1 == 0:
        x, before = key.reshape(n, heads, width).copy(), x
        turn(x, gain, cos, sin, eps=1e-6, mixes=True)
        assert_close("mixed", x, mixed(before.astype(np.float64)), 3e-7)
    else:
        with pytest.raises(KernelError, match="keys of q4_0 need heads of 32, 64, 128 or 256 values, got 48"):
            turn(x, gain, cos, sin, eps=1e-6, mixes=True)
    with pytest.raises(KernelError, match="turn: x must be"):
        turn(x[..., :15], gain, cos, sin, eps=1e-6)
    with pytest.raises(KernelError, match="turn: cos: wanted"):
        turn(x, gain, cos[1:], sin, eps=1e-6)


@pytest.mark.parametrize("kind", CACHES)
def test_a_row_has_the_same_bits_in_every_batch(kind):
    rng = np.random.default_rng(4)
    rows = ragged([(250, chain(16), False), (7, tree(rng, 40), False), (0, chain(70), True)])
    args = inputs(rows, 4, 2, 64, 32, True)
    q, k, v = run(args, rows, 4, 2, 64, kind)
    lone_q, lone_k, lone_v = outputs(rows, 4, 2, 64, kind)
    for row in range(rows.row_starts[-1]):
        s = rows.sequence[row]
        at = int(rows.length[s] + row - rows.row_starts[s])
        lone = ragged([(at, [-1], False)], pages=rows.pages[s : s + 1])
        one = slice(row, row + 1)
        gains = args[3:5]
        projections, tables = [a[one] for a in args[:3]], [a[one] for a in args[5:]]
        rotate(*projections, *gains, *tables, lone, eps=1e-6, q=lone_q[one], k=lone_k, v=lone_v)
    for together, alone in ((q, lone_q), (k, lone_k), (v, lone_v)):
        assert_same_bits("alone", alone, together)


def test_threads_change_nothing():
    rows = ragged([(3, chain(200), True)])
    args, before, results = inputs(rows, 4, 2, 64, 32, True), numba.get_num_threads(), []
    for n in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
        numba.set_num_threads(n)
        results.append((*inputs(rows, 4, 2, 64, 32, True), *run(args, rows, 4, 2, 64, np.uint16)))
    numba.set_num_threads(before)
    for one, two in zip(*results, strict=True):
        assert_same_bits("threads", one, two)


def test_refuses_what_does_not_fit():
    rows = ragged([(0, chain(2), False)])
    args = inputs(rows, 2, 1, 32, 16, True)
    q, k, v = outputs(rows, 2, 1, 32, np.float32)
    with pytest.raises(KernelError, match="3 rows of q for a batch of 2"):
        rotate(*args, rows, eps=1e-6, q=q, k=k, v=v)
    with pytest.raises(KernelError, match="rotate: query: wanted"):
        rotate(args[0][:, :-1], *args[1:], rows, eps=1e-6, q=q[:-1], k=k, v=v)
    with pytest.raises(KernelError, match="rotate: v: wanted contiguous float32"):
        rotate(*args, rows, eps=1e-6, q=q[:-1], k=k, v=v[:, :, :, ::-1])
    with pytest.raises(KernelError, match="a cache float32 or uint16"):
        rotate(*args, rows, eps=1e-6, q=q[:-1], k=k[:, :100], v=v)
    with pytest.raises(KernelError, match="positions must be int32"):
        angles(np.zeros(2), args[3], cos=args[5], sin=args[6])
    with pytest.raises(KernelError, match="need the sections"):
        angles(np.zeros((3, 2), np.int32), np.ones(8, np.float32), cos=args[5], sin=args[6])
