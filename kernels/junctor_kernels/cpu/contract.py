"""One contraction in compiled code: sums (or maxima) in registers, the cases of a block in the lanes of vectors.

    out[s, b] = sum over r of  factor[F[s] + f[r]] * prod over k of  arena[A_k[s] + R_k[r] + b]

Main functions: `contract` and, in log space, `log_sums`; called by `cpu.plan` for every reduction.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from junctor_kernels.cpu.bytecode import COUNT, FIRST, HOW, LINES, OUT, PAIRS, SIZE, SPAN, STRIDE, TILES
from junctor_kernels.cpu.jit import inlined, loops, part
from junctor_kernels.cpu.logarithms import exponential
from junctor_kernels.cpu.semirings import finite, log_sum, plus, plus_product, times
from junctor_kernels.cpu.vectors import BYTES, add, larger, load, multiply, spread, store, subtract

# Every tile of entries s has a list of the terms r that can differ from zero; where nearly all do, tiles share one list
# of all terms. Four entries that read one operand alike make a tile, which loads that operand once for all of them.
TILE = 4
# The loops take two vectors of cases at a time.
LANE_BYTES = 2 * BYTES
# Terms of a partial sum: rounding errors grow with RUN + R / RUN instead of R.
RUN = 32


class TermLists(NamedTuple):
    """The arrays of a `Bytecode` that contractions read."""

    operands: Any
    offsets: Any
    span: Any
    terms: Any
    shared: Any


@loops
def contract(step: Any, lists: Any, arena: Any, cases: int, maximise: bool | None, nothing: Any) -> None:
    """Contract the operands of a step into its rows of the arena.

    step: int64 [STEP_COLUMNS].
    lists: of its `Bytecode`.
    arena: flat, `cases` numbers a row.
    cases: lanes of a row, a multiple of two vectors.
    maximise: None for sums of products; True for maxima of sums of logarithms.
    nothing: the sum or maximum of no terms, in the dtype of the arena.
    """
    # None and True are different types to Numba: `maximise` is resolved at compile time, and loops have no branch.
    if step[HOW] == LINES:
        _tiles(step, lists, arena, cases, lists.shared, None, maximise, nothing)
    elif step[HOW] == PAIRS:
        _tiles(step, lists, arena, cases, arena, True, maximise, nothing)
    else:
        _products(step, lists, arena, cases, maximise, nothing)


@inlined
def _two(table: Any, at: int, width: int, has_cases: bool | None) -> Any:
    """Return two vectors of cases, or of the number that all of them share."""
    if has_cases is None:
        return spread(table[at]), spread(table[at])
    return load(table, at), load(table, at + width)


@part
def _tiles(
    step: Any,
    lists: Any,
    arena: Any,
    cases: int,
    other: Any,
    has_cases: bool | None,
    maximise: bool | None,
    nothing: Any,
) -> None:
    """Contract two operands, four entries that read the first alike at a time.

    other: the table of the second operand, which has an axis of cases where `has_cases` is not None.
    """
    offsets, terms = lists.offsets, lists.terms
    operands, out = lists.operands[step[FIRST] :], offsets[step[OUT] :]
    span, stride = lists.span[step[SPAN] :], step[STRIDE]
    width, second = BYTES // arena.itemsize, 0 if has_cases is None else 2
    a, a_terms = offsets[operands[1, 0] :], offsets[operands[1, 1] :]
    c, c_terms = offsets[operands[second, 0] :], offsets[operands[second, 1] :]
    for t in range(step[TILES]):
        s = TILE * t
        a0, c0, c1, c2, c3 = a[s], c[s], c[s + 1], c[s + 2], c[s + 3]
        first, last = span[t * stride], span[t * stride + 1]
        for b in range(0, cases, 2 * width):
            t00 = t01 = t10 = t11 = t20 = t21 = t30 = t31 = spread(nothing)
            for start in range(first, last, RUN):
                # Named one by one, since LLVM keeps only scalars in registers: 8 sums of four entries and two vectors
                # each.
                p00 = p01 = p10 = p11 = p20 = p21 = p30 = p31 = spread(nothing)
                for i in range(start, min(start + RUN, last)):
                    r = terms[i]
                    x, at = a0 + a_terms[r] + b, c_terms[r]
                    if has_cases is not None:
                        at += b
                    x0, x1 = load(arena, x), load(arena, x + width)
                    y0, y1 = _two(other, c0 + at, width, has_cases)
                    p00, p01 = _gather(p00, x0, y0, maximise), _gather(p01, x1, y1, maximise)
                    y0, y1 = _two(other, c1 + at, width, has_cases)
                    p10, p11 = _gather(p10, x0, y0, maximise), _gather(p11, x1, y1, maximise)
                    y0, y1 = _two(other, c2 + at, width, has_cases)
                    p20, p21 = _gather(p20, x0, y0, maximise), _gather(p21, x1, y1, maximise)
                    y0, y1 = _two(other, c3 + at, width, has_cases)
                    p30, p31 = _gather(p30, x0, y0, maximise), _gather(p31, x1, y1, maximise)
                t00, t01 = plus(t00, p00, maximise), plus(t01, p01, maximise)
                t10, t11 = plus(t10, p10, maximise), plus(t11, p11, maximise)
                t20, t21 = plus(t20, p20, maximise), plus(t21, p21, maximise)
                t30, t31 = plus(t30, p30, maximise), plus(t31, p31, maximise)
            _store(arena, out[s] + b, t00, t01, width)
            _store(arena, out[s + 1] + b, t10, t11, width)
            _store(arena, out[s + 2] + b, t20, t21, width)
            _store(arena, out[s + 3] + b, t30, t31, width)


@inlined
def _gather(total: Any, one: Any, other: Any, maximise: bool | None) -> Any:
    return plus_product(total, one, other, maximise, maximise)


@part
def _products(step: Any, lists: Any, arena: Any, cases: int, maximise: bool | None, nothing: Any) -> None:
    offsets, terms, shared = lists.offsets, lists.terms, lists.shared
    operands, out = lists.operands[step[FIRST] :], offsets[step[OUT] :]
    span, stride = lists.span[step[SPAN] :], step[STRIDE]
    width = BYTES // arena.itemsize
    # The first operand is the shared factor, -1 where there is none.
    # Without a factor the offsets are read but never used.
    scaled = operands[0, 0] >= 0
    f, f_terms = offsets[max(0, operands[0, 0]) :], offsets[max(0, operands[0, 1]) :]
    a, a_terms = offsets[operands[1, 0] :], offsets[operands[1, 1] :]
    rows = step[COUNT]
    for s in range(step[TILES]):
        first, last = span[s * stride], span[s * stride + 1]
        for b in range(0, cases, 2 * width):
            t0 = t1 = spread(nothing)
            for start in range(first, last, RUN):
                p0 = p1 = spread(nothing)
                for i in range(start, min(start + RUN, last)):
                    r = terms[i]
                    x = a[s] + a_terms[r] + b
                    x0, x1 = load(arena, x), load(arena, x + width)
                    if scaled:
                        factor = spread(shared[f[s] + f_terms[r]])
                        x0, x1 = times(x0, factor, maximise), times(x1, factor, maximise)
                    for k in range(2, rows - 1):
                        y = offsets[operands[k, 0] + s] + offsets[operands[k, 1] + r] + b
                        x0 = times(x0, load(arena, y), maximise)
                        x1 = times(x1, load(arena, y + width), maximise)
                    # The last operand joins by a fused multiply-add; a single one is only added.
                    if rows == 2:
                        p0, p1 = plus(p0, x0, maximise), plus(p1, x1, maximise)
                    else:
                        y = offsets[operands[rows - 1, 0] + s] + offsets[operands[rows - 1, 1] + r] + b
                        p0 = _gather(p0, x0, load(arena, y), maximise)
                        p1 = _gather(p1, x1, load(arena, y + width), maximise)
                t0, t1 = plus(t0, p0, maximise), plus(t1, p1, maximise)
            _store(arena, out[s] + b, t0, t1, width)


@loops
def log_sums(step: Any, lists: Any, arena: Any, cases: int, held: Any) -> None:
    """Write logarithms of sums of exponentials of sums into a step's rows, the largest term subtracted.

    step, lists, arena, cases: as in `contract`, the arena in float64.
    held: flat, for the terms of a partial sum: RUN times two vectors.
    """
    offsets, terms, shared = lists.offsets, lists.terms, lists.shared
    operands, out = lists.operands[step[FIRST] :], offsets[step[OUT] :]
    span, stride = lists.span[step[SPAN] :], step[STRIDE]
    width, rows, size = BYTES // arena.itemsize, step[COUNT], step[SIZE]
    scaled = operands[0, 0] >= 0
    f, f_terms = offsets[max(0, operands[0, 0]) :], offsets[max(0, operands[0, 1]) :]
    a, a_terms = offsets[operands[1, 0] :], offsets[operands[1, 1] :]
    # Entries one by one, whatever the tile: an exponential takes longer than the operands of its term.
    for s in range(step[TILES] * size):
        # Tiles that are not full repeat entries.
        if s > 0 and out[s] == out[s - 1]:
            continue
        first, last = span[s // size * stride], span[s // size * stride + 1]
        for b in range(0, cases, 2 * width):
            m0 = m1 = spread(-np.inf)
            t0 = t1 = spread(0.0)
            for start in range(first, last, RUN):
                l0, l1 = m0, m1
                end = min(start + RUN, last)
                for i in range(start, end):
                    r = terms[i]
                    x = a[s] + a_terms[r] + b
                    x0, x1 = load(arena, x), load(arena, x + width)
                    if scaled:
                        factor = spread(shared[f[s] + f_terms[r]])
                        x0, x1 = add(x0, factor), add(x1, factor)
                    for k in range(2, rows):
                        y = offsets[operands[k, 0] + s] + offsets[operands[k, 1] + r] + b
                        x0, x1 = add(x0, load(arena, y)), add(x1, load(arena, y + width))
                    _store(held, (i - start) * 2 * width, x0, x1, width)
                    l0, l1 = larger(x0, l0), larger(x1, l1)
                b0, b1 = finite(l0), finite(l1)
                if start > first:
                    # Earlier sums are rescaled to the largest term so far (streaming log-sum-exp).
                    t0 = multiply(t0, exponential(subtract(m0, b0)))
                    t1 = multiply(t1, exponential(subtract(m1, b1)))
                m0, m1 = l0, l1
                p0 = p1 = spread(0.0)
                for i in range(end - start):
                    x = i * 2 * width
                    p0 = add(p0, exponential(subtract(load(held, x), b0)))
                    p1 = add(p1, exponential(subtract(load(held, x + width), b1)))
                t0, t1 = add(t0, p0), add(t1, p1)
            _store(arena, out[s] + b, log_sum(t0, m0), log_sum(t1, m1), width)


@part
def _store(arena: Any, at: int, one: Any, other: Any, width: int) -> None:
    store(arena, at, one)
    store(arena, at + width, other)
