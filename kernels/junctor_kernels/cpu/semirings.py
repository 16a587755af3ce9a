"""Semirings of compiled contractions: how numbers join a product, and products a sum (Numba).

Main functions: `times`, `plus` and `plus_product`, of vectors, for the loops of `contract`, `panels` and row trees. A
semiring is two arguments, resolved at compile time, since None and True are different types to Numba: `logs`, None for
numbers and True for their logarithms, and `largest`, None for sums and True for maxima.
"""

from __future__ import annotations

from typing import Any

from junctor_kernels.cpu.jit import inlined
from junctor_kernels.cpu.logarithms import logarithm, where_finite
from junctor_kernels.cpu.vectors import add, larger, multiply, multiply_add, spread


@inlined
def times(one: Any, other: Any, logs: bool | None) -> Any:
    """Return products, or sums of logarithms."""
    return multiply(one, other) if logs is None else add(one, other)


@inlined
def plus(total: Any, term: Any, largest: bool | None) -> Any:
    """Return sums, or the larger ones."""
    return add(total, term) if largest is None else larger(term, total)


@inlined
def plus_product(total: Any, one: Any, other: Any, logs: bool | None, largest: bool | None) -> Any:
    """Return sums with one more product, rounded once on machines with fused multiply-add."""
    if logs is None and largest is None:
        return multiply_add(one, other, total)
    return plus(total, times(one, other, logs), largest)


@inlined
def finite(largest: Any) -> Any:
    """Return the largest of some logarithms, or 0 where all are -inf: what is subtracted from each."""
    return where_finite(largest, largest, spread(0.0))


@inlined
def log_sum(total: Any, largest: Any) -> Any:
    """Return log(total) + largest; -inf where that is the largest of all terms."""
    return where_finite(largest, add(logarithm(total), largest), largest)
