"""Evidence files on disk: the files of a path, their formats, and access to their bytes.

Main functions: `files_of`, `format_of`, `open_bytes`, `explained`; called by the readers of all formats.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

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


def files_of(folder: Path) -> list[Path]:
    """Return all files of a folder in the order of their paths, without names that start with "_" or "."."""
    files = []
    # Such names are markers (_SUCCESS) and leftovers of other tools.
    for directory, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(("_", "."))]
        files += [Path(directory, name) for name in names if not name.startswith(("_", "."))]
    return sorted(files, key=lambda path: path.relative_to(folder).parts)


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
        said = error.strerror if isinstance(error, OSError) else None
        raise EvidenceError(f"cannot be read: {said or _first_line(error)}", place) from error
    except (pa.ArrowException, ValueError, KeyError, IndexError, OverflowError) as error:
        raise EvidenceError(f"damaged, or not of its format: {_first_line(error)}", place) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _raise(error: OSError) -> None:
    # os.walk skips unreadable folders unless told otherwise, and rows would be missing silently.
    raise error
