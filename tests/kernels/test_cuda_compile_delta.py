"""The kernels of the delta rule compile for every supported GPU; those of the decode path spill no registers."""

import nvrtc
import pytest
from nvrtc import ARCHITECTURES, compiled

pytestmark = nvrtc.needed

# G, H, K, V
LARGEST = 16, 48, 128, 128
SHAPES = {"4B, 9B, 35B-A3B": (16, 32, 128, 128), "0.8B, 2B": (16, 16, 128, 128)}


def constants(shape, **more):
    return dict(zip(("GROUPS", "HEADS", "WIDTH", "VALUES"), shape, strict=True)) | more


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture(arch):
    """The 27B, whose norm is part of the step where there are clusters."""
    for rows in (2, 4):
        of_step = constants(LARGEST, TAPS=4, SPLIT=2, FUSED=int(arch >= 90), ROWS=rows)
        assert compiled("delta/step.cu", arch, STAGED=1, **of_step) == 0
        assert compiled("delta/step.cu", arch, STAGED=0, **of_step) == 0, "with little shared memory"
    compiled("delta/scan.cu", arch, TAPS=4, SLICE=64, STAGES=1 if arch in (86, 89, 120) else 2, **constants(LARGEST))
    assert compiled("delta/gated_norm.cu", arch, HEADS=48, VALUES=128) == 0
    compiled("delta/flush.cu", arch, TAPS=4, OWN=64, **constants(LARGEST))
    compiled("delta/prepare.cu", arch, TAPS=4, **constants(LARGEST))
    compiled("delta/chunks.cu", arch, **constants(LARGEST))


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape(name):
    for rows in (2, 4):
        assert compiled("delta/step.cu", TAPS=4, SPLIT=2, FUSED=1, ROWS=rows, STAGED=1, **constants(SHAPES[name])) == 0
    compiled("delta/chunks.cu", **constants(SHAPES[name]))
    compiled("delta/scan.cu", TAPS=4, SLICE=64, STAGES=2, **constants(SHAPES[name]))


def test_a_small_shape_and_other_taps():
    small = constants((2, 6, 32, 32))
    assert compiled("delta/step.cu", TAPS=8, SPLIT=1, FUSED=1, ROWS=2, STAGED=1, **small) == 0
    compiled("delta/chunks.cu", **small)
    compiled("delta/scan.cu", TAPS=4, SLICE=32, STAGES=2, **small)
    for taps in (2, 8):
        compiled("delta/prepare.cu", TAPS=taps, **small)
        compiled("delta/flush.cu", TAPS=taps, OWN=16, **small)
