"""What a plan does not have to do, as exact counts: the same question planned without each of the savings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from junctor.planning.compile import DEFAULT_ROWS, Problem, cheapest_plan, lay_out
from junctor.planning.elimination import EliminationOrder
from junctor.planning.junction_tree import junction_tree
from junctor.planning.shape import Pattern, Shape

# A clique with a thousand neighbours, unsplit, has a million operands in its messages: such plans are not laid out.
MOST_NEIGHBOURS_SQUARED = 1_000_000


@dataclass(frozen=True, slots=True)
class Saving:
    """Entry operations of a case without a saving (and with all others), and with all of them."""

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
    """Return what each saving of the plan for these arguments of `compile_plan` is worth, in the order they apply.

    Plans only: nothing is propagated, however large the plans without a saving are.
    """
    problem = Problem(shape, pattern, None if targets is None else frozenset(targets), explain)
    order, plan = cheapest_plan(problem, rows)
    unsliced = Pattern(frozenset(), pattern.sliced | pattern.weighted)
    before = {"evidence cut out before triangulation": _planned(replace(problem, pattern=unsliced), rows)}
    if problem.relevant() != replace(problem, drops_barren=False).relevant():
        before["barren variables dropped"] = _planned(replace(problem, drops_barren=False), rows)
    if _neighbours_squared(problem, order) <= MOST_NEIGHBOURS_SQUARED:
        before["cliques of many neighbours joined in pairs"] = lay_out(problem, order, joins=False).case_operations
    before["operands contracted in pairs"] = lay_out(problem, order, paths=False).case_operations
    before["messages without evidence done once"] = plan.case_operations + plan.shared_operations
    return [Saving(name, operations, plan.case_operations) for name, operations in before.items()]


def _neighbours_squared(problem: Problem, order: EliminationOrder) -> int:
    return sum(len(below) ** 2 for below in junction_tree(order, problem.shape).children())


def _planned(problem: Problem, rows: int) -> int:
    return cheapest_plan(problem, rows)[1].case_operations
