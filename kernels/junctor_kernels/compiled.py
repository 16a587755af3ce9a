"""The compiled CPU backend: a whole plan for one block of cases in one call, the case axis innermost (Numba).

It does what the NumPy reference does, in the same order and with the same bounds on lost terms, without a Python step
between two contractions. All per-case tables lie in one arena [rows, cases]. What does not change from block to block
lies in flat arrays:

steps     int64 [n, 9]   kind, slot, first arena row, S, R, first operand, operands, place, second place
operands  int64 [m, 6]   slot, place (arena row or index into `shared`), first A offset, first R offset, per case, role
offsets   int64          A_k[s] and R_k[r] of every operand
results   int64 [n, 4]   1 for a total, first posterior row, slot of the message up, slot of its total; -1 where none
bounds    float64 [3, slots, cases]   log scale, lost and open of every table, as in `junctor.propagation`

For a SLICE, R is the number of columns, the operands are pairs in `observed` (row of `states`, radix), and the places
are those of its columns and of their scales; for a LIKELIHOOD the place is its first row in `likelihoods`. A FIXED step
makes nothing: its table is shared, and only its part in the results counts.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

SLICE, LIKELIHOOD, REDUCE, FIXED = 0, 1, 2, 3
# What an operand is to the bounds: a message whose losses an edge closes, one that hands them on, a fixed table.
CLOSED, OPEN, CONSTANT = 0, 1, 2
# Terms that are added up before they join the sum: rounding grows with this plus R over this, not with R.
RUN = 32
LOG_2 = float(np.log(2.0))
# Rows of `lanes`: temporaries of one number a case.
SUM, PART, PRODUCT, LARGEST, FACTOR, LANES = 0, 1, 2, 3, 4, 5


def _jit(function: Any) -> Any:
    # Contracting a product and a sum to one instruction is the only liberty taken with IEEE arithmetic.
    options = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:
        # Nowhere to keep compiled code: neither beside this file nor in the user's cache directory.
        return numba.njit(**options)(function)


@_jit
def propagate(
    steps: Any,
    operands: Any,
    offsets: Any,
    results: Any,
    growth: Any,
    observed: Any,
    columns: Any,
    column_scales: Any,
    shared: Any,
    states: Any,
    likelihoods: Any,
    arena: Any,
    bounds: Any,
    lanes: Any,
    bits: Any,
    tiny: float,
    posteriors: Any,
    found: Any,
) -> None:
    """Run all steps of a plan for one block.

    growth: float64 [n]. columns, column_scales, shared: the plan's numbers. states: int64 [variables, cases].
    likelihoods: float64 [rows, cases]. arena and posteriors [rows, cases] and lanes [LANES, cases] are float32 or
    float64; bits is the memory of lanes as integers of the same width. tiny: the smallest normal number.
    found: float64 [3, cases], log P(e), share of the probability moved at edges, largest open share of a result; all
    are added to in place.
    """
    for i in range(steps.shape[0]):
        step = steps[i]
        if step[0] == SLICE:
            _slice(step, observed, columns, column_scales, states, arena, bounds, tiny)
        elif step[0] == LIKELIHOOD:
            _likelihood(step, likelihoods, arena, bounds, tiny)
        elif step[0] == REDUCE:
            _contract(step, operands, offsets, shared, arena, lanes)
            _rescale(arena, step[2], step[3], lanes, bits)
            _bound(step, operands, growth[i], bounds, lanes, bits, tiny)
        _conclude(step, results[i], arena, bounds, lanes, posteriors, found)


@_jit
def _slice(
    step: Any, observed: Any, columns: Any, scales: Any, states: Any, arena: Any, bounds: Any, tiny: float
) -> None:
    slot, row, entries, width, first, count, place = step[1], step[2], step[3], step[4], step[5], step[6], step[7]
    cases = arena.shape[1]
    for b in range(cases):
        column = 0
        for n in range(first, first + count):
            column += states[observed[n, 0], b] * observed[n, 1]
        bounds[0, slot, b] = scales[step[8] + column]
        bounds[1, slot, b] = tiny
        bounds[2, slot, b] = tiny
        for e in range(entries):
            arena[row + e, b] = columns[place + e * width + column]


@_jit
def _likelihood(step: Any, likelihoods: Any, arena: Any, bounds: Any, tiny: float) -> None:
    slot, row, entries, place = step[1], step[2], step[3], step[7]
    for b in range(arena.shape[1]):
        largest = 0.0
        for e in range(entries):
            largest = max(largest, likelihoods[place + e, b])
        for e in range(entries):
            arena[row + e, b] = likelihoods[place + e, b] / largest
        bounds[0, slot, b] = np.log(largest)
        bounds[1, slot, b] = tiny
        bounds[2, slot, b] = tiny


@_jit
def _contract(step: Any, operands: Any, offsets: Any, shared: Any, arena: Any, lanes: Any) -> None:
    row, kept, terms, first, count = step[2], step[3], step[4], step[5], step[6]
    cases = arena.shape[1]
    # Shared operands come first.
    cut = first
    while operands[cut, 4] == 0:
        cut += 1
    last = first + count
    total, part, product = lanes[SUM], lanes[PART], lanes[PRODUCT]
    for s in range(kept):
        for b in range(cases):
            total[b] = 0
        for start in range(0, terms, RUN):
            for b in range(cases):
                part[b] = 0
            for r in range(start, min(start + RUN, terms)):
                factor = lanes.dtype.type(1)
                for k in range(first, cut):
                    factor *= shared[operands[k, 1] + offsets[operands[k, 2] + s] + offsets[operands[k, 3] + r]]
                if factor == 0:
                    # For all cases at once.
                    continue
                a = arena[operands[cut, 1] + offsets[operands[cut, 2] + s] + offsets[operands[cut, 3] + r]]
                if last == cut + 1:
                    for b in range(cases):
                        part[b] += factor * a[b]
                    continue
                k = cut + 1
                c = arena[operands[k, 1] + offsets[operands[k, 2] + s] + offsets[operands[k, 3] + r]]
                if last == cut + 2:
                    for b in range(cases):
                        part[b] += factor * a[b] * c[b]
                    continue
                k = cut + 2
                d = arena[operands[k, 1] + offsets[operands[k, 2] + s] + offsets[operands[k, 3] + r]]
                if last == cut + 3:
                    for b in range(cases):
                        part[b] += factor * a[b] * c[b] * d[b]
                    continue
                for b in range(cases):
                    product[b] = factor * a[b] * c[b] * d[b]
                for k in range(cut + 3, last):
                    e = arena[operands[k, 1] + offsets[operands[k, 2] + s] + offsets[operands[k, 3] + r]]
                    for b in range(cases):
                        product[b] *= e[b]
                for b in range(cases):
                    part[b] += product[b]
            for b in range(cases):
                total[b] += part[b]
        out = arena[row + s]
        for b in range(cases):
            out[b] = total[b]


@_jit
def _rescale(arena: Any, row: int, entries: int, lanes: Any, bits: Any) -> None:
    """Divide by a power of two so that the largest entry is in [0.5, 1); leaves LARGEST and the exponent in FACTOR."""
    cases = arena.shape[1]
    largest, factor = lanes[LARGEST], lanes[FACTOR]
    for b in range(cases):
        largest[b] = 0
    for e in range(entries):
        line = arena[row + e]
        for b in range(cases):
            largest[b] = max(largest[b], line[b])
    mantissa = 23 if lanes.itemsize == 4 else 52
    bias = 126 if lanes.itemsize == 4 else 1022
    power, numbers = bits[FACTOR], bits[LARGEST]
    for b in range(cases):
        # 2 ** -exponent, put together from its bits: the biased exponent of the largest entry mirrored.
        power[b] = (2 * bias + 1 - max(1, numbers[b] >> mantissa)) << mantissa
    for e in range(entries):
        line = arena[row + e]
        for b in range(cases):
            line[b] *= factor[b]


@_jit
def _bound(step: Any, operands: Any, growth: float, bounds: Any, lanes: Any, bits: Any, tiny: float) -> None:
    """Add up scales and bounds of the operands, as `junctor.propagation` says, and divide by the largest entry."""
    slot, terms, first, count = step[1], step[4], step[5], step[6]
    scale, lost, still_open = bounds[0, slot], bounds[1, slot], bounds[2, slot]
    mantissa = 23 if lanes.itemsize == 4 else 52
    bias = 126 if lanes.itemsize == 4 else 1022
    cases = scale.shape[0]
    for b in range(cases):
        exponent = bias + 1 - (bits[FACTOR, b] >> mantissa)
        scale[b] = exponent * LOG_2
        messages = 0.0
        handed_on = 0.0
        here = count * tiny * terms
        for k in range(first, first + count):
            other = operands[k, 0]
            scale[b] += bounds[0, other, b]
            if operands[k, 5] == CONSTANT:
                here += terms * bounds[1, other, b]
            else:
                messages += bounds[1, other, b] * (1 + messages)
                if operands[k, 5] == OPEN:
                    handed_on += bounds[2, other, b]
        largest = lanes[LARGEST, b]
        lost[b] = (growth * messages + here * (1 + messages)) / largest
        still_open[b] = (growth * handed_on + here) * (1 + messages) / largest


@_jit
def _conclude(step: Any, result: Any, arena: Any, bounds: Any, lanes: Any, posteriors: Any, found: Any) -> None:
    slot, row, entries = step[1], step[2], step[3]
    cases = found.shape[1]
    scale, lost, still_open = bounds[0, slot], bounds[1, slot], bounds[2, slot]
    if result[0] == 1 and step[0] != FIXED:
        # From here on the scale of a total is its logarithm.
        for b in range(cases):
            scale[b] += np.log(np.float64(arena[row, b]))
    if result[0] == 1:
        for b in range(cases):
            found[0, b] += scale[b]
    if result[0] == 1 or result[1] >= 0:
        for b in range(cases):
            found[2, b] = max(found[2, b], 2 * entries * still_open[b])
    if result[1] >= 0 and step[0] != FIXED:
        total = lanes[SUM]
        for b in range(cases):
            total[b] = 0
        for e in range(entries):
            line = arena[row + e]
            for b in range(cases):
                total[b] += line[b]
        for e in range(entries):
            line, out = arena[row + e], posteriors[result[1] + e]
            for b in range(cases):
                out[b] = line[b] / total[b]
    if result[2] >= 0:
        up, whole = result[2], result[3]
        for b in range(cases):
            both = np.exp(bounds[0, whole, b] - bounds[0, up, b] - scale[b])
            mine = bounds[2, up, b] * (1 + lost[b])
            its = still_open[b] * (1 + bounds[1, up, b])
            found[1, b] += entries * (mine + its) / both
