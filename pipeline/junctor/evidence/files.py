"""Evidence files on disk: the files of a path, their formats, and access to their bytes.

Main functions: `input_files`, `format_of`, `open_bytes`, `explained`; called by the readers of all formats. And
`refuse_target`, for commands that write a file beside their inputs.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, cast
from urllib.parse import unquote

import pyarrow as pa

from junctor.model.errors import EvidenceError, InputError, Place, nearest
from junctor.runtime.remote import AnyPath, RemotePath, location, names_below, shown

FORMATS = ("csv", "tsv", "parquet", "arrow", "evid")

_ENDINGS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".parq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".evid": "evid",
}
# Arrow streams start with a continuation marker of four 0xFF bytes.
FIRST_BYTES = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow"}
# The other formats compress their columns themselves, and are read at any offset.
_GZIPPED = {"csv", "tsv", "evid"}
# Hive and Spark write null as this folder name.
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_WILD = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class InputFiles:
    """The files of an input: of a folder, of a glob, or a single one.

    folder: of which they are; names of its subfolders may be columns. None for a single file.
    paths: in the order of their names, folder by folder.
    pattern: of a glob, below the folder, one for each name.
    """

    folder: AnyPath | None
    paths: tuple[AnyPath, ...]
    pattern: tuple[str, ...] = ()

    def name_of(self, path: AnyPath) -> str:
        """Return the name of a file in the folder, with slashes."""
        return path.name if self.folder is None else "/".join(_below(path, self.folder))

    def covers(self, name: str) -> bool:
        """Return True if a file of this name would be among them if it was there."""
        return _matches(name.split("/"), self.pattern)


def checked_format(format: str | None) -> str | None:
    """Return the requested format, or None; raises EvidenceError for an unknown one."""
    if format is not None and format not in FORMATS:
        raise EvidenceError(
            f"unknown evidence format {format!r}{nearest(format, FORMATS)}: one of {', '.join(FORMATS)}"
        )
    return format


def format_of(path: AnyPath) -> str:
    """Return the format of a file by its ending, else by its first bytes; raises EvidenceError if neither says."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    # The ending before `.gz` names the format.
    gzipped = suffixes[-1:] == [".gz"]
    ending = "".join(suffixes[-2:-1] if gzipped else suffixes[-1:])
    format = _ENDINGS.get(ending)
    if format is None and not gzipped:
        with path.open("rb") as file:
            start = file.read(8)
        format = next((name for first, name in FIRST_BYTES.items() if start.startswith(first)), None)
    if format is None or (gzipped and format not in _GZIPPED):
        raise EvidenceError(
            f"cannot tell the format from the ending {''.join(path.suffixes[-2:])!r}: expected one of "
            f"{' '.join(_ENDINGS)} (.csv, .tsv and .evid also with .gz); --evidence-format "
            "names it otherwise",
            Place(str(path)),
        )
    return format


def input_files(source: str | os.PathLike[str] | RemotePath) -> InputFiles:
    """Return the files of a file, folder or glob, without names that start with "_" or "."; raises EvidenceError.

    A folder and a glob have their files in the order of their paths, and one at the least.
    """
    path = location(source)
    with explained(path):
        # A file may be called like a glob.
        if any(map(_is_wild, _names(path))) and not path.exists():
            return _matching(path)
        if not path.is_dir():
            return InputFiles(None, (path,))
        paths = sorted(_files_below(path), key=lambda file: file.parts)
    if not paths:
        raise EvidenceError("the folder has no evidence files", Place(str(path)))
    return InputFiles(path, tuple(paths))


def refuse_target(target: str, option: str, others: Iterable[str | None]) -> None:
    """Raise InputError for a file to write whose name is none, or that a command reads or writes for something else.

    target: file, as it was given.
    option: that names it.
    others: files, folders and globs of the command, as they were given; None for what was not.
    """
    path = location(target)
    if not target:
        raise InputError(f"{option} is empty, expected the name of a file")
    if isinstance(path, Path) and path.is_dir():
        raise InputError(f"{option} {target}: it is a folder, expected the name of a file")
    for source in filter(None, others):
        if _has(location(source), path):
            what = f"{shown(source)} of the same command, or a file of it"
            raise InputError(f"{option} {shown(target)}: that is {what}: name another file")


def _has(source: AnyPath, path: AnyPath) -> bool:
    """Return True if a path is a file, or would be one of the files of a folder or glob."""
    names = names_below(path, source)
    if names is None and any(map(_is_wild, _names(source))):
        folder, pattern = _split(source)
        names = names_below(path, folder)
        return names is not None and _matches(names, pattern) and not _is_hidden(names)
    return names is not None and not _is_hidden(names)


def _split(glob: AnyPath) -> tuple[AnyPath, tuple[str, ...]]:
    """Return the folder of a glob, and the pattern below it."""
    # The folder of `in/date=2026-11-*/*.csv` is `in`: folders that are columns are not of its own name.
    names = _names(glob)
    pattern = names[[_is_wild(name) or "=" in name for name in names].index(True) :]
    folder = glob
    for _ in pattern:
        folder = folder.parent
    return folder, pattern


def _matching(glob: AnyPath) -> InputFiles:
    folder, pattern = _split(glob)
    found: set[AnyPath] = set()
    for path in folder.glob("/".join(pattern)):
        if not _is_hidden(_below(path, folder)):
            found.update(_files_below(path) if path.is_dir() else [path])
    if not found:
        raise EvidenceError("no file has such a name", Place(str(glob)))
    return InputFiles(folder, tuple(sorted(found, key=lambda file: file.parts)), pattern)


def _names(path: AnyPath) -> tuple[str, ...]:
    # What comes first in a URL is the store.
    return path.parts[1:] if isinstance(path, RemotePath) else path.parts


def _is_wild(name: str) -> bool:
    return not _WILD.isdisjoint(name)


def _below(path: AnyPath, folder: AnyPath) -> tuple[str, ...]:
    return path.parts[len(folder.parts) :]


def _matches(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return True if a file is matched, or a folder that it is in."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(_matches(names[i:], pattern[1:]) for i in range(len(names)))
    return bool(names) and fnmatchcase(names[0], pattern[0]) and _matches(names[1:], pattern[1:])


def partition_columns(name: str) -> dict[str, str | None]:
    """Return the columns in the folders of a file: `date=2026-11-22/a.csv` has a column `date`; null is None."""
    pairs = (part.split("=", 1) for part in partition_of(name).split("/") if part)
    return {unquote(column): None if text == _NULL_FOLDER else unquote(text) for column, text in pairs}


def partition_of(name: str) -> str:
    """Return the folders `column=value` in the name of a file, as they are written."""
    return "/".join(part for part in name.split("/")[:-1] if part.find("=") > 0)


def _files_below(folder: AnyPath) -> Iterator[AnyPath]:
    if isinstance(folder, RemotePath):
        # By one listing.
        found = (path for path in folder.rglob("*") if path.is_file())
        yield from (path for path in found if not _is_hidden(_below(path, folder)))
        return
    # Such names are markers (_SUCCESS) and leftovers of other tools.
    for directory, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not _is_hidden([name])]
        yield from (Path(directory, name) for name in names if not _is_hidden([name]))


def _is_hidden(names: Sequence[str]) -> bool:
    return any(name.startswith(("_", ".")) for name in names)


def open_bytes(path: AnyPath) -> IO[bytes]:
    """Open a file for reading, gzipped if its name says so."""
    if path.suffix.lower() == ".gz":
        return cast(IO[bytes], gzip.open(path if isinstance(path, Path) else path.open(), "rb"))
    return path.open("rb")


@contextmanager
def explained(path: AnyPath) -> Iterator[None]:
    """Context manager: turn errors of reading a file into an EvidenceError that names it."""
    place = Place(str(path))
    try:
        yield
    except EvidenceError:
        raise
    except FileNotFoundError as error:
        raise EvidenceError("no such file or folder", place) from error
    except (OSError, EOFError, zlib.error) as error:
        said = error.strerror if isinstance(error, OSError) else None
        raise EvidenceError(f"cannot be read: {said or _first_line(error)}", place) from error
    except (pa.ArrowException, ValueError, KeyError, IndexError, OverflowError) as error:
        raise EvidenceError(f"damaged, or not of its format: {_first_line(error)}", place) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _raise(error: OSError) -> None:
    # os.walk skips unreadable folders unless told otherwise, and rows would be missing silently.
    raise error
