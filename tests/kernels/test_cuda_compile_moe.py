"""The kernels of the experts compile for every supported GPU; those of a decode step spill no registers."""

import nvrtc
import pytest
from nvrtc import ARCHITECTURES, compiled

from dflash.kernels.formats import FORMATS

pytestmark = nvrtc.needed

SMALL = {"EXPERTS": 256, "N_USED": 8}
SHAPE = SMALL | {"WIDTH": 2048, "FFN": 512, "SHARED_FFN": 512}
HOPPER = {"PAIRS": 96, "GROUPS": 4, "STAGES": 2, "BLOCKS": 1}
PLAIN = "F32", "F16", "BF16"
ROUTERS = (1, 2), (2, 2), (4, 2), (4, 4), (4, 8), (8, 8), (16, 8)


def kinds(kind, *names):
    return dict.fromkeys(names, kind)


def gate_up(kind, arch=90, depth=1, shape=SHAPE, **other):
    constants = kinds(kind, "GATE", "UP", "SHARED_GATE", "SHARED_UP") | shape | other
    alone = kind in PLAIN or other
    return compiled("moe/gate_up.cu", arch, DEPTH=depth, BLOCKS=1 if alone else 2, **constants) + compiled(
        "moe/gate_up_few.cu", arch, BLOCKS=1 if alone else 3, **constants
    )


def down(kind, arch=90, depth=2, shape=SHAPE, **other):
    constants = kinds(kind, "DOWN", "SHARED_DOWN") | shape | other
    return compiled("moe/down.cu", arch, WARPS=8, DEPTH=depth, BLOCKS=1 if kind in PLAIN or other else 2, **constants)


def prefill(kind, arch=90, gated=1, warps=8, stages=2, shape=SHAPE, **other):
    constants = kinds(kind, "FIRST", "SECOND", "SHARED_FIRST", "SHARED_SECOND") | shape | other
    compiled("moe/prefill.cu", arch, PAIRS=64, WARPS=warps, STAGES=stages, GATED=gated, **constants)


def prefill_hopper(kind, gated=1, inner_order=8, **other):
    constants = kinds(kind, "FIRST", "SECOND", "SHARED_FIRST", "SHARED_SECOND") | SHAPE | other
    return compiled("moe/prefill_hopper.cu", "90a", **HOPPER, GATED=gated, INNER_ORDER=inner_order, **constants)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture(arch):
    assert gate_up("Q4_K", arch) == 0
    assert down("Q6_K", arch) == 0
    assert compiled("moe/plan.cu", arch, **SMALL) == 0
    assert compiled("moe/combine.cu", arch, WIDTH=2048, N_USED=8) == 0
    assert compiled("moe/router.cu", arch, WIDTH=2048, EXPERTS=256, ROWS=4, OUTS=8) == 0
    assert compiled("moe/prefill_router.cu", arch, WIDTH=2048, PAIRS=64, NORMED_ORDER=8, **SMALL) == 0
    prefill("Q4_K", arch)
    prefill("Q6_K", arch, gated=0)


@pytest.mark.parametrize(("rows", "outs"), ROUTERS)
def test_every_router(rows, outs):
    assert compiled("moe/router.cu", WIDTH=2048, EXPERTS=256, ROWS=rows, OUTS=outs) == 0


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format(kind):
    assert gate_up(kind) == 0
    assert down(kind) == 0
    prefill(kind)


def test_hopper():
    assert prefill_hopper("Q4_K") == 0
    assert prefill_hopper("Q6_K", gated=0) == 0
    assert prefill_hopper("Q8_0", inner_order=4) == 0
    prefill_hopper("Q4_K", SECOND="Q5_K", SHARED_FIRST="Q8_0", SHARED_SECOND="MXFP4")


@pytest.mark.parametrize(("warps", "stages"), [(8, 1), (4, 2), (4, 1), (2, 1), (1, 1)])
def test_every_block_of_a_prompt(warps, stages):
    prefill("Q4_K", warps=warps, stages=stages)


def test_mixed_formats_and_small_shapes():
    assert gate_up("Q4_K", UP="Q6_K", SHARED_GATE="Q8_0", SHARED_UP="MXFP4") == 0
    assert down("Q4_K", SHARED_DOWN="Q8_0") == 0
    prefill("Q4_K", SECOND="Q6_K", SHARED_FIRST="F16")
    small = {"EXPERTS": 8, "N_USED": 2, "WIDTH": 96, "FFN": 32, "SHARED_FFN": 64}
    assert gate_up("Q4_0", depth=1, shape=small) == 0
    assert down("Q4_0", depth=1, shape=small) == 0
    prefill("Q4_0", shape=small)
