"""Damaged, missing and foreign files of finished and of interrupted runs."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from hypothesis import given
from hypothesis import strategies as st
from junctor.model.errors import EvidenceError, JunctorError, RunError
from junctor.runs.answers import read_answers
from junctor.runs.integrity import Fault, faulty_parts, verify
from junctor.runs.outcome import outcome_of
from junctor.runs.run import read_manifest, run
from junctor.runs.status import read_status
from junctor.runs.storage import RunDirectory
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources

HERE = Resources(workers=0)
ROWS, PART = 40, 10


def job_in(folder: Path) -> Job:
    evidence = folder / "evidence.csv"
    if not evidence.exists():
        evidence.write_text("smoke,xray\n" + "yes,no\n,yes\nno,\nno,no\n" * (ROWS // 4))
    return Job(ASIA, str(evidence), str(folder / "out"), partition_rows=PART)


def contents(out: Path) -> dict[str, bytes]:
    """Return all files of a run but for the manifest, whose seconds differ."""
    paths = [path for path in out.rglob("*") if path.is_file() and path.name not in ("manifest.json", ".lock")]
    return {str(path.relative_to(out)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    run(job_in(folder), HERE)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path


def faults(folder: Path) -> list[tuple[str, str]]:
    return [(fault.kind, fault.file) for fault in verify(RunDirectory(folder / "out")).faults]


def test_a_finished_run_is_whole(folder: Path) -> None:
    verified = verify(RunDirectory(folder / "out"))
    # Four parts and their evidence, done.json, checksums.json, run.json and the network.
    assert (verified.files, verified.without_checksum, verified.faults) == (16, 0, ())
    record = json.loads((folder / "out/manifest.json").read_text())
    part = folder / "out" / record["parts"][2]["file"]
    assert record["parts"][2]["sha256"] == hashlib.sha256(part.read_bytes()).hexdigest()


@pytest.mark.parametrize("content", [b"", b"PAR1", b"x" * 3000])
def test_a_truncated_part_is_named_and_made_again(
    folder: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    before = contents(folder / "out")
    (folder / "out/posteriors/part-00001.parquet").write_bytes(content)
    with caplog.at_level(logging.WARNING, logger="junctor"):
        manifest = run(job_in(folder), HERE)
    assert "posteriors/part-00001.parquet: damaged (found" in caplog.text
    assert manifest.reused_parts == 3
    assert contents(folder / "out") == before
    assert faults(folder) == []


def test_a_truncated_part_of_an_interrupted_run(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = contents(folder / "out")
    (folder / "out/manifest.json").unlink()
    (folder / "out/posteriors/part-00003.parquet").unlink()
    (folder / "out/posteriors/part-00001.parquet").write_bytes(b"")
    assert faults(folder) == [
        ("missing", "manifest.json"),
        ("damaged", "posteriors/part-00001.parquet"),
        ("missing", "posteriors/part-00003.parquet"),
    ]
    with caplog.at_level(logging.WARNING, logger="junctor"):
        assert run(job_in(folder), HERE).reused_parts == 2
    assert "part-00001.parquet: damaged" in caplog.text
    assert contents(folder / "out") == before


@pytest.mark.parametrize("text", ["{}", "[]", '{"rows": 1, "par', '{"rows": 0, "parts": [], "files": []}'])
@pytest.mark.parametrize("evidence", [True, False])
def test_a_damaged_manifest_makes_no_part_foreign(folder: Path, text: str, evidence: bool) -> None:
    run(job_in(folder), HERE)
    (folder / "out/manifest.json").write_text(text)
    if not evidence:
        shutil.rmtree(folder / "out/evidence")
    faults = verify(job_in(folder).directory).faults
    assert not [each for each in faults if each.kind == "foreign"]
    (damaged,) = [each.detail for each in faults if (each.kind, each.file) == ("damaged", "manifest.json")]
    assert re.fullmatch(r"not a manifest( \(.+\))?: the same command again makes a new one", damaged)


# Of another type, or beyond what a file may have.
OTHERS: tuple[Any, ...] = ({"a": 1}, [[]], True, 2**63, "\ud800")


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["one", "all"])
def turns(request: pytest.FixtureRequest) -> Iterator[Sequence[Any]]:
    """What each value is replaced by in turn: one of `OTHERS`, the next one for the next value, or all of them."""
    return itertools.repeat(OTHERS) if request.param else ([OTHERS[i % len(OTHERS)]] for i in itertools.count())


def others_of(record: Any, turns: Iterator[Sequence[Any]]) -> Iterator[Any]:
    """Yield a record with one value that is of another type, for each of its values."""
    keys = list(record) if isinstance(record, dict) else range(len(record))
    for key in keys:
        value = record[key]
        for other in next(turns):
            if not isinstance(other, type(value)) or other in (2**63, "\ud800"):
                changed = record.copy()
                changed[key] = other
                yield changed
        if isinstance(value, dict | list):
            for inner in others_of(value, turns):
                changed = record.copy()
                changed[key] = inner
                yield changed


def test_a_manifest_with_a_value_of_another_type_is_told(folder: Path, turns: Iterator[Sequence[Any]]) -> None:
    manifest, directory = folder / "out/manifest.json", RunDirectory(folder / "out")
    whole = json.loads(manifest.read_text())
    # Of one part as of many.
    whole["parts"], whole["rows"] = whole["parts"][:1], whole["parts"][0]["rows"]
    told = 0
    for record in others_of(whole, turns):
        manifest.write_text(json.dumps(record))
        for call in (read_manifest, read_status, faulty_parts, read_answers):
            with suppress(RunError, EvidenceError):
                call(directory if call in (read_manifest, faulty_parts) else directory.path)  # type: ignore[operator]
        manifest.write_text(json.dumps(record))
        told += ("damaged", "manifest.json") in [(each.kind, each.file) for each in verify(directory).faults]
    # The others are of what is not looked at there.
    assert told > 10


@pytest.mark.parametrize(
    ("keys", "value", "found"),
    [
        (("parts", 0, "bytes"), 2**63, r"parts\[0\]\.bytes: found 9223372036854775808, expected a whole number"),
        (("parts", 0, "sha256"), {"a": 1}, r"parts\[0\]\.sha256: found \{'a': 1\}, expected text"),
        (
            ("parts", 1, "statistics", "bytes"),
            "x",
            r"parts\[1\]\.statistics\.bytes: found 'x', expected a",
        ),
        (("parts", 0, "extra"), 3, r"parts\[0\]\.extra: found an unknown key"),
        (("files", "run.json", "sha256"), 4908, r"run\.json\.sha256: found 4908, expected text"),
    ],
)
def test_what_is_wrong_with_a_manifest(folder: Path, keys: Sequence[Any], value: Any, found: str) -> None:
    path = folder / "out/manifest.json"
    whole = record = json.loads(path.read_text())
    for key in keys[:-1]:
        record = record[key]
    record[keys[-1]] = value
    path.write_text(json.dumps(whole))
    shown = junctor_cli("verify", str(folder / "out"))
    assert shown.exit_code == 6
    assert re.search(rf"damaged manifest.json: not a manifest \({found}", shown.output)
    # A run makes a new one.
    run(job_in(folder), HERE)
    assert not faults(folder)


def test_records_beside_a_manifest_with_values_of_another_type(folder: Path, turns: Iterator[Sequence[Any]]) -> None:
    directory = RunDirectory(folder / "out")
    paths = [directory.spec_file, *(folder / "out").glob("statistics/**/part-00001.json")]
    assert len(paths) == 2
    for path in paths:
        whole = path.read_text()
        for record in others_of(json.loads(whole), turns):
            path.write_text(json.dumps(record))
            # Nothing but an error of ours.
            with suppress(JunctorError):
                outcome_of(directory, read_manifest(directory))
        path.write_text(whole)


def test_a_damaged_part_is_not_vouched_for_by_a_new_manifest(folder: Path) -> None:
    before = contents(folder / "out")
    damaged = folder / "out/posteriors/part-00002.parquet"
    damaged.write_bytes(before["posteriors/part-00002.parquet"].replace(b"PAR1", b"PAR2", 1))
    # Sizes are checked always, contents where a part is made again.
    assert run(job_in(folder), HERE).reused_parts == 4
    (folder / "out/posteriors/part-00000.parquet").unlink()
    assert run(job_in(folder), HERE).reused_parts == 2
    assert contents(folder / "out") == before


@pytest.mark.parametrize("name", ["manifest.json", "evidence/done.json", "network.parquet", "evidence/checksums.json"])
def test_other_files_are_made_again(folder: Path, name: str) -> None:
    before = contents(folder / "out")
    (folder / "out" / name).write_bytes(b"")
    assert ("damaged", name) in faults(folder)
    if name == "evidence/checksums.json":
        (folder / "out/manifest.json").unlink()
    run(job_in(folder), HERE)
    assert contents(folder / "out") == before
    assert faults(folder) == []


def test_lost_evidence_is_encoded_again_where_it_is_needed(folder: Path) -> None:
    before = contents(folder / "out")
    (folder / "out/evidence/part-00001.parquet").unlink()
    (folder / "out/evidence/part-00002.parquet").write_bytes(b"half")
    assert run(job_in(folder), HERE).reused_parts == 4
    for part in (1, 2):
        (folder / f"out/posteriors/part-0000{part}.parquet").unlink()
    assert run(job_in(folder), HERE).reused_parts == 2
    assert contents(folder / "out") == before


@given(data=st.data())
def test_any_damage_is_named_and_undone(
    finished: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    shutil.copytree(finished, folder, dirs_exist_ok=True)
    out = folder / "out"
    names = sorted(name for name in contents(out) if name != "run.json")
    name = data.draw(st.sampled_from(names))
    content = (out / name).read_bytes()
    where = data.draw(st.integers(0, len(content) - 1))
    how = data.draw(st.sampled_from(["cut", "flip", "gone", "stray", "foreign"]))
    file, kind = out / name, "damaged"
    if how == "cut":
        file.write_bytes(content[:where])
    elif how == "flip":
        file.write_bytes(content[:where] + bytes([content[where] ^ 255]) + content[where + 1 :])
    elif how == "gone":
        file.unlink()
        kind = "missing"
    elif how == "stray":
        file, kind = file.with_name(f".{file.name}.0.tmp"), "unfinished"
        file.write_bytes(content)
    else:
        file, kind = out / "posteriors" / "copy.parquet", "foreign"
        file.write_bytes(content)
    assert (kind, str(file.relative_to(out))) in faults(folder)
    if kind != "unfinished":
        file.unlink(missing_ok=True)
    run(Job(**{**job_fields(folder), "overwrite": False}), HERE)
    if not name.startswith("evidence/") and name != "network.parquet":
        assert faults(folder) == []


def job_fields(folder: Path) -> dict[str, object]:
    job = job_in(folder)
    return {"network": job.network, "evidence": job.evidence, "output": job.output, "partition_rows": PART}


def test_runs_of_earlier_versions_have_no_checksums(folder: Path) -> None:
    out = folder / "out"
    record = json.loads((out / "manifest.json").read_text())
    del record["files"]
    for part in record["parts"]:
        del part["sha256"], part["statistics"]
    (out / "manifest.json").write_text(json.dumps(record))
    (out / "evidence/checksums.json").unlink()
    verified = verify(RunDirectory(out))
    assert (verified.files, verified.without_checksum, verified.faults) == (9, 9, ())
    assert run(job_in(folder), HERE).reused_parts == 4
    (out / "posteriors/part-00001.parquet").write_bytes(b"")
    found = verify(RunDirectory(out)).faults
    assert [fault.kind for fault in found] == ["damaged"]
    assert run(job_in(folder), HERE).reused_parts == 3


def test_the_command_names_what_is_wrong(folder: Path) -> None:
    out = folder / "out"
    whole = junctor_cli("verify", str(out))
    assert (whole.exit_code, whole.stderr) == (0, "")
    assert whole.stdout.startswith("16 files, ")
    (out / "posteriors/part-00001.parquet").write_bytes(b"")
    damaged = junctor_cli("verify", str(out))
    assert damaged.exit_code == 6
    assert "damaged posteriors/part-00001.parquet: found 0 bytes, expected" in damaged.stdout
    assert "error: " in damaged.stderr
    assert "1 file not as the run left" in damaged.stderr
    record = json.loads(junctor_cli("verify", str(out), "--json").stdout)
    assert Fault(**record["faults"][0]).file == "posteriors/part-00001.parquet"
    nothing = junctor_cli("verify", str(folder))
    assert nothing.exit_code == 6
    assert "no run here" in nothing.stderr
