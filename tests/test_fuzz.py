"""Every file that is read may be damaged: an answer or an error of ours, within 10 seconds and 1 GiB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fuzz.kinds import KINDS

PROGRAM = [sys.executable, str(Path(__file__).parent / "fuzz")]


def results(mutants: int) -> list[dict[str, Any]]:
    """Return what mutants of each kind do. For hours: `python tests/fuzz --seconds 3600`."""
    # In a process of its own: it forks, and its memory is limited.
    done = subprocess.run([*PROGRAM, "--mutants", str(mutants)], capture_output=True, text=True, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {each["kind"] for each in found} == KINDS.keys(), done.stderr[-2000:]
    return found


@pytest.mark.parametrize("mutants", [40, pytest.param(5000, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])])
def test_damaged_files(mutants: int) -> None:
    for result in results(mutants):
        check(result)


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("footer-sequences", 4800),
        ("manifest", 20000270),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("footer-evidence", 17547),
                ("records-sequences", 721),
                ("records-sequences", 1637),
                ("footer-model", 20014956),
            )
        ),
    ],
)
def test_what_mutants_found(kind: str, seed: int) -> None:
    command = [*PROGRAM, kind, "--seed", str(seed), "--mutants", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (result,) = map(json.loads, done.stdout.splitlines())
    assert not result["failures"], result


def check(result: dict[str, Any]) -> None:
    kind = result["kind"]
    assert not result["failures"], f"python tests/fuzz {kind} --seed SEED --mutants 1 --keep FOLDER: {result}"
    # Most damage is seen, unless a file is passed over, or made again as damaged parts of runs are.
    passed_over = ("measurements", "footer-measurements", "cache")
    assert result["refused"] > 0 or kind in passed_over or kind.startswith("run-")
