"""Cases as bits of words: the zeros of a network, the findings of cases, and the memory of a thread that decides them.

Main functions: `room` and `room_bytes`. Which cases are possible is decided in `possible`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import part
from junctor_kernels.orders.dense import entries_for
from junctor_kernels.orders.sparse import SparseGraph
from junctor_kernels.row_trees.plan import COLUMNS, MOST_AXES, Factors, Tree, tree

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

BITS = 64
# Words of a block of more than 64 cases: a cache line.
MOST_WORDS = 8
MOST_CASES = MOST_WORDS * BITS
# What `decide` finds of a case.
IMPOSSIBLE, POSSIBLE, TOO_LARGE = 0, 1, 2
# Rows of `axes`: entries of each axis of a message, words to its next entry in both operands and the result, index.
SIZE, ONE, OTHER, OUT, INDEX = range(5)
# Masks of configurations are used instead of single cases where there are so many cases for each.
CASES_A_MASK = 4
MOST_MASKS = MOST_CASES // CASES_A_MASK
# Entry of `counts` of a thread: whether its tree is that of its states and soft columns.
PLANNED = 0
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
    masks: uint64 [2, MOST_MASKS, words], cases of each configuration of the observed variables of a factor, and those
        of one variable less.
    different: uint64 [2, MOST_MASKS], offset of each of these configurations in the factor.
    marks: uint64 [states, words], cases that have each state of the sliced columns, one column after the other.
    begins: int64 [columns], where the marks of a column begin.
    beyond: uint64 [words], lanes beyond the last case.
    bases: uint64 [cases], offset of each case in a factor.
    states: int64 [variables], 0 for sliced variables, or -1.
    soft: int64 [columns], variable of each weighted column, or -1.
    wanted: bool [variables], none.
    weights: int64 [tables], findings below each table.
    counts: int64 [1], PLANNED.
    """

    tree: Tree
    arena: Words
    alive: Words
    axes: Words
    masks: Words
    different: Words
    marks: Words
    begins: Ints
    beyond: Words
    bases: Words
    states: Ints
    soft: Ints
    wanted: npt.NDArray[np.bool_]
    weights: Ints
    counts: Ints


def room(graph: SparseGraph, factors: int, columns: int, states: int, words: int) -> Room:
    """Return memory for blocks with so many columns of findings, of so many states, whose messages take `words`."""
    variables = len(graph.starts) - 1
    trees = tree(graph, factors + columns)
    tables = len(trees.nodes.tables)
    return Room(
        tree=trees,
        arena=np.zeros(words, dtype=np.uint64),
        alive=np.zeros((tables, MOST_WORDS), dtype=np.uint64),
        axes=np.zeros((5, 2 * MOST_AXES), dtype=np.uint64),
        masks=np.zeros((2, MOST_MASKS, MOST_WORDS), dtype=np.uint64),
        different=np.zeros((2, MOST_MASKS), dtype=np.uint64),
        # Compiled code takes no empty arrays.
        marks=np.zeros((max(1, states), MOST_WORDS), dtype=np.uint64),
        begins=np.zeros(max(1, columns), dtype=np.int64),
        beyond=np.zeros(MOST_WORDS, dtype=np.uint64),
        bases=np.zeros(MOST_CASES, dtype=np.uint64),
        states=np.full(variables, -1, dtype=np.int64),
        soft=np.full(max(1, columns), -1, dtype=np.int64),
        wanted=np.zeros(variables, dtype=np.bool_),
        weights=np.zeros(tables, dtype=np.int64),
        counts=np.zeros(1, dtype=np.int64),
    )


def room_bytes(graph: SparseGraph, factors: int, columns: int, states: int) -> int:
    """Return the bytes of the memory of a thread without those of messages."""
    variables = len(graph.starts) - 1
    tables = 2 * (factors + columns) + 3 * variables + 2
    # Of a block, of a table, and of a variable, with its part of the work on eliminations.
    block, table, variable = MOST_CASES + 2 * MOST_MASKS * (MOST_WORDS + 1), MOST_AXES + COLUMNS + MOST_WORDS + 4, 40
    elimination = 2 * len(graph.neighbours) + entries_for(variables)
    most = tables * table + variables * variable + 2 * columns + states * MOST_WORDS + elimination
    return 8 * (block + most + 10 * MOST_AXES + MOST_WORDS + 24)


def words_for(cases: int) -> int:
    """Return the words of an entry in a block of so many cases."""
    return 1 if cases <= BITS else MOST_WORDS


# The same for compiled code.
block_words: Any = part(words_for)
