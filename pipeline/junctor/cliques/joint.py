"""Joint posteriors of several variables: by messages, or from stored clique tables, whichever takes less time.

By messages a question is a batch of evidence: P(A, b | e) is P(A | b, e) P(b, e), a row for every configuration b of
all variables but one. Every question costs propagation, but evidence makes it cheap, and any variables will do.
Stored tables cost much once, and then next to nothing for variables that share a clique.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import numpy as np
import numpy.typing as npt

from junctor.cliques.host import projected_bytes
from junctor.cliques.tree import LADDERS, Evidence, StoredTree, likelihoods_of
from junctor.cost.features.cliques import asking_work
from junctor.cost.model import stored_forecast
from junctor.engine.engine import Engine
from junctor.engine.forecast import forecast
from junctor.engine.pattern_prices import ONCE_ENTRY_SECONDS, ONCE_TABLE_SECONDS, PLAIN_VARIABLE_SECONDS
from junctor.engine.routes import Route
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.model.errors import EvidenceError
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Architecture, Precision, Query
from junctor.planning.budget import Budget, approximate
from junctor.planning.cliques import plan_stored
from junctor.runtime.machine import compute_options

# Plans with at most so many entry operations are bound to their numbers for a forecast, which takes up to a second.
BOUND_OPERATIONS = 10**9
# All cores of it: questions are no work for a GPU.
CPU = ComputeOptions(device="cpu")
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class JointForecast:
    """Seconds of a core that answers take by either architecture; why: stored tables are not to be had, if so.

    Plans of messages are made for the forecast, and kept.
    """

    messages: float
    stored: float
    why: str | None = None

    @property
    def chosen(self) -> Architecture:
        """The architecture that takes less."""
        return "stored" if self.stored < self.messages else "messages"


@dataclass(frozen=True, eq=False, slots=True)
class JointPosteriors:
    """Answers to questions about one case: P(names | e) for each, one axis a variable, and the log of P(e)."""

    architecture: Architecture
    log_evidence: float
    posteriors: tuple[Floats, ...]


def joint_posteriors(
    network: Network,
    questions: Sequence[Sequence[str]],
    given: Evidence | None = None,
    precision: Precision = "double",
    *,
    architecture: Architecture = "auto",
    memory: int | str | None = None,
) -> JointPosteriors:
    """Return the joint posterior of the variables of each question.

    network: bayesian or not.
    questions: names of variables that belong together.
    given: evidence of the case, as for `StoredTree.propagate`.
    precision: numbers to compute with.
    architecture: by messages, from stored clique tables (whose variables have to share a clique), or what is forecast
        to take less time.
    memory: bytes (or "4GiB") that either may take, None for a share of what is free.

    Runs on the CPU. Raises ModelError, EvidenceError (also where the evidence is impossible) and BudgetError.
    """
    if architecture not in get_args(Architecture):
        raise EvidenceError(f"found architecture {architecture!r}, expected one of {', '.join(get_args(Architecture))}")
    asked = JointQuestions(network, questions, given or {}, precision, compute_options(memory, device="cpu"))
    chosen = asked.forecast().chosen if architecture == "auto" else architecture
    return asked.by_messages() if chosen == "messages" else asked.from_tables()


class JointQuestions:
    """Questions about one case of a network, and both ways to answer them; arguments and errors as above."""

    def __init__(
        self,
        network: Network,
        questions: Sequence[Sequence[str]],
        given: Evidence,
        precision: Precision = "double",
        options: ComputeOptions = CPU,
    ) -> None:
        self.network = network
        self.precision = precision
        self.given = given
        self._options = options
        self._likelihoods = likelihoods_of(network, given)
        self._questions = [tuple(network.find(name) for name in names) for names in questions]
        if not self._questions:
            raise EvidenceError("found no question, expected at least one")
        for question in self._questions:
            if len(set(question)) < max(1, len(question)) or any(v in self._likelihoods for v in question):
                names = [network.variables[v].name for v in question]
                raise EvidenceError(f"found {names}, expected different variables without evidence")
        # The variable with most states of each is answered, given the others.
        self._answered = [max(question, key=lambda v: network.cardinalities[v]) for question in self._questions]

    def by_messages(self) -> JointPosteriors:
        """Answer by messages, all questions as one batch."""
        answers = self._engine.answer(self._batch)
        found, log_evidence = [], -math.inf
        for question, own, rows in zip(self._questions, self._answered, self._rows, strict=True):
            logs = answers.log_value[rows]
            log_evidence = float(np.logaddexp.reduce(logs))
            if log_evidence == -math.inf:
                raise EvidenceError("the evidence is impossible, so nothing has a posterior")
            possible = np.isfinite(logs)
            shares = np.where(possible[:, None], answers.posteriors[own][rows], 0.0).astype(np.float64)
            shares *= np.exp(logs - log_evidence)[:, None]
            axes = [*(v for v in question if v != own), own]
            shape = [self.network.cardinalities[v] for v in axes]
            order = [axes.index(v) for v in question]
            found.append((shares / shares.sum()).reshape(shape).transpose(order))
        return JointPosteriors("messages", log_evidence, tuple(found))

    def from_tables(self) -> JointPosteriors:
        """Answer from stored tables."""
        tree = StoredTree(self.network, self.precision, self._options)
        cliques = tree.propagate(self.given)
        names = [[self.network.variables[v].name for v in question] for question in self._questions]
        posteriors = tuple(cliques.posterior(*each) for each in names)
        return JointPosteriors("stored", cliques.log_evidence, posteriors)

    def forecast(self) -> JointForecast:
        """Return what both ways take; messages are not asked about (0) where there is no other way."""
        stored, why = self._stored
        return JointForecast(0.0 if why else self.messages_seconds(), stored, why)

    def messages_seconds(self) -> float:
        """Return about what messages take, infinite where they do not fit the memory."""
        if self._needed > self._engine.allowed:
            return math.inf
        routes = forecast(self._engine, self._batch, bound=BOUND_OPERATIONS)
        if any(route.refused is not None for route in routes):
            return math.inf
        return sum(route.seconds + self._preparing(route) for route in routes)

    def _preparing(self, route: Route) -> float:
        """Return about what binding the plan of a group to its numbers takes."""
        if route.plan is None:
            return 0.0
        tables, entries = len(route.plan.tables), sum(table.entries for table in route.plan.tables if table.per_case)
        return tables * ONCE_TABLE_SECONDS + min(entries, 10**30) * ONCE_ENTRY_SECONDS

    @cached_property
    def _stored(self) -> tuple[float, str | None]:
        """Return what stored tables take, and why they cannot be had."""
        plan, algebra = plan_stored(self._engine.router.shape), LADDERS[self.precision][0]
        scopes = [frozenset(clique.layout) for clique in plan.cliques]
        if not all(any(scope.issuperset(question) for scope in scopes) for question in self._questions):
            return math.inf, "variables that are asked about share no clique"
        if projected_bytes(plan, algebra, 1) > self._engine.allowed:
            return math.inf, "clique tables exceed the memory"
        costs = self._engine.router.cpu_costs
        found = stored_forecast(plan, frozenset(self._likelihoods), algebra, costs)
        if found is None:
            return math.inf, "small tables, and those in log space, have no forecast"
        asking = sum(costs.seconds(f"stored-{algebra.name}", asking_work(plan, each)) for each in self._questions)
        return found.making + found.case + asking + len(plan.sizes) * PLAIN_VARIABLE_SECONDS, None

    @cached_property
    def _engine(self) -> Engine:
        targets = tuple(dict.fromkeys(self.network.variables[v].name for v in self._answered))
        query = Query("posteriors", targets, self.precision)
        return Engine(self.network, query, self._options, expected_rows=self._rows[-1].stop)

    @cached_property
    def _rows(self) -> list[slice]:
        """The rows of each question."""
        sizes, found, first = self.network.cardinalities, [], 0
        for question, own in zip(self._questions, self._answered, strict=True):
            last = first + math.prod(sizes[v] for v in question if v != own)
            found.append(slice(first, last))
            first = last
        return found

    @property
    def _needed(self) -> int:
        """Bytes of the batch and of answers to its rows, at the most, and of the posteriors."""
        sizes = self.network.cardinalities
        evidence = sum(8 * (1 + sizes[v]) for v in self._likelihoods)
        answers = 8 * sum(sizes[v] for v in set(self._answered))
        # The given states lie in a grid of a question before they are those of all.
        row = 4 * len(set().union(*self._questions)) + 4 * max(map(len, self._questions)) + evidence + answers
        tables = 8 * sum(math.prod(sizes[v] for v in question) for question in self._questions)
        return int(row * self._rows[-1].stop + tables)

    @cached_property
    def _batch(self) -> EvidenceBatch:
        """A row for every configuration of the given variables, question after question; raises BudgetError."""
        if self._needed > self._engine.allowed:
            advice = "ask about fewer variables at once, or allow more memory (--memory)"
            where = f"asking about {approximate(self._rows[-1].stop)} combinations by messages"
            raise Budget(self._engine.allowed).refuse(self._needed, where, advice)
        sizes, count = self.network.cardinalities, self._rows[-1].stop
        given = {v for question, own in zip(self._questions, self._answered, strict=True) for v in question if v != own}
        states = {v: np.full(count, UNOBSERVED, np.int32) for v in sorted(given)}
        for question, own, rows in zip(self._questions, self._answered, self._rows, strict=True):
            others = [v for v in question if v != own]
            grid = np.indices([sizes[v] for v in others], np.int32).reshape(len(others), rows.stop - rows.start)
            for v, each in zip(others, grid, strict=True):
                states[v][rows] = each
        likelihoods = {}
        for v, likelihood in self._likelihoods.items():
            if np.count_nonzero(likelihood) == 1 and likelihood.max() == 1:
                states[v] = np.full(count, likelihood.argmax(), np.int32)
            else:
                likelihoods[v] = SoftEvidence(np.arange(count), np.tile(likelihood, (count, 1)))
        return EvidenceBatch(count, states, likelihoods)
