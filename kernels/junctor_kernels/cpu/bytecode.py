"""What the compiled CPU backend reads and writes: a plan with its numbers as flat arrays, and a block's memory."""

from __future__ import annotations

from typing import Any, NamedTuple

SLICE, LIKELIHOOD, REDUCE, FIXED = 0, 1, 2, 3
# What an operand is to the bounds: a message whose losses an edge closes, one that hands them on, a fixed table.
CLOSED, OPEN, CONSTANT = 0, 1, 2
# What a step does: a row with a factor in tiles of four, two rows in tiles of four, any number of rows entry by entry.
LINES, PAIRS, PRODUCTS = 0, 1, 2
# Columns of `steps`, for all steps and for reductions ...
KIND, SLOT, ROW, ENTRIES, TERMS, FIRST_PARENT, PARENTS, FIRST, COUNT, HOW, TILES, OUT, SPAN, STRIDE = range(14)
SIZE, LINES_OF_TILE = 14, 15
# ... and what some of them are for a slice: its columns and variables, and where its columns and their facts lie.
COLUMNS, OBSERVED, VARIABLES, PLACE, FACTS = TERMS, FIRST_PARENT, PARENTS, FIRST, COUNT
STEP_COLUMNS = 16
# Bytes that contractions over entries take beside their tables: for all of them, and for every thread.
ENTRIES_BYTES, ENTRIES_THREAD_BYTES = 1 << 24, 6 << 20
# Rows of `bounds` for every slot: log scale, the two bounds of `junctor.propagation`, the smallest entry above zero.
SCALE, LOST, STILL_OPEN, LEAST = 0, 1, 2, 3
# Rows of `lanes`: temporaries of one number a case.
TOTAL, LARGEST, SMALLEST, FACTOR, LANES = 0, 1, 2, 3, 4


class Bytecode(NamedTuple):
    """A plan with its numbers, lowered.

    steps: int64 [n, STEP_COLUMNS]. A FIXED step makes nothing: its table is shared, and only its part in results
    counts. parents: int64 [m, 2], slot and role of every operand. operands: int64 [m, 3], where its A and R begin in
    `offsets`, and its slot where it is a message (-1: nothing to rescale). span, terms: the terms of every tile, as in
    `junctor_kernels.contract`. results: int64 [n, 4], 1 for a total, first posterior row, slot of the message up, slot
    of its total; -1 where none. growth: float64 [n].
    observed: int64 [m, 2], row of `states` and radix. columns, facts: sliced factors, and float64 [2, all columns]
    their log scales and smallest entries above zero. shared: tables without cases, flat. tiny: the smallest normal
    number. trace: int64 [n, 6] for a step traced back: first parent, parents, first kept variable, kept variables,
    first eliminated variable, eliminated variables. traced: int64 [m, 4], for each of its parents where it begins in
    the arena or in `shared`, whether it has cases, where its strides of kept variables and its R begin in `offsets`.
    variables: int64 [m, 2], number and states.
    """

    steps: Any
    parents: Any
    operands: Any
    offsets: Any
    span: Any
    terms: Any
    results: Any
    growth: Any
    observed: Any
    columns: Any
    facts: Any
    shared: Any
    tiny: float
    trace: Any
    traced: Any
    variables: Any


class BlockWorkspace(NamedTuple):
    """The memory of a block of cases.

    at: int64 [cases], the column of a slice. states: int64 [variables, cases]. likelihoods: float64 [rows, cases].
    arena: float32 or float64, flat, aligned. bounds: float64 [4, slots, cases]. lossless: bool [slots], whether no
    case lost anything; LOST and STILL_OPEN are only set where some did. lanes: [LANES, cases]; bits: its memory as
    integers of the same width. posteriors: [rows, cases]. found: float64 [3, cases], log P(e), share of the
    probability moved at edges, largest open share of a result.
    """

    at: Any
    states: Any
    likelihoods: Any
    arena: Any
    bounds: Any
    lossless: Any
    lanes: Any
    bits: Any
    posteriors: Any
    found: Any
