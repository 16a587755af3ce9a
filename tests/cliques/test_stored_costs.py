"""The cost model of stored clique tables: what is counted, and forecasts by it."""

from __future__ import annotations

import numpy as np
import pytest
from emulation.stored import EmulatedStored
from junctor import BudgetError
from junctor.calibration import cliques as stored_tuning
from junctor.cliques import streaming_choice as stored_choice
from junctor.cliques.host import HostExecutor, Kernels, initial_table
from junctor.cliques.streaming_choice import Streaming, stream_seconds, streamings
from junctor.cliques.tree import StoredTree
from junctor.cost import stored as stored_costs
from junctor.cost.dataset import MeasuredDevice
from junctor.cost.features.cliques import case_work, making_work
from junctor.cost.features.names import STORED_WORK
from junctor.cost.features.registry import BACKENDS
from junctor.cost.fit import Coefficients
from junctor.cost.model import CostModel
from junctor.cost.stored import stored_forecast
from junctor.generate import grid, layered
from junctor.model.options import PipelineName
from junctor.planning.cliques import CliquePass, StoredClique, StoredPlan, plan_stored
from junctor.planning.shape import shape_of
from junctor_kernels.tables import stored
from junctor_kernels.tables.reference import DOUBLE, LOG


@pytest.mark.parametrize("observed", [(), (0, 3, 5)])
def test_what_kernels_do_is_counted(observed: tuple[int, ...]) -> None:
    network = layered(layers=4, width=4, states=3, parents=2, seed=1)
    plan, done = plan_stored(shape_of(network)), dict.fromkeys(("scattered", "reduced"), 0)

    def scatter(table: np.ndarray, view: object, values: np.ndarray) -> bool:
        done["scattered"] += len(table)
        return stored.scatter(table, view, values, DOUBLE)  # type: ignore[arg-type]

    def reduce(table: np.ndarray, view: object, sums: np.ndarray) -> None:
        done["reduced"] += len(table)
        stored.reduce(table, view, sums, DOUBLE)  # type: ignore[arg-type]

    kernels = Kernels(scatter, reduce)
    initial = [initial_table(plan, network, i, DOUBLE, kernels) for i in range(len(plan.cliques))]
    making = making_work(plan)
    assert making["multiplied"] == done["scattered"]
    assert making["made"] == plan.total_entries()
    assert making["permuted"] == sum(plan.entries(i) for i, clique in enumerate(plan.cliques) if clique.swaps)
    done["scattered"] = 0
    likelihoods = {v: np.full(3, 0.5) for v in observed}
    HostExecutor(plan, initial, DOUBLE, kernels).propagate(likelihoods)
    case = case_work(plan, frozenset(observed))
    assert (case["scattered"], case["reduced"]) == (done["scattered"], done["reduced"])
    assert case["copied"] == plan.total_entries()


def test_forecasts_are_sums_of_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_stored(shape_of(grid(6, 6, seed=1)))
    seconds = tuple(float(name in ("made", "reduced")) for name in STORED_WORK)
    costs = CostModel(MeasuredDevice("x"), {"stored-double": Coefficients(seconds, (), (0.0, 0.0))})
    # Small tables are done by NumPy, which was not measured.
    assert stored_forecast(plan, frozenset(), DOUBLE, costs) is None
    monkeypatch.setattr(stored_costs, "COMPILED_ENTRIES", 1)
    assert stored_forecast(plan, frozenset(), LOG, costs) is None
    found = stored_forecast(plan, frozenset({1}), DOUBLE, costs)
    assert found is not None
    assert found.making == plan.total_entries()
    assert found.case == case_work(plan, frozenset({1}))["reduced"]


def test_a_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_tuning, "COMPILED_ENTRIES", 1)
    ((name, rows),) = stored_tuning.calibrate_cliques([("a", grid(4, 4, seed=1))])
    assert name == "a, stored tables"
    assert {row.backend for row in rows} == {name for name in BACKENDS if name.startswith("stored")}
    assert {row.label for row in rows} == {"making", "0 observed", "0.2 observed"}
    assert all(row.seconds > 0 and len(row.work) == len(STORED_WORK) for row in rows)
    assert list(stored_tuning.calibrate_cliques([("a", grid(4, 4, seed=1))], -1.0)) == []


def one_table(entries: int) -> StoredPlan:
    """A table, and a small root."""
    rows = 1 << 10
    cliques = (
        StoredClique((0, 1), (), (0, 1), (0,), 1, (), (), ()),
        StoredClique((0,), (), (0,), (), None, (0,), (), ()),
    )
    return StoredPlan((rows, entries // rows), cliques)


@pytest.mark.parametrize(("pipeline", "gigabytes"), [("none", 51.6), ("one", 54.4), ("two", 98.4)])
def test_rates_are_those_that_an_h100_reached(pipeline: PipelineName, gigabytes: float) -> None:
    # 8 GiB in single precision, chunks of 64 MiB, four under way, both ways at once.
    work, way = CliquePass(0, True, (), (0,)), Streaming(pipeline, 4, 1 << 24)
    seconds = stored_choice.pass_seconds(1 << 33, work, way, 4)
    assert 2 * (1 << 33) / seconds / 1e9 == pytest.approx(gigabytes, rel=0.05)


def test_the_fastest_way_through_a_device_comes_first() -> None:
    plan, allowed = one_table(1 << 31), 1 << 33
    ways = streamings(plan, 4, allowed, engines=2)
    times = [stream_seconds(plan, 4, way) for way in ways]
    assert times == sorted(times)
    # Neither as large as there is room for, nor so small that the host is in the way.
    assert ways[0].pipeline == "two"
    assert 1 << 18 < ways[0].chunk < (allowed // 4) // ways[0].in_flight
    assert all(way.chunk * way.in_flight * 4 <= allowed for way in ways)
    assert {way.pipeline for way in streamings(plan, 4, allowed, engines=1)} == {"none", "one"}
    assert {way.in_flight for way in streamings(plan, 4, allowed, 2, in_flight=3)} == {3}
    (told,) = streamings(plan, 4, allowed, 2, "one", 2, 1000)
    assert told == Streaming("one", 2, 1000)


@pytest.mark.parametrize("size", [1, 7, 1 << 12])
def test_a_tree_streams_as_it_is_told(size: int) -> None:
    network = grid(4, 4, seed=1)
    tree = StoredTree(network, gpu=EmulatedStored(), in_flight=2, chunk=8 * size)
    layout, pipeline = tree.streaming(DOUBLE, 1 << 18, EmulatedStored())
    assert (layout.chunk <= size, len(layout.slots), pipeline) == (True, 2, "two")
    with pytest.raises(BudgetError, match="device memory"):
        tree.streaming(DOUBLE, 1 << 10, EmulatedStored())
