"""Numbers in text: converted in bulk, and one by one only to locate a bad one. Used by the readers of all formats."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from junctor.model.errors import Place
from junctor.model.network import Reading

# Characters that are split at a time, so that the words of a large file never exist as objects all at once.
BLOCK = 2**20
# What is too small for a double has a long exponent or many zeros. Each is found by its first characters, fast.
_TINY = [re.compile(pattern) for pattern in (r"e-\d{3}", r"E-\d{3}", "0" * 300)]
_WORD = re.compile(r"\S+")
_SPACE = re.compile(r"\s")


class BadNumber(ValueError):
    """A word that is not a number, and where it starts in the text."""

    def __init__(self, word: str, offset: int) -> None:
        super().__init__(word)
        self.word = word
        self.offset = offset


def parse_numbers(text: str, lost: list[str] | None = None) -> npt.NDArray[np.float64]:
    """Return the numbers of `text`, separated by white space; raises BadNumber at the first word that is none.

    lost: takes up the words that are 0 only because they are too small for a double.
    """
    # Grows in place: a list of Python floats would take four times the memory.
    values = array("d")
    for start, end in _blocks(text):
        block = text[start:end]
        # float() accepts 1_000 and digits of all scripts; in a network file both are mistakes.
        odd = "_" in block or not block.isascii()
        words, first = block.split(), len(values)
        try:
            values.extend(map(float, words))
        except ValueError:
            odd = True
        if odd:
            _refuse_first_bad(block, start)
        if lost is not None and any(pattern.search(block) for pattern in _TINY):
            lost += _lost(words, np.frombuffer(values)[first:])
    return np.frombuffer(values) if values else np.empty(0)


def shown(word: str) -> str:
    """Return `word` quoted for a message, shortened if it is long."""
    return repr(word if len(word) <= 40 else f"{word[:37]}...")


def note_lost(lost: Sequence[str], place: Place, reading: Reading | None) -> None:
    """Note the words that `parse_numbers` lost.

    lost: at least one.
    place: of the first.
    reading: takes up the note.
    """
    if reading is not None:
        reading.notes.append(f"{place}: numbers such as {shown(lost[0])} are too small for a double: taken as 0")


def _lost(words: Sequence[str], values: npt.NDArray[np.float64]) -> list[str]:
    # Different words only: a table may have millions of zeros.
    zeros = dict.fromkeys(map(words.__getitem__, np.flatnonzero(values == 0).tolist()))
    return [word for word in zeros if word.lower().partition("e")[0].strip("+-.0")]


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
