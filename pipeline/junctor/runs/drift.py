"""Drift: how far the states of evidence columns are from the marginals of the network, or from those of another run.

Main functions: `distance`, the Jensen-Shannon distance (Endres and Schindelin 2003), and `drifts`. Called by the report
and by thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from junctor.model.errors import BudgetError, ModelError
from junctor.model.network import Network
from junctor.model.query import Query, Sampling
from junctor.runs.statistics import Cells

# The distance from which a report calls a column drifted; monitors of data commonly take the same.
DRIFTED = 0.1
# Multiply-adds of the marginals without evidence beyond which they are sampled: about a second in NumPy.
MOST_OPERATIONS = 500_000_000
# Samples where they are; their standard error is below 0.004.
SAMPLES = 20_000

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Drift:
    """An evidence column against what was expected of it.

    name: of its variable.
    cells: counts.
    expected: float64 [states], probabilities; None where they are not known.
    distance: of the observed states, 0 to 1; nan without them or without expectation.
    by_chance: the distance that so many cells have from their own distribution, about.
    """

    name: str
    cells: Cells
    expected: Vector | None
    distance: float
    by_chance: float

    @property
    def drifted(self) -> bool:
        """Whether the distance is above `DRIFTED`, and above what chance explains."""
        return self.distance > max(DRIFTED, 2 * self.by_chance)


def distance(one: Sequence[float] | Vector, other: Sequence[float] | Vector) -> float:
    """Return the Jensen-Shannon distance of two distributions, 0 (equal) to 1 (disjoint); nan where one has no mass.

    one, other: [states], counts or probabilities.
    """
    p, q = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if not p.sum() > 0 or not q.sum() > 0:
        return math.nan
    p, q = p / p.sum(), q / q.sum()
    middle = (p + q) / 2
    # Terms of p = 0 are 0. Rounding may leave less than nothing.
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * np.log2(p / middle), 0.0) + np.where(q > 0, q * np.log2(q / middle), 0.0)
    return math.sqrt(min(1.0, max(0.0, float(terms.sum()) / 2)))


def by_chance(states: int, cells: int) -> float:
    """Return the distance that the counts of so many cells have from their own distribution, about."""
    # Half of the divergence to the middle is chi-square / 8 to first order, whose mean is states - 1 over cells.
    return math.sqrt((states - 1) / (8 * cells * math.log(2))) if cells else math.nan


def drifts(columns: Mapping[str, Cells], expected: Mapping[str, Vector]) -> list[Drift]:
    """Return the columns against their expected distributions, the most drifted first."""
    found = []
    for name, cells in columns.items():
        there = expected.get(name)
        apart = math.nan if there is None else distance(cells.states, there)
        found.append(Drift(name, cells, there, apart, by_chance(len(cells.states), sum(cells.states))))
    return sorted(found, key=lambda each: -1.0 if math.isnan(each.distance) else each.distance, reverse=True)


def marginals(network: Network, names: Sequence[str]) -> tuple[dict[str, Vector], str]:
    """Return the probabilities of variables without evidence, and how they were found.

    network: its variables.
    names: of some of them.
    They are exact, or sampled where that takes too much; of Markov networks beyond it there are none.
    """
    if not names:
        return {}, "exact"
    found = _exact(network, names)
    if found is not None:
        return found, "exact"
    try:
        return _sampled(network, names), f"from {SAMPLES:,} samples"
    except ModelError:
        return {}, "not known: too large a Markov network"


def _exact(network: Network, names: Sequence[str]) -> dict[str, Vector] | None:
    from junctor.engine.engine import Engine
    from junctor.evidence.batch import EvidenceBatch
    from junctor.model.options import ComputeOptions

    engine, nothing = (
        Engine(network, Query(targets=tuple(names)), ComputeOptions(threads=1, device="cpu")),
        EvidenceBatch(1),
    )
    try:
        for route in engine.routes(nothing):
            if route.refused is not None or route.chunks is not None or route.operations > MOST_OPERATIONS:
                return None
        answers = engine.answer(nothing)
    except BudgetError:
        return None
    return {network.variables[v].name: answers.posteriors[v][0] for v in answers.targets}


def _sampled(network: Network, names: Sequence[str]) -> dict[str, Vector]:
    from junctor.engine.engine import Engine
    from junctor.evidence.batch import EvidenceBatch
    from junctor.model.options import ComputeOptions

    query = Query(targets=tuple(names), method="sampling", sampling=Sampling("lw", SAMPLES))
    answers = Engine(network, query, ComputeOptions(threads=1, device="cpu")).answer(EvidenceBatch(1))
    return {network.variables[v].name: answers.posteriors[v][0] for v in answers.targets}
