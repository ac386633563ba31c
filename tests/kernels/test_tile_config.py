"""Launch shapes of the packed multiply on a GPU: properties that need no GPU."""

import pytest

cuda = pytest.importorskip("dflash.kernels.linear.cuda")

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


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(("tiles", "width"), SIZES)
def test_blocks_in_fours_run_at_once(tiles, width, types):
    for one in shapes(tiles, width, types, H200):
        if one["CLUSTER"] == 4:
            assert -(-tiles // (one["ROW_UNITS"] * one["MT"])) <= FOURS


def test_ffn_down_of_a_27b_spares_tokens():
    """For many tokens a block takes a quarter of K."""
    assert [one["CLUSTER"] for one in shapes(320, 17408, ("Q4_K",), H200)] == [2, 4, 4, 4]
