"""The kernels of attention and rope compile for every supported GPU, without one here, and spill no registers."""

import nvrtc
import pytest
from nvrtc import ARCHITECTURES, compiled

cuda = pytest.importorskip("dflash.kernels.attention.cuda")

pytestmark = nvrtc.needed
HOPPER = "90a"
SHAPES = {"27B": (24, 4, 256), "35B-A3B": (16, 2, 256), "a draft": (32, 8, 128), "small": (4, 2, 64), "odd": (3, 1, 48)}
TARGETS = [*ARCHITECTURES, HOPPER]


def constants(heads, kv, width, gated=1):
    return {"HEAD": width, "GROUP": heads // kv, "KV": kv, "GATED": gated}


def spilled(arch, heads, kv, width, *, gated=1, few=True):
    """Bytes that the kernels of a shape spill."""
    common, hopper, splits = constants(heads, kv, width, gated), arch == HOPPER, cuda.splits(kv)
    suffix, total = "_hopper.cu" if hopper else ".cu", 0
    for cut in {cuda.tiles(n, heads // kv, hopper=hopper) for n in ((64, 128) if few else (128,))}:
        total += compiled(f"attention/attend{suffix}", arch, **{**common, **cut.constants(), "GATED": 0}, SPLITS=splits)
        total += compiled(f"attention/prefill{suffix}", arch, **common, **cut.constants())
    total += compiled("attention/combine.cu", arch, **common, SPLITS=splits)
    return total


@pytest.mark.parametrize("arch", TARGETS)
def test_every_architecture(arch):
    assert spilled(arch, *SHAPES["27B"]) == 0
    assert compiled("attention/exact.cu", arch, **constants(*SHAPES["27B"])) == 0
    assert compiled("attention/compact.cu", arch) == 0
    assert compiled("rope/angles.cu", arch) == 0
    for half in (0, 1):
        shape = {"HEAD": 256, "HEADS": 24, "KV": 4, "PAIRS": 32, "GATED": 1, "HALF": half}
        assert compiled("rope/rotate.cu", arch, **shape) == 0


@pytest.mark.parametrize(("name", "gated"), [("27B", 0), ("35B-A3B", 1), ("a draft", 0), ("small", 1), ("odd", 0)])
def test_every_shape(name, gated):
    for arch in (80, HOPPER):
        assert spilled(arch, *SHAPES[name], gated=gated) == 0
    assert compiled("attention/exact.cu", **constants(*SHAPES[name], gated)) == 0


@pytest.mark.parametrize("width", [16, 80, 176])
def test_every_width(width):
    for arch in (80, HOPPER):
        spilled(arch, 2, 1, width, few=False)
    compiled("rope/rotate.cu", HEAD=width, HEADS=2, KV=1, PAIRS=width // 4, GATED=0, HALF=1)


@pytest.mark.parametrize("group", [1, 3, 4, 8])
def test_tiles_fit(group):
    for hopper, room in ((True, 227), (False, 99)):
        for queries in (64, 128):
            cut = cuda.tiles(queries, group, hopper=hopper)
            beside = 1200 + cut.queries // 64 * 12 * min(64, cut.queries // group)
            assert cut.shared(256) + beside <= room * 1024
