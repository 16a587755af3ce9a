"""Runs whose workers are killed, whose directory is removed, or whose disk is full."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import junctor
import pytest
from helpers.files import ASIA
from helpers.signals import COMMAND, workers_of
from junctor.generate import evidence_table, random_network, sample
from junctor.model.errors import RunError
from junctor.runs.run import run
from junctor.runs.storage import RunDirectory
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.files import written_atomically
from pyarrow import parquet

# Some seconds on one core.
ROWS, PART = 12_000, 300


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    network = random_network(25, seed=5)
    junctor.write_network(network, folder / "net.bif")
    table = evidence_table(network, sample(network, ROWS), observed=0.3, pattern="missing", missing=0.01)
    parquet.write_table(table, folder / "evidence.parquet")
    return folder


def command(inputs: Path, out: Path, *more: str) -> list[str]:
    words = ["run", str(inputs / "net.bif"), str(inputs / "evidence.parquet"), "-o", str(out), "--case-id", "case_id"]
    return [*COMMAND, *words, "--no-prefect", "--partition-rows", str(PART), *more]


def test_a_killed_worker_leaves_no_unfinished_file(inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    killed = False
    with subprocess.Popen(command(inputs, out, "--workers", "2"), stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not killed:
            time.sleep(0.001)
            unfinished = next(iter(out.glob("posteriors/.*.tmp")), None)
            workers = workers_of(process)
            if unfinished is not None and workers:
                workers[0].send_signal(signal.SIGKILL)
                killed = True
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 0, said
    assert killed
    assert (out / "manifest.json").exists()
    assert not list(out.rglob("*.tmp"))
    names = (str(inputs / "net.bif"), str(inputs / "evidence.parquet"), str(tmp_path / "whole"))
    whole = Job(*names, case_id="case_id", partition_rows=PART)
    run(whole, Resources(workers=0))
    found, expected = (
        {path.name: path.read_bytes() for path in (folder / "posteriors").iterdir()}
        for folder in (out, whole.directory.path)
    )
    assert found == expected


@pytest.mark.parametrize("incremental", [False, True])
def test_a_mark_comes_after_all_that_it_lists(
    inputs: Path, tmp_path: Path, incremental: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut leaves behind: content is synced before its name, and names before the mark that lists them."""
    replace, fsync = os.replace, os.fsync
    synced, unsynced, marks = set[str](), set[Path](), list[Path]()

    def watched_sync(descriptor: int) -> None:
        fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.add(str(path))
        # A copy: other threads write other files meanwhile.
        unsynced.difference_update([each for each in tuple(unsynced) if each.parent == path])

    def watched_replace(source: Path, target: Path) -> None:
        assert str(Path(source).absolute()) in synced
        replace(source, target)
        path = Path(target).absolute()
        if path.name in ("done.json", "manifest.json"):
            folder = path.parent
            assert not [each for each in tuple(unsynced) if folder in each.parents]
            marks.append(path)
        unsynced.add(path)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(os, "replace", watched_replace)
    out = tmp_path / "out"
    job = Job(str(inputs / "net.bif"), str(inputs / "evidence.parquet"), str(out), case_id="case_id")
    run(job.but(partition_rows=4000, incremental=incremental), Resources(workers=0))
    assert [path.name for path in marks] == ["done.json", "manifest.json"]
    assert len([path for path in synced if path.endswith(".tmp")]) > 6


@pytest.mark.parametrize(
    ("when", "workers"),
    [
        ("evidence/part-*", "0"),
        pytest.param("posteriors/part-*", "2", marks=pytest.mark.slow),
        pytest.param("network.parquet", "0", marks=pytest.mark.slow),
        pytest.param("posteriors/part-*", "0", marks=pytest.mark.slow),
    ],
)
def test_a_directory_that_is_removed(inputs: Path, tmp_path: Path, when: str, workers: str) -> None:
    out = tmp_path / "out"
    words = command(inputs, out, "--workers", workers)
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not list(out.glob(when)):
            time.sleep(0.005)
        while out.exists():
            # A file that was written meanwhile keeps the folder.
            shutil.rmtree(out, ignore_errors=True)
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 6, said
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("error: ")
    again = subprocess.run([*words[:-1], "0"], stderr=subprocess.PIPE, text=True)
    assert again.returncode == 0, again.stderr


def can_mount() -> bool:
    done = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True)
    return done.returncode == 0


@pytest.mark.skipif(shutil.which("unshare") is None or not can_mount(), reason="needs a file system of its own")
@pytest.mark.parametrize("kib", [24, *(pytest.param(each, marks=pytest.mark.slow) for each in (4, 96))])
def test_a_full_disk_at_every_stage(tmp_path: Path, kib: int) -> None:
    (tmp_path / "evidence.csv").write_text("smoke,xray\n" + "yes,no\n,yes\nno,\nno,no\n" * 500)
    disk = tmp_path / "disk"
    disk.mkdir()
    command = f"run {ASIA} {tmp_path}/evidence.csv -o {disk}/out --no-prefect --partition-rows 100 --csv -q"
    quoted = f"{COMMAND[0]} -c '{COMMAND[2]}'"
    script = (
        f"mount -t tmpfs -o size={kib}k none {disk} && {{ {quoted} {command}; echo $? > {tmp_path}/full; }};"
        f"mount -o remount,size=64m {disk} && {quoted} {command} && {quoted} verify {disk}/out && "
        f"find {disk} -name '*.tmp' > {tmp_path}/unfinished"
    )
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "full").read_text() == "6\n", done.stderr
    assert "no space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "unfinished").read_text() == ""


def test_a_lock_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """As on a disk that is full from the start: the first bytes of a run are those of its lock."""
    (tmp_path / "evidence.csv").write_text("smoke\nyes\n")
    words = [*COMMAND, "run", ASIA, str(tmp_path / "evidence.csv"), "-o", str(tmp_path / "out"), "--no-prefect", "-q"]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        # Python takes what it could write of bytecode for all of it.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )
    assert done.returncode == 6
    assert done.stderr == f"error: {tmp_path}/out/.lock: File too large: mend that, or name another --output\n"


def test_a_directory_that_was_removed_is_not_made_anew(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "out")
    part = directory.answers_part("posteriors", 0)
    directory.path.mkdir()
    directory.spec_file.write_text("{}")
    directory.make_folder_of(part)
    with written_atomically(part, alone=False) as temporary:
        temporary.write_text("answers")
    shutil.rmtree(directory.path)
    with pytest.raises(RunError, match="removed while the run was under way"):
        directory.make_folder_of(part)
    # Between the one and the other.
    with pytest.raises(RunError, match="No such file"), written_atomically(part, alone=False) as temporary:
        temporary.write_text("answers")
    assert not directory.path.exists()
