"""Programs lowered to the flat arrays (bytecode) of the compiled CPU and GPU backends.

Main classes: Lowering, and LoweredPlan, which remains of one; called by `backends.cpu` and the GPU backend.
`junctor_kernels.cpu.bytecode` defines the arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.cpu import bytecode as layout
from junctor_kernels.cpu.bytecode import Bytecode
from junctor_kernels.tables import reference
from junctor_kernels.tables.axes import Contraction, Strides, unmerged

from junctor.backends import register_tiles as tiles
from junctor.backends.numpy import LoweredContraction, Program
from junctor.backends.scaled_table import least_lift
from junctor.backends.sparsity import MOST_LISTED
from junctor.planning.first_fit import arena
from junctor.planning.plan import Free, Likelihood, Potential, Reduce, Slice
from junctor.runtime.gc_pause import collector_paused


class ArrayPool:
    """Arrays that are concatenated to one."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype = dtype
        self._parts: list[npt.NDArray[Any]] = []
        self.size = 0

    def add(self, array: npt.ArrayLike) -> int:
        """Append an array and return its offset."""
        at = self.size
        self._parts.append(np.asarray(array, dtype=self._dtype).ravel())
        self.size += self._parts[-1].size
        return at

    def joined(self) -> npt.NDArray[Any]:
        """Return all arrays as one, of at least one element: compiled code takes no empty arrays."""
        return np.concatenate(self._parts) if self.size else np.zeros(1, self._dtype)


# Offsets of a part that is large.
LARGE_PART = 1 << 14


class OffsetPool:
    """Offsets that are concatenated to one array: parts of equal tables share theirs until then."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[np.int64]] = []
        self._places: list[int] = []
        self._widths: list[int] = []
        self.size = 0

    def add(self, offsets: npt.NDArray[np.int64], place: int, width: int) -> int:
        """Append `place + offsets * width` and return where it begins."""
        at = self.size
        self._parts.append(offsets)
        self._places.append(place)
        self._widths.append(width)
        self.size += offsets.size
        return at

    def joined(self) -> npt.NDArray[np.int64]:
        """Return all offsets as one array, of at least one element: compiled code takes no empty arrays."""
        if not self.size:
            return np.zeros(1, np.int64)
        result, lengths = np.concatenate(self._parts), np.array([part.size for part in self._parts])
        widths, places, bounds = np.array(self._widths), np.array(self._places), np.cumsum([0, *lengths])
        begin = 0
        # Small parts in one go, of which there are some ten thousand; large ones without a width and a place for each
        # offset.
        for n in [*np.flatnonzero(lengths >= LARGE_PART), len(lengths)]:
            small = result[bounds[begin] : bounds[n]]
            small *= np.repeat(widths[begin:n], lengths[begin:n])
            small += np.repeat(places[begin:n], lengths[begin:n])
            if n < len(lengths):
                large = result[bounds[n] : bounds[n + 1]]
                large *= widths[n]
                large += places[n]
            begin = n + 1
        return result


class NumberTables:
    """Which tables the numbers of a `Bytecode` come from: everything else in it is the same in all number formats.

    sliced: tables of slices, in the order of their columns.
    shared: the shared operands of factors, and how they are multiplied where there are several.
    tables: the table of every lowered step.
    """

    def __init__(self) -> None:
        self.sliced: list[int] = []
        self.shared: list[tuple[Contraction | None, tuple[int, ...]]] = []
        self.tables: list[int] = []

    def code(self, code: Bytecode, program: Program) -> Bytecode:
        """Return a bytecode with the numbers of a program."""
        numbers = program.algebra.dtype
        columns, shared = ArrayPool(numbers), ArrayPool(numbers)
        exponents, leasts = ArrayPool(np.float64), ArrayPool(np.float64)
        for table in self.sliced:
            columns.add(program.columns[table].table)
            exponents.add(program.columns[table].exponent)
            leasts.add(program.columns[table].least)
        for product, tables in self.shared:
            operands = [program.shared[table].table for table in tables]
            what = program.algebra, program.scratch_entries
            shared.add(operands[0] if product is None else reference.reduce(product, operands, *what))
        steps, parents, growth = code.steps.copy(), code.parents.copy(), np.zeros(max(1, len(self.tables)))
        reductions = np.flatnonzero(steps[: len(self.tables), layout.KIND] == layout.REDUCE)
        lowered = [program.lowered[self.tables[n]] for n in reductions]
        growth[reductions] = [program.growth_of(step.step.out) for step in lowered]
        # The operands of reductions are the parents, in the order of the steps.
        lifts = [program.lifts.get(operand, 0) for step in lowered for operand in step.operands]
        parents[: len(lifts), 2] = lifts
        for column in (layout.LIFT, layout.LIFTED, layout.LEAST_LIFT):
            steps[reductions, column] = 0
        if program.lifts:
            for n in reductions:
                first, count = steps[n, layout.FIRST_PARENT], steps[n, layout.PARENTS]
                of_step = lifts[first : first + count]
                lift = program.lifts.get(self.tables[n], 0), sum(of_step), least_lift(of_step)
                steps[n, [layout.LIFT, layout.LIFTED, layout.LEAST_LIFT]] = lift
        return code._replace(
            steps=steps,
            parents=parents,
            growth=growth,
            columns=columns.joined(),
            facts=np.stack([exponents.joined(), leasts.joined()]),
            shared=shared.joined(),
            tiny=program.algebra.tiny,
        )


class Lowering:
    """Collects the arrays of a `Bytecode` step by step.

    program: the program.
    cases: cases of a block, lanes of its tables.
    state_rows: variable -> row of the block's states; of weighted variables where the backend reads them.
    shapes: tile shapes of the backend.
    places: (table -> row in the arena, rows of the arena); None for first fit in the order of the plan.
    likelihoods: variable -> first row of the block's likelihoods.
    posteriors: variable -> first row of the block's posteriors.
    slots: table -> index of its bounds.
    numbers: the tables that its numbers come from.
    """

    @collector_paused()
    def __init__(
        self,
        program: Program,
        cases: int,
        state_rows: dict[int, int],
        shapes: tiles.Shapes = tiles.CPU_SHAPES,
        places: tuple[dict[int, int], int] | None = None,
    ) -> None:
        plan = program.plan
        self._program = program
        self._plan = plan
        self._cases = cases
        self._shapes = shapes
        self._place, self.arena_rows = places or arena(plan)
        self.numbers = NumberTables()
        self.slots: dict[int, int] = {}
        self.likelihoods: dict[int, int] = {}
        self.likelihood_rows = 0
        self.posteriors: dict[int, int] = {}
        self.posterior_rows = 0
        self._state_rows = state_rows
        self._steps: list[tuple[int, ...]] = []
        self._parents: list[tuple[int, int, int]] = []
        self._operands: list[tuple[int, int, int]] = []
        self._results: list[tuple[int, int, int, int]] = []
        self._observed: list[tuple[int, int]] = []
        self._trace: list[tuple[int, ...]] = []
        self._traced: list[tuple[int, ...]] = []
        self._variables: list[tuple[int, int]] = []
        self._offsets = OffsetPool()
        self._span = ArrayPool(np.int64)
        self._terms = ArrayPool(np.int32)
        # Terms are compared by identity: equal lists of small contractions come from one cache.
        self._spans: dict[tiles.Terms, int] = {}
        self._eliminated: dict[tuple[object, ...], int] = {}
        # Numbers so far, of columns of slices, of their facts and of shared operands.
        self._column_entries = self._facts = self._shared_entries = 0
        self._shared_place: dict[int, int] = {}
        self._list_all_terms()
        for step in plan.steps:
            if not isinstance(step, Free | Potential):
                self._lower(step)
        # After all steps, since tracing reads the offsets of their tables.
        for at in plan.traceback:
            step = plan.steps[at]
            assert isinstance(step, Reduce)
            self._lower_trace(step)

    def code(self) -> Bytecode:
        """Return the arrays."""
        nothing = np.zeros(0)
        code = Bytecode(
            _table(self._steps, layout.STEP_COLUMNS),
            _table(self._parents, 3),
            _table(self._operands, 3),
            self._offsets.joined(),
            self._span.joined(),
            self._terms.joined(),
            _table(self._results, 4),
            nothing,
            _table(self._observed, 2),
            nothing,
            nothing,
            nothing,
            0.0,
            _table(self._trace, 6),
            _table(self._traced, 4),
            _table(self._variables, 2),
        )
        return self.numbers.code(code, self._program)

    def _lower(self, step: Slice | Likelihood | Reduce) -> None:
        table = self._plan.tables[step.out]
        if not table.per_case:
            # A shared table is computed already; the step only adds it to results.
            program = self._program
            if step.out in program.totals or step.out in program.marginal_of or step.out in program.closed:
                self._append(step.out, layout.FIXED, 0, table.entries)
            return
        # Offsets in the arena are in numbers, one lane for each case.
        row = self._place[step.out] * self._cases
        if isinstance(step, Slice):
            self._append(step.out, layout.SLICE, row, table.entries, *self._slice(step))
        elif isinstance(step, Likelihood):
            self.likelihoods[step.variable] = self.likelihood_rows
            seen = self._state_rows.get(step.variable, 0)
            self._append(step.out, layout.LIKELIHOOD, row, table.entries, 0, seen, 0, self.likelihood_rows)
            self.likelihood_rows += table.entries
        else:
            lowered = self._program.lowered[step.out]
            self._append(step.out, layout.REDUCE, row, table.entries, *self._reduce(step.out, lowered))

    def _append(self, table: int, kind: int, row: int, entries: int, *rest: int) -> None:
        up, total = self._program.edge_of.get(table, (-1, -1))
        marginal = -1
        if table in self._program.marginal_of:
            # Posteriors of shared tables are written once, outside of the bytecode.
            marginal = 0
            if kind != layout.FIXED:
                marginal = self.posteriors[self._program.marginal_of[table]] = self.posterior_rows
                self.posterior_rows += entries
        # The second message of an edge weighs the open losses of both.
        edge = (-1, -1) if up < 0 else (self._slot(up), self._slot(total))
        self.numbers.tables.append(table)
        self._results.append((int(table in self._program.totals), marginal, *edge))
        step = (kind, self._slot(table), row, entries, *rest)
        # Columns that a kind of step does not use are zero.
        self._steps.append((*step, *(0,) * (layout.STEP_COLUMNS - len(step))))

    def _slice(self, step: Slice) -> tuple[int, ...]:
        columns = self._program.columns[step.out]
        first = len(self._observed)
        for variable, radix in zip(columns.observed, columns.radices, strict=True):
            self._observed.append((self._state_rows[variable], radix))
        place, facts = self._column_entries, self._facts
        self.numbers.sliced.append(step.out)
        self._column_entries += columns.table.size
        self._facts += columns.exponent.size
        return columns.table.shape[1], first, len(columns.observed), place, facts

    def _reduce(self, table: int, lowered: LoweredContraction) -> tuple[int, ...]:
        parents = self._add_parents(lowered.operands)
        what = lowered.contraction
        rows = [k for k, operand in enumerate(lowered.operands) if operand not in self._program.shared]
        # All shared operands become one factor, so that kernels need no more than one broadcast operand.
        factors = [k for k, operand in enumerate(lowered.operands) if operand in self._program.shared]
        walk, span, stride = self._walk(table, lowered, rows)
        first = len(self._operands)
        self._operands.append((*(self._factor(lowered, factors, walk) if factors else (-1, -1)), -1))
        for k in walk.rows:
            operand = lowered.operands[k]
            at = self._place[operand] * self._cases
            slot = self._slot(operand) if operand in self._program.lowered else -1
            self._operands.append((*self._both_offsets(what, what.operands[k], walk, at, self._cases), slot))
        row = self._place[table] * self._cases
        out = self._offsets.add(walk.order, row, self._cases)
        count = len(self._operands) - first
        terms = what.eliminated_entries
        counts = terms, parents, len(lowered.operands), first, count
        return *counts, walk.how, walk.tiles, out, span, stride, walk.size, walk.shape[0]

    def _walk(self, table: int, lowered: LoweredContraction, rows: Sequence[int]) -> tuple[tiles.TileWalk, int, int]:
        """Return the walk of a reduction (tiles or single entries), the offset of its spans of terms, and their stride.

        table: of the reduction.
        lowered: its operands and strides.
        rows: indices of its per-case operands.
        """
        what = lowered.contraction
        pairs = what.kept_entries * what.eliminated_entries
        nonzero = self._program.support.terms[table]
        one_factor = len(rows) < len(lowered.operands)
        # Lists of terms cost memory and indirect reads: mostly dense tables go without.
        dense = nonzero > (1 - tiles.LISTED_FROM) * pairs or self._terms.size + nonzero > MOST_LISTED
        walks = tiles.walks(what, tuple(rows), one_factor, self._shapes, every=not dense)
        if dense:
            return walks[0], self._span.add([0, what.eliminated_entries]), 0
        walk, terms = tiles.cheapest(what, walks, self._program.support, lowered.operands)
        return walk, self._span_of(terms), 1

    def _span_of(self, terms: tiles.Terms) -> int:
        """Append lists of terms, equal ones once, and return the offset of their span."""
        if terms not in self._spans:
            self._spans[terms] = self._span.add(self._terms.add(terms.listed) + terms.begins)
        return self._spans[terms]

    def _factor(self, lowered: LoweredContraction, factors: Sequence[int], walk: tiles.TileWalk) -> tuple[int, int]:
        """Append the offsets of the shared operand, or of the product of several, which is computed here.

        lowered: the reduction.
        factors: indices of the shared operands.
        walk: order of the kept entries.
        """
        what = lowered.contraction
        if len(factors) == 1:
            at = self._shared_at(lowered.operands[factors[0]])
            return self._both_offsets(what, what.operands[factors[0]], walk, at, 1)
        strides, product = _product(what, factors)
        at = self._add_shared(product.kept_entries, product, [lowered.operands[k] for k in factors])
        return self._both_offsets(what, strides, walk, at, 1)

    def _both_offsets(
        self, what: Contraction, strides: Strides, walk: tiles.TileWalk, place: int, width: int
    ) -> tuple[int, int]:
        kept = tiles.walked(walk, what.kept, strides.kept)
        return self._offsets.add(kept, place, width), self._terms_at(what.eliminated, strides.eliminated, width)

    def _terms_at(self, sizes: tuple[int, ...], strides: tuple[int, ...], width: int) -> int:
        """Append the offsets along eliminated axes, equal ones once, and return their position."""
        name = sizes, strides, width
        if name not in self._eliminated:
            self._eliminated[name] = self._offsets.add(tiles.offsets(sizes, strides), 0, width)
        return self._eliminated[name]

    def _add_parents(self, operands: Sequence[int]) -> int:
        first = len(self._parents)
        for operand in operands:
            message = layout.CLOSED if operand in self._program.closed else layout.OPEN
            role = layout.CONSTANT if self._program.is_fixed(operand) else message
            self._parents.append((self._slot(operand), role, 0))
        return first

    def _list_all_terms(self) -> None:
        """Put the list 0, 1, 2, ... first: contractions over all of their terms share it."""
        plan = self._plan
        most = max((plan.shape.entries(step.eliminated) for step in plan.reductions(per_case=True)), default=1)
        self._terms.add(np.arange(most))

    def _lower_trace(self, step: Reduce) -> None:
        lowered, kept = self._program.lowered[step.out], self._plan.tables[step.out].scope
        scopes = [self._plan.tables[operand].scope for operand in lowered.operands]
        sizes = dict(enumerate(self._plan.shape.cardinalities))
        # Merged axes would hide the states of single variables.
        what = unmerged(kept, step.eliminated, scopes, sizes)
        first, first_kept = len(self._traced), len(self._variables)
        self._variables.extend((variable, sizes[variable]) for variable in (*kept, *step.eliminated))
        for operand, strides in zip(lowered.operands, what.operands, strict=True):
            # Shared tables have one number for all cases.
            per_case = operand not in self._program.shared
            width = self._cases if per_case else 1
            place = self._place[operand] * width if per_case else self._shared_at(operand)
            at = self._offsets.add(np.array(strides.kept, dtype=np.int64), 0, width)
            terms = self._terms_at(what.eliminated, strides.eliminated, width)
            self._traced.append((place, int(per_case), at, terms))
        count = len(self._traced) - first
        self._trace.append((first, count, first_kept, len(kept), first_kept + len(kept), len(step.eliminated)))

    def _shared_at(self, table: int) -> int:
        if table not in self._shared_place:
            self._shared_place[table] = self._add_shared(self._plan.tables[table].entries, None, [table])
        return self._shared_place[table]

    def _add_shared(self, entries: int, product: Contraction | None, tables: Sequence[int]) -> int:
        at = self._shared_entries
        self._shared_entries += entries
        self.numbers.shared.append((product, tuple(tables)))
        return at

    def _slot(self, table: int) -> int:
        return self.slots.setdefault(table, len(self.slots))


@dataclass(frozen=True, eq=False, slots=True)
class LoweredPlan:
    """What a lowering leaves: the bytecode, where its numbers come from, and rows of the memory of a block.

    Fields but `code` are those of `Lowering`.
    """

    code: Bytecode
    numbers: NumberTables
    slots: dict[int, int]
    likelihoods: dict[int, int]
    likelihood_rows: int
    posteriors: dict[int, int]
    posterior_rows: int
    arena_rows: int

    @classmethod
    def of(cls, made: Lowering) -> LoweredPlan:
        """Return what remains of a lowering."""
        evidence = made.likelihoods, made.likelihood_rows
        return cls(
            made.code(), made.numbers, made.slots, *evidence, made.posteriors, made.posterior_rows, made.arena_rows
        )


def constants_of(
    program: Program, rows: Mapping[int, int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the constant factors of a program: `constants`, `observed` and `numbers` of `Cases`.

    rows: observed variable -> its row of the states of a block.
    """
    factors = program.constant_factors
    observed = [(rows[v], radix) for f in factors for v, radix in zip(f.observed, f.radices, strict=True)]
    ends = np.cumsum([[0, 0], *([len(f.observed), len(f.exponent)] for f in factors)], axis=0)
    counts = np.array([len(f.observed) for f in factors], dtype=np.int64)
    numbers = [np.stack([f.table[0], f.exponent], axis=1) for f in factors]
    return (
        np.ascontiguousarray(np.stack([ends[:-1, 0], counts, ends[:-1, 1]], axis=1)),
        np.array(observed, dtype=np.int64).reshape(-1, 2),
        np.concatenate([np.zeros((0, 2)), *numbers]),
    )


def _product(what: Contraction, factors: Sequence[int]) -> tuple[Strides, Contraction]:
    """Return the strides of the product of some operands, over all their axes, and the contraction that computes it."""
    operands = [what.operands[k] for k in factors]
    walks = [(*operand.kept, *operand.eliminated) for operand in operands]
    sizes = (*what.kept, *what.eliminated)
    axes = [axis for axis in range(len(sizes)) if any(walk[axis] for walk in walks)]
    own = [0] * len(sizes)
    entries = 1
    for axis in reversed(axes):
        own[axis] = entries
        entries *= sizes[axis]
    parts = tuple(Strides(tuple(walk[axis] for axis in axes), ()) for walk in walks)
    split = len(what.kept)
    return Strides(tuple(own[:split]), tuple(own[split:])), Contraction(tuple(sizes[axis] for axis in axes), (), parts)


def _table(rows: Sequence[tuple[int, ...]], width: int) -> npt.NDArray[np.int64]:
    return np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * width).reshape(-1, width)
