"""Rows of a plan, over the entries of its tables: in NumPy, or in compiled code where one row has much work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from junctor_kernels.tables.reference import LOG, Algebra

from junctor.cost import policy
from junctor.cost.features.plans import plain_seconds, plan_work
from junctor.cost.figures import Figures
from junctor.evidence.batch import EvidenceBatch, Rows
from junctor.evidence.patterns import PatternGroup
from junctor.model.answers import Answers
from junctor.model.strategies import Strategy
from junctor.planning.plan import Plan
from junctor.strategies.facts import Facts
from junctor.strategies.number_ladder import answer_rows
from junctor.strategies.plan_rows import (
    MOST_OPERATIONS,
    in_numpy,
    numpy_seconds,
    once_seconds,
    prepared,
    with_seconds,
)
from junctor.strategies.strategy import Allowance, Offer, Price, Route, Run, Way


class EntriesRows(Way):
    """One plan, table by table."""

    name = Strategy.ENTRIES

    def offer(self, group: PatternGroup, batch: EvidenceBatch, facts: Facts) -> Offer | str:
        """By the plan, where that is made before compiled code would be loaded."""
        rows = facts.uses(group, batch)
        if facts.is_heavy(rows) or facts.planning >= facts.figures.loading.trees:
            return "a plan and NumPy take longer than compiled code takes to load"
        plan = facts.plan(group.pattern, rows)
        return Offer(group, Price(once=once_seconds(plan, facts.figures), row=plain_seconds(plan, facts.figures, rows)))

    def with_plan(self, group: PatternGroup, batch: EvidenceBatch, facts: Facts) -> Price:
        """Return the price by the plan: in NumPy, or over entries in compiled code."""
        rows = facts.uses(group, batch)
        plan, few = facts.plan(group.pattern, rows), rows < facts.plan_memory(group.pattern, rows).lane
        what = plan, rows, facts.ladder[0], facts.figures
        seconds = numpy_seconds(*what)
        # Blocks take more rows at once.
        return Price(once=min(seconds, _compiled_seconds(*what)) if few else seconds)

    def prepare(self, group: PatternGroup, uses: int, batch: EvidenceBatch, facts: Facts, room: Allowance) -> Route:
        """By what is faster of the two."""
        plan = facts.plan(group.pattern, uses)
        what = plan, uses, facts.ladder[0], facts.figures
        plain, loaded = numpy_seconds(*what), _compiled_seconds(*what)
        # Asked last: to know whether it is there, Numba has to be loaded.
        compiled = loaded < plain and loaded + facts.compiling < plain
        route = prepared(self.name, group, uses, facts, room, blocks=False, compiled=compiled)
        assert route.sizes is not None
        reason = "NumPy: too little work for compiled code"
        if facts.store.compiling:
            reason = "NumPy: less work than to compile code, once on a machine"
        if route.sizes.entry_threads:
            reason = "compiled where tables are large, over entries: too few rows for blocks"
        return replace(route, reason=facts.reason(self.name, reason))

    def forecast(self, route: Route, batch: EvidenceBatch, facts: Facts, bound: int) -> Route:
        """By the steps of the plan."""
        plan, sizes, rows, first = route.plan, route.sizes, len(route.group.rows), facts.ladder[0]
        assert plan is not None
        assert sizes is not None
        seconds = rows * plain_seconds(plan, facts.figures, rows)
        if plan.case_operations <= bound or seconds >= policy.FITTED_FORECAST:
            backend = f"{'entries' if sizes.entry_threads else 'plain'}-{'log' if first is LOG else 'double'}"
            work = plan_work(plan, len(plan.steps), sizes.cases(first.dtype.itemsize), rows)
            seconds = facts.costs.seconds(backend, work)
        return with_seconds(route, seconds, facts.figures)

    def answer(self, work: Sequence[Route], batch: EvidenceBatch, answers: Answers, run: Run) -> Rows:
        """In blocks of cases, one after the other."""
        left = []
        for route in work:
            program = run.program(route, batch)
            left.append(answer_rows(program, batch, route.group.rows, answers, partial(in_numpy, program)))
        return np.concatenate(left)


def _compiled_seconds(plan: Plan, rows: int, algebra: Algebra, figures: Figures) -> float:
    """Return the seconds of so many rows of a plan where compiled code contracts over entries."""
    if plan.traceback:
        return math.inf
    case = min(plan.case_operations, MOST_OPERATIONS) * figures.blocks.operation
    row = case * (figures.ratios.blocks_log if algebra is LOG else 1)
    once = once_seconds(plan, figures) + len(plan.steps) * figures.blocks.entries_step
    return figures.loading.blocks + once + rows * row


WAY = EntriesRows()
