"""The kernels of attention and rope compile for every supported GPU, without one here, and spill no registers."""

import nvrtc
import pytest
from nvrtc import ARCHITECTURES, GENERATIONS, compiled

cuda = pytest.importorskip("dflash.kernels.attention.cuda")

pytestmark = nvrtc.needed
HOPPER = "90a"


def attention(arch, heads, kv, width, *, gated=1):
    """Return the spilled bytes of the kernels of a shape."""
    hopper, group, splits = arch == HOPPER, heads // kv, cuda.splits(kv)
    shape, suffix, total = {"HEAD_DIM": width, "GROUP_SIZE": group, "KV_HEADS": kv}, "_hopper.cu" if hopper else ".cu", 0
    for cut in {cuda.tiles(n, group, hopper=hopper) for n in (64, 128)}:
        total += compiled(f"attention/decode{suffix}", arch, **shape, **cut.constants(), GATED=0, MAX_SPLITS=splits)
        total += compiled(f"attention/prefill{suffix}", arch, **shape, **cut.constants(), GATED=gated)
    return total + compiled("attention/combine.cu", arch, **shape, GATED=gated, MAX_SPLITS=splits)


def quantized(arch, heads, kv, width, bits):
    """Return the spilled bytes of the kernels of a shape with a quantized cache."""
    hopper, group, shape = arch == HOPPER, heads // kv, {"HEAD_DIM": width, "KV_HEADS": kv}
    shape |= {"KEY_BITS": bits[0], "VALUE_BITS": bits[1]}
    total = compiled("attention/unpack.cu", arch, **shape)
    sizes = {"QUERY_HEADS": heads, "ROTARY_PAIRS": width // 4, "GATED": 1, "TO_HALF": 1}
    total += compiled("rope/rotate.cu", arch, **shape, **sizes)
    for cut in {cuda.quantized_tiles(n * group, group, hopper=hopper, bits=bits) for n in range(1, 65)}:
        constants = {**shape, **cut.constants(), "GROUP_SIZE": group, "MAX_SPLITS": cuda.splits(kv)}
        total += compiled(f"attention/{cut.kernel}.cu", arch, **constants, GATED=0)
    return total


@pytest.mark.parametrize("arch", GENERATIONS)
def test_attention_compiles_for_every_generation(arch):
    assert attention(arch, 24, 4, 256) == 0
    assert attention(arch, 32, 4, 128, gated=0) == 0, "30B-A3B"
    for heads in (32, 0):
        shape = {"HEAD_DIM": 128, "QUERY_HEADS": heads, "KV_HEADS": 4, "ROTARY_PAIRS": 64}
        settings = {"GATED": 0, "TO_HALF": 1, "KEY_BITS": 16, "VALUE_BITS": 16}
        assert compiled("rope/rotate.cu", arch, **shape, **settings) == 0


@pytest.mark.parametrize("bits", [(8, 8), (4, 4)])
@pytest.mark.parametrize("arch", [*GENERATIONS[:1], HOPPER, *GENERATIONS[2:]])
def test_every_generation_with_a_quantized_cache(arch, bits):
    assert quantized(arch, 24, 4, 256, bits) == 0


@pytest.mark.parametrize(
    ("heads", "kv", "width", "bits"),
    [
        (16, 2, 256, (8, 8)),
        (32, 8, 128, (8, 8)),
        (2, 1, 64, (8, 8)),
        (2, 1, 96, (8, 8)),
        (24, 4, 256, (8, 4)),
        (24, 4, 256, (4, 8)),
        (32, 8, 128, (4, 4)),
        (2, 1, 32, (4, 4)),
        (2, 1, 96, (8, 4)),
    ],
)
def test_every_shape_with_a_quantized_cache(heads, kv, width, bits):
    assert quantized(HOPPER, heads, kv, width, bits) == 0


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_attention_compiles_for_every_architecture(arch):
    assert compiled("attention/compact.cu", arch) == 0
    assert compiled("rope/angles.cu", arch) == 0
    assert (
        compiled(
            "rope/rotate.cu",
            arch,
            HEAD_DIM=256,
            QUERY_HEADS=24,
            KV_HEADS=4,
            ROTARY_PAIRS=32,
            GATED=1,
            TO_HALF=1,
            KEY_BITS=16,
            VALUE_BITS=16,
        )
        == 0
    )
    assert compiled("rope/append.cu", arch, HEAD_DIM=128, KV_HEADS=8, ROTARY_PAIRS=64, TO_HALF=1) == 0


@pytest.mark.parametrize(
    ("heads", "kv", "width", "gated"),
    [(24, 4, 256, 1), (16, 2, 256, 1), (32, 4, 128, 0), (32, 8, 128, 0), (3, 1, 48, 0)],
    ids=["27B", "35B-A3B, 80B-A3B", "30B-A3B", "a draft", "odd"],
)
def test_every_shape_on_hopper(heads, kv, width, gated):
    assert attention(HOPPER, heads, kv, width, gated=gated) == 0
    of_row = {"HEAD_DIM": width, "GROUP_SIZE": heads // kv, "KV_HEADS": kv, "ROTARY_PAIRS": width // 4}
    of_row |= {"QUERY_STRIDE": width * (1 + gated), "MAX_SPLITS": cuda.splits(kv)}
    cut = cuda.tiles(1, heads // kv, hopper=True).constants()
    assert compiled("attention/decode_row_hopper.cu", HOPPER, **of_row, **cut) == 0
    assert (
        compiled(
            "rope/rotate.cu",
            HEAD_DIM=width,
            QUERY_HEADS=heads,
            KV_HEADS=kv,
            ROTARY_PAIRS=width // 4,
            GATED=0,
            TO_HALF=0,
            KEY_BITS=32,
            VALUE_BITS=32,
        )
        == 0
    )


@pytest.mark.parametrize(("heads", "kv", "width"), [(9, 3, 64), (12, 2, 128), (32, 32, 128)])
@pytest.mark.parametrize("of_heads", [{"NORMED": 0}, {"NORMED": 0, "BIASED": 1}], ids=str)
def test_heads_without_norms(heads, kv, width, of_heads):
    shape = {"HEAD_DIM": width, "KV_HEADS": kv, "ROTARY_PAIRS": width // 2} | of_heads
    sizes = {"QUERY_HEADS": heads, "GATED": 0, "TO_HALF": 1}
    for arch in ARCHITECTURES:
        for bits in (16, 8, 4):
            assert compiled("rope/rotate.cu", arch, **shape, **sizes, KEY_BITS=bits, VALUE_BITS=bits) == 0
    group = heads // kv
    of_row = shape | {"GROUP_SIZE": group, "QUERY_STRIDE": width, "MAX_SPLITS": cuda.splits(kv)}
    cut = cuda.tiles(1, group, hopper=True).constants()
    assert compiled("attention/decode_row_hopper.cu", HOPPER, **of_row, **cut) == 0
    assert attention(HOPPER, heads, kv, width, gated=0) == 0


def test_an_odd_shape_elsewhere():
    assert attention(80, 2, 1, 80, gated=0) == 0


@pytest.mark.parametrize("group", [1, 3, 4, 8])
def test_attention_tiles_fit_shared_memory(group):
    for hopper, room in ((True, 227), (False, 99)):
        for queries in (64, 128):
            cut = cuda.tiles(queries, group, hopper=hopper)
            beside = 1200 + cut.queries // 64 * 12 * min(64, cut.queries // group)
            assert cut.shared(256) + beside <= room * 1024
        for n in range(1, 65):
            for bits in ((8, 8), (8, 4), (4, 4)):
                cut = cuda.quantized_tiles(n * group, group, hopper=hopper, bits=bits)
                assert cut.shared(256) + (6000 if hopper else 1200) <= room * 1024
