"""Expected counts of hidden Markov models in compiled code on a CPU (Numba): the E-step of Baum and Welch.

    transition[i, j] = matrix[i, j] * sum over pairs of steps of  alpha[i] / P * x[j],   x = emission * beta

Main functions: `expect`, a backward pass behind `forward_backward_cpu.forward`, and `add_sums`, called by
`junctor.hmm.counts` (Rabiner 1989, equations 37, 40a to 40c). The sum is a product of matrices over pairs of steps.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import inlined, jit, loops, part
from junctor_kernels.cpu.vectors import (
    BYTES,
    add,
    lanes_total,
    load,
    load4,
    load8,
    multiply,
    multiply_add,
    spread,
    spread4,
    spread8,
    store,
    subtract,
)
from junctor_kernels.hmm.forward_backward_cpu import (
    emit_behind,
    products,
    relative_to,
    total_of,
)
from junctor_kernels.hmm.products_cpu import VECTORS, parts_of

# Pairs of steps whose products are added up with one rounding each. These runs, and steps of start and emissions, are
# added with what each addition rounds off (Knuth's two-sum), so no term is rounded more than RUN + 3 times, however
# many steps there are. All terms are positive: the relative error of a sum is below (RUN + 3) * 2^-53, or 3e-14.
RUN = 256
# Rows of a tile; four vectors of columns, as in products.
TILE = 4

Array = npt.NDArray[np.float64]


class SequenceSums(NamedTuple):
    """Sums over sequences, each array the sums and behind them what rounding took from them; rows padded.

    start: [2, stride].
    transition: [2, rows, stride], rows a multiple of TILE, by the state before; in logarithms by the state after. Or
        for a sparse matrix [2, entries], by rows. Without the factor of the matrix, except in logarithms.
    emission: [2, symbols + 1, stride], the last row for unobserved; empty where they are not asked for.
    """

    start: Array
    transition: Array
    emission: Array


@jit
def expect(
    matrix: Any,
    size: int,
    least: Any,
    trellis: Any,
    stride: int,
    starts: Any,
    which: Any,
    emissions: Any,
    leasts: Any,
    weights: Any,
    sums: Any,
    logs: Any,
) -> Any:
    """Add the expected counts of a batch of possible sequences; return whether those of each sequence may be wrong.

    matrix: packed transposed transitions.
    trellis: forward rows.
    weights: float64 [sequences].
    sums: `SequenceSums`, flat.
    size, least, stride, starts, which, emissions, leasts, logs: as for `forward`.
    """
    count, ticks = starts[1], len(starts) - 1
    lost = np.zeros(count, np.bool_)
    # Backward rows of a tick, the same rows with emissions, and a posterior.
    work = np.zeros((2 * count + 1) * stride)
    posterior = 2 * count * stride
    parts, taken, sparse = parts_of(matrix, size, trellis), 0, len(matrix.starts) > 0
    left = np.zeros((size + TILE - 1) // TILE * TILE * RUN if logs is None else 0)
    right = np.zeros(stride * RUN if logs is None else 0)
    for t in range(ticks - 1, -1, -1):
        under_way = starts[t + 1] - starts[t]
        going_on = starts[t + 2] - starts[t + 1] if t + 1 < ticks else 0
        for n in range(going_on, under_way):
            work[n * stride : n * stride + size] = 1.0 if logs is None else 0.0
        for n in range(under_way):
            at, x = (starts[t] + n) * stride, (count + n) * stride
            total = _posterior(trellis, at, work, n * stride, posterior, size, stride, logs)
            if logs is None and not total > 1e-290:
                lost[n] = True
                continue
            factor = weights[n] / total if logs is None else weights[n]
            if t == 0:
                _add_row(work, posterior, stride, factor, sums.start, 0)
            if len(sums.emission):
                _add_row(work, posterior, stride, factor, sums.emission, which[starts[t] + n] * stride)
            if n >= going_on:
                continue
            if logs is None:
                if sparse:
                    _take_lines(trellis, at, work, x, size, factor, left, right, taken)
                else:
                    _take_tiles(trellis, at, work, x, size, stride, factor, left, right, taken)
                taken += 1
                if taken == RUN:
                    _add_run(matrix, size, stride, left, right, taken, sums.transition)
                    taken = 0
            else:
                _add_log_pairs(matrix, size, trellis, at, work, x, stride, total, factor, sums.transition)
        if t == 0:
            break
        here = which[starts[t] : starts[t + 1]]
        emit_behind(work, count, size, stride, least, here, emissions, leasts, logs, lost)
        products(matrix, size, work, count * stride, 0, under_way, stride, parts, logs)
    if taken:
        _add_run(matrix, size, stride, left, right, taken, sums.transition)
    return lost


@loops
def add_sums(into: Any, sums: Any) -> None:
    """Add sums to other sums, flat, with what rounding takes from each."""
    half = len(into) // 2
    for k in range(half):
        _grow_one(into, k, half, sums[k])
        into[half + k] += sums[half + k]


@part
def _grow_one(into: Any, at: int, half: int, value: float) -> None:
    before = into[at]
    after = before + value
    part = after - before
    into[at] = after
    into[half + at] += (before - (after - part)) + (value - part)


@inlined
def _grow(into: Any, at: int, half: int, value: Any) -> None:
    before = load(into, at)
    after = add(before, value)
    part = subtract(after, before)
    store(into, at, after)
    rounded = add(subtract(before, subtract(after, part)), subtract(value, part))
    store(into, half + at, add(load(into, half + at), rounded))


@part
def _add_row(rows: Any, at: int, stride: int, factor: float, into: Any, to: int) -> None:
    times, half = spread(factor), len(into) // 2
    for k in range(0, stride, BYTES // 8):
        _grow(into, to + k, half, multiply(load(rows, at + k), times))


@part
def _posterior(trellis: Any, at: int, work: Any, there: int, to: int, size: int, stride: int, logs: Any) -> float:
    """Write the posterior of a row to `to`, and return its divisor: not yet divided by it, or of logarithms divided."""
    if logs is None:
        for k in range(0, stride, BYTES // 8):
            store(work, to + k, multiply(load(trellis, at + k), load(work, there + k)))
        return float(total_of(work, to, size))
    largest, total = -np.inf, 0.0
    for k in range(size):
        work[to + k] = trellis[at + k] + work[there + k]
        largest = max(largest, work[to + k])
    for k in range(size):
        work[to + k] = math.exp(work[to + k] - largest)
        total += work[to + k]
    for k in range(size):
        work[to + k] /= total
    return float(largest + math.log(total))


@part
def _take_tiles(
    trellis: Any, at: int, work: Any, x: int, size: int, stride: int, factor: float, left: Any, right: Any, taken: int
) -> None:
    # [states before / TILE][RUN][TILE], and panels [states after / width][RUN][width]; rows are padded with zeros.
    for i in range(0, size, TILE):
        store(left, i * RUN + taken * TILE, multiply(load4(trellis, at + i), spread4(factor)))
    lanes = BYTES // 8
    width = VECTORS * lanes
    for j in range(0, stride, width):
        to = j * RUN + taken * width
        for k in range(0, width, lanes):
            store(right, to + k, load(work, x + j + k))


@part
def _take_lines(
    trellis: Any, at: int, work: Any, x: int, size: int, factor: float, left: Any, right: Any, taken: int
) -> None:
    # [states][RUN] both: entries of a sparse matrix are products of two lines.
    for i in range(size):
        left[i * RUN + taken] = trellis[at + i] * factor
        right[i * RUN + taken] = work[x + i]


@part
def _add_run(matrix: Any, size: int, stride: int, left: Any, right: Any, terms: int, into: Any) -> None:
    if len(matrix.starts):
        # Lines that are not full end with numbers of the run before.
        for i in range(size if terms < RUN else 0):
            left[i * RUN + terms : (i + 1) * RUN] = 0.0
        for i in range(size):
            for k in range(matrix.starts[i], matrix.starts[i + 1]):
                _grow_one(into, k, len(into) // 2, _line_product(left, i * RUN, right, matrix.states[k] * RUN))
        return
    width = VECTORS * BYTES // 8
    for j in range(0, stride, width):
        for i in range(0, size, TILE):
            _add_tile(left, i * RUN, right, j * RUN, terms, into, i * stride + j, stride)


@part
def _add_tile(left: Any, one: int, right: Any, other: int, terms: int, into: Any, to: int, stride: int) -> None:
    lanes, half = BYTES // 8, len(into) // 2
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = spread(0.0)
    for k in range(terms):
        x, y = other + k * VECTORS * lanes, one + k * TILE
        x0, x1 = load(right, x), load(right, x + lanes)
        x2, x3 = load(right, x + 2 * lanes), load(right, x + 3 * lanes)
        z = spread(left[y])
        a0, a1, a2, a3 = (
            multiply_add(x0, z, a0),
            multiply_add(x1, z, a1),
            multiply_add(x2, z, a2),
            multiply_add(x3, z, a3),
        )
        z = spread(left[y + 1])
        b0, b1, b2, b3 = (
            multiply_add(x0, z, b0),
            multiply_add(x1, z, b1),
            multiply_add(x2, z, b2),
            multiply_add(x3, z, b3),
        )
        z = spread(left[y + 2])
        c0, c1, c2, c3 = (
            multiply_add(x0, z, c0),
            multiply_add(x1, z, c1),
            multiply_add(x2, z, c2),
            multiply_add(x3, z, c3),
        )
        z = spread(left[y + 3])
        d0, d1, d2, d3 = (
            multiply_add(x0, z, d0),
            multiply_add(x1, z, d1),
            multiply_add(x2, z, d2),
            multiply_add(x3, z, d3),
        )
    _grow_four(into, to, half, a0, a1, a2, a3)
    _grow_four(into, to + stride, half, b0, b1, b2, b3)
    _grow_four(into, to + 2 * stride, half, c0, c1, c2, c3)
    _grow_four(into, to + 3 * stride, half, d0, d1, d2, d3)


@part
def _grow_four(into: Any, to: int, half: int, t0: Any, t1: Any, t2: Any, t3: Any) -> None:
    lanes = BYTES // 8
    _grow(into, to, half, t0)
    _grow(into, to + lanes, half, t1)
    _grow(into, to + 2 * lanes, half, t2)
    _grow(into, to + 3 * lanes, half, t3)


@part
def _line_product(left: Any, one: int, right: Any, other: int) -> float:
    # Eight lanes on every machine: lanes are parts of one sum here, and its bits must not depend on their number.
    a = b = c = d = spread8(0.0)
    for k in range(0, RUN, 32):
        a = multiply_add(load8(left, one + k), load8(right, other + k), a)
        b = multiply_add(load8(left, one + k + 8), load8(right, other + k + 8), b)
        c = multiply_add(load8(left, one + k + 16), load8(right, other + k + 16), c)
        d = multiply_add(load8(left, one + k + 24), load8(right, other + k + 24), d)
    return float(lanes_total(add(add(a, b), add(c, d))))


@part
def _add_log_pairs(
    matrix: Any,
    size: int,
    trellis: Any,
    at: int,
    work: Any,
    x: int,
    stride: int,
    total: float,
    weight: float,
    into: Any,
) -> None:
    half, lanes = len(into) // 2, BYTES // 8
    if len(matrix.starts):
        for i in range(size):
            for k in range(matrix.starts[i], matrix.starts[i + 1]):
                term = trellis[at + i] + matrix.numbers[k] + work[x + matrix.states[k]]
                _grow_one(into, k, half, weight * math.exp(term - total))
        return
    width, zero, times = VECTORS * lanes, spread(0.0), spread(weight)
    for j in range(size):
        after = spread(work[x + j] - total)
        for i in range(0, stride, lanes):
            panel = i // width * size * width + j * width + i % width
            term = add(add(load(matrix.numbers, panel), load(trellis, at + i)), after)
            _grow(into, j * stride + i, half, multiply(relative_to(term, zero), times))
