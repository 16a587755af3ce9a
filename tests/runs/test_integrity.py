"""Damaged, missing and foreign files of finished and of interrupted runs."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from pathlib import Path

import pytest
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from hypothesis import given, settings
from hypothesis import strategies as st
from junctor.runs.integrity import Fault, verify
from junctor.runs.run import run
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
    damaged = [(each.file, each.detail) for each in faults if each.kind == "damaged"]
    assert ("manifest.json", "not a manifest: the same command again makes a new one") in damaged


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
    (folder / "out/evidence/part-00001.arrow").unlink()
    (folder / "out/evidence/part-00002.arrow").write_bytes(b"half")
    assert run(job_in(folder), HERE).reused_parts == 4
    for part in (1, 2):
        (folder / f"out/posteriors/part-0000{part}.parquet").unlink()
    assert run(job_in(folder), HERE).reused_parts == 2
    assert contents(folder / "out") == before


@settings(max_examples=60)
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
