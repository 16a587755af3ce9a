"""The batch engine: rows are grouped by evidence pattern, a group gets a plan, blocks of cases run through it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from junctor_kernels import reference
from junctor_kernels.reference import Algebra

from junctor.answers import IMPOSSIBLE, INVALID, OK, Answers
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.machine import DEFAULT_SHARE, available_memory
from junctor.memory import OPERATION_SECONDS, Memory, Prepared
from junctor.model import Network
from junctor.planning.budget import Budget
from junctor.planning.compile import DEFAULT_EFFORT, compile_plan
from junctor.planning.patterns import Cost, Found, share_patterns
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern, Shape
from junctor.propagation import Block, Outcome, Program
from junctor.query import Query, target_names

if TYPE_CHECKING:
    from junctor.compiled import CompiledProgram

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
# Evidence patterns of a batch that are looked at one by one; rarer ones share a plan unless it does not fit.
MOST_PATTERNS = 1024
# Seconds that planning and preparing take for each variable; coarse, only to decide which patterns share a plan.
PLANNING_SECONDS = 4e-4
# Scores of the search for an order that are worth computing for each row that will use it.
EFFORT_PER_ROW = 20


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
        key = pattern, effort_for(rows)
        if key not in self._plans:
            if len(self._plans) >= KEPT_PLANS:
                self._plans.pop(next(iter(self._plans)))
            targets = None if self.query.targets is None else self.targets
            self._plans[key] = compile_plan(self.shape, pattern, targets, self.query.kind == "mpe", effort_for(rows))
        return self._plans[key]

    def groups(self, batch: EvidenceBatch) -> list[tuple[Pattern, Rows]]:
        """Return the patterns that get a plan, each with its rows (ascending; invalid rows are in none)."""
        found, numbers, rows = patterns_of(batch, MOST_PATTERNS)
        if not found:
            return []
        shared = share_patterns(found, self._cost)
        if found[-1].rows == 0 and not self._cost(shared[-1].pattern).fits:
            # What serves all the rare patterns does not fit; perhaps each of them does.
            found, numbers, rows = patterns_of(batch)
            shared = share_patterns(found, self._cost)
        group_of = np.empty(len(found), dtype=np.int64)
        for g, group in enumerate(shared):
            group_of[list(group.members)] = g
        of_row = group_of[numbers]
        return [(group.pattern, rows[of_row == g]) for g, group in enumerate(shared)]

    def answer(self, batch: EvidenceBatch) -> Answers:
        """Return the answers to all rows of `batch`, in its order."""
        answers = self._blank(batch)
        budget = Budget(self.allowed, answers.nbytes)
        for pattern, rows in self.groups(batch):
            prepared = self._prepare(pattern, len(rows), len(rows) * self.rows // batch.rows, budget)
            self._climb(prepared, batch, rows, answers, self._ladder)
        return answers

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
            outcome = prepared.program(ladder[0]).explain(block) if self.query.kind == "mpe" else program.run(block)
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
            answers.reasons[int(row)] = "the evidence has probability 0"

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

    def _prepare(self, pattern: Pattern, rows: int, to_come: int, budget: Budget) -> Prepared:
        """Return the plan ready to run; older programs give way until it fits."""
        key = pattern, effort_for(rows)
        prepared = self._prepared.pop(key, None)
        if prepared is None:
            prepared = Prepared(self.network, self.plan(pattern, rows), self._ladder)
        held = sum(other.memory.fixed for other in self._prepared.values())
        while self._prepared and (held + prepared.memory.least > budget.free or len(self._prepared) >= KEPT_PROGRAMS):
            held -= self._prepared.pop(next(iter(self._prepared))).memory.fixed
        prepared.memory.fit(budget, budget.free - held, rows, to_come)
        self._prepared[key] = prepared
        return prepared

    def _cost(self, pattern: Pattern) -> Cost:
        plan = self.plan(pattern)
        free = len(self.network.variables) - len(pattern.sliced)
        memory = Memory(plan, len(self._ladder))
        # Capped, because integers of any size do not fit a float.
        operations = min(plan.case_operations, 10**30)
        return Cost(free * PLANNING_SECONDS, operations * OPERATION_SECONDS, memory.least <= self.allowed)


def effort_for(rows: int) -> int:
    """Return the scores that the search for an order may compute, in steps of four, so that similar counts agree."""
    effort = EFFORT_PER_ROW
    while effort < min(DEFAULT_EFFORT, EFFORT_PER_ROW * rows):
        effort *= 4
    return min(effort, DEFAULT_EFFORT)


def shape_of(network: Network) -> Shape:
    """Return what planning needs to know of a network."""
    return Shape(network.cardinalities, tuple(factor.scope for factor in network.factors), network.kind == "bayes")


def patterns_of(batch: EvidenceBatch, most: int | None = None) -> tuple[list[Found], Rows, Rows]:
    """Return the patterns of the valid rows, the number of each valid row's pattern, and the valid rows themselves.

    Where there are more than `most` patterns, the most frequent ones are followed by one that serves all others and
    counts no rows.
    """
    valid = np.ones(batch.rows, dtype=np.bool_)
    valid[list(batch.invalid)] = False
    rows = np.flatnonzero(valid)
    if not rows.size:
        return [], rows, rows
    hard, soft = sorted(batch.states), sorted(batch.likelihoods)
    seen = np.zeros((batch.rows, len(hard) + len(soft)), dtype=np.bool_)
    for column, variable in enumerate(hard):
        seen[:, column] = batch.states[variable] != UNOBSERVED
    for column, variable in enumerate(soft, start=len(hard)):
        seen[batch.likelihoods[variable].rows, column] = True
    # A leading bit keeps the key from being empty where the table has no evidence columns at all.
    packed = np.packbits(np.pad(seen[rows], ((0, 0), (1, 0))), axis=1)
    keys = np.ascontiguousarray(packed).view(f"V{packed.shape[1]}").ravel()
    _, first, numbers, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    numbers = numbers.ravel()
    marks = seen[rows[first]]
    if most is None or len(counts) <= most:
        return [_found(marks[i : i + 1], int(counts[i]), hard, soft) for i in range(len(counts))], numbers, rows
    order = np.argsort(-counts, kind="stable")
    place = np.empty(len(counts), dtype=np.int64)
    place[order] = np.minimum(np.arange(len(counts)), most)
    found = [_found(marks[i : i + 1], int(counts[i]), hard, soft) for i in order[:most]]
    return [*found, _found(marks[order[most:]], 0, hard, soft)], place[numbers], rows


def _found(marks: npt.NDArray[np.bool_], rows: int, hard: Sequence[int], soft: Sequence[int]) -> Found:
    """Return the pattern of marks [patterns, columns]: what all observe, and all other evidence that any has."""
    variables = np.array([*hard, *soft], dtype=np.int64)
    is_hard = np.arange(variables.size) < len(hard)
    everywhere = np.asarray(marks.all(axis=0)) & is_hard
    somewhere = np.asarray(marks.any(axis=0)) & ~everywhere
    return Found(frozenset(variables[everywhere].tolist()), frozenset(variables[somewhere].tolist()), rows)


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
        soft = batch.likelihoods[variable]
        _, here, there = np.intersect1d(rows, soft.rows, assume_unique=True, return_indices=True)
        result[:, here] = soft.values[there].T
    return result
