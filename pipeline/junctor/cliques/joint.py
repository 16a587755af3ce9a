"""Joint posteriors of several variables: by messages, or from stored clique tables, whichever takes less time.

By messages a question is a batch of evidence: P(A, b | e) is P(A | b, e) P(b, e), a row for every configuration b of
all variables but one. Every question costs propagation, but evidence makes it cheap, and any variables will do.
Stored tables cost much once, and then next to nothing for variables that share a clique.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from typing import Unpack

import numpy as np
import numpy.typing as npt

from junctor.backends.number_formats import LADDERS
from junctor.cliques.host import projected_bytes
from junctor.cliques.on_gpu import room_at_hand, takes_gpu
from junctor.cliques.parts import Part
from junctor.cliques.tree import Evidence, StoredTree, gpu_is_worth, likelihoods_of
from junctor.cost.features.cliques import asking_work
from junctor.cost.stored import gpu_gain, stored_forecast
from junctor.engine.engine import Engine
from junctor.engine.forecast import forecast
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.formats import read_network
from junctor.model.arguments import texts
from junctor.model.errors import EvidenceError
from junctor.model.network import Network
from junctor.model.option_table import (
    CliqueResources,
    JointOptions,
    StreamingOptions,
    options_for,
    takes_keywords,
)
from junctor.model.options import ComputeOptions
from junctor.model.query import Architecture, Precision, Query, one_of
from junctor.planning.budget import Budget, approximate
from junctor.planning.cliques import plan_stored
from junctor.planning.shape import shape_of
from junctor.runtime.machine import compute_options
from junctor.strategies.strategy import Route

# Plans with at most so many entry operations are bound to their numbers for a forecast, which takes up to a second.
BOUND_OPERATIONS = 10**9
# Axes of an array.
MOST_AXES = 64
# All cores of it.
CPU = ComputeOptions(device="cpu")
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class JointForecast:
    """Seconds of a core by either architecture; why: reason why there are no stored tables.

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
    """Answers to questions about one case: P(names | e) for each, one axis a variable, and the log of P(e).

    place: where stored tables were, in words.
    part_seconds: of their preprocessing, transfers, reduction and scattering.
    """

    architecture: Architecture
    log_evidence: float
    posteriors: tuple[Floats, ...]
    place: str | None = None
    part_seconds: dict[Part, float] = field(default_factory=dict)


@takes_keywords(
    memory={"python": 'bytes (or "4GiB") that either may take, None for a share of what is free.'},
    time_limit={
        "python": 'seconds (or "10min", "none") that a combination of states, and stored tables, may be forecast to '
        "take; None for a day."
    },
)
def joint_posteriors(
    network: Network | str | os.PathLike[str],
    questions: Sequence[Sequence[str]],
    given: Evidence | None = None,
    precision: Precision = "double",
    **options: Unpack[JointOptions],
) -> JointPosteriors:
    """Return the joint posterior of the variables of each question.

    network: bayesian or not, or the path of a network file.
    questions: names of variables that belong together.
    given: evidence of the case, as for `StoredTree.propagate`; a question may be about what has some.
    precision: numbers to compute with.
    options: of the table.

    Raises ModelError, EvidenceError (also where the evidence is impossible), BudgetError, DeviceError, and InputError
    for a path that is none.
    """
    # Checked here as well: callers of the library are not held to the type.
    one_of("architecture", architecture := options["architecture"], Architecture)
    if not isinstance(network, Network):
        network = read_network(network)
    resources = compute_options(**options_for(CliqueResources, options))
    streaming = options_for(StreamingOptions, options)
    asked = JointQuestions(network, questions, {} if given is None else given, precision, resources, **streaming)
    for name in asked.observed:
        warnings.warn(observed_question(name), stacklevel=3)
    return asked.answer(architecture)


def observed_question(name: str) -> str:
    """Return the warning of questions about an observed variable."""
    return f"variable {name} is observed: joint posteriors with it repeat the input"


class JointQuestions:
    """Questions about one case of a network, and both ways to answer them; arguments and errors as above."""

    def __init__(
        self,
        network: Network,
        questions: Sequence[Sequence[str]],
        given: Evidence,
        precision: Precision = "double",
        options: ComputeOptions = CPU,
        **streaming: Unpack[StreamingOptions],
    ) -> None:
        self.network = network
        self.precision = precision
        self.given = given
        self._options = options
        self._streaming = streaming
        self._likelihoods = likelihoods_of(network, given)
        if isinstance(questions, str | bytes) or not isinstance(questions, Iterable):
            raise EvidenceError(f"found questions {questions!r}, expected lists of names, such as [['lung', 'smoke']]")
        questions = list(questions)
        for names in questions:
            # A name alone would pass for a sequence of letters.
            if isinstance(names, str):
                raise EvidenceError(f"found {names!r} as a question, expected a list of names, such as [{names!r}]")
        self._questions = [tuple(map(network.find, texts("question", names))) for names in questions]
        if not self._questions:
            raise EvidenceError("found no question, expected at least one")
        for question in self._questions:
            if len(question) > MOST_AXES:
                found = f"a question about {len(question)} variables"
                raise EvidenceError(f"found {found}, expected {MOST_AXES} at most: an array has no more axes")
            if len(set(question)) < max(1, len(question)):
                names = [network.variables[v].name for v in question]
                raise EvidenceError(f"found {names}, expected different variables")
        # The variable with most states of each is answered, given the others.
        self._answered = [max(question, key=lambda v: network.cardinalities[v]) for question in self._questions]
        self._conditions = [
            [v for v in question if v != own] for question, own in zip(self._questions, self._answered, strict=True)
        ]

    def answer(self, architecture: Architecture = "auto") -> JointPosteriors:
        """Answer as `joint_posteriors` does."""
        chosen = self.forecast().chosen if architecture == "auto" else architecture
        return self.by_messages() if chosen == "messages" else self.from_tables()

    @property
    def observed(self) -> list[str]:
        """The variables of questions of which the case observes the state."""
        hard = {v for v, values in self._likelihoods.items() if np.count_nonzero(values) == 1}
        return [self.network.variables[v].name for v in dict.fromkeys(chain(*self._questions)) if v in hard]

    def by_messages(self) -> JointPosteriors:
        """Answer by messages, all questions as one batch."""
        # Most impossible rows are configurations that nobody asked about by themselves.
        answers = self._engine.answer(self._batch, explain=False)
        posteriors = []
        log_evidence = -math.inf
        parts = zip(self._questions, self._answered, self._conditions, self._rows, strict=True)
        for question, own, conditions, rows in parts:
            logs = answers.log_value[rows] + self._weights(conditions, rows)
            log_evidence = float(np.logaddexp.reduce(logs))
            if log_evidence == -math.inf:
                from junctor.backends.contradictions import reason_of

                reason = reason_of(self.network, self._likelihoods, self._engine.allowed)
                raise EvidenceError(f"{reason}, so nothing has a posterior")
            # Rows of impossible configurations have no posterior, but a probability: 0.
            possible = np.isfinite(logs)
            shares = np.where(possible[:, None], answers.posteriors[own][rows], 0.0).astype(np.float64)
            shares *= np.exp(logs - log_evidence)[:, None]
            axes = [*conditions, own]
            shape = [self.network.cardinalities[v] for v in axes]
            order = [axes.index(v) for v in question]
            posteriors.append((shares / shares.sum()).reshape(shape).transpose(order))
        return JointPosteriors("messages", log_evidence, tuple(posteriors))

    def _weights(self, conditions: Sequence[int], rows: slice) -> Floats:
        """Return the log of the likelihood that soft evidence gives to the states of the given variables, [rows]."""
        weights = np.zeros(rows.stop - rows.start)
        with np.errstate(divide="ignore"):
            for v in conditions:
                if v in self._likelihoods:
                    weights += np.log(self._likelihoods[v])[self._batch.states[v][rows]]
        return weights

    def from_tables(self) -> JointPosteriors:
        """Answer from stored tables."""
        # Made for these questions alone: whoever asks again keeps a StoredTree.
        tree = StoredTree(self.network, self.precision, self._options, timed=True, **self._streaming)
        cliques = tree.propagate(self.given)
        names = [[self.network.variables[v].name for v in question] for question in self._questions]
        posteriors = tuple(cliques.posterior(*question) for question in names)
        return JointPosteriors("stored", cliques.log_evidence, posteriors, tree.place, cliques.part_seconds())

    def forecast(self) -> JointForecast:
        """Return the forecast of both ways; messages are not forecast (0) where there is no other way."""
        stored, why = self._stored
        return JointForecast(0.0 if why else self.messages_seconds(), stored, why)

    def messages_seconds(self) -> float:
        """Return the forecast of messages in seconds, infinite where they do not fit the memory."""
        # Before the batch is built, which would exceed the memory itself.
        if self._needed > self._engine.allowed:
            return math.inf
        # The engine is kept: plans of the forecast serve for the answers.
        routes = forecast(self._engine, self._batch, bound=BOUND_OPERATIONS)
        if any(route.refused is not None for route in routes):
            return math.inf
        return sum(route.seconds + self._preparing(route) for route in routes)

    def _preparing(self, route: Route) -> float:
        """Return the seconds of binding the plan of a group to its numbers, about."""
        if route.plan is None:
            return 0.0
        tables, entries = len(route.plan.tables), sum(table.entries for table in route.plan.tables if table.per_case)
        planning = self._engine.facts.figures.planning
        return tables * planning.table + min(entries, 10**30) * planning.entry

    @cached_property
    def _stored(self) -> tuple[float, str | None]:
        """Seconds of stored tables, and the reason where there can be none."""
        plan, algebra = plan_stored(shape_of(self.network)), LADDERS[self.precision][0]
        scopes = [frozenset(clique.layout) for clique in plan.cliques]
        if not all(any(scope.issuperset(question) for scope in scopes) for question in self._questions):
            return math.inf, "variables that are asked about share no clique"
        on_gpu = takes_gpu(self._options, lambda: gpu_is_worth(plan, algebra, self._options))
        if projected_bytes(plan, algebra, 0 if on_gpu else 1) > self._engine.allowed:
            return math.inf, "clique tables exceed the memory"
        costs = self._engine.facts.cpu_costs
        stored = stored_forecast(plan, frozenset(self._likelihoods), algebra, costs)
        if stored is None:
            return math.inf, "small tables, and those in log space, have no forecast"
        seconds, backend = (
            stored.making + stored.case + len(plan.sizes) * costs.figures.planning.variable,
            f"stored-{algebra.name}",
        )
        if on_gpu:
            # Where next to nothing is a sum for a question.
            return seconds - gpu_gain(plan, algebra, costs, 1, 1, room_at_hand(self._options)), None
        backend = f"stored-{algebra.name}"
        return seconds + sum(costs.seconds(backend, asking_work(plan, question)) for question in self._questions), None

    @cached_property
    def _engine(self) -> Engine:
        # Without duplicates, in the order of the questions.
        targets = tuple(dict.fromkeys(self.network.variables[v].name for v in self._answered))
        query = Query("posteriors", targets, self.precision)
        return Engine(self.network, query, self._options, expected_rows=self._rows[-1].stop)

    @cached_property
    def _rows(self) -> list[slice]:
        """The rows of each question."""
        counts = [math.prod(self.network.cardinalities[v] for v in conditions) for conditions in self._conditions]
        return [slice(last - count, last) for count, last in zip(counts, accumulate(counts), strict=True)]

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
        # Asked here, because evidence is not part of any budget of the engine.
        if self._needed > self._engine.allowed:
            advice = "ask about fewer variables at once, or allow more memory (--memory)"
            where = f"asking about {approximate(self._rows[-1].stop)} combinations by messages"
            raise Budget(self._engine.allowed).refuse(self._needed, where, advice)
        sizes, count = self.network.cardinalities, self._rows[-1].stop
        states = {v: np.full(count, UNOBSERVED, np.int32) for v in sorted(set(chain(*self._conditions)))}
        for conditions, rows in zip(self._conditions, self._rows, strict=True):
            grid = np.indices([sizes[v] for v in conditions], np.int32).reshape(-1, rows.stop - rows.start)
            for v, column in zip(conditions, grid, strict=True):
                states[v][rows] = column
        likelihoods = {}
        for v, likelihood in self._likelihoods.items():
            # Where the variable is given, the answers get its likelihood as a factor.
            free = np.flatnonzero(states[v] == UNOBSERVED) if v in states else np.arange(count)
            # As a state, not a likelihood: evidence that is cut out makes all tables smaller.
            if np.count_nonzero(likelihood) == 1 and likelihood.max() == 1:
                states.setdefault(v, np.empty(count, np.int32))[free] = likelihood.argmax()
            elif len(free):
                likelihoods[v] = SoftEvidence(free, np.tile(likelihood, (len(free), 1)))
        return EvidenceBatch(count, states, likelihoods)
