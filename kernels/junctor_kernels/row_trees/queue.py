"""Rows with join trees, which threads take from a queue, a piece at a time (Numba).

Main functions: `answer_alone` for rows with a tree each, `answer_shared` for rows that share trees; called by
`junctor.backends.row_trees`, once for each thread. A call for each piece would take half a millisecond of Python's
lock: with 64 threads more than the rows of a piece take.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.answers import write_row_states, write_rows
from junctor_kernels.cpu.columns import count_observed, take_states
from junctor_kernels.cpu.jit import loops, next_number, part
from junctor_kernels.orders.greedy import UNITS_PER_BIT
from junctor_kernels.row_trees import together
from junctor_kernels.row_trees.lane_layout import NEED_BLOCK, NEED_ROWS, WIDTH, lay_out
from junctor_kernels.row_trees.lanes import answer_lanes
from junctor_kernels.row_trees.plan import (
    LOOSE,
    MEAN_ENTRIES,
    TABLES,
    find_relevant,
    plan_relevant,
)
from junctor_kernels.row_trees.propagate import answer_rows

Ints = npt.NDArray[np.int64]

# Of the piece that a thread is at: its first row, the next one to answer, its end, and how far its tree is.
FIRST, NEXT, END, TREE, NUMBERS = range(5)
# Nothing is known, its rows that observe each variable are counted, or it is planned.
_NEW, COUNTED, PLANNED = range(3)
# So many pieces have begun of a queue that is closed.
CLOSED = 1 << 40
# Functions of Python's, for compiled code.
balanced_rows, unaliased, is_worth_it = (
    part(each) for each in (together.balanced_rows, together.unaliased, together.is_worth_it)
)


class Queue(NamedTuple):
    """Rows that wait for threads.

    rows: int64 [rows], of the batch.
    ends: int64 [groups], where groups with a tree each end, which are planned here; a piece is a group then.
    size: rows of a piece where there are no groups.
    begun: address of an int64, how many pieces threads have taken.
    columns: int64 [columns], addresses of states, int32 [rows of the batch].
    variables: int64 [columns].
    soft: int64 [rows, kinds], variables with likelihoods, -1 for none.
    likelihoods: float64 [rows, entries].
    places: int64 [kinds + 1], first column of each kind.
    """

    rows: Ints
    ends: Ints
    size: int
    begun: int
    columns: Ints
    variables: Ints
    soft: Ints
    likelihoods: npt.NDArray[np.float64]
    places: Ints


class Asked(NamedTuple):
    """What is asked of every row.

    wanted: bool [variables], whose posteriors are computed.
    starts: int64 [variables], the first entry of each posterior.
    width: entries of all.
    targets: int64 [targets], variables.
    places: int64 [targets, 3], first entry of the posterior, number of states, and the sum of those of all targets
        before.
    """

    wanted: npt.NDArray[np.bool_]
    starts: Ints
    width: int
    targets: Ints
    places: Ints


class Results(NamedTuple):
    """What is written.

    log_values: float64 [rows of the queue].
    status: int64 [rows of the queue], of `propagate`.
    doubles, singles: flat, posteriors [rows of the batch, states] of one target after the other; one of them is empty.
    explained: int32 [targets, rows of the batch], where rows are explained.
    """

    log_values: npt.NDArray[np.float64]
    status: Ints
    doubles: npt.NDArray[np.float64]
    singles: npt.NDArray[np.float32]
    explained: npt.NDArray[np.int32]


class PieceMemory(NamedTuple):
    """Memory of a thread for a piece.

    at: int64 [NUMBERS].
    states: int64 [numbers].
    posteriors: float64 [numbers].
    explained: int32 [numbers], none where rows are not explained.
    common: int64 [variables], rows of a group that observe each, then the states that they have in common.
    kinds: int64 [kinds], variables of its likelihoods.
    """

    at: Ints
    states: Ints
    posteriors: npt.NDArray[np.float64]
    explained: npt.NDArray[np.int32]
    common: Ints
    kinds: Ints


def piece_for(rows: int, alone: int, variables: int, width: int, kinds: int, explains: bool) -> PieceMemory:
    """Return memory for pieces.

    rows: of a piece.
    alone: the same where rows have trees of their own, else 0.
    variables: of the network.
    width: entries of the posteriors of a row.
    kinds: number of variables with likelihoods.
    explains: whether rows are explained.
    """
    return PieceMemory(
        np.zeros(NUMBERS, dtype=np.int64),
        np.empty(alone * variables, dtype=np.int64),
        np.empty(rows * width),
        np.empty(rows * variables if explains else 0, dtype=np.int32),
        np.empty(variables, dtype=np.int64),
        np.empty(kinds, dtype=np.int64),
    )


@part
def _take(queue: Any, at: Any) -> bool:
    """Take the next piece; return False if there is none."""
    number = next_number(queue.begun)
    if queue.ends.size:
        if number >= queue.ends.size:
            return False
        at[FIRST], at[END] = queue.ends[number - 1] if number else 0, queue.ends[number]
    else:
        if number * queue.size >= queue.rows.size:
            return False
        at[FIRST], at[END] = number * queue.size, min((number + 1) * queue.size, queue.rows.size)
    at[NEXT], at[TREE] = at[FIRST], _NEW
    return True


@part
def _take_states(queue: Any, first: int, end: int, states: Any) -> None:
    """Write the states of rows of the queue, int64 [variables, rows], -1 for unobserved."""
    for v in range(states.shape[0]):
        for i in range(states.shape[1]):
            states[v, i] = -1
    take_states(queue.columns, queue.rows[first:end], queue.variables, states)


@loops
def answer_alone(
    factors: Any, zeros: Any, queue: Any, asked: Any, room: Any, piece: Any, pieces: int, results: Any
) -> bool:
    """Answer rows with a tree each until no other waits.

    factors, zeros, room: of `propagate.answer_rows`.
    queue: Queue without groups.
    asked: Asked.
    piece: PieceMemory, with room for those of the queue.
    pieces: that this call takes at most.
    results: Results.
    Returns False behind that many pieces, and at a row that the arena is too small for, whose tree is planned; the
    caller enlarges it, or goes on with the next row.
    """
    at, variables, taken = piece.at, asked.wanted.size, 0
    while True:
        if at[FIRST] == at[END]:
            if taken == pieces:
                return False
            if not _take(queue, at):
                return True
            taken += 1
        first, end = at[FIRST], at[END]
        count = end - first
        states = piece.states[: count * variables].reshape((count, variables))
        posteriors = piece.posteriors[: count * asked.width].reshape((count, asked.width))
        columns = variables if piece.explained.size else 0
        explanations = piece.explained[: count * columns].reshape((count, columns))
        if at[NEXT] == first:
            _take_states(queue, first, end, states.T)
        evidence = states, queue.soft[first:end], queue.likelihoods[first:end], queue.places
        written = posteriors, results.log_values[first:end], results.status[first:end], explanations
        done = answer_rows(factors, zeros, evidence, asked.wanted, asked.starts, at[NEXT] - first, room, written)
        at[NEXT] = first + done
        if at[NEXT] < end:
            return False
        if columns:
            status, rows = results.status[first:end], queue.rows[first:end]
            write_row_states(explanations, status, rows, asked.targets, results.explained)
        else:
            _write(queue, asked, first, end, asked.width, 1, piece.posteriors, results)
        at[FIRST] = end


def is_compiled() -> bool:
    """Return True if this process or the disk has the code of rows with a tree each."""
    return bool(answer_alone.overloads) or answer_alone._cache.has_any


@loops
def answer_shared(
    factors: Any,
    queue: Any,
    asked: Any,
    memory: Any,
    piece: Any,
    pieces: int,
    block_rows: int,
    most: int,
    needs: Any,
    results: Any,
) -> bool:
    """Answer rows that share trees until no other waits; rows without an answer keep their status.

    factors: of the network; means and weights are those of the tree in memory, or written with that of a group.
    queue: Queue; without groups all rows are on the tree in memory.
    asked: Asked.
    memory: Tree of the rows, Lanes, and int64 [numbers] for the states of a block.
    piece: PieceMemory, with room for those of the queue.
    pieces: that this call takes at most.
    block_rows: rows of a block at most, where there are no groups.
    most: entries of messages at most.
    needs: int64 [NEEDS], written where the memory is too small: lengths that it must have, those of rows and of the
        states of a block 0 where these are large enough.
    results: Results.
    Returns False behind that many pieces, and where the memory is too small; goes on there when it is called again.
    """
    tree, lanes, block = memory
    at, variables, taken = piece.at, asked.wanted.size, 0
    needs[:] = 0
    while True:
        if at[FIRST] == at[END]:
            if taken == pieces:
                return False
            if not _take(queue, at):
                return True
            taken += 1
        first, end = at[FIRST], at[END]
        size = block_rows
        if queue.ends.size:
            if at[TREE] == _NEW:
                _count(queue, first, end, piece)
            if at[TREE] != PLANNED:
                at[TREE] = PLANNED
                if not _plan(factors, asked, end - first, tree, piece):
                    at[NEXT] = end
            size = _rows_of_block(factors, tree, most)
            # Fewer rows than a vector has lanes are faster one by one.
            if not is_worth_it(end - first, size):
                at[NEXT] = at[FIRST] = end
                continue
        fitting = min(size, end - first)
        if at[NEXT] < end and (fitting > lanes.every.size or variables * fitting > block.size):
            needs[NEED_ROWS], needs[NEED_BLOCK] = fitting, variables * fitting
            return False
        count = end - first
        posteriors = piece.posteriors[: asked.width * count].reshape((asked.width, count))
        soft = queue.soft[first:end], queue.likelihoods[first:end], queue.places
        written = posteriors, results.log_values[first:end], results.status[first:end]
        while at[NEXT] < end:
            start = at[NEXT]
            rows = min(size, end - start)
            states = block[: variables * rows].reshape((variables, rows))
            _take_states(queue, start, start + rows, states)
            if not lay_out(factors, states, tree, lanes, needs):
                return False
            answer_lanes(factors, states, soft, start - first, asked.wanted, asked.starts, tree, lanes, written)
            at[NEXT] = start + rows
        _write(queue, asked, first, end, 1, count, piece.posteriors, results)
        at[FIRST] = end


@part
def _count(queue: Any, first: int, end: int, piece: Any) -> None:
    """Count the rows of a group that observe each variable, and find the kinds of likelihoods that one of them has."""
    common, kinds = piece.common, piece.kinds
    count_observed(queue.columns, queue.rows[first:end], queue.variables, common)
    kinds[:] = -1
    for kind in range(kinds.size):
        for i in range(first, end):
            kinds[kind] = max(kinds[kind], queue.soft[i, kind])


@part
def _plan(factors: Any, asked: Any, rows: int, tree: Any, piece: Any) -> bool:
    """Plan the tree of the rows of a group, and write their means and weights; return False if it is too large."""
    common = piece.common
    for v in range(common.size):
        share = common[v] / rows
        # Which state is observed does not change a tree.
        common[v] = (LOOSE if share < 1 else 0) if share > 0 else -1
        factors.means[v] = factors.cards[v] - (factors.cards[v] - 1) * share
        factors.weights[v] = np.int64(np.rint(np.log2(factors.means[v]) * UNITS_PER_BIT))
    find_relevant(factors, common, piece.kinds, asked.wanted, tree)
    return bool(plan_relevant(factors, piece.kinds, asked.wanted, rows, tree))


@part
def _rows_of_block(factors: Any, tree: Any, most: int) -> int:
    """Return how many rows of the tree in memory are computed together at most; most: entries of messages at most."""
    entries, tables, mixed = tree.nodes.work[MEAN_ENTRIES], float(tree.nodes.counts[TABLES]), False
    for v in range(factors.means.size):
        mixed |= factors.means[v] != 1 and factors.means[v] != factors.cards[v]
    rows = balanced_rows(entries, tables, mixed)
    if not mixed and rows >= WIDTH:
        rows = unaliased(rows)
    return int(min(rows, most // 2 // max(1.0, entries)))


@part
def _write(
    queue: Any, asked: Any, first: int, end: int, by_row: int, by_entry: int, posteriors: Any, results: Any
) -> None:
    """Write the posteriors of the rows of a piece that have an answer.

    first, end: rows of the queue.
    by_row, by_entry: strides of the rows and entries of `posteriors`.
    """
    rows, status = queue.rows[first:end], results.status[first:end]
    # Both in one signature: code for each would take as long again to compile.
    if results.doubles.size:
        write_rows(posteriors, by_row, by_entry, status, rows, asked.places, results.doubles)
    elif results.singles.size:
        write_rows(posteriors, by_row, by_entry, status, rows, asked.places, results.singles)
