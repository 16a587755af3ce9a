"""Programs on the compiled CPU backend, which runs all steps of some blocks of cases in one call.

Main class: CompiledProgram; called by the engine, several blocks a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.cpu import plan as compiled
from junctor_kernels.cpu.bytecode import (
    BOUNDS,
    LANES,
    LOST,
    STILL_OPEN,
    SUMS,
    BlockWorkspace,
    Cases,
)
from junctor_kernels.cpu.contract import LANE_BYTES
from junctor_kernels.cpu.vectors import BYTES
from junctor_kernels.tables.reference import MAX_LOG

from junctor.backends.lowering import LoweredPlan, constants_of
from junctor.backends.numpy import BlockOutcome, EvidenceBlock, Program, doubtful_rows
from junctor.backends.prepared_plans import lowered
from junctor.cost.features.cpu_blocks import cpu_work
from junctor.evidence.compiled_cells import evidence_cells
from junctor.model.answers import Answers, sources_of
from junctor.runtime.progress import counts_rows
from junctor.runtime.threads import in_threads

# Calls in which a thread answers its share of a group, so that all threads end together; Python takes a tenth of a
# millisecond for each.
PARTS = 4
# Bytes of the evidence of a call where it is copied, unless it is one block.
PART_BYTES = 1 << 19
# Answers of `Cases` where there are none: in double precision, in single precision, and of explanations.
NO_ANSWERS: tuple[npt.NDArray[Any], ...] = np.zeros(0), np.zeros(0, dtype=np.float32), np.zeros((0, 0), dtype=np.int32)


class CompiledProgram:
    """Runs blocks of cases of a program in compiled code: sum-product, also in log space, or max-sum for explanations.

    program: plan and numbers.
    cases: most cases of a block; ValueError unless they fill whole vectors.
    threads: threads that may run blocks concurrently. Each has its own memory, which holds an outcome until its next
        block.
    like: the same plan in another number format, with blocks of as many cases: all but the numbers is shared.
    code: bytecode of the plan.
    arena_bytes: bytes of the tables of a block.
    """

    def __init__(self, program: Program, cases: int, threads: int = 1, like: CompiledProgram | None = None) -> None:
        self._program = program
        self._plan = program.plan
        self.cases = cases
        self.threads = threads
        dtype = program.algebra.dtype
        if cases % (LANE_BYTES // dtype.itemsize):
            raise ValueError(f"found blocks of {cases} cases, expected a multiple of {LANE_BYTES // dtype.itemsize}")
        explains = self._explains = program.algebra is MAX_LOG
        # Explanations write states of all variables, so that all need rows.
        variables = range(len(self._plan.shape.cardinalities)) if explains else sorted(self._plan.pattern.sliced)
        self._rows = {variable: row for row, variable in enumerate(variables)}
        self._observed_rows = {variable: self._rows[variable] for variable in sorted(self._plan.pattern.sliced)}
        self._lines = np.array([*self._observed_rows.values()], dtype=np.int64)
        self._constants = constants_of(program, self._rows)
        self._propagate = compiled.propagate_logs if program.algebra.logs else compiled.propagate
        if explains:
            self._propagate = compiled.explain
        self._layout: LoweredPlan = like._layout if like else lowered(program, cases, self._rows)
        lowering = self._layout
        self._posteriors = dict(lowering.posteriors)
        # Rows below this are written by kernels.
        entries = lowering.posterior_rows
        for variable, table in self._plan.marginals:
            if table in program.shared:
                self._posteriors[variable], entries = entries, entries + len(program.shared[table].table)
        # Posteriors of shared tables come after those that kernels write: they are filled in once.
        self._posterior_rows = entries
        self._sources: npt.NDArray[np.int64] | None = None
        self.code = lowering.code if like is None else lowering.numbers.code(lowering.code, program)
        self.itemsize = dtype.itemsize
        self.arena_bytes = max(1, lowering.arena_rows) * cases * dtype.itemsize
        # Made when a thread first runs, and again after `rest`.
        self._works: list[BlockWorkspace | None] = [None] * threads

    def cases_at_once(self, rows: int) -> int:
        """Return how many of so many rows go through in one call: whole blocks, on which answers do not depend."""
        blocks = -(-rows // (self.cases * self.threads * PARTS))
        work = self._memory(0)
        most = PART_BYTES // int(work.states.nbytes + work.likelihoods.nbytes)
        return self.cases * max(1, min(blocks, most))

    def run(self, block: EvidenceBlock, thread: int = 0) -> BlockOutcome:
        """Propagate a block of cases in the memory of a thread and return its posteriors and log P(e).

        Where cases are explained, their states instead of posteriors.
        """
        nothing, work = np.zeros(0, dtype=np.int64), self._memory(thread)
        if self._explains:
            explained = self._run(block, [work], nothing.reshape(0, 1), nothing, np.zeros((0, 0), dtype=np.int32))
            return replace(explained, states={v: work.states[row, : block.cases] for v, row in self._rows.items()})
        outcome = self._run(block, [work], nothing.reshape(0, 4), nothing, np.zeros(0, work.arena.dtype))
        posteriors = self._tables_of(work)
        if block.cases < self.cases:
            # The rest of the lanes repeats the last case.
            posteriors = {variable: table[:, : block.cases] for variable, table in posteriors.items()}
        return replace(outcome, posteriors=posteriors)

    def work(self, rows: int) -> dict[str, float]:
        """Return the counts of work of so many rows, by feature."""
        return cpu_work(self.code, self._plan, self.cases, self.itemsize, self.arena_bytes, rows)

    def prepare(
        self, block: EvidenceBlock, rows: npt.NDArray[np.int64], answers: Answers, place: int
    ) -> Callable[[], BlockOutcome]:
        """Return what answers some cases, as `answer`."""
        return lambda: self.answer(block, rows, answers, place)

    def answer(
        self, block: EvidenceBlock, rows: npt.NDArray[np.int64], answers: Answers, thread: int = 0
    ) -> BlockOutcome:
        """Propagate cases, of one block or several, and write their posteriors or states to the answers.

        block: evidence of any number of cases.
        rows: int64 [cases], rows of the answers.
        answers: of the batch, written here; their posteriors lie in `answers.memory`.
        thread: index of the calling thread.
        """
        return self._run(block, [self._memory(thread)], *self._written(rows, answers))

    def share(self, block: EvidenceBlock, rows: npt.NDArray[np.int64], answers: Answers) -> BlockOutcome:
        """Do the same in all threads, each of which takes the next block where it has done one."""
        blocks = min(self.threads, -(-block.cases // self.cases))
        return self._run(block, [self._memory(thread) for thread in range(blocks)], *self._written(rows, answers))

    @property
    def held(self) -> int:
        """Bytes of the blocks of all threads that are in memory."""
        return sum(_nbytes(work) for work in self._works if work is not None)

    def rest(self, excess: int) -> int:
        """Drop blocks of threads until so many bytes less are held, if there are as many; returns how many less.

        No thread runs one.
        """
        dropped = 0
        for thread, work in reversed([*enumerate(self._works)]):
            if dropped < excess and work is not None:
                self._works[thread], dropped = None, dropped + _nbytes(work)
        return dropped

    def _memory(self, thread: int) -> BlockWorkspace:
        """Return the memory of a thread."""
        work = self._works[thread]
        if work is None:
            work = self._works[thread] = self._work()
        return work

    def _written(
        self, rows: npt.NDArray[np.int64], answers: Answers
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Return places and rows of `Cases`, and one of its arrays of answers."""
        if self._explains:
            assert answers.explained is not None
            lines = np.array([self._rows[v] for v in answers.targets], dtype=np.int64)
            return lines[:, None], rows, answers.explained
        assert answers.memory is not None
        # Where the posterior of each target comes from; targets are the same in all batches of an engine.
        if self._sources is None:
            sizes = self._plan.shape.cardinalities
            self._sources = sources_of(answers.targets, sizes, self._posteriors, self._rows)
        return self._sources, rows, answers.memory

    def _run(
        self,
        block: EvidenceBlock,
        works: Sequence[BlockWorkspace],
        places: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        answers: npt.NDArray[Any],
    ) -> BlockOutcome:
        """Propagate cases in the memory of as many threads; returns log P(e) and doubts.

        places, rows: of `Cases`.
        answers: one of its arrays of answers.
        """
        blocks = -(-block.cases // self.cases)
        lanes = blocks * self.cases
        # Rows: log P(e), share of the probability lost at edges, and at results.
        sums = np.empty((3, lanes))
        columns = given = np.zeros(0, dtype=np.int64)
        states: npt.NDArray[Any] = np.zeros((0, 0), dtype=np.int64)
        likelihoods = np.zeros((0, 0))
        if block.batch is not None and block.rows is not None and not block.seen and self._observed_rows:
            columns, given = evidence_cells(block.batch).addresses([*self._observed_rows]), block.rows
        else:
            states = np.zeros((len(works[0].states), lanes), dtype=np.int64)
            likelihoods = np.ones((len(works[0].likelihoods), lanes))
            block.copy_to(states, self._observed_rows, likelihoods, self._layout.likelihoods)
        evidence, begun = (columns, self._lines, given, states, likelihoods), np.zeros(1, dtype=np.int64)
        doubles, singles, explained = (answers if answers.dtype == each.dtype else each for each in NO_ANSWERS)
        written = places, rows, doubles, singles, explained
        cases = Cases(*evidence, *self._constants, sums, *written, begun.ctypes.data)
        # As if all blocks had been begun, so that a thread ends after the one that it is at.
        stop = partial(begun.fill, blocks)
        with counts_rows(lambda: self.cases * max(0, min(blocks, int(begun[0])) - len(works))):
            in_threads(lambda work, _: self._propagate(self.code, work, cases), works, len(works), stop)
        log_value, moved, open_ = sums[:, : block.cases]
        return BlockOutcome(log_value, {}, {}, doubtful_rows(moved + open_, log_value, self._program.algebra))

    def _work(self) -> BlockWorkspace:
        """Return new memory of a thread, with the bounds and posteriors of shared tables filled in."""
        lowering, dtype = self._layout, self._program.algebra.dtype
        # Compiled code takes no empty arrays.
        cases, slots = self.cases, max(1, len(lowering.slots))
        lanes = np.zeros((LANES, cases), dtype=dtype)
        work = BlockWorkspace(
            np.zeros(cases, dtype=np.int64),
            np.zeros((max(1, len(self._rows)), cases), dtype=np.int64),
            np.ones((max(1, lowering.likelihood_rows), cases)),
            aligned(max(1, lowering.arena_rows) * cases, dtype),
            np.zeros((BOUNDS, slots, cases)),
            np.ones(slots, dtype=np.bool_),
            lanes,
            # The same memory as integers: kernels read exponents from bits.
            lanes.view(np.int32 if dtype.itemsize == 4 else np.int64),
            np.zeros((max(1, self._posterior_rows), cases), dtype=dtype),
            np.zeros((SUMS, cases)),
        )
        at, bounds = self._shared_bounds
        work.bounds[:, at] = bounds[:, :, None]
        work.lossless[at] = ~bounds[[LOST, STILL_OPEN]].any(axis=0)
        tables = self._tables_of(work)
        for variable, table in self._plan.marginals:
            if table in self._program.shared:
                tables[variable][:] = self._program.normalised(self._program.shared[table].table)
        return work

    @cached_property
    def _shared_bounds(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The slots of shared tables, int64 [tables], and their bounds, float64 [4, tables]."""
        slots = {table: slot for table, slot in self._layout.slots.items() if table in self._program.shared}
        bounds = np.array([*map(self._program.bounds_of, slots)]).reshape(-1, BOUNDS)
        return np.array([*slots.values()], dtype=np.int64), bounds.T

    def _tables_of(self, work: BlockWorkspace) -> dict[int, npt.NDArray[Any]]:
        """Return the posteriors in the memory of a thread."""
        sizes = self._plan.shape.cardinalities
        return {v: work.posteriors[row : row + sizes[v]] for v, row in self._posteriors.items()}


def _nbytes(work: BlockWorkspace) -> int:
    """Return the bytes of the memory of a thread."""
    return sum(int(array.nbytes) for array in work)


def aligned(size: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a flat array of zeros that begins at a cache line: a vector across two of them takes twice as long."""
    memory = np.zeros(size * dtype.itemsize + BYTES, dtype=np.uint8)
    start = -memory.ctypes.data % BYTES
    return memory[start : start + size * dtype.itemsize].view(dtype)
