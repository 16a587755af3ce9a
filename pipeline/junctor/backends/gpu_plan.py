"""What a plan does on a GPU, known without one: few cases or many, how many in a block, and the launches over them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from junctor_kernels.cpu.bytecode import SUMS
from junctor_kernels.gpu.blocks import (
    FEW_CASES,
    LANE_BYTES,
    MANY_CASES,
    MOST_OPERANDS,
    PARTS,
    TILE_SHAPES,
    TRACE_FEW,
    TRACE_MANY,
    TRACE_SOME,
    WARP,
    BlockLaunch,
)
from junctor_kernels.tables.reference import MAX_LOG, Algebra

from junctor.backends.gpu_items import Schedule, items_of, too_many_operands
from junctor.backends.lowering import LoweredPlan
from junctor.backends.numpy import Program
from junctor.backends.prepared_plans import lowered
from junctor.backends.register_tiles import Shapes as TileShapes
from junctor.cost.features.plans import plan_work
from junctor.cost.features.registry import BACKENDS
from junctor.cost.model import CostModel, gpu_prices
from junctor.planning.first_fit import ALIGNED, arena
from junctor.planning.levels import LaunchLevels, stages_of
from junctor.planning.plan import Plan

# Blocks on their way at once: one is computed while another is brought in or taken out. A third one gains nothing.
IN_FLIGHT = 2
# Cases of a block: more gain nothing, fewer leave multiprocessors idle.
MOST_CASES, FEWEST_CASES = 1 << 16, 1 << 14
# Cases that are too few for a thread each where they are traced back.
TRACED_TOGETHER = 1 << 15
# Between the two, a part of a batch and so many bytes of answers at the most: they go out beside the next block.
BLOCKS, BLOCK_BYTES = 4, 350_000_000
# Numbers of states, as the kernels read them.
STATES = np.int16

# Arrays that answers are written from.
ANSWERS = ("posteriors", "explained")

Shapes = dict[str, tuple[tuple[int, ...], npt.DTypeLike]]


def chunk_of(algebra: Algebra) -> int:
    """Return the cases that a warp takes at a time where there are many."""
    return WARP * LANE_BYTES // algebra.dtype.itemsize


def few_are_faster(plan: Plan, algebra: Algebra, speeds: CostModel, rows: int, stages: int) -> bool:
    """Return True if threads over entries are forecast to be faster for so many rows than a warp's worth of cases."""
    few, many = (plan_work(plan, stages, cases, rows) for cases in (rows, chunk_of(algebra)))
    return speeds.seconds(gpu_prices(algebra, False), few) < speeds.seconds(gpu_prices(algebra, True), many)


class GpuBlocks:
    """How a GPU answers `rows` cases of a program, in blocks of `cases`.

    room: bytes that blocks may take of the device. host: bytes that evidence and answers on their way may take in this
    process. speeds: of the device, by which choices go. Few cases spread over the threads of entries and terms, many
    (`many`) over threads of their own, a `chunk` at a time. explains: whether they get explanations. stages: launches
    of a block, of some `kernels`; work: counts of it, FEW_WORK or MANY_WORK. Raises MemoryError where a single case
    does not fit, and OverflowError where a table has more entries than the kernels count.
    """

    def __init__(self, program: Program, rows: int, room: int, host: int, speeds: CostModel) -> None:
        self._program, self._plan, self._room, self.speeds = program, program.plan, room, speeds
        self.explains = program.algebra is MAX_LOG
        if max(self._plan.shape.cardinalities) > np.iinfo(STATES).max:
            raise OverflowError(f"a variable of {max(self._plan.shape.cardinalities):,} states is too many for the GPU")
        stages = stages_of(self._plan)
        places = arena(self._plan, stages.in_order(self._plan))
        chunk = chunk_of(program.algebra)
        most = min(self._most_cases(host, places[1]), self._overlapping(rows))
        self.many = most >= chunk and not self._is_few(rows, stages.count, chunk)
        self.cases = _in_chunks(rows, most, chunk) if self.many else min(rows, most)
        self.chunk = chunk if self.many else 1
        pattern = self._plan.pattern
        # Of sliced variables, and of weighted ones: a state is a fraction of its likelihoods.
        self._rows = {v: row for row, v in enumerate((*sorted(pattern.sliced), *sorted(pattern.weighted)))}
        self._lowered = self._lower(places)
        if too_many_operands(self._lowered.code, self.many):
            raise OverflowError(f"a product of more than {MOST_OPERANDS} tables is more than the GPU kernels take")
        self.kernels = MANY_CASES if self.many else FEW_CASES
        self._items, self.stages, self.work = self._schedule(self._lowered, stages)

    def seconds(self, rows: int) -> float:
        """Return about what `rows` cases take: kernels, or answers on their way where those take longer."""
        backend = gpu_prices(self._program.algebra, self.many)
        block = self.speeds.seconds(backend, dict(zip(BACKENDS[backend].work, self.work.tolist(), strict=True)))
        answers = rows * self._answer_bytes
        return max(-(-rows // self.cases) * block, answers / self.speeds.figures.gpu_rates.answers)

    def _lower(self, places: tuple[dict[int, int], int]) -> LoweredPlan:
        """Return the arrays of the plan."""
        return lowered(self._program, 1, self._rows, self.tile_shapes(), places)

    def tile_shapes(self) -> TileShapes:
        """Return what tiles there may be."""
        return TILE_SHAPES if self.many else ()

    def _schedule(self, plan: LoweredPlan, stages: LaunchLevels) -> Schedule:
        """Return the items of a block and its launches."""
        cases, chunks = (0, self.cases // self.chunk) if self.many else (self.cases, 0)
        schedule = items_of(plan, stages, cases, chunks, self.speeds.launch_tuner(self._program.algebra))
        if self.explains:
            trace = TRACE_SOME if self.cases <= TRACED_TOGETHER else TRACE_MANY
            schedule.stages.append([BlockLaunch(trace if self.many else TRACE_FEW, 0, self.cases)])
        return schedule

    def _overlapping(self, rows: int) -> int:
        """Return how many cases a block has at the most so that answers go out beside the next one."""
        return max(FEWEST_CASES, min(-(-rows // BLOCKS), BLOCK_BYTES // self._answer_bytes))

    @property
    def _answer_bytes(self) -> int:
        """Bytes of the answers of a case on their way."""
        return bytes_of({name: shape for name, shape in self._way_shapes(1).items() if name in ANSWERS})

    def _is_few(self, rows: int, stages: int, chunk: int) -> bool:
        """Return True if threads over entries are faster for so many rows than a warp's worth of cases."""
        return rows <= chunk and few_are_faster(self._plan, self._program.algebra, self.speeds, rows, stages)

    def _most_cases(self, host: int, arena_rows: int) -> int:
        """Return how many cases a block may have."""
        work, ways = self._shapes(arena_rows, 1), self._way_shapes(1)
        on_device = bytes_of(work) + IN_FLIGHT * bytes_of(ways)
        slack = ALIGNED * (len(work) + IN_FLIGHT * (len(ways) + 1))
        # Answers go straight to where they belong, not through memory of blocks.
        copied = bytes_of({name: shape for name, shape in ways.items() if name not in ANSWERS})
        there, here = (self._room - slack) // on_device, host // (IN_FLIGHT * copied)
        if there < 1:
            raise MemoryError(f"a case takes {on_device:,} bytes of the GPU, which has {self._room:,} for it")
        if here < 1:
            raise MemoryError(f"evidence on its way to the GPU does not fit {host:,} bytes")
        return min(there, here, MOST_CASES)

    def _shapes(self, arena_rows: int, cases: int) -> Shapes:
        """Return the arrays of a block that stay on the device."""
        dtype, slots = self._program.algebra.dtype, max(1, len(self._plan.tables))
        words = np.dtype(f"u{dtype.itemsize}")
        return {
            "arena": ((max(1, arena_rows), cases), dtype),
            **dict.fromkeys(("lost", "open", "least"), ((slots, cases), dtype)),
            "scale": ((slots, cases), np.float64),
            # The largest entries, the smallest, and who lost something, side by side: they are cleared at once.
            "extremes": ((2 * slots + 1, cases), words),
            "parts": ((PARTS, SUMS, cases), np.float64),
        }

    def _way_shapes(self, cases: int) -> Shapes:
        """Return the arrays of a block on its way; its ANSWERS go out by themselves, the others have a copy here."""
        sizes, pattern = self._plan.shape.cardinalities, self._plan.pattern
        likelihoods = sum(sizes[v] for v in pattern.weighted)
        posteriors = sum(sizes[v] for v, _ in self._plan.marginals)
        answers: Shapes = {"posteriors": ((max(1, posteriors), cases), self._program.algebra.dtype)}
        if self.explains:
            answers = {"explained": ((len(sizes), cases), STATES)}
        return {
            "states": ((max(1, len(pattern.sliced) + len(pattern.weighted)), cases), STATES),
            "likelihoods": ((max(1, likelihoods), cases), np.float64),
            "rows": ((1, cases), np.int64),
            "found": ((SUMS, cases), np.float64),
            **answers,
        }


def _in_chunks(rows: int, most: int, chunk: int) -> int:
    """Return the cases of blocks of much the same size, rather than of a small one at the end."""
    # As many blocks as the largest size needs, then all of one size.
    blocks = -(-rows // (most // chunk * chunk))
    return -(-rows // (blocks * chunk)) * chunk


def bytes_of(shapes: Shapes) -> int:
    """Return the bytes of some arrays."""
    return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shapes.values())
