"""Evidence files on disk: the files of a path, their formats, and access to their bytes.

Main functions: `input_files`, `format_of`, `open_bytes`, `reading_errors_for`; called by the readers of all formats.
And `refuse_target`, for commands that write a file beside their inputs.
"""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from typing import IO, TypeAlias, cast
from urllib.parse import unquote

import pyarrow as pa

from junctor.model.errors import EvidenceError, InputError, Place, RunError, nearest
from junctor.runtime.files import Checksum, read_json, refused, special_file
from junctor.runtime.remote import AnyPath, RemotePath, lacking, location, names_below, shown

FORMATS = ("csv", "tsv", "text", "parquet", "arrow", "evid")
# Formats of text with columns, and what separates these where their first line has it; "text" has no habits.
SEPARATORS = {"csv": ",", "tsv": "\t", "text": None}
# Any number of blanks and tabs, as a separator.
BLANKS = " "

_ENDINGS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".txt": "text",
    ".cas": "text",
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
_GZIPPED = {*SEPARATORS, "evid"}
# Hive and Spark write null as this folder name.
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_WILD = frozenset("*?[")
# Of a dataset of `junctor ingest`: its record, written last, what was asked for, and the folder of its evidence.
DATASET_RECORD, DATASET_SPEC, DATASET_EVIDENCE = "ingest.json", "spec.json", "evidence"

# Size, time and inode of a file (0 in stores): equal for one that nothing has written to.
Stamp: TypeAlias = tuple[int, float, int]
Stamps: TypeAlias = Mapping[AnyPath, Stamp]
# Evidence as it is given: a file, folder or glob, or several.
Places: TypeAlias = str | os.PathLike[str] | RemotePath | tuple[AnyPath | str, ...]
# Of a file that was not there.
NO_STAMP: Stamp = (0, 0.0, 0)


@dataclass(frozen=True, slots=True)
class InputFiles:
    """The files of an input: of a folder, of a glob, or a single one.

    folder: of which they are; names of its subfolders may be columns. None for a single file.
    paths: in the order of their names, folder by folder.
    pattern: of a glob, below the folder, one for each name.
    recorded: of the files of a dataset of `junctor ingest`, their SHA-256 as its record has it.
    """

    folder: AnyPath | None
    paths: tuple[AnyPath, ...]
    pattern: tuple[str, ...] = ()
    recorded: Mapping[AnyPath, str] = field(default_factory=dict)

    @property
    def root(self) -> AnyPath:
        """The folder in which their names begin, also that of a single file."""
        return self.paths[0].parent if self.folder is None else self.folder

    def named_in(self, root: AnyPath) -> InputFiles:
        """Return them by their names in a folder that they lie in or below; as they are where they lie elsewhere."""
        between = names_below(self.root, root)
        if not between:
            return self
        folder, paths = self.root, self.paths
        for _ in between:
            folder = folder.parent
        if isinstance(root, Path):
            # Links and `..` may have led there, or the root is written in another way.
            folder, paths = root, tuple(Path(root, *between, *_below(path, self.root)) for path in paths)
        own = (self.paths[0].name,) if self.folder is None else ()
        recorded = {there: self.recorded[path] for path, there in zip(self.paths, paths, strict=True) if self.recorded}
        return InputFiles(folder, paths, (*map(escape, (*between, *own)), *self.pattern), recorded)

    def name_of(self, path: AnyPath) -> str:
        """Return the name of a file in the folder, with slashes."""
        return path.name if self.folder is None else "/".join(_below(path, self.folder))

    def refuse_damaged(self, path: AnyPath, digest: str) -> str:
        """Return the digest of a file; raises EvidenceError for one of a dataset that is not as it was written."""
        if (wanted := self.recorded.get(path, digest)) != digest:
            raise EvidenceError(_damaged(f"SHA-256 {digest[:12]}...", f"{wanted[:12]}..."), Place(str(path)))
        return digest

    def covers(self, name: str) -> bool:
        """Return True if a file of this name would be among them if it was there."""
        if self.folder is None:
            return name == self.paths[0].name
        return _matches(name.split("/"), self.pattern)


def checked_format(format: str | None) -> str | None:
    """Return the requested format, or None; raises EvidenceError for an unknown one."""
    if format is not None and format not in FORMATS:
        raise EvidenceError(
            f"unknown evidence format {format!r}{nearest(format, FORMATS)}: one of {', '.join(FORMATS)}"
        )
    return format


def checked_separator(separator: str | None) -> str | None:
    """Return what separates columns of text, of a character or its name; raises EvidenceError for what does not."""
    if separator is None:
        return None
    found = {"tab": "\t", "\\t": "\t", "blanks": BLANKS}.get(separator, separator)
    if len(found) != 1 or not found.isascii() or found.isalnum() or found in '"\r\n\0':
        raise EvidenceError(
            f"found the separator {separator!r}, expected a character such as ';', or one of tab and blanks (any "
            "number of blanks and tabs)"
        )
    return found


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
            f"{' '.join(_ENDINGS)} (text and .evid also with .gz); --evidence-format "
            "names it otherwise",
            Place(str(path)),
        )
    return format


def input_files(source: Places, check: bool = True) -> InputFiles:
    """Return the files of a file, folder or glob, without names that start with "_" or "."; raises EvidenceError.

    source: a folder and a glob have their files in the order of their paths, and one at the least; several, one after
        the other.
    check: whether pipes among them, and links that lead nowhere, are refused.
    """
    if isinstance(source, tuple):
        return _together([input_files(each, check) for each in source])
    found = _listed(location(source))
    if check and found.folder is not None:
        for each in found.paths:
            # Objects are what a listing says.
            if isinstance(each, Path):
                stamp_of(each)
    return found


def _together(found: Sequence[InputFiles]) -> InputFiles:
    """Return the files of several sources, each of them once, in the innermost folder that holds all."""
    paths = tuple(dict.fromkeys(path.absolute() for each in found for path in each.paths))
    folder = found[0].root.absolute()
    while any(names_below(path, folder) is None for path in paths) and folder != folder.parent:
        folder = folder.parent
    return InputFiles(folder, paths, recorded={path: sha for each in found for path, sha in each.recorded.items()})


def _listed(path: AnyPath) -> InputFiles:
    with reading_errors_for(path):
        # A file may be called like a glob.
        if any(map(_is_wild, _names(path))) and not path.exists():
            return _matching(path)
        if not path.is_dir():
            return InputFiles(None, (path,))
        if (parts := _dataset_parts(path)) is not None:
            return _checked(path / DATASET_EVIDENCE, parts)
        paths = sorted(_files_below(path), key=lambda file: file.parts)
    if not paths:
        raise EvidenceError("the folder has no evidence files", Place(str(path)))
    return InputFiles(path, tuple(paths))


def _dataset_parts(path: AnyPath) -> dict[str, Checksum] | None:
    """Return the files of evidence of a dataset of `junctor ingest`, by their names in it; None for another folder.

    Raises EvidenceError for one that is not finished, RunError for a record that is damaged.
    """
    record = read_json(path / DATASET_RECORD)
    if record is None:
        if (path / DATASET_SPEC).exists():
            raise EvidenceError("not finished: run the same `junctor ingest` again", Place(str(path)))
        return None
    with refused(lambda said: RunError(f"{path / DATASET_RECORD}: not the record of a dataset ({said}): restore it")):
        return {each["file"]: Checksum(each["bytes"], each["sha256"]) for each in record["parts"]}


def _checked(folder: AnyPath, parts: Mapping[str, Checksum]) -> InputFiles:
    """Return the files of a dataset; raises EvidenceError for one that is missing or of another size."""
    # By one listing, where a store would take a request for each.
    there = {path.parts: path for path in _files_below(folder)}
    found = []
    for name, expected in parts.items():
        path = folder.parent / name
        file = there.get(path.parts)
        size = 0 if file is None else file.stat().st_size
        if file is None or size != expected.bytes:
            raise EvidenceError(_damaged(f"{size:,} bytes", f"{expected.bytes:,}"), Place(str(path)))
        found.append(file)
    if not found:
        raise EvidenceError("the dataset has no evidence", Place(str(folder.parent)))
    return InputFiles(
        folder, tuple(found), recorded=dict(zip(found, (each.sha256 for each in parts.values()), strict=True))
    )


def _damaged(found: str, expected: str) -> str:
    return (
        f"not as it was ingested (found {found}, expected {expected}): the same `junctor ingest` makes it anew (of "
        "evidence that grows, --backfill of its partition)"
    )


def stamp_of(path: AnyPath) -> Stamp:
    """Return the stamp of a file; raises EvidenceError, also for what is no regular file: to open a pipe may wait."""
    with reading_errors_for(path):
        found = path.stat()
    if isinstance(found, os.stat_result) and not stat.S_ISREG(found.st_mode):
        raise EvidenceError(
            "found a pipe, socket or device, expected a file: move it away, or give it alone as the evidence",
            Place(str(path)),
        )
    return found.st_size, found.st_mtime, getattr(found, "st_ino", 0)


def refuse_changes(before: Stamps, now: Stamps) -> None:
    """Raise EvidenceError for the first file with another stamp than before, or with none before or now."""
    for path in (*before, *now):
        if before.get(path) != now.get(path):
            raise EvidenceError("was written to while it was read", Place(str(path)))


def refuse_target(target: str | AnyPath, option: str, others: Iterable[str | AnyPath | None]) -> None:
    """Raise InputError for a file to write without a name, that the command uses, or that is a pipe or device.

    target: file, as it was given.
    option: that names it.
    others: files, folders and globs of the command, as they were given; None for what was not.
    """
    if not target:
        raise InputError(f"{option} is empty, expected the name of a file")
    path = location(target)
    if isinstance(path, Path) and path.is_dir():
        raise InputError(f"{option} {target}: it is a folder, expected the name of a file")
    if (special := special_file(path)) is not None:
        raise InputError(f"{option} {target}: found {special}, which a file would replace: name a file")
    for source in (each for each in others if each):
        if any(_matches(*place) for place in _places_in(location(source), path)):
            what = f"{shown(source)} of the same command, or a file of it"
            raise InputError(f"{option} {shown(target)}: that is {what}: name another file")


def lists(
    source: str | os.PathLike[str] | RemotePath,
    directory: AnyPath,
    endings: Collection[str],
    folders: Collection[str] = (),
) -> bool:
    """Return True if files of a directory, which may be there or not, would be among those of a folder or glob.

    source: as of `input_files`.
    directory: absolute.
    endings: of its files.
    folders: names of folders in it; what else is in it may be the source, or be linked there.
    """
    path = location(source)
    if isinstance(path, Path) and path.is_file():
        return False
    return any(_may_list(*place, endings) for place in _places_in(path, directory, folders))


def _may_list(names: tuple[str, ...], pattern: tuple[str, ...], endings: Collection[str]) -> bool:
    """Return True if a pattern leads to files in a folder that end in one of the `endings`."""
    # Not so `data/**/*.csv`, where nothing in the folder ends so.
    ending = Path(pattern[-1]).suffix if pattern else ""
    return _matches(names, pattern) or (
        _may_hold(names, pattern) and (not ending or _is_wild(ending) or ending in endings)
    )


def _places_in(
    source: AnyPath, path: AnyPath, folders: Collection[str] = ()
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the names of a path below a folder, or that of a glob, and the pattern; also by links, but no hidden ones.

    folders: names of folders in the path; one that the source is in, or a link leads to, stands for the path.
    """
    for folder, inside, pattern in _reached(source):
        names, above = names_below(path, folder), names_below(folder, path)
        if above and above[0] in folders:
            yield inside, pattern
        elif names is not None and not _is_hidden(names):
            yield (*inside, *names), pattern


def _reached(source: AnyPath) -> Iterator[tuple[AnyPath, tuple[str, ...], tuple[str, ...]]]:
    """Yield the folder of a folder or glob, and links to folders in it: each with its names there, and the pattern."""
    sources = [(source, tuple[str, ...]())]
    # A folder may be called like a glob.
    if any(map(_is_wild, _names(source))):
        sources.append(_folder_of(source))
    for folder, pattern in sources:
        yield folder, (), pattern
        if isinstance(folder, Path):
            for each, inside, _ in _walk(folder, pattern):
                if inside and each.is_symlink():
                    yield each, inside, pattern


def _folder_of(glob: AnyPath) -> tuple[AnyPath, tuple[str, ...]]:
    """Return the folder of a glob, and the names below it."""
    # The folder of `in/date=2026-11-*/*.csv` is `in`: folders that are columns are not of its own name.
    names = _names(glob)
    pattern = names[[_is_wild(name) or "=" in name for name in names].index(True) :]
    folder = glob
    for _ in pattern:
        folder = folder.parent
    return folder, pattern


def _matching(glob: AnyPath) -> InputFiles:
    folder, pattern = _folder_of(glob)
    found: set[AnyPath] = set()
    if isinstance(folder, Path):
        found.update(_files_below(folder, pattern) if folder.is_dir() else ())
    else:
        for path in folder.glob("/".join(pattern)):
            if not _is_hidden(_below(path, folder)):
                found.update(_files_below(path) if path.is_dir() else [path])
    if not found:
        raise EvidenceError(lacking(glob, "no file has such a name"), Place(str(glob)))
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


def _may_hold(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return True if a folder is matched, or if something in it may be."""
    if not (names and pattern) or pattern[0] == "**":
        return True
    return fnmatchcase(names[0], pattern[0]) and _may_hold(names[1:], pattern[1:])


def partition_columns(name: str) -> dict[str, str | None]:
    """Return the columns in the folders of a file: `date=2026-11-22/a.csv` has a column `date`; null is None."""
    pairs = (part.split("=", 1) for part in partition_of(name).split("/") if part)
    return {unquote(column): None if text == NULL_FOLDER else unquote(text) for column, text in pairs}


def partition_of(name: str) -> str:
    """Return the folders `column=value` in the name of a file, as they are written."""
    return "/".join(part for part in name.split("/")[:-1] if part.find("=") > 0)


def _files_below(folder: AnyPath, pattern: Sequence[str] = ()) -> Iterator[AnyPath]:
    """Yield the files in a folder and all below, those of links too; of a local one those that a pattern matches."""
    if isinstance(folder, RemotePath):
        # By one listing.
        found = (path for path in folder.rglob("*") if path.is_file())
        yield from (path for path in found if not _is_hidden(_below(path, folder)))
        return

    def refuse(error: OSError) -> None:
        # os.walk skips unreadable folders unless told otherwise, and rows would be missing silently. A glob passes over
        # those that it does not name, as in a shell.
        inside = _below(Path(error.filename), folder)
        if _matches(inside, pattern) or not isinstance(error, PermissionError):
            # By its own name: that of the folder which was given would send its owner to the wrong one.
            with reading_errors_for(Path(error.filename)):
                raise error

    for directory, inside, names in _walk(folder, pattern, refuse):
        files = (name for name in names if not _is_hidden([name]) and _matches((*inside, name), pattern))
        yield from (directory / name for name in files)


def _walk(
    folder: Path, pattern: Sequence[str], refuse: Callable[[OSError], None] | None = None
) -> Iterator[tuple[Path, tuple[str, ...], list[str]]]:
    """Yield a folder and those in it that a pattern may lead into, by links too: path, names below, names of its files.

    refuse: called for folders that cannot be read; None passes over them.
    """
    # Hidden names are markers (_SUCCESS) and leftovers of other tools.
    for directory, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        inside = _below(Path(directory), folder)
        folders[:] = [
            name
            for name in folders
            if not (_is_hidden([name]) or _is_loop(Path(directory, name), folder))
            and _may_hold((*inside, name), pattern)
        ]
        yield Path(directory), inside, files


def _is_loop(path: Path, folder: Path) -> bool:
    """Return True for a link to a folder that it lies in, below `folder` or above: it would never end."""
    if not path.is_symlink():
        return False
    real, parents = path.resolve(), path.parents[: len(path.parts) - len(folder.parts)]
    return any(parent.resolve().is_relative_to(real) for parent in parents)


def _is_hidden(names: Sequence[str]) -> bool:
    # Keys of stores may have parts "." and "..", which are told of where they are read.
    return any(name.startswith(("_", ".")) and name not in (".", "..") for name in names)


def open_bytes(path: AnyPath) -> IO[bytes]:
    """Open a file for reading, gzipped if its name says so."""
    if path.suffix.lower() == ".gz":
        return cast(IO[bytes], gzip.open(path if isinstance(path, Path) else path.open(), "rb"))
    return path.open("rb")


@contextmanager
def reading_errors_for(path: AnyPath) -> Iterator[None]:
    """Context manager: turn errors of reading a file into an EvidenceError that names it."""
    place = Place(str(path))
    try:
        yield
    except EvidenceError:
        raise
    except FileNotFoundError as error:
        raise EvidenceError(lacking(path, "no such file or folder"), place) from error
    except (OSError, EOFError, zlib.error) as error:
        said = error.strerror if isinstance(error, OSError) else None
        raise EvidenceError(f"cannot be read: {said or _first_line(error)}", place) from error
    except (pa.ArrowException, ValueError, KeyError, IndexError, OverflowError) as error:
        raise EvidenceError(f"damaged, or not of its format: {_first_line(error)}", place) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
