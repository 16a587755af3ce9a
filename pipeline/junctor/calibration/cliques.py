"""Measure how long stored clique tables take on this machine's CPU: making them, and cases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
from junctor_kernels.tables.reference import DOUBLE, SINGLE, Algebra

from junctor.cliques.host import HostExecutor, initial_table, kernels_for
from junctor.cost.dataset import Measured
from junctor.cost.features.cliques import case_work, making_work
from junctor.generate import grid, layered
from junctor.model.network import Network
from junctor.planning.cliques import COMPILED_ENTRIES, StoredPlan, plan_stored
from junctor.planning.shape import shape_of

# Entries of all tables, at the most: twice as many are in memory in double precision.
MOST_ENTRIES = 1e8
# Shares of the variables with evidence. A measurement is the fewest seconds of so many repetitions.
OBSERVED, REPEATS = (0.0, 0.2), 3


def built_in() -> Iterator[tuple[str, Network]]:
    """Yield networks whose trees are worth compiled code, made here."""
    for rows, columns, states in ((14, 14, 2), (8, 8, 4), (16, 16, 2), (8, 30, 3)):
        yield f"grid {rows} x {columns}, {states} states", grid(rows, columns, states, seed=rows)
    for layers, width, states, parents in ((10, 12, 2, 3), (20, 9, 3, 2)):
        name = f"layered {layers} x {width}, {states} states, {parents} parents"
        yield name, layered(layers=layers, width=width, states=states, parents=parents, seed=layers)


def stored_measured(
    networks: Iterable[tuple[str, Network]], seconds: float = float("inf")
) -> Iterator[tuple[str, list[Measured]]]:
    """Yield measurements of networks whose trees are worth compiled code; none begins after so many seconds."""
    started = time.monotonic()
    for name, network in networks:
        plan = plan_stored(shape_of(network))
        if COMPILED_ENTRIES <= plan.total_entries() <= MOST_ENTRIES and time.monotonic() - started <= seconds:
            yield (
                f"{name}, stored tables",
                [row for each in (DOUBLE, SINGLE) for row in _measure(name, network, plan, each)],
            )


def _measure(name: str, network: Network, plan: StoredPlan, algebra: Algebra) -> Iterator[Measured]:
    kernels, numbers = kernels_for(algebra, plan.total_entries()), range(len(plan.cliques))

    def make() -> list[object]:
        return [initial_table(plan, network, i, algebra, kernels) for i in numbers]

    yield _measured(name, "making", algebra, plan, making_work(plan), make)
    executor = HostExecutor(
        plan, [initial_table(plan, network, i, algebra, kernels) for i in numbers], algebra, kernels
    )
    order = np.random.default_rng(1).permutation(len(plan.sizes))
    for share in OBSERVED:
        seen = order[: int(share * len(order))].tolist()
        likelihoods = {int(v): np.linspace(0.5, 1.0, plan.sizes[v]) for v in seen}
        label, work = f"{share:g} observed", case_work(plan, frozenset(likelihoods))
        yield _measured(name, label, algebra, plan, work, partial(executor.propagate, likelihoods))


def _measured(
    name: str, label: str, algebra: Algebra, plan: StoredPlan, work: Sequence[float], run: Callable[[], object]
) -> Measured:
    """Run something several times and return the fewest seconds of this process, all of its threads together."""
    run()
    times = []
    for _ in range(REPEATS):
        begun = time.process_time()
        run()
        times.append(time.process_time() - begun)
    entries, cliques = float(plan.total_entries()), float(len(plan.cliques))
    alone = 1.0, cliques, sum(work[1:]), entries, float(sum(plan.sizes))
    return Measured(f"stored-{algebra.name}", name, label, 1, min(times), tuple(work), alone, (entries, cliques))
