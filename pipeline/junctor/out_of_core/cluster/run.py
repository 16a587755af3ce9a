"""Propagation of one case in chunks over the workers of a Dask cluster: parts of tables stay where they are made.

`ClusterRun` is the `PassRunner` of workers. A task (`tasks.run_task`) runs on a worker; every part of a table that it
stores becomes a future of its own, which stays there until its table has been read for the last time. A task goes to
the worker that has most of what it reads, as long as all have as much to do; transferred are partial results that are
added up, and slices where two passes hold different variables constant. Tasks are pure functions of parts and of small
records that come with the pass: what a lost worker held is computed again, by Dask, with the same bytes. Two passes may
be in flight at once: while the pilot task of one is alone, the other workers do the other one.

Memory of a worker: its share of the stored tables; what its tasks in flight read from elsewhere, there and here; for
each of its threads the working memory of the plan. Where results are added up, at most `scheduler.AHEAD` times as many
of them as tasks may be in flight wait on all workers together, for each pass. What came from elsewhere stays until
Dask's active memory manager drops it (some seconds), and computing again what was lost may take more for a while.
Tables stay in memory, also those that the plan keeps on disk: the memory of all workers counts together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu.entries import shift_of

from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.model.errors import RunError
from junctor.out_of_core import pass_runner
from junctor.out_of_core.bound_plan import BoundPlan, PassReport
from junctor.out_of_core.cluster.remote_tables import RemoteTables
from junctor.out_of_core.cluster.scheduler import JobsInFlight, PassJobs, TaskFunctions
from junctor.out_of_core.cluster.tasks import GpuTasks, PassContext
from junctor.out_of_core.pass_program import Contract, CpuTasks
from junctor.out_of_core.program import ThreadRunner
from junctor.out_of_core.store import ChunkStore
from junctor.placement.fusion import single_steps
from junctor.placement.placement import slot_offsets, sums_on_host
from junctor.runtime import dask_cluster
from junctor.runtime.dask_cluster import WorkersLostError

if TYPE_CHECKING:
    from distributed import Client

Array = npt.NDArray[np.floating[Any]]

# Tasks in flight for each worker: while one computes, the pieces of another arrive.
IN_FLIGHT = 2
# Passes that have begun and are not done: while the pilot task of one is alone, other workers do another.
OPEN = 2
# Entries of tables that come with the report of a task: the client keeps them, and sends them with what reads them.
SMALL_TABLE = 1 << 10
# A pass of one task that moves at most so many entries, with at most so many multiply-adds, is done by the client: a
# task elsewhere takes some 30 ms to be sent, done and reported.
SMALL_ENTRIES, SMALL_WORK = 1 << 17, 1 << 24


class ClusterRun:
    """One propagation over a cluster; bit for bit what `ChunkedProgram.run` finds in one process.

    A worker that dies costs time only.
    client: of the cluster.
    bound: the plan.
    contract: what the workers contract with, picklable; by default NumPy.
    in_flight: tasks for each worker.
    gpu: the GPUs that they use instead; bit for bit what one process finds on a GPU but
    for small passes, which the client does.
    room: bytes of stored tables that each worker has room for; one has more only where none has less to do.
    tables: what is stored on workers; store: what is stored in this process.
    """

    _jobs: JobsInFlight

    def __init__(
        self,
        client: Client,
        bound: BoundPlan,
        contract: Contract | None = None,
        in_flight: int = IN_FLIGHT,
        gpu: GpuTasks | None = None,
        room: float = math.inf,
    ) -> None:
        self._bound = bound
        self._contract = contract or CpuTasks(bound.algebra)
        self._most_in_flight = in_flight
        self._gpu = gpu
        if gpu is None:
            self._functions = TaskFunctions()
        else:
            from junctor.out_of_core.cluster import gpu_tasks

            self._functions = TaskFunctions(gpu_tasks.run_task, gpu_tasks.sum_parts)
        self.tables = RemoteTables(client, bound.chunks, bound.algebra.dtype.itemsize, room)
        self.store = ChunkStore(bound.chunks, bound.algebra.dtype)
        small = self._contract if isinstance(self._contract, CpuTasks) else CpuTasks(bound.algebra)
        # Small passes are done here, always on the CPU.
        self._here = ThreadRunner(bound, self.store, small)
        self._open: dict[int, PassJobs] = {}

    def outcome(self, block: EvidenceBlock) -> BlockOutcome:
        """Return the answer of a case.

        Raises RunError where workers die of the same task several times, or where there are none for
        `dask_cluster.PATIENCE` seconds.
        """
        try:
            self.tables.client.wait_for_workers(1, timeout=dask_cluster.PATIENCE)
            self.tables.look_around()
            # Only now: which workers there are is known once they have come.
            self._jobs = JobsInFlight(self.tables.client, self._most_in_flight)
            return pass_runner.propagate(self._bound, block, self)
        except TimeoutError:
            raise RunError("the Dask cluster has no workers") from None
        except WorkersLostError as lost:
            at = f" of {lost.task}, more than once" if lost.task is not None else ", and no other came"
            raise RunError(
                f"the workers of the cluster died{at}: a task may need more memory than there is; try a smaller "
                "working memory, or fewer workers on each machine"
            ) from lost

    def accepts(self, number: int) -> bool:
        """Return True if a pass may begin: there is room, and tables of other passes need not come here for it."""
        if len(self._open) == OPEN or not self._here.accepts(number):
            return False
        reads = set(self._bound.chunks.passes[number].loads)
        return not self._is_small(number) or not any(reads.intersection(jobs.loads) for jobs in self._open.values())

    def submit(self, number: int, shifts: Mapping[int, float]) -> None:
        """Begin a pass, or do all of it where it is small."""
        if self._is_small(number):
            for table in self._bound.chunks.passes[number].loads:
                self._bring(table)
            self._here.submit(number, shifts)
            return
        context = self._context(number, shifts)
        for table in context.small:
            self.store.make(table)
        self._open[number] = PassJobs(self.tables, number, context, self._functions, self.store, self._jobs)

    def reports(self) -> Iterator[PassReport]:
        """Yield the reports of passes done here, else start jobs and wait for one, maybe the last of its pass."""
        if not self._here.accepts(0):
            yield from self._here.reports()
            return
        # Earlier passes first, as in the plan.
        for number in sorted(self._open):
            self._open[number].fill()
        pass_jobs, job, report = self._jobs.next()
        pass_jobs.finish(job, report)
        if pass_jobs.is_done:
            del self._open[pass_jobs.number]
            yield self._as_summed(pass_jobs.report())

    def fetch(self, table: int) -> Array:
        """Return the entries of a table, which is in this process from then on."""
        self._bring(table)
        return self.store.part(table, {})

    def drop(self, table: int) -> None:
        """Forget a table."""
        if table in self.store.tables:
            self.store.drop(table)
        else:
            self.tables.drop(table)

    def _as_summed(self, report: PassReport) -> PassReport:
        """Return the report with the factors of devices: there they are largest entries of the pilot task."""
        if self._gpu is None:
            return report
        algebra = self._bound.algebra
        # As kernels compute it from the largest entry.
        shifts = {table: shift_of(largest, algebra) for table, largest in report.factors.items()}
        return PassReport(report.number, report.max_min, dict.fromkeys(report.factors, algebra.one), shifts)

    def _is_small(self, number: int) -> bool:
        """Return True if a pass takes less time than sending it away."""
        plan, pass_ = self._bound.plan, self._bound.chunks.passes[number]
        moved = sum(plan.tables[table].entries for table in (*pass_.loads, *pass_.stores))
        return not pass_.fixed and moved <= SMALL_ENTRIES and sum(map(plan.work, pass_.steps)) <= SMALL_WORK

    def _bring(self, table: int) -> None:
        if table not in self.store.tables:
            # From here on it goes to workers with the tasks, as leaves do.
            self.store.keep(table, self.tables.fetch(table))
            self.tables.drop(table)

    def _context(self, number: int, shifts: Mapping[int, float]) -> PassContext:
        pass_, chunks = self._bound.chunks.passes[number], self._bound.chunks
        small = frozenset(t for t in pass_.stores if chunks.plan.tables[t].entries <= SMALL_TABLE)
        # Workers launch every step by itself, so each has its own place in a slot.
        itemsize = self._bound.algebra.dtype.itemsize
        offsets, _ = slot_offsets(chunks, pass_, itemsize, single_steps)
        return PassContext(
            program=self._bound.programs[number],
            stored=frozenset(pass_.stores) - small,
            small=small,
            shifts=shifts,
            leaves={table: self.store.tables[table] for table in pass_.loads if table in self.store.tables},
            contract=self._contract,
            gpu=self._gpu,
            offsets=offsets if self._gpu else {},
            sums_on_host=self._gpu is not None and sums_on_host(chunks, pass_, itemsize),
        )
