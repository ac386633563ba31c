"""Norm, embedding and sampling compile for every supported GPU, without one here, and spill no registers."""

import nvrtc
import pytest

from dflash.kernels.formats import FORMATS

pytestmark = nvrtc.needed
QWEN, SMALL = 248_320, 512


def chunks(vocab):
    return -(-vocab // 2048)


@pytest.mark.parametrize("arch", nvrtc.ARCHITECTURES)
def test_every_architecture(arch):
    assert nvrtc.compiled("norm/rms_norm.cu", arch, DIM=5120, THREADS=320) == 0
    assert nvrtc.compiled("embed/embed.cu", arch, QUANT="Q4_K", DIM=5120) == 0
    for vocab in (QWEN, SMALL):
        assert nvrtc.compiled("sample/survey.cu", arch, VOCAB=vocab, THREADS=256, CHUNK=2048) == 0
        assert nvrtc.compiled("sample/edit.cu", arch, VOCAB=vocab, THREADS=512) == 0
        assert nvrtc.compiled("sample/draw.cu", arch, VOCAB=vocab, THREADS=512) == 0
        assert nvrtc.compiled("sample/select.cu", arch, VOCAB=vocab, THREADS=1024, SUMS=chunks(vocab)) == 0
        assert nvrtc.compiled("sample/top.cu", arch, VOCAB=vocab, THREADS=1024, SUMS=chunks(vocab), MOST=128) == 0


@pytest.mark.parametrize("kind", FORMATS)
def test_embed_of_every_format(kind):
    assert nvrtc.compiled("embed/embed.cu", QUANT=kind, DIM=5120 if kind != "F16" else 48) == 0


@pytest.mark.parametrize(("width", "threads"), [(5, 32), (67, 96), (96, 32), (5120, 320), (8191, 320), (12288, 320)])
def test_norm_of_every_width(width, threads):
    assert nvrtc.compiled("norm/rms_norm.cu", DIM=width, THREADS=threads) == 0


@pytest.mark.parametrize("vocab", [1, 7, 1001])
def test_small_vocabularies(vocab):
    assert nvrtc.compiled("sample/survey.cu", VOCAB=vocab, THREADS=256, CHUNK=2048) == 0
    assert nvrtc.compiled("sample/draw.cu", VOCAB=vocab, THREADS=512) == 0
    assert nvrtc.compiled("sample/select.cu", VOCAB=vocab, THREADS=1024, SUMS=chunks(vocab)) == 0
    assert nvrtc.compiled("sample/top.cu", VOCAB=vocab, THREADS=1024, SUMS=chunks(vocab), MOST=128) == 0
