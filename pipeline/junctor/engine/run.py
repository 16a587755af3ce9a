"""The loop over the groups of a batch: each is routed and answered, and what is left of it gets a plan.

Main class: BatchRun, made by the engine for a batch.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from junctor.backends.plan_memory import ProgramCache
from junctor.engine.choose import by_plan, estimate, has_plan, lacking, may_take_long, route_of
from junctor.evidence.batch import EvidenceBatch, Rows
from junctor.evidence.patterns import PatternGroup, patterns_of
from junctor.model.answers import Answers, table_bytes, unanswered
from junctor.model.errors import InputError
from junctor.model.strategies import Strategy
from junctor.planning.budget import Budget
from junctor.runtime.buffer_pool import fresh
from junctor.strategies.facts import Facts, PlanKey
from junctor.strategies.gpu_room import GpuRoom
from junctor.strategies.registry import way
from junctor.strategies.strategy import Allowance, Route

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import BlockDevice


@dataclass
class BatchRun:
    """Answers groups of rows of one batch.

    facts: that they were chosen by.
    device: the GPU that answers rows, if one does.
    budget: in addition to the answers to the batch.
    programs: kept from batch to batch, the oldest first.
    full: rows of a batch and of a full one; the last of a run may have fewer.
    first_row: number of the first row of the batch, which random numbers depend on.
    """

    facts: Facts
    device: BlockDevice | None
    budget: Budget
    programs: MutableMapping[PlanKey, ProgramCache]
    full: tuple[int, int]
    first_row: int = 0

    @property
    def gpu(self) -> GpuRoom | None:
        """What the GPU has room for."""
        return None if self.device is None else GpuRoom.of(self.device)

    @property
    def free(self) -> int:
        """Bytes of the budget beside programs."""
        return self.budget.free - sum(self._fixed().values())

    @property
    def beside_trees(self) -> int:
        """Bytes of the budget beside programs, and messages that row trees hold."""
        return self.free - sum(8 * row_engine.held for row_engine in self.facts.store.row_engines.values())

    def answer(
        self, groups: Sequence[PatternGroup], batch: EvidenceBatch, answers: Answers, counted: bool = True
    ) -> None:
        """Write the answers to the rows of groups.

        counted: whether they count as answered by their strategies; rows that are left over do already.
        """
        for work in in_order(groups):
            routes = [self.route(group, batch) for group in work]
            for route in routes if counted else ():
                answers.ways[route.strategy.value] += route.rows
            self.execute(routes, batch, answers)

    def execute(self, routes: Sequence[Route], batch: EvidenceBatch, answers: Answers) -> None:
        """Write the answers to the rows of routes of one strategy; what is left of them gets a plan."""
        strategy = routes[0].strategy
        # Choices know the prices of sums and tracebacks alone: what else is needed would be answered as one of these.
        if (why := lacking(strategy, self.facts)) is not None:
            raise InputError(f"{why}: ask for another strategy")
        left = way(strategy).answer(routes, batch, answers, self)
        if left.size:
            again = [by_plan(group, batch, self.facts) for group in patterns_of(batch).exact(left)]
            self.answer(again, batch, answers, counted=False)

    def route(self, group: PatternGroup, batch: EvidenceBatch, uses: int | None = None) -> Route:
        """Return how a group is answered; raises BudgetError where it is refused."""
        if group.strategy is not None and not has_plan(group.strategy) and self.facts.time_limit is None:
            return way(group.strategy).prepare(
                group, 1, batch, self.facts, Allowance(self.budget, self.gpu, self._fixed())
            )
        kept = self._fixed()
        with self.facts.store.lock:
            if group.strategy is None:
                group = by_plan(group, batch, self.facts)
            route = route_of(group, batch, self.facts, Allowance(self.budget, self.gpu, kept), uses)
        if route.refused is None and may_take_long(route, self.facts):
            route = estimate(self.facts, route, batch)
        if route.refused is not None:
            raise route.refused
        # What the route has no room for goes before its rows are answered, or both would be in memory at once.
        for key in self.programs.keys() - kept.keys() if self.programs else ():
            del self.programs[key]
        return route

    def program(self, route: Route, batch: EvidenceBatch) -> ProgramCache:
        """Return the plan of a route ready to run on rows of a batch."""
        assert route.plan is not None
        assert route.sizes is not None
        facts = self.facts
        key = facts.key(route.group.pattern, route.uses)
        program = self.programs.pop(key, None)
        if program is None:
            network = facts.plan_network(route.group.pattern)
            program = ProgramCache(network, route.plan, facts.ladder, route.sizes.memory)
        device = self.device if route.strategy is Strategy.GPU_BLOCKS else None
        # Blocks may differ from those of the last batch: fewer rows, or less memory left by the answers.
        program.use(route.sizes, device, facts.costs if device is not None else None, self.full)
        self.programs[key] = program
        return program

    def possible(self, rows: Rows, batch: EvidenceBatch, answers: Answers) -> Rows:
        """Answer the impossible ones among rows in doubt, and return the others."""
        if not rows.size:
            return rows
        # Imported where rows are in doubt: with it comes compiled code.
        from junctor.backends.impossibility import answer_impossible

        return answer_impossible(self.facts.network, batch, rows, answers, self.beside_trees, self.facts.threads)

    def explain_in_one_piece(self, route: Route, batch: EvidenceBatch) -> dict[int, int]:
        """Return the states that explain the only row of a batch."""
        facts = self.facts
        # Of all variables, whatever the targets are.
        everything, sizes = tuple(range(len(facts.network.variables))), facts.network.cardinalities
        memory = fresh(table_bytes(facts.query, everything, sizes, 1))
        answers = unanswered(facts.query, everything, sizes, 1, {}, memory)
        # On the CPU: one row of what is left of a plan.
        BatchRun(facts, None, self.budget, self.programs, (1, 1)).execute([route], batch, answers)
        self.programs.pop(facts.key(route.group.pattern, route.uses), None)
        return {v: int(states[0]) for v, states in answers.states.items()}

    def _fixed(self) -> dict[PlanKey, int]:
        return {key: program.memory.fixed for key, program in self.programs.items()}


def in_order(groups: Sequence[PatternGroup]) -> list[list[PatternGroup]]:
    """Return the groups that are answered in one call each, in their order."""
    if len(groups) == 1:
        return [list(groups)]
    result: list[list[PatternGroup]] = []
    for _, some in groupby(sorted(groups, key=_place), key=_place):
        alike = list(some)
        result.extend([alike] if way(_strategy(alike[0])).together else ([group] for group in alike))
    return result


def _place(group: PatternGroup) -> tuple[bool, str]:
    # What goes together comes last, when programs have taken their memory.
    strategy = _strategy(group)
    return way(strategy).together, strategy.value


def _strategy(group: PatternGroup) -> Strategy:
    assert group.strategy is not None
    return group.strategy
