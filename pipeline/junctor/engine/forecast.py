"""Forecasts of batches of evidence before any of them is propagated: the seconds of their routes, added up."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from junctor.cost import policy
from junctor.engine.choose import estimate, told_of
from junctor.evidence.batch import EvidenceBatch
from junctor.evidence.patterns import patterns_of
from junctor.model.strategies import Chosen, Strategy
from junctor.planning.elimination import best_order, moral_graph
from junctor.planning.shape import Pattern, Shape
from junctor.strategies.facts import Facts
from junctor.strategies.strategy import Route

if TYPE_CHECKING:
    from junctor.cost.model import CostModel
    from junctor.engine.choose import Choice
    from junctor.engine.engine import Engine
    from junctor.planning.junction_tree import JunctionTree

# What looking for patterns in the batches after the first may take: so many seconds, or this share of the whole run.
SURVEY_SECONDS = policy.SURVEY
SURVEY_SHARE = 0.1
# Rows that the order of the tree that is shown is searched for: a fraction of a second.
TREE_ROWS = 100
# Patterns of a batch that are looked at, those with the fewest observed variables: they need the most memory.
SURVEYED_PATTERNS = 16
# Choices of a batch that a run keeps, and reasons for samples that it tells.
SHOWN_CHOICES, TOLD_REASONS = 5, 3

logger = logging.getLogger("junctor")


@dataclass(frozen=True, slots=True)
class RunForecast:
    """Forecast of the batches of a run.

    needed: bytes at the least.
    seconds: of one core.
    gpu_seconds: of the GPU that was asked about, infinite without one.
    chunked_seconds: of one core, for rows in chunks.
    choices: for the rows of the first batch, those with the most work first.
    """

    needed: int
    seconds: float
    gpu_seconds: float
    chunked_seconds: float
    choices: tuple[Chosen, ...] = ()


def survey(engine: Engine, batches: Iterable[EvidenceBatch], count: int, gpu: CostModel | None = None) -> RunForecast:
    """Return what `count` batches need; raises BudgetError where rows cannot be answered.

    The first batch is forecast, and each one with patterns that may need more memory than those seen; the others are
    taken to be alike. Stops looking, and reading, where that becomes a cost of its own.

    engine: that will answer them.
    batches: the first ones of the run, read one after the other.
    count: number of all batches.
    gpu: cost model of a GPU that is asked about.
    """
    facts = engine.facts
    needed, limit = 0, math.inf
    on_gpu, chunked = 0.0 if gpu else math.inf, 0.0
    choices: tuple[Chosen, ...] = ()
    seconds: list[float] = []
    seen: list[Pattern] = []
    started = time.monotonic()
    for batch in batches:
        # After reading the batch, which may take longer than its forecast.
        if time.monotonic() - started > limit:
            break
        if seconds and not _has_new_patterns(facts, batch, seen):
            continue
        choice = engine.choice(batch)
        routes = forecast_of(engine, choice)
        for route in routes:
            if route.refused is not None:
                raise route.refused
        needed = max((needed, *(route.memory.needed for route in routes)))
        # Those with the fewest observed variables first: they cover most others.
        seen = sorted([*seen, *_patterns(routes, choice)], key=lambda pattern: len(pattern.sliced))
        seconds.append(sum(route.seconds for route in routes))
        if gpu is not None:
            on_gpu += sum(gpu_seconds(facts, route, gpu) for route in routes)
        chunked += sum(route.seconds for route in routes if route.chunks is not None)
        if len(seconds) == 1:
            # The first batch does not count: its plans serve the run as well.
            choices = tuple(told_of(route, choice.batch, choice.facts) for route in routes[:SHOWN_CHOICES])
            if facts.query.method == "auto":
                warn_of_samples(routes, batch.rows)
            started, limit = time.monotonic(), max(SURVEY_SECONDS, SURVEY_SHARE * count * seconds[0])
    share = count / max(1, len(seconds))
    return RunForecast(needed, share * sum(seconds), share * on_gpu, share * chunked, choices)


def warn_of_samples(routes: Sequence[Route], rows: int) -> None:
    """Log how many of so many rows are sampled, and why exact answers to most of these exceed their budget."""
    reasons = Counter[str]()
    for route in routes:
        if route.strategy is Strategy.SAMPLES:
            reasons[route.group.rejected[0].reason] += route.rows
    # Each pattern has numbers of its own: a batch may have as many reasons as rows.
    for reason, count in reasons.most_common(TOLD_REASONS):
        logger.warning("%d of %d rows are sampled: %s", count, rows, reason)
    if (others := len(reasons) - TOLD_REASONS) > 0:
        logger.warning("%d of %d rows are sampled in all, for %d more reasons", reasons.total(), rows, others)


def _patterns(routes: Sequence[Route], choice: Choice) -> list[Pattern]:
    """Return the patterns that were forecast, also those of rows with trees that nobody has looked at."""
    found = [route.group.pattern for route in routes if route.group.patterns or not route.group.by_trees]
    if len(found) < len(routes):
        patterns = patterns_of(choice.batch)
        found += [Pattern(patterns.observed(p), patterns.soft(p)) for p in range(len(patterns.counts))]
    return found


def _has_new_patterns(facts: Facts, batch: EvidenceBatch, seen: Sequence[Pattern]) -> bool:
    patterns = patterns_of(batch)
    fewest = np.argsort(patterns.marks[:, : patterns.hard].sum(axis=1), kind="stable")[:SURVEYED_PATTERNS].tolist()
    evidence = [(patterns.observed(p), patterns.soft(p)) for p in fewest]
    return any(not any(_covers(facts, pattern, *marks) for pattern in seen) for marks in evidence)


def _covers(facts: Facts, pattern: Pattern, observed: frozenset[int], soft: frozenset[int]) -> bool:
    # More evidence makes tables smaller, but with targets it can also make more of the network matter.
    evidence = pattern.sliced | pattern.weighted
    grows = facts.query.targets is not None and not (observed | soft) <= evidence
    return pattern.sliced <= observed and not grows


def forecast(engine: Engine, batch: EvidenceBatch, bound: int = 0) -> list[Route]:
    """Return the routes of a batch with their seconds, most operations first; those that are refused say so.

    bound: multiply-adds of a case up to which a plan is bound to its numbers and lowered, because zeros and kinds of
        loops make a forecast better.
    """
    return forecast_of(engine, engine.choice(batch), bound)


def forecast_of(engine: Engine, choice: Choice, bound: int = 0) -> list[Route]:
    """Return the same for a choice."""
    routes = [estimate(choice.facts, route, choice.batch, bound) for route in engine.routes_of(choice)]
    return sorted(routes, key=lambda route: -route.operations)


def gpu_seconds(facts: Facts, route: Route, gpu: CostModel) -> float:
    """Return the seconds of a route on a GPU, or the route's own where no GPU would answer its rows.

    gpu: cost model of that GPU, which need not be the one at hand.
    """
    if route.strategy is Strategy.ROW_TREES:
        # There a plan answers them; its tree is about theirs, with evidence that some lack as likelihoods.
        work = facts.work(route.group.pattern)
        operation, table = gpu.coefficients[facts.gpu_backend].row
        return route.rows * (work.operations * operation + work.tables * table + facts.figures.files.row)
    if route.plan is None or route.chunks is not None:
        return route.seconds
    from junctor.strategies.gpu_blocks import plan_seconds

    return plan_seconds(route.plan, facts.ladder[0], len(route.group.rows), gpu) + route.rows * facts.figures.files.row


def tree_of(shape: Shape) -> JunctionTree:
    """Return the junction tree of all variables, as it is without evidence."""
    # Imported where a tree is shown.
    from junctor.planning.junction_tree import junction_tree

    # Without targets nothing is left out: the tree that is shown is that of the whole network.
    everything = frozenset(range(len(shape.cardinalities)))
    graph = moral_graph(len(everything), shape.scopes)
    return junction_tree(best_order(graph, everything, shape.cardinalities, TREE_ROWS), shape)
