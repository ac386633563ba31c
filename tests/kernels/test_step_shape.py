"""Blocks of step.cu: every target of a GPU runs every number of pending rows."""

import pytest

from dflash.kernels.delta.step_shape import StepShape, split_of, step_shapes
from dflash.kernels.gpu.capabilities import SHARED
from dflash.kernels.ragged import PENDING

RESERVED = 3200
TARGETS = {n: 1024 * block - RESERVED for n, (_, block) in SHARED.items()}
SIZES = (128, 128), (128, 64), (64, 128), (64, 64), (32, 32)
"""V and K of real models and of small ones."""


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("capability", TARGETS)
def test_any_number_of_rows_fits_some_shape(capability, size):
    most = TARGETS[capability]
    shapes = step_shapes(*size, 4, most, clusters=capability >= 90)
    assert any(shape.fits(PENDING, most) for shape in shapes)
    assert shapes[0].split == split_of(size[0])
    for shape in shapes:
        assert shape.own * shape.split == size[0]
        assert shape.own % 16 == 0


def test_a_fused_norm_has_one_order_of_sums():
    """Its sums depend on the blocks of a head, and a row must have the same bits in a launch of any size."""
    for capability, most in TARGETS.items():
        shapes = step_shapes(128, 128, 4, most, clusters=capability >= 90)
        assert len(shapes) == 1 or not any(shape.fused for shape in shapes)
        assert shapes[0].fused == (capability in (90, 100))


def test_shared_memory_of_a_27b_layer():
    """4 bytes for: taps and their context, rows, read-outs, gates of rows, accepted rows; then staged inputs and a norm."""
    plain = StepShape(2, 64, 128, 4, fused=False)
    assert plain.shared_bytes(10, 0, staged=False) == 4 * (7 * 320 + 10 * (320 + 64 + 4) + 16 * 193)
    assert plain.shared_bytes(10, 1, staged=True) - plain.shared_bytes(10, 0, staged=False) == 4 * (10 * 320 + 64 * 128)
    fused = plain._replace(fused=True)
    assert fused.shared_bytes(10, 0, staged=False) - plain.shared_bytes(10, 0, staged=False) == 4 * 10 * 64


def test_given_blocks_are_used():
    assert step_shapes(128, 128, 4, TARGETS[90], clusters=True, split=8, fused=True) == [StepShape(8, 16, 128, 4, True)]
    shapes = step_shapes(128, 128, 4, TARGETS[90], clusters=True, split=8, fused=False)
    assert shapes == [StepShape(8, 16, 128, 4, False)]
