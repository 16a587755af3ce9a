"""Explanations of one row: largest products in place of sums, and the states that they are made of (Numba).

Main functions: `maximise`, which takes the place of `contract` for messages up, and `trace`, which follows them down
from the roots (Dawid 1992); called by `propagate`.
"""

from __future__ import annotations

from typing import Any

from junctor_kernels.cpu.jit import part
from junctor_kernels.cpu.vectors import larger, load8, multiply, spread8, store
from junctor_kernels.row_trees.domains import FIRST_STATE, KNOWN
from junctor_kernels.row_trees.inner_loops import WIDTH, inlined
from junctor_kernels.row_trees.plan import ENTRIES, FIRST, LEFT, LENGTH, POSITIONS, RIGHT, TABLES, UNION, UP
from junctor_kernels.row_trees.tiles import LEAST, multiply_tiled
from junctor_kernels.row_trees.walk import ONE, OTHER, OUT, SIZE, UNIT, ZERO, next_entry


@inlined
def maximise(work: Any, groups: int, one: Any, other: Any, out: Any) -> None:
    """Write the largest products of two tables to a third: out[kept] = max over the rest of one[..] * other[..].

    Arguments as for `contract`. Eliminated axes are the outermost ones.
    """
    entries = UNIT
    for g in range(groups):
        entries *= work.axes[g, SIZE]
    if entries < LEAST or not multiply_tiled(work, groups, one, other, out, True):
        _maximise(work.arena, work.axes, work.counters, groups, one, other, out)


@part
def _maximise(arena: Any, axes: Any, counters: Any, groups: int, one: Any, other: Any, out: Any) -> None:
    """Maximise without tiles."""
    kept = groups
    while kept > 0 and axes[kept - 1, OUT] == ZERO:
        kept -= 1
    # Along the innermost of them in registers.
    terms = UNIT, ZERO, ZERO
    if kept < groups:
        terms = axes[kept, SIZE], axes[kept, ONE], axes[kept, OTHER]
    size, in_one, in_other = UNIT, False, False
    if kept > 0:
        # The innermost axis of every table that has it.
        size, in_one, in_other = axes[0, SIZE], axes[0, ONE] != ZERO, axes[0, OTHER] != ZERO
    for g in range(1, groups):
        counters[g] = ZERO
    a, b, c = one, other, out
    while True:
        j = ZERO
        while j < size:
            x, u, v = spread8(0.0), a, b
            while True:
                if in_one and in_other:
                    x = _largest(arena, u + j, v + j, x, terms, True, True)
                elif in_one:
                    x = _largest(arena, u + j, v, x, terms, True, None)
                elif in_other:
                    x = _largest(arena, u, v + j, x, terms, None, True)
                else:
                    x = _largest(arena, u, v, x, terms, None, None)
                u, v, _, g = next_entry(axes, counters, kept + 1, groups, u, v, ZERO)
                if g >= groups:
                    break
            # Lines follow each other: what is written behind one is overwritten, but for what lies behind the table.
            store(arena, c + j, x)
            j += WIDTH
        a, b, c, g = next_entry(axes, counters, 1, kept, a, b, c)
        if g >= kept:
            return


@inlined
def _largest(arena: Any, p: Any, q: Any, x: Any, terms: Any, in_one: bool | None, in_other: bool | None) -> Any:
    """Return the largest of some products and those along an axis; an operand without lanes is None to the compiler."""
    count, step_a, step_b = terms
    for _ in range(count):
        one = spread8(arena[p]) if in_one is None else load8(arena, p)
        other = spread8(arena[q]) if in_other is None else load8(arena, q)
        x = larger(multiply(one, other), x)
        p += step_a
        q += step_b
    return x


@part
def trace(tree: Any, domains: Any, arena: Any, states: Any) -> None:
    """Write the states of a most probable explanation.

    tree: of the row.
    domains: its possible states.
    arena: messages up of `maximise`.
    states: int32 [variables], written.
    """
    nodes, variables = tree.nodes, domains.variables
    for v in range(states.size):
        # Others follow below.
        states[v] = variables[KNOWN, v]
    # States by position, in memory that the plan needs no more.
    chosen = tree.bucket
    for number in range(nodes.counts[TABLES] - 1, -1, -1):
        table = nodes.tables[number]
        if table[LEFT] < 0:
            continue
        # Positions that the table eliminates lie before its own, and have all entries that it has lost.
        lost, begin = table[UNION] // table[ENTRIES], table[FIRST]
        combinations = lost
        while lost > 1:
            begin -= 1
            lost //= nodes.sizes[nodes.scopes[begin]]
        best, at = -1.0, 0
        for combination in range(combinations):
            _choose(nodes, chosen, begin, table[FIRST], combination)
            value = arena[_entry(nodes, chosen, table[LEFT])] * arena[_entry(nodes, chosen, table[RIGHT])]
            # Of states that are as probable the first.
            if value > best:
                best, at = value, combination
        _choose(nodes, chosen, begin, table[FIRST], at)
    for position in range(nodes.counts[POSITIONS]):
        v = tree.order[position]
        states[v] = domains.states[variables[FIRST_STATE, v] + chosen[position]]


@inlined
def _choose(nodes: Any, chosen: Any, begin: int, end: int, combination: int) -> None:
    """Set the states of the positions in a part of `scopes`, the last fastest."""
    for at in range(end - 1, begin - 1, -1):
        position = nodes.scopes[at]
        chosen[position] = combination % nodes.sizes[position]
        combination //= nodes.sizes[position]


@inlined
def _entry(nodes: Any, chosen: Any, number: int) -> int:
    """Return the place of the entry of a message up at the chosen states."""
    place = 0
    # Entry 0 is the number 1.
    if number >= 0:
        table = nodes.tables[number]
        stride, place = 1, table[UP]
        for at in range(table[FIRST] + table[LENGTH] - 1, table[FIRST] - 1, -1):
            place += chosen[nodes.scopes[at]] * stride
            stride *= nodes.sizes[nodes.scopes[at]]
    return int(place)
