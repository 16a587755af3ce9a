"""What a plan takes on the NumPy backend, known before it runs, and the block size that fits a budget."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from junctor_kernels.cpu.bytecode import ENTRIES_BYTES, ENTRIES_THREAD_BYTES
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra

from junctor.backends.numpy import Program
from junctor.backends.sparsity import LISTING_ENTRIES, MOST_LISTED
from junctor.cost.constants import CPU
from junctor.model.network import Network
from junctor.planning.budget import Budget, approximate
from junctor.planning.first_fit import arena
from junctor.planning.plan import Plan

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import BlockDevice

    from junctor.backends.cpu import CompiledProgram
    from junctor.backends.gpu import GpuProgram
    from junctor.cost.model import CostModel

# Blocks of the compiled backend are multiples of so many cases; lanes beyond the last case repeat it.
LANE = 32
# Threads of contractions over entries that memory is kept for: as blocks, they must not depend on how many there are.
MOST_ENTRY_THREADS = 64
# A block has at most so many cases, and its tables at most so many bytes: enough to keep NumPy's inner loops long,
# few enough to stay near the cache.
MOST_CASES = 2048
BLOCK_BYTES = 1 << 25
# Python objects of a plan and its programs, for each step and number format.
STEP_BYTES = 4096
# Numbers that travel with a case beside its tables: scales, bounds, indices, masks and their temporaries.
CASE_NUMBERS = 64
# Seconds a step, to lower it for the compiled backend; tests replace it.
LOWERING_SECONDS = CPU.lowering_step
# Cases of one of its blocks: at least so many, and as many as keep its arena near the cache.
LEAST_LANES, MOST_LANES = 64, 512
ARENA_BYTES = 1 << 22
# Sizes of batches for which programs of a plan stay on a GPU, in each format: the usual one, and one that differs.
SIZES_ON_DEVICE = 2
# Number formats that the GPU has.
DEVICE_FORMATS = ("single", "double", "log")
# The smallest scratch that a contraction is given when memory is short.
LEAST_SCRATCH = 1024

logger = logging.getLogger("junctor")


@dataclass(eq=False)
class PlanMemory:
    """Bytes of a plan: `fixed` for its programs, and so many for each case of a block; `fit` settles the rest.

    formats: number formats that rows may climb through. compiles: whether the first is one that the compiled backend
    has. lanes: cases of its blocks, 0 where it does nothing. threads: how many of its blocks are under way at once.
    entry_threads: of contractions over entries where there are no lanes, 0 where NumPy does the work. entry_room: bytes
    that those may take.
    room: bytes that the compiled backend may take, or evidence and answers on their way to and from a GPU.
    """

    plan: Plan
    formats: int
    compiles: bool = False
    scratch: int = LEAST_SCRATCH
    allowed: int = 0
    rows: int = 1
    lanes: int = 0
    threads: int = 1
    entry_threads: int = 0
    entry_room: int = 0
    fixed: int = field(init=False)
    room: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        shape = self.plan.shape
        shared = [table.entries for table in self.plan.tables if not table.per_case]
        sliced = [shape.entries(shape.scopes[factor]) for factor in self.plan.sliced_factors()]
        # While a table is bound there are copies of it in double precision: transposed, partial products, scales.
        binding = 5 * max((*shared, *sliced), default=0)
        self.fixed = 8 * (self.formats * self.plan.shared_entries() + binding) + (
            self.formats * len(self.plan.steps) * STEP_BYTES
        )

    @property
    def least(self) -> int:
        """Bytes that one case at a time needs, in the widest format."""
        return self.fixed + self._scratch_bytes(LEAST_SCRATCH) + self._case_bytes(8)

    @property
    def working(self) -> int:
        """Bytes of tables and scratch of one case at a time, without what else a program takes."""
        return 8 * self.plan.shared_entries() + self._scratch_bytes(LEAST_SCRATCH) + self._case_bytes(8)

    def fits(self, free: int, working: int | None) -> bool:
        """Tell whether one case at a time fits `free` bytes, and its tables and scratch `working` bytes of them."""
        return self.least <= free and (working is None or self.working <= working)

    def fit(
        self, budget: Budget, free: int, rows: int, to_come: int = 0, threads: int = 1, working: int | None = None
    ) -> None:
        """Settle scratch and block sizes for `free` bytes; raises BudgetError where not even one case fits.

        rows: cases of this batch that use the plan. to_come: about how many do in the whole run, 0 where that run does
        not load the compiled backend at all. threads: that blocks of it may run on; fewer where memory is short.
        working: bytes of `free` that tables and scratch may take, those of one case in any case.
        """
        if working is not None:
            free = min(free, self.least + max(0, working - self.working))
        if self.least > free:
            clique = approximate(max(self.plan.clique_entries, default=0))
            table = approximate(max((table.entries for table in self.plan.tables), default=0))
            raise budget.refuse(
                self.least,
                f"propagation of one case at a time (largest clique {clique} entries, largest stored table {table})",
                "allow more memory, ask for fewer targets, or give evidence on more variables (explanations are not "
                "computed in chunks)",
            )
        self.allowed, self.rows, self.scratch = free, rows, LEAST_SCRATCH
        spare = free - self.least
        self._fit_entries(spare, to_come, threads)
        spare -= self.entry_room
        self.room = spare // 2
        self._fit_lanes(to_come, threads)
        while self.scratch < reference.SCRATCH_ENTRIES and self._scratch_bytes(2 * self.scratch) < spare // 2:
            self.scratch *= 2

    def _fit_entries(self, spare: int, rows: int, threads: int) -> None:
        """Settle whether contractions go over entries, and what that may take."""
        self.entry_room = min(spare // 2, ENTRIES_BYTES + MOST_ENTRY_THREADS * ENTRIES_THREAD_BYTES)
        self.entry_threads = max(0, min(threads, (self.entry_room - ENTRIES_BYTES) // ENTRIES_THREAD_BYTES))
        if not rows or self.plan.traceback or not self.entry_threads:
            self.entry_room = self.entry_threads = 0

    def _fit_lanes(self, rows: int, threads: int) -> None:
        """Settle whether lowering pays for so many rows, and the cases of a block of the compiled backend."""
        self.lanes = 0
        operations = min(rows * self._operations, 10**30)
        if not self.compiles or operations * CPU.numpy_operation < len(self.plan.steps) * LOWERING_SECONDS:
            return
        if self.entry_threads and self._entries_are_faster(rows):
            return
        room = (self.room - self._lowered) // self._lane_bytes
        self.threads = max(1, min(threads, room // LANE))
        lanes = max(LEAST_LANES, min(ARENA_BYTES // self._lane_bytes, MOST_LANES))
        lanes = min(lanes, padded(-(-self.rows // self.threads)), room // self.threads) // LANE * LANE
        self.lanes = max(0, lanes)

    def _entries_are_faster(self, rows: int) -> bool:
        """Tell whether loops over entries are faster for so many rows than those over the lanes of a block."""
        each = min(self.plan.case_operations, 10**30) * CPU.compiled_operation
        lanes = padded(min(self.rows, rows)) * each + len(self.plan.steps) * LOWERING_SECONDS
        return rows < LANE and rows * each + len(self.plan.steps) * CPU.entries_step < lanes

    @cached_property
    def _operations(self) -> int:
        return self.plan.case_operations

    @cached_property
    def _lane_bytes(self) -> int:
        _, rows = arena(self.plan)
        return 8 * rows + self._case_bytes(8)

    @cached_property
    def _lowered(self) -> int:
        return lowered_bytes(self.plan) + 8 * self.plan.shared_entries()

    def cases(self, itemsize: int) -> int:
        """Return how many cases of a number format fit in a block."""
        # Not what the compiled backend takes, but what it may: threads must not change a block, nor its rounding.
        compiled = self.room if self.lanes else 0
        free = self.allowed - self.fixed - self._scratch_bytes(self.scratch) - self.entry_room - compiled
        each = self._case_bytes(itemsize)
        return max(1, min(free // each, BLOCK_BYTES // each, MOST_CASES, self.scratch, self.rows))

    def projected(self, itemsize: int) -> int:
        """Return the peak bytes of a run with blocks of `cases(itemsize)`."""
        blocks = self.cases(itemsize) * self._case_bytes(itemsize)
        return self.fixed + self._scratch_bytes(self.scratch) + self._entries_bytes + self._compiled_bytes + blocks

    @property
    def _entries_bytes(self) -> int:
        return ENTRIES_BYTES + self.entry_threads * ENTRIES_THREAD_BYTES if self.entry_threads else 0

    @property
    def _compiled_bytes(self) -> int:
        return self._lowered + self.threads * self.lanes * self._lane_bytes if self.lanes else 0

    def _scratch_bytes(self, entries: int) -> int:
        return reference.SCRATCH_ARRAYS * entries * 8

    @cached_property
    def _case_entries(self) -> int:
        return self.plan.peak_case_entries()

    def _case_bytes(self, itemsize: int) -> int:
        sizes = self.plan.shape.cardinalities
        results = sum(sizes[v] for v, _ in self.plan.marginals)
        inputs = len(self.plan.pattern.sliced) + 2 * sum(sizes[v] for v in self.plan.pattern.weighted)
        inputs += 3 * len(self.plan.edges)
        # The compiled backend keeps scales and bounds of all tables.
        inputs += 4 * len(self.plan.tables)
        explained = len(self.plan.shape.cardinalities) if self.plan.traceback else 0
        tables = (self._case_entries + results) * itemsize
        return tables + 8 * (inputs + explained + 3 * max(sizes) + CASE_NUMBERS)


def padded(cases: int) -> int:
    """Return the number of lanes for so many cases."""
    return -(-cases // LANE) * LANE


def lowered_bytes(plan: Plan) -> int:
    """Return what offsets and lists of terms of a plan take in the compiled backend, and what it takes to make them."""
    total = longest = listed = largest = products = 0
    for step in plan.reductions(per_case=True):
        kept, terms = plan.tables[step.out].entries, plan.shape.entries(step.eliminated)
        # Tiles that are not full repeat entries, a third more at most; each entry has a place for its result as well.
        total += (len(step.operands) + 1) * (4 * kept // 3 + terms) + kept
        longest, listed, largest = max(longest, terms), listed + kept * terms, max(largest, kept * terms)
        shared = [plan.tables[table].scope for table in step.operands if not plan.tables[table].per_case]
        if len(shared) > 1:
            products += plan.shape.entries(frozenset().union(*shared))
    traced = total if plan.traceback else 0
    listing = min(listed, LISTING_ENTRIES)
    # A bit for each term of the largest one, in the order of its tiles as well, and for each term of a tile.
    bits = 3 * largest // 8
    return 3 * 8 * (total + traced + longest + products) + 2 * 8 * min(listed, MOST_LISTED) + 16 * listing + bits


@dataclass(eq=False)
class ProgramCache:
    """A plan with its memory and its programs, each made when first needed.

    device: a GPU to use, where one is. speeds: its own, by which launches are chosen; None for what this machine knows.
    """

    network: Network
    plan: Plan
    ladder: Sequence[Algebra]
    memory: PlanMemory = field(init=False)
    device: BlockDevice | None = None
    speeds: CostModel | None = None
    _programs: dict[str, Program] = field(init=False, default_factory=dict)
    _on_device: dict[tuple[str, int], GpuProgram | None] = field(init=False, default_factory=dict)
    _compiled: CompiledProgram | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.memory = PlanMemory(self.plan, len(self.ladder), compiles=self.ladder[0] is not reference.LOG)

    def program(self, algebra: Algebra) -> Program:
        """Return the program in `algebra`."""
        if algebra.name not in self._programs:
            self._programs[algebra.name] = Program(self.plan, self.network, algebra, self.memory.entry_threads)
        program = self._programs[algebra.name]
        program.threads = self.memory.entry_threads
        program.scratch_entries = self.memory.scratch
        return program

    def compiled(self) -> CompiledProgram | None:
        """Return the first program for the compiled backend, or None where that is not worth its while."""
        if not self.memory.lanes:
            return None
        lanes, threads = self.memory.lanes, self.memory.threads
        # One for smaller blocks still serves; one for larger blocks or more threads holds more than was planned now.
        if self._compiled is None or self._compiled.cases > lanes or self._compiled.threads > threads:
            from junctor.backends.cpu import CompiledProgram

            self._compiled = CompiledProgram(self.program(self.ladder[0]), lanes, threads)
        return self._compiled

    def on_device(self, algebra: Algebra, rows: int) -> GpuProgram | None:
        """Return the program for the GPU, for so many rows at a time; None where there is none or it cannot do them."""
        if self.device is None or algebra.name not in DEVICE_FORMATS:
            return None
        # Which numbers come of it depends on the rows of this batch alone, not on those that came before.
        key = algebra.name, 1 << (rows - 1).bit_length()
        if key not in self._on_device:
            kept = [each for each in self._on_device if each[0] == algebra.name]
            for oldest in kept[: 1 - SIZES_ON_DEVICE]:
                del self._on_device[oldest]
            self._on_device[key] = self._made_for(algebra, key[1])
        return self._on_device[key]

    def _made_for(self, algebra: Algebra, rows: int) -> GpuProgram | None:
        from junctor.backends.gpu import GpuProgram

        assert self.device is not None
        room = self.memory.room // SIZES_ON_DEVICE
        try:
            return GpuProgram(self.program(algebra), rows, self.device, room, self.speeds)
        except (MemoryError, OverflowError) as error:
            logger.warning("the CPU takes over a group of rows: %s", error)
            return None
