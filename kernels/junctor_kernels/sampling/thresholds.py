"""Thresholds and ratios of table rows from their chances, and the chances of EPIS-BN (Numba).

Main functions: `build_thresholds`, called by `junctor.sampling.tables` and `importance`, and `shape`, called by `epis`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from junctor_kernels.cpu.jit import inlined, jit, part_with_arrays
from junctor_kernels.sampling.layout import (
    ENTRY,
    FIRST,
    FULL,
    OWN_PART,
    STATES,
    Floats,
    Function,
    Integers,
    SampledCase,
)
from junctor_kernels.sampling.loopy import NUMBERS, Links


@jit
def build_thresholds(tables: Any, function: Any, entry: Any, first: Any, states: Any, rows: Any, least: Any) -> None:
    """Write thresholds, order and ratios of table rows from their chances, as `reference.thresholds_of` does.

    tables: probabilities of all entries.
    function: its chances are read, thresholds, order and ratios written.
    entry, first: offset of the entries and of the thresholds of the rows.
    states, rows: size of a row, and their number.
    least: smallest width of a possible state, in units of 1 / FULL.
    """
    widths, ranks = np.empty(states, np.int64), np.empty(states, np.int64)
    for row in range(rows):
        at = entry + row * states
        chances, cut = function.chances[at : at + states], first + row * (states - 1)
        _threshold_row(tables, chances, function, at, cut, states, least, widths, ranks)


def shape(
    case: SampledCase, nodes: Integers, links: Links, tables: Floats, said: Floats, smallest: Floats, function: Function
) -> None:
    """Write the importance function of some nodes: tables times messages from below, small chances lifted (EPIS-BN).

    case: the row of evidence.
    nodes: int32 [k, 2], nodes of the case and their tables in `links`.
    links: of loopy belief propagation.
    tables: probabilities of all entries.
    said: messages from below, by `loopy.propagate`.
    smallest: of each table, threshold that chances above zero are lifted to.
    function: thresholds, order and ratios are written for rows that drawn parents can select; chances are not kept.
    """
    _shape(nodes, case.nodes, case.spans, links.tables, tables, said, smallest, function)


@inlined
def _threshold_row(
    tables: Any, chances: Any, function: Any, at: Any, cut: Any, size: Any, least: Any, widths: Any, ranks: Any
) -> None:
    thresholds, order, ratios = function.thresholds, function.order, function.ratios
    _rank(chances, ranks)
    # The most probable state gets the rest, so that widths sum to FULL exactly.
    left = FULL
    for k in range(1, size):
        s = ranks[k]
        widths[s] = max(least, np.int64(chances[s] * FULL + 0.5)) if tables[at + s] > 0.0 else 0
        left -= widths[s]
    widths[ranks[0]] = left
    below = 0
    for k in range(size):
        # Most probable state first: fewer comparisons for each draw. Pairs need one comparison in any order.
        s = ranks[k] if size > 2 else k
        order[at + k] = s
        below += widths[s]
        if k < size - 1:
            thresholds[cut + k] = below
        ratio = tables[at + s] * FULL / widths[s] if widths[s] > 0 else 0.0
        ratios[at + s] = math.log(ratio) if function.logs else ratio


@inlined
def _rank(chances: Any, ranks: Any) -> None:
    """Write the states by falling probability, equal ones in their order (insertion sort: rows are short)."""
    for s in range(len(chances)):
        k = s
        while k > 0 and chances[s] > chances[ranks[k - 1]]:
            ranks[k] = ranks[k - 1]
            k -= 1
        ranks[k] = s


@jit
def _shape(
    which: Any, nodes: Any, spans: Any, numbered: Any, tables: Any, said: Any, smallest: Any, function: Any
) -> None:
    thresholds, order, ratios = function.thresholds, function.order, function.ratios
    for n, t in which:
        size, entry, first = nodes[n, STATES], nodes[n, ENTRY], nodes[n, FIRST]
        chances, widths, ranks = np.empty(size), np.empty(size, np.int64), np.empty(size, np.int64)
        below = said[numbered[t, NUMBERS] : numbered[t, NUMBERS] + size]
        # Most variables have two states, for which there is a loop over all rows without branches.
        if size == 2:
            span = slice(entry, entry + 2 * spans[n])
            cuts = thresholds[first : first + spans[n]]
            _shape_pairs(tables[span], below, smallest[t], cuts, order[span], ratios[span], function.logs)
            continue
        for row in range(spans[n]):
            at = entry + row * size
            cut = first + row * (size - 1)
            _shape_row(tables[at : at + size], below, smallest[t], chances)
            _threshold_row(tables, chances, function, at, cut, size, 1, widths, ranks)


@part_with_arrays
def _shape_pairs(table: Any, below: Any, least: Any, thresholds: Any, order: Any, ratios: Any, logs: Any) -> None:
    """Do the work of `_shape_row` and `_threshold_row` for rows of two states; without branches, LLVM vectorises it."""
    one, other, full = below[0], below[1], float(FULL)
    for row in range(len(thresholds)):
        p, q = table[2 * row], table[2 * row + 1]
        total = p * one + q * other
        possible = total > 0.0
        whole = total if possible else p + q
        p_chance, q_chance = (p * one if possible else p) / whole, (q * other if possible else q) / whole
        q_leads = q_chance > p_chance
        p_least, q_least = max(least, OWN_PART * p), max(least, OWN_PART * q)
        p_chance = p_least if (p > 0.0) & (p_chance < p_least) else p_chance
        q_chance = q_least if (q > 0.0) & (q_chance < q_least) else q_chance
        whole = p_chance + q_chance
        lifted = q_chance if q_leads else p_chance
        left = lifted - (whole - 1.0)
        left = max(left, q_least if q_leads else p_least)
        whole += left - lifted
        p_chance, q_chance = (p_chance if q_leads else left) / whole, (left if q_leads else q_chance) / whole
        q_leads = q_chance > p_chance
        # The rarer state has a width of at least 1 where it is possible; the other one gets the rest.
        width = float(np.int64((p_chance if q_leads else q_chance) * full + 0.5))
        width = width if width > 1.0 else 1.0
        width = width if (p if q_leads else q) > 0.0 else 0.0
        p_width = width if q_leads else full - width
        q_width = full - p_width
        thresholds[row] = np.int64(p_width)
        ratios[2 * row] = p * full / p_width if p_width > 0.0 else 0.0
        ratios[2 * row + 1] = q * full / q_width if q_width > 0.0 else 0.0
    # A loop of its own, so that the one above becomes vectors of doubles.
    for row in range(len(thresholds)):
        order[2 * row], order[2 * row + 1] = 0, 1
    if logs:
        for i in range(len(ratios)):
            ratios[i] = math.log(ratios[i])


@inlined
def _shape_row(table: Any, below: Any, least: Any, chances: Any) -> None:
    """Write the chances of a row; GPU kernels add states in this order as well."""
    size, total, plain = len(table), 0.0, 0.0
    for s in range(size):
        total += table[s] * below[s]
        plain += table[s]
    for s in range(size):
        # A row that evidence rules out keeps its table.
        chances[s] = table[s] * below[s] / total if total > 0.0 else table[s] / plain
    lift(table, least, chances)


@inlined
def lift(table: Any, least: Any, chances: Any) -> None:
    """Lift the chances of possible states to `least` and to OWN_PART of their probabilities; they sum to 1 again."""
    top, whole = 0, 0.0
    for s in range(len(table)):
        if chances[s] > chances[top]:
            top = s
    for s in range(len(table)):
        if table[s] > 0.0:
            chances[s] = max(chances[s], least, OWN_PART * table[s])
        whole += chances[s]
    # The largest chance pays for the others, down to its own threshold.
    lifted = chances[top]
    chances[top] = max(lifted - (whole - 1.0), least, OWN_PART * table[top])
    whole += chances[top] - lifted
    for s in range(len(table)):
        chances[s] /= whole
