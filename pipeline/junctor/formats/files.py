"""The bytes of a network file: gzip, size limits and character encodings on the way in, renaming on the way out."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import os
import re
import zlib
from pathlib import Path, PurePath
from typing import BinaryIO, cast

from junctor.model.errors import InputError, ModelError, Place, RunError
from junctor.runtime.files import MAX_BYTES, read_whole, special_file
from junctor.runtime.remote import AnyPath, RemotePath, lacking

GZIP_MAGIC = b"\x1f\x8b"

# The encoding that an XML declaration names.
_DECLARED = re.compile(rb"""\s*<\?xml[^>]{0,200}?\sencoding\s*=\s*["']([^"'<>]{1,100})["']""", re.I)
# Codecs of Python that no file of text has: escapes of other languages, and one that takes quadratic time.
_NO_ENCODINGS = ("idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7")


def read_bytes(path: AnyPath, limit: int = MAX_BYTES) -> bytes:
    """Return the content of `path`, decompressed if its first bytes are those of gzip, whatever its name.

    limit: most bytes after decompression; for compressed files at most `MAX_BYTES`.
    Raises ModelError if the file is missing, unreadable, empty or too large, or if its gzip data is damaged.
    """
    place = Place(str(path))
    try:
        with path.open("rb") as file:
            # Peeked at instead of read and rewound: the file may be a pipe.
            compressed = file.peek(2)[:2] == GZIP_MAGIC
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if compressed else file
            data = read_whole(stream, min(limit, MAX_BYTES) if compressed else limit)
    except FileNotFoundError:
        raise ModelError(lacking(path, "there is no such file"), place) from None
    except IsADirectoryError:
        raise ModelError(lacking(path, "found a directory, expected a network file"), place) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ModelError(f"the gzip data is cut short or damaged ({error}); copy the file again", place) from None
    except (OSError, ValueError) as error:
        # ValueError: the path has a NUL character.
        raise ModelError(f"cannot be read: {getattr(error, 'strerror', None) or error}", place) from None
    if not data:
        raise ModelError("the file is empty, expected a network", place)
    return data


def decode(data: bytes, file: str | None = None) -> str:
    r"""Return `data` as text with `\n` line ends: UTF-8 or UTF-16 by its byte order mark, else UTF-8, else Latin-1.

    Raises ModelError, with the place, at a NUL character: the file is binary.
    """
    text = _decoded(data).replace("\r\n", "\n").replace("\r", "\n")
    at = text.find("\0")
    if at >= 0:
        raise ModelError("found a NUL byte, expected text; is this a binary file?", place_at(text, at, file))
    return text


def decode_xml(data: bytes, file: str | None = None) -> str:
    """Return XML as text: in the encoding that its declaration names, else as `decode` does.

    Raises ModelError, with the place, for an encoding that is not known, or that the bytes are not in.
    """
    declared = _DECLARED.match(data[:1000])
    if declared is None:
        return _decoded(data)
    name = declared[1].decode("latin-1").strip()
    what = f"the file declares the encoding {name!r}"
    unread = ModelError(f"{what}, which is not read: save it as UTF-8", _place_in(data, 0, file))
    try:
        known = codecs.lookup(name).name
    except (LookupError, ValueError):
        # ValueError: a name with a NUL character.
        if data.isascii():
            # Whatever its name, the encodings of files have ASCII in them.
            return data.decode()
        raise unread from None
    try:
        is_so = declared[0].decode(known, "replace") == declared[0].decode("latin-1")
    except (LookupError, ValueError):
        raise unread from None
    if known in _NO_ENCODINGS:
        raise unread
    # A declaration in ASCII that says UTF-16 is wrong. And some say ASCII of whatever they have.
    if not is_so or known in ("ascii", "utf-8"):
        return _decoded(data)
    try:
        return data.decode(known)
    except UnicodeDecodeError as error:
        # Saved as UTF-8 by a tool that left the declaration as it was.
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode()
        place = _place_in(data, error.start, file)
        raise ModelError(f"{what}, which its bytes are not in: save it as UTF-8", place) from None


def _place_in(data: bytes, offset: int, file: str | None) -> Place:
    return place_at(data[:offset].decode("latin-1"), offset, file)


def _decoded(data: bytes) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode("utf-16")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        # Any bytes are valid Latin-1: old files of Western tools read right, others get odd names but right numbers.
        return data.decode("latin-1")


def place_at(text: str, offset: int, file: str | None) -> Place:
    """Return the place of `text[offset]`."""
    start_of_line = text.rfind("\n", 0, offset) + 1
    return Place(file, text.count("\n", 0, offset) + 1, offset - start_of_line + 1)


def title_of(file: str | None) -> str:
    """Return the name of a network whose file gives none: the file's name without its extensions."""
    name = PurePath(file or "network").name
    return PurePath(name[:-3] if name.lower().endswith(".gz") else name).stem


def publish(path: AnyPath, data: bytes) -> None:
    """Write `data` to `path` atomically (to a temporary file, then renamed), compressed if the name ends in `.gz`.

    Raises RunError if it cannot be written, and InputError for a pipe, socket or device at `path`.
    """
    if (found := special_file(path)) is not None:
        raise InputError(f"{path}: found {found}, which a file would replace: name a file")
    # Without a time stamp the same network gives the same bytes.
    data = gzip.compress(data, mtime=0) if path.suffix.lower() == ".gz" else data
    try:
        if isinstance(path, RemotePath):
            path.write_bytes(data)
            return
        # Behind a symbolic link the file is replaced, not the link.
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise IsADirectoryError(None, "found a directory, expected the name of a file")
        _replace(target, data)
    except (OSError, ValueError) as error:
        # ValueError: the path has a NUL character.
        reason = getattr(error, "strerror", None) or error
        raise RunError(f"{path}: cannot be written: {reason}") from None


def _replace(target: Path, data: bytes) -> None:
    aside = target.with_name(f".{os.urandom(8).hex()}.part")
    try:
        with open(aside, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
    finally:
        # After a successful rename there is nothing left to remove.
        aside.unlink(missing_ok=True)
