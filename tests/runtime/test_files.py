"""Files that are whole or absent: what they may take the place of."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from helpers.command_line import junctor_cli
from junctor.evidence.files import refuse_target
from junctor.model.errors import InputError, RunError
from junctor.runs.export import export_csv
from junctor.runtime import files
from junctor.runtime.files import special_file, written_atomically
from junctor.runtime.progress import Silence

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe.csv"
    os.mkfifo(path)
    return path


def is_pipe(path: Path) -> bool:
    return stat.S_ISFIFO(path.lstat().st_mode)


def test_what_no_file_replaces(pipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, loop, file = tmp_path / "link", tmp_path / "loop", tmp_path / "file"
    link.symlink_to(pipe)
    loop.symlink_to(loop)
    file.touch()
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
    found = [special_file(path) for path in (pipe, link, tmp_path / "socket", Path("/dev/null"))]
    assert found == ["a pipe", "a pipe", "a socket", "a device"]
    assert [special_file(path) for path in (file, loop, tmp_path, tmp_path / "none", Path("a\0b"))] == [None] * 5


def test_links_of_devices_are_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As /dev/stdout is where it is redirected to a file.
    (tmp_path / "file").touch()
    (tmp_path / "stdout").symlink_to(tmp_path / "file")
    monkeypatch.setattr(files, "_DEVICES", tmp_path)
    assert [special_file(tmp_path / name) for name in ("stdout", "file")] == ["a device", None]


def test_a_pipe_stays_where_a_file_was_to_be(pipe: Path) -> None:
    with pytest.raises(RunError, match=r"pipe.csv: found a pipe, which a file would replace"), written_atomically(pipe):
        pytest.fail("written")
    with pytest.raises(RunError, match="found a pipe"):
        export_csv(pipe, [], Silence())
    with pytest.raises(InputError, match=r"--rejects .*pipe.csv: found a pipe"):
        refuse_target(str(pipe), "--rejects", ())
    assert is_pipe(pipe)
    assert [path.name for path in pipe.parent.iterdir()] == ["pipe.csv"]


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("n.bif", ["convert", "asia.bif", "PIPE"]),
        ("n.bif", ["learn", "asia.bif", "patients.csv", "--output", "PIPE"]),
        ("c.csv", ["counts", "asia.bif", "patients.csv", "--output", "PIPE"]),
        ("m.toml", ["map", "asia.bif", "patients.csv", "--output", "PIPE"]),
        ("r.csv", ["run", "asia.bif", "patients.csv", "--output", "OUT", "--rejects", "PIPE"]),
    ],
    ids=lambda each: each[0],
)
def test_commands_refuse_a_pipe_to_write_to(tmp_path: Path, name: str, command: list[str]) -> None:
    os.mkfifo(tmp_path / name)
    places = {"PIPE": tmp_path / name, "OUT": tmp_path / "out"}
    places |= {file: DATA / file for file in ("asia.bif", "patients.csv")}
    done = junctor_cli(*(str(places.get(word, word)) for word in command))
    assert done.exit_code == 3, done.output
    assert "found a pipe, which a file would replace" in done.output
    assert is_pipe(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
