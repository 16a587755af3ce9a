"""Rows to learn from: files and tables in memory, weights, rows held out, states that the network lacks.

Main functions: `open_rows` and `read_rows`.
"""

from __future__ import annotations

import math
import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.evidence.columns import encode_numbers
from junctor.evidence.encode import EncodedPartition, Encoder, as_arrow
from junctor.evidence.layout import read_layout
from junctor.evidence.mapping import MappingSource, read_mapping
from junctor.evidence.read import EvidenceSource, TableSource, open_evidence
from junctor.learning.expectation import Floats
from junctor.learning.holdout import is_held_out
from junctor.learning.observations import Observations, observe
from junctor.model.errors import EvidenceError, InputError, ModelError, Place
from junctor.model.network import Factor, Network, Variable, table_size
from junctor.model.options import ComputeOptions
from junctor.runtime.machine import usable_cores
from junctor.runtime.progress import Progress, Silence
from junctor.runtime.remote import AnyPath, RemotePath, location

# Rows and cells that are encoded at a time, enough for several threads.
MOST_ROWS, MOST_CELLS = 1 << 18, 1 << 25
# Rows of a table in memory that are encoded at a time.
PIECE_ROWS = 1 << 16
# Share of a distribution that a new state gets before the rows say more.
NEW_STATE_SHARE = 1e-3
# Invalid rows whose reasons are kept.
MOST_REASONS = 20


@dataclass(frozen=True, slots=True)
class RowOptions:
    """How rows are read; fields as arguments of `junctor.posteriors`, and the name of the column of weights."""

    weight: str | None = None
    case_id: str | None = None
    ignore_extra: bool = False
    strict: bool = False
    missing: tuple[str, ...] = ()
    mapping: MappingSource | None = None
    format: str | None = None


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
    is_complete: bool = True


def open_rows(table: Any, network: Network, options: RowOptions) -> EvidenceSource:
    """Open rows of evidence: the path of a file, folder or glob, or a table in memory; raises EvidenceError."""
    if options.weight is not None and options.weight in network.index:
        raise EvidenceError(f"the column of weights {options.weight!r} has the name of a variable: rename it")
    keep = () if options.weight is None else (options.weight,)
    if isinstance(table, str | os.PathLike | RemotePath):
        return open_evidence(
            table,
            network,
            case_id=options.case_id,
            ignore_extra=options.ignore_extra,
            strict=options.strict,
            keep=keep,
            missing=options.missing,
            format=options.format,
            mapping=options.mapping,
        )
    mapping = read_mapping(options.mapping, network)
    held = _MemoryTable(as_arrow(table))
    if mapping is not None:
        mapping.refuse_absent(held.schema.names, None)
    layout = read_layout(
        held.schema,
        network,
        case_id=options.case_id,
        ignore_extra=options.ignore_extra,
        keep=keep,
        file=None,
        mapping=mapping,
    )
    encoder = Encoder(network, layout, options.strict, lambda _: None, mapping, options.missing)
    return TableSource(layout.variables, layout.case_id_type, layout.kept_schema, ((held, layout, encoder),))


class _MemoryTable:
    """A table in memory in the place of a file."""

    def __init__(self, table: pa.Table) -> None:
        self.path: AnyPath = location("table")
        self.partition = 0
        self.schema: pa.Schema = table.schema
        self._table = table

    def batches(
        self, positions: Sequence[int], plain: Sequence[int] = (), threads: int = 1
    ) -> Iterator[pa.RecordBatch]:
        # A record batch without columns would lose its number of rows.
        for first in range(0, self._table.num_rows, PIECE_ROWS):
            piece = self._table.slice(first, min(PIECE_ROWS, self._table.num_rows - first)).select(positions)
            columns = [column.combine_chunks() for column in piece.columns] or [pa.nulls(piece.num_rows)]
            yield pa.RecordBatch.from_arrays(columns, [str(position) for position in positions] or [""])

    def place_of(self, row: int) -> Place:
        return Place(None, row + 1)


def read_rows(
    source: EvidenceSource,
    network: Network,
    compute: ComputeOptions,
    held_out: float = 0.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[Observations, RowReading]:
    """Read all rows, and prepare those that are learned from.

    source: opened rows.
    network: whose zeros say which rows are impossible.
    compute: threads and memory; nothing that is returned depends on them.
    held_out: share of the rows that are kept for a check; which ones, a hash of their number and `seed` tells.
    progress: told of the rows.
    Raises EvidenceError for weights that are none.
    """
    progress = progress or Silence()
    reading, waiting = RowReading(), deque[Floats]()
    progress.stage("reading")

    rows_at_a_time = max(1, min(MOST_ROWS, MOST_CELLS // len(network.variables)))

    def batches() -> Iterator[EvidenceBatch]:
        for partition in source.partitions(rows_at_a_time, compute.threads or usable_cores()):
            batch, weights = partition.batch, _weights(partition)
            invalid = np.array(sorted(batch.invalid), dtype=np.int64)
            weights[invalid] = 0.0
            numbers = partition.first_row + np.arange(batch.rows)
            chosen = is_held_out(numbers, held_out, seed)
            chosen[invalid] = False
            if chosen.any():
                rows = np.flatnonzero(chosen)
                reading.held_out.append(HeldOut(_taken(batch, rows), weights[rows]))
                weights[rows] = 0.0
            _note(reading, partition, weights, len(network.public))
            progress.advance(batch.rows)
            waiting.append(weights)
            yield batch

    def popped() -> Iterator[Floats]:
        # A batch comes before its weights.
        while waiting:
            yield waiting.popleft()

    return observe(network, batches(), popped(), compute), reading


def _note(reading: RowReading, partition: EncodedPartition, weights: Floats, variables: int) -> None:
    batch = partition.batch
    reading.rows += batch.rows
    reading.invalid += len(batch.invalid)
    for row, reason in batch.invalid.items():
        if len(reading.reasons) < MOST_REASONS:
            reading.reasons[partition.first_row + row] = reason
    counted = weights > 0
    here = int(np.count_nonzero(counted))
    states = {v: int(np.count_nonzero((column != UNOBSERVED) & counted)) for v, column in batch.states.items()}
    reading.read += here
    reading.observed.update(states)
    reading.soft.update({v: int(np.count_nonzero(counted[soft.rows])) for v, soft in batch.likelihoods.items()})
    is_full = len(batch.states) == variables and not batch.likelihoods
    reading.is_complete &= is_full and all(cells == here for cells in states.values())


def _weights(partition: EncodedPartition) -> Floats:
    if partition.kept is None:
        return np.ones(partition.batch.rows)
    name = partition.kept.column_names[0]
    numbers, bad = encode_numbers(partition.kept.column(0).combine_chunks())
    weights: Floats = np.array(numbers, dtype=np.float64)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if wrong.size:
        row = int(wrong[0])
        found = dict(bad).get(row, f"found {'nothing' if math.isnan(weights[row]) else weights[row]}")
        reason = f"row {partition.first_row + row + 1}: column {name!r}: {found.removesuffix(', expected a number')}"
        raise EvidenceError(f"{reason}, expected a weight of 0 or more")
    return weights


def _taken(batch: EvidenceBatch, rows: npt.NDArray[np.int64]) -> EvidenceBatch:
    """Return some rows of a batch, ascending, none of them invalid."""
    states = {variable: column[rows] for variable, column in batch.states.items()}
    soft = {variable: SoftEvidence(*each.among(rows)) for variable, each in batch.likelihoods.items()}
    return EvidenceBatch(len(rows), states, {variable: each for variable, each in soft.items() if each.rows.size})


def with_new_states(network: Network, source: EvidenceSource, fixed: frozenset[int]) -> Network:
    """Return the network with the states that rows name and it lacks, after its own.

    network: Bayesian.
    source: opened rows; all are read.
    fixed: variables whose tables cannot grow.
    A new state gets a small share of each distribution; rows of a table for a new state of a parent are uniform.
    Raises InputError where a table cannot grow, or grows too large, and for evidence without names of states.
    """
    if not isinstance(source, TableSource):
        raise InputError("UAI evidence names no states, so that there are no new ones")
    added = source.unknown_states()
    if not added:
        return network
    for number, factor in enumerate(network.factors):
        grown = [v for v in factor.scope if v in added]
        if grown and (number in fixed or max(factor.scope) >= len(network.public)):
            why = "fixed" if number in fixed else "one of a noisy node"
            state, name = added[grown[0]][0], network.variables[grown[0]].name
            raise ModelError(f"a new state {state!r} of {name!r} changes the table of a variable that is {why}")
    variables = tuple(
        Variable(variable.name, (*variable.states, *added.get(v, ()))) for v, variable in enumerate(network.variables)
    )
    for variable, factor in zip(variables, network.factors, strict=True):
        # A column of free text would make states without end.
        table_size([variables[v].cardinality for v in factor.scope], f"the table of {variable.name!r} with new states")
    factors = tuple(_grown(factor, [len(added.get(v, ())) for v in factor.scope]) for factor in network.factors)
    return replace(network, variables=variables, factors=factors)


def _grown(factor: Factor, more: Sequence[int]) -> Factor:
    """Return a factor with `more` states of each variable."""
    if not any(more):
        return factor
    shape = [size + extra for size, extra in zip(factor.table.shape, more, strict=True)]
    table = np.full(shape, 1.0 / shape[-1])
    own = tuple(slice(0, size) for size in factor.table.shape)
    table[own] = factor.table * (1.0 - NEW_STATE_SHARE * more[-1] / shape[-1])
    if more[-1]:
        table[(*own[:-1], slice(factor.table.shape[-1], None))] = NEW_STATE_SHARE / shape[-1]
    table.setflags(write=False)
    return Factor(factor.scope, table)
