"""Hidden Markov models: a start distribution, a transition matrix and emissions. Immutable, valid once they exist.

Main class: HiddenMarkovModel. Readers and callers hand arrays to `build_model`, the one place where they are checked.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.model.errors import ModelError, Place
from junctor.model.network import ROW_SUM_EXACT, ROW_SUM_TOLERANCE

Doubles = npt.NDArray[np.float64]
Names = tuple[str, ...]


@dataclass(frozen=True, eq=False, slots=True)
class SparseMatrix:
    """The entries above zero of a square matrix, row by row, columns ascending (CSR).

    starts: int64 [states + 1], first entry of each row.
    columns: int32 [entries].
    values: float64 [entries].
    """

    starts: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int32]
    values: Doubles

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.starts) - 1, len(self.starts) - 1

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """The row of each entry."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def at(self, rows: npt.NDArray[Any], columns: npt.NDArray[Any]) -> Doubles:
        """Return the entries at pairs of row and column [n]."""
        if not len(self.columns):
            return np.zeros(len(rows))
        places, is_there = self.places(rows, columns)
        return np.where(is_there, self.values[places], 0.0)

    def places(
        self, rows: npt.NDArray[Any], columns: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the numbers of the entries at pairs of row and column [n], and which of them are there."""
        size = len(self.starts) - 1
        # Rows and columns ascend, and so do the keys: a binary search finds each pair.
        keys, asked = self.rows * size + self.columns, rows.astype(np.int64) * size + columns
        places = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
        return places, keys[places] == asked

    def dense(self) -> Doubles:
        """Return the whole matrix."""
        table = np.zeros(self.shape)
        table[self.rows, self.columns] = self.values
        return table


@dataclass(frozen=True, eq=False)
class HiddenMarkovModel:
    """A hidden Markov model over numbered states; rows of probabilities sum to 1, and zeros are true zeros.

    start: float64 [states].
    transition: float64 [states, states], from the row to the column, or sparse.
    emission: float64 [states, symbols]; None where sequences have log-likelihoods.
    state_names, symbol_names: None for numbers.
    sensors: observed variables and their states where a symbol is a state of each, the last one fastest; or none.
    """

    start: Doubles
    transition: Doubles | SparseMatrix
    emission: Doubles | None = None
    state_names: Names | None = None
    symbol_names: Names | None = None
    sensors: tuple[tuple[str, Names], ...] = ()

    @property
    def states(self) -> int:
        """Number of states."""
        return len(self.start)

    @property
    def symbols(self) -> int:
        """Number of symbols, 0 without emissions."""
        return 0 if self.emission is None else self.emission.shape[1]

    @property
    def sparse(self) -> bool:
        """True for a sparse transition matrix."""
        return isinstance(self.transition, SparseMatrix)

    @property
    def entries(self) -> Doubles:
        """The transition probabilities: the whole matrix, or the entries above zero of a sparse one."""
        return self.transition.values if isinstance(self.transition, SparseMatrix) else self.transition

    @cached_property
    def digest(self) -> str:
        """SHA-256 over everything that an answer depends on."""
        # Names are part of it, as answers name states; the order of the parts is that of run directories in use.
        named = (self.states, self.state_names, self.symbol_names, self.sparse)
        sha = hashlib.sha256(repr((*named, self.sensors) if self.sensors else named).encode())
        arrays: list[npt.NDArray[Any]] = [self.start, self.entries]
        if isinstance(self.transition, SparseMatrix):
            arrays[1:1] = [self.transition.starts, self.transition.columns]
        if self.emission is not None:
            arrays.append(self.emission)
        for array in arrays:
            sha.update(repr(array.shape).encode())
            sha.update(np.ascontiguousarray(array).data)
        return sha.hexdigest()

    def __repr__(self) -> str:
        kind = f"{len(self.entries):,} transitions" if self.sparse else "dense"
        return f"HiddenMarkovModel({self.states:,} states, {self.symbols:,} symbols, {kind})"


def build_model(
    start: npt.ArrayLike,
    transition: Any,
    emission: npt.ArrayLike | None = None,
    states: Sequence[str] | None = None,
    symbols: Sequence[str] | None = None,
    place: Place | None = None,
    sensors: Mapping[str, Sequence[str]] | None = None,
) -> HiddenMarkovModel:
    """Check arrays and names and return the model.

    start: [states].
    transition: an array [states, states], a `SparseMatrix`, or a sparse matrix of SciPy.
    emission: [states, symbols], None for sequences with log-likelihoods.
    states, symbols: names, which are texts; None for numbers.
    place: the file, for errors.
    sensors: states of each observed variable, where a symbol is a state of each ("loud,hot"), the last one fastest.
    Raises ModelError for wrong shapes, negative or non-finite numbers, rows that do not sum to 1, and names that are
    empty, repeated or of the wrong number.
    """
    # Rows that miss 1 by up to 1e-2 are divided by their sum unless they are within 2e-6, as in networks.
    first = _numbers(start, "start", 1, place)
    size = len(first)
    if not size:
        raise ModelError("no states found, expected at least one", place)
    matrix: Doubles | SparseMatrix
    if isinstance(transition, SparseMatrix):
        matrix = _checked_sparse(transition, size, place)
    elif hasattr(transition, "tocsr"):
        matrix = _checked_sparse(_from_scipy(transition), size, place)
    else:
        matrix = _numbers(transition, "transition", 2, place)
        _refuse_shape(matrix, (size, size), "transition", place)
        matrix = _rows_of_one(matrix, "transition", place)
    table = None
    if emission is not None:
        table = _numbers(emission, "emission", 2, place)
        _refuse_shape(table, (size, table.shape[1]), "emission", place)
        table = _rows_of_one(table, "emission", place)
    elif symbols is not None:
        raise ModelError("symbols have names, but there is no emission matrix", place)
    parts = _checked_sensors(sensors, 0 if table is None else table.shape[1], place)
    if parts:
        joined = symbol_names_of(parts)
        if symbols is not None and tuple(symbols) != joined:
            raise ModelError("the names of the symbols are not those of the sensors' states", place)
        symbols = joined
    return HiddenMarkovModel(
        _frozen(_rows_of_one(first[None], "start", place)[0]),
        matrix if isinstance(matrix, SparseMatrix) else _frozen(matrix),
        None if table is None else _frozen(table),
        _checked_names(states, size, "state", place),
        None if table is None else _checked_names(symbols, table.shape[1], "symbol", place),
        parts,
    )


def symbol_names_of(sensors: Sequence[tuple[str, Sequence[str]]]) -> Names:
    """Return the names of symbols that are a state of each sensor."""
    return tuple(",".join(states) for states in product(*(states for _, states in sensors)))


def _checked_sensors(
    sensors: Mapping[str, Sequence[str]] | None, symbols: int, place: Place | None
) -> tuple[tuple[str, Names], ...]:
    if not sensors:
        return ()
    _checked_names(tuple(sensors), len(sensors), "sensor", place)
    parts = [
        (name, _checked_names(states, len(states), f"state of {name!r}", place)) for name, states in sensors.items()
    ]
    sizes = [len(states) for states in sensors.values()]
    if math.prod(sizes) != symbols:
        raise ModelError(
            f"sensors of {sizes} states have {math.prod(sizes):,} symbols, the model has {symbols:,}", place
        )
    return tuple((name, states) for name, states in parts if states is not None)


def _frozen(array: Doubles) -> Doubles:
    # A copy: the caller may go on writing to its own array.
    array = np.array(array)
    array.setflags(write=False)
    return array


def _numbers(values: npt.ArrayLike, what: str, axes: int, place: Place | None) -> Doubles:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{what}: not an array of numbers ({error})", place) from None
    if array.ndim != axes or array.shape[-1] == 0:
        raise ModelError(f"{what}: found an array of shape {array.shape}, expected {axes} axes, none empty", place)
    bad = ~np.isfinite(array) | (array < 0)
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ModelError(f"{what}{list(at)}: found {float(array[at])!r}, expected a number from 0 to 1", place)
    return array


def _refuse_shape(array: Doubles, shape: tuple[int, ...], what: str, place: Place | None) -> None:
    if array.shape != shape:
        raise ModelError(f"{what}: found shape {array.shape}, expected {shape}", place)


def _rows_of_one(table: Doubles, what: str, place: Place | None) -> Doubles:
    sums = table.sum(axis=-1, keepdims=True)
    return np.where(_divided(sums[:, 0], what, place)[:, None], table / sums, table)


def _divided(sums: npt.NDArray[Any], what: str, place: Place | None) -> npt.NDArray[np.bool_]:
    """Return the rows to divide by their sum, bool [rows]; raises ModelError where one is too far from 1."""
    off = np.abs(sums - 1.0)
    if off.max() > ROW_SUM_TOLERANCE:
        row = int(off.argmax())
        where = f"{what}: row {row}" if what != "start" else what
        raise ModelError(f"{where} sums to {sums[row]:.9g}, expected 1 (up to {ROW_SUM_TOLERANCE:g} off)", place)
    divided: npt.NDArray[np.bool_] = off > ROW_SUM_EXACT
    return divided


def _from_scipy(matrix: Any) -> SparseMatrix:
    # SciPy sums entries of one place only on demand, and stores zeros.
    rows = matrix.tocsr(copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    return SparseMatrix(rows.indptr.astype(np.int64), rows.indices, rows.data.astype(np.float64))


def _checked_sparse(matrix: SparseMatrix, size: int, place: Place | None) -> SparseMatrix:
    if matrix.columns.size and matrix.columns.dtype.kind not in "iu":
        raise ModelError("transition: next states have to be whole numbers, from 0", place)
    starts, columns = np.asarray(matrix.starts, np.int64), np.asarray(matrix.columns, np.int64)
    if len(starts) != size + 1 or starts[0] != 0 or (np.diff(starts) < 0).any() or starts[-1] != len(columns):
        raise ModelError(f"transition: where its rows begin does not fit {size} states", place)
    values = _numbers(matrix.values, "transition", 1, place)
    if len(values) != len(columns) or ((columns < 0) | (columns >= size)).any():
        raise ModelError(f"transition: an entry has no state between 0 and {size - 1}, or no value", place)
    rows = np.repeat(np.arange(size), np.diff(starts))
    # Columns of a row may come in any order; kernels and `at` rely on ascending ones.
    order = np.argsort(rows * size + columns, kind="stable")
    columns, values = columns[order], values[order]
    if (np.diff(rows * size + columns) == 0).any():
        raise ModelError("transition: a pair of states stands there twice", place)
    sums = np.bincount(rows, values, size)
    values = np.where(_divided(sums, "transition", place)[rows], values / sums[rows], values)
    # Zeros that were written out cost time and mean nothing.
    kept = values > 0
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows[kept], minlength=size))]).astype(np.int64)
    return SparseMatrix(starts, columns[kept].astype(np.int32), _frozen(values[kept]))


def _checked_names(names: Sequence[str] | None, count: int, what: str, place: Place | None) -> Names | None:
    if names is None:
        return None
    if len(names) != count:
        raise ModelError(f"found {len(names)} {what} names, expected {count}", place)
    seen: set[str] = set()
    for name in names:
        if not isinstance(name, str) or not name or name in seen:
            raise ModelError(f"found the {what} name {name!r}, expected texts, none empty, all different", place)
        try:
            name.encode()
        except UnicodeEncodeError:
            # JSON may have them, Arrow and UTF-8 may not.
            said = f"found the {what} name {name!r}, whose characters no file can hold (half of a surrogate pair)"
            raise ModelError(said, place) from None
        seen.add(name)
    return tuple(names)
