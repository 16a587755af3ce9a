"""The benchmark of grids runs, and counts what it says."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
from junctor.backends.numpy import Program
from junctor_kernels.tables.reference import LOG


@pytest.fixture
def grids() -> ModuleType:
    return importlib.import_module("grids")


def test_counts_are_those_of_the_contractions(grids: ModuleType) -> None:
    _, network, plan, _ = grids.planned(4)
    found = grids.counts(plan)
    program = Program(plan, network, LOG)
    assert program.lowered
    terms = accesses = entries = operations = 0
    for lowered in program.lowered.values():
        what = lowered.contraction
        walked = what.kept_entries * what.eliminated_entries
        terms += walked
        entries += what.kept_entries
        accesses += walked * len(what.operands) + what.kept_entries
        # One addition fewer than operands, the largest, its subtraction, the sum; the largest again once an entry.
        operations += walked * (len(what.operands) - 1 + 3) + what.kept_entries
    assert found == {
        "terms": terms,
        "operations": operations,
        "exponentials": terms,
        "logarithms": entries,
        "accesses": accesses,
    }


def test_all_stages_are_measured_and_plans_are_read_again(
    grids: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["grids.py", "--sizes", "3", "--plans", str(tmp_path / "plans"), "--repeats", "1", "--threads", "1"]
    monkeypatch.setattr("sys.argv", [*command, "--on"])
    grids.main()
    assert (tmp_path / "plans").exists()
    monkeypatch.setattr(grids, "planned", None)
    monkeypatch.setattr("sys.argv", [*command, "--on", "cpu"])
    grids.main()
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("3 x 3 |")]
    assert [row[7] for row in rows] == ["log", "double"]
    assert all(float(number) > 0 for row in rows for number in row[8:14])


def test_shares_of_stages_add_up(grids: ModuleType) -> None:
    _, _, plan, _ = grids.planned(5)
    assert all(sum(share.values()) == pytest.approx(1) for share in grids.shares(plan))
