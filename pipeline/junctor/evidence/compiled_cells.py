"""The evidence of a batch as compiled code reads it, by the addresses of its columns.

Main class: EvidenceCells; main function: `evidence_cells`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from junctor_kernels.cpu.columns import addresses_of, count_observed

from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, Rows

Arrays = tuple[npt.NDArray[Any], ...]


class EvidenceCells:
    """The evidence of a batch, for compiled code."""

    def __init__(self, batch: EvidenceBatch) -> None:
        self._likelihoods = batch.likelihoods
        self._numbers = {v: n for n, v in enumerate(sorted(batch.states))}
        self._variables = np.array([*self._numbers], dtype=np.int64)
        # In one piece each, and there as long as their addresses.
        self._columns = [np.ascontiguousarray(batch.states[v], dtype=np.int32) for v in self._variables.tolist()]
        self._addresses = addresses_of(self._columns)
        self._kinds = sorted(batch.likelihoods)

    def addresses(self, variables: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return where the states of some variables begin, int64; valid as long as this is there."""
        return self._addresses[[self._numbers[v] for v in variables]]

    def observed(self, rows: Rows, variables: int) -> Rows:
        """Return int64 [variables], how many of some rows observe each."""
        result = np.zeros(variables, dtype=np.int64)
        count_observed(self._addresses, np.ascontiguousarray(rows), self._variables, result)
        return result

    def soft(self, rows: Rows) -> Rows:
        """Return the variables with likelihoods, int64 [kinds]: UNOBSERVED where none of some rows has one."""
        kinds = [v if self._likelihoods[v].among(rows)[0].size else UNOBSERVED for v in self._kinds]
        return np.array(kinds, dtype=np.int64)

    @property
    def columns(self) -> tuple[Rows, Rows]:
        """Addresses of the states of all observed variables, and these variables, int64 each."""
        return self._addresses, self._variables

    @property
    def kinds(self) -> int:
        """Number of variables with likelihoods."""
        return len(self._kinds)

    def likelihood_bytes(self, sizes: Sequence[int]) -> int:
        """Return the bytes of the likelihoods of a row; sizes: numbers of states."""
        return 8 * sum(1 + sizes[v] for v in self._kinds)

    def likelihoods(self, rows: Rows, sizes: Sequence[int]) -> Arrays:
        """Return the likelihoods of some rows.

        sizes: numbers of states of all variables.
        Result: variables int64 [rows, kinds] (-1: none), values float64 [rows, entries], and the first column of each
        kind int64 [kinds + 1].
        """
        kinds = self._kinds
        places = np.array([0, *accumulate(sizes[v] for v in kinds)], dtype=np.int64)
        soft = np.full((len(rows), len(kinds)), UNOBSERVED, dtype=np.int64)
        likelihoods = np.zeros((len(rows), int(places[-1])))
        for kind, v in enumerate(kinds):
            here, values = self._likelihoods[v].among(rows)
            soft[here, kind] = v
            likelihoods[here, places[kind] : places[kind + 1]] = values
        return soft, likelihoods, places


# Columns are found one by one, which takes as long as a row of a large network; several steps ask for them.
_known: WeakKeyDictionary[EvidenceBatch, EvidenceCells] = WeakKeyDictionary()


def evidence_cells(batch: EvidenceBatch) -> EvidenceCells:
    """Return the evidence of a batch for compiled code, kept as long as the batch is there."""
    found = _known.get(batch)
    if found is None:
        found = _known[batch] = EvidenceCells(batch)
    return found
