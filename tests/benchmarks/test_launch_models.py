"""Models of launch parameters: equations of Zheng and Mengshoel by hand, and what each model learns."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from baselines.index_mapping import all_settings
from helpers.files import ASIA
from stored import trees_of

pytest.importorskip("sklearn", reason="of those who develop")
models = importlib.import_module("launch_models")
launch = importlib.import_module("launch")

NAN = np.nan


def test_terms_of_the_polynomial_by_hand() -> None:
    # 2 entries of the separator, 12 of the clique, K = 4, p_a = 2, so p_e = 2.
    x = models.features([[2, 12]], [[4, 2]], [[0.0] * 3])
    np.testing.assert_allclose(models.printed_features(x), [[2, 12, 4, 2]])
    with_separator, with_clique, with_threads = [24, 8, 32, 4, 8], [48, 192, 24, 48], [64, 8, 16]
    expected = [2, 12, 4, 16, 2, 4, *with_separator, *with_clique, *with_threads, 32, 64, 8]
    np.testing.assert_allclose(models.printed_terms(x), [expected])


def test_bandwidth_by_hand() -> None:
    # Around the mean (2, 1) squared distances are 1 + 1, 1 + 1 and 0: 2 * 3 / 4.
    assert models.bandwidth(np.array([[1.0, 0.0], [3.0, 2.0], [2.0, 1.0]])) == 1.5
    standardised = np.array([[1.0, -1.0, 1.0, -1.0], [-1.0, 1.0, -1.0, 1.0]])
    assert models.bandwidth(standardised) == 1 / 2


def test_measures_of_a_model_by_hand() -> None:
    times = np.array([[5.0, 3.0, 4.0], [2.0, 6.0, NAN], [1.0, 1.5, 9.0]])
    chosen = np.array([2, 1, 0])
    assert models.residual_sum(np.array([5.0, 3.0]), np.array([4.0, 5.5])) == 1 + 6.25
    # One too many, four too many, the best.
    assert models.squared_deviance(times, chosen) == 1 + 16
    assert models.miss_rate(times, chosen) == pytest.approx(2 / 3)


def test_lambdas_by_hand() -> None:
    # Means 5, 2, 1.5, 3; of the third the standard deviation is 1 / sqrt(2), divided by sqrt(2): within 2.0.
    errors = np.array([[4.0, 6.0], [1.0, 3.0], [1.0, 2.0], [2.0, 4.0]])
    search = SimpleNamespace(mse_path_=errors, alphas_=np.array([8.0, 4.0, 2.0, 1.0]))
    assert models.chosen_lambda(search, one_se=False) == 2.0
    assert models.chosen_lambda(search, one_se=True) == 4.0


@pytest.fixture(scope="module")
def grid() -> models.Grid:
    """Times that are a polynomial of the printed terms: 3 + X / 100 + p_e^2 + K p_e / 50 microseconds."""
    settings = np.array(all_settings((64, 128)))
    messages = np.array([(s, s * terms) for s in (2, 7, 30) for terms in (3, 40, 200)])
    threads, entries = settings[:, 0], settings[:, 0] / settings[:, 1]
    times = 3 + messages[:, 1:] / 100 + (entries**2 + threads * entries / 50)
    return models.Grid(messages, settings, times / 1e6, np.zeros((len(messages), 3)))


def test_a_lasso_without_penalty_finds_a_polynomial_of_its_terms(grid: models.Grid) -> None:
    found = models.quality(grid, models.MODELS["Lasso, lambda 0"]().fit(*grid.rows()))
    assert found.rss < 1e-9
    assert found.deviance == pytest.approx(0, abs=1e-12)


def test_the_bandwidth_is_that_of_standardised_features(grid: models.Grid) -> None:
    # Four of them, each with the variance one: 2 N / (4 N).
    assert models.MODELS["SVR"]().fit(*grid.rows())._model.gamma == pytest.approx(1 / 2)


def test_penalties_grow_and_all_models_choose(grid: models.Grid) -> None:
    rss = {}
    for name, make in models.MODELS.items():
        found = models.quality(grid, make().fit(*grid.rows()))
        assert np.isfinite(found).all()
        assert 0 <= found.missed <= 1
        rss[name] = found.rss
    # Those that can take every time as it is do so, in microseconds.
    assert max(rss["extra trees"], rss["prices and trees"]) < 1e-6
    assert rss["Lasso, lambda 0"] < rss["Lasso, lambda min"] <= rss["Lasso, lambda 1se"]


def test_table_three_and_the_choices_of_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {name: models.MODELS[name] for name in ("Lasso, lambda 0", "SVR")}
    monkeypatch.setattr(models, "MODELS", few)
    (asia,) = trees_of([ASIA])
    trees = [asia, ("again", *asia[1:])]
    sizes, settings = sorted(launch.examples_of(trees)), all_settings(launch.THREADS)
    rows = [(*size, *way, name, way.entries * 1e-6) for size in sizes for way in settings for name in launch.NAMES]
    launch._write(rows, "none", tmp_path / "launch.parquet")
    # Some that the networks have not: there would be nothing to learn from.
    monkeypatch.setattr(launch, "sizes_of", lambda plan: [(name, size) for name in launch.NAMES for size in sizes[:2]])
    launch.table_three(trees, tmp_path / "launch.parquet")
    launch.fit(trees, tmp_path / "launch.parquet", tmp_path / "choices.json")
    printed = capsys.readouterr().out
    (line,) = (line for line in printed.splitlines() if line.startswith("reduce | SVR |"))
    assert line.endswith("13.6e5 | 1.78 | 18.58%")
    (line,) = (line for line in printed.splitlines() if line.startswith("Lasso, lambda 0 | reduce |"))
    assert line.split(" | ")[3] == "0.000"
    # A microsecond for each p_e: K = p_a is the best.
    chosen = json.loads((tmp_path / "choices.json").read_text())["chosen"]
    assert all(way[2] == way[3] for way in chosen["asia"]["Lasso, lambda 0"]["reduce"])
