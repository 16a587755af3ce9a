"""Rows in chunks on several GPUs of one process: side by side, or all GPUs for each; the same bytes in any case."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from digests.stand_in import chunk_gpus
from helpers.figures import set_figures
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.cost.dataset import MeasuredDevice
from junctor.cost.features.registry import BACKENDS
from junctor.cost.fit import Coefficients
from junctor.cost.model import CostModel
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch
from junctor.generate import grid
from junctor.model.answers import Answers
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.out_of_core import programs
from junctor.out_of_core.gpu.run import ChunkedGpuProgram
from junctor.out_of_core.memory_splits import OFFSET_BYTES, ChunkRoute, GpuGroup, GpuSplits, MemoryLimits, SideBySide
from junctor.out_of_core.programs import cut, cut_for_gpus
from junctor.planning.compile import Problem
from junctor.planning.shape import Pattern, shape_of
from junctor.strategies import chunked_rows
from junctor.strategies import gpu_room as routes
from junctor.strategies.chunk_cuts import ChunkCuts
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra

ROOM, ROWS = 1 << 27, 16
GPUS = GpuGroup(4)
SHARED = {1: 1.0, 2: 0.7, 4: 0.4}


def side(seconds: dict[int, float] = SHARED, again: float = 0.1, host: float = 0.0, rows: int = 4) -> SideBySide:
    return SideBySide(4, rows, seconds, host, again)


@pytest.mark.parametrize(
    ("of", "rows", "rounds"),
    [
        (side(), 16, [(16, 4)]),
        (side(), 1, [(1, 1)]),
        (side(), 2, [(2, 2)]),
        # Two that are left take two GPUs each, unless that has to be prepared for too long.
        (side(), 6, [(4, 4), (2, 2)]),
        (side(again=1.0), 6, [(6, 4)]),
        (side(), 5, [(4, 4), (1, 1)]),
        # All GPUs for each row are more than four times as fast as one.
        (side({1: 1.0, 2: 0.45, 4: 0.2}), 16, [(16, 1)]),
        # The memory is enough for two.
        (side(rows=2), 16, [(16, 2)]),
        (side(), 0, []),
    ],
)
def test_rounds_of_rows(of: SideBySide, rows: int, rounds: list[tuple[int, int]]) -> None:
    assert of.rounds(rows) == rounds


def test_threads_of_one_process_wait_for_each_other() -> None:
    assert side().total([(16, 4)]) == pytest.approx(4.0)
    assert side(host=0.2).total([(16, 4)]) == pytest.approx(4.0)
    assert side(host=0.5).total([(16, 4)]) == pytest.approx(8.0)
    assert side(host=0.5).total([(16, 1)]) == pytest.approx(8.0)


@given(st.integers(1, 8), st.integers(1, 40), st.floats(0, 2), st.data())
def test_no_other_way_takes_less(gpus: int, rows: int, again: float, data: st.DataObject) -> None:
    seconds = {gpus // n: data.draw(st.floats(0.01, 1)) for n in range(1, gpus + 1)}
    of = SideBySide(gpus, gpus, seconds, 0.0, again)
    found = of.rounds(rows)
    assert sum(count for count, _ in found) == rows
    assert all(0 < abreast <= min(gpus, count) for count, abreast in found)
    for abreast in range(1, min(gpus, rows) + 1):
        assert of.total(found) <= of.total([(rows, abreast)])
        if rows % abreast:
            left = rows % abreast
            assert of.total(found) <= of.total([(rows - left, abreast), (left, left)])


def problem(side: int = 12) -> Problem:
    return Problem(shape_of(grid(side, side, states=2, seed=1)), Pattern(frozenset(), frozenset()))


def limits(memory: int = 1 << 32) -> MemoryLimits:
    return MemoryLimits(memory, OFFSET_BYTES + 5_700_000, 0, Path(), on_gpu=True)


def costs(**each: float) -> CostModel:
    """A GPU with some prices of the counts of a case."""
    features = BACKENDS["chunks-gpu-single"].work
    known = Coefficients(tuple(each.get(name, 0.0) for name in features), (0.0,) * 5, (0.0, 0.0))
    return CostModel(MeasuredDevice("g"), {"chunks-gpu-single": known})


def test_rows_go_side_by_side_where_that_is_forecast_to_be_faster() -> None:
    busy = costs(busiest=1.0, cases=1.0)
    # A second for each case, however many GPUs share it.
    found = cut_for_gpus(problem(), reference.SINGLE, limits(), busy, ROWS, GPUS)
    alone = cut(problem(), reference.SINGLE, limits(1 << 30), busy, ROWS)
    assert found.side is not None
    assert found.side.rounds(ROWS) == [(ROWS, 4)]
    assert found.seconds == pytest.approx(alone.seconds / 4)
    # The plan is that for one of them, so the answers are those of one, too.
    assert found.chunks.passes == alone.chunks.passes
    assert found.memory == 4 * alone.memory
    assert cut_for_gpus(problem(), reference.SINGLE, limits(), busy, 1, GPUS).side is None


def test_all_gpus_share_rows_where_that_is_forecast_to_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    # The host takes no time, and tables of a row fit the memory of four.
    set_figures(monkeypatch, gpu_host={"held": 0.0})
    seconds_with = GpuSplits.seconds_with
    faster = {1: 1.0, 2: 0.45, 4: 0.2}
    monkeypatch.setattr(GpuSplits, "seconds_with", lambda self, *of: seconds_with(self, *of) * faster[self._gpus])
    monkeypatch.setattr(GpuSplits, "least", lambda *_: 0.0)
    planned: list[int] = []

    def counted(*of: Any) -> ChunkRoute:
        planned.append(of[-1])
        return cut(*of)

    found = cut_for_gpus(problem(7), reference.SINGLE, limits(), costs(cases=0.1), ROWS, GPUS, counted)
    assert found.side is not None
    assert found.side.rounds(ROWS) == [(ROWS, 1)]
    assert found.seconds == pytest.approx(0.02)
    # Only with rows enough to pay for it a plan is searched that is best for all GPUs.
    assert planned == [1]
    cut_for_gpus(problem(7), reference.SINGLE, limits(), costs(cases=0.1), 1 << 10, GPUS, counted)
    assert planned == [1, 1, 4]


def test_few_rows_of_a_run_go_to_one_gpu() -> None:
    busy, slow = costs(busiest=1.0, cases=0.1), costs(busiest=1.0, cases=10.0)
    opened = replace(GPUS, opening=2.0)
    for rows, prices, count in ((ROWS, busy, 1), (1, busy, 1), (1 << 10, busy, 4), (ROWS, slow, 4)):
        found = cut_for_gpus(problem(), reference.SINGLE, limits(), prices, rows, opened)
        assert found.side is not None
        assert found.side.gpus == count
        assert found.side.rounds(rows) == [(rows, count)]
        every = cut_for_gpus(problem(), reference.SINGLE, limits(), prices, rows, GPUS)
        # The same plan, and the seconds of rows without those of opening.
        assert found.chunks.passes == every.chunks.passes
        assert found.seconds * rows <= every.seconds * rows + 3 * 2.0


def test_all_gpus_share_a_row_that_does_not_fit_beside_others() -> None:
    busy = costs(busiest=1.0, cases=1.0)
    one = cut(problem(), reference.SINGLE, limits(), busy, ROWS, 4)
    little = limits(int(1.2 * one.memory))
    found = cut_for_gpus(problem(), reference.SINGLE, little, busy, ROWS, GPUS)
    assert found.side is None
    assert found.memory <= little.memory


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Four emulated devices that an engine takes for those of this machine."""
    with chunk_gpus() as cupy:
        found = [cupy.Device(ROOM, n) for n in range(4)]
        for device in found:
            figures = {"multiprocessors": 1.0, "memory": float(ROOM)}
            device.__dict__ |= {"name": "g", "figures": figures, "host": lambda size, mapped: np.empty(size, np.uint8)}
        for module in (chunked_rows, routes):
            monkeypatch.setattr(module, "CudaBlockDevice", cupy.Device)
        yield found


def answered(
    monkeypatch: pytest.MonkeyPatch,
    gpus: list[Any],
    seconds: dict[int, float],
    abreast: int,
    batch: EvidenceBatch,
    used: int | None = None,
) -> Answers:
    """Return the answers of an engine that has some GPUs, with one plan for all of them, or for some that are used."""
    network = grid(3, 4, seed=3)

    def chunk_route(cuts: Any, pattern: Pattern, uses: int, algebra: Any, free: int, _: Any = None) -> ChunkRoute:
        asked = Problem(cuts.facts.shape, pattern)
        room = MemoryLimits(1 << 32, OFFSET_BYTES + (13 << 20), 0, Path(), on_gpu=True)
        route = cut(asked, algebra, room, costs(), ROWS)
        of = SideBySide(used or len(gpus), abreast, seconds, 0.0, 0.0)
        return ChunkRoute(**{**route.__dict__, "slots": 2, "side": of})

    monkeypatch.setattr(ChunkCuts, "in_chunks", lambda *_: True)
    monkeypatch.setattr(ChunkCuts, "chunk_route", chunk_route)
    monkeypatch.setattr(chunked_rows, "open_other_gpus", lambda memory: tuple(gpus[1:]))
    options = ComputeOptions(1 << 32, 2, "gpu", all_gpus=True)
    return Engine(network, Query(), options, gpu=gpus[0]).answer(batch)


def evidence() -> EvidenceBatch:
    # Different evidence of one pattern, so that every row is propagated.
    states = np.array(list(itertools.product(range(2), repeat=4)), np.int32).T
    return EvidenceBatch(ROWS, dict(zip((0, 3, 8, 11), states, strict=True)))


def test_sixteen_rows_are_answered_by_four_gpus_side_by_side(gpus: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    together, real, found = threading.Barrier(4, timeout=60), ChunkedGpuProgram.run, dict[int, list[int]]()

    def run(program: Any, block: EvidenceBlock) -> BlockOutcome:
        (device,) = program._gpu.devices
        rows = found.setdefault(device.number, [])
        if not rows:
            # Nobody goes on before four rows are in work.
            together.wait()
        rows.append(threading.get_ident())
        return real(program, block)

    one = answered(monkeypatch, gpus[:1], {1: 1.0}, 1, evidence())
    monkeypatch.setattr(ChunkedGpuProgram, "run", run)
    four = answered(monkeypatch, gpus, SHARED, 4, evidence())
    assert found.keys() == {0, 1, 2, 3}
    assert sum(map(len, found.values())) == ROWS
    assert all(len(set(threads)) == 1 for threads in found.values())
    assert_same_bytes(one, four)


def test_few_rows_that_are_left_take_more_gpus_each(gpus: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[int] = []
    real = programs._group_of

    def group_of(chunking: ChunkRoute, algebra: Algebra, devices: Sequence[Any]) -> Any:
        shares.append(len(devices))
        return real(chunking, algebra, devices)

    monkeypatch.setattr(programs, "_group_of", group_of)
    six = EvidenceBatch(6, {v: column[:6] for v, column in evidence().states.items()})
    found = answered(monkeypatch, gpus, SHARED, 4, six)
    assert shares == [1, 1, 1, 1, 2, 2]
    assert_same_bytes(found, answered(monkeypatch, gpus[:1], {1: 1.0}, 1, six))


def test_rows_of_one_gpu_open_no_other(gpus: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    used, real = list[int](), ChunkedGpuProgram.run

    def run(program: Any, block: EvidenceBlock) -> BlockOutcome:
        used.extend(device.number for device in program._gpu.devices)
        return real(program, block)

    monkeypatch.setattr(ChunkedGpuProgram, "run", run)
    three = EvidenceBatch(3, {v: column[:3] for v, column in evidence().states.items()})
    found = answered(monkeypatch, gpus, {1: 1.0}, 1, three, used=1)
    assert used == [0, 0, 0]
    assert_same_bytes(found, answered(monkeypatch, gpus[:1], {1: 1.0}, 1, three))


def assert_same_bytes(one: Answers, other: Answers) -> None:
    np.testing.assert_array_equal(one.log_value, other.log_value)
    np.testing.assert_array_equal(one.status, other.status)
    for variable, posterior in one.posteriors.items():
        np.testing.assert_array_equal(posterior, other.posteriors[variable])
