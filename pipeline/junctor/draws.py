"""Rows drawn from a network: forward, or for each row of evidence exactly from what it leaves possible.

Main class: Draws; called by `Network.sample` and the command line. `junctor.generate` draws forward,
`junctor.cliques.draws` from calibrated clique tables, and where these are large `junctor.circuits.draws` from a
circuit. What a row draws depends on the seed, its number and its evidence alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv, parquet

from junctor.circuits.limits import DENSE, MOST_DECISIONS, SearchLimits
from junctor.cliques.draws import CliqueDraws, States
from junctor.cliques.tree import StoredTree
from junctor.evidence.batch import EvidenceBatch
from junctor.evidence.read import EvidenceSource
from junctor.generate import BLOCK_ROWS, CASE_ID, evidence_batches, record_batches
from junctor.learning.rows import PIECE_ROWS, open_rows, row_options
from junctor.model.arguments import real, whole
from junctor.model.errors import BudgetError, EvidenceError, InputError, ModelError
from junctor.model.network import Network
from junctor.model.option_table import DrawOptions, RowOptions, defaults_of, takes_keywords
from junctor.model.options import ComputeOptions
from junctor.planning.cliques import plan_stored
from junctor.planning.shape import shape_of
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.files import written_atomically
from junctor.runtime.machine import allowed_memory, compute_options, usable_cores
from junctor.runtime.remote import AnyPath
from junctor.sampling.rows import evidence_of
from junctor.strategies.circuit import ROW_DECISIONS, fixed_states

if TYPE_CHECKING:
    from junctor.circuits.evaluate import CircuitProgram

# Cells of a batch that are drawn from clique tables, at most.
BLOCK_CELLS = 1 << 24
# Entries of clique tables up to which a network is drawn from them; beyond, a circuit is searched for, with a decision
# for so many of them, and taken where each of its edges replaces so many, since it adds up logarithms.
MANY_ENTRIES, DECISION_ENTRIES, EDGE_ENTRIES = 1 << 24, 1 << 14, 8
# Rows without draws that are told of.
MOST_TOLD = 10
# Keys of Philox are two numbers of 64 bits: the seed and the number of a row.
MOST_SEED = 1 << 64


class RowDraws(Protocol):
    """P(all variables | e) of one row, to draw from."""

    @property
    def choices(self) -> int:
        """Random numbers that a draw takes at most."""

    def draw(self, chances: npt.NDArray[np.float64]) -> States:
        """Return draws, int32 [variables, draws]; chances: float64 [draws, choices], from 0 to below 1."""


# Returns what draws a row of a batch, or why it is impossible; raises BudgetError for a row that nothing draws.
GivenRow = Callable[[EvidenceBatch, int], RowDraws | str]


class Draws:
    """Drawn rows as record batches: `case_id` and a column of state names for each variable.

    network: bayesian or not.
    rows: number of draws, for each row of evidence where there is some.
    evidence: path of a file, folder or glob, or a table in memory; None for none.
    options: of the table.

    To go over it once draws the rows; rows of evidence that are invalid or impossible have no draws and are counted in
    `undrawn`. Raises EvidenceError, BudgetError, and InputError for a mapping that is no path.
    """

    @takes_keywords()
    def __init__(self, network: Network, rows: int, evidence: Any = None, **options: Unpack[DrawOptions]) -> None:
        self.network = network
        self.rows = _within("rows", whole("rows", rows), math.inf)
        self._seed = _within("seed", whole("seed", options["seed"]), MOST_SEED - 1)
        self._missing = 1.0 - _within("observed", real("observed", options["observed"]), 1)
        self._source = None if evidence is None else open_rows(evidence, network, row_options(options), Resources())
        if self._source is None:
            _refuse_reading(options)
        self._cpu = compute_options(memory=options["memory"], device="cpu")
        self._case_ids: pa.Array | None = None
        self._told: list[tuple[int, str]] = []
        self.answered = self.undrawn = self.invalid = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        cells: dict[str, Any] = {"observed": 1.0, "pattern": "missing" if self._missing else "fixed"}
        cells |= {"seed": self._seed, "missing": self._missing}
        if self._source is None and self.network.kind == "bayes":
            yield from evidence_batches(self.network, self.rows, **cells)
            return
        for batch in record_batches(self.network, self._blocks(), **cells):
            yield batch if self._case_ids is None else batch.set_column(0, CASE_ID, self._case_ids)

    def words(self) -> Iterator[str]:
        """Yield a line for each row of evidence without draws, for the first of many."""
        names = [] if self._source is None else self._source.names_of([row for row, _ in self._told])
        yield from (f"row {name}: {why}" for name, (_, why) in zip(names, self._told, strict=True))
        if self.undrawn > len(self._told):
            yield f"{self.undrawn - len(self._told):,} more rows"

    def _blocks(self) -> Iterator[States]:
        """Yield draws given evidence, block by block, one at the least; `_case_ids` are those of the last one."""
        given = _given_rows(self.network, self._cpu)
        most = max(1, min(BLOCK_ROWS, BLOCK_CELLS // len(self.network.variables)))
        pieces = self._alone(given, most) if self._source is None else self._given(given, most, self._source)
        waiting: list[tuple[pa.Array | None, States]] = []
        for piece in pieces:
            if sum(samples.shape[1] for _, samples in waiting) + piece[1].shape[1] > most:
                yield self._block(waiting)
                waiting = []
            waiting.append(piece)
        yield self._block(waiting)

    def _block(self, pieces: list[tuple[pa.Array | None, States]]) -> States:
        if self._source is not None:
            nothing = pa.array([], self._source.case_id_type)
            self._case_ids = pa.concat_arrays([nothing, *(ids for ids, _ in pieces)])
        empty = np.empty((len(self.network.variables), 0), dtype=np.int32)
        return np.concatenate([empty, *(samples for _, samples in pieces)], axis=1)

    def _alone(self, given: GivenRow, most: int) -> Iterator[tuple[None, States]]:
        """Yield draws without evidence, at most so many at a time."""
        found = given(EvidenceBatch(1), 0)
        if isinstance(found, str):
            raise ModelError(f"{self.network.name!r} has nothing to draw: its tables rule out all states together")
        for samples in self._of_row(found, 0, most):
            yield None, samples

    def _given(self, given: GivenRow, most: int, source: EvidenceSource) -> Iterator[tuple[pa.Array, States]]:
        """Yield the draws of the rows of evidence with their case ids, at most so many at a time.

        Raises the BudgetError of the first row where that is why none has any.
        """
        refused, why = 0, BudgetError()
        for part in source.partitions(PIECE_ROWS):
            for row in range(part.batch.rows):
                number, case_id = part.first_row + row, part.case_ids.slice(row, 1)
                self.answered += 1
                if row in part.batch.invalid:
                    self.invalid += 1
                    self._tell(number, part.batch.invalid[row])
                    continue
                try:
                    found = given(part.batch, row)
                except BudgetError as error:
                    why = why if refused else error
                    refused, found = refused + 1, str(error)
                if isinstance(found, str):
                    self._tell(number, found)
                    continue
                for samples in self._of_row(found, number, most):
                    yield case_id.take(pa.array(np.zeros(samples.shape[1], dtype=np.int32))), samples
        if 0 < refused == self.undrawn == self.answered:
            raise why

    def _of_row(self, given: RowDraws, number: int, most: int) -> Iterator[States]:
        """Yield the draws of a row, at most so many at a time."""
        stream = np.random.Generator(np.random.Philox(key=np.array([self._seed, number], dtype=np.uint64)))
        for first in range(0, self.rows, most):
            # A draw after the other, so that fewer of them are the first ones of more.
            yield given.draw(stream.random((min(most, self.rows - first), given.choices)))

    def _tell(self, row: int, why: str) -> None:
        self.undrawn += 1
        if len(self._told) < MOST_TOLD:
            self._told.append((row, why))


def _given_rows(network: Network, cpu: ComputeOptions) -> GivenRow:
    """Return what finds draws of rows: clique tables, or circuits where these are large; raises BudgetError."""
    # Of whole tables: a family is in a clique.
    plan = plan_stored(shape_of(network))
    entries, why = plan.total_entries(), "allow more memory (--memory)"
    made = partial(StoredTree, network, "double", cpu, advice=why, plan=plan)
    if entries <= MANY_ENTRIES or network.above_zero >= DENSE:
        return partial(_from_cliques, made())
    program = _program(network, {}, min(MOST_DECISIONS, entries // DECISION_ENTRIES), cpu)
    if not isinstance(program, str) and program.circuit.edges * EDGE_ENTRIES < entries:
        return partial(_from_circuit, program, cpu)
    try:
        return partial(_from_cliques, made())
    except BudgetError as error:
        if isinstance(program, str):
            program = _program(network, {}, MOST_DECISIONS, cpu)
        if isinstance(program, str):
            return partial(_from_own_circuit, network, cpu, f"{error}; {program}")
        return partial(_from_circuit, program, cpu)


def _from_cliques(tree: StoredTree, batch: EvidenceBatch, row: int) -> RowDraws | str:
    names = [variable.name for variable in tree.network.variables]
    cliques = tree.propagate({names[v]: values for v, values in _likelihoods(tree.network, batch, row).items()})
    return cliques.reason if cliques.log_evidence == -math.inf else CliqueDraws(tree.plan, cliques)


def _from_circuit(program: CircuitProgram, cpu: ComputeOptions, batch: EvidenceBatch, row: int) -> RowDraws | str:
    # Imported where evidence is impossible: with it comes compiled code.
    from junctor.backends.contradictions import reason_of

    network = program.network
    return program.draws(batch, row) or reason_of(network, _likelihoods(network, batch, row), allowed_memory(cpu))


def _from_own_circuit(
    network: Network, cpu: ComputeOptions, why: str, batch: EvidenceBatch, row: int
) -> RowDraws | str:
    """Return draws of a row from a circuit in which what it observes is fixed; raises BudgetError with why else."""
    program = _program(network, fixed_states(np.array([row]), batch), ROW_DECISIONS, cpu)
    if isinstance(program, str):
        raise BudgetError(f"{why}; for this row {program}")
    return _from_circuit(program, cpu, batch, row)


def _program(network: Network, fixed: dict[int, int], decisions: int, cpu: ComputeOptions) -> CircuitProgram | str:
    """Return the circuit of all variables with some states fixed, or why there is none."""
    from junctor.circuits.evaluate import CircuitProgram
    from junctor.circuits.kept import kept_circuit

    # Auxiliary variables are summed out: nobody sees their states.
    needed = set(range(len(network.public))) - fixed.keys()
    limits = SearchLimits.within(allowed_memory(cpu), decisions)
    found = kept_circuit(network.with_fewer_axes, fixed, needed, limits, usable_cores())
    return found if isinstance(found, str) else CircuitProgram(network, found)


def _likelihoods(network: Network, batch: EvidenceBatch, row: int) -> dict[int, npt.NDArray[np.float64]]:
    """Return the likelihood of every state of the variables that one row has evidence on."""
    hard, soft = evidence_of(batch, np.array([row]))[0]
    return {v: np.eye(network.cardinalities[v])[state] for v, state in hard.items()} | dict(soft)


def sample_table(network: Network, rows: int, evidence: Any, options: dict[str, Any]) -> pa.Table:
    """Return all drawn rows as one table, and warn of rows of evidence without any; arguments as of `Draws`."""
    draws = Draws(network, rows, evidence, **options)
    table = pa.Table.from_batches(list(draws))
    for words in draws.words():
        warnings.warn(f"evidence without draws: {words}", stacklevel=3)
    return table


def write_draws(draws: Draws, path: AnyPath) -> int:
    """Write drawn rows as CSV or Parquet, by the name, whole or not at all; returns how many there are.

    Raises RunError where the file cannot be written, and the errors of `Draws`.
    """
    rows = 0
    with written_atomically(path) as temporary:
        writer = None
        for batch in draws:
            # Text: CSV has no dictionaries.
            shown = _plain(batch) if path.suffix.lower() == ".csv" else batch
            make = csv.CSVWriter if path.suffix.lower() == ".csv" else parquet.ParquetWriter
            writer = writer or make(temporary, shown.schema)
            writer.write_batch(shown)
            rows += batch.num_rows
        assert writer is not None
        writer.close()
    return rows


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [column.dictionary_decode() if hasattr(column, "dictionary_decode") else column for column in batch]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _within(what: str, found: Any, most: float) -> Any:
    if not 0 <= found <= most:
        raise EvidenceError(f"found {what}={found}, expected at least 0" + f" and at most {most}" * (most < math.inf))
    return found


def _refuse_reading(options: DrawOptions) -> None:
    """Raise InputError for options that say how evidence is read, where there is none."""
    for name, default in defaults_of(RowOptions).items():
        if options.get(name, default) != default:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{name} ({option}) says how evidence is read, and there is none: leave it out")
