"""Tables in, tables out, in this process: neither Prefect nor Dask is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from junctor.devices import DeviceChoice
from junctor.model import Network
from junctor.planning.budget import parse_bytes
from junctor.query import Precision, Query, QueryKind, target_names

if TYPE_CHECKING:
    import pyarrow as pa

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
    case_id: str | None = None,
    ignore_extra: bool = False,
    strict: bool = False,
) -> pa.Table:
    """Return the posterior of each target, and log P(evidence), for each row of `evidence`.

    network: a Network, or the path of a network file. evidence: pandas or Arrow table, dict of columns or list of
    rows; one column a variable, null where it is not observed. targets: variable names, None for all. memory: bytes
    that propagation may take, None for a share of what is free. threads: None for all cores that this process may use;
    answers do not depend on it. device: "auto" is a GPU where there is one and the rows are worth it. case_id,
    ignore_extra, strict: as for evidence files.

    The columns are `case_id`, one fixed-size list for each target (float64; float32 in single precision; states in
    the order of the network), `log_evidence` (natural logarithm), `status` and `reason`. A row whose status is not
    `ok` is null but for its reason. Raises ModelError, EvidenceError, BudgetError or
    DeviceError.
    """
    query = _query("posteriors", targets, precision)
    return _answer(network, evidence, query, memory, threads, device, case_id, ignore_extra, strict)


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
    query = _query("mpe", targets, precision)
    return _answer(network, evidence, query, memory, threads, device, case_id, ignore_extra, strict)


def _query(kind: QueryKind, targets: Sequence[str] | None, precision: Precision) -> Query:
    if isinstance(targets, str):
        targets = [targets]
    return Query(kind, None if targets is None else tuple(targets), precision)


def _answer(
    network: Network | str | os.PathLike[str],
    evidence: Any,
    query: Query,
    memory: int | str | None,
    threads: int | None,
    device: DeviceChoice,
    case_id: str | None,
    ignore_extra: bool,
    strict: bool,
) -> pa.Table:
    import pyarrow as pa

    from junctor.engine import Engine
    from junctor.evidence.encode import as_arrow, encode_table
    from junctor.formats import read_network
    from junctor.machine import usable_cores
    from junctor.results import answers_table, default_partition_rows

    if not isinstance(network, Network):
        network = read_network(network)
    target_names(network, query)  # refuses unknown ones, also for a table without rows
    table = as_arrow(evidence)
    allowed = parse_bytes(str(memory)) if memory is not None else None
    engine = Engine(network, query, allowed, table.num_rows, usable_cores() if threads is None else threads, device)
    results = []
    for first, piece in _slices(table, default_partition_rows(network, query)):
        encoded = encode_table(
            piece, network, case_id=case_id, ignore_extra=ignore_extra, strict=strict, first_row=first
        )
        results.append(answers_table(engine.answer(encoded.batch), encoded.case_ids, network, query))
    return pa.concat_tables(results)


def _slices(table: pa.Table, rows: int) -> Iterator[tuple[int, pa.Table]]:
    # Pieces keep the arrays of the engine small however long the table is. An empty table is one empty piece. Arrow
    # believes any length of a table without columns, so it gets the right one.
    for first in range(0, max(1, table.num_rows), rows):
        yield first, table.slice(first, min(rows, table.num_rows - first))
