"""The page of the fit of a hidden Markov model: what it says, at any size, and that names stay text in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.browser import check_page, chromium
from helpers.hmm_models import random_model, sparse_of
from helpers.pages import EVIL, Tags, check_names_are_text, check_nothing_is_loaded
from hypothesis import given
from hypothesis import strategies as st
from junctor.hmm import LearnedModel, build_model, learn, write_model
from junctor.hmm.report import pictures

IMAGES = ("data:image/png;base64,",)


def words(model: Any, count: int, steps: int, seed: int = 0) -> list[list[Any]]:
    """Draw sequences of symbols, any of them with the same probability; some are not observed."""
    symbols = np.random.default_rng(seed).integers(-1, model.symbols, (count, steps))
    names = [*(model.symbol_names or range(model.symbols)), None]
    return [[names[symbol] for symbol in row] for row in symbols]


def page_of(path: Path, *args: Any, **options: Any) -> tuple[LearnedModel, str]:
    found = learn(*args, report=path, **options)
    return found, " ".join(Tags(path.read_text()).text.split())


def test_a_page_says_what_was_learned(tmp_path: Path) -> None:
    bare = random_model(3, 2, 1)
    model = build_model(bare.start, bare.transition, bare.emission, ["u", "v", "w"], ["a", "b"])
    write_model(model, tmp_path / "fever.json")
    sequences = [*words(model, 60, 12), ["c"], []]
    options: dict[str, Any] = {"holdout": 0.2, "errors": True, "prior": {"emission": 0.5}, "weights": [2.0] * 62}
    found, text = page_of(tmp_path / "fit.html", str(tmp_path / "fever.json"), sequences, **options)
    ok = found.statuses["ok"]
    assert "Fit of fever.json" in text
    assert f"Learned from {ok} sequences, {12 * ok:,} steps in all, " in text
    assert f"Their weights sum to {2 * ok}." in text
    assert f"ok {ok} " in text
    assert "invalid 2 " in text
    assert "61 step 0: unknown symbol 'c'" in text
    assert "62 the sequence is empty" in text
    end = "Converged" if found.fit.converged else "Not converged"
    assert f"{end} after {found.fit.trace[-1].number} iterations: {found.fit.reason}" in text
    assert "17 probabilities in all." not in text
    assert "18 probabilities in all." in text
    assert "with a standard error changed by more than twice that" in text
    assert "Standard errors are there" not in text
    check = found.check
    assert check is not None
    assert f"{check.gain:+.4g} in log-likelihood of a sequence" in text
    assert "prior emission=0.5" in text
    assert "model 3 states, 2 symbols" in text
    assert "while the model was learned" in text
    # Expected steps of states sum to all steps: their shares to one.
    steps = found.parameters
    assert steps is not None
    into = [row["count"] for row in steps.to_pylist() if row["variable"] != "emission" and row["state"] == "u"]
    assert f"u {100 * sum(into) / (24 * ok):.1f} %" in text


def test_pages_of_little(tmp_path: Path) -> None:
    model = random_model(2, 2, 1)
    _, text = page_of(tmp_path / "fit.html", model, [[0, 1]], max_iterations=1, fix=["start"], tie=["0=1"])
    assert "No sequences were held out" in text
    assert "Standard errors are there with --errors." in text
    assert "Fit of a model" in text
    assert "tie 0=1" in text
    _, text = page_of(tmp_path / "fit.html", model, [[0, 1]], fix=["start", "transition", "emission"], errors=True)
    assert "No parameter changed" in text
    silent = build_model([1, 0], [[0.5, 0.5], [0, 1]])
    _, text = page_of(tmp_path / "fit.html", silent, [[[-0.1, -0.2], [-0.3, -0.1]]], errors=True)
    assert "2 states, no emissions" in text
    assert "for ever" in text
    assert "most probable symbols" not in text
    drawn = (tmp_path / "fit.html").read_text()
    assert "Start: before and after" in drawn
    assert "Transition, from row to column: before and after" in drawn
    assert "Emission, rows" not in drawn


def evil_fit(folder: Path) -> Path:
    """A fit whose names of states and symbols try to be HTML."""
    bare = random_model(3, 3, 1, 0.3)
    states, symbols = [EVIL, "]]><b>", "</svg>$\\frac{1}{$"], [f"{EVIL}!", "</style>", "b"]
    model = build_model(bare.start, sparse_of(bare.transition), bare.emission, states, symbols)
    sequences = [*words(model, 40, 5), ["<script>alert(2)</script>"]]
    options: dict[str, Any] = {"start": "random", "restarts": 3, "max_iterations": 8}
    learn(model, sequences, holdout=0.3, errors=True, impossible="skip", report=folder / "fit.html", **options)
    return folder / "fit.html"


def test_names_are_text_and_nothing_is_loaded(tmp_path: Path) -> None:
    text = evil_fit(tmp_path).read_text()
    check_names_are_text(text)
    check_nothing_is_loaded(text, IMAGES)


def test_a_large_model_has_a_small_page(tmp_path: Path) -> None:
    names = [f"a state with a long name, number {n}" for n in range(512)]
    bare = random_model(512, 300, 1)
    model = build_model(bare.start, bare.transition, bare.emission, names)
    path = tmp_path / "fit.html"
    _, text = page_of(path, model, words(model, 3, 20), max_iterations=1, acceleration="none")
    assert path.stat().st_size < 2 * 2**20
    assert "500 more states" in text
    assert f"{512 + 512**2 + 512 * 300 - 1000:,} parameters with smaller changes" in text


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 9), st.integers(0, 99))
def test_a_cell_has_the_largest_of_a_block(rows: int, columns: int, most: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = rng.random((rows, columns)) * (rng.random((rows, columns)) < 0.3)
    steps = [-(-size // most) for size in table.shape]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "MOST_CELLS", most)
        found = pictures.coarse(table)
        if rows == columns:
            np.testing.assert_array_equal(pictures.coarse(sparse_of(table)), found)
    assert max(found.shape) <= most
    wanted = [
        [table[i : i + steps[0], j : j + steps[1]].max() for j in range(0, columns, steps[1])]
        for i in range(0, rows, steps[0])
    ]
    np.testing.assert_array_equal(found, wanted)


def test_a_page_in_a_browser(tmp_path: Path) -> None:
    with chromium() as browser:
        check_page(browser, evil_fit(tmp_path), 5)
