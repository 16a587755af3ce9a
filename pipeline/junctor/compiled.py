"""A program lowered to the flat arrays of the compiled CPU backend, which runs it without Python between two steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels import compiled
from junctor_kernels.axes import Contraction, Strides

from junctor.planning.arena import arena
from junctor.planning.plan import Free, Likelihood, Potential, Reduce, Slice
from junctor.propagation import Block, Outcome, Program, doubtful_rows

Ints = npt.NDArray[np.int64]


class CompiledProgram:
    """Runs blocks of at most `cases` cases of a program (sum-product, single or double) in compiled code.

    Lanes beyond the last case of a block repeat it.
    """

    def __init__(self, program: Program, cases: int) -> None:
        self._program = program
        self._plan = program.plan
        self.cases = cases
        dtype = program.algebra.dtype
        self._rows = {variable: i for i, variable in enumerate(sorted(program.plan.pattern.sliced))}
        lowering = _Lowering(program, self._rows)
        sizes = program.plan.shape.cardinalities
        self._weighted = lowering.likelihoods
        self._likelihoods = np.ones((max(1, lowering.likelihood_rows), self.cases))
        self._states = np.zeros((max(1, len(self._rows)), self.cases), dtype=np.int64)
        self._posterior_rows = lowering.posterior_rows
        self._fixed = {
            variable: program.normalised(program.shared[table].table)
            for variable, table in program.plan.marginals
            if table in program.shared
        }
        rows = sum(sizes[variable] for variable in self._posterior_rows)
        self._posteriors = np.zeros((max(1, rows), self.cases), dtype=dtype)
        self._bounds = np.zeros((3, max(1, len(lowering.slots)), self.cases))
        for slot, values in lowering.constant_bounds.items():
            self._bounds[:, slot, :] = np.array(values)[:, None]
        lanes = np.zeros((compiled.LANES, self.cases), dtype=dtype)
        integer = np.int32 if dtype.itemsize == 4 else np.int64
        self._arrays = (
            *lowering.arrays(),
            self._states,
            self._likelihoods,
            np.zeros((max(1, lowering.arena_rows), self.cases), dtype=dtype),
            self._bounds,
            lanes,
            lanes.view(integer),
            float(np.finfo(dtype).tiny),
            self._posteriors,
        )

    def run(self, block: Block) -> Outcome:
        """Propagate a block of cases and return its posteriors and log P(e)."""
        cases = block.cases
        for variable, row in self._rows.items():
            self._states[row, :cases] = block.states[variable]
            self._states[row, cases:] = block.states[variable][-1]
        for variable, row in self._weighted.items():
            values = block.likelihoods[variable]
            self._likelihoods[row : row + len(values), :cases] = values
            self._likelihoods[row : row + len(values), cases:] = values[:, -1:]
        found = np.zeros((3, self.cases))
        compiled.propagate(*self._arrays, found)
        log_value = found[0, :cases] + self._program.constants(block)
        posteriors: dict[int, npt.NDArray[Any]] = dict(self._fixed)
        for variable, row in self._posterior_rows.items():
            posteriors[variable] = self._posteriors[row : row + self._plan.shape.cardinalities[variable], :cases]
        doubtful = doubtful_rows(found[1, :cases] + found[2, :cases], log_value, self._program.algebra)
        return Outcome(log_value, posteriors, {}, doubtful)


class _Lowering:
    """Collects the arrays while walking through the steps of a plan."""

    def __init__(self, program: Program, rows: Mapping[int, int]) -> None:
        plan = program.plan
        self._program = program
        self._place, self.arena_rows = arena(plan)
        self._totals = frozenset(plan.totals)
        self._marginal_of = {table: variable for variable, table in plan.marginals}
        self._edge_of = {down: (up, total) for up, down, total in plan.edges}
        self._closed = frozenset(table for up, down, _ in plan.edges for table in (up, down))
        self.slots: dict[int, int] = {}
        self.constant_bounds: dict[int, tuple[float, float, float]] = {}
        self.likelihoods: dict[int, int] = {}
        self.likelihood_rows = 0
        self.posterior_rows: dict[int, int] = {}
        self._posterior_row = 0
        self._state_rows = rows
        self._steps: list[tuple[int, ...]] = []
        self._operands: list[tuple[int, ...]] = []
        self._offsets: list[Ints] = []
        self._offset = 0
        self._results: list[tuple[int, int, int, int]] = []
        self._growth: list[float] = []
        self._observed: list[tuple[int, int]] = []
        self._columns: list[npt.NDArray[Any]] = []
        self._column = 0
        self._scales: list[npt.NDArray[np.float64]] = []
        self._scale = 0
        self._shared: list[npt.NDArray[Any]] = []
        self._shared_place: dict[int, int] = {}
        self._shared_size = 0
        for step in plan.steps:
            if not isinstance(step, Free | Potential):
                self._lower(step)

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """Return steps, operands, offsets, results, growth, observed, columns, scales and shared tables."""
        dtype = self._program.algebra.dtype
        return (
            _table(self._steps, 9),
            _table(self._operands, 6),
            _joined(self._offsets, np.dtype(np.int64)),
            _table(self._results, 4),
            np.array(self._growth or [0.0]),
            _table(self._observed, 2),
            _joined(self._columns, dtype),
            _joined(self._scales, np.dtype(np.float64)),
            _joined(self._shared, dtype),
        )

    def _lower(self, step: Slice | Likelihood | Reduce) -> None:
        table = self._program.plan.tables[step.out]
        if not table.per_case:
            # Made already; it only takes part in results.
            if step.out in self._totals or step.out in self._marginal_of or step.out in self._closed:
                self._append(step.out, (compiled.FIXED, self._slot(step.out), 0, table.entries, 0, 0, 0, 0, 0), 0.0)
            return
        head = (self._slot(step.out), self._place[step.out], table.entries)
        if isinstance(step, Slice):
            self._append(step.out, (compiled.SLICE, *head, *self._slice(step)), 0.0)
        elif isinstance(step, Likelihood):
            self.likelihoods[step.variable] = self.likelihood_rows
            self._append(step.out, (compiled.LIKELIHOOD, *head, 0, 0, 0, self.likelihood_rows, 0), 0.0)
            self.likelihood_rows += table.entries
        else:
            what, growth = self._program.lowered[step.out]
            first = len(self._operands)
            shared_first = sorted(
                zip(step.operands, what.operands, strict=True), key=lambda each: each[0] not in self._program.shared
            )
            for number, strides in shared_first:
                self._operand(number, strides, what)
            count = len(self._operands) - first
            self._append(step.out, (compiled.REDUCE, *head, what.eliminated_entries, first, count, 0, 0), growth)

    def _append(self, table: int, step: tuple[int, ...], growth: float) -> None:
        up, total = self._edge_of.get(table, (-1, -1))
        marginal = -1
        if table in self._marginal_of and step[0] != compiled.FIXED:
            marginal = self._posterior_row
            self.posterior_rows[self._marginal_of[table]] = marginal
            self._posterior_row += self._program.plan.tables[table].entries
        elif table in self._marginal_of:
            marginal = 0
        edge = (-1, -1) if up < 0 else (self._slot(up), self._slot(total))
        self._results.append((int(table in self._totals), marginal, *edge))
        self._steps.append(step)
        self._growth.append(growth)

    def _slice(self, step: Slice) -> tuple[int, ...]:
        columns = self._program.columns[step.out]
        first, place, scale = len(self._observed), self._column, self._scale
        for variable, radix in zip(columns.observed, columns.radices, strict=True):
            self._observed.append((self._state_rows[variable], radix))
        self._columns.append(columns.table.ravel())
        self._column += columns.table.size
        self._scales.append(columns.log_scale)
        self._scale += columns.log_scale.size
        return columns.table.shape[1], first, len(columns.observed), place, scale

    def _operand(self, number: int, strides: Strides, what: Contraction) -> None:
        shared = number in self._program.shared
        place = self._shared_at(number) if shared else self._place[number]
        kept, eliminated = offsets(what.kept, strides.kept), offsets(what.eliminated, strides.eliminated)
        fixed = number in self._program.columns or (shared and number not in self._closed)
        role = compiled.CONSTANT if fixed else compiled.CLOSED if number in self._closed else compiled.OPEN
        at = self._offset
        self._operands.append((self._slot(number), place, at, at + kept.size, int(not shared), role))
        self._offsets.extend((kept, eliminated))
        self._offset += kept.size + eliminated.size

    def _shared_at(self, number: int) -> int:
        if number not in self._shared_place:
            self._shared_place[number] = self._shared_size
            table = self._program.shared[number].table.ravel()
            self._shared.append(table)
            self._shared_size += table.size
        return self._shared_place[number]

    def _slot(self, number: int) -> int:
        if number not in self.slots:
            self.slots[number] = len(self.slots)
            if number in self._program.shared:
                value = self._program.shared[number]
                scale = self._program.log_of(value) if number in self._totals else value.log_scale
                self.constant_bounds[self.slots[number]] = (float(scale[0]), float(value.lost[0]), float(value.open[0]))
        return self.slots[number]


def offsets(sizes: tuple[int, ...], strides: tuple[int, ...]) -> Ints:
    """Return the offset of every index over `sizes` (C order): A_k or R_k of a contraction, spelled out."""
    result = np.zeros(1, dtype=np.int64)
    for size, stride in zip(sizes, strides, strict=True):
        result = (result[:, None] + np.arange(size, dtype=np.int64) * stride).ravel()
    return result


def _table(rows: Sequence[tuple[int, ...]], width: int) -> Ints:
    return np.array(rows, dtype=np.int64).reshape(-1, width)


def _joined(parts: Sequence[npt.NDArray[Any]], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *parts]) if parts else np.zeros(1, dtype)
