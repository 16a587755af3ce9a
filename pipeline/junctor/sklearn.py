"""A network as a classifier of scikit-learn: in pipelines, cross-validation and searches; the extra `sklearn`.

Main class: JunctorClassifier. Tables are fitted by `junctor.learn`, rows are answered by `junctor.posteriors`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from junctor.api import posteriors
from junctor.evidence.states import StateCells
from junctor.formats import read_network
from junctor.learning.learn import learn
from junctor.model.errors import Place
from junctor.model.network import DraftTable, DraftVariable, Network, build_network, table_size
from junctor.runtime.installed import require_extra

# Before anything of it is imported: the error names the extra.
require_extra("sklearn", "junctor.sklearn")

from scipy.sparse import csgraph  # noqa: E402
from sklearn.base import BaseEstimator, ClassifierMixin  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data  # noqa: E402

__all__ = ["JunctorClassifier"]

Codes = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Structure = str | os.PathLike[str] | Network

# Structures that are made of the columns.
MADE = ("naive", "tan")
_PLACE = Place("columns")


class JunctorClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A Bayesian network that answers with P(class | the cells of a row that are there).

    structure: "naive" (each column depends on the class alone); "tan" (and on one other column: the tree of most
        conditional mutual information, Chow and Liu 1968, Friedman et al. 1997); or a Network, or the path of its file,
        with the class and all columns among its variables.
    target: name of the class in the network.
    bins: of a column of numbers, at its quantiles; one with no more different numbers has a state for each. Columns of
        a given network are states of that.
    prior: of the tables, as of `junctor.learn`.
    refit: False takes the tables of a given network as they are.

    Cells that are NaN or None observe nothing, in `fit` (by expectation maximisation) and in `predict`. After `fit`,
    `network_` is the network, `classes_` are the classes.
    """

    classes_: npt.NDArray[Any]
    network_: Network
    # Meanings of the columns, none of those of a given network; and the state of each class in the network.
    _columns: tuple[_Column, ...]
    _order: Codes

    def __init__(
        self,
        structure: Structure = "naive",
        *,
        target: str = "class",
        bins: int = 5,
        prior: str = "bdeu:1",
        refit: bool = True,
    ) -> None:
        self.structure = structure
        self.target = target
        self.bins = bins
        self.prior = prior
        self.refit = refit

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> JunctorClassifier:
        """Fit the tables, and the bins of numbers, to rows with known classes.

        X: array or data frame [rows, columns]: numbers, texts and booleans, NaN or None where nothing is observed.
        y: [rows], the classes.
        sample_weight: [rows], weights; a row of weight 2 is two rows. None for 1 each.
        Raises ValueError, and the errors of `junctor.learn`.
        """
        X, y = validate_data(self, X, y, dtype=None, ensure_all_finite="allow-nan")
        check_classification_targets(y)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        # A row without weight is no row: it has no part in bins and classes either.
        X, y, weights = X[weights > 0], y[weights > 0], weights[weights > 0]
        if not len(X):
            raise ValueError("all weights are 0: expected a row to learn from")
        if self.target in self._names:
            raise ValueError(
                f"found a column {self.target!r}, the name of the class: leave it out, or name another target"
            )
        self._columns = ()
        cells = [_cells(column) for column in X.T]
        if isinstance(self.structure, str) and self.structure in MADE:
            network, states = self._made(cells, y, weights)
        else:
            network, states = self._given(y)
        if self.refit:
            network = self._fitted(network, cells, states, weights)
        self.network_ = network
        return self

    def predict_proba(self, X: Any) -> Floats:
        """Return P(class | row), float64 [rows, classes], classes in the order of `classes_`.

        Raises ValueError, also for rows that the network rules out or that name no state of it.
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=None, ensure_all_finite="allow-nan", reset=False)
        rows = self._table([_cells(column) for column in X.T])
        found = posteriors(self.network_, rows, [self.target])
        for row, status in enumerate(found["status"].to_pylist()):
            if status != "ok":
                raise ValueError(f"row {row + 1}: {found['reason'][row].as_py()}")
        shares = found[self.target].combine_chunks().flatten().to_numpy().reshape(len(X), -1)
        return np.ascontiguousarray(shares[:, self._order])

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the most probable class of each row, [rows]; errors as of `predict_proba`."""
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def _made(self, cells: Sequence[pa.Array], y: Any, weights: Floats) -> tuple[Network, Codes]:
        """Return a network of the structure with uniform tables, and the state of the class of each row."""
        if not self.refit:
            raise ValueError("refit=False takes the tables of a given network: give one as the structure")
        if isinstance(self.bins, bool) or not isinstance(self.bins, Integral) or self.bins < 2:
            raise ValueError(f"found bins={self.bins!r}, expected a whole number from 2 on")
        names = self._names
        self.classes_, states = np.unique(y, return_inverse=True)
        self._order = np.arange(len(self.classes_))
        self._columns = tuple(_column(*each, weights, int(self.bins)) for each in zip(names, cells, strict=True))
        codes = [column.codes(each) for column, each in zip(self._columns, cells, strict=True)]
        sizes = [len(column.states) for column in self._columns]
        parents = [-1] * len(names)
        if self.structure == "tan":
            parents = _tree(codes, sizes, states, len(self.classes_), weights)
        variables = {self.target: _texts(self.classes_)} | {column.name: column.states for column in self._columns}
        scopes = [(self.target,)]
        scopes += [
            (self.target, *([names[parent]] if parent >= 0 else []), name)
            for name, parent in zip(names, parents, strict=True)
        ]
        return _uniform(variables, scopes), states

    def _given(self, y: Any) -> tuple[Network, Codes]:
        """Return the network that was given, and the state of the class of each row."""
        if isinstance(self.structure, str) and "." not in self.structure:
            expected = "'naive', 'tan', a Network or the path of its file"
            raise ValueError(f"found the structure {self.structure!r}, expected {expected}")
        network = self.structure if isinstance(self.structure, Network) else read_network(self.structure)
        if not hasattr(self, "feature_names_in_"):
            raise ValueError("columns of an array have no names, to be found in the network: give a data frame")
        for name in self._names:
            network.find(name)
        variable = network.variables[network.find(self.target)]
        values, rows = np.unique(y, return_inverse=True)
        cells = StateCells(variable)
        states = np.array([cells.code(value) for value in values.tolist()])
        for value, state in zip(values.tolist(), states.tolist(), strict=True):
            if state < 0:
                raise ValueError(f"class {value!r} of {self.target!r}: {cells.reason(value)}")
        others = sorted(set(range(variable.cardinality)) - set(states.tolist()))
        if others and not isinstance(values[0], str):
            raise ValueError(f"no row is of the class {variable.states[others[0]]!r}: its value is not known")
        everything = np.array([*values.tolist(), *(variable.states[state] for state in others)])
        self.classes_, order = np.unique(everything, return_index=True)
        self._order = np.array([*states, *others])[order]
        return network, states[rows]

    def _fitted(self, network: Network, cells: Sequence[pa.Array], states: Codes, weights: Floats) -> Network:
        own = network.variables[network.find(self.target)].states
        rows = self._table(cells).append_column(self.target, _dictionary(states, own))
        weight = "weight"
        while weight in rows.column_names or weight in network.index:
            weight += "_"
        rows = rows.append_column(weight, pa.array(weights))
        return learn(network, rows, prior=self.prior, weight=weight, strict=True).network

    def _table(self, cells: Sequence[pa.Array]) -> pa.Table:
        """Return cells as evidence on the network."""
        if not self._columns:
            return pa.Table.from_arrays(list(cells), names=self._names)
        arrays = [_dictionary(each.codes(own), each.states) for each, own in zip(self._columns, cells, strict=True)]
        return pa.Table.from_arrays(arrays, names=self._names)

    @property
    def _names(self) -> list[str]:
        return [str(name) for name in getattr(self, "feature_names_in_", map("x{}".format, range(self.n_features_in_)))]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags


@dataclass(frozen=True, eq=False)
class _Column:
    """What a column means: its states, of texts, or of numbers between edges.

    name: of the variable.
    states: their names.
    edges: float64, ascending, of a column of numbers; a number is of the state that ends at the first edge not below
        it. None for texts.
    """

    name: str
    states: tuple[str, ...]
    edges: Floats | None

    def codes(self, cells: pa.Array) -> Codes:
        """Return the state of each cell, -1 where nothing is observed; raises ValueError for texts among numbers."""
        there = cells.is_valid().to_numpy(zero_copy_only=False)
        codes = np.full(len(cells), -1, dtype=np.int64)
        if self.edges is not None:
            codes[there] = np.searchsorted(self.edges, self._numbers(cells))
            return codes
        known = {state: code for code, state in enumerate(self.states)}
        texts = _texts(cells.drop_null().to_pylist())
        codes[there] = [known.get(text, -1) for text in texts]
        if unseen := sorted(set(texts) - known.keys()):
            shown = f"{unseen[0]!r}" + f" and {len(unseen) - 1:,} more" * (len(unseen) > 1)
            warnings.warn(f"column {self.name!r}: no row of the fit has {shown}: taken as not observed", stacklevel=5)
        return codes

    def _numbers(self, cells: pa.Array) -> Floats:
        if not _is_number(cells) and cells.null_count < len(cells):
            found = cells.drop_null()[0].as_py()
            raise ValueError(f"column {self.name!r}: found {found!r}, expected numbers as in the fit")
        return _as_numbers(cells)


def _column(name: str, cells: pa.Array, weights: Floats, bins: int) -> _Column:
    """Return what a column means, by the cells of the fit."""
    if not _is_number(cells) and cells.null_count < len(cells):
        return _Column(name, tuple(sorted(set(_texts(cells.drop_null().to_pylist())))), None)
    edges = _edges(_as_numbers(cells), weights[cells.is_valid().to_numpy(zero_copy_only=False)], bins)
    shown = [f"{edge:.6g}" for edge in edges]
    if len(set(shown)) < len(shown):
        shown = [repr(float(edge)) for edge in edges]
    between = [f"{low} to {high}" for low, high in pairwise(shown)]
    # Without a number, or with one, there is nothing to tell apart.
    return _Column(name, (f"<= {shown[0]}", *between, f"> {shown[-1]}") if shown else ("any",), edges)


def _edges(numbers: Floats, weights: Floats, bins: int) -> Floats:
    """Return the edges between bins of about equal weight, each halfway between two numbers that are there."""
    distinct, place = np.unique(numbers, return_inverse=True)
    last = np.arange(len(distinct) - 1)
    if len(distinct) > bins:
        mass = np.cumsum(np.bincount(place, weights))
        last = np.unique(np.searchsorted(mass, mass[-1] * np.arange(1, bins) / bins))
        last = last[last < len(distinct) - 1]
    # Halves first: the sum of two may be infinite.
    return distinct[last] / 2 + distinct[last + 1] / 2 if len(last) else np.zeros(0)


def _tree(codes: Sequence[Codes], sizes: Sequence[int], states: Codes, classes: int, weights: Floats) -> list[int]:
    """Return the parent of each column in the tree of most mutual information given the class, -1 for the root."""
    count = len(codes)
    gains = np.zeros((count, count))
    for i, j in combinations(range(count), 2):
        there = (codes[i] >= 0) & (codes[j] >= 0)
        shape = (classes, sizes[i], sizes[j])
        entries = table_size(shape, "the counts of two columns and the class")
        place = np.ravel_multi_index((states[there], codes[i][there], codes[j][there]), shape)
        gains[i, j] = _information(np.bincount(place, weights[there], entries).reshape(shape).astype(np.float64))
    # One is added, since 0 stands for no edge.
    tree = csgraph.minimum_spanning_tree(-1.0 - np.triu(gains, 1) if count > 1 else gains)
    return [max(-1, int(parent)) for parent in csgraph.breadth_first_order(tree, 0, directed=False)[1]]


def _information(counts: Floats) -> float:
    """Return the mutual information of the last two axes given the first, in nats, times the sum of all counts."""
    alone, left, right = counts.sum(axis=(1, 2)), counts.sum(axis=2), counts.sum(axis=1)
    seen = counts > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = counts * alone[:, None, None] / (left[:, :, None] * right[:, None, :])
    return float((counts[seen] * np.log(ratio[seen])).sum())


def _uniform(variables: dict[str, tuple[str, ...]], scopes: Sequence[Sequence[str]]) -> Network:
    """Return a Bayesian network of variables with their states, whose tables are uniform."""
    drafts = [DraftVariable(name, states, _PLACE) for name, states in variables.items()]
    tables = []
    for scope in scopes:
        shape = [len(variables[name]) for name in scope]
        table_size(shape, f"the table of {scope[-1]!r}")
        tables.append(DraftTable(scope, np.full(shape, 1.0 / shape[-1]), _PLACE))
    return build_network("classifier", "bayes", drafts, tables)


def _cells(column: npt.NDArray[Any]) -> pa.Array:
    """Return the cells of a column, null where they are missing; what has no common type as texts."""
    try:
        return pa.array(column, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        # Not equal to itself: NaN.
        return pa.array([None if cell is None or cell != cell else str(cell) for cell in column.tolist()])


def _is_number(cells: pa.Array) -> bool:
    return bool(pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type))


def _as_numbers(cells: pa.Array) -> Floats:
    return np.asarray(cells.drop_null().to_numpy(zero_copy_only=False), dtype=np.float64)


def _texts(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(map(str, values))


def _dictionary(codes: Codes, states: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), list(states))
