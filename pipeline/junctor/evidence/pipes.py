"""Evidence from standard input and pipes, which can be read once: kept in a temporary file, for digest and rows.

Main function: `spooled`; called by `junctor.evidence.read`.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import threading
import zlib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from junctor.evidence.files import FIRST_BYTES
from junctor.model.errors import EvidenceError, Place
from junctor.runtime.remote import AnyPath, RemotePath, location

STDIN = ("-", "/dev/stdin", "/dev/fd/0")
_BLOCK = 2**20
# Of the free space of the temporary folder, as tables that exceed the memory take.
_SHARE = 0.5
_LOCK = threading.Lock()


def spooled(source: str | os.PathLike[str] | RemotePath) -> AnyPath:
    """Return the path of evidence: of a copy for `-`, `/dev/stdin` and pipes, which are read to their end.

    A pipe is read once in a process; its copy goes when the process ends. Raises EvidenceError, also for more bytes
    than half of what is free in the temporary folder.
    """
    path = location(source)
    if isinstance(path, RemotePath):
        return path
    name = os.fspath(path)
    if name not in STDIN and not _is_pipe(path):
        return path
    with _LOCK:
        return _copy("-" if name in STDIN else name)


def is_copy(path: AnyPath) -> bool:
    """Return True for the copy of a pipe: a file of this machine, for this process and those that it starts."""
    return bool(_folder.cache_info().currsize) and path.parent == Path(_folder().name)


def _is_pipe(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        # Whoever reads it says what is wrong.
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode) or path.parent == Path("/dev/fd")


@cache
def _folder() -> TemporaryDirectory[str]:
    # Kept, since it goes with its last reference.
    return TemporaryDirectory(prefix="junctor-evidence-")


@cache
def _copy(name: str) -> Path:
    folder = Path(_folder().name)
    called = "stdin" if name == "-" else Path(name).name
    temporary = folder / f".{called}"
    place = Place("standard input" if name == "-" else name)
    try:
        with _opened(name, place) as source, temporary.open("wb") as target:
            _transfer(source, target, int(_SHARE * shutil.disk_usage(folder).free), place)
        with temporary.open("rb") as file:
            ending = _ending(file.read(_BLOCK))
    except OSError as error:
        raise EvidenceError(f"cannot be read: {error.strerror or error}", place) from error
    if not temporary.stat().st_size:
        raise EvidenceError("it is empty: nothing came through the pipe", place)
    # Two pipes may have one name, in different folders.
    number = sum(1 for _ in folder.iterdir())
    return temporary.rename(folder / f"{called}{'' if number == 1 else f'-{number}'}{ending}")


def _opened(name: str, place: Place) -> IO[bytes]:
    if name != "-":
        return open(name, "rb")
    if sys.stdin is not None and sys.stdin.isatty():
        raise EvidenceError("it is the keyboard: expected a pipe, as in `program | junctor run NETWORK -`", place)
    return open(0, "rb", closefd=False)


def _transfer(source: IO[bytes], target: IO[bytes], most: int, place: Place) -> None:
    while block := source.read(_BLOCK):
        most -= len(block)
        if most < 0:
            raise EvidenceError(
                "it takes more than half of what is free in the temporary folder: write it to a file", place
            )
        target.write(block)


def _ending(start: bytes) -> str:
    """Return the ending of a file by its first bytes; text is CSV unless its first line has more tabs than commas."""
    if start.startswith(b"\x1f\x8b"):
        try:
            return _ending(zlib.decompressobj(wbits=31).decompress(start, _BLOCK)) + ".gz"
        except zlib.error:
            # Reading it says what is wrong.
            return ".csv.gz"
    format = next((name for first, name in FIRST_BYTES.items() if start.startswith(first)), None)
    header = start.lstrip(b"\r\n").split(b"\n", 1)[0]
    return f".{format}" if format else ".tsv" if header.count(b"\t") > header.count(b",") else ".csv"
