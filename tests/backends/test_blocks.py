"""Rows of a group through the ladder of number formats: compiled in all of them, and where the others begin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.blocks import blocks_of, questions
from helpers.engine_cases import TOLERANCE, assert_same, check_posteriors, in_log_space
from helpers.options import on_cpu
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends import numpy as plain
from junctor.backends import plan_memory as memory
from junctor.backends.cpu import CompiledProgram
from junctor.backends.numpy import BlockOutcome, EvidenceBlock, Program
from junctor.backends.plan_memory import ProgramCache
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch, Rows, SoftEvidence
from junctor.generate import hmm, layered, sample
from junctor.model.answers import Answers
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Precision, Query
from junctor.model.strategies import Strategy
from junctor.planning.compile import compile_plan
from junctor.planning.shape import shape_of
from junctor.strategies import number_ladder as blocks
from junctor_kernels.tables.reference import DOUBLE, LOG, SINGLE, Algebra

NO_LOSS_WILL_DO = {"double": -1.0, "single": -1.0}


def in_blocks(memory: int | None = None, threads: int = 1) -> ComputeOptions:
    return on_cpu(memory, threads, strategy=Strategy.CPU_BLOCKS)


@pytest.mark.parametrize("precision", ["single", "double"])
@given(question=questions())
def test_answers_of_all_formats_equal_enumeration(
    precision: Precision, question: tuple[Network, EvidenceBatch, bool]
) -> None:
    network, batch, _ = question
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain, "LOSS_TOLERANCE", NO_LOSS_WILL_DO)
        answers = Engine(network, Query(precision=precision), in_blocks()).answer(batch)
    check_posteriors(network, batch, answers, TOLERANCE[precision])


@pytest.mark.parametrize("precision", ["single", "double"])
def test_no_format_is_left_to_numpy(precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    def interpreted(program: Program, block: EvidenceBlock) -> BlockOutcome:
        raise AssertionError(f"{block.cases} rows in NumPy, {program.algebra.name}")

    network = layered(layers=4, width=4, states=3, parents=2, seed=2, zeros=0.2)
    states = sample(network, 300, seed=1)
    batch = EvidenceBatch(300, {v: np.ascontiguousarray(states[:, v]) for v in (2, 6, 9, 15)})
    expected = in_log_space(network, batch, on_cpu())
    monkeypatch.setattr(plain, "LOSS_TOLERANCE", NO_LOSS_WILL_DO)
    monkeypatch.setattr(Program, "run", interpreted)
    found = Engine(network, Query(precision=precision), in_blocks(threads=2)).answer(batch)
    np.testing.assert_allclose(found.log_value, expected.log_value, rtol=1e-13)
    for v, posterior in expected.posteriors.items():
        np.testing.assert_allclose(found.posteriors[v], posterior, atol=1e-13 if precision == "double" else 1e-7)


@given(question=questions(), formats=st.permutations([SINGLE, DOUBLE, LOG]))
def test_formats_of_a_plan_differ_in_their_numbers_only(
    question: tuple[Network, EvidenceBatch, bool], formats: list[Algebra]
) -> None:
    network, batch, likelihoods = question
    pattern, _ = blocks_of(network, batch, likelihoods)
    plan = compile_plan(shape_of(network), pattern, None, False, rows=1)
    first = CompiledProgram(Program(plan, network, formats[0]), 32)
    for algebra in formats[1:]:
        program = Program(plan, network, algebra)
        alone, found = CompiledProgram(program, 32), CompiledProgram(program, 32, like=first)
        for name in alone.code._fields:
            np.testing.assert_array_equal(getattr(found.code, name), getattr(alone.code, name), name)
        assert found.code.terms is first.code.terms


def noisy(rows: int, climbs: np.ndarray) -> tuple[Network, EvidenceBatch]:
    """Two steps whose messages have 1e-35 in common where a row climbs from single precision; no two rows are equal."""
    network = hmm(2, [1, 1e-35], [[0.9, 0.1], [0.2, 0.8]], [[1, 1e-35], [0.5, 0.5]])
    weights = np.stack([np.ones(rows), np.linspace(0.5, 1.5, rows)], axis=1)
    soft = {3: SoftEvidence(np.arange(rows), weights)}
    return network, EvidenceBatch(rows, {1: climbs.astype(np.int32)}, soft)


@pytest.mark.parametrize("share", [0.4, 0.6])
@pytest.mark.parametrize("strategy", [Strategy.CPU_BLOCKS, Strategy.ENTRIES])
def test_first_rows_tell_where_the_others_begin(
    share: float, strategy: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 700
    climbs = np.random.default_rng(1).random(rows) < share
    network, batch = noisy(rows, climbs)
    doubles = Engine(network, Query(), on_cpu(strategy=strategy)).answer(batch)
    seen: dict[str, list[int]] = {}
    answer_in = blocks.answer_in

    def watched(
        prepared: ProgramCache, algebra: Algebra, batch: EvidenceBatch, rows: Rows, answers: Answers, executor: Any
    ) -> tuple[Rows, Rows]:
        seen[algebra.name] = rows.tolist()
        return answer_in(prepared, algebra, batch, rows, answers, executor)

    monkeypatch.setattr(blocks, "answer_in", watched)
    found = []
    for threads, allowed, most_cases in ((1, None, 2048), (2, None, 2048), (5, 1 << 27, 50)):
        monkeypatch.setattr(memory, "MOST_CASES", most_cases)
        monkeypatch.setattr(memory, "MOST_LANES", 64 if threads == 5 else 512)
        options = on_cpu(allowed, threads, strategy=strategy)
        found.append(Engine(network, Query(precision="single"), options).answer(batch))
        assert found[-1].ways == {strategy.value: rows}
        again = climbs | (np.arange(rows) >= blocks.PROBED_ROWS) if share > blocks.MOST_DOUBTFUL else climbs
        assert seen["double"] == np.flatnonzero(again).tolist()
        assert "log" not in seen
    for answers in found[1:]:
        assert_same(answers, found[0])
    for v, posterior in doubles.posteriors.items():
        same = posterior[again].astype(np.float32) == found[0].posteriors[v][again]
        assert same.all() or strategy is Strategy.ENTRIES


def test_impossible_rows_say_nothing_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without any probability climb to the end, and no other row does."""
    rows = 300
    climbs = np.arange(rows) % 4 == 0
    network, batch = noisy(rows, climbs)
    batch.likelihoods[3].values[climbs] = 0
    log = in_log_space(network, batch, on_cpu())
    singles = Engine(network, Query(precision="single"), in_blocks()).answer(batch)
    assert singles.status.tolist() == log.status.tolist()
    monkeypatch.setattr(blocks, "MOST_DOUBTFUL", 0.0)
    assert_same(Engine(network, Query(precision="single"), in_blocks()).answer(batch), singles)
