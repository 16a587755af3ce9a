"""Tables in, tables out, in this process: neither Prefect nor Dask is imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from junctor.model.network import Network
from junctor.model.options import ComputeOptions, DeviceChoice
from junctor.model.query import Method, Precision, Query, QueryKind, Sampler, Sampling, Stages, target_names
from junctor.runtime.machine import compute_options

if TYPE_CHECKING:
    import pyarrow as pa

    from junctor.evidence.batch import EvidenceBatch
    from junctor.model.answers import Answers

__all__ = ["most_probable", "posteriors"]


def posteriors(
    network: Network | str | os.PathLike[str],
    evidence: Any,
    targets: Sequence[str] | None = None,
    precision: Precision = "double",
    *,
    memory: int | str | None = None,
    threads: int | None = None,
    device: DeviceChoice = "auto",
    device_memory: int | str | None = None,
    spill: str | os.PathLike[str] | None = None,
    disk: int | str | None = None,
    case_id: str | None = None,
    ignore_extra: bool = False,
    strict: bool = False,
    method: Method = "exact",
    sampler: Sampler = "epis-bn",
    samples: int | None = None,
    error: float | None = None,
    seed: int = 0,
    stages: Stages = "all",
) -> pa.Table:
    """Return the posterior of each target, and log P(evidence), for each row of `evidence`.

    network: a Network, or the path of a network file.
    evidence: pandas or Arrow table, dict of columns or list of rows; one column a variable, null where it is not
        observed.
    targets: variable names, None for all.
    precision: numbers to compute with.
    memory: bytes (or "4GiB") that propagation may take, None for a share of what is free.
    threads: None for all cores that this process may use; answers do not depend on it.
    device: "auto" is a GPU where there is one and the rows are worth it.
    device_memory: bytes that tables may take of it, None for a share of a GPU's, and on a CPU for no limit beside
        `memory`.
    spill: folder for tables that exceed the memory, None for the system's temporary folder.
    disk: bytes of files there, None for half of what is free.
    case_id, ignore_extra, strict: as for evidence files.
    method: "sampling" estimates posteriors of a directed network, "auto" does so for rows whose exact answers exceed
        the memory; there are more columns then (`junctor.runs.results`).
    sampler, samples, error, seed, stages: how, as in `junctor.model.query.Sampling`.

    The columns are `case_id`, one fixed-size list for each target (float64; float32 in single precision; states in
    the order of the network), `log_evidence` (natural logarithm), `status` and `reason`. A row whose status is not
    `ok` is null but for its reason. Raises ModelError, EvidenceError, BudgetError, DiskError or
    DeviceError.
    """
    # Checked even where answers are exact: wrong options should not wait for another method to be seen.
    how = Sampling(sampler, samples, error, seed, stages)
    query = replace(_query("posteriors", targets, precision), method=method, sampling=how)
    options = compute_options(memory, threads, device, device_memory, spill, disk)
    return _answer(network, evidence, query, options, case_id, ignore_extra, strict)


def most_probable(
    network: Network | str | os.PathLike[str],
    evidence: Any,
    targets: Sequence[str] | None = None,
    precision: Precision = "double",
    *,
    memory: int | str | None = None,
    threads: int | None = None,
    device: DeviceChoice = "auto",
    case_id: str | None = None,
    ignore_extra: bool = False,
    strict: bool = False,
) -> pa.Table:
    """Return the most probable states of all variables together, given each row of `evidence`.

    Arguments and errors as for `posteriors`; `targets` only choose which variables are shown. The columns are
    `case_id`, one state name for each target, `log_probability` (natural log of P(states, evidence)), `status` and
    `reason`.
    """
    query, options = _query("mpe", targets, precision), compute_options(memory, threads, device)
    return _answer(network, evidence, query, options, case_id, ignore_extra, strict)


def _query(kind: QueryKind, targets: Sequence[str] | None, precision: Precision) -> Query:
    # A name alone would otherwise pass for a sequence of letters.
    if isinstance(targets, str):
        targets = [targets]
    return Query(kind, None if targets is None else tuple(targets), precision)


def _answer(
    network: Network | str | os.PathLike[str],
    evidence: Any,
    query: Query,
    options: ComputeOptions,
    case_id: str | None,
    ignore_extra: bool,
    strict: bool,
) -> pa.Table:
    import pyarrow as pa

    from junctor.evidence.encode import as_arrow, encode_table
    from junctor.formats import read_network
    from junctor.runs.results import answers_table, default_partition_rows
    from junctor.runtime.devices import check_device

    # First: a device that is missing should not cost the reading of a network.
    check_device(options.device)
    if not isinstance(network, Network):
        network = read_network(network)
    # Refuses unknown ones, also for a table without rows.
    target_names(network, query)
    table = as_arrow(evidence)
    answer = _answerer(network, query, table.num_rows, replace(options, all_gpus=True))
    results = []
    # In pieces of the size of a part file: the same answers, row for row, as `junctor run` writes.
    for first, piece in _slices(table, default_partition_rows(network, query)):
        encoded = encode_table(
            piece, network, case_id=case_id, ignore_extra=ignore_extra, strict=strict, first_row=first
        )
        results.append(answers_table(answer(encoded.batch, first), encoded.case_ids, network, query))
    return pa.concat_tables(results)


def _answerer(
    network: Network, query: Query, rows: int, options: ComputeOptions
) -> Callable[[EvidenceBatch, int], Answers]:
    """Return a function of a batch and the number of its first row; rows: of all batches together."""
    # Imported when needed: each of them loads kernels that the others do without.
    if query.method == "exact":
        from junctor.engine.engine import Engine

        engine = Engine(network, query, options, expected_rows=rows)
        return lambda batch, first: engine.answer(batch)
    if query.method == "sampling":
        from junctor.sampling.engine import SamplingEngine

        sampler = SamplingEngine(network, query, options)
        # Random numbers of a row go by its number in the table, not in its batch.
        return lambda batch, first: sampler.answer(batch, first_row=first)
    from junctor.sampling.auto import AutoEngine

    both = AutoEngine(network, query, options, expected_rows=rows)
    return lambda batch, first: both.answer(batch, first_row=first)


def _slices(table: pa.Table, rows: int) -> Iterator[tuple[int, pa.Table]]:
    # Pieces keep the arrays of the engine small however long the table is. An empty table is one empty piece. Arrow
    # believes any length of a table without columns, so it gets the right one.
    for first in range(0, max(1, table.num_rows), rows):
        yield first, table.slice(first, min(rows, table.num_rows - first))
