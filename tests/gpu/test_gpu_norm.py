"""The RMS norm on a GPU: the definition, and the same bits in any company."""

import numpy as np
import pytest
from compare import assert_close, assert_same_bits

from dflash.errors import KernelError
from dflash.kernels.norm import reference

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("dflash.kernels.norm.cuda")

RNG = np.random.default_rng(3)
CASES = [*reference.cases(), ("decode", 64, 5120), ("chunk", 700, 5120), ("odd and wide", 3, 8191)]
IDS = [name for name, *_ in CASES]
EPS = 1e-6


def normal(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


def norm(x, weight, n=None):
    """Both outputs for the first `n` rows, whose arrays have a guard row and were NaN."""
    n = len(x) if n is None else n
    half = cupy.full((len(x) + 1, x.shape[1]), np.nan, np.float16)
    full = cupy.full((len(x) + 1, x.shape[1]), np.nan, np.float32)
    cuda.RmsNorm(cupy.asarray(x), cupy.asarray(weight), EPS, half=half[:-1], full=full[:-1])(n)
    half, full = half.get(), full.get()
    assert np.isnan(half[n:]).all()
    assert np.isnan(full[n:]).all()
    return half[:n], full[:n]


@pytest.mark.parametrize(("name", "n", "width"), CASES, ids=IDS)
def test_rms_norm(name, n, width):
    x, weight = normal(n, width), normal(width)
    half, full = norm(x, weight)
    want = np.empty(x.shape)
    reference.rms_norm(x, weight, EPS, out=want)
    assert_close(name, full, want, 3e-7)
    assert_same_bits("half", half, full.astype(np.float16))


@pytest.mark.parametrize("clear", [False, True])
@pytest.mark.parametrize(("name", "n", "width"), CASES, ids=IDS)
def test_add_norm(name, n, width, clear):
    """One row more stays as it was."""
    x, weight, out = normal(n + 1, width), normal(width), normal(n + 1, width)
    given, sums = cupy.asarray(x), cupy.asarray(out)
    cuda.AddNorm(given, cupy.asarray(weight), EPS, sums, scale=0.75, clear=clear)(n)
    want = np.empty(x.shape)
    reference.rms_norm(x, weight, EPS, out=want)
    assert_close(name, sums.get()[:n], (want + out)[:n] * 0.75, 3e-7)
    assert_same_bits("a row more", sums.get()[n:], out[n:])
    assert_same_bits("x", given.get(), np.concatenate([np.zeros_like(x[:n]) if clear else x[:n], x[n:]]))


@pytest.mark.parametrize("width", [7, 96, 5120])
def test_any_company(width):
    x, weight = normal(65, width), normal(width)
    half, full = norm(x, weight)
    assert_same_bits("two runs", norm(x, weight)[1], full)
    for rows in (slice(0, 1), slice(64, 65), slice(3, 10), slice(1, 65)):
        alone = norm(x[rows], weight)
        assert_same_bits("half", alone[0], half[rows])
        assert_same_bits("full", alone[1], full[rows])
    assert_same_bits("the first rows", norm(x, weight, 5)[1], full[:5])


def test_one_output_in_place_and_in_a_graph():
    x, weight = normal(9, 640), normal(640)
    want = norm(x, weight)
    stream, on_device = cupy.cuda.Stream(non_blocking=True), cupy.asarray(x)
    bits = cupy.zeros(x.shape, np.uint16)
    to_half = cuda.RmsNorm(on_device, cupy.asarray(weight), EPS, half=bits)
    in_place = cuda.RmsNorm(on_device, cupy.asarray(weight), EPS, full=on_device)
    cupy.cuda.get_current_stream().synchronize()
    to_half(9, stream)
    in_place(9, stream)
    stream.synchronize()
    assert_same_bits("half", bits.get().view(np.float16), want[0])
    assert_same_bits("full", on_device.get(), want[1])
    on_device.set(x)
    cupy.cuda.get_current_stream().synchronize()  # a copy of few bytes may end after the call
    stream.begin_capture()
    to_half(9, stream)
    in_place(9, stream)
    graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()
    assert_same_bits("graph", on_device.get(), want[1])


def test_halves_are_saturated():
    x = np.zeros((2, 5120), np.float32)
    x[0, 7], x[1, 3] = 1, -1
    half, full = norm(x, np.full(5120, 2000, np.float32))
    assert full[0, 7] > 65504
    assert half[0, 7] == 65504
    assert half[1, 3] == -65504


def test_nan_stays():
    x = np.ones((2, 96), np.float32)
    x[1, 5] = np.nan
    half, _ = norm(x, np.ones(96, np.float32))
    assert np.isfinite(half[0]).all()
    assert np.isnan(half[1]).all()


def test_refused():
    x, weight = cupy.zeros((4, 32), np.float32), cupy.zeros(32, np.float32)
    with pytest.raises(KernelError, match="half or full"):
        cuda.RmsNorm(x, weight, EPS)
    with pytest.raises(KernelError, match="weight must be"):
        cuda.RmsNorm(x, weight[:31], EPS, full=x)
    with pytest.raises(KernelError, match="half is contiguous uint16"):
        cuda.RmsNorm(x, weight, EPS, half=x)
