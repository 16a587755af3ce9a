"""Which rows of evidence are possible: messages up a row tree in the (or, and) semiring, 64 cases to a word (Numba).

Main function: `decide`, called by `junctor.backends.impossibility`. A bit says that a number is above zero, so nothing
underflows: this is constraint satisfaction by bucket elimination (Dechter 1999).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from junctor_kernels.cpu.jit import gradual, inlined, loops, next_number, part
from junctor_kernels.orders.greedy import WEIGHTED_MIN_FILL
from junctor_kernels.row_trees.case_words import (
    ALL,
    BIT,
    BITS,
    CASES_A_MASK,
    IMPOSSIBLE,
    INDEX,
    MOST_MASKS,
    NOTHING,
    ONE,
    OTHER,
    OUT,
    PLANNED,
    POSSIBLE,
    SIZE,
    TOO_LARGE,
    block_words,
)
from junctor_kernels.row_trees.culprits import accuse
from junctor_kernels.row_trees.plan import (
    ARENA,
    ENTRIES,
    FACTOR,
    FIRST,
    LEFT,
    LENGTH,
    ONES,
    OPERATIONS,
    PARENT,
    RIGHT,
    TABLES,
    UNION,
    UP,
    plan_row,
)

# Blocks that are planned to learn the price of a way to cut rows into blocks: a share of them, and at most so many.
SAMPLED_SHARE, MOST_SAMPLES = 8, 16
# Neighbours of a message of one word that are computed together.
LEAST_RUN = 4


@gradual
@loops
def decide(
    supports: Any, findings: Any, starts: Any, begun: int, first: int, most: float, room: Any, found: Any, culprits: Any
) -> int:
    """Decide blocks of cases until all are begun, and return -1, or the block that the arena is too small for.

    Calls with the same blocks, each with memory of its own, share them.

    supports: of the network.
    findings: of all cases.
    starts: int64 [blocks + 1], first case of each block; a block has at most MOST_CASES.
    begun: address of an int64, the number of blocks that were begun by all calls that share them.
    first: a block to begin with that was begun before, or -1.
    most: word operations of the tree of cases that culprits are asked of.
    room: memory of the thread.
    found: uint8 [cases], written: IMPOSSIBLE, POSSIBLE or TOO_LARGE.
    culprits: uint8 [cases, columns], written for impossible cases: 1 for findings that are impossible together; no rows
        where nobody asks.
    """
    block = first if first >= 0 else next_number(begun)
    while block < starts.size - 1:
        begin, end = starts[block], starts[block + 1]
        is_planned = plan_block(supports.factors, findings, begin, end, room)
        if not is_planned or (culprits.shape[0] and room.tree.nodes.counts[OPERATIONS] > most):
            found[begin:end] = TOO_LARGE
        elif room.tree.nodes.counts[ARENA] * block_words(end - begin) > room.arena.size:
            # The caller enlarges the arena and calls again: compiled code cannot replace an array of a tuple.
            return int(block)
        else:
            _collect(supports, findings, begin, end, room, found[begin:end])
            if culprits.shape[0]:
                accuse(supports.factors, findings, begin, end, room, found, culprits)
        block = next_number(begun)
    return -1


@gradual
@loops
def write_patterns(codes: Any, sizes: Any, patterns: Any) -> None:
    """Write which columns of some cases have findings, as bits, the first column the highest one of the first word.

    codes: int32 [columns, cases].
    sizes: int64 [columns], codes of no finding.
    patterns: uint64 [words, cases], written.
    """
    patterns[:] = NOTHING
    for c in range(sizes.size):
        bit = BIT << np.uint64(BITS - 1 - (c & 63))
        for case in range(codes.shape[1]):
            patterns[c >> 6, case] |= bit if codes[c, case] != sizes[c] else NOTHING


@gradual
@loops
def choose(
    factors: Any, findings: Any, starts: Any, edges: Any, patterns: int, most: int, seconds: Any, best: Any, room: Any
) -> int:
    """Return the cheapest way to cut cases into blocks, by the plans of some blocks of each; -1 where none is possible.

    factors: of the network.
    findings: of all cases.
    starts: int64, as of `decide`, of one way after the other.
    edges: int64 [ways + 1], where the starts of each begin.
    patterns: number of different sets of columns.
    most: words of the messages of a block.
    seconds: float64 [2], of a word operation and of a table.
    best: float64 [3], written: seconds and word operations of all blocks, words of the largest.
    room: memory of the thread.
    """
    chosen, best[0] = -1, np.inf
    for way in range(edges.size - 1):
        cut = starts[edges[way] : edges[way + 1]]
        blocks, price, operations, largest = cut.size - 1, 0.0, 0, 0
        # Blocks of one pattern are alike.
        samples = min(patterns, 1 + blocks // SAMPLED_SHARE, MOST_SAMPLES)
        for sample in range(samples):
            block = sample * blocks // samples
            begin, end = cut[block], cut[block + 1]
            is_planned = plan_block(factors, findings, begin, end, room)
            counts, words = room.tree.nodes.counts, block_words(end - begin)
            largest = max(largest, counts[ARENA] * words)
            price += (counts[OPERATIONS] * words * seconds[0] + counts[TABLES] * seconds[1]) * blocks / samples
            operations += counts[OPERATIONS] * words * blocks // samples
            if not is_planned or largest > most or price > best[0]:
                price = np.inf
                break
        if price < best[0]:
            chosen, best[0], best[1], best[2] = way, price, operations, largest
    return chosen


@part
def plan_block(factors: Any, findings: Any, begin: int, end: int, room: Any) -> bool:
    """Plan the tree of a block of cases, unless it is that of the last one; return False if its tables are too large.

    factors: of the network.
    findings: of all cases; the block has those from `begin` to `end`.
    room: its tree is written.
    """
    is_same = room.counts[PLANNED] == 1
    if not is_same:
        # Memory that had other columns.
        room.states[:] = -1
        room.soft[:] = -1
    for c in range(findings.variables.size):
        v = findings.variables[c]
        size = factors.cards[v]
        hard, some = True, False
        for case in range(begin, end):
            hard &= findings.codes[c, case] < size
            some |= findings.codes[c, case] != size
        # Which state is observed does not change the tree.
        state, soft = 0 if hard else -1, v if some and not hard else -1
        is_same &= room.states[v] == state and room.soft[c] == soft
        room.states[v], room.soft[c] = state, soft
    if not is_same:
        planned = plan_row(factors, room.states, room.soft, room.wanted, WEIGHTED_MIN_FILL, 1, room.tree, 0.0)
        room.counts[PLANNED] = planned
    return bool(room.counts[PLANNED])


@part
def _collect(supports: Any, findings: Any, begin: int, end: int, room: Any, found: Any) -> None:
    """Compute all messages up of a block, and write to `found` [cases] which cases are possible."""
    nodes, arena = room.tree.nodes, room.arena
    words = block_words(end - begin)
    # Entry 0 is the number 1, the operand of tables with one child.
    arena[:words] = ALL
    found[:] = POSSIBLE
    for w in range(words):
        # A shift by 64 bits or more is not defined.
        cases = end - begin - w * BITS
        room.beyond[w] = NOTHING if cases >= BITS else ALL << np.uint64(max(0, cases))
    _write_marks(supports.factors, findings, begin, end, words, room)
    for number in range(nodes.counts[TABLES]):
        if nodes.tables[number, LEFT] >= 0:
            _join(nodes, room.axes, arena, words, number)
        else:
            _load(supports, findings, begin, end, words, room, number)
        if nodes.tables[number, PARENT] < 0:
            place = nodes.tables[number, UP] * words
            for case in range(end - begin):
                if arena[place + (case >> 6)] >> np.uint64(case & 63) & BIT == NOTHING:
                    found[case] = IMPOSSIBLE


@inlined
def _join(nodes: Any, axes: Any, arena: Any, words: int, number: int) -> None:
    """Compute a message from those of both children: the or over eliminated states of the and of both."""
    # Inlined, as all that one place calls for each table: a call copies every array of every tuple.
    tables = nodes.tables
    left, right = tables[number, LEFT], tables[number, RIGHT]
    one, other, out = np.uint64(tables[left, UP] * words), NOTHING, np.uint64(tables[number, UP] * words)
    if right >= 0:
        other = np.uint64(tables[right, UP] * words)
    kept, groups = _write_axes(nodes, axes, words, number, left, right)
    terms, step_one, step_other = BIT, NOTHING, NOTHING
    if kept < groups:
        terms, step_one, step_other = axes[SIZE, kept], axes[ONE, kept], axes[OTHER, kept]
    axes[INDEX, :groups] = NOTHING
    entries = tables[number, ENTRIES]
    run = np.int64(axes[SIZE, 0]) if words == 1 and kept and axes[SIZE, 0] >= LEAST_RUN else 1
    # Of several eliminated axes the outer ones add to what is there.
    for outer in range(tables[number, UNION] // (entries * np.int64(terms))):
        keep = NOTHING if outer == 0 else ALL
        for _ in range(entries // run):
            if run > 1:
                _or_run(arena, one, other, out, run, axes[ONE, 0], axes[OTHER, 0], terms, step_one, step_other, keep)
            elif words == 1:
                _or_word(arena, one, other, out, terms, step_one, step_other, keep)
            else:
                _or_words(arena, one, other, out, terms, step_one, step_other, keep)
            one, other, out = _advance(axes, int(run > 1), kept, one, other, out)
        one, other, out = _advance(axes, kept + 1, groups, one, other, out)


@inlined
def _write_axes(nodes: Any, axes: Any, words: int, number: int, left: int, right: int) -> Any:
    """Write the axes of a message, innermost first, neighbours in the same tables merged; return kept and all axes."""
    scopes, tables = nodes.scopes, nodes.tables
    first_i, first_k = tables[left, FIRST], tables[number, FIRST]
    first_j = first_i if right < 0 else tables[right, FIRST]
    i, k = first_i + tables[left, LENGTH] - 1, first_k + tables[number, LENGTH] - 1
    j = first_j - 1 if right < 0 else first_j + tables[right, LENGTH] - 1
    step_i = step_j = step_k = np.uint64(words)
    kept, groups, before = 0, 0, 0
    while i >= first_i or j >= first_j:
        position = np.int64(-1)
        if i >= first_i:
            position = scopes[i]
        if j >= first_j:
            position = max(position, scopes[j])
        size = np.uint64(nodes.sizes[position])
        one, other, out, kind = NOTHING, NOTHING, NOTHING, 0
        if i >= first_i and scopes[i] == position:
            one, step_i, kind, i = step_i, step_i * size, kind + 1, i - 1
        if j >= first_j and scopes[j] == position:
            other, step_j, kind, j = step_j, step_j * size, kind + 2, j - 1
        if k >= first_k and scopes[k] == position:
            out, step_k, kind, k = step_k, step_k * size, kind + 4, k - 1
        # `kind` is the set of tables with this axis; equal neighbours are contiguous in all of them.
        if kind == before:
            axes[SIZE, groups - 1] *= size
        else:
            axes[SIZE, groups], axes[ONE, groups], axes[OTHER, groups], axes[OUT, groups] = size, one, other, out
            groups += 1
            # Eliminated positions come first in a scope, so their axes are the outermost.
            kept += kind >= 4
            before = kind
    return kept, groups


@part
def _advance(axes: Any, first: int, end: int, one: Any, other: Any, out: Any) -> Any:
    """Return the next offsets in three tables along some axes, innermost first; the last is followed by the first."""
    for g in range(first, end):
        axes[INDEX, g] += BIT
        one += axes[ONE, g]
        other += axes[OTHER, g]
        out += axes[OUT, g]
        if axes[INDEX, g] < axes[SIZE, g]:
            break
        one -= axes[SIZE, g] * axes[ONE, g]
        other -= axes[SIZE, g] * axes[OTHER, g]
        out -= axes[SIZE, g] * axes[OUT, g]
        axes[INDEX, g] = NOTHING
    return one, other, out


@part
def _or_word(arena: Any, one: Any, other: Any, out: Any, terms: Any, step_one: Any, step_other: Any, keep: Any) -> None:
    x = arena[out] & keep
    for _ in range(terms):
        x |= arena[one] & arena[other]
        if x == ALL:
            break
        one += step_one
        other += step_other
    arena[out] = x


@part
def _or_run(
    arena: Any,
    one: Any,
    other: Any,
    out: Any,
    run: int,
    next_one: Any,
    next_other: Any,
    terms: Any,
    step_one: Any,
    step_other: Any,
    keep: Any,
) -> None:
    """Compute neighbours of a message of one word: vectors of them."""
    result = arena[out : out + np.uint64(run)]
    for i in range(run):
        result[i] &= keep
    for _ in range(terms):
        together = ALL
        if next_one and next_other:
            left, right = arena[one : one + np.uint64(run)], arena[other : other + np.uint64(run)]
            for i in range(run):
                result[i] |= left[i] & right[i]
                together &= result[i]
        else:
            # The same entry of one of them for all: an axis is in one at least.
            word, at = (arena[other], one) if next_one else (arena[one], other)
            left = arena[at : at + np.uint64(run)]
            for i in range(run):
                result[i] |= left[i] & word
                together &= result[i]
        # Most entries are possible in all cases after a few terms.
        if together == ALL:
            break
        one += step_one
        other += step_other


@part
def _or_words(
    arena: Any, one: Any, other: Any, out: Any, terms: Any, step_one: Any, step_other: Any, keep: Any
) -> None:
    u1, u2, u3, u4 = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    u5, u6, u7 = np.uint64(5), np.uint64(6), np.uint64(7)
    x0, x1, x2, x3 = arena[out] & keep, arena[out + u1] & keep, arena[out + u2] & keep, arena[out + u3] & keep
    x4, x5, x6, x7 = arena[out + u4] & keep, arena[out + u5] & keep, arena[out + u6] & keep, arena[out + u7] & keep
    for _ in range(terms):
        x0 |= arena[one] & arena[other]
        x1 |= arena[one + u1] & arena[other + u1]
        x2 |= arena[one + u2] & arena[other + u2]
        x3 |= arena[one + u3] & arena[other + u3]
        x4 |= arena[one + u4] & arena[other + u4]
        x5 |= arena[one + u5] & arena[other + u5]
        x6 |= arena[one + u6] & arena[other + u6]
        x7 |= arena[one + u7] & arena[other + u7]
        # Most entries are possible in all cases after a few terms.
        if x0 & x1 & x2 & x3 & x4 & x5 & x6 & x7 == ALL:
            break
        one += step_one
        other += step_other
    arena[out], arena[out + u1], arena[out + u2], arena[out + u3] = x0, x1, x2, x3
    arena[out + u4], arena[out + u5], arena[out + u6], arena[out + u7] = x4, x5, x6, x7


@inlined
def _load(supports: Any, findings: Any, begin: int, end: int, words: int, room: Any, number: int) -> None:
    """Write the words of a leaf. Lanes beyond the last case are possible: sums of ones end early."""
    factors, table = supports.factors, room.tree.nodes.tables[number]
    factor, given = table[FACTOR], factors.starts.size - 1
    place, size = table[UP] * words, table[ENTRIES]
    if factor == ONES:
        room.arena[place : place + size * words] = ALL
    elif factor >= given:
        _load_findings(findings, factor - given, size, begin, end, words, room, place)
    else:
        _write_strides(factors, room, number)
        configurations, line = _write_masks(factors, findings, factor, end - begin, words, room)
        if configurations:
            _load_configurations(supports.above, configurations, line, words, room, table)
        else:
            _write_bases(factors, findings, factor, begin, end, room)
            _load_cases(supports.above, end - begin, words, room, table)


@inlined
def _load_findings(
    findings: Any, column: int, size: int, begin: int, end: int, words: int, room: Any, place: int
) -> None:
    """Write in which cases each state of a column is allowed."""
    arena, start = room.arena, findings.starts[column]
    for w in range(words):
        at = place + w
        for state in range(size):
            arena[at + state * words] = NOTHING
        # All states are allowed in most cases.
        free = room.beyond[w]
        for case in range(begin + w * BITS, min(end, begin + (w + 1) * BITS)):
            code, bit = findings.codes[column, case], BIT << np.uint64((case - begin) & 63)
            if code == size:
                free |= bit
            elif code < size:
                arena[at + code * words] |= bit
            else:
                for state in range(size):
                    if findings.masks[start + code * size + state]:
                        arena[at + state * words] |= bit
        for state in range(size):
            arena[at + state * words] |= free


@inlined
def _write_strides(factors: Any, room: Any, number: int) -> None:
    """Write the axes of a leaf with their strides in the factor, innermost first."""
    nodes, axes = room.tree.nodes, room.axes
    table = nodes.tables[number]
    factor, last = table[FACTOR], table[FIRST] + table[LENGTH] - 1
    for at in range(factors.starts[factor], factors.starts[factor + 1]):
        position = room.tree.position[factors.scopes[at]]
        for g in range(table[LENGTH]):
            if nodes.scopes[last - g] == position:
                axes[SIZE, g], axes[ONE, g] = nodes.sizes[position], factors.strides[at]
                axes[OTHER, g] = axes[OUT, g] = axes[INDEX, g] = NOTHING


@inlined
def _write_bases(factors: Any, findings: Any, factor: int, begin: int, end: int, room: Any) -> None:
    """Write the offset in a factor of the observed states of each case."""
    bases = room.bases
    bases[: end - begin] = factors.places[factor]
    for at in range(factors.starts[factor], factors.starts[factor + 1]):
        v, stride = factors.scopes[at], factors.strides[at]
        if room.tree.position[v] < 0:
            column = findings.column[v]
            for case in range(begin, end):
                bases[case - begin] += np.uint64(findings.codes[column, case] * stride)


@inlined
def _write_marks(factors: Any, findings: Any, begin: int, end: int, words: int, room: Any) -> None:
    """Write which cases have each state of the sliced columns: all factors over one share them."""
    marks, place = room.marks, 0
    for c in range(findings.variables.size):
        v = findings.variables[c]
        if room.states[v] < 0:
            continue
        room.begins[c] = place
        marks[place : place + factors.cards[v], :words] = NOTHING
        for case in range(begin, end):
            marks[place + findings.codes[c, case], (case - begin) >> 6] |= BIT << np.uint64((case - begin) & 63)
        place += factors.cards[v]


@inlined
def _write_masks(factors: Any, findings: Any, factor: int, cases: int, words: int, room: Any) -> Any:
    """Write the offsets and the cases of each configuration of the observed variables of a factor.

    Returns their number, 0 if there are too many, and the line of `masks` that they are in.
    """
    masks, different, marks = room.masks, room.different, room.marks
    different[0, 0] = factors.places[factor]
    for w in range(words):
        masks[0, 0, w] = ALL ^ room.beyond[w]
    count, line, most = 1, 0, max(1, cases // CASES_A_MASK)
    for at in range(factors.starts[factor], factors.starts[factor + 1]):
        v, stride = factors.scopes[at], factors.strides[at]
        if room.tree.position[v] >= 0:
            continue
        begin, made = room.begins[findings.column[v]], 0
        for n in range(count):
            for state in range(factors.cards[v]):
                some = NOTHING
                # Overwritten by the next one where there is none.
                for w in range(words):
                    both = masks[line, n, w] & marks[begin + state, w]
                    some |= both
                    masks[1 - line, min(made, MOST_MASKS - 1), w] = both
                if some:
                    # Single cases are faster then.
                    if made == most:
                        return 0, 0
                    different[1 - line, made] = different[line, n] + np.uint64(state * stride)
                    made += 1
        count, line = made, 1 - line
    return count, line


@inlined
def _load_configurations(above: Any, configurations: int, line: int, words: int, room: Any, table: Any) -> None:
    """Write the words of a factor, mask by mask."""
    arena, axes, different, masks = room.arena, room.axes, room.different, room.masks
    source, target = NOTHING, table[UP] * words
    run, step = _innermost(axes, table[LENGTH])
    for _ in range(table[ENTRIES] // run):
        at = source
        for _ in range(run):
            for w in range(words):
                arena[target + w] = room.beyond[w]
            for n in range(configurations):
                if above[different[line, n] + at]:
                    for w in range(words):
                        arena[target + w] |= masks[line, n, w]
            target += words
            at += step
        source, _, _ = _advance(axes, 1, table[LENGTH], source, source, source)


@inlined
def _load_cases(above: Any, cases: int, words: int, room: Any, table: Any) -> None:
    """Write the words of a factor, case by case."""
    arena, axes, bases = room.arena, room.axes, room.bases
    source, target = NOTHING, table[UP] * words
    run, step = _innermost(axes, table[LENGTH])
    for _ in range(table[ENTRIES] // run):
        at = source
        for _ in range(run):
            for w in range(words):
                word = room.beyond[w]
                for i in range(w * BITS, min(cases, (w + 1) * BITS)):
                    word |= np.uint64(above[bases[i] + at]) << np.uint64(i & 63)
                arena[target + w] = word
            target += words
            at += step
        source, _, _ = _advance(axes, 1, table[LENGTH], source, source, source)


@part
def _innermost(axes: Any, length: int) -> Any:
    """Return entries and step of the innermost axis."""
    if length == 0:
        return np.int64(1), NOTHING
    return np.int64(axes[SIZE, 0]), axes[ONE, 0]
