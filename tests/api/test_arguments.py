"""Arguments of other types than those documented: taken as what they mean, or refused in words, without an effect."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, get_args

import junctor
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from helpers.files import ASIA
from junctor import api
from junctor.model.errors import EvidenceError, InputError, nearest
from junctor.model.strategies import StrategyName

ROW = {"smoke": ["yes"]}
SAMPLED: dict[str, Any] = {"method": "sampling", "samples": 200, "seed": 3}
SCORES: dict[str, Any] = {"answers": "scores", "top": 1}


@pytest.fixture(scope="module")
def asia() -> junctor.Model:
    return junctor.Model(ASIA)


@pytest.mark.parametrize(
    ("good", "name", "bad"),
    [
        (SAMPLED, "seed", 3.0),
        (SAMPLED, "seed", Decimal(3)),
        (SAMPLED | {"seed": 1}, "seed", True),
        (SAMPLED, "samples", 200.0),
        ({"method": "sampling", "error": 0.25}, "error", "0.25"),
        ({"threads": 2}, "threads", 2.0),
        ({"threads": 1}, "threads", True),
        (SCORES, "top", 1.0),
        (SCORES, "top", True),
        ({"memory": 1}, "memory", True),
    ],
)
@pytest.mark.parametrize("rows", [1, 100])
def test_a_bad_call_has_no_effect_on_the_next_one(good: dict[str, Any], name: str, bad: Any, rows: int) -> None:
    model, evidence = junctor.Model(ASIA), {"smoke": ["yes"] * rows}
    is_small = name == "memory"
    for _ in range(2):
        api._checked.cache_clear()
        with pytest.raises(junctor.JunctorError, match=f"found (the size )?.*{bad}"):
            model.posteriors(evidence, **{**good, name: bad})
        if not is_small:
            assert model.posteriors(evidence, **good)["status"].to_pylist() == ["ok"] * rows
        # Not after a good one either.
        with pytest.raises(junctor.JunctorError, match=f"found (the size )?.*{bad}"):
            model.posteriors(evidence, **{**good, name: bad})


@pytest.mark.parametrize(
    "options", [SAMPLED, SCORES, {"threads": 2}, {"memory": 1 << 30}, {"method": "sampling", "error": 0.25}]
)
@pytest.mark.parametrize("rows", [1, 100])
def test_numbers_of_numpy_are_numbers(options: dict[str, Any], rows: int) -> None:
    kinds = {int: np.int64, float: np.float64}
    theirs = {name: kinds.get(type(value), type(value))(value) for name, value in options.items()}
    model, evidence = junctor.Model(ASIA), {"smoke": ["yes"] * rows}
    api._checked.cache_clear()
    found = model.posteriors(evidence, **theirs)
    assert found.equals(model.posteriors(evidence, **options))
    assert found.equals(model.posteriors(evidence, **theirs))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"targets": [1]}, "found 1 in targets, expected texts"),
        ({"targets": [None]}, "found None in targets, expected texts"),
        ({"targets": b"lung"}, "found targets b'lung', expected a list of texts"),
        ({"targets": 5}, "found targets 5, expected a list of texts"),
        ({"keep": [3]}, "found 3 in keep, expected texts"),
        ({"case_id": 3}, "found case_id 3, expected a text"),
        ({"missing": [-9.5]}, "found -9.5 in missing, expected texts or whole numbers"),
        ({"missing": [True]}, "found True in missing, expected texts or whole numbers"),
        ({"probabilities": [3], "answers": "scores"}, "found 3 in probabilities, expected texts"),
        ({"seed": "1"}, "found seed '1', expected a whole number"),
        ({"seed": 1.5}, "found seed 1.5, expected a whole number"),
        ({"samples": "100", "method": "sampling"}, "found samples '100', expected a whole number"),
        ({"error": "0.1", "method": "sampling"}, "found error '0.1', expected a number"),
        ({"precision": ["double"]}, "found precision"),
        ({"precision": np.array(["double", "log"])}, "found precision"),
        ({"device": ["cpu"]}, "found device"),
    ],
)
def test_other_types_are_refused_in_words(asia: junctor.Model, arguments: dict[str, Any], message: str) -> None:
    # With cells that need no text for what is missing, too.
    for evidence in (ROW, {"smoke": ["yes"] * 100}):
        with pytest.raises(junctor.EvidenceError if "device" not in arguments else junctor.JunctorError, match=message):
            asia.posteriors(evidence, **arguments)


def test_threads_of_another_type_are_refused(asia: junctor.Model) -> None:
    with pytest.raises(junctor.BudgetError, match="found threads '2', expected a whole number"):
        asia.posteriors(ROW, threads="2")  # type: ignore[arg-type]


def test_none_is_none_given(asia: junctor.Model) -> None:
    nothing: dict[str, Any] = {"keep": None, "missing": None}
    assert asia.posteriors(ROW, probabilities=None, **nothing).equals(asia.posteriors(ROW))  # type: ignore[arg-type]
    assert asia.most_probable(ROW, **nothing).equals(asia.most_probable(ROW))


@pytest.mark.parametrize("kind", [list, tuple, np.array, pd.Index, pd.Series, pa.array, iter])
def test_any_sequence_of_names_will_do(asia: junctor.Model, kind: Any) -> None:
    for _ in range(2):
        found = asia.posteriors(ROW, kind(["lung", "smoke"]))
        assert found.equals(asia.posteriors(ROW, ["lung", "smoke"]))


@pytest.mark.parametrize("missing", [["-9"], [-9], np.array([-9])])
def test_numbers_that_are_missing(asia: junctor.Model, missing: Any) -> None:
    for cells in (["yes", "-9"], [-9], [-9.0]):
        found = asia.posteriors({"smoke": cells}, ["lung"], missing=missing)
        assert set(found["status"].to_pylist()) == {"ok"}


def test_nearest_takes_any_name() -> None:
    assert nearest(3, ["30", "x"]) == ", did you mean '30'?"
    assert nearest(None, ["x"]) == ""


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: junctor.Model(None), junctor.InputError, "found None as network, expected text or a pathlib.Path"),
        (lambda: junctor.read_network(5), junctor.InputError, "found 5 as network"),
        (lambda: junctor.posteriors(ASIA, ROW, mapping=5), junctor.InputError, "found 5 as mapping"),
        (lambda: junctor.posteriors(ASIA, ROW, mapping=[]), junctor.InputError, "found \\[\\] as mapping"),
        (lambda: junctor.posteriors(ASIA, ROW, mapping="\0"), junctor.EvidenceError, "cannot read the mapping"),
        (lambda: junctor.posteriors(ASIA, ROW, mapping={1: 2}), junctor.EvidenceError, "1: found an unknown key"),
        (lambda: junctor.posteriors(ASIA, ROW, spill=3), junctor.InputError, "found 3 as spill"),
        (lambda: junctor.read_answers(3), junctor.InputError, "found 3 as a path"),
        (lambda: junctor.joint_posteriors(ASIA, [[3]]), junctor.EvidenceError, "found 3 in question"),
        (lambda: junctor.joint_posteriors(ASIA, 3), junctor.EvidenceError, "found questions 3"),
        (lambda: junctor.joint_posteriors(ASIA, "lung"), junctor.EvidenceError, "found questions 'lung'"),
        (lambda: junctor.joint_posteriors(ASIA, [3]), junctor.EvidenceError, "found question 3"),
        (lambda: junctor.joint_posteriors(ASIA, [["lung"]], {3: "yes"}), junctor.ModelError, "no variable named 3"),
        (lambda: junctor.joint_posteriors(ASIA, [["lung"]], 3), junctor.EvidenceError, "found evidence 3"),
        (lambda: junctor.joint_posteriors(ASIA, [["lung"]], "smoke=yes"), junctor.EvidenceError, "found evidence 'smo"),
        (
            lambda: junctor.joint_posteriors(ASIA, [["lung"]], [{}]),
            junctor.EvidenceError,
            "found evidence \\[\\{\\}\\]",
        ),
        (lambda: junctor.learn(ASIA, ROW, prior=5), junctor.InputError, "found the prior 5"),
        (lambda: junctor.learn(ASIA, ROW, threads="2"), junctor.BudgetError, "found threads '2'"),
        (lambda: junctor.learn(ASIA, ROW, seed="2"), junctor.InputError, "found seed '2'"),
        (lambda: junctor.learn(ASIA, ROW, restarts="2"), junctor.InputError, "found restarts '2'"),
        (lambda: junctor.learn(ASIA, ROW, tolerance="2"), junctor.InputError, "found tolerance '2'"),
        (lambda: junctor.learn(ASIA, ROW, max_iterations=2.0), junctor.InputError, "found max_iterations 2.0"),
        (lambda: junctor.learn(ASIA, ROW, fix=[3]), junctor.EvidenceError, "found 3 in fix"),
        (lambda: junctor.learn(ASIA, ROW, tie=3), junctor.EvidenceError, "found tie 3"),
        (lambda: junctor.learn(ASIA, ROW, weight=3), junctor.EvidenceError, "found weight 3"),
        (lambda: junctor.learn(ASIA, ROW, report=3), junctor.InputError, "found 3 as report"),
        (lambda: junctor.expected_counts(ASIA, ROW, missing=3), junctor.EvidenceError, "found missing 3"),
        (lambda: junctor.expected_counts(ASIA, ROW, case_id=3), junctor.EvidenceError, "found case_id 3"),
    ],
)
def test_other_functions_refuse_in_words(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


def test_a_missing_text_alone_is_one() -> None:
    cells = {"smoke": ["yes", "unknown"]}
    found = junctor.expected_counts(ASIA, cells, missing="unknown")
    assert found.equals(junctor.expected_counts(ASIA, cells, missing=["unknown"]))


def test_errors_that_docstrings_name_are_exported(asia: junctor.Model) -> None:
    for name in ("BudgetError", "DeviceError", "DiskError", "EvidenceError", "InputError", "ModelError"):
        assert name in (junctor.posteriors.__doc__ or "")
        assert issubclass(getattr(junctor, name), junctor.JunctorError)
    for options in ({"mapping": b"x"}, {"spill": ""}):
        with pytest.raises(junctor.InputError, match="path"):
            asia.posteriors(ROW, **options)  # type: ignore[arg-type]


def test_rows_go_the_way_that_is_asked_for() -> None:
    evidence = {"smoke": ["yes", None]}
    expected = junctor.posteriors(ASIA, evidence, ["lung"])["log_evidence"].to_pylist()
    for name in get_args(StrategyName):
        if name == "gpu-blocks":
            with pytest.raises(InputError, match="strategy gpu-blocks: there is no GPU that may be used"):
                junctor.posteriors(ASIA, evidence, ["lung"], device="cpu", strategy=name)
            continue
        found = junctor.posteriors(ASIA, evidence, ["lung"], strategy=name)["log_evidence"].to_pylist()
        assert found == pytest.approx(expected, rel=1e-12)
    with pytest.raises(EvidenceError, match="strategy"):
        junctor.posteriors(ASIA, evidence, strategy="fast")  # type: ignore[arg-type]
    with pytest.raises(EvidenceError, match="a way to exact answers"):
        junctor.posteriors(ASIA, evidence, strategy="chunks", method="sampling")
    with pytest.raises(InputError, match="explanations have no joint table"):
        junctor.most_probable(ASIA, evidence, strategy="joint-table")
