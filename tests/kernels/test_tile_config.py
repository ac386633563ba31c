"""Launch shapes of the packed multiply on a GPU: properties that need no GPU."""

import pytest

cuda = pytest.importorskip("dflash.kernels.linear.cuda")
slices_of = pytest.importorskip("dflash.kernels.linear.tile_config").slices_of

H200 = cuda.Chip(132, 227, clusters=True)
CHIPS = [H200, cuda.Chip(148, 227, clusters=True), cuda.Chip(170, 99, clusters=True), cuda.Chip(108, 163, clusters=False)]
FOURS = 30
"""Clusters of four blocks with maximal shared memory that run at once on an H200, as reported by its driver."""
SIZES = [(640, 5120), (1030, 5120), (320, 17408), (320, 25600), (320, 6144), (256, 4096), (256, 12288), (64, 3584), (3, 256)]
"""Tiles of rows, and widths, of tested weights."""
TYPES = [("Q4_K",), ("Q6_K",), ("Q8_0",), ("BF16",), ("F16", "Q4_K", "Q6_K")]


def shapes(tiles, width, types, chip, *, gated=False):
    return [cuda.shape(n, tiles, width, types, chip, gated=gated) for n in cuda.BUCKETS if n <= chip.most]


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(("tiles", "width"), SIZES)
def test_slices_do_not_depend_on_the_tokens(tiles, width, types, chip):
    for gated in (False, True):
        assert len({one["K_SLICES"] * one["CLUSTER"] for one in shapes(tiles, width, types, chip, gated=gated)}) == 1


@pytest.mark.parametrize("types", [*TYPES, ("F32",), ("F16",), ("Q2_K",), ("IQ4_XS",), ("F32", "Q4_K", "Q6_K")])
def test_every_shape_fits(types):
    """Weights of any size: a stage of the weights of every warp fits beside the tokens."""
    row = 640 if "Q2_K" in types else 608
    for tiles in (1, 2, 9, 40, 64, 75, 105, 130, 320, 700, 1600, 15520):
        for columns in (1, 2, 3, 5, 8, 10, 14, 15, 16, 24, 68):
            for gated in (False, True):
                for n in (8, 16, 24, 32):
                    one = cuda.shape(n, tiles, 256 * columns, types, H200, gated=gated)
                    warps, slices = one["K_SLICES"] * one["ROW_UNITS"], one["K_SLICES"] * one["CLUSTER"]
                    tokens = one["K_SLICES"] * one["X_STAGES"] * n * row
                    stage = warps * one["MT"] * max(cuda.tile_bytes(kind) for kind in types)
                    case = tiles, columns, gated, n, one
                    assert tokens + stage <= one["SMEM_BYTES"] <= 224 * 1024, case
                    assert 1 <= warps <= 32, case
                    assert slices == slices_of(tiles, 256 * columns, types, H200, gated=gated), case
                    assert one["X_STAGES"] > 1 or columns <= slices, case


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
            stage = warps * one["MT"] * max(cuda.tile_bytes(kind) for kind in types)
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
    largest = max(cuda.tile_bytes(kind) for kind in types if kind != "F16")
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
