"""Numbers in text: converted in bulk, and one by one only to locate a bad one. Used by the readers of all formats."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

# Characters that are split at a time, so that the words of a large file never exist as objects all at once.
BLOCK = 2**20
_WORD = re.compile(r"\S+")
_SPACE = re.compile(r"\s")


class BadNumber(ValueError):
    """A word that is not a number, and where it starts in the text."""

    def __init__(self, word: str, offset: int) -> None:
        super().__init__(word)
        self.word = word
        self.offset = offset


def parse_numbers(text: str) -> npt.NDArray[np.float64]:
    """Return the numbers of `text`, separated by white space; raises BadNumber at the first word that is none."""
    # Grows in place: a list of Python floats would take four times the memory.
    values = array("d")
    for start, end in _blocks(text):
        block = text[start:end]
        # float() accepts 1_000 and digits of all scripts; in a network file both are mistakes.
        odd = "_" in block or not block.isascii()
        try:
            values.extend(map(float, block.split()))
        except ValueError:
            odd = True
        if odd:
            _refuse_first_bad(block, start)
    return np.frombuffer(values) if values else np.empty(0)


def shown(word: str) -> str:
    """Return `word` quoted for a message, shortened if it is long."""
    return repr(word if len(word) <= 40 else f"{word[:37]}...")


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    while start < len(text):
        # The cut goes to the next white space, so that no number is split in two.
        space = _SPACE.search(text, start + BLOCK)
        end = space.start() if space else len(text)
        yield start, end
        start = end


def _refuse_first_bad(block: str, start: int) -> None:
    for match in _WORD.finditer(block):
        if not _is_number(match[0]):
            raise BadNumber(match[0], start + match.start())


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return word.isascii() and "_" not in word
