"""What stays from process to process: entries of bytes in the user's cache directory, checked, bounded, never needed.

Main function: `user_cache`, called by readers of networks and by planning. An answer never depends on an entry.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import stat
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from junctor.model.errors import InputError, JunctorError
from junctor.planning.budget import format_bytes, parse_bytes
from junctor.runtime.machine import user_folder

# An entry is a file: these bytes, the digest of its name and content, the content.
MAGIC = b"junctor-cache-1\n"
_DIGEST_BYTES = 32
SUFFIX = ".kept"
# Default bound of all entries; one of them takes at most a share of it.
DEFAULT_BYTES = 1 << 29
LARGEST_SHARE = 1 / 4
# Bound in bytes, or one of these words for no cache: the same variable for this process and its workers.
VARIABLE = "JUNCTOR_CACHE"
OFF = ("0", "off", "no")
# Unfinished files of killed processes go after an hour.
STRAY_SECONDS = 3600.0

Content = TypeVar("Content")

logger = logging.getLogger("junctor")


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the cache.

    kind: of its content.
    bytes: of the file.
    used: seconds since the epoch when it was last read or written.
    """

    path: Path
    kind: str
    bytes: int
    used: float


class Cache:
    """Entries by kind and key in one folder; any processes may use it at once.

    folder: made at the first entry.
    limit: bytes of all entries; the longest unused go first.

    No method fails: without a usable folder nothing is found, and one warning says why.
    """

    def __init__(self, folder: Path, limit: int = DEFAULT_BYTES) -> None:
        self.folder = folder
        self.limit = limit
        self._warned = False
        self._writes = limit > 0

    @property
    def is_off(self) -> bool:
        """Whether nothing is kept, nor found."""
        return self.limit == 0

    def read(self, kind: str, key: str, parse: Callable[[bytes], Content]) -> Content | None:
        """Return what an entry holds, None without one or where it is damaged.

        kind: word for the content.
        key: all that the content depends on; the version of Junctor and the platform are added.
        parse: checks and returns the content; whatever it raises, the content is strange.
        """
        path = self._path(kind, key)
        try:
            # Whoever opens a pipe waits for its writer.
            if not path.is_file():
                return None
            data = path.read_bytes()
        except OSError:
            return None
        try:
            content = parse(_opened(data, path.name))
        except Exception as error:
            # Who made the entry is not known, and nothing in it may end a run.
            self._warn(f"{path}: passed over, it is damaged ({error})")
            return None
        # The time of the last use, for the bound; a read-only folder has none.
        with suppress(OSError):
            os.utime(path)
        return content

    def kept(
        self,
        kind: str,
        key: str,
        parse: Callable[[bytes], Content],
        make: Callable[[], Content],
        to_bytes: Callable[[Content], bytes],
        is_worth: Callable[[Content], bool] = lambda _: True,
    ) -> Content:
        """Return what an entry holds; without one, what `make` returns, which is kept.

        kind, key, parse: as of `read`.
        to_bytes: of what is made, which `parse` reads.
        is_worth: whether what is made is kept.
        """
        if not self.limit:
            return make()
        found = self.read(kind, key, parse)
        if found is None:
            found = make()
            if is_worth(found):
                self.write(kind, key, to_bytes(found))
        return found

    def write(self, kind: str, key: str, content: bytes) -> None:
        """Keep an entry, whole or not at all; an older one of that key is replaced."""
        path = self._path(kind, key)
        if not self._writes or len(content) > LARGEST_SHARE * self.limit:
            return
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            # A folder cannot be replaced; other entries can be written.
            if path.is_dir():
                return
            self.folder.mkdir(parents=True, exist_ok=True)
            # Not synced: what a power cut leaves behind does not pass the check.
            temporary.write_bytes(MAGIC + _digest(path.name, content) + content)
            os.replace(temporary, path)
            self._make_room()
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            self._writes = False
            self._warn(f"{self.folder}: nothing is kept for the next run ({error.strerror or error})")

    def entries(self) -> list[Entry]:
        """Return all entries, the longest unused first."""
        found = []
        for path in self._files(f"*{SUFFIX}"):
            # Others may remove entries at any time.
            with suppress(OSError):
                status = path.stat()
                if stat.S_ISREG(status.st_mode):
                    found.append(Entry(path, path.name.partition("-")[0], status.st_size, status.st_mtime))
        return sorted(found, key=lambda entry: (entry.used, entry.path.name))

    def clear(self) -> int:
        """Remove all entries, and what has the place of one; return their number. Raises OSError where it cannot."""
        entries = self._files(f"*{SUFFIX}")
        for path in entries:
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
        for stray in self._files(f".*{SUFFIX}.*.tmp"):
            stray.unlink(missing_ok=True)
        return len(entries)

    def _make_room(self) -> None:
        entries = self.entries()
        left = sum(entry.bytes for entry in entries)
        for entry in entries:
            if left <= self.limit:
                break
            entry.path.unlink(missing_ok=True)
            left -= entry.bytes
        for stray in self._files(f".*{SUFFIX}.*.tmp"):
            with suppress(FileNotFoundError):
                if time.time() - stray.stat().st_mtime > STRAY_SECONDS:
                    stray.unlink()

    def _files(self, pattern: str) -> list[Path]:
        # A folder that is missing, or may not be read, has none.
        try:
            return list(self.folder.glob(pattern))
        except OSError:
            return []

    def _path(self, kind: str, key: str) -> Path:
        name = hashlib.sha256(f"{_here()}\n{kind}\n{key}".encode()).hexdigest()
        return self.folder / f"{kind}-{name}{SUFFIX}"

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("cache: %s", message)


def user_cache() -> Cache:
    """Return the cache of this user, of no entries where it is off; raises InputError for a bad `JUNCTOR_CACHE`."""
    folder = user_folder() / "kept"
    try:
        return _cache(folder, os.environ.get(VARIABLE, ""))
    except InputError as error:
        raise InputError(f"{VARIABLE}: {error}") from None


def cache_bytes(text: str) -> int:
    """Return the bound that a setting means, 0 for no cache; raises InputError."""
    if text.strip().lower() in OFF:
        return 0
    try:
        return parse_bytes(text)
    except JunctorError as error:
        raise InputError(f"{error}; or {' or '.join(OFF)} for no cache") from None


@lru_cache(maxsize=8)
def _cache(folder: Path, limit: str) -> Cache:
    return Cache(folder, cache_bytes(limit) if limit else DEFAULT_BYTES)


@lru_cache(maxsize=1)
def _here() -> str:
    """The version of Junctor and the platform, whose libraries decide on last bits."""
    # Not `platform.platform`, which starts a process to ask for the name of the processor.
    system = platform.uname()
    return " ".join((version("junctor"), system.system, system.release, system.machine, *platform.libc_ver()))


def _digest(name: str, content: bytes) -> bytes:
    # With the name: an entry under another key is no entry.
    return hashlib.sha256(name.encode() + b"\n" + content).digest()


def _opened(data: bytes, name: str) -> bytes:
    """Return the content of a file; raises ValueError unless it is as it was written."""
    start = len(MAGIC) + _DIGEST_BYTES
    if not data.startswith(MAGIC):
        raise ValueError("another format")
    content = data[start:]
    if data[len(MAGIC) : start] != _digest(name, content):
        raise ValueError(f"its {format_bytes(len(data))} do not fit their digest")
    return content
