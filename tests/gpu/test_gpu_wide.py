"""More than 64 tokens on a GPU: one read of the weights and one pass give the bits of several."""

from types import SimpleNamespace

import numpy as np
import pytest
from compare import assert_same_bits
from matrices import random_matrix
from written import demo_on_gpu

from dflash.decode.drafting.drafter import Plain
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.errors import KernelError
from dflash.kernels.formats import FORMATS
from dflash.kernels.gpu.capabilities import capabilities

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("dflash.kernels.linear.cuda")
wide = pytest.importorskip("dflash.kernels.linear.wide.cuda")
passes = pytest.importorskip("dflash.model.cuda.passes")
tiles = pytest.importorskip("dflash.kernels.formats.cuda")
SplitNorm = pytest.importorskip("dflash.kernels.norm.split").SplitNorm

needs_wgmma = pytest.mark.skipif(not capabilities().has_wgmma, reason="no GPU with wgmma")

RNG = np.random.default_rng(8)
ROWS, GUARD = 128, 3


def normal(*shape, dtype=np.float16):
    return cupy.asarray(RNG.standard_normal(shape).astype(dtype))


def matrices(kinds, rows, width):
    return [tiles.PackedWeight(random_matrix(r, width, kind)) for kind, r in zip(kinds, rows, strict=True)]


def same_bits(
    monkeypatch, weights, tokens=(64, 65, 96, 100, 128), *, gated=False, add=False, input_norm=None, output_norm=None
):
    """Compare all outputs of one read of the weights with those of launches of at most 32 tokens."""
    x = normal(ROWS, weights[0].shape[1])
    if input_norm is not None:
        input_norm.half[:], input_norm.squares[:] = x, cupy.abs(normal(*input_norm.squares.shape, dtype=np.float32))
        x = input_norm.half
    dtype = np.float16 if gated else np.float32
    outs = [cupy.empty((ROWS, weight.shape[0] + GUARD), dtype) for weight in (weights[:1] if gated else weights)]
    start = [normal(*out.shape, dtype=dtype) for out in outs]
    inner = [out[:, : weight.shape[0]] for out, weight in zip(outs, weights, strict=False)]
    launches = []
    for least in (wide.BUCKETS[-1] + 1, 33):
        monkeypatch.setattr(wide, "least_tokens", lambda _, least=least: least)
        launches.append(
            cuda.DecodeLinear(x, weights, inner, gated=gated, add=add, input_norm=input_norm, output_norm=output_norm)
        )
    for n in tokens:
        found = []
        for launch in launches:
            kept = cupy.full(outs[0].shape, np.nan, np.float32)[:, : inner[0].shape[1]] if add else None
            for out, values in zip(outs, start, strict=True):
                out[:] = values
            if output_norm is not None:
                output_norm.half.fill(np.nan), output_norm.squares.fill(np.nan)
            launch(n, kept=kept)
            after = [*outs, *([kept] if add else []), *([output_norm.half, output_norm.squares] if output_norm else [])]
            found.append([array.get() for array in after])
        for several, one in zip(*found, strict=True):
            assert_same_bits(f"{n} tokens", one, several)
        for out, values in zip(found[1], start, strict=False):
            assert_same_bits("rows past the last token", out[n:], values[n:].get())


@pytest.mark.parametrize("kind", FORMATS)
@needs_wgmma
def test_every_format(kind, monkeypatch):
    same_bits(monkeypatch, matrices([kind], [333], 1536), tokens=(60, 90, 100))


@pytest.mark.parametrize(
    ("kinds", "rows", "width"),
    [
        (("Q4_K",), (5120,), 6144),
        (("Q6_K",), (5120,), 17408),
        (("Q4_K", "Q4_K", "F16", "F16"), (10240, 6144, 48, 48), 5120),
        (("Q4_K", "Q4_K", "Q6_K"), (12288, 1024, 1024), 5120),
        (("Q8_0",), (40000,), 512),
        (("Q2_K", "Q4_K", "F32", "Q6_K", "Q5_1"), (40, 70, 7, 300, 16), 2048),
    ],
)
@needs_wgmma
def test_true_shapes_and_mixed_weights(kinds, rows, width, monkeypatch):
    same_bits(monkeypatch, matrices(kinds, rows, width), tokens=(50, 65, 128))


@pytest.mark.parametrize(("rows", "kinds"), [(17408, ("Q4_K", "Q4_K")), (300, ("Q6_K", "Q6_K")), (300, ("Q4_K", "Q6_K"))])
@needs_wgmma
def test_gate_and_up(rows, kinds, monkeypatch):
    same_bits(monkeypatch, matrices(kinds, (rows, rows), 1024), gated=True)


@needs_wgmma
def test_several_groups_of_a_block(monkeypatch):
    """Blocks with all slices of gate and up, and groups in between of formats of one and of several scales a tile."""
    rows = capabilities().processors * 96 - 36
    same_bits(monkeypatch, matrices(("Q4_K", "Q4_K"), (rows, rows), 512), gated=True, tokens=(60, 96, 128))
    same_bits(monkeypatch, matrices(("Q6_K", "F16", "Q4_K"), (300, 40, 70), 768), tokens=(90, 128))
    same_bits(monkeypatch, matrices(("Q8_0", "IQ4_XS", "Q2_K"), (300, 40, 70), 768), tokens=(96, 120))


@needs_wgmma
def test_fused_norms_and_a_captured_stream(monkeypatch):
    def norm(width):
        gain, half = normal(width, dtype=np.float32), cupy.empty((ROWS, width), np.float16)
        squares = cupy.empty((ROWS, -(-width // 16)), np.float32)
        return SplitNorm(normal(ROWS, width, dtype=np.float32), gain, 1e-6, half=half, squares=squares)

    same_bits(monkeypatch, matrices(("Q4_K", "F16"), (1000, 48), 1024), input_norm=norm(1024))
    same_bits(monkeypatch, matrices(("Q6_K",), (1024,), 2048), add=True, output_norm=norm(1024))


def test_a_captured_stream_is_laid_out_like_the_output():
    outs = [cupy.zeros((ROWS, 67), np.float32)[:, :64]]
    launch = cuda.DecodeLinear(normal(ROWS, 256), matrices(("Q4_K",), (64,), 256), outs, add=True)
    with pytest.raises(KernelError, match=r"strides must be those of the output, \(268, 4\), got \(256, 4\)"):
        launch(ROWS, kept=cupy.zeros((ROWS, 64), np.float32))


def test_many_tokens_in_turn():
    """Launches of several shapes follow each other often, on shared scratch memory."""
    shapes = [(("Q4_K",), (5120,), 6144), (("Q6_K",), (2000,), 5120), (("Q4_K", "F16"), (4000, 48), 512)]
    launches, wanted = [], []
    for kinds, rows, width in shapes:
        weights, x = matrices(kinds, rows, width), normal(ROWS, width)
        outs = [cupy.empty((ROWS, r), np.float32) for r in rows]
        launches.append((cuda.DecodeLinear(x, weights, outs), outs))
        launches[-1][0](ROWS)
        wanted.append([out.get() for out in outs])
    for _ in range(50):
        for launch, _ in launches:
            launch(ROWS)
    for (_, outs), want in zip(launches, wanted, strict=True):
        for out, first in zip(outs, want, strict=True):
            assert_same_bits("again", out.get(), first)


def test_other_gpus_have_passes_of_64_rows(monkeypatch):
    dense, experts = SimpleNamespace(experts=None), SimpleNamespace(experts=8)
    hopper = capabilities().has_wgmma
    assert [passes.rows_of(dense, n) for n in (64, 65)] == [64, 128 if hopper else 64]
    assert passes.rows_of(experts, 100) == 64
    monkeypatch.setenv("DFLASH_TARGET", "sm_86")
    assert passes.rows_of(dense, 100) == 64


@needs_wgmma
def test_unquantised_weights_beside_others_need_more_tokens():
    def weight(kind, n_bytes, rows=64):
        return SimpleNamespace(type=kind, shape=(64, 256), whole_rows=rows, data=SimpleNamespace(nbytes=n_bytes))

    large, small, part = weight("Q4_K", 48 << 20), weight("F16", 1 << 16), weight("Q4_K", 48 << 20, rows=128)
    assert wide.least_tokens([large]) <= 64 < wide.least_tokens([large, small]) <= 128 < wide.least_tokens([part])


TEXTS = [f"{i} times {i + 1} is" for i in range(100)]
demo, _ = demo_on_gpu(TEXTS, context=512, sequences=100)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)], ids=["greedy", "T 1"])
@needs_wgmma
def test_a_hundred_sequences_share_a_pass(sampling, monkeypatch):
    """Each text as with passes of at most 64 rows, which the tests of smaller batches cover."""
    model, prompts = demo()
    sizes, forward = [], model.forward_overlapped

    def counted(spans, **rest):
        sizes.append(len(spans))
        return forward(spans, **rest)

    monkeypatch.setattr(model, "forward_overlapped", counted)

    def texts(ahead):
        monkeypatch.setattr(model, "can_overlap", ahead)
        sessions = [Session(prompt, sampling=sampling, strategy=Plain(), max_tokens=24) for prompt in prompts]
        list(Engine(model).run(sessions))
        return [session.output_ids for session in sessions]

    together = texts(ahead=True)
    assert max(sizes) > 64
    assert texts(ahead=False) == together
    for prompt, want in list(zip(prompts, together, strict=True))[::17]:
        session = Session(prompt, sampling=sampling, strategy=Plain(), max_tokens=24)
        for _ in Engine(model).stream(session):
            pass
        assert session.output_ids == want
