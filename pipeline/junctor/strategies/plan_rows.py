"""Rows of a plan: its place in memory, its seconds, and its run; of the strategies that have one in one piece."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from junctor_kernels.tables.reference import LOG, MAX_LOG, Algebra

from junctor.backends.evidence_blocks import write_tables
from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.backends.plan_memory import PlanMemory, ProgramCache
from junctor.cost.features.plans import plain_seconds
from junctor.cost.figures import Figures
from junctor.evidence.batch import Rows
from junctor.evidence.patterns import PatternGroup
from junctor.model.answers import Answers
from junctor.model.strategies import Strategy
from junctor.planning.plan import Plan
from junctor.strategies.facts import Facts, PlanKey
from junctor.strategies.number_ladder import BlockExecutor
from junctor.strategies.strategy import Allowance, MemoryUse, Route

if TYPE_CHECKING:
    from junctor.backends.cpu import CompiledProgram

# Programs (plans with their numbers) that are kept for the next batch.
KEPT_PROGRAMS = 256
# Capped, because integers of any size do not fit a float: from there on it is forever anyway.
MOST_OPERATIONS = 10**30


def unprepared(strategy: Strategy, group: PatternGroup, uses: int, facts: Facts, room: Allowance) -> Route:
    """Return the route of a plan before its sizes are known, which shows what it needs at the least."""
    plan, memory = facts.plan(group.pattern, uses), facts.plan_memory(group.pattern, uses)
    needed = memory.least + room.budget.reserved
    use = MemoryUse(facts.allowed, room.budget.reserved, needed, needed)
    operations = plan.shared_operations + len(group.rows) * plan.case_operations
    return Route(group, strategy, "refused", use, uses, plan, operations=operations)


def prepared(
    strategy: Strategy,
    group: PatternGroup,
    uses: int,
    facts: Facts,
    room: Allowance,
    blocks: bool,
    compiled: bool = True,
) -> Route:
    """Return the route of a plan in one piece; raises BudgetError where not one case fits.

    blocks: whether cases go in compiled blocks.
    compiled: whether compiled code contracts over entries where they do not.
    """
    route, budget = unprepared(strategy, group, uses, facts, room), room.budget
    memory = facts.plan_memory(group.pattern, uses)
    free = budget.free - give_way(room.kept, facts.key(group.pattern, uses), memory, budget.free)
    sizes = memory.fit(budget, free, len(group.rows), uses if compiled else 0, facts.threads, facts.working, blocks)
    projected = sizes.projected(facts.ladder[0].dtype.itemsize) + budget.reserved
    use = replace(route.memory, projected=min(facts.allowed, projected))
    return replace(route, memory=use, sizes=sizes)


def give_way(kept: MutableMapping[PlanKey, int], key: PlanKey, memory: PlanMemory, free: int) -> int:
    """Drop the oldest programs until one more fits `free` bytes; returns the fixed bytes of the others.

    kept: fixed bytes of the programs; afterwards with the new one, which is then the youngest.
    """
    kept.pop(key, None)
    others = sum(kept.values())
    while kept and (others + memory.least > free or len(kept) >= KEPT_PROGRAMS):
        others -= kept.pop(next(iter(kept)))
    kept[key] = memory.fixed
    return others


def once_seconds(plan: Plan, figures: Figures) -> float:
    """Return the seconds of what all rows of a plan share, in NumPy on any backend."""
    return min(plan.shared_operations, MOST_OPERATIONS) * figures.numpy.operation


def numpy_seconds(plan: Plan, rows: int, algebra: Algebra, figures: Figures) -> float:
    """Return the seconds of so many rows of a plan in NumPy."""
    return (once_seconds(plan, figures) + rows * plain_seconds(plan, figures, rows)) * (
        figures.ratios.numpy_log if algebra is LOG else 1
    )


def with_seconds(route: Route, seconds: float, figures: Figures) -> Route:
    """Return the route of a plan with its forecast; seconds: of its rows on their backend."""
    plan = route.plan
    assert plan is not None
    work = {"operations": float(min(route.operations, MOST_OPERATIONS)), "steps": float(len(plan.steps))}
    return replace(route, seconds=once_seconds(plan, figures) + route.rows * figures.files.row + seconds, work=work)


@dataclass(slots=True)
class InNumPy:
    """A program in NumPy."""

    run: Callable[[EvidenceBlock], BlockOutcome]
    cases: int
    threads: int = 1

    def cases_at_once(self, rows: int) -> int:
        """Return the cases of a block."""
        return self.cases

    def prepare(self, block: EvidenceBlock, rows: Rows, answers: Answers, place: int) -> Callable[[], BlockOutcome]:
        """Return what answers a block."""

        def answer() -> BlockOutcome:
            outcome = self.run(block)
            write_tables(outcome, block, rows, answers)
            return outcome

        return answer


def in_numpy(prepared: ProgramCache, algebra: Algebra, rows: int) -> InNumPy:
    """Return what runs a program in a number format in NumPy."""
    program = prepared.program(algebra)
    run = program.explain if prepared.ladder[0] is MAX_LOG else program.run
    return InNumPy(run, prepared.sizes.cases(algebra.dtype.itemsize))


def on_cores(prepared: ProgramCache, algebra: Algebra, rows: int) -> BlockExecutor:
    """Return what answers so many rows in a number format: compiled blocks, or NumPy where few rows climbed to it."""
    faster = prepared.compiled_for(algebra, rows)
    if faster is None:
        return in_numpy(prepared, algebra, rows)
    # Evidence that is copied for compiled code is copied in parts, side by side.
    return faster if prepared.plan.pattern.weighted else _Sharing(faster)


class _Sharing:
    """A program of compiled code whose threads share all blocks of a group, without Python between them."""

    threads = 1

    def __init__(self, program: CompiledProgram) -> None:
        self._program = program
        self.cases = program.cases * program.threads

    def cases_at_once(self, rows: int) -> int:
        return rows

    def prepare(self, block: EvidenceBlock, rows: Rows, answers: Answers, place: int) -> Callable[[], BlockOutcome]:
        return lambda: self._program.share(block, rows, answers)
