"""pyAgrum on the rows of a cell: times of its engines, and the answers of the best one. Called by `tables.py`."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from agrum import Peer, States, limit_memory, peer_model
from junctor.formats import read_network
from junctor.model.answers import IMPOSSIBLE, OK, UNANSWERED
from junctor.model.network import Network
from pyagrum import IncompatibleEvidence
from table_cells import Evidence

# Of the clock and of the CPU.
Seconds = tuple[float, float]
# A mean needs no more.
MOST_ROWS = 1000
# Of posteriors that are compared.
MOST_BYTES = 1 << 24


def answer_peer(path: str, evidence: Path, seconds: float, output: Path) -> Iterator[dict[str, Any]]:
    """Yield seconds of pyAgrum by engine, and write the answers of the best one; first of all nothing, when loaded.

    An eighth of `seconds` is for each of its two exact engines with evidence in place and fresh, half of it for the
    best one. `engines`: name -> seconds of its first row, mean seconds of the others; `engines_cpu`: CPU seconds.
    """
    network, rows = read_network(path), Evidence.load(evidence)
    model = peer_model(network)
    cases = rows.rows(min(MOST_ROWS, rows.count))
    limit_memory()
    yield {}
    found: dict[str, Any] = {"engines": {}, "engines_cpu": {}, "rows": 0}
    peers: dict[str, Peer] = {}
    for algorithm, in_place in itertools.product(("ShaferShenoyInference", "LazyPropagation"), (True, False)):
        peer = Peer(model, algorithm, in_place, threads=1)
        first = means(timed_rows(peer, cases[:1], seconds / 8))
        # A row of some engines takes longer than all the time that there is.
        usual = means(timed_rows(peer, cases[1:], seconds / 8)) if first[0] < seconds else first
        _note(found, peer, first, usual)
        peers[peer.name] = peer
        yield found
    best = min(peers, key=lambda name: float(found["engines"][name][1]))
    answers = PeerAnswers(network, len(cases))
    times = timed_rows(peers[best], cases, seconds / 2, answers)
    first = (found["engines"][best][0], found["engines_cpu"][best][0])
    _note(found, peers[best], first, means(times))
    answers.store(output)
    yield found | {"rows": len(times), "refused": peers[best].refused}


def _note(found: dict[str, Any], peer: Peer, first: Seconds, usual: Seconds) -> None:
    for clock, which in enumerate(("engines", "engines_cpu")):
        # The first row plans, and takes no less than another.
        found[which][peer.name] = [first[clock], min(first[clock], usual[clock])]


def means(times: Sequence[Seconds]) -> Seconds:
    """Return the mean seconds of the clock and of the CPU, infinite of none."""
    if not times:
        return math.inf, math.inf
    clock, cpu = (sum(column) / len(times) for column in zip(*times, strict=True))
    return clock, cpu


class PeerAnswers:
    """Answers of pyAgrum to the first rows: status, log P(e) (NaN where it has none), posteriors of all variables."""

    def __init__(self, network: Network, rows: int) -> None:
        self._starts = np.cumsum([0, *network.cardinalities])
        self._room = min(rows, MOST_BYTES // (8 * int(self._starts[-1])))
        self._factors = network.factors
        self._status = np.full(rows, UNANSWERED, dtype=np.int8)
        self._logs = np.full(rows, math.nan)
        self._posteriors: list[np.ndarray] = []

    def add(self, row: States, peer: Peer, tables: Sequence[np.ndarray] | None, status: int) -> None:
        """Add the answer to the next row, if there is room."""
        at = len(self._posteriors)
        if at == self._room:
            return
        if status == OK and math.isnan(peer.log_value()) and self._contradicts(row):
            # It answers such rows: P(e) is 0 in its log, which it is as well where it underflows.
            status, tables = IMPOSSIBLE, None
        self._status[at] = status
        # NaN where the variable is observed, of which pyAgrum was not asked.
        posteriors = np.full(self._starts[-1], math.nan)
        if tables is not None:
            self._logs[at] = peer.log_value()
            unobserved = (v for v in range(len(self._starts) - 1) if v not in row)
            for v, table in zip(unobserved, tables, strict=True):
                posteriors[self._starts[v] : self._starts[v + 1]] = table
        self._posteriors.append(posteriors)

    def _contradicts(self, row: States) -> bool:
        """Whether the row observes all variables of a factor, in states that it rules out."""
        inside = (factor for factor in self._factors if row.keys() >= set(factor.scope))
        return any(factor.table[tuple(row[v] for v in factor.scope)] == 0 for factor in inside)

    def store(self, path: Path) -> None:
        """Write a file."""
        posteriors = np.array(self._posteriors)
        count = len(posteriors)
        np.savez_compressed(path, status=self._status[:count], logs=self._logs[:count], posteriors=posteriors)


def timed_rows(peer: Peer, rows: Sequence[States], seconds: float, answers: PeerAnswers | None = None) -> list[Seconds]:
    """Return the seconds of each row that it answers, as many as `seconds` allow and one at least."""
    times: list[Seconds] = []
    for row in rows:
        start, cpu = time.perf_counter(), time.process_time()
        try:
            tables = peer.answer(row)
            status = UNANSWERED if tables is None else OK
        except IncompatibleEvidence:
            tables, status = None, IMPOSSIBLE
        if status != UNANSWERED:
            times.append((time.perf_counter() - start, time.process_time() - cpu))
        if answers is not None:
            answers.add(row, peer, tables, status)
        if times and sum(clock for clock, _ in times) > seconds:
            break
    return times
