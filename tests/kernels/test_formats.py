"""Formats against the `gguf` package and recorded blocks, bit for bit."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from dflash.kernels.cpu.jit import CACHE
from dflash.kernels.formats import BLOCKS, BY_ID, FORMATS, BlockType, Format, Matrix, blocks
from dflash.kernels.formats.cpu import ROWS, dot_function, step_bytes, unpack_function
from dflash.kernels.formats.integer_cpu import integer_dot_function

DATA = Path(__file__).parent.parent / "data" / "kernels"
KNOWN = gguf.GGMLQuantizationType.__members__


def recorded(kind):
    found = np.load(DATA / "quant_blocks.npz")
    raw, values = found[f"{kind}.raw"], found[f"{kind}.deq"]
    if BLOCKS[kind].elements == 1:
        n = len(raw) // 16 * 16
        raw, values = raw[:n].reshape(-1, raw.shape[1] * 16), values[:n].reshape(-1, 16)
    return np.ascontiguousarray(raw), values


def unpack_in_lanes(raw, kind):
    n_weights, n_bytes = step_bytes(kind)
    n = raw.size // n_bytes
    # each of the rows that are unpacked side by side holds the blocks in another order
    rows = np.stack([np.roll(raw.reshape(n, n_bytes), r, axis=0) for r in range(ROWS)])
    out = np.full((ROWS, n * n_weights + 16), np.nan, np.float32)
    unpack_function(kind).ctypes(rows.ctypes.data, rows.strides[0], n, out.ctypes.data, out.strides[0])
    assert np.isnan(out[:, -16:]).all()
    found = out[:, :-16].reshape(ROWS, n, n_weights)
    return np.stack([np.roll(found[r], -r, axis=0).ravel() for r in range(ROWS)])


def test_types_are_those_of_the_gguf_package():
    for kind in gguf.GGMLQuantizationType:
        ours, (elements, n_bytes) = BLOCKS[kind.name], gguf.GGML_QUANT_SIZES[kind]
        assert (ours.id, ours.elements, ours.n_bytes) == (kind.value, elements, n_bytes)
        assert BY_ID[kind.value] is ours


@pytest.mark.parametrize("kind", [kind for kind, form in FORMATS.items() if form.decode.__module__ == blocks.__name__])
def test_blocks_are_unpacked_as_recorded(kind):
    raw, values = recorded(kind)
    assert (FORMATS[kind].unpack(raw).ravel() == values.ravel()).all()
    assert (unpack_in_lanes(raw, kind) == values.ravel()).all()


@pytest.mark.parametrize("kind", FORMATS)
def test_random_bits_against_gguf(kind):
    rng = np.random.default_rng(7)
    n_bytes = step_bytes(kind)[1]
    raw = rng.integers(0, 256, (400, n_bytes), np.uint8)
    if kind == "F32":
        want = raw.view(np.float32)
    elif kind == "F16":
        want = raw.view(np.float16).astype(np.float32)
    elif kind not in KNOWN:  # of a plugin
        with np.errstate(all="ignore"):
            want = FORMATS[kind].unpack(raw)
    else:
        with np.errstate(all="ignore"):
            want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    finite = np.isfinite(want).all(axis=1)
    raw, want = np.ascontiguousarray(raw[finite]), want[finite]
    assert len(raw) > 100
    with np.errstate(all="ignore"):
        assert (FORMATS[kind].unpack(raw) == want).all()
    assert (unpack_in_lanes(raw, kind) == want.ravel()).all()


@pytest.mark.parametrize("kind", ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"])
def test_other_types_unpack_through_gguf(kind):
    found = np.load(DATA / "quant_blocks_extra.npz")
    raw, values = found[f"{kind}.raw"], found[f"{kind}.deq"]
    matrix = Matrix(raw, kind)
    assert not matrix.native
    assert (matrix.unpacked() == values).all()


@pytest.mark.parametrize(
    ("make", "kind"), [(unpack_function, "Q8_0"), (dot_function, "F32"), (integer_dot_function, "Q8_0")]
)
def test_compiled_functions_are_in_the_cache_of_this_version(make, kind):
    """Numba's own cache would keep code of older decoders, as it looks at one source file only."""
    tokens = () if make is unpack_function else (1,)
    assert [make.__wrapped__(kind, *tokens).cache_hits for _ in range(2)][1] == 1
    assert list(CACHE.folder.glob(f"{make.__name__}.locals.*"))


@pytest.mark.parametrize(
    ("n", "make", "given"), [(1, unpack_function, ()), (3, unpack_function, ()), (1, dot_function, (1,))]
)
def test_a_decoder_that_yields_other_than_the_weights_of_a_block_is_refused(monkeypatch, n, make, given):
    """It would read or write past rows, or leave weights out."""

    def decode(block):
        for _ in range(n):
            yield block.u8(0).float()

    block = BlockType(f"{make.__name__} {n}", 999, 32, 34)
    monkeypatch.setitem(BLOCKS, block.name, block)
    monkeypatch.setitem(FORMATS, block.name, Format(block, None, decode))
    with pytest.raises(ValueError, match="zip"):
        make(block.name, *given).ctypes  # noqa: B018
