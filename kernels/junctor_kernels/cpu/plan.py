"""The compiled CPU backend: a whole plan for some blocks of cases in one call, the case axis innermost (Numba).

Main functions: `propagate`, `propagate_logs` and `explain`, called by `junctor.backends.cpu`; they compute what
`junctor.backends.numpy` computes, with the same bounds on losses. All per-case tables lie in one flat arena, `cases`
numbers a row. `bytecode` describes the arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from junctor_kernels.cpu.answers import write_posteriors, write_states
from junctor_kernels.cpu.bytecode import (
    COLUMNS,
    CONSTANT,
    ENTRIES,
    FACTOR,
    FACTS,
    FIRST_PARENT,
    FIXED,
    KIND,
    LARGEST,
    LEAST,
    LEAST_LIFT,
    LEFT,
    LIFT,
    LIFTED,
    LIKELIHOOD,
    LOST,
    MOVED,
    NUMBER,
    OBSERVED,
    OPEN,
    PARENTS,
    PLACE,
    POWER,
    REDUCE,
    ROW,
    SCALE,
    SLICE,
    SLOT,
    SMALLEST,
    STILL_OPEN,
    TERMS,
    TOTAL,
    VARIABLES,
)
from junctor_kernels.cpu.columns import multiply_constants, take_states
from junctor_kernels.cpu.contract import RUN, TermLists, contract, log_sums
from junctor_kernels.cpu.jit import inverse_power, jit, loops, next_number, part, part_with_arrays
from junctor_kernels.cpu.scaled import exponent_of, log_of, multiplied
from junctor_kernels.cpu.vectors import BYTES, larger, least_above_zero, load, multiply, spread, store, subtract


@loops
def propagate(code: Any, work: Any, cases: Any) -> None:
    """Run all steps of a plan for some blocks; writes their sums and answers, and `work.posteriors` of the last one.

    Calls with the same cases, each with memory of its own, share the blocks.

    code: Bytecode.
    work: BlockWorkspace.
    cases: Cases.
    """
    first = next_number(cases.begun) * work.lanes.shape[1]
    while first < cases.sums.shape[1]:
        _take(cases, first, work, None)
        _propagate(code, work)
        _give(work, cases, first, None)
        first = next_number(cases.begun) * work.lanes.shape[1]


@part
def _take(cases: Any, first: int, work: Any, logs: Any) -> None:
    """Copy the evidence of the block that begins at case `first`, and begin its sums with the constant factors.

    logs: of `multiplied`.
    """
    if cases.columns.size:
        rows = cases.given[first : first + work.states.shape[1]]
        take_states(cases.columns, rows, cases.lines, work.states)
    for row in range(cases.states.shape[0]):
        for b in range(work.states.shape[1]):
            work.states[row, b] = cases.states[row, first + b]
    for row in range(cases.likelihoods.shape[0]):
        for b in range(work.likelihoods.shape[1]):
            work.likelihoods[row, b] = cases.likelihoods[row, first + b]
    work.sums[:] = 0
    numbers, powers = work.sums[NUMBER], work.sums[POWER]
    multiply_constants(work.states, cases.constants, cases.observed, cases.numbers, logs, numbers, powers)


@part
def _give(work: Any, cases: Any, first: int, logs: Any) -> None:
    """Copy the sums of the block that begins at case `first`, and write its posteriors to the answers."""
    _give_sums(work, cases, first, logs)
    if cases.places.shape[0]:
        rows = cases.rows[first : first + work.sums.shape[1]]
        # Both in one signature: code for each would take as long again to compile.
        if cases.doubles.size:
            write_posteriors(work.posteriors, work.states, cases.places, rows, cases.doubles)
        elif cases.singles.size:
            write_posteriors(work.posteriors, work.states, cases.places, rows, cases.singles)


@part
def _give_sums(work: Any, cases: Any, first: int, logs: Any) -> None:
    """Copy the sums of the block that begins at case `first`, P(e) as its logarithm; logs: of `multiplied`."""
    for b in range(work.sums.shape[1]):
        number, power = work.sums[NUMBER, b], work.sums[POWER, b]
        cases.sums[0, first + b] = log_of(number, power) if logs is None else number + power
        cases.sums[1, first + b] = work.sums[MOVED, b]
        cases.sums[2, first + b] = work.sums[LEFT, b]


@part
def _propagate(code: Any, work: Any) -> None:
    """Run all steps of a plan for one block with its evidence; adds to its sums, and writes its posteriors."""
    # Cases of the block in memory, padding included: loops have no partial vectors.
    cases = work.lanes.shape[1]
    nothing = work.arena.dtype.type(0)
    # Not the whole code: a call copies the descriptors of all arrays that it is given.
    lists = TermLists(code.operands, code.offsets, code.span, code.terms, code.shared)
    for i in range(code.steps.shape[0]):
        step = code.steps[i]
        if step[KIND] == SLICE:
            _slice(step, code.observed, code.columns, code.facts, work.states, work.at, work.arena, work.bounds)
            _slice_bounds(step, code.facts, work.at, work.bounds, work.lossless, code.tiny)
        elif step[KIND] == LIKELIHOOD:
            _likelihood(step, work.likelihoods, work.arena, work.bounds, work.lossless, code.tiny)
        elif step[KIND] == REDUCE:
            contract(step, lists, work.arena, cases, None, nothing)
            _rescale(work.arena, step[ROW], step[ENTRIES], cases, work.lanes, work.bits, step[LIFT])
            _bound(step, code.parents, code.growth[i], work.bounds, work.lossless, work.lanes, work.bits, code.tiny)
        _conclude(step, code.results[i], work.arena, work.bounds, work.lossless, work.lanes, work.posteriors, work.sums)


@jit
def propagate_logs(code: Any, work: Any, cases: Any) -> None:
    """Run all steps of a plan for some blocks in log space, as `propagate` does; nothing is lost there.

    code: Bytecode, its tables logarithms in float64.
    work: BlockWorkspace.
    cases: Cases.
    """
    held = np.empty(RUN * 2 * (BYTES // work.arena.itemsize))
    first = next_number(cases.begun) * work.lanes.shape[1]
    while first < cases.sums.shape[1]:
        _take(cases, first, work, True)
        _propagate_logs(code, work, held)
        _give(work, cases, first, True)
        first = next_number(cases.begun) * work.lanes.shape[1]


@part
def _propagate_logs(code: Any, work: Any, held: Any) -> None:
    cases = work.lanes.shape[1]
    lists = TermLists(code.operands, code.offsets, code.span, code.terms, code.shared)
    for i in range(code.steps.shape[0]):
        step, result = code.steps[i], code.results[i]
        if step[KIND] == SLICE:
            _slice(step, code.observed, code.columns, code.facts, work.states, work.at, work.arena, work.bounds)
        elif step[KIND] == LIKELIHOOD:
            _log_likelihood(step, work.likelihoods, work.arena, work.bounds, True)
        elif step[KIND] == REDUCE:
            log_sums(step, lists, work.arena, cases, held)
            _log_scale(step, code.parents, work, True)
        _conclude_logs(step, result, work)


@loops
def explain(code: Any, work: Any, cases: Any) -> None:
    """Write most probable explanations of some blocks, as `propagate` does posteriors.

    code: Bytecode, its tables logarithms in float64.
    work: BlockWorkspace; its states have a row for every variable, and keep those of the last block.
    cases: Cases.
    """
    first = next_number(cases.begun) * work.lanes.shape[1]
    while first < cases.sums.shape[1]:
        _take(cases, first, work, False)
        _explain(code, work)
        _give_sums(work, cases, first, False)
        rows = cases.rows[first : first + work.sums.shape[1]]
        write_states(work.states, cases.places, rows, cases.explained)
        first = next_number(cases.begun) * work.lanes.shape[1]


@part
def _explain(code: Any, work: Any) -> None:
    """Maximise for every case of a block, then trace back (Dawid 1992)."""
    cases = work.lanes.shape[1]
    nothing = work.arena.dtype.type(-np.inf)
    lists = TermLists(code.operands, code.offsets, code.span, code.terms, code.shared)
    for i in range(code.steps.shape[0]):
        step = code.steps[i]
        if step[KIND] == SLICE:
            _slice(step, code.observed, code.columns, code.facts, work.states, work.at, work.arena, work.bounds)
        elif step[KIND] == LIKELIHOOD:
            _log_likelihood(step, work.likelihoods, work.arena, work.bounds, False)
        elif step[KIND] == REDUCE:
            contract(step, lists, work.arena, cases, True, nothing)
            _log_scale(step, code.parents, work, False)
        if code.results[i, 0] == 1 and step[KIND] != FIXED:
            _add_total(step, work.arena, work.bounds, work.sums, False)
    for i in range(code.trace.shape[0]):
        _trace(code.trace[i], code, work)


@part
def _slice(step: Any, observed: Any, columns: Any, facts: Any, states: Any, at: Any, arena: Any, bounds: Any) -> None:
    # The column of a case is the number of its observed configuration; one gather for each entry follows.
    cases, width = bounds.shape[2], step[COLUMNS]
    scale = bounds[SCALE, step[SLOT]]
    for b in range(cases):
        at[b] = 0
    for n in range(step[OBSERVED], step[OBSERVED] + step[VARIABLES]):
        state, radix = states[observed[n, 0]], observed[n, 1]
        for b in range(cases):
            at[b] += state[b] * radix
    for e in range(step[ENTRIES]):
        row, line = step[ROW] + e * cases, columns[step[PLACE] + e * width :]
        for b in range(cases):
            arena[row + b] = line[at[b]]
    for b in range(cases):
        scale[b] = facts[0, step[FACTS] + at[b]]


@part
def _slice_bounds(step: Any, facts: Any, at: Any, bounds: Any, lossless: Any, tiny: float) -> None:
    slot = step[SLOT]
    least = bounds[LEAST, slot]
    for b in range(least.shape[0]):
        least[b] = facts[1, step[FACTS] + at[b]]
    _lost_in_format(bounds, lossless, slot, tiny)


@part
def _lost_in_format(bounds: Any, lossless: Any, slot: int, tiny: float) -> None:
    least, lossless[slot] = bounds[LEAST, slot], True
    for b in range(least.shape[0]):
        lost = tiny if least[b] < tiny else 0.0
        bounds[LOST, slot, b] = bounds[STILL_OPEN, slot, b] = lost
        lossless[slot] &= lost == 0


@part
def _likelihood(step: Any, likelihoods: Any, arena: Any, bounds: Any, lossless: Any, tiny: float) -> None:
    slot = step[SLOT]
    cases = bounds.shape[2]
    for b in range(cases):
        largest, least = 0.0, np.inf
        for e in range(step[ENTRIES]):
            value = likelihoods[step[PLACE] + e, b]
            largest = max(largest, value)
            least = min(least, value) if value > 0 else least
        # By a power of two, which has to stay finite.
        exponent = max(-1022.0, exponent_of(largest, None))
        bounds[SCALE, slot, b] = exponent
        factor = inverse_power(int(exponent))
        for e in range(step[ENTRIES]):
            arena[step[ROW] + e * cases + b] = likelihoods[step[PLACE] + e, b] * factor
        bounds[LEAST, slot, b] = min(least * factor, 1.0)
    _lost_in_format(bounds, lossless, slot, tiny)


@part
def _log_likelihood(step: Any, likelihoods: Any, arena: Any, bounds: Any, whole: bool) -> None:
    cases = bounds.shape[2]
    for b in range(cases):
        largest = 0.0
        for e in range(step[ENTRIES]):
            largest = max(largest, likelihoods[step[PLACE] + e, b])
        exponent = exponent_of(np.log(largest), whole)
        bounds[SCALE, step[SLOT], b] = exponent
        for e in range(step[ENTRIES]):
            arena[step[ROW] + e * cases + b] = np.log(likelihoods[step[PLACE] + e, b]) - exponent


@part
def _rescale(arena: Any, row: int, entries: int, cases: int, lanes: Any, bits: Any, lift: int) -> None:
    """Divide by a power of two so that the largest entry is in [0.5, 1), or larger by a lift as far as that goes.

    arena: changed in rows `row` to `row + entries`, `cases` numbers each.
    lanes: receives the largest entry and the smallest above zero before, and the factor.
    bits: the memory of `lanes` as integers.
    lift: power of two.
    """
    width = BYTES // arena.itemsize
    end = row + entries * cases
    largest, least, factor = lanes[LARGEST], lanes[SMALLEST], lanes[FACTOR]
    # Maximum and smallest positive entry in one pass over the table.
    for b in range(0, cases, width):
        high, low = spread(arena.dtype.type(0)), spread(arena.dtype.type(np.inf))
        for at in range(row + b, end, cases):
            line = load(arena, at)
            high, low = larger(line, high), least_above_zero(low, line)
        store(largest, b, high)
        store(least, b, low)
    # IEEE 754: bits of the mantissa, and the exponent bias less 1, so that the result is in [0.5, 1).
    mantissa = 23 if lanes.itemsize == 4 else 52
    bias = 126 if lanes.itemsize == 4 else 1022
    power, numbers = bits[FACTOR], bits[LARGEST]
    for b in range(cases):
        # 2 ** -exponent from its bits: the biased exponent of the largest entry, mirrored; it has to stay finite.
        power[b] = min(2 * bias + 1 - max(1, numbers[b] >> mantissa) + lift, 2 * bias) << mantissa
    for b in range(0, cases, width):
        by = load(factor, b)
        for at in range(row + b, end, cases):
            store(arena, at, multiply(load(arena, at), by))


@part
def _shift(arena: Any, row: int, entries: int, cases: int, lanes: Any, whole: bool) -> None:
    """Subtract the largest logarithm of every case, or the whole number next to it, and leave it in `lanes`."""
    width = BYTES // arena.itemsize
    end = row + entries * cases
    largest = lanes[LARGEST]
    for b in range(0, cases, width):
        high = spread(arena.dtype.type(-np.inf))
        for at in range(row + b, end, cases):
            high = larger(load(arena, at), high)
        store(largest, b, high)
    for b in range(cases):
        largest[b] = exponent_of(largest[b], whole)
    for b in range(0, cases, width):
        by = load(largest, b)
        for at in range(row + b, end, cases):
            store(arena, at, subtract(load(arena, at), by))


@part
def _log_scale(step: Any, parents: Any, work: Any, whole: bool) -> None:
    """Rescale a reduction in log space and add up the exponent of its scale; whole: of `_shift`."""
    cases, scale, largest = work.lanes.shape[1], work.bounds[SCALE], work.lanes[LARGEST]
    _shift(work.arena, step[ROW], step[ENTRIES], cases, work.lanes, whole)
    for b in range(cases):
        scale[step[SLOT], b] = largest[b]
    for k in range(step[FIRST_PARENT], step[FIRST_PARENT] + step[PARENTS]):
        for b in range(cases):
            scale[step[SLOT], b] += scale[parents[k, 0], b]


@part
def _bound(
    step: Any, parents: Any, growth: float, bounds: Any, lossless: Any, lanes: Any, bits: Any, tiny: float
) -> None:
    """Write exponent and bounds of a reduction; losses are only bounded where some are possible.

    step, parents, growth: of the `Bytecode`.
    bounds, lossless, lanes, bits: of the BlockWorkspace, after `_rescale`.
    tiny: the smallest normal number.
    """
    slot, first, last = step[SLOT], step[FIRST_PARENT], step[FIRST_PARENT] + step[PARENTS]
    scale, least, product = bounds[SCALE, slot], bounds[LEAST, slot], bounds[LOST, slot]
    mantissa = 23 if lanes.itemsize == 4 else 52
    bias = 126 if lanes.itemsize == 4 else 1022
    lift = step[LIFT] - step[LIFTED]
    for b in range(scale.shape[0]):
        # Whole numbers, so that sums are exact.
        scale[b] = bias + 1 - (bits[FACTOR, b] >> mantissa) + lift
        least[b] = min(np.float64(lanes[SMALLEST, b]) * np.float64(lanes[FACTOR, b]), 1.0)
        product[b] = 1.0
    clean = True
    for k in range(first, last):
        parent = parents[k, 0]
        clean &= lossless[parent]
        other_scale, other_least = bounds[SCALE, parent], bounds[LEAST, parent]
        for b in range(scale.shape[0]):
            scale[b] += other_scale[b]
            product[b] *= other_least[b]
    lowest = 1.0
    for b in range(scale.shape[0]):
        # One test for the products of entries and for the result.
        product[b] = min(product[b], least[b])
        lowest = min(lowest, product[b])
    lossless[slot] = clean and lowest >= tiny
    if not lossless[slot]:
        _losses(step, parents, growth, bounds, lossless, lanes, tiny)


@part
def _losses(step: Any, parents: Any, growth: float, bounds: Any, lossless: Any, lanes: Any, tiny: float) -> None:
    """Write the bounds of `junctor.backends.numpy` on losses; on entry LOST is the smallest product of entries."""
    slot, terms = step[SLOT], step[TERMS]
    lost, still_open = bounds[LOST, slot], bounds[STILL_OPEN, slot]
    lift, each = step[LIFT], step[PARENTS] * tiny * terms
    unlift, by_lift = 2.0 ** -step[LIFTED], 2.0 ** -step[LEAST_LIFT]
    for b in range(lost.shape[0]):
        messages = 0.0
        passed_on = 0.0
        here = 0.0
        largest = lanes[LARGEST, b] * unlift
        if lost[b] < tiny:
            unlifted = 1.0
            for k in range(step[FIRST_PARENT], step[FIRST_PARENT] + step[PARENTS]):
                if parents[k, 2] == 0:
                    unlifted *= bounds[LEAST, parents[k, 0], b]
            here = each * by_lift if unlifted >= tiny else each
            if lift > 0:
                here += tiny * 2.0**-lift * largest
        for k in range(step[FIRST_PARENT], step[FIRST_PARENT] + step[PARENTS]):
            other, role = parents[k, 0], parents[k, 1]
            # Its bounds are not set.
            if lossless[other]:
                continue
            if role == CONSTANT:
                here += terms * bounds[LOST, other, b]
            else:
                messages += bounds[LOST, other, b] * (1 + messages)
                if role == OPEN:
                    passed_on += bounds[STILL_OPEN, other, b]
        lost[b] = (growth * messages + here * (1 + messages)) / largest
        still_open[b] = (growth * passed_on + here) * (1 + messages) / largest


@part
def _conclude(
    step: Any, result: Any, arena: Any, bounds: Any, lossless: Any, lanes: Any, posteriors: Any, sums: Any
) -> None:
    slot, row, entries = step[SLOT], step[ROW], step[ENTRIES]
    if result[0] == 1 and step[KIND] != FIXED:
        _add_total(step, arena, bounds, sums, None)
    if (result[0] == 1 or result[1] >= 0) and not lossless[slot]:
        for b in range(sums.shape[1]):
            # The largest entry is at least a half, so this bounds the share of the sum.
            sums[LEFT, b] = max(sums[LEFT, b], 2 * entries * bounds[STILL_OPEN, slot, b])
    if result[1] >= 0 and step[KIND] != FIXED:
        _normalise(arena, row, entries, lanes[TOTAL], posteriors, result[1])
    # Edges without any loss, nearly all, cost nothing.
    if result[2] >= 0 and not (lossless[slot] and lossless[result[2]]):
        _close(slot, result[2], result[3], entries, bounds, lossless, sums)


@part
def _add_total(step: Any, arena: Any, bounds: Any, sums: Any, logs: Any) -> None:
    """Multiply P(e) by a total; logs: of `multiplied`."""
    row, scale, numbers, powers = step[ROW], bounds[SCALE, step[SLOT]], sums[NUMBER], sums[POWER]
    for b in range(numbers.shape[0]):
        total = np.float64(arena[row + b])
        numbers[b], powers[b] = multiplied(numbers[b], powers[b], total, scale[b], logs)


@part
def _conclude_logs(step: Any, result: Any, work: Any) -> None:
    row, cases = step[ROW], work.lanes.shape[1]
    if result[0] == 1 and step[KIND] != FIXED:
        _add_total(step, work.arena, work.bounds, work.sums, True)
    if result[1] >= 0 and step[KIND] != FIXED:
        total = work.lanes[TOTAL]
        total[:] = 0
        for e in range(step[ENTRIES]):
            line, out = work.arena[row + e * cases :], work.posteriors[result[1] + e]
            for b in range(cases):
                out[b] = np.exp(line[b])
                total[b] += out[b]
        for e in range(step[ENTRIES]):
            out = work.posteriors[result[1] + e]
            for b in range(cases):
                out[b] /= total[b]


@part
def _normalise(arena: Any, row: int, entries: int, total: Any, posteriors: Any, first: int) -> None:
    # Row by row with the cases innermost: contiguous, and in the order of the reference.
    cases = total.shape[0]
    for b in range(cases):
        total[b] = 0
    for e in range(entries):
        line = arena[row + e * cases :]
        for b in range(cases):
            total[b] += line[b]
    for e in range(entries):
        line, out = arena[row + e * cases :], posteriors[first + e]
        for b in range(cases):
            out[b] = line[b] / total[b]


@part
def _close(down: int, up: int, whole: int, entries: int, bounds: Any, lossless: Any, sums: Any) -> None:
    """Add the share of the probability that open losses of the messages `down` and `up` of an edge can move."""
    for b in range(sums.shape[1]):
        power = bounds[SCALE, whole, b] - bounds[SCALE, up, b] - bounds[SCALE, down, b]
        # The one entry of a total is its least.
        both = bounds[LEAST, whole, b] * 2.0**power
        mine = its = lost_up = lost_down = 0.0
        if not lossless[up]:
            mine, lost_up = bounds[STILL_OPEN, up, b], bounds[LOST, up, b]
        if not lossless[down]:
            its, lost_down = bounds[STILL_OPEN, down, b], bounds[LOST, down, b]
        moved = entries * (mine * (1 + lost_down) + its * (1 + lost_up))
        sums[MOVED, b] += moved / both if moved != 0 else 0.0


@part_with_arrays
def _trace(step: Any, code: Any, work: Any) -> None:
    """Write the states of the variables that a step maximised over, given those that it kept; ties go to the first."""
    first, parents, first_kept, kept, first_gone, gone = step[0], step[1], step[2], step[3], step[4], step[5]
    cases = work.lanes.shape[1]
    terms = 1
    for v in range(first_gone, first_gone + gone):
        terms *= code.variables[v, 1]
    places = np.empty((parents, cases), np.int64)
    for k in range(parents):
        operand = code.traced[first + k]
        for b in range(cases):
            places[k, b] = operand[0] + (b if operand[1] else 0)
        for v in range(kept):
            stride, states = code.offsets[operand[2] + v], work.states[code.variables[first_kept + v, 0]]
            for b in range(cases):
                places[k, b] += stride * states[b]
    # The columns of slices are not needed any more.
    term = work.at
    _first_largest(terms, code.traced[first : first + parents], places, code.offsets, code.shared, work.arena, term)
    for v in range(first_gone + gone - 1, first_gone - 1, -1):
        states, size = work.states[code.variables[v, 0]], code.variables[v, 1]
        for b in range(cases):
            states[b] = term[b] % size
            term[b] //= size


@part_with_arrays
def _first_largest(terms: int, operands: Any, places: Any, offsets: Any, shared: Any, arena: Any, first: Any) -> None:
    """Write the first term with the largest sum of entries of each case; places: int64 [operands, cases], offsets."""
    cases = first.shape[0]
    best, total = np.full(cases, -np.inf), np.empty(cases)
    first[:] = 0
    for r in range(terms):
        total[:] = 0
        for k in range(operands.shape[0]):
            at, base = offsets[operands[k, 3] + r], places[k]
            table = arena if operands[k, 1] else shared
            for b in range(cases):
                total[b] += table[base[b] + at]
        for b in range(cases):
            if total[b] > best[b]:
                best[b], first[b] = total[b], r
