"""The NumPy backend: a plan bound to the numbers of a network becomes a program, which runs on blocks of cases.

Main class: Program; called by the engine, and lowered by the compiled backends. It is the specification of them all.
Shenoy and Shafer (1990); explanations by Dawid (1992).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
from junctor_kernels.cpu.bytecode import GIVEN
from junctor_kernels.tables import reference
from junctor_kernels.tables.axes import Contraction, contraction, unmerged
from junctor_kernels.tables.reference import Algebra

from junctor.backends.bound_numbers import BoundNumbers, FactorColumns, cut_scope, radices_of
from junctor.backends.scaled_table import (
    NOTHING,
    Floats,
    ScaledTable,
    Table,
    floor_of,
    lost_below,
    lost_here,
    rounding_bounds,
    scaled_to,
    stays_clean,
)
from junctor.backends.sparsity import NonzeroSupport, support_of
from junctor.evidence.batch import EvidenceBatch
from junctor.model.network import Network
from junctor.planning.plan import Free, Likelihood, Plan, Potential, Reduce, Slice
from junctor.runtime.gc_pause import collector_paused
from junctor.runtime.threads import in_threads

HowToLower = Callable[..., Contraction]

# Fewer states of a block are not worth a thread.
THREAD_CELLS = 1 << 20

# Every table carries the exponent of its scale, a whole number, so that sums of scales are exact and log P(e) is one
# logarithm in the end, and two bounds on losses to underflow.
# All operands have entries of at most 1. Where the smallest entries above zero (`least`) of the operands have a product
# that is a normal number, and the smallest of the result is one, a contraction loses nothing: its zeros are true.
# Otherwise, with K operands over R terms, each entry loses at most R K tiny (tiny: the smallest normal number). Losses
# of its operands are passed on, multiplied by at most the largest sum over r of the others (`growth`); rescaling
# divides both by the largest entry M of the result.
# - `lost` bounds the difference from the exact message. It grows from message to message.
# - `open` bounds the loss that is not weighed yet. Where both messages of an edge exist, a loss in one of them moves a
#   share of at most |S| open (1 + lost of the other) / (sum over s of both messages) of the probability, whatever comes
#   after; that sum is P(e) divided by both scales. So an edge closes the open losses of its two messages.
# In single precision messages are stored larger by a power of two, their lift, as far as the sums that read them have
# room. Numbers stay the same, only that the smallest normal number is so much farther away from the largest entry: a
# loss in a product with a message of lift l is at most tiny / 2^l. Scales and bounds on losses are those of entries
# without lifts; `least` is that of the stored ones, 1 at most: partial products are no smaller than that of all.
# The sum of these shares over the edges, each loss counted once at its own edge while the messages beyond are exact,
# bounds the error of every posterior. A case whose bound exceeds the tolerance is doubtful: its answer must come from a
# wider number format, in the end log space.

# Cells of a block from which on compiled code takes its states.
COMPILED_CELLS = 1 << 16
# Largest share of the probability that a row may lose to underflow before it is computed in a wider format.
LOSS_TOLERANCE = {"double": 1e-14, "single": 1e-8, "max-single": 1e-8}


@dataclass(frozen=True, eq=False, slots=True)
class EvidenceBlock:
    """Evidence of some cases in the form of a plan.

    cases: number of cases.
    states: sliced variable -> integers [cases].
    likelihoods: weighted variable -> float64 [cardinality, cases].
    seen: weighted variable -> integers [cases], the state that a case observes, UNOBSERVED, or GIVEN where it has
        likelihoods; of variables without an entry, all cases have.
    batch: that the cases are from, whose states compiled code reads; None where some of them are not known as states.
    rows: int64 [cases], the rows of the batch; None without one.
    """

    cases: int
    states: Mapping[int, npt.NDArray[np.integer]]
    likelihoods: Mapping[int, Floats]
    seen: Mapping[int, npt.NDArray[np.integer]] = field(default_factory=dict)
    batch: EvidenceBatch | None = None
    rows: npt.NDArray[np.int64] | None = None

    def alone(self) -> EvidenceBlock:
        """Return the same without anything of the rest of the batch, to be sent."""
        return EvidenceBlock(self.cases, dict(self.states), dict(self.likelihoods), dict(self.seen))

    def copy_to(
        self,
        states: Table,
        state_rows: Mapping[int, int],
        likelihoods: Table,
        likelihood_rows: Mapping[int, int],
        threads: int = 1,
    ) -> bool:
        """Write the evidence into arrays of a backend; returns whether there are likelihoods among it.

        states, likelihoods: [rows, lanes].
        state_rows: variable -> its row of `states`; of weighted variables where the backend reads states of them, and
            likelihoods only where these are given.
        likelihood_rows: variable -> its first row of `likelihoods`.
        threads: of compiled code.
        """
        # Lanes beyond the last case repeat it, so that kernels need no case for partial vectors.
        few = self.cases * len(state_rows) < COMPILED_CELLS
        if self.batch is not None and not few and state_rows.keys() >= self.seen.keys():
            # Imported here: loaded where the work is worth it.
            from junctor_kernels.cpu.columns import take_states

            from junctor.evidence.compiled_cells import evidence_cells

            places, lines = evidence_cells(self.batch).addresses([*state_rows]), np.array([*state_rows.values()])
            count = max(1, min(threads, len(places), states.size // THREAD_CELLS))
            parts = [slice(len(lines) * n // count, len(lines) * (n + 1) // count) for n in range(count)]
            in_threads(lambda part, _: take_states(places[part], self.rows, lines[part], states), parts, count)
            return False
        written = False
        for variable, row in state_rows.items():
            line = states[row]
            line[: self.cases] = self.states[variable] if variable in self.states else self.seen.get(variable, GIVEN)
            line[self.cases :] = line[self.cases - 1]
        for variable, row in likelihood_rows.items():
            if variable in state_rows and not (states[state_rows[variable]] == GIVEN).any():
                continue
            written = True
            values = self.likelihoods[variable]
            lines = likelihoods[row : row + len(values)]
            lines[:, : self.cases] = values
            lines[:, self.cases :] = values[:, -1:]
        return written


@dataclass(frozen=True, eq=False, slots=True)
class BlockOutcome:
    """Results of a block.

    log_value: float64 [cases], log P(e), or of P(assignment, e) for explanations; -inf where impossible.
    posteriors: variable -> [cardinality, cases].
    states: variable -> int64 [cases], for explanations.
    doubtful: bool [cases], rows whose numbers must not be used.
    """

    log_value: Floats
    posteriors: dict[int, Table]
    states: dict[int, npt.NDArray[np.int64]]
    doubtful: npt.NDArray[np.bool_]


@dataclass(eq=False, slots=True)
class _Bounds:
    """Scale and bounds of a table, kept after its entries are freed; `least` of a total is the total."""

    exponent: Floats
    lost: Floats
    open: Floats
    least: Floats
    is_clean: bool


@dataclass(frozen=True, slots=True)
class LoweredContraction:
    """A reduction: its step, its operands in the order of their combination, and its strides."""

    step: Reduce
    operands: tuple[int, ...]
    contraction: Contraction


class Program:
    """A plan bound to the numbers of a network; messages that do not depend on evidence are computed at once.

    plan: the plan.
    network: its numbers.
    algebra: semiring and number format.
    threads: threads of large contractions in compiled code; 0 for NumPy only.
    lifted: whether messages are stored with a lift.
    keep: returns the numbers of a program, computed unless they are kept; None to compute them.
    marginal_of: table -> variable whose posterior is read off it.
    totals: tables without axes.
    lifts: table of a case -> power of two by which it is stored larger, where it is.
    edge_of: message down -> message up and total of its edge.
    closed: messages of edges that carry both.
    """

    @collector_paused()
    def __init__(
        self,
        plan: Plan,
        network: Network,
        algebra: Algebra,
        threads: int = 0,
        lifted: bool = True,
        keep: Callable[[Program, Callable[[], BoundNumbers]], BoundNumbers] | None = None,
    ) -> None:
        self.plan = plan
        self.algebra = algebra
        self.threads = threads
        self._network = network
        self.scratch_entries = reference.SCRATCH_ENTRIES
        self._sizes = dict(enumerate(plan.shape.cardinalities))
        self.marginal_of = {table: variable for variable, table in plan.marginals}
        self.totals = frozenset(plan.totals)
        # An edge is weighed when its second message, the one down, exists.
        self.edge_of = {down: (up, total) for up, down, total in plan.edges}
        self.closed = frozenset(table for up, down, _ in plan.edges for table in (up, down))
        self.lifts = lifts_of(plan, algebra) if lifted else {}
        self.columns: dict[int, FactorColumns] = {}
        self.shared: dict[int, ScaledTable] = {}
        self.lowered: dict[int, LoweredContraction] = {}
        self._means: dict[tuple[int, tuple[int, ...]], float] = {}
        self._growths: dict[int, float] = {}
        self._constants: list[FactorColumns] = []
        # Shared tables are computed in double precision: done once, it costs little and keeps the error of P(e) small.
        self._wide = reference.WIDER.get(algebra.name, algebra)
        if keep is None:
            self._bind_all()
            return
        numbers = keep(self, self._bound)
        if numbers.shared is not self.shared:
            self._take(numbers)

    @property
    def network(self) -> Network:
        """Where its numbers come from."""
        return self._network

    @cached_property
    def support(self) -> NonzeroSupport:
        """Entries and terms that can differ from zero, whatever the evidence."""
        lowered = {table: (step.contraction, step.operands) for table, step in self.lowered.items()}
        return support_of(self.plan, self._network, self.shared, lowered, self.algebra.zero, self.contract)

    @property
    def nonzero_operations(self) -> int:
        """Multiply-adds of one case without terms that are zero whatever the evidence."""
        return sum(terms * len(self.lowered[table].operands) for table, terms in self.support.terms.items())

    def run(self, block: EvidenceBlock) -> BlockOutcome:
        """Propagate a block of cases and return its posteriors and log P(e)."""
        # A copy: steps add the tables of this block, and Free removes them.
        values = dict(self.shared)
        number, exponent = self.constants(block)
        posteriors: dict[int, Table] = {}
        bounds: dict[int, _Bounds] = {}
        results = np.zeros(1)
        for step in self.plan.steps:
            if isinstance(step, Free):
                del values[step.table]
                continue
            if step.out not in values:
                values[step.out] = self.perform(step, values, block)
            value = values[step.out]
            # Edges need the bounds of messages whose entries are freed by then.
            if step.out in self.closed or step.out in self.totals:
                bounds[step.out] = _Bounds(value.exponent, value.lost, value.open, value.least, value.is_clean)
            if step.out in self.totals and step.out not in self.shared:
                number, exponent = self._multiplied(number, exponent, value)
            if not value.is_clean and (step.out in self.totals or step.out in self.marginal_of):
                # The largest entry is at least a half, so this bounds the share of the sum.
                results = np.maximum(results, 2 * value.table.shape[0] * value.open)
            if step.out in self.marginal_of:
                posteriors[self.marginal_of[step.out]] = self.normalised(value.table)
        # Last, since lean plans have their totals behind the messages.
        edges = sum((self._moved(down, self.plan.tables[down].entries, bounds) for down in self.edge_of), np.zeros(1))
        log_value = self.log_of(number, exponent)
        return BlockOutcome(log_value, posteriors, {}, doubtful_rows(edges + results, log_value, self.algebra))

    def explain(self, block: EvidenceBlock) -> BlockOutcome:
        """Return a most probable explanation of every case: maximise to the roots, then trace back (Dawid 1992)."""
        values = dict(self.shared)
        number, exponent = self.constants(block)
        for step in self.plan.steps:
            if not isinstance(step, Free) and step.out not in values:
                values[step.out] = self.perform(step, values, block)
                if step.out in self.totals:
                    number, exponent = self._multiplied(number, exponent, values[step.out])
        states = {variable: column.astype(np.int64) for variable, column in block.states.items()}
        for at in self.plan.traceback:
            step = self.plan.steps[at]
            assert isinstance(step, Reduce)
            self._trace(step, values, states, block.cases)
        nothing = np.zeros(block.cases, dtype=np.bool_)
        return BlockOutcome(self.log_of(number, exponent), {}, states, nothing)

    def constants(self, block: EvidenceBlock) -> tuple[Floats, Floats]:
        """Return the part of P(e) in `constant_factors`, as numbers and exponents float64 [cases]."""
        number, exponent = np.full(block.cases, self._wide.one), np.zeros(block.cases)
        for constant in self.constant_factors:
            at = constant.at(block.states, block.cases)
            factor = constant.table[0, at], constant.exponent[at]
            number, exponent = reference.multiplied(number, exponent, *factor, self.algebra)
        return number, exponent

    @cached_property
    def constant_factors(self) -> Sequence[FactorColumns]:
        """Factors whose variables are all observed, and totals that cases share, in the order of their product."""
        shared = [self.shared[table] for table in self.plan.totals if table in self.shared]
        totals = [FactorColumns(t.table.astype(self._wide.dtype), t.exponent, t.least, (), ()) for t in shared]
        return [*self._constants, *totals]

    def evidence(self, block: EvidenceBlock) -> dict[int, ScaledTable]:
        """Return the tables of factors and evidence, without those of reductions."""
        values = dict(self.shared)
        for step in self.plan.steps:
            if isinstance(step, Slice | Likelihood):
                values[step.out] = self.perform(step, values, block)
        return values

    def is_fixed(self, table: int) -> bool:
        """Return True if a table is known before any case: a factor, sliced or not, or a message without evidence."""
        return table in self.columns or (table in self.shared and table not in self.closed)

    def _bind_all(self) -> None:
        """Compute all that does not depend on cases."""
        # In double precision, as what they become part of.
        self._constants = [self._as_columns(i, self._wide) for i in self.plan.constants]
        for step in self.plan.steps:
            self._bind(step, self._network)
        if self._wide is not self.algebra:
            self._narrow()

    def _bound(self) -> BoundNumbers:
        """Compute all that does not depend on cases, and return its numbers."""
        self._bind_all()
        growth = np.array([self.growth_of(table) for table in self.lowered])
        return BoundNumbers(self.shared, [*self.columns.values(), *self._constants], growth)

    def _take(self, numbers: BoundNumbers) -> None:
        """Take numbers that were computed before."""
        slices = [step.out for step in self.plan.steps if isinstance(step, Slice)]
        self.shared, self._constants = numbers.shared, numbers.columns[len(slices) :]
        self.columns = dict(zip(slices, numbers.columns, strict=False))
        reductions = (step for step in self.plan.steps if isinstance(step, Reduce))
        for step, growth in zip(reductions, numbers.growth.tolist(), strict=True):
            operands = self._ordered(step)
            how = self._lower(step, operands, contraction)
            self.lowered[step.out], self._growths[step.out] = LoweredContraction(step, operands, how), growth

    def _bind(self, step: object, network: Network) -> None:
        """Prepare a step as far as it does not depend on cases; a step with shared operands only is performed."""
        if isinstance(step, Potential):
            self.shared[step.out] = self._potential(step, network)
        elif isinstance(step, Slice):
            self.columns[step.out] = self._as_columns(step.factor, self.algebra)
        elif isinstance(step, Reduce):
            operands = self._ordered(step)
            how = self._lower(step, operands, contraction)
            self.lowered[step.out] = LoweredContraction(step, operands, how)
            if not self.plan.tables[step.out].per_case:
                self.shared[step.out] = self._reduce(step, self.shared, self._wide)

    def _narrow(self) -> None:
        """Round shared tables to the number format of the cases."""
        # Before, because rounded tables have other means.
        for table in self.lowered:
            self.growth_of(table)
        self._means.clear()
        for value in self.shared.values():
            with np.errstate(under="ignore"):
                value.table = value.table.astype(self.algebra.dtype)
            here = lost_below(value.least, self.algebra)
            value.lost = value.lost + here
            value.open = value.open + here
            value.is_clean = value.is_clean and not here.any()

    def perform(
        self, step: Slice | Likelihood | Reduce | Potential, values: Mapping[int, ScaledTable], block: EvidenceBlock
    ) -> ScaledTable:
        """Return the table that a step makes for a block, of tables by their numbers."""
        if isinstance(step, Slice):
            columns = self.columns[step.out]
            at = columns.at(block.states, block.cases)
            table, least = reference.take_cases(columns.table, at), columns.least[at]
            return ScaledTable(table, columns.exponent[at], *rounding_bounds(least, self.algebra))
        if isinstance(step, Likelihood):
            return scaled_to(block.likelihoods[step.variable], self.algebra)
        assert isinstance(step, Reduce)
        return self._reduce(step, values, self.algebra)

    def _reduce(self, step: Reduce, values: Mapping[int, ScaledTable], algebra: Algebra) -> ScaledTable:
        lowered = self.lowered[step.out]
        operands = [values[table] for table in lowered.operands]
        tables = [value.table for value in operands]
        table = self.contract(lowered.contraction, tables, algebra)
        # Without a lift in double precision.
        lifts = [self.lifts.get(operand, 0) for operand in lowered.operands] if self.lifts else []
        lift = self.lifts.get(step.out, 0)
        scaled = reference.rescale(table, algebra, lift, sum(lifts))
        exponent = scaled.exponent
        for value in operands:
            exponent = exponent + value.exponent
        if algebra.logs:
            return ScaledTable(table, exponent, NOTHING, NOTHING, scaled.least, 1.0, True)
        floor = floor_of(scaled.least)
        if stays_clean(operands, scaled, floor, algebra):
            return ScaledTable(table, exponent, NOTHING, NOTHING, scaled.least, floor, True)
        here = lost_here(operands, lowered.contraction.eliminated_entries, scaled, algebra, lifts, lift)
        lost, still_open = self._losses(lowered, operands, here)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            return ScaledTable(table, exponent, lost / scaled.largest, still_open / scaled.largest, scaled.least, floor)

    def contract(self, what: Contraction, tables: Sequence[Table], algebra: Algebra) -> Table:
        """Contract tables [entries, cases or 1], with threads in compiled code."""
        return contracted(what, tables, algebra, self.scratch_entries, self.threads)

    def _losses(
        self, lowered: LoweredContraction, operands: Sequence[ScaledTable], here: Floats
    ) -> tuple[Floats, Floats]:
        """Return `lost` and `open` of a contraction before rescaling; `here`: bound on the loss in it alone."""
        growth, terms = self.growth_of(lowered.step.out), lowered.contraction.eliminated_entries
        in_messages = np.zeros(1)
        open_messages = np.zeros(1)
        with np.errstate(over="ignore", invalid="ignore"):
            for number, value in zip(lowered.operands, operands, strict=True):
                if self.is_fixed(number):
                    # `growth` may come from this very table, so its loss counts term by term.
                    here = here + terms * value.lost
                else:
                    # One more factor of the product of (1 + lost), less 1, without cancellation.
                    in_messages = in_messages + value.lost * (1 + in_messages)
                    if number not in self.closed:
                        open_messages = open_messages + value.open
            # Losses are multiplied by exact messages, which may exceed the computed ones by their own losses.
            lost = growth * in_messages + here * (1 + in_messages)
            return lost, (growth * open_messages + here) * (1 + in_messages)

    def _moved(self, down: int, entries: int, bounds: Mapping[int, _Bounds]) -> Floats:
        """Return a bound on the share of the probability moved by the open losses of both messages of an edge.

        down: table of the message down.
        entries: of the separator.
        bounds: table -> scale and bounds.
        """
        up, total = self.edge_of[down]
        one, other = bounds[up], bounds[down]
        if one.is_clean and other.is_clean:
            return NOTHING
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            power = bounds[total].exponent - one.exponent - other.exponent
            both = np.ldexp(bounds[total].least, power.astype(np.int32))
            moved = entries * (one.open * (1 + other.lost) + other.open * (1 + one.lost))
            return np.where(moved == 0, 0.0, moved / both)

    def _multiplied(self, number: Floats, exponent: Floats, total: ScaledTable) -> tuple[Floats, Floats]:
        """Return scaled numbers times a total, a table of one entry."""
        by = total.table[0].astype(np.float64, copy=False)
        return reference.multiplied(number, exponent, by, total.exponent, self.algebra)

    def log_of(self, number: Floats, exponent: Floats) -> Floats:
        """Return the natural logarithms of products of totals and constants, numbers and exponents float64 [cases]."""
        return reference.logarithms(number, exponent, self.algebra)

    def bounds_of(self, table: int) -> Floats:
        """Return exponent of the scale, lost, open and least of a shared table, float64 [4]."""
        value = self.shared[table]
        # One number each, since all cases share the table.
        return np.array([value.exponent[0], value.lost[0], value.open[0], value.least[0]])

    def normalised(self, table: Table) -> Table:
        """Return a table [entries, cases] as probabilities that sum to 1 in each case; nan for impossible ones."""
        if self.algebra.logs:
            with np.errstate(invalid="ignore"):
                table = np.exp(table)
        with np.errstate(invalid="ignore"):
            posterior: Table = table / np.add.reduce(table, axis=0)
        return posterior

    def _potential(self, step: Potential, network: Network) -> ScaledTable:
        """Return the product of factors, each of them scaled before."""
        factors = [scaled_to(network.factors[i].table.reshape(-1, 1), self._wide) for i in step.factors]
        scopes, scope = [network.factors[i].scope for i in step.factors], self.plan.tables[step.out].scope
        if scopes == [scope]:
            # Most cliques have one factor, and many of these their axes in its order.
            product = factors[0].table
        else:
            lowered = contraction(scope, (), scopes, self._sizes)
            product = self.contract(lowered, [factor.table for factor in factors], self._wide)
        scaled = reference.rescale(product, self._wide)
        exponent = sum([factor.exponent for factor in factors], scaled.exponent)
        floor = floor_of(scaled.least)
        if stays_clean(factors, scaled, floor, self._wide):
            return ScaledTable(product, exponent, NOTHING, NOTHING, scaled.least, floor, True)
        here = lost_here(factors, 1, scaled, self._wide)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            lost = sum((factor.lost for factor in factors), here) / scaled.largest
        return ScaledTable(product, exponent, lost, lost, scaled.least, floor)

    def _as_columns(self, number: int, algebra: Algebra) -> FactorColumns:
        """Return a factor as [free configurations, observed configurations], each column scaled, in an algebra."""
        factor, (free, observed) = self._network.factors[number], cut_scope(self.plan, number)
        axes = [factor.scope.index(v) for v in (*free, *observed)]
        shape = self.plan.shape.entries(free), self.plan.shape.entries(observed)
        value = scaled_to(factor.table.transpose(axes).reshape(shape), algebra)
        return FactorColumns(value.table, value.exponent, value.least, observed, radices_of(self.plan, observed))

    def _ordered(self, step: Reduce) -> tuple[int, ...]:
        """Return the operands in the order in which all backends combine them: shared ones first, small ones first."""
        tables = self.plan.tables
        return tuple(sorted(step.operands, key=lambda table: (tables[table].per_case, tables[table].entries)))

    def _lower(self, step: Reduce, operands: Sequence[int], how: HowToLower) -> Contraction:
        tables = self.plan.tables
        scopes = [tables[operand].scope for operand in operands]
        return how(tables[step.out].scope, step.eliminated, scopes, self._sizes)

    def growth_of(self, table: int) -> float:
        """Return the growth of losses in the reduction to a table; computed at first need, which few rows have."""
        if table not in self._growths:
            self._growths[table] = self.growth(self.lowered[table].step)
        return self._growths[table]

    def growth(self, step: Reduce) -> float:
        """Return the largest factor by which a loss in a message can grow in this contraction, before rescaling."""
        # At most the largest sum over the eliminated axes of any one other operand, times the number of terms for each
        # of its entries. Fixed operands are summed; messages, whose losses are meant, count as ones.
        terms = math.prod(self._sizes[v] for v in step.eliminated)
        if self.algebra.logs:
            return float(terms)
        best = 1.0
        for operand in step.operands:
            if self.is_fixed(operand):
                summed = tuple([axis for axis, v in enumerate(self.plan.tables[operand].scope) if v in step.eliminated])
                # Several messages of a clique sum over the same axes of a factor.
                if (operand, summed) not in self._means:
                    self._means[operand, summed] = self._mean(operand, summed)
                best = min(best, self._means[operand, summed])
        return terms * best

    def _mean(self, operand: int, summed: tuple[int, ...]) -> float:
        """Return the largest mean of a fixed operand over some of its axes, with what it may have lost."""
        if operand in self.columns:
            columns = self.columns[operand]
            fixed, lost = columns.table, float(lost_below(columns.least, self.algebra).max())
        else:
            fixed, lost = self.shared[operand].table, float(self.shared[operand].lost.max())
        grid = fixed.reshape(*map(self._sizes.__getitem__, self.plan.tables[operand].scope), fixed.shape[1])
        mean: float = float(grid.sum(axis=summed).max()) / math.prod(grid.shape[axis] for axis in summed)
        return mean + lost

    def _trace(
        self, step: Reduce, values: Mapping[int, ScaledTable], states: dict[int, npt.NDArray[np.int64]], cases: int
    ) -> None:
        """Set the states of the variables that a step maximised over, given those that it kept.

        step: the reduction.
        values: its operands.
        states: variable -> int64 [cases], extended here.
        cases: number of cases.
        """
        kept = [states[v] for v in self.plan.tables[step.out].scope]
        operands = self.lowered[step.out].operands
        tables = [values[operand].table for operand in operands]
        term = reference.argmax(self._lower(step, operands, unmerged), tables, kept, cases, self.scratch_entries)
        shape = tuple(self._sizes[v] for v in step.eliminated)
        states.update(zip(step.eliminated, reference.unraveled(term, shape), strict=True))


def lifts_of(plan: Plan, algebra: Algebra) -> dict[int, int]:
    """Return table -> power of two by which a message of a case is stored larger, for those that reductions read."""
    # Doubles have range enough, and logarithms all of it.
    if algebra is not reference.SINGLE:
        return {}
    most = int(np.finfo(algebra.dtype).maxexp) - 2
    # Results are not: their largest entry bounds their sum.
    results = {*plan.totals, *(table for _, table in plan.marginals)}
    messages = {step.out for step in plan.reductions(per_case=True)} - results
    lifts: dict[int, int] = {}
    for step in plan.reductions(per_case=True):
        read = [table for table in step.operands if table in messages]
        room = most - (plan.shape.entries(step.eliminated) - 1).bit_length()
        for table in read:
            lifts[table] = max(0, min(room // len(read), lifts.get(table, most)))
    return {table: lift for table, lift in lifts.items() if lift}


def contracted(what: Contraction, tables: Sequence[Table], algebra: Algebra, scratch: int, threads: int) -> Table:
    """Return a contraction of tables [entries, cases or 1].

    scratch: entries of a block in NumPy.
    threads: of compiled code; 0 for NumPy.
    """
    if not threads:
        return reference.reduce(what, tables, algebra, scratch)
    # Imported here: compiled code takes longer to load than a small plan to run.
    from junctor_kernels.cpu import entries

    return entries.reduce(what, tables, algebra, threads)


def doubtful_rows(share: Floats, log_value: Floats, algebra: Algebra) -> npt.NDArray[np.bool_]:
    """Return True for cases that may have lost too much probability or all of it, bool [cases].

    share: float64 [cases or 1], bound on the share lost.
    log_value: float64 [cases], log P(e).
    algebra: of the computation.
    """
    if algebra.logs:
        return np.zeros(log_value.shape, dtype=np.bool_)
    # Not `share > tolerance`: a bound of 0/0 must be doubtful too.
    return ~(share <= LOSS_TOLERANCE[algebra.name]) | ~np.isfinite(log_value)
