"""Rows of a network that is so small that the table of all its states together is the fastest way to answer them.

Main class: JointTable; called for a few rows, instead of a plan and of compiled code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property, reduce
from itertools import accumulate, repeat

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables.reference import DOUBLE, logarithms

from junctor.evidence.batch import EvidenceBatch, Rows, span_of
from junctor.model.answers import IMPOSSIBLE, NO_PROBABILITY, OK, Answers
from junctor.model.network import Network
from junctor.runtime.kept_results import method_cache

# Numbers that answer a row: a sum over all joint states for each state of each variable.
MOST_NUMBERS = 1 << 15
# Products of entries stay between 2^-1000 and 2^1000, where doubles keep all their digits.
MOST_BITS = 1000.0
# Rows without likelihoods whose answers stay for the next call: calls on small networks often repeat, and a row takes
# less than two kilobytes.
KEPT_ROWS = 256

# Posteriors of all targets one after the other, nan where a row is impossible, and the logarithm of its probability.
_Answer = tuple[npt.NDArray[np.float64], float]


class JointTable:
    """Answers rows of evidence on one small network, sum-product in double precision; safe between threads.

    network: of `has_joint_table`.
    targets: variables whose posteriors are computed.
    """

    def __init__(self, network: Network, targets: Sequence[int]) -> None:
        sizes = network.cardinalities
        # Variables of one state have no axes: there may be any number of them, while an array has few axes.
        wide = [v for v, size in enumerate(sizes) if size > 1]
        joint = np.ones([sizes[v] for v in wide])
        for factor in network.factors:
            # Axes in the order of the network, and one entry for each variable that the factor has not.
            order = sorted(range(len(factor.scope)), key=factor.scope.__getitem__)
            shape = [sizes[v] if v in factor.scope else 1 for v in wide]
            joint *= factor.table.transpose(order).reshape(shape)
        # The state of each variable in each joint state, and for each of its states 1 where it is that one.
        self._states = np.zeros((len(sizes), joint.size), dtype=np.int64)
        self._states[wide] = np.indices(joint.shape).reshape(len(wide), joint.size)
        self._has = [
            (states == np.arange(size)[:, None]).astype(np.float64)
            for states, size in zip(self._states, sizes, strict=True)
        ]
        # Terms of the sums of a row: for each state of each target the joint states with it, then all joint states.
        wanted = np.concatenate([*(self._has[v] for v in targets), np.ones((1, joint.size))])
        self._terms: npt.NDArray[np.float64] = joint.ravel() * wanted
        self._sizes = [sizes[v] for v in targets]
        self._bits = _bits_of(network)
        self._known = method_cache(KEPT_ROWS, self._observed)

    # Kept, because every call asks.
    @cached_property
    def nbytes(self) -> int:
        """Bytes of the table, of what is derived from it, of a row, and of answers that stay."""
        numbers = len(self._terms[0]) * (3 * sum(map(len, self._has)) + len(self._has) + 3)
        return 8 * (numbers + KEPT_ROWS * sum(self._sizes))

    @cached_property
    def operations(self) -> int:
        """Multiply-adds of a row."""
        return len(self._terms[0]) * sum(self._sizes)

    def answer(self, batch: EvidenceBatch, rows: Rows, answers: Answers) -> Rows:
        """Write answers and return the rows that are left: their likelihoods leave the range of doubles.

        batch: evidence.
        rows: int64, rows of the batch.
        answers: of the batch, in one piece of memory, written here.
        """
        # Few rows of a small network are often equal, and copies take far less than answers.
        first: dict[tuple[int, ...], int] = {}
        twins = [first.setdefault(key, row) for key, row in zip(_keys_of(batch, rows), rows.tolist(), strict=True)]
        variables, found = tuple(batch.states), {}
        for states, row in first.items():
            answer = self._soft(batch, row, states) if batch.likelihoods else self._known(variables, states)
            if answer is not None:
                found[row], log = answer
                is_impossible = log == -math.inf
                answers.log_value[row], answers.status[row] = log, IMPOSSIBLE if is_impossible else OK
                if is_impossible:
                    answers.reasons[row] = NO_PROBABILITY
        if len(first) < len(twins):
            _copy(answers, np.array(twins), rows)
        return self._write(found, twins, rows, answers)

    def _observed(self, variables: Sequence[int], states: Sequence[int]) -> _Answer:
        """Return the answer to states of variables, some of them perhaps unobserved."""
        return _summed(self._terms_of(variables, states), 0)

    def _soft(self, batch: EvidenceBatch, row: int, states: Sequence[int]) -> _Answer | None:
        """Return the answer to a row with likelihoods, whose states are given; None beyond the range of doubles."""
        terms, exponent, bits = self._terms_of(tuple(batch.states), states), 0, self._bits
        for v, likelihood in batch.likelihoods.items():
            at = int(np.searchsorted(likelihood.rows, row))
            if at < len(likelihood.rows) and likelihood.rows[at] == row:
                values = likelihood.values[at]
                if not values.any():
                    # No state is possible, which no scale tells.
                    return _summed(0.0 * terms, 0)
                _, power = math.frexp(float(values.max()))
                bits += power - math.log2(float(values[values > 0].min()))
                # Before it is divided by a power of two, which must not make zeros.
                if bits > MOST_BITS:
                    return None
                exponent += power
                terms = terms * np.ldexp(values, -power)[self._states[v]]
        return _summed(terms, exponent)

    def _terms_of(self, variables: Sequence[int], states: Sequence[int]) -> npt.NDArray[np.float64]:
        # Of zeros and ones, so that it does not matter which are multiplied first.
        observed = [self._has[v][state] for v, state in zip(variables, states, strict=False) if state >= 0]
        return self._terms * reduce(np.multiply, observed) if observed else self._terms

    def _write(
        self, found: dict[int, npt.NDArray[np.float64]], twins: Sequence[int], rows: Rows, answers: Answers
    ) -> Rows:
        """Write the posteriors of rows, each equal to one that was found, and return those without."""
        assert answers.memory is not None
        if not found:
            return rows
        if len(answers.status) == 1:
            # All of the memory is this row.
            answers.memory[:] = found[int(rows[0])]
            return rows[:0]
        numbers, done, left = np.array(list(found.values())), rows, rows[:0]
        if len(found) < len(rows):
            places = {row: place for place, row in enumerate(found)}
            has = np.array([twin in places for twin in twins], dtype=np.bool_)
            numbers = numbers[[places[twin] for twin in twins if twin in places]]
            done, left = rows[has], rows[~has]
        span, start = span_of(done), 0
        for table, size in zip(answers.posteriors.values(), self._sizes, strict=True):
            table[span] = numbers[:, start : start + size]
            start += size
        return left


def _summed(terms: npt.NDArray[np.float64], exponent: int) -> _Answer:
    """Return the answer that has these terms of its sums, and is to be multiplied by a power of two."""
    # Row by row, and sums of NumPy rather than products of matrices: the order of terms is always the same.
    sums = np.add.reduce(terms, axis=1)
    total: float = sums.item(-1)
    # Nothing can have been lost, so that this is exact. An impossible row has no numbers, and its memory was not
    # cleared.
    if total == 0.0:
        return np.full(len(sums) - 1, np.nan), -math.inf
    log = logarithms(sums[-1:], np.array([float(exponent)]), DOUBLE).item() if exponent else math.log(total)
    return sums[:-1] / total, log


def _copy(answers: Answers, source: Rows, target: Rows) -> None:
    """Copy the outcomes of some rows to others."""
    for table in (answers.status, answers.log_value):
        table[target] = table[source]
    for row, of in zip(target.tolist(), source.tolist(), strict=True) if answers.reasons else ():
        if of in answers.reasons:
            answers.reasons[row] = answers.reasons[of]


def _keys_of(batch: EvidenceBatch, rows: Rows) -> Iterable[tuple[int, ...]]:
    """Return for each row its states; rows with equal keys have equal answers."""
    columns = [column[rows].tolist() for column in batch.states.values()]
    if batch.likelihoods:
        # No two rows are known to be equal.
        columns.append(rows.tolist())
    return zip(*columns, strict=True) if columns else repeat((), len(rows))


def has_joint_table(network: Network) -> bool:
    """Return True if a network is small enough, and its numbers neither too small nor too large to be multiplied."""
    sizes = network.cardinalities
    entries = math.prod(sizes)
    return entries * sum(sizes) <= MOST_NUMBERS and _bits_of(network) <= MOST_BITS


def _bits_of(network: Network) -> float:
    """Return the bits by which a product of entries of all factors, or of some, may differ from 1."""
    # All of them at once: factor by factor takes as long as a few rows.
    tables = [factor.table.ravel() for factor in network.factors]
    logs = np.concatenate([[1.0], *tables])
    np.log2(logs, out=logs, where=logs > 0)
    starts = [0, *accumulate(map(len, tables), initial=1)]
    # A factor of zeros alone: every row is impossible.
    return float(np.maximum.reduceat(np.abs(logs), starts[:-1]).sum())
