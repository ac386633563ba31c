"""The kernels of the delta rule compile for every supported GPU; those of the decode path spill no registers."""

import nvrtc
import pytest
from nvrtc import ARCHITECTURES, compiled

pytestmark = nvrtc.needed

# G, H, K, V, then blocks of a head, heads of a block, and value rows of a prompt's block
SHAPES = {
    "4B, 9B, 35B-A3B": (16, 32, 128, 128, 8, 2, 64),
    "0.8B, 2B": (16, 16, 128, 128, 8, 1, 64),
    "122B-A10B": (16, 64, 128, 128, 8, 4, 64),
    "golden": (2, 4, 32, 32, 2, 2, 32),
    "golden moe": (2, 6, 32, 32, 2, 3, 32),
    "wide blocks": (16, 48, 128, 128, 4, 3, 64),
    "odd": (4, 4, 32, 48, 3, 1, 48),
}


def constants(shape, **more):
    return dict(zip(("GROUPS", "HEADS", "WIDTH", "VALUES"), shape, strict=True)) | more


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture(arch):
    """The 27B, whose norm is part of the step where there are clusters."""
    shape = 16, 48, 128, 128
    for fused in {0, int(arch >= 90)}:
        assert compiled("delta/step.cu", arch, TAPS=4, SPLIT=8, SHARE=3, LANES=16, FUSED=fused, **constants(shape)) == 0
    assert compiled("delta/gated_norm.cu", arch, HEADS=48, VALUES=128, SPLIT=8, STRIDE=10240, OFFSET=4096) == 0
    compiled("delta/flush.cu", arch, TAPS=4, OWN=32, **constants(shape))
    compiled("delta/prepare.cu", arch, TAPS=4, **constants(shape))
    compiled("delta/chunks.cu", arch, **constants(shape))
    compiled("delta/scan.cu", arch, TAPS=4, SLICE=64, STAGES=1 if arch in (86, 89, 120) else 2, **constants(shape))


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape(name):
    *shape, split, share, own = SHAPES[name]
    lanes = 16 if shape[2] % 32 == 0 and shape[3] // split <= 16 else 8
    assert compiled("delta/step.cu", TAPS=4, SPLIT=split, SHARE=share, LANES=lanes, FUSED=1, **constants(shape)) == 0
    assert compiled("delta/gated_norm.cu", HEADS=shape[1], VALUES=shape[3], SPLIT=split, STRIDE=9999, OFFSET=0) == 0
    compiled("delta/chunks.cu", **constants(shape))
    compiled("delta/scan.cu", TAPS=4, SLICE=own, STAGES=2, **constants(shape))


@pytest.mark.parametrize("taps", [2, 8])
def test_other_taps(taps):
    shape = SHAPES["golden"][:4]
    assert compiled("delta/step.cu", TAPS=taps, SPLIT=2, SHARE=1, LANES=16, FUSED=0, **constants(shape)) == 0
    compiled("delta/prepare.cu", TAPS=taps, **constants(shape))
    compiled("delta/flush.cu", TAPS=taps, OWN=16, **constants(shape))
