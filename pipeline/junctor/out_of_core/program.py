"""Propagation of one case in chunks: for tables that exceed the memory, on the plan that `planning.chunks` cuts.

Messages are stored as they are summed, times a power of two that the first task of a pass settles; what is known of
a whole table (`TableStats`) follows once its last chunk is there. The bounds on what underflow can have lost are those
of `junctor.backends.numpy`, with one difference: an entry may exceed 1, so they are multiplied by the largest entries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu.entries import shift_of
from junctor_kernels.tables import reference
from junctor_kernels.tables.axes import Contraction, contraction
from junctor_kernels.tables.reference import Algebra

from junctor.backends.numpy import BlockOutcome, EvidenceBlock, Program, doubtful_rows
from junctor.backends.scaled_table import ScaledTable
from junctor.model.network import Network
from junctor.out_of_core.pass_program import (
    Contract,
    CpuTasks,
    Extremes,
    PartStep,
    PassProgram,
    add_to,
    joined,
    largest_of,
    shifted,
)
from junctor.out_of_core.store import ChunkStore
from junctor.planning.chunks import ChunkPass, ChunkPlan, configurations
from junctor.planning.plan import Free, Reduce
from junctor.runtime.threads import in_threads

if TYPE_CHECKING:
    from junctor.out_of_core.gpu.devices import DeviceGroup
    from junctor.out_of_core.gpu.launches import Launches

Array = npt.NDArray[np.floating[Any]]

# Powers of two that a table may be off by before its readers have to multiply.
MOST_OFF = 32
MOST_SHIFT = 1000
# Groups of tasks that are handed to threads at a time.
GROUPS = 1024


@dataclass(frozen=True, slots=True)
class TableStats:
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

    def seen(self) -> TableStats:
        """Return what readers see."""
        return self.shifted(self.shift)

    def shifted(self, shift: int) -> TableStats:
        """Return the same of all entries times a power of two."""
        if not shift:
            return replace(self, shift=0) if self.shift else self
        by = 2.0**shift
        scale = self.log_scale - shift * math.log(2)
        return TableStats(scale, self.lost * by, self.open * by, self.least * by, self.largest * by)


class ChunkedProgram:
    """A cut plan bound to the numbers of a network in one algebra; answers one case at a time.

    scratch: entries of a contraction in flight. folder: for tables that do not fit the memory. threads: tasks that are
    done at once, each within the working memory of the plan. entry_threads: that compiled contractions take inside a
    task; 0 where NumPy does all of the work. gpu: does the tasks instead, as many at once as it has slots. as_summed:
    whether tables are stored as they are summed, and multiplied on the way to readers, as GPUs do.
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
        gpu: DeviceGroup | None = None,
        as_summed: bool = False,
    ) -> None:
        self.chunks, self.plan, self.algebra = chunks, chunks.plan, algebra
        self.folder, self.threads, self._gpu = folder, threads, gpu
        self._as_summed = as_summed or gpu is not None
        self._on_cpu = CpuTasks(algebra, scratch, entry_threads)
        leaves = tuple(step for step in self.plan.steps if not isinstance(step, Reduce | Free))
        self._leaves = Program(replace(self.plan, steps=leaves), network, algebra)
        self._sizes = dict(enumerate(self.plan.shape.cardinalities))
        self._adds = algebra.combine is np.add
        self._closed = frozenset(table for up, down, _ in self.plan.edges for table in (up, down))
        self._edges = {down: (up, total) for up, down, total in self.plan.edges}
        ends = chunks.lifetimes()
        # Tables that nobody reads after a pass.
        self.dead: list[list[int]] = [[] for _ in chunks.passes]
        self.results = (*self.plan.totals, *(table for _, table in self.plan.marginals))
        for table, (_, last) in ends.items():
            if last >= 0 and table not in self.results:
                self.dead[last].append(table)
        self.bodies = [
            PassProgram(tuple(self._lower(each, step) for step in each.steps), algebra) for each in chunks.passes
        ]

    def run(self, block: EvidenceBlock) -> BlockOutcome:
        """Propagate one case and return its posteriors and log P(e); raises OSError where the disk is full."""
        with self._gpu.alone() if self._gpu else nullcontext():
            return self._run(block)

    def _run(self, block: EvidenceBlock) -> BlockOutcome:
        store = ChunkStore(self.chunks, self.algebra.dtype, self.folder, self._gpu)
        known = self.begin(block, store)
        if self._gpu is not None:
            self._run_on_gpu(store, known)
        else:
            for n in range(len(self.chunks.passes)):
                self.run_pass(n, store, known, self.reduce)
                for table in self.dead[n]:
                    store.drop(table)
        return self.outcome(block, {table: store.part(table, {}) for table in self.results}, known)

    @cached_property
    def _launches(self) -> Launches:
        from junctor.out_of_core.gpu.launches import Launches

        assert self._gpu is not None
        return Launches(self._gpu, [body.steps for body in self.bodies])

    def _run_on_gpu(self, store: ChunkStore, known: dict[int, TableStats]) -> None:
        from junctor.out_of_core.gpu.run import GpuRun

        def settle(n: int, extremes: Mapping[int, Extremes], leads: Mapping[int, int]) -> None:
            self.settle(n, extremes, dict.fromkeys(extremes, 1.0), known, leads)

        GpuRun(self._launches, store, known, settle).run(self.dead)

    def begin(self, block: EvidenceBlock, store: ChunkStore) -> dict[int, TableStats]:
        """Put factors and evidence into a store and return what is known of them."""
        known: dict[int, TableStats] = {}
        for table, value in self._leaves.evidence(block).items():
            store.put(table, value.table)
            known[table] = _known(value)
        return known

    def outcome(
        self, block: EvidenceBlock, results: Mapping[int, Array], known: Mapping[int, TableStats]
    ) -> BlockOutcome:
        """Return the answer of a case; results: the entries of all of `self.results`, in any shape."""
        log_value = self._leaves.constants(block)
        logs: dict[int, float] = {}
        for table in self.plan.totals:
            logs[table] = self._log_of(results[table].item(), known[table])
            log_value = log_value + logs[table]
        share = sum((self._moved(down, known, logs) for down in self._edges), 0.0)
        marginals = {v: self._posterior(results[table].reshape(-1, 1)) for v, table in self.plan.marginals}
        ends = [_ratio(self.plan.tables[t].entries * known[t].open, known[t].largest) for t in self.results]
        # NumPy's maximum, because Python's passes over what is not a number.
        doubtful = doubtful_rows(np.array([share + np.max(ends, initial=0.0)]), log_value, self.algebra)
        return BlockOutcome(log_value, marginals, {}, doubtful)

    def _posterior(self, values: Array) -> Array:
        """Return a table as probabilities, from near the neutral element, so that none leaves the format."""
        largest = largest_of(values)
        if self._adds:
            return self._leaves.normalised(values - (largest if math.isfinite(largest) else 0.0))
        return self._leaves.normalised(np.ldexp(values, -math.frexp(largest)[1]))

    def _log_of(self, number: float, known: TableStats) -> float:
        if self._adds:
            return number + known.log_scale
        return known.log_scale + math.log(number) if number > 0 else -math.inf

    def _moved(self, down: int, known: Mapping[int, TableStats], logs: Mapping[int, float]) -> float:
        """Return the share of the probability that the open losses of both messages of an edge can have moved."""
        up, total = self._edges[down]
        one, other = known[up].seen(), known[down].seen()
        entries = self.plan.tables[down].entries
        moved = entries * (one.open * (other.excess + other.lost) + other.open * (one.excess + one.lost))
        if moved == 0:
            return 0.0
        difference = logs[total] - one.log_scale - other.log_scale
        return _ratio(moved, math.exp(difference) if difference < 700 else math.inf)

    def reduce(self, what: Contraction, operands: Sequence[Array]) -> Array:
        """Contract parts of tables, in compiled code where that pays."""
        return self._on_cpu(what, operands)

    def _lower(self, each: ChunkPass, step: Reduce) -> PartStep:
        operands = self.chunks.ordered(step)
        what = contraction(
            self.chunks.axes(step.out, each),
            [v for v in step.eliminated if v not in each.fixed],
            [self.chunks.axes(table, each) for table in operands],
            self._sizes,
        )
        return PartStep(step.out, operands, what)

    def run_pass(self, n: int, store: ChunkStore, known: dict[int, TableStats], contract: Contract) -> None:
        """Do all tasks of a pass."""
        each = self.chunks.passes[n]
        for table in each.stores:
            store.make(table)
        work = PassWork(self, n, store, {table: known[table].shift for table in each.loads}, contract)
        outer = work.outer
        groups = configurations([self._sizes[v] for v in outer])
        # It settles the powers of two for the others.
        work.group(dict(zip(outer, next(groups), strict=True)))
        # So many at a time: there may be millions, and each leaves something behind.
        while at_a_time := list(islice(groups, GROUPS)):
            states = [dict(zip(outer, group, strict=True)) for group in at_a_time]
            in_threads(work.group, states, self.threads)
        self.settle(n, work.extremes, work.powers, known)

    def settle(
        self,
        n: int,
        extremes: Mapping[int, Extremes],
        powers: Mapping[int, float],
        known: dict[int, TableStats],
        leads: Mapping[int, int] | None = None,
    ) -> None:
        """Find out what is known of the tables of a pass from the extremes of all that its tasks made.

        powers: what results were multiplied with. leads: powers of two that readers in the pass multiplied them with.
        """
        each = self.chunks.passes[n]
        inside: dict[int, TableStats] = {table: known[table].seen() for table in each.loads}
        for reduce, step in zip(each.steps, self.bodies[n].steps, strict=True):
            out, operands = step.out, [inside[table] for table in step.operands]
            made = self._known_of(reduce, step, operands, extremes[out], powers[out])
            inside[out] = made.shifted(leads.get(out, 0)) if leads else made
            known[out] = self._shifted_for_readers(made) if out in each.stores else made

    def _shifted_for_readers(self, known: TableStats) -> TableStats:
        if self._adds or known.largest == 0 or not math.isfinite(known.largest):
            return known
        if self._as_summed:
            # What devices find by themselves.
            return replace(known, shift=shift_of(self.algebra.dtype.type(known.largest)))
        exponent = math.frexp(known.largest)[1]
        # Two to the power of more would be beyond the format itself.
        shift = max(-MOST_SHIFT, min(MOST_SHIFT, -exponent))
        return replace(known, shift=shift) if abs(exponent) > MOST_OFF else known

    def _known_of(
        self, reduce: Reduce, step: PartStep, operands: Sequence[TableStats], extremes: Extremes, power: float
    ) -> TableStats:
        """Return what is known of a result: its scale, and the bounds on losses (see `junctor.propagation`)."""
        largest, least = extremes
        scale = sum([each.log_scale for each in operands])
        if self._adds:
            return TableStats(scale - power, 0.0, 0.0, 1.0, largest)
        if not math.isfinite(largest):
            # Beyond the format: nothing is known.
            return TableStats(scale, math.inf, math.inf, 0.0, math.inf)
        tiny = self.algebra.tiny
        # Entries above 1 do not help: they may come behind a product that is lost already.
        safe = math.prod([min(1.0, each.least) for each in operands]) >= tiny and least >= tiny
        if safe and not any(each.lost or each.open for each in operands):
            return TableStats(scale - math.log(power), 0.0, 0.0, least, largest)
        terms = self.plan.shape.entries(reduce.eliminated)
        excess = math.prod(each.excess for each in operands)
        # A rounding for each operand, and one for the power of two.
        here = 0.0 if safe else (len(operands) + 1) * tiny * terms * excess
        growth = self._leaves.growth(reduce)
        in_messages = open_messages = 0.0
        for table, each in zip(step.operands, operands, strict=True):
            if self._leaves.is_fixed(table):
                here += terms * each.lost * excess
            else:
                in_messages += each.lost * (1 + in_messages)
                open_messages += 0.0 if table in self._closed else each.open
        lost = growth * excess * in_messages + here * (1 + in_messages)
        still_open = (growth * excess * open_messages + here) * (1 + in_messages)
        return TableStats(scale - math.log(power), lost * power, still_open * power, least, largest)


class PassWork:
    """The tasks of one pass."""

    def __init__(
        self, program: ChunkedProgram, n: int, store: ChunkStore, shifts: Mapping[int, int], contract: Contract
    ) -> None:
        self.program, self.each, self.body = program, program.chunks.passes[n], program.bodies[n]
        self.store, self.shifts, self.contract = store, shifts, contract
        # Chunk variables that groups of tasks are told apart by.
        self.outer = [v for v in self.each.fixed if v not in self.each.summed]
        # What a result is multiplied with (or, on logarithms, lessened by), settled by the first task.
        self.powers: dict[int, float] = {}
        # The extremes of all that was made.
        self.extremes: dict[int, Extremes] = {}
        self._lock = Lock()

    def group(self, states: dict[int, int], _place: int = 0) -> None:
        """Do the tasks whose results are added up."""
        each, program = self.each, self.program
        total: Array | None = None
        found: dict[int, Extremes] = {}
        for summed in configurations([program._sizes[v] for v in each.summed]):
            here = states | dict(zip(each.summed, summed, strict=True))
            for table, made, least in self.body.run(partial(self._load, here), self.contract, self.powers):
                extremes = largest_of(made), least
                found[table] = joined((found[table], extremes)) if table in found else extremes
                if table != each.out:
                    if table in each.stores:
                        self._save(table, here, made)
                elif total is None:
                    total = made
                else:
                    add_to(total, made, program.algebra)
                # Or it would stay while the next step makes its own.
                del made
        assert total is not None
        # Of a sum the terms tell what is lost.
        found[each.out] = largest_of(total), found[each.out][1]
        if each.out in each.stores:
            self._save(each.out, states, total)
        with self._lock:
            for table, more in found.items():
                self.extremes[table] = joined((self.extremes[table], more)) if table in self.extremes else more

    def _save(self, table: int, states: Mapping[int, int], made: Array) -> None:
        part = self.store.part(table, states)
        part[...] = made.reshape(part.shape)

    def _load(self, states: Mapping[int, int], table: int) -> Array:
        return shifted(self.store.part(table, states), self.shifts[table])


def _known(value: ScaledTable) -> TableStats:
    largest = float(value.table.max())
    return TableStats(
        float(value.log_scale[0]), float(value.lost[0]), float(value.open[0]), float(value.least[0]), largest
    )


def _ratio(number: float, by: float) -> float:
    if number == 0:
        return 0.0
    return number / by if by > 0 else math.inf
