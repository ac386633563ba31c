"""The kernels of the delta rule compile for every supported GPU; those of the decode path spill no registers."""

import nvrtc
import pytest
from nvrtc import ARCHITECTURES, compiled

pytestmark = nvrtc.needed

# G, H, K, V, then blocks of a head and value rows of a prompt's block
SHAPES = {
    "4B, 9B, 35B-A3B": (16, 32, 128, 128, 2, 64),
    "0.8B, 2B": (16, 16, 128, 128, 2, 64),
    "golden": (2, 4, 32, 32, 1, 32),
    "golden moe": (2, 6, 32, 32, 1, 32),
}


def constants(shape, **more):
    return dict(zip(("GROUPS", "HEADS", "WIDTH", "VALUES"), shape, strict=True)) | more


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture(arch):
    """The 27B, whose norm is part of the step where there are clusters."""
    shape = 16, 48, 128, 128
    for rows in (2, 4):
        assert compiled("delta/step.cu", arch, TAPS=4, SPLIT=2, FUSED=int(arch >= 90), ROWS=rows, **constants(shape)) == 0
    assert compiled("delta/gated_norm.cu", arch, HEADS=48, VALUES=128) == 0
    compiled("delta/flush.cu", arch, TAPS=4, OWN=64, **constants(shape))
    compiled("delta/prepare.cu", arch, TAPS=4, **constants(shape))
    compiled("delta/chunks.cu", arch, **constants(shape))
    compiled("delta/scan.cu", arch, TAPS=4, SLICE=64, STAGES=1 if arch in (86, 89, 120) else 2, **constants(shape))


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape(name):
    *shape, split, own = SHAPES[name]
    for rows in (2, 4):
        assert compiled("delta/step.cu", TAPS=4, SPLIT=split, FUSED=1, ROWS=rows, **constants(shape)) == 0
    compiled("delta/chunks.cu", **constants(shape))
    compiled("delta/scan.cu", TAPS=4, SLICE=own, STAGES=2, **constants(shape))


@pytest.mark.parametrize("taps", [2, 8])
def test_other_taps(taps):
    shape = SHAPES["golden"][:4]
    assert compiled("delta/step.cu", TAPS=taps, SPLIT=1, FUSED=1, ROWS=2, **constants(shape)) == 0
    compiled("delta/prepare.cu", TAPS=taps, **constants(shape))
    compiled("delta/flush.cu", TAPS=taps, OWN=16, **constants(shape))
