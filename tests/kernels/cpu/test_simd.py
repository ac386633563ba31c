"""SIMD operations against NumPy."""

import numba
import numpy as np
import pytest

from dflash.kernels.cpu import simd


@numba.njit
def each(function, source, target, n):
    for i in range(0, 4 * n, 64):
        simd.store_f32(target + i, function(simd.load_f32(source + i)))


@numba.njit
def exp(x):
    return simd.exp(x)


@numba.njit
def silu(x):
    return simd.silu(x)


@numba.njit
def sigmoid(x):
    return simd.sigmoid(x)


def apply(function, x):
    x = np.ascontiguousarray(x, np.float32)
    out = np.full_like(x, np.nan)
    each(function, x.ctypes.data, out.ctypes.data, x.size)
    return out


GRID = np.linspace(-87.3, 88.7, 1 << 20)


def test_exp_is_within_an_ulp():
    x = GRID.astype(np.float32)
    want = np.exp(x.astype(np.float64))
    error = np.abs(apply(exp, x) - want) / np.spacing(want.astype(np.float32))
    assert error.max() < 1.01


def test_exp_at_the_ends():
    x = np.zeros(16, np.float32)
    x[:7] = 0, -88, -1000, 1000, np.nan, -np.inf, np.inf
    got = apply(exp, x)
    assert got[0] == 1
    assert (got[[1, 2, 5]] == 0).all()
    assert (got[[3, 6]] > 3.4e38).all()
    assert np.isnan(got[4])


@pytest.mark.parametrize("function", [silu, sigmoid], ids=["silu", "sigmoid"])
def test_gates_equal_the_definition(function):
    x = np.concatenate([GRID, np.zeros(16)]).astype(np.float32)
    wide = x.astype(np.float64)
    want = 1 / (1 + np.exp(-wide))
    if function is silu:
        want = wide * want
    np.testing.assert_allclose(apply(function, x), want, rtol=4e-7, atol=1e-37)


@numba.njit
def reduce(source, sums):
    x = simd.load_f32(source)
    sums[0], sums[1] = simd.hsum(x), simd.hmax(x)


def test_sums_are_a_tree():
    x = np.random.default_rng(0).standard_normal(16).astype(np.float32)
    got = np.zeros(2, np.float32)
    reduce(x.ctypes.data, got)
    tree = x.copy()
    while tree.size > 1:
        tree = tree[: tree.size // 2] + tree[tree.size // 2 :]
    assert got[0] == tree[0]
    assert got[1] == x.max()


@numba.njit
def widen(source, target, n):
    for i in range(0, n, 16):
        simd.store_f32(target + 4 * i, simd.load_f16(source + 2 * i))


@numba.njit
def narrow(source, target, n):
    for i in range(0, n, 16):
        simd.store_f16(target + 2 * i, simd.load_f32(source + 4 * i))


def test_every_half_goes_there_and_back():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    wide, back = np.empty(1 << 16, np.float32), np.empty(1 << 16, np.float16)
    widen(halves.ctypes.data, wide.ctypes.data, halves.size)
    narrow(wide.ctypes.data, back.ctypes.data, halves.size)
    np.testing.assert_array_equal(wide, halves.astype(np.float32))
    np.testing.assert_array_equal(back, halves)


def test_halves_are_rounded_to_even():
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(1 << 14) * 10.0 ** rng.integers(-8, 6, 1 << 14)).astype(np.float32)
    got = np.empty(x.size, np.float16)
    narrow(x.ctypes.data, got.ctypes.data, x.size)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, x.astype(np.float16))
