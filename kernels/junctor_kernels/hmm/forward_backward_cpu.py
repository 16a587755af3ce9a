"""Log-likelihoods and state posteriors of hidden Markov models in compiled code on a CPU (Numba).

Main functions: `forward` and `backward`, called by `junctor.hmm.smooth` (Rabiner 1989). Rows lie as in `viterbi_cpu`.
`logs` is None for probabilities and True for logarithms everywhere: types, so that loops are compiled without a branch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from junctor_kernels.cpu.jit import inlined, jit, part
from junctor_kernels.cpu.logarithms import exponential, logarithm, where_finite
from junctor_kernels.cpu.scaled import exponent_of
from junctor_kernels.cpu.vectors import (
    BYTES,
    add,
    highest,
    lanes_total,
    larger,
    least_above_zero,
    load,
    lowest,
    multiply,
    spread,
    spread8,
    store,
    subtract,
    wide8,
)
from junctor_kernels.hmm.products_cpu import VECTORS, parts_of, product

# Rows are probabilities divided by a power of two, which rounds nothing, so that the largest is in [0.5, 1). For each
# sequence a flag says whether a positive number may have left the range of the format, by its smallest factors, before
# it happens. Those sequences are computed again in logarithms, where nothing is lost. So a zero is a true zero.

LN2 = math.log(2.0)
# Partial sums of a row, then added by halves: an order that GPUs can keep, so that CPU and GPU agree bit by bit.
LANES = 32


@jit
def forward(
    matrix: Any,
    size: int,
    least: Any,
    start: Any,
    trellis: Any,
    stride: int,
    starts: Any,
    which: Any,
    emissions: Any,
    leasts: Any,
    logs: Any,
) -> Any:
    """Write all forward rows of a batch; return the log-likelihood of each sequence, and whether it may be wrong.

    matrix, size: packed transitions, and number of states.
    least: smallest number above zero of the matrix.
    start: [stride].
    trellis, stride: flat, numbers of a row.
    starts: int64 [ticks + 1], first row of each tick.
    which: int [rows], row of `emissions` (flat) of each row.
    leasts: smallest number above zero in each row of `emissions`.
    """
    count, ticks = starts[1], len(starts) - 1
    scales, totals, lost = np.zeros(count), np.full(count, -np.inf), np.zeros(count, np.bool_)
    lows = np.zeros(count, trellis.dtype)
    parts = parts_of(matrix, size, trellis)
    for t in range(ticks):
        after, under_way = starts[t], starts[t + 1] - starts[t]
        if t == 0:
            for n in range(count):
                # Not a slice: the text of its error would be compiled, too, for seconds.
                for k in range(stride):
                    trellis[n * stride + k] = start[k]
                lows[n] = least_of(trellis, n * stride, size, logs)
        else:
            products(matrix, size, trellis, starts[t - 1] * stride, after * stride, under_way, stride, parts, logs)
        for n in range(under_way):
            at, e = (after + n) * stride, which[after + n]
            # The smallest product of three factors that the row can contain.
            if logs is None and lows[n] > 0 and lows[n] * (least if t else 1) * leasts[e] < tiny(trellis):
                lost[n] = True
            scale, lows[n] = emit_and_scale(trellis, at, size, emissions, e * stride, logs)
            scales[n] += scale
            if logs is None and 0 < lows[n] < tiny(trellis):
                lost[n] = True
            if t + 1 == ticks or n >= starts[t + 2] - starts[t + 1]:
                # Powers of two are counted, which rounds nothing.
                scale = scales[n] * LN2 if logs is None else scales[n]
                totals[n] = scale + _log_total(trellis, at, size, logs)
    return totals, lost


@jit
def backward(
    matrix: Any,
    size: int,
    least: Any,
    trellis: Any,
    stride: int,
    starts: Any,
    which: Any,
    emissions: Any,
    leasts: Any,
    logs: Any,
) -> Any:
    """Replace all forward rows of a batch by posteriors; return whether those of each sequence may be wrong.

    matrix: packed transposed transitions; others as for `forward`.
    """
    count, ticks = starts[1], len(starts) - 1
    lost = np.zeros(count, np.bool_)
    # Backward rows of a tick, then the same rows with emissions.
    work = np.zeros(2 * count * stride, trellis.dtype)
    parts = parts_of(matrix, size, trellis)
    for t in range(ticks - 1, -1, -1):
        under_way = starts[t + 1] - starts[t]
        going_on = starts[t + 2] - starts[t + 1] if t + 1 < ticks else 0
        for n in range(going_on, under_way):
            work[n * stride : n * stride + size] = 1.0 if logs is None else 0.0
        for n in range(under_way):
            if not _posterior(trellis, (starts[t] + n) * stride, work, n * stride, size, logs):
                lost[n] = True
        if t == 0:
            break
        here = which[starts[t] : starts[t + 1]]
        emit_behind(work, count, size, stride, least, here, emissions, leasts, logs, lost)
        products(matrix, size, work, count * stride, 0, under_way, stride, parts, logs)
    return lost


@part
def emit_behind(
    work: Any,
    count: int,
    size: int,
    stride: int,
    least: Any,
    which: Any,
    emissions: Any,
    leasts: Any,
    logs: Any,
    lost: Any,
) -> None:
    """Write the backward rows of a tick with their emissions behind them; mark sequences that may have lost a number.

    work: rows, from row `count` on with emissions.
    which: row of `emissions` of each sequence that is under way.
    size, stride, least, emissions, leasts, logs: as for `forward`.
    lost: bool [sequences], written.
    """
    for n in range(len(which)):
        e, to = which[n], (count + n) * stride
        low = least_of(work, n * stride, size, logs)
        for k in range(stride):
            work[to + k] = work[n * stride + k]
        _, after = emit_and_scale(work, to, size, emissions, e * stride, logs)
        if logs is None and (low * leasts[e] < tiny(work) or after * least < tiny(work)):
            lost[n] = True


@part
def tiny(rows: Any) -> Any:
    """Return the smallest normal number of the format, with a margin for the rounding of a product of three."""
    return rows.dtype.type(2.4e-38) if rows.itemsize == 4 else rows.dtype.type(4.5e-308)


@part
def emit_and_scale(rows: Any, at: int, size: int, emissions: Any, e: int, logs: Any) -> Any:
    """Add emissions to a row and scale it; return the scale (log2 of probabilities) and the smallest number above zero.

    Scales are whole numbers, so that their sums are exact.

    rows: flat, the row begins at `at`.
    size: number of states.
    emissions: flat, those of the row begin at `e`.
    """
    # Rows and emissions are padded with zeros.
    lanes = BYTES // rows.itemsize
    if logs is None:
        top = spread(rows.dtype.type(0))
        for k in range(0, size, lanes):
            product_of_both = multiply(load(rows, at + k), load(emissions, e + k))
            store(rows, at + k, product_of_both)
            top = larger(product_of_both, top)
        largest = highest(top)
        # Impossible from here on: log P is -inf, and the row stays zero.
        if largest == 0:
            return -np.inf, largest
        _, power = math.frexp(largest)
        factor, low = spread(rows.dtype.type(math.ldexp(1.0, -power))), spread(rows.dtype.type(np.inf))
        for k in range(0, size, lanes):
            scaled = multiply(load(rows, at + k), factor)
            store(rows, at + k, scaled)
            low = least_above_zero(low, scaled)
        return float(power), lowest(low)
    largest = rows.dtype.type(-np.inf)
    for k in range(size):
        rows[at + k] += emissions[e + k]
        largest = max(largest, rows[at + k])
    if largest == -np.inf:
        return -np.inf, largest
    scale = exponent_of(largest, True)
    for k in range(size):
        rows[at + k] -= scale
    return scale, largest


@part
def least_of(rows: Any, at: int, size: int, logs: Any) -> Any:
    """Return the smallest number above zero in a row."""
    low = spread(rows.dtype.type(np.inf))
    if logs is None:
        for k in range(0, size, BYTES // rows.itemsize):
            low = least_above_zero(low, load(rows, at + k))
    return lowest(low)


@part
def _log_total(rows: Any, at: int, size: int, logs: Any) -> float:
    """Return the logarithm of the sum of a row."""
    total = 0.0
    if logs is None:
        total = total_of(rows, at, size)
    else:
        for k in range(size):
            total += math.exp(rows[at + k])
    return math.log(total) if total > 0 else -np.inf


@part
def total_of(rows: Any, at: int, size: int) -> float:
    """Return the sum of a row, in double precision."""
    a = b = c = d = spread8(0.0)
    for k in range(0, size, LANES):
        a = add(a, wide8(rows, at + k))
        # A row ends within a line of lanes.
        if k + 8 < size:
            b = add(b, wide8(rows, at + k + 8))
        if k + 16 < size:
            c = add(c, wide8(rows, at + k + 16))
        if k + 24 < size:
            d = add(d, wide8(rows, at + k + 24))
    return float(lanes_total(add(add(a, c), add(b, d))))


@part
def _posterior(rows: Any, at: int, others: Any, there: int, size: int, logs: Any) -> bool:
    """Replace a forward row by the posterior; return True if the product with the backward row is far from underflow.

    rows: flat, the forward row begins at `at`.
    others: flat, the backward row begins at `there`.
    size: number of states.
    """
    total = 0.0
    if logs is None:
        for k in range(size):
            rows[at + k] *= others[there + k]
        total = total_of(rows, at, size)
        for k in range(size):
            rows[at + k] = rows[at + k] / total if total > 0 else 0.0
        # Both rows have entries up to 1; a product this small may have lost digits to underflow.
        return bool(total > (1e-30 if rows.itemsize == 4 else 1e-290))
    largest = -np.inf
    for k in range(size):
        rows[at + k] += others[there + k]
        largest = max(largest, rows[at + k])
    if largest == -np.inf:
        # Impossible; the log-likelihood reports it.
        return True
    for k in range(size):
        rows[at + k] = math.exp(rows[at + k] - largest)
        total += rows[at + k]
    for k in range(size):
        rows[at + k] /= total
    return True


@part
def products(
    matrix: Any, size: int, rows: Any, before: int, after: int, count: int, stride: int, parts: int, logs: Any
) -> None:
    """Write the products of rows with the whole matrix; arguments as for `product`, `parts` of `parts_of`."""
    if logs is None:
        product(matrix, size, rows, before, after, count, 0, parts, None)
    else:
        for r in range(count):
            # Sums of exponentials do not share a panel among rows: each row has its own largest term.
            at, to = before + r * stride, after + r * stride
            if len(matrix.starts):
                _sparse_log_sums(matrix, size, rows, at, to)
            else:
                _dense_log_sums(matrix.numbers, size, rows, at, to, stride)


@part
def _dense_log_sums(panels: Any, size: int, rows: Any, before: int, after: int, stride: int) -> None:
    lanes = BYTES // rows.itemsize
    width, one, lowest = VECTORS * lanes, spread(rows.dtype.type(1.0)), spread(rows.dtype.type(-np.inf))
    for j in range(0, stride, lanes):
        panel = j // width * size * width + j % width
        # The largest term first, then the sum of all terms relative to it.
        top, total = lowest, subtract(one, one)
        for i in range(size):
            top = larger(add(load(panels, panel + i * width), spread(rows[before + i])), top)
        for i in range(size):
            term = add(load(panels, panel + i * width), spread(rows[before + i]))
            total = add(total, relative_to(term, top))
        store(rows, after + j, where_finite(top, add(top, logarithm(where_finite(top, total, one))), lowest))


@inlined
def relative_to(term: Any, top: Any) -> Any:
    """Return e ** (term - top), 0 where the term is -inf."""
    nothing = subtract(top, top)
    difference = where_finite(term, subtract(term, top), nothing)
    return where_finite(term, exponential(difference), subtract(difference, difference))


@part
def _sparse_log_sums(matrix: Any, size: int, rows: Any, before: int, after: int) -> None:
    starts, states, numbers = matrix.starts, matrix.states, matrix.numbers
    for j in range(size):
        top, total = -np.inf, 0.0
        for k in range(starts[j], starts[j + 1]):
            top = max(top, rows[before + states[k]] + numbers[k])
        if top > -np.inf:
            for k in range(starts[j], starts[j + 1]):
                total += math.exp(rows[before + states[k]] + numbers[k] - top)
            top += math.log(total)
        rows[after + j] = top
