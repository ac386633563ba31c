"""Norm, embedding, sampling and draft trees compile for every supported GPU, without one here, and spill no registers."""

import nvrtc
import pytest
from long_form import LONG

from dflash.kernels.formats import FORMATS

pytestmark = nvrtc.needed
QWEN, ODD = 248_320, 1001
SLOW = "topk_topp", "logprobs"


def sampling(vocab):
    """Yield sources and constants of the sampling kernels for a vocabulary size."""
    chunks = -(-vocab // 2048)
    yield "row_stats", {"THREADS": 256, "CHUNK": 2048}
    yield "penalties", {"THREADS": 512}
    yield "draw", {"THREADS": 512}
    yield "topk_topp", {"THREADS": 1024, "N_CHUNKS": chunks}
    yield "logprobs", {"THREADS": 1024, "N_CHUNKS": chunks, "MAX_TOP": 128}
    yield "candidates", {"THREADS": 64, "MAX_TOP": 64}


def drafting():
    """Yield sources and constants for pairs of candidates, draft trees, acceptance and blocks of a draft model."""
    for top, rank, walk in ((16, 256, 0), (16, 256, 1), (32, 1040, 0)):
        draft = {"VOCAB": QWEN, "BLOCK_ROWS": 8, "FIRST_DRAFT_ROW": 1, "SEQUENTIAL": walk}
        yield "sample/edge_scores", {"THREADS": 64, "MAX_TOP": 64, "TOP": top, "RANK": rank, **draft}
    for edges, pool in ((0, 64), (0, 1), (1, 16)):
        yield "tree/build", {"POOL": pool, "EDGES": edges}
    for blocks in (0, 1):
        yield "tree/accept_path", {"ROWS": 16, "RING_SIZE": 4352, "MASK_TOKEN": 248_070, "BLOCKS": blocks}
    for half in (0, 1):
        yield "tree/features", {"MODEL_DIM": 5120, "TO_HALF": half}
    yield "tree/stash_rows", {"MODEL_DIM": 5120}
    yield "tree/gather_rows", {"MODEL_DIM": 5120}
    for side in (0, 1):
        yield (
            "block_conv/block_conv",
            {"MODEL_DIM": 5120, "GROUP_SIZE": 16, "TAPS": 2, "BLOCK_ROWS": 8, "SIDE": side, "ADD": side},
        )
    yield "confidence/confidence", {"MODEL_DIM": 5120, "RANK": 256, "BLOCK_ROWS": 16, "FIRST_DRAFT_ROW": 0}
    for name in ("tree/write_draft", "tree/gather_top1", "sample/set_positions", "soft_cap/soft_cap"):
        yield name, {}


@pytest.mark.parametrize("arch", nvrtc.ARCHITECTURES)
def test_sampling_compiles_for_every_architecture(arch):
    assert nvrtc.compiled("norm/rms_norm.cu", arch, ROW_DIM=5120, THREADS=320) == 0
    assert nvrtc.compiled("embed/embed.cu", arch, QUANT="Q4_K", MODEL_DIM=5120) == 0
    assert nvrtc.compiled("embed/pass_start.cu", arch, QUANT="Q4_K", MODEL_DIM=5120, ROW_DIM=5120, THREADS=320) == 0
    for name, constants in sampling(QWEN):
        if name not in SLOW:
            assert nvrtc.compiled(f"sample/{name}.cu", arch, VOCAB=QWEN, **constants) == 0, f"{name} spills"
    for name, constants in drafting():
        assert nvrtc.compiled(f"{name}.cu", arch, **constants) == 0, f"{name} spills"


@pytest.mark.parametrize(("arch", "vocab"), [(80, ODD), (90, QWEN), *[(120, QWEN)] * LONG])
def test_sampling_compiles_for_every_generation(arch, vocab):
    for name, constants in sampling(vocab):
        if name in SLOW:
            assert nvrtc.compiled(f"sample/{name}.cu", arch, VOCAB=vocab, **constants) == 0, f"{name} spills"


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "Q4_K"])
def test_embed_of_every_format(kind):
    assert nvrtc.compiled("embed/embed.cu", QUANT=kind, MODEL_DIM=5120 if kind != "F16" else 48) == 0


@pytest.mark.parametrize(("width", "threads"), [(67, 96), (12288, 320)])
def test_norm_of_other_widths(width, threads):
    assert nvrtc.compiled("norm/rms_norm.cu", ROW_DIM=width, THREADS=threads) == 0


def test_a_vocabulary_that_loads_one_by_one():
    for name, constants in sampling(ODD):
        if name not in SLOW:
            assert nvrtc.compiled(f"sample/{name}.cu", VOCAB=ODD, **constants) == 0, f"{name} spills"
