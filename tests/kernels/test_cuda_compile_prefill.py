"""The kernels of a prefill compile for every GPU, without spills."""

import nvrtc
import pytest

from dflash.kernels.formats import FORMATS
from dflash.kernels.gpu.jit import source

pytestmark = nvrtc.needed
MODES = range(3)
FEWER = 256 if nvrtc.LONG else 64
"""Tokens where the code of formats is compiled: 64 take a third of the time of 256."""


def packed(kinds, mode, tokens=256):
    """Compile the packed prefill, of which the producers may spill a few registers."""
    constants = {"QUANTS": kinds, "MODE": mode, "TOKENS": tokens, "X_STAGES": 4, "W_STAGES": 2}
    return nvrtc.compiled("linear/prefill_packed.cu", "90a", **constants) <= 128


@pytest.mark.parametrize("arch", nvrtc.ARCHITECTURES)
def test_prefill_compiles_for_every_architecture(arch):
    assert nvrtc.compiled("linear/prefill.cu", arch, MODE=0, TILE_K=64) == 0
    assert nvrtc.compiled("formats/unpack.cu", arch, QUANT="Q4_K", PART=0) == 0


@pytest.mark.parametrize("mode", MODES)
def test_the_packed_prefill_compiles(mode):
    assert nvrtc.compiled("linear/prefill.cu", 86, MODE=mode, TILE_K=32) == 0
    if mode:
        assert nvrtc.compiled("linear/prefill.cu", 80, MODE=mode, TILE_K=64) == 0
    for int8 in (0, 1):
        assert nvrtc.compiled("linear/prefill_hopper.cu", "90a", MODE=mode, INT8=int8) == 0
    assert packed("Q4_K", mode)


@pytest.mark.parametrize(("kernel", "queries"), [("prefill", 64), ("prefill", 128), ("decode", 64)])
def test_multiplies_of_attention_do_not_wait_for_each_other(kernel, queries):
    shape = {"HEAD_DIM": 256, "GROUP_SIZE": 6, "KV_HEADS": 4, "TILE_KV": 64, "TILE_Q": queries, "STAGES": 5}
    settings = {"GATED": 1} if kernel == "prefill" else {"GATED": 0, "MAX_SPLITS": 33}
    assert nvrtc.compiled(f"attention/{kernel}_hopper.cu", "90a", **shape, **settings) == 0


@pytest.mark.parametrize("tokens", [64, 128, 192])
def test_the_packed_prefill_compiles_for_fewer_tokens(tokens):
    assert packed("Q4_K", 0, tokens)


@pytest.mark.parametrize(("mode", "kinds"), [(0, "Q4_K,Q6_K"), (1, "Q4_K,F16,Q8_0"), (2, "Q4_K,Q6_K")])
def test_the_packed_prefill_compiles_for_several_formats(mode, kinds):
    assert packed(kinds, mode, FEWER if mode else 256)


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "Q4_K"])
def test_the_packed_prefill_compiles_for_every_format(kind):
    assert nvrtc.compiled("formats/unpack.cu", QUANT=kind, PART=0) == 0
    assert packed(kind, 0, FEWER)


@pytest.mark.parametrize("part", [1, 2])
@pytest.mark.parametrize("written", range(3))
def test_unpack_a_pair(part, written):
    assert nvrtc.compiled("formats/unpack.cu", QUANT="Q4_K", PART=part, AS=written) == 0


def test_tokens_are_rounded():
    assert nvrtc.compiled("linear/quantize_tokens.cu", 90) == 0


def test_a_constant_that_is_missing_is_named():
    for path in ("linear/prefill.cu", "linear/prefill_hopper.cu", "linear/prefill_packed.cu", "formats/unpack.cu"):
        with pytest.raises(AssertionError, match="must be defined"):
            nvrtc.compile_cubin(nvrtc.LIBRARY, source(nvrtc.KERNELS / path), "90a")
