"""UAI files: BAYES and MARKOV networks of numbered variables, as the UAI inference competitions use them.

    MARKOV            kind
    3                 number of variables
    2 2 3             number of states of each
    2                 number of tables
    2 0 1             number of variables of a table, and which; in BAYES the child comes last
    2 1 2
    4                 number of entries of the first table, and the entries, last variable fastest
    0.1 0.9 0.9 0.1
    6
    ...

Main functions: `read` and `write`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from junctor.formats.files import place_at, title_of
from junctor.formats.numbers import shown
from junctor.formats.words import NumberWords, without_comments
from junctor.model.errors import ModelError, Place
from junctor.model.network import (
    MAX_TABLE_ENTRIES,
    MAX_TABLE_VARIABLES,
    DraftTable,
    DraftVariable,
    Kind,
    Network,
    Reading,
    build_network,
    table_size,
)

_KINDS: dict[str, Kind] = {"BAYES": "bayes", "MARKOV": "markov"}


def read(text: str, file: str | None = None, reading: Reading | None = None) -> Network:
    """Return the network of a UAI file; raises ModelError, with line and column, for whatever is wrong with it."""
    kind, words = _opened(text, file, reading)
    variables, sizes = _variables(words)
    scopes = [_scope(words, len(variables)) for _ in range(words.count("the number of tables"))]
    firsts, entries = [], []
    for scope in scopes:
        firsts.append(words.next)
        entries.append(_entries(words, scope, sizes))
    # More numbers than the header says point to a wrong header, and so to wrong tables.
    words.expect_end()
    names = [variable.name for variable in variables]
    tables = [
        DraftTable([names[i] for i in scope], values, place)
        for scope, values, place in zip(scopes, entries, words.places(firsts), strict=True)
    ]
    return build_network(title_of(file), kind, variables, tables, Place(file), reading)


def write(network: Network) -> str:
    """Return the network as a UAI file; numbers read back exactly, names of variables and states are lost."""
    lines = [network.kind.upper(), str(len(network.variables)), _line(network.cardinalities)]
    lines.append(str(len(network.factors)))
    lines += [_line((len(factor.scope), *factor.scope)) for factor in network.factors]
    for factor in network.factors:
        rows = factor.table.reshape(-1, factor.table.shape[-1] if factor.scope else 1)
        lines += ["", str(factor.table.size), *(_line(row) for row in rows.tolist())]
    return "\n".join(lines) + "\n"


def _line(numbers: Sequence[float]) -> str:
    # str of a double is the shortest text that reads back as the same double.
    return " ".join(map(str, numbers))


def _opened(text: str, file: str | None, reading: Reading | None) -> tuple[Kind, NumberWords]:
    plain = without_comments(text)
    first = re.search(r"\S+", plain)
    if first is None:
        raise ModelError("found nothing but space and comments, expected BAYES or MARKOV", Place(file))
    kind = _KINDS.get(first[0].upper())
    if kind is None:
        raise ModelError(f"found {shown(first[0])}, expected BAYES or MARKOV", place_at(plain, first.start(), file))
    return kind, NumberWords(plain, first.end(), file, reading)


def _variables(words: NumberWords) -> tuple[list[DraftVariable], list[int]]:
    number = words.count("the number of variables")
    allowed = words.most_states
    first = words.next
    found = words.follow(number)
    # All at once where nothing is wrong with any of them: networks may have a million variables.
    if (found >= 1).all() and (found == np.floor(found)).all() and found.sum() <= allowed:
        sizes = found.astype(np.int64).tolist()
        words.next += number
    else:
        sizes = _one_by_one(words, number, allowed)
    # Variables are named "0", "1", ..., and so are states.
    states = {size: tuple(map(str, range(size))) for size in set(sizes)}
    places = words.places(range(first, first + number))
    drafts = zip(sizes, places, strict=True)
    return [DraftVariable(str(i), states[size], place) for i, (size, place) in enumerate(drafts)], sizes


def _one_by_one(words: NumberWords, number: int, allowed: int) -> list[int]:
    """Return the sizes of the variables; raises ModelError for the first that is wrong.

    number: of variables.
    allowed: states of all of them together.
    """
    sizes = []
    for i in range(number):
        place = words.here()
        sizes.append(words.whole(f"the number of states of variable {i}"))
        if sizes[-1] < 1:
            raise ModelError(f"variable {i} has 0 states, expected at least one", place)
        allowed -= sizes[-1]
        if allowed < 0:
            raise ModelError(f"variable {i} has {sizes[-1]:,} states, far more than the file has numbers", place)
    return sizes


def _scope(words: NumberWords, variables: int) -> tuple[int, ...]:
    scope = []
    for _ in range(words.count("the number of variables of a table")):
        scope.append(words.whole("a variable of a table"))
        if scope[-1] >= variables:
            (place,) = words.places([words.next - 1])
            raise ModelError(f"found variable {scope[-1]}, expected one from 0 to {variables - 1}", place)
    return tuple(scope)


def _entries(words: NumberWords, scope: tuple[int, ...], sizes: Sequence[int]) -> npt.NDArray[np.float64]:
    """Take the entries of a table, after their number."""
    shape = [sizes[i] for i in scope]
    # Only errors need a name and a place; most tables have neither.
    expected = math.prod(shape)
    small = len(shape) <= MAX_TABLE_VARIABLES and expected <= MAX_TABLE_ENTRIES
    if small and expected < words.left and words.follow(1)[0] == expected:
        words.next += 1
        return words.entries(expected, "")
    what = f"the table over variables {_line(scope[:20])}" if scope else "the table over no variables"
    place = words.here()
    expected = table_size(shape, what, place)
    entries = words.whole(f"the number of entries of {what}")
    if entries != expected:
        product = " x ".join(map(str, shape)) or "1"
        raise ModelError(f"{what} is said to have {entries:,} entries, expected {expected:,} ({product})", place)
    return words.entries(entries, what)
