"""The batch engine: rows are grouped by evidence pattern, a group gets a plan, blocks of cases run through it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from junctor_kernels import reference
from junctor_kernels.reference import Algebra

from junctor.answers import IMPOSSIBLE, INVALID, NO_PROBABILITY, OK, Answers
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.grouping import Choice, Group, Patterns, Prices, patterns_of
from junctor.machine import DEFAULT_SHARE, available_memory
from junctor.memory import COMPILED_OPERATION_SECONDS, OPERATION_SECONDS, Memory, Prepared
from junctor.model import Network
from junctor.planning.budget import Budget
from junctor.planning.compile import compile_plan
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern, Shape
from junctor.propagation import Block, Outcome, Program
from junctor.query import Query, target_names

if TYPE_CHECKING:
    from junctor.compiled import CompiledProgram
    from junctor.rowwise import RowEngine

Rows = npt.NDArray[np.int64]

# Rows whose numbers leave the range of a format are computed again in the next one.
LADDERS: dict[str, tuple[Algebra, ...]] = {
    "double": (reference.DOUBLE, reference.LOG),
    "single": (reference.SINGLE, reference.DOUBLE, reference.LOG),
    "log": (reference.LOG,),
}
# Plans, and programs (plans with their numbers), that an engine keeps for the next batch.
KEPT_PLANS = 1024
KEPT_PROGRAMS = 256
# Seconds of work in NumPy from which compiled code pays for being loaded (a second; some more the first time on a
# machine).
COMPILED_SECONDS = 2.0
# Seconds that planning and preparing take for each variable; coarse, only to decide which patterns share a plan.
PLANNING_SECONDS = 4e-4
# Entry operations of a plan for each one of the tree that the row engine makes of the same pattern.
PLAN_OPERATIONS = 1.7
# What bringing the evidence of a cell into the form of a likelihood takes.
LIKELIHOOD_SECONDS = 1e-7
# Patterns that are looked at for what a row of its own takes.
SAMPLED_PATTERNS = 16


class Engine:
    """Answers batches of evidence on one network with one query; keeps its programs from batch to batch.

    memory: bytes that propagation may use (None: a share of what is free now). rows: how many are to come in all
    batches together, if that is known; it decides what is worth preparing. Raises EvidenceError for unknown targets,
    and BudgetError when a plan does not fit.
    """

    def __init__(self, network: Network, query: Query, memory: int | None = None, rows: int = 0) -> None:
        self.network = network
        self.query = query
        self.rows = rows
        self.allowed = memory if memory is not None else int(available_memory() * DEFAULT_SHARE)
        self.targets = tuple(network.index[name] for name in target_names(network, query))
        self.shape = shape_of(network)
        self._ladder = (reference.MAX_LOG,) if query.kind == "mpe" else LADDERS[query.precision]
        self._plans: dict[tuple[Pattern, int], Plan] = {}
        self._prepared: dict[tuple[Pattern, int], Prepared] = {}

    def plan(self, pattern: Pattern, rows: int = 1) -> Plan:
        """Return the plan for `pattern`; the search for its order is longer the more rows will use it.

        What was planned before changes nothing: a run that goes on after an interruption makes the same plans.
        """
        key = pattern, rounded(rows)
        if key not in self._plans:
            if len(self._plans) >= KEPT_PLANS:
                self._plans.pop(next(iter(self._plans)))
            targets = None if self.query.targets is None else self.targets
            self._plans[key] = compile_plan(self.shape, pattern, targets, self.query.kind == "mpe", rounded(rows))
        return self._plans[key]

    def groups(self, batch: EvidenceBatch) -> list[Group]:
        """Return the rows that share a plan, and those that are answered one by one; invalid rows are in none."""
        found = patterns_of(batch)
        if len(found.counts) > 1:
            choice = Choice(found, self._plain_prices())
            if choice.seconds * self.to_come(batch, batch.rows) > COMPILED_SECONDS * batch.rows:
                # Enough work for better prices, and the row engine, to pay for being loaded.
                choice = Choice(found, self._prices(found), search=True)
            return self._fitting(choice.groups(), found)
        return [Group(Pattern(found.observed(0), found.soft(0)), found.rows)] if len(found.counts) else []

    def _fitting(self, groups: list[Group], found: Patterns) -> list[Group]:
        """Return the groups with those replaced whose common plan does not fit the memory, where something else may."""
        result: list[Group] = []
        for group in groups:
            if group.alone or group.patterns == 1 or self._fits(group.pattern):
                result.append(group)
            elif self._has_row_engine:
                result.append(replace(group, alone=True))
            else:
                result.extend(found.exact(group.rows))
        return result

    def answer(self, batch: EvidenceBatch, held: int = 0) -> Answers:
        """Return the answers to all rows of `batch`, in its order; `held` bytes are taken by earlier answers."""
        answers = self._blank(batch)
        budget = Budget(self.allowed, answers.nbytes + held)
        groups = self.groups(batch)
        compiled = self.loads_compiled(groups, batch)
        for group in groups:
            if group.alone:
                self.row_engine.allow(budget.free - sum(each.memory.fixed for each in self._prepared.values()))
                left = self.row_engine.answer(batch, group.rows, answers)
                planned = patterns_of(batch).exact(left) if left.size else []
            else:
                planned = [group]
            for each in planned:
                self._answer_group(each, batch, answers, budget, compiled)
        return answers

    def _answer_group(
        self, group: Group, batch: EvidenceBatch, answers: Answers, budget: Budget, compiled: bool
    ) -> None:
        to_come = self.to_come(batch, len(group.rows))
        prepared = self._prepare(group.pattern, len(group.rows), to_come, budget, compiled)
        self._climb(prepared, batch, group.rows, answers, self._ladder)

    def loads_compiled(self, groups: Sequence[Group], batch: EvidenceBatch) -> bool:
        """Tell whether the rows to come are worth loading the compiled backend for."""
        if any(group.alone for group in groups):
            return True
        seconds = 0.0
        for group in groups:
            to_come = self.to_come(batch, len(group.rows))
            seconds += to_come * plain_seconds(self.plan(group.pattern, to_come))
        return seconds > COMPILED_SECONDS

    def to_come(self, batch: EvidenceBatch, rows: int) -> int:
        """Return how many rows like these `rows` of a batch are to come in all batches."""
        return max(rows, rows * self.rows // batch.rows)

    @property
    def _has_row_engine(self) -> bool:
        return self.query.kind == "posteriors" and self.query.precision != "log"

    @cached_property
    def row_engine(self) -> RowEngine:
        """The engine for rows that are answered one by one."""
        from junctor.rowwise import RowEngine

        return RowEngine(self.network, self.targets, self.allowed)

    def _plain_prices(self) -> Prices:
        """Return prices from plans, for batches that are not worth loading compiled code for."""
        return Prices(lambda pattern: plain_seconds(self.plan(pattern)), self._planning_seconds, self._fits)

    def _prices(self, found: Patterns) -> Prices:
        """Return prices from the trees of the row engine, which are found in no time."""
        rows = self.row_engine

        def price(pattern: Pattern) -> float:
            operations, _, _ = rows.work(pattern.sliced, pattern.weighted)
            return (
                operations * PLAN_OPERATIONS * COMPILED_OPERATION_SECONDS + len(pattern.weighted) * LIKELIHOOD_SECONDS
            )

        def alone() -> float:
            seconds = [
                rows.seconds(found.observed(p), found.soft(p))
                for p in range(0, len(found.counts), -(-len(found.counts) // SAMPLED_PATTERNS))
            ]
            return sum(seconds) / len(seconds)

        return Prices(
            price,
            self._planning_seconds,
            lambda pattern: rows.work(pattern.sliced, pattern.weighted)[1] * 8 < self.allowed,
            alone() if self._has_row_engine else math.inf,
        )

    def _planning_seconds(self, pattern: Pattern) -> float:
        return (len(self.network.variables) - len(pattern.sliced)) * PLANNING_SECONDS

    def _fits(self, pattern: Pattern) -> bool:
        return Memory(self.plan(pattern), len(self._ladder)).least <= self.allowed

    def _climb(
        self, prepared: Prepared, batch: EvidenceBatch, rows: Rows, answers: Answers, ladder: Sequence[Algebra]
    ) -> None:
        """Answer `rows` in the first format of the ladder, and the doubtful ones among them in the next."""
        program: Program | CompiledProgram = prepared.program(ladder[0])
        cases = prepared.memory.cases(ladder[0].dtype.itemsize)
        if ladder is self._ladder and (faster := prepared.compiled()):
            program, cases = faster, faster.cases
        doubtful: list[Rows] = []
        for start in range(0, len(rows), cases):
            part = rows[start : start + cases]
            block = block_of(batch, part, prepared.plan.pattern, self.network.cardinalities)
            outcome = program.explain(block) if self.query.kind == "mpe" else program.run(block)
            self._write(outcome, block, part, answers)
            if outcome.doubtful.any():
                doubtful.append(part[outcome.doubtful])
        if doubtful:
            self._climb(prepared, batch, np.concatenate(doubtful), answers, ladder[1:])

    def _write(self, outcome: Outcome, block: Block, rows: Rows, answers: Answers) -> None:
        at: Rows | slice = rows
        if rows[-1] - rows[0] == len(rows) - 1:
            # A slice is written several times faster than a list of rows.
            at = slice(int(rows[0]), int(rows[-1]) + 1)
        # A doubtful row is nothing yet: it is written again from the next format.
        impossible = np.isneginf(outcome.log_value) & ~outcome.doubtful
        answers.log_value[at] = outcome.log_value
        answers.status[at] = np.where(impossible, IMPOSSIBLE, OK)
        for variable in self.targets:
            if self.query.kind == "mpe":
                answers.states[variable][at] = outcome.states[variable]
            elif variable in outcome.posteriors:
                answers.posteriors[variable][at] = outcome.posteriors[variable].T
            else:
                answers.posteriors[variable][at] = 0
                answers.posteriors[variable][rows, block.states[variable]] = 1
        for row in rows[impossible]:
            answers.reasons[int(row)] = NO_PROBABILITY

    def _blank(self, batch: EvidenceBatch) -> Answers:
        status = np.full(batch.rows, OK, dtype=np.int8)
        status[list(batch.invalid)] = INVALID
        dtype = np.float32 if self.query.precision == "single" else np.float64
        explain = self.query.kind == "mpe"
        sizes = self.network.cardinalities
        return Answers(
            self.targets,
            status,
            np.full(batch.rows, np.nan),
            {} if explain else {v: np.full((batch.rows, sizes[v]), np.nan, dtype) for v in self.targets},
            {v: np.full(batch.rows, -1, dtype=np.int32) for v in self.targets} if explain else {},
            dict(batch.invalid),
        )

    def _prepare(self, pattern: Pattern, rows: int, to_come: int, budget: Budget, compiled: bool) -> Prepared:
        """Return the plan ready to run; older programs give way until it fits."""
        key = pattern, rounded(to_come)
        prepared = self._prepared.pop(key, None)
        if prepared is None:
            prepared = Prepared(self.network, self.plan(pattern, to_come), self._ladder)
        held = sum(other.memory.fixed for other in self._prepared.values())
        while self._prepared and (held + prepared.memory.least > budget.free or len(self._prepared) >= KEPT_PROGRAMS):
            held -= self._prepared.pop(next(iter(self._prepared))).memory.fixed
        prepared.memory.fit(budget, budget.free - held, rows, to_come if compiled else 0)
        self._prepared[key] = prepared
        return prepared


def rounded(rows: int) -> int:
    """Return a count of rows in steps of four times, so that similar counts make the same plan."""
    return 1 << 2 * ((rows - 1).bit_length() // 2)


def plain_seconds(plan: Plan) -> float:
    """Return the seconds that a case takes in NumPy."""
    # Capped, because integers of any size do not fit a float.
    return min(plan.case_operations, 10**30) * OPERATION_SECONDS


def shape_of(network: Network) -> Shape:
    """Return what planning needs to know of a network."""
    return Shape(network.cardinalities, tuple(factor.scope for factor in network.factors), network.kind == "bayes")


def block_of(batch: EvidenceBatch, rows: Rows, pattern: Pattern, cardinalities: Sequence[int]) -> Block:
    """Cut the evidence of `rows` out of `batch` in the form that a plan for `pattern` takes."""
    states = {v: batch.states[v][rows].astype(np.int64) for v in sorted(pattern.sliced)}
    likelihoods = {v: _likelihood(batch, rows, v, cardinalities[v]) for v in sorted(pattern.weighted)}
    return Block(len(rows), states, likelihoods)


def _likelihood(batch: EvidenceBatch, rows: Rows, variable: int, cardinality: int) -> npt.NDArray[np.float64]:
    """Return [cardinality, rows]: ones, one-hot where the variable is observed, as given where the evidence is soft."""
    result = np.ones((cardinality, len(rows)))
    if variable in batch.states:
        states = batch.states[variable][rows]
        observed = np.flatnonzero(states != UNOBSERVED)
        result[:, observed] = 0
        result[states[observed], observed] = 1
    if variable in batch.likelihoods:
        here, values = batch.likelihoods[variable].among(rows)
        result[:, here] = values.T
    return result
