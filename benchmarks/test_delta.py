"""Conv, delta rule and gated norm: a token, a draft, a chunk of a prompt. ``pytest benchmarks/test_delta.py``.

Prints µs and GB/s over six layers, whose states together exceed the L2 cache. Each op is first compared with its definition.
"""

import numpy as np
import pytest
from batches import chain, ragged
from compare import assert_close

from dflash.kernels import conv, delta, norm
from dflash.kernels.conv import reference as conv_reference
from dflash.kernels.delta import reference as delta_reference
from dflash.kernels.norm import reference as norm_reference

SHAPES = {"12-over-4": (4, 12, 128), "48-over-16": (16, 48, 128)}
FORMS = {"1": (1, False), "1-text": (1, True), "4": (4, False), "16": (16, False), "512-text": (512, True)}
LAYERS = 6


def random(*shape):
    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


def batch(n, whole):
    return ragged([(0, chain(n), whole)])._replace(n_accepted=np.array([not whole], np.int32))


def measure(benchmark, capsys, run, name, *, n, moved):
    """Time `run` for one layer after another."""
    benchmark.pedantic(lambda: [run(layer) for layer in range(LAYERS)], rounds=50, warmup_rounds=3)
    seconds = benchmark.stats.stats.median / LAYERS
    with capsys.disabled():
        print(f"\n{name}: {seconds * 1e6:.1f} µs, {seconds * 1e6 / n:.2f} µs a token, {moved / seconds / 1e9:.1f} GB/s")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_causal_conv(benchmark, capsys, shape, form):
    (n, whole), (n_groups, n_heads, size) = FORMS[form], SHAPES[shape]
    width, few = (2 * n_groups + n_heads) * size, min(n, 16)
    x, taps, rows = random(n, width), random(4, width), batch(n, whole)
    out, want, exact = np.full_like(x, np.nan), np.empty((few, width)), conv.ConvMemory.empty(1, 4, width)
    memories = [conv.ConvMemory.empty(1, 4, width) for _ in range(LAYERS)]
    conv.causal_conv(x, taps, rows, memories[0], out=out)
    conv_reference.causal_conv(x[:few], taps, batch(few, whole), exact, out=want)
    assert_close("conv", out[:few], want, 1e-6)

    def run(layer):
        conv.causal_conv(x, taps, rows, memories[layer], out=out)

    measure(benchmark, capsys, run, f"conv {shape}, {form} rows", n=n, moved=8 * x.size)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_gated_delta(benchmark, capsys, shape, form):
    (n, whole), (n_groups, n_heads, size) = FORMS[form], SHAPES[shape]
    few, rows = min(n, 16), batch(n, whole)
    y, alpha, beta = random(n, (2 * n_groups + n_heads) * size), random(n, n_heads), random(n, n_heads)
    fixed = -np.exp(random(n_heads)), random(n_heads)
    memories = [delta.DeltaMemory.empty(1, n_groups, n_heads, size, size) for _ in range(LAYERS + 1)]
    out, want = np.full((n, n_heads, size), np.nan, np.float32), np.empty((few, n_heads, size))
    delta.gated_delta(y, alpha, beta, *fixed, rows, memories[0], out=out)
    some = y[:few], alpha[:few], beta[:few]
    delta_reference.gated_delta(*some, *fixed, batch(few, whole), memories[-1], out=want)
    assert_close("delta", out[:few], want, 1e-6)

    def run(layer):
        delta.gated_delta(y, alpha, beta, *fixed, rows, memories[layer], out=out)

    measure(benchmark, capsys, run, f"delta {shape}, {form} rows", n=n, moved=8 * n_heads * size * size)


@pytest.mark.parametrize("n", [1, 16, 512])
@pytest.mark.parametrize("shape", SHAPES)
def test_gated_rms_norm(benchmark, capsys, shape, n):
    _, n_heads, size = SHAPES[shape]
    x, z, weight = random(n, n_heads, size), random(n, n_heads * size), random(size)
    out, want = np.full_like(z, np.nan), np.empty(z.shape)
    norm.gated_rms_norm(x, z, weight, 1e-6, out=out)
    norm_reference.gated_rms_norm(x, z, weight, 1e-6, out=want)
    assert_close("norm", out, want, 1e-6)

    def run(_layer):
        norm.gated_rms_norm(x, z, weight, 1e-6, out=out)

    measure(benchmark, capsys, run, f"gated norm {shape}, {n} rows", n=n, moved=12 * z.size)
