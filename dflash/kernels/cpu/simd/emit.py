"""Helpers to write numba intrinsics as functions that emit LLVM instructions."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 16

BIT, I32, I64, F32 = ir.IntType(1), ir.IntType(32), ir.IntType(64), ir.FloatType()
F32V, I32V = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)


class Vector(types.Type):
    """A numba type for a vector of 16 lanes in registers."""

    def __init__(self, name: str, llvm: ir.Type) -> None:
        self.llvm = llvm
        super().__init__(name=name)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Vector) -> None:
        super().__init__(dmm, fe_type, fe_type.llvm)


f32x16 = Vector("f32x16", F32V)
i32x16 = Vector("i32x16", I32V)
mask16 = Vector("mask16", ir.VectorType(BIT, LANES))


def constant(value: float | int, vector: ir.VectorType) -> ir.Constant:
    """Return a compile-time constant with `value` in every lane."""
    return ir.Constant(vector, [value] * LANES)


def op(result: types.Type, *params: types.Type):
    """Turn ``emit(builder, *values) -> value`` into an intrinsic of the given signature."""

    def wrap(emit: Any) -> Any:
        def typed(typing_context, *args):
            def codegen(context, builder, signature, values):
                out = emit(builder, *values)
                return context.get_dummy_value() if out is None else out

            return result(*params), codegen

        names = ", ".join(f"a{i}" for i in range(len(params)))
        scope: dict[str, Any] = {"typed": typed}
        # numba reads the arity of an intrinsic from its Python signature
        exec(f"def {emit.__name__}(typing_context{', ' if names else ''}{names}):\n return typed(typing_context)", scope)
        function = scope[emit.__name__]
        function.__module__, function.__doc__ = __name__, emit.__doc__
        return intrinsic(function)

    return wrap


def pointer(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    """Convert an int64 address to a pointer."""
    return builder.inttoptr(address, kind.as_pointer())


def load(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    """Load a value of a type from an int64 address, aligned or not."""
    value = builder.load(pointer(builder, address, kind))
    value.align = 1
    return value


def store(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    """Store a value at an int64 address, aligned or not."""
    builder.store(value, pointer(builder, address, value.type)).align = 1


def call(builder: ir.IRBuilder, name: str, *args: ir.Value) -> ir.Value:
    """Call an LLVM intrinsic that returns the type of its first argument."""
    kind = args[0].type
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [a.type for a in args]), name)
    return builder.call(function, args)


def prefetch(builder: ir.IRBuilder, address: ir.Value, level: int = 1) -> None:
    """Prefetch the cache line at an int64 address to a level of cache; level 0 is for a line that is read only once."""
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.inttoptr(address, byte), I32(0), I32(4 - level if level else 0), I32(1)])


def spread(builder: ir.IRBuilder, value: ir.Value, n: int = LANES) -> ir.Value:
    """Broadcast a scalar to `n` lanes."""
    undefined = ir.VectorType(value.type, n)(ir.Undefined)
    first = builder.insert_element(undefined, value, I32(0))
    return builder.shuffle_vector(first, undefined, ir.VectorType(I32, n)([0] * n))


def fold(builder: ir.IRBuilder, value: ir.Value, combine: Any) -> ir.Value:
    """Fold lane i with lane i + n/2 until one is left: 16, 8, 4, 2, 1."""
    n = LANES
    while n > 1:
        n //= 2
        nothing = ir.Constant(value.type, ir.Undefined)
        low, high = (
            builder.shuffle_vector(value, nothing, ir.Constant(ir.VectorType(I32, n), list(range(i, i + n)))) for i in (0, n)
        )
        value = combine(low, high)
    return builder.extract_element(value, I32(0))


def loop(builder: ir.IRBuilder, n: ir.Value, start: list[ir.Value], body: Callable[..., list[ir.Value]]) -> list[ir.Value]:
    """Emit ``for i in range(n): values = body(i, values)``, n at least 1, and return the last values."""
    entry = builder.block
    head, done = builder.append_basic_block("loop"), builder.append_basic_block("loop.done")
    builder.branch(head)
    builder.position_at_end(head)
    i = builder.phi(I64)
    values = [builder.phi(value.type) for value in start]
    after = body(i, values)
    following = builder.add(i, I64(1))
    for phi, first, later in zip([i, *values], [I64(0), *start], [following, *after], strict=True):
        phi.add_incoming(first, entry)
        phi.add_incoming(later, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, n), head, done)
    builder.position_at_end(done)
    return after


def sum_lanes(builder: ir.IRBuilder, vectors: list[ir.Value]) -> ir.Value:
    """Return the lane sums of 1, 2, 4 ... vectors: fold i with i + 8, then i + 4, i + 2, i + 1, with shared instructions."""
    width = LANES
    while width > 1:
        half = width // 2
        step = 2 if len(vectors) % 2 == 0 else 1
        folded = []
        for pair in (vectors[i : i + step] for i in range(0, len(vectors), step)):
            groups = sum(v.type.count for v in pair) // width
            low = [g * width + i for g in range(groups) for i in range(half)]
            parts = []
            for order in (low, [i + half for i in low]):
                mask = ir.Constant(ir.VectorType(I32, len(order)), order)
                parts.append(builder.shuffle_vector(pair[0], pair[-1], mask))
            folded.append(builder.fadd(*parts))
        vectors, width = folded, half
    return vectors[0]
