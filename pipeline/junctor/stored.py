"""Stored clique tables: calibrate them once for a case, then ask about any variables that share a clique.

The Hugin architecture of Bistaffa, Farinelli and Bombieri (2014), beside the engine for tables of evidence, which stores
no clique. It is the right one where calibrated clique tables are wanted: joint posteriors within a clique need no
further propagation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from junctor_kernels.reference import DOUBLE, LOG, SINGLE, Algebra

from junctor.cliques import CalibratedCliques
from junctor.errors import EvidenceError, JunctorError, nearest
from junctor.machine import DEFAULT_SHARE, available_memory
from junctor.model import Network
from junctor.planning.budget import Budget, parse_bytes
from junctor.planning.shape import Shape
from junctor.query import Precision
from junctor.stored_host import Executor, HostExecutor, Outcome, initial_table, kernels_for
from junctor.stored_plan import plan_stored, projected_bytes

Evidence = Mapping[str, str | int | Sequence[float] | npt.NDArray[np.float64]]
LADDERS: dict[Precision, tuple[Algebra, ...]] = {
    "single": (SINGLE, DOUBLE, LOG),
    "double": (DOUBLE, LOG),
    "log": (LOG,),
}
# Entries of a table that NumPy takes at a time, and arrays of that size that it needs beside the table.
NUMPY_CHUNK, NUMPY_ARRAYS = 1 << 18, 4


class StoredTree:
    """A network's junction tree with stored clique tables.

    memory: bytes (or "4GiB") of this machine that tables may take, None for a share of what is free. Raises BudgetError,
    before anything is allocated, where the tables do not fit.
    """

    def __init__(self, network: Network, precision: Precision = "double", *, memory: int | str | None = None) -> None:
        self.network = network
        shape = Shape(network.cardinalities, tuple(factor.scope for factor in network.factors), network.kind == "bayes")
        self.plan = plan_stored(shape)
        self.ladder = LADDERS[precision]
        self.budget = Budget(
            int(DEFAULT_SHARE * available_memory()) if memory is None else parse_bytes(str(memory)),
        )
        self._executor: tuple[Algebra, Executor] | None = None
        self._case = 0
        self._check(self.ladder[0])

    def propagate(self, evidence: Evidence) -> CalibratedCliques:
        """Calibrate all tables for one case.

        evidence: for each observed variable a state (its name or number), or a likelihood of every state. Where a
        product loses digits, the next wider format does the work again, in the end logarithms.

        The result reads the tables of this tree until the next call; `save` keeps them. Raises EvidenceError.
        """
        likelihoods = {self.network.find(name): self._likelihood(name, said) for name, said in evidence.items()}
        self._case += 1
        for algebra in self.ladder:
            executor = self._opened(algebra)
            outcome = executor.propagate(likelihoods)
            if not outcome.lost:
                break
        return self._result(algebra, executor, outcome)

    def projected(self, algebra: Algebra, copies: int) -> int:
        """Return the bytes of the tables, initial and calibrated (or one copy of them), and of the work on them."""
        return projected_bytes(self.plan, algebra.dtype.itemsize, copies, NUMPY_CHUNK, NUMPY_ARRAYS)

    def _opened(self, algebra: Algebra) -> Executor:
        """Return the executor of a format; one has its tables in memory at a time."""
        if self._executor is not None and self._executor[0] is algebra and not self._in_place(algebra):
            return self._executor[1]
        self._executor = None
        self._check(algebra)
        kernels = kernels_for(algebra, self.plan.total_entries())
        initial = [initial_table(self.plan, self.network, i, algebra, kernels) for i in range(len(self.plan.cliques))]
        chunk = NUMPY_CHUNK
        executor = HostExecutor(self.plan, initial, algebra, kernels, self._in_place(algebra), chunk)
        self._executor = (algebra, executor)
        return executor

    def _in_place(self, algebra: Algebra) -> bool:
        # Without the initial tables the next case has to make them again.
        return self.projected(algebra, 2) > self.budget.free

    def _check(self, algebra: Algebra) -> None:
        needed = self.projected(algebra, 1)
        if needed > self.budget.free:
            advice = "allow more memory, or ask for posteriors without stored cliques"
            raise self.budget.refuse(needed, f"storing {len(self.plan.cliques)} cliques", advice)

    def _result(self, algebra: Algebra, executor: Executor, outcome: Outcome) -> CalibratedCliques:
        case = self._case

        def table(clique: int) -> npt.NDArray[np.floating]:
            if self._case != case:
                raise JunctorError("the tables of this case were replaced by those of a later one; save them before")
            return executor.table(clique)

        scopes = tuple(clique.layout for clique in self.plan.cliques)
        return CalibratedCliques(self.network.variables, scopes, table, algebra, outcome.log_evidence)

    def _likelihood(self, name: str, said: str | int | Sequence[float] | npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        states = self.network.variables[self.network.find(name)].states
        if isinstance(said, str):
            if said not in states:
                raise EvidenceError(f"{name!r} has no state {said!r}{nearest(said, states)}")
            said = states.index(said)
        if isinstance(said, (int, np.integer)):
            if not 0 <= said < len(states):
                raise EvidenceError(f"{name!r} has no state {said}, expected 0 to {len(states) - 1}")
            return np.eye(len(states))[said]
        likelihood = np.array(said, dtype=np.float64)
        if likelihood.shape != (len(states),) or not np.isfinite(likelihood).all() or (likelihood < 0).any():
            raise EvidenceError(f"found the likelihood {said} of {name!r}, expected {len(states)} numbers from 0 up")
        return likelihood
