"""The table of kinds of evidence: its rows, its figures, and that both sides agree.

uv run --with pyagrum==3.3.1 pytest tests/benchmarks/test_tables.py
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.encoding import encode_table
from helpers.engine_cases import in_log_space
from helpers.files import ASIA
from junctor.evidence.batch import UNOBSERVED
from junctor.formats import read_network, write_network
from junctor.generate import random_network, sample
from junctor.model.answers import IMPOSSIBLE, OK
from table_cells import KINDS, Cell, Evidence, evidence
from table_children import batch_times, call_times, find_impossible, long_times
from table_report import Record, comparison, targets, text


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_rows_are_a_prefix_of_more(kind: str) -> None:
    network = random_network(25, seed=3)
    few, many = (evidence(network, "name", kind, sample(network, rows, 5)) for rows in (7, 9000))
    assert (few.columns == many.columns).all()
    assert (few.states == many.states[:, :7]).all()


def test_kinds_observe_what_they_say() -> None:
    network = random_network(40, (2, 5), seed=4)
    samples = sample(network, 4000, 6)
    found = {kind: evidence(network, "name", kind, samples) for kind in KINDS}
    fixed = found["fixed"]
    assert len(fixed.columns) == 8
    assert (fixed.states == samples.T[fixed.columns]).all()
    empty = {kind: (found[kind].states == UNOBSERVED).mean() for kind in KINDS}
    assert empty["missing"] == pytest.approx(0.05, abs=0.01)
    assert empty["holes"] == pytest.approx(0.3, abs=0.02)
    assert empty["noisy"] == empty["random"] == 0
    assert ((found["varied"].states != UNOBSERVED).sum(axis=0) == 8).all()
    assert 0 < (found["noisy"].states != fixed.states).mean() < 0.05
    assert (found["noisy"].states < np.array(network.cardinalities)[fixed.columns, None]).all()


def cell(kind: str, precision: str, ms: float, **other: Any) -> dict[str, Any]:
    known = {"network": "a", "rows": 2000, "device": "cpu", "done": 2000, "cpu": 1.0, "over": False}
    return known | {"kind": kind, "precision": precision, "ms": ms, "impossible": 0, "climbed": 0} | other


def record(*cells: dict[str, Any], clock: str = "wall") -> Record:
    # The second engine is the better one for many rows.
    both = {"engines": {"slow": [0.01, 0.2], "fast": [1.0, 0.1]}, "engines_cpu": {"fast": [0.05, 0.05]}}
    return Record({"cells": list(cells), "peers": [{"network": "a", "kind": kind} | both for kind in KINDS]}, clock)


def test_ratios_and_targets() -> None:
    found = record(
        cell("fixed", "double", 1.0), cell("missing", "double", 2.0), cell("missing", "single", 3.0, climbed=40)
    )
    assert found.peer_ms(found.cells[0]) == pytest.approx(100.45)
    assert found.ratio(found.cells[1]) == pytest.approx(50.2, abs=0.1)
    lines = targets(found)
    assert "- met: 2,000 rows: every cell at least 30 x pyAgrum: 33.5 (a, missing, single)" in lines
    assert "- NOT met: single at most 1.1 x double: 1.5 (a, missing, single)" in lines
    assert "- NOT met: less than 1 % of the rows climb in single precision: 0.02 (a, missing, single)" in lines
    assert "| a | 1 (100) | 2, 3 (100) |" in text(found)


def test_cpu_seconds() -> None:
    (found,) = record(cell("fixed", "double", 9.0, cpu=4.0), clock="cpu").cells
    assert found["ms"] == pytest.approx(2.0)
    assert record(clock="cpu").peer_ms(found) == pytest.approx(50.0)


def test_cells_cut_short_failed_and_different_are_told() -> None:
    found = record(
        cell("fixed", "double", 30.0, done=0, over=True),
        cell("missing", "double", 5.0, done=512),
        cell("holes", "double", math.nan, done=0, error="died"),
        cell("varied", "double", 1.0, compared=9, other_status=[3]),
    )
    assert "| a | over 30 (100) | 5* (100) | failed (100) | 1 (100) |" in text(found)
    assert "- NOT met: answers agree with pyAgrum's (9 rows): 1 cells differ" in targets(found)
    assert "- NOT met: every cell is answered: 1 failed" in targets(found)


def test_records_are_compared_by_cell() -> None:
    before, now = record(cell("fixed", "double", 4.0)), record(cell("fixed", "double", 1.0), cell("noisy", "double", 1))
    assert "| a | fixed | double | 2,000 | 4 | 1 | 0.25 | 1 |" in comparison(now, before)


def test_the_command_runs_and_both_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyagrum", reason="pyAgrum comes with an environment of its own")
    tables, output = importlib.import_module("tables"), tmp_path / "record.json"
    command = ["tables.py", ASIA, "--kinds", "random", "--rows", "30", "--precision", "double", "--peer-seconds", "0.5"]
    peer = tmp_path / "peer"
    monkeypatch.setattr(sys, "argv", [*command, "--json", str(output), "--peer", str(peer)])
    # The second time with what pyAgrum answered the first time.
    assert tables.main() == 0
    assert {path.name for path in peer.iterdir()} == {"asia-random-1.json", "asia-random-1.npz"}
    capsys.readouterr()
    assert tables.main() == 0
    (found,) = json.loads(output.read_text())["cells"]
    assert found["compared"] == found["done"] == 30
    assert found["posterior_difference"] < 1e-12
    assert "- met: answers agree with pyAgrum's (30 rows)" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--resume", "--precision", "double", "single"])
    assert tables.main() == 0
    assert [cell["precision"] for cell in json.loads(output.read_text())["cells"]] == ["double", "single"]


def test_impossible_rows_are_found(tmp_path: Path) -> None:
    network, file = random_network(50, (2, 4), seed=2, zeros=0.5), tmp_path / "network.bif"
    write_network(network, file)
    samples = sample(network, 400, 3)
    for kind in ("fixed", "random"):
        evidence(network, "network", kind, samples).store(tmp_path / f"{kind}.npy")
    zero, others = tmp_path / "zero.npy", tmp_path / "others.npy"
    rows = (tmp_path / "random.npy", tmp_path / "fixed.npy", 60.0, 5, zero, others)
    *_, found = find_impossible(str(file), *rows)
    assert found == {"rows": 5, "other_status": 0, "checked": 50}
    for part, expected in ((zero, IMPOSSIBLE), (others, OK)):
        batch = Evidence.load(part).batch(0, 5)
        assert (in_log_space(network, batch).status == expected).all()


def test_long_networks_are_answered_as_step_by_step() -> None:
    first, last = long_times("chain:40", 3, 1)
    assert first["variables"] == 40
    assert last["log_difference"] < 1e-12
    assert {"seconds", "bytes", "log"} < last.keys()


def test_calls_are_timed_seen_or_not(tmp_path: Path) -> None:
    network = read_network(ASIA)
    evidence(network, "asia", "varied", sample(network, 10, 3)).store(tmp_path / "rows.npy")
    *_, found = call_times(ASIA, tmp_path / "rows.npy", 0.1, None)
    assert found["posteriors, calls"] > 0
    assert found["posteriors"] > 0


def test_tables_of_names_are_timed(tmp_path: Path) -> None:
    network, file = read_network(ASIA), tmp_path / "rows.npy"
    rows = evidence(network, "asia", "holes", sample(network, 500, 3))
    rows.store(file)
    batch = encode_table(rows.table(network, 400), network).batch
    expected = rows.batch(0, 400).states
    assert batch.states.keys() == expected.keys()
    assert all((batch.states[v] == states).all() for v, states in expected.items())
    *_, found = batch_times(Cell(ASIA, file, "holes", 400, "double", 2, "cpu", 60.0))
    assert found["seconds"] > 0


def test_rows_of_probability_0_that_the_peer_answers(tmp_path: Path) -> None:
    pytest.importorskip("pyagrum", reason="pyAgrum comes with an environment of its own")
    from agrum import Peer, peer_model
    from table_peer import PeerAnswers, timed_rows

    network = read_network(ASIA)
    either = network.index["either"]
    causes = [v for v in network.factors[either].scope if v != either]
    # No table of pyAgrum's propagation is zero everywhere where all variables of a factor are observed.
    table = network.factors[either].table
    state = int(np.flatnonzero(table[0, 0] == 0)[0])
    rows = [{causes[0]: 0, causes[1]: 0, either: state}, {causes[0]: 0}]
    answers = PeerAnswers(network, len(rows))
    assert len(timed_rows(Peer(peer_model(network), "LazyPropagation", False, 1), rows, 10.0, answers)) == 2
    answers.store(tmp_path / "truth.npz")
    assert np.load(tmp_path / "truth.npz")["status"].tolist() == [IMPOSSIBLE, OK]
