"""Prices of rows before any of them is planned, in seconds of one core; asked for by the choice of groups.

What a row takes was measured (`cost.model`); the constants (`cost.constants`) are coarse, good to a factor of two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from junctor.cost.constants import CPU
from junctor.engine.patterns import PatternPricer, Patterns, spread
from junctor.evidence.batch import EvidenceBatch
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern

if TYPE_CHECKING:
    from junctor.backends.row_trees import RowEngine

# Entry operations of a tree of the row engine, entries of its messages, and tables.
Work = tuple[float, float, float]

# Preparation of a plan; tests replace them.
PLAIN_VARIABLE_SECONDS = CPU.numpy_variable
ONCE_TABLE_SECONDS = CPU.compiling_table
ONCE_ENTRY_SECONDS = CPU.compiling_entry
# Rows that are looked at for what one with a tree of its own takes.
SAMPLED_ROWS = 6


def plain_seconds(plan: Plan) -> float:
    """Return the seconds that a case takes in NumPy: its operations, and what scales and bounds take of its tables."""
    entries = sum(table.entries for table in plan.tables if table.per_case)
    # Capped, because integers of any size do not fit a float.
    return min(plan.case_operations, 10**30) * CPU.numpy_operation + min(entries, 10**30) * CPU.numpy_entry


def plain_prices(plan: Callable[[Pattern], Plan], variables: int, fits: Callable[[Pattern], bool]) -> PatternPricer:
    """Return prices from plans, for batches that are not worth loading compiled code for."""
    return PatternPricer(
        row=lambda pattern: plain_seconds(plan(pattern)),
        once=lambda pattern: (variables - len(pattern.sliced)) * PLAIN_VARIABLE_SECONDS,
        fits=fits,
    )


def compiled_prices(
    work: Callable[[Pattern], Work],
    allowed: int,
    per_row: float,
    coefficients: tuple[float, float],
    likelihood: float = CPU.likelihood,
    planned: tuple[float, float] | None = None,
) -> PatternPricer:
    """Return prices from the trees of the row engine, which take a millisecond to build.

    work: entry operations, entries and number of the tables of such a tree.
    allowed: bytes of a plan.
    per_row: seconds of a row with a tree of its own, infinite where that cannot be.
    coefficients: seconds of an entry operation and of a table.
    likelihood: seconds of a cell that enters as one.
    planned: seconds of a table and of an entry, to make a plan; None for one of compiled blocks.
    """

    def row(pattern: Pattern) -> float:
        operations, _, tables = work(pattern)
        likelihoods = len(pattern.weighted) * likelihood
        return operations * coefficients[0] + tables * coefficients[1] + likelihoods

    def once(pattern: Pattern) -> float:
        _, entries, tables = work(pattern)
        table, entry = planned or (ONCE_TABLE_SECONDS, ONCE_ENTRY_SECONDS)
        return tables * table + entries * entry

    # Messages in double precision; a plan takes about as much for a single case.
    return PatternPricer(row, once, lambda pattern: work(pattern)[1] * 8 < allowed, per_row, CPU.pattern_mark)


def row_tree_seconds(rows: RowEngine, patterns: Patterns, batch: EvidenceBatch) -> float:
    """Return the seconds of a row with a tree of its own, the mean over some of the rows of a batch."""
    from junctor.evidence.compiled_cells import evidence_cells

    return rows.seconds_alone(rows.works_alone(evidence_cells(batch), spread(patterns.rows, SAMPLED_ROWS)))
