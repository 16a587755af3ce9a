"""FG files: factor graphs of libDAI, over numbered variables.

    1                 number of factors; an empty line before each factor
                      (any white space separates, and `#` begins a comment)
    2                 number of variables of the factor
    0 7               which, any whole numbers
    2 3               number of states of each
    4                 number of entries that follow; those left out are 0
    0 0.1             where an entry stands, first variable fastest, and the entry
    1 3.5
    2 2.8
    5 6.3

The order is that of the file formats in libDAI's documentation and of its reader (`factorgraph.cpp`), which takes the
last of several entries for one place; here they are refused. Main function: `read`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from junctor.formats.files import title_of
from junctor.formats.text import MAX_FILLED
from junctor.formats.words import NumberWords, without_comments
from junctor.model.errors import ModelError, Place
from junctor.model.network import DraftTable, DraftVariable, Network, Reading, build_network, table_size


def read(text: str, file: str | None = None, reading: Reading | None = None) -> Network:
    """Return the network of an FG file; raises ModelError, with line and column, for whatever is wrong with it."""
    words = NumberWords(without_comments(text), 0, file, reading)
    factors = _Factors(words)
    tables = [factors.take() for _ in range(words.count("the number of factors"))]
    words.expect_end()
    # As libDAI numbers them: by their labels, whatever the order in which factors name them.
    variables = [
        DraftVariable(str(label), tuple(map(str, range(factors.sizes[label]))), factors.places[label])
        for label in sorted(factors.sizes)
    ]
    return build_network(title_of(file), "markov", variables, tables, Place(file), reading)


class _Factors:
    """Takes factors, one after the other; `sizes` and `places` are of the variables that they have named."""

    def __init__(self, words: NumberWords) -> None:
        self.words = words
        self.sizes: dict[int, int] = {}
        self.places: dict[int, Place] = {}
        self._states = words.most_states
        self._left_out = MAX_FILLED

    def take(self) -> DraftTable:
        """Take a factor; raises ModelError."""
        words, place = self.words, self.words.here()
        number = words.count("the number of variables of a factor")
        labels = [(words.here(), words.whole("a variable of a factor")) for _ in range(number)]
        shape = [self._size(at, label) for at, label in labels]
        what = f"the factor over {' '.join(str(label) for _, label in labels[:20]) or 'no variables'}"
        values = self._entries(what, table_size(shape, what, place), place)
        # The first variable is fastest there, here the last one.
        table = values.reshape(shape[::-1]).transpose()
        return DraftTable([str(label) for _, label in labels], table, place)

    def _size(self, at: Place, label: int) -> int:
        """Take the number of states of a variable."""
        words, place = self.words, self.words.here()
        size = words.whole(f"the number of states of variable {label}")
        before = self.sizes.setdefault(label, size)
        if size != before:
            raise ModelError(f"variable {label} has {size:,} states here, but {before:,} in a factor before", place)
        if label not in self.places:
            self.places[label] = at
            self._states -= size
        if size < 1:
            raise ModelError(f"variable {label} has 0 states, expected at least one", place)
        if self._states < 0:
            raise ModelError(f"variable {label} has {size:,} states, far more than the file has numbers", place)
        return size

    def _entries(self, what: str, size: int, place: Place) -> npt.NDArray[np.float64]:
        """Take the entries of a factor, and return its table, flat."""
        words = self.words
        number = words.whole(f"the number of entries of {what}")
        self._left_out -= size - min(number, size)
        if self._left_out < 0:
            said = f"{what} has {size:,} entries, but only {number:,} are written out; allowed to be left out are"
            raise ModelError(f"{said} {MAX_FILLED:,} in all", place)
        first = words.next
        pairs = words.entries(2 * number, f"{what}, each with its place,").reshape(-1, 2)
        self._refuse_places(pairs[:, 0], size, first, what)
        values = np.zeros(size)
        values[pairs[:, 0].astype(np.int64)] = pairs[:, 1]
        return values

    def _refuse_places(self, places: npt.NDArray[np.float64], size: int, first: int, what: str) -> None:
        """Raise ModelError for the first place of an entry that is none, or was before; `first`: word of the first."""
        fits = (places >= 0) & (places < size) & (places == np.floor(places))
        fits[fits] = _are_new(places[fits])
        wrong = np.flatnonzero(~fits)
        if wrong.size:
            at = int(wrong[0])
            found, (place,) = f"{places[at]:.17g}", self.words.places([first + 2 * at])
            if (places[:at] == places[at]).any():
                raise ModelError(f"{what}: found a second entry for the place {found}, expected one", place)
            raise ModelError(f"{what}: found an entry at {found}, expected a place from 0 to {size - 1:,}", place)


def _are_new(places: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return which numbers occur for the first time."""
    new = np.zeros(len(places), dtype=np.bool_)
    new[np.unique(places, return_index=True)[1]] = True
    return new
