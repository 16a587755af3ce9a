"""Tables with their scales and bounds on losses to underflow. Main class: ScaledTable, used by `backends.numpy`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra, Rescaled

Floats = npt.NDArray[np.float64]
Table = npt.NDArray[np.floating[Any]]


@dataclass(eq=False, slots=True)
class ScaledTable:
    """A table divided by a scale; the bounds are derived in `backends.numpy`.

    table: [entries, cases or 1], times a power of two where it has a lift.
    exponent: float64 [cases or 1], as of `reference.exponents_of`: the scale is two to that power; logarithms are so
        much smaller.
    lost: float64 [cases or 1], bound on the difference of an entry from the exact one.
    open: float64 [cases or 1], bound on the part of it that no edge has weighed yet.
    least: float64 [cases or 1], smallest entry above zero of the table, 1 where that is larger.
    floor: no entry of `least` is below it; 0 where that is not known.
    is_clean: whether it is known that all of `lost` and `open` are zero.
    """

    table: Table
    exponent: Floats
    lost: Floats
    open: Floats
    least: Floats
    floor: float = 0.0
    is_clean: bool = False


# The bounds of tables that have lost nothing.
NOTHING = np.zeros(1)
NOTHING.flags.writeable = False


def floor_of(least: Floats) -> float:
    """Return the smallest of the smallest entries above zero of all cases, 1 at most."""
    return float(least[0]) if len(least) == 1 else float(np.minimum.reduce(least, initial=1.0))


def scaled_to(numbers: Floats, algebra: Algebra) -> ScaledTable:
    """Return numbers float64 [entries, columns] in an algebra, each column scaled as `rescale` does."""
    with np.errstate(divide="ignore", under="ignore"):
        # Logarithms lose nothing to underflow: bounds are 0, and the smallest entry counts as 1.
        if algebra.logs:
            table = np.log(numbers)
            exponent = reference.exponents_of(np.maximum.reduce(table, axis=0), algebra)
            table -= exponent
            return ScaledTable(table, exponent, NOTHING, NOTHING, np.ones(exponent.shape), 1.0, True)
        exponent = reference.exponents_of(np.maximum.reduce(numbers, axis=0), algebra)
        # In float64, before entries are rounded to the format.
        least = np.minimum(np.ldexp(reference.least_above_zero(numbers), -exponent), 1)
        table = np.ldexp(numbers, -exponent).astype(algebra.dtype, copy=False)
    return ScaledTable(table, exponent.astype(np.float64), *rounding_bounds(least, algebra))


def rounding_bounds(least: Floats, algebra: Algebra) -> tuple[Floats, Floats, Floats, float, bool]:
    """Return the bounds of a table rounded to a number format, as a ScaledTable has them; `least`: before that."""
    floor = floor_of(least)
    # The same zeros for each case take no time.
    is_clean = floor >= algebra.tiny
    lost = NOTHING if is_clean else lost_below(least, algebra)
    return lost, lost, least, floor, is_clean


def lost_below(least: Floats, algebra: Algebra) -> Floats:
    """Return a bound on the loss of each entry when a table is rounded to a number format; `least`: before rounding."""
    return np.where(least < algebra.tiny, algebra.tiny, 0.0)


def stays_clean(operands: Sequence[ScaledTable], rescaled: Rescaled, floor: float, algebra: Algebra) -> bool:
    """Return True if it is known that a contraction is clean: what `lost_here` finds of all cases, for less.

    operands: tables that are multiplied.
    rescaled: their contraction.
    floor: of `rescaled.least`.
    algebra: of the result.
    """
    product = 1.0
    for value in operands:
        if not value.is_clean:
            return False
        # No product of entries is below that of the floors, roundings included.
        product *= value.floor
    # Where all of a case is zero, its bounds are 0/0.
    some = np.count_nonzero(rescaled.largest) == len(rescaled.largest)
    return product >= algebra.tiny and floor >= algebra.tiny and some


def lost_here(
    operands: Sequence[ScaledTable],
    terms: int,
    rescaled: Rescaled,
    algebra: Algebra,
    lifts: Sequence[int] = (),
    lift: int = 0,
) -> Floats:
    """Return a bound on the loss of each entry in one contraction and its rescaling, float64 [cases or 1].

    operands: tables that are multiplied.
    terms: number of terms of each sum.
    rescaled: their contraction.
    algebra: of the result.
    lifts: of the operands; none if not given.
    lift: of the result.
    """
    lifts, ones = lifts or (0,) * len(operands), np.ones(1)
    with np.errstate(under="ignore"):
        product = math.prod((value.least for value in operands), start=ones)
        # No product of entries can be below the smallest normal number then.
        safe = (product >= algebra.tiny) & (rescaled.least >= algebra.tiny)
        if safe.all():
            return np.zeros(safe.shape)
        unlifted = math.prod((one.least for one, by in zip(operands, lifts, strict=True) if not by), start=ones)
    each = len(operands) * algebra.tiny * terms
    # What a product with a lifted table loses counts less by that lift, unless it lost something before.
    lost = np.where(unlifted >= algebra.tiny, each * 2.0 ** -least_lift(lifts), each)
    if lift:
        lost = lost + algebra.tiny * 2.0**-lift * rescaled.largest
    return np.where(safe, 0.0, lost)


def least_lift(lifts: Sequence[int]) -> int:
    """Return the smallest lift of the tables that have one, 0 if none has."""
    return min((lift for lift in lifts if lift), default=0)
