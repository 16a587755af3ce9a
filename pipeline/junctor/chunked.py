"""Propagation of one case in chunks: for tables that exceed the memory, on the plan that `planning.chunks` cuts.

Messages are stored as they are summed, times a power of two that the first task of a pass settles; what is known of
a whole table (`Known`) follows once its last chunk is there. The bounds on what underflow can have lost are those of
`junctor.propagation`, with one difference: an entry may exceed 1, so they are multiplied by the largest entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels import reference
from junctor_kernels.axes import Contraction, contraction
from junctor_kernels.reference import Algebra

from junctor.chunk_store import ChunkStore
from junctor.model import Network
from junctor.planning.chunks import ChunkPlan, Pass, configurations
from junctor.planning.plan import Free, Reduce
from junctor.propagation import Block, Outcome, Program, doubtful_rows
from junctor.threads import in_threads
from junctor.values import Value

Array = npt.NDArray[np.floating[Any]]

# Powers of two that a table may be off by before its readers have to multiply.
MOST_OFF = 32
MOST_SHIFT = 1000
# Groups of tasks that are handed to threads at a time.
GROUPS = 1024


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a whole table.

    log_scale: its entries are to be multiplied with the exponential of it. lost, open: bounds on losses of an entry.
    least: the smallest entry above zero. largest: the largest. shift: readers multiply by two to this power first.
    """

    log_scale: float
    lost: float
    open: float
    least: float
    largest: float
    shift: int = 0

    @property
    def excess(self) -> float:
        """What a loss elsewhere may be multiplied by when it meets this table."""
        return max(1.0, self.largest)

    def shifted(self) -> Known:
        """Return what readers see."""
        by = 2.0**self.shift
        scale = self.log_scale - self.shift * math.log(2)
        return Known(scale, self.lost * by, self.open * by, self.least * by, self.largest * by)


@dataclass(frozen=True, slots=True)
class _Task:
    """A step of a pass in terms of parts: operands in the order in which they combine, and where their parts begin."""

    step: Reduce
    operands: tuple[int, ...]
    what: Contraction


class ChunkedProgram:
    """A cut plan bound to the numbers of a network in one algebra; answers one case at a time.

    scratch: entries of a contraction in flight. folder: for tables that do not fit the memory. threads: tasks that are
    done at once, each within the working memory of the plan. entry_threads: that compiled contractions take inside a
    task; 0 where NumPy does all of the work.
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
        self.chunks, self.plan, self.algebra = chunks, chunks.plan, algebra
        self.scratch, self.folder, self.threads, self.entry_threads = scratch, folder, threads, entry_threads
        leaves = tuple(step for step in self.plan.steps if not isinstance(step, Reduce | Free))
        self._leaves = Program(replace(self.plan, steps=leaves), network, algebra)
        self._sizes = dict(enumerate(self.plan.shape.cardinalities))
        self._adds = algebra.combine is np.add
        self._closed = frozenset(table for up, down, _ in self.plan.edges for table in (up, down))
        self._edges = {down: (up, total) for up, down, total in self.plan.edges}
        ends = chunks.lifetimes()
        self._dead: list[list[int]] = [[] for _ in chunks.passes]
        results = {*self.plan.totals, *(table for _, table in self.plan.marginals)}
        for table, (_, last) in ends.items():
            if last >= 0 and table not in results:
                self._dead[last].append(table)
        self._tasks = [[self._lower(each, step) for step in each.steps] for each in chunks.passes]

    def run(self, block: Block) -> Outcome:
        """Propagate one case and return its posteriors and log P(e); raises OSError where the disk is full."""
        store = ChunkStore(self.chunks, self.algebra.dtype, self.folder)
        known: dict[int, Known] = {}
        for table, value in self._leaves.evidence(block).items():
            store.put(table, value.table)
            known[table] = _known(value)
        for n, each in enumerate(self.chunks.passes):
            self._run_pass(each, self._tasks[n], store, known)
            for table in self._dead[n]:
                store.drop(table)
        return self._outcome(block, store, known)

    def _outcome(self, block: Block, store: ChunkStore, known: Mapping[int, Known]) -> Outcome:
        log_value = self._leaves.constants(block)
        logs: dict[int, float] = {}
        for table in self.plan.totals:
            logs[table] = self._log_of(store.part(table, {}).item(), known[table])
            log_value = log_value + logs[table]
        share = sum((self._moved(down, known, logs) for down in self._edges), 0.0)
        marginals = {
            variable: self._posterior(store.part(table, {}).reshape(-1, 1)) for variable, table in self.plan.marginals
        }
        results = (*self.plan.totals, *(table for _, table in self.plan.marginals))
        ends = [_ratio(self.plan.tables[t].entries * known[t].open, known[t].largest) for t in results]
        # NumPy's maximum, because Python's passes over what is not a number.
        doubtful = doubtful_rows(np.array([share + np.max(ends, initial=0.0)]), log_value, self.algebra)
        return Outcome(log_value, marginals, {}, doubtful)

    def _posterior(self, values: Array) -> Array:
        """Return a table as probabilities, from near the neutral element, so that none leaves the format."""
        largest = _largest(values)
        if self._adds:
            return self._leaves.normalised(values - (largest if math.isfinite(largest) else 0.0))
        return self._leaves.normalised(np.ldexp(values, -math.frexp(largest)[1]))

    def _log_of(self, number: float, known: Known) -> float:
        if self._adds:
            return number + known.log_scale
        return known.log_scale + math.log(number) if number > 0 else -math.inf

    def _moved(self, down: int, known: Mapping[int, Known], logs: Mapping[int, float]) -> float:
        """Return the share of the probability that the open losses of both messages of an edge can have moved."""
        up, total = self._edges[down]
        one, other = known[up].shifted(), known[down].shifted()
        entries = self.plan.tables[down].entries
        moved = entries * (one.open * (other.excess + other.lost) + other.open * (one.excess + one.lost))
        if moved == 0:
            return 0.0
        difference = logs[total] - one.log_scale - other.log_scale
        return _ratio(moved, math.exp(difference) if difference < 700 else math.inf)

    def reduce(self, what: Contraction, operands: Sequence[Array]) -> Array:
        """Contract parts of tables, in compiled code where that pays."""
        if self.entry_threads:
            from junctor_kernels import entries

            return entries.reduce(what, operands, self.algebra, self.entry_threads)
        return reference.reduce(what, operands, self.algebra, self.scratch)

    def _lower(self, each: Pass, step: Reduce) -> _Task:
        tables = self.plan.tables
        operands = tuple(sorted(step.operands, key=lambda table: tables[table].entries))
        what = contraction(
            self._local(step.out, each),
            [v for v in step.eliminated if v not in each.fixed],
            [self._local(table, each) for table in operands],
            self._sizes,
        )
        return _Task(step, operands, what)

    def _local(self, table: int, each: Pass) -> tuple[int, ...]:
        """Return the axes of a table's part in a task of a pass."""
        return tuple(v for v in self.chunks.layout(table) if v not in each.fixed)

    def _run_pass(self, each: Pass, tasks: Sequence[_Task], store: ChunkStore, known: dict[int, Known]) -> None:
        """Do all tasks of a pass; the first alone, because it settles the powers of two for the others."""
        for table in each.stores:
            store.make(table)
        outer = [v for v in each.fixed if v not in each.summed]
        groups = configurations([self._sizes[v] for v in outer])
        work = _Work(self, each, tasks, store, {table: known[table].shift for table in each.loads})
        found = work.group(dict(zip(outer, next(groups), strict=True)))
        # So many at a time: there may be millions, and each leaves something behind.
        while at_a_time := list(islice(groups, GROUPS)):
            states = [dict(zip(outer, group, strict=True)) for group in at_a_time]
            more = in_threads(lambda here, _: work.group(here), states, self.threads)
            found = {table: _joined([found[table], *(each[table] for each in more)]) for table in found}
        self._settle(tasks, found, work.powers, known, each)

    def _settle(
        self,
        tasks: Sequence[_Task],
        extremes: Mapping[int, tuple[float, float]],
        powers: Mapping[int, float],
        known: dict[int, Known],
        each: Pass,
    ) -> None:
        """Find out what is known of the tables of a pass."""
        inside: dict[int, Known] = {table: known[table].shifted() for table in each.loads}
        for task in tasks:
            out = task.step.out
            inside[out] = self._known_of(
                task.step, [inside[t] for t in task.operands], task, extremes[out], powers[out]
            )
            known[out] = self._shifted_for_readers(inside[out]) if out in each.stores else inside[out]

    def _shifted_for_readers(self, known: Known) -> Known:
        if self._adds or known.largest == 0 or not math.isfinite(known.largest):
            return known
        exponent = math.frexp(known.largest)[1]
        # Two to the power of more would be beyond the format itself.
        shift = max(-MOST_SHIFT, min(MOST_SHIFT, -exponent))
        return replace(known, shift=shift) if abs(exponent) > MOST_OFF else known

    def _known_of(
        self, step: Reduce, operands: Sequence[Known], task: _Task, extremes: tuple[float, float], power: float
    ) -> Known:
        """Return what is known of a result: its scale, and the bounds on losses (see `junctor.propagation`)."""
        largest, least = extremes
        scale = sum(each.log_scale for each in operands)
        if self._adds:
            return Known(scale - power, 0.0, 0.0, 1.0, largest)
        if not math.isfinite(largest):
            # Beyond the format: nothing is known.
            return Known(scale, math.inf, math.inf, 0.0, math.inf)
        terms = self.plan.shape.entries(step.eliminated)
        tiny, excess = self.algebra.tiny, math.prod(each.excess for each in operands)
        # Entries above 1 do not help: they may come behind a product that is lost already.
        safe = math.prod(min(1.0, each.least) for each in operands) >= tiny and least >= tiny
        # A rounding for each operand, and one for the power of two.
        here = 0.0 if safe else (len(operands) + 1) * tiny * terms * excess
        growth = self._leaves.growth(step)
        in_messages = open_messages = 0.0
        for table, each in zip(task.operands, operands, strict=True):
            if self._leaves.is_fixed(table):
                here += terms * each.lost * excess
            else:
                in_messages += each.lost * (1 + in_messages)
                open_messages += 0.0 if table in self._closed else each.open
        lost = growth * excess * in_messages + here * (1 + in_messages)
        still_open = (growth * excess * open_messages + here) * (1 + in_messages)
        return Known(scale - math.log(power), lost * power, still_open * power, least, largest)


class _Work:
    """The tasks of one pass."""

    def __init__(
        self, program: ChunkedProgram, each: Pass, tasks: Sequence[_Task], store: ChunkStore, shifts: Mapping[int, int]
    ) -> None:
        self.program, self.each, self.tasks, self.store, self.shifts = program, each, tasks, store, shifts
        # What a result is multiplied with (or, on logarithms, lessened by), settled by the first task.
        self.powers: dict[int, float] = {}
        self._last = {table: n for n, task in enumerate(tasks) for table in (*task.operands, task.step.out)}
        self._adds = program.algebra.combine is np.add

    def group(self, states: dict[int, int]) -> dict[int, tuple[float, float]]:
        """Do the tasks whose results are added up; returns largest and least entry of what they made."""
        each, program = self.each, self.program
        total: Array | None = None
        found: dict[int, tuple[float, float]] = {}
        for summed in configurations([program._sizes[v] for v in each.summed]):
            here = states | dict(zip(each.summed, summed, strict=True))
            for table, made, least in self._task(here):
                extremes = _largest(made), least
                found[table] = _joined((found[table], extremes)) if table in found else extremes
                if table != each.out:
                    if table in each.stores:
                        self._save(table, here, made)
                elif total is None:
                    total = made
                elif self._adds:
                    np.logaddexp(total, made, out=total)
                else:
                    np.add(total, made, out=total)
                # Or it would stay while the next step makes its own.
                del made
        assert total is not None
        # Of a sum the terms tell what is lost.
        found[each.out] = _largest(total), found[each.out][1]
        if each.out in each.stores:
            self._save(each.out, states, total)
        return found

    def _save(self, table: int, states: Mapping[int, int], made: Array) -> None:
        part = self.store.part(table, states)
        part[...] = made.reshape(part.shape)

    def _task(self, states: Mapping[int, int]) -> Iterator[tuple[int, Array, float]]:
        """Yield the tables that a task makes, [entries, 1], each with its smallest entry above zero."""
        alive: dict[int, Array] = {}
        for n, task in enumerate(self.tasks):
            for table in task.operands:
                if table not in alive:
                    alive[table] = self._load(table, states)
            operands = [alive[table] for table in task.operands]
            made = self.program.reduce(task.what, operands)
            yield task.step.out, made, self._scale(task.step.out, made)
            alive[task.step.out] = made
            del operands, made
            for table in [table for table in alive if self._last[table] == n]:
                del alive[table]

    def _load(self, table: int, states: Mapping[int, int]) -> Array:
        part, shift = self.store.part(table, states), self.shifts.get(table, 0)
        if shift:
            return np.ldexp(part, shift, order="C").reshape(-1, 1)
        return np.ascontiguousarray(part).reshape(-1, 1)

    def _scale(self, table: int, made: Array) -> float:
        """Scale a part in place; returns its smallest entry above zero (1 on logarithms, where nothing is lost)."""
        if self._adds:
            if table not in self.powers:
                largest = _largest(made)
                self.powers[table] = -largest if math.isfinite(largest) else 0.0
            made += self.powers[table]
            return 1.0
        if table not in self.powers:
            exponent = math.frexp(_largest(made))[1]
            self.powers[table] = 2.0 ** -max(exponent, int(np.finfo(self.program.algebra.dtype).minexp))
        power = self.powers[table]
        # Taken before, because what this takes below the format would pass for a zero.
        least = float(reference.least_above_zero(made)[0]) * power if made.any() else 1.0
        if power != 1:
            made *= self.program.algebra.dtype.type(power)
        return least


def _largest(made: Array) -> float:
    # What is not a number counts as beyond the format: maxima would pass over it.
    largest = float(made.max())
    return math.inf if math.isnan(largest) else largest


def _joined(extremes: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return max(each[0] for each in extremes), min(each[1] for each in extremes)


def _known(value: Value) -> Known:
    largest = float(value.table.max())
    return Known(float(value.log_scale[0]), float(value.lost[0]), float(value.open[0]), float(value.least[0]), largest)


def _ratio(number: float, by: float) -> float:
    if number == 0:
        return 0.0
    return number / by if by > 0 else math.inf
