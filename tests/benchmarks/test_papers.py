"""Each item of the papers has a command and a line of the page; without a GPU it says what it left out."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import common
import launch
import numpy as np
import papers
import pytest
import stored
import stored_swaps
from baselines.index_mapping import all_settings
from helpers.files import ASIA, ROOT
from junctor.generate import layered
from junctor.planning.cliques import StoredClique, StoredPlan, plan_stored
from junctor.planning.shape import shape_of
from papers import EVERYTHING, ITEMS, Item

PAGE = ROOT / "docs" / "papers.md"
COMMAND = re.compile(r"`papers\.py (\w+) ([\w-]+)")


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(papers, "gpu_here", lambda: False)
    monkeypatch.setattr(common, "gpu_here", lambda: False)
    monkeypatch.delenv("BENCHMARK_NETWORKS", raising=False)


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["papers.py", *words])
    papers.main()


def names(item: Item) -> str:
    return f"{item.paper} {item.name}"


def test_the_page_has_every_item_in_the_section_of_its_paper_and_no_other() -> None:
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]
    found = {(section.partition("\n")[0], *each) for section in sections for each in COMMAND.findall(section)}
    assert all(paper in heading.lower() for heading, paper, _ in found)
    assert {(paper, name) for _, paper, name in found} == {(item.paper, item.name) for item in ITEMS}
    assert len(set(map(names, ITEMS))) == len(ITEMS)


@pytest.mark.parametrize("item", [item for item in ITEMS if item.gpu != EVERYTHING], ids=names)
def test_it_runs_without_a_gpu(
    item: Item,
    without_gpu: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if item.paper == "zheng":
        keep_times(tmp_path)
        # All models learn in their own test.
        models = pytest.importorskip("launch_models", reason="of those who develop")
        few = {name: models.MODELS[name] for name in ("SVR", "Lasso, lambda min")}
        monkeypatch.setattr(models, "MODELS", few)
    call(monkeypatch, item.paper, item.name, "--small", "--folder", str(tmp_path))
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) >= 3
    assert (printed[-1] == f"left out without an NVIDIA GPU and CuPy: {item.gpu}") == bool(item.gpu)


def keep_times(folder: Path) -> None:
    """Write trees and times of messages, as a GPU would leave them: a microsecond for each p_e."""
    stored.prepare([ASIA], folder / "trees.pickle")
    sizes = launch.examples_of(stored.trees_of([folder / "trees.pickle"]))
    ways = [(*way, name, way.entries * 1e-6) for way in all_settings(launch.THREADS) for name in launch.NAMES]
    launch._write([(*size, *way) for size in sizes for way in ways], "none", folder / "launch.parquet")


def test_times_that_nobody_measured_need_a_gpu(
    without_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("table3", "figures4-6"):
        with pytest.raises(SystemExit) as ended:
            call(monkeypatch, "zheng", name, "--folder", str(tmp_path))
        assert ended.value.code == 2
        assert "launch.parquet of an earlier run is not there, needs an NVIDIA GPU" in capsys.readouterr().err


def test_what_needs_a_gpu_throughout_says_so_in_a_line(
    without_gpu: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for item in ITEMS:
        if item.gpu == EVERYTHING:
            with pytest.raises(SystemExit) as ended:
                call(monkeypatch, item.paper, item.name)
            assert ended.value.code == 2
            line = f"{names(item)} needs an NVIDIA GPU and CuPy (junctor[cuda12] or junctor[cuda13]): none here\n"
            assert capsys.readouterr() == ("", line)


def test_items_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    call(monkeypatch)
    assert len(capsys.readouterr().out.splitlines()) == len(ITEMS)
    call(monkeypatch, "lee")
    assert len(capsys.readouterr().out.splitlines()) == sum(item.paper == "lee" for item in ITEMS)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["lee", "figure99"], "found figure99, expected one of paths, readings"),
        (["lee", "readings", "asia.bif"], "lee readings takes no networks, found asia.bif"),
        (["bistaffa", "table1", "none.bif"], "none.bif: no such file or folder"),
        (["bistaffa", "table1", str(ROOT / "data" / "patients.csv")], "patients.csv: "),
    ],
)
def test_what_cannot_be_shown_is_told_in_a_line(
    words: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        call(monkeypatch, *words)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err.splitlines()[-1]


def test_a_package_that_is_not_there_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit) as ended:
        call(monkeypatch, "zheng", "figure7", "--folder", str(tmp_path))
    assert ended.value.code == 2
    assert "matplotlib is not installed: uv run has" in capsys.readouterr().err.splitlines()[-1]


def test_networks_of_a_paper_are_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("water.uai", "deep/water.bif.gz", "barley.json", "other.bif"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setenv("BENCHMARK_NETWORKS", str(tmp_path))
    assert common.Asked().files(["barley", "water"]) == [tmp_path / "deep" / "water.bif.gz"]
    assert capsys.readouterr().out == "not found in BENCHMARK_NETWORKS: barley\n"
    assert common.Asked(small=True).files(["water"])[0].name == "asia.bif"
    assert common.Asked((ROOT / "data",)).files(["water"])[0].name == "asia.bif"


@pytest.mark.parametrize(
    "words",
    [
        ["hmm", "gpu"],
        ["stored", "tables", "none.bif"],
        ["stored", "stream"],
        ["launch", "tables", "none.bif", "--folder", "none"],
        ["launch", "measure", "none.pickle", "--output", "none"],
        ["launch", "run", "none.pickle", "none.json"],
        ["launch_ours", "run", "none.pickle", "none.json"],
        ["launch_blocks", "tiles", "none.pickle"],
        ["gpu", "run", "none.pickle"],
        ["gpu", "engine", "none.bif"],
        ["spilled", "--device", "gpu"],
        ["costs", "measure", "none.pickle", "--gpu", "--output", "none"],
    ],
    ids=" ".join,
)
def test_benchmarks_of_a_gpu_say_that_there_is_none(
    words: list[str], without_gpu: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(words[0])
    monkeypatch.setattr(sys, "argv", [f"{words[0]}.py", *words[1:]])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 2
    assert "needs an NVIDIA GPU" in capsys.readouterr().err


def test_three_ways_permute_alike() -> None:
    network = layered(layers=3, width=3, states=3, parents=2, seed=2)
    plan = plan_stored(shape_of(network))
    moved = list(stored_swaps.permuted_cliques(plan))
    assert moved
    for i, clique in moved:
        table = np.random.default_rng(i).random(plan.entries(i))
        one, other = np.empty((2, len(table)))
        stored_swaps.ways_of(clique, plan, table, one)["Algorithm 3"]()
        ways = stored_swaps.ways_of(clique, plan, table, other)
        ways["naive"]()
        np.testing.assert_array_equal(one, ways["transposition"]())
        np.testing.assert_array_equal(one, other)


def test_swaps_of_both_tables_of_a_separator_by_hand() -> None:
    # Of 0 1 2 3, 3 is swapped with 1, which is not shared: 0 3 are in front. In 0 2 3, 3 is swapped with 2.
    child = StoredClique((0, 1, 2, 3), (), (0, 3, 2, 1), (0, 3), 1, (), (), ())
    root = StoredClique((0, 2, 3), (), (0, 2, 3), (), None, (0,), (), ())
    assert stored_swaps.paper_swaps(StoredPlan((2, 2, 2, 2), (child, root))) == [1, 1]


def test_worst_numbers_of_swaps_by_hand() -> None:
    # Two of four, both behind: two swaps. Two of three in a given order, 2 0 1 for 0 1: a cycle of three.
    assert stored_swaps.worst_swaps(4, 2) == (2, 2)
    assert stored_swaps.worst_swaps(3, 2) == (1, 2)
    assert stored_swaps.worst_swaps(5, 5) == (0, 4)


def test_gains_and_examples_of_bistaffa(capsys: pytest.CaptureFixture[str]) -> None:
    papers.run(next(item for item in ITEMS if item.name == "gains"), common.Asked())
    papers.run(next(item for item in ITEMS if item.name == "examples"), common.Asked())
    printed = capsys.readouterr().out
    assert "mildew | 118.33 | 19.9 | 5.95 | +495%" in printed
    assert "water | 10.91 | 12.67 | 0.86 | -14%" in printed
    assert "index 267" in printed
    assert "index 10 (row <1, 2, 0>, a_11): 5, then 5" in printed
