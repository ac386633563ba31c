"""Conv, delta rule, gated norm, and the three at once: a token, a draft, a chunk of a prompt. Prints µs and GB/s.

``pytest benchmarks/test_delta.py``. An op that differs from its definition gets no number.
"""

import numpy as np
import pytest
from batches import chain, ragged
from compare import assert_close

from dflash.kernels import conv, delta, mixer
from dflash.kernels.mixer import reference
from dflash.kernels.norm import gated_rms_norm

SHAPES = {"12-over-4": (4, 12, 128), "48-over-16": (16, 48, 128)}
FORMS = {"1": (1, False), "1-text": (1, True), "4": (4, False), "16": (16, False), "512-text": (512, True)}
LAYERS = 6


def arrays(n, n_groups, n_heads, size):
    """Rows, weights, one memory a layer, and room for the results."""
    rng, width = np.random.default_rng(1), n_heads * size
    n_channels = 2 * n_groups * size + width
    shapes = (n, n_channels), (n, width), (n, n_heads), (n, n_heads), (4, n_channels), (n_heads,), (n_heads,), (size,)
    x, z, alpha, beta, *weights = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    weights[1] = -np.exp(weights[1])
    memories = [
        mixer.Memory(conv.Memory.empty(1, 4, n_channels), delta.Memory.empty(1, n_groups, n_heads, size, size))
        for _ in range(LAYERS)
    ]
    results = {"y": shapes[0], "o": (n, n_heads, size), "out": shapes[1]}
    room = {name: np.full(shape, np.nan, np.float32) for name, shape in results.items()}
    return (x, z, alpha, beta, mixer.Weights(*weights, 1e-6)), memories, room


def batch(n, whole):
    return ragged([(0, chain(n), whole)])._replace(n_kept=np.array([not whole], np.int32))


def report(benchmark, capsys, name, n, moved):
    seconds = benchmark.stats.stats.median / LAYERS
    with capsys.disabled():
        print(
            f"\n{name}: {seconds * 1e6:.1f} µs a layer, {seconds * 1e6 / n:.2f} µs a token, {moved / seconds / 1e9:.1f} GB/s"
        )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", ["causal_conv", "gated_delta", "gated_rms_norm", "mixer"])
def test_mixer(benchmark, capsys, op, shape, form):
    (n, whole), (n_groups, n_heads, size) = FORMS[form], SHAPES[shape]
    (x, z, alpha, beta, w), memories, room = arrays(n, n_groups, n_heads, size)
    rows, (y, o, out) = batch(n, whole), room.values()
    wanted, exact = arrays(n, n_groups, n_heads, size)[1][0], {name: np.empty(a.shape) for name, a in room.items()}
    few = min(n, 16)
    mixer.mixer(x, z, alpha, beta, w, rows, memories[0], **room)
    parts = (array[:few] for array in (x, z, alpha, beta))
    reference.mixer(*parts, w, batch(few, whole), wanted, **{name: a[:few] for name, a in exact.items()})
    for name, array in room.items():
        assert_close(name, array[:few], exact[name][:few], 2e-6)

    def run():
        for memory in memories:
            if op == "causal_conv":
                conv.causal_conv(x, w.taps, rows, memory.conv, out=y)
            elif op == "gated_delta":
                delta.gated_delta(y, alpha, beta, w.ssm_a, w.dt_bias, rows, memory.delta, out=o)
            elif op == "gated_rms_norm":
                gated_rms_norm(o, z, w.norm, w.eps, out=out)
            else:
                mixer.mixer(x, z, alpha, beta, w, rows, memory, **room)

    benchmark.pedantic(run, rounds=30, warmup_rounds=3)
    state = 8 * n_heads * size * size
    moved = {"causal_conv": 8 * x.size, "gated_delta": state, "gated_rms_norm": 12 * z.size, "mixer": state}
    report(benchmark, capsys, f"{op} {shape}, {form} rows", n, moved[op])
