"""Every CUDA header compiles alone: it includes what it uses and names the macros that it needs."""

import re

import nvrtc
import pytest
from nvrtc import KERNELS

from dflash.kernels.gpu.jit import macros, source

pytestmark = nvrtc.needed

ATTENTION = {"HEAD_DIM": 64, "GROUP_SIZE": 2, "KV_HEADS": 1, "TILE_KV": 64, "TILE_Q": 64, "TREE_MASK": 0, "GATED": 0}
ATTENTION |= {"STAGES": 4, "MAX_SPLITS": 4, "KEY_BITS": 4, "VALUE_BITS": 8}
DELTA = {
    "KEY_HEADS": 1,
    "VALUE_HEADS": 2,
    "KEY_DIM": 32,
    "VALUE_DIM": 32,
    "HEAD_RUN": 1,
    "STORED_ROWS": 64,
    "BLOCK_V": 32,
    "TAPS": 4,
    "ROWS_PER_THREAD": 2,
    "NORM_PARTS": 1,
}
MACROS = {
    "attention": ATTENTION,
    "block_attention": ATTENTION | {"RING_SIZE": 128, "WINDOW": 0, "CAUSAL": 1},
    "delta": DELTA | {"SPLIT": 1, "FUSE_NORM": 1, "STAGE_INPUTS": 1},
    "embed": {"QUANT": "Q4_K", "MODEL_DIM": 512},
    "gpu": {"RANK": 0, "PEERS": 2},
    "linear": {"QUANTS": "Q4_K", "TOKENS": 64, "MODE": 1, "NORM": 2, "SLICES": 2, "WARPS": 8}
    | {"X_STAGES": 8, "W_STAGES": 2, "SMEM_BYTES": 227 << 10}
    | {"SUMS_IN_SMEM": 1},
    "linear/wide/passed.cuh": {"WARPS": 8, "NT": 8},  # constants of the kernels that include it
    "moe": {"EXPERTS": 8, "N_USED": 2, "N_SHARED": 1, "MODEL_DIM": 256, "FFN_DIM": 32, "SHARED_FFN_DIM": 32}
    | dict.fromkeys(("GATE", "UP", "SHARED_GATE", "SHARED_UP"), "Q4_K"),
    "norm": {"ROW_DIM": 2048, "THREADS": 256},
    "rope": {"HEAD_DIM": 64, "ROTARY_PAIRS": 16, "TO_HALF": 1, "KEY_BITS": 8, "VALUE_BITS": 8},
    "sample": {"VOCAB": 1000, "THREADS": 1024},
}
"""Macros that the headers of each folder require, or a single header."""
HEADERS = sorted(path.relative_to(KERNELS).as_posix() for path in KERNELS.rglob("*.cuh"))
SHARED = "gpu", "formats"
"""Folders whose headers all folders may include."""


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_compiles_alone(header):
    assert (KERNELS / header).read_text(encoding="utf-8").count("#pragma once\n") == 1
    text = source(KERNELS / header).replace("#pragma once\n", "\n")
    nvrtc.compile_cubin(nvrtc.LIBRARY, text, "90a", macros(MACROS.get(header, MACROS.get(header.split("/")[0], {}))))


def test_ops_include_no_other_op():
    found = set()
    for path in KERNELS.rglob("*.cu*"):
        for name in re.findall(r'^#include "(.+)"$', path.read_text(encoding="utf-8"), re.MULTILINE):
            folders = [file.relative_to(KERNELS).parts[0] for file in (path, (path.parent / name).resolve())]
            if folders[0] != folders[1] and folders[1] not in SHARED:
                found.add(tuple(folders))
    shared = {("block_attention", "attention"), ("attention", "rope"), ("embed", "norm"), ("embed", "rope")}
    assert found == shared, "a block's attention has the mainloop of attention; some launches do what several ops do"
