"""The kernels of models whose layers differ compile without a GPU here, and spill no registers."""

import nvrtc
import pytest
from nvrtc import GENERATIONS, compiled

pytestmark = nvrtc.needed

HEADS = {"QUERY_HEADS": 16, "KV_HEADS": 4, "GATED": 0, "TO_HALF": 1}
FLOATS, HALVES, Q8_0, Q4_0 = ({"KEY_BITS": bits, "VALUE_BITS": bits} for bits in (32, 16, 8, 4))
CHOICE = {"EXPERTS": 128, "N_USED": 8, "N_SHARED": 0}
EXPERTS = CHOICE | {"MODEL_DIM": 2816, "FFN_DIM": 704, "SHARED_FFN_DIM": 704}
KINDS = dict.fromkeys(("GATE", "UP", "SHARED_GATE", "SHARED_UP"), "Q4_K")
LINEAR = {"QUANTS": "Q4_K", "TOKENS": 8, "MODE": 2, "NORM": 0, "K_SLICES": 4, "CLUSTER": 1, "ROW_UNITS": 2, "MT": 1}
LINEAR |= {"X_COLUMNS": 256, "X_STAGES": 2, "SMEM_BYTES": 65536, "BLOCKS_PER_SM": 1, "POLLED": 0, "GELU": 1}
KERNELS = {
    "gated float32": ("attention/attend_rows.cu", {"HEAD_DIM": 256, "WINDOW": 0, "GATED": 1} | FLOATS),
    "a window of float32": ("attention/attend_rows.cu", {"HEAD_DIM": 256, "WINDOW": 1024} | FLOATS),
    "a window of halves": ("attention/attend_rows.cu", {"HEAD_DIM": 128, "WINDOW": 512} | HALVES),
    "a window of q8_0": ("attention/attend_rows.cu", {"HEAD_DIM": 256, "WINDOW": 1024} | Q8_0),
    "a window of q4_0": ("attention/attend_rows.cu", {"HEAD_DIM": 128, "WINDOW": 512} | Q4_0),
    "heads of 512": ("attention/attend_rows.cu", {"HEAD_DIM": 512, "WINDOW": 0} | HALVES),
    "a gate of heads": ("attention/head_gate.cu", {"ROW_DIM": 6144, "GATES": 48}),
    "normed values": (
        "rope/rotate.cu",
        HEADS | {"HEAD_DIM": 512, "ROTARY_PAIRS": 256, "VALUE_NORM": 1} | HALVES,
    ),
    "normed values, q8_0": (
        "rope/rotate.cu",
        HEADS | {"HEAD_DIM": 256, "ROTARY_PAIRS": 128, "VALUE_NORM": 1} | Q8_0,
    ),
    "queries only": (
        "rope/rotate.cu",
        HEADS | {"HEAD_DIM": 512, "ROTARY_PAIRS": 256, "QUERIES_ONLY": 1} | HALVES,
    ),
    "norm and sum": ("norm/add_norm.cu", {"ROW_DIM": 2816, "THREADS": 320, "CLEAR": 1}),
    "a layer's part": ("gelu/gelu_gate.cu", {"X_DIM": 2560, "GATES": 256}),
    "layer embeddings": ("per_layer/layer_embeddings.cu", {"LAYERS": 42, "LAYER_DIM": 256}),
    "halves": ("per_layer/halve.cu", {}),
    "suppressed tokens": ("soft_cap/suppress.cu", {}),
    "a router with a gain": ("moe/router.cu", EXPERTS | {"OUTS": 4, "ROWS": 4, "OWN_GAIN": 1}),
    "a router of one row with a gain": ("moe/router.cu", EXPERTS | {"OUTS": 2, "ROWS": 1, "OWN_GAIN": 1}),
    "factors of experts": ("moe/expert_items.cu", CHOICE | {"ROUTING": 1}),
    "selection by sigmoids": ("moe/expert_items.cu", CHOICE | {"ROUTING": 2, "N_SHARED": 1, "SHARED_ROUTER": 0}),
    "experts with GELU": ("moe/gate_up.cu", EXPERTS | KINDS | {"BLOCKS_PER_SM": 1, "STAGES": 1, "GELU": 1}),
    "a feed forward with GELU": ("linear/decode.cu", LINEAR),
    "a feed forward with GELU in prefill": ("linear/prefill.cu", {"MODE": 2, "TILE_K": 64, "GELU": 1}),
}


@pytest.mark.parametrize(("path", "constants"), KERNELS.values(), ids=KERNELS)
def test_kernels_of_layered_models_compile(path, constants):
    """For one architecture, since other tests compile these sources for all; `attend_rows`, tested only here, for all."""
    rows = "attend_rows" in path
    for arch in GENERATIONS if rows else ("90a",):
        assert compiled(path, arch, **({"GROUP_SIZE": 4, "KV_HEADS": 4, "GATED": 0} if rows else {}) | constants) == 0


def test_the_routers_of_a_prompt():
    constants = CHOICE | {"MODEL_DIM": 2816, "OWN_GAIN": 1, "PAIRS": 128, "STAGES": 4, "MANY_STAGES": 4, "NORMED_ORDER": 8}
    for routing in (1, 2):
        assert compiled("moe/prefill_router.cu", "90a", **constants, ROUTING=routing) == 0
