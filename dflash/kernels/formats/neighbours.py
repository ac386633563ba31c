"""Decoders of blocks of 32 weights to whole numbers, for the eight blocks of a record of tokens, or for one of the last.

Weights are ``scale * whole + minimum``. The scales of eight blocks are read together; then the int16 of a block, or with
AVX-512 of two, are made one after another.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from llvmlite import ir

from dflash.kernels.cpu.simd.emit import spread
from dflash.kernels.formats.blocks import FP4_TABLE, IQ4_TABLE
from dflash.kernels.formats.lanes import LANES, Lanes, QuantBlock

MANY = 8
"""Blocks for which tokens have a record."""

_I8, _I16, _I32 = (ir.IntType(n) for n in (8, 16, 32))
_HALF, _F32 = ir.HalfType(), ir.FloatType()


class SmallBlocks(NamedTuple):
    """The parts of blocks.

    scale: `MANY` float32, one of each block, or that of the single block in all lanes.
    minima: float32 as `scale`; each is added to all weights of its block; None for zeros.
    words: ``words(blocks)`` returns the first 16 weights of one or two blocks, and the others, as int16.
    """

    scale: Lanes
    minima: Lanes | None
    words: Callable[[QuantBlock], tuple[Lanes, Lanes]]


class Neighbours:
    """Reads a value of each of `MANY` blocks beside each other, or of one block into all lanes."""

    def __init__(self, builder: ir.IRBuilder, address: ir.Value, n_bytes: int, n: int) -> None:
        self._builder, self._n_bytes, self._n = builder, n_bytes, n
        self._block = QuantBlock(builder, address)

    def each(self, offset: int, kind: ir.Type, size: int) -> ir.Value:
        """Return the value of `size` bytes at `offset` of each block.

        A vector that is read `i` values before the value of block i has it in lane i, so blends collect all of them.
        """
        if self._n == 1:
            return spread(self._builder, self._block.load(offset, kind), MANY)
        several = ir.VectorType(kind, MANY)
        found = self._block.load(offset, several)
        for i in range(1, MANY):
            other = self._block.load(offset + i * (self._n_bytes - size), several)
            order = [MANY + lane if lane == i else lane for lane in range(MANY)]
            found = self._builder.shuffle_vector(found, other, ir.VectorType(_I32, MANY)(order))
        return found

    def f16(self, offset: int) -> Lanes:
        """Return the float16 at `offset` of each block as float32."""
        return self._widened(self.each(offset, _HALF, 2))

    def pair_f16(self, offset: int) -> tuple[Lanes, Lanes]:
        """Return the two float16 at `offset` of each block as float32."""
        pairs = self._builder.bitcast(self.each(offset, _I32, 4), ir.VectorType(_HALF, 2 * MANY))
        halves = (ir.VectorType(_I32, MANY)(list(range(first, 2 * MANY, 2))) for first in (0, 1))
        first, second = (self._widened(self._builder.shuffle_vector(pairs, pairs, half)) for half in halves)
        return first, second

    def u8(self, offset: int) -> Lanes:
        """Return the byte at `offset` of each block as int32."""
        return Lanes(self._builder, self._builder.zext(self.each(offset, _I8, 1), ir.VectorType(_I32, MANY)))

    def _widened(self, halves: ir.Value) -> Lanes:
        return Lanes(self._builder, self._builder.fpext(halves, ir.VectorType(_F32, MANY)))


class TwoBlocks(QuantBlock):
    """Reads the bytes of two blocks: those of the second behind those of the first."""

    def __init__(self, builder: ir.IRBuilder, first: ir.Value, second: ir.Value) -> None:
        super().__init__(builder, first)
        self._second = QuantBlock(builder, second)

    def load(self, offset: int, kind: ir.Type) -> ir.Value:
        """Load a vector of each block."""
        first, second = super().load(offset, kind), self._second.load(offset, kind)
        order = list(range(2 * kind.count))
        return self.builder.shuffle_vector(first, second, ir.VectorType(_I32, len(order))(order))


def _nibbles(block: QuantBlock, offset: int) -> tuple[Lanes, Lanes]:
    q = block.u8(offset).words()
    return q & 15, q >> 4


def _fifth_bits(block: QuantBlock, offset: int, if_one: int, if_zero: int) -> tuple[Lanes, Lanes]:
    """Return one of two values for each bit of 32."""
    found = []
    for at in (offset, offset + 2):
        two_bytes = block.load(at, ir.VectorType(_I8, 2))
        kind = ir.VectorType(_I16, 8 * two_bytes.type.count)
        bits = block.builder.bitcast(two_bytes, ir.VectorType(ir.IntType(1), kind.count))
        either = (kind([value] * kind.count) for value in (if_one, if_zero))
        found.append(Lanes(block.builder, block.builder.select(bits, *either)))
    return found[0], found[1]


def _entries(block: QuantBlock, offset: int, table: list[int]) -> tuple[Lanes, Lanes]:
    q = block.u8(offset)
    return (q & 15).look_up_bytes(table).words(), (q >> 4).look_up_bytes(table).words()


def q4_0(blocks: Neighbours) -> SmallBlocks:
    """Decode ``d * q - 8 * d``."""
    d = blocks.f16(0)
    return SmallBlocks(d, d * Lanes(d.builder, d.value.type([-8.0] * MANY)), lambda block: _nibbles(block, 2))


def q4_1(blocks: Neighbours) -> SmallBlocks:
    """Decode ``d * q + m``."""
    return SmallBlocks(*blocks.pair_f16(0), lambda block: _nibbles(block, 4))


def q5_0(blocks: Neighbours) -> SmallBlocks:
    """Decode ``d * (q - 16)``; the fifth bits are in a separate word."""

    def words(block: QuantBlock) -> tuple[Lanes, Lanes]:
        (low, high), (first, second) = _nibbles(block, 6), _fifth_bits(block, 2, 0, -16)
        return low | first, high | second

    return SmallBlocks(blocks.f16(0), None, words)


def q5_1(blocks: Neighbours) -> SmallBlocks:
    """Decode ``d * q + m``; the fifth bits are in a separate word."""

    def words(block: QuantBlock) -> tuple[Lanes, Lanes]:
        (low, high), (first, second) = _nibbles(block, 8), _fifth_bits(block, 4, 16, 0)
        return low | first, high | second

    return SmallBlocks(*blocks.pair_f16(0), words)


def q8_0(blocks: Neighbours) -> SmallBlocks:
    """Decode ``d * q``."""
    return SmallBlocks(blocks.f16(0), None, lambda block: (block.i8(2).words(), block.i8(18).words()))


def iq4_nl(blocks: Neighbours) -> SmallBlocks:
    """Decode ``d * table[q]``."""
    return SmallBlocks(blocks.f16(0), None, lambda block: _entries(block, 2, IQ4_TABLE))


def mxfp4(blocks: Neighbours) -> SmallBlocks:
    """Decode ``2 ** (x - 128) * table[q]``; x of 0 and 1 give subnormals, whose bits are 1 << 21 and 1 << 22."""
    x = blocks.u8(0)
    builder, kind = x.builder, x.value.type
    small = builder.icmp_unsigned("<", x.value, kind([2] * MANY))
    subnormal = builder.shl(kind([1 << 21] * MANY), x.value)
    d = Lanes(builder, builder.select(small, subnormal, ((x - 1) << 23).value)).as_float()
    return SmallBlocks(d, None, lambda block: _entries(block, 1, FP4_TABLE))


def exact(integers: Callable[[Neighbours], SmallBlocks]) -> Callable[[QuantBlock], Iterator[Lanes]]:
    """Return the decoder to float32, 16 weights at a time; it is exact, but for the sign of zeros."""

    def weights(block: QuantBlock) -> Iterator[Lanes]:
        blocks = integers(Neighbours(block.builder, block.address, 0, 1))
        d, minima = blocks.scale.pick(*[0] * LANES), blocks.minima and blocks.minima.pick(*[0] * LANES)
        for half in blocks.words(block):
            whole = half.as_signed().float()
            yield whole.fused(d, minima) if minima else whole * d

    return weights
