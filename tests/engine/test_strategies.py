"""Every strategy against full-joint enumeration, and against the choice among them."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import strategies
from helpers.engine_cases import TOLERANCE, check_explanations, check_posteriors
from helpers.forced import EXPLAINING, FORCED, engine_by, few_threads  # noqa: F401
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from junctor.backends.cpu import CompiledProgram
from junctor.backends.gpu import GpuProgram
from junctor.backends.joint_table import JointTable
from junctor.backends.numpy import Program
from junctor.backends.row_trees import RowEngine
from junctor.circuits.evaluate import CircuitProgram
from junctor.engine.choose import refusal
from junctor.engine.engine import Engine
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.generate import grid, random_network, sample
from junctor.model.answers import OK, Answers
from junctor.model.errors import BudgetError, InputError
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.model.strategies import Strategy
from junctor.strategies import chunked_rows
from junctor.strategies.facts import Facts
from junctor.strategies.registry import way


def rows_of(network: Network, rows: int = 40, patterns: int = 3) -> EvidenceBatch:
    observed = np.random.default_rng(1).random((patterns, len(network.variables))) < 0.3
    states = np.where(observed[np.arange(rows) % patterns], sample(network, rows, seed=1), UNOBSERVED)
    return EvidenceBatch(rows, {v: np.ascontiguousarray(states[:, v]) for v in range(len(network.variables))})


@pytest.mark.parametrize("precision", ["double", "single", "log"])
@pytest.mark.parametrize("strategy", FORCED)
@given(question=strategies.questions(max_rows=8))
def test_posteriors_equal_enumeration(
    strategy: Strategy, precision: str, question: tuple[Network, EvidenceBatch]
) -> None:
    network, batch = question
    engine = engine_by(strategy, network, Query(precision=precision))
    assume(refusal(strategy, engine.facts) is None)
    answers = engine.answer(batch)
    check_posteriors(network, batch, answers, TOLERANCE[precision])


@pytest.mark.parametrize("strategy", FORCED)
@settings(max_examples=15)
@given(question=strategies.questions(max_rows=8), data=st.data())
def test_targets_equal_enumeration(
    strategy: Strategy, question: tuple[Network, EvidenceBatch], data: st.DataObject
) -> None:
    network, batch = question
    assume(
        way(strategy).refuses(Facts(network, Query(), ComputeOptions(device="cpu"))) is None
        or strategy is Strategy.GPU_BLOCKS
    )
    names = [variable.name for variable in network.variables]
    targets = tuple(data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1)))
    check_posteriors(network, batch, engine_by(strategy, network, Query(targets=targets)).answer(batch), 1e-12)


@pytest.mark.parametrize("strategy", FORCED)
def test_a_variable_with_states_in_some_rows_and_likelihoods_in_others(strategy: Strategy) -> None:
    network = random_network(6, states=2, seed=1)
    states = {v: np.array([0, UNOBSERVED, UNOBSERVED], np.int32) for v in (4, 5)}
    soft = SoftEvidence(np.array([1]), np.array([[0.5, 0.1]]))
    batch = EvidenceBatch(3, states, {5: soft})
    check_posteriors(network, batch, engine_by(strategy, network, Query()).answer(batch), 1e-12)


@pytest.mark.parametrize("strategy", EXPLAINING)
@settings(max_examples=15)
@given(question=strategies.questions(max_rows=8))
def test_explanations_equal_enumeration(strategy: Strategy, question: tuple[Network, EvidenceBatch]) -> None:
    network, batch = question
    answers = engine_by(strategy, network, Query(kind="mpe")).answer(batch)
    check_explanations(network, batch, answers, 1e-9)


@pytest.mark.parametrize("variables", [6, 20])
@pytest.mark.parametrize("strategy", FORCED)
def test_rows_go_the_way_that_is_asked_for(strategy: Strategy, variables: int) -> None:
    network = random_network(variables, seed=1)
    batch = rows_of(network)
    engine = engine_by(strategy, network, Query())
    if (why := refusal(strategy, engine.facts)) is not None:
        with pytest.raises(InputError, match=re.escape(why)):
            engine.answer(batch)
        return
    answers = engine.answer(batch)
    assert answers.ways == {strategy.value: batch.rows}
    expected = Engine(network, Query()).answer(batch)
    assert (answers.status == OK).all()
    np.testing.assert_allclose(answers.log_value, expected.log_value, rtol=1e-12)
    for v in expected.targets:
        np.testing.assert_allclose(answers.posteriors[v], expected.posteriors[v], rtol=0, atol=1e-12)


@pytest.mark.parametrize("strategy", FORCED)
def test_scores_are_those_of_the_choice(strategy: Strategy) -> None:
    network = random_network(8, states=2, seed=1)
    batch, query = rows_of(network), Query(answers="scores")
    found, expected = engine_by(strategy, network, query).answer(batch), Engine(network, query).answer(batch)
    assert found.ways == {strategy.value: batch.rows}
    np.testing.assert_allclose(found.log_value, expected.log_value, rtol=1e-12)
    assert (found.status == expected.status).all()


def break_outcomes(run: Any) -> Any:
    return lambda *args: replace(found := run(*args), log_value=found.log_value + 0.01)


def break_answers(answer: Any) -> Any:
    def broken(*args: Any) -> Any:
        left = answer(*args)
        (answers,) = (each for each in args if isinstance(each, Answers))
        answers.log_value[:] += 0.01
        return left

    return broken


# Where numbers of a strategy leave its own code.
ENDS: dict[Strategy, tuple[Any, str, Any]] = {
    Strategy.JOINT_TABLE: (JointTable, "answer", break_answers),
    Strategy.ROW_TREES: (RowEngine, "answer_groups", break_answers),
    Strategy.ENTRIES: (Program, "run", break_outcomes),
    Strategy.CPU_BLOCKS: (CompiledProgram, "_run", break_outcomes),
    Strategy.GPU_BLOCKS: (GpuProgram, "prepare", lambda prepare: lambda *args: break_outcomes(prepare(*args))),
    Strategy.CIRCUIT: (CircuitProgram, "answer", break_answers),
    Strategy.CHUNKS: (chunked_rows, "answer_case_by_case", break_answers),
}


def test_every_strategy_can_be_broken() -> None:
    assert ENDS.keys() == {each.values[0] for each in FORCED}


@pytest.mark.parametrize("broken", ENDS)
@pytest.mark.parametrize("strategy", FORCED)
def test_a_broken_strategy_is_seen_and_no_other_one(
    strategy: Strategy, broken: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A way that is asked for is taken, and enumeration tells where it is wrong."""
    owner, name, break_it = ENDS[broken]
    monkeypatch.setattr(owner, name, break_it(getattr(owner, name)))
    network = random_network(6, states=2, seed=1)
    batch = rows_of(network, rows=6)
    answers = engine_by(strategy, network, Query()).answer(batch)
    with pytest.raises(AssertionError) if strategy is broken else nullcontext():
        check_posteriors(network, batch, answers, 1e-12)


@pytest.mark.parametrize(
    ("strategy", "query", "options", "words"),
    [
        (Strategy.JOINT_TABLE, Query(), {}, "joint-table: the network has too many joint states"),
        (Strategy.JOINT_TABLE, Query(kind="mpe"), {}, "joint-table: explanations have no joint table"),
        (Strategy.IMPOSSIBLE, Query(), {}, "impossible: it answers nothing but rows that are impossible"),
        (Strategy.SAMPLES, Query(), {}, "samples: its answers are not exact"),
        (Strategy.GPU_BLOCKS, Query(), {}, "gpu-blocks: there is no GPU that may be used"),
        (Strategy.ROW_TREES, Query(), {"device": "gpu"}, "row-trees: it runs on CPUs, and a GPU is asked for"),
    ],
)
def test_a_way_that_cannot_be_is_refused(strategy: Strategy, query: Query, options: dict[str, str], words: str) -> None:
    network = random_network(30, seed=1)
    asked = ComputeOptions(threads=1, strategy=strategy, **{"device": "cpu", **options})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=words):
        Engine(network, query, asked).answer(rows_of(network))


@pytest.mark.parametrize("strategy", [Strategy.ENTRIES, Strategy.CPU_BLOCKS])
def test_a_way_that_does_not_fit_is_refused(strategy: Strategy) -> None:
    """Not answered in chunks in silence."""
    network = grid(14, 14, seed=1)
    batch, memory = EvidenceBatch(1), 5 << 20
    with pytest.raises(BudgetError):
        engine_by(strategy, network, Query(), memory=memory).answer(batch)
    assert Engine(network, Query(), ComputeOptions(memory, 1, "cpu")).answer(batch).ways == {"chunks": 1}
