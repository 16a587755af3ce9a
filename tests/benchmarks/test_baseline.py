"""Plans get no more expensive: exact counts of plans of many networks against those committed."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from types import ModuleType

import pytest
from helpers.files import ROOT


def load_counts() -> ModuleType:
    spec = importlib.util.spec_from_file_location("counts", ROOT / "benchmarks" / "counts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


counts = load_counts()
BASELINE = counts.read_baseline()
UPDATE = "if that is meant: uv run python benchmarks/counts.py [FOLDER OF NETWORKS] --update"


def check(name: str, path: Path) -> None:
    """Fail where a count rose; where one only fell, ask for a new baseline."""
    rose, fell = [], []
    for evidence, after in counts.counts(path).items():
        before = BASELINE[name][evidence]
        text = f"{name}, {evidence}: " + ", ".join(counts.changes(before, after))
        if any(after[count] > before[count] for count in after):
            rose.append(text)
        elif after != before:
            fell.append(text)
    if fell:
        warnings.warn("\n".join([*fell, "plans got cheaper; keep that: " + UPDATE.split(": ")[1]]), stacklevel=2)
    assert not rose, "\n".join([*rose, UPDATE])


@pytest.mark.parametrize("name", [name for name in BASELINE if name.startswith("data/")])
def test_plans_of_textbook_networks_cost_no_more(name: str) -> None:
    check(name, ROOT / name)


@pytest.mark.parametrize("name", [name for name in BASELINE if not name.startswith("data/")])
def test_plans_of_benchmark_networks_cost_no_more(name: str, shared: Path) -> None:
    check(name, shared / "networks" / name)


def test_every_textbook_network_has_a_baseline() -> None:
    assert {f"data/{path.name}" for path in (ROOT / "data").glob("*.[bu][ia][fi]")} <= BASELINE.keys()


def test_a_dearer_plan_fails_and_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "data/asia.bif"
    lower = {evidence: {**each, "case_operations": -1} for evidence, each in BASELINE[name].items()}
    monkeypatch.setitem(BASELINE, name, lower)
    with pytest.raises(AssertionError, match=r"(?s)case_operations -1 -> [\d,]+ .*--update"):
        check(name, ROOT / name)


def test_a_cheaper_plan_passes_and_asks_for_a_new_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "data/asia.bif"
    higher = {evidence: {**each, "steps": each["steps"] + 1} for evidence, each in BASELINE[name].items()}
    monkeypatch.setitem(BASELINE, name, higher)
    with pytest.warns(UserWarning, match=r"(?s)steps [\d,]+ -> [\d,]+ \(-.*--update"):
        check(name, ROOT / name)
