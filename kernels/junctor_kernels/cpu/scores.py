"""Scores of many rows: most probable states and entropies of posteriors (Numba).

Main function: `score_rows`, called by `junctor.engine.scores`; `tables.scores` is the specification, to the last bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from junctor_kernels.cpu.jit import as_bits, as_float, inlined, jit
from junctor_kernels.tables.scores import EXPONENT_ZERO, LARGE, LEAST, LOG_2_HIGH, LOG_2_LOW, NO_STATE, SERIES, SHIFTED

# Probabilities whose logarithms are computed in one go: 16 KiB stay in the first cache.
TERMS = 2048

_L11, _L10, _L9, _L8, _L7, _L6, _L5, _L4, _L3, _L2, _L1 = SERIES
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
    series = _L11 * square + _L10
    series = series * square + _L9
    series = series * square + _L8
    series = series * square + _L7
    series = series * square + _L6
    series = series * square + _L5
    series = series * square + _L4
    series = series * square + _L3
    series = series * square + _L2
    series = series * square + _L1
    near = part - s * (part - square * series)
    return (n * LOG_2_HIGH + (n * LOG_2_LOW + near)) * p


@jit
def _write_terms(posteriors: Any, terms: Any) -> None:
    """Write p * log(p) for each of some probabilities."""
    for i in range(posteriors.size):
        terms[i] = _term(np.float64(posteriors[i]))


@jit
def _entropies(posteriors: Any, size: int, terms: Any, entropies: Any) -> None:
    """Write the entropies of rows of `size` states."""
    step = max(1, TERMS // size)
    for start in range(0, entropies.size, step):
        stop = min(start + step, entropies.size)
        if size <= TERMS:
            _write_terms(posteriors[start * size : stop * size], terms)
            _add_terms(terms, size, entropies[start:stop])
        else:
            total = 0.0
            for i in range(start * size, stop * size):
                total += _term(np.float64(posteriors[i]))
            entropies[start] = _entropy(total)


@jit
def _add_terms(terms: Any, size: int, entropies: Any) -> None:
    at = np.uint64(0)
    for row in range(entropies.size):
        total = 0.0
        for _ in range(size):
            total += terms[at]
            at += np.uint64(1)
        entropies[row] = _entropy(total)


@inlined
def _entropy(total: float) -> Any:
    # A probability may be a rounding error above 1.
    return 0.0 - total if total < 0.0 else 0.0


@jit
def _best(posteriors: Any, size: int, states: Any, probabilities: Any) -> None:
    """Write the most probable state of each row, the first of equal ones."""
    at = np.uint64(0)
    for row in range(states.shape[0]):
        best, state = posteriors[at], 0
        at += np.uint64(1)
        for i in range(1, size):
            p = posteriors[at]
            at += np.uint64(1)
            state = i if p > best else state
            best = p if p > best else best
        states[row, 0], probabilities[row, 0] = state, best


@jit
def _top(posteriors: Any, size: int, states: Any, probabilities: Any) -> None:
    """Write the K most probable states of each row, equal ones in the order of the states."""
    top = states.shape[1]
    for row in range(states.shape[0]):
        found = 0
        for state in range(size):
            p = posteriors[row * size + state]
            if found == top and not p > probabilities[row, top - 1]:
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


@jit
def score_rows(
    posteriors: Any, sizes: Any, total: int, begin: int, end: int, states: Any, probabilities: Any, entropies: Any
) -> None:
    """Write the scores of rows `begin` to `end` of all variables.

    posteriors: float, flat, [total, cardinality] of one variable after the other.
    sizes: int64 [variables], cardinalities.
    total: rows of the posteriors.
    states: int32 [variables, end - begin, K], written, as in `tables.scores.score`.
    probabilities: float [variables, end - begin, K], written.
    entropies: float [variables, end - begin], written.
    """
    terms = np.empty(TERMS)
    start = 0
    for v in range(sizes.size):
        size = sizes[v]
        part = posteriors[start + begin * size : start + end * size]
        _entropies(part, size, terms, entropies[v])
        if states.shape[2] == 1:
            _best(part, size, states[v], probabilities[v])
        else:
            _top(part, size, states[v], probabilities[v])
        start += total * size
