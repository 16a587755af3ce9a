"""Expected counts as a table: one row for each entry of each table of a network. Main function: `expected_counts`."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from junctor.evidence.files import refuse_changes
from junctor.formats import read_network
from junctor.learning.expectation import Floats
from junctor.learning.observations import values_of
from junctor.learning.pieces import read_rows
from junctor.learning.rows import fit_compute, open_rows, row_options, stamps_of_rows
from junctor.model.network import Network
from junctor.model.option_table import FIT_KEYWORDS, LearningOptions, RowOptions, takes_keywords
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.devices import check_device
from junctor.runtime.files import written_atomically
from junctor.runtime.progress import Progress
from junctor.runtime.remote import AnyPath, RemotePath

PARENT = pa.struct([pa.field("variable", pa.string()), pa.field("state", pa.string())])
COUNTS_SCHEMA = pa.schema(
    [
        pa.field("variable", pa.string(), nullable=False),
        pa.field("parents", pa.list_(PARENT), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("count", pa.float64(), nullable=False),
    ]
)


@takes_keywords(**FIT_KEYWORDS)
def expected_counts(
    network: Network | str | os.PathLike[str] | RemotePath,
    table: Any,
    **options: Unpack[LearningOptions],
) -> pa.Table:
    """Return the sum over rows of weight * P(family | evidence), a row for each entry of each table of the network.

    network: a Bayesian Network, or the path of a network file.
    table: evidence, as for `junctor.posteriors`, or the path of a file or folder.
    options: of the table.

    Invalid rows are left out, and so are impossible ones. No count depends on threads and memory; those of a GPU
    differ from those of a CPU by rounding.

    The columns are `variable`, `parents` (a list of records with the `variable` and the `state` of each parent),
    `state` and `count` (float64). Raises ModelError, EvidenceError, BudgetError, DeviceError, and
    InputError for a path that is none.
    """
    network = network if isinstance(network, Network) else read_network(network)
    rows = row_options(options)
    resources = Resources(workers=0, compute=fit_compute(options))
    counts, _, _ = count_rows(network, table, rows, resources)
    return counts_table(network, counts)


def count_rows(
    network: Network, table: Any, rows: RowOptions, resources: Resources, progress: Progress | None = None
) -> tuple[Floats, dict[str, int], str | None]:
    """Return the expected counts of the entries of all tables, the rows of each status, and why the first is invalid.

    network: Bayesian; whole tables of noisy nodes are counted.
    table: a path, or a table in memory.
    rows: how they are read.
    resources: devices, threads and memory, and workers that read and prepare the rows, if there are any.
    progress: told of the rows.
    """
    check_device(resources.compute.device)
    whole = network.expanded
    stamps = stamps_of_rows(table)
    source = open_rows(table, network, rows, resources)
    observations, reading = read_rows(source, whole, resources, progress=progress)
    refuse_changes(stamps, stamps_of_rows(table))
    statuses = {"ok": observations.rows, "impossible": len(observations.impossible), "invalid": reading.invalid}
    return observations.expect(values_of(whole)).counts, statuses, reading.first_reason


def counts_table(network: Network, counts: Floats) -> pa.Table:
    """Return counts of the entries of all tables of a network, float64 [entries], as a table."""
    network, first, pieces = network.expanded, 0, []
    for variable, factor in enumerate(network.factors):
        own, size = network.variables[variable], factor.table.size
        pieces.append(
            pa.Table.from_arrays(
                [
                    pa.repeat(pa.scalar(own.name), size),
                    parents_of(network, factor.scope, factor.table.shape),
                    pa.array(own.states).take(pa.array(np.arange(size) % own.cardinality)),
                    pa.array(counts[first : first + size]),
                ],
                schema=COUNTS_SCHEMA,
            )
        )
        first += size
    return pa.concat_tables(pieces).combine_chunks()


def parents_of(network: Network, scope: Sequence[int], shape: Sequence[int]) -> pa.Array:
    """Return the states of the parents for each entry of a table.

    network: of the variables.
    scope: variables of the table, parents first.
    shape: of the table.
    """
    *parents, _ = scope
    size, width = math.prod(shape), len(parents)
    states = np.unravel_index(np.arange(size), shape)[:width]
    # Side by side for each entry: the columns of all parents are dealt out in turn.
    order = pa.array(np.arange(size * width).reshape(width, size).T.ravel())
    columns = [pa.array(network.variables[p].states).take(pa.array(at)) for p, at in zip(parents, states, strict=True)]
    names = [pa.repeat(pa.scalar(network.variables[p].name), size) for p in parents]
    flat = [pa.concat_arrays([pa.array([], pa.string()), *each]).take(order) for each in (names, columns)]
    records = pa.StructArray.from_arrays(flat, fields=list(PARENT))
    return pa.ListArray.from_arrays(pa.array(np.arange(size + 1) * width, pa.int32()), records)


def counts_text(table: pa.Table) -> pa.Table:
    """Return a table of counts with text in the place of records, `A=yes, B=no`, for CSV."""
    texts = [", ".join(f"{each['variable']}={each['state']}" for each in row) for row in table["parents"].to_pylist()]
    return table.set_column(1, "parents", pa.array(texts, pa.string()))


def write_counts(table: pa.Table, path: AnyPath) -> None:
    """Write a table of counts as CSV or Parquet, by its name, whole or not at all; raises RunError if it cannot be."""
    with written_atomically(path) as temporary:
        if path.suffix.lower() == ".csv":
            csv.write_csv(counts_text(table), temporary)
        else:
            parquet.write_table(table, temporary)
