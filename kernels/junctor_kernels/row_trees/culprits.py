"""Findings of impossible cases that are impossible together: those below a message that is all zeros (Numba).

Main function: `accuse`, called by `possible` once the messages of a block are there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from junctor_kernels.cpu.jit import lowest_bit, part
from junctor_kernels.row_trees.case_words import ALL, BIT, BITS, IMPOSSIBLE, NOTHING, words_for
from junctor_kernels.row_trees.plan import ENTRIES, FACTOR, LEFT, ONES, PARENT, RIGHT, TABLES, UP


@part
def accuse(factors: Any, findings: Any, begin: int, end: int, room: Any, found: Any, culprits: Any) -> None:
    """Mark the findings of each impossible case below a table whose message is all zeros, the one with the fewest."""
    tables, count, words = room.tree.nodes.tables, room.tree.nodes.counts[TABLES], words_for(end - begin)
    alive, weights, best = room.alive, room.weights, room.bases
    best[: end - begin] = ALL
    for number in range(count):
        _weigh(factors, room, number)
    for number in range(count - 1, -1, -1):
        _look(tables, room, words, number)
    # Few messages are all zeros in any case.
    for number in range(count):
        for w in range(words):
            dead = ~(alive[number, w] | room.beyond[w])
            while dead:
                case = w * BITS + lowest_bit(dead)
                dead &= dead - BIT
                if best[case] == ALL or weights[number] < weights[np.int64(best[case])]:
                    best[case] = number
    for case in range(begin, end):
        if found[case] == IMPOSSIBLE:
            _mark(factors, findings, case, np.int64(best[case - begin]), room, culprits[case])


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
