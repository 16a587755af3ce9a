"""The page of a fit: what it says, that it opens without network, and that data of others stays text in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import junctor
import numpy as np
import pytest
from helpers.browser import check_page, chromium
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from helpers.noisy_max import noisy_network
from helpers.pages import EVIL, Tags, check_names_are_text, check_nothing_is_loaded
from junctor import generate
from junctor.learning.learn import learn
from junctor.learning.report.page import FitPage
from junctor.learning.report.sections import probability
from junctor.model.errors import Place
from junctor.model.network import DraftTable, DraftVariable, Network, build_network

HERE = Place("drawn")


def sampled(network: Network, rows: int, missing: float = 0.2) -> dict[str, list[str | None]]:
    """Return rows of a network, some cells empty, as users would give them."""
    cells = generate.sample(network, rows, 1)
    gone = np.random.default_rng(2).random(cells.shape) < missing
    return {
        each.name: [None if gone[row, v] else each.states[cells[row, v]] for row in range(rows)]
        for v, each in enumerate(network.public)
    }


def page_of(network: Any, rows: Any, folder: Path, **options: Any) -> Tags:
    learn(network, rows, report=folder / "fit.html", **options)
    return Tags((folder / "fit.html").read_text())


def test_a_page_says_what_was_learned(tmp_path: Path) -> None:
    rows = sampled(junctor.read_network(ASIA), 1000)
    del rows["lung"]
    rows["smoke"][4] = "perhaps"
    rows["w"] = ["2"] * 1000
    found = learn(ASIA, rows, holdout=0.2, prior="bdeu:1", errors=True, weight="w", report=tmp_path / "fit.html")
    text = " ".join(Tags((tmp_path / "fit.html").read_text()).text.split())
    ok, held_out = found.rows["ok"], found.rows["held_out"]
    assert "Fit of asia" in text
    assert f"Learned from {ok:,} rows, " in text
    assert f"Their weights sum to {2 * ok:,}." in text
    assert f"ok {ok:,} " in text
    assert f"held out {held_out:,} " in text
    assert "invalid 1 0.10 %" in text
    assert "5 column 'smoke': unknown state 'perhaps'" in text
    assert "8 of 8 variables have gaps, 1 of them latent" in text
    assert "lung 0 % 100 % latent" in text
    assert f"Converged after {found.trace[-1].number} iterations: {found.reason}" in text
    assert f"{found.log_likelihood:,.6f}" in text
    assert "Standard errors" not in text
    assert "with a standard error changed by more than twice that" in text
    check = found.check
    assert check is not None
    assert check.rows == held_out
    word = "more" if check.gain > 0 else "less"
    assert f"Held-out rows are {word} probable than before: {check.gain:+.4g}" in text
    assert found.holdout is not None
    assert check.log_likelihoods[1] == pytest.approx(found.holdout.log_likelihood / found.holdout.weight)
    assert "Probabilities of held-out cells are off by" in text
    assert f"{check.cells:,} cells of held-out rows" in text
    assert "prior bdeu:1" in text
    assert "tolerance 1e-06" in text


def test_the_largest_changes_come_first() -> None:
    states = ("yes", "no")
    network = build_network(
        "two",
        "bayes",
        [DraftVariable(name, states, HERE) for name in ("a", "b", "c")],
        [
            DraftTable(["a"], [0.5, 0.5], HERE),
            DraftTable(["a", "b"], [[0.5, 0.5], [0.5, 0.5]], HERE),
            DraftTable(["c"], [0.5, 0.5], HERE),
        ],
    )
    # `b` given `a` changes most, but from three rows alone; `c` does not change.
    rows = {"a": ["yes"] * 57 + ["no"] * 3, "b": ["yes", "yes", "no"] * 19 + ["no"] * 3, "c": states * 30}
    page = FitPage(learn(network, rows, errors=True), 1e-6, {})
    lines = [(each.variable, each.state, each.given) for each in page.parameters]
    assert lines == [
        ("a", "yes", ""),
        ("a", "no", ""),
        ("b", "yes", "a=yes"),
        ("b", "no", "a=yes"),
        ("c", "yes", ""),
        ("c", "no", ""),
        ("b", "yes", "a=no"),
        ("b", "no", "a=no"),
    ]
    first = page.parameters[0]
    error = np.sqrt(0.95 * 0.05 / 60)
    assert (first.before, first.after, first.change, first.count) == ("0.5000", "0.9500", "+0.4500", "57.0")
    assert first.error == f"{error:.4f}"
    assert page.parameters_heading == "Largest change: a = yes, from 0.5000 to 0.9500"
    assert "1 distribution with fewer than 5 expected rows come last" in page.parameters_text
    assert "4 of 6 with a standard error changed by more than twice that" in page.parameters_text
    unknown = FitPage(learn(network, {"a": ["yes", None] * 10}, errors=True, prior="none"), 1e-6, {})
    assert {each.error for each in unknown.parameters if each.variable == "c"} == {"unknown"}
    assert "the rows tell too little" in unknown.parameters_text


def test_every_start_has_a_trace(tmp_path: Path) -> None:
    rows = sampled(junctor.read_network(ASIA), 200)
    found = learn(ASIA, rows, start="random", restarts=3, impossible="smooth", report=tmp_path / "fit.html")
    assert [len(each.objective) for each in found.restarts] == [each.iterations + 1 for each in found.restarts]
    best = max(found.restarts, key=lambda each: each.log_posterior)
    assert best.objective == tuple(each.log_posterior for each in found.trace)
    text = " ".join(Tags((tmp_path / "fit.html").read_text()).text.split())
    assert "The best of 3 starts is kept." in text
    assert "below the best" in text
    assert len(re.findall(r"#8a8a8a; stroke-width: 0.8", (tmp_path / "fit.html").read_text())) >= 2
    assert "objective" not in found.to_record()["restarts"][0]


def test_fits_without_a_check_or_with_little_in_it(tmp_path: Path) -> None:
    rows = sampled(junctor.read_network(ASIA), 40)
    none = page_of(ASIA, rows, tmp_path).text
    assert "No rows were held out" in none
    assert "No cells to check probabilities by" in none
    assert "Standard errors are there with --errors." in none
    # So few rows that none is held out.
    few = page_of(ASIA, {"smoke": ["yes", "no"]}, tmp_path, holdout=1e-6).text
    assert "No rows were held out" in few
    empty = page_of(ASIA, {"smoke": [None] * 50}, tmp_path, holdout=0.5).text
    assert "No cells to check probabilities by" in empty


def test_one_iteration_and_none_that_changes(tmp_path: Path) -> None:
    rows = sampled(junctor.read_network(ASIA), 400)
    one = page_of(ASIA, rows, tmp_path, max_iterations=1).text
    assert "Not converged after 1 iteration: 1 iterations" in one
    assert "It has not converged." in one
    whole = sampled(junctor.read_network(ASIA), 50, missing=0.0)
    complete = page_of(ASIA, whole, tmp_path, errors=True).text
    assert "Converged after 1 iteration: complete rows take one step" in complete
    assert "Learned from 50 rows, 0 % of their cells missing" in complete
    fixed = page_of(ASIA, rows, tmp_path, fix=["*"], errors=True, holdout=0.5).text
    assert "No parameter changed" in fixed
    assert "0 of 0 with a standard error" in fixed


def test_noisy_nodes_and_likelihoods(tmp_path: Path) -> None:
    network = noisy_network(False)
    cells = np.random.default_rng(3).integers(2, size=(60, 7))
    rows: dict[str, list[Any]] = {f"p{v}": [f"s{state}" for state in cells[:, v]] for v in range(7)}
    rows["x"] = ["high", None, "none"] * 20
    rows |= {"y=no": [0.2, None] * 30, "y=yes": [0.9, None] * 30}
    found = page_of(network, rows, tmp_path, holdout=0.3, errors=True, prior="bdeu:5")
    assert "likelihoods" in found.text
    assert "Fit of noisy" in found.text


def evil_fit(folder: Path) -> Path:
    """A fit whose names of variables, states and cells try to be HTML."""
    names = [f"{EVIL}{n}" for n in range(2)]
    states = (EVIL, "]]><b>", "</svg>$\\frac{1}{$")
    network = build_network(
        EVIL,
        "bayes",
        [DraftVariable(name, states, HERE) for name in names],
        [DraftTable([names[0]], [0.2, 0.3, 0.5], HERE), DraftTable(names, [[0.2, 0.3, 0.5]] * 3, HERE)],
    )
    cells = [*states, None, "</style><script>alert(2)</script>"] * 12
    rows = {names[0]: cells, names[1]: cells[::-1]}
    learn(network, rows, holdout=0.3, errors=True, report=folder / "fit.html")
    return folder / "fit.html"


def test_names_and_reasons_are_text(tmp_path: Path) -> None:
    text = evil_fit(tmp_path).read_text()
    check_names_are_text(text)
    assert "frac" in Tags(text).text


def test_nothing_is_loaded(tmp_path: Path) -> None:
    check_nothing_is_loaded(evil_fit(tmp_path).read_text())


def test_a_wide_network_has_a_small_page(tmp_path: Path) -> None:
    names = [f"a variable with a long name, number {n}" for n in range(1000)]
    states = tuple(f"a state with a long name {n}" for n in range(4))
    tables = [DraftTable([names[0]], [0.1, 0.2, 0.3, 0.4], HERE)]
    tables += [DraftTable([names[n - 1], names[n]], [[0.1, 0.2, 0.3, 0.4]] * 4, HERE) for n in range(1, 1000)]
    network = build_network("wide", "bayes", [DraftVariable(name, states, HERE) for name in names], tables)
    rng = np.random.default_rng(0)
    rows = {name: [states[n] for n in rng.integers(4, size=60)] for name in names}
    found = learn(network, rows, holdout=0.2, errors=True, report=tmp_path / "fit.html")
    assert (tmp_path / "fit.html").stat().st_size < 2 * 2**20
    text = Tags((tmp_path / "fit.html").read_text()).text
    assert f"{found.parameters.num_rows - 1000:,} parameters with smaller changes" in text


def test_many_starts_and_iterations_have_a_small_page(tmp_path: Path) -> None:
    rows = sampled(junctor.read_network(ASIA), 30)
    del rows["lung"], rows["bronc"]
    options: dict[str, Any] = {"start": "random", "restarts": 60, "impossible": "smooth", "tolerance": 0.0}
    found = learn(ASIA, rows, **options, acceleration="none", max_iterations=250, report=tmp_path / "fit.html")
    text = " ".join(Tags((tmp_path / "fit.html").read_text()).text.split())
    assert "10 more starts ended lower." in text
    if len(found.trace) > 200:
        assert f"The last 200; {len(found.trace) - 200} came before." in text
    assert (tmp_path / "fit.html").stat().st_size < 2 * 2**20


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("smoke,bronc\n" + "yes,\n,no\nno,no\nyes,yes\n" * 30)
    page = tmp_path / "page.html"
    call = ("learn", ASIA, str(rows), "-o", str(tmp_path / "f.bif"), "--holdout", "30%", "--report", str(page))
    done = junctor_cli(*call)
    assert done.exit_code == 0, done.output
    text = " ".join(Tags(page.read_text()).text.split())
    assert f"evidence {rows}" in text
    assert f"fitted network {tmp_path / 'f.bif'}" in text
    nowhere = junctor_cli(*call[:-1], "/proc/nowhere/page.html")
    assert nowhere.exit_code == 6, nowhere.output
    assert "/proc/nowhere" in nowhere.stderr


def test_probabilities_are_whole_only_where_they_are() -> None:
    numbers = [0.0, 1e-9, 0.00052, 0.05, 0.99951, 1 - 1e-6, 1.0, float("nan")]
    assert [probability(each) for each in numbers] == [
        *("0", "1.0e-09", "5.2e-04", "0.0500", "0.9995100", "0.9999990", "1", "–"),
    ]


@pytest.mark.parametrize("which", [pytest.param("plain", marks=pytest.mark.slow), "evil"])
def test_a_fit_in_a_browser(tmp_path: Path, which: str) -> None:
    with chromium() as browser:
        if which == "evil":
            page_file = evil_fit(tmp_path)
        else:
            rows = sampled(junctor.read_network(ASIA), 400)
            page_file = tmp_path / "fit.html"
            options: dict[str, Any] = {"start": "random", "restarts": 3, "impossible": "smooth"}
            learn(ASIA, rows, holdout=0.3, errors=True, report=page_file, **options)
        check_page(browser, page_file, 3)
