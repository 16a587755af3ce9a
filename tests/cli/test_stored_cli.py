"""`junctor calibrate` and `junctor ask`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from junctor import posteriors


def test_kept_cliques_answer_later(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    made = junctor_cli(
        "calibrate", ASIA, "--keep-cliques", kept, "--given", "dysp=yes", "--given", "smoke=no", "--json"
    )
    assert made.exit_code == 0, made.output
    expected = posteriors(ASIA, [{"dysp": "yes", "smoke": "no"}])
    facts = json.loads(made.stdout)
    assert facts["log_evidence"] == pytest.approx(expected["log_evidence"][0].as_py(), abs=1e-12)
    asked = json.loads(junctor_cli("ask", kept, "lung", "--json").stdout)
    found = [each["probability"] for each in asked["posterior"]]
    assert found == pytest.approx(expected["lung"][0].as_py(), abs=1e-12)
    table = junctor_cli("ask", kept, "either", "lung").stdout.splitlines()
    assert table[0] == "either,lung,probability"
    assert [line.rsplit(",", 1)[0] for line in table[1:]] == ["yes,yes", "yes,no", "no,yes", "no,no"]
    assert sum(float(line.rsplit(",", 1)[1]) for line in table[1:]) == pytest.approx(1)


def test_mistakes_are_told(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    assert (
        "expected VARIABLE=STATE" in junctor_cli("calibrate", ASIA, "--keep-cliques", kept, "--given", "smoke").stderr
    )
    twice = junctor_cli("calibrate", ASIA, "--keep-cliques", kept, "--given", "smoke=no", "--given", "smoke=no")
    assert twice.exit_code == 2
    missing = junctor_cli("ask", kept, "lung")
    assert missing.exit_code == 3
    assert "no calibrated cliques" in missing.stderr
    impossible = junctor_cli("calibrate", ASIA, "--keep-cliques", kept, "--given", "either=no", "--given", "lung=yes")
    assert "log P(e) = -inf" in impossible.stdout
    asked = junctor_cli("ask", kept, "smoke")
    assert asked.exit_code == 3
    assert "impossible: lung = yes with either = no" in asked.stderr
