"""Propagation of one case in chunks over the workers of a Dask cluster: parts of tables stay where they are made.

A task (`tasks.Body`) runs on a worker; every part of a table that it stores becomes a future of its own, which
stays there until its table has been read for the last time. A task goes to the worker that has most of what it reads,
as long as all have as much to do; what crosses are partial results that are added up, and slices where two passes hold
different variables constant. Tasks are pure functions of parts and of small records that come with the pass: what a
lost worker held is computed again, by Dask, with the same bytes. Two passes may be under way at once (`order.Order`):
while the first task of one is alone, the other workers do the other one.

Memory of a worker: its share of the stored tables; what its tasks in flight read from elsewhere, there and here; for
each of its threads the working memory of the plan. Where results are added up, at most `jobs.AHEAD` times as many
of them as tasks may be in flight wait on all workers together, for each pass. What came from elsewhere stays until
Dask's active memory manager drops it (some seconds), and computing again what was lost may take more for a while.
Tables stay in memory, also those that the plan keeps on disk: the memory of all workers counts together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from junctor_kernels.tables.reference import Algebra

from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.model.errors import RunError
from junctor.model.network import Network
from junctor.out_of_core.cluster.remote_tables import RemoteTables
from junctor.out_of_core.cluster.scheduler import JobsInFlight, PassRun
from junctor.out_of_core.pass_program import Contract, CpuTasks, Extremes, PassContext
from junctor.out_of_core.program import ChunkedProgram, TableStats
from junctor.out_of_core.store import ChunkStore
from junctor.placement.fusion import one_by_one
from junctor.placement.pass_order import PassOrder
from junctor.placement.placement import task_places
from junctor.planning.chunks import ChunkPlan
from junctor.runtime import dask_cluster as distribution
from junctor.runtime.dask_cluster import WorkersLostError

if TYPE_CHECKING:
    from distributed import Client

    from junctor.out_of_core.cluster.gpu_worker import GpuTasks

# Tasks under way for each worker: while one computes, the pieces of another arrive.
IN_FLIGHT = 2
# Passes that have begun and are not done: while the first task of one settles its powers of two, others do another.
OPEN = 2
# Entries of tables that come with the record of a task: the client keeps them, and sends them with what reads them.
SMALL_TABLE = 1 << 10
# A pass of one task that moves at most so many entries, with at most so many entry operations, is done by the client: a
# task elsewhere takes some 30 ms to be sent, done and told of.
SMALL_ENTRIES, SMALL_WORK = 1 << 17, 1 << 24


def propagate(
    client: Client,
    chunks: ChunkPlan,
    network: Network,
    algebra: Algebra,
    block: EvidenceBlock,
    contract: Contract | None = None,
    in_flight: int = IN_FLIGHT,
    gpu: GpuTasks | None = None,
) -> BlockOutcome:
    """Propagate one case over the workers of `client`; bit for bit what `ChunkedProgram.run` finds in one process.

    contract: what the workers contract with, picklable; by default NumPy. gpu: the GPUs that they use instead, in
    single or double precision; bit for bit what one process finds on a GPU but for small passes, which the client
    does. in_flight: tasks under way for each worker. A worker that dies costs time only. Raises RunError where workers
    die of the same task several times, or where there are none for `distribution.PATIENCE` seconds.
    """
    program = ChunkedProgram(chunks, network, algebra, as_summed=gpu is not None)
    return ClusterRun(client, program, contract, in_flight, gpu).outcome(block)


class ClusterRun:
    """One propagation of a program over a cluster. stock: what is stored where, and what crossed.

    room: bytes of stored tables that each worker has room for; one has more only where none has less to do.
    """

    def __init__(
        self,
        client: Client,
        program: ChunkedProgram,
        contract: Contract | None = None,
        in_flight: int = IN_FLIGHT,
        gpu: GpuTasks | None = None,
        room: float = math.inf,
    ) -> None:
        self.program, self.contract, self.in_flight = program, contract or CpuTasks(program.algebra), in_flight
        self._gpu = gpu
        self._small = self.contract if isinstance(self.contract, CpuTasks) else CpuTasks(program.algebra)
        self.stock = RemoteTables(client, program.chunks, program.algebra.dtype.itemsize, room)

    def outcome(self, block: EvidenceBlock) -> BlockOutcome:
        """Return the answer of a case; raises RunError."""
        try:
            self.stock.client.wait_for_workers(1, timeout=distribution.PATIENCE)
            return self._outcome(block)
        except TimeoutError:
            raise RunError("the Dask cluster has no workers") from None
        except WorkersLostError as lost:
            at = f" of {lost.task}, more than once" if lost.task is not None else ", and no other came"
            raise RunError(
                f"the workers of the cluster died{at}: a task may need more memory than there is; try a smaller "
                "working memory, or fewer workers on each machine"
            ) from lost

    def _outcome(self, block: EvidenceBlock) -> BlockOutcome:
        program, stock = self.program, self.stock
        stock.look_around()
        here = ChunkStore(program.chunks, program.algebra.dtype)
        known, order = program.begin(block, here), PassOrder(program.chunks)
        open_, under_way = dict[int, PassRun](), JobsInFlight(stock.client, self.in_flight)

        def may_begin(n: int) -> bool:
            # What a small pass reads comes here.
            reads = set(program.chunks.passes[n].loads)
            return not self._is_small(n) or not any(reads.intersection(run.loads) for run in open_.values())

        def end(n: int) -> None:
            for table in order.end(n):
                if table not in program.results:
                    (here if table in here.tables else stock).drop(table)

        while order:
            while len(open_) < OPEN and (n := order.begin(may_begin)) is not None:
                if self._is_small(n):
                    self._bring(program.chunks.passes[n].loads, here)
                    program.run_pass(n, here, known, self._small)
                    end(n)
                else:
                    open_[n] = self._begun(n, known, here, under_way)
            for n in sorted(open_):
                open_[n].fill()
            if not open_:
                continue
            run, job, record = under_way.next()
            run.finish(job, record)
            if run.is_done:
                self._settle(run.number, run.extremes, run.powers, known)
                del open_[run.number]
                end(run.number)
        self._bring(program.results, here)
        return program.outcome(block, {table: here.part(table, {}) for table in program.results}, known)

    def _begun(self, n: int, known: Mapping[int, TableStats], here: ChunkStore, under_way: JobsInFlight) -> PassRun:
        given = self._given(n, known, here)
        for table in given.small:
            here.make(table)
        return PassRun(self.stock, n, given, here, under_way)

    def _settle(
        self, n: int, extremes: Mapping[int, Extremes], powers: Mapping[int, float], known: dict[int, TableStats]
    ) -> None:
        if self._gpu is None:
            self.program.settle(n, extremes, powers, known)
            return
        from junctor_kernels.gpu.entries import shift_of

        # There they are the largest entries of the first task: results are stored as they are summed.
        leads = {table: shift_of(self.program.algebra.dtype.type(largest)) for table, largest in powers.items()}
        self.program.settle(n, extremes, dict.fromkeys(powers, 1.0), known, leads)

    def _is_small(self, n: int) -> bool:
        """Tell whether a pass takes less time than sending it away."""
        plan, each = self.program.plan, self.program.chunks.passes[n]
        moved = sum(plan.tables[table].entries for table in (*each.loads, *each.stores))
        return not each.fixed and moved <= SMALL_ENTRIES and sum(map(plan.work, each.steps)) <= SMALL_WORK

    def _bring(self, tables: Iterable[int], here: ChunkStore) -> None:
        """Bring tables into this process."""
        for table in tables:
            if table not in here.tables:
                here.keep(table, self.stock.fetch(table))
                self.stock.drop(table)

    def _given(self, n: int, known: Mapping[int, TableStats], here: ChunkStore) -> PassContext:
        each = self.program.chunks.passes[n]
        small = frozenset(t for t in each.stores if self.program.plan.tables[t].entries <= SMALL_TABLE)
        return PassContext(
            self.program.bodies[n],
            frozenset(each.stores) - small,
            small,
            {table: known[table].shift for table in each.loads},
            {table: here.tables[table] for table in each.loads if table in here.tables},
            self.contract,
            self._gpu,
            task_places(self.program.chunks, each, self.program.algebra.dtype.itemsize, one_by_one)[0]
            if self._gpu
            else {},
        )
