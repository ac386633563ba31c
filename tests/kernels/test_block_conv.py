"""The convolution of a draft model's blocks: the definition, and independence of blocks."""

from itertools import pairwise

import numba
import numpy as np
import pytest
from compare import assert_close, assert_same_bits

from dflash.errors import KernelError
from dflash.kernels.block_conv import block_conv, reference

CASES = list(reference.cases())


def inputs(sizes, width, groups, taps, seed=1):
    rng, n = np.random.default_rng(seed), sum(sizes)
    x, change, base = (
        rng.standard_normal(shape, dtype=np.float32) for shape in ((n, width), (n, 2 * taps * groups), (2, taps, width))
    )
    return x, change, base, np.array([0, *np.cumsum(sizes)], np.int32)


def guarded(n, width, value=np.nan):
    """Return an output with guard rows that must stay NaN."""
    whole = np.full((n + 2, width), np.nan, np.float32)
    whole[1:-1] = value
    return whole, whole[1:-1]


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_block_convolution_equals_the_definition(case, side, add):
    name, *sizes = case
    args = inputs(*sizes)
    before = np.random.default_rng(2).standard_normal(args[0].shape, dtype=np.float32) if add else np.nan
    whole, out = guarded(*args[0].shape, before)
    block_conv(*args, side=side, out=out, add=add)
    want = np.array(np.broadcast_to(before, args[0].shape), np.float64)
    reference.block_conv(*args, side=side, out=want, add=add)
    assert_close(name, out, want, 3e-7)
    assert np.isnan(whole[[0, -1]]).all()


def test_a_block_has_the_same_bits_alone():
    x, change, base, first = inputs([5, 1, 16, 90], 512, 32, 2)
    together, alone = np.empty_like(x), np.empty_like(x)
    block_conv(x, change, base, first, side=1, out=together)
    for start, end in pairwise(first):
        lone = np.array([0, end - start], np.int32)
        block_conv(x[start:end], change[start:end], base, lone, side=1, out=alone[start:end])
    assert_same_bits("alone", alone, together)


def test_the_first_row_has_no_row_above():
    x, change, base, first = inputs([2, 3], 64, 4, 2)
    x[1] = np.inf
    out = np.empty_like(x)
    block_conv(x, change, base, first, side=0, out=out)
    assert np.isfinite(out[2:]).all()


def test_threads_change_nothing():
    args, before, results = inputs([16] * 10, 512, 32, 2), numba.get_num_threads(), []
    for n in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
        numba.set_num_threads(n)
        results.append(np.empty_like(args[0]))
        block_conv(*args, side=0, out=results[-1])
    numba.set_num_threads(before)
    assert_same_bits("threads", *results)


def test_refuses_what_does_not_fit():
    x, change, base, first = inputs([4], 64, 4, 2)
    out = np.empty_like(x)
    with pytest.raises(KernelError, match="side 0 or 1"):
        block_conv(x, change, base, first, side=2, out=out)
    with pytest.raises(KernelError, match="makes no groups"):
        block_conv(x, change[:, :12], base, first, side=0, out=out)
    with pytest.raises(KernelError, match="block_conv: x"):
        block_conv(x[:, ::-1], change, base, first, side=0, out=out)
    with pytest.raises(KernelError, match="cover 4 rows"):
        block_conv(x, change, base, first + 1, side=0, out=out)
    with pytest.raises(KernelError, match="block_conv: out"):
        block_conv(x, change, base, first, side=0, out=out[:2])
