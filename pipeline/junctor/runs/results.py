"""Answers as an Arrow table: one row a case, one column a target, and the metadata of its schema.

Main class: AnswerTables, kept by the API from call to call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pkgutil import resolve_name
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from junctor.model.answers import (
    OK,
    SAMPLED_STATUS_NAMES,
    STATUS_NAMES,
    Answers,
    SampledAnswers,
    answer_width,
    without_numbers,
)
from junctor.model.network import Network
from junctor.model.query import Query, answered_names, answering_network, has_intervals, sampling_record
from junctor.runtime.arrow import (
    free_names,
    list_array,
    number_array,
    reason_array,
    string_array,
    table_of,
)
from junctor.runtime.arrow_batches import ArrayStruct, BatchMaker, address_of
from junctor.runtime.kept_results import method_cache

# Columns, in this order: `case_id`; kept columns of the evidence; each target under its own name (posteriors: a
# fixed-size list with one number a state; explanations: the name of the most probable state); `log_evidence`
# (explanations: `log_probability`), a natural logarithm; `status`; `reason`. A row that is not `ok` has its reason and
# is null in its targets and its logarithm. A target named like one of the others keeps its name: the other one gets a
# trailing underscore. `answer_files` has another layout, with a column for each state.
#
# Tables of sampled rows have more: after each target `NAME_error`, a list with the standard error of each number; after
# the logarithm its standard error, `log_evidence_error`; `effective_samples`, `samples` and `method`. An exact row
# among sampled ones has errors of 0 and no samples. A row that is `ok` may have a reason too: a requested error that
# was not reached. Sampled by mini-buckets, there are after each `NAME_error` also `NAME_lower` and `NAME_upper`, lists
# with the ends of the interval of each number, and after `log_evidence_error` `log_evidence_lower` and `_upper`, and
# `log_evidence_bound`, above which the logarithm is for certain. The interval of an exact row is its number.
FORMAT_VERSION = 1
# Keys of the schema's metadata: of all parts of a run, and of one part.
METADATA_KEY = b"junctor"
PART_KEY = b"junctor.part"

# Most rows of a partition (about half a minute of sampling), and most bytes of answers and of the states of evidence:
# files that are worth opening, and some of them in memory at a time.
PARTITION_ROWS = 524_288
SAMPLED_PARTITION_ROWS = {"sampling": 512, "auto": 4_096}
PARTITION_BYTES = 128 * 2**20
# Rows that a partition has anyway, up to so many bytes.
LEAST_ROWS, MOST_BYTES = 64, 4 * PARTITION_BYTES
# The same of rows that a question asks for: a quarter of a gigabyte of scores, with the evidence, is a file of 40 MB.
MOST_ASKED_BYTES = 2 * PARTITION_BYTES

# Of a cell of evidence in memory.
STATE_BYTES = 4

# Rows of a table whose columns share one piece of memory.
SHARING_ROWS = 64
# Schemas that are kept for the next table of a query: of calls, those of up to so many different counts of rows.
KEPT_SCHEMAS = 64
# Bytes of case ids that are kept for the next table.
KEPT_ID_BYTES = 1 << 12
# How a row was answered, by `SampledAnswers.sampled`.
METHODS = ("exact", "sampling")

# Ends of the names of columns of intervals: of a target, and of the logarithm of the probability of the evidence.
INTERVAL = ("lower", "upper")
LOG_BOUNDS = (*INTERVAL, "bound")
# Columns beside the probabilities of scores, in the schema's metadata.
BESIDE_SCORES = ("error_columns", *(f"{which}_columns" for which in INTERVAL))

_STATUS_TYPE = pa.dictionary(pa.int8(), pa.string())
STATE_TYPE = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the columns that are not targets."""

    case_id: str
    log: str
    status: str
    reason: str
    log_error: str
    effective: str
    samples: str
    method: str
    errors: tuple[str, ...]
    log_bounds: tuple[str, ...]


def columns_beside(query: Query, errors: tuple[str, ...], free: Callable[[str], str], intervals: bool) -> Columns:
    """Return the names of the columns that are not of targets.

    errors: those of their errors.
    free: as of `free_names`.
    intervals: whether there are those of intervals.
    """
    sampled = (free("log_evidence_error"), free("effective_samples"), free("samples"), free("method"))
    bounds = tuple(free(f"log_evidence_{which}") for which in LOG_BOUNDS) if intervals else ()
    beside = free("case_id"), free(query.question.log_column), free("status"), free("reason")
    return Columns(*beside, *sampled, errors, bounds)


def fields_beside(names: Columns, sampled: bool) -> list[pa.Field]:
    """Return the columns behind those of targets; sampled: whether there are those of sampled rows."""
    fields = [pa.field(names.log, pa.float64())]
    if sampled:
        logs = names.log_error, *names.log_bounds, names.effective
        fields += [pa.field(name, pa.float64()) for name in logs]
        fields += [pa.field(names.samples, pa.int64()), pa.field(names.method, _STATUS_TYPE)]
    return [*fields, pa.field(names.status, _STATUS_TYPE, nullable=False), pa.field(names.reason, pa.string())]


def status_names(query: Query) -> tuple[str, ...]:
    """Return the names of the statuses, by number."""
    return STATUS_NAMES if query.method == "exact" else SAMPLED_STATUS_NAMES


def default_partition_rows(network: Network, query: Query, part_bytes: int | None = None) -> int:
    """Return the default number of rows of a partition.

    network, query: of the run.
    part_bytes: bytes of its answers before compression, None for a good size.
    """
    # A power of two, from widths alone: another machine continues a run with the same partitions.
    if part_bytes is not None:
        fitting = max(1, part_bytes // answer_width(network, query))
    else:
        width = answer_width(network, query) + STATE_BYTES * len(network.variables)
        most = SAMPLED_PARTITION_ROWS.get(query.method, PARTITION_ROWS)
        # Of long networks more: threads and vectors share out the rows of a partition.
        fitting = max(PARTITION_BYTES // width, min(LEAST_ROWS, MOST_BYTES // width))
        if query.method == "exact":
            fitting = max(fitting, min(query.question.least_rows, MOST_ASKED_BYTES // width))
        fitting = max(1, min(most, fitting))
    return 1 << (fitting.bit_length() - 1)


def with_kept(table: pa.Table, kept: pa.Table | None) -> pa.Table:
    """Return a table of answers with columns of the evidence after the case ids."""
    if kept is not None:
        for i, field in enumerate(kept.schema):
            table = table.add_column(1 + i, field, kept.column(i))
    return table


def one_after_another(tables: Sequence[pa.Table]) -> pa.Table:
    """Return tables of consecutive rows as one; its metadata counts the rows of all."""
    table = pa.concat_tables(tables)
    if len(tables) == 1:
        return table
    counts = [statuses_of(each.schema) for each in tables]
    totals = {name: sum(each[name] for each in counts) for name in counts[0]}
    return table.replace_schema_metadata(
        {**table.schema.metadata, **_part_metadata(list(totals.values()), list(totals))}
    )


def with_own(columns: Mapping[int, pa.Array], table: pa.Table) -> pa.Table:
    """Return a table with some of its columns in memory of their own.

    Who keeps one of them alone does not keep all answers.
    columns: number of a column -> the same column.
    """
    for number, column in columns.items():
        table = table.set_column(number, table.schema.field(number), column)
    return table


class AnswerTables:
    """Makes tables of the answers to one query; keeps schemas, which take longer than the numbers of a few rows."""

    def __init__(self, network: Network, query: Query) -> None:
        self._asked, self._network = network, answering_network(network, query)
        self._query = query
        self._statuses = status_names(query)
        self._no_others = (0,) * (len(self._statuses) - 1)
        # By the type of case ids, and the number of rows of each status: only numbers change from call to call.
        self._schema = method_cache(KEPT_SCHEMAS, self.schema)
        self._schema_of_part = method_cache(KEPT_SCHEMAS, self._with_counts)
        # Of as many rows as the last batch.
        self._starts = method_cache(1, self._starts_of)
        self._no_reasons = lru_cache(KEPT_SCHEMAS)(lambda rows: _with_struct(reason_array({}, rows)))
        self._known_ids = pa.nulls(0), ArrayStruct(pa.nulls(0))
        self._explains = query.question.explains

    def table(self, answers: Answers, case_ids: pa.Array, apart: bool = True) -> pa.Table:
        """Return the answers to one batch as a table, rows in the order of the batch.

        answers: to the rows of the batch.
        case_ids: Arrow array [rows].
        apart: whether columns of no targets have memory of their own, for who keeps them and not the others.
        The metadata under `junctor.part` has the number of rows of each status.
        """
        status, rows = answers.status, len(answers.status)
        schema, bad = self._schema_and_bad(status, case_ids.type)
        memory = answers.explained if self._explains else answers.memory
        if memory is not None and not isinstance(answers, SampledAnswers):
            return self._in_one_piece(answers, memory, bad, case_ids, schema, apart)
        columns = [*self._targets(answers, bad), number_array(answers.log_value, bad)]
        if isinstance(answers, SampledAnswers):
            columns += sampled_columns(answers, bad)
        columns += [status_array(status, self._statuses), reason_array(answers.reasons, rows)]
        return table_of([case_ids, *columns], schema)

    def schema(self, case_id_type: pa.DataType) -> pa.Schema:
        """Return the schema of a table of posteriors or explanations, with states and names in its metadata."""
        network, query = self._network, self._query
        targets = answered_names(network, query)
        free = free_names(targets)
        intervals = has_intervals(network, query)
        names = columns_beside(query, tuple(free(f"{name}_error") for name in targets), free, intervals)
        ends = {which: {name: free(f"{name}_{which}") for name in targets} for which in (INTERVAL if intervals else ())}
        number = pa.float32() if query.precision == "single" else pa.float64()
        sampled = query.method != "exact"
        fields = [pa.field(names.case_id, case_id_type)]
        # Types are shared: there may be a hundred thousand targets.
        lists = {size: pa.list_(number, size) for size in set(network.cardinalities)}
        for name, error in zip(targets, names.errors, strict=True):
            states = lists[network.cardinalities[network.index[name]]]
            fields.append(pa.field(name, STATE_TYPE if query.question.explains else states))
            if sampled:
                fields += [pa.field(column, states) for column in (error, *(end[name] for end in ends.values()))]
        fields += fields_beside(names, sampled)
        errors = {"errors": dict(zip(targets, names.errors, strict=True)), **ends}
        return pa.schema(fields, self._metadata(targets, {}, errors))

    def _metadata(
        self, targets: Sequence[str], columns: Mapping[str, object], errors: Mapping[str, object]
    ) -> dict[bytes, bytes]:
        """Return the metadata of a table.

        targets: names of their columns.
        columns: what else is said of columns.
        errors: the same of sampled answers alone.
        """
        network, query = self._network, self._query
        shown = {} if query.answers == "posteriors" else {"answers": query.answers, "top": query.top}
        description: dict[str, object] = {
            "format_version": FORMAT_VERSION,
            "network": network.name,
            "network_digest": self._asked.digest,
            "query": query.kind,
            **shown,
            "precision": query.precision,
            "states": {name: network.variables[network.index[name]].states for name in targets},
            **columns,
        }
        if query.method != "exact":
            description |= {"method": query.method, "sampling": sampling_record(network, query), **errors}
        return {METADATA_KEY: json.dumps(description).encode()}

    def _schema_and_bad(
        self, status: npt.NDArray[np.int8], case_id_type: pa.DataType
    ) -> tuple[pa.Schema, npt.NDArray[np.bool_] | None]:
        """Return the schema of a part with such rows, and which of them hold no numbers, None if none."""
        rows = len(status)
        # Most batches have nothing else to count.
        if status.tobytes().count(OK) == rows:
            return self._schema_of_part(case_id_type, (rows, *self._no_others)), None
        counts = np.bincount(status, minlength=len(self._statuses)).tolist()
        return self._schema_of_part(case_id_type, tuple(counts)), without_numbers(status)

    def _in_one_piece(
        self,
        answers: Answers,
        memory: npt.NDArray[Any],
        bad: npt.NDArray[np.bool_] | None,
        case_ids: pa.Array,
        schema: pa.Schema,
        apart: bool,
    ) -> pa.Table:
        """Return a table of exact posteriors, or of states, that lie one after the other in memory."""
        log, status, reasons = answers.log_value, answers.status, answers.reasons
        rows = len(status)
        starts = self._starts(rows) + address_of(memory)
        starts[-2], starts[-1] = address_of(log), address_of(status)
        words, struct = _with_struct(reason_array(reasons, rows)) if reasons else self._no_reasons(rows)
        arrays = self._struct_of(case_ids), struct
        table = pa.Table.from_batches([self._maker.batch(schema, rows, starts, (memory, log, status), bad, arrays)])
        if not apart or rows <= SHARING_ROWS:
            return table
        last, outcomes = len(schema) - 1, (number_array(log, bad), status_array(status, self._statuses))
        return with_own({0: case_ids, last - 2: outcomes[0], last - 1: outcomes[1], last: words}, table)

    def _struct_of(self, case_ids: pa.Array) -> ArrayStruct:
        """Return the struct of case ids; a few of them are often those of the last batch: numbers of rows."""
        known, struct = self._known_ids
        if case_ids is not known:
            struct = ArrayStruct(case_ids)
            # Of buffers, since a few rows may be a slice of many.
            if case_ids.get_total_buffer_size() <= KEPT_ID_BYTES:
                self._known_ids = case_ids, struct
        return struct

    @cached_property
    def _maker(self) -> BatchMaker:
        """What makes batches of exact posteriors or states; case ids and reasons come as arrays."""
        schema = self._schema(pa.int64())
        last = len(schema) - 1
        names = {last - 1: string_array(self._statuses)}
        if self._explains:
            names |= {1 + n: string_array(states) for n, states in enumerate(states_of(schema).values())}
        return BatchMaker(schema, names, (0, last))

    @cached_property
    def _row_starts(self) -> npt.NDArray[np.int64]:
        """Where the posteriors or states of each target begin, int64: in bytes of a row; then two zeros."""
        names = answered_names(self._network, self._query)
        sizes = [1 if self._explains else self._network.cardinalities[self._network.index[name]] for name in names]
        number = 4 if self._explains or self._query.precision == "single" else 8
        return np.array([*(number * np.cumsum([0, *sizes[:-1]])), 0, 0], dtype=np.int64)

    def _starts_of(self, rows: int) -> npt.NDArray[np.int64]:
        return rows * self._row_starts

    def _with_counts(self, case_id_type: pa.DataType, counts: tuple[int, ...]) -> pa.Schema:
        schema = self._schema(case_id_type)
        return schema.with_metadata({**(schema.metadata or {}), **_part_metadata(counts, self._statuses)})

    def _targets(self, answers: Answers, bad: npt.NDArray[np.bool_] | None) -> list[pa.Array]:
        if isinstance(answers, SampledAnswers):
            groups = [(answers.posteriors[v], answers.errors[v], *answers.intervals_of(v)) for v in answers.targets]
            return [list_array(numbers, bad) for group in groups for numbers in group]
        return [list_array(answers.posteriors[variable], bad) for variable in answers.targets]


def tables_for(network: Network, query: Query) -> AnswerTables:
    """Return what makes tables of the answers to a query."""
    tables: AnswerTables = resolve_name(query.question.tables)(network, query)
    return tables


def _with_struct(array: pa.Array) -> tuple[pa.Array, ArrayStruct]:
    return array, ArrayStruct(array)


def status_array(status: npt.NDArray[np.int8], names: Sequence[str]) -> pa.Array:
    """Return the column of statuses, by name."""
    return pa.DictionaryArray.from_arrays(number_array(status), string_array(names))


def part_metadata(status: npt.NDArray[np.int8], names: Sequence[str]) -> dict[bytes, bytes]:
    """Return the metadata of one part: the number of rows of each status."""
    return _part_metadata(np.bincount(status, minlength=len(names)).tolist(), names)


def _part_metadata(counts: Sequence[int], names: Sequence[str]) -> dict[bytes, bytes]:
    return {PART_KEY: json.dumps({"statuses": dict(zip(names, counts, strict=True))}).encode()}


def with_run(table: pa.Table, run: str) -> pa.Table:
    """Return the table of a part whose metadata names its run; run: as of `junctor.runs.storage.run_digest`."""
    metadata = table.schema.metadata
    part = json.loads(metadata[PART_KEY]) | {"run": run}
    return table.replace_schema_metadata({**metadata, PART_KEY: json.dumps(part).encode()})


def run_of(schema: pa.Schema) -> str | None:
    """Return the run that the schema of a part names; None for a part of an earlier version."""
    run: str | None = json.loads(schema.metadata[PART_KEY]).get("run")
    return run


def sampled_columns(answers: SampledAnswers, bad: npt.NDArray[np.bool_] | None) -> list[pa.Array]:
    """Return the columns between logarithm and status that tables of sampled rows have; bad: bool [rows], null."""
    methods = pa.DictionaryArray.from_arrays(number_array(answers.sampled.astype(np.int8), bad), string_array(METHODS))
    exact = ~answers.sampled
    bounds = np.where(exact, answers.log_value, answers.log_bounds)
    return [
        number_array(answers.log_error, bad),
        *(number_array(bound, bad) for bound in bounds),
        number_array(answers.effective, exact if bad is None else bad | exact),
        number_array(answers.samples, bad),
        methods,
    ]


def facts_of(schema: pa.Schema) -> dict[str, Any]:
    """Return what the metadata of a result says of all its parts."""
    facts: dict[str, Any] = json.loads(schema.metadata[METADATA_KEY])
    return facts


def states_of(schema: pa.Schema) -> dict[str, list[str]]:
    """Return target name -> state names, from the schema of a result."""
    states: dict[str, list[str]] = facts_of(schema)["states"]
    return states


def list_states_of(schema: pa.Schema) -> dict[str, list[str]]:
    """Return column name -> state names of all columns of lists: targets and, in sampled tables, their errors."""
    states = states_of(schema)
    if not isinstance(states, dict):
        # Those of a hidden Markov model, whose answers have no targets.
        return {}
    facts = facts_of(schema)
    columns = (item for kind in ("errors", *INTERVAL) for item in facts.get(kind, {}).items())
    return states | {column: states[name] for name, column in columns}


def lists_of_scores(schema: pa.Schema) -> list[str]:
    """Return the names of the columns that are lists of the most probable states, or of numbers of these."""
    facts = facts_of(schema)
    if facts.get("top") is None:
        return []
    columns = (facts["probability_columns"], *(facts.get(kind, {}) for kind in BESIDE_SCORES))
    return [*facts["states"], *(name for names in columns for name in names.values())]


def numbers_of_scores(schema: pa.Schema) -> list[str]:
    """Return the names of the columns of probabilities and entropies of targets."""
    facts = facts_of(schema)
    kinds = ("probability_columns", "entropy_columns", *BESIDE_SCORES)
    return [name for kind in kinds for name in facts.get(kind, {}).values()]


def statuses_of(schema: pa.Schema) -> dict[str, int]:
    """Return status name -> number of rows, from the schema of one part."""
    statuses: dict[str, int] = json.loads(schema.metadata[PART_KEY])["statuses"]
    if not statuses.keys() >= set(STATUS_NAMES) or not all(type(count) is int for count in statuses.values()):
        raise ValueError(f"found the statuses {statuses}")
    return statuses
