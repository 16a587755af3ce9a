"""Stored trees against enumeration and the engine: every executor, pipeline and format, and later questions."""

from __future__ import annotations

import math
import shutil
import tracemalloc
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from emulation.stored import EmulatedStored
from helpers.oracle import IMPOSSIBLE, enumerate_posteriors, joint_table
from helpers.strategies import evidence_batches, networks, row_evidence
from hypothesis import given, settings
from hypothesis import strategies as st
from junctor import posteriors, read_network
from junctor.cliques import on_gpu
from junctor.cliques import streamed as stored_stream
from junctor.cliques import tree as tree_module
from junctor.cliques.calibrated import load_cliques
from junctor.cliques.device import ResidentExecutor
from junctor.cliques.host import COMPILED_ENTRIES, HostExecutor, Initial, initial_table, kernels_for, natural_table
from junctor.cliques.on_gpu import takes_gpu
from junctor.cliques.parts import PARTS, Trace, part_seconds
from junctor.cliques.streamed import Pipeline, StreamedExecutor, lay_out
from junctor.cliques.tree import StoredTree, gpu_is_worth
from junctor.cost.model import cpu_name, local_cost_models
from junctor.cost.stored import gpu_gain
from junctor.generate import sample
from junctor.model.errors import BudgetError, EvidenceError, InputError, JunctorError, ModelError, Place
from junctor.model.network import DraftTable, DraftVariable, Network, build_network
from junctor.model.options import PIPELINES, ComputeOptions, PipelineName
from junctor.planning.cliques import DOWN, CliqueOperand, CliquePass, StoredClique, StoredPlan, plan_stored
from junctor.planning.shape import shape_of
from junctor_kernels.gpu import stored_tasks
from junctor_kernels.gpu.stored_tasks import CliqueLaunch, SeparatorTable, TaskBatch
from junctor_kernels.tables.reference import DOUBLE, LOG, SINGLE, Algebra
from junctor_kernels.tables.views import Axis, View

PLACE = Place("made")
NEEDS_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to compile the kernels for the CPU")


@pytest.fixture(autouse=True, scope="module")
def _few_threads() -> Iterator[None]:
    """Threads of a block are fibers where the CPU stands for a GPU; groups have few chunks, so there are several."""
    patch = pytest.MonkeyPatch()
    patch.setattr(stored_tasks, "THREADS", 64)
    patch.setattr(stored_tasks, "TILE", 256)
    patch.setattr(stored_tasks, "BLOCKS", 8)
    patch.setattr(stored_stream, "GROUP", 3)
    yield
    patch.undo()


def evidence_of(network: Network, hard: Any, soft: Any) -> dict[str, Any]:
    return {network.variables[v].name: said for v, said in (*hard.items(), *soft.items())}


@settings(max_examples=25)
@given(st.data())
def test_trees_agree_with_enumeration(data: st.DataObject) -> None:
    network = data.draw(networks())
    batch = data.draw(evidence_batches(network, max_rows=1, min_rows=1, invalid=False))
    hard, soft = row_evidence(batch, 0)
    log_evidence, expected = enumerate_posteriors(network, hard, soft)
    for precision, tolerance in (("single", 2e-5), ("double", 1e-11), ("log", 1e-11)):
        found = StoredTree(network, precision).propagate(evidence_of(network, hard, soft))  # type: ignore[arg-type]
        assert found.log_evidence == pytest.approx(log_evidence, abs=1e-4 if precision == "single" else 1e-9, rel=1e-9)
        for v, posterior in expected.items():
            np.testing.assert_allclose(found.posterior(network.variables[v].name), posterior, atol=tolerance)
        if log_evidence == IMPOSSIBLE:
            with pytest.raises(EvidenceError, match="impossible"):
                found.posterior(network.variables[0].name)


def grid(width: int, seed: int = 1, states: int = 3) -> Network:
    """A Markov network on a square grid, with zeros."""
    rng = np.random.default_rng(seed)
    names = [f"{row}{column}" for row, column in product(range(width), repeat=2)]
    variables = [DraftVariable(name, [f"s{s}" for s in range(states)], PLACE) for name in names]
    pairs = [(a, b) for a in names for b in names if abs(int(a[0]) - int(b[0])) + abs(int(a[1]) - int(b[1])) == 1]
    tables = [
        DraftTable(pair, rng.uniform(size=states**2) * (rng.uniform(size=states**2) > 0.1), PLACE)
        for pair in pairs
        if pair[0] < pair[1]
    ]
    return build_network("grid", "markov", variables, tables)


def initial_of(plan: StoredPlan, network: Network, algebra: Algebra) -> list[Initial]:
    kernels = kernels_for(algebra, 0)
    return [initial_table(plan, network, i, algebra, kernels) for i in range(len(plan.cliques))]


def on_host(plan: StoredPlan, network: Network, algebra: Algebra, chunk: int = 1 << 20) -> HostExecutor:
    return HostExecutor(plan, initial_of(plan, network, algebra), algebra, kernels_for(algebra, 0), chunk=chunk)


def all_tables(executor: Any, plan: StoredPlan) -> list[npt.NDArray[np.float64]]:
    tables = [executor.table(i).astype(np.float64) for i in range(len(plan.cliques))]
    tables = [np.exp(table - table.max()) if table.min() < 0 else table for table in tables]
    return [table / table.sum() for table in tables]


def a_case(network: Network) -> dict[int, npt.NDArray[np.float64]]:
    """One state observed, one ruled out, one said softly."""
    sizes = network.cardinalities
    said = {0: np.eye(sizes[0])[0], 1: np.ones(sizes[1]), 2: np.linspace(0.2, 0.9, sizes[2])}
    said[1][-1] = 0
    return said


@pytest.mark.parametrize("chunk", [1, 2, 7, 60, 1 << 20])
def test_chunks_on_the_host_give_the_same(chunk: int) -> None:
    network = grid(3)
    plan = plan_stored(shape_of(network))
    for algebra in (DOUBLE, LOG):
        whole, cut = on_host(plan, network, algebra), on_host(plan, network, algebra, chunk)
        one, other = whole.propagate(a_case(network)), cut.propagate(a_case(network))
        assert one.log_evidence == pytest.approx(other.log_evidence, abs=1e-12)
        for i in range(len(plan.cliques)):
            np.testing.assert_allclose(cut.table(i), whole.table(i), rtol=1e-12, atol=1e-14)


@NEEDS_COMPILER
@pytest.mark.parametrize("algebra", [SINGLE, DOUBLE, LOG], ids=["single", "double", "log"])
def test_a_device_that_holds_all_tables_agrees_with_the_host(algebra: Algebra) -> None:
    network = grid(3)
    plan, device = plan_stored(shape_of(network)), EmulatedStored()
    kernels = kernels_for(algebra, 0)
    executor = ResidentExecutor(
        plan, lambda i: natural_table(plan, network, i, algebra, kernels), algebra, device, 1 << 24
    )
    host = on_host(plan, network, algebra)
    for likelihoods in (a_case(network), {}, {3: np.eye(3)[1]}, a_case(network)):
        found, expected = executor.propagate(likelihoods), host.propagate(likelihoods)
        assert found.lost == expected.lost is False
        assert found.log_evidence == pytest.approx(expected.log_evidence, abs=1e-5 if algebra is SINGLE else 1e-12)
        for table, other in zip(all_tables(executor, plan), all_tables(host, plan), strict=True):
            np.testing.assert_allclose(table, other, rtol=1e-5 if algebra is SINGLE else 1e-12)
    needed = executor.size
    assert device.allocated == needed
    with pytest.raises(BudgetError, match="on the device"):
        ResidentExecutor(plan, lambda _: pytest.fail("made a table"), algebra, EmulatedStored(), needed - 1)


def executors(plan: StoredPlan, network: Network, algebra: Algebra, trace: Trace | None = None) -> Iterator[Any]:
    """Yield an executor of every kind with its device, that of a GPU first in its memory, then through it."""
    kernels, initial = kernels_for(algebra, 0), initial_of(plan, network, algebra)
    yield HostExecutor(plan, initial, algebra, kernels, trace=trace), None
    device = EmulatedStored()
    yield (
        ResidentExecutor(
            plan, lambda i: natural_table(plan, network, i, algebra, kernels), algebra, device, 1 << 24, trace
        ),
        device,
    )
    layout = lay_out(plan, algebra, 1 << 20, 2, 20)
    yield (
        StreamedExecutor(plan, initial_of(plan, network, algebra), algebra, device, layout, "two", trace=trace),
        device,
    )


@NEEDS_COMPILER
@pytest.mark.parametrize("algebra", [SINGLE, DOUBLE, LOG], ids=["single", "double", "log"])
def test_tables_are_summed_where_they_are(algebra: Algebra) -> None:
    network = grid(3)
    plan = plan_stored(shape_of(network))
    for executor, _ in executors(plan, network, algebra):
        executor.propagate(a_case(network))
        for i, clique in enumerate(plan.cliques):
            table = all_tables(executor, plan)[i].reshape(clique.shape(plan.sizes))
            # In front, behind, turned around, all of them, none.
            for wanted in (clique.layout[:2], clique.layout[1:], clique.layout[::-1], clique.layout, ()):
                found = executor.sums(i, wanted).astype(np.float64)
                found = np.exp(found - found.max()) if algebra is LOG else found
                expected = np.einsum(table, list(clique.layout), list(wanted)).reshape(-1)
                np.testing.assert_allclose(found / found.sum(), expected, rtol=1e-5 if algebra is SINGLE else 1e-12)


@NEEDS_COMPILER
def test_sums_that_exceed_a_device_are_made_on_the_host() -> None:
    network = grid(3)
    plan, kernels = plan_stored(shape_of(network)), kernels_for(DOUBLE, 0)
    executor = ResidentExecutor(
        plan, lambda i: natural_table(plan, network, i, DOUBLE, kernels), DOUBLE, EmulatedStored(), 1 << 24
    )
    executor.propagate({})
    found, executor._allowed = executor.sums(0, plan.cliques[0].layout[:1]), executor.size
    np.testing.assert_allclose(executor.sums(0, plan.cliques[0].layout[:1]), found, rtol=1e-13)


@NEEDS_COMPILER
def test_each_part_takes_its_time() -> None:
    network = grid(3)
    plan = plan_stored(shape_of(network))
    copied = []
    trace: Trace = []
    for executor, device in executors(plan, network, DOUBLE, trace):
        # The tables that are made for it are nobody's part.
        trace.clear()
        executor.propagate(a_case(network))
        executor.sums(0, plan.cliques[0].layout[1:])
        executor.table(0)
        seconds = part_seconds(trace, device)
        assert set(seconds) == set(PARTS)
        assert min(seconds["reduction"], seconds["scattering"]) > 0
        assert seconds["preprocessing"] == 0
        copied.append(seconds["transfers"] > 0)
    assert copied == [False, True, True]


def test_what_sums_and_multiplies_counts_to_both_parts() -> None:
    sums = CliqueLaunch("scatter_reduce", 0, 0, 1, 1, 0.25)
    trace: Trace = [(sums, 1.0, 5.0), (sums._replace(kernel="permute"), 0.0, 8.0), ("in", 0.0, 1.0), ("out", 1.0, 3.0)]
    # The work on a chunk is made of launches.
    trace += [("work", 0.0, 99.0), ("reduction", 0.0, 0.5)]
    assert part_seconds(trace, None) == {"preprocessing": 8, "transfers": 3, "reduction": 1.5, "scattering": 3}
    device, views = TaskBatch(np.float64), [View(0, (Axis(4, 1),)), View(0, (Axis(4, 0), Axis(3, 1)))]
    message = SeparatorTable(0, 0)
    device.scatter((0, 0), 4, [(views[0], message)] * 3, None, False, 0)
    device.scatter((0, 0), 12, [], (views[1], 0), False, 0)
    device.close()
    (launch,) = device.packed()[1]
    assert launch.summed == 12 / (3 * 4 + 12)


@NEEDS_COMPILER
@pytest.mark.parametrize(("chunk", "algebra"), [(1, SINGLE), (20, SINGLE), (20, LOG), (None, SINGLE)])
def test_all_pipelines_give_the_same_tables(chunk: int | None, algebra: Algebra) -> None:
    network = grid(2) if chunk == 1 else grid(3)
    plan = plan_stored(shape_of(network))
    host = on_host(plan, network, algebra)
    expected = host.propagate(a_case(network))
    found = set()
    many = {1: ((3,), (True,)), 20: ((1, 3), (True,)), None: ((1, 3, 30), (False, True))}[chunk]
    for seed, (name, in_flight, in_place) in enumerate(product(PIPELINES, *many)):
        device = EmulatedStored(seed)
        initial = initial_of(plan, network, algebra)
        layout = lay_out(plan, algebra, 1 << 18, in_flight, chunk)
        executor = StreamedExecutor(plan, initial, algebra, device, layout, name, in_place)
        assert device.allocated == executor.layout.size <= 1 << 18
        assert executor.layout.chunk == (chunk or executor.layout.chunk)
        for likelihoods in ({}, a_case(network))[in_place:]:  # tables that serve once get one case
            outcome = executor.propagate(likelihoods)
        assert outcome.log_evidence == pytest.approx(expected.log_evidence, abs=1e-5)
        found.add(b"".join(executor.table(i).tobytes() for i in range(len(plan.cliques))))
        for table, other in zip(all_tables(executor, plan), all_tables(host, plan), strict=True):
            np.testing.assert_allclose(table, other, rtol=1e-5)
    assert len(found) == 1


@NEEDS_COMPILER
@pytest.mark.parametrize("name", PIPELINES)
def test_a_table_is_read_after_it_was_stored(name: PipelineName) -> None:
    network = grid(3)
    plan = plan_stored(shape_of(network))
    for seed in range(5):
        layout = lay_out(plan, DOUBLE, 1 << 20, 8, 30)
        initial = initial_of(plan, network, DOUBLE)
        executor = StreamedExecutor(plan, initial, DOUBLE, EmulatedStored(seed), layout, name, True)
        executor.propagate({})
        before, down = executor.table(0).copy(), CliquePass(0, False, (CliqueOperand(DOWN, 0),), ())
        executor.run([down])
        once = executor.table(0).copy()
        executor.run([down, down])
        # Multiplied by the same numbers each time: their logarithms grow in equal steps.
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.log(executor.table(0) / once), 2 * np.log(once / before)
        known = before > 0
        np.testing.assert_allclose(steps[0][known], steps[1][known], atol=1e-12)


class Clock:
    """A device on which every copy and every work takes a second of its stream: how long would a pipeline take?"""

    def __init__(self) -> None:
        self.now, self.streams = 0.0, list[list[float]]()

    def stream(self) -> list[float]:
        self.streams.append([0.0])
        return self.streams[-1]

    def spend(self, stream: list[float]) -> None:
        stream[0] = max(stream[0], self.now) + 1

    def upload(self, array: Any, address: int, stream: list[float]) -> None:
        self.spend(stream)

    def download(self, address: int, array: Any, stream: list[float]) -> None:
        self.spend(stream)

    def record(self, stream: list[float]) -> float:
        return stream[0]

    def wait(self, stream: list[float], event: float) -> None:
        stream[0] = max(stream[0], event)

    def synchronize(self, event: float) -> None:
        self.now = max(self.now, event)


@pytest.mark.parametrize(
    ("name", "in_flight", "stores", "seconds"),
    [
        ("none", 4, True, 60),
        ("one", 1, True, 60),
        ("one", 4, True, 40),  # both copies of every chunk
        ("two", 4, True, 22),  # as many as chunks, and the last one to the end
        ("two", 4, False, 21),
        ("one", 4, False, 21),
        ("none", 4, False, 40),
    ],
)
def test_pipelines_overlap_what_they_can(name: PipelineName, in_flight: int, stores: bool, seconds: int) -> None:
    clock, chunk = Clock(), np.zeros(1)
    trace: Trace = []
    pipeline = Pipeline(clock, name, list(range(in_flight)), [0, 0], trace)  # type: ignore[arg-type]
    for _ in range(20):
        pipeline.put(chunk, chunk if stores else None, "table", clock.spend)
    pipeline.finish()
    assert clock.now == seconds
    assert [what for what, _, _ in trace].count("out") == 20 * stores


def test_chunks_are_as_large_as_the_device_allows() -> None:
    plan = plan_stored(shape_of(grid(5)))
    largest = max(plan.entries(i) for i in range(len(plan.cliques)))
    for allowed in (1 << 16, 1 << 18, 1 << 20, 1 << 30):
        layout = lay_out(plan, DOUBLE, allowed, 3, None)
        assert layout.size <= allowed
        assert layout.chunk == largest or layout.size + 3 * 8 * layout.chunk > allowed
    least = lay_out(plan, DOUBLE, 1 << 30, 3, 1).size
    assert lay_out(plan, DOUBLE, least, 3, None).size <= least
    with pytest.raises(BudgetError, match="device memory"):
        lay_out(plan, DOUBLE, 1 << 12, 3, None)


@NEEDS_COMPILER
def test_trees_stream_what_does_not_fit_and_refuse_what_cannot() -> None:
    network = grid(4)
    evidence = {network.variables[v].name: said for v, said in a_case(network).items()}
    expected = StoredTree(network).propagate(evidence)
    for device_memory, executor in ((16 << 20, ResidentExecutor), (24 << 10, StreamedExecutor)):
        options = ComputeOptions(device_memory=device_memory)
        tree = StoredTree(network, options=options, pipeline="one", gpu=EmulatedStored())
        found = tree.propagate(evidence)
        assert found.log_evidence == pytest.approx(expected.log_evidence, abs=1e-12)
        assert isinstance(tree.executor, executor)
        np.testing.assert_allclose(found.posterior("11", "12"), expected.posterior("11", "12"), atol=1e-12)
    with pytest.raises(BudgetError, match="device memory"):
        StoredTree(network, options=ComputeOptions(device_memory=1 << 12), gpu=EmulatedStored()).propagate(evidence)


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"precision": "quad"}, "quad"),
        ({"options": ComputeOptions(device="tpu")}, "tpu"),  # type: ignore[arg-type]
        ({"pipeline": "three-engines"}, "three-engines"),
        ({"in_flight": 0}, "0"),
    ],
)
def test_what_is_not_known_is_refused(wish: dict[str, Any], said: str) -> None:
    with pytest.raises(JunctorError, match=f"found .*{said}.*, expected"):
        StoredTree(grid(2), **wish)


def test_impossible_evidence_in_log_space_on_a_device() -> None:
    variables = [DraftVariable(name, ["a", "b"], PLACE) for name in "xy"]
    network = build_network("same", "markov", variables, [DraftTable(["x", "y"], [1, 0, 0, 1], PLACE)])
    for gpu in (None, EmulatedStored()) if shutil.which("g++") else (None,):
        found = StoredTree(network, "log", gpu=gpu).propagate({"x": "a", "y": "b"})
        assert found.log_evidence == -math.inf


@pytest.mark.parametrize(("entries", "taken"), [(7, False), (1 << 31, True)])
def test_a_gpu_is_taken_where_it_is_worth_its_start(entries: int, taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = max(entries // 1000, 7), min(entries, 1000)
    cliques = (
        StoredClique((0, 1), (), (0, 1), (0,), 1, (), (), ()),
        StoredClique((0,), (), (0,), (), None, (0,), (), ()),
    )
    plan = StoredPlan(shape, cliques)
    monkeypatch.setattr(tree_module, "usable_cores", lambda: 2)
    plenty, little = (ComputeOptions(memory, device="auto", device_memory=1 << 40) for memory in (1 << 50, 1 << 5))
    for algebra in (SINGLE, DOUBLE, LOG):
        assert gpu_is_worth(plan, algebra, plenty, 10) is taken
        # What this machine cannot hold may fit a GPU.
        assert gpu_is_worth(plan, algebra, little)
    # Many cases are worth it earlier than one, and what exceeds the GPU later.
    middle = StoredPlan((1 << 15, 1000), cliques)
    assert [gpu_is_worth(middle, DOUBLE, plenty, cases) for cases in (1, 1000)] == [False, True]
    costs = local_cost_models().cpu(cpu_name())
    assert gpu_gain(plan, DOUBLE, costs, 2, 1, 0) <= gpu_gain(plan, DOUBLE, costs, 2, 1, 1 << 40)
    for choice, is_there, expected in (("auto", True, taken), ("auto", False, False), ("cpu", True, False)):
        monkeypatch.setattr(on_gpu, "has_gpu", lambda is_there=is_there: is_there)
        assert takes_gpu(ComputeOptions(device=choice), lambda: taken) is expected  # type: ignore[arg-type]


def test_memory_of_the_host_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    network = grid(3)
    one, two = (StoredTree(network).projected(DOUBLE, copies) for copies in (1, 2))
    with pytest.raises(BudgetError, match="storing"):
        StoredTree(network, options=ComputeOptions(one - 1, device="cpu"))
    every, made, real = StoredTree(network), list[object](), tree_module.initial_table
    expected = [every.propagate({"00": state}).log_evidence for state in (0, 1)]
    monkeypatch.setattr(tree_module, "initial_table", lambda *given: made.append(given) or real(*given))
    for memory in (one, two - 1, two):
        tree = StoredTree(network, options=ComputeOptions(memory, device="cpu"))
        made.clear()
        for state in (0, 1):
            found = tree.propagate({"00": state})
            assert found.log_evidence == pytest.approx(expected[state], abs=1e-12)
        # Tables are made again for a case where there is room for one copy only.
        assert len(made) == len(tree.plan.cliques) * (1 if memory == two else 2)


@pytest.mark.parametrize("algebra", [SINGLE, DOUBLE, LOG], ids=["single", "double", "log"])
def test_what_tables_take_stays_below_the_projection(algebra: Algebra) -> None:
    network = grid(4, states=7)
    tree = StoredTree(network, algebra.name)  # type: ignore[arg-type]
    assert tree.plan.total_entries() < COMPILED_ENTRIES  # NumPy, which needs more
    tracemalloc.start()
    tree.propagate({"00": 1, "12": 0})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert tree.projected(algebra, 1) < peak <= tree.projected(algebra, 2)


def test_digits_lost_send_a_case_to_a_wider_format() -> None:
    # Two messages (1, 1e-40) and (1e-37, 1) meet: their product loses the entry that matters in single precision.
    variables = [DraftVariable(name, ["a", "b"], PLACE) for name in "xyz"]
    tables = [
        DraftTable(["x", "y"], [1, 0, 0, 1e-40], PLACE),
        DraftTable(["x", "z"], [1e-37, 0, 0, 1], PLACE),
        DraftTable(["x"], [1e-8, 1], PLACE),
    ]
    network = build_network("hidden", "markov", variables, tables)
    _, exact = enumerate_posteriors(network, {}, {})
    for gpu in (None, EmulatedStored()) if shutil.which("g++") else (None,):
        found = StoredTree(network, "single", gpu=gpu).propagate({})
        assert found.algebra is DOUBLE
        np.testing.assert_allclose(found.posterior("x"), exact[0], atol=1e-13)
    # And again where doubles are too narrow.
    squared = [DraftTable(table.scope, np.asarray(table.values) ** 8, PLACE) for table in tables]
    network = build_network("hidden", "markov", variables, squared)
    _, exact = enumerate_posteriors(network, {}, {})
    for gpu in (None, EmulatedStored()) if shutil.which("g++") else (None,):
        found = StoredTree(network, "single", gpu=gpu).propagate({})
        assert found.algebra is LOG
        np.testing.assert_allclose(found.posterior("x"), exact[0], atol=1e-13)


def test_questions_within_a_clique_need_no_propagation(tmp_path: Path) -> None:
    network = grid(3)
    soft = {2: [0.2, 0.5, 0.9]}
    tree = StoredTree(network)
    found = tree.propagate({"00": "s1", "02": soft[2]})
    joint = joint_table(network, {0: 1}, soft)
    weights = np.ldexp(joint.mantissa, np.maximum(joint.power, -1000).astype(np.int32))
    assert found.log_evidence == pytest.approx(math.log(weights.sum()), abs=1e-12)
    found.save(tmp_path / "kept")
    loaded = load_cliques(tmp_path / "kept")
    asked = 0
    for scope in found.scopes:
        for wanted in (scope, scope[::-1], scope[1:2] + scope[:1]):
            names = [network.variables[v].name for v in wanted]
            others = tuple(v for v in range(9) if v not in wanted)
            order = np.argsort(np.argsort(wanted))
            expected = weights.sum(axis=others).transpose(order) / weights.sum()
            for cliques in (found, loaded):
                np.testing.assert_allclose(cliques.posterior(*names), expected, atol=1e-13)
            with np.errstate(divide="ignore"):
                np.testing.assert_allclose(loaded.log_probability(*names), np.log(expected * weights.sum()), atol=1e-9)
            asked += 1
    assert asked
    assert found.posterior().shape == ()
    tree.propagate({})
    with pytest.raises(JunctorError, match="later one"):
        found.posterior("11")
    assert loaded.posterior("11").sum() == pytest.approx(1)


def test_questions_that_cannot_be_answered_say_so(tmp_path: Path) -> None:
    network = grid(3)
    tree = StoredTree(network)
    found = tree.propagate({})
    with pytest.raises(EvidenceError, match="no clique holds '00', '22'"):
        found.posterior("00", "22")
    with pytest.raises(EvidenceError, match="twice"):
        found.posterior("00", "00")
    for ask in (lambda: found.posterior("0"), lambda: tree.propagate({"0": 1})):
        with pytest.raises(ModelError, match="no variable named '0'"):
            ask()
    for said, message in (
        ("s9", "'00': unknown state 's9'"),
        (3, "unknown state 3"),
        ([1, 2], "3 numbers"),
        ([[1], 2, 3], "3 numbers"),
        (["1", "2", "3"], "3 numbers"),
        ([1, -1, 0], "negative"),
        ([0, 0, 0], "no state is possible"),
    ):
        with pytest.raises(EvidenceError, match=message):
            tree.propagate({"00": said})
    with pytest.raises(InputError, match="no calibrated cliques"):
        load_cliques(tmp_path)
    found.save(tmp_path)
    index = tmp_path / "cliques.json"
    index.write_text(index.read_text().replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(InputError, match="expected 1"):
        load_cliques(tmp_path)


@pytest.mark.parametrize("name", ["alarm.bif", "water.bif.gz", "mildew.bif.gz"])
def test_networks_agree_with_the_engine(name: str, shared: Path) -> None:
    network = read_network(shared / "networks" / "bnlearn" / name)
    chosen = np.random.default_rng(1).choice(len(network.variables), len(network.variables) // 5, replace=False)
    states = sample(network, 1, 3)[0]
    evidence = {network.variables[v].name: network.variables[v].states[states[v]] for v in chosen}
    expected = posteriors(network, [evidence])
    found = StoredTree(network).propagate(evidence)
    assert found.algebra is DOUBLE
    assert found.log_evidence == pytest.approx(expected["log_evidence"][0].as_py(), abs=1e-9)
    for variable in network.variables:
        answer = expected[variable.name][0].as_py()
        np.testing.assert_allclose(found.posterior(variable.name), answer, atol=1e-12)
