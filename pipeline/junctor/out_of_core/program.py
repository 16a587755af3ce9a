"""Propagation of one case in chunks on threads of this process, on the plan that `planning.chunks` cuts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra

from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.model.network import Network
from junctor.out_of_core.bound_plan import BoundPlan, PassReport
from junctor.out_of_core.pass_program import Contract, CpuTasks, MaxMin, add_to, joined, largest_of, shifted
from junctor.out_of_core.store import ChunkStore
from junctor.planning.chunks import ChunkPlan, configurations
from junctor.runtime.progress import pass_done
from junctor.runtime.threads import in_threads

Array = npt.NDArray[np.floating[Any]]

# Groups of tasks that are handed to threads at a time: there may be millions, and each leaves something behind.
GROUPS = 1024


class ChunkedProgram:
    """A cut plan bound to the numbers of a network in one algebra; answers one case at a time.

    scratch: entries of a contraction in flight.
    folder: for tables that do not fit the memory.
    threads: tasks that are done at once, each within the working memory of the plan.
    entry_threads: of compiled contractions inside a task; 0 where NumPy does all of the work.
    """

    def __init__(
        self,
        chunks: ChunkPlan,
        network: Network,
        algebra: Algebra,
        scratch: int = reference.SCRATCH_ENTRIES,
        folder: Path | None = None,
        threads: int = 1,
        entry_threads: int = 0,
    ) -> None:
        self._bound = BoundPlan(chunks, network, algebra)
        self._contract = CpuTasks(algebra, scratch, entry_threads)
        self._folder = folder
        self._threads = threads

    def run(self, block: EvidenceBlock) -> BlockOutcome:
        """Propagate one case and return its posteriors and log P(e); raises DiskError where the disk is full."""
        bound, passes = self._bound, self._bound.chunks.passes
        store = ChunkStore(bound.chunks, bound.algebra.dtype, self._folder)
        stats = bound.begin(block, store)
        ends = defaultdict[int, list[int]](list)
        for table, (_, last) in bound.chunks.lifetimes().items():
            ends[last].append(table)
        for number in range(len(passes)):
            bound.update(stats, self._pass(number, store, bound.shifts(number, stats)))
            pass_done(number + 1, len(passes))
            # Answers are read off at the end, in the order of the plan.
            for table in set(ends[number]).difference(bound.results):
                store.drop(table)
        return bound.outcome(block, {table: store.part(table, {}) for table in bound.results}, stats)

    def _pass(self, number: int, store: ChunkStore, shifts: Mapping[int, float]) -> PassReport:
        """Do all tasks of a pass; shifts: table -> its shift (`TableStats`), of all tables that it reads."""
        pass_ = self._bound.chunks.passes[number]
        for table in pass_.stores:
            store.make(table)
        sizes = self._bound.plan.shape.cardinalities
        # Tasks that differ in summed variables alone follow each other in a group, whose sum stays in one place.
        outer = [v for v in pass_.fixed if v not in pass_.summed]
        tasks = _PassTasks(self._bound, number, store, shifts, self._contract)
        groups = configurations([sizes[v] for v in outer])
        # The pilot task chooses the scale factors: nobody works beside it.
        tasks.group(dict(zip(outer, next(groups), strict=True)))
        while batch := list(islice(groups, GROUPS)):
            states = [dict(zip(outer, group, strict=True)) for group in batch]
            in_threads(tasks.group, states, self._threads)
        return PassReport(number, tasks.max_min, tasks.factors)


class _PassTasks:
    """The tasks of one pass.

    factors: table -> what results are multiplied with (or, on logarithms, lessened by), chosen by the pilot task.
    max_min: table -> largest entry, and smallest above zero, of all that was made.
    """

    def __init__(
        self, bound: BoundPlan, number: int, store: ChunkStore, shifts: Mapping[int, float], contract: Contract
    ) -> None:
        self._pass = bound.chunks.passes[number]
        self._program = bound.programs[number]
        self._store = store
        self._shifts = shifts
        self._contract = contract
        self._summed = [bound.plan.shape.cardinalities[v] for v in self._pass.summed]
        self.factors: dict[int, float] = {}
        self.max_min: dict[int, MaxMin] = {}
        self._lock = Lock()

    def group(self, states: dict[int, int], _thread: int = 0) -> None:
        """Do the tasks whose results are added up; states: of the chunk variables that they share."""
        pass_, algebra = self._pass, self._program.algebra
        total: Array | None = None
        group_max_min: dict[int, MaxMin] = {}
        for summed in configurations(self._summed):
            here = states | dict(zip(pass_.summed, summed, strict=True))
            for table, made, least in self._program.run(partial(self._load, here), self._contract, self.factors):
                max_min = largest_of(made), least
                group_max_min[table] = joined((group_max_min[table], max_min)) if table in group_max_min else max_min
                if table != pass_.out:
                    if table in pass_.stores:
                        self._save(table, here, made)
                elif total is None:
                    total = made
                else:
                    add_to(total, made, algebra)
                # Or it would stay while the next step makes its own.
                del made
        assert total is not None
        # Of a sum the terms tell what is lost.
        group_max_min[pass_.out] = largest_of(total), group_max_min[pass_.out][1]
        if pass_.out in pass_.stores:
            self._save(pass_.out, states, total)
        # Groups run on several threads; all else that they write belongs to one of them.
        with self._lock:
            for table, more in group_max_min.items():
                self.max_min[table] = joined((self.max_min[table], more)) if table in self.max_min else more

    def _save(self, table: int, states: Mapping[int, int], made: Array) -> None:
        part = self._store.part(table, states)
        part[...] = made.reshape(part.shape)

    def _load(self, states: Mapping[int, int], table: int) -> Array:
        return shifted(self._store.part(table, states), self._shifts[table], self._program.algebra)
