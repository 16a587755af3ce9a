"""WCSP files: weighted constraint satisfaction problems of toulbar2, over numbered variables.

    latin 4 3 2 10    name, number of variables, most states of one, number of cost functions, bound
    3 3 2 2           number of states of each variable
    2 0 1 0 2         variables of a function, which, the cost of what is not listed, and how many tuples are
    0 0 10            states of a tuple, and its cost: from the bound on the tuple is impossible
    1 1 4
    -2 1 2 0 1        a function whose tuples others share has minus the number of its variables, ...
    0 0 10
    2 2 3 0 -1        ... and takes the place of theirs as minus the number of the shared function, from 1

Costs are whole numbers. The cost -1 instead of that of unlisted tuples comes before the name of a formula (`salldiff`,
`>=`), which is not read. Source: the description of the format in toulbar2's manual. Main function: `read`.
"""

from __future__ import annotations

import math
import re

import numpy as np
import numpy.typing as npt

from junctor.formats.costs import CostTables
from junctor.formats.files import place_at, title_of
from junctor.formats.numbers import shown
from junctor.formats.words import NumberWords
from junctor.model.errors import ModelError, Place
from junctor.model.network import DraftTable, DraftVariable, Network, Reading, build_network

_FORMULA = re.compile(r"(?<!\S)-1\s+(?=[^\s\d.+-])(\S+)")


def read(text: str, file: str | None = None, reading: Reading | None = None) -> Network:
    """Return the network of a WCSP file; raises ModelError, with line and column, for whatever is wrong with it."""
    name = re.match(r"\s*(\S+)", text)
    if name is None:
        raise ModelError("found nothing but space, expected the name of a problem", Place(file))
    formula = _FORMULA.search(text, name.end())
    if formula:
        raise formula_error(formula[1], place_at(text, formula.start(1), file))
    words = NumberWords(text, name.end(), file, reading)
    number, most = words.count("the number of variables"), words.whole("the largest number of states")
    functions = words.count("the number of cost functions")
    bound = words.whole("the bound", math.inf)
    variables = _variables(words, number, most)
    reader = _Functions(words, [len(variable.states) for variable in variables], CostTables(bound))
    tables = [table for _ in range(functions) for table in reader.take()]
    words.expect_end()
    return build_network(name[1] or title_of(file), "markov", variables, tables, Place(file), reading)


def formula_error(name: str, place: Place) -> ModelError:
    """Return the error of a cost function that is given by a formula or an algorithm instead of a table."""
    return ModelError(
        f"found the cost function {shown(name)}, which is given by a formula; only tables of costs are read: write its "
        "costs as a table, or as several tables over fewer variables",
        place,
    )


def _variables(words: NumberWords, number: int, most: int) -> list[DraftVariable]:
    allowed = words.most_states
    variables = []
    for i in range(number):
        place = words.here()
        size = words.whole(f"the number of states of variable {i}")
        allowed -= size
        if not 1 <= size <= most:
            raise ModelError(f"variable {i} has {size:,} states, expected 1 to {most:,}, the most in the header", place)
        if allowed < 0:
            raise ModelError(f"variable {i} has {size:,} states, far more than the file has numbers", place)
        variables.append(DraftVariable(str(i), tuple(map(str, range(size))), place))
    return variables


class _Functions:
    """Takes cost functions, one after the other, and keeps those that others share."""

    def __init__(self, words: NumberWords, sizes: list[int], tables: CostTables) -> None:
        self.words = words
        self.sizes = sizes
        self.tables = tables
        self._shared: list[tuple[list[int], npt.NDArray[np.float64]]] = []

    def take(self) -> list[DraftTable]:
        """Take a function and return its factors; raises ModelError."""
        words, place = self.words, self.words.here()
        arity = words.whole("the number of variables of a cost function", least=-words.left)
        scope = [self._variable() for _ in range(abs(arity))]
        shape = [self.sizes[variable] for variable in scope]
        what = f"the cost function over {' '.join(map(str, scope[:20])) or 'no variables'}"
        default = words.whole(f"the cost of what {what} does not list")
        at = words.here()
        tuples = words.whole(f"the number of tuples of {what}", least=-(2**53))
        if tuples < 0:
            costs = self._shared_costs(-tuples, shape, what, at)
        else:
            costs = self.tables.filled(shape, default, tuples, what, place)
            self._list(costs, tuples, shape, what)
        if arity < 0:
            self._shared.append((shape, costs))
        return self.tables.factors([str(variable) for variable in scope], costs, what, place)

    def _variable(self) -> int:
        place = self.words.here()
        variable = self.words.whole("a variable of a cost function")
        if variable >= len(self.sizes):
            raise ModelError(f"found variable {variable}, expected one from 0 to {len(self.sizes) - 1}", place)
        return variable

    def _shared_costs(self, number: int, shape: list[int], what: str, place: Place) -> npt.NDArray[np.float64]:
        """Return the table of a shared function by its number, from 1."""
        if number > len(self._shared):
            raise ModelError(f"found {-number}, but {len(self._shared)} functions before this one are shared", place)
        theirs, costs = self._shared[number - 1]
        if theirs != shape:
            sizes, other = (" x ".join(map(str, sizes)) for sizes in (shape, theirs))
            raise ModelError(f"{what} has {sizes} entries, and the shared function {number} has {other}", place)
        return costs

    def _list(self, costs: npt.NDArray[np.float64], tuples: int, shape: list[int], what: str) -> None:
        """Take the tuples of a function, and write their costs into its table."""
        words, first, row = self.words, self.words.next, len(shape) + 1
        listed = words.entries(tuples * row, f"{what}, each with its states,").reshape(tuples, row)
        _refuse_numbers(words, listed, first, shape, what)
        places = listed[:, :-1].astype(np.int64) @ _strides(shape)
        _refuse_second(words, places, first, row, what)
        costs[places] = listed[:, -1]


def _strides(shape: list[int]) -> npt.NDArray[np.int64]:
    """Return how far apart entries of a flat table are by each variable, the last one fastest."""
    return np.array([math.prod(shape[axis + 1 :]) for axis in range(len(shape))], dtype=np.int64)


def _refuse_numbers(
    words: NumberWords, listed: npt.NDArray[np.float64], first: int, shape: list[int], what: str
) -> None:
    """Raise ModelError for the first state or cost that is none; `first` is the word of the first."""
    most = np.array([*(size - 1 for size in shape), np.finfo(np.float64).max])
    wrong = np.flatnonzero(~((listed >= 0) & (listed <= most) & (listed == np.floor(listed))).ravel())
    if wrong.size:
        (place,), found = words.places([first + int(wrong[0])]), f"{listed.flat[wrong[0]]:.17g}"
        axis = int(wrong[0]) % len(most)
        expected = f"a state from 0 to {most[axis]:.0f}" if axis < len(shape) else "a cost, a whole number"
        raise ModelError(f"{what}: found {found}, expected {expected}", place)


def _refuse_second(words: NumberWords, places: npt.NDArray[np.int64], first: int, row: int, what: str) -> None:
    """Raise ModelError for the first tuple that was listed before."""
    new = np.zeros(len(places), dtype=np.bool_)
    new[np.unique(places, return_index=True)[1]] = True
    if not new.all():
        (place,) = words.places([first + int(np.flatnonzero(~new)[0]) * row])
        raise ModelError(f"{what}: found a tuple a second time, expected one cost of it", place)
