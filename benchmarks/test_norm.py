"""The norm of a row. ``pytest benchmarks/test_norm.py`` prints µs and GB/s."""

import numpy as np
import pytest
from compare import assert_close

from dflash.kernels.norm import reference, rms_norm


@pytest.mark.parametrize("width", [512, 5120])
@pytest.mark.parametrize("n", [1, 16, 512])
def test_rms_norm(benchmark, capsys, n, width):
    x = np.random.default_rng(1).standard_normal((n, width), dtype=np.float32)
    weight, out, want = x[0].copy(), np.full_like(x, np.nan), np.empty(x.shape)
    rms_norm(x, weight, 1e-6, out=out)
    reference.rms_norm(x, weight, 1e-6, out=want)
    assert_close("rows", out, want, 2e-7)
    benchmark.pedantic(rms_norm, (x, weight, 1e-6), {"out": out}, rounds=200, iterations=10, warmup_rounds=3)
    seconds = benchmark.stats.stats.median
    with capsys.disabled():
        print(f"\nrms_norm, {n} rows of {width}: {seconds * 1e6:.2f} µs, {8 * x.size / seconds / 1e9:.1f} GB/s")
