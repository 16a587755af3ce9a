"""Exact counts of the work that each technique of planning saves: the same query is planned without it.

Main function: `count_savings`, called by the command line for `inspect`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from junctor.planning.compile import DEFAULT_ROWS, Problem, cheapest_plan, lay_out
from junctor.planning.junction_tree import junction_tree
from junctor.planning.shape import Pattern, Shape

# Most operands of messages without binary joins: a clique of a thousand neighbours has a million of them.
MOST_NEIGHBOURS_SQUARED = 1_000_000


@dataclass(frozen=True, slots=True)
class Saving:
    """Multiply-adds of one case without one technique (`before`) and with all of them (`after`)."""

    name: str
    before: int
    after: int


def count_savings(
    shape: Shape,
    pattern: Pattern,
    targets: Iterable[int] | None = None,
    explain: bool = False,
    rows: int = DEFAULT_ROWS,
) -> list[Saving]:
    """Return the saving of each technique that applies, in the order in which planning applies them.

    The parameters are those of `compile_plan`. Nothing is propagated, however large the plans are.
    """
    problem = Problem(shape, pattern, None if targets is None else frozenset(targets), explain)
    order, plan = cheapest_plan(problem, rows)
    unsliced = Pattern(frozenset(), pattern.sliced | pattern.weighted)
    # The same evidence as likelihoods: no variable leaves the graph.
    before = {"evidence cut out before triangulation": _planned(replace(problem, pattern=unsliced), rows)}
    if problem.relevant() != replace(problem, drops_barren=False).relevant():
        before["barren variables dropped"] = _planned(replace(problem, drops_barren=False), rows)
    if sum(len(below) ** 2 for below in junction_tree(order, shape).children()) <= MOST_NEIGHBOURS_SQUARED:
        before["cliques of many neighbours joined in pairs"] = lay_out(problem, order, joins=False).case_operations
    before["operands contracted in pairs"] = lay_out(problem, order, paths=False).case_operations
    before["messages without evidence done once"] = plan.operations
    # Each technique is left out alone; savings overlap and do not add up.
    return [Saving(name, operations, plan.case_operations) for name, operations in before.items()]


def _planned(problem: Problem, rows: int) -> int:
    return cheapest_plan(problem, rows)[1].case_operations
