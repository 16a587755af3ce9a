from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from junctor.model.errors import RunError
from junctor.runs.storage import RunDirectory, RunSpec
from junctor.runtime.files import io_errors_for, write_json, written_atomically

SPEC = RunSpec("n1", "e1", "posteriors", ("a", "b"), "double", 100, None, False, False, "0.1.0")


def break_while_writing(path: Path) -> None:
    with written_atomically(path) as temporary:
        temporary.write_text("half")
        raise KeyError


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "x"
    with pytest.raises(KeyError):
        break_while_writing(path)
    assert list(path.parent.iterdir()) == []
    with written_atomically(path) as temporary:
        assert temporary.parent == path.parent
        temporary.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_is_explained_and_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "x", {"old": 1})

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match="no space left: free some and run the same command again"):
        write_json(tmp_path / "x", {"new": 1})
    assert json.loads((tmp_path / "x").read_text()) == {"old": 1}
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


def test_other_refusals_name_the_path() -> None:
    with pytest.raises(RunError, match="/somewhere: Permission denied"), io_errors_for(Path("/somewhere")):
        raise OSError(errno.EACCES, "Permission denied")


def test_claim_writes_the_spec_and_knows_it_again(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with pytest.raises(RunError, match="no run here"):
        directory.read_spec()
    directory.claim(SPEC)
    assert directory.read_spec() == SPEC
    directory.claim(SPEC)
    directory.claim(SPEC, overwrite=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network_digest": "n2"}, "network_digest was 'n1', now 'n2'"),
        ({"evidence_digest": "e2"}, "evidence_digest was 'e1', now 'e2'"),
        ({"targets": None}, "targets was a,b, now not set"),
        ({"precision": "single", "partition_rows": 7}, "precision was 'double', now 'single'; partition_rows was 100"),
        ({"junctor_version": "0.2.0"}, "junctor_version was '0.1.0', now '0.2.0'"),
    ],
)
def test_another_run_is_refused_with_what_differs(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    directory = RunDirectory(tmp_path)
    directory.claim(SPEC)
    write_json(directory.answers_part("posteriors", 0), {})
    with pytest.raises(RunError, match=message) as caught:
        directory.claim(replace(SPEC, **changes))  # type: ignore[arg-type]
    assert "--output" in str(caught.value)
    assert "--overwrite" in str(caught.value)
    assert directory.read_spec() == SPEC


@pytest.mark.parametrize(
    "name", ["posteriors/part-00000.parquet", "mpe/part-00007.parquet", "manifest.json", "mpe.csv"]
)
def test_a_run_without_answers_protects_nothing(tmp_path: Path, name: str) -> None:
    directory, other = RunDirectory(tmp_path), replace(SPEC, ignore_extra=True)
    directory.claim(SPEC)
    encoded = [directory.network, directory.ingested, directory.evidence_part(0)]
    for path in encoded:
        write_json(path, {})
    directory.claim(other)
    assert directory.read_spec() == other
    assert not any(path.exists() for path in encoded)
    write_json(tmp_path / name, {})
    with pytest.raises(RunError, match="ignore_extra was True, now False"):
        directory.claim(SPEC)
    assert (tmp_path / name).exists()


def test_overwrite_removes_the_other_run_and_nothing_else(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.claim(SPEC)
    mine = [directory.evidence_part(0), directory.answers_part("posteriors", 3), directory.answers_part("mpe", 0)]
    mine += [
        tmp_path / "evidence" / "part-00001.parquet",
        directory.network,
        directory.manifest,
        directory.ingested,
        directory.csv("posteriors"),
    ]
    theirs = [tmp_path / "notes.txt", tmp_path / "posteriors" / "plot.png"]
    for path in [*mine, *theirs]:
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    other = replace(SPEC, precision="single")
    directory.claim(other, overwrite=True)
    assert directory.read_spec() == other
    assert not any(path.exists() for path in mine)
    assert all(path.exists() for path in theirs)


def test_overwrite_goes_on_with_the_same_run(tmp_path: Path) -> None:
    # Else an interrupted run with --overwrite could never be finished by the same command.
    directory = RunDirectory(tmp_path)
    directory.claim(SPEC, overwrite=True)
    write_json(directory.answers_part("posteriors", 0), {})
    directory.claim(SPEC, overwrite=True)
    assert directory.answers_part("posteriors", 0).exists()


@pytest.mark.parametrize("name", ["evidence/mine.csv", "posteriors/part-00000.parquet", "manifest.json"])
def test_files_that_are_no_run_are_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(RunError, match=r"but no run\.json"):
            RunDirectory(tmp_path).claim(SPEC, overwrite)


def test_empty_folders_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    RunDirectory(tmp_path).claim(SPEC)
    assert RunDirectory(tmp_path).read_spec() == SPEC


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format_version": 99}', '{"format_version": 1}', "\xff"])
def test_a_damaged_spec_is_refused_and_can_be_overwritten(tmp_path: Path, text: str) -> None:
    directory = RunDirectory(tmp_path)
    directory.spec_file.write_text(text, encoding="latin-1")
    with pytest.raises(RunError, match=r"run\.json"):
        directory.claim(SPEC)
    directory.claim(SPEC, overwrite=True)
    assert directory.read_spec() == SPEC


def test_one_at_a_time(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    with (
        directory.locked(),
        pytest.raises(RunError, match=f"in use by another junctor .process {os.getpid()}."),
        directory.locked(),
    ):
        pass
    with directory.locked():
        pass


def test_a_killed_process_leaves_no_lock_and_no_litter(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from junctor.runs.storage import *\n"
        "from junctor.runtime.files import written_atomically\n"
        "d = RunDirectory(Path(sys.argv[1]))\n"
        "with d.locked(), written_atomically(d.evidence_part(0)) as t:\n"
        "    t.write_text('half'); print('here', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        directory = RunDirectory(tmp_path)
        with pytest.raises(RunError, match=str(process.pid)), directory.locked():
            pass
        assert len(list((tmp_path / "evidence").iterdir())) == 1
        process.send_signal(signal.SIGKILL)
    with directory.locked():
        assert list((tmp_path / "evidence").iterdir()) == []


@pytest.mark.parametrize("name", ["link", "link/out"])
def test_a_link_to_nothing_is_told_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "unmounted")
    with pytest.raises(RunError, match=r"link is a link to .*unmounted, which is not there"):
        RunDirectory(tmp_path / name).locked().__enter__()
    (tmp_path / "unmounted").mkdir()
    with RunDirectory(tmp_path / name).locked():
        assert (tmp_path / "unmounted").exists()


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(RunError, match="is a file: name a directory"), RunDirectory(tmp_path / "x").locked():
        pass
