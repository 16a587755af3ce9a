"""Exponentials and logarithms of vectors of float64, without a call or a branch (Numba, LLVM).

Main functions: `exponential` and `logarithm`, for sums in log space (`panels`): accurate to about an ulp on numbers
from -inf to 0, and on positive normal numbers. Argument reduction and series after Muller, Elementary Functions, 3rd
edition, chapters 3 and 11.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba.extending import intrinsic

from junctor_kernels.cpu.jit import inlined
from junctor_kernels.cpu.vectors import add, divide, larger, multiply, multiply_add, spread, subtract

# Adding this brings the nearest integer of a number below 2^51 to the lowest bits of the sum.
SHIFT = 1.5 * 2.0**52
# ln 2 in two parts (Cody and Waite); the first ends in zeros, so that its products with exponents are exact.
LOG_2_HIGH = float.fromhex("0x1.62e42fefa3800p-1")
LOG_2_LOW = float.fromhex("0x1.ef35793c76730p-45")
LOG2_E = 1 / math.log(2)
# Below this the exponential is no normal number any more; added to a sum of at least 1 it changes nothing.
LEAST = -708.0
# Bits of the square root of one half: mantissas are reduced to sqrt(1/2) ... sqrt(2), where the series is shortest.
HALF_ROOT = 0x3FE6A09E667F3BCD
# Coefficients of x^n in e^x, and of s^2n in log((1 + s) / (1 - s)) / s.
E2, E3, E4, E5, E6, E7, E8, E9, E10, E11, E12, E13 = [1 / math.factorial(n) for n in range(2, 14)]
L1, L2, L3, L4, L5, L6, L7, L8, L9, L10, L11 = [2 / (2 * n + 1) for n in range(1, 12)]


def _on_bits(name: str, build: Any, doc: str) -> Any:
    """Return an intrinsic of vectors of float64 that works on their bits: build(builder, bits...) gives bits."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        integers = ir.VectorType(ir.IntType(64), args[0].type.count)
        return build(builder, integers, *(builder.bitcast(arg, integers) for arg in args))

    def typed_one(_typing: Any, one: Any) -> Any:
        return one(one), lambda *given: given[1].bitcast(code(*given), given[3][0].type)

    def typed_two(_typing: Any, one: Any, _other: Any) -> Any:
        return one(one, one), lambda *given: given[1].bitcast(code(*given), given[3][0].type)

    typed = typed_two if build.__code__.co_argcount == 4 else typed_one
    typed.__name__, typed.__doc__ = name, doc
    return intrinsic(typed)


def _of(integers: Any, number: int) -> Any:
    return ir.Constant(integers, [number] * integers.count)


def _add_power(builder: Any, integers: Any, number: Any, shifted: Any) -> Any:
    return builder.add(number, builder.shl(shifted, _of(integers, 52)))


def _above_half_root(builder: Any, integers: Any, number: Any) -> Any:
    return builder.sub(number, _of(integers, HALF_ROOT))


def _fraction(builder: Any, integers: Any, number: Any) -> Any:
    power = builder.and_(_above_half_root(builder, integers, number), _of(integers, -(1 << 52)))
    return builder.sub(number, power)


def _exponent(builder: Any, integers: Any, number: Any) -> Any:
    power = builder.ashr(_above_half_root(builder, integers, number), _of(integers, 52))
    floats = ir.VectorType(ir.DoubleType(), integers.count)
    return builder.bitcast(builder.sitofp(power, floats), integers)


add_power = _on_bits("add_power", _add_power, "Return number * 2 ** n, where `shifted` is n + SHIFT.")
fraction = _on_bits("fraction", _fraction, "Return number / 2 ** exponent(number), about 1.")
exponent = _on_bits("exponent", _exponent, "Return the power of two that is nearest to a number, as a number.")


def _where_finite(_typing: Any, one: Any, _value: Any, _other: Any) -> Any:
    """Return `value` where `one` is above -inf, `other` elsewhere."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        lowest = ir.Constant(args[0].type, [float("-inf")] * args[0].type.count)
        return builder.select(builder.fcmp_ordered(">", args[0], lowest), args[1], args[2])

    return one(one, one, one), code


where_finite = intrinsic(_where_finite)


@inlined
def exponential(x: Any) -> Any:
    """Return e ** x for x of at most 0; below LEAST, e ** LEAST."""
    x = larger(x, spread(LEAST))
    shifted = multiply_add(x, spread(LOG2_E), spread(SHIFT))
    n = subtract(shifted, spread(SHIFT))
    x = multiply_add(n, spread(-LOG_2_HIGH), x)
    x = multiply_add(n, spread(-LOG_2_LOW), x)
    square = multiply(x, x)
    # Odd and even terms apart: half as long a chain of dependent operations as Horner's scheme.
    odd = multiply_add(square, spread(E13), spread(E11))
    even = multiply_add(square, spread(E12), spread(E10))
    odd, even = multiply_add(square, odd, spread(E9)), multiply_add(square, even, spread(E8))
    odd, even = multiply_add(square, odd, spread(E7)), multiply_add(square, even, spread(E6))
    odd, even = multiply_add(square, odd, spread(E5)), multiply_add(square, even, spread(E4))
    odd, even = multiply_add(square, odd, spread(E3)), multiply_add(square, even, spread(E2))
    tail = multiply_add(square, multiply_add(x, odd, even), x)
    return add_power(add(spread(1.0), tail), shifted)


@inlined
def logarithm(x: Any) -> Any:
    """Return the logarithm of x, a positive normal number."""
    n, part = exponent(x), subtract(fraction(x), spread(1.0))
    s = divide(part, add(part, spread(2.0)))
    square = multiply(s, s)
    series = multiply_add(square, spread(L11), spread(L10))
    series = multiply_add(square, series, spread(L9))
    series = multiply_add(square, series, spread(L8))
    series = multiply_add(square, series, spread(L7))
    series = multiply_add(square, series, spread(L6))
    series = multiply_add(square, series, spread(L5))
    series = multiply_add(square, series, spread(L4))
    series = multiply_add(square, series, spread(L3))
    series = multiply_add(square, series, spread(L2))
    series = multiply_add(square, series, spread(L1))
    # log(1 + part) = part - s * (part - s^2 * series): the subtrahend is small compared with part, so little cancels.
    near = subtract(part, multiply(s, subtract(part, multiply(square, series))))
    return multiply_add(n, spread(LOG_2_HIGH), multiply_add(n, spread(LOG_2_LOW), near))
