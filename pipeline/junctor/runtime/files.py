"""Files that are whole or not there, and what the file system refuses in words for users."""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from junctor.model.errors import RunError

_FULL = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """Yield a name beside `path` to write to; afterwards the file is synced and takes its name.

    Raises RunError where the disk is full or the place cannot be written; then `path` is as it was.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            _sync(temporary)
            os.replace(temporary, path)
            _sync(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what the file system refuses at `path` into a RunError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise RunError(
                f"{path}: no space left: free some and run the same command again, finished parts are kept"
            ) from error
        raise RunError(f"{path}: {error.strerror or error}: mend that, or name another --output") from error


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in `path`, None where there is no such file; raises RunError for anything else."""
    with explained(path):
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise RunError(f"{path}: not JSON ({error}): start afresh with --overwrite") from error
    if not isinstance(found, dict):
        raise RunError(f"{path}: expected a JSON object: start afresh with --overwrite")
    return found


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
