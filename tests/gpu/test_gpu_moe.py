"""The experts on a GPU: against the definition, and the same bits in any company."""

import functools

import numpy as np
import pytest
from compare import assert_close, assert_same_bits
from experts import random_experts

from dflash.errors import KernelError
from dflash.kernels.formats import FORMATS, Matrix
from dflash.kernels.moe import reference
from dflash.kernels.norm.split import SplitNorm

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("dflash.kernels.moe.cuda")
cuda_prefill = pytest.importorskip("dflash.kernels.moe.cuda_prefill")

RNG = np.random.default_rng(3)
TOLERANCE = 2e-3
OF_A_ROW = 4e-3  # beside what the rounding of its token does, which shows where sums cancel
EPS = 1e-6


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def poison(array):
    array.view(np.uint8)[...] = 255


class Exact:
    """A matrix that is unpacked once."""

    def __init__(self, matrix):
        self.values = matrix.unpacked().astype(np.float64)

    def unpacked(self):
        return self.values


class Layer:
    """Experts with a stream of some rows and a guard row, all scratch poisoned."""

    def __init__(self, weights, rows=64, made=(cuda.DecodeScratch, cuda.DecodeMoe)):
        self.rows, width = rows, weights.router.shape[1]
        small = min(1, 0.5 / (np.sqrt(width) * weights.gate.unpacked().std()))
        weights = weights._replace(
            router=Matrix((weights.router.unpacked() / small).astype(np.float32).view(np.uint8), "F32")
        )
        self.weights = weights._make(Exact(w) if isinstance(w, Matrix) else w for w in weights)
        self.gain = ((1 + normal(width) / 10) * small).astype(np.float32)
        self.whole = cupy.full((rows + 1, width), np.nan, np.float32)
        self.counts = cupy.zeros(2, np.int32)
        self.device = device = cuda.upload(weights)
        self.scratch = made[0](rows, device)
        for name, array in vars(self.scratch).items():
            if name not in ("rows", "arrived"):
                poison(array)
        self.device_gain = cupy.asarray(self.gain)
        self.moe = made[1](self.whole[:rows], self.device_gain, device, self.counts, self.scratch, eps=EPS)

    def __call__(self, x, bucket=None):
        self.counts[:] = len(x)  # first, since the launch reads it before the copies of rows have ended
        self.whole[:] = np.nan
        self.whole[: len(x)] = cupy.asarray(x)
        self.moe(bucket or len(x))
        assert np.isnan(self.whole[len(x) :].get()).all()
        return self.whole[: len(x)].get()

    def want(self, x, tokens=np.float64):
        """The definition, with normed tokens of a type; the kernels have halves."""
        exact = x.astype(np.float64)
        out = exact.copy()
        normed = exact / np.sqrt((exact**2).mean(1, keepdims=True) + EPS) * self.gain
        reference.experts(normed.astype(tokens), self.weights, out)
        return out

    def check(self, name, x, bucket=None):
        got, want = self(x, bucket), self.want(x)
        assert_close(name, got - x, want - x, TOLERANCE)
        error, whole, rounding = (np.sqrt((y**2).mean(1)) for y in (got - want, want - x, self.want(x, np.float16) - want))
        excess = error - rounding - OF_A_ROW * whole
        i = np.argmax(excess)
        assert excess[i] <= 0, f"{name}, row {i} of {len(x)}: error {error[i]:.3g}, {rounding[i]:.3g} of a rounded token"
        return got


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format(kind):
    layer = Layer(random_experts(kind, kind))
    for rows in (1, 9):
        layer.check(kind, normal(rows, 256))


SHAPES = [
    {"shared_gate": "Q8_0", "shared_up": "Q8_0", "shared_down": "Q8_0"},
    {"up": "F16", "shared_up": "Q6_K", "shared_down": "BF16"},
    {"gate": "MXFP4", "down": "MXFP4", "shared_ffn": 512},
    {"ffn": 512, "shared_ffn": 256, "width": 768},
    {"width": 96, "ffn": 32, "n": 8, "n_used": 2, "kind": "F16", "down": "Q4_0"},
    {"width": 96, "ffn": 32, "kind": "F32", "down": "BF16", "shared_ffn": 64},
    {"width": 2304, "ffn": 768, "n": 12, "n_used": 10, "kind": "Q4_0", "down": "Q4_0"},
    {"shared_ffn": 0},
    {"width": 2048, "ffn": 768, "n": 9, "n_used": 8, "shared_ffn": 0},
    {"width": 96, "ffn": 32, "n": 7, "n_used": 7, "kind": "F16", "down": "Q4_0", "shared_ffn": 0},
    {"width": 96, "ffn": 32, "n": 128, "n_used": 8, "kind": "Q8_0", "down": "Q8_0", "shared_ffn": 0},
    {"width": 96, "ffn": 32, "n": 512, "n_used": 10, "kind": "Q4_0", "down": "Q8_0"},
]
PREFILL = cuda_prefill.PrefillScratch, cuda_prefill.PrefillMoe
PORTABLE = cuda_prefill.PrefillScratch, functools.partial(cuda_prefill.PrefillMoe, hopper=False)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_types_and_shapes(shape):
    weights = random_experts(**shape)
    layer = Layer(weights)
    for rows in (1, 3, 17):
        layer.check("decode", normal(rows, layer.whole.shape[1]))
    for made in (PREFILL, PORTABLE):
        layer = Layer(weights, 150, made)
        for rows in (1, 150):
            layer.check("prefill", normal(rows, layer.whole.shape[1]))


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_in_a_prompt(kind):
    weights = random_experts(kind, kind)
    for made in (PREFILL, PORTABLE):
        Layer(weights, 70, made).check(kind, normal(70, 256))


def check_chunks(weights, rows):
    """Rows are right, and have the same bits in chunks whose experts have few rows and in those whose experts have many."""
    layer, x = Layer(weights, rows, PREFILL), normal(rows, weights.gate.shape[-1])
    together = layer.check("together", x)
    for start, n in ((0, 1), (rows // 3, rows // 2), (rows // 2, rows // 8)):
        assert_same_bits(f"{n} rows", layer(x[start : start + n]), together[start : start + n])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_many_rows_of_an_expert_have_the_bits_of_few(shape):
    check_chunks(random_experts(**shape), 450)


@pytest.mark.parametrize("kind", FORMATS)
def test_many_rows_of_every_format(kind):
    check_chunks(random_experts(kind, kind, n=2, n_used=2), 200)


def test_many_rows_of_the_true_shape():
    check_chunks(random_experts("Q4_K", "Q6_K", n=6, width=2048, ffn=512, n_used=3), 700)


@pytest.fixture(scope="module", params=[PREFILL, PORTABLE], ids=["default", "portable"])
def prefill_layer(request):
    return Layer(random_experts("Q4_K", "Q6_K", n=24, width=2048, ffn=512, n_used=8), 700, request.param)


@pytest.mark.parametrize("rows", [1, 63, 129])
def test_true_shape_of_a_prompt(prefill_layer, rows):
    prefill_layer.check("experts", normal(rows, 2048))


def test_a_row_of_a_prompt_has_the_same_bits_in_any_chunk(prefill_layer):
    x = normal(700, 2048)
    together = prefill_layer(x)
    assert_same_bits("two runs", prefill_layer(x), together)
    for start, n in ((0, 64), (64, 1), (128, 192), (320, 380), (3, 70)):
        assert_same_bits(f"{n} rows", prefill_layer(x[start : start + n]), together[start : start + n])
    assert_same_bits("fewer than the launch", prefill_layer(x[:300], 700), together[:300])


def test_blocks_of_any_number_of_rows_have_the_same_bits_of_logits():
    layer = Layer(random_experts(n=96, width=768, n_used=4), 300, PREFILL)
    if layer.moe._many_logits is None:
        pytest.skip("blocks of many rows don't fit this GPU")
    layer(normal(300, 768))
    few = layer.scratch.logits.get()
    poison(layer.scratch.logits)
    layer.moe._many_logits(None, grid=(2, 3), first_row=0)
    assert_same_bits("many rows", layer.scratch.logits.get(), few)


def test_a_prompt_in_slices(monkeypatch):
    weights, x = random_experts(n=16, n_used=4), normal(300, 256)
    whole = Layer(weights, 300, PREFILL)
    want = whole.check("whole", x)
    monkeypatch.setattr(cuda_prefill, "AT_ONCE", 128)
    sliced = Layer(weights, 300, PREFILL)
    sliced.device_gain[:] = whole.device_gain
    assert_same_bits("slices", sliced(x), want)
    assert_same_bits("part of a slice", sliced(x[:140], 300), want[:140])


@pytest.mark.parametrize("n_shared", [0, 1])
def test_the_memory_plan_counts_the_scratch(n_shared):
    weights = random_experts(n=16, width=512, ffn=256, n_used=4, shared_ffn=256 * n_shared)
    scratch = vars(cuda_prefill.PrefillScratch(300, cuda.upload(weights)))
    taken = sum(array.nbytes for name, array in scratch.items() if name != "rows")
    assert 0.95 * taken < cuda_prefill.scratch_bytes(300, 512, 256, 4 + n_shared) < taken


@pytest.fixture(scope="module")
def true_layer():
    return Layer(random_experts("Q4_K", "Q6_K", n=16, width=2048, ffn=512, n_used=8))


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 16, 33, 64])
def test_true_shape(true_layer, rows):
    true_layer.check("experts", normal(rows, 2048))


def test_a_row_has_the_same_bits_in_every_batch(true_layer):
    x = normal(64, 2048)
    together = true_layer(x)
    assert_same_bits("two runs", true_layer(x), together)
    for start, n in [(0, 1), (5, 1), (63, 1), (3, 2), (9, 3), (8, 4), (1, 5), (3, 7), (8, 8), (5, 16), (1, 23), (32, 32)]:
        assert_same_bits(f"{n} rows", true_layer(x[start : start + n]), together[start : start + n])


def test_a_norm_behind_the_experts_has_the_same_bits_in_every_batch():
    layer = Layer(random_experts("Q4_K", "Q6_K", n=16, width=2048, ffn=512, n_used=8))
    half, squares = cupy.empty((64, 2048), np.float16), cupy.empty((64, 128), np.float32)
    gain = cupy.asarray(1 + normal(2048) / 10)
    norm = SplitNorm(layer.whole[:64], gain, EPS, half=half, squares=squares)
    plain, arguments = layer.moe, (layer.whole[:64], layer.device_gain, layer.device, layer.counts, layer.scratch)
    layer.moe = cuda.DecodeMoe(*arguments, eps=EPS, output_norm=norm)
    x, found = normal(17, 2048), []
    for start, n in ((0, 17), (0, 1), (3, 4), (5, 9)):
        for array in (half, squares):
            poison(array)
        stream = layer(x[start : start + n])
        found.append((half.get(), squares.get()))
        want = (stream * gain.get() * np.float32(0.125)).astype(np.float16)
        assert_same_bits(f"half, {n} rows", found[-1][0][:n], want)
        assert_close("squares", found[-1][1][:n], (stream.reshape(n, 128, 16).astype(np.float64) ** 2).sum(-1), 1e-6)
        for array, whole in zip(found[-1], found[0], strict=True):
            assert_same_bits(f"{n} rows", array[:n], whole[start : start + n])
            assert np.isnan(array[n:]).all()
    stream = layer(x)
    layer.moe = plain
    assert_same_bits("stream", layer(x), stream)


@pytest.mark.parametrize(("rows", "bucket"), [(1, 4), (3, 4), (1, 8), (9, 16), (33, 64)])
def test_rows_beyond_the_count_stay(true_layer, rows, bucket):
    x = normal(rows, 2048)
    assert_same_bits("bucket", true_layer(x, bucket), true_layer(x))


def test_all_rows_to_the_same_experts():
    weights = random_experts(n=16, n_used=4)
    for made, rows in (((cuda.DecodeScratch, cuda.DecodeMoe), 64), (PREFILL, 300)):
        x = np.repeat(normal(1, 256), rows, axis=0)
        got = Layer(weights, rows, made).check("same", x)
        assert_same_bits("rows", got, np.repeat(got[:1], rows, axis=0))


def test_ties_go_to_the_lower_number():
    weights = random_experts(n=16, n_used=4)
    rows = weights.router.data.copy()
    rows[8:] = rows[:8]
    weights = weights._replace(router=Matrix(rows, "F32"))
    for made in ((cuda.DecodeScratch, cuda.DecodeMoe), PREFILL):
        layer = Layer(weights, 40, made)
        layer.check("ties", normal(40, 256))
        experts = layer.scratch.experts[:40].get()
        assert (experts[:, ::2] < 8).all()
        assert (experts[:, 1::2] == experts[:, ::2] + 8).all()


def test_large_rows_saturate_and_a_bad_row_harms_no_other():
    layer = Layer(random_experts("F16", "F16"))
    x = normal(12, 256)
    want = layer(x)
    x[3], x[7] = np.nan, 1e30
    got = layer(x)
    others = np.delete(np.arange(12), (3, 7))
    assert_same_bits("others", got[others], want[others])


def test_launches_that_start_before_the_last_has_ended_leave_the_same_bits(true_layer):
    """Few rows are read while they are written, so nothing may be left of the call before."""
    x, results, wait = normal(9, 2048), [], cupy.cuda.get_current_stream().synchronize
    for each in (wait, lambda: None):
        true_layer.counts[:] = 9
        true_layer.whole[:9] = cupy.asarray(x)
        wait()
        for rows in (1, 1, 4, 9, 2, 1):
            true_layer.counts[:] = rows
            true_layer.moe(rows)
            each()
        results.append(true_layer.whole[:9].get())
    assert_same_bits("without waiting", results[1], results[0])


def test_a_launch_in_a_graph(true_layer):
    stream = cupy.cuda.Stream(non_blocking=True)
    x = normal(16, 2048)
    true_layer(x)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        stream.begin_capture()
        true_layer.moe(16, stream)
        graph = stream.end_capture()
        for rows in (16, 5):
            x = normal(rows, 2048)
            true_layer.whole[:rows] = cupy.asarray(x)
            true_layer.counts[:] = rows
            graph.launch()
            stream.synchronize()
            got = true_layer.whole[:rows].get()
            assert_close("graph", got - x, true_layer.want(x) - x, TOLERANCE)


def test_refuses_what_does_not_fit():
    device = cuda.upload(random_experts())
    scratch, counts = cuda.DecodeScratch(4, device), cupy.ones(1, np.int32)
    with pytest.raises(KernelError, match="don't fit rows"):
        cuda.DecodeMoe(cupy.zeros((4, 512), np.float32), cupy.ones(512, np.float32), device, counts, scratch, eps=EPS)
    with pytest.raises(KernelError, match="1 to 2 rows"):
        cuda.DecodeMoe(cupy.zeros((2, 256), np.float32), cupy.ones(256, np.float32), device, counts, scratch, eps=EPS)
    with pytest.raises(KernelError, match="wanted 2048 rows"):
        swapped = device._replace(up=device.shared_up)
        cuda.DecodeMoe(cupy.zeros((4, 256), np.float32), cupy.ones(256, np.float32), swapped, counts, scratch, eps=EPS)
