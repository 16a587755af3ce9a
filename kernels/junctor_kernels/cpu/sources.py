"""What a compiled function is compiled from: its own file, and those of the kernels that this one imports, and so on.

Main function: `stamp_of`. Functions of other files are compiled into their callers, so that code on disk is out of date
when any of these files has changed.
"""

from __future__ import annotations

import os
import re
from functools import cache
from hashlib import blake2b

# Folder of the package, and how its modules import each other.
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_IMPORT = re.compile(rb"^(?:from|import) (junctor_kernels[\w.]*)(?: import (\([^)]*\)|[^\n#]*))?", re.MULTILINE)


@cache
def stamp_of(path: str) -> str:
    """Return a digest of all that the functions of a file are compiled from; path: of the file."""
    waiting, seen = [path], {path}
    digests = []
    while waiting:
        digest, imported = _file(waiting.pop())
        digests.append(digest)
        waiting += [each for each in imported if each not in seen]
        seen.update(imported)
    return blake2b(b"".join(sorted(digests)), digest_size=16).hexdigest()


@cache
def _file(path: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a digest of a file, and the files of the kernels that it imports."""
    with open(path, "rb") as file:
        text = file.read()
    found: dict[str, None] = {}
    for module, names in _IMPORT.findall(text):
        folder = os.path.join(_PACKAGE, *module.decode().split(".")[1:])
        # Modules of a package, or names of a module.
        for name in re.findall(rb"(?:^|,)\s*(\w+)", names.strip(b"()")):
            found[os.path.join(folder, f"{name.decode()}.py")] = None
        found[f"{folder}.py"] = None
    return blake2b(text, digest_size=16).digest(), tuple(each for each in found if os.path.isfile(each))
