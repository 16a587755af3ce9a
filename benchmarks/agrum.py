"""pyAgrum as a peer: networks built from our tables, its two exact engines, evidence changed in place or set afresh."""

from __future__ import annotations

import itertools
import math
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pyagrum
from junctor.evidence.batch import UNOBSERVED
from junctor.model.network import Network
from junctor.runtime.machine import DEFAULT_SHARE, available_memory

Tables = list[npt.NDArray[np.float64]]
States = Mapping[int, int]


def peer_model(network: Network) -> pyagrum.BayesNet:
    """Build the network in pyAgrum from our tables, number by number, so that both compute with the same."""
    model = pyagrum.BayesNet()
    for variable in network.variables:
        model.add(pyagrum.LabelizedVariable(variable.name, "", len(variable.states)))
    for i, factor in enumerate(network.factors):
        # A table there lists its variable first, then the parents as the arcs came, the first one fastest.
        for parent in reversed(factor.scope[:-1]):
            model.addArc(parent, i)
        model.cpt(i).fillWith(factor.table.ravel().tolist())
    return model


class Peer:
    """One of pyAgrum's engines, with evidence changed in place or set afresh for every row."""

    def __init__(self, model: pyagrum.BayesNet, algorithm: str, in_place: bool, threads: int) -> None:
        self.name = f"{algorithm}, {'in place' if in_place else 'fresh'}"
        self._variables = range(model.size())
        self._make = lambda: getattr(pyagrum, algorithm)(model)
        self._threads = threads
        self._in_place = in_place
        self.refused = 0
        self._renew()

    def answer(self, row: States) -> Tables | None:
        """Return the posteriors of all variables that `row` does not observe; None where that takes too much memory."""
        self._observe(row)
        try:
            self._engine.makeInference()
            tables = [self._engine.posterior(v).toarray() for v in self._variables if v not in row]
        except Exception as error:
            # aGrUM's std::bad_alloc comes as a bare Exception, and leaves its engine in pieces.
            if "bad_alloc" not in str(error) and not isinstance(error, MemoryError):
                raise
            self.refused += 1
            self._renew()
            return None
        self._answered = True
        return tables

    def _renew(self) -> None:
        self._engine = self._make()
        self._engine.setNumberOfThreads(self._threads)
        self._known: dict[int, int] = {}
        self._answered = False

    def log_value(self) -> float:
        """Return log P(e) of the row last answered; NaN where pyAgrum has no number for it."""
        probability = self._engine.evidenceProbability() if self._answered else 0.0
        return math.log(probability) if probability > 0 else math.nan

    def _observe(self, row: States) -> None:
        if not self._in_place:
            self._engine.eraseAllEvidence()
            self._known = {}
        for v in self._known.keys() - row.keys():
            self._engine.eraseEvidence(v)
        for v, state in row.items():
            if v not in self._known:
                self._engine.addEvidence(v, state)
            elif state != self._known[v]:
                self._engine.chgEvidence(v, state)
        self._known = dict(row)
        self._answered = False


def limit_memory() -> None:
    """Let this process take its usual share of the memory and no more: pyAgrum takes all there is for some rows."""
    used = psutil.Process().memory_info().vms
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + int(DEFAULT_SHARE * available_memory()), hard))


def rows_of(states: npt.NDArray[np.int32]) -> list[dict[int, int]]:
    """Return each row as variable -> observed state."""
    return [{int(v): int(row[v]) for v in np.flatnonzero(row != UNOBSERVED)} for row in states]


def timed(work: Callable[[Any], Any], on: Any) -> tuple[Any, float]:
    """Return what `work` makes of `on`, and the seconds that it takes."""
    start = time.perf_counter()
    result = work(on)
    return result, time.perf_counter() - start


def run_peer(peer: Peer, rows: Iterable[States], seconds: float) -> float:
    """Return the mean seconds of the rows that it answers, as many as `seconds` allow; infinite if it answers none."""
    started, spent, done = time.perf_counter(), 0.0, 0
    for row in rows:
        answer, took = timed(peer.answer, row)
        if answer is not None:
            spent, done = spent + took, done + 1
        if done and time.perf_counter() - started > seconds:
            break
    return spent / done if done else math.inf


def fastest_peer(model: pyagrum.BayesNet, rows: Sequence[States], seconds: float, threads: int) -> tuple[Peer, float]:
    """Return the best of pyAgrum's engines on these rows, ready, and what its first row took beyond a usual one."""
    found: list[tuple[float, float, Peer]] = []
    for algorithm, in_place in itertools.product(("ShaferShenoyInference", "LazyPropagation"), (True, False)):
        peer = Peer(model, algorithm, in_place, threads)
        _, first = timed(peer.answer, rows[0])
        usual = run_peer(peer, rows[1:], seconds / 4)
        found.append((usual, max(0.0, first - usual), peer))
    _, extra, best = min(found, key=lambda each: each[0])
    best.refused = 0
    return best, extra
