"""Conv, delta rule and norm in one launch: the bits of the three ops, and the definition."""

from dataclasses import fields

import numpy as np
import pytest
from compare import assert_close, assert_same_bits
from recurrent import SLOTS, assert_guards, batch, copy, guarded

from dflash.errors import KernelError
from dflash.kernels import conv, delta, mixer, norm
from dflash.kernels.mixer import reference

CASES = [case for case in reference.cases() if case[1] > 1]
N_TAPS = 4


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def inputs(n, n_groups, n_heads, width, n_values):
    """Arguments up to the batch, a memory, and arrays for the three results."""
    n_channels = 2 * n_groups * width + n_heads * n_values
    taps, decay, shift, gain = random(N_TAPS, n_channels), random(n_heads), random(n_heads), random(n_values)
    weights = mixer.Weights(taps, -np.exp(decay), shift, gain, 1e-6)
    rows = random(n, n_channels), random(n, n_heads * n_values), random(n, n_heads), random(n, n_heads)
    memory = mixer.Memory(
        conv.Memory.empty(SLOTS, N_TAPS, n_channels), delta.Memory.empty(SLOTS, n_groups, n_heads, width, n_values)
    )
    for part in (memory.conv, memory.delta):
        for seed, field in enumerate(fields(part)):
            array = getattr(part, field.name)
            array[:] = random(*array.shape, seed=seed) / 4
    shapes = (n, n_channels), (n, n_heads, n_values), (n, n_heads * n_values)
    return (*rows, weights), memory, [np.full(shape, np.nan, np.float32) for shape in shapes]


def duplicate(memory):
    return mixer.Memory(copy(memory.conv), copy(memory.delta))


def assert_same_memory(got, want):
    for part in ("conv", "delta"):
        for field in fields(getattr(want, part)):
            assert_same_bits(field.name, *(getattr(getattr(memory, part), field.name) for memory in (got, want)))


@pytest.mark.parametrize("threads", [1, 2, 1000])
@pytest.mark.parametrize(("name", "shape", "sequences"), [(c[0], c[1:5], c[5]) for c in CASES], ids=[c[0] for c in CASES])
def test_mixer(name, shape, sequences, threads, monkeypatch):
    """Whatever the number of threads makes of it: one launch or three."""
    monkeypatch.setattr(mixer, "get_num_threads", lambda: threads)
    rows = batch(sequences)
    (x, z, alpha, beta, w), memory, (y, o, want) = inputs(int(rows.first[-1]), *shape)
    single = duplicate(memory)
    conv.causal_conv(x, w.taps, rows, single.conv, out=y)
    delta.gated_delta(y, alpha, beta, w.ssm_a, w.dt_bias, rows, single.delta, out=o)
    norm.gated_rms_norm(o, z, w.norm, w.eps, out=want)
    room, out = guarded(*want.shape)
    mixer.mixer(x, z, alpha, beta, w, rows, memory, y=np.full_like(y, np.nan), o=np.full_like(o, np.nan), out=out)
    assert_same_bits(name, out, want)
    assert_same_memory(memory, single)
    assert_guards(room)


def test_reference():
    name, *shape, sequences = CASES[-1]
    rows = batch(sequences)
    arguments, memory, (y, o, out) = inputs(int(rows.first[-1]), *shape)
    wanted, exact = duplicate(memory), np.empty(out.shape)
    mixer.mixer(*arguments, rows, memory, y=y, o=o, out=out)
    reference.mixer(*arguments, rows, wanted, y=np.empty(y.shape), o=np.empty(o.shape), out=exact)
    assert_close(name, out, exact, 2e-6)


def test_apply_kept():
    _, *shape, sequences = CASES[-1]
    rows = batch(sequences)
    _, memory, _ = inputs(1, *shape)
    single = duplicate(memory)
    columns = rows.slot, rows.kept, rows.n_kept, rows.side
    mixer.apply_kept(*columns, memory)
    conv.apply_kept(*columns, single.conv)
    delta.apply_kept(*columns, single.delta)
    assert_same_memory(memory, single)


def test_refused():
    _, *shape, sequences = CASES[0]
    (x, z, *rest), memory, (y, o, out) = inputs(1, *shape)
    with pytest.raises(KernelError, match="z: wanted"):
        mixer.mixer(x, z[:, 1:], *rest, batch(sequences), memory, y=y, o=o, out=out)
