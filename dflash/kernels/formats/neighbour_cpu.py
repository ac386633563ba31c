"""Emission of products of rows whose blocks have 32 weights with rounded tokens, and of unpacking such rows (`records`)."""

from collections.abc import Callable

from llvmlite import ir
from numba.core import cgutils

from dflash.kernels.cpu.simd.emit import F32, I32, I64, LANES, call, load, loop, spread, store
from dflash.kernels.formats import records
from dflash.kernels.formats.cpu import ROWS
from dflash.kernels.formats.integers import PART, WORDS
from dflash.kernels.formats.lanes import QuantBlock, of_unknown_origin
from dflash.kernels.formats.neighbours import MANY, Neighbours, SmallBlocks, TwoBlocks

Values = list[ir.Value]
Made = tuple[Callable[[Neighbours], SmallBlocks], int]  # the decoder of a format and the bytes of a block

_EIGHT = ir.VectorType(F32, MANY)
_PAIR = 4 * WORDS  # bytes of the int16 of two blocks


def multiply_block(builder: ir.IRBuilder, words: Values, scale: ir.Value, token: Values, so_far: ir.Value) -> ir.Value:
    """Add the products of one or two blocks with the words of a token, times their scales, to float32 lanes."""
    first, last = (records.multiply_pairs(builder, *both) for both in zip(words, token, strict=True))
    products = builder.sitofp(builder.add(first, last), scale.type)
    return call(builder, f"llvm.fma.v{scale.type.count}f32", products, scale, so_far)


def token_words(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> Values:
    """Return the words that belong to the first 16 weights of a block or two, and to the others."""
    return [load(builder, builder.add(address, I64(at)), kind) for at in (0, 2 * WORDS)]


def joined(builder: ir.IRBuilder, low: ir.Value, high: ir.Value) -> ir.Value:
    """Return the lanes of two vectors of eight float32."""
    return builder.shuffle_vector(low, high, records.constant_lanes(range(LANES)))


def _if_any(builder: ir.IRBuilder, n: ir.Value, start: Values, emit: Callable[[], Values]) -> Values:
    """Emit code that returns other values than those of the start, for `n` above 0."""
    before = builder.block
    with builder.if_then(builder.icmp_signed(">", n, I64(0))):
        after = emit()
        behind = builder.block
    found = [builder.phi(value.type) for value in start]
    for phi, first, later in zip(found, start, after, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, behind)
    return found


class RowProduct:
    """Emits the product of a row with tokens: the address of their records, the bytes from one to the next, and how many."""

    def __init__(self, builder: ir.IRBuilder, made: Made, start: ir.Value, tokens: tuple[ir.Value, ir.Value, int]) -> None:
        self._builder, (self._decode, self._n_bytes), self._start = builder, made, start
        self._x, self._x_stride, count = tokens
        self._count = count
        lanes = PART // 2
        self._parts = LANES // lanes
        self._zeros = [ir.VectorType(F32, lanes)([0.0] * lanes)] * (count * self._parts)

    def sums(self, n: ir.Value) -> Values:
        """Return the lane sums of `n` blocks: those of each token, or the first half of all and then the second."""
        builder = self._builder
        records, rest = builder.udiv(n, I64(MANY)), builder.urem(n, I64(MANY))
        sums = _if_any(builder, records, self._zeros, lambda: loop(builder, records, self._zeros, self._record))
        return _if_any(builder, rest, sums, lambda: self._last(records, rest, sums))

    def _neighbours(self, address: ir.Value, n: int) -> SmallBlocks:
        records.prefetch_ahead(self._builder, address, n * self._n_bytes)
        return self._decode(Neighbours(self._builder, address, self._n_bytes, n))

    def _places(self, record: ir.Value) -> tuple[ir.Value, Values]:
        """Return the address of the first block of a record, and those of the record of each token."""
        builder = self._builder
        address = builder.add(self._start, builder.mul(record, I64(MANY * self._n_bytes)))
        first = builder.add(self._x, builder.mul(record, self._x_stride))
        return address, [builder.add(first, I64(records.RECORD * t)) for t in range(self._count)]

    def _scales(self, scale: ir.Value) -> Callable[[int], ir.Value]:
        """Return a function that returns the scale of a block in all lanes; they are broadcast from memory.

        Shuffles would compete with those of the weights.
        """
        builder = self._builder
        memory = cgutils.alloca_once(builder, scale.type)
        builder.store(scale, memory)
        stored = builder.bitcast(of_unknown_origin(builder, memory), F32.as_pointer())
        return lambda i: spread(builder, builder.load(builder.gep(stored, [I32(i)])), MANY)

    def _pair(self, blocks: SmallBlocks, at: Values, scales: Values, tokens: Values, so_far: Values) -> Values:
        """Add the products of two blocks, in one vector or one after the other, with the words at `tokens`."""
        builder, after = self._builder, []
        for part in range(self._parts):
            both = QuantBlock(builder, at[part]) if self._parts > 1 else TwoBlocks(builder, *at)
            words = [half.value for half in blocks.words(both)]
            for t, token in enumerate(tokens):
                place = builder.add(token, I64(WORDS * part))
                found = token_words(builder, place, words[0].type)
                after.append(multiply_block(builder, words, scales[part], found, so_far[part * self._count + t]))
        return after

    def _added(self, products: Values, minima: ir.Value | None, tokens: Values, sums: Values) -> Values:
        """Add products of a record to lane sums, and the minima of its blocks to the first lanes."""
        if minima is not None and self._parts == 1:
            minima = joined(self._builder, minima, _EIGHT([0.0] * MANY))
        found = []
        for i, (product, so_far) in enumerate(zip(products, sums, strict=True)):
            part, t = divmod(i, self._count)
            place = self._builder.add(tokens[t], I64(WORDS * part))
            scale = records.scale_of(self._builder, place, so_far.type)
            found.append(records.add_record(self._builder, scale, product, None if part else minima, place, so_far))
        return found

    def _record(self, i: ir.Value, sums: Values) -> Values:
        """Add the products of record `i` to lane sums."""
        builder = self._builder
        (address, tokens), products = self._places(i), self._zeros
        blocks = self._neighbours(address, MANY)
        scale, n_bytes = blocks.scale.value, self._n_bytes
        one = self._scales(scale) if self._parts > 1 else None
        for b in range(0, MANY, 2):
            at = [builder.add(address, I64(n_bytes * (b + i))) for i in range(2)]
            order = ir.VectorType(I32, LANES)([b] * MANY + [b + 1] * MANY)
            scales = [one(b), one(b + 1)] if one else [builder.shuffle_vector(scale, scale, order)]
            places = [builder.add(token, I64(_PAIR * b // 2)) for token in tokens]
            products = self._pair(blocks, at, scales, places, products)
        return self._added(products, blocks.minima and blocks.minima.value, tokens, sums)

    def _last(self, i: ir.Value, n: ir.Value, sums: Values) -> Values:
        """Add the products of the first `n` blocks of record `i` to lane sums.

        Where the second block of a pair is not there, the first stands in its place: values of tokens are zero there.
        """
        builder, (address, tokens), has_minima = self._builder, self._places(i), []

        def body(pair: ir.Value, carried: Values) -> Values:
            *products, minima = carried
            first = builder.shl(pair, I64(1))
            second = builder.select(builder.icmp_signed("<", builder.add(first, I64(1)), n), I64(1), I64(0))
            numbers = first, builder.add(first, second)
            at = [builder.add(address, builder.mul(b, I64(self._n_bytes))) for b in numbers]
            blocks = [self._neighbours(place, 1) for place in at]
            scales = [one.scale.value for one in blocks]
            scales = scales if self._parts > 1 else [joined(builder, *scales)]
            places = [builder.add(token, builder.mul(pair, I64(_PAIR))) for token in tokens]
            for b, one in zip(numbers, blocks, strict=True):
                if one.minima is not None:
                    has_minima.append(b)
                    lane = spread(builder, builder.trunc(b, I32), MANY)
                    is_own = builder.icmp_signed("==", lane, ir.VectorType(I32, MANY)(list(range(MANY))))
                    minima = builder.select(is_own, one.minima.value, minima)
            return [*self._pair(blocks[0], at, scales, places, products), minima]

        pairs = builder.lshr(builder.add(n, I64(1)), I64(1))
        *products, minima = loop(builder, pairs, [*self._zeros, _EIGHT([0.0] * MANY)], body)
        return self._added(products, minima if has_minima else None, tokens, sums)


def unpack(builder: ir.IRBuilder, made: Made, *values: ir.Value) -> None:
    """Unpack `ROWS` rows; `values` are the arguments of `integer_unpack_function`."""
    (decode, n_bytes), (source, stride, n, out, out_stride) = made, values
    nothing, lanes = _EIGHT([0.0] * MANY), range(MANY)

    def body(pair: ir.Value, carried: Values) -> Values:
        first = builder.shl(pair, I64(1))
        is_whole = builder.icmp_signed("<", builder.add(first, I64(1)), n)  # else the first block stands for the second
        numbers = first, builder.add(first, builder.zext(is_whole, I64))
        group = builder.and_(pair, I64(MANY // 2 - 1))
        record = builder.add(out, builder.mul(builder.lshr(pair, I64(2)), I64(records.SMALL_RECORD)))
        for r in range(ROWS):
            row = builder.add(source, builder.mul(stride, I64(r)))
            at = [builder.add(row, builder.mul(b, I64(n_bytes))) for b in numbers]
            to = builder.add(record, builder.mul(out_stride, I64(r)))
            blocks = [decode(Neighbours(builder, place, n_bytes, 1)) for place in at]
            scales = [one.scale.value for one in blocks]
            minima = [nothing if one.minima is None else one.minima.value for one in blocks]
            scales[1], minima[1] = (builder.select(is_whole, both[1], nothing) for both in (scales, minima))
            place = builder.add(to, builder.shl(group, I64(7)))
            for part in range(WORDS // PART):
                both = QuantBlock(builder, at[part]) if PART < WORDS else TwoBlocks(builder, *at)
                for j, half in enumerate(blocks[0].words(both)):
                    store(builder, builder.add(place, I64(WORDS * part + 2 * WORDS * j)), half.value)
            own = builder.add(to, builder.add(builder.shl(group, I64(6)), I64(records.SCALE)))
            store(builder, own, joined(builder, *scales))
            pairs = builder.shuffle_vector(*minima, ir.VectorType(I32, MANY)([0, MANY, *lanes[2:]]))
            is_own = ir.VectorType(ir.IntType(1), MANY)([1, 1] + [0] * (MANY - 2))
            # zeros behind minima stay where no block follows
            store(builder, builder.add(to, I64(records.SUMS + 4 * MANY)), nothing)
            own = builder.add(to, builder.add(builder.shl(group, I64(3)), I64(records.SUMS)))
            store(builder, own, builder.select(is_own, pairs, nothing))
        return carried

    loop(builder, builder.lshr(builder.add(n, I64(1)), I64(1)), [], body)
