"""Rows to learn from, piece by piece: held-out rows taken out, cells counted, the others split into components.

Main function: `read_rows`. Pieces have the same borders whether this process or workers of Dask read them.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import islice
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.evidence.columns import encode_numbers
from junctor.evidence.encode import EncodedPartition
from junctor.evidence.pipes import is_copy
from junctor.evidence.read import EvidenceSource, TableSource
from junctor.learning.expectation import A_WEIGHT, Floats, wrong_weights
from junctor.learning.holdout import is_held_out
from junctor.learning.observations import Observations, SplitRows, gather, split_rows
from junctor.model.errors import EvidenceError, RunError
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.runtime.dask_cluster import (
    Resources,
    distribute_in_order,
    refuse_other_version,
    threads_for,
    threads_here,
)
from junctor.runtime.machine import usable_cores
from junctor.runtime.progress import Progress, Silence

# Rows and cells of a piece, enough for several threads.
MOST_ROWS, MOST_CELLS = 1 << 18, 1 << 25
# Invalid rows whose reasons are kept.
MOST_REASONS = 20
# Tasks for each worker that rows are divided into, where files allow it; workers that a scheduler may have.
TASKS_EACH, MANY_WORKERS = 2, 16

logger = logging.getLogger("junctor")

Part = TypeVar("Part")
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False, slots=True)
class HeldOut:
    """Rows that are kept for a check: a batch, and the weight of each."""

    batch: EvidenceBatch
    weights: Floats


@dataclass(eq=False, slots=True)
class RowReading:
    """What came of reading rows.

    rows: all of them.
    invalid: those that cannot be read.
    reasons: row -> why it is invalid, of the first ones.
    held_out: rows that are kept for a check.
    wrong_weight: the first row whose weight is none, and what is there in words; None without one.
    is_complete: whether the others observe every variable of the file, as a state.
    read: rows with a weight that are neither invalid nor held out; impossible ones are among them.
    observed, soft: variable -> cells of these rows with a state, with a likelihood; those that have any.
    """

    rows: int = 0
    invalid: int = 0
    read: int = 0
    observed: Counter[int] = field(default_factory=Counter)
    soft: Counter[int] = field(default_factory=Counter)
    reasons: dict[int, str] = field(default_factory=dict)
    held_out: list[HeldOut] = field(default_factory=list)
    wrong_weight: tuple[int, str] | None = None
    is_complete: bool = True

    @property
    def first_reason(self) -> str | None:
        """The first invalid row and why it is, in words; None without one."""
        return next((f"row {row + 1:,} is invalid, {why}" for row, why in self.reasons.items()), None)

    def add(self, following: RowReading) -> None:
        """Add the rows that come next."""
        self.rows += following.rows
        self.invalid += following.invalid
        self.read += following.read
        self.observed.update(following.observed)
        self.soft.update(following.soft)
        self.reasons.update(islice(following.reasons.items(), MOST_REASONS - len(self.reasons)))
        self.held_out += following.held_out
        self.wrong_weight = self.wrong_weight or following.wrong_weight
        self.is_complete &= following.is_complete


@dataclass(frozen=True, eq=False, slots=True)
class Piece:
    """Consecutive rows, and what came of reading them."""

    split: SplitRows
    reading: RowReading


@dataclass(frozen=True, eq=False, slots=True)
class PieceMaker:
    """What is done with rows, in whatever process.

    network: whose zeros say which rows are impossible.
    rows_at_a_time: rows of a piece, fewer in the last one.
    held_out: share of the rows that are kept for a check; seed: of their choice.
    """

    network: Network
    rows_at_a_time: int
    held_out: float
    seed: int

    def piece(self, partition: EncodedPartition, compute: ComputeOptions) -> Piece:
        """Return the piece of a partition whose only kept column, if it has one, are weights.

        partition: of `rows_at_a_time` rows.
        compute: threads and memory of this process.
        """
        batch, reading = partition.batch, RowReading()
        weights, reading.wrong_weight = _weights(partition)
        invalid = np.array(sorted(batch.invalid), dtype=np.int64)
        weights[invalid] = 0.0
        chosen = is_held_out(partition.first_row + np.arange(batch.rows), self.held_out, self.seed)
        chosen[invalid] = False
        if chosen.any():
            here = np.flatnonzero(chosen)
            reading.held_out.append(HeldOut(_taken(batch, here), weights[here]))
            weights[here] = 0.0
        _note(reading, partition, weights, len(self.network.public))
        return Piece(split_rows(self.network, batch, weights, compute), reading)


def read_rows(
    source: EvidenceSource,
    network: Network,
    resources: Resources,
    held_out: float = 0.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[Observations, RowReading]:
    """Read all rows, and prepare those that are learned from.

    source: opened rows.
    network: whose zeros say which rows are impossible.
    resources: this process, or workers that read and prepare the rows; nothing that is returned depends on them.
    held_out: share of the rows that are kept for a check; which ones, a hash of their number and `seed` tells.
    progress: told of the rows.
    Raises EvidenceError for weights that are none, RunError where no worker survives.
    """
    progress, reading = progress or Silence(), RowReading()
    progress.stage("reading")
    size = max(1, min(MOST_ROWS, MOST_CELLS // len(network.variables)))
    maker = PieceMaker(network, size, held_out, seed)

    def splits(pieces: Iterable[Piece]) -> Iterator[SplitRows]:
        for piece in pieces:
            reading.add(piece.reading)
            if reading.wrong_weight is not None:
                row, found = reading.wrong_weight
                raise EvidenceError(f"row {source.names_of([row])[0]}: {found}, expected {A_WEIGHT}")
            progress.advance(piece.reading.rows)
            yield piece.split

    # Closed now, whatever ends it: workers are not to outlive their work.
    with closing(_pieces(source, maker, resources)) as pieces:
        return gather(network, splits(pieces), resources.compute), reading


def read_new_states(source: TableSource, resources: Resources) -> dict[int, list[str]]:
    """Return the texts of cells that name no state of their variable, sorted; reads all rows, as `read_rows` does."""
    size = max(1, min(MOST_ROWS, MOST_CELLS // max(1, len(source.columns))))
    spans = _spans(source, size, resources)
    if spans is None:
        return source.unknown_states()
    found: dict[int, set[str]] = {}
    parts = (source.part(span) for span in spans)
    with closing(_by_workers(_unknown_states, parts, len(spans), resources)) as results:
        for of_part in results:
            for variable, texts in of_part.items():
                found.setdefault(variable, set()).update(texts)
    return {variable: sorted(texts) for variable, texts in sorted(found.items())}


def _pieces(source: EvidenceSource, maker: PieceMaker, resources: Resources) -> Generator[Piece, None, None]:
    """Yield all rows in pieces, whose borders depend on the source and the network alone."""
    spans = _spans(source, maker.rows_at_a_time, resources)
    if spans is None:
        for partition in source.partitions(maker.rows_at_a_time, resources.compute.threads or usable_cores()):
            yield maker.piece(partition, resources.compute)
        return
    assert isinstance(source, TableSource)
    parts = ((maker, source.part(span)) for span in spans)
    for pieces in _by_workers(_pieces_of_part, parts, len(spans), resources):
        yield from pieces


def _spans(source: EvidenceSource, rows: int, resources: Resources) -> list[range] | None:
    """Return the rows of each task of the workers; None where this process reads all."""
    elsewhere = resources.scheduler is not None
    if not elsewhere and (resources.workers or 0) < 2:
        return None
    spans = None
    if isinstance(source, TableSource) and not (elsewhere and any(map(is_copy, source.paths))):
        spans = source.spans(rows, TASKS_EACH * (MANY_WORKERS if elsewhere else resources.workers or 1))
    if spans is None:
        logger.warning(
            "this process reads the rows by itself, without workers: they can only be read from the start (workers "
            "share Parquet and Arrow files, and CSV that is not compressed)"
        )
    # One task is done here as well as there.
    return None if spans is None or not (elsewhere or len(spans) > 1) else spans


@dataclass(frozen=True, eq=False, slots=True)
class _Task(Generic[Part, Result]):
    """What a worker does; `compute`: of the worker, but for its memory; `junctor_version`: of the client."""

    function: Callable[[Part, ComputeOptions], Result]
    given: Part
    compute: ComputeOptions
    junctor_version: str

    def __str__(self) -> str:
        return "rows of evidence"


def _by_workers(
    function: Callable[[Part, ComputeOptions], Result], parts: Iterable[Part], count: int, resources: Resources
) -> Generator[Result, None, None]:
    """Yield `function(part, compute)` for `count` parts, in their order."""
    if resources.workers is not None:
        resources = replace(resources, workers=min(resources.workers, count))
    threads = threads_for(resources, resources.workers or 1)
    compute, here = replace(resources.compute, threads=threads), version("junctor")
    tasks = (_Task(function, part, compute, here) for part in parts)
    return distribute_in_order(_run_task, tasks, resources)


# Of a worker process with several threads: one task at a time takes all of them.
_one_at_a_time = threading.Lock()


def _run_task(task: _Task[Part, Result], memory: int) -> Result:
    refuse_other_version(task.junctor_version)
    with _one_at_a_time:
        compute = replace(task.compute, memory=memory, threads=task.compute.threads or threads_here())
        return task.function(task.given, compute)


def _pieces_of_part(given: tuple[PieceMaker, TableSource], compute: ComputeOptions) -> list[Piece]:
    maker, part = given
    _refuse_absent(part)
    partitions = part.partitions(maker.rows_at_a_time, compute.threads or 1)
    return [maker.piece(partition, compute) for partition in partitions]


def _unknown_states(part: TableSource, compute: ComputeOptions) -> dict[int, list[str]]:
    _refuse_absent(part)
    return part.unknown_states()


def _refuse_absent(part: TableSource) -> None:
    """Raise RunError for a file that this worker does not see."""
    for path in part.paths:
        if not path.exists():
            raise RunError(
                f"{path} is not there for this worker: it was removed, or is neither on a disk that all workers share "
                "nor in a store"
            )


def _note(reading: RowReading, partition: EncodedPartition, weights: Floats, variables: int) -> None:
    batch = partition.batch
    reading.rows, reading.invalid = batch.rows, len(batch.invalid)
    reading.reasons.update((partition.first_row + row, why) for row, why in islice(batch.invalid.items(), MOST_REASONS))
    counted = weights > 0
    reading.read = int(np.count_nonzero(counted))
    states = {v: int(np.count_nonzero((column != UNOBSERVED) & counted)) for v, column in batch.states.items()}
    reading.observed.update(states)
    reading.soft.update({v: int(np.count_nonzero(counted[soft.rows])) for v, soft in batch.likelihoods.items()})
    is_full = len(batch.states) == variables and not batch.likelihoods
    reading.is_complete = is_full and all(cells == reading.read for cells in states.values())


def _weights(partition: EncodedPartition) -> tuple[Floats, tuple[int, str] | None]:
    """Return the weights of a partition, 0 for those that are none, and the first of these in words."""
    if partition.kept is None:
        return np.ones(partition.batch.rows), None
    name = partition.kept.column_names[0]
    numbers, bad = encode_numbers(partition.kept.column(0).combine_chunks())
    weights: Floats = np.array(numbers, dtype=np.float64)
    wrong = wrong_weights(weights)
    if not wrong.size:
        return weights, None
    row = int(wrong[0])
    found = dict(bad).get(row, f"found {'nothing' if math.isnan(weights[row]) else weights[row]}")
    weights[wrong] = 0.0
    return weights, (partition.first_row + row, f"column {name!r}: {found.removesuffix(', expected a number')}")


def _taken(batch: EvidenceBatch, rows: npt.NDArray[np.int64]) -> EvidenceBatch:
    """Return some rows of a batch, ascending, none of them invalid."""
    states = {variable: column[rows] for variable, column in batch.states.items()}
    soft = {variable: SoftEvidence(*each.among(rows)) for variable, each in batch.likelihoods.items()}
    return EvidenceBatch(len(rows), states, {variable: each for variable, each in soft.items() if each.rows.size})
