"""Rows of a plan on blocks of cases, in compiled code, with cases in the lanes of vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from junctor_kernels.tables.reference import LOG

from junctor.backends.plan_memory import LANE_BYTES, ProgramCache
from junctor.cost import policy
from junctor.cost.features.plans import plain_seconds, plan_work
from junctor.evidence.batch import EvidenceBatch, Rows
from junctor.evidence.patterns import PatternGroup
from junctor.model.answers import Answers
from junctor.model.strategies import Strategy
from junctor.planning.plan import Plan
from junctor.strategies.facts import Facts
from junctor.strategies.number_ladder import answer_rows
from junctor.strategies.plan_rows import MOST_OPERATIONS, on_cores, once_seconds, prepared, with_seconds
from junctor.strategies.strategy import Allowance, Offer, Price, Route, Run, Way

# Tables of a tree from which on rows never get a plan: those are made in Python, and lowered in more than linear time.
MOST_PLANNED_TABLES = 50_000
# Share of the last cache up to which a usual table of the smallest block stays near. barley, pigs, munin2 and grids
# with likelihoods.
CACHE_SHARE = 1 / 16


class BlocksRows(Way):
    """One plan, block by block."""

    name = Strategy.CPU_BLOCKS

    def offer(self, group: PatternGroup, batch: EvidenceBatch, facts: Facts) -> Offer | str:
        """By the tree of the pattern: coefficients were measured."""
        work = facts.work(group.pattern)
        if work.tables > MOST_PLANNED_TABLES:
            return "its tables are too many or too large to plan for"
        planning = facts.figures.planning
        once = work.tables * planning.table + work.entries * planning.entry + facts.figures.loading.blocks
        operation, table = facts.cpu_costs.coefficients["cpu"].row
        row = work.operations * operation + work.tables * table
        slower = _slower(facts)
        return Offer(group, Price(facts.figures.loading.trees, once, slower * row))

    def with_plan(self, group: PatternGroup, batch: EvidenceBatch, facts: Facts) -> Price:
        """Return the price by the plan, as of `EntriesRows.with_plan`."""
        rows = facts.uses(group, batch)
        plan, memory = facts.plan(group.pattern, rows), facts.plan_memory(group.pattern, rows)
        slower = _slower(facts)
        lanes = memory.padded(min(len(group.rows), rows)) if rows < memory.lane else rows
        once = once_seconds(plan, facts.figures) + len(plan.steps) * facts.figures.planning.lowering_step
        case = min(plan.case_operations, MOST_OPERATIONS) * facts.figures.blocks.operation * slower
        return Price(facts.figures.loading.blocks, once, lanes * case / rows)

    def uncached(self, group: PatternGroup, batch: EvidenceBatch, facts: Facts) -> float:
        """Return the seconds of a row of a plan whose messages leave the cache, 0 for other plans."""
        uses = facts.uses(group, batch)
        if facts.plan_memory(group.pattern, uses).usual_entries * LANE_BYTES <= CACHE_SHARE * facts.cpu_costs.cache:
            return 0.0
        operations = min(facts.plan(group.pattern, uses).case_operations, MOST_OPERATIONS)
        return operations * facts.row_engine.above_zero * facts.figures.blocks.uncached_operation

    def prepare(self, group: PatternGroup, uses: int, batch: EvidenceBatch, facts: Facts, room: Allowance) -> Route:
        """Blocks as large as memory and caches allow."""
        route = prepared(self.name, group, uses, facts, room, blocks=True)
        assert route.sizes is not None
        if not route.sizes.lanes:
            needed = facts.plan_memory(group.pattern, uses).least_in_blocks
            raise room.budget.refuse(needed, "a block of cases in compiled code", "allow more memory")
        reason = f"compiled, blocks of {route.sizes.lanes:,} cases: worth the loading and lowering"
        return replace(route, reason=facts.reason(self.name, reason))

    def forecast(self, route: Route, batch: EvidenceBatch, facts: Facts, bound: int) -> Route:
        """By the steps of the plan or, where it is bound, by its loops."""
        assert route.plan is not None
        return with_seconds(
            route, self._seconds(route, route.plan, facts, route.plan.case_operations <= bound), facts.figures
        )

    def _seconds(self, route: Route, plan: Plan, facts: Facts, bind: bool) -> float:
        sizes, rows = route.sizes, len(route.group.rows)
        assert sizes is not None
        if not bind and rows * plain_seconds(plan, facts.figures, rows) < policy.FITTED_FORECAST:
            return rows * plain_seconds(plan, facts.figures, rows)
        # Blocks of explanations have other loops, which were not measured.
        if facts.explains:
            return min(rows * plan.case_operations, MOST_OPERATIONS) * facts.figures.blocks.operation
        if not bind:
            return facts.costs.seconds("cpu", plan_work(plan, len(plan.steps), sizes.lanes, rows))
        programs = ProgramCache(facts.plan_network(plan.pattern), plan, facts.ladder, sizes.memory)
        programs.use(sizes)
        program = programs.compiled()
        return math.nan if program is None else facts.costs.seconds("cpu", program.work(rows))

    def answer(self, work: Sequence[Route], batch: EvidenceBatch, answers: Answers, run: Run) -> Rows:
        """In blocks of cases, side by side."""
        left = []
        for route in work:
            program = run.program(route, batch)
            left.append(answer_rows(program, batch, route.group.rows, answers, partial(on_cores, program)))
        return np.concatenate(left)


def _slower(facts: Facts) -> float:
    """Return how many times as long as a sum in double precision the loops of a question take."""
    ratios = facts.figures.ratios
    return ratios.blocks_maximum if facts.explains else ratios.blocks_log if facts.ladder[0] is LOG else 1.0


WAY = BlocksRows()
