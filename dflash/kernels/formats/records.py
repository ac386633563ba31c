"""Records of tokens rounded to int16 and of unpacked rows, and the products of their parts.

A rounded token has a record of `RECORD` bytes for each block of 256 values: the values as int16, sums of them as float32,
times their scale, and the scale as 16 float32. Unpacked rows have such records: whole numbers, minima and scales. A product
of a block is ``(d * scale) * sum of whole numbers + minima * sums``.

K-quants and IQ4_XS have 16 sums, each of 16 values, and a scale. Lane i of 16 of a sum of whole numbers has the products 2 i
and 2 i + 1 of each 32. Values and sums are in the orders of `integers`, which depend on the size of a register.

Formats of 32 weights a block have 8 sums, each of 32 values, and each 64 weights have 16 scales. The second and the third 16
of each 64 values change places. Lanes 0 to 7 have the products of blocks 0, 2, 4 and 6, the others those of blocks 1, 3, 5
and 7; in them, lane i of eight has the products 2 i, 2 i + 1, 16 + 2 i and 17 + 2 i. The last record may have fewer blocks.

So the bits of a product are the same with any instructions.
"""

from collections.abc import Callable, Sequence

from llvmlite import ir
from numba.core import cgutils

from dflash.kernels.cpu.simd.emit import I64, LANES, call, load, prefetch, spread, store
from dflash.kernels.formats.integers import BLOCK, WORDS
from dflash.kernels.formats.lanes import has, is_zen, of_unknown_origin

SUMS, SCALE, RECORD = 2 * BLOCK, 2 * BLOCK + 4 * LANES, 2 * BLOCK + 8 * LANES
"""Bytes to the sums or minima in a record, to the scale or scales, and of a record of a token."""

SMALL_RECORD = 2 * BLOCK + 24 * LANES
"""Bytes of a record of a row in formats of 32 weights a block; those of others are as large as those of tokens."""

SMALL = 2
"""`INTEGER` of a plan's row for formats of 32 weights a block; 1 is for the others of whole numbers, 0 for float32."""

INTEGER_ROWS = 8
"""Rows that one call of a dot function processes, one after another; with 2, multiplies of 8 tokens take 3 % more."""

Products = Callable[[int, int], ir.Value]
"""``product(r, t)``: the scales of row `r` and of token `t`, multiplied, in all lanes."""


def prefetch_ahead(builder: ir.IRBuilder, address: ir.Value, n_bytes: int, *, n_tokens: int = 0) -> None:
    """Prefetch what is read some KiB after `n_bytes` at an address: rows are read in the order of memory.

    In the L1 cache of a Zen 4, these lines displace a rounded token of 8,960 values: its products with Q4_K and Q6_K took a
    fifth longer. With several tokens, reading the L2 cache costs more than that.
    """
    ahead, level = (8192, 2) if n_tokens == 1 and is_zen("4") else (4096, 0 if is_zen() else 1)
    for at in range(0, n_bytes, 64):
        prefetch(builder, builder.add(address, I64(ahead + at)), level)


def multiply_pairs(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return int32 lanes ``a[2 i] * b[2 i] + a[2 i + 1] * b[2 i + 1]`` of vectors of int16."""
    n = a.type.count
    kind = ir.VectorType(ir.IntType(32), n // 2)
    name = {32: "llvm.x86.avx512.pmaddw.d.512" if has("avx512bw") else "", 16: "llvm.x86.avx2.pmadd.wd"}[n]
    if name and has("avx2"):
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [a.type, a.type]), name)
        return builder.call(function, [a, b])
    if n == WORDS:
        halves = [[lanes_of(builder, x, range(i, i + LANES)) for x in (a, b)] for i in (0, LANES)]
        low, high = (multiply_pairs(builder, *half) for half in halves)
        return builder.shuffle_vector(low, high, constant_lanes(range(LANES)))
    products = []
    for first in (0, 1):
        x, y = (builder.sext(lanes_of(builder, v, range(first, n, 2)), kind) for v in (a, b))
        products.append(builder.mul(x, y))
    return builder.add(*products)


def constant_lanes(lanes: Sequence[int]) -> ir.Constant:
    """Return the numbers of lanes, for a shuffle."""
    return ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), list(lanes))


def lanes_of(builder: ir.IRBuilder, value: ir.Value, lanes: Sequence[int]) -> ir.Value:
    """Return some lanes of a vector."""
    return builder.shuffle_vector(value, value, constant_lanes(lanes))


def add_record(
    builder: ir.IRBuilder, scale: ir.Value, products: ir.Value, minima: ir.Value | None, record: ir.Value, sums: ir.Value
) -> ir.Value:
    """Add products of float32 with the token at `record`, times both scales, and minima, to float32 lanes, which it has."""
    fma = f"llvm.fma.v{sums.type.count}f32"
    sums = call(builder, fma, scale, products, sums)
    if minima is None:
        return sums
    return call(builder, fma, minima, load(builder, builder.add(record, I64(SUMS)), sums.type), sums)


def scale_of(builder: ir.IRBuilder, record: ir.Value, kind: ir.Type) -> ir.Value:
    """Return the scale of the token at `record` in all lanes."""
    return load(builder, builder.add(record, I64(SCALE)), kind)


def scale_products(builder: ir.IRBuilder, scales: Sequence[ir.Value], tokens: Sequence[ir.Value]) -> Products:
    """Return a function that returns the product of the scales of row r and of the token at address t in all lanes.

    A row has its scale in all lanes, so one product of vectors serves several tokens. The products are broadcast from
    memory, since the units that multiply have the most work.
    """
    kind, of_tokens = scales[0].type, scales[0].type(ir.Undefined)
    for t, token in enumerate(tokens):
        scale = load(builder, builder.add(token, I64(SCALE)), kind.element)
        of_tokens = builder.insert_element(of_tokens, scale, I64(t))
    memory, size = builder.ptrtoint(cgutils.alloca_once(builder, ir.ArrayType(kind, len(scales))), I64), 4 * kind.count
    for r, scale in enumerate(scales):
        store(builder, builder.add(memory, I64(size * r)), builder.fmul(scale, of_tokens))
    stored = of_unknown_origin(builder, memory)

    def product(r: int, t: int) -> ir.Value:
        return spread(builder, load(builder, builder.add(stored, I64(size * r + 4 * t)), kind.element), kind.count)

    return product
