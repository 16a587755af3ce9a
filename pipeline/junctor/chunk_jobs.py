"""The tasks of a pass over the workers of a Dask cluster: where each goes, and how many are under way."""

from __future__ import annotations

import queue
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from junctor import chunk_tasks
from junctor.chunk_store import strides_of
from junctor.chunk_tasks import Extremes, Given, Record
from junctor.distribution import RETRIES, next_finished, result_of, workers_of
from junctor.planning.chunks import ChunkPlan, configurations, part

if TYPE_CHECKING:
    from distributed import Client, Future

# How far tasks may run ahead of the first that is not through, for each that may be in flight: a choice of tasks that
# find their pieces in place, and a bound on results that wait to be added up.
AHEAD = 4
# Partial results added up by one task, where the working memory has room for them.
MOST_ADDED = 8


@dataclass(frozen=True, eq=False, slots=True)
class Held:
    """A piece or a partial result: its future, the worker that makes it, and its bytes."""

    future: Future
    worker: str
    bytes: int


class Pieces:
    """The pieces of a stored table, numbered in C order of its chunk variables."""

    def __init__(self, chunks: ChunkPlan, table: int, itemsize: int) -> None:
        self._cuts, self._sizes = chunks.cuts.get(table, ()), chunks.plan.shape.cardinalities
        self._strides = strides_of(self._cuts, self._sizes)
        self.bytes = chunks.piece(table) * itemsize
        self.held: dict[int, Held] = {}

    def places(self, states: Mapping[int, int]) -> list[int]:
        """Return the numbers of the pieces that agree with `states`."""
        free = [v for v in self._cuts if v not in states]
        first = sum(states[v] * self._strides[v] for v in self._cuts if v in states)
        return [
            first + sum(state * self._strides[v] for v, state in zip(free, each, strict=True))
            for each in configurations([self._sizes[v] for v in free])
        ]


class Stock:
    """The stored tables of one propagation on the workers of a cluster.

    crossed: bytes that tasks read of other workers than the one that they were sent to.
    """

    def __init__(self, client: Client, chunks: ChunkPlan, itemsize: int) -> None:
        self.client, self.chunks, self.itemsize = client, chunks, itemsize
        # No other propagation of the cluster has the same keys.
        self._name = uuid.uuid4().hex
        self.pieces: dict[int, Pieces] = {}
        self.bytes: Counter[str] = Counter()
        self.crossed = 0

    def submit(self, what: str, at: Sequence[int], function: Any, *of: Any, worker: str | None = None) -> Future:
        """Start a function on some worker, or on a certain one as long as that is there."""
        where = {"workers": [worker], "allow_other_workers": True} if worker else {}
        return self.client.submit(function, *of, key=(f"chunk-{what}-{self._name}", *at), retries=RETRIES, **where)

    def make(self, tables: Iterable[int]) -> None:
        """Prepare for the pieces of tables."""
        for table in tables:
            self.pieces[table] = Pieces(self.chunks, table, self.itemsize)

    def keep(self, table: int, place: int, held: Held) -> None:
        """Note where a piece is."""
        self.pieces[table].held[place] = held
        self.bytes[held.worker] += held.bytes

    def drop(self, table: int) -> None:
        """Forget a table; the workers give it back."""
        for held in self.pieces.pop(table).held.values():
            self.bytes[held.worker] -= held.bytes


@dataclass(eq=False, slots=True)
class _Sums:
    """Partial results of a group of tasks: added up in the order of the tasks, some at a time.

    tasks: of the group. at_once: what one sum takes, the total so far included.
    """

    tasks: int
    at_once: int
    waiting: dict[int, Held] = field(default_factory=dict)
    total: Held | None = None
    begun: int = 0
    busy: bool = False

    def ready(self) -> list[Held]:
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

    final: its result is a part of the last table of the pass, not a partial one. made: kept until the job is done.
    """

    number: int
    states: Mapping[int, int]
    reads: Sequence[Held]
    counts: Mapping[int, int]
    is_sum: bool
    final: bool
    worker: str = ""
    made: Future | None = None
    partial: Held | None = None

    def bytes_at(self, worker: str) -> int:
        """Return the bytes of what it reads that a worker has."""
        return sum(held.bytes for held in self.reads if held.worker == worker)


class PassRun:
    """One pass: a bounded number of jobs under way, the first task alone because it settles the powers of two."""

    def __init__(self, stock: Stock, n: int, given: Given, in_flight: int) -> None:
        self._stock, self._n, self._each, self._given = stock, n, stock.chunks.passes[n], given
        plan, self._out = stock.chunks.plan, self._each.out
        self._tasks, self._in_sum = plan.shape.entries(self._each.fixed), plan.shape.entries(self._each.summed)
        self._part = part(plan, self._out, self._each.fixed)
        self._at_once = max(2, min(MOST_ADDED, stock.chunks.working // self._part - 1))
        self._states = configurations([plan.shape.cardinalities[v] for v in self._each.fixed])
        self._common = stock.submit("pass", [n], chunk_tasks.given_to_all, given)
        self._workers = sorted(workers_of(stock.client)) or [""]
        self._most = in_flight * len(self._workers)
        self._begun = 0
        self._tasks_waiting: list[_Job] = []
        self._sums_waiting: list[_Job] = []
        self._sums: dict[int, _Sums] = {}
        self._under_way: dict[Any, _Job] = {}
        self._finished: queue.SimpleQueue[Future] = queue.SimpleQueue()
        self._busy: Counter[str] = Counter()
        self._powers: dict[int, float] = {}
        self._extremes: dict[int, dict[int, Extremes]] = {}

    def run(self) -> tuple[dict[int, Extremes], dict[int, float]]:
        """Do all jobs; returns the extremes of the tables of the pass and the powers of two in them.

        Raises WorkersLostError and RunError as `distribution` does.
        """
        self._fill()
        while self._under_way:
            future = next_finished(self._stock.client, self._finished)
            job = self._under_way.pop(future.key)
            self._finish(job, result_of(future, f"task {job.number} of pass {self._n}"))
            self._fill()
        extremes = {t: chunk_tasks.joined(found[n] for n in sorted(found)) for t, found in self._extremes.items()}
        return extremes, self._powers

    def _fill(self) -> None:
        """Start jobs while there is room for them."""
        while len(self._under_way) < (self._most if self._powers else 1):
            self._look_ahead()
            # What waits to be added up takes memory.
            waiting = self._sums_waiting or self._tasks_waiting
            if not waiting:
                return
            job, worker = self._next_of(waiting)
            waiting.remove(job)
            self._start(job, worker)

    def _look_ahead(self) -> None:
        first = min((job.number for job in (*self._tasks_waiting, *self._under_way.values())), default=self._begun)
        end = min(self._tasks, first + (AHEAD * self._most if self._powers else 1))
        for number in range(self._begun, end):
            states = dict(zip(self._each.fixed, next(self._states), strict=True))
            held = {t: [ps.held[place] for place in ps.places(states)] for t, ps in self._pieces_of(self._each.loads)}
            counts = {table: len(found) for table, found in held.items()}
            reads = [each for found in held.values() for each in found]
            self._tasks_waiting.append(_Job(number, states, reads, counts, is_sum=False, final=self._in_sum == 1))
        self._begun = max(self._begun, end)

    def _pieces_of(self, tables: Iterable[int]) -> list[tuple[int, Pieces]]:
        return [(table, self._stock.pieces[table]) for table in tables if table in self._stock.pieces]

    def _next_of(self, waiting: Sequence[_Job]) -> tuple[_Job, str]:
        """Return the job that finds most of what it reads on a worker with least to do, and that worker."""
        least = min(self._busy[worker] for worker in self._workers)
        idle = [worker for worker in self._workers if self._busy[worker] == least]
        return max(product(waiting, idle), key=lambda at: (at[0].bytes_at(at[1]), -self._stock.bytes[at[1]]))

    def _start(self, job: _Job, worker: str) -> None:
        job.worker = worker
        submit, at = self._stock.submit, [self._n, int(job.is_sum), job.number]
        futures = [held.future for held in job.reads]
        if job.is_sum:
            of = (chunk_tasks.made_by_sum, self._given.body.algebra, self._out, *futures)
        else:
            of = (chunk_tasks.made_by_task, self._common, job.states, self._powers, job.counts, *futures)
        job.made = submit("sum" if job.is_sum else "task", at, *of, worker=job.worker)
        self._stock.crossed += sum(held.bytes for held in job.reads if held.worker != job.worker)
        self._busy[job.worker] += 1
        self._keep(job, at)
        record = submit("record", at, chunk_tasks.record_of, job.made)
        self._under_way[record.key] = job
        record.add_done_callback(self._finished.put)

    def _keep(self, job: _Job, at: Sequence[int]) -> None:
        """Give every piece of what a job makes a future of its own."""
        stock, piece_of = self._stock, chunk_tasks.piece_of
        if not job.final:
            future = stock.submit("partial", at, piece_of, job.made, self._out, 0, 1)
            job.partial = Held(future, job.worker, self._part * stock.itemsize)
        tables = [self._out] if job.is_sum else [t for t in self._each.stores if t != self._out or self._in_sum == 1]
        for table, pieces in self._pieces_of(tables if job.final or not job.is_sum else []):
            places = pieces.places(job.states)
            for n, place in enumerate(places):
                future = stock.submit("piece", [table, place], piece_of, job.made, table, n, len(places))
                stock.keep(table, place, Held(future, job.worker, pieces.bytes))

    def _finish(self, job: _Job, record: Record) -> None:
        self._busy[job.worker] -= 1
        self._powers = self._powers or record.powers
        for table, found in record.extremes.items():
            if table != self._out or job.final:
                self._extremes.setdefault(table, {})[job.number] = found
        if job.partial is not None:
            self._add_up(job, job.partial)

    def _add_up(self, job: _Job, partial: Held) -> None:
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
            self._sums_waiting.append(_Job(last, outer, reads, {}, is_sum=True, final=final))
            if final:
                del self._sums[group]
