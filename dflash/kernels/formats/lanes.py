"""Vectors of 16 lanes with Python operators, in which the block formats are written.

An expression such as ``((q & 15).int() - 8).float() * d`` builds LLVM instructions while numba compiles a kernel; nothing
is computed in Python.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable

import llvmlite.binding
import numba
from llvmlite import ir
from numba.core import cgutils

from dflash.kernels.cpu.simd.emit import call, spread

LANES = 16
_I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
_F32 = ir.FloatType()


def _vector(kind: ir.Type, n: int = LANES) -> ir.VectorType:
    return ir.VectorType(kind, n)


@functools.cache
def has(feature: str) -> bool:
    """Return whether kernels may use a feature of the processor, which has LLVM's name."""
    if numba.config.CPU_NAME is not None:
        return f"+{feature}" in (numba.config.CPU_FEATURES or "").split(",")
    return bool(llvmlite.binding.get_host_cpu_features().get(feature))


def vector_lanes() -> int:
    """Return the float32 lanes of a vector register: 16 with AVX-512, else 8."""
    return LANES if has("avx512f") else LANES // 2


def is_zen(generation: str = "") -> bool:
    """Return whether the processor is one of AMD's Zen family, or of a generation of it."""
    return (numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name()).startswith(f"znver{generation}")


class Lanes:
    """16 values of one type: bytes, int32 or float32; or 32 or 64 bytes, to be split with `part`; or 32 int16."""

    def __init__(self, builder: ir.IRBuilder, value: ir.Value, *, signed: bool = False) -> None:
        self.builder, self.value, self.signed = builder, value, signed

    @property
    def _element(self) -> ir.Type:
        return self.value.type.element

    def _like(self, value: ir.Value) -> Lanes:
        return Lanes(self.builder, value, signed=self.signed)

    def _other(self, other: Lanes | int | list[int]) -> ir.Value:
        if isinstance(other, Lanes):
            return other.value
        values = other if isinstance(other, list) else [other] * self.value.type.count
        return ir.Constant(self.value.type, values)

    def __and__(self, other: Lanes | int | list[int]) -> Lanes:
        return self._like(self.builder.and_(self.value, self._other(other)))

    def __or__(self, other: Lanes | int) -> Lanes:
        return self._like(self.builder.or_(self.value, self._other(other)))

    def __lshift__(self, other: int | list[int]) -> Lanes:
        return self._like(self.builder.shl(self.value, self._other(other)))

    def __rshift__(self, other: int | list[int]) -> Lanes:
        """Shift right and fill with zeros."""
        return self._like(self.builder.lshr(self.value, self._other(other)))

    def __add__(self, other: Lanes | int) -> Lanes:
        add = self.builder.fadd if self._element == _F32 else self.builder.add
        return self._like(add(self.value, self._other(other)))

    def __sub__(self, other: Lanes | int) -> Lanes:
        sub = self.builder.fsub if self._element == _F32 else self.builder.sub
        return self._like(sub(self.value, self._other(other)))

    def __mul__(self, other: Lanes) -> Lanes:
        multiply = self.builder.fmul if self._element == _F32 else self.builder.mul
        return self._like(multiply(self.value, other.value))

    def fused(self, scale: Lanes, offset: Lanes) -> Lanes:
        """Return ``self * scale + offset``, rounded once."""
        return self._like(call(self.builder, f"llvm.fma.v{LANES}f32", self.value, scale.value, offset.value))

    def int(self) -> Lanes:
        """Convert bytes or int16 to int32; signed ones keep their sign."""
        if self._element == _I32:
            return self
        widen = self.builder.sext if self.signed else self.builder.zext
        return Lanes(self.builder, widen(self.value, _vector(_I32, self.value.type.count)), signed=True)

    def words(self) -> Lanes:
        """Convert bytes to int16, which stay as they are; signed bytes keep their sign."""
        if self._element == _I16:
            return self
        widen = self.builder.sext if self.signed else self.builder.zext
        words = self._like(widen(self.value, _vector(_I16, self.value.type.count)))
        return words if self.signed else words.of_unknown_origin()

    def of_unknown_origin(self) -> Lanes:
        """Return the same words; of bytes, LLVM would mask and shift the bytes first, and widen each nibble of them."""
        if not has("avx2"):
            return self
        same = ir.FunctionType(self.value.type, [self.value.type])
        return self._like(self.builder.asm(same, "", "=x,0", [self.value], side_effect=False))

    def narrow(self) -> Lanes:
        """Convert int32 to bytes, which stay as they are."""
        if self._element == _I8:
            return self
        return self._like(self.builder.trunc(self.value, _vector(_I8, self.value.type.count)))

    def _with_zeros(self, order: list[builtins.int], *, upper: bool) -> Lanes:
        """Return bytes as int16, or as the upper bytes of int16."""
        n = self.value.type.count
        pairs = [lane for at in order for lane in ((n, at) if upper else (at, n))]
        chosen = self.builder.shuffle_vector(self.value, self.value.type([0] * n), _vector(_I32, len(pairs))(pairs))
        return self._like(self.builder.bitcast(chosen, _vector(_I16, len(order))))

    def widened(self, *, upper: bool = False) -> list[Lanes]:
        """Return 32 bytes as int16, or as the upper bytes of int16: bytes 0 to 7 and 16 to 23, and the others."""
        halves = ([*range(first, first + 8), *range(first + 16, first + 24)] for first in (0, 8))
        return [self._with_zeros(half, upper=upper) for half in halves]

    def chosen_words(self, orders: list[list[builtins.int]], *, upper: bool) -> Callable[[builtins.int], Lanes]:
        """Return a function that returns the bytes of one of several orders, of 16 bytes, as int16 or their upper bytes.

        With AVX2, an instruction reads the order from memory; from an order that it knows, LLVM makes several instructions.
        """
        if not has("avx2"):
            return lambda i: self._with_zeros(orders[i], upper=upper)
        zero, builder, kind = 128, self.builder, _vector(_I8, 2 * LANES)
        rows = bytes(lane for order in orders for at in order for lane in ((zero, at) if upper else (at, zero)))
        name = f"order_{rows.hex()}"
        table = builder.module.globals.get(name) or cgutils.global_constant(
            builder, name, ir.Constant(ir.ArrayType(_I8, len(rows)), bytearray(rows))
        )
        stored = QuantBlock(builder, of_unknown_origin(builder, builder.ptrtoint(table, _I64)))
        shuffle = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 2), "llvm.x86.avx2.pshuf.b")
        twice = self.pick(*range(LANES), *range(LANES)).value

        def words(i: builtins.int) -> Lanes:
            chosen = builder.call(shuffle, [twice, stored.load(2 * LANES * i, kind)])
            return self._like(builder.bitcast(chosen, _vector(_I16)))

        return words

    def high_product(self, other: Lanes) -> Lanes:
        """Return the upper halves of the products of signed int16."""
        kind = _vector(_I32, self.value.type.count)
        product = self.builder.mul(*(self.builder.sext(one.value, kind) for one in (self, other)))
        return self._like(self.builder.trunc(self.builder.lshr(product, kind([16] * kind.count)), self.value.type))

    def float(self) -> Lanes:
        """Convert bytes, int16 or int32 to float32."""
        return Lanes(self.builder, self.builder.sitofp(self.int().value, _vector(_F32)))

    def as_float(self) -> Lanes:
        """Reinterpret the bits of int32 as float32."""
        return Lanes(self.builder, self.builder.bitcast(self.value, _vector(_F32, self.value.type.count)))

    def as_signed(self) -> Lanes:
        """Reinterpret the same bits as signed integers."""
        return Lanes(self.builder, self.value, signed=True)

    def part(self, i: builtins.int) -> Lanes:
        """Return lanes 16 i to 16 i + 15."""
        return self.pick(*range(i * LANES, (i + 1) * LANES))

    def moved(self, left: builtins.int) -> Lanes:
        """Return values shifted left by a number of bits, right if it is negative.

        Bits of a byte may enter its neighbour, so the caller masks them.
        """
        if self._element != _I8:
            return self << left if left >= 0 else self >> -left
        pairs = Lanes(self.builder, self.builder.bitcast(self.value, _vector(_I16, self.value.type.count // 2)))
        return self._like(self.builder.bitcast(pairs.moved(left).value, self.value.type))

    def top(self, n: builtins.int) -> Lanes:
        """Return the upper bits of bytes, or of bytes as int16."""
        upper = self.moved(n - 8)
        return upper & ((1 << n) - 1) if self._element == _I8 else upper

    def pick(self, *order: builtins.int) -> Lanes:
        """Return the lanes of these numbers."""
        return self._like(self.builder.shuffle_vector(self.value, self.value, _vector(_I32, len(order))(order)))

    def bytes(self) -> Lanes:
        """Reinterpret 4 words as their 16 bytes."""
        return Lanes(self.builder, self.builder.bitcast(self.value, _vector(_I8)))

    def look_up_bytes(self, table: list[builtins.int]) -> Lanes:
        """Return ``table[lane]`` as signed bytes, for 16 or 32 bytes below 16."""
        kind = self.value.type
        if has("avx2"):
            shuffle = ir.FunctionType(kind, [kind, kind])
            name = {16: "llvm.x86.ssse3.pshuf.b.128", 32: "llvm.x86.avx2.pshuf.b"}[kind.count]
            function = cgutils.get_or_insert_function(self.builder.module, shuffle, name)
            whole = kind(table * (kind.count // len(table)))
            return Lanes(self.builder, self.builder.call(function, [whole, self.value]), signed=True)
        out: ir.Value = kind(ir.Undefined)
        for i in range(kind.count):
            entry = self.builder.extract_element(self.value, _I32(i))
            out = self.builder.insert_element(out, self.builder.extract_element(_vector(_I8)(table), entry), _I32(i))
        return Lanes(self.builder, out, signed=True)

    def joined(self, other: Lanes) -> Lanes:
        """Return the lanes of both."""
        order = list(range(2 * self.value.type.count))
        return self._like(self.builder.shuffle_vector(self.value, other.value, _vector(_I32, len(order))(order)))


def of_unknown_origin(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Return a copy of an integer or pointer whose value LLVM can't derive. No memory access is moved across this point."""
    same = ir.FunctionType(value.type, [value.type])
    return builder.asm(same, "", "=r,0,~{memory}", [value], side_effect=True)


def in_order(builder: ir.IRBuilder, values: list[ir.Value]) -> list[ir.Value]:
    """Return copies of vectors; LLVM makes those of one call before those of the next, and keeps fewer values at a time."""
    kinds, n = [value.type for value in values], len(values)
    both = ir.FunctionType(ir.LiteralStructType(kinds), kinds)
    copies = builder.asm(both, "", ",".join(["=x"] * n + [str(i) for i in range(n)]), values, side_effect=True)
    return [builder.extract_value(copies, i) for i in range(n)]


def constant(builder: ir.IRBuilder, values: list[int]) -> Lanes:
    """Return 16 small integers as float32."""
    return Lanes(builder, _vector(_F32)([float(v) for v in values]))


class QuantBlock:
    """Reads the bytes of a block at constant offsets."""

    def __init__(self, builder: ir.IRBuilder, address: ir.Value) -> None:
        self.builder, self.address = builder, address

    def load(self, offset: int, kind: ir.Type) -> ir.Value:
        """Load a value from an offset, aligned or not."""
        address = self.builder.add(self.address, _I64(offset))
        value = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))
        value.align = 1
        return value

    def each(self, value: ir.Value) -> Lanes:
        """Broadcast a scalar to every lane."""
        return Lanes(self.builder, spread(self.builder, value))

    def u8(self, offset: int, n: int = LANES) -> Lanes:
        """Load 16, 32 or 64 bytes."""
        return Lanes(self.builder, self.load(offset, _vector(_I8, n)))

    def i8(self, offset: int) -> Lanes:
        """Load 16 signed bytes."""
        return Lanes(self.builder, self.load(offset, _vector(_I8)), signed=True)

    def u16(self, offset: int) -> Lanes:
        """Load 16 unsigned 2-byte integers as int32."""
        return Lanes(self.builder, self.builder.zext(self.load(offset, _vector(_I16)), _vector(_I32)))

    def f16(self, offset: int) -> Lanes:
        """Load 16 float16 as float32."""
        return Lanes(self.builder, self.builder.fpext(self.load(offset, _vector(ir.HalfType())), _vector(_F32)))

    def f32(self, offset: int) -> Lanes:
        """Load 16 float32."""
        return Lanes(self.builder, self.load(offset, _vector(_F32)))

    def each_f16(self, offset: int) -> Lanes:
        """Load one float16 as float32 and broadcast it.

        Loaded as a single value, it would wait for a running sum if LLVM puts it into the register that holds that sum.
        """
        all_lanes = self.each(self.load(offset, ir.HalfType()))
        return Lanes(self.builder, self.builder.fpext(all_lanes.value, _vector(_F32)))

    def each_int(self, offset: int, n_bytes: int) -> Lanes:
        """Load one unsigned integer of 1, 2 or 4 bytes as int32 and broadcast it."""
        value = self.load(offset, ir.IntType(8 * n_bytes))
        return self.each(value if n_bytes == 4 else self.builder.zext(value, _I32))

    def words(self, offset: int) -> Lanes:
        """Load 4 words of four bytes."""
        return Lanes(self.builder, self.load(offset, _vector(_I32, 4)))
