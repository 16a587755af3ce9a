"""Rows slice by slice, messages made again and mixtures of both: the same answers, and what is said of them."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from helpers import strategies
from helpers.chunk_plans import cut_for
from helpers.engine_cases import TOLERANCE, check_explanations, check_posteriors, markov
from helpers.options import on_cpu
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends.numpy import EvidenceBlock
from junctor.cli.chunks import chunk_facts, show_chunks
from junctor.cost.dataset import MeasuredDevice
from junctor.cost.model import local_cost_models
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch, SoftEvidence
from junctor.generate import grid
from junctor.model.answers import IMPOSSIBLE, OK, Answers
from junctor.model.errors import BudgetError, DiskError
from junctor.model.network import Network
from junctor.model.query import Precision, Query
from junctor.model.strategies import Strategy
from junctor.out_of_core import memory_splits
from junctor.out_of_core import store as chunk_store
from junctor.out_of_core.gpu.devices import DeviceGroup
from junctor.out_of_core.gpu.run import ChunkedGpuProgram
from junctor.out_of_core.memory_splits import OFFSET_BYTES, ChunkRoute, MemoryLimits
from junctor.out_of_core.programs import cut
from junctor.placement import residency
from junctor.planning.compile import Problem
from junctor.planning.shape import Pattern, shape_of
from junctor.strategies.chunk_cuts import ChunkCuts
from junctor.strategies.facts import Facts
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra

NOTHING = Pattern(frozenset(), frozenset())
COSTS = local_cost_models(own=False)
CPU, GPU = COSTS.cpu("AMD EPYC"), COSTS.gpu(MeasuredDevice("NVIDIA H100 80GB HBM3"))
# Variables that are held constant, and messages that are made again.
HELD = st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True)
AGAIN = st.lists(st.integers(0, 99), max_size=3)


@pytest.mark.parametrize("precision", ["double", "single", "log"])
@given(
    question=strategies.questions(max_rows=3, max_joint=256),
    working=st.sampled_from([0, 3, 100]),
    lean=st.booleans(),
    held=HELD,
    again=AGAIN,
    targets=st.sampled_from([None, 1, 2]),
)
def test_rows_slice_by_slice_equal_enumeration(
    precision: Precision,
    question: tuple[Network, EvidenceBatch],
    working: int,
    lean: bool,
    held: list[int],
    again: list[int],
    targets: int | None,
) -> None:
    network, batch = question
    names = None if targets is None else tuple(variable.name for variable in network.variables[:targets])
    inside = [v for v in held if v < len(network.variables)]
    with cut_for(working, lean=lean, held=inside, again=again):
        answers = Engine(network, Query(targets=names, precision=precision)).answer(batch)
    check_posteriors(network, batch, answers, TOLERANCE[precision])


@pytest.mark.parametrize("precision", ["double", "log"])
@given(
    question=strategies.questions(max_rows=3, max_joint=256),
    working=st.sampled_from([0, 3, 100]),
    held=HELD,
    again=AGAIN,
)
def test_explanations_slice_by_slice_are_as_probable_as_any(
    precision: Precision, question: tuple[Network, EvidenceBatch], working: int, held: list[int], again: list[int]
) -> None:
    network, batch = question
    inside = [v for v in held if v < len(network.variables)]
    with cut_for(working, held=inside, again=again), pytest.MonkeyPatch.context() as patch:
        # What is ambiguous of a row goes in chunks as well, or in one piece.
        patch.setattr(ChunkCuts, "in_chunks", lambda cuts, pattern, *_: len(pattern.sliced) < 3)
        patch.setattr(Facts, "forced", None)
        answers = Engine(network, Query("mpe", precision=precision)).answer(batch)
    check_explanations(network, batch, answers, 2e-9)


@pytest.mark.parametrize("held", [(1,), (0, 2), (1, 3)])
def test_slices_that_are_impossible_count_nothing(held: tuple[int, ...]) -> None:
    """Of b one state, of d none beside c = 0; and a row of which no slice is possible."""
    network = markov(
        (("a", "b"), [[1, 0], [3, 0]]), (("b", "c"), [[1, 2], [5, 7]]), (("c", "d"), [[2, 0], [1, 4]]), (("d",), [1, 1])
    )
    soft = SoftEvidence(np.array([1]), np.array([[0.2, 0.9]]))
    batch = EvidenceBatch(3, {2: np.array([-1, -1, 0], np.int32), 3: np.array([-1, -1, 1], np.int32)}, {0: soft})
    with cut_for(0, held=held):
        answers = Engine(network, Query()).answer(batch)
        explained = Engine(network, Query("mpe")).answer(batch)
    assert answers.status.tolist() == explained.status.tolist() == [OK, OK, IMPOSSIBLE]
    check_posteriors(network, batch, answers, 1e-12)
    check_explanations(network, batch, explained, 2e-9)


@pytest.mark.parametrize(("precision", "wider"), [("single", "double"), ("double", "log")])
def test_slices_in_doubt_go_to_a_wider_format(precision: Precision, wider: str) -> None:
    links = [((one, other), [[1e-160, 0], [0, 1]]) for one, other in itertools.pairwise("abcdef")]
    ends = [(("a",), [1, 1e-160]), (("a",), [1, 1e-144]), (("f",), [1, 1e-160]), (("f",), [1, 1e-160])]
    network = markov((("z", "a"), [[1, 2], [3, 1]]), *ends, *links)
    with cut_for(0, held=(0,)):
        answers = Engine(network, Query(precision=precision)).answer(EvidenceBatch(1))
    assert answers.climbed[wider] == 1
    check_posteriors(network, EvidenceBatch(1), answers, TOLERANCE[precision])


# Ways that budgets force.


@pytest.fixture
def tables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records take nothing: those of a small grid take more than its tables."""
    for name in ("fixed_bytes", "launch_bytes"):
        monkeypatch.setattr(memory_splits, name, lambda plan: 0)


@contextmanager
def within(memory: int, disk: int, folder: Path) -> Iterator[list[ChunkRoute]]:
    """Let rows go as they do where tables have so many bytes of memory and of disk; yields the routes."""
    found: list[ChunkRoute] = []

    def route(cuts: ChunkCuts, pattern: Pattern, uses: int, algebra: Algebra, *_: object) -> ChunkRoute:
        limits = MemoryLimits(memory, None, disk, folder)
        found.append(cut(Problem(cuts.facts.shape, pattern), algebra, limits, CPU))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Facts, "forced", Strategy.CHUNKS)
        patch.setattr(ChunkCuts, "chunk_route", route)
        yield found


def check_as_in_one_piece(found: Answers, network: Network, batch: EvidenceBatch, tolerance: float) -> None:
    expected = Engine(network, Query(), on_cpu()).answer(batch)
    assert found.status.tolist() == expected.status.tolist()
    np.testing.assert_allclose(found.log_value, expected.log_value, rtol=tolerance)
    for v, posterior in expected.posteriors.items():
        np.testing.assert_allclose(found.posteriors[v], posterior, rtol=0, atol=tolerance)


# Kilobytes of memory and of disk, and whether the row has slices, messages made again, and files.
FORCED = [
    *(("double", 400, 0, "chunks"), ("double", 400, 64, "files"), ("double", 600, 0, "again")),
    *(("double", 200, 64, "slices again files"), ("single", 150, 64, "again files")),
    *(
        pytest.param(*each, marks=pytest.mark.slow)
        for each in (("double", 200, 0, "slices"), ("single", 100, 0, "slices"), ("single", 300, 0, "again"))
    ),
]


@pytest.mark.usefixtures("tables_alone")
@pytest.mark.parametrize(("precision", "memory", "disk", "way"), FORCED)
def test_every_way_answers_as_one_piece_does(
    precision: Precision, memory: int, disk: int, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network, batch = grid(12, 12, states=2, seed=1), EvidenceBatch(1)
    with within(1000 * memory, 1024 * disk, tmp_path) as routes:
        answers = Engine(network, Query(precision=precision), on_cpu(spill_dir=tmp_path)).answer(batch)
    (route,) = routes
    done = {"slices": bool(route.slices), "again": bool(route.again.messages), "files": bool(route.disk)}
    assert {name for name in done if done[name]} == set(way.split()) - {"chunks"}
    assert route.memory <= 1000 * memory
    assert route.disk <= 1024 * disk
    check_as_in_one_piece(answers, network, batch, 1e-5 if precision == "single" else 1e-9)
    # What is said of it.
    assert (route.slower > 1) == (done["slices"] or done["again"])
    assert route.operations == route.chunks.plan.operations * 2 ** len(route.slices)
    show_chunks(chunk_facts(route, network))
    lines = capsys.readouterr().out.splitlines()
    told = [line for line in lines if line.startswith("      for the memory ")]
    assert len(told) == (done["slices"] or done["again"])
    for line in told:
        assert line.endswith(f"{route.slower:.2g} x the operations")
        assert ("messages made again" in line, "sliced over 1 variable (" in line) == (done["again"], done["slices"])
    assert f"      binds             {route.option}, of which more would help first" in lines
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "disk", "way"), [(64, 64, "files"), (20, 16, "again files"), (12, 16, "slices files")]
)
def test_a_large_grid_goes_every_way(memory: int, disk: int, way: str, tmp_path: Path) -> None:
    """Mebibytes, records included."""
    network, batch = grid(20, 20, states=2, seed=1), EvidenceBatch(1)
    with within(memory << 20, disk << 20, tmp_path) as routes:
        answers = Engine(network, Query(precision="single"), on_cpu(spill_dir=tmp_path)).answer(batch)
    (route,) = routes
    done = {"slices": bool(route.slices), "again": bool(route.again.messages), "files": bool(route.disk)}
    assert {name for name in done if done[name]} == set(way.split()) - {"chunks"}
    check_as_in_one_piece(answers, network, batch, 1e-5)


def test_a_disk_that_fills_up_in_the_middle_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, reserved = chunk_store.reserve, list[int]()

    def reserve(descriptor: int, size: int) -> None:
        reserved.append(size)
        if len(reserved) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor, size)

    monkeypatch.setattr(chunk_store, "reserve", reserve)
    network, batch = grid(5, 5, states=2, seed=1), EvidenceBatch(1)
    engine = Engine(network, Query(), on_cpu(spill_dir=tmp_path))
    with cut_for(0, disk=True, held=(3, 13)):
        with pytest.raises(DiskError, match=rf"{tmp_path}: .*No space left on device.*--spill"):
            engine.answer(batch)
        assert len(reserved) == 3
        assert not list(tmp_path.iterdir())
        # Nothing is left of it, and the next call goes on.
        check_as_in_one_piece(engine.answer(batch), network, batch, 1e-12)
    assert len(reserved) > 4 * 2


GPU_TASK = OFFSET_BYTES + (48 << 20)


def on_gpu(memory: int, task: int = GPU_TASK, disk: int = 0) -> MemoryLimits:
    return MemoryLimits(memory, task, disk, Path(), on_gpu=True)


def of_grid(size: int) -> tuple[Network, Problem]:
    network = grid(size, size, states=2, seed=1)
    return network, Problem(shape_of(network), NOTHING)


@pytest.mark.usefixtures("tables_alone")
@pytest.mark.parametrize("algebra", [reference.SINGLE, reference.DOUBLE], ids=lambda each: each.name)
def test_what_the_device_holds_needs_no_memory_of_the_host(algebra: Algebra, monkeypatch: pytest.MonkeyPatch) -> None:
    from emulation import cupy_memory as emulated_cupy

    emulated_cupy.stand_in(monkeypatch)
    # Small tables stay there as large ones do.
    monkeypatch.setattr(residency, "RESIDENT_PIECE", 1)
    network, problem = of_grid(12)
    # Factors, evidence and results begin and end on the host.
    route = cut(problem, algebra, on_gpu(1 << 16), GPU)
    assert route.memory <= 1 << 16 < route.chunks.peak(on_disk=False) * algebra.dtype.itemsize
    assert (route.disk, route.slices) == (0, ())
    assert route.working + route.resident <= GPU_TASK
    device = emulated_cupy.Device(GPU_TASK, 0)
    group = DeviceGroup(route.chunks, algebra, device, slots=route.slots, most=route.limits.memory)
    found = ChunkedGpuProgram(route.chunks, network, algebra, group).run(EvidenceBlock(1, {}, {}))
    answers = Engine(network, Query(), on_cpu()).answer(EvidenceBatch(1))
    tolerance = 1e-5 if algebra is reference.SINGLE else 1e-9
    np.testing.assert_allclose(found.log_value, answers.log_value, rtol=tolerance)
    for v, posterior in answers.posteriors.items():
        np.testing.assert_allclose(found.posteriors[v][:, 0], posterior[0], atol=tolerance)
    # Where others took some of the device meanwhile, tables would lie on the host that have no room there.
    small = emulated_cupy.Device(route.working + (1 << 10), 0)
    with pytest.raises(MemoryError, match=r"stored tables take [\d,]+ bytes of the host, 0 are allowed"):
        DeviceGroup(route.chunks, algebra, small, slots=route.slots, most=0)


def test_budgets_of_nothing_are_refused_in_words() -> None:
    _, problem = of_grid(6)
    for limits in (MemoryLimits(0, None, 0, Path()), MemoryLimits(0, 0, 0, Path()), on_gpu(0), on_gpu(0, 0)):
        with pytest.raises(BudgetError, match=r"records and factors take .*allowed are 0 bytes; allow more memory"):
            cut(problem, reference.DOUBLE, limits, GPU if limits.on_gpu else CPU)
    for limits in (MemoryLimits(1 << 30, 0, 0, Path()), on_gpu(1 << 30, 0)):
        with pytest.raises(BudgetError, match=r"task.*allowed are 0 B .*--device-memory.*evidence on more variables"):
            cut(problem, reference.DOUBLE, limits, GPU if limits.on_gpu else CPU)


@pytest.mark.usefixtures("tables_alone")
def test_refusals_of_size_name_what_would_help() -> None:
    """Whatever is held constant: evidence of all variables alone takes more."""
    network = grid(4, 4, states=40, seed=1)
    problem = Problem(shape_of(network), NOTHING)
    for limits, memory in (
        (MemoryLimits(1 << 16, None, 0, Path()), "--memory"),
        (on_gpu(64), "--memory, --device-memory"),
    ):
        with pytest.raises(BudgetError) as refused:
            cut(problem, reference.DOUBLE, limits, GPU if limits.on_gpu else CPU)
        advice = f"allow more disk (--disk, --spill names a folder with more room) or memory ({memory}), ask for fewer"
        assert advice in str(refused.value)
        assert str(refused.value).endswith("or give evidence on more variables")
