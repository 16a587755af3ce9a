"""What runs in a process of its own beside the cells of the table: single calls, impossible rows, long networks.

Generators, whose first word says that everything is loaded. Called by `table_modes.py`.
"""

from __future__ import annotations

import itertools
import math
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import junctor
import numpy as np
import numpy.typing as npt
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch
from junctor.evidence.read import open_evidence
from junctor.formats import read_network
from junctor.generate import chain, random_network
from junctor.model.answers import IMPOSSIBLE, OK
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.runs.results import default_partition_rows
from table_cells import OBSERVED, Cell, Evidence, load_compiled

Found = dict[str, Any]
# Calls that are not counted, and calls whose answers are compared.
FIRST_CALLS, COMPARED = 3, 20
# Calls with a table on several threads, of which the fastest counts.
THREADED_CALLS = 3
# Rows whose status is compared with that in log space.
EXACT_ROWS = 50


def call_times(path: str, evidence: Path, seconds: float, truth: Path | None) -> Iterator[Found]:
    """Yield milliseconds of calls of one row by way of asking; first of all nothing, when loaded."""
    network, rows = read_network(path), Evidence.load(evidence)
    names = [variable.name for variable in network.variables]
    states = [variable.states for variable in network.variables]
    cases = [[{names[v]: states[v][s] for v, s in row.items()}] for row in rows.rows(2000)]
    yield {}
    ways: dict[str, Callable[[Any], Any]] = {"posteriors": lambda case: junctor.posteriors(network, case)}
    if hasattr(junctor, "Model"):
        ways["Model"] = junctor.Model(network).posteriors
    found: Found = {}
    for way, ask in ways.items():
        start = time.perf_counter()
        tables = [ask(cases[0])]
        found[f"{way}, first"] = 1e3 * (time.perf_counter() - start)
        for case in cases[1:FIRST_CALLS]:
            tables.append(ask(case))
        times: list[float] = []
        for case in itertools.cycle(cases[FIRST_CALLS:]):
            start = time.perf_counter()
            table = ask(case)
            times.append(time.perf_counter() - start)
            if len(tables) < COMPARED:
                tables.append(table)
            if sum(times) > seconds:
                break
        found |= {way: 1e3 * sum(times) / len(times), f"{way}, calls": len(times)}
        if truth is not None:
            found |= _compared_calls(network, tables, truth)
        yield found


def _compared_calls(network: Network, tables: Sequence[Any], truth: Path) -> Found:
    """Return the largest difference of a posterior from pyAgrum's."""
    with np.load(truth) as stored:
        expected = stored["posteriors"][: len(tables)]
    found = [np.concatenate([table[v.name][0].as_py() or [math.nan] for v in network.variables]) for table in tables]
    apart = [np.nanmax(np.abs(ours - row), initial=0.0) for ours, row in zip(found, expected, strict=False)]
    return {"posterior_difference": float(max(apart, default=0.0))}


def batch_times(cell: Cell) -> Iterator[Found]:
    """Yield the fewest seconds of some calls of new models with the table of a cell; first nothing, when loaded."""
    load_compiled(cell.precision, cell.threads, cell.device, cell.query)
    table = Evidence.load(cell.evidence).table(read_network(cell.path), cell.rows)
    yield {}
    found: list[tuple[float, float]] = []
    for _ in range(1 if cell.threads == 1 else THREADED_CALLS):
        # Of a network that nothing is prepared for.
        model = junctor.Model(cell.path)
        ask = model.posteriors if cell.query == "posteriors" else model.most_probable
        start, cpu = time.perf_counter(), time.process_time()
        answers = ask(table, precision=cell.precision, threads=cell.threads, device=cell.device)
        found.append((time.perf_counter() - start, time.process_time() - cpu))
        del answers
    seconds, cpu = min(found)
    yield {"seconds": seconds, "cpu": cpu}


def find_impossible(
    path: str, evidence: Path, possible: Path, seconds: float, wanted: int, output: Path, others: Path
) -> Iterator[Found]:
    """Write rows of probability 0 and as many others, no two of them equal; first of all yield nothing, when loaded.

    evidence: rows of both sorts. possible: more rows of the same columns that are not impossible.
    wanted: most rows of each sort. output, others: files of both.
    Yields how many there are, and how many of the first rows log space judges otherwise.
    """
    network, rows = read_network(path), different(Evidence.load(evidence))
    engine = Engine(network, Query(), ComputeOptions(device="cpu"), expected_rows=rows.count)
    yield {}
    status: list[npt.NDArray[np.int8]] = []
    start = time.perf_counter()
    for first in range(0, rows.count, 100):
        status.append(engine.answer(rows.batch(first, min(first + 100, rows.count))).status)
        if sum((found == IMPOSSIBLE).sum() for found in status) >= wanted or time.perf_counter() - start > seconds:
            break
    known = np.concatenate(status)
    zero, more = rows.only(np.flatnonzero(known == IMPOSSIBLE)), rows.only(np.flatnonzero(known == OK))
    both = different(Evidence(rows.columns, np.hstack([Evidence.load(possible).states, more.states])))
    count = min(wanted, zero.count, both.count)
    zero.only(np.arange(count)).store(output)
    both.only(np.arange(count)).store(others)
    # Log space has neither overflow nor underflow: what it calls impossible is.
    exact = Engine(network, Query(precision="log"), ComputeOptions(device="cpu"))
    checked = min(EXACT_ROWS, len(known))
    wrong = exact.answer(rows.batch(0, checked)).status != known[:checked]
    yield {"rows": count, "other_status": int(wrong.sum()), "checked": checked}


def different(rows: Evidence) -> Evidence:
    """Return the rows without those that are equal to an earlier one."""
    _, first = np.unique(rows.states, axis=1, return_index=True)
    return rows.only(np.sort(first))


def long_network(name: str) -> Network:
    """Return a generated network, `chain:1000` or `tree:1000`, or that of a file."""
    shape, _, length = name.partition(":")
    if shape == "chain" and length:
        return chain(int(length), seed=1)
    if shape == "tree" and length:
        return random_network(int(length), 2, parents=1, window=50, seed=1)
    return read_network(name)


def long_times(name: str, rows: int, threads: int) -> Iterator[Found]:
    """Yield seconds to make or read a long network and its evidence, then to answer so many rows, and the memory."""
    load_compiled("double", threads, "cpu")
    start = time.perf_counter()
    network = long_network(name)
    batches = list(_long_evidence(network, name, rows))
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield {"variables": len(network.variables), "made": time.perf_counter() - start}
    start, cpu = time.perf_counter(), time.process_time()
    engine = Engine(network, Query(), ComputeOptions(threads=threads, device="cpu"), expected_rows=rows)
    logs = [engine.answer(batch).log_value for batch in batches]
    found: Found = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu, "log": float(logs[0][0])}
    found["bytes"] = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held)
    if name.startswith("chain:"):
        expected = np.concatenate([chain_logs(network, batch) for batch in batches])
        found["log_difference"] = float(np.max(np.abs(np.concatenate(logs) - expected) / np.abs(expected)))
    yield found


def _long_evidence(network: Network, name: str, rows: int) -> Iterator[EvidenceBatch]:
    """Yield batches: random states of a fifth of the variables, or the evidence file of a network file."""
    file = Path(name.removesuffix(".gz") + ".evid")
    if file.exists():
        yield from (part.batch for part in open_evidence(file, network).partitions(1))
        return
    rng = np.random.default_rng(1)
    variables = np.sort(rng.choice(len(network.variables), max(1, int(OBSERVED * len(network.variables))), False))
    piece = default_partition_rows(network, Query())
    for first in range(0, rows, piece):
        count = min(piece, rows - first)
        states = {int(v): rng.integers(0, network.cardinalities[v], count, dtype=np.int32) for v in variables}
        yield EvidenceBatch(count, states)


def chain_logs(network: Network, batch: EvidenceBatch) -> np.ndarray:
    """Return log P(e) of each row of a chain, step by step."""
    message, logs = np.ones((batch.rows, 1)), np.zeros(batch.rows)
    for v, factor in enumerate(network.factors):
        message = message @ factor.table.reshape(message.shape[1], -1)
        if v in batch.states:
            message = np.where(np.arange(message.shape[1]) == batch.states[v][:, None], message, 0.0)
        total = message.sum(axis=1, keepdims=True)
        message, logs = message / total, logs + np.log(total[:, 0])
    return logs
