"""`junctor cache`: shows and clears; what a run keeps there changes no byte of its answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.command_line import junctor_cli
from junctor import generate
from junctor.formats import write_network
from pyarrow import csv


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with a network and evidence; the cache is in it too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JUNCTOR_CACHE", "16MiB")
    monkeypatch.setattr("junctor.formats.LEAST_KEPT", 1)
    network = generate.chain(40, 3, seed=1)
    write_network(network, tmp_path / "net.bif")
    csv.write_csv(generate.evidence_table(network, generate.sample(network, 50, seed=1)), tmp_path / "rows.csv")
    return tmp_path


def test_it_shows_and_clears(folder: Path) -> None:
    empty = junctor_cli("cache")
    assert (empty.exit_code, "no entries" in empty.stdout) == (0, True)
    assert junctor_cli("validate", "net.bif").exit_code == 0
    assert "1 network" in junctor_cli("cache").stdout
    record = json.loads(junctor_cli("cache", "--json").stdout)
    assert record["entries"] == record["kinds"]["network"] == 1
    assert record["bytes"] > 0
    assert record["limit"] == 16 << 20
    assert record["folder"] == str(folder / "cache" / "junctor" / "kept")
    (folder / "cache" / "junctor" / "kept" / f"cut-{'0' * 64}.kept").write_bytes(b"")
    (folder / "cache" / "junctor" / "kept" / f"cut-{'1' * 64}.kept").write_bytes(b"")
    assert "2 cut plans, 1 network, " in junctor_cli("cache").stdout
    assert "3 entries removed" in junctor_cli("cache", "--clear").stdout
    assert json.loads(junctor_cli("cache", "--json").stdout)["entries"] == 0


def test_answers_have_the_same_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    for name in ("first", "second", "damaged", "off"):
        if name == "damaged":
            for path in (folder / "cache" / "junctor" / "kept").iterdir():
                path.write_bytes(path.read_bytes()[:-9])
        if name == "off":
            monkeypatch.setenv("JUNCTOR_CACHE", "off")
        answer = junctor_cli("run", "net.bif", "rows.csv", "-o", name, "--no-prefect", "--quiet")
        assert answer.exit_code == 0, answer.output
        written.append((folder / name / "posteriors" / "part-00000.parquet").read_bytes())
    assert len(set(written)) == 1


def test_a_bad_setting_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUNCTOR_CACHE", "lots")
    answer = junctor_cli("cache")
    assert answer.exit_code == 3
    assert "found 'lots'" in answer.stderr


def test_a_folder_in_the_place_of_an_entry_is_named(folder: Path) -> None:
    entry = folder / "cache" / "junctor" / "kept" / "order-1.kept"
    (entry / "inner").mkdir(parents=True)
    refused = junctor_cli("cache", "--clear")
    assert refused.exit_code == 6
    assert refused.stderr == f"error: {entry}: Directory not empty: remove it by hand\n"
