"""What batches of evidence will take, known before any of them is propagated."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from junctor.engine import LADDERS, MOST_PATTERNS, Engine, patterns_of
from junctor.evidence.batch import EvidenceBatch
from junctor.memory import COMPILED_OPERATION_SECONDS, OPERATION_SECONDS, Memory
from junctor.planning.budget import Budget
from junctor.planning.compile import DEFAULT_EFFORT
from junctor.planning.elimination import best_order, moral_graph
from junctor.planning.junction_tree import JunctionTree, junction_tree
from junctor.planning.patterns import Found
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern, Shape, mask_of
from junctor.results import answer_width

# What a row takes beside its arithmetic: reading its evidence and writing its answers.
ROW_SECONDS = 5e-6
# What looking for patterns in the batches after the first may take: so many seconds, or this share of the whole run.
SURVEY_SECONDS = 5.0
SURVEY_SHARE = 0.1
# Patterns of a batch that are looked at, those with the fewest observed variables: they need the most memory.
SURVEYED_PATTERNS = 16


@dataclass(frozen=True, slots=True)
class Forecast:
    """One evidence pattern of a batch: rows, plan, bytes that it needs at least and will take, and on which backend."""

    rows: int
    plan: Plan
    least: int
    projected: int
    compiled: bool = False

    @property
    def operations(self) -> int:
        """Entry operations of all its rows."""
        return self.plan.shared_operations + self.rows * self.plan.case_operations

    @property
    def seconds(self) -> float:
        """Seconds of one core for all its rows; coarse, infinite where no number holds them."""
        operation = COMPILED_OPERATION_SECONDS if self.compiled else OPERATION_SECONDS
        try:
            return self.operations * operation + self.rows * ROW_SECONDS
        except OverflowError:
            return math.inf


def survey(engine: Engine, batches: Iterable[EvidenceBatch], count: int) -> tuple[int, float]:
    """Return what `count` batches need: bytes at the least, and seconds of one core.

    The first batch is forecast, and each one with patterns that may need more memory than those seen; the others are
    taken to be alike. Stops looking, and reading, where that becomes a cost of its own. Raises BudgetError.
    """
    least, limit = 0, math.inf
    seconds: list[float] = []
    seen: list[Pattern] = []
    started = time.monotonic()
    for batch in batches:
        if time.monotonic() - started > limit:
            break
        if seconds and not _has_new_patterns(engine, batch, seen):
            continue
        found = forecast(engine, batch)
        least = max((least, *(each.least for each in found)))
        seen = sorted([*seen, *(each.plan.pattern for each in found)], key=lambda each: len(each.sliced))
        seconds.append(sum(each.seconds for each in found))
        if len(seconds) == 1:
            started, limit = time.monotonic(), max(SURVEY_SECONDS, SURVEY_SHARE * count * seconds[0])
    return least, count * sum(seconds) / max(1, len(seconds))


def _has_new_patterns(engine: Engine, batch: EvidenceBatch, seen: Sequence[Pattern]) -> bool:
    fewest = sorted(patterns_of(batch, MOST_PATTERNS)[0], key=lambda each: len(each.observed))[:SURVEYED_PATTERNS]
    return any(not any(_covers(engine, pattern, each) for pattern in seen) for each in fewest)


def _covers(engine: Engine, pattern: Pattern, found: Found) -> bool:
    # Whatever is observed too makes tables smaller, but with targets it can also make more of the network matter.
    evidence = pattern.sliced | pattern.weighted
    grows = engine.query.targets is not None and not (found.observed | found.soft) <= evidence
    return pattern.sliced <= found.observed - found.soft and not grows


def forecast(engine: Engine, batch: EvidenceBatch, refuse: bool = True) -> list[Forecast]:
    """Return a forecast for each pattern, most work first.

    Raises BudgetError where one does not fit; without `refuse` it only says what that one would need.
    """
    explain = engine.query.kind == "mpe"
    formats = 1 if explain else len(LADDERS[engine.query.precision])
    itemsize = 4 if engine.query.precision == "single" and not explain else 8
    budget = Budget(engine.allowed, batch.rows * answer_width(engine.network, engine.query))
    found = []
    for pattern, rows in engine.groups(batch):
        plan = engine.plan(pattern, len(rows))
        memory = Memory(plan, formats, compiles=not explain and engine.query.precision != "log")
        projected = memory.least + budget.reserved
        if refuse or projected <= engine.allowed:
            memory.fit(budget, budget.free, len(rows), len(rows) * engine.rows // batch.rows)
            projected = memory.projected(itemsize) + budget.reserved
        found.append(Forecast(len(rows), plan, memory.least + budget.reserved, projected, memory.lanes > 0))
    return sorted(found, key=lambda each: -each.operations)


def tree_of(shape: Shape) -> JunctionTree:
    """Return the junction tree of all variables, as it is without evidence."""
    everything = range(len(shape.cardinalities))
    graph = moral_graph(len(everything), shape.scopes)
    return junction_tree(best_order(graph, mask_of(everything), shape.cardinalities, DEFAULT_EFFORT), shape)
