"""Networks with known answers: what is right, wrong, impossible, refused and late is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import circuit_instances
import pytest
from circuit_networks import gates
from helpers.command_line import junctor_cli
from helpers.oracle import enumerate_posteriors
from junctor.formats import write_network

NETWORK = gates(3)
OBSERVED = {8: 1, 3: 1}


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Files of an instance in the test's folder, run without a process of their own; its right answers."""
    write_network(NETWORK, tmp_path / "made.uai.gz")
    (tmp_path / "made.uai.evid").write_text("2 8 1 3 1\n")
    # The last row has a gate on below one that is off.
    (tmp_path / "made.rows.csv").write_text("case_id,0,4,8\nr0,1,,1\nr1,,0,\nr2,,0,1\n")
    monkeypatch.setattr(circuit_instances, "_run", lambda arguments, *of: run_here(arguments))
    log, posteriors = enumerate_posteriors(NETWORK, OBSERVED, {})
    rows = {"r0": {0: 1, 8: 1}, "r1": {4: 0}}
    return {
        "log_evidence": log,
        "posteriors": {str(v): posteriors[v].tolist() for v in (2, 5)},
        "rows": {case: {"log_evidence": enumerate_posteriors(NETWORK, row, {})[0]} for case, row in rows.items()},
        "impossible_rows": {"r2": "one table"},
    }


def run_here(arguments: list[str]) -> str:
    network, evidence, *rest = arguments
    done = junctor_cli("run", network, evidence.replace(".csv.gz", ".csv"), *rest, "--workers", "0")
    return "refused" if done.exit_code else ""


def told(folder: Path, values: dict[str, Any], capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, list[str]]:
    (folder / "made.values.json").write_text(json.dumps(values))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["circuit_instances.py", str(folder), "--json", str(folder / "record.json"), *more])
        code = circuit_instances.main()
    return code, capsys.readouterr().out.splitlines()[4:]


def test_right_answers(instance: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in ((), ("--rows",)):
        code, (line, _, last) = told(tmp_path, instance, capsys, *more)
        assert code == 0
        assert line.endswith("|  |")
        assert last == f"1 of 1 answered within {'120' if more else '60'} s"
        (found,) = json.loads((tmp_path / "record.json").read_text())["instances"]
        assert found["log"] < 1e-12
    assert found["ways"]


@pytest.mark.parametrize(
    ("change", "more", "words"),
    [
        ({"log_evidence": -3.0}, (), "log P(e)"),
        ({"posteriors": {"2": [0.5, 0.5]}}, (), "posteriors"),
        ({"rows": {"r0": {"log_evidence": -3.0}}}, ("--rows",), "r0: log P(e)"),
        ({"rows": {"r2": {"log_evidence": -3.0}}}, ("--rows",), "r2: log P(e)"),
        ({"impossible_rows": {"r1": "one table"}}, ("--rows",), "r1: ok, not impossible"),
    ],
)
def test_wrong_answers(
    instance: dict[str, Any],
    change: dict[str, Any],
    more: tuple[str, ...],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, (line, _, last) = told(tmp_path, instance | change, capsys, *more)
    assert code == 1
    assert words in line
    assert last.endswith("; wrong: made")


def test_impossible_evidence_that_has_a_value(
    instance: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "made.uai.evid").write_text("2 8 1 4 0\n")
    code, (line, *_) = told(tmp_path, instance, capsys)
    assert code == 1
    assert "status impossible" in line


def test_evidence_without_known_value(
    instance: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, (line, *_) = told(tmp_path, instance | {"log_evidence": None, "posteriors": {}}, capsys)
    assert code == 0
    assert "| – | – |  |" in line


def test_what_is_refused_or_takes_too_long(
    instance: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    code, (line, _, last) = told(tmp_path, instance, capsys, "--seconds", "0.01")
    assert code == 0
    assert "over 0.01 s" in line
    assert last == "0 of 1 answered within 0.01 s; not: made"
    (tmp_path / "made.uai.gz").unlink()
    _, (line, *_) = told(tmp_path, instance, capsys)
    assert "made.uai.gz" in line
