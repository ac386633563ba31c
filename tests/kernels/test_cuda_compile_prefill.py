"""The kernels of a prefill compile for every GPU, without spills."""

import nvrtc
import pytest

from dflash.kernels.formats import FORMATS
from dflash.kernels.gpu.jit import source

pytestmark = nvrtc.needed
MODES = range(3)


@pytest.mark.parametrize("arch", nvrtc.ARCHITECTURES)
def test_prefill_compiles_for_every_architecture(arch):
    assert nvrtc.compiled("linear/prefill.cu", arch, MODE=0, TILE_K=64) == 0
    assert nvrtc.compiled("formats/unpack.cu", arch, QUANT="Q4_K", PART=0) == 0


@pytest.mark.parametrize("mode", MODES)
def test_multiplies_of_unpacked_weights_compile(mode):
    assert nvrtc.compiled("linear/prefill.cu", 86, MODE=mode, TILE_K=32) == 0
    if mode:
        assert nvrtc.compiled("linear/prefill.cu", 80, MODE=mode, TILE_K=64) == 0
    for int8, columns, stages in ((0, 256, 4), (0, 192, 5), (0, 160, 6), (0, 96, 8), (1, 192, 5)):
        sizes = {"TILE_N": columns, "STAGES": stages}
        assert nvrtc.compiled("linear/prefill_hopper.cu", "90a", MODE=mode, INT8=int8, **sizes) == 0


@pytest.mark.parametrize(("kernel", "queries"), [("prefill", 64), ("prefill", 128), ("decode", 64)])
def test_multiplies_of_attention_do_not_wait_for_each_other(kernel, queries):
    shape = {"HEAD_DIM": 256, "GROUP_SIZE": 6, "KV_HEADS": 4, "TILE_KV": 64, "TILE_Q": queries, "STAGES": 5}
    settings = {"GATED": 1} if kernel == "prefill" else {"GATED": 0, "MAX_SPLITS": 33}
    assert nvrtc.compiled(f"attention/{kernel}_hopper.cu", "90a", **shape, **settings) == 0


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "Q4_K"])
def test_every_format_is_unpacked(kind):
    assert nvrtc.compiled("formats/unpack.cu", QUANT=kind, PART=0) == 0


@pytest.mark.parametrize("part", [1, 2])
@pytest.mark.parametrize("written", range(3))
def test_unpack_a_pair(part, written):
    assert nvrtc.compiled("formats/unpack.cu", QUANT="Q4_K", PART=part, AS=written) == 0


def test_tokens_are_rounded():
    assert nvrtc.compiled("linear/quantize_tokens.cu", 90) == 0


def test_a_constant_that_is_missing_is_named():
    for path in ("linear/prefill.cu", "linear/prefill_hopper.cu", "formats/unpack.cu"):
        with pytest.raises(AssertionError, match="must be defined"):
            nvrtc.compile_cubin(nvrtc.LIBRARY, source(nvrtc.KERNELS / path), "90a")
