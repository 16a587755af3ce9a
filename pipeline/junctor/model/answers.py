"""Answers of one batch of evidence as arrays.

Main classes: Answers, which every backend and sampler fills, and Scores, made of posteriors by `engine.scores`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.model.network import Network
from junctor.model.query import Query, answered_names, answering_network, chosen_states, has_intervals, target_names

# Status of a row: answered, P(e) = 0, evidence that names no state, no sample that fits the evidence, and too few
# samples to state an error.
OK, IMPOSSIBLE, INVALID, MISSED, UNRELIABLE = 0, 1, 2, 3, 4
# Status before any backend has answered a row.
UNANSWERED = -1
NO_PROBABILITY = "the evidence has probability 0"
# By status number.
STATUS_NAMES = ("ok", "impossible", "invalid")
# Only sampling can miss evidence or be unsure, so that exact answers keep a dictionary of three names.
SAMPLED_STATUS_NAMES = (*STATUS_NAMES, "missed", "unreliable")
# Bytes of a row's log_value (8) and status (1).
_ROW_BYTES = 9
# Most bytes of posteriors that are in memory at a time while scores are made of them; tests replace it.
SLICE_BYTES = 64 * 2**20
# Bytes of log_error, effective, samples and sampled of a sampled row (25), and as many again as `_ROW_BYTES`.
_SAMPLED_ROW_BYTES = 34


@dataclass(frozen=True, eq=False, slots=True)
class Answers:
    """Answers to `rows` cases in the order of the evidence; rows whose status is not OK hold no numbers to be read.

    targets: variable indices, in the order asked.
    status: int8 [rows], OK, IMPOSSIBLE (P(e) = 0) or INVALID.
    log_value: float64 [rows], natural log of P(e) for posteriors, of P(assignment, e) for explanations.
    posteriors: variable index -> float [rows, cardinality] (float32 in single precision); empty for explanations.
    states: variable index -> int32 [rows], the most probable states, rows of `explained`; empty for posteriors.
    reasons: row -> why it is not OK.
    memory: all posteriors in one flat array, in the order of the targets, where they lie in one.
    explained: int32 [targets, rows], all states, in one piece; None for posteriors.
    ways: backend -> rows that it answered; empty where nobody counts them.
    climbed: wider number format -> different rows that needed it.
    """

    targets: tuple[int, ...]
    status: npt.NDArray[np.int8]
    log_value: npt.NDArray[np.float64]
    posteriors: Mapping[int, npt.NDArray[np.floating]] = field(default_factory=dict)
    states: dict[int, npt.NDArray[np.int32]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    memory: npt.NDArray[np.floating] | None = None
    explained: npt.NDArray[np.int32] | None = None
    ways: Counter[str] = field(default_factory=Counter)
    climbed: Counter[str] = field(default_factory=Counter)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        tables = sum(array.nbytes for array in self.posteriors.values()) if self.memory is None else self.memory.nbytes
        states = 0 if self.explained is None else self.explained.nbytes
        return self.status.nbytes + self.log_value.nbytes + tables + states

    def by_row(self) -> Iterator[npt.NDArray[Any]]:
        """Yield what there is of each row, [rows] or [rows, numbers]."""
        yield self.status
        yield self.log_value
        yield from self.posteriors.values()
        yield from self.states.values()

    def clear_unanswered(self) -> None:
        """Set what was never written of rows that are not OK: bytes must not vary."""
        if self.explained is not None:
            self.explained[:, self.status != OK] = -1


@dataclass(frozen=True, eq=False, slots=True)
class SampledAnswers(Answers):
    """Answers of which some or all are estimates; rows hold numbers where they are OK or UNRELIABLE.

    errors: variable index -> float [rows, cardinality], standard errors of the posteriors.
    log_error: float64 [rows], standard error of log P(e).
    effective: float64 [rows], effective sample size.
    samples: int64 [rows], samples drawn.
    sampled: bool [rows], False where an answer is exact: its errors and its number of samples are 0.
    error_memory: all errors in one flat array, as `memory` has the posteriors.
    lower, upper: variable index -> float [rows, cardinality], intervals of the posteriors; of sampled rows alone, and
        empty where the sampler has none.
    log_bounds: float64 [3, rows], of log P(e) the interval and the bound that is certain; [0, rows] without them.
    interval_memory: all lower ends in one flat array, and all upper ones.
    reasons: also, for rows that are OK, that the requested error was not reached.
    """

    errors: Mapping[int, npt.NDArray[np.floating]] = field(default_factory=dict)
    log_error: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    effective: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    samples: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    sampled: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    error_memory: npt.NDArray[np.floating] | None = None
    lower: Mapping[int, npt.NDArray[np.floating]] = field(default_factory=dict)
    upper: Mapping[int, npt.NDArray[np.floating]] = field(default_factory=dict)
    log_bounds: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    interval_memory: tuple[npt.NDArray[np.floating], ...] = ()

    def intervals_of(self, variable: int) -> list[npt.NDArray[np.floating]]:
        """Return lower and upper ends of the posteriors of a variable, [rows, states] each; of none: nothing.

        Those of exact rows are their posteriors.
        """
        exact = ~self.sampled[:, None]
        return [np.where(exact, self.posteriors[variable], end[variable]) for end in (self.lower, self.upper) if end]

    def without_tables(self) -> SampledAnswers:
        """Return what is left beside scores: numbers of rows."""
        memory = replace(self, posteriors={}, errors={}, memory=None, error_memory=None)
        return replace(memory, lower={}, upper={}, interval_memory=())

    def leave(self, row: int, status: int, reason: str) -> None:
        """Set the status of a row that is not OK."""
        self.status[row] = status
        self.reasons[row] = reason


def without_numbers(status: npt.NDArray[np.int8]) -> npt.NDArray[np.bool_]:
    """Return which rows hold no numbers; `status`: int8 [rows]."""
    return np.isin(status, (OK, UNRELIABLE), invert=True)


@dataclass(frozen=True, eq=False, slots=True)
class Scores(Answers):
    """Most probable states and entropies of the targets; rows whose status is not OK hold no numbers to be read.

    best: int32 [targets, rows, K], the K most probable states, ties in the order of the states; -1 beyond the last one.
    probabilities: float [targets, rows, K], their probabilities; nan beyond the last state.
    entropies: float [targets, rows], of the posteriors, in nats.
    chosen: float [chosen states, rows], posterior probability of each `variable=state` asked, then of each state of
        the variables whose expected values are.
    choices: variable index and state of each of these.
    errors, chosen_errors: standard errors of `probabilities` and `chosen`; empty where nothing is sampled.
    intervals, chosen_intervals: lower and upper ends of the same, [2, ...]; empty where the sampler has none.
    estimates: the sampled answers, without their posteriors; None where nothing is sampled.
    """

    best: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 0, 1), dtype=np.int32))
    probabilities: npt.NDArray[np.floating] = field(default_factory=lambda: np.zeros((0, 0, 1)))
    entropies: npt.NDArray[np.floating] = field(default_factory=lambda: np.zeros((0, 0)))
    chosen: npt.NDArray[np.floating] = field(default_factory=lambda: np.zeros((0, 0)))
    choices: tuple[tuple[int, int], ...] = ()
    errors: npt.NDArray[np.floating] = field(default_factory=lambda: np.zeros((0, 0, 1)))
    chosen_errors: npt.NDArray[np.floating] = field(default_factory=lambda: np.zeros((0, 0)))
    intervals: npt.NDArray[np.floating] = field(default_factory=lambda: np.zeros((0, 0, 0, 1)))
    chosen_intervals: npt.NDArray[np.floating] = field(default_factory=lambda: np.zeros((0, 0, 0)))
    estimates: SampledAnswers | None = None

    def by_row(self) -> Iterator[npt.NDArray[Any]]:
        """Yield what there is of each row, target by target."""
        yield self.status
        yield self.log_value
        for tables in (self.best, self.probabilities, self.entropies, self.chosen):
            yield from tables

    def clear_unanswered(self) -> None:
        """Set the numbers of rows that hold none: their posteriors were never written."""
        bad = np.flatnonzero(without_numbers(self.status))
        if bad.size:
            self.best[:, bad] = -1
            for numbers in (self.probabilities, self.entropies, self.chosen):
                numbers[:, bad] = np.nan


def score_bytes(query: Query, targets: int, chosen: int, rows: int) -> int:
    """Return the bytes of the scores of so many targets, chosen states and rows."""
    number, top = query.number_bytes, query.top or 1
    return rows * (targets * (top * (4 + number) + number) + chosen * number)


def unanswered(
    query: Query,
    targets: tuple[int, ...],
    cardinalities: Sequence[int],
    rows: int,
    invalid: Mapping[int, str],
    memory: npt.NDArray[Any],
) -> Answers:
    """Return answers to be written, their posteriors or states in one piece of memory for compiled code and GPUs.

    query: what is asked.
    targets: variable indices, in the order asked.
    cardinalities: number of states of every variable.
    rows: number of rows.
    invalid: row -> reason.
    memory: uint8, `table_bytes`; not cleared, since whoever answers a row writes all of it.
    """
    # `np.full` takes three times as long, which calls of one row notice.
    status, log_value = np.empty(rows, dtype=np.int8), np.empty(rows)
    status.fill(UNANSWERED)
    log_value.fill(np.nan)
    bad = list(invalid)
    if bad:
        status[bad] = INVALID
    if query.question.explains:
        explained = memory.view(np.int32).reshape(len(targets), rows)
        states = dict(zip(targets, explained, strict=True))
        return Answers(targets, status, log_value, states=states, reasons=dict(invalid), explained=explained)
    numbers: npt.NDArray[Any] = memory.view(np.float32 if query.precision == "single" else np.float64)
    tables = posteriors_in(numbers, targets, cardinalities, rows)
    # Nobody answers invalid rows: their numbers are set here.
    for table in tables.values() if bad else ():
        table[bad] = np.nan
    return Answers(targets, status, log_value, tables, reasons=dict(invalid), memory=numbers)


def with_errors(answers: Answers, cardinalities: Sequence[int], intervals: bool = False) -> SampledAnswers:
    """Return posteriors to be written, with errors of 0: exact ones until a row is sampled.

    cardinalities: number of states of every variable.
    intervals: whether the sampler has intervals.
    """
    assert answers.memory is not None
    rows, errors = len(answers.status), np.zeros_like(answers.memory)
    ends = tuple(np.zeros_like(answers.memory) for _ in range(2 if intervals else 0))
    lower, upper = (posteriors_in(end, answers.targets, cardinalities, rows) for end in ends) if ends else ({}, {})
    return SampledAnswers(
        **{each.name: getattr(answers, each.name) for each in fields(answers)},
        errors=posteriors_in(errors, answers.targets, cardinalities, rows),
        log_error=np.zeros(rows),
        effective=np.full(rows, np.nan),
        samples=np.zeros(rows, dtype=np.int64),
        sampled=np.zeros(rows, dtype=np.bool_),
        error_memory=errors,
        lower=lower,
        upper=upper,
        log_bounds=np.zeros((3 if intervals else 0, rows)),
        interval_memory=ends,
    )


def table_bytes(query: Query, targets: Sequence[int], cardinalities: Sequence[int], rows: int) -> int:
    """Return the bytes of the posteriors of so many rows, or of the states of their explanations."""
    if query.question.explains:
        return 4 * rows * len(targets)
    return query.number_bytes * rows * sum(cardinalities[v] for v in targets)


class TargetTables(Mapping[int, npt.NDArray[Any]]):
    """Tables of targets, one after the other in flat memory: variable index -> view [rows, cardinality].

    memory, targets, cardinalities, rows: of `posteriors_in`.
    """

    def __init__(
        self, memory: npt.NDArray[Any], targets: Sequence[int], cardinalities: Sequence[int], rows: int
    ) -> None:
        self._memory, self._targets, self._cardinalities, self._rows = memory, targets, cardinalities, rows

    # Compiled code writes to the memory itself, and calls of few rows never look at a table.
    @cached_property
    def _views(self) -> dict[int, npt.NDArray[Any]]:
        ends, rows = [0, *accumulate(self._cardinalities[v] for v in self._targets)], self._rows
        return {
            v: self._memory[rows * start : rows * end].reshape(rows, end - start)
            for v, (start, end) in zip(self._targets, pairwise(ends), strict=True)
        }

    def __getitem__(self, variable: int) -> npt.NDArray[Any]:
        return self._views[variable]

    def __iter__(self) -> Iterator[int]:
        return iter(self._targets)

    def __len__(self) -> int:
        return len(self._targets)


def posteriors_in(
    memory: npt.NDArray[Any], targets: Sequence[int], cardinalities: Sequence[int], rows: int
) -> TargetTables:
    """Return views [rows, cardinality] of flat memory, one for each target, in the order of the targets."""
    # One allocation for all targets, which compiled code fills in one call.
    return TargetTables(memory, targets, cardinalities, rows)


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
    targets, question, exact = len(target_names(network, query)), query.question, query.method == "exact"
    if question.explains:
        return 4 * targets + _ROW_BYTES
    chosen = len(chosen_states(network, query))
    made = 0 if question.maker is None else score_bytes(query, targets, chosen, 1) + _ROW_BYTES
    if made and exact:
        return made
    posteriors = query.number_bytes * sum(_sizes_answered(network, query)) + _ROW_BYTES
    if exact:
        return posteriors
    # Of each number the error, and both ends of the interval.
    tables, bounds = (4, 3 * 8) if has_intervals(network, query) else (2, 0)
    # Sampled numbers come with these, and scores are made where all posteriors are in memory.
    shown = (targets * (query.top or 1) + chosen) * query.number_bytes
    made += (tables - 1) * shown if made else 0
    return made + tables * posteriors + bounds + _SAMPLED_ROW_BYTES


def answer_bytes(network: Network, query: Query) -> Callable[[int], int]:
    """Return what tells the bytes that the answers to so many rows take while they are made."""
    width, most, slice_ = answer_width(network, query), 0, 0
    if query.question.maker is not None and query.method == "exact":
        most, slice_ = slice_rows(network, query), slice_width(network, query)
    return lambda rows: rows * width + min(rows, most) * slice_


def slice_rows(network: Network, query: Query) -> int:
    """Return how many rows have their posteriors in memory at a time while exact scores are made of them."""
    # A power of two, as partitions of posteriors have: blocks of cases fill it. Of nothing but the query.
    return 1 << (max(1, SLICE_BYTES // slice_width(network, query)).bit_length() - 1)


def slice_width(network: Network, query: Query) -> int:
    """Return the bytes of a row of such a slice: posteriors, and a copy of its evidence."""
    return query.number_bytes * sum(_sizes_answered(network, query)) + 4 * len(network.variables) + _ROW_BYTES


def _sizes_answered(network: Network, query: Query) -> list[int]:
    network = answering_network(network, query)
    return [network.cardinalities[network.index[name]] for name in answered_names(network, query)]
