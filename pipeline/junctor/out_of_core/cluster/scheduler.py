"""The tasks of passes over the workers of a Dask cluster: where each goes, and how many are under way."""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product, zip_longest
from typing import TYPE_CHECKING, Any

from junctor.out_of_core import pass_program as chunk_tasks
from junctor.out_of_core.cluster.remote_tables import RemotePart, RemoteTables
from junctor.out_of_core.pass_program import Array, Extremes, PartOrigin, PassContext, TaskReport
from junctor.out_of_core.store import ChunkStore
from junctor.planning.chunks import configurations, part
from junctor.runtime.dask_cluster import next_finished, result_of, workers_of

if TYPE_CHECKING:
    from distributed import Client, Future

# How far tasks of a pass may run ahead of the first that is not through, for each that may be in flight: a choice of
# tasks that find their pieces in place, and a bound on results that wait to be added up.
AHEAD = 2
# Partial results added up by one task, where the working memory has room for them.
MOST_ADDED = 8


@dataclass(eq=False, slots=True)
class _Sums:
    """Partial results of a group of tasks: added up in the order of the tasks, some at a time.

    tasks: of the group. at_once: what one sum takes, the total so far included.
    """

    tasks: int
    at_once: int
    waiting: dict[int, RemotePart] = field(default_factory=dict)
    total: RemotePart | None = None
    begun: int = 0
    busy: bool = False

    def ready(self) -> list[RemotePart]:
        """Return what is to be added up next, the total so far in front; empty while it is not all there."""
        before = [self.total] if self.total else []
        wanted = range(self.begun, min(self.tasks, self.begun + self.at_once - len(before)))
        if self.busy or not wanted or not all(n in self.waiting for n in wanted):
            return []
        self.busy, self.begun = True, wanted.stop
        return [*before, *(self.waiting.pop(n) for n in wanted)]


@dataclass(eq=False, slots=True)
class _Job:
    """A task, or a sum of partial results; `number` is that of the task, or of the last that the sum reaches.

    bytes: of what it reads, by worker. home, stores: where readers want its result, and the bytes of that. final: its
    result is a part of the last table of the pass, not a partial one. futures: kept until the job is done.
    """

    number: int
    states: Mapping[int, int]
    reads: Sequence[RemotePart]
    bytes: Counter[str]
    home: str
    stores: int
    is_sum: bool
    final: bool
    worker: str = ""
    futures: list[Future] = field(default_factory=list)
    partial: RemotePart | None = None

    def staying(self, worker: str) -> int:
        """Return the bytes that need not move if it is done on a worker."""
        return self.bytes[worker] + (self.stores if worker == self.home else 0)


class JobsInFlight:
    """The jobs under way of all passes that have begun, and how many there are on each worker."""

    def __init__(self, client: Client, in_flight: int) -> None:
        """Have room for so many jobs of each worker."""
        self._client = client
        self.workers = sorted(workers_of(client)) or [""]
        self.most = in_flight * len(self.workers)
        self.busy: Counter[str] = Counter()
        self._jobs: dict[Any, tuple[PassRun, _Job]] = {}
        self._finished: queue.SimpleQueue[Future] = queue.SimpleQueue()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, run: PassRun, job: _Job, record: Future) -> None:
        """Wait for a job, too."""
        self.busy[job.worker] += 1
        self._jobs[record.key] = run, job
        record.add_done_callback(self._finished.put)

    def next(self) -> tuple[PassRun, _Job, TaskReport]:
        """Wait for a job; raises WorkersLostError and RunError as `distribution` does."""
        future = next_finished(self._client, self._finished)
        run, job = self._jobs.pop(future.key)
        record: TaskReport = result_of(future, f"task {job.number} of pass {run.number}")
        self.busy[job.worker] -= 1
        return run, job, record


class PassRun:
    """One pass, its first task alone because it settles the powers of two.

    powers: those. extremes: of what its tasks have made.
    """

    def __init__(
        self, stock: RemoteTables, n: int, given: PassContext, here: ChunkStore, under_way: JobsInFlight
    ) -> None:
        """Prepare pass `n`; here: where small tables go."""
        self._stock, self._n, self._each, self._given, self._here = stock, n, stock.chunks.passes[n], given, here
        plan, self._out = stock.chunks.plan, self._each.out
        self._sizes = plan.shape.cardinalities
        self._tasks, self._in_sum = plan.shape.entries(self._each.fixed), plan.shape.entries(self._each.summed)
        self._at_once = max(2, min(MOST_ADDED, stock.chunks.working // part(plan, self._out, self._each.fixed) - 1))
        self._common = stock.submit("pass", [n], chunk_tasks.given_to_all, given)
        self._do, self._add = _functions(given)
        self.number, self.loads = n, self._each.loads
        self._all, self._workers = under_way, under_way.workers
        self._key = self._places_by()
        self._order = self._groups()
        self._begun = 0
        self._tasks_waiting: list[_Job] = []
        self._sums_waiting: list[_Job] = []
        self._sums: dict[int, _Sums] = {}
        self._brought: dict[int, dict[int, Array]] = {}
        self._under_way: set[_Job] = set()
        self.powers: dict[int, float] = {}
        self._extremes: dict[int, list[Extremes]] = {}

    @property
    def extremes(self) -> dict[int, Extremes]:
        """The extremes of the tables of the pass, of what there is so far."""
        return {table: chunk_tasks.joined(found) for table, found in self._extremes.items()}

    @property
    def is_done(self) -> bool:
        """Whether all jobs are done."""
        left = self._tasks_waiting or self._sums_waiting or self._under_way
        return self._begun == self._tasks and not left

    def fill(self) -> None:
        """Start jobs while there is room for them."""
        while len(self._all) < self._all.most and (self.powers or not self._under_way):
            self._look_ahead()
            # What waits to be added up takes memory.
            waiting = self._sums_waiting or self._tasks_waiting
            if not waiting:
                return
            job, worker = self._next_of(waiting)
            waiting.remove(job)
            self._start(job, worker)

    def _look_ahead(self) -> None:
        first = min((job.number for job in (*self._tasks_waiting, *self._under_way)), default=self._begun)
        end = min(self._tasks, first + (AHEAD * self._all.most if self.powers else 1))
        for number in range(self._begun, end):
            self._tasks_waiting.append(self._task(number))
        self._begun = max(self._begun, end)

    def _places_by(self) -> list[int]:
        """Return the chunk variables in the order in which they settle where tasks go.

        Those come first that the pass holds constant too which reads most of what is stored: it finds that in place.
        """
        weights: Counter[tuple[int, ...]] = Counter()
        for later in self._stock.chunks.passes[self._n + 1 :]:
            for table in self._given.leaving.intersection(later.loads):
                shared = tuple(v for v in self._each.fixed if v in later.fixed)
                weights[shared] += self._stock.chunks.plan.tables[table].entries
        first = max(weights, key=lambda shared: weights[shared], default=())
        return [*first, *(v for v in self._each.fixed if v not in first)]

    def _home(self, states: Mapping[int, int]) -> str:
        """Return the worker where a result is best made, seen from those who read it: an equal share for each."""
        rank = 0
        for v in self._key:
            rank = rank * self._sizes[v] + states.get(v, 0)
        return self._workers[rank * len(self._workers) // self._tasks]

    def _groups(self) -> list[dict[int, int]]:
        """Return the tasks that begin a sum, or all tasks where there are none, those of the workers by turns."""
        outer = [v for v in self._each.fixed if v not in self._each.summed]
        by_worker: dict[str, list[dict[int, int]]] = {}
        for at in configurations([self._sizes[v] for v in outer]):
            states = dict(zip(outer, at, strict=True))
            by_worker.setdefault(self._home(states), []).append(states)
        turns = zip_longest(*(by_worker[worker] for worker in sorted(by_worker, key=self._workers.index)))
        return [states for turn in turns for states in turn if states is not None]

    def _task(self, number: int) -> _Job:
        group, place = divmod(number, self._in_sum)
        states = dict(self._order[group])
        for v in reversed(self._each.summed):
            place, states[v] = divmod(place, self._sizes[v])
        reads: list[RemotePart] = []
        found = Counter[str]()
        for table in self._each.loads:
            if table in self._stock.parts:
                parts = self._stock.agreeing(table, states)
                entries = part(self._stock.chunks.plan, table, states)
                for held in parts:
                    found[held.worker] += entries * self._stock.itemsize // len(parts)
                reads += parts
        return self._job(number, states, reads, found, is_sum=False, final=self._in_sum == 1)

    def _job(
        self,
        number: int,
        states: dict[int, int],
        reads: Sequence[RemotePart],
        found: Counter[str],
        is_sum: bool,
        final: bool,
    ) -> _Job:
        entries = sum(part(self._stock.chunks.plan, table, states) for table in self._given.leaving)
        home, stores = self._home(states), entries * self._stock.itemsize
        return _Job(number, states, reads, found, home, stores, is_sum, final)

    def _next_of(self, waiting: Sequence[_Job]) -> tuple[_Job, str]:
        """Return the job that finds most of what it reads on a worker with least to do and room, and that worker."""
        least = min(self._all.busy[worker] for worker in self._workers)
        idle = [worker for worker in self._workers if self._all.busy[worker] == least]
        stock = self._stock

        def worth(job: _Job, worker: str) -> tuple[bool, int, int]:
            return stock.has_room(worker, job.stores), job.staying(worker), -stock.bytes[worker]

        return max(product(waiting, idle), key=lambda at: worth(*at))

    def _start(self, job: _Job, worker: str) -> None:
        stock, at = self._stock, [self._n, int(job.is_sum), job.number]
        job.worker = worker
        stock.crossed += job.bytes.total() - job.bytes[worker]
        made = self._sum(job, at) if job.is_sum else self._make(job, at)
        # Kept until they are not needed any more: the scheduler may learn of a release before it learns of a reader.
        job.futures.append(made)
        for table in [self._out] if job.is_sum else self._given.leaving:
            self._keep(job, table, stock.submit("part", [*at, table], chunk_tasks.part_of, made, table))
        record = stock.submit("record", at, chunk_tasks.record_of, made)
        self._under_way.add(job)
        self._all.add(self, job, record)

    def _sum(self, job: _Job, at: Sequence[int]) -> Future:
        numbers = {held: n for n, held in enumerate(job.reads)}
        here, elsewhere, futures = self._bring_together(job, at)
        places = [[numbers[held] for held in some] for some in (here, elsewhere)]
        return self._stock.submit("sum", at, self._add, self._common, *places, *futures, worker=job.worker)

    def _make(self, job: _Job, at: Sequence[int]) -> Future:
        here, elsewhere, futures = self._bring_together(job, at)
        sources = [[held.source for held in some] for some in (here, elsewhere)]
        task = (self._do, self._common, job.states, self.powers, *sources, *futures)
        return self._stock.submit("task", at, *task, worker=job.worker)

    def _bring_together(self, job: _Job, at: Sequence[int]) -> tuple[list[RemotePart], list[RemotePart], list[Future]]:
        """Return what a job reads of its own worker, goes in whole; of other workers, only what it needs; and both."""
        by_worker: dict[str, list[RemotePart]] = {}
        for held in job.reads:
            by_worker.setdefault(held.worker, []).append(held)
        here, states = by_worker.pop(job.worker, []), {} if job.is_sum else job.states
        for worker, parts in by_worker.items():
            of = [[held.source for held in parts], self._stock.kept_for(worker, job.worker)]
            slices = (chunk_tasks.slices_of, states, *of, *(held.future for held in parts))
            # What another worker waits for goes first.
            job.futures.append(self._stock.submit("slices", [*at, worker], *slices, worker=worker, first=True))
        elsewhere = [held for parts in by_worker.values() for held in parts]
        return here, elsewhere, [*(held.future for held in here), *job.futures]

    def _keep(self, job: _Job, table: int, future: Future) -> None:
        """Note where a part of a table will be, for other passes or to be added to others."""
        chunks, states = self._stock.chunks, job.states
        cuts = {v: self._sizes[v] for v in chunks.cuts.get(table, ())}
        source = PartOrigin(table, {v: states[v] for v in cuts if v in states}, cuts)
        size = part(chunks.plan, table, source.states) * self._stock.itemsize
        held = RemotePart(source, future, job.worker, size)
        if table != self._out or job.final:
            self._stock.keep(held)
        else:
            job.partial = held

    def finish(self, job: _Job, record: TaskReport) -> None:
        """Take what a job has found."""
        self._under_way.remove(job)
        self.powers = self.powers or record.powers
        for table, found in record.extremes.items():
            self._extremes.setdefault(table, []).append(found)
        for table, entries in record.small.items():
            self._bring(job, table, entries)
        if job.partial is not None:
            self._add_up(job, job.partial)

    def _bring(self, job: _Job, table: int, entries: Array) -> None:
        """Store a part of a small table in this process; partial results as soon as all are there to be added up."""
        if not job.final and table == self._out:
            group, place = divmod(job.number, self._in_sum)
            partial = self._brought.setdefault(group, {})
            partial[place] = entries
            if len(partial) < self._in_sum:
                return
            made = chunk_tasks.made_by_sum(self._given, sorted(partial), (), *(partial[n] for n in sorted(partial)))
            del self._brought[group]
            entries = made.parts[table]
            self._extremes.setdefault(table, []).append(made.record.extremes[table])
        where = self._here.part(table, job.states)
        where[...] = entries.reshape(where.shape)

    def _add_up(self, job: _Job, partial: RemotePart) -> None:
        """Take a partial result to those that it is added to, and let these be added up when there are enough."""
        group, place = divmod(job.number, self._in_sum)
        sums = self._sums.setdefault(group, _Sums(self._in_sum, self._at_once))
        if job.is_sum:
            sums.total, sums.busy = partial, False
        else:
            sums.waiting[place] = partial
        if reads := sums.ready():
            final = sums.begun == self._in_sum
            outer = {v: state for v, state in job.states.items() if v not in self._each.summed}
            last = group * self._in_sum + sums.begun - 1
            found = Counter[str]()
            for held in reads:
                found[held.worker] += held.bytes
            self._sums_waiting.append(self._job(last, outer, reads, found, is_sum=True, final=final))
            if final:
                del self._sums[group]


def _functions(given: PassContext) -> tuple[Any, Any]:
    """Return what does a task, and what adds up results."""
    if given.gpu is None:
        return chunk_tasks.made_by_task, chunk_tasks.made_by_sum
    from junctor.out_of_core.cluster import gpu_tasks as chunk_tasks_gpu

    return chunk_tasks_gpu.made_by_task, chunk_tasks_gpu.made_by_sum
