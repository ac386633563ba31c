"""The packed multiply on a GPU: against the definition, and the same bits in any company."""

import functools

import numpy as np
import pytest
import tile_layout
from compare import assert_close, assert_same_bits
from matrices import random_matrix

from dflash.errors import KernelError
from dflash.kernels.formats import BLOCKS, FORMATS, Matrix
from dflash.kernels.linear import reference

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("dflash.kernels.linear.cuda")
cuda_prefill = pytest.importorskip("dflash.kernels.linear.cuda_prefill")
tiles = pytest.importorskip("dflash.kernels.formats.cuda")
SplitNorm = pytest.importorskip("dflash.kernels.norm.split").SplitNorm
one_token = pytest.importorskip("dflash.kernels.linear.tile_config").one_token

RNG = np.random.default_rng(5)
TOLERANCE = 1e-5
INNER_SCALE = 2.0**-6


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float16)


def poisoned(tokens, rows, dtype=np.float32):
    """NaN, with a guard row and guard columns around the part that is written."""
    whole = cupy.full((tokens + 1, rows + 5), np.nan, dtype)
    return whole, whole[:tokens, :rows]


def product(x, weight):
    out = cupy.full((len(x), weight.shape[0]), np.nan, np.float32)
    cuda.linear(cupy.asarray(x), [weight], [out])
    return out.get()


def expected(x, weight):
    want = np.zeros((len(x), weight.shape[0]))
    reference.linear(x, [weight], [want])
    return want


@pytest.mark.parametrize("kind", tile_layout.CODES)
def test_tiles_lie_as_described(kind):
    weight = random_matrix(37, 768, kind)
    assert_same_bits(kind, tiles.PackedWeight(weight).data.get(), tile_layout.tiles(weight))


@pytest.mark.parametrize("kind", FORMATS)
def test_weights_are_exact(kind):
    weight = random_matrix(37, 768, kind)
    packed, got = tiles.PackedWeight(weight), []
    for start in range(0, 768, 64):
        one_hot = np.zeros((64, 768), np.float16)
        one_hot[np.arange(64), start + np.arange(64)] = 1
        got.append(product(one_hot, packed))
    want = weight.unpacked().T
    got = np.concatenate(got)
    if kind in ("F32", "BF16"):
        want = want.astype(np.float16)
    assert_close(kind, got, want, 1e-7 if kind in ("F16", "F32", "BF16") else 1e-6)


CASES = [(kind, *case) for kind in ("Q8_0", "Q4_K") for case in reference.cases() if case[3] <= 64]


@pytest.mark.parametrize(
    ("kind", "name", "rows", "width", "tokens"), [c for c in CASES if c[3] % BLOCKS[c[0]].elements == 0]
)
def test_linear(kind, name, rows, width, tokens):
    weights = [random_matrix(r, width, kind) for r in rows]
    x = normal(tokens, width)
    wholes, outs = zip(*[poisoned(tokens, r) for r in rows], strict=True)
    cuda.linear(cupy.asarray(x), [tiles.PackedWeight(w) for w in weights], outs)
    for whole, out, weight in zip(wholes, outs, weights, strict=True):
        assert_close(name, out.get(), expected(x, weight), TOLERANCE)
        assert np.isnan(whole[tokens:].get()).all()
        assert np.isnan(whole[:, out.shape[1] :].get()).all()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("tokens", [1, 6, 13, 23, 31, 41, 64])
def test_every_format(kind, tokens):
    weight, x = random_matrix(149, 1536, kind), normal(tokens, 1536)
    rounded = 5e-4 if kind in ("F32", "BF16") else TOLERANCE
    assert_close(kind, product(x, tiles.PackedWeight(weight)), expected(x, weight), rounded)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q8_0"])
@pytest.mark.parametrize("width", [96, 160])
def test_widths_that_are_no_tiles(kind, width):
    weight, x = random_matrix(40, width, kind), normal(5, width)
    assert_close(kind, product(x, tiles.PackedWeight(weight)), expected(x, weight), 5e-4)


@pytest.mark.parametrize(("rows", "width"), [(10240, 5120), (5120, 17408), (48, 5120), (5120, 6144), (34000, 512)])
def test_true_shapes(rows, width):
    """Those of a 27B model, and one of many rows, as an output has, where K is whole."""
    for kind in ("Q4_K", "Q6_K", "Q8_0"):
        weight, x = random_matrix(rows, width, kind), normal(32, width)
        packed = tiles.PackedWeight(weight)
        some = np.unique(RNG.integers(0, rows, 40))
        got = product(x, packed)
        assert_close(kind, got[:, some], expected(x, Matrix(weight.data[some], kind)), TOLERANCE)
        for start, n in ((7, 1), (3, 8), (1, 16), (5, 23)):
            assert_same_bits(f"{kind}, {n} tokens", product(x[start : start + n], packed), got[start : start + n])


@pytest.mark.parametrize("kind", FORMATS)
def test_a_token_has_the_same_bits_in_every_batch(kind):
    packed, x = tiles.PackedWeight(random_matrix(333, 1536, kind)), normal(64, 1536)
    together = product(x, packed)
    assert_same_bits("two runs", product(x, packed), together)
    for start, n in ((0, 1), (5, 1), (63, 1), (3, 7), (8, 8), (5, 16), (1, 23), (7, 24), (32, 32), (2, 48)):
        assert_same_bits(f"{n} tokens", product(x[start : start + n], packed), together[start : start + n])


@pytest.mark.parametrize("tokens", [1, 7, 16, 40])
@pytest.mark.parametrize(("rows", "kinds"), [(70, ("Q4_K", "Q4_K")), (300, ("Q4_K", "Q6_K"))])
def test_gated_linear(tokens, rows, kinds):
    gate, up = (random_matrix(rows, 1024, kind) for kind in kinds)
    x = normal(tokens, 1024)
    # the minima of Q4_K add a multiple of a token's sum to every gate: far from 0, all outputs would underflow
    x = (x - x.mean(axis=1, keepdims=True, dtype=np.float32)).astype(x.dtype)
    packed = [tiles.PackedWeight(gate), tiles.PackedWeight(up)]
    whole, out = poisoned(tokens, rows, np.float16)
    want = np.zeros((tokens, rows))
    cuda.DecodeLinear(cupy.asarray(x), packed, (out,), gated=True)(tokens)
    reference.gated_linear(x, gate, up, want)
    assert_close("gated", out.get().astype(np.float32) / INNER_SCALE, want, 5e-4)
    assert np.isnan(whole[:, rows:].get()).all()
    alone = cupy.empty((1, rows), np.float16)
    cuda.DecodeLinear(cupy.asarray(x[-1:]), packed, (alone,), gated=True)(1)
    assert_same_bits("alone", alone.get(), out[-1:].get())


@pytest.mark.parametrize("kinds", [("Q4_K", "Q4_K"), ("Q8_0", "Q6_K")])
def test_gated_linear_with_gelu(kinds):
    """The launches for pending rows and for prefill agree with the reference."""
    gate, up = (random_matrix(70, 256, kind) for kind in kinds)
    x, packed = normal(9, 256), [tiles.PackedWeight(gate), tiles.PackedWeight(up)]
    want, scratch = np.zeros((9, 70)), cuda_prefill.UnpackScratch(1 << 20)
    reference.gated_linear(x, gate, up, want, gelu=True)
    for launch in (cuda.DecodeLinear, functools.partial(cuda_prefill.PrefillLinear, scratch=scratch)):
        out = cupy.full((9, 70), np.nan, np.float16)
        launch(cupy.asarray(x), packed, (out,), gated=True, gelu=True)(9)
        assert_close("gelu", out.get().astype(np.float32) / INNER_SCALE, want, 1e-3)


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q8_0"])
def test_gate_and_up_of_a_large_model(kind):
    gate, up = (random_matrix(17408, 5120, kind) for _ in range(2))
    packed, x = [tiles.PackedWeight(gate), tiles.PackedWeight(up)], normal(40, 5120) / np.float16(16)

    def inner(x):
        out = cupy.full((len(x), 17408), np.nan, np.float16)
        cuda.DecodeLinear(cupy.asarray(x), packed, (out,), gated=True)(len(x))
        return out.get()

    got, some = inner(x), np.unique(RNG.integers(0, 17408, 40))
    want = np.zeros((40, len(some)))
    reference.gated_linear(x, Matrix(gate.data[some], kind), Matrix(up.data[some], kind), want)
    assert_close("gated", got[:, some].astype(np.float32) / INNER_SCALE, want, 5e-4)
    for start, n in ((39, 1), (0, 8), (3, 16), (5, 23), (2, 32)):
        assert_same_bits(f"{n} tokens", inner(x[start : start + n]), got[start : start + n])


def test_gated_linear_saturates():
    x, weight = cupy.full((1, 256), 60000, np.float16), tiles.PackedWeight(random_matrix(32, 256, "F32"))
    out = cupy.empty((1, 32), np.float16)
    cuda.DecodeLinear(x, [weight, weight], (out,), gated=True)(1)
    assert np.isfinite(out.get()).all()
    assert np.abs(out.get()).max() == 65504


def test_add_keeps_the_residual():
    packed, x, start = tiles.PackedWeight(random_matrix(50, 2048)), normal(5, 2048), normal(5, 50).astype(np.float32)
    added = cupy.asarray(start)
    cuda.DecodeLinear(cupy.asarray(x), [packed], [added], add=True, scale=4.0)(5)
    assert_same_bits("residual", added.get(), start + 4 * product(x, packed))


def test_weights_of_several_types_and_a_launch_in_a_graph():
    kinds, rows = ["Q4_K", "Q6_K", "F32", "Q8_0", "Q5_1"], [512, 40, 40, 7, 200]
    weights = [random_matrix(r, 2048, kind) for r, kind in zip(rows, kinds, strict=True)]
    x = cupy.asarray(normal(16, 2048))
    outs = [cupy.full((16, r), np.nan, np.float32) for r in rows]
    launch = cuda.DecodeLinear(x, [tiles.PackedWeight(w) for w in weights], outs)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        launch(3)
        stream.synchronize()
        stream.begin_capture()
        launch(3)
        graph = stream.end_capture()
        for _ in range(3):
            x[:] = cupy.asarray(normal(16, 2048))
            graph.launch()
        stream.synchronize()
    for out, weight in zip(outs, weights, strict=True):
        assert_close("graph", out[:3].get(), expected(x.get()[:3], weight), 5e-4)
        assert np.isnan(out[3:].get()).all()


@pytest.mark.parametrize("width", [768, 4096])
def test_a_published_token_changes_no_bit(width):
    """Also where a value has the bits of one that is not written yet."""
    weights = [cuda.PackedWeight(random_matrix(rows, width, kind)) for rows, kind in ((160, "Q4_K"), (40, "Q6_K"))]
    stream, gain = cupy.asarray(RNG.standard_normal((3, width)).astype(np.float32)), cupy.ones(width, np.float32)
    norm = SplitNorm(
        stream, gain, 1e-6, half=cupy.empty((3, width), np.float16), squares=cupy.empty((3, width // 16), np.float32)
    )
    norm.half[...], norm.squares[...] = (
        cupy.asarray(normal(3, width)),
        cupy.asarray(RNG.random((3, width // 16), np.float32)),
    )
    norm.half.view(np.uint16)[2, 5] = 0xFFFF
    for x in (norm.half, norm.half[2:]):
        seen = []
        for published in (False, True):
            for input_norm in (norm, None):
                outs = [cupy.full((len(x), w.shape[0]), np.nan, np.float32) for w in weights]
                run = cuda.DecodeLinear(x, weights, outs, input_norm=input_norm, published=published)
                for n in (len(x), 1):
                    run(n)
                    seen.append(np.concatenate([out.get() for out in outs], 1))
        for plain, polled in zip(seen[:4], seen[4:], strict=True):
            assert_same_bits("out", polled, plain)


@pytest.mark.parametrize("kind", ["Q6_K", "Q4_K", "BF16", "Q8_0"])
def test_one_token_of_a_large_vocabulary_has_the_bits_of_many(kind):
    """Such a launch has shapes of its own: two blocks a multiprocessor, space for one token."""
    chip = cuda._chip()
    rows, width = 16 * 40 * chip.processors + 7, 1280
    size = {"tiles": -(-rows // 16), "width": width, "types": (kind,), "chip": chip, "gated": False}
    assert bool(one_token(**size)) == chip.large
    weight, x = cuda.PackedWeight(random_matrix(rows, width, kind)), cupy.asarray(normal(3, width))
    outs = [cupy.full((3, rows), np.nan, np.float32) for _ in range(2)]
    run, alone = (cuda.DecodeLinear(x, [weight], [out]) for out in outs)
    run(3), alone(1)
    assert_same_bits("a token", outs[1][0].get(), outs[0][0].get())
    assert cupy.isnan(outs[1][1:]).all()
    again = cuda.DecodeLinear(x[2:], [weight], [outs[1][:1]])
    again(1)
    assert_same_bits("another token", outs[1][0].get(), outs[0][2].get())


def test_large_and_tiny_activations():
    weight = random_matrix(64, 512)
    x = (normal(5, 512) * np.array([[1e4], [1e-3], [0], [1], [2.0**-14]])).astype(np.float16)
    x[3, 7] = 65504
    got, want = product(x, tiles.PackedWeight(weight)), expected(x, weight)
    for i in range(5):
        assert_close(f"token {i}", got[i], want[i], 3 * TOLERANCE if i < 4 else 5e-4)


def test_a_stack_is_its_matrices():
    stack = [random_matrix(40, 512, "Q6_K") for _ in range(3)]
    data = np.stack([m.data for m in stack])
    packed = tiles.PackedWeight(type(stack[0])(data, "Q6_K"))
    assert packed.stack_bytes * 3 == packed.data.size
    for i, matrix in enumerate(stack):
        part = packed.data[i * packed.stack_bytes : (i + 1) * packed.stack_bytes]
        assert_same_bits(f"matrix {i}", part.get(), tiles.PackedWeight(matrix).data.get())


def test_refuses_what_does_not_fit():
    packed = tiles.PackedWeight(random_matrix(16, 256))
    with pytest.raises(KernelError, match="does not fit tokens of 512"):
        cuda.linear(cupy.zeros((2, 512), np.float16), [packed], [cupy.zeros((2, 16), np.float32)])
    with pytest.raises(KernelError, match="out must be"):
        cuda.linear(cupy.zeros((2, 256), np.float16), [packed], [cupy.zeros((2, 17), np.float32)])
    with pytest.raises(KernelError, match="x must be float16"):
        cuda.linear(cupy.zeros((2, 256), np.float32), [packed], [cupy.zeros((2, 16), np.float32)])
