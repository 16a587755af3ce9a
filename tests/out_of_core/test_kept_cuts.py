"""Choices of plans in chunks from the cache: the same plans with and without it, whatever lies there."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from junctor import generate
from junctor.cost.dataset import MeasuredDevice
from junctor.cost.model import local_cost_models
from junctor.model.errors import BudgetError
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.out_of_core import memory_splits
from junctor.out_of_core.cluster.workers import WorkerPool
from junctor.out_of_core.kept_cuts import CUT, OVERLAP, SLICES, kept_cut
from junctor.out_of_core.memory_splits import ChunkRoute, GpuSplits, MemoryLimits, Overlap
from junctor.out_of_core.programs import cut
from junctor.planning import chunk_search
from junctor.planning.chunk_search import ChunkChoice
from junctor.planning.chunks import ChunkPlan
from junctor.planning.compile import Problem
from junctor.planning.recompute import Drop
from junctor.planning.shape import Pattern, shape_of
from junctor.runtime.cache import Cache, user_cache
from junctor.strategies.chunk_cuts import ChunkCuts
from junctor.strategies.facts import Facts
from junctor_kernels.tables import reference

GRID = generate.grid(9, 9, 2, seed=4)
PATTERN = Pattern(frozenset({3, 17}), frozenset({5}))
PROBLEM = Problem(shape_of(GRID), PATTERN)
LIMITS = MemoryLimits(1 << 28, 1 << 15, 0, Path())
COSTS = local_cost_models(own=False)
CPU, GPU = COSTS.cpu("AMD EPYC"), COSTS.gpu(MeasuredDevice("NVIDIA H100 80GB HBM3"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A cache of its own, for short searches as well."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JUNCTOR_CACHE")
    monkeypatch.setattr(chunk_search, "KEPT_STEPS", 0)
    return user_cache()


def _kept(cache: Cache) -> list[Path]:
    return [entry.path for entry in cache.entries() if entry.kind == CUT.kind]


def _cut(workers: WorkerPool | None = None, device: Any = "cpu") -> ChunkRoute:
    """The route of a new process."""
    options = ComputeOptions(
        memory=1 << 28, threads=1, device=device, device_memory=1 << (27 if device == "gpu" else 15)
    )
    facts = Facts(GRID, Query(), options, lambda: COSTS, workers=workers)
    gpu = facts.gpu_room() if device == "gpu" else None
    return ChunkCuts(facts).chunk_route(PATTERN, 1, reference.DOUBLE, 1 << 27, gpu)


def _parts(route: ChunkRoute) -> tuple[Any, ...]:
    chunks = route.chunks
    return chunks.plan, chunks.passes, chunks.cuts, chunks.on_disk, chunks.working, route.slots, route.seconds


@pytest.mark.parametrize("where", ["host", "device", "workers"])
def test_plans_are_equal_and_searched_once(cache: Cache, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    searched: list[int] = []
    search = chunk_search.varied_orders

    def counted(*of: Any) -> Any:
        searched.append(1)
        return search(*of)

    monkeypatch.setattr(chunk_search, "varied_orders", counted)

    def found() -> tuple[Any, ...]:
        return _parts(_cut(WorkerPool(2) if where == "workers" else None, "gpu" if where == "device" else "cpu"))

    with monkeypatch.context() as patch:
        patch.setenv("JUNCTOR_CACHE", "off")
        expected = found()
    assert len(searched) == 1
    assert [found() == expected for _ in range(3)] == [True] * 3
    assert len(searched) == 2
    for path in _kept(cache):
        path.write_bytes(path.read_bytes()[:-1])
    assert found() == expected
    assert found() == expected
    assert len(searched) == 3


def test_how_tasks_overlap_is_looked_for_once(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_splits, "KEPT_STEPS", 0)
    looked: list[int] = []
    best = GpuSplits._best_slots

    def counted(self: GpuSplits, chunks: ChunkPlan, numbers: Sequence[int]) -> tuple[float, int]:
        looked.append(1)
        return best(self, chunks, numbers)

    monkeypatch.setattr(GpuSplits, "_best_slots", counted)
    expected = _parts(_cut(device="gpu"))
    first = len(looked)
    assert _parts(_cut(device="gpu")) == expected
    assert len(looked) == first
    (path,) = [entry.path for entry in cache.entries() if entry.kind == OVERLAP.kind]
    path.write_bytes(path.read_bytes()[:-1])
    assert [_parts(_cut(device="gpu")) == expected for _ in range(2)] == [True] * 2
    assert len(looked) == 2 * first


@pytest.mark.slow
def test_slices_and_messages_made_again_are_found_again(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_splits, "fixed_bytes", lambda plan: 0)
    problem = Problem(shape_of(generate.grid(12, 12, 2, seed=4)), Pattern(frozenset(), frozenset({5})))
    limits = replace(LIMITS, task=None, memory=200_000, disk=1 << 16)

    def found() -> ChunkRoute:
        return cut(problem, reference.DOUBLE, limits, CPU, 1, 1, kept_cut(problem, reference.DOUBLE, limits, CPU, 1, 1))

    expected = found()
    assert expected.slices
    assert expected.again.messages
    searched: list[Problem] = []

    def search(problem: Problem, *_: Any) -> Any:
        searched.append(problem)
        raise chunk_search.TooLongError("a search")

    monkeypatch.setattr(chunk_search, "_candidates", search)
    again = found()
    assert _parts(again) == _parts(expected)
    assert (again.slices, again.whole, again.slower) == (expected.slices, expected.whole, expected.slower)
    assert not searched
    # Held twice, observed as a likelihood, not there, and too many; then a file that is cut off.
    kept = kept_cut(problem, reference.DOUBLE, limits, CPU, 1, 1)
    for strange in ((7, 7), (5,), (999,), (-1,), tuple(range(6, 30))):
        kept.keep_slices(strange, 1)
        with pytest.raises(BudgetError, match="a search"):
            found()
    for entry in cache.entries():
        if entry.kind == SLICES.kind:
            entry.path.write_bytes(entry.path.read_bytes()[:-1])
    with pytest.raises(BudgetError, match="a search"):
        found()
    assert searched == 6 * [problem]


class FixedOverlap:
    """How tasks overlap, as others left it, and what is kept instead."""

    def __init__(self, overlap: Overlap | None) -> None:
        self.overlap = overlap
        self.kept: list[Overlap] = []

    def find(self, members: frozenset[int]) -> ChunkChoice | None:
        return None

    def keep(self, choice: ChunkChoice) -> None:
        pass

    def find_overlap(self) -> Overlap | None:
        return self.overlap

    def keep_overlap(self, overlap: Overlap) -> None:
        self.kept.append(overlap)


@pytest.mark.parametrize("slots", [1, 2, 3, 6])
def test_passes_side_by_side_are_found_again(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_splits, "KEPT_STEPS", 0)
    # Two passes take less, in whatever order they come.
    monkeypatch.setattr(GpuSplits, "seconds_with", lambda self, chunks, s: abs(s - slots) + (1 - bool(chunks.spans)))
    ways = GpuSplits(replace(LIMITS, task=1 << 27, on_gpu=True), reference.DOUBLE, GPU, 1)
    chunks, split = chunk_search.cheapest_chunks(
        PROBLEM, 8, ways.splits, chunk_search.ChunkPrices(ways.least, ways.seconds, 0.0)
    )
    first = FixedOverlap(None)
    expected = ways.chunking(chunks, split, first)
    assert expected.chunks.spans
    again = FixedOverlap(first.kept[0])
    assert _parts(ways.chunking(chunks, split, again)) == _parts(expected)
    assert not again.kept


@functools.cache
def _on_gpu() -> tuple[GpuSplits, ChunkPlan, Any]:
    ways = GpuSplits(replace(LIMITS, task=1 << 27, on_gpu=True), reference.DOUBLE, GPU, 1)
    prices = chunk_search.ChunkPrices(ways.least, ways.seconds, 0.0)
    return ways, *chunk_search.cheapest_chunks(PROBLEM, 8, ways.splits, prices)


@pytest.mark.parametrize("strange", [(0, 0), (5, 0), (2, 5), (99, 0), (-1, 1), (1, 10**20)])
def test_slots_that_there_are_not_are_looked_for_anew(strange: tuple[int, int]) -> None:
    ways, chunks, split = _on_gpu()
    expected = _parts(ways.chunking(chunks, split))
    assert _parts(ways.chunking(chunks, split, FixedOverlap(Overlap(*strange)))) == expected


def test_what_a_search_depends_on_is_its_key() -> None:
    asked: list[tuple[Any, ...]] = [
        (PROBLEM, reference.DOUBLE, LIMITS, CPU, 1, 1),
        (replace(PROBLEM, shape=shape_of(generate.grid(9, 9, 3, seed=4))), reference.DOUBLE, LIMITS, CPU, 1, 1),
        (replace(PROBLEM, pattern=Pattern(PATTERN.sliced, frozenset())), reference.DOUBLE, LIMITS, CPU, 1, 1),
        (replace(PROBLEM, targets=frozenset({1})), reference.DOUBLE, LIMITS, CPU, 1, 1),
        (replace(PROBLEM, explain=True), reference.DOUBLE, LIMITS, CPU, 1, 1),
        (PROBLEM, reference.SINGLE, LIMITS, CPU, 1, 1),
        (PROBLEM, reference.DOUBLE, replace(LIMITS, memory=1 << 27), CPU, 1, 1),
        (PROBLEM, reference.DOUBLE, replace(LIMITS, task=None), CPU, 1, 1),
        (PROBLEM, reference.DOUBLE, replace(LIMITS, disk=1 << 30), CPU, 1, 1),
        (PROBLEM, reference.DOUBLE, replace(LIMITS, threads=2), CPU, 1, 1),
        (PROBLEM, reference.DOUBLE, replace(LIMITS, on_gpu=True), GPU, 1, 1),
        (PROBLEM, reference.DOUBLE, replace(LIMITS, on_gpu=True), GPU, 1, 2),
        (PROBLEM, reference.DOUBLE, LIMITS, CPU, 16, 1),
    ]
    assert len({repr(kept_cut(*what).key) for what in asked}) == len(asked)
    # Another network of the same shape is cut alike, wherever its files go.
    same = shape_of(generate.grid(9, 9, 2, seed=5))
    other = kept_cut(replace(PROBLEM, shape=same), reference.DOUBLE, replace(LIMITS, folder=Path("there")), CPU, 1, 1)
    assert repr(other.key) == repr(kept_cut(*asked[0]).key)


# Every other variable first: cliques that no memory holds.
UNFIT = tuple(sorted(PROBLEM.free(), key=lambda v: (v % 2, v)))


class FixedChoice:
    """A choice that others left, and what is kept instead."""

    def __init__(self, choice: ChunkChoice) -> None:
        self.choice = choice
        self.kept: list[ChunkChoice] = []

    def find(self, members: frozenset[int]) -> ChunkChoice:
        return self.choice

    def keep(self, choice: ChunkChoice) -> None:
        self.kept.append(choice)


@pytest.mark.parametrize("change", [{"split": 99}, {"variables": UNFIT}, {"passes": ()}, {"drops": (Drop(0, 0),)}])
def test_a_choice_that_does_not_fit_is_searched_anew(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_search, "KEPT_STEPS", 0)
    room = chunk_search.MemorySplit(1 << 14, 1 << 20, 0)
    prices = chunk_search.ChunkPrices(lambda plan: plan.operations, lambda chunks, _: float(chunks.loaded), 0.0)

    def cut(kept: FixedChoice | None = None) -> ChunkPlan:
        return chunk_search.cheapest_chunks(PROBLEM, 8, lambda _: [room], prices, 1, kept)[0]

    found = FixedChoice(ChunkChoice(UNFIT, "sweep", True, 99, ()))
    expected = cut(found)
    left = FixedChoice(found.kept[0]._replace(**change))
    assert cut(left).passes == expected.passes
    assert len(left.kept) == 1
    again = FixedChoice(left.kept[0])
    assert cut(again).passes == expected.passes
    assert not again.kept
