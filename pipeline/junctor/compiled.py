"""Programs on the compiled CPU backend, which runs a block of cases without Python between two steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels import compiled
from junctor_kernels.contract import LANE_BYTES
from junctor_kernels.layout import LANES, Work
from junctor_kernels.vectors import BYTES

from junctor.lowering import Lowering
from junctor.propagation import Block, Outcome, Program, doubtful_rows


class CompiledProgram:
    """Runs blocks of at most `cases` cases of a program in compiled code: sum-product, or max-sum for explanations.

    Lanes beyond the last case of a block repeat it. Raises ValueError where `cases` does not fill whole vectors.
    """

    def __init__(self, program: Program, cases: int) -> None:
        self._program = program
        self._plan = program.plan
        self.cases = cases
        dtype = program.algebra.dtype
        if cases % (LANE_BYTES // dtype.itemsize):
            raise ValueError(f"found blocks of {cases} cases, expected a multiple of {LANE_BYTES // dtype.itemsize}")
        explains = bool(self._plan.traceback)
        variables = range(len(self._plan.shape.cardinalities)) if explains else sorted(self._plan.pattern.sliced)
        self._rows = {variable: row for row, variable in enumerate(variables)}
        lowering = Lowering(program, cases, self._rows)
        self._likelihoods, self._posteriors = lowering.likelihoods, lowering.posteriors
        self._fixed = {
            variable: program.normalised(program.shared[table].table)
            for variable, table in program.plan.marginals
            if table in program.shared
        }
        lanes = np.zeros((LANES, cases), dtype=dtype)
        self._code = lowering.code()
        self._work = Work(
            np.zeros(cases, dtype=np.int64),
            np.zeros((max(1, len(self._rows)), cases), dtype=np.int64),
            np.ones((max(1, lowering.likelihood_rows), cases)),
            aligned(max(1, lowering.arena_rows) * cases, dtype),
            np.zeros((4, max(1, len(lowering.slots)), cases)),
            np.ones(max(1, len(lowering.slots)), dtype=np.bool_),
            lanes,
            lanes.view(np.int32 if dtype.itemsize == 4 else np.int64),
            np.zeros((max(1, lowering.posterior_rows), cases), dtype=dtype),
            np.zeros((3, cases)),
        )
        self._set_constant_bounds(lowering)

    def run(self, block: Block) -> Outcome:
        """Propagate a block of cases and return its posteriors and log P(e)."""
        cases, found = block.cases, self._take(block)
        compiled.propagate(self._code, self._work)
        log_value = found[0, :cases] + self._program.constants(block)
        posteriors: dict[int, npt.NDArray[Any]] = dict(self._fixed)
        for variable, row in self._posteriors.items():
            posteriors[variable] = self._work.posteriors[row : row + self._plan.shape.cardinalities[variable], :cases]
        doubtful = doubtful_rows(found[1, :cases] + found[2, :cases], log_value, self._program.algebra)
        return Outcome(log_value, posteriors, {}, doubtful)

    def explain(self, block: Block) -> Outcome:
        """Find a most probable explanation of every case of a block."""
        cases, found = block.cases, self._take(block)
        compiled.explain(self._code, self._work)
        log_value = found[0, :cases] + self._program.constants(block)
        states = {variable: self._work.states[row, :cases] for variable, row in self._rows.items()}
        return Outcome(log_value, {}, states, np.zeros(cases, dtype=np.bool_))

    def _take(self, block: Block) -> npt.NDArray[np.float64]:
        """Bring the evidence of a block into its memory and return the cleared results."""
        for variable, column in block.states.items():
            line = self._work.states[self._rows[variable]]
            line[: block.cases] = column
            line[block.cases :] = column[-1]
        for variable, row in self._likelihoods.items():
            values = block.likelihoods[variable]
            lines = self._work.likelihoods[row : row + len(values)]
            lines[:, : block.cases] = values
            lines[:, block.cases :] = values[:, -1:]
        found: npt.NDArray[np.float64] = self._work.found
        found.fill(0)
        return found

    def _set_constant_bounds(self, lowering: Lowering) -> None:
        for table, slot in lowering.slots.items():
            if table not in self._program.shared:
                continue
            value = self._program.shared[table]
            scale = self._program.log_of(value) if table in self._plan.totals else value.log_scale
            self._work.bounds[:, slot] = np.array([scale[0], value.lost[0], value.open[0], value.least[0]])[:, None]
            self._work.lossless[slot] = not (value.lost.any() or value.open.any())


def aligned(size: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a flat array of zeros that begins at a cache line: a vector across two takes twice as long."""
    memory = np.zeros(size * dtype.itemsize + BYTES, dtype=np.uint8)
    start = -memory.ctypes.data % BYTES
    return memory[start : start + size * dtype.itemsize].view(dtype)
