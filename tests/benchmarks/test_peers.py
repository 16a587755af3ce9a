"""The comparison with pyAgrum runs and both agree.

uv run --with pyagrum==3.3.1 pytest tests/benchmarks/test_peers.py
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest
from helpers.files import ASIA

pytest.importorskip("pyagrum", reason="pyAgrum comes with an environment of its own")


@pytest.fixture
def peers() -> ModuleType:
    return importlib.import_module("peers")


@pytest.mark.slow
def test_both_agree_and_the_record_is_stored(
    peers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others = tmp_path / "others.md"
    others.write_text("## fixed\n\n| network | one | another |\n|---|---|---|\n| asia | 3.0 | 2.5 |\n")
    output = tmp_path / "peers.json"
    command = ["peers.py", ASIA, "--seconds", "0.3", "--output", str(output)]
    monkeypatch.setattr("sys.argv", [*command, "--against", str(others)])
    assert peers.main() == 0
    assert "geometric mean" in capsys.readouterr().out
    found = json.loads(output.read_text())["comparisons"]
    assert [each["kind"] for each in found] == ["fixed", "missing", "varied"]
    assert all(each["posterior_difference"]["double"] < 1e-9 for each in found)


def test_figures_of_others_are_read(peers: ModuleType, tmp_path: Path) -> None:
    markdown = tmp_path / "others.md"
    markdown.write_text(
        "# Title\n\ntext | text\n\n## varied\n\n| network | one | two |\n|---|---|---|\n| asia | | 2.5 |\n"
    )
    assert peers.read_others(markdown) == {"missing": {}, "varied": {"asia": 2.5}}
    figures = tmp_path / "others.json"
    figures.write_text('{"fixed": {"asia": 1.0}}')
    assert peers.read_others(figures) == {"missing": {"asia": 1.0}, "fixed": {"asia": 1.0}}
