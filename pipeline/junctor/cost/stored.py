"""The forecast of stored clique tables. Main function: `stored_forecast`, called for joint posteriors and `inspect`."""

from __future__ import annotations

from dataclasses import dataclass

from junctor_kernels.tables.reference import Algebra

from junctor.cost.features.cliques import case_work, making_work
from junctor.cost.model import CostModel
from junctor.planning.cliques import COMPILED_ENTRIES, StoredPlan


@dataclass(frozen=True, slots=True)
class StoredForecast:
    """Seconds of a core: to make all tables, and for each case."""

    making: float
    case: float


def stored_forecast(
    plan: StoredPlan, observed: frozenset[int], algebra: Algebra, costs: CostModel
) -> StoredForecast | None:
    """Return the forecast of stored clique tables on a CPU; None for small ones, and where nothing was measured.

    plan: the tables.
    observed: variables with evidence in a case.
    algebra: number format; in log space nothing was measured.
    costs: of the CPU.
    """
    backend = f"stored-{algebra.name}"
    if plan.total_entries() < COMPILED_ENTRIES or backend not in costs.coefficients:
        return None
    return StoredForecast(costs.seconds(backend, making_work(plan)), costs.seconds(backend, case_work(plan, observed)))
