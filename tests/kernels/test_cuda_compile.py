"""Every CUDA kernel compiles for every supported GPU, without one here; the decode kernels spill no registers."""

import nvrtc
import pytest
from nvrtc import ARCHITECTURES, KERNELS, compiled

from dflash.kernels.formats import FORMATS
from dflash.kernels.jit import source

linear = pytest.importorskip("dflash.kernels.linear.cuda")
ROOMY = 90, 100
"""Architectures whose blocks hold more than 200 KiB; the others run the smallest kernel."""

pytestmark = nvrtc.needed


def shapes(arch):
    """Every (TOKENS, WARPS) that `plan` may choose."""
    if arch not in ROOMY:
        return [(8, warps) for warps in linear._WARPS_OF_SMALL]
    return [(tokens, warps) for tokens, of in linear._WARPS.items() for warps in of]


def stream(quants, tokens, warps, mode=linear.STORE, arch=90):
    return compiled("linear/stream.cu", arch, QUANTS=quants, TOKENS=tokens, MODE=mode, WARPS=warps)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture(arch):
    compiled("formats/repack.cu", arch, QUANT="Q4_K")
    for tokens, warps in shapes(arch):
        for quants in ("Q4_K", "Q4_K,Q6_K"):
            assert stream(quants, tokens, warps, arch=arch) == 0, f"{quants}: {tokens} tokens, {warps} warps spill"


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format(kind):
    compiled("formats/repack.cu", QUANT=kind)
    for arch in (80, 89, 90):
        for tokens, warps in shapes(arch):
            assert stream(kind, tokens, warps, arch=arch) == 0, f"{tokens} tokens, {warps} warps spill for {arch}"


@pytest.mark.parametrize("mode", [linear.ADD, linear.GATED])
@pytest.mark.parametrize(("tokens", "warps"), shapes(90))
def test_every_end(mode, tokens, warps):
    for quants in ("Q4_K", "Q8_0", "Q6_K", "F16,Q4_K,Q6_K", "F32,Q4_K,Q8_0"):
        assert stream(quants, tokens, warps, mode) == 0, f"{quants} spills"


def test_an_error_names_file_and_line(tmp_path):
    (tmp_path / "inner.cuh").write_text("int fine;\nint wrong = nothing;\n")
    (tmp_path / "outer.cu").write_text('#include "inner.cuh"\n')
    with pytest.raises(AssertionError, match=r"inner\.cuh\(2\)"):
        nvrtc.compile_cubin(nvrtc.LIBRARY, source(tmp_path / "outer.cu"), 90)


def test_a_constant_that_is_missing_is_named():
    with pytest.raises(AssertionError, match="must be defined"):
        nvrtc.compile_cubin(nvrtc.LIBRARY, source(KERNELS / "linear/stream.cu"), 90)
