"""Every CUDA kernel compiles for every supported GPU, without one here; the decode kernels spill no registers."""

import re
from pathlib import Path

import nvrtc
import pytest

import dflash.kernels
from dflash.kernels.formats import FORMATS
from dflash.kernels.jit import macros, source

KERNELS = Path(dflash.kernels.__file__).parent
ARCHITECTURES = 80, 86, 89, 90, 100, 120
STORE, ADD, GATED = range(3)
TOKENS = 8, 16, 32, 64

LIBRARY = nvrtc.load()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the package nvidia-cuda-nvrtc isn't installed")


def compiled(path, arch=90, **constants):
    cubin, log = nvrtc.compile_cubin(LIBRARY, source(KERNELS / path), arch, macros(constants))
    assert cubin.startswith(b"\x7fELF")
    assert "warning" not in log, log
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill", log)]
    assert spills, f"no word of spills in the compiler's log: {log!r}"
    return sum(spills)


def decode(kind, tokens, mode, slices=1, arch=90):
    few = tokens == 8
    return compiled(
        "linear/decode.cu",
        arch,
        QUANT=kind,
        TOKENS=tokens,
        TILES=2 if tokens >= 32 else 1,
        STAGES=3,
        MODE=mode,
        SLICES=slices if few else 0,
    )


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture(arch):
    compiled("linear/tokens.cu", arch)
    compiled("formats/repack.cu", arch, QUANT="Q4_K")
    for tokens in TOKENS:
        assert decode("Q4_K", tokens, STORE, arch=arch) == 0, f"{tokens} tokens spill"


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format(kind):
    compiled("formats/repack.cu", QUANT=kind)
    for tokens in TOKENS:
        assert decode(kind, tokens, STORE) == 0, f"{tokens} tokens spill"


@pytest.mark.parametrize("mode", [ADD, GATED])
@pytest.mark.parametrize("tokens", TOKENS)
def test_every_end(mode, tokens):
    for slices in (1, 2, 4):
        assert decode("Q4_K", tokens, mode, slices) == 0


def test_an_error_names_file_and_line(tmp_path):
    (tmp_path / "inner.cuh").write_text("int fine;\nint wrong = nothing;\n")
    (tmp_path / "outer.cu").write_text('#include "inner.cuh"\n')
    with pytest.raises(AssertionError, match=r"inner\.cuh\(2\)"):
        nvrtc.compile_cubin(LIBRARY, source(tmp_path / "outer.cu"), 90)


def test_a_constant_that_is_missing_is_named():
    with pytest.raises(AssertionError, match="must be defined"):
        nvrtc.compile_cubin(LIBRARY, source(KERNELS / "linear/decode.cu"), 90)
