"""The packed multiply and NumPy on unpacked weights. ``pytest benchmarks/test_linear.py`` prints µs, GB/s, GFLOP/s."""

from statistics import median
from time import perf_counter

import numpy as np
import pytest
from compare import assert_close
from matrices import random_matrix

from dflash.kernels.linear import PackedLinear

SHAPES = {"demo head": (16384, 512), "demo ffn": (1536, 512), "4B ffn": (9216, 2560)}


@pytest.mark.parametrize("tokens", [1, 4, 16, 512])
@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q8_0", "F16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_linear(benchmark, capsys, shape, kind, tokens):
    rows, width = SHAPES[shape]
    weight = random_matrix(rows, width, kind)
    x = np.random.default_rng(0).standard_normal((tokens, width)).astype(np.float32)
    out = np.empty((tokens, rows), np.float32)
    launch = PackedLinear(x, [weight], [out])
    launch(tokens)
    unpacked = weight.unpacked()
    assert_close(kind, out, x @ unpacked.T, 5e-5)
    benchmark.pedantic(launch, (tokens,), rounds=30 if tokens < 512 else 5, warmup_rounds=3)
    seconds = benchmark.stats.stats.median
    numpy_seconds = median(timed(lambda: x @ unpacked.T) for _ in range(5))
    flop = 2 * rows * width * tokens
    with capsys.disabled():
        print(
            f"\n{shape} {kind} x {tokens}: {seconds * 1e6:.0f} µs, {weight.data.nbytes / seconds / 1e9:.1f} GB/s, "
            f"{flop / seconds / 1e9:.0f} GFLOP/s; NumPy on float32 takes {numpy_seconds / seconds:.2f} x as long"
        )


def timed(function):
    start = perf_counter()
    function()
    return perf_counter() - start
