"""Files and objects that are whole or absent, and errors of file systems in words for users.

Main functions: `written_atomically` for writing, `special_file` before it, `read_whole` and `refused` for reading.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from junctor.model.errors import JunctorError, RefusedError, RunError
from junctor.runtime.remote import AnyPath, RemotePath, lacking

# Errors of a full disk, and of a user's quota.
_FULL = {errno.ENOSPC, errno.EDQUOT}
# Files that have a reader or a meaning of their own.
_SPECIAL = {
    stat.S_ISFIFO: "a pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}
_DEVICES = Path("/dev")
# Start of the names of files in the temporary folder that become objects of stores.
_PUT = "junctor-put-"
# No file that is read as a whole may be larger, decompressed: a gzip file of 1 MB can hold 1 GB of zeros.
MAX_BYTES = 2**30
_BLOCK = 2**20
# The same of files whose checksum is made.
_HASHED = 2**23


@contextmanager
def written_atomically(path: AnyPath, alone: bool = True, check: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Context manager: a temporary file in the folder of `path`, which is synced and renamed to it at the end.

    For an object it lies in the temporary folder of this machine, and is put whole at the end. Raises RunError if it
    cannot be written, and for a pipe, socket or device at `path`, which is unchanged then.

    alone: whether missing folders are made, and the name is synced. Of one file of many the folder has to be there, and
        `sync_names` has to sync the names of all of them.
    check: called right before the file gets its name; what it raises leaves `path` unchanged.
    """
    if isinstance(path, RemotePath):
        with io_errors_for(Path(tempfile.gettempdir())), _temporary() as local:
            yield local
            check()
            path.put(local)
        return
    if (found := special_file(path)) is not None:
        raise RunError(f"{path}: found {found}, which a file would replace: name a file")
    # In the same folder, because only there a rename is atomic. `.tmp` is the ending that run directories clear away.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with io_errors_for(path):
        if alone:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            _sync(temporary)
            check()
            os.replace(temporary, path)
            # The name itself is an entry of the folder, and is lost with it unless that is synced too.
            if alone:
                _sync(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def special_file(path: AnyPath) -> str | None:
    """Return what is at `path` that no file may take the place of, such as "a pipe"; None for files, folders, nothing.

    path: links are followed; those of /dev, such as /dev/stdout, are devices wherever they lead.
    """
    if isinstance(path, RemotePath):
        return None
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        # Nothing, or what whoever writes there is told of.
        return None
    if path.parent == _DEVICES and path.is_symlink():
        return "a device"
    return next((name for is_kind, name in _SPECIAL.items() if is_kind(mode)), None)


def sync_names(folders: Iterable[Path]) -> None:
    """Sync the names of all files in some folders, of those that are there; raises RunError if that fails."""
    # Each sync waits for all that the file system writes: one for thousands of files, not one for each.
    for folder in folders:
        with io_errors_for(folder), suppress(FileNotFoundError):
            _sync(folder)


@contextmanager
def _temporary() -> Iterator[Path]:
    """Context manager: an empty file in the temporary folder, locked as long as it is in use."""
    path = Path(tempfile.gettempdir(), f"{_PUT}{uuid.uuid4().hex}.tmp")
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield path
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def clear_temporaries() -> None:
    """Remove the files that killed processes of this machine left in the temporary folder on their way to a store."""
    for stray in Path(tempfile.gettempdir()).glob(f"{_PUT}*.tmp"):
        # Locked by its process, or the file of another user.
        with suppress(OSError), stray.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            stray.unlink()


@contextmanager
def io_errors_for(path: AnyPath) -> Iterator[None]:
    """Context manager: errors of the file system at `path` become RefusedError with the next move.

    RunError of what only readers of Arrow say: damage.
    """
    try:
        yield
    except OSError as error:
        if "://" in str(error.filename):
            # What was asked of a store has the next move in it, also of an object that is read for a file at `path`.
            raise RefusedError(f"{error.filename}: {error.strerror}") from error
        kind = RefusedError if is_refusal(path, error) else RunError
        if error.errno in _FULL:
            raise kind(
                f"{path}: no space left: free some and run the same command again, finished parts are kept"
            ) from error
        raise kind(f"{path}: {error.strerror or error}: mend that, or name another --output") from error


@dataclass(frozen=True, slots=True)
class Checksum:
    """Bytes of a file and their SHA-256, as `sha256sum` prints it."""

    bytes: int
    sha256: str


def checksum_of(path: AnyPath) -> Checksum:
    """Return the checksum of a file; raises RunError if it cannot be read."""
    # By measurement: 1.8 GB/s on a core, twice as fast as BLAKE2b; CRC-32, at 2.9, would not tell forgeries.
    # In blocks that are larger than `hashlib.file_digest` takes: between them Python's lock has to be waited for.
    sha256, size = hashlib.sha256(), 0
    with io_errors_for(path), path.open("rb") as file:
        # Of an object the size is another request.
        most = _HASHED if isinstance(path, RemotePath) else min(path.stat().st_size + 1, _HASHED)
        block = memoryview(bytearray(most))
        while found := file.readinto(block):
            sha256.update(block[:found])
            size += found
    return Checksum(size, sha256.hexdigest())


def read_whole(file: IO[bytes], limit: int | None = None) -> bytes:
    """Return all of an open file; raises OSError beyond `limit` bytes, by default `MAX_BYTES`."""
    limit = MAX_BYTES if limit is None else limit
    chunks, total = [], 0
    while chunk := file.read(_BLOCK):
        chunks.append(chunk)
        total += len(chunk)
        if total > limit:
            raise OSError(errno.EFBIG, f"the file holds more than the {limit:,} bytes that are allowed")
    return b"".join(chunks)


@contextmanager
def refused(error_of: Callable[[str], JunctorError]) -> Iterator[None]:
    """Context manager: whatever a damaged file makes its reader raise becomes `error_of` a line that says what."""
    # Arrow, JSON and NumPy have no common type of error: OSError, ValueError, KeyError, RecursionError, those
    # of a tokenizer and more occur.
    try:
        yield
    except JunctorError:
        raise
    except Exception as error:
        said = error.strerror if isinstance(error, OSError) else None
        raise error_of(" ".join((said or str(error)).split())[:200] or type(error).__name__) from error


def is_refusal(path: AnyPath, error: BaseException | None) -> bool:
    """Return True for what a store says of an object, or the system of a file that is there; Arrow tells damage."""
    if not isinstance(error, OSError):
        return False
    # Objects go and come; a file of a disk that is missing is gone.
    return error.filename is not None if isinstance(path, RemotePath) else error.errno not in (None, errno.ENOENT)


@contextmanager
def encoded(path: AnyPath, what: str) -> Iterator[None]:
    """Context manager: RunError for encoded inputs that are damaged, which takes a new run, or that a store refuses.

    what: the inputs, in a word.
    """
    with refused(lambda said: RunError(f"{path}: cannot be read as encoded {what} ({said}): start the run anew")):
        try:
            yield
        except OSError as error:
            if not is_refusal(path, error):
                raise
            said = error.strerror
            if isinstance(error, FileNotFoundError):
                said = lacking(path, "no such object: run the same command again, which makes it again")
            raise RefusedError(f"{path}: {said}") from error


def read_json(path: AnyPath) -> dict[str, Any] | None:
    """Return the JSON object in `path`, None without such a file; raises RunError for anything else."""
    with io_errors_for(path):
        try:
            record = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise RunError(f"{path}: not JSON ({error}): start afresh with --overwrite") from error
    if not isinstance(record, dict):
        raise RunError(f"{path}: expected a JSON object: start afresh with --overwrite")
    return record


def parse_json(data: bytes) -> Any:
    """Return the content of a user's JSON; raises ValueError for anything else, and for a key that stands twice."""
    return json.loads(data, object_pairs_hook=_without_repeats)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Of two values the last one would count, without a word about the first.
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:100]!r} stands twice in an object: leave one of the two")
        found[key] = value
    return found


def write_json(path: AnyPath, content: Mapping[str, Any]) -> None:
    """Write `content` to `path`, whole or not at all."""
    with written_atomically(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
