"""Posteriors of a block, copied from tables with the case axis innermost to answers case by case (Numba)."""

from __future__ import annotations

from typing import Any

from junctor_kernels.cpu.jit import part


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
