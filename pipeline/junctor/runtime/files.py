"""Files that are whole or absent, and errors of files in words for users.

Main functions: `aside` for writing, `read_whole` and `refused` for reading.
"""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from junctor.model.errors import JunctorError, RunError

# Errors of a full disk, and of a user's quota.
_FULL = {errno.ENOSPC, errno.EDQUOT}
# No file that is read as a whole may be larger, decompressed: a gzip file of 1 MB can hold 1 GB of zeros.
MAX_BYTES = 2**30
_BLOCK = 2**20


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """Context manager: a temporary file in the folder of `path`, which is synced and renamed to it at the end.

    Raises RunError if it cannot be written; `path` is unchanged then.
    """
    # In the same folder, because only there a rename is atomic. `.tmp` is the ending that run directories clear away.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            _sync(temporary)
            os.replace(temporary, path)
            # The name itself is an entry of the folder, and is lost with it unless that is synced too.
            _sync(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Context manager: errors of the file system at `path` become RunError with the next move."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise RunError(
                f"{path}: no space left: free some and run the same command again, finished parts are kept"
            ) from error
        raise RunError(f"{path}: {error.strerror or error}: mend that, or name another --output") from error


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


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in `path`, None without such a file; raises RunError for anything else."""
    with explained(path):
        try:
            record = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise RunError(f"{path}: not JSON ({error}): start afresh with --overwrite") from error
    if not isinstance(record, dict):
        raise RunError(f"{path}: expected a JSON object: start afresh with --overwrite")
    return record


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` to `path`, whole or not at all."""
    with aside(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
