"""Decoders of blocks of 256 weights to whole numbers: ``d * whole`` less minima, where ``whole`` is int16 ``scale * q``."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from llvmlite import ir
from numba.core import cgutils

from dflash.kernels.cpu.simd.emit import spread
from dflash.kernels.formats.blocks import IQ4_TABLE, iq4_xs_scales, q3_k_scales, scales_then_minima
from dflash.kernels.formats.lanes import LANES, Lanes, QuantBlock, constant, of_unknown_origin, vector_lanes

BLOCK = 256
"""Weights of a block of these formats; the rounded tokens have blocks of the same size."""

WORDS = 32
"""Weights of which each lane has two: lane i the weights 2 i and 2 i + 1."""

PART = 2 * vector_lanes()
"""How many of `WORDS` weights a register holds as int16: all, or half of them."""

ORDER = [*range(WORDS)] if PART == WORDS else [*range(8), *range(16, 24), *range(8, 16), *range(24, 32)]
"""The order of `WORDS` weights in one register, or in two: registers of 256 bits are widened in halves of 128 bits."""

LANE_ORDER = [weight // 2 for weight in ORDER[::2]]
"""The order of the lanes of their products. Either order undoes itself."""

_I32 = ir.IntType(32)

Parts = list[Lanes]  # `WORDS` weights as int16 in `ORDER`: one register of them, or two


class IntegerBlock(NamedTuple):
    """The parts of a block.

    scale: d as float32, in all lanes.
    minima: float32, in `LANE_ORDER`; number i is added to each of the weights 16 i to 16 i + 15; None for zeros.
    whole: yields each `WORDS` weights as int16. The largest sums of a lane, 16 products with int16, fit int32 in any format.
    """

    scale: Lanes
    minima: Lanes | None
    whole: Iterator[Parts]


class _Scales:
    """The scales of sub-blocks of 32 weights, or of 16: bytes, or int32 that fit bytes.

    Where a register holds a part of `WORDS` int16, signed bytes of weights and scales are the upper bytes of int16: an
    instruction makes two of them, and the upper half of their product is the whole number.
    """

    def __init__(self, scales: Lanes, size: int) -> None:
        self._size, self._signed, self._builder = size, scales.signed, scales.builder
        if PART < WORDS:
            halves = (range(8), range(8)) if size == WORDS else (range(0, LANES, 2), range(1, LANES, 2))
            orders = [[half[i] for half in halves for _ in range(8)] for i in range(8)]
            self._words = scales.narrow().chosen_words(orders, upper=self._signed)
            return
        whole = scales.int()
        self._pairs = (whole & 0xFFFF) | (whole << 16)
        if size == WORDS:
            memory = cgutils.alloca_once(self._builder, self._pairs.value.type)
            self._builder.store(self._pairs.value, memory)
            # then LLVM does not keep the pairs in a register and move them between lanes
            self._stored = self._builder.bitcast(of_unknown_origin(self._builder, memory), _I32.as_pointer())

    def _wide(self, i: int) -> Lanes:
        builder = self._builder
        if self._size == WORDS:
            pairs = spread(builder, builder.load(builder.gep(self._stored, [_I32(i)])), PART // 2)
        else:
            pairs = self._pairs.pick(*[2 * i] * 8, *[2 * i + 1] * 8).value
        return Lanes(builder, builder.bitcast(pairs, ir.VectorType(ir.IntType(16), PART)))

    def times(self, i: int, quants: Lanes) -> Parts:
        """Return products with the `WORDS` weights from ``WORDS * i`` on: bytes, or int16 if a register holds them."""
        if PART < WORDS and self._signed:
            return [part.high_product(self._words(i)) for part in quants.widened(upper=True)]
        return self.times_parts(i, quants.widened() if PART < WORDS else [quants.words()])

    def times_parts(self, i: int, parts: Parts) -> Parts:
        """Return products with the `WORDS` unsigned weights from ``WORDS * i`` on."""
        scale = self._words(i) if PART < WORDS else self._wide(i)
        return [part * scale for part in parts]


def _quants(block: QuantBlock, offset: int) -> Lanes:
    """Return 32 bytes at `offset`, as int16 if a register holds them."""
    quants = block.u8(offset, WORDS)
    return quants.words() if PART == WORDS else quants


def _with_minima(block: QuantBlock, whole: Callable[[_Scales], Iterator[Parts]]) -> IntegerBlock:
    """Return the parts of a block of Q4_K or Q5_K; `whole` yields the weights of each sub-block."""
    packed = scales_then_minima(block)
    minima = packed.pick(*(8 + i // 2 for i in LANE_ORDER)).float()
    dmin = block.each_f16(2) * constant(block.builder, [-1] * LANES)
    return IntegerBlock(block.each_f16(0), minima * dmin, whole(_Scales(packed, WORDS)))


def q4_k(block: QuantBlock) -> IntegerBlock:
    """Decode ``d * (scale * q) - dmin * minimum``: eight sub-blocks of 32."""

    def whole(scales: _Scales) -> Iterator[Parts]:
        for j in range(4):
            q = _quants(block, 16 + 32 * j)
            parts = [q] if PART == WORDS else [part.of_unknown_origin() for part in q.widened()]
            yield scales.times_parts(2 * j, [part & 15 for part in parts])
            yield scales.times_parts(2 * j + 1, [part.top(4) for part in parts])

    return _with_minima(block, whole)


def q5_k(block: QuantBlock) -> IntegerBlock:
    """Decode the formula of Q4_K with a fifth bit."""

    def whole(scales: _Scales) -> Iterator[Parts]:
        fifths = _quants(block, 16)
        for j in range(4):
            q = _quants(block, 48 + 32 * j)
            yield scales.times(2 * j, (q & 15) | (fifths.moved(4 - 2 * j) & 16))
            yield scales.times(2 * j + 1, q.top(4) | (fifths.moved(3 - 2 * j) & 16))

    return _with_minima(block, whole)


def q6_k(block: QuantBlock) -> IntegerBlock:
    """Decode ``d * (scale * (q - 32))``: sixteen sub-blocks of 16."""
    scales = _Scales(block.i8(192), 16)

    def whole() -> Iterator[Parts]:
        for n in range(2):
            lows = [block.u8(64 * n + 32 * i, 32) for i in range(2)]
            high = block.u8(128 + 32 * n, 32)
            nibbles = *(low & 15 for low in lows), *(low.top(4) for low in lows)
            for p, low in enumerate(nibbles):
                yield scales.times(4 * n + p, ((low | (high.moved(4 - 2 * p) & 48)) - 32).as_signed())

    return IntegerBlock(block.each_f16(208), None, whole())


def q2_k(block: QuantBlock) -> IntegerBlock:
    """Decode ``d * (scale * q) - dmin * minimum``: sixteen sub-blocks of 16."""
    packed = block.u8(0)
    scales = _Scales(packed & 15, 16)
    minima = (packed >> 4).pick(*LANE_ORDER).float() * (block.each_f16(82) * constant(block.builder, [-1] * LANES))

    def whole() -> Iterator[Parts]:
        for n in range(2):
            q = _quants(block, 16 + 32 * n)
            for p in range(4):
                yield scales.times(4 * n + p, q.top(2) if p == 3 else q.moved(-2 * p) & 3)

    return IntegerBlock(block.each_f16(80), minima, whole())


def q3_k(block: QuantBlock) -> IntegerBlock:
    """Decode ``d * (scale * (q - 4))``: sixteen sub-blocks of 16."""
    scales = _Scales(q3_k_scales(block), 16)

    def whole() -> Iterator[Parts]:
        thirds = _quants(block, 0)
        for n in range(2):
            q = _quants(block, 32 + 32 * n)
            for p in range(4):
                three_bits = q.moved(-2 * p) & 3 | thirds.moved(2 - 4 * n - p) & 4
                yield scales.times(4 * n + p, (three_bits - 4).as_signed())

    return IntegerBlock(block.each_f16(108), None, whole())


def iq4_xs(block: QuantBlock) -> IntegerBlock:
    """Decode ``d * (scale * table[q])``: eight sub-blocks of 32."""
    scales = _Scales(iq4_xs_scales(block).as_signed(), WORDS)

    def whole() -> Iterator[Parts]:
        for j in range(8):
            q = block.u8(8 + 16 * j)
            yield scales.times(j, (q & 15).joined(q >> 4).look_up_bytes(IQ4_TABLE))

    return IntegerBlock(block.each_f16(0), None, whole())


def exact(integers: Callable[[QuantBlock], IntegerBlock]) -> Callable[[QuantBlock], Iterator[Lanes]]:
    """Return the decoder to float32, 16 weights at a time; it is exact, but for the sign of zeros."""

    def decode(block: QuantBlock) -> Iterator[Lanes]:
        parts = integers(block)
        for i, words in enumerate(parts.whole):
            both = words[0].joined(words[-1]).pick(*ORDER)
            for j, half in enumerate((both.part(0), both.part(1)), 2 * i):
                weights = half.as_signed().float()
                minimum = parts.minima and parts.minima.pick(*[LANE_ORDER.index(j)] * LANES)
                yield weights.fused(parts.scale, minimum) if minimum else weights * parts.scale

    return decode
