"""Files of nothing but numbers, apart from comments: their words with the places of these. Main class: NumberWords.

Called by `uai`, `fg` and `wcsp`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from junctor.formats.files import place_at
from junctor.formats.numbers import BadNumber, note_lost, parse_numbers, shown
from junctor.model.errors import ModelError, Place
from junctor.model.network import Reading

# States allowed in total beyond one for each number in the file: a short file may claim a billion.
SPARE_STATES = 2**20

# What `str.split` takes for white space: offsets of words must agree with those of parse_numbers.
_IS_SPACE = np.isin(np.arange(256), [*b" \t\n\r\v\f\x1c\x1d\x1e\x1f"])


def without_comments(text: str) -> str:
    """Return the text with comments (`#` to the end of the line) turned into spaces."""
    return re.sub(r"#[^\n]*", lambda comment: " " * len(comment[0]), text) if "#" in text else text


class NumberWords:
    """The words of a text from `start` on, all numbers, taken one after the other; any white space separates them."""

    def __init__(self, text: str, start: int, file: str | None, reading: Reading | None) -> None:
        self._text = text
        self._file = file
        foreign = re.search(r"[^\x00-\x7f]", text)
        if foreign:
            place = place_at(text, foreign.start(), file)
            raise ModelError(f"found the character {foreign[0]!r}, expected numbers", place)
        lost: list[str] = []
        try:
            self._values = parse_numbers(text[start:], lost)
        except BadNumber as bad:
            place = place_at(text, start + bad.offset, file)
            raise ModelError(f"found {shown(bad.word)}, expected a number", place) from None
        if lost:
            note_lost(lost, place_at(text, text.index(lost[0], start), file), reading)
        # Offsets of words and line ends, found once: all of thousands of tables need their places.
        characters = np.frombuffer(text.encode("ascii"), dtype=np.uint8)
        space = _IS_SPACE[characters[start:]]
        self._starts = start + np.flatnonzero(~space & np.concatenate(([True], space[:-1])))
        self._newlines = np.flatnonzero(characters == ord("\n"))
        self.next = 0

    @property
    def most_states(self) -> int:
        """States that all variables of the rest may have together."""
        return SPARE_STATES + self.left

    @property
    def left(self) -> int:
        """NumberWords not taken yet."""
        return len(self._values) - self.next

    def places(self, words: Sequence[int]) -> list[Place]:
        """Places of words by their numbers; that after the last one is the end of the text."""
        ends = np.append(self._starts, len(self._text.rstrip()))
        offsets = ends[np.array(words, dtype=np.int64)]
        lines = np.searchsorted(self._newlines, offsets)
        columns = offsets - np.append(-1, self._newlines)[lines]
        return [
            Place(self._file, line + 1, column) for line, column in zip(lines.tolist(), columns.tolist(), strict=True)
        ]

    def here(self) -> Place:
        """Place of the next word."""
        return self.places([self.next])[0]

    def follow(self, number: int) -> npt.NDArray[np.float64]:
        """Return the next `number` words, or fewer at the end of the file; they are not taken."""
        return self._values[self.next : self.next + number]

    def whole(self, what: str, most: float = 2**53, least: int = 0) -> int:
        """Take a whole number; raises ModelError with `what` for the end of the file or another word.

        most, least: of the number; above 2^53 doubles skip integers.
        """
        if not self.left:
            raise ModelError(f"found the end of the file, expected {what}", self.here())
        value = float(self._values[self.next])
        if not least <= value <= most or not value.is_integer():
            raise ModelError(f"found {self._word()}, expected {what}, a whole number", self.here())
        self.next += 1
        return int(value)

    def count(self, what: str) -> int:
        """Take the number of following items of at least one word each, so that no small file asks for large lists."""
        first = self.next
        number = self.whole(what)
        if number > self.left:
            (place,) = self.places([first])
            raise ModelError(f"{what} is {number:,}, but only {self.left:,} more numbers follow", place)
        return number

    def entries(self, number: int, what: str) -> npt.NDArray[np.float64]:
        """Take `number` entries of the table that errors call `what`."""
        if number > self.left:
            message = f"found {self.left:,} of the {number:,} entries of {what} before the end of the file"
            self.next = len(self._values)
            raise ModelError(message, self.here())
        self.next += number
        return self._values[self.next - number : self.next]

    def expect_end(self) -> None:
        """Raise ModelError if words are left."""
        if self.left:
            more = f"found {self._word()} and {self.left - 1:,} more numbers" if self.left > 1 else self._word()
            raise ModelError(f"{more} after the last table, expected the end of the file", self.here())

    def _word(self) -> str:
        start = int(self._starts[self.next])
        return shown(self._text[start : start + 100].split()[0])
