"""What a plan takes on the NumPy backend, known before it runs, and the block size that fits a budget."""

from __future__ import annotations

from dataclasses import dataclass, field

from junctor_kernels import reference
from junctor_kernels.reference import Algebra

from junctor.model import Network
from junctor.planning.budget import Budget
from junctor.planning.plan import Plan
from junctor.propagation import Program

# A block has at most so many cases, and its tables at most so many bytes: enough to keep NumPy's inner loops long,
# few enough to stay near the cache.
MOST_CASES = 2048
BLOCK_BYTES = 1 << 25
# Python objects of a plan and its programs, for each step and number format.
STEP_BYTES = 4096
# Numbers that travel with a case beside its tables: scales, bounds, indices, masks and their temporaries.
CASE_NUMBERS = 64
# The smallest scratch that a contraction is given when memory is short.
LEAST_SCRATCH = 1024


@dataclass(eq=False)
class Memory:
    """Bytes of a plan: `fixed` for its programs, and so many for each case of a block; `fit` settles the rest."""

    plan: Plan
    formats: int
    scratch: int = LEAST_SCRATCH
    allowed: int = 0
    rows: int = 1
    fixed: int = field(init=False)

    def __post_init__(self) -> None:
        shared = [table.entries for table in self.plan.tables if not table.per_case]
        # While a potential is multiplied there are its partial products beside it, in double precision.
        binding = 3 * max(shared, default=0)
        self.fixed = 8 * (self.formats * self.plan.shared_entries() + binding) + (
            self.formats * len(self.plan.steps) * STEP_BYTES
        )

    @property
    def least(self) -> int:
        """Bytes that one case at a time needs, in the widest format."""
        return self.fixed + self._scratch_bytes(LEAST_SCRATCH) + self._case_bytes(8)

    def fit(self, budget: Budget, free: int, rows: int) -> None:
        """Settle scratch and block sizes for `free` bytes; raises BudgetError where not even one case fits."""
        if self.least > free:
            largest = max(self.plan.clique_entries, default=0)
            raise budget.refuse(
                self.least,
                f"propagation of one case (largest clique {largest:,} entries, largest message "
                f"{max((table.entries for table in self.plan.tables), default=0):,})",
                "allow more memory, observe more variables, or ask for fewer targets",
            )
        self.allowed, self.rows, self.scratch = free, rows, LEAST_SCRATCH
        spare = free - self.least
        while self.scratch < reference.SCRATCH_ENTRIES and self._scratch_bytes(2 * self.scratch) < spare // 2:
            self.scratch *= 2

    def cases(self, itemsize: int) -> int:
        """Return how many cases of a number format fit in a block."""
        free = self.allowed - self.fixed - self._scratch_bytes(self.scratch)
        each = self._case_bytes(itemsize)
        return max(1, min(free // each, BLOCK_BYTES // each, MOST_CASES, self.scratch, self.rows))

    def projected(self, itemsize: int) -> int:
        """Return the peak bytes of a run with blocks of `cases(itemsize)`."""
        return self.fixed + self._scratch_bytes(self.scratch) + self.cases(itemsize) * self._case_bytes(itemsize)

    def _scratch_bytes(self, entries: int) -> int:
        return reference.SCRATCH_ARRAYS * entries * 8

    def _case_bytes(self, itemsize: int) -> int:
        sizes = self.plan.shape.cardinalities
        results = sum(sizes[v] for v, _ in self.plan.marginals)
        inputs = len(self.plan.pattern.sliced) + 2 * sum(sizes[v] for v in self.plan.pattern.weighted)
        inputs += 3 * len(self.plan.edges)
        explained = len(self.plan.shape.cardinalities) if self.plan.traceback else 0
        tables = (self.plan.peak_case_entries() + results) * itemsize
        return tables + 8 * (inputs + explained + 3 * max(sizes) + CASE_NUMBERS)


@dataclass(eq=False)
class Prepared:
    """A plan with its memory and its programs, each made when first needed."""

    network: Network
    plan: Plan
    formats: int
    memory: Memory = field(init=False)
    _programs: dict[str, Program] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.memory = Memory(self.plan, self.formats)

    def program(self, algebra: Algebra) -> Program:
        """Return the program in `algebra`."""
        if algebra.name not in self._programs:
            self._programs[algebra.name] = Program(self.plan, self.network, algebra, self.memory.scratch)
        return self._programs[algebra.name]
