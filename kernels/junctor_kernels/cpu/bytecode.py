"""Data of the compiled CPU backend: a plan with its numbers as flat arrays, the memory of a block, and cases.

Main classes: Bytecode, built by `junctor.backends.lowering`, BlockWorkspace and Cases; read by
`junctor_kernels.cpu.plan`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# Kinds of steps; a FIXED step computes nothing, it adds a shared table to results.
SLICE, LIKELIHOOD, REDUCE, FIXED = 0, 1, 2, 3
# Roles of operands for the bounds on losses: a message whose losses an edge closes, one that passes them on, a fixed
# table.
CLOSED, OPEN, CONSTANT = 0, 1, 2
# Loops of a reduction: one row and a factor in tiles of four; two rows in tiles of four; any rows entry by entry.
LINES, PAIRS, PRODUCTS = 0, 1, 2
# Columns of `steps`, for all steps and for reductions (LIFT: power of two by which the result is stored larger; LIFTED
# and LEAST_LIFT: sum over the operands, and the smallest above 0) ...
KIND, SLOT, ROW, ENTRIES, TERMS, FIRST_PARENT, PARENTS, FIRST, COUNT, HOW, TILES, OUT, SPAN, STRIDE = range(14)
SIZE, LINES_OF_TILE, LIFT, LIFTED, LEAST_LIFT = 14, 15, 16, 17, 18
# ... and for slices: number of columns, first observed variable and their number, offsets of columns and of facts; for
# likelihoods: row of the observed states, row of the likelihoods (OBSERVED and PLACE).
COLUMNS, OBSERVED, VARIABLES, PLACE, FACTS = TERMS, FIRST_PARENT, PARENTS, FIRST, COUNT
STEP_COLUMNS = 19
# The state of a weighted variable where a case has likelihoods; -1 where it observes nothing.
GIVEN = -2
# Bytes of contractions over entries in addition to their tables: for all threads together, and for each.
ENTRIES_BYTES = 1 << 24
ENTRIES_THREAD_BYTES = 6 << 20
# Rows of `bounds` for every slot: exponent of the scale, `lost` and `open` of `junctor.backends.numpy`, smallest entry
# above zero; BOUNDS is their count.
SCALE, LOST, STILL_OPEN, LEAST, BOUNDS = 0, 1, 2, 3, 4
# Rows of `sums`: P(e) as a scaled number (or logarithm) and its exponent, share of the probability moved at edges,
# largest open share of a result; SUMS is their count.
NUMBER, POWER, MOVED, LEFT, SUMS = 0, 1, 2, 3, 4
# Rows of `lanes`: temporaries with one number for each case; LANES is their count.
TOTAL, LARGEST, SMALLEST, FACTOR, LANES = 0, 1, 2, 3, 4


class Bytecode(NamedTuple):
    """A plan with its numbers, lowered.

    steps: int64 [n, STEP_COLUMNS].
    parents: int64 [m, 3], slot, role and lift of every operand.
    operands: int64 [m, 3], position of its offsets A and R in `offsets`, and its slot (-1: no message).
    offsets: int64, flat.
    span, terms: the terms of every tile, as in `junctor_kernels.cpu.contract`.
    results: int64 [n, 4], 1 for a total, first posterior row, slot of the message up, slot of its total; -1 for none.
    growth: float64 [n], growth of losses.
    observed: int64 [m, 2], row of `states` and radix.
    columns: sliced factors, flat.
    facts: float64 [2, all columns], exponents of their scales and smallest entries above zero.
    shared: tables without cases, flat.
    tiny: the smallest normal number.
    trace: int64 [n, 6], steps to trace back: first parent, parents, first kept variable, kept variables, first
        eliminated variable, eliminated variables.
    traced: int64 [m, 4], their parents: offset in the arena or in `shared`, whether it has cases, position of its
        strides of kept variables and of its R in `offsets`.
    variables: int64 [m, 2], variable and number of states.
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

    at: int64 [cases], the column of a slice.
    states: int64 [variables, cases].
    likelihoods: float64 [rows, cases].
    arena: float32 or float64, flat, aligned to vectors.
    bounds: float64 [4, slots, cases].
    lossless: bool [slots], whether no case lost anything; LOST and STILL_OPEN are only set where some did.
    lanes: [LANES, cases], of the dtype of the arena.
    bits: the memory of `lanes` as integers of the same width.
    posteriors: [rows, cases].
    sums: float64 [SUMS, cases].
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
    sums: Any


class Cases(NamedTuple):
    """Cases of some blocks: their evidence, and where their answers go.

    columns: int64 [columns], addresses of int32 [rows of a batch], observed states; none where these are `states`.
    lines: int64 [columns], their rows of the states of a block.
    given: int64 [cases or fewer], rows of the batch; empty without columns.
    states: int64 [variables, cases]; empty where columns have them.
    likelihoods: float64 [rows, cases]; empty where there are none.
    constants: int64 [n, 3], factors whose variables are all observed: first of them in `observed`, their number, and
        the first of its columns in `numbers`.
    observed: int64 [m, 2], row of the states of a block, and radix.
    numbers: float64 [columns, 2], the numbers of the columns of these factors, and their exponents.
    sums: float64 [3, cases], written: those of all blocks, of P(e) its logarithm; cases fill whole blocks.
    places: int64 [targets, 4], of `write_posteriors`, or [targets, 1], of `write_states` for explanations; no targets
        where nothing is written.
    rows: int64 [cases or fewer], of the answers.
    doubles, singles: flat, posteriors as of `write_posteriors`, written; one of them is empty.
    explained: int32 [targets, all rows], written where cases are explained.
    begun: address of an int64, the number of blocks that were begun by all calls that share them.
    """

    columns: Any
    lines: Any
    given: Any
    states: Any
    likelihoods: Any
    constants: Any
    observed: Any
    numbers: Any
    sums: Any
    places: Any
    rows: Any
    doubles: Any
    singles: Any
    explained: Any
    begun: int
