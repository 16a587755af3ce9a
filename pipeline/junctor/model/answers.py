"""Answers of one batch of evidence as arrays. Main class: Answers; every backend and sampler fills one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.model.network import Network
from junctor.model.query import Query, target_names

# Status of a row: answered, P(e) = 0, evidence that names no state, and no sample that fits the evidence.
OK, IMPOSSIBLE, INVALID, MISSED = 0, 1, 2, 3
# Status before any backend has answered a row.
UNANSWERED = -1
NO_PROBABILITY = "the evidence has probability 0"
# By status number.
STATUS_NAMES = ("ok", "impossible", "invalid")
# Only sampling can miss evidence, so that exact answers keep a dictionary of three names.
SAMPLED_STATUS_NAMES = (*STATUS_NAMES, "missed")
# Bytes of a row's log_value (8) and status (1).
_ROW_BYTES = 9
# Bytes of log_error, effective, samples and sampled of a sampled row (25), and as many again as `_ROW_BYTES`.
_SAMPLED_ROW_BYTES = 34


@dataclass(frozen=True, eq=False, slots=True)
class Answers:
    """Answers to `rows` cases in the order of the evidence; rows whose status is not OK hold no numbers to be read.

    targets: variable indices, in the order asked.
    status: int8 [rows], OK, IMPOSSIBLE (P(e) = 0) or INVALID.
    log_value: float64 [rows], natural log of P(e) for posteriors, of P(assignment, e) for explanations.
    posteriors: variable index -> float [rows, cardinality] (float32 in single precision); empty for explanations.
    states: variable index -> int32 [rows], the most probable states; empty for posteriors.
    reasons: row -> why it is not OK.
    memory: all posteriors in one flat array, in the order of the targets, where they lie in one.
    """

    targets: tuple[int, ...]
    status: npt.NDArray[np.int8]
    log_value: npt.NDArray[np.float64]
    posteriors: dict[int, npt.NDArray[np.floating]] = field(default_factory=dict)
    states: dict[int, npt.NDArray[np.int32]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    memory: npt.NDArray[np.floating] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        tables = sum(array.nbytes for array in self.posteriors.values()) if self.memory is None else self.memory.nbytes
        return self.status.nbytes + self.log_value.nbytes + tables + sum(array.nbytes for array in self.states.values())


@dataclass(frozen=True, eq=False, slots=True)
class SampledAnswers(Answers):
    """Answers of which some or all are estimates; rows whose status is not OK (MISSED among them) hold no numbers.

    errors: variable index -> float [rows, cardinality], standard errors of the posteriors.
    log_error: float64 [rows], standard error of log P(e).
    effective: float64 [rows], effective sample size.
    samples: int64 [rows], samples drawn.
    sampled: bool [rows], False where an answer is exact: its errors and its number of samples are 0.
    reasons: also, for rows that are OK, why the requested error was not reached.
    """

    errors: dict[int, npt.NDArray[np.floating]] = field(default_factory=dict)
    log_error: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    effective: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    samples: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    sampled: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))

    def leave(self, row: int, status: int, reason: str) -> None:
        """Set the status of a row that gets no numbers."""
        self.status[row] = status
        self.reasons[row] = reason


def unanswered(
    query: Query,
    targets: tuple[int, ...],
    cardinalities: Sequence[int],
    rows: int,
    invalid: Mapping[int, str],
    memory: npt.NDArray[Any],
) -> Answers:
    """Return answers to be written, their posteriors in one piece of memory for compiled code.

    query: what is asked.
    targets: variable indices, in the order asked.
    cardinalities: number of states of every variable.
    rows: number of rows.
    invalid: row -> reason.
    memory: uint8, `posterior_bytes`; not cleared, since whoever answers a row writes all of it.
    """
    status = np.full(rows, UNANSWERED, dtype=np.int8)
    bad = list(invalid)
    if bad:
        status[bad] = INVALID
    explain = query.kind == "mpe"
    numbers: npt.NDArray[Any] = memory.view(np.float32 if query.precision == "single" else np.float64)
    tables = {} if explain else posteriors_in(numbers, targets, cardinalities, rows)
    # Nobody answers invalid rows: their numbers are set here.
    for table in tables.values() if bad else ():
        table[bad] = np.nan
    return Answers(
        targets,
        status,
        np.full(rows, np.nan),
        tables,
        {v: np.full(rows, -1, dtype=np.int32) for v in targets} if explain else {},
        dict(invalid),
        None if explain else numbers,
    )


def posterior_bytes(query: Query, targets: Sequence[int], cardinalities: Sequence[int], rows: int) -> int:
    """Return the bytes of the posteriors of so many rows."""
    if query.kind == "mpe":
        return 0
    return (4 if query.precision == "single" else 8) * rows * sum(cardinalities[v] for v in targets)


def posteriors_in(
    memory: npt.NDArray[Any], targets: Sequence[int], cardinalities: Sequence[int], rows: int
) -> dict[int, npt.NDArray[Any]]:
    """Return views [rows, cardinality] of flat memory, one for each target, in the order of the targets."""
    # One allocation for all targets, which compiled code fills in one call.
    ends = [0, *accumulate(cardinalities[v] for v in targets)]
    return {
        v: memory[rows * start : rows * end].reshape(rows, end - start)
        for v, (start, end) in zip(targets, pairwise(ends), strict=True)
    }


def sources_of(
    targets: Sequence[int], cardinalities: Sequence[int], *sources: Mapping[int, int]
) -> npt.NDArray[np.int64]:
    """Return int64 [targets, 4]: index of the first source with it, its row there, its cardinality, its offset.

    targets: variable indices.
    cardinalities: number of states of every variable.
    sources: variable -> row of an array of tables.
    The offset counts the states of the targets before it.
    """
    which = [next(n for n, rows in enumerate(sources) if v in rows) for v in targets]
    rows = [sources[n][v] for n, v in zip(which, targets, strict=True)]
    sizes = [cardinalities[v] for v in targets]
    # A copy, since kernels read one target's four numbers at a time and need them contiguous.
    return np.array([which, rows, sizes, np.cumsum([0, *sizes])[:-1]], dtype=np.int64).T.copy()


def answer_width(network: Network, query: Query) -> int:
    """Return the bytes that the answers to one row take in memory."""
    cardinalities = [network.cardinalities[network.index[name]] for name in target_names(network, query)]
    if query.kind == "mpe":
        return 4 * len(cardinalities) + _ROW_BYTES
    width = (4 if query.precision == "single" else 8) * sum(cardinalities) + _ROW_BYTES
    # Sampled posteriors come with standard errors of the same size.
    return width if query.method == "exact" else 2 * width + _SAMPLED_ROW_BYTES
