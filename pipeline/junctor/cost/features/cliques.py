"""What stored clique tables take on a CPU, in counts whose prices a cost model learns: making them, and a case."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from junctor_kernels.tables.reference import Algebra

from junctor.planning.cliques import CHUNK, COMPILED_ENTRIES, StoredPlan, passes

if TYPE_CHECKING:
    from junctor.cost.model import Coefficients

STORED_WORK = (
    # Making tables: cliques, their entries, those times factors, those brought into another order, and times its swaps.
    *("cliques", "made", "multiplied", "permuted", "swapped"),
    # A case: one, passes, kernels; entries that are copied, times what they are multiplied by and times the separators
    # that they are summed for; entries of those separators.
    *("cases", "passes", "kernels", "copied", "scattered", "reduced", "separators"),
)


def making_work(plan: StoredPlan) -> tuple[float, ...]:
    """Return what making all tables takes, in the order of STORED_WORK."""
    found = dict.fromkeys(STORED_WORK, 0)
    for i, clique in enumerate(plan.cliques):
        entries = plan.entries(i)
        found["cliques"] += 1
        found["made"] += entries
        found["multiplied"] += entries * len(clique.factors)
        found["kernels"] += len(clique.factors) * -(-entries // CHUNK)
        found["permuted"] += entries if clique.swaps else 0
        found["swapped"] += entries * len(clique.swaps)
    return tuple(map(float, found.values()))


def case_work(plan: StoredPlan, observed: frozenset[int]) -> tuple[float, ...]:
    """Return what calibrating all tables takes for a case with evidence on some variables."""
    found = dict.fromkeys(STORED_WORK, 0)
    found["cases"] = 1
    for each in (each for stage in passes(plan, observed) for each in stage):
        entries = plan.entries(each.clique)
        found["passes"] += 1
        found["kernels"] += (len(each.factors) + len(each.sums)) * -(-entries // CHUNK)
        found["copied"] += entries if each.first else 0
        found["scattered"] += entries * len(each.factors)
        found["reduced"] += entries * len(each.sums)
        found["separators"] += sum(plan.separator_entries(i) for i in each.sums)
    return tuple(map(float, found.values()))


def asking_work(plan: StoredPlan, wanted: Sequence[int]) -> tuple[float, ...]:
    """Return what a joint posterior of variables that share a clique takes: the smallest such table is summed."""
    holding = [i for i, clique in enumerate(plan.cliques) if set(wanted) <= set(clique.layout)]
    entries = min(plan.entries(i) for i in holding)
    found = dict.fromkeys(STORED_WORK, 0)
    found["kernels"], found["reduced"] = -(-entries // CHUNK), entries
    found["separators"] = math.prod(plan.sizes[v] for v in wanted)
    return tuple(map(float, found.values()))


@dataclass(frozen=True, slots=True)
class StoredForecast:
    """Seconds of a core: to make all tables, and for each case."""

    making: float
    case: float


def stored_forecast(
    plan: StoredPlan, observed: frozenset[int], algebra: Algebra, prices: Mapping[str, Coefficients]
) -> StoredForecast | None:
    """Return what stored tables take on a CPU; None for small ones, in log space, and where nothing was measured."""
    known = prices.get(f"stored-{algebra.name}")
    if known is None or plan.total_entries() < COMPILED_ENTRIES:
        return None
    return StoredForecast(known.of_work(making_work(plan)), known.of_work(case_work(plan, observed)))
