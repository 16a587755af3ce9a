"""Scores in NumPy: most probable states and entropies of posteriors, the specification of the compiled kernel.

Main function: `score`, called by `junctor.engine.scores` for little work; `cpu.scores` gives the same bytes. The
logarithm is that of fdlibm (Ng 1986), after Muller, Elementary Functions, 3rd edition, chapter 11.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]
States = npt.NDArray[np.int32]

# Bits of the square root of one half, which mantissas are reduced to: sqrt(1/2) ... sqrt(2), where the series is
# shortest; with the bits of 1 added, the upper twelve bits are the exponent plus 1023.
HALF_ROOT = 0x3FE6A09E667F3BCD
SHIFTED = 0x3FF0000000000000 - HALF_ROOT
# An integer below 2^52 in the lower bits of this number is added to it: a conversion without one.
LARGE = 0x4330000000000000
EXPONENT_ZERO = 2.0**52 + 1023
# ln 2 in two parts (Cody and Waite); the first ends in zeros, so that its products with exponents are exact.
LOG_2_HIGH = float.fromhex("0x1.62e42fefa3800p-1")
LOG_2_LOW = float.fromhex("0x1.ef35793c76730p-45")
# Coefficients of s^2n in log((1 + s) / (1 - s)) / s, fitted over that range to 2^-58; of s^14 first.
SERIES = (
    1.479819860511658591e-01,
    1.531383769920937332e-01,
    1.818357216161805012e-01,
    2.222219843214978396e-01,
    2.857142874366239149e-01,
    3.999999999940941908e-01,
    6.666666666666735130e-01,
)
# The smallest normal number: terms of smaller probabilities are below 2e-305, and 0 log 0 is 0.
LEAST = 2.0**-1022
NO_STATE = -1
# Probabilities within this factor of the largest count as equal to it. Symmetric states differ by rounding, in another
# way with every order of additions; 20 units in the last place are usual, and this leaves room for 3e5 of them (250 in
# single precision).
EQUAL_DOUBLE, EQUAL_SINGLE = 1 - 2.0**-36, 1 - 2.0**-16


def score(posteriors: Array, states: States, probabilities: Array, entropies: Array) -> None:
    """Write the most probable states of one variable, their probabilities and the entropy, for each row.

    posteriors: float [rows, cardinality].
    states: int32 [rows, K], written: the K most probable states, those that are equal up to rounding in the order of
        the states; -1 beyond the last.
    probabilities: float [rows, K], written: their probabilities, nan beyond the last.
    entropies: float [rows], written: in nats.
    """
    size, top = posteriors.shape[1], states.shape[1]
    order = _in_order(posteriors)[:, :top]
    shown = order.shape[1]
    states[:, :shown], states[:, shown:] = order, NO_STATE
    probabilities[:, :shown] = np.take_along_axis(posteriors, order, axis=1)
    probabilities[:, shown:] = math.nan
    total = np.zeros(len(posteriors))
    # One state after the other, as the kernel adds them: sums in another order would differ in their last bits.
    for state in range(size):
        total += terms(posteriors[:, state].astype(np.float64))
    entropies[:] = np.maximum(0.0 - total, 0.0)


def _in_order(posteriors: Array) -> npt.NDArray[np.int64]:
    """Return the states of each row from the most probable one on, equal ones in their own order."""
    size = posteriors.shape[1]
    falling = np.argsort(-posteriors, axis=1, kind="stable")
    # The largest number that is left and all that equal it are one group; the largest below them begins the next.
    equal = posteriors.dtype.type(EQUAL_SINGLE if posteriors.dtype.itemsize == 4 else EQUAL_DOUBLE)
    groups = np.zeros(posteriors.shape, dtype=np.int64)
    low = np.full(len(posteriors), math.inf, dtype=posteriors.dtype)
    for place in range(size):
        p = np.take_along_axis(posteriors, falling[:, place : place + 1], axis=1)[:, 0]
        is_next = p < low
        low = np.where(is_next, p * equal, low)
        groups[:, place] = (groups[:, place - 1] if place else 0) + is_next
    again = np.argsort(groups * size + falling, axis=1)
    return np.take_along_axis(falling, again, axis=1)


def terms(p: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return p * log(p), 0 for 0; to about two ulps for normal numbers below 2."""
    # No fused products: every operation rounds as in the kernel.
    bits = np.maximum(p, LEAST).view(np.int64)
    power = (bits + SHIFTED) >> 52
    n = (power | LARGE).view(np.float64) - EXPONENT_ZERO
    part = (bits - ((power - 1023) << 52)).view(np.float64) - 1.0
    s = part / (part + 2.0)
    square = s * s
    series = np.full_like(square, SERIES[0])
    for coefficient in SERIES[1:]:
        series = series * square + coefficient
    # log(1 + part) = part - s * (part - s^2 * series): the subtrahend is small compared with part, so little cancels.
    near = part - s * (part - square * series)
    result: npt.NDArray[np.float64] = (n * LOG_2_HIGH + (n * LOG_2_LOW + near)) * p
    return result
