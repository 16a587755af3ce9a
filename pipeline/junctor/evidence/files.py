"""Evidence files on disk: the files of a path, their formats, and access to their bytes.

Main functions: `input_files`, `format_of`, `open_bytes`, `explained`; called by the readers of all formats.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, cast
from urllib.parse import unquote

import pyarrow as pa

from junctor.model.errors import EvidenceError, Place, nearest

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
_FIRST_BYTES = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow"}
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

    folder: Path | None
    paths: tuple[Path, ...]
    pattern: tuple[str, ...] = ()

    def name_of(self, path: Path) -> str:
        """Return the name of a file in the folder, with slashes."""
        return path.name if self.folder is None else path.relative_to(self.folder).as_posix()

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


def format_of(path: Path) -> str:
    """Return the format of a file by its ending, else by its first bytes; raises EvidenceError if neither says."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    # The ending before `.gz` names the format.
    gzipped = suffixes[-1:] == [".gz"]
    ending = "".join(suffixes[-2:-1] if gzipped else suffixes[-1:])
    format = _ENDINGS.get(ending)
    if format is None and not gzipped:
        with path.open("rb") as file:
            start = file.read(8)
        format = next((name for first, name in _FIRST_BYTES.items() if start.startswith(first)), None)
    if format is None or (gzipped and format not in _GZIPPED):
        raise EvidenceError(
            f"cannot tell the format from the ending {''.join(path.suffixes[-2:])!r}: expected one of "
            f"{' '.join(_ENDINGS)} (.csv, .tsv and .evid also with .gz); --evidence-format "
            "names it otherwise",
            Place(str(path)),
        )
    return format


def input_files(source: str | os.PathLike[str]) -> InputFiles:
    """Return the files of a file, folder or glob, without names that start with "_" or "."; raises EvidenceError.

    A folder and a glob have their files in the order of their paths, and one at the least.
    """
    path = Path(source)
    with explained(path):
        # A file may be called like a glob.
        if not _WILD.isdisjoint(str(source)) and not path.exists():
            return _matching(path)
        if not path.is_dir():
            return InputFiles(None, (path,))
        paths = sorted(_files_below(path), key=lambda file: file.relative_to(path).parts)
    if not paths:
        raise EvidenceError("the folder has no evidence files", Place(str(path)))
    return InputFiles(path, tuple(paths))


def _matching(glob: Path) -> InputFiles:
    # The folder of `in/date=2026-11-*/*.csv` is `in`: folders that are columns are not of its own name.
    fixed = [_WILD.isdisjoint(part) and "=" not in part for part in glob.parts]
    depth = fixed.index(False)
    folder = glob
    while len(folder.parts) > depth:
        folder = folder.parent
    found: set[Path] = set()
    for path in folder.glob("/".join(glob.parts[depth:])):
        if not _is_hidden(path.relative_to(folder).parts):
            found.update(_files_below(path) if path.is_dir() else [path])
    if not found:
        raise EvidenceError("no file has such a name", Place(str(glob)))
    paths = tuple(sorted(found, key=lambda file: file.relative_to(folder).parts))
    return InputFiles(folder, paths, glob.parts[depth:])


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


def _files_below(folder: Path) -> Iterator[Path]:
    # Such names are markers (_SUCCESS) and leftovers of other tools.
    for directory, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not _is_hidden([name])]
        yield from (Path(directory, name) for name in names if not _is_hidden([name]))


def _is_hidden(names: Sequence[str]) -> bool:
    return any(name.startswith(("_", ".")) for name in names)


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading, gzipped if its name says so."""
    if path.suffix.lower() == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    return path.open("rb")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Context manager: turn errors of reading a file into an EvidenceError that names it."""
    place = Place(str(path))
    try:
        yield
    except EvidenceError:
        raise
    except FileNotFoundError as error:
        raise EvidenceError("no such file or folder", place) from error
    except (OSError, EOFError, zlib.error) as error:
        raise EvidenceError(f"cannot be read: {_first_line(error)}", place) from error
    except (pa.ArrowException, ValueError, KeyError, IndexError, OverflowError) as error:
        raise EvidenceError(f"damaged, or not of its format: {_first_line(error)}", place) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _raise(error: OSError) -> None:
    # os.walk skips unreadable folders unless told otherwise, and rows would be missing silently.
    raise error
