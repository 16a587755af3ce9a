"""Posteriors on their way to the answers of a batch, where each target has a table of its own, and states (Numba).

Main functions: `write_posteriors` and `write_states` of a block of cases, `write_rows` and `write_row_states` of rows
with trees, `clear_rows` of rows that are impossible.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from junctor_kernels.cpu.jit import gradual, loops, part


@part
def write_posteriors(posteriors: Any, states: Any, places: Any, rows: Any, answers: Any) -> None:
    """Write the posteriors of a block to its `rows` of the answers.

    posteriors: [entries, cases].
    states: int64 [variables, cases].
    places: int64 [targets, 4], `junctor.model.answers.sources_of`: whether the variable is observed, its first row of
        `posteriors` or else its row of `states`, its number of states, and the sum of those of all targets before.
    rows: int64 [cases].
    answers: flat, [all rows, states] of one target after the other.
    """
    # Offset and size of the last target give the width of a row.
    every = places[-1, 2] + places[-1, 3]
    total = answers.size // every
    for n in range(places.shape[0]):
        row, size, first = places[n, 1], places[n, 2], places[n, 3] * total
        for b in range(rows.size):
            at = first + rows[b] * size
            if places[n, 0]:
                for e in range(size):
                    answers[at + e] = 0
                answers[at + states[row, b]] = 1
            else:
                for e in range(size):
                    answers[at + e] = posteriors[row + e, b]


@part
def write_states(states: Any, places: Any, rows: Any, answers: Any) -> None:
    """Write the states of the explanations of a block to its `rows` of the answers.

    states: int64 [variables, cases].
    places: int64 [targets, 1], their rows of `states`.
    rows: int64 [cases].
    answers: int32 [targets, all rows].
    """
    for n in range(places.shape[0]):
        for b in range(rows.size):
            answers[n, rows[b]] = states[places[n, 0], b]


@part
def write_row_states(states: Any, status: Any, rows: Any, targets: Any, answers: Any) -> None:
    """Write the states of the explanations of some rows.

    states: int32 [n, variables].
    status: int64 [n], 0 for rows that have an answer; others are not written.
    rows: int64 [n], their rows of the batch.
    targets: int64 [targets], variables.
    answers: int32 [targets, all rows].
    """
    for n in range(targets.size):
        for i in range(rows.size):
            if status[i] == 0:
                answers[n, rows[i]] = states[i, targets[n]]


@part
def write_rows(posteriors: Any, by_row: int, by_entry: int, status: Any, rows: Any, places: Any, answers: Any) -> None:
    """Write the posteriors of some rows.

    posteriors: float64, flat.
    by_row, by_entry: strides of their rows and entries.
    status, rows: of `write_row_states`.
    places: int64 [targets, 3], first entry of the posterior, number of states, and the sum of those of all targets
        before.
    answers: flat, [all rows, states] of one target after the other.
    """
    if not places.shape[0]:
        return
    total = answers.size // (places[-1, 1] + places[-1, 2])
    for n in range(places.shape[0]):
        start, size, first = places[n, 0], places[n, 1], places[n, 2] * total
        for i in range(rows.size):
            if status[i] == 0:
                at, source = first + rows[i] * size, i * by_row + start * by_entry
                for e in range(size):
                    answers[at + e] = posteriors[source + e * by_entry]


@gradual
@loops
def clear_rows(rows: Any, sizes: Any, answers: Any) -> None:
    """Set the posteriors of some rows to nan: rows without an answer have no numbers, and bytes must not vary.

    rows: int64 [n], ascending, of the batch.
    sizes: int64 [targets], numbers of states.
    answers: of `write_rows`.
    """
    total, first = answers.size // sizes.sum(), 0
    for size in sizes:
        i = 0
        while i < rows.size:
            # Rows that follow each other are one piece of memory.
            end = i + 1
            while end < rows.size and rows[end] == rows[end - 1] + 1:
                end += 1
            for at in range(first + rows[i] * size, first + (rows[end - 1] + 1) * size):
                answers[at] = np.nan
            i = end
        first += total * size
