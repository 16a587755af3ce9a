"""Objects in stores (`s3://`, `gs://`, `abfs://`) under the interface of `pathlib`, through Arrow's filesystems.

Main class: RemotePath; main function: `location`, which turns what users write into a path of either kind. Called by
readers and writers of files. Local paths stay `pathlib.Path`.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar, overload
from urllib.parse import quote, unquote, urlsplit

from junctor.model.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileInfo, FileSystem

# Arrow knows more of them; these are what the documentation promises.
SCHEMES = ("s3", "gs", "abfs", "abfss")
# Seconds before each further try of a request that failed for a reason that may pass; about twice as long at the most.
WAITS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
# Seconds after which there is no further try.
LONGEST = 120.0
# Failures of a request after which a line says so, once for each store.
TOLD_AT = 3
# By kind of filesystem. S3: Arrow's default of 3 s for an answer is short for a store at work, and small objects go by
# one request. Google: its client would try for 15 minutes by itself.
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"connect_timeout": 10.0, "request_timeout": 30.0, "allow_delayed_open": True},
    "gcs": {"retry_time_limit": timedelta(seconds=30)},
}
# Bytes of objects that may go in several requests, of which the first one opens the upload. Were that delayed until
# there is something to send, a refusal would leave an empty object under the name.
PARTS_BYTES = 5 * 2**20
# Bytes of one request of a file that is read from its start to its end.
BUFFER_BYTES = 2**23
# Parts of a key that no path has. Arrow refuses keys with an empty one, and finds none with the others.
_ODD = frozenset(("", ".", ".."))
# What `urlsplit` leaves out without a word: another key would be read or written.
_LEFT_OUT = frozenset("\t\r\n")
_WITH_ODD = "a key with an empty, '.' or '..' part is not read or written"
# Stores without folders: a name with slashes is made with its object.
_FLAT = ("s3", "gcs", "abfs")
# What stores say where another try is of no use: credentials, rights, and requests that they do not take. Not compiled
# here: most processes see no such error.
_DENIED = (
    r"(?i)access.?denied|forbidden|HTTP status 40[13]\b|permission.?denied|unauthenticated|"
    r"authori[sz]ation.?(fail|error)|authentication.?failed|(expired|invalid).?(client.?)?token|invalid.?access.?key|"
    r"signature.?does.?not|incomplete.?signature"
)
# Of a request whose answers have no text that would say why.
_UNTOLD = r"HTTP status 400\) during Head"
_REFUSED = r"HTTP status (3\d\d|4(?!08|29)\d\d)"
_NO_BUCKET = r"(?i)NO_SUCH_BUCKET|specified bucket does not exist|ContainerNotFound"
_WITHOUT_BUCKET = "no such bucket: make it, or mend its name"
_A_FOLDER = "Not a regular file"
_MISSING = r"(?i)NO_SUCH_KEY|BlobNotFound|Path does not exist"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ONE_SLASH = re.compile(rf"({'|'.join((*SCHEMES, 'file'))}):/(?!/)")
_LONGEST_REASON = 200

Result = TypeVar("Result")

logger = logging.getLogger("junctor")
_told: set[str] = set()
# Set when the user ends the command: what is asked of a store then is tried once.
ending = threading.Event()


class RemoteStat(NamedTuple):
    """Facts of an object: bytes, and whole seconds from the epoch to its last change (0.0 where the store has none)."""

    st_size: int
    st_mtime: float


class RemotePath:
    """The name of an object in a store, or of a folder of objects; it may exist or not.

    site: scheme, host (bucket, container), credentials and query of the URL.
    names: what follows, decoded, between its slashes. An empty one, "." and ".." come from listings alone: without them
        it would be another key. All but listings is refused then.

    Only what is asked of it touches the store, and requests that fail for a reason that may pass are tried again.
    Errors are those of the operating system, in words for users, and neither they nor `str` have credentials. Pickles
    are of names: another process opens the store itself. Objects are written whole or not at all.
    """

    __slots__ = ("_found", "_names", "_site")

    def __init__(self, site: str, names: Iterable[str] = (), found: FileInfo | None = None) -> None:
        self._site = site
        self._names = tuple(names)
        # What a listing said about it.
        self._found = found

    def __str__(self) -> str:
        return "/".join((_shown(self._site), *self._names))

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return RemotePath, (self._site, self._names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and (self._site, self._names) == (other._site, other._names)

    def __hash__(self) -> int:
        return hash((self._site, self._names))

    def __lt__(self, other: RemotePath) -> bool:
        return (self._site, self.parts) < (other._site, other.parts)

    def __truediv__(self, name: str | PurePosixPath) -> RemotePath:
        return RemotePath(self._site, (*self._names, *PurePosixPath(name).parts))

    @property
    def _pure(self) -> PurePosixPath:
        return PurePosixPath(*self._names)

    @property
    def name(self) -> str:
        """The last part of the name."""
        return self._pure.name

    @property
    def stem(self) -> str:
        """The last part without its last ending."""
        return self._pure.stem

    @property
    def suffix(self) -> str:
        """The last ending, with its dot."""
        return self._pure.suffix

    @property
    def suffixes(self) -> list[str]:
        """All endings."""
        return self._pure.suffixes

    @property
    def parts(self) -> tuple[str, ...]:
        """The store and the parts of the name."""
        return (_shown(self._site), *self._names)

    @property
    def parent(self) -> RemotePath:
        """The folder; of the topmost one itself."""
        return RemotePath(self._site, self._names[:-1])

    @property
    def url(self) -> str:
        """The URL of it, without credentials and query."""
        return "/".join((_shown(self._site), *map(quote, self._names)))

    @property
    def has_credentials(self) -> bool:
        """Whether the URL had a secret in it."""
        return bool(_secrets(self._site))

    def with_name(self, name: str) -> RemotePath:
        """Return the path with another last part."""
        return RemotePath(self._site, self._pure.with_name(name).parts)

    def with_suffix(self, suffix: str) -> RemotePath:
        """Return the path with another last ending."""
        return RemotePath(self._site, self._pure.with_suffix(suffix).parts)

    def relative_to(self, other: RemotePath) -> PurePosixPath:
        """Return the name below a folder; raises ValueError where it is not below it."""
        if self._site != other._site:
            raise ValueError(f"{self} is not below {other}")
        return self._pure.relative_to(other._pure)

    def opened_as(self, other: RemotePath) -> RemotePath:
        """Return the path with the credentials and the query of another one in its store."""
        return RemotePath(other._site, self._names)

    def absolute(self) -> RemotePath:
        """Return the path."""
        return self

    def as_posix(self) -> str:
        """Return the text of it, without credentials."""
        return str(self)

    def exists(self) -> bool:
        """Return True if there is an object or a folder of that name."""
        return self._kind() != "NotFound"

    def is_file(self) -> bool:
        """Return True if there is an object; of a listed path, if there was one."""
        return self._kind(as_found=True) == "File"

    def is_dir(self) -> bool:
        """Return True if there are objects below; of a listed path, if there were."""
        return self._kind(as_found=True) == "Directory"

    def stat(self) -> RemoteStat:
        """Return size and time, of a listed path those that the listing had; raises FileNotFoundError."""
        info = self._found or self._info()
        if info.type.name == "NotFound":
            raise self._missing()
        # Listings of MinIO and Ceph have milliseconds, which what they say of one object has not.
        return RemoteStat(info.size or 0, float((info.mtime_ns or 0) // 10**9))

    def etag(self) -> str | None:
        """Return what changes with the content, as the store has it (ETag); None where it has nothing."""

        with self.open_raw() as file:
            return file.etag()

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Yield what is below and matches, sorted; `**` stands for any folders. No folder here: nothing.

        A key with an empty part, "." or ".." also matches as without it: who made `a//b.csv` meant `a/b.csv`, and
        whoever reads it is told that it is none.
        """
        patterns = pattern.split("/")
        deep = len(patterns) > 1 or "**" in patterns
        listed = self._listed(deep)
        if not deep and any(not _ODD.isdisjoint(found.parts) for found in listed):
            # Where a folder without a name is, what it holds may match.
            listed = self._listed(deep=True)
        for found in listed:
            names = found._names[len(self._names) :]
            if _matches(names, patterns) or _matches([name for name in names if name not in _ODD], patterns):
                yield found

    def rglob(self, pattern: str) -> Iterator[RemotePath]:
        """Yield what matches in this folder and all below."""
        return self.glob(f"**/{pattern}")

    def iterdir(self) -> Iterator[RemotePath]:
        """Yield what is in the folder."""
        return self.glob("*")

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: folders are made with what lies in them."""

    def rmdir(self) -> None:
        """Do nothing: a folder is gone with the last object in it."""

    def read_bytes(self) -> bytes:
        """Return the content, by one request."""

        def read(filesystem: FileSystem, place: str) -> bytes:
            with filesystem.open_input_file(place) as file:
                data: bytes = file.read()
                return data

        return self._retried(read)

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the content as text."""
        return self.read_bytes().decode(encoding)

    def write_bytes(self, data: bytes | pa.Buffer) -> int:
        """Write the object, whole or not at all; an older one is replaced. Returns the number of bytes."""

        def put(filesystem: FileSystem, place: str) -> None:
            _put(filesystem if len(data) < PARTS_BYTES else _for_parts(self._site), place, data)

        # In a thread, which no signal interrupts: a stream that is dropped before its end becomes an object too.
        _in_thread(lambda: self._retried(put))
        return len(data)

    def write_text(self, text: str, encoding: str = "utf-8") -> int:
        """Write text, whole or not at all."""
        return self.write_bytes(text.encode(encoding))

    def put(self, local: Path) -> None:
        """Write the object from a local file, whole or not at all."""
        import pyarrow as pa

        # An empty file has no memory to map.
        with pa.memory_map(str(local)) if local.stat().st_size else pa.BufferReader(b"") as file:
            self.write_bytes(file.read_buffer())

    @overload
    def open(self, mode: Literal["rb"] = "rb") -> io.BufferedReader: ...
    @overload
    def open(self, mode: Literal["r"], encoding: str = "utf-8") -> io.TextIOWrapper: ...
    def open(self, mode: str = "rb", encoding: str = "utf-8") -> io.BufferedReader | io.TextIOWrapper:
        """Open the object for reading, "rb" or "r"; raises FileNotFoundError, ValueError for another mode."""
        if mode not in ("rb", "r"):
            raise ValueError(f"found mode {mode!r}: objects are written whole, by write_bytes")
        file: io.BufferedReader = io.BufferedReader(self.open_raw(), BUFFER_BYTES)
        return file if mode == "rb" else io.TextIOWrapper(file, encoding)

    def open_raw(self) -> RemoteFile:
        """Open the object for reads at any place, one request each."""
        return RemoteFile(self)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the object; raises FileNotFoundError unless `missing_ok`."""
        tries = 0

        def remove(filesystem: FileSystem, place: str) -> None:
            nonlocal tries
            tries += 1
            try:
                filesystem.delete_file(place)
            except FileNotFoundError:
                # The answer to an earlier try may have been lost.
                if tries == 1 and not missing_ok:
                    raise

        self._retried(remove)

    def has_bucket(self) -> bool:
        """Return False if not even the bucket is there; True also where the store does not say."""
        with suppress(OSError):
            return RemotePath(self._site).exists()
        return True

    def _kind(self, as_found: bool = False) -> str:
        info = self._found if as_found and self._found is not None else self._info()
        name: str = info.type.name
        return name

    def _info(self) -> FileInfo:
        return self._retried(lambda filesystem, place: filesystem.get_file_info(place))

    def _listed(self, deep: bool) -> list[RemotePath]:
        """Return what is below, sorted by the parts of names."""
        # Arrow lists no folder with an odd name, but what is in it with all that is in the folder above.
        plain = tuple(takewhile(lambda name: name not in _ODD, self._names))
        recursive = deep or plain != self._names

        def ask(filesystem: FileSystem, place: str) -> list[FileInfo]:
            from pyarrow.fs import FileSelector

            return list(filesystem.get_file_info(FileSelector(place, allow_not_found=True, recursive=recursive)))

        infos = RemotePath(self._site, plain)._retried(ask)
        found = [RemotePath(self._site, *each) for each in _entries(infos, len(self._bucket()), plain)]
        some = len(self._names)
        inside = (each for each in found if len(each._names) > some and each._names[:some] == self._names)
        return sorted(inside, key=lambda each: each._names)

    def _bucket(self) -> str:
        """The name of the site in the filesystem."""
        return _opened(self._site)[1]

    def _place(self) -> str:
        """The name in the filesystem: bucket and key."""
        return "/".join(part for part in (self._bucket(), *self._names) if part)

    def _retried(self, work: Callable[[FileSystem, str], Result]) -> Result:
        """Return `work(filesystem, name)`; tried again, with waits, unless the reason of a failure stays."""
        if not _ODD.isdisjoint(self._names):
            raise OSError(errno.EINVAL, f"{_WITH_ODD}: copy what is there to another key", str(self))
        started, tries = time.monotonic(), 0
        while True:
            failed: Exception | None = None
            try:
                return work(_opened(self._site)[0], self._place())
            except FileNotFoundError:
                failed = self._missing()
            except (OSError, ValueError, NotImplementedError, ImportError) as error:
                failed = self._lasting(error)
                reason = self._reason(error)
            tries, seconds = tries + 1, time.monotonic() - started
            if failed is None and (tries > len(WAITS) or seconds > LONGEST or ending.is_set()):
                advice = "run the same command again when the store can be reached"
                failed = OSError(
                    errno.EIO, f"no success in {tries} tries and {seconds:.0f} s ({reason}): {advice}", str(self)
                )
            # Outside of the handler: the original error may have the URL in it.
            if failed is not None:
                raise failed
            if tries == TOLD_AT and self._site not in _told:
                _told.add(self._site)
                logger.warning("%s: trying again after %d failures (%s)", self, tries, reason)
            ending.wait(WAITS[tries - 1] * random.uniform(1.0, 2.0))

    def _missing(self) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, "no such object", str(self))

    def _lasting(self, error: Exception) -> OSError | None:
        """Return the error to raise, None if another try may do."""
        reason = self._reason(error)
        if re.search(_NO_BUCKET, reason):
            return OSError(errno.ENOENT, _WITHOUT_BUCKET, str(self))
        if re.search(_MISSING, reason):
            return self._missing()
        if _A_FOLDER in reason:
            return OSError(errno.EISDIR, "found a folder, expected an object", str(self))
        if re.search(_UNTOLD, reason):
            advice = "often an expired or malformed token: see to the credentials"
            return OSError(errno.EINVAL, f"cannot be used: {reason}, {advice}", str(self))
        if isinstance(error, PermissionError) or re.search(_DENIED, reason):
            return PermissionError(
                errno.EACCES, f"access denied ({reason}): see to the credentials, or to what they allow", str(self)
            )
        if not isinstance(error, OSError) or re.search(_REFUSED, reason):
            return OSError(errno.EINVAL, f"cannot be used: {reason}", str(self))
        return None

    def _reason(self, error: Exception) -> str:
        """Return what an error says, in one line and without secrets."""
        text = (str(error).splitlines() or [""])[0] or type(error).__name__
        # Of a chain of where and what, the end is for users.
        text = text[max(0, text.find("AWS Error")) :]
        text = re.sub(r" \(Request ID: [^)]*\)|: No response body\.?$", "", text)
        text = re.sub(r"[A-Za-z0-9+.-]+://[^\s'\"]*", str(self), text)
        for secret in _secrets(self._site):
            text = text.replace(secret, "***")
        return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."


# A path as users write it, and the code takes it.
AnyPath: TypeAlias = Path | RemotePath


class RemoteFile(io.RawIOBase):
    """An object that is read piece by piece, at any place; each request is tried again as those of a RemotePath.

    failure: what the last read that failed has raised.
    """

    def __init__(self, path: RemotePath) -> None:
        self._path = path
        self._at = 0
        self._file: Any = None
        self.failure: OSError | None = None
        self._size, self._etag = path._retried(lambda *place: _facts(self._open(*place)))

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the place of the next read."""
        return self._at

    def size(self) -> int:
        """Return the bytes of the object."""
        return self._size

    def etag(self) -> str | None:
        """Return what changes with the content, as the object had it when it was opened; None where it has nothing."""
        return self._etag

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the place of the next read."""
        self._at = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer and return the number of bytes, 0 at the end."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes, fewer at the end; all that are left for -1."""
        left = max(0, self._size - self._at)
        size = left if size is None or size < 0 else min(size, left)
        if not size:
            return b""
        try:
            data = self._path._retried(lambda filesystem, place: self._read_at(filesystem, place, size))
        except OSError as error:
            self.failure = error
            raise
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        """Return what is left, by one request."""
        return self.read()

    def close(self) -> None:
        """Let go of it."""
        self._file = None
        super().close()

    def _open(self, filesystem: FileSystem, place: str) -> Any:
        self._file = filesystem.open_input_file(place)
        return self._file

    def _read_at(self, filesystem: FileSystem, place: str, size: int) -> bytes:
        # After a failure the file is opened anew: its connection may be what failed.
        file = self._file or self._open(filesystem, place)
        self._file = None
        data = bytes(file.read_at(size, self._at))
        if len(data) != size:
            raise OSError(errno.EIO, f"found {len(data)} bytes, expected {size}")
        self._file = file
        return data


def location(text: str | os.PathLike[str] | RemotePath, what: str = "a path") -> AnyPath:
    """Return the path that a user means: local, or in a store by its URL; raises InputError for others and none.

    what: the path is of, for errors.
    """
    if isinstance(text, RemotePath):
        return text
    if not isinstance(text, str | bytes | os.PathLike):
        raise InputError(f"found {text!r} as {what}, expected text or a pathlib.Path")
    path = os.fspath(text)
    if isinstance(path, bytes):
        raise InputError(f"found the path {path!r} as bytes, expected text: os.fsdecode makes it of them")
    if not path:
        # Of a variable of the shell that is not set; as a path it would be the current folder.
        raise InputError("found an empty path, expected the name of a file or folder: '.' is the current one")
    if _ONE_SLASH.match(path):
        raise InputError(f"{path}: one slash after the colon, expected a URL with two, as text and not as pathlib.Path")
    match = _URL.match(path)
    if match is None:
        local = Path(text)
        # Arrow takes a folder that is called ~ for the user's home, and pathlib leaves ./ out.
        return local.absolute() if str(local).startswith("~") else local
    scheme = match[1].lower()
    if scheme == "file":
        return _local(path)
    if scheme not in SCHEMES:
        raise InputError(f"unknown kind of URL {scheme}://, expected s3://, gs://, abfs://, file:// or a local path")
    return _remote(path, scheme)


def lacking(path: AnyPath, words: str) -> str:
    """Return what to say of a path where nothing was found: that its bucket is not there either, else `words`.

    That is a request, so that it is asked only for a message.
    """
    return _WITHOUT_BUCKET if isinstance(path, RemotePath) and not path.has_bucket() else words


def local_path(text: str | os.PathLike[str] | RemotePath, what: str = "a path") -> Path:
    """Return a path of this machine; raises InputError for URLs of stores; what: it is of, for errors."""
    path = location(text, what)
    if isinstance(path, RemotePath):
        raise InputError(f"{path}: expected a local path here")
    return path


def _local(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise InputError(f"file://{parts.netloc}: another machine, expected file:/// and an absolute path")
    return Path(unquote(parts.path))


def _remote(url: str, scheme: str) -> RemotePath:
    if not _LEFT_OUT.isdisjoint(url):
        raise InputError(f"{scheme}:// with a tab or a line break in it: write it as %09, %0D or %0A")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InputError(f"{scheme}:// with a host that is none") from None
    host = parts.netloc.rpartition("@")[2]
    if parts.fragment:
        raise InputError(f"{scheme}:// with a # in it: write it as %23")
    # A secret with a slash ends the host for everyone who reads URLs, and must not be shown as a name.
    if ":" in host and not re.search(r":\d+$", host):
        raise InputError(f"{scheme}:// with credentials that are cut: write / as %2F, + as %2B, @ as %40")
    if not host or host.startswith(":"):
        raise InputError(f"{scheme}:// without a name: expected something like {scheme}://bucket/folder")
    site, key = f"{scheme}://{parts.netloc}?{parts.query}", unquote(parts.path)
    names = _names_of(key.removesuffix("/"))
    if not _ODD.isdisjoint(names):
        raise InputError(f"{_shown(site)}{key}: {_WITH_ODD}: leave that part out, or copy what is there to another key")
    return RemotePath(site, names)


def _names_of(key: str) -> tuple[str, ...]:
    """Return what is between the slashes of a key with a slash in front; nothing of an empty one."""
    return tuple(key.split("/")[1:])


def _shown(site: str) -> str:
    """Return a site without credentials and query."""
    parts = urlsplit(site)
    user, _, host = parts.netloc.rpartition("@")
    # Before the @ of Azure is the container, and it belongs to the name.
    container = user.partition(":")[0] if parts.scheme.startswith("abfs") else ""
    return f"{parts.scheme}://{container}@{host}" if container else f"{parts.scheme}://{host}"


def _secrets(site: str) -> list[str]:
    """Return what of a site must not be shown, the longest first."""
    parts = urlsplit(site)
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    told = parts.scheme.startswith("abfs") or (parts.scheme == "gs" and user == "anonymous")
    secret = re.findall(r"(?:secret|key|token|password)[^=&]*=([^&]+)", parts.query, re.I)
    named = [password, *secret] if told else [user, password, *secret]
    return sorted(
        {form for each in named if each for form in (each, unquote(each), quote(each))}, key=len, reverse=True
    )


@lru_cache(maxsize=16)
def _opened(site: str) -> tuple[FileSystem, str]:
    """Return the filesystem of a site, and the name of the site in it."""
    import pyarrow as pa
    from pyarrow import fs

    scheme, _, rest = site.partition("://")
    host, _, query = rest.partition("?")
    url = f"{scheme}://{host}/?{query}" if query else f"{scheme}://{host}"
    try:
        filesystem, root = fs.FileSystem.from_uri(url)
    except (pa.ArrowNotImplementedError, ImportError):
        # A build of Arrow without this store.
        from fsspec.core import url_to_fs

        remote, root = url_to_fs(url)
        return fs.PyFileSystem(fs.FSSpecHandler(remote)), root.rstrip("/")
    wanted = _OPTIONS.get(filesystem.type_name)
    if wanted is not None:
        # As a pickle would open it again, with other times.
        filesystem = _with_options(filesystem, wanted)
    return filesystem, root.rstrip("/")


@lru_cache(maxsize=16)
def _for_parts(site: str) -> FileSystem:
    """Return the filesystem of a site for objects of `PARTS_BYTES` or more that are written."""
    filesystem = _opened(site)[0]
    return _with_options(filesystem, {"allow_delayed_open": False}) if filesystem.type_name == "s3" else filesystem


def _with_options(filesystem: FileSystem, wanted: dict[str, Any]) -> FileSystem:
    options = filesystem.__reduce__()[1][0]
    known = {name: value for name, value in wanted.items() if name in options}
    return type(filesystem)(**{**options, **known})


def _entries(
    infos: Sequence[FileInfo], start: int, folder: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], FileInfo]]:
    """Yield the names of what a listing found, and what it said of each, without marks of folders.

    start: of the slash after the bucket in a path.
    folder: names of the one that was listed.
    """
    files = {folder}
    for info in infos:
        names, is_file = _names_of(info.path[start:]), info.type.name == "File"
        # Arrow leaves out slashes at the end: what then has the name of the folder, or of another file, is not that.
        if names == folder or (is_file and names in files):
            names = (*names, "")
        # Some tools make an empty object for each folder.
        if is_file and not info.size and not names[-1]:
            continue
        if is_file:
            files.add(names)
        yield names, info


def _facts(file: Any) -> tuple[int, str | None]:
    """Return bytes and ETag of an open object, by no further request."""
    tag = {name.lower(): value for name, value in file.metadata().items()}.get("etag")
    return int(file.size()), None if tag is None else tag.decode(errors="replace").strip('"')


def _put(filesystem: FileSystem, place: str, data: bytes | pa.Buffer) -> None:
    if filesystem.type_name not in _FLAT:
        filesystem.create_dir(place.rpartition("/")[0], recursive=True)
    # One write: the stream counts what it got, and is never left with half of it.
    with filesystem.open_output_stream(place) as stream:
        stream.write(data)


def _in_thread(work: Callable[[], object]) -> None:
    """Do `work` in a thread, to its end whatever happens to the caller; raises what it raises."""
    failed: list[BaseException] = []
    done = threading.Event()

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    threading.Thread(target=guarded, name="junctor-put").start()
    # Not `join`: one that is interrupted takes the thread for ended, and Python would not wait for it at its end.
    done.wait()
    if failed:
        raise failed[0]


def _matches(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    """Return True if the parts of a name match those of a pattern, as in `Path.glob`."""
    if not patterns:
        return not parts
    first, *rest = patterns
    if first == "**":
        return any(_matches(parts[i:], rest or ["*"]) for i in range(len(parts)))
    return bool(parts) and fnmatchcase(parts[0], first) and _matches(parts[1:], rest)


def shown(text: str | AnyPath) -> str:
    """Return what a user wrote as a path, without the credentials of a URL."""
    path = location(text)
    return str(path) if isinstance(path, RemotePath) else str(text)


def names_below(path: AnyPath, folder: AnyPath) -> tuple[str, ...] | None:
    """Return the names that lead from a folder to a path, without any for the folder itself; None for another place."""
    pairs = [(path.parts, folder.parts)]
    if isinstance(path, Path) and isinstance(folder, Path):
        # By links it may be there under two names.
        places = os.path.abspath, os.path.realpath
        pairs = [(Path(of(path)).parts, Path(of(folder)).parts) for of in places]
    elif type(path) is not type(folder):
        return None
    return next((names[len(own) :] for names, own in pairs if names[: len(own)] == own), None)


@contextmanager
def arrow_file(path: AnyPath) -> Iterator[pa.NativeFile]:
    """Context manager: a file for Arrow's readers, at any place of it; what a store says is raised as it said it."""
    import pyarrow as pa

    if isinstance(path, Path):
        with pa.OSFile(str(path)) as file:
            yield file
        return
    source = path.open_raw()
    try:
        with pa.PythonFile(source, "r") as file:
            yield file
    except OSError:
        # Readers of record batches make a text of it, with a traceback and without the name of the file.
        if source.failure is not None:
            raise source.failure from None
        raise


def parquet_source(path: AnyPath) -> Path | pa.NativeFile:
    """Return what Arrow's readers of Parquet open: a local path as it is, an object as an open file."""
    import pyarrow as pa

    return pa.PythonFile(path.open_raw(), "r") if isinstance(path, RemotePath) else path
