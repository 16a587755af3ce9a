"""Products of scaled numbers in compiled code (Numba), as `multiplied` and `logarithms` of `tables.reference`.

Main functions: `multiplied`, `exponent_of` and `log_of`, called wherever totals are multiplied to P(e).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from junctor_kernels.cpu.jit import as_bits, as_float, inlined
from junctor_kernels.tables.reference import HALF_ROOT, LOG_2


@inlined
def multiplied(number: float, exponent: float, by: float, by_exponent: float, logs: Any) -> Any:
    """Return the product of two scaled numbers as a number in [0.5, 1), or a logarithm about 0, and its exponent.

    number, by: 0, 1 or in [0.5, 1); or logarithms.
    exponent, by_exponent: whole numbers.
    logs: None for plain numbers (resolved at compile time), True for logarithms, False for those of maxima.
    """
    if logs is None:
        product = number * by
        # From its bits: without a branch, so that loops over cases are vectors.
        power = np.int64(as_bits(product) >> np.uint64(52)) - 1022
        return product * as_float(np.uint64(1023 - power) << np.uint64(52)), exponent + by_exponent + power
    total = number + by
    shift = exponent_of(total, logs)
    return total - shift, exponent + by_exponent + shift


@inlined
def exponent_of(largest: float, logs: Any) -> float:
    """Return the exponent that brings a number into [0.5, 1), or a logarithm about 0; logs: of `multiplied`."""
    if logs is None:
        return float(math.frexp(largest)[1])
    shift = float(np.rint(largest)) if logs else largest
    return shift if largest > -np.inf else 0.0


@inlined
def log_of(number: float, exponent: float) -> float:
    """Return the natural logarithm of a scaled number, 0 or in [0.5, 1); -inf for 0."""
    # Between the roots of 1/2 and 2 no exponent is left: the logarithm of a number near 1 would cancel with it.
    is_low = number < HALF_ROOT
    return float(np.log(2 * number if is_low else number) + (exponent - is_low) * LOG_2)
