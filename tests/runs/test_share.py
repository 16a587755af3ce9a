"""Array jobs: shares of one run, side by side, killed, missing, and finished."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import junctor
import pytest
from helpers.command_line import junctor_cli
from helpers.signals import COMMAND
from hypothesis import given
from hypothesis import strategies as st
from junctor.generate import evidence_table, random_network, sample
from junctor.model.errors import InputError, RunError
from junctor.runs.integrity import verify
from junctor.runs.run import run
from junctor.runs.share import Share, finish, run_share
from junctor.runs.storage import RunDirectory
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.progress import Silence
from pyarrow import parquet

HERE = Resources(workers=0)
ROWS, PART = 10_000, 500


@given(st.integers(1, 20), st.integers(0, 100))
def test_every_partition_has_one_share(of: int, partition: int) -> None:
    shares = [Share.parse(f"{number}/{of}") for number in range(1, of + 1)]
    assert [share.has(partition) for share in shares].count(True) == 1
    assert [str(share) for share in shares] == [f"{number}/{of}" for number in range(1, of + 1)]


@pytest.mark.parametrize("text", ["", "3", "0/4", "5/4", "1/0", "a/b", "1/2/3", "-1/4"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(InputError, match="expected a number and how many"):
        Share.parse(text)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    network = random_network(25, seed=5)
    junctor.write_network(network, folder / "net.bif")
    table = evidence_table(network, sample(network, ROWS), observed=0.3, pattern="missing", missing=0.01)
    parquet.write_table(table, folder / "evidence.parquet")
    run(job_in(folder, folder / "whole"), HERE)
    return folder


def job_in(folder: Path, out: Path, **changes: Any) -> Job:
    names = (str(folder / "net.bif"), str(folder / "evidence.parquet"), str(out))
    return Job(*names, **{"partition_rows": PART, "case_id": "case_id", **changes})


def share(job: Job, text: str) -> Any:
    return run_share(job, Share.parse(text), HERE, Silence())


def parts_of(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "posteriors").glob("part-*.parquet")}


def test_shares_one_after_the_other(inputs: Path, tmp_path: Path) -> None:
    job = job_in(inputs, tmp_path / "out")
    done = [share(job, f"{number}/3") for number in (2, 3, 1)]
    assert [each.partitions for each in done] == [7, 6, 7]
    assert sum(each.rows for each in done) == ROWS
    assert not job.directory.manifest.exists()
    assert share(job, "2/3").reused == 7
    manifest = finish(job.directory, Silence())
    assert (manifest.rows, len(manifest.parts)) == (ROWS, 20)
    assert parts_of(tmp_path / "out") == parts_of(inputs / "whole")
    whole = json.loads((inputs / "whole/manifest.json").read_text())
    assert json.loads((tmp_path / "out/manifest.json").read_text())["parts"] == whole["parts"]
    assert verify(job.directory).faults == ()
    assert finish(job.directory, Silence()).parts == manifest.parts


def test_missing_parts_are_named(inputs: Path, tmp_path: Path) -> None:
    job = job_in(inputs, tmp_path / "out")
    with pytest.raises(RunError, match="no run here"):
        finish(RunDirectory(tmp_path / "out"), Silence())
    share(job, "1/4")
    share(job, "3/4")
    (tmp_path / "out/posteriors/part-00002.parquet").write_bytes(b"")
    missing = r"10 of 20 parts are missing: part-00001, part-00003, .*; 1 of 20 parts are damaged: part-00002 "
    with pytest.raises(RunError, match=missing):
        finish(job.directory, Silence())
    assert (tmp_path / "out/posteriors/part-00002.parquet").exists()
    # A plain run answers what is left.
    assert run(job, HERE).reused_parts == 9
    assert parts_of(tmp_path / "out") == parts_of(inputs / "whole")


def test_a_part_without_its_statistics_stays(inputs: Path, tmp_path: Path) -> None:
    job = job_in(inputs, tmp_path / "out", partition_rows=2_500)
    run(job, HERE)
    (tmp_path / "out/statistics/part-00001.json").unlink()
    (tmp_path / "out/statistics/part-00003.json").write_text("{}")
    answers = parts_of(tmp_path / "out")
    refused = junctor_cli("finalise", str(tmp_path / "out"))
    assert refused.exit_code == 6
    assert "2 of 4 parts are damaged: part-00001 (statistics/part-00001.json is missing), part-00003" in refused.stderr
    assert "run these again" in refused.stderr
    assert "made again" not in refused.stderr
    assert parts_of(tmp_path / "out") == answers
    share(job, "2/4")
    share(job, "4/4")
    assert finish(job.directory, Silence()).rows == ROWS
    assert parts_of(tmp_path / "out") == answers


def test_more_shares_than_partitions(inputs: Path, tmp_path: Path) -> None:
    job = job_in(inputs, tmp_path / "out", partition_rows=7_500)
    assert [share(job, f"{number}/5").partitions for number in range(1, 6)] == [1, 1, 0, 0, 0]
    assert finish(job.directory, Silence()).rows == ROWS


def test_another_job_does_not_come_between(inputs: Path, tmp_path: Path) -> None:
    job = job_in(inputs, tmp_path / "out")
    other = job.but(partition_rows=250, overwrite=True)
    directory = job.directory
    share(job, "1/20")
    with directory.preparing(lambda: None), directory.shared() as alone:
        assert alone
        with pytest.raises(RunError, match="in use by another junctor"):
            run(job, HERE)
        with pytest.raises(RunError, match="in use by another junctor"):
            finish(directory, Silence())
    with directory.shared():
        # Not alone: neither --overwrite nor a corrected command removes what others work at.
        with pytest.raises(RunError, match="holds another run"):
            share(other, "2/20")
        assert share(job, "2/20").rows == PART
    with directory.locked(), pytest.raises(RunError, match="in use by another junctor"):
        share(job, "3/20")
    assert share(other, "1/20").rows == 500
    assert directory.read_spec().partition_rows == 250


def test_evidence_is_read_once_and_others_wait(inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with (out / ".preparing.lock").open("a+") as held:
        # As another task that reads the evidence has it.
        fcntl.flock(held, fcntl.LOCK_EX)
        processes = start(inputs, out, range(1, 4), 3)
        stderr = processes[0].stderr
        assert stderr is not None
        assert any("waiting for another part to read the evidence" in line for line in iter(stderr.readline, ""))
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 3, said
    assert sum("reading the evidence" in each for each in said) == 1
    done = junctor_cli("finalise", str(out), "--csv", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rows"] == ROWS
    assert parts_of(out) == parts_of(inputs / "whole")
    assert len((out / "posteriors.csv").read_text().splitlines()) == 1 + ROWS


def start(inputs: Path, out: Path, numbers: Any, of: int) -> list[subprocess.Popen[str]]:
    words = [str(inputs / "net.bif"), str(inputs / "evidence.parquet"), "-o", str(out), "--case-id", "case_id"]
    words += ["--partition-rows", str(PART), "--workers", "0"]
    return [
        subprocess.Popen([*COMMAND, "run", *words, "--part", f"{n}/{of}"], stderr=subprocess.PIPE, text=True)
        for n in numbers
    ]


@pytest.mark.parametrize("when", ["posteriors/part-*", pytest.param("evidence/part-*", marks=pytest.mark.slow)])
def test_killed_shares_are_run_again(inputs: Path, tmp_path: Path, when: str) -> None:
    out = tmp_path / "out"
    processes = start(inputs, out, range(1, 4), 3)
    while not list(out.glob(when)):
        time.sleep(0.005)
    # Whoever is at it: the one that reads, or one that answers.
    for process in processes[:2]:
        process.send_signal(signal.SIGKILL)
    for process in processes:
        process.communicate()
    assert processes[2].returncode == 0
    missing = junctor_cli("finalise", str(out))
    assert missing.exit_code == 6
    assert "parts are missing" in missing.stderr
    for process in start(inputs, out, (1, 2), 3):
        process.communicate()
        assert process.returncode == 0
    assert junctor_cli("finalise", str(out)).exit_code == 0
    assert parts_of(out) == parts_of(inputs / "whole")
    assert not [name for name in os.listdir(out / "posteriors") if name.endswith(".tmp")]


def test_options_that_do_not_belong_together(inputs: Path, tmp_path: Path) -> None:
    words = ["run", str(inputs / "net.bif"), str(inputs / "evidence.parquet"), "-o", str(tmp_path / "out")]
    assert "junctor finalise" in junctor_cli(*words, "--part", "1/2", "--csv").stderr
    assert "scheduled elsewhere" in junctor_cli(*words, "--part", "1/2", "--prefect").stderr
    wrong = junctor_cli(*words, "--part", "3/2")
    assert (wrong.exit_code, "1/16 to 16/16" in wrong.stderr) == (3, True)
    shown = junctor_cli(*words, "--case-id", "case_id", "--part", "2/2", "--partition-rows", "5000", "--json", "-q")
    record = json.loads(shown.stdout)
    assert (record["part"], record["partitions"], record["rows"]) == ("2/2", 1, 5_000)
    assert "1 of 2 parts are missing: part-00000" in junctor_cli("finalise", str(tmp_path / "out")).stderr


def test_what_is_made_of_all_answers_is_for_the_end(inputs: Path, tmp_path: Path) -> None:
    out, file = tmp_path / "out", tmp_path / "bad.csv"
    words = ["run", str(inputs / "net.bif"), str(inputs / "evidence.parquet"), "-o", str(out), "--part", "1/1"]
    for option in (["--fail-if", "invalid > 0"], ["--rejects", str(file)], ["--report"]):
        refused = junctor_cli(*words, *option)
        assert refused.exit_code == 2
        assert f"Invalid value for {option[0]}: give it to `junctor finalise`" in " ".join(refused.stderr.split())
    assert not out.exists()
    assert junctor_cli(*words, "--case-id", "case_id", "--no-report", "-q").exit_code == 0
    for wrong in (["--rejects", "bad.xlsx"], ["--rejects", str(out / "run.json")], ["--rejects", ""]):
        assert junctor_cli("finalise", str(out), *wrong).exit_code == 3
    # What the run has read is not known any more: no file is replaced but one of rejected rows, or an empty one.
    evidence = inputs / "evidence.parquet"
    (tmp_path / "evidence.csv").write_text("row,age,status\n1,2,3\n")
    for theirs in (evidence, tmp_path / "evidence.csv"):
        before = theirs.read_bytes()
        refused = junctor_cli("finalise", str(out), "--rejects", str(theirs))
        assert (refused.exit_code, "may be the evidence: name another file" in refused.stderr) == (3, True)
        assert theirs.read_bytes() == before
    unknown = junctor_cli("finalise", str(out), "--csv", "--fail-if", "missing(nobody) > 0")
    assert (unknown.exit_code, "nobody" in unknown.stderr) == (3, True)
    assert not (out / "manifest.json").exists()
    assert not (out / "posteriors.csv").exists()
    file.touch()
    words = ["finalise", str(out), "--rejects", str(file), "--report", "-q"]
    # Where no row is without an answer, the file of those is not named.
    crossed = junctor_cli(*words, "--fail-if", "ok > 1", "--fail-if", "invalid > 0")
    assert crossed.exit_code == 7
    assert f"{ROWS:,} rows" in crossed.stdout
    assert "ok > 1: found" in crossed.stderr
    assert "invalid > 0" not in crossed.stderr
    assert (out / "report.html").exists()
    assert junctor_cli(*words).exit_code == 0
    for _ in range(2):
        assert junctor_cli("finalise", str(out), "--rejects", str(tmp_path / "bad.parquet"), "-q").exit_code == 0
    assert file.read_text().startswith('"row","case_id","status","reason"')
    assert verify(RunDirectory(out)).faults == ()
    assert junctor_cli("finalise", str(out), "--fail-if", "invalid > 0").exit_code == 0
    unknown = junctor_cli("finalise", str(out), "--fail-if", "missing(nobody) > 0")
    assert (unknown.exit_code, "nobody" in unknown.stderr) == (3, True)
