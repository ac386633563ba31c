"""Every CUDA kernel compiles for every supported GPU, without one here; the decode kernels spill no registers."""

from types import SimpleNamespace

import nvrtc
import pytest
from nvrtc import ARCHITECTURES, KERNELS, compiled

from dflash.kernels.formats import FORMATS
from dflash.kernels.gpu.jit import source

linear = pytest.importorskip("dflash.kernels.linear.cuda")
most_tokens = pytest.importorskip("dflash.kernels.linear.tile_config").most_tokens
wide = pytest.importorskip("dflash.kernels.linear.wide.cuda")
CHIPS = {
    80: linear.Chip(108, 163, clusters=False),
    86: linear.Chip(84, 99, clusters=False),
    89: linear.Chip(128, 99, clusters=False),
    90: linear.Chip(132, 227, clusters=True),
    100: linear.Chip(148, 227, clusters=True),
    120: linear.Chip(170, 99, clusters=True),
}
SIZES = {
    (640, 5120): linear.STORE,
    (1030, 5120): linear.STORE,
    (320, 17408): linear.ADD,
    (320, 6144): linear.ADD,
    (1088, 5120): linear.GATED,
    (15520, 5120): linear.STORE,
    (514, 1024): linear.STORE,
    (64, 2048): linear.ADD,
    (224, 1024): linear.GATED,
    (64, 3584): linear.ADD,
}
"""Tiles of rows, widths and epilogues of a 27B and a 0.8B model."""
TOKENS = [n for n in linear.BUCKETS if n <= 32]

pytestmark = nvrtc.needed


NORMS = {linear.STORE: linear.INPUT_NORM, linear.ADD: linear.OUTPUT_NORM, linear.GATED: linear.INPUT_NORM}


def decode(quants, tokens, size, mode, arch=90, norm=None, polled=0):
    types = tuple(quants.split(","))
    constants = linear.shape(tokens, *size, types, CHIPS[arch], gated=mode == linear.GATED)
    constants = constants | {"NORM": NORMS[mode] if norm is None else norm, "POLLED": polled}
    return compiled("linear/decode.cu", arch, QUANTS=quants, TOKENS=tokens, MODE=mode, **constants)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_multiplies_compile_for_every_architecture(arch):
    compiled("formats/repack.cu", arch, QUANT="Q4_K")
    compiled("copy/copy.cu", arch)
    compiled("copy/transfer.cu", arch)
    assert decode("Q4_K,Q6_K", 8, (640, 5120), linear.STORE, arch) == 0
    assert decode("Q4_K,Q6_K", 8, (772, 2048), linear.STORE, arch, polled=1) == 0
    assert decode("Q6_K", 8, (128, 4096), linear.ADD, arch, norm=linear.NO_NORM, polled=1) == 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("tokens", TOKENS)
def test_multiplies_compile_for_every_shape(tokens, size):
    assert decode("Q4_K", tokens, size, SIZES[size]) == 0


@pytest.mark.parametrize("arch", [80, 86])
@pytest.mark.parametrize("size", list(SIZES)[:6])
def test_shapes_of_smaller_gpus(size, arch):
    """The shapes for the fewest and the most tokens of a launch."""
    most = most_tokens(*size, ("Q4_K", "Q6_K"), CHIPS[arch], gated=SIZES[size] == linear.GATED)
    for tokens in (8, most):
        quants = "Q6_K" if SIZES[size] == linear.GATED else "Q4_K,Q6_K"
        assert decode(quants, tokens, size, SIZES[size], arch) == 0, f"{tokens} tokens spill"


@pytest.mark.parametrize("kind", FORMATS)
def test_multiplies_compile_for_every_format(kind):
    compiled("formats/repack.cu", QUANT=kind)
    for tokens in (8, 24):
        assert decode(kind, tokens, (320, 17408), linear.ADD) == 0, f"{tokens} tokens spill"


@pytest.mark.parametrize("quants", ["Q8_0", "Q4_K,Q6_K", "F16,Q4_K,Q6_K"])
def test_the_widest_formats(quants):
    for tokens, size in ((16, (15520, 5120)), (24, (1030, 5120)), (32, (640, 5120))):
        assert decode(quants, tokens, size, linear.STORE) == 0, f"{tokens} tokens spill"


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K", "Q8_0", "F16", "Q3_K"])
def test_one_token_of_a_head(kind):
    size = 15520, 5120, (kind,), CHIPS[90]
    constants = linear.shape(8, *size, gated=False) | linear.one_token(*size, gated=False)
    kernel = {"QUANTS": kind, "TOKENS": 8, "MODE": linear.STORE, "NORM": linear.NO_NORM, "POLLED": 0}
    assert compiled("linear/decode.cu", **kernel, **constants) == 0


def test_gate_and_up_of_two_types():
    assert decode("Q6_K", 8, (1088, 5120), linear.GATED_BY, norm=linear.INPUT_NORM) == 0


def test_without_a_norm():
    for size in ((640, 5120), (320, 17408), (1088, 5120)):
        assert decode("Q4_K", 16, size, SIZES[size], norm=linear.NO_NORM) == 0


def test_an_error_names_file_and_line(tmp_path):
    (tmp_path / "inner.cuh").write_text("int fine;\nint wrong = nothing;\n")
    (tmp_path / "outer.cu").write_text('#include "inner.cuh"\n')
    with pytest.raises(AssertionError, match=r"inner\.cuh\(2\)"):
        nvrtc.compile_cubin(nvrtc.LIBRARY, source(tmp_path / "outer.cu"), 90)


def test_a_constant_that_is_missing_is_named():
    with pytest.raises(AssertionError, match="must be defined"):
        nvrtc.compile_cubin(nvrtc.LIBRARY, source(KERNELS / "linear/decode.cu"), 90)


@pytest.mark.parametrize(
    ("types", "tokens", "mode", "slices", "sums_in_smem"),
    [
        (("Q4_K",), 64, linear.GATED, 2, 0),
        (("Q4_K",), 128, linear.GATED, 2, 1),
        (("Q5_1",), 64, linear.ADD, 8, 0),
        (("Q6_K",), 128, linear.GATED, 2, 0),
        (("Q6_K",), 128, linear.ADD, 8, 0),
        (("F16", "Q4_K", "Q6_K"), 128, linear.STORE, 2, 0),
        (("F16", "Q2_K", "Q8_0"), 96, linear.STORE, 1, 0),
    ],
)
def test_one_read_of_the_weights(types, tokens, mode, slices, sums_in_smem, monkeypatch):
    monkeypatch.setattr(wide, "capabilities", lambda: SimpleNamespace(block_shared=227 << 10))
    constants = wide._stages(types, tokens, slices, gated=mode == linear.GATED)
    assert constants["SUMS_IN_SMEM"] == sums_in_smem, "tiles of Q6_K leave no room"
    constants |= {"MODE": mode, "NORM": NORMS[mode]}
    compiled("linear/wide/decode_wide.cu", "90a", QUANTS=",".join(types), TOKENS=tokens, **constants)
