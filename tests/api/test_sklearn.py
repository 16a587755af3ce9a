"""The classifier of scikit-learn: its own checks, against plain formulas, with gaps, texts and given networks."""

from __future__ import annotations

import pickle
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from helpers.files import ASIA
from helpers.oracle import enumerate_posteriors

pytest.importorskip("sklearn", reason="an extra")

from junctor import EvidenceError, JunctorError, Network, generate, learn, posteriors, read_network
from junctor.sklearn import JunctorClassifier
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

# Checks that the classifier is not to pass, with reasons.
NOT_PASSED: dict[str, str] = {}


@parametrize_with_checks(
    [JunctorClassifier(), JunctorClassifier("tan")], expected_failed_checks=lambda _: NOT_PASSED, legacy=True
)
def test_checks_of_sklearn(estimator: Any, check: Any) -> None:
    check(estimator)


def patients(rows: int, seed: int = 0, observed: float = 0.7) -> pd.DataFrame:
    """Rows of asia, with gaps but for the class `lung`."""
    network = read_network(ASIA)
    table = network.sample(rows, observed=observed, seed=seed).to_pandas().drop(columns="case_id").astype(object)
    return table.assign(lung=network.sample(rows, seed=seed).to_pandas()["lung"].astype(object))


def test_naive_answers_are_those_of_the_formula() -> None:
    """P(class) times P(cell | class) of the cells that are there, with the pseudo counts of bdeu:1."""
    table = pd.DataFrame({"a": ["x", "y", "x", "x", "y", "x"], "b": [True, True, False, True, False, False]})
    classes = np.array([7, 3, 7, 7, 3, 3])
    model = JunctorClassifier(prior="bdeu:1").fit(table, classes)
    assert model.classes_.tolist() == [3, 7]
    asked = pd.DataFrame({"a": ["x", None, "y"], "b": [np.nan, False, True]}, dtype=object)
    expected = []
    for row in asked.itertuples(index=False):
        shares = []
        for each in (3, 7):
            share = ((classes == each).sum() + 0.5) / (len(classes) + 1)
            for name, cell in row._asdict().items():
                if cell is None or cell != cell:
                    continue
                here = classes == each
                share *= ((table[name] == cell) & here).sum() + 0.25
                share /= here.sum() + 0.5
            shares.append(share)
        expected.append(np.array(shares) / sum(shares))
    np.testing.assert_allclose(model.predict_proba(asked), expected, atol=1e-12)
    assert model.predict(asked).tolist() == [[3, 7][int(np.argmax(share))] for share in expected]


def chain_of_columns(rows: int, seed: int) -> tuple[pd.DataFrame, npt.NDArray[np.int64]]:
    """Columns a - b - c, each a copy of the one before with errors, and a class that turns a around."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 2, rows)
    a = classes ^ (rng.random(rows) < 0.3)
    b = a ^ (rng.random(rows) < 0.1)
    c = b ^ (rng.random(rows) < 0.1)
    return pd.DataFrame({"c": c, "a": a, "b": b}).astype(str), classes


def test_tan_finds_the_tree_of_the_columns_and_answers_with_gaps() -> None:
    table, classes = chain_of_columns(2000, 1)
    model = JunctorClassifier("tan").fit(table, classes)
    network = model.network_
    edges = {
        frozenset(network.variables[v].name for v in factor.scope[1:])
        for factor in network.factors
        if len(factor.scope) == 3
    }
    assert edges == {frozenset("ab"), frozenset("bc")}
    asked = pd.DataFrame(list(product([None, "0", "1"], repeat=3)), columns=["c", "a", "b"])
    for row, found in zip(asked.itertuples(index=False), model.predict_proba(asked), strict=True):
        hard = {
            network.find(name): network.variables[network.find(name)].states.index(cell)
            for name, cell in row._asdict().items()
            if isinstance(cell, str)
        }
        np.testing.assert_allclose(found, enumerate_posteriors(network, hard, {})[1][network.find("class")], atol=1e-12)


def test_bins_are_quantiles_and_few_numbers_are_states() -> None:
    few, many = np.repeat([1.0, 2.0, 5.0], 20), np.arange(60.0)
    model = JunctorClassifier(bins=3).fit(np.stack([few, many], axis=1), few)
    found = {variable.name: variable.states for variable in model.network_.variables[1:]}
    assert found == {
        "x0": ("<= 1.5", "1.5 to 3.5", "> 3.5"),
        "x1": ("<= 19.5", "19.5 to 39.5", "> 39.5"),
    }
    # A number beyond all that were there is of the last bin.
    assert model.predict([[9.0, 1e300], [-9.0, np.nan]]).tolist() == [5.0, 1.0]


def test_weights_are_repetitions_also_of_bins_and_gaps() -> None:
    rng = np.random.default_rng(3)
    rows, weights = rng.normal(size=(80, 3)), rng.integers(0, 4, 80)
    rows[rng.random(rows.shape) < 0.2] = np.nan
    classes = rng.integers(0, 3, 80)
    weighted = JunctorClassifier("tan").fit(rows, classes, sample_weight=weights)
    repeated = JunctorClassifier("tan").fit(np.repeat(rows, weights, axis=0), np.repeat(classes, weights))
    np.testing.assert_allclose(weighted.predict_proba(rows), repeated.predict_proba(rows), atol=1e-9)


def test_gaps_are_learned_from_by_expectation_maximisation() -> None:
    table = patients(400)
    found = JunctorClassifier(target="lung").fit(table.drop(columns="lung"), table["lung"]).network_
    # From uniform tables, as those of the classifier are before the fit.
    learned = learn(found, table, prior="bdeu:1", start="uniform")
    assert len(learned.trace) > 2
    assert learned.network.digest == found.digest


def test_a_given_network_is_fitted_or_taken_as_it_is() -> None:
    table = patients(300, observed=1.0)
    rows, classes = table.drop(columns=["lung", "tub", "either"]), table["lung"]
    network = read_network(ASIA)
    assert network.variables[network.find("lung")].states == ("yes", "no")
    for structure in (network, ASIA):
        model = JunctorClassifier(structure, target="lung", refit=False).fit(rows, classes)
        assert model.classes_.tolist() == ["no", "yes"]
        expected = np.array(posteriors(network, rows, ["lung"])["lung"].to_pylist())[:, ::-1]
        np.testing.assert_array_equal(model.predict_proba(rows), expected)
    fitted = JunctorClassifier(network, target="lung").fit(rows, classes).network_
    expected_tables = learn(network, rows.assign(lung=classes), prior="bdeu:1").network
    assert fitted.digest == expected_tables.digest != network.digest


def test_classes_of_a_given_network_may_be_numbers_and_lack_rows() -> None:
    network = generate.chain(3, states=3, seed=1)
    rows = network.sample(60, seed=1).to_pandas()[["x_0", "x_2"]].astype(object)
    states = network.variables[1].states
    numbers = np.arange(60) % 3
    named = np.array(states)[numbers]
    by_number = JunctorClassifier(network, target="x_1", refit=False).fit(rows, numbers)
    by_name = JunctorClassifier(network, target="x_1", refit=False).fit(rows[:2], named[:2])
    assert by_number.classes_.tolist() == [0, 1, 2]
    assert by_name.classes_.tolist() == sorted(states)
    np.testing.assert_array_equal(by_number.predict_proba(rows), by_name.predict_proba(rows))
    with pytest.raises(ValueError, match=f"no row is of the class '{states[2]}': its value is not known"):
        JunctorClassifier(network, target="x_1", refit=False).fit(rows[:2], numbers[:2])


def test_it_works_in_pipelines_searches_and_copies() -> None:
    rows, classes = load_iris(return_X_y=True)
    assert cross_val_score(make_pipeline(StandardScaler(), JunctorClassifier("tan")), rows, classes).mean() > 0.9
    search = GridSearchCV(JunctorClassifier(), {"structure": ["naive", "tan"], "bins": [2, 5]}, cv=2)
    assert search.fit(rows, classes).best_score_ > 0.9
    table = patients(60, observed=1.0)
    given = clone(JunctorClassifier(read_network(ASIA), target="lung", refit=False))
    given.fit(table.drop(columns="lung"), table["lung"])
    copied = pickle.loads(pickle.dumps(given))
    np.testing.assert_array_equal(
        copied.predict_proba(table.drop(columns="lung")), given.predict_proba(table.drop(columns="lung"))
    )


def test_columns_may_be_of_any_kind_and_lack_cells() -> None:
    table = pd.DataFrame(
        {
            "text": ["NA", "?", None, "NA"],
            "category": pd.Categorical(["u", None, "v", "u"]),
            "flag": pd.array([True, None, False, True], dtype="boolean"),
            "mixed": [1, "one", np.nan, 1],
            "empty": [np.nan] * 4,
            "whole": pd.array([1, None, 3, 4], dtype="Int64"),
        }
    )
    model = JunctorClassifier().fit(table, list("abab"))
    found = {variable.name: variable.states for variable in model.network_.variables}
    assert found == {
        "class": ("a", "b"),
        "text": ("?", "NA"),
        "category": ("u", "v"),
        "flag": ("False", "True"),
        "mixed": ("1", "one"),
        "empty": ("any",),
        "whole": ("<= 2", "2 to 3.5", "> 3.5"),
    }
    assert list(model.feature_names_in_) == list(table.columns)
    shares = model.predict_proba(table)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    with pytest.warns(
        UserWarning, match="column 'text': no row of the fit has 'new' and 1 more: taken as not observed"
    ):
        unseen = model.predict_proba(table.assign(text=["new", "newer", None, "NA"]))
    without = model.predict_proba(table.assign(text=[None, None, None, "NA"]))
    np.testing.assert_array_equal(unseen, without)


ROWS = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": ["x", "y", "x"]})
SMOKERS = pd.DataFrame({"smoke": ["yes", "no", "maybe"]})


@pytest.mark.parametrize(
    ("model", "rows", "said"),
    [
        (JunctorClassifier(bins=1), ROWS, "found bins=1, expected a whole number from 2 on"),
        (JunctorClassifier(bins=True), ROWS, "found bins=True"),
        (JunctorClassifier(target="a"), ROWS, "found a column 'a', the name of the class"),
        (JunctorClassifier(refit=False), ROWS, "give one as the structure"),
        (JunctorClassifier("nave"), ROWS, "found the structure 'nave', expected 'naive', 'tan', a Network or the path"),
        (JunctorClassifier(ASIA, target="lung"), ROWS.to_numpy(), "give a data frame"),
        (JunctorClassifier(ASIA, target="lungs"), SMOKERS, "no variable named 'lungs'"),
        (JunctorClassifier(ASIA, target="smoke"), SMOKERS, "found a column 'smoke', the name of the class"),
        (JunctorClassifier(ASIA, target="lung", refit=False), ROWS, "no variable named 'a'"),
        (JunctorClassifier(ASIA, target="lung"), SMOKERS, "class 'k' of 'lung': unknown state 'k'; states are yes, no"),
        (JunctorClassifier(prior="much"), ROWS, "much"),
    ],
)
def test_refusals(model: JunctorClassifier, rows: Any, said: str) -> None:
    with pytest.raises((ValueError, JunctorError), match=said):
        model.fit(rows, ["k", "l", "k"])


def test_refusals_of_rows() -> None:
    network = read_network(ASIA)
    # A row that names no state is not left out in silence.
    with pytest.raises(EvidenceError, match="row 3: column 'smoke': unknown state 'maybe'"):
        JunctorClassifier(network, target="lung").fit(SMOKERS, ["yes", "no", "no"])
    rows = pd.DataFrame({"either": ["no", "no"], "tub": ["no", "yes"]})
    model = JunctorClassifier(network, target="lung", refit=False).fit(rows, ["yes", "no"])
    with pytest.raises(ValueError, match="row 2: impossible: tub = yes with either = no"):
        model.predict(rows)
    with pytest.raises(ValueError, match="row 1: column 'tub': unknown state 'maybe'"):
        model.predict(rows.assign(tub=["maybe", "no"]))
    numbers = JunctorClassifier().fit(ROWS, ["k", "l", "k"])
    with pytest.raises(ValueError, match="column 'a': found 'x', expected numbers as in the fit"):
        numbers.predict(ROWS.assign(a=ROWS["b"]))
    with pytest.raises(ValueError, match=r"weights are 0|Sample weights must contain"):
        JunctorClassifier().fit(ROWS, ["k", "l", "k"], sample_weight=[0, 0, 0])


def test_a_made_network_is_one_of_junctor() -> None:
    network = JunctorClassifier().fit(ROWS, ["k", "l", "k"]).network_
    assert isinstance(network, Network)
    assert network.sample(5).column_names == ["case_id", "class", "a", "b"]
