"""Decoders of unquantised formats, which yield 16 weights at a time, in order, and what decoders of blocks share."""

from collections.abc import Iterator

from dflash.kernels.formats.lanes import Lanes, QuantBlock

FP4_TABLE = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]
IQ4_TABLE = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]

_LOW4, _LOW6, _LOW2 = 0x0F0F0F0F, 0x3F3F3F3F, 0x03030303  # of every byte of a word


def f32(block: QuantBlock) -> Iterator[Lanes]:
    """Decode 16 float32."""
    yield block.f32(0)


def f16(block: QuantBlock) -> Iterator[Lanes]:
    """Decode 16 float16."""
    yield block.f16(0)


def bf16(block: QuantBlock) -> Iterator[Lanes]:
    """Decode 16 bfloat16: the upper halves of float32."""
    yield (block.u16(0) << 16).as_float()


def scales_then_minima(block: QuantBlock) -> Lanes:
    """Return 16 bytes: the eight scales of Q4_K and Q5_K, then the eight minima."""
    words = block.words(0)  # d and dmin, then three words a, b and c of packed scales
    low = (words.pick(1, 3, 2, 3) >> [0, 0, 0, 4]) & [_LOW6, _LOW4, _LOW6, _LOW4]
    high = (words.pick(1, 1, 2, 2) >> 2) & [0, _LOW2 << 4, 0, _LOW2 << 4]
    return (low | high).bytes()


def q3_k_scales(block: QuantBlock) -> Lanes:
    """Return 16 signed bytes: the scales of Q3_K."""
    words = block.words(92)  # the last three are a, b and c
    low = (words.pick(1, 2, 1, 2) >> [0, 0, 4, 4]) & _LOW4
    high = ((words.pick(3, 3, 3, 3) >> [0, 2, 4, 6]) & _LOW2) << 4
    return ((low | high).bytes() - 32).as_signed()


def iq4_xs_scales(block: QuantBlock) -> Lanes:
    """Return 16 int32: the eight scales of IQ4_XS, twice."""
    low = (block.each_int(4, 4) >> [4 * (b % 8) for b in range(16)]) & 15
    high = (block.each_int(2, 2) >> [2 * (b % 8) for b in range(16)]) & 3
    return (low | (high << 4)) - 32
