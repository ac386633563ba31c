"""Types of the KV cache: q8_0 and q4_0 as in llama.cpp, from the definition and from the kernels, and what is refused."""

import gguf
import numpy as np
import pytest
from batches import chain, fill, ragged
from compare import assert_same_bits

from dflash.errors import RequestError
from dflash.kernels.kv_types import (
    BLOCK,
    KV_TYPES,
    check_kv,
    drafter_kv,
    head_size,
    kv_types,
    mixed,
    numbers,
    quantize,
)
from dflash.kernels.ragged import PAGE
from dflash.kernels.rope import rotate

WIDTH = 96


def wild():
    """Heads of ordinary, tiny, huge, zero and one-sided values, and of values half way between two bytes."""
    rng = np.random.default_rng(8)
    x = rng.standard_normal((200, WIDTH)).astype(np.float32)
    x *= np.float32(10.0) ** rng.integers(-9, 5, (200, 1)).astype(np.float32)
    x[3], x[4, :BLOCK], x[5], x[6, 1:BLOCK] = 0, 0, np.abs(x[5]), 0
    x[7] = np.arange(WIDTH, dtype=np.float32) - 47.5
    x[7, [0, 40, 70]] = 127
    x[8] = 1e9
    x[9, ::2] = np.float32(0.49999997)
    x[9, 1::2] = 127
    return x


def test_quantize_is_that_of_llama_cpp():
    x = wild()
    x[8] = 1  # the package's scale overflows
    blocks = gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0).reshape(len(x), WIDTH // BLOCK, 2 + BLOCK)
    got = quantize(x)
    assert_same_bits("bytes", got[:, :WIDTH], blocks[..., 2:].reshape(len(x), WIDTH).view(np.int8))
    assert_same_bits("scales", got[:, WIDTH : WIDTH + 2 * WIDTH // BLOCK], blocks[..., :2].reshape(len(x), -1).view(np.int8))
    assert not got[:, WIDTH + 2 * WIDTH // BLOCK :].any()
    assert head_size(got) == WIDTH


def test_a_number_is_rounded_once():
    x = np.random.default_rng(2).standard_normal((3, WIDTH)).astype(np.float32)
    stored = quantize(x)
    scales = stored[:, WIDTH : WIDTH + 6].copy().view(np.float16).astype(np.float64)
    want = (stored[:, :WIDTH].astype(np.float64) * np.repeat(scales, BLOCK, axis=1)).astype(np.float16)
    assert_same_bits("numbers", numbers(stored), want)
    assert np.isfinite(numbers(quantize(wild()))).all()
    assert np.abs(numbers(stored) - x).max() <= np.abs(x).max() / 127 * 0.51


def test_quantize_to_4_bits_is_that_of_llama_cpp():
    x = wild()
    x[8] = 1  # as above
    blocks = gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q4_0).reshape(len(x), WIDTH // BLOCK, 2 + BLOCK // 2)
    got = quantize(x, "q4_0")
    assert head_size(got) == WIDTH
    assert_same_bits("scales", got[:, WIDTH // 2 : WIDTH // 2 + 6], blocks[..., :2].reshape(len(x), -1))
    packed = blocks[..., 2:].reshape(len(x), -1)
    for half in (15, 240):
        # the package multiplies in float64: a number half way between two may differ
        differs = (got[:, : WIDTH // 2] & half) != (packed & half)
        assert np.delete(differs, 7, axis=0).sum() <= 3
    assert np.isfinite(numbers(quantize(wild(), "q4_0"))).all()


def test_a_number_of_4_bits_is_near():
    x = np.random.default_rng(2).standard_normal((30, WIDTH)).astype(np.float32)
    far = np.abs(numbers(quantize(x, "q4_0")) - x).reshape(30, -1, BLOCK)
    most = np.abs(x).reshape(30, -1, BLOCK).max(axis=-1, keepdims=True)
    assert (far <= most / 8 * 1.01).all(), "the largest values of the other sign are cut off, at most a step"
    assert np.median(far / most) < 0.04


def test_mixed_heads_have_the_same_products():
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((2, 5, 64))
    k[:, 3] *= 50
    assert np.allclose(mixed(mixed(k)), k)
    assert np.allclose(mixed(q) @ mixed(k).T, q @ k.T)
    plain, spread = (np.abs(numbers(quantize(x.astype(np.float32), "q4_0")) - x).mean() for x in (k, mixed(k)))
    assert spread < plain / 1.2, "a large element no longer spoils its block"


@pytest.mark.parametrize("kv", ["q8_0", "q4_0"])
def test_the_kernel_writes_the_definition(kv):
    x, kind = wild(), KV_TYPES[kv]
    x = np.concatenate([x, x[:, :32]], axis=1)
    n, width = len(x) // 2, x.shape[1]
    rows, one = ragged([(200, chain(n), True)]), np.ones(width, np.float32)
    k, v = (fill(kind.dtype, (rows.pages.max() + 2, PAGE, 2, kind.head_elements(width))) for _ in range(2))
    spare = k.copy()
    table = np.zeros((n, 0), np.float32)
    q, values = np.empty((n, 2, width), np.float32), x.reshape(n, 2 * width)
    rotate(values, values, values, one, one, table, table, rows, eps=1.0, q=q, k=k, v=v)
    at = 200 + np.arange(n)
    place = rows.pages[0, at // PAGE], at % PAGE
    assert_same_bits("values", v[place], quantize(x.reshape(n, 2, width), kv))
    assert_same_bits("keys", k[place], quantize(q, kv))
    for cache in (k, v):
        cache[place] = spare[place]
        assert_same_bits("other places", cache, spare)


def test_kv_types_are_made_from_names():
    assert kv_types("q8_0/f16") == (*kv_types("q8_0")[:1], kv_types("f16")[1])
    assert [drafter_kv(kv) for kv in ("f32", "f16", "q8_0", "f32/q8_0")] == ["f32", "f16", "f16", "f16"]
    assert [kind.head_bytes(256) for kind in (*kv_types("q8_0/f32"), *kv_types("q4_0")[:1])] == [272, 1024, 144]
    for wrong in ("f16/q3", "q8_0/", "/f16", "f16/f16/f16", "", None):
        with pytest.raises(RequestError, match=f"kv is {wrong!r}, must be one of f16, f32, q8_0"):
            kv_types(wrong)
    with pytest.raises(RequestError, match=r"need heads of 32, 64, \.\.\. or 256 values, those of the model have 80"):
        check_kv("q8_0/f16", 80, "cpu")
    with pytest.raises(RequestError, match="on a GPU keys and values have one type, or are q8_0 and q4_0"):
        check_kv("q8_0/f16", 64, "cuda")
    check_kv("q4_0", 64, "cuda")
    check_kv("q8_0/q4_0", 96, "cuda")
    check_kv("q8_0/f16", 64, "cpu")
    check_kv("q8_0/q4_0", 96, "cpu")
    with pytest.raises(RequestError, match="keys of q4_0 need heads of 32, 64, 128 or 256 values"):
        check_kv("q4_0/q8_0", 96, "cpu")
