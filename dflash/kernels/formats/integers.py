"""Decoders of blocks of 256 weights to whole numbers: ``d * whole`` less minima, where ``whole`` is int16 ``scale * q``."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from llvmlite import ir
from numba.core import cgutils

from dflash.kernels.formats.blocks import IQ4_TABLE, iq4_xs_scales, q3_k_scales, scales_then_minima
from dflash.kernels.formats.lanes import LANES, Lanes, QuantBlock, constant, of_unknown_origin, vector_lanes

BLOCK = 256
"""Weights of a block of these formats; the rounded tokens have blocks of the same size."""

WORDS = 32
"""Weights of which each lane has two: lane i the weights 2 i and 2 i + 1."""

PART = 2 * vector_lanes()
"""How many of `WORDS` weights a register holds as int16: all, or half of them."""

_I32 = ir.IntType(32)


class IntegerBlock(NamedTuple):
    """The parts of a block.

    scale: d as float32, in all lanes.
    minima: float32; lane i is added to each of the weights 16 i to 16 i + 15; None for zeros.
    whole: ``whole(first)`` yields, for each `WORDS` weights, those from `first` on that a register holds: `PART` int16. The
        largest sums of a lane, 16 products with int16, fit int32 in all formats.
    """

    scale: Lanes
    minima: Lanes | None
    whole: Callable[[int], Iterator[Lanes]]


class _Scales:
    """Up to 16 scales in memory, each as a pair of equal int16, from which instructions can broadcast."""

    def __init__(self, scales: Lanes) -> None:
        self._builder = builder = scales.builder
        whole = scales.int()
        pairs = (whole & 0xFFFF) | (whole << 16)
        memory = cgutils.alloca_once(builder, pairs.value.type)
        builder.store(pairs.value, memory)
        self._in_register = pairs
        # then LLVM does not keep the pairs in a register and move them between lanes
        self._pairs = builder.bitcast(of_unknown_origin(builder, memory), _I32.as_pointer())

    def _all_lanes(self, i: int) -> ir.Value:
        n = PART // 2
        kind = ir.VectorType(_I32, n)
        value = self._builder.load(self._builder.gep(self._pairs, [_I32(i)]))
        first = self._builder.insert_element(kind(ir.Undefined), value, _I32(0))
        return self._builder.shuffle_vector(first, first, kind([0] * n))

    def words(self, low: int, high: int, first: int) -> Lanes:
        """Return the scales of a part of `WORDS` weights from `first` on: `low` for the first 16, `high` for the others."""
        if PART < WORDS:
            pairs = self._all_lanes(high if first else low)
        elif low == high:
            pairs = self._all_lanes(low)
        else:
            pairs = self._in_register.pick(*[low] * 8, *[high] * 8).value
        return Lanes(self._builder, self._builder.bitcast(pairs, ir.VectorType(ir.IntType(16), PART)))


def _words(block: QuantBlock, offset: int, first: int) -> Lanes:
    """Return a part of 32 bytes at `offset`, from byte `first` on, as int16."""
    return block.u8(offset + first, PART).words()


class _Bytes:
    """Signed bytes of a block, in vectors of `WORDS`, made with fewer instructions than int16.

    If a register holds only a part of `WORDS` int16, the bytes are stored: one instruction loads and widens a part.
    """

    def __init__(self, vectors: list[Lanes]) -> None:
        self._vectors = vectors
        if PART == WORDS:
            return
        builder = vectors[0].builder
        memory = cgutils.alloca_once(builder, ir.ArrayType(vectors[0].value.type, len(vectors)))
        for i, vector in enumerate(vectors):
            builder.store(vector.value, builder.gep(memory, [_I32(0), _I32(i)]))
        self._stored = QuantBlock(builder, builder.ptrtoint(of_unknown_origin(builder, memory), ir.IntType(64)))

    def words(self, i: int, first: int) -> Lanes:
        """Return a part of vector `i`, from `first` on, as int16."""
        part = self._vectors[i].as_signed() if PART == WORDS else self._stored.i8(WORDS * i + first)
        return part.words()


def _with_minima(block: QuantBlock, quants: Callable[[int], Iterator[Lanes]]) -> IntegerBlock:
    """Return the parts of a block of Q4_K or Q5_K; `quants` yields the q of each sub-block, a part of them."""
    packed = scales_then_minima(block)
    scales = _Scales(packed)
    minima = packed.pick(*(8 + i // 2 for i in range(LANES))).float()

    def whole(first: int) -> Iterator[Lanes]:
        for i, q in enumerate(quants(first)):
            yield q * scales.words(i, i, first)

    return IntegerBlock(block.each_f16(0), minima * (block.each_f16(2) * constant(block.builder, [-1] * LANES)), whole)


def q4_k(block: QuantBlock) -> IntegerBlock:
    """Decode ``d * (scale * q) - dmin * minimum``: eight sub-blocks of 32."""

    def quants(first: int) -> Iterator[Lanes]:
        for j in range(4):
            q = _words(block, 16 + 32 * j, first)
            yield q & 15
            yield q >> 4

    return _with_minima(block, quants)


def q5_k(block: QuantBlock) -> IntegerBlock:
    """Decode the formula of Q4_K with a fifth bit."""

    def quants(first: int) -> Iterator[Lanes]:
        fifths = _words(block, 16, first)
        for j in range(4):
            q = _words(block, 48 + 32 * j, first)
            yield (q & 15) | (_moved(fifths, 4 - 2 * j) & 16)
            yield (q >> 4) | (_moved(fifths, 3 - 2 * j) & 16)

    return _with_minima(block, quants)


def q6_k(block: QuantBlock) -> IntegerBlock:
    """Decode ``d * (scale * (q - 32))``: sixteen sub-blocks of 16."""
    scales, vectors = _Scales(block.i8(192)), []
    for n in range(2):
        lows = [block.u8(64 * n + 32 * i, 32) for i in range(2)]
        high = block.u8(128 + 32 * n, 32)
        nibbles = *(low & 15 for low in lows), *(low.shifted(-4) & 15 for low in lows)
        vectors += [(low | (high.shifted(4 - 2 * p) & 48)) - 32 for p, low in enumerate(nibbles)]
    quants = _Bytes(vectors)

    def whole(first: int) -> Iterator[Lanes]:
        for i in range(len(vectors)):
            yield quants.words(i, first) * scales.words(2 * i, 2 * i + 1, first)

    return IntegerBlock(block.each_f16(208), None, whole)


def q2_k(block: QuantBlock) -> IntegerBlock:
    """Decode ``d * (scale * q) - dmin * minimum``: sixteen sub-blocks of 16."""
    packed = block.u8(0)
    scales = _Scales(packed & 15)
    minima = (packed >> 4).float() * (block.each_f16(82) * constant(block.builder, [-1] * LANES))

    def whole(first: int) -> Iterator[Lanes]:
        for n in range(2):
            q = _words(block, 16 + 32 * n, first)
            for p in range(4):
                scale = 8 * n + 2 * p
                yield ((q >> 2 * p) & 3) * scales.words(scale, scale + 1, first)

    return IntegerBlock(block.each_f16(80), minima, whole)


def q3_k(block: QuantBlock) -> IntegerBlock:
    """Decode ``d * (scale * (q - 4))``: sixteen sub-blocks of 16."""
    scales = _Scales(q3_k_scales(block))

    def whole(first: int) -> Iterator[Lanes]:
        thirds = _words(block, 0, first)
        for n in range(2):
            q = _words(block, 32 + 32 * n, first)
            for p in range(4):
                scale = 8 * n + 2 * p
                three_bits = (q >> 2 * p) & 3 | _moved(thirds, 2 - 4 * n - p) & 4
                yield (three_bits - 4) * scales.words(scale, scale + 1, first)

    return IntegerBlock(block.each_f16(108), None, whole)


def iq4_xs(block: QuantBlock) -> IntegerBlock:
    """Decode ``d * (scale * table[q])``: eight sub-blocks of 32."""
    scales = _Scales(iq4_xs_scales(block))

    def whole(first: int) -> Iterator[Lanes]:
        for j in range(8):
            q = _nibbles(block.u8(8 + 16 * j), first)
            yield q.look_up_bytes(IQ4_TABLE).words() * scales.words(j, j, first)

    return IntegerBlock(block.each_f16(0), None, whole)


def _nibbles(q: Lanes, first: int) -> Lanes:
    """Return a part, from `first` on, of the low nibbles of 16 bytes and the high ones behind them."""
    if PART == WORDS:
        return (q & 15).joined(q >> 4)
    return q >> 4 if first else q & 15


def _moved(words: Lanes, left: int) -> Lanes:
    """Return words shifted left, or right if `left` is negative."""
    return words << left if left >= 0 else words >> -left


def exact(integers: Callable[[QuantBlock], IntegerBlock]) -> Callable[[QuantBlock], Iterator[Lanes]]:
    """Return the decoder to float32, 16 weights at a time; it is exact, but for the sign of zeros."""

    def decode(block: QuantBlock) -> Iterator[Lanes]:
        parts = integers(block)
        for i, words in enumerate(zip(*(parts.whole(first) for first in range(0, WORDS, PART)), strict=True)):
            halves = words if len(words) > 1 else (words[0].part(0), words[0].part(1))
            for j, half in enumerate(halves, 2 * i):
                weights = half.as_signed().float()
                minimum = parts.minima and parts.minima.pick(*[j] * LANES)
                yield weights.fused(parts.scale, minimum) if minimum else weights * parts.scale

    return decode
