"""Norm, embedding and sampling compile for every supported GPU, without one here, and spill no registers."""

import nvrtc
import pytest

from dflash.kernels.formats import FORMATS

pytestmark = nvrtc.needed
QWEN, ODD = 248_320, 1001


def sampling(vocab):
    """Sources and constants for rows of such a size."""
    chunks = -(-vocab // 2048)
    yield "survey", {"THREADS": 256, "CHUNK": 2048}
    yield "edit", {"THREADS": 512}
    yield "draw", {"THREADS": 512}
    yield "select", {"THREADS": 1024, "SUMS": chunks}
    yield "top", {"THREADS": 1024, "SUMS": chunks, "MOST": 128}


@pytest.mark.parametrize("arch", nvrtc.ARCHITECTURES)
def test_every_architecture(arch):
    assert nvrtc.compiled("norm/rms_norm.cu", arch, DIM=5120, THREADS=320) == 0
    assert nvrtc.compiled("embed/embed.cu", arch, QUANT="Q4_K", DIM=5120) == 0
    for name, constants in sampling(QWEN):
        assert nvrtc.compiled(f"sample/{name}.cu", arch, VOCAB=QWEN, **constants) == 0, f"{name} spills"


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "Q4_K"])
def test_embed_of_every_format(kind):
    assert nvrtc.compiled("embed/embed.cu", QUANT=kind, DIM=5120 if kind != "F16" else 48) == 0


@pytest.mark.parametrize(("width", "threads"), [(67, 96), (12288, 320)])
def test_norm_of_other_widths(width, threads):
    assert nvrtc.compiled("norm/rms_norm.cu", DIM=width, THREADS=threads) == 0


def test_a_vocabulary_that_loads_one_by_one():
    for name, constants in sampling(ODD):
        assert nvrtc.compiled(f"sample/{name}.cu", VOCAB=ODD, **constants) == 0, f"{name} spills"
