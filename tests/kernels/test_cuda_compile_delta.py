"""The kernels of the delta rule compile for every supported GPU; those of the decode path spill no registers."""

import nvrtc
import pytest
from nvrtc import ARCHITECTURES, compiled

pytestmark = nvrtc.needed

# G, H, K, V
LARGEST = 16, 48, 128, 128
SHAPES = {
    "4B, 9B, 35B-A3B": ((16, 32, 128, 128), 1),
    "0.8B, 2B": ((16, 16, 128, 128), 1),
    "80B-A3B of qwen3next": ((16, 32, 128, 128), 2),
}


def constants(shape, run=1, **more):
    names = "KEY_HEADS", "VALUE_HEADS", "KEY_DIM", "VALUE_DIM"
    return dict(zip(names, shape, strict=True)) | {"HEAD_RUN": run, "STORED_ROWS": 64} | more


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_delta_rule_compiles_for_every_architecture(arch):
    """Kernels of the 27B model compile; its norm is fused into the step on GPUs with clusters and much shared memory."""
    fused = int(arch in (90, 100))
    of_step = constants(LARGEST, TAPS=4, SPLIT=8, FUSE_NORM=fused, ROWS_PER_THREAD=2)
    assert compiled("delta/step.cu", arch, STAGE_INPUTS=0, **of_step) == 0, "with many rows"
    for rows in (2, 4):
        of_step = constants(LARGEST, TAPS=4, SPLIT=2, FUSE_NORM=fused, ROWS_PER_THREAD=rows)
        assert compiled("delta/step.cu", arch, STAGE_INPUTS=1, **of_step) == 0
        assert compiled("delta/step.cu", arch, STAGE_INPUTS=0, **of_step) == 0, "with little shared memory"
    compiled("delta/chunk_scan.cu", arch, TAPS=4, BLOCK_V=64, STAGES=1 if arch in (86, 89, 120) else 2, **constants(LARGEST))
    assert compiled("delta/gated_norm.cu", arch, VALUE_HEADS=48, VALUE_DIM=128) == 0
    assert compiled("delta/step_throughput.cu", arch, TAPS=4, NORM_PARTS=2, **constants(LARGEST)) == 0
    of_row = {"SPLIT": 2, "NORM_PARTS": 2} if fused else {"SPLIT": 1, "NORM_PARTS": 1}
    assert compiled("delta/step_latency.cu", arch, TAPS=4, SEPARATE_NORM=1 - fused, **of_row, **constants(LARGEST)) == 0
    compiled("delta/commit.cu", arch, TAPS=4, BLOCK_V=64, **constants(LARGEST))
    compiled("delta/prefill_conv.cu", arch, TAPS=4, **constants(LARGEST))
    compiled("delta/chunk_wy.cu", arch, **constants(LARGEST))


@pytest.mark.parametrize("name", SHAPES)
def test_the_delta_rule_compiles_for_every_shape(name):
    for rows in (2, 4):
        assert (
            compiled(
                "delta/step.cu",
                TAPS=4,
                SPLIT=2,
                FUSE_NORM=1,
                ROWS_PER_THREAD=rows,
                STAGE_INPUTS=1,
                **constants(*SHAPES[name]),
            )
            == 0
        )
    assert compiled("delta/step_throughput.cu", TAPS=4, NORM_PARTS=2, **constants(*SHAPES[name])) == 0
    assert compiled("delta/step_latency.cu", TAPS=4, SPLIT=2, NORM_PARTS=2, SEPARATE_NORM=0, **constants(*SHAPES[name])) == 0
    compiled("delta/chunk_wy.cu", **constants(*SHAPES[name]))
    compiled("delta/chunk_scan.cu", TAPS=4, BLOCK_V=64, STAGES=2, **constants(*SHAPES[name]))
    compiled("delta/commit.cu", TAPS=4, BLOCK_V=64, **constants(*SHAPES[name]))


def test_a_small_shape_and_another_conv_width():
    small = constants((2, 6, 32, 32), STORED_ROWS=1)
    assert compiled("delta/step.cu", TAPS=8, SPLIT=1, FUSE_NORM=1, ROWS_PER_THREAD=2, STAGE_INPUTS=1, **small) == 0
    compiled("delta/chunk_wy.cu", **small)
    compiled("delta/chunk_scan.cu", TAPS=4, BLOCK_V=32, STAGES=2, **small)
    for taps in (2, 8):
        compiled("delta/prefill_conv.cu", TAPS=taps, **small)
        compiled("delta/commit.cu", TAPS=taps, BLOCK_V=16, **small)
