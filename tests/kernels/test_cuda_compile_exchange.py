"""Kernels of a tensor split compile for every supported GPU, without one here, and spill no registers."""

import nvrtc
import pytest
from nvrtc import ARCHITECTURES, GENERATIONS, compiled

pytestmark = nvrtc.needed
PEERS = {"PEERS": 2, "RANK": 1}
DATA = PEERS | {"PEER_DATA": 1}
STORE, ADD, GATED = range(3)
HALVES = {(516, 5120, STORE, 1): 1030, (160, 6144, ADD, 2): 320, (544, 5120, GATED, 1): 1088, (160, 17408, ADD, 2): 320}
"""Tiles, width, epilogue and norm of the multiplies of half a 27B, each with the tiles of the whole matrix."""


def constants_of(n, tiles, width, types, **about):
    """The constants of a multiply on an H200."""
    config = pytest.importorskip("dflash.kernels.linear.tile_config")
    return config.shape(n, tiles, width, types, config.Chip(132, 227, clusters=True), **about)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_exchanges_compile(arch):
    assert compiled("exchange/advance.cu", arch) == 0
    assert compiled("exchange/clear.cu", arch) == 0
    for unit in (2, 4, 8, 16):
        assert compiled("exchange/exchange.cu", arch, **PEERS, UNIT=unit) == 0


@pytest.mark.parametrize("peers", [PEERS, DATA], ids=["signals", "data"])
@pytest.mark.parametrize("arch", GENERATIONS)
def test_split_attention_compiles_with_peers(arch, peers):
    heads = {"HEAD_DIM": 256, "GROUP_SIZE": 6, "KV_HEADS": 2}
    assert compiled("attention/combine.cu", arch, **heads, GATED=1, MAX_SPLITS=33, **peers) == 0


@pytest.mark.parametrize("peers", [PEERS, DATA], ids=["signals", "data"])
@pytest.mark.parametrize("rows", [2, 4])
def test_the_delta_rule_compiles_with_peers(rows, peers):
    heads = {
        "KEY_HEADS": 8,
        "VALUE_HEADS": 24,
        "KEY_DIM": 128,
        "VALUE_DIM": 128,
        "HEAD_RUN": 1,
        "STORED_ROWS": 64,
        "TAPS": 4,
        "SPLIT": 2,
    }
    assert compiled("delta/step.cu", **heads, FUSE_NORM=1, ROWS_PER_THREAD=rows, STAGE_INPUTS=1, **peers) == 0


@pytest.mark.parametrize(("tokens", "peers"), [(8, DATA), (8, PEERS), (16, PEERS), (32, PEERS)])
@pytest.mark.parametrize("size", HALVES)
def test_multiplies_compile_with_peers(size, tokens, peers):
    tiles, width, mode, norm = size
    constants = constants_of(tokens, tiles, width, ("Q4_K",), gated=mode == GATED, whole=HALVES[size])
    constants |= {"MODE": mode, "NORM": norm, "POLLED": 0}
    assert compiled("linear/decode.cu", QUANTS="Q4_K", TOKENS=tokens, **constants, **peers) == 0


@pytest.mark.parametrize("size", HALVES)
@pytest.mark.parametrize("types", [("Q4_K",), ("Q6_K",), ("Q4_K", "Q6_K"), ("BF16",)])
def test_a_part_has_the_slices_of_the_whole(size, types):
    """So its outputs have the bits of one GPU, for any number of tokens."""
    tiles, width, mode, _ = size
    for n in (8, 16, 24, 32):
        part = constants_of(n, tiles, width, types, gated=mode == GATED, whole=HALVES[size])
        whole = constants_of(n, HALVES[size], width, types, gated=mode == GATED)
        assert part["K_SLICES"] * part["CLUSTER"] == whole["K_SLICES"] * whole["CLUSTER"]
