"""Counts of a plan that is not bound to numbers yet, and of the tree that the row engine makes of a pattern."""

from __future__ import annotations

from junctor.cost.figures import Figures
from junctor.planning.plan import Plan

# Most cases of a block in NumPy.
MOST_CASES = 2048

PLAN_WORK = ("calls", "steps", "operations", "entries", "answers")
# Of a row: multiply-adds of its tree, and tables.
TREE_WORK = ("operations", "tables")


def plan_counts(*counts: float) -> dict[str, float]:
    """Return PLAN_WORK of counts in its order."""
    return dict(zip(PLAN_WORK, map(float, counts), strict=True))


def plan_work(plan: Plan, steps: int, lanes: int, rows: int) -> dict[str, float]:
    """Return PLAN_WORK of `rows` cases.

    plan: what they are propagated through.
    steps: of a block; on a GPU its launches.
    lanes: cases of a block.
    rows: cases.
    """
    lanes = max(1, lanes)
    blocks = -(-rows // lanes)
    entries = sum(table.entries for table in plan.tables if table.per_case)
    answers = sum(plan.shape.cardinalities)
    counts = (1, steps * blocks, plan.case_operations * blocks * lanes, entries * blocks * lanes, answers * rows)
    # Capped, because integers of any size do not fit a float.
    return plan_counts(*(min(count, 10**300) for count in counts))


def plain_seconds(plan: Plan, figures: Figures, rows: int = MOST_CASES) -> float:
    """Return the seconds that a case takes in NumPy: its operations, and what scales and bounds take of its tables.

    rows: of the plan; those of a block share its steps.
    """
    entries = sum(table.entries for table in plan.tables if table.per_case)
    numpy = figures.numpy
    # Capped, because integers of any size do not fit a float.
    numbers = min(plan.case_operations, 10**30) * numpy.operation + min(entries, 10**30) * numpy.entry
    return numbers + len(plan.steps) * numpy.step / max(1, min(rows, MOST_CASES))
