"""Vectors of numbers in registers, for kernels whose loops must not be left to the compiler's luck (Numba, LLVM).

Main class: Vector; used by `contract`, `plan`, `panels` and `logarithms`. Kernels keep running sums in vectors over a
whole loop, where plain loops over an array would load and store them in every iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from junctor_kernels.cpu.interpreted import OF_VECTORS, stand_in

# Width of a vector: AVX-512, or else AVX2, which LLVM splits where registers are narrower. Results do not depend on it:
# lanes are different entries or cases, never parts of one sum.
_IS_AVX512, _IS_AVX2 = (bool(binding.get_host_cpu_features().get(name)) for name in ("avx512f", "avx2"))
BYTES = 64 if _IS_AVX512 else 32


class Vector(types.Type):  # type: ignore[misc]
    """The Numba type of a vector of float32 or float64, as wide as the machine's or of so many lanes."""

    def __init__(self, dtype: Any, lanes: int = 0) -> None:
        self.dtype = dtype
        self.lanes = lanes or BYTES * 8 // dtype.bitwidth
        super().__init__(name=f"Vector({dtype}, {self.lanes})")


@register_model(Vector)
class _Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, of: Vector) -> None:
        number = ir.FloatType() if of.dtype == types.float32 else ir.DoubleType()
        super().__init__(manager, of, ir.VectorType(number, of.lanes))


def _store(_typing: Any, array: Any, _index: Any, vector: Any) -> Any:
    """Write a vector to a flat array from `index` on."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> None:
        place = _place(context, builder, signature.args[0], args, args[2].type)
        builder.store(args[2], place, align=array.dtype.bitwidth // 8)

    return types.void(array, types.intp, vector), code


def _loader(lanes: int = 0) -> Any:
    """Return an intrinsic for vectors of so many lanes, those of the machine by default."""

    def load(_typing: Any, array: Any, _index: Any) -> Any:
        """Return the vector that starts at `index` of a flat array."""
        vector = Vector(array.dtype, lanes)

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = _place(context, builder, signature.args[0], args, context.get_value_type(vector))
            # Only numbers are aligned, not vectors: LLVM must not use aligned loads.
            return builder.load(place, align=array.dtype.bitwidth // 8)

        return vector(array, types.intp), code

    return intrinsic(load)


def _wide8(_typing: Any, array: Any, _index: Any) -> Any:
    """Return the eight numbers that start at `index` of a flat array, as a vector of float64."""
    vector = Vector(types.float64, 8)

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        narrow = ir.VectorType(context.get_value_type(array.dtype), 8)
        place = _place(context, builder, signature.args[0], args, narrow)
        found = builder.load(place, align=array.dtype.bitwidth // 8)
        return found if array.dtype == types.float64 else builder.fpext(found, context.get_value_type(vector))

    return vector(array, types.intp), code


def _spreader(lanes: int = 0) -> Any:
    """Return an intrinsic for vectors of so many lanes, those of the machine by default."""

    def spread(_typing: Any, number: Any) -> Any:
        """Return a vector with `number` in all lanes."""
        vector = Vector(number, lanes)

        def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return _splat(builder, args[0], context.get_value_type(vector))

        return vector(number), code

    return intrinsic(spread)


def _first_lanes(_typing: Any, vector: Any, _count: Any) -> Any:
    """Return a vector with zeros in all lanes but the first `count`."""

    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kept = _below(builder, args[1], vector.lanes)
        return builder.select(kept, args[0], ir.Constant(args[0].type, None))

    return vector(vector, types.int64), code


def _pair_sums(_typing: Any, one: Any, _two: Any, _three: Any, _four: Any) -> Any:
    """Return the sums (x0 + x1) + (x2 + x3) of four vectors of four lanes, as a vector."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        def lanes(first: Any, second: Any, *chosen: int) -> Any:
            picked = ir.Constant(ir.VectorType(ir.IntType(32), 4), list(chosen))
            return builder.shuffle_vector(first, second, picked)

        def neighbours(first: Any, second: Any) -> Any:
            return builder.fadd(lanes(first, second, 0, 4, 2, 6), lanes(first, second, 1, 5, 3, 7))

        low, high = neighbours(args[0], args[1]), neighbours(args[2], args[3])
        return builder.fadd(lanes(low, high, 0, 1, 4, 5), lanes(low, high, 2, 3, 6, 7))

    return one(one, one, one, one), code


def _halves_sum(_typing: Any, vector: Any) -> Any:
    """Return the first half of a vector plus the second one."""
    half = Vector(vector.dtype, vector.lanes // 2)

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.fadd(*(_part(builder, args[0], first, half.lanes) for first in (0, half.lanes)))

    return half(vector), code


def _lane(_typing: Any, vector: Any, _number: Any) -> Any:
    """Return one of the numbers of a vector."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.extract_element(args[0], args[1])

    return vector.dtype(vector, types.int64), code


def _store_first(_typing: Any, array: Any, _index: Any, vector: Any, _count: Any) -> Any:
    """Write the first `count` numbers of a vector to a flat array from `index` on."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> None:
        bits = array.dtype.bitwidth
        if _IS_AVX512:
            place = _place(context, builder, signature.args[0], args, args[2].type)
            kept, word = _below(builder, args[3], vector.lanes), ir.IntType(32)
            name = f"llvm.masked.store.v{vector.lanes}f{bits}.p0"
            given = ir.FunctionType(ir.VoidType(), [args[2].type, place.type, word, kept.type])
            function = cgutils.get_or_insert_function(builder.module, given, name)
            builder.call(function, [args[2], place, ir.Constant(word, bits // 8), kept])
            return

        def put(first: Any, some: Any) -> None:
            place = _place(context, builder, signature.args[0], (args[0], first), some.type)
            builder.store(some, place, align=bits // 8)

        # Masked stores of AVX2 are slow on AMD's cores: halves, then their halves, instead.
        at, left, count = args[1], args[2], args[3]
        enough = builder.icmp_signed(">=", count, ir.Constant(count.type, vector.lanes))
        with builder.if_else(enough) as (whole, part):
            with whole:
                put(at, left)
            with part:
                lanes = vector.lanes
                while lanes > 1:
                    lanes //= 2
                    length = ir.Constant(count.type, lanes)
                    has = builder.icmp_signed("!=", builder.and_(count, length), ir.Constant(count.type, 0))
                    low, high = (_part(builder, left, first, lanes) for first in (0, lanes))
                    with builder.if_then(has):
                        put(at, low)
                    left = builder.select(has, high, low)
                    at = builder.select(has, builder.add(at, length), at)

    return types.void(array, types.intp, vector, types.int64), code


def _store_apart(_typing: Any, array: Any, _index: Any, _step: Any, vector: Any) -> Any:
    """Write the numbers of a vector to a flat array from `index` on, `step` entries apart."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> None:
        at = args[1]
        for lane in range(vector.lanes):
            number = builder.extract_element(args[3], ir.Constant(ir.IntType(32), lane))
            place = builder.gep(context.make_array(signature.args[0])(context, builder, args[0]).data, [at])
            builder.store(number, place)
            at = builder.add(at, args[2])

    return types.void(array, types.intp, types.intp, vector), code


def _permuted(_typing: Any, vector: Any, _word: Any) -> Any:
    """Return a vector of eight float64 whose lane i is lane (byte i of a word, at most 7) of another one."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        lanes = ir.VectorType(ir.IntType(64), 8)
        sources = builder.zext(builder.bitcast(args[1], ir.VectorType(ir.IntType(8), 8)), lanes)
        kind = args[0].type
        if _IS_AVX512:
            # LLVM finds no instruction for lanes that are taken one by one.
            name, signature = "llvm.x86.avx512.permvar.df.512", ir.FunctionType(kind, [kind, lanes])
            return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), [args[0], sources])
        if _IS_AVX2:
            return _permuted_by_halves(builder, args[0], sources)
        result = ir.Constant(kind, ir.Undefined)
        for i in range(8):
            lane = ir.Constant(ir.IntType(32), i)
            number = builder.extract_element(args[0], builder.extract_element(sources, lane))
            result = builder.insert_element(result, number, lane)
        return result

    return vector(vector, types.uint64), code


def _permuted_by_halves(builder: Any, vector: Any, sources: Any) -> Any:
    """Return a vector of eight float64 whose lane i is lane `sources[i]` of another one, by instructions of AVX2."""
    words, floats = ir.VectorType(ir.IntType(32), 8), ir.VectorType(ir.FloatType(), 8)
    half = ir.VectorType(ir.IntType(64), 4)

    def each(number: int) -> Any:
        return ir.Constant(half, [number] * 4)

    signature = ir.FunctionType(floats, [floats, words])
    function = cgutils.get_or_insert_function(builder.module, signature, "llvm.x86.avx2.permps")
    halves = [builder.bitcast(_part(builder, vector, first, 4), floats) for first in (0, 4)]
    results = []
    for first in (0, 4):
        lanes = _part(builder, sources, first, 4)
        # Of two words, the first and the second half of a number.
        pairs = builder.mul(builder.and_(lanes, each(3)), each(2 + (2 << 32)))
        pairs = builder.bitcast(builder.add(pairs, each(1 << 32)), words)
        found = [
            builder.bitcast(builder.call(function, [some, pairs]), ir.VectorType(ir.DoubleType(), 4)) for some in halves
        ]
        results.append(builder.select(builder.icmp_unsigned(">", lanes, each(3)), found[1], found[0]))
    return builder.shuffle_vector(*results, ir.Constant(words, list(range(8))))


def _load_at(_typing: Any, number: Any, _address: Any) -> Any:
    """Return the vector of numbers, of the type of `number`, that starts at an address."""
    vector = Vector(number)

    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[1], context.get_value_type(vector).as_pointer())
        return builder.load(place, align=number.bitwidth // 8)

    return vector(number, types.intp), code


def _store_at(_typing: Any, _address: Any, vector: Any) -> Any:
    """Write a vector to an address."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> None:
        place = builder.inttoptr(args[0], args[1].type.as_pointer())
        builder.store(args[1], place, align=vector.dtype.bitwidth // 8)

    return types.void(types.intp, vector), code


def _spread_at(_typing: Any, number: Any, _address: Any) -> Any:
    """Return a vector with the number at an address, of the type of `number`, in all lanes."""
    vector = Vector(number)

    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[1], context.get_value_type(number).as_pointer())
        return _splat(builder, builder.load(place), context.get_value_type(vector))

    return vector(number, types.intp), code


def _pick_at(_typing: Any, number: Any, _address: Any, _offsets: Any) -> Any:
    """Gather the numbers, of the type of `number`, at an address plus byte offsets, int64 at another address."""
    vector = Vector(number)

    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        offsets = builder.inttoptr(args[2], args[1].type.as_pointer())
        # Lane by lane, since offsets are arbitrary.
        result = ir.Constant(context.get_value_type(vector), ir.Undefined)
        for lane in range(vector.lanes):
            here = ir.Constant(ir.IntType(32), lane)
            address = builder.add(args[1], builder.load(builder.gep(offsets, [here])))
            place = builder.inttoptr(address, context.get_value_type(number).as_pointer())
            result = builder.insert_element(result, builder.load(place), here)
        return result

    return vector(number, types.intp, types.intp), code


def _above_zero(_typing: Any, vector: Any) -> Any:
    """Return True if any number of a vector is above zero."""

    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        above = builder.fcmp_ordered(">", args[0], ir.Constant(args[0].type, None))
        bits = builder.bitcast(above, ir.IntType(vector.lanes))
        return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    return types.boolean(vector), code


def _multiply_add(_typing: Any, one: Any, _other: Any, _total: Any) -> Any:
    """Return one * other + total, rounded once on machines with fused multiply-add."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = args[0].type
        name = f"llvm.fmuladd.v{one.lanes}f{one.dtype.bitwidth}"
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
        return builder.call(function, args)

    return one(one, one, one), code


def _elementwise(name: str, build: Callable[..., Any], doc: str) -> Any:
    def typed(_typing: Any, one: Any, _other: Any) -> Any:
        def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return build(builder, *args)

        return one(one, one), code

    typed.__name__, typed.__doc__ = name, doc
    return intrinsic(typed)


def _larger(builder: Any, one: Any, other: Any) -> Any:
    # Ordered comparison: where `one` is nan, `other` is taken.
    return builder.select(builder.fcmp_ordered(">", one, other), one, other)


def _share_of(builder: Any, one: Any, other: Any) -> Any:
    zero = ir.Constant(other.type, None)
    return builder.select(builder.fcmp_ordered(">", other, zero), builder.fdiv(one, other), zero)


def _least_above_zero(builder: Any, least: Any, other: Any) -> Any:
    above = builder.fcmp_ordered(">", other, ir.Constant(other.type, None))
    # First without `least`: in a loop, one number waits for the minimum before only, and not for two comparisons.
    largest = ir.Constant(other.type.element, float("inf"))
    candidate = builder.select(above, other, ir.Constant(other.type, [largest] * other.type.count))
    return builder.select(builder.fcmp_ordered("<", candidate, least), candidate, least)


load, store, spread, multiply_add = _loader(), intrinsic(_store), _spreader(), intrinsic(_multiply_add)
above_zero = intrinsic(_above_zero)
load4, load8, spread4, spread8 = _loader(4), _loader(8), _spreader(4), _spreader(8)
first_lanes, pair_sums = intrinsic(_first_lanes), intrinsic(_pair_sums)
halves_sum, lane = intrinsic(_halves_sum), intrinsic(_lane)
store_first, store_apart = intrinsic(_store_first), intrinsic(_store_apart)
permuted = intrinsic(_permuted)
load_at, spread_at, pick_at, store_at = map(intrinsic, (_load_at, _spread_at, _pick_at, _store_at))
add = _elementwise("add", lambda builder, one, other: builder.fadd(one, other), "Return one + other.")
subtract = _elementwise("subtract", lambda builder, one, other: builder.fsub(one, other), "Return one - other.")
divide = _elementwise("divide", lambda builder, one, other: builder.fdiv(one, other), "Return one / other.")
multiply = _elementwise("multiply", lambda builder, one, other: builder.fmul(one, other), "Return one * other.")
share_of = _elementwise("share_of", _share_of, "Return one / other, 0 where `other` is not above zero.")
larger = _elementwise("larger", _larger, "Return the larger of each pair.")
least_above_zero = _elementwise("least_above_zero", _least_above_zero, "Return `other` where it is in (0, least).")


def _folded(comparison: str, doc: str) -> Any:
    """Return an intrinsic that reduces a vector to one of its numbers."""

    def fold(_typing: Any, vector: Any) -> Any:
        def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            found, lanes = args[0], vector.lanes
            while lanes > 1:
                lanes //= 2
                one, two = (_part(builder, found, first, lanes) for first in (0, lanes))
                found = builder.select(builder.fcmp_ordered(comparison, one, two), one, two)
            return builder.extract_element(found, ir.Constant(ir.IntType(32), 0))

        return vector.dtype(vector), code

    fold.__doc__ = doc
    return intrinsic(fold)


def _lanes_total(_typing: Any, vector: Any) -> Any:
    """Return the sum of the numbers of a vector, its second half added to its first until one number is left."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        numbers = [builder.extract_element(args[0], ir.Constant(ir.IntType(32), i)) for i in range(vector.lanes)]
        while half := len(numbers) // 2:
            numbers = [builder.fadd(one, two) for one, two in zip(numbers[:half], numbers[half:], strict=True)]
        return numbers[0]

    return vector.dtype(vector), code


lanes_total, wide8 = intrinsic(_lanes_total), intrinsic(_wide8)
highest = _folded(">", "Return the largest number of a vector.")
lowest = _folded("<", "Return the smallest number of a vector.")
stand_in(globals(), OF_VECTORS)


def _part(builder: Any, vector: Any, first: int, lanes: int) -> Any:
    """Return some neighbouring lanes of a vector."""
    chosen = ir.Constant(ir.VectorType(ir.IntType(32), lanes), list(range(first, first + lanes)))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), chosen)


def _below(builder: Any, count: Any, lanes: int) -> Any:
    """Return which lanes of a vector are among the first `count`."""
    numbers = ir.VectorType(ir.IntType(64), lanes)
    return builder.icmp_signed("<", ir.Constant(numbers, list(range(lanes))), _splat(builder, count, numbers))


def _place(context: Any, builder: Any, kind: Any, args: Any, vector: Any) -> Any:
    array = context.make_array(kind)(context, builder, args[0])
    return builder.bitcast(builder.gep(array.data, [args[1]]), vector.as_pointer())


def _splat(builder: Any, number: Any, vector: Any) -> Any:
    nothing = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None))
