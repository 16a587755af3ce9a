"""Scores of many rows: most probable states and entropies of posteriors (Numba).

Main function: `score_rows`, called by `junctor.engine.scores`; `tables.scores` is the specification, to the last bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from junctor_kernels.cpu.jit import as_bits, as_float, inlined, jit, part
from junctor_kernels.tables.scores import (
    EQUAL_DOUBLE,
    EQUAL_SINGLE,
    EXPONENT_ZERO,
    LARGE,
    LEAST,
    LOG_2_HIGH,
    LOG_2_LOW,
    NO_STATE,
    SERIES,
    SHIFTED,
)

# Probabilities whose logarithms are computed in one go: 16 KiB stay in the first cache.
TERMS = 2048

_L7, _L6, _L5, _L4, _L3, _L2, _L1 = SERIES
_SHIFTED, _LARGE, _BIAS, _WIDTH = np.uint64(SHIFTED), np.uint64(LARGE), np.uint64(1023), np.uint64(52)


@inlined
def _term(p: float) -> Any:
    """Return p * log(p), without a branch, so that loops over it become vectors."""
    bits = as_bits(p if p > LEAST else LEAST)
    power = (bits + _SHIFTED) >> _WIDTH
    n = as_float(power | _LARGE) - EXPONENT_ZERO
    part = as_float(bits - ((power - _BIAS) << _WIDTH)) - 1.0
    s = part / (part + 2.0)
    square = s * s
    series = _L7 * square + _L6
    series = series * square + _L5
    series = series * square + _L4
    series = series * square + _L3
    series = series * square + _L2
    series = series * square + _L1
    near = part - s * (part - square * series)
    return (n * LOG_2_HIGH + (n * LOG_2_LOW + near)) * p


@part
def _write_terms(posteriors: Any, terms: Any) -> None:
    """Write p * log(p) for each of some probabilities."""
    for i in range(posteriors.size):
        terms[i] = _term(np.float64(posteriors[i]))


@inlined
def _equal(posteriors: Any) -> Any:
    """Return the factor within which probabilities count as equal, in their own precision."""
    return posteriors.dtype.type(EQUAL_SINGLE if posteriors.itemsize == 4 else EQUAL_DOUBLE)


@inlined
def _next(numbers: Any, low: float, high: float, state: int) -> Any:
    """Return the first state from `state` on with a number from `low` on and below `high`, their count for none."""
    while state < numbers.size and not (low <= numbers[state] < high):
        state += 1
    return state


@inlined
def _largest_below(numbers: Any, high: float) -> Any:
    """Return the largest number below `high`, -1 for none."""
    best = numbers.dtype.type(-1.0)
    for p in numbers:
        best = p if best < p < high else best
    return best


@part
def _write_one(posteriors: Any, terms: Any, size: int, states: Any, probabilities: Any, entropies: Any) -> None:
    """Write the entropy of each row and its most probable state, the first of equal ones."""
    # Unsigned: a negative index would count from the end, which is asked about at every access.
    at = np.uint64(0)
    equal = _equal(posteriors)
    for row in range(entropies.size):
        first, best, state, total = at, posteriors[at], 0, terms[at]
        second = best * 0
        at += np.uint64(1)
        for i in range(1, size):
            p = posteriors[at]
            total += terms[at]
            at += np.uint64(1)
            less = best if p > best else p
            second = less if less > second else second
            state = i if p > best else state
            best = p if p > best else best
        if second >= best * equal:
            state = _next(posteriors[first:at], best * equal, math.inf, 0)
            best = posteriors[first + np.uint64(state)]
        states[row, 0], probabilities[row, 0], entropies[row] = state, best, _entropy(total)


@part
def _write_top(posteriors: Any, terms: Any, size: int, states: Any, probabilities: Any, entropies: Any) -> None:
    """Write the entropy of each row and its K most probable states, equal ones in the order of the states."""
    top, equal = states.shape[1], _equal(posteriors)
    for row in range(entropies.size):
        found, total, beyond = 0, 0.0, posteriors.dtype.type(0)
        for state in range(size):
            p = posteriors[row * size + state]
            total += terms[row * size + state]
            if found == top:
                last = probabilities[row, top - 1]
                beyond = max(beyond, min(p, last))
                if not p > last:
                    continue
            # Insertion: K is small, and most states of large variables come no further than here.
            place = found if found < top else top - 1
            while place and p > probabilities[row, place - 1]:
                states[row, place], probabilities[row, place] = states[row, place - 1], probabilities[row, place - 1]
                place -= 1
            states[row, place], probabilities[row, place] = state, p
            found = min(found + 1, top)
        for place in range(found, top):
            states[row, place], probabilities[row, place] = NO_STATE, math.nan
        entropies[row] = _entropy(total)
        # Numbers that are the same have their places already, those that only count as equal may not.
        is_close = beyond > 0 and beyond >= probabilities[row, found - 1] * equal
        for place in range(1, found):
            p, above = probabilities[row, place], probabilities[row, place - 1]
            is_close |= above * equal <= p < above
        if is_close:
            _write_close(posteriors[row * size : (row + 1) * size], states[row, :found], probabilities[row, :found])


@inlined
def _write_close(numbers: Any, states: Any, probabilities: Any) -> None:
    """Write the most probable states of a row, those that are equal up to rounding in the order of the states."""
    # Numbers from `low` on and below `high` are equal; `state` is the last of them that has a place.
    equal, low = _equal(numbers), numbers.dtype.type(math.inf)
    high, state = low, numbers.size - 1
    for place in range(states.size):
        state = _next(numbers, low, high, state + 1)
        if state == numbers.size:
            high = low
            low = _largest_below(numbers, high) * equal
            # Rows without an answer hold anything, even nothing that could come next.
            state = min(_next(numbers, low, high, 0), numbers.size - 1)
        states[place], probabilities[place] = state, numbers[state]


@part
def _write_some(posteriors: Any, terms: Any, size: int, states: Any, probabilities: Any, entropies: Any) -> None:
    """Write the scores of some rows of a variable, which follow each other."""
    if states.shape[1] == 1:
        _write_one(posteriors, terms, size, states, probabilities, entropies)
    else:
        _write_top(posteriors, terms, size, states, probabilities, entropies)


@inlined
def _entropy(total: float) -> Any:
    # A probability may be a rounding error above 1.
    return 0.0 - total if total < 0.0 else 0.0


@jit
def score_rows(
    posteriors: Any,
    sizes: Any,
    total: int,
    begin: int,
    end: int,
    at: int,
    places: Any,
    states: Any,
    probabilities: Any,
    entropies: Any,
) -> None:
    """Write the scores of rows `begin` to `end` of all variables.

    posteriors: float, flat, [total, cardinality] of one variable after the other.
    sizes: int64 [variables], cardinalities.
    total: rows of the posteriors.
    begin, end: rows of the posteriors that are looked at.
    at: row of the scores for row `begin`; the others follow, unless they have places of their own.
    places: int64 [total], row of the scores for each row; none where they follow each other.
    states: int32 [variables, rows, K], written, as in `tables.scores.score`.
    probabilities: float [variables, rows, K], written.
    entropies: float [variables, rows], written.
    """
    terms = np.empty(max(TERMS, sizes.max()))
    few = min(TERMS, end - begin) if places.size else 0
    some = np.empty((few, states.shape[2]), states.dtype)
    numbers = np.empty((few, states.shape[2]), probabilities.dtype), np.empty(few, entropies.dtype)
    start = 0
    for v in range(sizes.size):
        size = sizes[v]
        step = max(1, TERMS // size)
        for first in range(begin, end, step):
            last, here = min(first + step, end), at + first - begin
            part = posteriors[start + first * size : start + last * size]
            _write_terms(part, terms)
            if places.size:
                count = last - first
                _write_some(part, terms, size, some[:count], numbers[0][:count], numbers[1][:count])
                for i in range(count):
                    row = places[first + i]
                    for place in range(states.shape[2]):
                        states[v, row, place], probabilities[v, row, place] = some[i, place], numbers[0][i, place]
                    entropies[v, row] = numbers[1][i]
            else:
                rows = slice(here, here + last - first)
                _write_some(part, terms, size, states[v, rows], probabilities[v, rows], entropies[v, rows])
        start += total * size
