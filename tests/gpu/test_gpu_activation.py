"""Divisions of several values at once have the bits of divisions one by one, for all sizes of numbers."""

from pathlib import Path

import numpy as np
import pytest

import dflash.kernels
from dflash.kernels.gpu.jit import kernel

cupy = pytest.importorskip("cupy")

HEADER = Path(dflash.kernels.__file__).parent / "gpu" / "include" / "activation.cuh"
SOURCE = f"""#include "{HEADER}"
extern "C" __global__ void quotients(const float* x, const float* d, float* quotient, float* expected) {{
    const int first = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    float values[4], divisors[4];
    for (int i = 0; i < 4; ++i) values[i] = x[first + i], divisors[i] = d[first + i];
    for (int i = 0; i < 4; ++i) expected[first + i] = __fdiv_rn(values[i], divisors[i]);
    divide_rn(values, divisors);
    for (int i = 0; i < 4; ++i) quotient[first + i] = values[i];
}}
"""
SPECIAL = np.array([0.0, 1e-45, 1e-39, 1e-30, 2.0**-60, 1.0, 2.0**60, 3e38, np.inf, np.nan], np.float32)


@pytest.mark.parametrize(("scale", "special"), [(1, False), (30, False), (90, False), (1, True), (30, True)])
def test_divisions_at_once_have_the_bits_of_single_ones(scale, special, tmp_path):
    random, n = np.random.default_rng(scale), 1 << 18
    x = (random.standard_normal(n) * np.exp2(random.uniform(-scale, scale, n))).astype(np.float32)
    with np.errstate(over="ignore"):
        d = np.float32(1) + np.exp(random.standard_normal(n).astype(np.float32) * np.float32(scale))
    if special:
        at = random.integers(0, n, n // 16)
        x[at] = random.choice(SPECIAL, len(at)) * random.choice(np.float32([-1, 1]), len(at))
    path = tmp_path / "quotients.cu"
    path.write_text(SOURCE, encoding="utf-8")
    quotient, expected = cupy.zeros(n, np.float32), cupy.zeros(n, np.float32)
    kernel(path, "quotients")(n // 1024, 256, (cupy.asarray(x), cupy.asarray(d), quotient, expected))
    found, wanted = quotient.get(), expected.get()
    np.testing.assert_array_equal(found.view(np.int32), wanted.view(np.int32))
    with np.errstate(all="ignore"):
        usual = np.isfinite(wanted) & (np.abs(wanted) > 2.0**-100)
        np.testing.assert_array_equal(found[usual], (x / d)[usual], "NumPy rounds correctly")
