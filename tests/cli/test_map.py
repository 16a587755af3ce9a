"""`junctor map`, and `--mapping` of the commands that read evidence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import junctor
import pytest
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from junctor.evidence import propose as propose_module
from junctor.model.errors import EvidenceError
from pyarrow import parquet

MAP = '[columns]\nRauch = "smoke"\n[variables.smoke]\nstates = { ja = "yes", nein = "no" }\nmissing = ["-9"]\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("PREFECT_API_URL", "JUNCTOR_WORKERS", "JUNCTOR_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    Path("map.toml").write_text(MAP)
    Path("evidence.csv").write_text("Rauch,xray\nja,no\n-9,yes\nnein,\n")
    Path("plain.csv").write_text("smoke,xray\nyes,no\n,yes\nno,\n")
    return tmp_path


def run(output: str, evidence: str, *args: str, code: int = 0) -> str:
    result = junctor_cli("run", ASIA, evidence, "-o", output, "--no-prefect", *args)
    assert result.exit_code == code, result.output
    return result.stderr


def test_a_run_with_a_mapping_equals_one_without() -> None:
    run("plain", "plain.csv")
    run("mapped", "evidence.csv", "--mapping", "map.toml")
    expected = parquet.read_table("plain/posteriors")
    assert parquet.read_table("mapped/posteriors").equals(expected)
    spec = json.loads(Path("mapped/manifest.json").read_text())["spec"]
    assert len(spec["mapping_digest"]) == 64
    assert "mapping_digest" not in json.loads(Path("plain/manifest.json").read_text())["spec"]
    rows = [{"Rauch": "ja", "xray": "no"}, {"Rauch": "-9", "xray": "yes"}, {"Rauch": "nein"}]
    for mapping in ("map.toml", {"columns": {"Rauch": "smoke"}, "variables": {"smoke": {"other_is_missing": True}}}):
        found = junctor.posteriors(ASIA, rows[1:2], mapping=mapping)
        assert found["lung"].to_pylist() == expected["lung"].to_pylist()[1:2]
    assert junctor.Model(ASIA).posteriors(rows, mapping="map.toml")["lung"].equals(expected["lung"])


def test_another_mapping_is_another_run() -> None:
    run("out", "evidence.csv", "--mapping", "map.toml")
    Path("out/manifest.json").unlink()
    shutil.rmtree("out/posteriors")
    # Comments and order change nothing.
    Path("map.toml").write_text("# the same\n" + MAP)
    run("out", "evidence.csv", "--mapping", "map.toml")
    Path("map.toml").write_text(MAP.replace("-9", "-8") + 'other = "yes"\n')
    message = run("out", "evidence.csv", "--mapping", "map.toml", code=6)
    assert "mapping" in message
    run("out", "evidence.csv", "--mapping", "map.toml", "--overwrite")


def test_an_incremental_run_is_mapped() -> None:
    Path("days").mkdir()
    shutil.copy("evidence.csv", "days/1.csv")
    run("out", "days", "--incremental", "--mapping", "map.toml")
    shutil.copy("plain.csv", "days/2.csv")
    run("out", "days", "--incremental", "--mapping", "map.toml")
    manifest = json.loads(Path("out/manifest.json").read_text())
    assert manifest["statuses"]["ok"] == 6
    Path("map.toml").write_text(MAP + 'other = "yes"\n')
    run("out", "days", "--incremental", "--mapping", "map.toml", code=6)


def test_validate_and_inspect_are_mapped() -> None:
    for command in ("validate", "inspect"):
        result = junctor_cli(command, ASIA, "evidence.csv", "--mapping", "map.toml")
        assert result.exit_code == 0, result.output
        assert junctor_cli(command, ASIA, "evidence.csv").exit_code == 3


def test_a_bad_mapping_is_told_before_the_evidence() -> None:
    Path("map.toml").write_text(MAP.replace('"yes"', '"yess"'))
    message = run("out", "evidence.csv", "--mapping", "map.toml", code=3)
    assert "map.toml: variables.smoke.states.ja: found 'yess', did you mean 'yes'?, expected a state" in message
    assert not Path("out/run.json").exists()
    with pytest.raises(EvidenceError, match="did you mean"):
        junctor.posteriors(ASIA, [{}], mapping={"column": {}})


def test_map_leaves_a_file_that_somebody_has_made_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    propose = propose_module.propose

    def slowly(*what: Any, **how: Any) -> Any:
        Path("proposed.toml").write_text("edited")
        return propose(*what, **how)

    monkeypatch.setattr(propose_module, "propose", slowly)
    result = junctor_cli("map", ASIA, "evidence.csv", "-o", "proposed.toml")
    assert (result.exit_code, Path("proposed.toml").read_text()) == (3, "edited")
    assert "there is such a file" in result.stderr


def test_map_writes_a_file_that_run_takes() -> None:
    Path("evidence.csv").write_text("Smoke,X-Ray,who\nYES,No,a\n-,yes,b\nno,,c\n")
    result = junctor_cli("map", ASIA, "evidence.csv", "-o", "proposed.toml")
    assert result.exit_code == 0, result.output
    assert "100.0%" in result.stdout
    run("out", "evidence.csv", "--mapping", "proposed.toml", "--keep", "who")
    assert parquet.read_table("out/posteriors")["status"].to_pylist() == ["ok"] * 3
    again = junctor_cli("map", ASIA, "evidence.csv", "-o", "proposed.toml")
    assert again.exit_code == 3
    assert "there is such a file" in again.stderr
    printed = junctor_cli("map", ASIA, "evidence.csv")
    assert printed.stdout == Path("proposed.toml").read_text()
    record = json.loads(junctor_cli("map", ASIA, "evidence.csv", "--json").stdout)
    assert record["mapping"] == printed.stdout
    assert [each["covered"] for each in record["columns"]] == [1, 1, 1]
