"""Evidence of some rows in the form that a plan takes, and answers of a block in that of a batch.

Main functions: `block_of`, `write`, `write_tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.cpu.bytecode import GIVEN

from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, Rows, span_of
from junctor.model.answers import IMPOSSIBLE, NO_PROBABILITY, OK, Answers
from junctor.planning.shape import Pattern


def write(outcome: BlockOutcome, rows: Rows, answers: Answers) -> None:
    """Write log P(e) and status of a block to its `rows` of the answers."""
    at = span_of(rows)
    # A doubtful row is nothing yet: it is written again from the next format.
    impossible = np.isneginf(outcome.log_value) & ~outcome.doubtful
    answers.log_value[at] = outcome.log_value
    answers.status[at] = np.where(impossible, IMPOSSIBLE, OK)
    for row in rows[impossible]:
        answers.reasons[int(row)] = NO_PROBABILITY


def write_tables(outcome: BlockOutcome, block: EvidenceBlock, rows: Rows, answers: Answers) -> None:
    """Write posteriors or states of a block to its `rows` of the answers."""
    at = span_of(rows)
    for variable in answers.states:
        answers.states[variable][at] = outcome.states[variable]
    for variable in answers.posteriors:
        if variable in outcome.posteriors:
            answers.posteriors[variable][at] = outcome.posteriors[variable].T
        else:
            # A sliced variable has no marginal: its posterior is the observed state.
            answers.posteriors[variable][at] = 0
            answers.posteriors[variable][rows, block.states[variable]] = 1


def block_of(batch: EvidenceBatch, rows: Rows, pattern: Pattern, cardinalities: Sequence[int]) -> EvidenceBlock:
    """Cut the evidence of `rows` out of `batch` in the form that a plan for `pattern` takes."""
    at = span_of(rows)
    weighted = sorted(pattern.weighted)
    states = _AtNeed(sorted(pattern.sliced), lambda v: batch.states[v][at])
    likelihoods = _AtNeed(weighted, lambda v: _likelihood(batch, rows, v, cardinalities[v]))
    seen = _AtNeed(weighted, lambda v: _seen(batch, rows, v))
    if not (pattern.weighted <= batch.states.keys() and batch.likelihoods.keys().isdisjoint(weighted)):
        return EvidenceBlock(len(rows), states, likelihoods, seen)
    return EvidenceBlock(len(rows), states, likelihoods, seen, batch, rows)


class _AtNeed(Mapping[int, npt.NDArray[Any]]):
    """Arrays by variable, made when they are asked for: a backend reads either states or likelihoods.

    variables: that there are arrays of.
    make: returns that of a variable.
    """

    def __init__(self, variables: Sequence[int], make: Callable[[int], npt.NDArray[Any]]) -> None:
        # A column of states may belong to a variable that is weighted: what is not listed is not there.
        self._variables = dict.fromkeys(variables)
        self._make = make

    def __getitem__(self, variable: int) -> npt.NDArray[Any]:
        """Return the array of a variable, a new one each time."""
        if variable not in self._variables:
            raise KeyError(variable)
        return self._make(variable)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the variables."""
        return iter(self._variables)

    def __len__(self) -> int:
        """Return how many variables there are."""
        return len(self._variables)


def _seen(batch: EvidenceBatch, rows: Rows, variable: int) -> npt.NDArray[np.integer]:
    """Return [rows]: the observed state, UNOBSERVED, or GIVEN where the evidence is soft."""
    if variable in batch.states:
        result = batch.states[variable][span_of(rows)]
    else:
        result = np.full(len(rows), UNOBSERVED, dtype=np.int32)
    if variable in batch.likelihoods:
        here, _ = batch.likelihoods[variable].among(rows)
        result = result.copy()
        result[here] = GIVEN
    return result


def _likelihood(batch: EvidenceBatch, rows: Rows, variable: int, cardinality: int) -> npt.NDArray[np.float64]:
    """Return [cardinality, rows]: ones, one-hot where the variable is observed, as given where the evidence is soft."""
    if variable in batch.states:
        result = np.take(_one_hot(cardinality), batch.states[variable][span_of(rows)], axis=1)
    else:
        result = np.ones((cardinality, len(rows)))
    if variable in batch.likelihoods:
        here, values = batch.likelihoods[variable].among(rows)
        result[:, here] = values.T
    return result


@lru_cache(maxsize=256)
def _one_hot(cardinality: int) -> npt.NDArray[np.float64]:
    # One column a state; the last one, all ones, is where UNOBSERVED (-1) points.
    return np.hstack([np.eye(cardinality), np.ones((cardinality, 1))])
