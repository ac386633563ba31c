"""Decoders of the block formats: generators that yield 16 weights at a time, in order.

The formulas are those of `reference.py`, in lanes. Products and sums are rounded one by one, as the formats define their
values, so that unpacking is bit-exact.
"""

from collections.abc import Iterator

from dflash.kernels.formats.lanes import LANES, Lanes, QuantBlock, Spread, constant, vector_lanes

IQ4_TABLE = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
FP4_TABLE = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]

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


def _entries(q: Lanes, weights: Lanes) -> Iterator[Lanes]:
    """Return the entries of a table of the 16 weights of a block that the low, then the high nibbles of 16 bytes name."""
    numbers = q.int()
    yield numbers.look_up(weights)
    yield (numbers >> 4).look_up(weights)


def q4_0(block: QuantBlock) -> Iterator[Lanes]:
    """Decode ``(q - 8) * d``."""
    d, q = block.each_f16(0), block.u8(2)
    if vector_lanes() == LANES:
        yield from _entries(q, constant(block.builder, list(range(-8, 8))) * d)
    else:
        yield ((q & 15) - 8).as_signed().float() * d
        yield ((q >> 4) - 8).as_signed().float() * d


def q4_1(block: QuantBlock) -> Iterator[Lanes]:
    """Decode ``q * d + m``; the product is exact in float32, so it may be fused."""
    (d, m), q = block.pair_f16(0), block.u8(4)
    if vector_lanes() == LANES:
        yield from _entries(q, constant(block.builder, list(range(16))).fused(d, m))
    else:
        yield (q & 15).float().fused(d, m)
        yield (q >> 4).float().fused(d, m)


def _fifth_bits(block: QuantBlock, offset: int) -> tuple[Lanes, Lanes]:
    bits = block.each_int(offset, 4)
    return (((bits >> list(range(16))) & 1) << 4, ((bits >> list(range(16, 32))) & 1) << 4)


def q5_0(block: QuantBlock) -> Iterator[Lanes]:
    """Decode ``(q - 16) * d``; the fifth bits are in a separate word."""
    d, q = block.each_f16(0), block.u8(6)
    low, high = _fifth_bits(block, 2)
    yield (((q & 15).int() | low) - 16).float() * d
    yield (((q >> 4).int() | high) - 16).float() * d


def q5_1(block: QuantBlock) -> Iterator[Lanes]:
    """Decode ``q * d + m``, fused as in Q4_1; the fifth bits are in a separate word."""
    (d, m), q = block.pair_f16(0), block.u8(8)
    low, high = _fifth_bits(block, 4)
    yield ((q & 15).int() | low).float().fused(d, m)
    yield ((q >> 4).int() | high).float().fused(d, m)


def q8_0(block: QuantBlock) -> Iterator[Lanes]:
    """Decode ``q * d``."""
    d = block.each_f16(0)
    yield block.i8(2).float() * d
    yield block.i8(18).float() * d


def iq4_nl(block: QuantBlock) -> Iterator[Lanes]:
    """Decode ``d * table[q]``."""
    yield from _entries(block.u8(2), constant(block.builder, IQ4_TABLE) * block.each_f16(0))


def mxfp4(block: QuantBlock) -> Iterator[Lanes]:
    """Decode ``2 ** (x - 128) * table[q]``; x of 0 and 1 give subnormals, whose bits are 1 << 21 and 1 << 22."""
    x, builder = block.each_int(0, 1), block.builder
    small = builder.icmp_unsigned("<", x.value, (x & 0).value.type([2] * 16))
    normal = ((x - 1) << 23).value
    subnormal = builder.shl(x.value.type([1 << 21] * 16), x.value)
    d = Lanes(builder, builder.select(small, subnormal, normal)).as_float()
    yield from _entries(block.u8(1), constant(builder, FP4_TABLE) * d)


def scales_then_minima(block: QuantBlock) -> Lanes:
    """Return 16 bytes: the eight scales of Q4_K and Q5_K, then the eight minima."""
    words = block.words(0)  # d and dmin, then three words a, b and c of packed scales
    low = (words.pick(1, 3, 2, 3) >> [0, 0, 0, 4]) & [_LOW6, _LOW4, _LOW6, _LOW4]
    high = (words.pick(1, 1, 2, 2) >> 2) & [0, _LOW2 << 4, 0, _LOW2 << 4]
    return (low | high).bytes()


def _scales_and_minima(block: QuantBlock) -> Spread:
    """Return 16 numbers: ``d * scale`` and ``-dmin * minimum`` of each of the eight sub-blocks of Q4_K and Q5_K."""
    packed = scales_then_minima(block).pick(*(i // 2 + i % 2 * 8 for i in range(16)))
    return (packed.float() * block.alternating_f16(0)).spread()


def q4_k(block: QuantBlock) -> Iterator[Lanes]:
    """Decode ``(d * scale) * q - (dmin * minimum)``: eight sub-blocks of 32."""
    scales = _scales_and_minima(block)

    def weights() -> Iterator[Lanes]:
        for j in range(8):
            q = block.u8(16 + 32 * (j // 2), 32)
            yield from q.nibbles(j % 2, scales[2 * j], scales[2 * j + 1])

    return weights()


def q5_k(block: QuantBlock) -> Iterator[Lanes]:
    """Decode the formula of Q4_K with a fifth bit."""
    scales = _scales_and_minima(block)

    def weights() -> Iterator[Lanes]:
        fifths = block.u8(16, 32)
        for j in range(8):
            q = block.u8(48 + 32 * (j // 2), 32)
            q = (q >> 4 if j % 2 else q & 15) | (((fifths >> j) & 1) << 4)
            for i in range(2):
                yield q.part(i).float().fused(scales[2 * j], scales[2 * j + 1])

    return weights()


def q6_k(block: QuantBlock) -> Iterator[Lanes]:
    """Decode ``(d * scale) * (q - 32)``: sixteen sub-blocks of 16."""
    scales = (block.i8(192).float() * block.each_f16(208)).spread()
    for n in range(2):
        low, high = block.u8(64 * n, 64), block.u8(128 + 32 * n, 32).pick(*range(32), *range(32))
        for p in range(2):
            q = ((low >> 4) if p else low & 15) | (high.shifted(4 - 4 * p, 2 - 4 * p) & 48)
            for i in range(4):
                yield (q - 32).as_signed().part(i).float() * scales[8 * n + 4 * p + i]


def q2_k(block: QuantBlock) -> Iterator[Lanes]:
    """Decode ``(d * scale) * q - dmin * minimum``: sixteen sub-blocks of 16."""
    packed = block.u8(0)
    scales = ((packed & 15).float() * block.each_f16(80)).spread()
    minima = ((packed >> 4).float() * block.each_f16(82)).spread()
    for j in range(16):
        n, p, i = j // 8, j % 8 // 2, 16 * (j % 2)
        q = (block.u8(16 + 32 * n + i) >> (2 * p)) & 3
        yield q.float() * scales[j] - minima[j]


def q3_k_scales(block: QuantBlock) -> Lanes:
    """Return 16 signed bytes: the scales of Q3_K."""
    words = block.words(92)  # the last three are a, b and c
    low = (words.pick(1, 2, 1, 2) >> [0, 0, 4, 4]) & _LOW4
    high = ((words.pick(3, 3, 3, 3) >> [0, 2, 4, 6]) & _LOW2) << 4
    return ((low | high).bytes() - 32).as_signed()


def q3_k(block: QuantBlock) -> Iterator[Lanes]:
    """Decode ``(d * scale) * (q - 4)``: sixteen sub-blocks of 16; the third bits are in a separate mask."""
    scales = (q3_k_scales(block).float() * block.each_f16(108)).spread()
    for j in range(16):
        n, p, i = j // 8, j % 8 // 2, 16 * (j % 2)
        low = (block.u8(32 + 32 * n + i) >> (2 * p)) & 3
        third = ((block.u8(i) >> (4 * n + p)) & 1) << 2
        yield ((low | third) - 4).as_signed().float() * scales[j]


def iq4_xs_scales(block: QuantBlock) -> Lanes:
    """Return 16 int32: the eight scales of IQ4_XS, twice."""
    low = (block.each_int(4, 4) >> [4 * (b % 8) for b in range(16)]) & 15
    high = (block.each_int(2, 2) >> [2 * (b % 8) for b in range(16)]) & 3
    return (low | (high << 4)) - 32


def iq4_xs(block: QuantBlock) -> Iterator[Lanes]:
    """Decode ``(d * (scale - 32)) * table[q]``: eight sub-blocks of 32."""
    scales = (iq4_xs_scales(block).float() * block.each_f16(0)).spread()
    table = constant(block.builder, IQ4_TABLE)
    for j in range(8):
        yield from _entries(block.u8(8 + 16 * j), table * scales[j])
