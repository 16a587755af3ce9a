"""What the remaining partitions of a run of rows take, by forecasts of the engine; nothing else in runs asks for them.

Main class: PlannedRun, which `Job` asks before rows are answered.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from junctor.cost.dataset import MeasuredDevice
from junctor.engine.forecast import forecast, survey
from junctor.model.errors import BudgetError
from junctor.model.options import ComputeOptions
from junctor.runs.part_sizes import rows_of_part, shorter_part
from junctor.runs.partition import engine_for, read_evidence
from junctor.runs.placement import Machine, RunEstimate
from junctor.runs.storage import RunDirectory, RunSpec
from junctor.runtime.dask_cluster import Resources, cluster_client, threads_for
from junctor.runtime.devices import gpu_at_hand
from junctor.runtime.threads import ahead

if TYPE_CHECKING:
    from junctor.engine.engine import Engine
    from junctor.evidence.batch import EvidenceBatch
    from junctor.out_of_core.cluster.workers import WorkerPool
    from junctor.out_of_core.memory_splits import ChunkRoute, GpuGroup
    from junctor.strategies.strategy import Route

# Threads that read partitions while patterns of others are looked at.
READ_AHEAD = 4


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run of rows before propagation.

    resources: of the run.
    pending: partitions without answers.
    """

    directory: RunDirectory
    spec: RunSpec
    resources: Resources
    pending: Sequence[int]

    def estimate(self) -> RunEstimate:
        """Return the estimate; raises BudgetError where a plan does not fit the memory of all workers together."""
        if self.spec.method != "exact":
            return self._by_first_part()
        if self.resources.scheduler is not None:
            return self._on_scheduler()
        machine, engine = Machine.of(self.resources), self._engine()
        found = self._surveyed(engine, machine.has_choice)
        if not machine.may_spread(found, len(self.pending)):
            return found
        if machine.is_for_gpu:
            return self._by_processes(found, engine, machine.processes)
        from junctor.out_of_core.cluster.workers import WorkerPool

        return self._shared(found, engine, WorkerPool(machine.processes))

    def _on_scheduler(self) -> RunEstimate:
        """Return the estimate where workers of a scheduler answer, which plan for themselves."""
        from junctor.out_of_core.cluster.workers import WorkerPool, memory_here, pool_of

        with cluster_client(self.resources) as client:
            pool = pool_of(client, self.resources, None)
        gpus, count = pool.gpus, len(self.pending)
        machine = replace(Machine.of(self.resources), workers=pool.workers, gpus=gpus.count if gpus else 0)
        engine = self._engine(pool.memory if gpus is None else memory_here(pool, self.resources))
        if gpus is not None:
            # All threads: this process is no worker.
            threads = threads_for(replace(self.resources, scheduler=None), 1)
            engine = engine.with_options(replace(engine.options, threads=threads), pool)
        try:
            found = self._surveyed(engine)
        except BudgetError:
            return RunEstimate(by_parts=math.inf if machine.may_spread(None, count) else 0.0)
        may_spread = machine.may_spread(found, count)
        if gpus is not None:
            return self._one_by_one(engine, gpus) if may_spread else RunEstimate()
        return self._shared(found, engine, WorkerPool(pool.workers, pool.memory)) if may_spread else found

    def part_rows(self, seconds: float, rows: int, least: int) -> int:
        """Return how many rows make a part, as of `Workload.part_rows`; rows: of all partitions."""
        size = self.spec.partition_rows
        # Before evidence is read again.
        if shorter_part(min(rows, size), seconds / max(1, rows), least) == min(rows, size):
            return size
        return rows_of_part(self._engine(), next(self._batches()), seconds / rows, least)

    def _by_first_part(self) -> RunEstimate:
        """Return the estimate where rows may be sampled: which ones they are depends on no device."""
        engine = self._engine()
        engine = engine.with_options(replace(engine.options, device="cpu", all_gpus=False))
        found = survey(engine, islice(self._batches(), 1), len(self.pending))
        return RunEstimate(found.needed, found.seconds, choices=found.choices)

    def _surveyed(self, engine: Engine, asks_gpu: bool = False) -> RunEstimate:
        """Return the estimate of all partitions; asks_gpu: what a GPU of this machine takes as well."""
        gpu = engine.facts.cost_models.gpu(MeasuredDevice(*gpu_at_hand())) if asks_gpu else None
        found = survey(engine, self._batches(READ_AHEAD), len(self.pending), gpu)
        return RunEstimate(found.needed, found.seconds, found.gpu_seconds, found.chunked_seconds, choices=found.choices)

    def _in_chunks(self, engine: Engine) -> list[tuple[Route, ChunkRoute]]:
        """Return the routes of the first batch whose rows go in chunks, with their seconds."""
        routes = forecast(engine, next(self._batches()))
        return [(route, route.chunks) for route in routes if route.chunks is not None]

    def _shared(self, found: RunEstimate, engine: Engine, workers: WorkerPool) -> RunEstimate:
        """Return the estimate with rows of one process beside those that workers answer one each."""
        both = engine, engine.with_options(engine.options, workers)
        alone, together = (sum(route.seconds for route, _ in self._in_chunks(each)) for each in both)
        return replace(found, by_parts=alone, by_rows=together)

    def _by_processes(self, found: RunEstimate, engine: Engine, workers: int) -> RunEstimate:
        """Return the estimate with rows by threads of a process beside those of processes for a GPU each."""
        by_threads = by_processes = 0.0
        for route, chunks in self._in_chunks(engine):
            if chunks.side is not None:
                # The same plan; only threads wait for each other.
                threads, rows = chunks.side, len(route.group.rows) * chunks.propagations
                processes = replace(threads, rows=min(threads.rows, workers), host=0.0)
                by_threads += len(self.pending) * threads.total(threads.rounds(rows))
                by_processes += len(self.pending) * processes.total(processes.rounds(rows))
        return replace(found, by_parts=by_threads, by_rows=by_processes)

    def _one_by_one(self, engine: Engine, gpus: GpuGroup) -> RunEstimate:
        """Return the seconds of rows that go to workers with GPUs one by one, and with their partitions.

        engine: of this process, with the workers.
        """
        from junctor.out_of_core.programs import search_seconds

        count, routes = len(self.pending), self._in_chunks(engine)
        if not all(chunks.workers for _, chunks in routes):
            return RunEstimate()
        one_by_one = by_partition = 0.0
        for route, chunks in routes:
            side, rows = chunks.side, len(route.group.rows) * chunks.propagations
            if side is None or 1 not in side.seconds:
                # No GPU and its share of the memory is enough for a row.
                return RunEstimate(by_parts=math.inf)
            one_by_one += count * chunks.total(len(route.group.rows))
            # Each worker searches for its plan anew.
            by_partition += -(-count // gpus.count) * rows * side.seconds[1] + search_seconds(chunks.chunks.plan)
        return RunEstimate(by_parts=by_partition, by_rows=one_by_one)

    def _options(self, memory: int | None = None) -> ComputeOptions:
        """Return the options of this process for all of the work; memory: None for what it may take."""
        machine, threads = Machine.of(self.resources), threads_for(self.resources, 1) or 1
        memory, device = memory or machine.memory, machine.device if machine.is_for_gpu else "cpu"
        all_gpus = machine.takes_all_gpus(len(self.pending))
        return replace(self.resources.compute, memory=memory, threads=threads, device=device, all_gpus=all_gpus)

    def _engine(self, memory: int | None = None) -> Engine:
        """Return an engine that shares its plans with the one that later answers in this process, as of `_options`."""
        engine = engine_for(self.directory, self.spec, self.directory.expected(self.spec).rows)
        return engine.with_options(self._options(memory))

    def _batches(self, threads: int = 1) -> Iterator[EvidenceBatch]:
        """Yield the evidence of the partitions; threads: that read ahead, 1 for none."""
        counts = self.directory.counts()
        return ahead(
            lambda part: read_evidence(self.directory, part, self.spec, counts).batch, iter(self.pending), threads
        )
