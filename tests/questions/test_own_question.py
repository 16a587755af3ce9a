"""Modules of questions by their names, and two that only this test has: one adds a variable, one makes answers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

import junctor
import junctor.questions
import numpy as np
import pyarrow as pa
import pytest
from helpers.forced import FORCED, engine_by, few_threads  # noqa: F401
from helpers.oracle import enumerate_posteriors
from junctor.engine.choose import refusal
from junctor.engine.engine import Engine
from junctor.engine.scores import ScoreMaker
from junctor.evidence.batch import EvidenceBatch, Rows
from junctor.generate import random_network
from junctor.model import query as queries
from junctor.model.answers import Answers, Scores, answer_width
from junctor.model.errors import EvidenceError, InputError
from junctor.model.query import Query, Sampling, answering_network
from junctor.model.question import AnswerKind, Needs, QueryKind, Question, question_of
from junctor.model.strategies import Strategy
from junctor.runs.results import tables_for
from junctor.strategies.registry import way
from pyarrow import parquet

NETWORK = random_network(6, states=2, seed=1)
NAMES = NETWORK.variables[0].name, NETWORK.variables[1].name
BATCH = EvidenceBatch(2, {5: np.array([0, 1], dtype=np.int32)})
EVIDENCE = pa.table({NETWORK.variables[5].name: NETWORK.variables[5].states})
FOLDER = str(Path(__file__).parent / "own")
# The command with one more name and one more file of questions.
NAMED = """
import sys
from typing import Literal

import junctor.questions
from junctor.model import question

question.AnswerKind = Literal["posteriors", "scores", "alike"]
junctor.questions.__path__.append(sys.argv.pop(1))
from junctor.cli import main

sys.exit(main())
"""


class SquareMaker(ScoreMaker):
    """Of each target the square of the probability of its best state, in its place."""

    def write(self, answers: Answers, rows: Rows, scores: Scores, threads: int, compiled: bool) -> None:
        super().write(answers, rows, scores, threads, compiled)
        scores.probabilities[:, rows] **= 2


OWN = (
    Question("squares", "squares", maker=f"{__name__}:SquareMaker", tables="junctor.runs.score_tables:ScoreTables"),
    Question("largest", "largest ones", Needs("max", "targets")),
)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Questions of this test have names and modules, one of them a file."""
    for question in OWN:
        module = ModuleType(f"junctor.questions.{question.name}")
        module.QUESTION = question  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(junctor.questions, "__path__", [*junctor.questions.__path__, FOLDER])
    monkeypatch.setattr(queries, "AnswerKind", Literal["posteriors", "scores", "alike", "squares", "largest"])
    yield
    question_of.cache_clear()


def asking(answers: str = "alike", **options: Any) -> Query:
    return Query(answers=answers, **{"targets": NAMES, **options})  # type: ignore[arg-type]


def shares_alike() -> list[float]:
    """The probability that both targets are equal in each row, by enumeration."""
    found = []
    for state in range(BATCH.rows):
        both = enumerate_posteriors(NETWORK, {5: state}, {})[0]
        equal = [enumerate_posteriors(NETWORK, {5: state, 0: same, 1: same}, {})[0] for same in range(2)]
        found.append(float(np.exp(np.array(equal) - both).sum()))
    return found


def test_each_name_is_that_of_a_module() -> None:
    names = {*get_args(AnswerKind), *get_args(QueryKind)}
    assert {question_of(name).name for name in names} == names
    (folder,) = junctor.questions.__path__
    assert {path.stem for path in Path(folder).glob("*.py")} == {*names, "__init__"}


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("strategy", FORCED)
def test_a_question_is_a_record_and_a_name(strategy: Strategy) -> None:
    engine = engine_by(strategy, NETWORK, asking())
    table = tables_for(NETWORK, asking()).table(engine.answer(BATCH), pa.array([0, 1]))
    assert table.column_names == ["case_id", "alike", "log_evidence", "status", "reason"]
    assert answer_width(NETWORK, asking()) == answer_width(NETWORK, Query(targets=NAMES[:1]))
    assert [share for _, share in table["alike"].to_pylist()] == pytest.approx(shares_alike(), abs=1e-12)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("strategy", FORCED)
def test_answers_made_of_posteriors_are_those_of_the_question_alone(strategy: Strategy) -> None:
    (squares, scores) = (engine_by(strategy, NETWORK, asking(each)).answer(BATCH) for each in ("squares", "scores"))
    assert isinstance(squares, Scores)
    assert isinstance(scores, Scores)
    np.testing.assert_allclose(squares.probabilities, scores.probabilities**2, rtol=1e-12)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("answers", ["alike", "squares"])
def test_samples_answer_what_is_made_of_posteriors(answers: str) -> None:
    query = asking(answers, method="sampling", sampling=Sampling(samples=20_000))
    sampled, exact = (
        tables_for(NETWORK, each).table(Engine(NETWORK, each).answer(BATCH), pa.array([0, 1]))
        for each in (query, asking(answers))
    )
    name = "alike" if answers == "alike" else f"{NAMES[0]}_probability"
    assert np.array(sampled[name].to_pylist()) == pytest.approx(np.array(exact[name].to_pylist()), abs=0.03)
    assert sampled["method"].to_pylist() == ["sampling", "sampling"]


@pytest.mark.usefixtures("own")
def test_a_file_and_a_name_are_enough(tmp_path: Path) -> None:
    table = junctor.posteriors(NETWORK, EVIDENCE, NAMES, answers="alike")  # type: ignore[arg-type]
    assert [share for _, share in table["alike"].to_pylist()] == pytest.approx(shares_alike(), abs=1e-12)
    junctor.write_network(NETWORK, tmp_path / "network.bif")
    parquet.write_table(EVIDENCE, tmp_path / "evidence.parquet")
    asked = [
        tmp_path / "network.bif",
        tmp_path / "evidence.parquet",
        "--answers",
        "alike",
        "--targets",
        ",".join(NAMES),
    ]
    for command in (["inspect", *asked], ["run", *asked, "-o", tmp_path / "run", "--report"]):
        # In a process of its own, where the name is there before anybody reads it.
        subprocess.run([sys.executable, "-c", NAMED, FOLDER, *command], check=True, capture_output=True)
    assert parquet.read_table(tmp_path / "run" / "alike").column("alike").equals(table["alike"])
    assert "Posteriors of 1 target" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.usefixtures("own")
def test_what_a_question_has_not_is_refused() -> None:
    with pytest.raises(EvidenceError, match="alike ones have no scores: leave out --top"):
        asking(top=2)
    for targets in (None, NAMES[:1], ("*",)):
        with pytest.raises(EvidenceError, match="expected two targets"):
            Engine(NETWORK, asking(targets=targets))
    with pytest.raises(EvidenceError, match="the network has a variable 'alike', which alike ones add"):
        Engine(answering_network(NETWORK, asking()), asking())


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(("variables", "rows"), [(6, 2), (30, 2), (30, 2000)])
def test_what_no_strategy_has_is_answered_by_none(variables: int, rows: int) -> None:
    with pytest.raises(EvidenceError, match="sampling answers posteriors, not largest ones: use --method exact"):
        asking("largest", method="sampling")
    network = random_network(variables, states=2, seed=1)
    batch = EvidenceBatch(rows, {5: np.arange(rows, dtype=np.int32) % 2})
    with pytest.raises(InputError, match=r"largest ones have no .*: ask for another strategy"):
        Engine(network, asking("largest"), expected_rows=rows).answer(batch)


def test_samples_say_what_they_answer_in_one_way() -> None:
    names = {*get_args(AnswerKind), *get_args(QueryKind)}
    taken = {name for name in names if question_of(name).needs in way(Strategy.SAMPLES).supports}
    assert taken == {name for name in names if question_of(name).is_sampled} == {"posteriors", "scores"}


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("strategy", FORCED)
def test_a_strategy_is_not_asked_for_what_it_does_not_support(
    strategy: Strategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(way(strategy)), "supports", frozenset({Needs("max", "targets")}))
    engine = engine_by(strategy, NETWORK, asking())
    assert refusal(strategy, engine.facts) == f"alike ones have no {strategy.value.replace('-', ' ')}"
    with pytest.raises(InputError, match="alike ones have no"):
        engine.answer(BATCH)
