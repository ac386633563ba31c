"""Launch shapes of the packed multiply on a GPU: properties that need no GPU."""

import pytest

cuda = pytest.importorskip("dflash.kernels.linear.cuda")
slices_of = pytest.importorskip("dflash.kernels.linear.tile_config").slices_of

most_tokens = pytest.importorskip("dflash.kernels.linear.tile_config").most_tokens
one_token = pytest.importorskip("dflash.kernels.linear.tile_config").one_token
tile_bytes = pytest.importorskip("dflash.kernels.formats.cuda").tile_bytes
H200 = cuda.Chip(132, 227, clusters=True)
UNCLUSTERED = {
    "3090": cuda.Chip(82, 99, clusters=False),
    "4090": cuda.Chip(128, 99, clusters=False),
    "5090": cuda.Chip(170, 99, clusters=True),
    "A100": cuda.Chip(108, 163, clusters=False),
}
CHIPS = [H200, cuda.Chip(148, 227, clusters=True), *UNCLUSTERED.values()]
FOURS = 30
"""Clusters of four blocks with maximal shared memory that run at once on an H200, as reported by its driver."""
SIZES = [(640, 5120), (1030, 5120), (320, 17408), (320, 25600), (320, 6144), (256, 4096), (256, 12288), (64, 3584), (3, 256)]
"""Tiles of rows, and widths, of tested weights."""
TYPES = [("Q4_K",), ("Q6_K",), ("Q8_0",), ("BF16",), ("F16", "Q4_K", "Q6_K")]


def shapes(tiles, width, types, chip, *, gated=False):
    most = most_tokens(tiles, width, types, chip, gated=gated)
    return [cuda.shape(n, tiles, width, types, chip, gated=gated) for n in cuda.BUCKETS if n <= most]


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(("tiles", "width"), SIZES)
def test_slices_do_not_depend_on_the_tokens(tiles, width, types, chip):
    for gated in (False, True):
        assert len({one["K_SLICES"] * one["CLUSTER"] for one in shapes(tiles, width, types, chip, gated=gated)}) == 1


MIXES = [*TYPES, ("F32",), ("F16",), ("Q2_K",), ("IQ4_XS",), ("F32", "Q2_K", "Q6_K")]


@pytest.mark.parametrize("types", MIXES)
def test_every_shape_fits(types):
    """Weights of any size: a stage of the weights of every warp fits beside the tokens."""
    check_space(types, H200, (1, 2, 9, 40, 64, 75, 105, 130, 320, 700, 1600, 15520), (1, 2, 3, 5, 8, 10, 14, 15, 16, 24, 68))


@pytest.mark.parametrize("chip", UNCLUSTERED)
@pytest.mark.parametrize("types", MIXES)
def test_every_shape_fits_a_smaller_gpu(types, chip):
    check_space(types, UNCLUSTERED[chip], (1, 9, 64, 320, 1088, 15520), (1, 3, 10, 20, 68))


def check_space(types, chip, sizes, widths):
    row = 640 if "Q2_K" in types else 608
    for tiles in sizes:
        for columns in widths:
            for gated in (False, True):
                for n, one in zip(cuda.BUCKETS, shapes(tiles, 256 * columns, types, chip, gated=gated), strict=False):
                    warps, slices = one["K_SLICES"] * one["ROW_UNITS"], one["K_SLICES"] * one["CLUSTER"]
                    tokens = one["K_SLICES"] * one["X_STAGES"] * n * row
                    stage = warps * one["MT"] * max(tile_bytes(kind) for kind in types)
                    case = tiles, columns, gated, n, one
                    assert tokens + stage <= one["SMEM_BYTES"] <= (chip.shared - 3) * 1024, case
                    assert 1 <= warps <= 32, case
                    assert slices == slices_of(tiles, 256 * columns, types, chip, gated=gated), case
                    assert one["X_STAGES"] > 1 or columns <= slices, case


@pytest.mark.parametrize("types", MIXES)
@pytest.mark.parametrize("width", [256, 768, 5120])
def test_one_token_of_a_head(types, width):
    """Memory for one token leaves more for the weights; smaller weights and gated ones have no such launch."""
    size = {"tiles": 15520, "width": width, "types": types, "chip": H200}
    one = cuda.shape(8, **size, gated=False) | one_token(**size, gated=False)
    assert one["X_ROWS"] == one["K_SLICES"] * one["CLUSTER"] == 1
    stage = one["ROW_UNITS"] * one["MT"] * max(tile_bytes(kind) for kind in types)
    assert one["X_STAGES"] * (8 * 640 // 4) + stage <= one["SMEM_BYTES"] <= H200.shared * 1024 // one["BLOCKS_PER_SM"]
    for other in (size | {"tiles": 1030}, size | {"chip": UNCLUSTERED["3090"]}):
        assert one_token(**other, gated=False) == {}
    assert one_token(**size, gated=True) == {}


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(
    ("tiles", "width"), [(320, 17408), (320, 6144), (1088, 5120), (1032, 5120), (256, 4096), (64, 2048)]
)
def test_a_part_fits_and_has_the_slices_of_the_whole(tiles, width, types, parts):
    row = 608
    for gated in (False, True):
        for n in (8, 16, 24, 32):
            one = cuda.shape(n, tiles // parts, width, types, H200, gated=gated, whole=tiles)
            slices = one["K_SLICES"] * one["CLUSTER"]
            assert slices == slices_of(tiles, width, types, H200, gated=gated), one
            warps = one["K_SLICES"] * one["ROW_UNITS"]
            stage = warps * one["MT"] * max(tile_bytes(kind) for kind in types)
            assert one["K_SLICES"] * one["X_STAGES"] * n * row + stage <= one["SMEM_BYTES"] <= 224 * 1024, one
            assert 1 <= warps <= 32, one


def test_ffn_down_of_half_a_27b_runs_on_most_multiprocessors():
    """Up to 16 tokens; with all eight slices in a block, only 80 blocks would run."""
    for types in (("Q4_K",), ("Q6_K",)):
        for n in (8, 16):
            one = cuda.shape(n, 160, 17408, types, H200, gated=False, whole=320)
            assert -(-160 // (one["ROW_UNITS"] * one["MT"])) * one["CLUSTER"] > 100


SMALL = {
    "0.8B inputs": (514, 1024, ("Q4_K", "Q6_K"), False),
    "0.8B ssm_out": (64, 2048, ("Q4_K",), False),
    "0.8B gate and up": (224, 1024, ("Q4_K",), True),
    "0.8B ffn_down": (64, 3584, ("Q6_K",), False),
    "35B-A3B inputs": (772, 2048, ("F16", "Q4_K", "Q6_K"), False),
    "35B-A3B ssm_out": (128, 4096, ("Q4_K",), False),
    "9B ssm_out": (256, 4096, ("Q4_K",), False),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_small_matrix_uses_the_whole_gpu(name):
    """One row: most multiprocessors have a block, a warp has at most two tiles of K in turn, and all weights fit."""
    tiles, width, types, gated = SMALL[name]
    one, sides = cuda.shape(8, tiles, width, types, H200, gated=gated), 2 if gated else 1
    blocks = -(-tiles * sides // (one["ROW_UNITS"] * one["MT"])) * one["CLUSTER"]
    assert 0.8 * min(tiles, H200.processors) <= blocks <= H200.processors
    slices = one["K_SLICES"] * one["CLUSTER"]
    columns = -(-width // (256 * slices))
    assert columns <= 2
    largest = max(tile_bytes(kind) for kind in types if kind != "F16")
    weights = one["K_SLICES"] * one["ROW_UNITS"] * one["MT"] * columns * largest
    tokens = one["K_SLICES"] * one["X_STAGES"] * 8 * 608
    assert weights + tokens <= one["SMEM_BYTES"] <= 224 * 1024


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(("tiles", "width"), SIZES)
def test_blocks_in_fours_run_at_once(tiles, width, types):
    for one in shapes(tiles, width, types, H200):
        if one["CLUSTER"] == 4:
            assert -(-tiles // (one["ROW_UNITS"] * one["MT"])) <= FOURS


def test_ffn_down_of_a_27b_spares_tokens():
    """For many tokens a block takes a quarter of K."""
    assert [one["CLUSTER"] for one in shapes(320, 17408, ("Q4_K",), H200)] == [2, 4, 4, 4]


LARGE = {
    "inputs": (1030, 5120, ("Q4_K",), False),
    "inputs of two types": (1030, 5120, ("Q4_K", "Q6_K"), False),
    "ssm_out": (320, 6144, ("Q4_K",), False),
    "gate and up": (1088, 5120, ("Q4_K",), True),
    "ffn_down": (320, 17408, ("Q4_K",), False),
    "ffn_down Q6_K": (320, 17408, ("Q6_K",), False),
    "output": (15520, 5120, ("Q6_K",), False),
}
"""Multiplies of a 27B."""


@pytest.mark.parametrize("chip", UNCLUSTERED)
@pytest.mark.parametrize("name", LARGE)
def test_a_smaller_gpu_is_busy(name, chip):
    """One row: blocks of all waves have 60 % of the tiles that they could have; two warps for each scheduler, or nearly."""
    tiles, width, types, gated = LARGE[name]
    processors, sides = UNCLUSTERED[chip].processors, 2 if gated else 1
    one = shapes(tiles, width, types, UNCLUSTERED[chip], gated=gated)[0]
    blocks = -(-tiles // (one["ROW_UNITS"] // sides * one["MT"]))
    slots = -(-blocks // processors) * processors * one["ROW_UNITS"] * one["MT"]
    assert tiles * sides / slots >= 0.6
    assert one["K_SLICES"] * one["ROW_UNITS"] >= 6


@pytest.mark.parametrize(("chip", "tokens"), [("3090", 32), ("4090", 24), ("A100", 32)])
def test_many_tokens_of_a_27b_take_one_launch(chip, tokens):
    for name in ("inputs", "ssm_out", "gate and up", "ffn_down", "output"):
        tiles, width, types, gated = LARGE[name]
        assert most_tokens(tiles, width, types, UNCLUSTERED[chip], gated=gated) >= tokens, name


def test_fewer_tokens_where_more_would_leave_no_space():
    """Three K slices of 32 tokens do not fit; two launches of 16 do."""
    tiles, width, types, gated = LARGE["ffn_down"]
    assert slices_of(tiles, width, types, UNCLUSTERED["5090"], gated=gated) == 3
    assert most_tokens(tiles, width, types, UNCLUSTERED["5090"], gated=gated) == 16
