"""What rows that were held out say of a network before and after it was fitted. Main function: `check_holdout`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from junctor.engine.engine import Engine
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.learning.expectation import Floats
from junctor.learning.holdout import HoldoutComparison, compared, mean, mixed
from junctor.learning.pieces import HeldOut
from junctor.model.answers import OK
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query

# Cells that are taken out, rows that they are of, and rows that answering takes: one for each state of each cell.
MOST_CELLS, MOST_ROWS, MOST_QUESTIONS = 10_000, 10_000, 50_000
# Rows that are answered at a time.
PIECE_ROWS = 1 << 13
# Bins of probabilities from 0 to 1.
RELIABILITY_BINS = 10

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """States of cells whose probability is in a bin.

    states: how many.
    predicted: mean of their probabilities; seen: share of those that are what the cell holds.
    by_chance: standard deviation of `seen` if the probabilities are right.
    weight: share of the weight of all bins.
    """

    states: int
    predicted: float
    seen: float
    by_chance: float
    weight: float


@dataclass(frozen=True, slots=True)
class CellCheck:
    """Cells, each taken out of its row, and their probabilities given the other cells, under one network.

    score: mean log probability of what they hold, of the cells that are possible before and after; nan without any.
    hits: share of the cells that hold their most probable state.
    bins: by probability, those that have states.
    """

    score: float
    hits: float
    bins: tuple[ReliabilityBin, ...]

    @property
    def error(self) -> float:
        """Mean distance of what is predicted and what is seen, over bins."""
        return sum(each.weight * abs(each.predicted - each.seen) for each in self.bins)

    @property
    def by_chance(self) -> float:
        """The error that the probabilities have on average if they are right."""
        return sum(each.weight * each.by_chance for each in self.bins) * math.sqrt(2 / math.pi)


@dataclass(frozen=True, slots=True)
class HoldoutCheck(HoldoutComparison):
    """Held-out rows, and cells of them, under a network before and after it was fitted.

    cells: that were taken out; other_cells: those of rows that are impossible without them, which are left out.
    before, after: of cells; None where there are none.
    """

    cells: int
    other_cells: int
    before: CellCheck | None
    after: CellCheck | None


@dataclass(frozen=True, eq=False, slots=True)
class _Cells:
    """Cells of some batches, ascending by batch, row and variable; int64 [cells] each."""

    batches: Integers
    rows: Integers
    variables: Integers


def row_logs(network: Network, held_out: Sequence[HeldOut], compute: ComputeOptions) -> Floats:
    """Return log P(evidence) of held-out rows, float64; -inf where it is 0."""
    return _logs(network, [each.batch for each in held_out], compute)


def check_holdout(
    before: Network,
    after: Network,
    held_out: Sequence[HeldOut],
    compute: ComputeOptions,
    seed: int = 0,
    watch: Callable[[int, int, float | None], None] | None = None,
) -> HoldoutCheck:
    """Compare a network before and after it was fitted on rows that were held out.

    before, after: with the same variables.
    held_out: rows; those of weight 0 do not count.
    compute: threads and memory.
    seed: with the place of a cell, what decides whether it is taken out.
    watch: told how many rows that cells take are answered, of how many, and a forecast of the seconds left.
    """
    weights = np.concatenate([np.zeros(0), *(each.weights for each in held_out)])
    logs = [row_logs(network, held_out, compute) for network in (before, after)]
    cells = _chosen(held_out, before.cardinalities, seed)
    checks, known = _checked(before, after, held_out, cells, compute, watch or (lambda *_: None))
    taken = len(cells.rows)
    return HoldoutCheck(
        **asdict(compared(logs[0], logs[1], weights)),
        cells=known,
        other_cells=taken - known,
        before=checks[0] if checks else None,
        after=checks[1] if checks else None,
    )


def _logs(
    network: Network,
    batches: Sequence[EvidenceBatch],
    compute: ComputeOptions,
    advance: Callable[[int], None] | None = None,
) -> Floats:
    # Any target will do: the answers bring log P(evidence).
    target = min(network.public, key=lambda variable: variable.cardinality).name
    engine = Engine(
        network, Query("posteriors", (target,)), compute, expected_rows=sum(batch.rows for batch in batches)
    )
    found = [np.zeros(0)]
    for batch in batches:
        answers = engine.answer(batch, explain=False)
        found.append(np.where(answers.status == OK, answers.log_value, -np.inf))
        if advance is not None:
            advance(batch.rows)
    return np.concatenate(found)


def _chosen(held_out: Sequence[HeldOut], cardinalities: Sequence[int], seed: int) -> _Cells:
    """Return cells with a state, chosen by a hash of their place."""
    rows = np.concatenate([np.zeros(0), *(each.weights for each in held_out)]) > 0
    start = mixed(np.array([seed], dtype=np.uint64))
    hashes = mixed(np.arange(len(rows), dtype=np.uint64) ^ mixed(start))
    numbers = np.flatnonzero(rows)
    numbers = np.sort(numbers[np.argsort(hashes[numbers], kind="stable")[:MOST_ROWS]])
    empty = np.zeros(0, dtype=np.int64)
    cells, keys, first = _Cells(empty, empty, empty), np.zeros(0, dtype=np.uint64), 0
    for number, each in enumerate(held_out):
        here = numbers[(numbers >= first) & (numbers < first + each.batch.rows)]
        for variable, column in each.batch.states.items():
            seen = here[column[here - first] != UNOBSERVED]
            keys = np.concatenate([keys, mixed(hashes[seen] + np.uint64(variable))])
            cells = _Cells(
                np.concatenate([cells.batches, np.full(len(seen), number)]),
                np.concatenate([cells.rows, seen - first]),
                np.concatenate([cells.variables, np.full(len(seen), variable)]),
            )
            if len(keys) > 4 * MOST_CELLS:
                keys, cells = _smallest(keys, cells)
        first += each.batch.rows
    keys, cells = _smallest(keys, cells)
    # Those of variables with many states take many rows.
    asked = np.cumsum(np.array(cardinalities, dtype=np.int64)[cells.variables])
    kept = np.flatnonzero(asked <= MOST_QUESTIONS)
    order = kept[np.lexsort((cells.variables[kept], cells.rows[kept], cells.batches[kept]))]
    return _Cells(cells.batches[order], cells.rows[order], cells.variables[order])


def _smallest(keys: npt.NDArray[np.uint64], cells: _Cells) -> tuple[npt.NDArray[np.uint64], _Cells]:
    order = np.argsort(keys, kind="stable")[:MOST_CELLS]
    return keys[order], _Cells(cells.batches[order], cells.rows[order], cells.variables[order])


def _checked(
    before: Network,
    after: Network,
    held_out: Sequence[HeldOut],
    cells: _Cells,
    compute: ComputeOptions,
    watch: Callable[[int, int, float | None], None],
) -> tuple[list[CellCheck], int]:
    """Return what cells say of both networks, and how many of them do."""
    sizes = np.array(before.cardinalities, dtype=np.int64)[cells.variables]
    batches = [
        question
        for number, each in enumerate(held_out)
        for question in _questions(each.batch, cells, np.flatnonzero(cells.batches == number), sizes)
    ]
    starts = np.cumsum(sizes) - sizes
    places = [(each.batch, each.weights) for each in held_out]
    states = [
        int(places[b][0].states[v][r]) for b, r, v in zip(cells.batches, cells.rows, cells.variables, strict=True)
    ]
    weights = np.array([places[b][1][r] for b, r in zip(cells.batches, cells.rows, strict=True)])
    truths = starts + np.array(states, dtype=np.int64)
    if not len(cells.rows):
        return [], 0
    done, of, began = 0, 2 * int(sizes.sum()), time.perf_counter()
    watch(done, of, None)

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        watch(done, of, (of - done) * (time.perf_counter() - began) / done)

    logs = (_logs(network, batches, compute, advance) for network in (before, after))
    posteriors = [_normalised(each, starts, sizes) for each in logs]
    known = ~(np.isnan(posteriors[0][starts]) | np.isnan(posteriors[1][starts]))
    if not known.any():
        return [], 0
    scored = known & (posteriors[0][truths] > 0) & (posteriors[1][truths] > 0)
    checks = []
    for each in posteriors:
        largest = np.maximum.reduceat(each, starts)
        checks.append(
            CellCheck(
                mean(np.log(each[truths[scored]]), weights[scored]),
                mean((each[truths] == largest)[known].astype(np.float64), weights[known]),
                _bins(each, truths, np.where(known, weights, 0.0), sizes),
            )
        )
    return checks, int(known.sum())


def _questions(batch: EvidenceBatch, cells: _Cells, here: Integers, sizes: Integers) -> list[EvidenceBatch]:
    """Return the rows of cells, once with each state in the place of the cell."""
    found, first = [], 0
    while first < len(here):
        end = max(first + 1, first + int(np.searchsorted(np.cumsum(sizes[here[first:]]), PIECE_ROWS, side="right")))
        some = here[first:end]
        first = end
        repeats = sizes[some]
        rows, variables = np.repeat(cells.rows[some], repeats), np.repeat(cells.variables[some], repeats)
        states = np.arange(len(rows)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        columns = {
            v: np.where(variables == v, states, column[rows]).astype(np.int32) for v, column in batch.states.items()
        }
        likelihoods = {}
        for v, soft in batch.likelihoods.items():
            at = np.minimum(np.searchsorted(soft.rows, rows), len(soft.rows) - 1)
            there = np.flatnonzero(soft.rows[at] == rows)
            if there.size:
                likelihoods[v] = SoftEvidence(there, soft.values[at[there]])
        found.append(EvidenceBatch(len(rows), columns, likelihoods))
    return found


def _normalised(logs: Floats, starts: Integers, sizes: Integers) -> Floats:
    """Return exp(logs), divided by the sum of each cell; nan where all are -inf."""
    largest = np.repeat(np.maximum.reduceat(logs, starts), sizes)
    values = np.exp(logs - np.where(np.isfinite(largest), largest, 0.0))
    sums = np.repeat(np.add.reduceat(values, starts), sizes)
    shares: Floats = np.divide(values, sums, out=np.full_like(values, np.nan), where=sums > 0)
    return shares


def _bins(posteriors: Floats, truths: Integers, weights: Floats, sizes: Integers) -> tuple[ReliabilityBin, ...]:
    hits = np.zeros(len(posteriors))
    hits[truths] = 1.0
    every = np.repeat(weights, sizes)
    taken = every > 0
    values, hits, every = posteriors[taken], hits[taken], every[taken]
    numbers = np.minimum((values * RELIABILITY_BINS).astype(np.int64), RELIABILITY_BINS - 1)
    found, whole = [], every.sum()
    for number in np.unique(numbers):
        here = numbers == number
        weight = every[here].sum()
        spread = math.sqrt((every[here] ** 2 * values[here] * (1 - values[here])).sum()) / weight
        found.append(
            ReliabilityBin(
                int(here.sum()),
                float((every[here] * values[here]).sum() / weight),
                float((every[here] * hits[here]).sum() / weight),
                spread,
                float(weight / whole),
            )
        )
    return tuple(found)
