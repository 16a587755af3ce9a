"""Modules of questions by their names, and one that only this test has: the probability that two targets are equal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Literal, get_args

import junctor.questions
import numpy as np
import pyarrow as pa
import pytest
from helpers.forced import FORCED, engine_by, few_threads  # noqa: F401
from helpers.oracle import enumerate_posteriors
from junctor.engine.choose import refusal
from junctor.evidence.batch import EvidenceBatch
from junctor.generate import random_network
from junctor.model import query as queries
from junctor.model.answers import answer_width
from junctor.model.errors import EvidenceError, InputError
from junctor.model.network import Factor, Network, Variable
from junctor.model.query import Query
from junctor.model.question import AnswerKind, Needs, QueryKind, Question, question_of
from junctor.model.strategies import Strategy
from junctor.runs.results import AnswerTables, tables_for
from junctor.strategies.registry import way

NETWORK = random_network(6, states=2, seed=1)
NAMES = NETWORK.variables[0].name, NETWORK.variables[1].name
BATCH = EvidenceBatch(2, {5: np.array([0, 1], dtype=np.int32)})


def with_equality(network: Network, targets: tuple[str, ...] | None) -> Network:
    if "alike" in network.index:
        return network
    if targets is None or len(targets) != 2:
        raise EvidenceError("expected two targets")
    scope = (*(network.index[name] for name in targets), len(network.variables))
    table = np.stack([1 - np.eye(2), np.eye(2)], axis=-1)
    variables = (*network.variables, Variable("alike", ("no", "yes")))
    return Network(network.name, variables, (*network.factors, Factor(scope, table)), network.kind)


class EqualityTables(AnswerTables):
    def __init__(self, network: Network, query: Query) -> None:
        super().__init__(with_equality(network, query.targets), Query(targets=("alike",)))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Query]:
    module = ModuleType("junctor.questions.alike")
    tables = f"{__name__}:EqualityTables"
    module.QUESTION = Question("alike", "alike ones", network=with_equality, added=("alike",), tables=tables)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(queries, "AnswerKind", Literal["posteriors", "alike"])
    yield Query(targets=NAMES, answers="alike")  # type: ignore[arg-type]
    question_of.cache_clear()


def test_each_name_is_that_of_a_module() -> None:
    names = {*get_args(AnswerKind), *get_args(QueryKind)}
    assert {question_of(name).name for name in names} == names
    (folder,) = junctor.questions.__path__
    assert {path.stem for path in Path(folder).glob("*.py")} == {*names, "__init__"}


@pytest.mark.parametrize("strategy", FORCED)
def test_a_question_is_a_record_and_a_name(strategy: Strategy, asked: Query) -> None:
    engine = engine_by(strategy, NETWORK, asked)
    table = tables_for(NETWORK, asked).table(engine.answer(BATCH), pa.array([0, 1]))
    assert table.column_names == ["case_id", "alike", "log_evidence", "status", "reason"]
    assert answer_width(NETWORK, asked) == answer_width(NETWORK, Query(targets=NAMES[:1]))
    for state, found in enumerate(table["alike"].to_pylist()):
        both = enumerate_posteriors(NETWORK, {5: state}, {})[0]
        equal = [enumerate_posteriors(NETWORK, {5: state, 0: same, 1: same}, {})[0] for same in range(2)]
        assert found[1] == pytest.approx(np.exp(np.array(equal) - both).sum(), abs=1e-12)


def test_what_a_question_has_not_is_refused(asked: Query) -> None:
    with pytest.raises(EvidenceError, match="not alike ones: use --method exact"):
        Query(answers="alike", method="sampling")  # type: ignore[arg-type]
    with pytest.raises(EvidenceError, match="alike ones have no scores: leave out --top"):
        Query(answers="alike", top=2)  # type: ignore[arg-type]
    with pytest.raises(EvidenceError, match="expected two targets"):
        engine_by(Strategy.ENTRIES, NETWORK, Query(answers="alike"))  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", FORCED)
def test_a_strategy_is_not_asked_for_what_it_does_not_support(
    strategy: Strategy, asked: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(way(strategy)), "supports", frozenset({Needs("max", "targets")}))
    engine = engine_by(strategy, NETWORK, asked)
    assert refusal(strategy, engine.facts) == f"alike ones have no {strategy.value.replace('-', ' ')}"
    with pytest.raises(InputError, match="alike ones have no"):
        engine.answer(BATCH)
