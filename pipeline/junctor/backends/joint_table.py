"""Rows of a network that is so small that the table of all its states together is the fastest way to answer them.

Main class: JointTable; called for a few rows, instead of a plan and of compiled code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from junctor.evidence.batch import EvidenceBatch, Rows
from junctor.model.answers import IMPOSSIBLE, NO_PROBABILITY, OK, Answers
from junctor.model.network import Network

# Numbers that answer a row: a sum over all joint states for each state of each variable.
MOST_NUMBERS = 1 << 15
# Products of entries stay between 2^-1000 and 2^1000, where doubles keep all their digits.
MOST_BITS = 1000.0


class JointTable:
    """Answers rows of evidence on one small network, sum-product in double precision; safe between threads.

    network: of `has_joint_table`.
    targets: variables whose posteriors are computed.
    """

    def __init__(self, network: Network, targets: Sequence[int]) -> None:
        self._targets = targets
        sizes = network.cardinalities
        joint = np.ones(sizes)
        for factor in network.factors:
            # Axes in the order of the network, and one entry for each variable that the factor has not.
            order = sorted(range(len(factor.scope)), key=factor.scope.__getitem__)
            shape = [size if v in factor.scope else 1 for v, size in enumerate(sizes)]
            joint *= factor.table.transpose(order).reshape(shape)
        self._joint = joint.ravel()
        # The state of each variable in each joint state, and for each of its states 1 where it is that one.
        self._states = np.indices(sizes).reshape(len(sizes), -1)
        self._has = [
            (states == np.arange(size)[:, None]).astype(np.float64)
            for states, size in zip(self._states, sizes, strict=True)
        ]
        self._wanted = np.concatenate([self._has[v] for v in targets])
        starts = [0, *accumulate(sizes[v] for v in targets)]
        self._places = dict(zip(targets, pairwise(starts), strict=True))
        self._bits = _bits_of(network)

    @property
    def nbytes(self) -> int:
        """Bytes of the table, of what is derived from it, and of a row."""
        return 8 * len(self._joint) * (3 * sum(map(len, self._has)) + len(self._has) + 2)

    @property
    def operations(self) -> int:
        """Multiply-adds of a row."""
        return int(self._wanted.size)

    def answer(self, batch: EvidenceBatch, rows: Rows, answers: Answers) -> Rows:
        """Write answers and return the rows that are left: their likelihoods leave the range of doubles.

        batch: evidence.
        rows: int64, rows of the batch.
        answers: of the batch, written here.
        """
        if len(rows) == 1 or batch.likelihoods:
            left = [row for row in rows.tolist() if not self._answer(batch, row, answers)]
            return np.array(left, dtype=np.int64)
        # Few rows of a small network are often equal, and copies take far less than answers.
        first: dict[tuple[int, ...], int] = {}
        columns = [column[rows].tolist() for column in batch.states.values()]
        keys = zip(*columns, strict=True) if columns else [()] * len(rows)
        twins = [first.setdefault(key, row) for key, row in zip(keys, rows.tolist(), strict=True)]
        for row in first.values():
            # Without likelihoods nothing leaves the range of doubles.
            self._answer(batch, row, answers)
        source = np.array(twins, dtype=np.int64)
        again = source != rows
        _copy(answers, source[again], rows[again])
        return rows[:0]

    def _answer(self, batch: EvidenceBatch, row: int, answers: Answers) -> bool:
        weights, exponent, bits = self._joint.copy(), 0, self._bits
        for v, column in batch.states.items():
            if column[row] >= 0:
                weights *= self._has[v][column[row]]
        for v, likelihood in batch.likelihoods.items():
            at = int(np.searchsorted(likelihood.rows, row))
            if at < len(likelihood.rows) and likelihood.rows[at] == row:
                values = likelihood.values[at]
                _, power = math.frexp(float(values.max()))
                bits += power - math.log2(float(values[values > 0].min()))
                # Before it is divided by a power of two, which must not make zeros.
                if bits > MOST_BITS:
                    return False
                exponent += power
                weights *= np.ldexp(values, -power)[self._states[v]]
        # Row by row, and sums of NumPy rather than products of matrices: the order of terms is always the same.
        total = float(np.add.reduce(weights))
        # Nothing can have been lost, so that this is exact.
        impossible = total == 0.0
        # An impossible row has no numbers, and its memory was not cleared.
        posteriors = np.add.reduce(self._wanted * weights, axis=1) / (math.nan if impossible else total)
        for v, (start, end) in self._places.items():
            answers.posteriors[v][row] = posteriors[start:end]
        answers.status[row] = IMPOSSIBLE if impossible else OK
        answers.log_value[row] = -math.inf if impossible else math.log(total) + exponent * math.log(2.0)
        if impossible:
            answers.reasons[row] = NO_PROBABILITY
        return True


def _copy(answers: Answers, source: Rows, target: Rows) -> None:
    """Copy the answers to some rows to others."""
    for table in (*answers.posteriors.values(), answers.status, answers.log_value):
        table[target] = table[source]
    for row, of in zip(target.tolist(), source.tolist(), strict=True):
        if of in answers.reasons:
            answers.reasons[row] = answers.reasons[of]


def has_joint_table(network: Network) -> bool:
    """Return True if a network is small enough, and its numbers neither too small nor too large to be multiplied."""
    sizes = network.cardinalities
    entries = math.prod(sizes)
    return entries * sum(sizes) <= MOST_NUMBERS and _bits_of(network) <= MOST_BITS


def _bits_of(network: Network) -> float:
    """Return the bits by which a product of entries of all factors, or of some, may differ from 1."""
    bits = 0.0
    for factor in network.factors:
        logs = np.abs(np.log2(factor.table[factor.table > 0]))
        bits += float(logs.max())
    return bits
