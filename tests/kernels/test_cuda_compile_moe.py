"""The kernels of the experts compile for every supported GPU; those of a decode step spill no registers."""

import nvrtc
import pytest
from nvrtc import ARCHITECTURES, compiled

from dflash.kernels.formats import FORMATS

pytestmark = nvrtc.needed

SMALL = {"EXPERTS": 256, "N_USED": 8, "N_SHARED": 1}
SHAPE = SMALL | {"MODEL_DIM": 2048, "FFN_DIM": 512, "SHARED_FFN_DIM": 512}
PLAIN = "F32", "F16", "BF16"
LIGHT = "Q2_K", "Q3_K", "Q4_K", "Q6_K", "MXFP4"
QWEN3MOE = {"EXPERTS": 128, "N_USED": 8, "N_SHARED": 0}
"""Experts of the 30B-A3B model, which has no shared one; kernels get the routed size for it."""
QWEN3NEXT = {"EXPERTS": 512, "N_USED": 10, "N_SHARED": 1}
MODELS = {
    "30B-A3B": QWEN3MOE | {"MODEL_DIM": 2048, "FFN_DIM": 768, "SHARED_FFN_DIM": 768},
    "80B-A3B": QWEN3NEXT | {"MODEL_DIM": 2048, "FFN_DIM": 512, "SHARED_FFN_DIM": 512},
}
ROOM_FOR = {80: 2, 86: 1, 89: 1, 90: 3, 100: 3, 120: 1}  # blocks of a processor


def kinds(kind, *names):
    return dict.fromkeys(names, kind)


def gate_up(kind, arch="90a", shape=SHAPE, **other):
    constants = kinds(kind, "GATE", "UP", "SHARED_GATE", "SHARED_UP") | shape | other
    blocks = 1 if kind in PLAIN or other else 3 if kind in LIGHT else 2
    return compiled("moe/gate_up.cu", arch, STAGES=1, BLOCKS_PER_SM=min(blocks, ROOM_FOR.get(arch, 3)), **constants)


def gate_up_few(kind, arch="90a", shape=SHAPE):
    constants = kinds(kind, "GATE", "UP", "SHARED_GATE", "SHARED_UP") | shape
    return compiled("moe/gate_up_small.cu", arch, BLOCKS_PER_SM=1 if kind in PLAIN else 3, **constants)


def down(kind, arch="90a", shape=SHAPE, **other):
    constants = kinds(kind, "DOWN", "SHARED_DOWN") | shape | other
    return compiled(
        "moe/down.cu", arch, WARPS=8, WARP_STRIPES=2, STAGES=2, BLOCKS_PER_SM=1 if kind in PLAIN or other else 2, **constants
    )


def prefill(kind, gated=1, warps=8, stages=2, arch="90a", shape=SHAPE):
    constants = kinds(kind, "FIRST", "SECOND", "SHARED_FIRST", "SHARED_SECOND") | shape
    compiled("moe/prefill.cu", arch, PAIRS=64, WARPS=warps, STAGES=stages, GATED=gated, **constants)


def prefill_hopper(kind, second=None, gated=1, pairs=128, shape=SHAPE):
    constants = {"FIRST": kind, "SECOND": second or kind, "PAIRS": pairs, "STAGES": 4, "ONLY": 0} | shape
    return compiled("moe/prefill_hopper.cu", "90a", GATED=gated, INNER_ORDER=8, **constants)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_experts_compile_for_every_architecture(arch):
    assert gate_up("Q4_K", arch) == 0
    stages = 3 if arch in (86, 89, 120) else 4
    constants = SMALL | {"MODEL_DIM": 2048, "PAIRS": 64, "STAGES": stages, "MANY_STAGES": 2, "NORMED_ORDER": 8}
    assert compiled("moe/prefill_router.cu", arch, **constants) == 0


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "Q4_K"])
def test_experts_compile_for_every_format(kind):
    assert gate_up(kind) == 0


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "F16"])
def test_down_projections_of_experts_compile(kind):
    assert down(kind) == 0


def test_few_and_small_shapes():
    assert gate_up_few("Q4_K") == 0
    small = {"EXPERTS": 8, "N_USED": 2, "N_SHARED": 1, "MODEL_DIM": 96, "FFN_DIM": 32, "SHARED_FFN_DIM": 64}
    assert gate_up("Q4_0", shape=small, SHARED_GATE="F16") == 0
    assert down("Q4_0", shape=small, SHARED_DOWN="Q8_0") == 0


@pytest.mark.parametrize(("rows", "outs"), [(1, 2), (4, 4), (16, 8)])
def test_routers_compile(rows, outs):
    assert compiled("moe/router.cu", "90a", ROWS=rows, OUTS=outs, **SHAPE) == 0


def test_plan_and_combine():
    assert compiled("moe/expert_items.cu", "90a", **SMALL) == 0
    assert compiled("moe/combine.cu", "90a", MODEL_DIM=2048, N_USED=8, N_SHARED=1) == 0


def test_prefill_of_experts_compiles():
    prefill("Q4_K")
    prefill("F32", gated=0, warps=1, stages=1)
    assert prefill_hopper("Q4_K") == 0
    assert prefill_hopper("Q6_K", gated=0) == 0
    assert prefill_hopper("Q4_K", "Q5_K", pairs=64) == 0


@pytest.mark.parametrize(("name", "arch"), [("30B-A3B", 80), ("30B-A3B", 90), ("80B-A3B", 90), ("80B-A3B", 120)])
def test_experts_of_large_models_compile(name, arch):
    shape = MODELS[name]
    few = {name: shape[name] for name in ("N_USED", "N_SHARED")}
    for rows, outs in ((1, 2), (4, 4)):
        assert compiled("moe/router.cu", arch, ROWS=rows, OUTS=outs, **shape) == 0
    assert compiled("moe/expert_items.cu", arch, EXPERTS=shape["EXPERTS"], **few) == 0
    assert compiled("moe/combine.cu", arch, MODEL_DIM=2048, **few) == 0
    prefill_router = few | {"MODEL_DIM": 2048, "EXPERTS": shape["EXPERTS"], "PAIRS": 64, "MANY_STAGES": 2, "NORMED_ORDER": 0}
    prefill_router["STAGES"] = 3 if arch == 120 else 4
    assert compiled("moe/prefill_router.cu", arch, **prefill_router) == 0
    assert gate_up("Q4_K", arch, shape) == 0
    assert gate_up_few("Q4_K", arch, shape) == 0
    assert down("Q6_K", arch, shape) == 0
    prefill("Q4_K", arch=arch, shape=shape)
    if arch == 90:
        assert prefill_hopper("Q4_K", shape=shape) == 0
