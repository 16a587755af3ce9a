"""Cells of the table of networks, kinds, precisions and rows: their evidence, and our answers, timed and compared.

Every cell is measured in a process of its own, with a new engine: planning, lowering and all that an engine keeps
count. Rows of a cell are a prefix of those of a larger one. Called by `tables.py` and `table_modes.py`.
"""

from __future__ import annotations

import itertools
import math
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from common import in_a_child
from junctor.engine.engine import Engine
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.formats import read_network
from junctor.generate import random_network, sample
from junctor.model.answers import IMPOSSIBLE, OK, UNANSWERED, Answers
from junctor.model.network import Network
from junctor.model.options import ComputeOptions, DeviceChoice
from junctor.model.query import Precision, Query
from junctor.model.question import QueryKind
from junctor.runs.results import default_partition_rows
from junctor.strategies import number_ladder as blocks

# The same variables in every row, complete; 5 % of these cells empty; 30 %; every row its own set; 5 % of the cells set
# to a random state; all states random.
KINDS = ("fixed", "missing", "holes", "varied", "noisy", "random")
OBSERVED, NOISE = 0.2, 0.05
EMPTY = {"missing": 0.05, "holes": 0.3}
# Differences of posteriors, and of log P(e) in parts of itself, up to which answers agree.
TOLERANCE: dict[str, float] = {"double": 1e-6, "single": 1e-4}
# Rows of random numbers at a time, which take twice the memory of states.
_BLOCK = 8192


@dataclass(frozen=True)
class Evidence:
    """States of some variables: columns [c] (variables), states [c, rows], UNOBSERVED where nothing is known."""

    columns: npt.NDArray[np.int64]
    states: npt.NDArray[np.int32]

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.states.shape[1])

    def batch(self, first: int, last: int) -> EvidenceBatch:
        """Return some rows as a batch."""
        found = {int(v): np.ascontiguousarray(self.states[i, first:last]) for i, v in enumerate(self.columns)}
        return EvidenceBatch(last - first, found)

    def rows(self, count: int) -> list[dict[int, int]]:
        """Return the first rows as variable -> observed state."""
        states = self.states[:, :count].T
        return [
            {int(self.columns[i]): int(row[i]) for i in np.flatnonzero(row != UNOBSERVED)} for row in np.array(states)
        ]

    def table(self, network: Network, rows: int) -> pa.Table:
        """Return the first rows as a table of names, null where nothing is known."""
        columns = {}
        for v, states in zip(self.columns, np.array(self.states[:, :rows]), strict=True):
            variable, unknown = network.variables[v], states == UNOBSERVED
            codes = pa.array(np.where(unknown, 0, states), mask=unknown)
            columns[variable.name] = pa.DictionaryArray.from_arrays(codes, pa.array(variable.states))
        return pa.table(columns)

    def only(self, rows: npt.NDArray[Any]) -> Evidence:
        """Return some of the rows."""
        return Evidence(self.columns, np.ascontiguousarray(self.states[:, rows]))

    def store(self, path: Path) -> None:
        """Write a file."""
        np.save(path.with_suffix(".columns.npy"), self.columns)
        np.save(path, self.states)

    @classmethod
    def load(cls, path: Path) -> Evidence:
        """Read a file; states stay on the disk until they are asked for."""
        return cls(np.load(path.with_suffix(".columns.npy")), np.load(path, mmap_mode="r"))


def evidence(network: Network, name: str, kind: str, samples: npt.NDArray[np.int32], seed: int = 1) -> Evidence:
    """Return evidence of a kind made of samples [rows, variables]; fewer rows are a prefix of more."""
    variables = len(network.variables)
    count = max(1, int(OBSERVED * variables))
    key = (seed, crc32(name.encode()))
    columns = np.arange(variables)
    if kind != "varied":
        # As in `peers.py`, whose figures these are comparable with.
        columns = np.sort(np.random.default_rng(seed).choice(variables, count, replace=False))
    sizes = np.array(network.cardinalities)[columns]
    # Two streams, each used row by row, so that rows do not depend on how many there are.
    cells, states = (np.random.default_rng((*key, KINDS.index(kind), stream)) for stream in (1, 2))
    found = np.empty((len(columns), len(samples)), dtype=np.int32)
    for first in range(0, len(samples), _BLOCK):
        part = samples[first : first + _BLOCK][:, columns]
        chance = cells.random(part.shape)
        if kind == "varied":
            seen = np.zeros(part.shape, dtype=np.bool_)
            np.put_along_axis(seen, chance.argpartition(count - 1, axis=1)[:, :count], True, axis=1)
            part = np.where(seen, part, UNOBSERVED)
        elif kind in EMPTY:
            part = np.where(chance < EMPTY[kind], UNOBSERVED, part)
        elif kind in ("noisy", "random"):
            other = (states.random(part.shape) * sizes).astype(np.int32)
            part = other if kind == "random" else np.where(chance < NOISE, other, part)
        found[:, first : first + _BLOCK] = part.T
    return Evidence(columns, found)


@dataclass(frozen=True)
class Cell:
    """What is measured, in which files it is, and how long one piece of its rows may take."""

    path: str
    evidence: Path
    kind: str
    rows: int
    precision: Precision
    threads: int
    device: DeviceChoice
    seconds: float
    # Answers of pyAgrum, if there are any.
    truth: Path | None = None
    query: QueryKind = "posteriors"

    @property
    def network(self) -> str:
        """Name of the network."""
        return Path(self.path).name.split(".")[0]

    @property
    def name(self) -> dict[str, Any]:
        """What tells this cell from others."""
        asked = {"kind": self.kind, "rows": self.rows, "precision": self.precision, "query": self.query}
        return {"network": self.network, **asked, "threads": self.threads, "device": self.device}


def answer_cell(cell: Cell) -> Iterator[dict[str, Any]]:
    """Yield rows done and seconds, when everything is loaded and after each piece, at last with the comparison."""
    load_compiled(cell.precision, cell.threads, cell.device, cell.query)
    network, rows, query = (
        read_network(cell.path),
        Evidence.load(cell.evidence),
        Query(cell.query, precision=cell.precision),
    )
    # In pieces, as the API and runs do it.
    piece = min(cell.rows, default_partition_rows(network, query))
    found: dict[str, Any] = {"piece": piece, "done": 0, "seconds": 0.0, "cpu": 0.0, "impossible": 0, "climbed": 0}
    yield found
    start, cpu = time.perf_counter(), time.process_time()
    options = ComputeOptions(threads=cell.threads, device=cell.device)
    engine = Engine(network, query, options, expected_rows=cell.rows)
    found["seconds"], found["cpu"] = time.perf_counter() - start, time.process_time() - cpu
    first = None
    with climbing_rows(engine) as climbed:
        while found["done"] < cell.rows and found["seconds"] < cell.seconds:
            batch = rows.batch(found["done"], min(cell.rows, found["done"] + piece))
            start, cpu = time.perf_counter(), time.process_time()
            answers = engine.answer(batch)
            found["seconds"] += time.perf_counter() - start
            found["cpu"] += time.process_time() - cpu
            found["done"] += batch.rows
            found["impossible"] += int((answers.status == IMPOSSIBLE).sum())
            found["climbed"] = sum(climbed)
            first = answers if first is None else first
            yield found
    assert first is not None
    found["bytes"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if cell.truth is not None:
        found |= compared(network, first, cell.truth)
    yield found


def load_compiled(precision: Precision, threads: int, device: DeviceChoice, query: QueryKind = "posteriors") -> None:
    """Have compiled code loaded by a small network: rows of all kinds, of which some are impossible."""
    network = random_network(40, (2, 4), 3, 8, seed=1, zeros=0.3)
    samples = sample(network, 300, 1)
    for kind, numbers in itertools.product(("fixed", "missing", "varied", "random"), (precision, "log")):
        # As many rows to come as are worth the compiled search for an order.
        asked, options = Query(query, precision=numbers), ComputeOptions(threads=threads, device=device)
        engine = Engine(network, asked, options, None, 10**6)
        engine.answer(evidence(network, "loading", kind, samples).batch(0, len(samples)))


@contextmanager
def climbing_rows(engine: Engine) -> Iterator[list[int]]:
    """Collect the numbers of rows that were asked of another number format than the first one."""
    counts: list[int] = []
    answer_in = blocks.answer_in

    def counting(prepared: Any, algebra: Any, batch: EvidenceBatch, rows: npt.NDArray[Any], *rest: Any) -> Any:
        if algebra is not engine.facts.ladder[0]:
            counts.append(len(rows))
        return answer_in(prepared, algebra, batch, rows, *rest)

    blocks.answer_in = counting
    try:
        yield counts
    finally:
        blocks.answer_in = answer_in


def compared(network: Network, answers: Answers, truth: Path) -> dict[str, Any]:
    """Return how many rows pyAgrum answered as well, and how far the answers are apart."""
    with np.load(truth) as stored:
        status, logs, posteriors = stored["status"], stored["logs"], stored["posteriors"]
    count = min(len(status), len(answers.status))
    answered = status[:count] != UNANSWERED
    other = answered & (answers.status[:count] != status[:count])
    both = np.flatnonzero(answered & ~other & (status[:count] == OK))
    posterior = log = 0.0
    starts = np.cumsum([0, *network.cardinalities])
    for v in answers.targets:
        ours = np.asarray(answers.posteriors[v][both], dtype=np.float64)
        apart = np.abs(ours - posteriors[both, starts[v] : starts[v + 1]])
        # NaN where pyAgrum was not asked, since the variable is observed; ours must never be.
        apart[np.isnan(ours)] = math.inf
        posterior = max(posterior, float(np.nanmax(apart, initial=0.0)))
    if both.size:
        apart = np.abs(answers.log_value[both] - logs[both]) / np.maximum(1.0, np.abs(logs[both]))
        log = float(np.nanmax(apart, initial=0.0))
    return {
        "compared": int(answered.sum()),
        "other_status": [int(row) for row in np.flatnonzero(other)[:10]],
        "posterior_difference": posterior,
        "log_difference": log,
    }


def measured(cell: Cell) -> dict[str, Any]:
    """Measure a cell in a process of its own, and return what tells it from others, and what was found.

    `ms`: milliseconds a row of those that were done; where not even the first piece was done in time, which `over`
    says, the least that they can be. `loading`: seconds until imports and compiled code were there.
    """
    found: dict[str, Any] = {}
    loading, start = math.nan, time.perf_counter()
    try:
        for said in in_a_child(answer_cell, cell, silence=cell.seconds):
            found = said
            loading = loading if loading == loading else time.perf_counter() - start
    except TimeoutError:
        pass
    except RuntimeError as error:
        found["error"] = str(error)
    done = found.get("done", 0)
    ms = 1e3 * found["seconds"] / done if done else 1e3 * cell.seconds / found.get("piece", cell.rows)
    return cell.name | found | {"ms": ms, "over": not done, "loading": loading}
