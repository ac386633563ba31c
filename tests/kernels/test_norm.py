"""Norms: recorded results, the definition, and bits that do not depend on other rows."""

from pathlib import Path

import numba
import numpy as np
import pytest
from compare import assert_close, assert_same_bits
from recurrent import assert_guards, guarded

from dflash.errors import KernelError
from dflash.kernels.norm import cpu, gated_rms_norm, reference, rms_norm

DATA = Path(__file__).parent.parent / "data" / "kernels"
CASES = list(reference.cases())
IDS = [name for name, *_ in CASES]


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def test_norms_are_as_recorded():
    g = np.load(DATA / "rmsnorm.npz")
    out = np.full_like(g["x"], np.nan)
    rms_norm(g["x"], g["weight_gguf"], float(g["eps"]), out=out)
    np.testing.assert_allclose(out, g["y"], rtol=2e-6, atol=0)


def test_gated_norms_are_as_recorded():
    g = np.load(DATA / "rmsnorm_gated.npz")
    out = np.full_like(g["x"], np.nan)
    gated_rms_norm(g["x"][:, None], g["z"], g["weight"], float(g["eps"]), out=out)
    np.testing.assert_allclose(out, g["y"], rtol=2e-6, atol=1e-8)


@pytest.mark.parametrize(("name", "n", "width"), CASES, ids=IDS)
def test_norms_equal_the_definition(name, n, width):
    x, weight = random(n, width), random(width, seed=1)
    room, out = guarded(n, width)
    rms_norm(x, weight, 1e-6, out=out)
    want = np.empty(x.shape)
    reference.rms_norm(x, weight, 1e-6, out=want)
    assert_close(name, out, want, 2e-7)
    assert_guards(room)


@pytest.mark.parametrize(("name", "n", "width"), CASES, ids=IDS)
def test_gated_rms_norm(name, n, width):
    x, z, weight = random(n, 3, width), random(n, 3 * width, seed=1), random(width, seed=2)
    room, out = guarded(n, 3 * width)
    gated_rms_norm(x, z, weight, 1e-6, out=out)
    want = np.empty(z.shape)
    reference.gated_rms_norm(x, z, weight, 1e-6, out=want)
    assert_close(name, out, want, 2e-7)
    assert_guards(room)


@pytest.mark.parametrize("width", [7, 64, 130])
def test_a_row_has_the_same_bits_in_every_batch(width):
    x, z, weight = random(1030, 3, width), random(1030, 3 * width, seed=1), random(width, seed=2)
    out, gated = np.empty_like(x[:, 0]), np.empty_like(z)
    rms_norm(np.ascontiguousarray(x[:, 0]), weight, 1e-6, out=out)
    gated_rms_norm(x, z, weight, 1e-6, out=gated)
    for row in (0, 8, 517, 1029):
        alone, gated_alone = np.empty_like(out[:1]), np.empty_like(z[:1])
        rms_norm(x[row, :1], weight, 1e-6, out=alone)
        gated_rms_norm(x[row : row + 1], z[row : row + 1], weight, 1e-6, out=gated_alone)
        assert_same_bits("row", out[row : row + 1], alone)
        assert_same_bits("gated row", gated[row : row + 1], gated_alone)


def test_bits_do_not_depend_on_the_number_of_threads():
    x, z, weight = random(65, 3, 48), random(65, 3 * 48, seed=1), random(48, seed=2)
    outs = [np.empty_like(z) for _ in range(3)]
    cpu.gated_rms_norm(x, z, weight, 1e-6, outs[0])
    cpu.gated_rms_norm_parallel(x, z, weight, 1e-6, outs[1])
    numba.set_num_threads(1)
    try:
        cpu.gated_rms_norm_parallel(x, z, weight, 1e-6, outs[2])
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    assert_same_bits("all threads", outs[1], outs[0])
    assert_same_bits("one thread", outs[2], outs[0])


def test_a_norm_in_place_has_the_same_bits():
    x, z, weight = random(5, 2, 40), random(5, 80, seed=1), random(40, seed=2)
    want = np.empty_like(z)
    gated_rms_norm(x, z, weight, 1e-6, out=want)
    gated_rms_norm(x, z, weight, 1e-6, out=z)
    assert_same_bits("gated", z, want)
    rows, want = x[:, 0].copy(), np.empty((5, 40), np.float32)
    rms_norm(rows, weight, 1e-6, out=want)
    rms_norm(rows, weight, 1e-6, out=rows)
    assert_same_bits("norm", rows, want)


def test_arrays_of_wrong_shape_are_refused():
    x = random(4, 32)
    with pytest.raises(KernelError, match="weight: wanted contiguous float32"):
        rms_norm(x, x[0, :31].copy(), 1e-6, out=x)
    with pytest.raises(KernelError, match=r"x: .* got strided"):
        rms_norm(x[:, ::2], x[0, :16].copy(), 1e-6, out=x[:, :16].copy())
    with pytest.raises(KernelError, match=r"z: .* got float64"):
        gated_rms_norm(x[:, None], x.astype(np.float64), x[0], 1e-6, out=x)
