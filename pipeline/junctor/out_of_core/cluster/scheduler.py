"""The tasks of passes over the workers of a Dask cluster: which worker does each, and how many are in flight.

`PassJobs` has the tasks and sums of one pass, `JobsInFlight` those of all passes that have begun; `cluster.run` calls.
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from junctor.out_of_core.bound_plan import PassReport
from junctor.out_of_core.cluster import tasks
from junctor.out_of_core.cluster.remote_tables import RemotePart, RemoteTables
from junctor.out_of_core.cluster.tasks import Array, PartOrigin, PassContext, TaskOutput, TaskReport
from junctor.out_of_core.pass_program import MaxMin, joined
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


class TaskFunctions(NamedTuple):
    """What a worker does: a task, and a sum of partial results; both picklable."""

    run_task: Callable[..., TaskOutput] = tasks.run_task
    sum_parts: Callable[..., TaskOutput] = tasks.sum_parts


@dataclass(eq=False, slots=True)
class _Sums:
    """Partial results of a group of tasks: added up in the order of the tasks, some at a time.

    tasks: how many the group has.
    at_once: parts that one sum takes, the total so far included.
    waiting: number of the task -> its part.
    total: of the first `begun` tasks.
    busy: whether a sum is in flight.
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
        # All of them, in order: sums must not depend on which task is done first.
        if self.busy or not wanted or not all(n in self.waiting for n in wanted):
            return []
        self.busy, self.begun = True, wanted.stop
        return [*before, *(self.waiting.pop(n) for n in wanted)]


@dataclass(eq=False, slots=True)
class _Job:
    """A task, or a sum of partial results; `number` is that of the task, or of the last that the sum reaches.

    bytes: of what it reads, by worker.
    home: the worker where readers want its result.
    stores: bytes of the result.
    final: whether the result is a part of the last table of the pass, not a partial one.
    futures: kept until the job is done.
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

    def local_bytes(self, worker: str) -> int:
        """Return the bytes that need not move if it is done on a worker."""
        return self.bytes[worker] + (self.stores if worker == self.home else 0)


class JobsInFlight:
    """The jobs in flight of all passes that have begun, and how many there are on each worker.

    in_flight: jobs of each worker, at the most.
    jobs: by the key of its report, each job with the jobs of its pass.
    """

    def __init__(self, client: Client, in_flight: int) -> None:
        self.client = client
        self.workers = sorted(workers_of(client)) or [""]
        # For the whole cluster: workers without a fitting task leave theirs to others.
        self.most = in_flight * len(self.workers)
        self.busy: Counter[str] = Counter()
        self.jobs: dict[Any, tuple[PassJobs, _Job]] = {}
        self._finished: queue.SimpleQueue[Future] = queue.SimpleQueue()

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, pass_jobs: PassJobs, job: _Job, report: Future) -> None:
        """Add a job; report: the future of its report."""
        self.busy[job.worker] += 1
        self.jobs[report.key] = pass_jobs, job
        # A queue, because callbacks come on a thread of the client.
        report.add_done_callback(self._finished.put)

    def next(self) -> tuple[PassJobs, _Job, TaskReport]:
        """Wait for a job; raises WorkersLostError and RunError as `dask_cluster` does."""
        future = next_finished(self.client, self._finished)
        pass_jobs, job = self.jobs.pop(future.key)
        report: TaskReport = result_of(future, f"task {job.number} of pass {pass_jobs.number}")
        self.busy[job.worker] -= 1
        return pass_jobs, job, report


@dataclass(eq=False)
class PassJobs:
    """The jobs of one pass, its pilot task alone because it chooses the scale factors.

    number: of the pass.
    loads: tables that it reads.
    sums: group of tasks -> its partial results, until the last of them is being added.
    """

    _tables: RemoteTables
    number: int
    _context: PassContext
    _functions: TaskFunctions
    _here: ChunkStore
    _all: JobsInFlight

    def __post_init__(self) -> None:
        chunks = self._tables.chunks
        self._pass = chunks.passes[self.number]
        self.loads = self._pass.loads
        plan, self._out = chunks.plan, self._pass.out
        self._sizes = plan.shape.cardinalities
        self._tasks = plan.shape.entries(self._pass.fixed)
        self._in_sum = plan.shape.entries(self._pass.summed)
        # Beside the parts the working memory has to hold their sum.
        self._at_once = max(2, min(MOST_ADDED, chunks.working // part(plan, self._out, self._pass.fixed) - 1))
        self._shared = self._tables.submit("pass", [self.number], tasks.shared_context, self._context)
        self._workers = self._all.workers
        self._key = self._ranking_variables()
        self._order = self._groups()
        self._begun = 0
        self._tasks_waiting: list[_Job] = []
        self._sums_waiting: list[_Job] = []
        self.sums: dict[int, _Sums] = {}
        self._fetched: dict[int, dict[int, Array]] = {}
        self._in_flight: set[_Job] = set()
        self._factors: dict[int, float] = {}
        self._max_min: dict[int, list[MaxMin]] = {}

    def report(self) -> PassReport:
        """Return what the jobs found; all of them are done."""
        return PassReport(self.number, {t: joined(parts) for t, parts in self._max_min.items()}, self._factors)

    @property
    def is_done(self) -> bool:
        """Whether all jobs are done."""
        left = self._tasks_waiting or self._sums_waiting or self._in_flight
        return self._begun == self._tasks and not left

    def fill(self) -> None:
        """Start jobs while there is room for them."""
        # Without factors only the pilot task may be in flight.
        while len(self._all) < self._all.most and (self._factors or not self._in_flight):
            self._look_ahead()
            # What waits to be added up takes memory.
            waiting = self._sums_waiting or self._tasks_waiting
            if not waiting:
                return
            job, worker = self._next_of(waiting)
            waiting.remove(job)
            self._start(job, worker)

    def _look_ahead(self) -> None:
        first = min((job.number for job in (*self._tasks_waiting, *self._in_flight)), default=self._begun)
        end = min(self._tasks, first + (AHEAD * self._all.most if self._factors else 1))
        for number in range(self._begun, end):
            self._tasks_waiting.append(self._task(number))
        self._begun = max(self._begun, end)

    def _ranking_variables(self) -> list[int]:
        """Return the chunk variables in the order in which they decide which worker does a task.

        First come those that the main reader of the results holds constant, too: it finds its parts in place.
        """
        weights: Counter[tuple[int, ...]] = Counter()
        for later in self._tables.chunks.passes[self.number + 1 :]:
            for table in self._context.stored.intersection(later.loads):
                shared = tuple(v for v in self._pass.fixed if v in later.fixed)
                weights[shared] += self._tables.chunks.plan.tables[table].entries
        # The reader of most entries counts, the others take what they find.
        first = max(weights, key=lambda shared: weights[shared], default=())
        return [*first, *(v for v in self._pass.fixed if v not in first)]

    def _home(self, states: Mapping[int, int]) -> str:
        """Return the worker where readers want a result: neighbours in the ranking together, equal shares for all."""
        rank = 0
        for v in self._key:
            # Summed variables that a result does not have count as 0.
            rank = rank * self._sizes[v] + states.get(v, 0)
        return self._workers[rank * len(self._workers) // self._tasks]

    def _groups(self) -> list[dict[int, int]]:
        """Return the tasks that begin a sum, or all tasks where there are none, those of the workers by turns."""
        outer = [v for v in self._pass.fixed if v not in self._pass.summed]
        by_worker: dict[str, list[dict[int, int]]] = {}
        for at in configurations([self._sizes[v] for v in outer]):
            states = dict(zip(outer, at, strict=True))
            by_worker.setdefault(self._home(states), []).append(states)
        # Otherwise the first tasks would all want the same worker.
        turns = zip_longest(*(by_worker[worker] for worker in sorted(by_worker, key=self._workers.index)))
        return [states for turn in turns for states in turn if states is not None]

    def _task(self, number: int) -> _Job:
        group, place = divmod(number, self._in_sum)
        states = dict(self._order[group])
        # The last summed variable is the fastest, as in `configurations`.
        for v in reversed(self._pass.summed):
            place, states[v] = divmod(place, self._sizes[v])
        reads: list[RemotePart] = []
        bytes_by_worker = Counter[str]()
        for table in self._pass.loads:
            if table in self._tables.parts:
                parts = self._tables.agreeing(table, states)
                entries = part(self._tables.chunks.plan, table, states)
                for part_ in parts:
                    bytes_by_worker[part_.worker] += entries * self._tables.itemsize // len(parts)
                reads += parts
        return self._job(number, states, reads, bytes_by_worker, is_sum=False, final=self._in_sum == 1)

    def _job(
        self,
        number: int,
        states: dict[int, int],
        reads: Sequence[RemotePart],
        bytes_by_worker: Counter[str],
        is_sum: bool,
        final: bool,
    ) -> _Job:
        entries = sum(part(self._tables.chunks.plan, table, states) for table in self._context.stored)
        home, stores = self._home(states), entries * self._tables.itemsize
        return _Job(number, states, reads, bytes_by_worker, home, stores, is_sum, final)

    def _next_of(self, waiting: Sequence[_Job]) -> tuple[_Job, str]:
        """Return the job that finds most of what it reads on a worker with least to do and room, and that worker."""
        # Load first: a worker that idles costs more than bytes that move.
        least = min(self._all.busy[worker] for worker in self._workers)
        idle = [worker for worker in self._workers if self._all.busy[worker] == least]
        tables = self._tables

        def worth(job: _Job, worker: str) -> tuple[bool, int, int]:
            has_room = tables.bytes[worker] + job.stores <= tables.room
            return has_room, job.local_bytes(worker), -tables.bytes[worker]

        return max(product(waiting, idle), key=lambda pair: worth(*pair))

    def _start(self, job: _Job, worker: str) -> None:
        tables, key = self._tables, [self.number, int(job.is_sum), job.number]
        job.worker = worker
        # What moves is counted: tests and benchmarks compare it with the forecast.
        tables.transferred += job.bytes.total() - job.bytes[worker]
        output = self._submit(job, key)
        # Kept until they are not needed any more: the scheduler may learn of a release before it learns of a reader.
        job.futures.append(output)
        for table in [self._out] if job.is_sum else self._context.stored:
            self._keep(job, table, tables.submit("part", [*key, table], tasks.part_of, output, table))
        report = tables.submit("record", key, tasks.report_of, output)
        self._in_flight.add(job)
        self._all.add(self, job, report)

    def _submit(self, job: _Job, key: Sequence[int]) -> Future:
        here, elsewhere, futures = self._gather(job, key)
        if job.is_sum:
            # Parts are added up in the order of their tasks, wherever they come from.
            order = [[job.reads.index(part_) for part_ in parts] for parts in (here, elsewhere)]
            sum_ = (self._functions.sum_parts, self._shared, *order, *futures)
            return self._tables.submit("sum", key, *sum_, worker=job.worker)
        origins = [[part_.source for part_ in parts] for parts in (here, elsewhere)]
        task = (self._functions.run_task, self._shared, job.states, self._factors, *origins, *futures)
        return self._tables.submit("task", key, *task, worker=job.worker)

    def _gather(self, job: _Job, key: Sequence[int]) -> tuple[list[RemotePart], list[RemotePart], list[Future]]:
        """Return the parts that a job reads of its own worker, those on others, and the futures of both.

        Of its own worker parts come as a whole, of others in slices.
        """
        by_worker: dict[str, list[RemotePart]] = {}
        for part_ in job.reads:
            by_worker.setdefault(part_.worker, []).append(part_)
        here, states = by_worker.pop(job.worker, []), {} if job.is_sum else job.states
        for worker, parts in by_worker.items():
            of = [[part_.source for part_ in parts], self._tables.kept_for(worker, job.worker)]
            slices = (tasks.slices_of, states, *of, *(part_.future for part_ in parts))
            # What another worker waits for goes first.
            job.futures.append(self._tables.submit("slices", [*key, worker], *slices, worker=worker, first=True))
        elsewhere = [part_ for parts in by_worker.values() for part_ in parts]
        return here, elsewhere, [*(part_.future for part_ in here), *job.futures]

    def _keep(self, job: _Job, table: int, future: Future) -> None:
        """Note where a part of a table will be, for other passes or to be added to others."""
        chunks, states = self._tables.chunks, job.states
        cuts = {v: self._sizes[v] for v in chunks.cuts.get(table, ())}
        source = PartOrigin(table, {v: states[v] for v in cuts if v in states}, cuts)
        size = part(chunks.plan, table, source.states) * self._tables.itemsize
        part_ = RemotePart(source, future, job.worker, size)
        if table != self._out or job.final:
            self._tables.keep(part_)
        else:
            job.partial = part_

    def finish(self, job: _Job, report: TaskReport) -> None:
        """Take what a job has found."""
        self._in_flight.remove(job)
        # Those of the pilot task, the first that reports; all later ones repeat them.
        self._factors = self._factors or report.factors
        for table, max_min in report.max_min.items():
            self._max_min.setdefault(table, []).append(max_min)
        for table, entries in report.small.items():
            self._store(job, table, entries)
        if job.partial is not None:
            self._add_up(job, job.partial)

    def _store(self, job: _Job, table: int, entries: Array) -> None:
        """Store a part of a small table in this process; partial results as soon as all are there to be added up."""
        if not job.final and table == self._out:
            group, place = divmod(job.number, self._in_sum)
            partial = self._fetched.setdefault(group, {})
            partial[place] = entries
            # Added up in order once all are here, as workers do it.
            if len(partial) < self._in_sum:
                return
            total = tasks.sum_parts(self._context, sorted(partial), (), *(partial[n] for n in sorted(partial)))
            del self._fetched[group]
            entries = total.parts[table]
            self._max_min.setdefault(table, []).append(total.report.max_min[table])
        where = self._here.part(table, job.states)
        where[...] = entries.reshape(where.shape)

    def _add_up(self, job: _Job, partial: RemotePart) -> None:
        """Take a partial result to those that it is added to, and let these be added up when there are enough."""
        group, place = divmod(job.number, self._in_sum)
        sums = self.sums.setdefault(group, _Sums(self._in_sum, self._at_once))
        if job.is_sum:
            sums.total, sums.busy = partial, False
        else:
            sums.waiting[place] = partial
        if reads := sums.ready():
            # The last sum is a part of the table itself, which readers find.
            final = sums.begun == self._in_sum
            outer = {v: state for v, state in job.states.items() if v not in self._pass.summed}
            last = group * self._in_sum + sums.begun - 1
            bytes_by_worker = Counter[str]()
            for part_ in reads:
                bytes_by_worker[part_.worker] += part_.bytes
            self._sums_waiting.append(self._job(last, outer, reads, bytes_by_worker, is_sum=True, final=final))
            if final:
                del self.sums[group]
