"""What a plan takes on the NumPy backend, known before it runs, and the block size that fits a budget."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from junctor_kernels.cpu.bytecode import ENTRIES_BYTES, ENTRIES_THREAD_BYTES
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra

from junctor.backends.number_formats import GPU_FORMATS
from junctor.backends.numpy import Program
from junctor.backends.prepared_plans import kept_numbers
from junctor.backends.sparsity import LISTING_ENTRIES, MOST_LISTED
from junctor.cost.figures import Figures, shipped_figures
from junctor.model.network import Network
from junctor.planning.budget import Budget, approximate
from junctor.planning.first_fit import arena
from junctor.planning.plan import Plan

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import BlockDevice

    from junctor.backends.cpu import CompiledProgram
    from junctor.backends.gpu import GpuProgram
    from junctor.cost.model import CostModel

# Numbers of the cases of a block of the compiled backend are multiples of so many bytes, two of the widest vectors that
# machines have; lanes beyond the last case repeat it.
LANE_BYTES = 128
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
# Cases of one of its blocks: at least so many bytes of a number, and as many as keep its arena near the cache. Fewer
# where a table of the usual entry exceeds a share of the cache of a core: measured on eight networks, 16 to 128 cases;
# 2026-11-24. Half as many bytes take longer in single precision, twice as many in double; 2026-11-28.
LEAST_NUMBERS, MOST_LANES = 256, 512
ARENA_BYTES = 1 << 22
TABLE_BYTES = 1 << 19
# Sizes of batches for which programs of a plan stay on a GPU, in each format: the usual one, and one that differs.
SIZES_ON_DEVICE = 2
# Bytes of an offset of a lowered plan while it is made: there are three copies of it then.
OFFSET_BYTES = 3 * 8
# The smallest scratch that a contraction is given when memory is short.
LEAST_SCRATCH = 1024

logger = logging.getLogger("junctor")


@dataclass(frozen=True, eq=False, slots=True)
class BlockSizes:
    """How a plan runs within an allowance: what its blocks and scratch may take.

    memory: of the plan.
    allowed: bytes of everything.
    rows: cases of this batch that use the plan.
    scratch: entries of a block of NumPy's contractions.
    lanes: cases of a block of the compiled backend; 0 where that does nothing.
    threads: blocks of it at once.
    lowered: number formats that it has room for, the first ones of the ladder.
    entry_threads: of contractions over entries where there are no lanes; 0 where NumPy does the work.
    entry_room: bytes that those may take.
    room: bytes that the compiled backend may take, or evidence and answers on their way to and from a GPU.
    """

    memory: PlanMemory
    allowed: int
    rows: int
    scratch: int = LEAST_SCRATCH
    lanes: int = 0
    threads: int = 1
    lowered: int = 1
    entry_threads: int = 0
    entry_room: int = 0
    room: int = 0

    def cases(self, itemsize: int) -> int:
        """Return how many cases of a number format fit in a block of NumPy."""
        # Not what the compiled backend takes, but what it may: threads must not change a block, nor its rounding.
        compiled = self.room if self.lanes else 0
        beside = self.memory.fixed + scratch_bytes(self.scratch) + self.entry_room + compiled
        case = self.memory.case_bytes(itemsize)
        free = self.allowed - beside
        return max(1, min(free // case, BLOCK_BYTES // case, MOST_CASES, self.scratch, self.rows))

    @property
    def runs_compiled(self) -> bool:
        """Return True if compiled code answers blocks, or contracts over entries."""
        return bool(self.lanes or self.entry_threads)

    @property
    def spare(self) -> int:
        """Return the bytes that are free between two number formats."""
        # Scratch and blocks of NumPy come and go; compiled code keeps its memory.
        return max(0, self.allowed - self.memory.fixed - self.entry_room - self.room)

    def projected(self, itemsize: int) -> int:
        """Return the peak bytes of a run with blocks of `cases(itemsize)`."""
        entries = ENTRIES_BYTES + self.entry_threads * ENTRIES_THREAD_BYTES if self.entry_threads else 0
        blocks = self.lowered * self.threads * self.lanes * self.memory.lane_bytes
        compiled = self.memory.lowered_for(self.lowered) + blocks if self.lanes else 0
        blocks = self.cases(itemsize) * self.memory.case_bytes(itemsize)
        return self.memory.fixed + scratch_bytes(self.scratch) + entries + compiled + blocks


class PlanMemory:
    """Bytes of a plan, known before it runs: `fixed` for its programs, and so many for each case of a block.

    plan: whose memory it is.
    formats: number formats that rows may climb through.
    itemsize: bytes of a number of the first of them.
    figures: by which the faster way is chosen, None for those of the package.
    """

    def __init__(self, plan: Plan, formats: int, itemsize: int = 8, figures: Figures | None = None) -> None:
        self.plan = plan
        self.figures = figures or shipped_figures()
        self.formats = formats
        self.itemsize = itemsize
        shape = plan.shape
        shared = [table.entries for table in plan.tables if not table.per_case]
        sliced = [shape.entries(shape.scopes[factor]) for factor in plan.sliced_factors()]
        # While a table is bound there are copies of it in double precision: transposed, partial products, scales.
        binding = 5 * max((*shared, *sliced), default=0)
        programs = formats * len(plan.steps) * STEP_BYTES
        self._shared_entries = plan.shared_entries()
        self.fixed = 8 * (formats * self._shared_entries + binding) + programs

    @property
    def least(self) -> int:
        """Bytes that one case at a time needs, in the widest format."""
        return self.fixed + scratch_bytes(LEAST_SCRATCH) + self.case_bytes(8)

    @property
    def working(self) -> int:
        """Bytes of tables and scratch of one case at a time, without what else a program takes."""
        return 8 * self._shared_entries + scratch_bytes(LEAST_SCRATCH) + self.case_bytes(8)

    def fits(self, free: int, working: int | None) -> bool:
        """Return True if one case at a time fits `free` bytes, and its tables and scratch `working` bytes of them."""
        return self.least <= free and (working is None or self.working <= working)

    @property
    def least_in_blocks(self) -> int:
        """Bytes from which on compiled blocks fit, with what contracts over entries where there is room for both."""
        block = 2 * (self.lowered_for(1) + self.lane * self.lane_bytes)
        if self.plan.traceback or block < 2 * (ENTRIES_BYTES + ENTRIES_THREAD_BYTES):
            return self.least + block
        return self.least + block + min(block, ENTRIES_BYTES + MOST_ENTRY_THREADS * ENTRIES_THREAD_BYTES)

    def fit(
        self,
        budget: Budget,
        free: int,
        rows: int,
        to_come: int = 0,
        threads: int = 1,
        working: int | None = None,
        blocks: bool = True,
    ) -> BlockSizes:
        """Return scratch and block sizes for `free` bytes; raises BudgetError where not even one case fits.

        budget: for the words of the error.
        free: bytes beside other programs.
        rows: cases of this batch that use the plan.
        to_come: about how many do in the whole run, 0 where that run does not load the compiled backend at all.
        threads: that blocks of it may run on; fewer where memory is short.
        working: bytes of `free` that tables and scratch may take, those of one case in any case.
        blocks: whether cases go in compiled blocks where these fit.
        """
        if working is not None:
            free = min(free, self.least + max(0, working - self.working))
        if self.least > free:
            clique = approximate(max(self.plan.clique_entries, default=0))
            table = approximate(max((table.entries for table in self.plan.tables), default=0))
            raise budget.refuse(
                self.least,
                f"propagation of one case at a time (largest clique {clique} entries, largest stored table {table})",
                "allow more memory, ask for fewer targets, or give evidence on more variables",
            )
        # Half of what is left for each: compiled code first, then NumPy's scratch.
        spare = free - self.least
        entry_room, entry_threads = self._fit_entries(spare, to_come, threads)
        spare -= entry_room
        room = spare // 2
        lanes, together, lowered = self._fit_lanes(room, rows, threads) if blocks else (0, 1, 1)
        scratch = LEAST_SCRATCH
        # Powers of two, so that budgets that differ little give the same blocks and roundings.
        while scratch < reference.SCRATCH_ENTRIES and scratch_bytes(2 * scratch) < spare // 2:
            scratch *= 2
        return BlockSizes(self, free, rows, scratch, lanes, together, lowered, entry_threads, entry_room, room)

    def _fit_entries(self, spare: int, rows: int, threads: int) -> tuple[int, int]:
        """Return the bytes of contractions over entries, and their threads; 0 where NumPy contracts."""
        room = min(spare // 2, ENTRIES_BYTES + MOST_ENTRY_THREADS * ENTRIES_THREAD_BYTES)
        entry_threads = max(0, min(threads, (room - ENTRIES_BYTES) // ENTRIES_THREAD_BYTES))
        return (0, 0) if not rows or self.plan.traceback or not entry_threads else (room, entry_threads)

    def _fit_lanes(self, room: int, cases: int, threads: int) -> tuple[int, int, int]:
        """Return the cases of a block of the compiled backend, 0 where none fits, its threads and formats.

        The parameters are those of `fit`; room: bytes for it.
        """
        # Memory for the further formats is kept only where all of them get some.
        formats = self.formats
        fitting = (room - self.lowered_for(formats)) // (formats * self.lane_bytes)
        if fitting < self.lane:
            formats, fitting = 1, (room - self.lowered_for(1)) // self.lane_bytes
        blocks = max(1, min(threads, fitting // self.lane))
        lanes = min(self._most_lanes, self.padded(-(-cases // blocks)), fitting // blocks) // self.lane * self.lane
        return max(0, lanes), blocks, formats

    def blocks_are_faster(self, algebra: Algebra, rows: int, sizes: BlockSizes) -> bool:
        """Return True if so many rows that climbed to a number format go through compiled blocks, lowered already.

        sizes: how the plan runs.
        """
        operations, log = self.plan.case_operations, algebra is reference.LOG
        figures, ratios = self.figures, self.figures.ratios
        block = self.padded(min(rows, self._most_lanes))
        compiled = min(-(-rows // block) * block * operations, 10**30) * figures.blocks.operation
        rate = figures.blocks.operation if sizes.entry_threads else figures.numpy.operation
        plain = min(rows * operations, 10**30) * rate
        steps = -(-rows // sizes.cases(8)) * len(self.plan.steps) * figures.blocks.entries_step
        return compiled * (ratios.blocks_log if log else 1) < steps + plain * (ratios.numpy_log if log else 1)

    @property
    def lane(self) -> int:
        """Cases that blocks are multiples of, where there are any."""
        return LANE_BYTES // self.itemsize

    @cached_property
    def _most_lanes(self) -> int:
        most = max(LEAST_NUMBERS // self.itemsize, min(ARENA_BYTES // self.lane_bytes, MOST_LANES))
        usual = self.itemsize * self.usual_entries
        return max(self.lane, min(most, TABLE_BYTES // max(1, usual) // self.lane * self.lane))

    @cached_property
    def usual_entries(self) -> int:
        """Entries of the table of a case that an entry is in, the mean over all entries."""
        sizes = [table.entries for table in self.plan.tables if table.per_case]
        return sum(size * size for size in sizes) // max(1, sum(sizes))

    def padded(self, cases: int) -> int:
        """Return the number of lanes for so many cases."""
        return -(-cases // self.lane) * self.lane

    @cached_property
    def lane_bytes(self) -> int:
        """Bytes of a case in a block of the compiled backend."""
        _, rows = arena(self.plan)
        return 8 * rows + self.case_bytes(8)

    @property
    def offsets(self) -> int:
        """Offsets of the lowered plan, about."""
        return self._lowered // OFFSET_BYTES

    def lowered_for(self, formats: int) -> int:
        """Return the bytes of the lowered plan in so many number formats, and of lowering it."""
        return self._lowered + (formats - 1) * self._numbers

    @cached_property
    def _lowered(self) -> int:
        return lowered_bytes(self.plan) + 8 * self._shared_entries

    @cached_property
    def _numbers(self) -> int:
        # Offsets and lists of terms are those of the first format.
        return 2 * 8 * (self._shared_entries + product_entries(self.plan))

    def case_bytes(self, itemsize: int) -> int:
        """Return the bytes of a case of a block, its numbers of `itemsize` bytes."""
        entries, numbers = self._case_numbers
        return entries * itemsize + 8 * numbers

    # Kept, because every group of every batch asks, and there may be a hundred thousand variables.
    @cached_property
    def _case_numbers(self) -> tuple[int, int]:
        """Entries of a case in its tables and results, and its other numbers, of eight bytes each."""
        sizes = self.plan.shape.cardinalities
        results = sum(sizes[v] for v, _ in self.plan.marginals)
        inputs = len(self.plan.pattern.sliced) + 2 * sum(sizes[v] for v in self.plan.pattern.weighted)
        inputs += 3 * len(self.plan.edges)
        # The compiled backend keeps scales and bounds of all tables.
        inputs += 4 * len(self.plan.tables)
        explained = len(self.plan.shape.cardinalities) if self.plan.traceback else 0
        return self.plan.peak_case_entries() + results, inputs + explained + 3 * max(sizes) + CASE_NUMBERS


def scratch_bytes(entries: int) -> int:
    """Return the bytes of NumPy's scratch for blocks of so many entries."""
    return reference.SCRATCH_ARRAYS * entries * 8


def product_entries(plan: Plan) -> int:
    """Return the entries of the products of shared operands in the compiled backend, one for each reduction."""
    products = 0
    for step in plan.reductions(per_case=True):
        shared = [plan.tables[table].scope for table in step.operands if not plan.tables[table].per_case]
        if len(shared) > 1:
            products += plan.shape.entries(frozenset().union(*shared))
    return products


def lowered_bytes(plan: Plan) -> int:
    """Return what offsets and lists of terms of a plan take in the compiled backend, and what it takes to make them."""
    total = longest = listed = largest = 0
    for step in plan.reductions(per_case=True):
        kept, terms = plan.tables[step.out].entries, plan.shape.entries(step.eliminated)
        # Tiles that are not full repeat entries, a third more at most; each entry has a place for its result as well.
        total += (len(step.operands) + 1) * (4 * kept // 3 + terms) + kept
        longest, listed, largest = max(longest, terms), listed + kept * terms, max(largest, kept * terms)
    products = product_entries(plan)
    traced = total if plan.traceback else 0
    listing = min(listed, LISTING_ENTRIES)
    # A bit for each term of the largest one, in the order of its tiles as well, and for each term of a tile.
    bits = 3 * largest // 8
    return OFFSET_BYTES * (total + traced + longest + products) + 2 * 8 * min(listed, MOST_LISTED) + 16 * listing + bits


class ProgramCache:
    """A plan and its programs, each made when first needed.

    network: with the numbers of the plan.
    ladder: number formats, the first one of all rows, the others of rows that leave the range of the one before.
    memory: of the plan; made anew if not given.
    did_well: number formats that did for the first rows of their last batch.
    """

    def __init__(
        self, network: Network, plan: Plan, ladder: Sequence[Algebra], memory: PlanMemory | None = None
    ) -> None:
        self.network = network
        self.plan = plan
        self.ladder = ladder
        self.memory = memory or PlanMemory(plan, len(ladder), ladder[0].dtype.itemsize)
        self.sizes = BlockSizes(self.memory, 0, 1)
        self._device: BlockDevice | None = None
        self._costs: CostModel | None = None
        self._filled = 1, 1
        self._programs: dict[str, Program] = {}
        self._on_device: dict[tuple[str, int], GpuProgram | None] = {}
        self._compiled: dict[str, CompiledProgram] = {}
        self.did_well: set[str] = set()

    @property
    def held(self) -> int:
        """Bytes of the programs, and of the memory of their blocks on the host, about."""
        compiled = self._compiled.values()
        lowered = self.memory.lowered_for(len(compiled)) if compiled else 0
        on_device = sum(program.held for program in self._on_device.values() if program is not None)
        return self.memory.fixed + lowered + sum(program.held for program in compiled) + on_device

    def rest(self, excess: int) -> int:
        """Drop memory of blocks until so many bytes less are held, if there are as many; returns how many less."""
        dropped = 0
        for compiled in self._compiled.values():
            dropped += compiled.rest(excess - dropped)
        # On a GPU memory and launches go together, the oldest first.
        for key, program in [*self._on_device.items()]:
            if program is None:
                # A GPU that others had filled may have memory by then.
                del self._on_device[key]
            elif dropped < excess:
                dropped += program.held
                del self._on_device[key]
        return dropped

    def use(
        self,
        sizes: BlockSizes,
        device: BlockDevice | None = None,
        costs: CostModel | None = None,
        filled: tuple[int, int] = (1, 1),
    ) -> None:
        """Choose how the next rows are answered.

        sizes: of blocks.
        device: a GPU to use, where one is.
        costs: of that GPU, by which launches are chosen; None for what is known of this machine's.
        filled: rows of this batch and of a full one; the last of a run may have fewer.
        """
        self.sizes = sizes
        self._device = device
        self._costs = costs
        self._filled = filled

    def program(self, algebra: Algebra) -> Program:
        """Return the program in `algebra`."""
        if algebra.name not in self._programs:
            # Others are of few rows, and there may be many of them.
            keep = kept_numbers if self._device is not None or self.sizes.lanes > 0 else None
            threads = self.sizes.entry_threads
            self._programs[algebra.name] = Program(self.plan, self.network, algebra, threads, keep=keep)
        program = self._programs[algebra.name]
        # The program stays; what it may take changes with each batch.
        program.threads = self.sizes.entry_threads
        program.scratch_entries = self.sizes.scratch
        return program

    def compiled(self) -> CompiledProgram | None:
        """Return the first program for the compiled backend, or None where that is not worth its while."""
        lanes, threads = self.sizes.lanes, self.sizes.threads
        if not lanes:
            return None
        first = self._compiled.get(self.ladder[0].name)
        # One for smaller blocks still serves; one for larger blocks or more threads holds more than was planned now.
        if first is None or first.cases > lanes or first.threads > threads:
            from junctor.backends.cpu import CompiledProgram

            first = CompiledProgram(self.program(self.ladder[0]), lanes, threads)
            self._compiled = {self.ladder[0].name: first}
        return first

    def compiled_for(self, algebra: Algebra, rows: int) -> CompiledProgram | None:
        """Return the program of a further number format for so many rows that climbed there, as `compiled`."""
        first = self.compiled()
        number = self.ladder.index(algebra)
        if first is None or number == 0:
            return first
        # Which code answers them depends on the rows of this batch alone, not on what earlier ones left.
        if number >= self.sizes.lowered or not self.memory.blocks_are_faster(algebra, rows, self.sizes):
            return None
        if algebra.name not in self._compiled:
            from junctor.backends.cpu import CompiledProgram

            self._compiled[algebra.name] = CompiledProgram(self.program(algebra), first.cases, first.threads, first)
        return self._compiled[algebra.name]

    def tells_from_first(self, algebra: Algebra) -> bool:
        """Return True if a number format's first rows may send all others to the next one."""
        # Not to log space, which takes several times as long.
        number = self.ladder.index(algebra) + 1
        return number < len(self.ladder) and self.ladder[number] is not reference.LOG

    @property
    def has_large_blocks(self) -> bool:
        """True if a block is about as large as a batch, as on a GPU."""
        return self._device is not None

    def on_device(self, algebra: Algebra, rows: int) -> GpuProgram | None:
        """Return the program for the GPU, for so many rows at a time; None where there is none or it cannot do them."""
        if self._device is None or algebra.name not in GPU_FORMATS:
            return None
        # Which numbers come of it depends on the rows of this batch alone, not on those that came before. A last batch
        # takes the program of the others: one of its own takes far longer to make than those rows.
        here, full = self._filled
        key = algebra.name, 1 << (-(-rows * full // here) - 1).bit_length()
        if key not in self._on_device:
            # The oldest go first; tails of files come with one more size.
            kept = [other for other in self._on_device if other[0] == algebra.name]
            for oldest in kept[: 1 - SIZES_ON_DEVICE]:
                del self._on_device[oldest]
            self._on_device[key] = self._made_for(algebra, key[1])
        return self._on_device[key]

    def _made_for(self, algebra: Algebra, rows: int) -> GpuProgram | None:
        from junctor.backends.gpu import GpuProgram

        assert self._device is not None
        room = self.sizes.room // SIZES_ON_DEVICE
        try:
            return GpuProgram(self.program(algebra), rows, self._device, room, self._costs)
        except (MemoryError, OverflowError) as error:
            logger.warning("the CPU takes over a group of rows: %s", error)
            return None
