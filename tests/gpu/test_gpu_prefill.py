"""The multiply of a prefill on a GPU: against float64, the same bits in any company, and nothing written outside."""

from functools import partial

import numpy as np
import pytest
from compare import assert_close, assert_same_bits
from matrices import random_matrix

from dflash.errors import KernelError
from dflash.kernels.formats import FORMATS
from dflash.kernels.gpu.capabilities import capabilities

cupy = pytest.importorskip("cupy")
prefill = pytest.importorskip("dflash.kernels.linear.cuda_prefill")
tiles = pytest.importorskip("dflash.kernels.formats.cuda")

RNG = np.random.default_rng(5)
TOLERANCE = 5e-4
PLENTY = 1 << 26


@pytest.fixture(
    params=[
        "hopper",
        "hopper, kept",
        "hopper, few processors",
        "portable",
        "portable, kept",
        "portable, little shared memory",
    ]
)
def path(request, monkeypatch):
    """Every kernel that runs on this GPU."""
    if "hopper" not in request.param:
        monkeypatch.setattr(prefill, "capabilities", lambda: capabilities()._replace(has_wgmma=False))
        if "little" in request.param:
            monkeypatch.setattr(prefill, "_portable_step", lambda: 32)
    elif not capabilities().has_wgmma:
        pytest.skip("neither a Hopper GPU nor its target")
    elif "few" in request.param:
        monkeypatch.setattr(prefill, "capabilities", lambda: capabilities()._replace(processors=3))
    if "kept" in request.param:
        monkeypatch.setattr(prefill, "UnpackScratch", partial(prefill.UnpackScratch, kept=PLENTY))
    return request.param


@pytest.fixture
def hopper():
    """Skip where there is no choice by the number of tokens."""
    if not capabilities().has_wgmma:
        pytest.skip("neither a Hopper GPU nor its target")


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float16)


def poisoned(tokens, rows, dtype=np.float32):
    """NaN, with guard rows and guard columns around the part that is written."""
    whole = cupy.full((tokens + 3, rows + 5), np.nan, dtype)
    return whole, whole[:tokens, :rows]


def run(x, weights, outs, n_bytes=PLENTY, **options):
    scratch = prefill.UnpackScratch(n_bytes)
    scratch.halves.fill(np.nan)
    packed = [tiles.PackedWeight(w) for w in weights]
    prefill.PrefillLinear(cupy.asarray(x), packed, outs, scratch=scratch, **options)(len(x))


def product(x, *weights, **options):
    pairs = [poisoned(len(x), w.shape[0]) for w in weights]
    run(x, weights, [out for _, out in pairs], **options)
    for (whole, _), w in zip(pairs, weights, strict=True):
        assert np.isnan(whole[len(x) :].get()).all()
        assert np.isnan(whole[:, w.shape[0] :].get()).all()
    return [out.get() for _, out in pairs]


def truth(x, weight):
    return x.astype(np.float64) @ weight.unpacked().astype(np.float64).T


def silu(x):
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format(path, kind):
    weight, x = random_matrix(149, 1536, kind), normal(130, 1536)
    (got,) = product(x, weight)
    assert_close(kind, got, truth(x, weight), TOLERANCE)


@pytest.mark.parametrize("kind", FORMATS)
def test_unpacks_what_the_file_says(path, kind):
    weight = random_matrix(300, 512, kind)
    (got,) = product(np.eye(512, dtype=np.float16), weight)
    want = weight.unpacked().astype(np.float16).astype(np.float32) + np.float32(0)  # a sum is never -0
    assert_same_bits(kind, got.T, want)


@pytest.mark.parametrize("tokens", [1, 65, 130, 517])
@pytest.mark.parametrize(("rows", "width"), [(1, 256), (70, 512), (300, 768), (513, 5120), (256, 17408)])
def test_shapes(path, rows, width, tokens):
    weight, x = random_matrix(rows, width), normal(tokens, width)
    (got,) = product(x, weight)
    # the products of a single value may cancel: against what they would be with signs by chance; and it may be an outlier
    usual = x.astype(np.float64) ** 2 @ weight.unpacked().astype(np.float64).T ** 2
    error, bound = np.mean((got - truth(x, weight)) ** 2), TOLERANCE * (3 if rows * tokens == 1 else 1)
    assert error <= bound**2 * np.mean(usual), f"{np.sqrt(error / np.mean(usual)):.3g}, allowed {bound:.3g}"


@pytest.mark.parametrize("width", [16, 96, 128, 208])
def test_narrow_rows(path, width):
    weight, x = random_matrix(48, width, "F16"), normal(70, width)
    (got,) = product(x, weight)
    assert_close("product", got, truth(x, weight), TOLERANCE)


def test_several_weights_of_several_types(path):
    kinds, rows = ["Q4_K", "Q6_K", "F32", "Q8_0", "Q4_K"], [512, 40, 48, 7, 1024]
    weights, x = [random_matrix(r, 2048, kind) for r, kind in zip(rows, kinds, strict=True)], normal(300, 2048)
    together = product(x, *weights)
    for weight, got in zip(weights, together, strict=True):
        assert_close(weight.type, got, truth(x, weight), TOLERANCE)
    for got, want in zip(product(x, *weights, n_bytes=2 * 2048 * 256), together, strict=True):
        assert_same_bits("in parts", got, want)


@pytest.mark.parametrize("rows", [70, 1000])
def test_gated(path, rows):
    gate, up, x = random_matrix(rows, 1024), random_matrix(rows, 1024, "Q6_K"), normal(200, 1024)
    outs = []
    for n_bytes in (PLENTY, 2 * 1024 * 256):
        whole, out = poisoned(200, rows, np.float16)
        run(x, (gate, up), [out], n_bytes, gated=True)
        assert np.isnan(whole[200:].get()).all()
        assert np.isnan(whole[:, rows:].get()).all()
        outs.append(out.get())
    assert_close("gated", outs[0], silu(truth(x, gate)) * truth(x, up) * prefill.INNER_SCALE, 1.5 * TOLERANCE)
    assert_same_bits("in parts", outs[1], outs[0])


def test_gated_is_never_infinite(path):
    weight, x = random_matrix(64, 512, "Q8_0"), np.full((3, 512), 60000, np.float16)
    _, out = poisoned(3, 64, np.float16)
    run(x, (weight, weight), [out], gated=True)
    assert abs(out.get()).max() == 65504


def test_adds_to_the_residual(path):
    weight, x = random_matrix(333, 1024), normal(77, 1024)
    start = RNG.standard_normal((77, 333)).astype(np.float32)
    added = cupy.asarray(start)
    run(x, (weight,), [added], add=True, scale=1 / prefill.INNER_SCALE)
    assert_close("sum", added.get(), start + 64 * truth(x, weight), TOLERANCE)


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "F16"])
def test_a_token_has_the_same_bits_in_every_batch(path, kind):
    weight, x = random_matrix(530, 1536, kind), normal(1100, 1536)
    (together,) = product(x, weight)
    (again,) = product(x, weight)
    assert_same_bits("two runs", again, together)
    for start, n in ((0, 1), (700, 1), (1099, 1), (3, 64), (64, 200), (513, 517)):
        (some,) = product(x[start : start + n], weight)
        assert_same_bits(f"{n} tokens", some, together[start : start + n])


def test_a_weight_has_the_same_bits_among_more(path):
    weight, x = random_matrix(34 * 256, 512), normal(600, 512)
    (whole,) = product(x, weight)
    for rows in (slice(0, 2048), slice(33 * 256, 34 * 256)):
        (some,) = product(x, weight.rows(rows))
        assert_same_bits("some rows", some, whole[:, rows])
    (some,) = product(x[300:400], weight)
    assert_same_bits("some tokens", some, whole[300:400])


@pytest.mark.parametrize("gated", [False, True])
def test_tiles_of_every_width_have_the_same_bits(hopper, monkeypatch, gated):
    """520 rows of the weight, or of the pair, are whole tiles, parts of tiles and halved tiles."""
    weights, x, out = [random_matrix(520 // (1 + gated), 512) for _ in range(1 + gated)], normal(200, 512), []
    for columns in prefill._HOPPER_N[0]:
        monkeypatch.setattr(prefill, "_HOPPER_N", ((columns,), prefill._HOPPER_N[1]))
        for processors in (3, 132):
            monkeypatch.setattr(prefill, "capabilities", lambda n=processors: capabilities()._replace(processors=n))
            whole, inner = poisoned(200, 260, np.float16) if gated else poisoned(200, 520)
            run(x, weights, [inner], **({"gated": True} if gated else {}))
            assert np.isnan(whole[200:].get()).all()
            out.append(inner.get())
    for got in out[1:]:
        assert_same_bits("another width", got, out[0])


def test_weights_are_kept_while_there_is_room(path):
    """Of three weights of 16 kB two are kept, and the third is unpacked each time; the packed bytes are not read again."""
    scratch, x = prefill.UnpackScratch(PLENTY, kept=2 << 14), cupy.asarray(normal(40, 256))
    packed = [tiles.PackedWeight(random_matrix(32, 256)) for _ in range(3)]
    outs = [cupy.empty((40, 32), np.float32) for _ in packed]
    launches = [prefill.PrefillLinear(x, [w], [out], scratch=scratch) for w, out in zip(packed, outs, strict=True)]
    found = []
    for _ in range(2):
        for launch in launches:
            launch(40)
        found.append([out.get() for out in outs])
        for weight in packed:
            weight.data.fill(0)
    for i in range(2):
        assert_same_bits("kept", found[1][i], found[0][i])
    assert not found[1][2].any()


def test_a_launch_in_a_graph_runs_fewer_rows_than_it_may(path):
    weight, x = random_matrix(500, 2048), cupy.asarray(normal(300, 2048))
    out = cupy.full((300, 500), np.nan, np.float32)
    launch = prefill.PrefillLinear(x, [tiles.PackedWeight(weight)], [out], scratch=prefill.UnpackScratch(PLENTY))
    stream = cupy.cuda.Stream(non_blocking=True)
    launch(1)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        launch(200)
        graph = stream.end_capture()
        for _ in range(3):
            x[:] = cupy.asarray(normal(300, 2048))
            graph.launch()
        stream.synchronize()
    assert_close("graph", out[:200].get(), truth(x[:200].get(), weight), TOLERANCE)
    assert np.isnan(out[200:].get()).all()


def test_refuses_what_does_not_fit(path):
    packed, scratch = tiles.PackedWeight(random_matrix(16, 256)), prefill.UnpackScratch(PLENTY)
    x, out = cupy.zeros((2, 256), np.float16), cupy.zeros((2, 16), np.float32)
    with pytest.raises(KernelError, match="does not fit tokens of 512"):
        prefill.PrefillLinear(cupy.zeros((2, 512), np.float16), [packed], [out], scratch=scratch)
    with pytest.raises(KernelError, match="out must be float32"):
        prefill.PrefillLinear(x, [packed], [cupy.zeros((2, 17), np.float32)], scratch=scratch)
    with pytest.raises(KernelError, match="out must be float16"):
        prefill.PrefillLinear(x, [packed, packed], [out], gated=True, scratch=scratch)
    with pytest.raises(KernelError, match="contiguous float16"):
        prefill.PrefillLinear(x.astype(np.float32), [packed], [out], scratch=scratch)
    launch = prefill.PrefillLinear(x, [packed], [out], scratch=scratch)
    with pytest.raises(KernelError, match="rows must be 1 to 2, got 3"):
        launch(3)
    with pytest.raises(KernelError, match="holds less than 256 rows of 256"):
        prefill.PrefillLinear(x, [packed], [out], scratch=prefill.UnpackScratch(1 << 16, kept=0))
