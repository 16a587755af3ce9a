"""Calibration of stored clique tables on a CPU: making them, and propagating cases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import numpy as np
from junctor_kernels.tables.reference import DOUBLE, SINGLE, Algebra

from junctor.calibration import harness
from junctor.cliques.host import HostExecutor, Initial, initial_table, kernels_for
from junctor.cost.dataset import Measured
from junctor.cost.features.cliques import case_work, making_work
from junctor.cost.features.plans import plan_counts
from junctor.model.network import Network
from junctor.planning.cliques import COMPILED_ENTRIES, StoredPlan, plan_stored
from junctor.planning.shape import shape_of

# Entries of all tables, at the most: twice as many are in memory in double precision.
MOST_ENTRIES = 1e8
# Shares of the variables with evidence.
OBSERVED = (0.0, 0.2)
REPEATS = harness.Repeats(3, 3, 0.0)


def built_in() -> Iterator[tuple[str, Network]]:
    """Yield networks whose trees are worth compiled code, made here."""
    yield from harness.grids(((14, 14, 2), (8, 8, 4), (16, 16, 2), (8, 30, 3)))
    yield from harness.layered_networks(((10, 12, 2, 3), (20, 9, 3, 2)))


def calibrate_cliques(
    networks: Iterable[tuple[str, Network]], seconds: float = float("inf")
) -> Iterator[tuple[str, list[Measured]]]:
    """Yield measurements of networks whose trees are worth compiled code; none begins after so many seconds."""
    for name, network in harness.within(seconds, networks):
        plan = plan_stored(shape_of(network))
        # Small trees run in NumPy, which has no forecast.
        if COMPILED_ENTRIES <= plan.total_entries() <= MOST_ENTRIES:
            rows = [row for algebra in (DOUBLE, SINGLE) for row in _measure(name, network, plan, algebra)]
            yield f"{name}, stored tables", rows


def _measure(name: str, network: Network, plan: StoredPlan, algebra: Algebra) -> Iterator[Measured]:
    kernels, numbers = kernels_for(algebra, plan.total_entries()), range(len(plan.cliques))

    def make() -> list[Initial]:
        return [initial_table(plan, network, i, algebra, kernels) for i in numbers]

    yield _measured(name, "making", algebra, plan, making_work(plan), make)
    executor = HostExecutor(plan, make(), algebra, kernels)
    # One order for all shares, so that more evidence contains less.
    order = np.random.default_rng(1).permutation(len(plan.sizes))
    for share in OBSERVED:
        seen = order[: int(share * len(order))].tolist()
        likelihoods = {int(v): np.linspace(0.5, 1.0, plan.sizes[v]) for v in seen}
        label, work = f"{share:g} observed", case_work(plan, frozenset(likelihoods))
        yield _measured(name, label, algebra, plan, work, partial(executor.propagate, likelihoods))


def _measured(
    name: str, label: str, algebra: Algebra, plan: StoredPlan, work: Mapping[str, float], run: Callable[[], object]
) -> Measured:
    """Return a measurement of several runs, after one that is not: seconds of all threads of this process together."""
    run()
    seconds = harness.fewest_seconds(run, REPEATS, time.process_time)
    entries, cliques = float(plan.total_entries()), float(len(plan.cliques))
    # The dataset has plan counts of every backend; nobody forecasts stored tables by them.
    counts = plan_counts(1, cliques, sum(list(work.values())[1:]), entries, sum(plan.sizes))
    return harness.measurement(f"stored-{algebra.name}", name, label, 1, seconds, work, counts, (entries, cliques))
