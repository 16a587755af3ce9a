"""Network files: recognition of their format, and the readers and writers of all formats.

Main functions: `read_network` and `write_network`, called by the API, the command line and flows. Any file may be
compressed by gzip (`.gz` after the extension). Conversion is reading one format and writing another.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from contextlib import suppress
from importlib import import_module
from typing import Any

from junctor.formats.files import decode, publish, read_bytes
from junctor.model.errors import InputError, ModelError, Place, nearest
from junctor.model.network import Network, Reading
from junctor.runtime.cache import LARGEST_SHARE, user_cache
from junctor.runtime.remote import AnyPath, RemotePath, location

EXTENSIONS = {
    "bif": (".bif",),
    "xmlbif": (".xml", ".bifxml", ".xmlbif", ".xbif"),
    "hugin": (".net", ".hugin"),
    "xdsl": (".xdsl",),
    "dsl": (".dsl",),
    "netica": (".dne", ".neta"),
    "pgmx": (".pgmx",),
    "uai": (".uai",),
    "fg": (".fg",),
    "wcsp": (".wcsp",),
    "cfn": (".cfn",),
    "parquet": (".parquet",),
}
# UAI files have no names: variables and states become numbers. The older DSL, OpenMarkov's, libDAI's and toulbar2's
# files are read only.
WRITABLE = ("bif", "xmlbif", "hugin", "xdsl", "netica", "uai", "parquet")
# Bytes of a text from which on the network in it is kept: reading takes 0.2 s for a megabyte of BIF, 0.01 s from the
# cache.
LEAST_KEPT = 1 << 17
# Formats of plain text.
_TEXTS = ("bif", "hugin", "dsl", "uai", "fg", "wcsp", "cfn")

_PARQUET_MAGIC = b"PAR1"

logger = logging.getLogger("junctor")


def read_network(
    path: str | os.PathLike[str] | RemotePath,
    format: str | None = None,
    *,
    normalize: bool = False,
    ignore_decisions: bool = False,
) -> Network:
    """Read a network file.

    path: file or URL, possibly gzipped.
    format: a key of EXTENSIONS or an extension; None for the format of the extension, else of the content.
    normalize: divide every row of a conditional table by its sum, as in tables of counts or percentages.
    ignore_decisions: leave out decisions and utilities of an influence diagram where no chance node depends on them.
    Raises ModelError, with file, line and column as far as they are known, for a file that cannot be read or that
    holds no valid network; InputError for what is no path.
    """
    if not isinstance(path, str | os.PathLike | RemotePath):
        from junctor.formats.libraries import library_of

        if library := library_of(path):
            raise InputError(f"found a {type(path).__name__} of {library} as network: junctor.from_{library} takes it")
    path = location(path, "network")
    chosen = _named_format(format) or _format_of_extension(path)
    if chosen == "parquet":
        from junctor.formats import store

        # By path, not by content: its limit on the size of the file is larger than that of text formats.
        return store.read(path)
    data = read_bytes(path)
    return _kept_or_read(chosen or _format_of_content(data, path), data, path, Reading(normalize, ignore_decisions))


def write_network(
    network: Network, path: str | os.PathLike[str] | RemotePath, format: str | None = None
) -> tuple[str, ...]:
    """Write a network file atomically and return warnings about information that the format cannot keep.

    network: the network to write.
    path: target; an existing file is replaced.
    format: a name of WRITABLE or an extension; None for the format of the extension.
    Raises ModelError if the format cannot be written or cannot hold this network, RunError if the file cannot be
    written, and InputError for what is no network or path.
    """
    if not isinstance(network, Network):
        raise InputError(f"found {network!r} as network, expected a Network: read_network makes one of a file")
    path = location(path)
    chosen = writable_format(path, format)
    # Converted before the file is touched: a network that the format cannot hold leaves the old file as it is.
    # The Parquet form alone keeps noisy nodes factored.
    network = network if chosen == "parquet" else network.expanded
    publish(path, _written(network, chosen))
    return _losses(network, chosen)


def writable_format(path: AnyPath, format: str | None = None) -> str:
    """Return the format that `write_network` would write, arguments as there; raises ModelError if it cannot."""
    chosen = _named_format(format) or _format_of_extension(path)
    if chosen not in WRITABLE:
        what = f"files of format {chosen!r} cannot be written" if chosen else "the extension names no known format"
        known = ", ".join(f"{name} ({' '.join(EXTENSIONS[name])})" for name in WRITABLE)
        raise ModelError(f"{what}; formats that can: {known}", Place(str(path)))
    return chosen


def _kept_or_read(format: str, data: bytes, path: AnyPath, reading: Reading) -> Network:
    """Return the network in a file, as it was kept by an earlier reader of the same bytes, or read anew."""
    cache = user_cache()
    if format == "parquet" or len(data) < LEAST_KEPT or len(data) > LARGEST_SHARE * cache.limit:
        return _read(format, data, path, reading)
    from junctor.formats import store

    # The name: that of a network without one is its file's.
    options = "normalize " if reading.normalize else ""
    key = f"{store.WRITER} {format} {options}{path.name} {hashlib.sha256(data).hexdigest()}"
    network = cache.read("network", key, lambda content: store.read_kept(content, str(path)))
    if network is None:
        network = _read(format, data, path, reading)
        # What was noted is to be told every time; a name that no file can hold, for instance, cannot be kept.
        with suppress(ModelError):
            if not reading.notes:
                cache.write("network", key, store.to_bytes(network))
    return network


def _read(format: str, data: bytes, path: AnyPath, reading: Reading) -> Network:
    # XML and Parquet say themselves how their bytes are text; Netica's may be binary.
    content = decode(data, str(path)) if format in _TEXTS else data
    if format == "parquet":
        network: Network = _module_of(format).read(content, str(path))
    else:
        network = _module_of(format).read(content, str(path), reading)
    for note in reading.notes:
        logger.warning("%s", note if note.startswith(str(path)) else f"{path}: {note}")
    return network


def _module_of(format: str) -> Any:
    # Imported on demand: Arrow alone takes 0.1 s and more to load.
    return import_module(f"junctor.formats.{'store' if format == 'parquet' else format}")


def _written(network: Network, format: str) -> bytes:
    module = _module_of(format)
    if format == "parquet":
        content: bytes = module.to_bytes(network)
        return content
    text: str = module.write(network)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ModelError("a name has characters that no file can hold (half of a surrogate pair)") from None


def _losses(network: Network, format: str) -> tuple[str, ...]:
    if format in ("xdsl", "netica"):
        from junctor.formats.writing import parents_first

        if parents_first(network) == list(range(len(network.variables))):
            return ()
        return ("nodes are written after their parents: the variables stand in another order",)
    if format != "uai":
        return ()
    # A network that was read from a UAI file loses nothing.
    numbered = all(
        variable.name == str(i) and variable.states == tuple(map(str, range(variable.cardinality)))
        for i, variable in enumerate(network.variables)
    )
    if numbered:
        return ()
    return ("UAI files have no names: variables and states are numbered from 0, in the order of the network",)


def _named_format(format: str | None) -> str | None:
    if format is None:
        return None
    name = format.lower().removeprefix(".")
    for known, extensions in EXTENSIONS.items():
        if name == known or f".{name}" in extensions:
            return known
    raise ModelError(f"unknown format {format!r}{nearest(name, EXTENSIONS)}, expected one of {', '.join(EXTENSIONS)}")


def _format_of_extension(path: AnyPath) -> str | None:
    extension = _extension(path)
    return next((name for name, known in EXTENSIONS.items() if extension in known), None)


def _extension(path: AnyPath) -> str:
    # Only the last extension counts: names of files may have dots.
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".gz"]:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


# Searched in the first 64 KiB, in this order: an XDSL file is XML as well, and 'network' in BIF is less special than
# the first word of the others.
_SIGNS = {
    "xdsl": re.compile(r"<smile[\s>]"),
    "pgmx": re.compile(r"<ProbModelXML[\s>]", re.I),
    "xmlbif": re.compile(r"<(\w+:)?(xml)?bif[\s>]", re.I),
    "uai": re.compile(r"\s*(bayes|markov)\s+\d+\s", re.I),
    # A number, an empty line, a number, two lines of numbers, a number, and two numbers.
    "fg": re.compile(r"\s*\d+[ \t\r]*\n[ \t\r]*\n\s*\d+[ \t\r]*\n([\d \t\r]*\n){2}\s*\d+[ \t\r]*\n\s*\d+[ \t]+[-+.\d]"),
    "netica": re.compile(r"\s*bnet\s+[^{]*\{"),
    "dsl": re.compile(r"\s*net\s+[^\s{][^{]*\{"),
    "hugin": re.compile(r"\s*(net|class\s+\w+|((discrete|continuous)\s+)?node\s+\w+)\s*\{"),
    "bif": re.compile(r"\s*(network\s+[^{]*|variable\s+[^{]+)\{"),
    "cfn": re.compile(r'\s*\{\s*"?problem"?[\s:]*[\[{]'),
    # A name and four numbers, then numbers of states.
    "wcsp": re.compile(r"\s*[^\s<{]+([ \t]+\d+){4}[ \t\r]*\n\s*\d+\s"),
}
# Comments of BIF, Hugin, UAI, FG and CFN at the head of a file.
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*|%[^\n]*|#[^\n]*", re.S)


def _format_of_content(data: bytes, path: AnyPath) -> str:
    if data.startswith(_PARQUET_MAGIC):
        return "parquet"
    # Latin-1 decodes any bytes, and all signs are ASCII; what it makes of a UTF-8 byte order mark is taken off.
    head = data[:65536].decode("latin-1").removeprefix("\xef\xbb\xbf")
    is_xml = head.lstrip().startswith("<")
    plain = head if is_xml else _COMMENT.sub(" ", head)
    for name, sign in _SIGNS.items():
        if (sign.search if is_xml else sign.match)(plain):
            return name
    known = ", ".join(f"{name} ({' '.join(extensions)})" for name, extensions in EXTENSIONS.items())
    raise ModelError(
        "neither the extension nor the content tells the format; name it (--format), or rename the file. "
        f"Known: {known}",
        Place(str(path)),
    )
