"""Propagation in chunks: the same answers, within the memory of a task, the memory for tables, and the disk."""

from __future__ import annotations

import errno
import gc
import itertools
import math
import os
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import strategies
from helpers.blocks import blocks_of, compare
from helpers.chunk_plans import ENDLESS, cut_for, least_working
from helpers.engine_cases import TOLERANCE, check_posteriors, markov
from helpers.options import on_cpu
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends.numpy import EvidenceBlock, Program
from junctor.backends.plan_memory import PlanMemory
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch, SoftEvidence
from junctor.formats import read_network
from junctor.generate import grid, sample
from junctor.model.answers import IMPOSSIBLE, OK, Answers
from junctor.model.errors import BudgetError, DiskError
from junctor.model.network import Factor, Network, Variable
from junctor.model.query import Precision, Query
from junctor.out_of_core import program as chunked
from junctor.out_of_core import store as chunk_store
from junctor.out_of_core.memory_splits import INTERPRETER_BYTES, ChunkRoute, backend_of
from junctor.out_of_core.pass_program import CpuTasks
from junctor.out_of_core.program import ChunkedProgram
from junctor.planning import compile as compile_module
from junctor.planning.chunks import chunk_plan
from junctor.planning.compile import compile_plan
from junctor.planning.shape import Pattern, shape_of
from junctor.strategies.chunk_cuts import ChunkCuts
from junctor_kernels.tables import reference

NOTHING = Pattern(frozenset(), frozenset())
SIZES = [1 << 16, 1 << 20, 1 << 24]


@pytest.mark.parametrize("precision", ["double", "single", "log"])
@given(
    question=strategies.questions(max_rows=4),
    working=st.sampled_from([0, 1, 3, 10, 100]),
    disk=st.booleans(),
    scratch=st.sampled_from([1, 7, 1 << 12]),
    lean=st.booleans(),
)
def test_rows_in_chunks_equal_enumeration(
    precision: Precision, question: tuple[Network, EvidenceBatch], working: int, disk: bool, scratch: int, lean: bool
) -> None:
    network, batch = question
    with cut_for(working, disk, scratch, lean):
        answers = Engine(network, Query(precision=precision)).answer(batch)
    check_posteriors(network, batch, answers, TOLERANCE[precision])


@given(question=strategies.questions(max_rows=4), size=st.integers(40, 4000))
def test_a_small_device_is_kept_or_refused(question: tuple[Network, EvidenceBatch], size: int) -> None:
    network, batch = question
    engine = Engine(network, Query(), on_cpu(device_memory=size))
    try:
        answers = engine.answer(batch)
    except BudgetError as error:
        assert "for the tables of a task" in str(error)  # noqa: PT017
        return
    check_posteriors(network, batch, answers, 1e-12)
    assert all(each.working <= size for each in engine.facts.store.chunk_routes.values())


@pytest.mark.parametrize("algebra", [reference.DOUBLE, reference.SINGLE, reference.LOG, reference.MAX_LOG])
@given(data=st.data(), working=st.sampled_from([0, 2, 30]), halved=st.sampled_from([3, 6]))
def test_lean_plans_have_the_answers_of_the_reference(
    algebra: reference.Algebra, data: st.DataObject, working: int, halved: int
) -> None:
    network = data.draw(strategies.networks(max_variables=8, max_joint=1024))
    batch = data.draw(strategies.evidence_batches(network, max_rows=1, min_rows=1, invalid=False))
    pattern, block = blocks_of(network, batch, data.draw(st.booleans()))
    expected = Program(compile_plan(shape_of(network), pattern, rows=1), network, algebra).run(block)
    with pytest.MonkeyPatch.context() as patch:
        # Small tables are read off overlapping joints as large ones are.
        patch.setattr(compile_module, "LEAST_HALVED", halved)
        patch.setattr(compile_module, "LEFT_OUT", 2)
        plan = compile_plan(shape_of(network), pattern, rows=1, lean=True)
    chunks = chunk_plan(plan, least_working(plan) + working, ENDLESS, 0)
    for found in (Program(plan, network, algebra).run(block), ChunkedProgram(chunks, network, algebra).run(block)):
        if not (found.doubtful[0] or expected.doubtful[0]):
            compare(found, expected, algebra)


def run(program: ChunkedProgram) -> Any:
    return program.run(EvidenceBlock(1, {}, {}))


@pytest.mark.parametrize("working", [0, 50, 5000])
@pytest.mark.parametrize("algebra", [reference.DOUBLE, reference.LOG])
def test_nothing_is_computed_twice(working: int, algebra: reference.Algebra, monkeypatch: pytest.MonkeyPatch) -> None:
    network = grid(7, 7, states=2, seed=1)
    plan = Engine(network, Query()).facts.plan(NOTHING)
    chunks = chunk_plan(plan, least_working(plan) + working, ENDLESS, 0)
    done: list[int] = []
    real = CpuTasks.__call__

    def contract(self: CpuTasks, what: Any, operands: Any) -> Any:
        done.append(what.kept_entries * what.eliminated_entries * max(1, len(operands)))
        return real(self, what, operands)

    monkeypatch.setattr(CpuTasks, "__call__", contract)
    program = ChunkedProgram(chunks, network, algebra)
    run(program)
    assert sum(done) == plan.operations
    assert len(done) == sum(len(each.steps) * plan.shape.entries(each.fixed) for each in chunks.passes)


@pytest.mark.parametrize("entry_threads", [0, 1])
def test_threads_change_nothing(entry_threads: int) -> None:
    network = grid(8, 8, states=2, seed=1)
    plan = Engine(network, Query()).facts.plan(NOTHING)
    chunks = chunk_plan(plan, least_working(plan) + 100, ENDLESS, 0)
    one, three = (
        run(ChunkedProgram(chunks, network, reference.DOUBLE, threads=threads, entry_threads=entry_threads))
        for threads in (1, 3)
    )
    assert one.log_value[0] == three.log_value[0]
    for v, posterior in one.posteriors.items():
        np.testing.assert_array_equal(posterior, three.posteriors[v])


def test_groups_come_as_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "GROUPS", 3)
    network = grid(6, 6, states=2, seed=1)
    with cut_for(0):
        answers = Engine(network, Query()).answer(EvidenceBatch(1))
    expected = Engine(network, Query()).answer(EvidenceBatch(1))
    assert answers.log_value == pytest.approx(expected.log_value, rel=1e-13)


# Memory and disk.

# Less than half of the messages of a grid of 12 x 12 have room in it.
MEMORY = 2_700_000


def large() -> tuple[Network, EvidenceBatch]:
    """Tables of up to 50 KiB."""
    return grid(8, 8, states=3, seed=1), EvidenceBatch(1, {v: np.zeros(1, np.int32) for v in (0, 20, 63)})


def measured(engine: Engine, batch: EvidenceBatch, monkeypatch: pytest.MonkeyPatch) -> tuple[Answers, int, int]:
    """The answers, the most bytes that were allocated on the way, and the most that a group of tasks held."""
    held: list[int] = []
    real = chunked._PassTasks.group

    def group(self: Any, states: Any, place: int = 0) -> Any:
        before = tracemalloc.get_traced_memory()[0]
        tops.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()
        found = real(self, states)
        held.append(tracemalloc.get_traced_memory()[1] - before)
        return found

    tops: list[int] = []
    monkeypatch.setattr(chunked._PassTasks, "group", group)
    # Plans and cuts are made before: neither the search for them nor learning prices is part of what is planned.
    for compiled in (True, False):
        assert any(engine.facts.cpu_costs.coefficients[backend_of(engine.facts.ladder[0], compiled)].work)
    assert engine.routes(batch)
    gc.collect()
    tracemalloc.start()
    answers = engine.answer(batch)
    tops.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    return answers, max(tops), max(held)


@pytest.mark.parametrize(
    ("size", "precision"),
    [
        *((1 << 13, "double"), (1 << 15, "single"), (1 << 15, "log")),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1 << 13, "single"), (1 << 13, "log"))),
        pytest.param(1 << 15, "double", marks=pytest.mark.slow),
    ],
)
def test_what_is_measured_stays_within_what_is_planned(
    precision: Precision, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, batch = large()
    engine = Engine(network, Query(precision=precision), on_cpu(device_memory=size))
    answers, peak, held = measured(engine, batch, monkeypatch)
    (chunking,) = engine.facts.store.chunk_routes.values()
    assert answers.status.tolist() == [OK]
    assert chunking.chunks.tasks > len(chunking.chunks.passes)
    assert chunking.working <= size
    assert held <= chunking.working + INTERPRETER_BYTES
    assert peak <= chunking.memory + answers.nbytes


def test_tables_beyond_the_memory_go_to_nameless_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = grid(12, 12, states=2, seed=1)
    expected = Engine(network, Query()).answer(EvidenceBatch(1))
    engine = Engine(network, Query(), on_cpu(MEMORY, spill_dir=tmp_path))
    sizes: list[int] = []
    real = chunk_store.reserve

    def reserve(descriptor: int, size: int) -> None:
        sizes.append(size)
        real(descriptor, size)
        assert not os.listdir(tmp_path)

    monkeypatch.setattr(chunk_store, "reserve", reserve)
    answers, peak, held = measured(engine, EvidenceBatch(1), monkeypatch)
    (chunking,) = engine.facts.store.chunk_routes.values()
    assert held <= chunking.working + INTERPRETER_BYTES
    assert peak <= chunking.memory + answers.nbytes <= engine.allowed
    assert max(sizes) <= chunking.disk <= sum(sizes)
    assert not os.listdir(tmp_path)
    np.testing.assert_allclose(answers.log_value, expected.log_value, rtol=1e-13)
    for v, posterior in answers.posteriors.items():
        np.testing.assert_allclose(posterior, expected.posteriors[v], rtol=0, atol=1e-12)
    enough = Engine(
        network,
        Query(),
        on_cpu(MEMORY, spill_dir=tmp_path, spill_bytes=chunking.disk),
    )
    np.testing.assert_array_equal(enough.answer(EvidenceBatch(1)).log_value, answers.log_value)
    with pytest.raises(BudgetError, match=rf"bytes\) in files in {tmp_path}, allowed are 1\.0 KiB"):
        Engine(
            network,
            Query(),
            on_cpu(MEMORY, spill_dir=tmp_path, spill_bytes=1024),
        ).answer(EvidenceBatch(1))


def test_a_disk_that_fills_up_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reserve(descriptor: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(chunk_store, "reserve", reserve)
    network = grid(12, 12, states=2, seed=1)
    with pytest.raises(DiskError, match=rf"{tmp_path}: .*No space left on device.*--spill") as failed:
        Engine(network, Query(), on_cpu(MEMORY, spill_dir=tmp_path)).answer(EvidenceBatch(1))
    assert failed.value.exit_code == 5
    with pytest.raises(FileNotFoundError):
        Engine(network, Query(), on_cpu(MEMORY, spill_dir=tmp_path / "nowhere")).answer(EvidenceBatch(1))


def test_equal_rows_are_answered_once_and_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    network, batch = large()
    rows = 100
    same = EvidenceBatch(rows, {v: np.repeat(column, rows) for v, column in batch.states.items()})
    runs: list[int] = []
    real = ChunkedProgram.run
    monkeypatch.setattr(ChunkedProgram, "run", lambda self, block: runs.append(block.cases) or real(self, block))
    engine = Engine(network, Query(), on_cpu(device_memory=1 << 15))
    # Other tests may have left some.
    threads = threading.active_count()
    answers = engine.answer(same)
    assert runs == [1]
    assert (answers.log_value == answers.log_value[0]).all()
    with pytest.raises(BudgetError, match="earlier answers"):
        engine.answer(same, reserved=1)
    assert threading.active_count() == threads


# Numbers.


@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize("step", [1e-20, 1e-160])
@pytest.mark.parametrize("working", [0, 100])
def test_terms_lost_at_both_ends_of_a_chain_are_noticed(precision: Precision, step: float, working: int) -> None:
    links = [((one, other), [[step, 0], [0, 1]]) for one, other in itertools.pairwise("abcdef")]
    ends = [(("a",), [1, step]), (("a",), [1, step**0.9]), (("f",), [1, step]), (("f",), [1, step])]
    network, batch = markov(*ends, *links), EvidenceBatch(1)
    with cut_for(working):
        answers = Engine(network, Query(precision=precision)).answer(batch)
    check_posteriors(network, batch, answers, TOLERANCE[precision])


@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize("exponent", [-150, 150])
def test_chunks_of_very_different_sizes(precision: Precision, exponent: int) -> None:
    """The first chunk settles the power of two for others that are far larger, or far smaller."""
    far = 10.0**exponent
    links = [((f"x{i}", f"x{i + 1}", "z"), [[[1, far], [2, far]], [[1, 3 * far], [1, far]]]) for i in range(5)]
    network, batch = markov(*links, (("z",), [1, 1])), EvidenceBatch(1)
    with cut_for(0):
        answers = Engine(network, Query(precision=precision)).answer(batch)
    check_posteriors(network, batch, answers, TOLERANCE[precision])


@pytest.mark.parametrize("variable", range(3))
def test_a_first_chunk_far_below_the_others_goes_to_a_wider_format_without_a_warning(variable: int) -> None:
    """Its power of two takes the others beyond single precision."""
    variables = tuple(Variable(name, ("0", "1", "2", "3")) for name in "abc")
    # Nearly ones: tables of equal entries would have no axes.
    factors = tuple(Factor(scope, np.ones((4, 4)) + np.eye(4) / 8) for scope in ((0, 1), (1, 2), (0, 2)))
    network = Network("pairs", variables, factors, "markov")
    batch = EvidenceBatch(1, {}, {variable: SoftEvidence(np.array([0]), np.array([[1e-40, 7, 0.2, 1]]))})
    for working in (0, 3, 50):
        with cut_for(working):
            answers = Engine(network, Query(precision="single")).answer(batch)
        check_posteriors(network, batch, answers, 1e-5)
        assert answers.climbed == {"double": 1}


def test_what_a_power_of_two_takes_below_the_format_is_seen() -> None:
    """Nothing vanishes in a product, but dividing by the largest entry of the first chunk takes one to zero."""
    network = markov((("a", "b"), [[1e200, 1e-200], [1e-200, 1e-200]]), (("b", "c"), [[1e-150, 1], [1e200, 1e200]]))
    for working in range(12):
        with cut_for(working):
            answers = Engine(network, Query()).answer(EvidenceBatch(1))
        check_posteriors(network, EvidenceBatch(1), answers, 1e-12)


@pytest.mark.parametrize("precision", ["double", "single", "log"])
def test_impossible_rows_are_told_from_possible_ones(precision: Precision) -> None:
    network = markov((("a", "b"), [[1, 0], [0, 1]]), (("b", "c"), [[1, 1], [1, 1]]))
    soft = SoftEvidence(np.array([2]), np.array([[0.0, 0.0]]))
    batch = EvidenceBatch(3, {0: np.array([0, 0, 0], np.int32), 1: np.array([1, 0, 0], np.int32)}, {2: soft})
    with cut_for(0):
        answers = Engine(network, Query(precision=precision)).answer(batch)
    assert answers.status.tolist() == [IMPOSSIBLE, OK, IMPOSSIBLE]
    check_posteriors(network, EvidenceBatch(3, batch.states, batch.likelihoods), answers, TOLERANCE[precision])


# Networks that others published.


def same_as_in_one_piece(network: Network, size: int, monkeypatch: pytest.MonkeyPatch) -> ChunkRoute | None:
    """Check answers for a device of so many bytes, and its peaks; None where all fits it in one piece."""
    states = sample(network, 1, seed=1)
    batch = EvidenceBatch(1, {v: np.ascontiguousarray(states[:, v]) for v in range(0, states.shape[1], 20)})
    engine = Engine(network, Query(), on_cpu(device_memory=size))
    if not any(
        ChunkCuts(engine.facts).in_chunks(group.pattern, 1, engine.allowed) for group in engine.choice(batch).groups
    ):
        return None
    answers, peak, held = measured(engine, batch, monkeypatch)
    expected = Engine(network, Query()).answer(batch)
    assert answers.status.tolist() == expected.status.tolist() == [OK]
    np.testing.assert_allclose(answers.log_value, expected.log_value, rtol=1e-12, atol=1e-12)
    for v, posterior in answers.posteriors.items():
        np.testing.assert_allclose(posterior, expected.posteriors[v], rtol=0, atol=1e-12)
    (chunking,) = engine.facts.store.chunk_routes.values()
    assert held <= chunking.working + INTERPRETER_BYTES
    assert chunking.working <= size
    assert peak <= chunking.memory + answers.nbytes <= engine.allowed
    return chunking


QUICK = ["bnlearn/water.bif.gz", "bnlearn/mildew.bif.gz"]
LONG = [
    "bnlearn/win95pts.bif",
    "bnlearn/barley.bif.gz",
    "bnlearn/pigs.bif",
    "bnlearn/munin1.bif.gz",
    "bnlearn/munin4.bif.gz",
    "bnlearn/diabetes.bif.gz",
    "bnlearn/andes.bif",
    "cpcs/cpcs54.uai",
    "cpcs/cpcs360b.uai.gz",
]


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)])
@pytest.mark.parametrize("size", SIZES)
def test_a_device_of_any_size_gives_the_same_answers(
    name: str, size: int, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunking = same_as_in_one_piece(read_network(shared / "networks" / name), size, monkeypatch)
    # Beside a cache of sixteen megabytes most of these fit as they are.
    assert chunking is not None or size > SIZES[0] or "54" in name


def published(folder: Path, name: str) -> tuple[Network, EvidenceBatch, Iterator[float]]:
    """A network, its evidence, and its marginals as they were published, one after the other with their lengths."""
    numbers = [int(word) for word in (folder / f"{name}.uai.evid").read_text().split()]
    # The number of samples may stand in front.
    numbers = numbers[1 - len(numbers) % 2 :]
    states = {v: np.array([state], np.int32) for v, state in zip(numbers[1::2], numbers[2::2], strict=True)}
    words = (folder / f"{name}.uai.MAR").read_text().split()[2:]
    return read_network(folder / f"{name}.uai"), EvidenceBatch(1, states), map(float, words)


@pytest.mark.parametrize(
    ("name", "log10_z", "memory"),
    [("Grids_11", 169.408361, 24 << 20), pytest.param("DBN_11", 58.530663, 12 << 20, marks=pytest.mark.slow)],
)
def test_published_answers_in_a_fraction_of_the_memory(
    name: str, log10_z: float, memory: int, shared: Path, tmp_path: Path
) -> None:
    network, batch, marginals = published(shared / "networks" / "uai2014" / "MAR", name)
    engine = Engine(network, Query(), on_cpu(memory, spill_dir=tmp_path))
    (group,) = engine.choice(batch).groups
    assert PlanMemory(engine.facts.plan(group.pattern), 2).least > 4 * memory
    answers = engine.answer(batch)
    (chunking,) = engine.facts.store.chunk_routes.values()
    assert chunking.memory + answers.nbytes <= memory
    assert answers.log_value[0] == pytest.approx(log10_z * math.log(10), abs=1e-5)
    for v, posterior in answers.posteriors.items():
        assert next(marginals) == network.cardinalities[v]
        expected = [next(marginals) for _ in range(network.cardinalities[v])]
        np.testing.assert_allclose(posterior[0], expected, rtol=0, atol=1e-5)
