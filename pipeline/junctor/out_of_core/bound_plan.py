"""A cut plan bound to the numbers of a network: what is known of its tables (`TableStats`), and the answer of a case.

Threads, GPUs and Dask workers do the tasks; all of them report here (`BoundPlan.update`). Messages are stored times a
scale factor that the pilot task of a pass, its first one, chooses; statistics of a whole table follow from its last
task. The bounds on losses by underflow are those of `junctor.backends.numpy`, with one difference: an entry may exceed
1, so they are multiplied by the largest entries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu.entries import shift_of
from junctor_kernels.tables.axes import contraction
from junctor_kernels.tables.reference import Algebra, multiplied

from junctor.backends.numpy import BlockOutcome, EvidenceBlock, Program, doubtful_rows
from junctor.backends.scaled_table import Floats, ScaledTable
from junctor.model.network import Network
from junctor.out_of_core.pass_program import MaxMin, PartStep, PassProgram, largest_of
from junctor.out_of_core.store import ChunkStore
from junctor.planning.chunks import ChunkPass, ChunkPlan
from junctor.planning.plan import Free, Reduce
from junctor.planning.recompute import originals

Array = npt.NDArray[np.floating[Any]]

# Largest scale exponent that readers need not apply: products of a few such entries stay within both formats.
MAX_UNSCALED = 32
# Largest scale exponent at all: beyond it the factor itself would leave double precision.
MAX_EXPONENT = 1000


# A tuple, because thousands are made for each case.
class TableStats(NamedTuple):
    """What is known of a whole table.

    exponent: a whole number, the power of two that its entries are to be multiplied with; logarithms are that much
        larger.
    lost, open: bounds on losses of an entry.
    least: the smallest entry above zero.
    largest: the largest entry.
    shift: a whole number, readers multiply by two to this power first; to logarithms they add it.
    """

    exponent: float
    lost: float
    open: float
    least: float
    largest: float
    shift: float = 0

    @property
    def excess(self) -> float:
        """What a loss elsewhere may be multiplied by when it meets this table."""
        return max(1.0, self.largest)

    def as_read(self, logs: bool) -> TableStats:
        """Return the statistics of the table as readers see it; logs: whether its entries are logarithms."""
        return self.shifted(self.shift, logs)

    def shifted(self, shift: float, logs: bool) -> TableStats:
        """Return the statistics with all entries times two to a power, or that much more where they are logarithms."""
        if not shift:
            return self._replace(shift=0) if self.shift else self
        if logs:
            return self._replace(exponent=self.exponent - shift, largest=self.largest + shift, shift=0)
        numbers = self.lost, self.open, self.least, self.largest
        return TableStats(self.exponent - shift, *(_times_power(number, int(shift)) for number in numbers))


@dataclass(frozen=True, slots=True)
class PassReport:
    """What the tasks of a pass found.

    number: of the pass.
    max_min: table -> largest entry, and smallest above zero, of all that its tasks made.
    factors: table -> what results were multiplied with before they were stored (on logarithms: what was added).
    pilot_shifts: table -> how readers inside the pass shifted it (`TableStats.shift`), by the pilot task.
    """

    number: int
    max_min: Mapping[int, MaxMin]
    factors: Mapping[int, float]
    pilot_shifts: Mapping[int, float] = field(default_factory=dict)


class BoundPlan:
    """A cut plan bound to the numbers of a network in one algebra.

    as_summed: whether tables are stored as they are summed, and multiplied on the way to readers, as GPUs do.
    results: the tables that answers are read off.
    programs: the steps of every pass.
    """

    def __init__(self, chunks: ChunkPlan, network: Network, algebra: Algebra, as_summed: bool = False) -> None:
        self.chunks = chunks
        self.plan = chunks.plan
        self.algebra = algebra
        self._as_summed = as_summed
        # Only leaves are bound here: reductions have no numbers before their pass.
        leaves = tuple(step for step in self.plan.steps if not isinstance(step, Reduce | Free))
        self._leaves = Program(replace(self.plan, steps=leaves), network, algebra)
        again = originals(self.plan)
        # Losses of a message are weighed once, however often it is made.
        self._closed = self._leaves.closed | {table for table, first in again.items() if first in self._leaves.closed}
        self._sizes = dict(enumerate(self.plan.shape.cardinalities))
        self.results = (*self.plan.totals, *(table for _, table in self.plan.marginals))
        self.programs = [
            PassProgram(tuple(self._lower(pass_, step) for step in pass_.steps), algebra) for pass_ in chunks.passes
        ]

    def _lower(self, pass_: ChunkPass, step: Reduce) -> PartStep:
        operands = self.chunks.ordered(step)
        what = contraction(
            self.chunks.axes(step.out, pass_),
            [v for v in step.eliminated if v not in pass_.fixed],
            [self.chunks.axes(table, pass_) for table in operands],
            self._sizes,
        )
        return PartStep(step.out, operands, what)

    def begin(self, block: EvidenceBlock, store: ChunkStore) -> dict[int, TableStats]:
        """Put factors and evidence into a store and return their statistics."""
        stats: dict[int, TableStats] = {}
        for table, value in self._leaves.evidence(block).items():
            store.put(table, value.table)
            stats[table] = _stats_of(value)
        return stats

    def shifts(self, number: int, stats: Mapping[int, TableStats]) -> dict[int, float]:
        """Return the shifts of the tables that a pass reads."""
        return {table: stats[table].shift for table in self.chunks.passes[number].loads}

    def update(self, stats: dict[int, TableStats], report: PassReport) -> None:
        """Add the statistics of the tables of a pass that is done; those of what it reads have to be there."""
        pass_ = self.chunks.passes[report.number]
        # As the tasks of the pass read them: times their scale factor.
        inside: dict[int, TableStats] = {table: stats[table].as_read(self.algebra.logs) for table in pass_.loads}
        for reduce, step in zip(pass_.steps, self.programs[report.number].steps, strict=True):
            out, operands = step.out, [inside[table] for table in step.operands]
            made = self._stats_of_step(reduce, step, operands, report.max_min[out], report.factors[out])
            inside[out] = made.shifted(report.pilot_shifts.get(out, 0), self.algebra.logs)
            stats[out] = self._scaled_for_readers(made) if out in pass_.stores else made

    def _scaled_for_readers(self, stats: TableStats) -> TableStats:
        if self._as_summed:
            # Devices compute the same by themselves, of the largest entry.
            return stats._replace(shift=shift_of(stats.largest, self.algebra))
        if self.algebra.logs or stats.largest == 0 or not math.isfinite(stats.largest):
            return stats
        exponent = math.frexp(stats.largest)[1]
        # Most tables need no second pass over their entries then.
        if abs(exponent) <= MAX_UNSCALED:
            return stats
        return stats._replace(shift=max(-MAX_EXPONENT, min(MAX_EXPONENT, -exponent)))

    def _stats_of_step(
        self, reduce: Reduce, step: PartStep, operands: Sequence[TableStats], max_min: MaxMin, factor: float
    ) -> TableStats:
        """Return the statistics of a result: its scale, and the bounds on losses (see `junctor.backends.numpy`)."""
        largest, least = max_min
        exponent, product, is_clean = 0.0, 1.0, True
        # One loop, because thousands of steps are looked at for each case.
        for operand in operands:
            exponent += operand.exponent
            # Entries above 1 do not help: they may come behind a product that is lost already.
            product *= min(1.0, operand.least)
            is_clean = is_clean and not (operand.lost or operand.open)
        if self.algebra.logs:
            # Logarithms lose nothing to underflow.
            return TableStats(exponent - factor, 0.0, 0.0, 1.0, largest)
        if not math.isfinite(largest):
            # Beyond the format: nothing is known.
            return TableStats(exponent, math.inf, math.inf, 0.0, math.inf)
        # A power of two: its mantissa is a half.
        exponent -= math.frexp(factor)[1] - 1
        tiny = self.algebra.tiny
        safe = product >= tiny and least >= tiny
        if safe and is_clean:
            return TableStats(exponent, 0.0, 0.0, least, largest)
        terms = self.plan.shape.entries(reduce.eliminated)
        excess = math.prod(operand.excess for operand in operands)
        # A rounding for each operand, and one for the scale factor.
        here = 0.0 if safe else (len(operands) + 1) * tiny * terms * excess
        growth = self._leaves.growth(reduce)
        in_messages = open_messages = 0.0
        for table, operand in zip(step.operands, operands, strict=True):
            if self._leaves.is_fixed(table):
                here += terms * operand.lost * excess
            else:
                in_messages += operand.lost * (1 + in_messages)
                open_messages += 0.0 if table in self._closed else operand.open
        lost = growth * excess * in_messages + here * (1 + in_messages)
        still_open = (growth * excess * open_messages + here) * (1 + in_messages)
        return TableStats(exponent, lost * factor, still_open * factor, least, largest)

    def outcome(
        self, block: EvidenceBlock, results: Mapping[int, Array], stats: Mapping[int, TableStats]
    ) -> BlockOutcome:
        """Return the answer of a case.

        results: entries of the tables of `self.results`, in any shape.
        stats: of all tables.
        """
        number, exponent = self._leaves.constants(block)
        totals: dict[int, tuple[Floats, Floats]] = {}
        for table in self.plan.totals:
            totals[table] = results[table].reshape(1).astype(np.float64), np.array([stats[table].exponent])
            # Leaves are among the constants.
            if table not in self._leaves.shared:
                number, exponent = multiplied(number, exponent, *totals[table], self.algebra)
        log_value = self._leaves.log_of(number, exponent)
        share = sum((self._open_share(down, stats, totals) for down in self._leaves.edge_of), 0.0)
        marginals = {v: self._posterior(results[table].reshape(-1, 1)) for v, table in self.plan.marginals}
        ends = [_ratio(self.plan.tables[t].entries * stats[t].open, stats[t].largest) for t in self.results]
        # NumPy's maximum, because Python's passes over what is not a number.
        doubtful = doubtful_rows(np.array([share + np.max(ends, initial=0.0)]), log_value, self.algebra)
        return BlockOutcome(log_value, marginals, {}, doubtful)

    def _posterior(self, values: Array) -> Array:
        """Return a table as probabilities, from near the neutral element, so that none leaves the format."""
        largest = largest_of(values)
        if self.algebra.logs:
            return self._leaves.normalised(values - (largest if math.isfinite(largest) else 0.0))
        return self._leaves.normalised(np.ldexp(values, -math.frexp(largest)[1]))

    def _open_share(
        self, down: int, stats: Mapping[int, TableStats], totals: Mapping[int, tuple[Floats, Floats]]
    ) -> float:
        """Return the share of the probability that the open losses of both messages of an edge can have moved."""
        up, total = self._leaves.edge_of[down]
        one, other = stats[up].as_read(self.algebra.logs), stats[down].as_read(self.algebra.logs)
        entries = self.plan.tables[down].entries
        moved = entries * (one.open * (other.excess + other.lost) + other.open * (one.excess + one.lost))
        if moved == 0:
            return 0.0
        # Exponents first: the scales alone may exceed double precision.
        number, exponent = map(float, map(np.ndarray.item, totals[total]))
        return _ratio(moved, _times_power(number, int(exponent - one.exponent - other.exponent)))


def _times_power(number: float, exponent: int) -> float:
    """Return a number times two to a power, infinite beyond the format."""
    try:
        return math.ldexp(number, exponent)
    except OverflowError:
        return math.inf


def _stats_of(value: ScaledTable) -> TableStats:
    exponent, lost, still_open, least = map(float, (value.exponent[0], value.lost[0], value.open[0], value.least[0]))
    return TableStats(exponent, lost, still_open, least, float(value.table.max()))


def _ratio(number: float, by: float) -> float:
    if number == 0:
        return 0.0
    return number / by if by > 0 else math.inf
