"""Rows to learn from, opened: files and tables in memory, and states that the network lacks.

Main function: `open_rows`; `junctor.learning.pieces` reads them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from junctor.evidence.column_tables import RowPlaces
from junctor.evidence.encode import Encoder, as_arrow
from junctor.evidence.files import Stamps
from junctor.evidence.layout import read_layout
from junctor.evidence.mapping import read_mapping
from junctor.evidence.pipes import spooled
from junctor.evidence.read import EvidenceSource, TableSource, open_evidence, stamps_of
from junctor.learning.pieces import read_new_states
from junctor.model.arguments import text, texts
from junctor.model.errors import EvidenceError, InputError, ModelError, Place
from junctor.model.network import Factor, Network, Variable, table_size
from junctor.model.option_table import (
    DrawOptions,
    FitResources,
    LearningOptions,
    ReadingOptions,
    RowOptions,
    defaults_of,
    options_for,
)
from junctor.model.options import ComputeOptions
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.machine import compute_options
from junctor.runtime.remote import AnyPath, RemotePath, location

# Rows of a table in memory that are encoded at a time.
PIECE_ROWS = 1 << 16
# Share of a distribution that a new state gets before the rows say more.
NEW_STATE_SHARE = 1e-3


def row_options(options: LearningOptions | DrawOptions) -> RowOptions:
    """Return how rows are read, as users gave it; raises EvidenceError for other types."""
    told = _UNSAID | options_for(RowOptions, options)
    return {
        **told,
        "weight": text("weight", told["weight"]),
        "case_id": text("case_id", told["case_id"]),
        "missing": texts("missing", told["missing"], numbers=True),
        "separator": text("separator", told["separator"]),
    }


_UNSAID: RowOptions = defaults_of(RowOptions)  # type: ignore[assignment]


def fit_compute(options: FitResources) -> ComputeOptions:
    """Return the record of resources that users gave."""
    return compute_options(**options_for(FitResources, options))


def stamps_of_rows(table: Any) -> Stamps:
    """Return the stamps of the files of rows, by which is seen that they change; none of a table in memory."""
    return stamps_of(table) if isinstance(table, str | os.PathLike | RemotePath) else {}


def open_rows(table: Any, network: Network, options: RowOptions, resources: Resources) -> EvidenceSource:
    """Open rows of evidence; raises EvidenceError.

    table: the path of a file, folder or glob, or a table in memory.
    network: that names refer to.
    options: how they are read.
    resources: whose workers may open them, too.
    """
    weight = options["weight"]
    if weight is not None and weight in network.index:
        raise EvidenceError(f"the column of weights {weight!r} has the name of a variable: rename it")
    reading: ReadingOptions = {**options_for(ReadingOptions, options), "keep": () if weight is None else (weight,)}
    if isinstance(table, str | os.PathLike | RemotePath):
        # Workers of a scheduler are in folders of their own.
        place = table if resources.scheduler is None else spooled(table).absolute()
        return open_evidence(place, network, mapping=options["mapping"], **reading)
    mapping = read_mapping(options["mapping"], network)
    held = _MemoryTable(as_arrow(table))
    if mapping is not None:
        mapping.refuse_absent(held.schema.names, None)
    missing = tuple(map(str, reading["missing"]))
    layout = read_layout(
        held.schema,
        network,
        case_id=reading["case_id"],
        ignore_extra=reading["ignore_extra"],
        keep=reading["keep"],
        file=None,
        mapping=mapping,
    )
    encoder = Encoder(network, layout, reading["strict"], lambda _: None, mapping, missing)
    return TableSource(layout.variables, layout.case_id_type, layout.kept_schema, ((held, layout, encoder),))


class _MemoryTable:
    """A table in memory in the place of a file."""

    def __init__(self, table: pa.Table) -> None:
        self.path: AnyPath = location("table")
        self.partition = 0
        self.schema: pa.Schema = table.schema
        # Workers do not see it.
        self.groups = None
        self._table = table

    def batches(
        self, positions: Sequence[int], plain: Sequence[int] = (), threads: int = 1, groups: range | None = None
    ) -> Iterator[pa.RecordBatch]:
        # A record batch without columns would lose its number of rows.
        for first in range(0, self._table.num_rows, PIECE_ROWS):
            piece = self._table.slice(first, min(PIECE_ROWS, self._table.num_rows - first)).select(positions)
            columns = [column.combine_chunks() for column in piece.columns] or [pa.nulls(piece.num_rows)]
            yield pa.RecordBatch.from_arrays(columns, [str(position) for position in positions] or [""])

    def place_of(self, row: int) -> Place:
        return Place(None, row + 1)

    def spread(self, count: int) -> RowPlaces:
        return RowPlaces(self, (), self._table.num_rows)


def with_new_states(network: Network, source: EvidenceSource, fixed: frozenset[int], resources: Resources) -> Network:
    """Return the network with the states that rows name and it lacks, after its own.

    network: Bayesian.
    source: opened rows; all are read.
    fixed: variables whose tables cannot grow.
    resources: this process, or workers that read the rows.
    A new state gets a small share of each distribution; rows of a table for a new state of a parent are uniform.
    Raises InputError where a table cannot grow, or grows too large, and for evidence without names of states.
    """
    if not isinstance(source, TableSource):
        raise InputError("UAI evidence names no states, so that there are no new ones")
    added = read_new_states(source, resources)
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
