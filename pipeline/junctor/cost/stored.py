"""The forecast of stored clique tables. Main function: `stored_forecast`, called for joint posteriors and `inspect`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from junctor_kernels.tables.reference import DOUBLE, Algebra

from junctor.cost.features.cliques import asking_work, case_work, making_work
from junctor.cost.figures import shipped_figures
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


def gpu_gain(plan: StoredPlan, algebra: Algebra, costs: CostModel, cores: int, cases: int, room: int) -> float:
    """Return the seconds that tables on a GPU, which is opened for them, save to cases without evidence.

    algebra: number format; logarithms take a measured ratio of double precision.
    costs: of the CPU, which makes the tables either way; small ones are never worth a GPU.
    cores: that share a case.
    room: bytes on the GPU; tables beyond them go through it, there and back in either direction of messages.
    """
    forecast = stored_forecast(plan, frozenset(), algebra if algebra.tiny else DOUBLE, costs)
    if forecast is None:
        return -shipped_figures().gpu_host.opening
    host, rates = shipped_figures().gpu_host, shipped_figures().gpu_rates
    work, size = case_work(plan, frozenset()), plan.total_entries() * algebra.dtype.itemsize
    touched = algebra.dtype.itemsize * (work["copied"] + work["scattered"] + work["reduced"])
    there = touched / rates.kernel + (4 * size / rates.bus if 2 * size > room else 0.0)
    bringing = host.opening + size * (host.pinned_byte + 1 / rates.bus)
    return cases * (_times(algebra, costs) * forecast.case / cores - there) - bringing


def asking_gain(plan: StoredPlan, wanted: Sequence[int], algebra: Algebra, costs: CostModel, cores: int) -> float:
    """Return the seconds that a GPU, which is opened for it, saves to the sums of one table; arguments as above."""
    backend, figures = f"stored-{(algebra if algebra.tiny else DOUBLE).name}", shipped_figures()
    if backend not in costs.coefficients:
        return -figures.gpu_host.opening
    here = _times(algebra, costs) * costs.seconds(backend, asking_work(plan, wanted)) / cores
    return here - figures.gpu_host.opening - plan.total_entries() * algebra.dtype.itemsize / figures.gpu_rates.bus


def _times(algebra: Algebra, costs: CostModel) -> float:
    return 1.0 if algebra.tiny else costs.figures.ratios.numpy_log
