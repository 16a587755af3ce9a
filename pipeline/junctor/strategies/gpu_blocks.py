"""Rows of a plan on blocks of cases on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from junctor_kernels.tables.reference import Algebra

from junctor.backends.numpy import Program
from junctor.backends.plan_memory import ProgramCache
from junctor.cost import policy
from junctor.cost.features.plans import plain_seconds, plan_work
from junctor.cost.model import CostModel, gpu_prices
from junctor.evidence.batch import EvidenceBatch, Rows
from junctor.evidence.patterns import PatternGroup
from junctor.model.answers import Answers
from junctor.model.strategies import Strategy
from junctor.planning.levels import stages_of
from junctor.planning.plan import Plan
from junctor.strategies.facts import Facts
from junctor.strategies.number_ladder import BlockExecutor, answer_rows
from junctor.strategies.plan_rows import MOST_OPERATIONS, on_cores, prepared, with_seconds
from junctor.strategies.strategy import Allowance, Offer, Price, Route, Run, Way


class GpuRows(Way):
    """One plan, block by block, on the device."""

    name = Strategy.GPU_BLOCKS

    def refuses(self, facts: Facts) -> str | None:
        """Return that there is none, where there is none."""
        return None if facts.takes_gpu else "there is no GPU that may be used"

    def offer(self, group: PatternGroup, batch: EvidenceBatch, facts: Facts) -> Offer | str:
        """By the tree of the pattern: coefficients were measured."""
        if (why := self.refuses(facts)) is not None:
            return why
        work, host = facts.work(group.pattern), facts.gpu_host
        once = work.tables * host.plan_table + work.entries * host.plan_entry
        operation, table = facts.row_price
        row = work.operations * operation + work.tables * table + len(group.pattern.weighted) * host.likelihood
        return Offer(replace(group, strategy=self.name), Price(once=host.group + once, row=row))

    def prepare(self, group: PatternGroup, uses: int, batch: EvidenceBatch, facts: Facts, room: Allowance) -> Route:
        """Blocks of the host besides, for rows that the device does not take."""
        plan = facts.plan(group.pattern, uses)
        work = min(uses * plan.case_operations, MOST_OPERATIONS) * facts.figures.numpy.operation
        route = prepared(
            self.name, group, uses, facts, room, work >= len(plan.steps) * facts.figures.planning.lowering_step
        )
        why = "asked for" if facts.asks_gpu else "one is here, and the rows are worth it"
        return replace(route, reason=facts.reason(self.name, why))

    def forecast(self, route: Route, batch: EvidenceBatch, facts: Facts, bound: int) -> Route:
        """By the launches of the plan."""
        plan, sizes, first, rows = route.plan, route.sizes, facts.ladder[0], len(route.group.rows)
        assert plan is not None
        assert sizes is not None
        seconds = rows * plain_seconds(plan, facts.figures, rows)
        if plan.case_operations <= bound:
            # Imported where a plan is bound for a forecast.
            from junctor.backends.gpu_plan import GpuBlocks

            program = Program(plan, facts.plan_network(plan.pattern), first)
            seconds = GpuBlocks(program, rows, facts.gpu_room().bytes, sizes.room, facts.costs).seconds(rows)
        elif seconds >= policy.FITTED_FORECAST:
            seconds = plan_seconds(plan, first, rows, facts.costs)
        return replace(with_seconds(route, seconds, facts.figures), reason=_kernels(facts, plan, rows))

    def answer(self, work: Sequence[Route], batch: EvidenceBatch, answers: Answers, run: Run) -> Rows:
        """In blocks of cases; scores of rows that the device does not take are left."""
        left = []
        for route in work:
            program = run.program(route, batch)
            left.append(answer_rows(program, batch, route.group.rows, answers, partial(executor, program)))
        return np.concatenate(left)


def executor(prepared: ProgramCache, algebra: Algebra, rows: int) -> BlockExecutor:
    """Return what answers so many rows in a number format: the CPU where the device has no memory or no such format."""
    on_device = prepared.on_device(algebra, rows)
    return on_cores(prepared, algebra, rows) if on_device is None else on_device


def plan_seconds(plan: Plan, algebra: Algebra, rows: int, costs: CostModel) -> float:
    """Return the forecast of rows of a plan that is not bound, by the kernels for many cases."""
    from junctor.backends.gpu_plan import FEWEST_CASES

    work = plan_work(plan, stages_of(plan).count, min(rows, FEWEST_CASES), rows)
    return costs.seconds(gpu_prices(algebra, True), work)


def _kernels(facts: Facts, plan: Plan, rows: int) -> str:
    """Return which kernels answer rows of a plan, and why."""
    from junctor.backends.gpu_plan import chunk_of, few_are_faster

    algebra = facts.ladder[0]
    if rows > (chunk := chunk_of(algebra)):
        return f"kernels for many cases: more rows than the {chunk} of a warp"
    few = few_are_faster(plan, algebra, facts.costs, rows, stages_of(plan).count)
    return f"kernels for {'few' if few else 'many'} cases: less seconds by the prices of the device"


WAY = GpuRows()
