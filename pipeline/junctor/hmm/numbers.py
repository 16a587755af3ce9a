"""The numbers of a model in the form of the kernels: logarithms or probabilities, rows padded, matrices packed.

Main classes: PathNumbers for decoding, SumNumbers for smoothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.hmm.products_cpu import Matrix, dense, packed, padded

from junctor.hmm.model import HiddenMarkovModel, SparseMatrix

Array = npt.NDArray[Any]
# Logarithms nearer to zero are zero: in single precision some machines flush numbers below 1e-38 to zero, others do
# not, and paths have to be the same on all of them.
NEAR_ZERO = 1e-30


def logarithms(probabilities: Array) -> Array:
    """Return natural logarithms, -inf for zero."""
    with np.errstate(divide="ignore"):
        logs: Array = np.log(probabilities)
    return logs


def in_format(logs: Array, dtype: npt.DTypeLike) -> Array:
    """Return logarithms in a number format, with equal bits on every machine."""
    return np.where(np.abs(logs) < NEAR_ZERO, 0.0, logs).astype(dtype)


def log_transitions(model: HiddenMarkovModel, dtype: npt.DTypeLike) -> Array:
    """Return the logarithms of `model.entries`, none above 0."""
    # A row that misses 1 may have an entry above it; the same factor for every transition changes no path.
    logs = logarithms(model.entries)
    return in_format(logs - max(0.0, float(logs.max(initial=-np.inf))), dtype)


def padded_rows(rows: Array, stride: int, nothing: float, dtype: npt.DTypeLike) -> Array:
    """Return rows [n, states] padded to [n, stride] with `nothing`."""
    wide = np.full((len(rows), stride), nothing, dtype)
    wide[:, : rows.shape[1]] = rows
    return wide


def by_columns(matrix: SparseMatrix, values: Array) -> Matrix:
    """Return a sparse matrix by columns, with `values` in place of its own.

    matrix: by rows.
    values: [entries], in the order of the matrix.
    """
    # Stable: rows of a column stay ascending, which decides ties.
    order = np.argsort(matrix.columns, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(matrix.columns, minlength=matrix.shape[0]))])
    return Matrix(starts.astype(np.int64), matrix.rows[order].astype(np.int32), values[order])


def by_rows(matrix: SparseMatrix, values: Array) -> Matrix:
    """Return the transposed sparse matrix by columns."""
    return Matrix(matrix.starts, matrix.columns, np.ascontiguousarray(values))


class PathNumbers:
    """A model for decoding, all numbers logarithms in single or double precision.

    matrix: packed for products.
    columns: the matrix by columns, for the traceback; the same one if it is sparse.
    start: [stride].
    emissions: [symbols + 1, stride], a row for each symbol and one of zeros for unobserved.
    """

    def __init__(self, model: HiddenMarkovModel, dtype: npt.DTypeLike) -> None:
        self.states, self.dtype = model.states, np.dtype(dtype)
        self.stride = padded(model.states, dtype)
        logs = log_transitions(model, dtype)
        if isinstance(model.transition, SparseMatrix):
            self.matrix = self.columns = by_columns(model.transition, logs)
        else:
            self.matrix = packed(logs, -np.inf)
            self.columns = dense(padded_rows(logs.T, self.stride, -np.inf, dtype))
        start = in_format(logarithms(model.start), dtype)
        self.start = padded_rows(start[None], self.stride, -np.inf, dtype)[0]
        self.emissions = emission_rows(model, self.stride, dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices and the emissions."""
        # By identity, so that the one matrix of a sparse model is counted once.
        matrices = {id(matrix.numbers): matrix.numbers.nbytes for matrix in (self.matrix, self.columns)}
        return sum(matrices.values()) + self.emissions.nbytes


def emission_rows(model: HiddenMarkovModel, stride: int, dtype: npt.DTypeLike) -> Array:
    """Return the logarithms of emissions [symbols + 1, stride], the last row for unobserved."""
    emission = np.ones((model.states, 0)) if model.emission is None else model.emission
    logs = in_format(logarithms(emission.T), dtype)
    return np.concatenate([padded_rows(logs, stride, 0.0, dtype), np.zeros((1, stride), dtype)])


class SumNumbers:
    """A model for smoothing: probabilities, or logarithms in double precision.

    forward, backward: the transition matrix and its transpose, packed for products.
    least: smallest number above zero in them.
    start, emissions: as in `PathNumbers`, but probabilities, 0 for padding and 1 for unobserved.
    leasts: smallest number above zero in each row of emissions.
    fits: whether the start is in the range of the format; kernels check the other numbers.
    """

    # stride, pack: layout of rows and of dense matrices in memory; that of the CPU kernels unless given.

    def __init__(
        self,
        model: HiddenMarkovModel,
        dtype: npt.DTypeLike,
        logs: bool,
        stride: int | None = None,
        pack: Callable[[Array, float], Matrix] = packed,
    ) -> None:
        self.states, self.dtype, self.logs = model.states, np.dtype(dtype), logs
        self.stride = padded(model.states, dtype) if stride is None else stride
        self.nothing = -np.inf if logs else 0.0
        convert = logarithms if logs else np.asarray
        values = convert(model.entries).astype(dtype)
        if isinstance(model.transition, SparseMatrix):
            self.forward, self.backward = by_columns(model.transition, values), by_rows(model.transition, values)
        else:
            self.forward = pack(values, self.nothing)
            self.backward = pack(np.ascontiguousarray(values.T), self.nothing)
        # Of the exact numbers: one below the format would become a zero, and nothing would tell of it.
        self.least = least_above_zero(model.entries.reshape(1, -1), dtype)[0]
        self.fits = logs or least_above_zero(model.start[None], dtype)[0] >= np.finfo(dtype).tiny
        self.start = padded_rows(convert(model.start)[None], self.stride, self.nothing, dtype)[0]
        emission = np.ones((model.states, 0)) if model.emission is None else model.emission
        rows = np.concatenate([emission.T, np.ones((1, model.states))])
        self.emissions = padded_rows(convert(rows), self.stride, self.nothing, dtype)
        self.leasts = least_above_zero(rows, dtype)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of numbers, one for each state."""
        return self.stride * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices and the emissions."""
        return int(self.forward.numbers.nbytes + self.backward.numbers.nbytes + self.emissions.nbytes)

    def scaled(self, likelihoods: Array) -> tuple[Array, Array]:
        """Return `emissions` and `leasts` of log-likelihoods [n, states], each row scaled by its largest entry."""
        if self.logs:
            # By a whole number, which rounds nothing.
            shifted = likelihoods - np.rint(largest_of(likelihoods))[:, None]
            rows = padded_rows(shifted, self.stride, self.nothing, self.dtype)
            return rows, np.ones(len(rows), self.dtype)
        # The largest entry becomes 1, whatever the scale of the log-likelihoods; `offsets_of` puts it back.
        shifted = likelihoods - largest_of(likelihoods)[:, None]
        lowest = np.where(shifted == -np.inf, 0.0, shifted).min(axis=1)
        rows = padded_rows(np.exp(shifted), self.stride, 0.0, self.dtype)
        return rows, np.exp(lowest).astype(self.dtype)


def largest_of(likelihoods: Array) -> Array:
    """Return the largest entry of each row, 0 where all are -inf."""
    largest: Array = likelihoods.max(axis=1)
    return np.where(largest == -np.inf, 0.0, largest)


def least_above_zero(rows: Array, dtype: npt.DTypeLike) -> Array:
    """Return the smallest number above zero of each row: 1 if there is none, 0 if it is below the format's range."""
    least = np.where(rows > 0, rows, np.inf).min(axis=1, initial=np.inf)
    return np.where(np.isinf(least), 1.0, least).astype(dtype)
