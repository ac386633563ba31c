"""The kernels of block attention compile for every supported GPU, without one here, and spill no registers."""

import nvrtc
import pytest
from nvrtc import ARCHITECTURES, compiled

cuda = pytest.importorskip("dflash.kernels.block_attention.cuda")

pytestmark = nvrtc.needed


def spilled(arch, *shape, window, causal):
    cut = cuda.tiles(shape[2], roomy=arch in (90, 100))
    attend, combine = cuda.constants(cut, *shape, window=window, causal=causal)
    return compiled("block_attention/block_attend.cu", arch, **attend) + compiled(
        "block_attention/combine.cu", arch, **combine
    )


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_block_attention_compiles_for_every_architecture(arch):
    assert spilled(arch, 32, 8, 128, 2560, window=2048, causal=True) == 0


@pytest.mark.parametrize(
    ("shape", "window", "causal"),
    [((32, 8, 128, 16384), 0, False), ((4, 2, 64, 64), 5, False), ((8, 2, 256, 300), 200, True), ((3, 1, 48, 64), 0, True)],
    ids=["a draft", "small", "wide", "odd"],
)
def test_block_attention_compiles_for_every_shape(shape, window, causal):
    assert spilled(90, *shape, window=window, causal=causal) == 0


@pytest.mark.parametrize("width", [64, 128, 256])
def test_block_attention_tiles_fit_shared_memory(width):
    assert cuda.tiles(width).shared(width) + 128 <= 99 << 10
    assert width > 128 or 2 * (cuda.tiles(width, roomy=True).shared(width) + 1024) <= 228 << 10
