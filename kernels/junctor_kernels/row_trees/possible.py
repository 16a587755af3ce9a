"""Which rows of evidence are possible: messages up a row tree in the (or, and) semiring, 64 cases to a word (Numba).

Main function: `decide`, called by `junctor.backends.impossibility`. A bit says that a number is above zero, so nothing
underflows: this is constraint satisfaction by bucket elimination (Dechter 1999).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import inlined, loops, part
from junctor_kernels.orders.dense import entries_for
from junctor_kernels.orders.greedy import WEIGHTED_MIN_FILL
from junctor_kernels.orders.sparse import SparseGraph
from junctor_kernels.row_trees.plan import (
    ARENA,
    COLUMNS,
    ENTRIES,
    FACTOR,
    FIRST,
    LEFT,
    LENGTH,
    MOST_AXES,
    ONES,
    OPERATIONS,
    PARENT,
    RIGHT,
    TABLES,
    UNION,
    UP,
    Factors,
    Tree,
    plan_row,
    tree,
)

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

BITS = 64
# Words of a block of more than 64 cases: a cache line.
MOST_WORDS = 8
MOST_CASES = MOST_WORDS * BITS
# What `decide` finds of a case.
IMPOSSIBLE, POSSIBLE, TOO_LARGE = 0, 1, 2
# How the findings of a column enter a block: not at all, cut out of the factors, as a likelihood.
ABSENT, SLICED, WEIGHTED = 0, 1, 2
# Rows of `axes`: entries of each axis of a message, words to its next entry in both operands and the result, index.
SIZE, ONE, OTHER, OUT, INDEX = range(5)
# Masks of configurations are used instead of single cases where there are so many cases for each.
CASES_A_MASK = 4
# Typed: mixed with signed integers, Numba would compute in doubles.
NOTHING, BIT, ALL = np.uint64(0), np.uint64(1), np.uint64(0xFFFFFFFFFFFFFFFF)


class Supports(NamedTuple):
    """The zeros of a network.

    factors: of `row_trees.plan`; their values are not read.
    above: uint8, 1 for each entry of the factors that is above zero.
    """

    factors: Factors
    above: Bytes


class Findings(NamedTuple):
    """Evidence of some cases. The codes of a column are its states, then one for no finding, then likelihoods.

    variables: int64 [columns].
    codes: int32 [columns, cases].
    masks: uint8, 1 for each state that a code allows, [codes, states] for each column.
    starts: int64 [columns], where the masks of a column begin.
    column: int64 [variables], -1 for variables without a column.
    """

    variables: Ints
    codes: npt.NDArray[np.int32]
    masks: Bytes
    starts: Ints
    column: Ints


class Room(NamedTuple):
    """Memory of a thread.

    tree: of a block.
    arena: uint64, words of all messages.
    alive: uint64 [tables, words], cases in which a message is not all zeros.
    axes: uint64 [5, axes] of a message; unsigned, so that Numba omits the test for negative indices.
    masks: uint64 [cases, words], cases of each configuration of the observed variables of a factor.
    beyond: uint64 [words], lanes beyond the last case.
    bases: uint64 [cases], offset of each case in a factor.
    different: uint64 [cases], the different ones among them, one for each configuration.
    states: int64 [variables], state of each sliced variable, or -1.
    soft: int64 [columns], variable of each weighted column, or -1.
    wanted: bool [variables], none.
    weights: int64 [tables], findings below each table.
    spent: int64 [1], word operations so far.
    """

    tree: Tree
    arena: Words
    alive: Words
    axes: Words
    masks: Words
    beyond: Words
    bases: Words
    different: Words
    states: Ints
    soft: Ints
    wanted: npt.NDArray[np.bool_]
    weights: Ints
    spent: Ints


def room(graph: SparseGraph, factors: int, columns: int, words: int) -> Room:
    """Return memory for blocks with so many columns of findings, whose messages take so many words."""
    variables = len(graph.starts) - 1
    trees = tree(graph, factors + columns)
    tables = len(trees.nodes.tables)
    return Room(
        tree=trees,
        arena=np.zeros(words, dtype=np.uint64),
        alive=np.zeros((tables, MOST_WORDS), dtype=np.uint64),
        axes=np.zeros((5, 2 * MOST_AXES), dtype=np.uint64),
        masks=np.zeros((MOST_CASES, MOST_WORDS), dtype=np.uint64),
        beyond=np.zeros(MOST_WORDS, dtype=np.uint64),
        bases=np.zeros(MOST_CASES, dtype=np.uint64),
        different=np.zeros(MOST_CASES, dtype=np.uint64),
        states=np.full(variables, -1, dtype=np.int64),
        # Compiled code takes no empty arrays.
        soft=np.full(max(1, columns), -1, dtype=np.int64),
        wanted=np.zeros(variables, dtype=np.bool_),
        weights=np.zeros(tables, dtype=np.int64),
        spent=np.zeros(1, dtype=np.int64),
    )


def room_bytes(graph: SparseGraph, factors: int, columns: int) -> int:
    """Return the bytes of the memory of a thread without those of messages."""
    variables = len(graph.starts) - 1
    tables = 2 * (factors + columns) + 3 * variables + 2
    # Of a block, of a table, and of a variable, with its part of the work on eliminations.
    block, table, variable = MOST_CASES * (MOST_WORDS + 2), MOST_AXES + COLUMNS + MOST_WORDS + 4, 40
    elimination = 2 * len(graph.neighbours) + entries_for(variables)
    most = tables * table + variables * variable + columns + elimination
    return 8 * (block + most + 10 * MOST_AXES + MOST_WORDS + 24)


@loops
def words_for(cases: int) -> int:
    """Return the words of an entry in a block of so many cases."""
    return 1 if cases <= BITS else MOST_WORDS


@loops
def decide(
    supports: Any, findings: Any, starts: Any, first: int, most: float, room: Any, found: Any, culprits: Any
) -> int:
    """Decide blocks of cases from `first` on; return the one that the arena is too small for, or their number.

    supports: of the network.
    findings: of all cases.
    starts: int64 [blocks + 1], first case of each block; a block has at most MOST_CASES.
    first: block to begin with.
    most: word operations of a block.
    room: memory of the thread.
    found: uint8 [cases], written: IMPOSSIBLE, POSSIBLE or TOO_LARGE.
    culprits: uint8 [cases, columns], written for impossible cases: 1 for findings that are impossible together; no rows
        where nobody asks.
    """
    for block in range(first, starts.size - 1):
        begin, end = starts[block], starts[block + 1]
        is_planned = plan_block(supports.factors, findings, begin, end, room)
        operations = room.tree.nodes.counts[OPERATIONS] * words_for(end - begin)
        if not is_planned or operations > most:
            found[begin:end] = TOO_LARGE
            continue
        if room.tree.nodes.counts[ARENA] * words_for(end - begin) > room.arena.size:
            # The caller enlarges the arena and calls again: compiled code cannot replace an array of a tuple.
            return block
        room.spent[0] += operations
        _collect(supports, findings, begin, end, room, found[begin:end])
        if culprits.shape[0]:
            _accuse(supports.factors, findings, begin, end, room, found, culprits)
    return int(starts.size - 1)


@loops
def plan_block(factors: Any, findings: Any, begin: int, end: int, room: Any) -> bool:
    """Plan the tree of a block of cases; return False if its tables are too large.

    factors: of the network.
    findings: of all cases; the block has those from `begin` to `end`.
    room: its tree is written.
    """
    room.states[:] = -1
    for c in range(findings.variables.size):
        v = findings.variables[c]
        size = factors.cards[v]
        hard, some = True, False
        for case in range(begin, end):
            code = findings.codes[c, case]
            hard &= code < size
            some |= code != size
        room.soft[c] = -1
        if hard:
            # Which state is observed does not change the tree.
            room.states[v] = 0
        elif some:
            room.soft[c] = v
    return bool(plan_row(factors, room.states, room.soft, room.wanted, WEIGHTED_MIN_FILL, 1, room.tree, 0.0))


@part
def _collect(supports: Any, findings: Any, begin: int, end: int, room: Any, found: Any) -> None:
    """Compute all messages up of a block, and write to `found` [cases] which cases are possible."""
    nodes, arena = room.tree.nodes, room.arena
    words = words_for(end - begin)
    # Entry 0 is the number 1, the operand of tables with one child.
    arena[:words] = ALL
    found[:] = POSSIBLE
    for w in range(words):
        # A shift by 64 bits or more is not defined.
        cases = end - begin - w * BITS
        room.beyond[w] = NOTHING if cases >= BITS else ALL << np.uint64(max(0, cases))
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
    # Of several eliminated axes the outer ones add to what is there.
    for outer in range(tables[number, UNION] // (entries * np.int64(terms))):
        keep = NOTHING if outer == 0 else ALL
        for _ in range(entries):
            if words == 1:
                _or_word(arena, one, other, out, terms, step_one, step_other, keep)
            else:
                _or_words(arena, one, other, out, terms, step_one, step_other, keep)
            one, other, out = _advance(axes, 0, kept, one, other, out)
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
        for state in range(size):
            _load_findings(findings, factor - given, state, size, begin, end, words, room.arena, place + state * words)
    else:
        _write_strides(factors, room, number)
        _write_bases(factors, findings, factor, begin, end, room)
        configurations = _write_masks(end - begin, words, room)
        if configurations:
            _load_configurations(supports.above, configurations, words, room, table)
        else:
            _load_cases(supports.above, end - begin, words, room, table)


@inlined
def _load_findings(
    findings: Any, column: int, state: int, size: int, begin: int, end: int, words: int, arena: Any, place: int
) -> None:
    start = findings.starts[column] + state
    for w in range(words):
        word = ALL
        for case in range(begin + w * BITS, min(end, begin + (w + 1) * BITS)):
            if findings.masks[start + findings.codes[column, case] * size] == 0:
                word ^= BIT << np.uint64((case - begin) & 63)
        arena[place + w] = word


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
def _write_masks(cases: int, words: int, room: Any) -> int:
    """Write the different offsets of a block and the cases of each; return their number, 0 if there are too many."""
    bases, different, masks = room.bases, room.different, room.masks
    count = 0
    for i in range(cases):
        slot = 0
        while slot < count and different[slot] != bases[i]:
            slot += 1
        if slot == count:
            # Many cases for each, or single cases are faster.
            if count > 0 and (count + 1) * CASES_A_MASK > cases:
                return 0
            different[count] = bases[i]
            masks[count, :words] = NOTHING
            count += 1
        masks[slot, i >> 6] |= BIT << np.uint64(i & 63)
    return count


@inlined
def _load_configurations(above: Any, configurations: int, words: int, room: Any, table: Any) -> None:
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
                if above[different[n] + at]:
                    for w in range(words):
                        arena[target + w] |= masks[n, w]
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


@part
def _accuse(factors: Any, findings: Any, begin: int, end: int, room: Any, found: Any, culprits: Any) -> None:
    """Mark the findings of each impossible case below a table whose message is all zeros, the one with the fewest."""
    tables, count = room.tree.nodes.tables, room.tree.nodes.counts[TABLES]
    alive, weights = room.alive, room.weights
    for number in range(count):
        _weigh(factors, room, number)
    for number in range(count - 1, -1, -1):
        _look(tables, room, words_for(end - begin), number)
    for case in range(begin, end):
        if found[case] != IMPOSSIBLE:
            continue
        at, lane = (case - begin) >> 6, np.uint64((case - begin) & 63)
        best = -1
        for number in range(count):
            if alive[number, at] >> lane & BIT == NOTHING and (best < 0 or weights[number] < weights[best]):
                best = number
        _mark(factors, findings, case, best, room, culprits[case])


@part
def _look(tables: Any, room: Any, words: int, number: int) -> None:
    """Write in which cases a message is not all zeros: in all in which that of its parent is not, and maybe more."""
    alive, arena, parent = room.alive, room.arena, tables[number, PARENT]
    for w in range(words):
        alive[number, w] = NOTHING if parent < 0 else alive[parent, w]
    place = tables[number, UP] * words
    for _ in range(tables[number, ENTRIES]):
        together = ALL
        for w in range(words):
            together &= alive[number, w]
        if together == ALL:
            return
        for w in range(words):
            alive[number, w] |= arena[place + w]
        place += words


@part
def _weigh(factors: Any, room: Any, number: int) -> None:
    """Count the columns of findings below a table; children have theirs."""
    tables, weights = room.tree.nodes.tables, room.weights
    factor, given = tables[number, FACTOR], factors.starts.size - 1
    weights[number] = 0
    if tables[number, LEFT] >= 0:
        weights[number] = weights[tables[number, LEFT]]
        if tables[number, RIGHT] >= 0:
            weights[number] += weights[tables[number, RIGHT]]
    elif factor >= given:
        weights[number] = 1
    elif factor != ONES:
        for at in range(factors.starts[factor], factors.starts[factor + 1]):
            weights[number] += room.tree.position[factors.scopes[at]] < 0


@part
def _mark(factors: Any, findings: Any, case: int, root: int, room: Any, culprits: Any) -> None:
    """Mark the findings of a case below a table."""
    # The bucket is the stack: it has room for all tables, and is empty after planning.
    tables, stack, given = room.tree.nodes.tables, room.tree.bucket, factors.starts.size - 1
    stack[0], count = root, 1
    while count:
        count -= 1
        number = stack[count]
        factor = tables[number, FACTOR]
        if tables[number, LEFT] >= 0:
            for child in (tables[number, LEFT], tables[number, RIGHT]):
                if child >= 0:
                    stack[count] = child
                    count += 1
        elif factor >= given:
            column = factor - given
            # A likelihood of the block, of which this case may have none.
            if findings.codes[column, case] != factors.cards[findings.variables[column]]:
                culprits[column] = 1
        elif factor != ONES:
            for at in range(factors.starts[factor], factors.starts[factor + 1]):
                if room.tree.position[factors.scopes[at]] < 0:
                    culprits[findings.column[factors.scopes[at]]] = 1
