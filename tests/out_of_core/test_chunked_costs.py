"""The cost model in chunks: counts of cut plans, and what is chosen by prices."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.figures import set_figures
from junctor.backends.numpy import EvidenceBlock
from junctor.calibration import chunked as chunk_tuning
from junctor.calibration.harness import Repeats
from junctor.cost.dataset import MeasuredDevice, read
from junctor.cost.features import chunked_cpu as chunk_work
from junctor.cost.features import chunked_gpu as chunk_gpu_work
from junctor.cost.features import contraction as contraction_work
from junctor.cost.features.chunked_cpu import Arithmetic, least_work
from junctor.cost.features.chunked_gpu import gpu_counts, least_gpu_work
from junctor.cost.features.names import GPU_CHUNK_WORK
from junctor.cost.features.plans import PLAN_WORK
from junctor.cost.features.registry import BACKENDS
from junctor.cost.figures import shipped_figures
from junctor.cost.fit import Coefficients
from junctor.cost.model import CostModel, CostModels
from junctor.engine.engine import Engine
from junctor.generate import grid
from junctor.model.errors import BudgetError
from junctor.model.options import ComputeOptions, DeviceChoice
from junctor.model.query import Query
from junctor.out_of_core.bound_plan import BoundPlan
from junctor.out_of_core.gpu.devices import DeviceGroup
from junctor.out_of_core.gpu.run import ChunkedGpuProgram
from junctor.out_of_core.memory_splits import OFFSET_BYTES, CpuSplits, GpuSplits, MemoryLimits, backend_of
from junctor.out_of_core.program import ChunkedProgram
from junctor.out_of_core.programs import cut
from junctor.placement import residency as residents
from junctor.placement.placement import outer_variables, slot_bytes
from junctor.planning.chunks import ChunkPlan, chunk_plan
from junctor.planning.compile import Problem, compile_plan
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern, shape_of
from junctor.strategies import chunk_cuts as chunk_routes
from junctor.strategies.chunk_cuts import ChunkCuts, one_piece_seconds
from junctor.strategies.facts import Facts
from junctor.strategies.gpu_room import GpuRoom
from junctor_kernels.cpu import entries
from junctor_kernels.cpu.panels import COPIED, MODE, NEIGHBOURS, SAME
from junctor_kernels.tables import reference
from junctor_kernels.tables.axes import Contraction

NOTHING, ENDLESS = Pattern(frozenset(), frozenset()), 1 << 60
COMPILED, PLAIN = Arithmetic(8, 1 << 16, True), Arithmetic(8, 1 << 16, False)


def planned(rows: int = 10, columns: int = 10, states: int = 2) -> Plan:
    return compile_plan(shape_of(grid(rows, columns, states=states, seed=1)), NOTHING, rows=1)


def counted(chunks: ChunkPlan, how: Arithmetic) -> dict[str, float]:
    return chunk_work.chunk_work(chunks, how)


def on_gpu(chunks: ChunkPlan, slots: int, room: int, gpus: int = 1) -> dict[str, float]:
    return gpu_counts(chunks, 4, slots, room, gpus)


def prices(backend: str, **each: float) -> Coefficients:
    """Prices of some counts, nothing for all others."""
    features = BACKENDS[backend].work
    assert each.keys() <= set(features)
    return Coefficients(tuple(each.get(name, 0.0) for name in features), (0.0,) * 5, (0.0, 0.0))


def costs(coefficients: dict[str, Coefficients]) -> CostModel:
    return CostModel(MeasuredDevice("x"), coefficients)


def test_constants_are_those_of_the_loops() -> None:
    assert chunk_work.PREPARED == entries.PREPARED
    for name in ("LEAST_KEPT", "MOST_KEPT", "PANEL", "COPY_FROM", "COPY_BYTES"):
        assert getattr(contraction_work, name) == getattr(entries, name)
    assert contraction_work.MOST_TERMS == entries.NEAR * entries.FAR


@pytest.mark.parametrize("working", [1 << 6, 1 << 10, 1 << 20])
def test_every_operation_is_counted_once_however_a_plan_is_cut(working: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_work, "PREPARED", 0)
    chunks = chunk_plan(planned(8, 8), working, ENDLESS, 0)
    found = counted(chunks, COMPILED)
    assert sum(found[name] for name in ("near", "same", "apart")) == chunks.plan.operations
    assert found["tasks"] == chunks.tasks
    assert found["passes"] == len(chunks.passes)
    assert found["stored"] == chunks.stored
    assert found["prepared"] <= found["steps"] <= found["contractions"] == found["calls"]
    assert found["products"] == found["blocks"] == 0
    plain = counted(chunks, PLAIN)
    assert plain["prepared"] == plain["calls"] == 0 < plain["products"]
    assert plain["blocks"] >= plain["contractions"] == found["contractions"]


def test_smaller_tasks_are_more_and_nothing_is_less_than_the_least() -> None:
    plan = planned()
    found = [counted(chunk_plan(plan, working, ENDLESS, 0), COMPILED) for working in (1 << 8, 1 << 12, 1 << 20)]
    contractions = [each["contractions"] for each in found]
    assert contractions == sorted(contractions, reverse=True)
    least = least_work(plan, COMPILED)
    assert all(least[name] <= each[name] for each in found for name in ("contractions", "entries", "tasks", "steps"))
    spilled = counted(chunk_plan(plan, 1 << 8, found[0]["stored"].__int__() // 8, ENDLESS), COMPILED)
    assert spilled["files"] > 0 == found[0]["files"]


@pytest.mark.parametrize(("size", "states"), [(14, 2), (9, 3), (7, 4)])
def test_how_operands_lie_is_what_the_loops_find(size: int, states: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[str] = []
    real = entries.panel_walk

    def walk(*given: Any) -> Any:
        found, panels = real(*given)
        for each in found.operands:
            mode = {SAME: "same", NEIGHBOURS: "near"}.get(int(each[MODE]), "apart")
            wanted.append("near" if mode == "apart" and each[COPIED] else mode)
        return found, panels

    monkeypatch.setattr(entries, "panel_walk", walk)
    monkeypatch.setattr(contraction_work, "VECTOR_BYTES", entries.BYTES)
    chunks = chunk_plan(planned(size, size, states), 1 << 18, ENDLESS, 0)
    bound = BoundPlan(chunks, grid(size, size, states=states, seed=1), reference.DOUBLE)
    told = right = 0
    for what in {step.what for program in bound.programs for step in program.steps}:
        if what.kept_entries * what.eliminated_entries < entries.PREPARED:
            continue
        entries.forget()
        wanted.clear()
        entries.reduce(what, [_filled(what, k) for k in range(len(what.operands))], reference.DOUBLE)
        found = contraction_work.reads(what, 8)
        told += len(found)
        right += sum(a == b for a, b in zip(found, wanted[: len(found)], strict=True))
    assert told > 10
    assert right >= 0.9 * told


def test_what_is_prepared_once_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    real = entries.panel_walk
    monkeypatch.setattr(entries, "panel_walk", lambda *given: made.append(given) or real(*given))
    chunks = chunk_plan(planned(12, 12), 1 << 13, ENDLESS, 0)
    entries.forget()
    ChunkedProgram(chunks, grid(12, 12, states=2, seed=1), reference.DOUBLE, entry_threads=1).run(
        EvidenceBlock(1, {}, {})
    )
    found = counted(chunks, COMPILED)
    assert found["prepared"] == len(made) < found["calls"]


@pytest.mark.parametrize("scratch", [1 << 6, 1 << 12])
def test_loops_of_numpy_are_those_that_are_counted(scratch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and products are those that NumPy makes, and terms lie in memory as it is told."""
    chunks = chunk_plan(planned(6, 6, 3), 1 << 12, ENDLESS, 0)
    bound = BoundPlan(chunks, grid(6, 6, states=3, seed=1), reference.DOUBLE)
    blocks: list[Any] = []
    real = reference.combined
    monkeypatch.setattr(reference, "combined", lambda views, algebra: blocks.append(real(views, algebra)) or blocks[-1])
    gathered: list[tuple[Any, Any]] = []
    algebra = replace(reference.DOUBLE, gather=lambda block, into: gathered.append((blocks[-1], block)) or block[0])
    for what in {step.what for program in bound.programs for step in program.steps}:
        blocks.clear()
        gathered.clear()
        reference.reduce(what, [_filled(what, k) for k in range(len(what.operands))], algebra, scratch)
        found = contraction_work.numpy_work(what, scratch)
        assert found["blocks"] >= len(blocks)
        assert found["products"] == found["blocks"] * (len(what.operands) - 1)
        copied = sum(block.size for made, block in gathered if not np.shares_memory(made, block))
        assert bool(found["copied"]) == bool(copied)


def _filled(what: Contraction, k: int) -> Any:
    strides = (*what.operands[k].kept, *what.operands[k].eliminated)
    sizes = (*what.kept, *what.eliminated)
    return np.ones((1 + sum(stride * (size - 1) for stride, size in zip(strides, sizes, strict=True)), 1))


def test_a_plan_does_not_depend_on_threads() -> None:
    problem = Problem(shape_of(grid(6, 6, states=2, seed=1)), NOTHING)
    known = {backend_of(reference.DOUBLE, True): prices("chunks-double", near=1e-9, contractions=1e-5)}
    known[backend_of(reference.DOUBLE, False)] = prices("chunks-plain-double", blocks=1e-3)
    found = []
    for threads in (1, 2, 64):
        limits = MemoryLimits(1 << 28, None, 0, Path(), threads)
        found.append(cut(problem, reference.DOUBLE, limits, costs(known), rows=100))
    assert found[0].entry_threads == 1 < found[1].entry_threads < found[2].entry_threads
    assert found[0].chunks.passes == found[1].chunks.passes == found[2].chunks.passes
    assert len({each.working for each in found}) == 1


def test_prices_choose_the_share_of_a_task() -> None:
    problem, limits = (
        Problem(shape_of(grid(12, 12, states=2, seed=1)), NOTHING),
        MemoryLimits(1 << 22, None, ENDLESS, Path()),
    )
    chosen = {}
    for name in ("contractions", "spilled"):
        known = {
            backend_of(reference.DOUBLE, each): prices(backend_of(reference.DOUBLE, each), **{name: 1.0})
            for each in (True, False)
        }
        chosen[name] = cut(problem, reference.DOUBLE, limits, costs(known))
    # Large tasks need few contractions, small ones leave room for stored tables.
    few, small = (counted(chosen[name].chunks, PLAIN) for name in ("contractions", "spilled"))
    assert few["contractions"] <= small["contractions"]
    assert small["spilled"] <= few["spilled"]
    assert few != small


def test_slots_hide_what_is_not_busiest() -> None:
    chunks = chunk_plan(planned(), 1 << 10, ENDLESS, 0)
    alone, three = (on_gpu(chunks, slots, 0) for slots in (1, 3))
    assert three["busiest"] < alone["busiest"]
    assert alone["loaded"] == three["loaded"] > 0
    assert three["quads"] + three["entries"] + three["terms"] == chunks.plan.operations
    # What stays on the device does not cross the bus.
    assert on_gpu(chunks, 3, 1 << 30)["loaded"] < three["loaded"]
    assert least_gpu_work(chunks.plan, 4)["busiest"] < on_gpu(chunks, 3, 1 << 30)["busiest"]


def test_several_gpus_share_the_work() -> None:
    chunks = chunk_plan(planned(), 1 << 10, ENDLESS, 0)
    one, two = (on_gpu(chunks, 3, 0, gpus) for gpus in (1, 2))
    shared = [each for each in chunks.passes if outer_variables(chunks, each, 4)]
    alone = chunks.plan.operations - sum(chunks.plan.work(step) for each in shared for step in each.steps)
    counted = [each["quads"] + each["entries"] + each["terms"] for each in (one, two)]
    assert counted == [chunks.plan.operations, (chunks.plan.operations + alone) / 2]
    assert two["busiest"] < one["busiest"]
    # Nothing stays on a device: all of it crosses the bus, up to half of it to each.
    assert one["loaded"] / 2 <= two["loaded"] < one["loaded"]


def test_what_devices_copy_from_each_other_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = chunk_plan(planned(), 1 << 10, ENDLESS, 0)
    monkeypatch.setattr(residents, "RESIDENT_PIECE", 1)
    least, copied = (on_gpu(chunks, 3, 1 << 30, gpus)["loaded"] for gpus in (1, 2))
    assert least / 2 < copied < on_gpu(chunks, 3, 0, 2)["loaded"]
    # At the rate of the bus it would be more.
    set_figures(monkeypatch, chunk_gpu_work, gpu_rates={"link": shipped_figures().gpu_rates.bus})
    assert on_gpu(chunks, 3, 1 << 30, 2)["loaded"] > copied


def test_a_plan_is_chosen_for_all_gpus_that_share_it() -> None:
    problem = Problem(shape_of(grid(15, 15, states=2, seed=1)), NOTHING)
    limits = MemoryLimits(1 << 30, OFFSET_BYTES + 5_700_000, 0, Path(), on_gpu=True)
    known = {"chunks-gpu-single": prices("chunks-gpu-single", busiest=1.0)}
    one, two = (cut(problem, reference.SINGLE, limits, costs(known), gpus=gpus) for gpus in (1, 2))
    assert two.seconds < one.seconds
    # On either number the other's plan takes as long or longer.
    for here, other, gpus in ((one, two, 1), (two, one, 2)):
        rooms = GpuSplits(limits, reference.SINGLE, costs(known), gpus)
        assert here.seconds <= rooms.chunking(other.chunks, rooms.splits(other.chunks.plan)[0]).seconds


def test_a_gpu_that_is_too_small_is_refused_with_what_is_needed() -> None:
    problem = Problem(shape_of(grid(7, 7, states=2, seed=1)), NOTHING)

    def on(task: int) -> MemoryLimits:
        return MemoryLimits(1 << 30, task, 0, Path(), on_gpu=True)

    with pytest.raises(BudgetError, match="of the GPU for the tables of a task") as refused:
        cut(problem, reference.SINGLE, on(1 << 26), costs({}))
    needed = int(re.findall(r"\(([\d,]+) bytes\)", str(refused.value))[0].replace(",", ""))
    assert cut(problem, reference.SINGLE, on(needed), costs({})).working <= needed
    with pytest.raises(BudgetError):
        cut(problem, reference.SINGLE, on(needed - 1000), costs({}))


@pytest.mark.parametrize(("name", "rows", "slots"), [("busiest", 10**9, 2), ("cases", 10**9, 1), ("busiest", 1, 3)])
def test_prices_choose_the_slots(name: str, rows: int, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of about equals the fewest; where looking for them takes longer than it saves, the usual number."""
    monkeypatch.setattr(GpuSplits, "least", lambda *_: 0.0)
    chunks = chunk_plan(planned(), 1 << 10, ENDLESS, 0)
    # Room for six slots, or for fewer and tables. Nothing is busy enough for a third one.
    room = OFFSET_BYTES + 6 * slot_bytes(chunks, 4)
    limits = MemoryLimits(1 << 30, room, 0, Path(), on_gpu=True)
    known = costs({"chunks-gpu-single": prices("chunks-gpu-single", **{name: 1.0})})
    rooms = GpuSplits(limits, reference.SINGLE, known, 1, rows)
    chunking = rooms.chunking(chunks, rooms.splits(chunks.plan)[0])
    assert chunking.slots == slots
    assert chunking.working <= room
    assert chunking.seconds == rooms.seconds_with(chunking.chunks, slots)
    assert rooms.most_slots(chunks) == 6


@pytest.fixture
def engine_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """An engine with a GPU and a CPU whose steps take so many seconds."""
    # As if there was a GPU.
    monkeypatch.setattr(Facts, "costs", property(lambda self: self.cost_models.devices[1]))

    def made(gpu: float, cpu: float, device: DeviceChoice = "auto") -> Engine:
        figures = {"multiprocessors": 1.0, "memory": float(1 << 30)}
        names = [backend_of(reference.DOUBLE, each) for each in (True, False)]
        here = {name: prices(name, contractions=cpu, steps=cpu) for name in names}
        here["entries-double"] = Coefficients((), (0.0, cpu, 0.0, 0.0, 0.0), (0.0, 0.0))
        there = {"chunks-gpu-double": prices("chunks-gpu-double", cases=1e3 * gpu)}
        speeds = CostModels((CostModel(MeasuredDevice("c"), here), CostModel(MeasuredDevice("g", figures), there)))
        network = grid(6, 6, states=2, seed=1)
        return Engine(
            network, Query(), ComputeOptions(device=device, device_memory=1 << 27, threads=1), costs=lambda: speeds
        )

    return made


def test_the_cheaper_device_is_chosen(engine_of: Callable[..., Engine]) -> None:
    def chosen(made: Engine, gpu: bool = True) -> bool:
        room = GpuRoom(1 << 27, True) if gpu else None
        return ChunkCuts(made.facts).chosen_chunks(NOTHING, 1, reference.DOUBLE, 1 << 28, room).limits.on_gpu

    assert chosen(engine_of(1e-6, 1e-3))
    assert not chosen(engine_of(1e-2, 1e-6))
    assert chosen(engine_of(1e-2, 1e-6, "gpu"))
    assert not chosen(engine_of(1e-6, 1e-3), gpu=False)


def test_what_fits_goes_in_chunks_where_a_gpu_is_faster(engine_of: Callable[..., Engine]) -> None:
    def beats(made: Engine, free: int) -> bool:
        return ChunkCuts(made.facts).beats_one_piece(NOTHING, 1, free, GpuRoom(1 << 27, True))

    assert beats(engine_of(1e-6, 1e-3), 1 << 28)
    assert not beats(engine_of(1e-2, 1e-6), 1 << 28)
    # Where no task fits, it does not.
    assert not beats(engine_of(1e-6, 1e-3), 1 << 10)


def test_what_has_too_many_offsets_for_a_gpu_may_go_in_chunks_there(
    engine_of: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def goes(made: Engine) -> bool:
        return ChunkCuts(made.facts).in_chunks(NOTHING, 1, 1 << 28, GpuRoom(1 << 27, True))

    assert not goes(engine_of(1e-6, 1e-3))
    monkeypatch.setattr(chunk_routes, "MOST_OFFSETS", 100)
    assert goes(engine_of(1e-6, 1e-3))
    assert not goes(engine_of(1e-2, 1e-6))


def test_one_piece_is_priced_by_all_of_its_operations() -> None:
    plan = planned(4, 4)
    known = Coefficients((), tuple(float(name == "operations") for name in PLAN_WORK), (0.0, 0.0))
    assert (
        one_piece_seconds(plan, costs({"entries-double": known}), 3)
        == plan.shared_operations + 3 * plan.case_operations
    )


def test_a_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_tuning, "CUTS", ((1 << 12, 1.0), (1 << 16, 0.3)))
    cases = list(chunk_tuning.cpu_cases([("a", grid(5, 5, seed=1))]))
    assert len({(case.label, case.algebra.name) for case in cases}) == len(cases) > 3
    rows = [row for case in cases for row in chunk_tuning.measure_on_cpu(case)]
    assert {row.backend for row in rows} == {
        name for name in BACKENDS if name.startswith("chunks") and "gpu" not in name
    }
    assert all(row.seconds > 0 and len(row.work) == len(BACKENDS[row.backend].work) for row in rows)
    assert all(len(row.plan) == 5 and row.rows == 1 for row in rows)


def test_networks_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    networks = [(name, grid(3, 3, seed=n)) for n, name in enumerate("ab")]
    monkeypatch.setattr(chunk_tuning, "built_in", lambda: iter(networks))
    monkeypatch.setattr(chunk_tuning, "measure_on_cpu", lambda case: [case])
    found = list(chunk_tuning.calibrate_chunks(None, 60.0))
    assert [name[0] for name, _ in found[:4]] == ["a", "b", "a", "b"]
    assert len(found) == len(list(chunk_tuning.cpu_cases(networks)))
    assert list(chunk_tuning.calibrate_chunks(None, -1.0)) == []


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Any:
    from emulation import cupy_memory as emulated_cupy

    emulated_cupy.stand_in(monkeypatch)
    return emulated_cupy.Device(1 << 28, 0)


def test_a_gpu_is_measured(emulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_tuning, "GPU_SETTINGS", ((2, 0.0), (1, 1.5)))
    monkeypatch.setattr(chunk_tuning, "REPEATS", Repeats(1, 1, 0.0))
    (case, *_) = chunk_tuning.gpu_cases([("a", grid(2, 2, seed=1))])
    rows = chunk_tuning.measure_on_gpu(replace(case, chunks=chunk_plan(case.chunks.plan, 8, ENDLESS, 0)), emulated)
    assert [row.backend for row in rows] == ["chunks-gpu-single"] * 2
    assert [len(row.work) for row in rows] == [len(GPU_CHUNK_WORK)] * 2
    assert len({row.label for row in rows}) == 2
    assert emulated.room == 1 << 28


def test_the_number_of_slots_changes_no_number(emulated: Any) -> None:
    network = grid(2, 3, seed=1)
    chunks = chunk_plan(planned(2, 3), 8, ENDLESS, 0)
    found = []
    for slots in (1, 4):
        gpu = DeviceGroup(chunks, reference.SINGLE, emulated, slots=slots)
        assert len(gpu.slots) == slots
        found.append(ChunkedGpuProgram(chunks, network, reference.SINGLE, gpu).run(EvidenceBlock(1, {}, {})))
    assert len({each.log_value.tobytes() for each in found}) == 1
    assert len({b"".join(table.tobytes() for table in each.posteriors.values()) for each in found}) == 1


def test_cpu_rooms_keep_to_the_limits() -> None:
    known = {
        backend_of(reference.DOUBLE, True): prices("chunks-double"),
        backend_of(reference.DOUBLE, False): prices("chunks-plain-double", products=1.0),
    }
    for memory, task in ((1 << 24, None), (1 << 27, None), (1 << 30, 1 << 26), (1 << 34, None)):
        rooms = CpuSplits(MemoryLimits(memory, task, 0, Path(), 4), reference.DOUBLE, costs(known), 1000)
        found = rooms.splits(planned(4, 4))
        assert found
        for room in found:
            assert room.scratch + room.working + room.memory <= memory
            assert task is None or room.scratch + room.working <= task


def test_the_benchmark_measures_and_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = importlib.import_module("chunk_costs")
    for name in ("MOST_OPERATIONS", "GPU_OPERATIONS", "MOST_CONTRACTIONS", "ORDERS"):
        monkeypatch.setattr(chunk_tuning, name, getattr(chunk_tuning, name))

    def call(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["chunk_costs.py", *arguments])
        benchmark.main()
        return capsys.readouterr().out

    cases, found, ways = (str(tmp_path / name) for name in ("cases", "found.parquet", "ways"))
    assert "plans" in call("prepare", "4x5", "5", "--output", cases)
    assert "measurements of" in call("measure", cases, "--output", found)
    assert {row.network for row in read(Path(found))} == {"grid 4 x 5, 2 states", "complete 5"}
    assert "forecast" in call("ways", "5x6", "--memory", "2MiB", "--output", ways)
    table = call("compare", ways)
    assert table.count("| chosen") == 2
    assert "over it" in table
