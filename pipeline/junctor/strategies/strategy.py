"""What a strategy is: it refuses, prices, prepares and answers groups of rows; and the record of what was chosen.

`choose` asks strategies for their offers and takes the cheapest, `junctor inspect` prints routes, the loop of the
engine executes them, forecasts add them up. Main classes: Way, Route.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

from junctor.backends.plan_memory import BlockSizes
from junctor.evidence.batch import EvidenceBatch, Rows
from junctor.evidence.patterns import PatternGroup
from junctor.model.errors import BudgetError
from junctor.model.question import EVERY_NEED, Needs
from junctor.model.strategies import Strategy
from junctor.planning.budget import Budget
from junctor.planning.plan import Plan
from junctor.strategies.gpu_room import GpuRoom

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import BlockDevice

    from junctor.backends.plan_memory import ProgramCache
    from junctor.model.answers import Answers
    from junctor.out_of_core.memory_splits import ChunkRoute
    from junctor.strategies.facts import Facts, PlanKey


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds of one core, or of a GPU.

    load: until code is there, once for all rows to come.
    once: to prepare what all of them share.
    row: of each.
    """

    load: float = 0.0
    once: float = 0.0
    row: float = 0.0

    def seconds(self, rows: int) -> float:
        """Return the seconds of so many rows in all."""
        return self.load + self.once + rows * self.row


@dataclass(frozen=True, slots=True)
class Offer:
    """Rows of a group as a strategy takes them, and their price."""

    group: PatternGroup
    price: Price


@dataclass(frozen=True, slots=True)
class Allowance:
    """What rows may take.

    budget: in addition to all answers to the batch.
    gpu: that answers rows, if one does.
    kept: fixed bytes of the programs in memory, the oldest first; changed to those that a route leaves there.
    """

    budget: Budget
    gpu: GpuRoom | None
    kept: MutableMapping[PlanKey, int]


class Run(Protocol):
    """What answers take beside their routes; of one batch.

    facts: that they were chosen by.
    device: the GPU that answers rows, if one does.
    budget: in addition to the answers to the batch.
    first_row: number of the first row of the batch, which random numbers depend on.
    """

    facts: Facts
    device: BlockDevice | None
    budget: Budget
    first_row: int

    @property
    def gpu(self) -> GpuRoom | None:
        """What the GPU has room for."""

    @property
    def free(self) -> int:
        """Bytes of the budget beside programs and trees."""

    def program(self, route: Route, batch: EvidenceBatch) -> ProgramCache:
        """Return the plan of a route ready to run on rows of a batch."""

    def possible(self, rows: Rows, batch: EvidenceBatch, answers: Answers) -> Rows:
        """Answer the impossible ones among rows in doubt, and return the others."""

    def route(self, group: PatternGroup, batch: EvidenceBatch, uses: int | None = None) -> Route:
        """Return the route of a group; raises BudgetError where it is refused."""

    def explain_in_one_piece(self, route: Route, batch: EvidenceBatch) -> dict[int, int]:
        """Return the states that explain the only row of a batch."""


class Way(Protocol):
    """How rows are answered: a strategy.

    supports: needs of questions that it answers: of all, unless it says otherwise.
    together: whether groups of a batch are answered in one call, which all threads share.
    """

    name: ClassVar[Strategy]
    supports: ClassVar[frozenset[Needs]] = EVERY_NEED
    together: ClassVar[bool] = False

    def refuses(self, facts: Facts) -> str | None:
        """Return why no row can be answered so, on this network and machine; None where some can."""
        return None

    def offer(self, group: PatternGroup, batch: EvidenceBatch, facts: Facts) -> Offer | str:
        """Return what rows of a group would take, or why they are not answered so; nothing is planned for it."""

    def prepare(self, group: PatternGroup, uses: int, batch: EvidenceBatch, facts: Facts, room: Allowance) -> Route:
        """Return how rows are answered, by sizes alone; raises BudgetError where they do not fit."""

    def forecast(self, route: Route, batch: EvidenceBatch, facts: Facts, bound: int) -> Route:
        """Return a route with its seconds and counts of work.

        bound: multiply-adds of a case up to which a plan is bound to its numbers and lowered, because zeros and kinds
            of loops make a forecast better.
        """

    def answer(self, work: Sequence[Route], batch: EvidenceBatch, answers: Answers, run: Run) -> Rows:
        """Write answers, and return the rows that are left: they need a wider number format, or more room."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of a route.

    allowed: for everything.
    reserved: of answers and evidence.
    needed: at the least, what is reserved included.
    projected: at the peak, what is reserved included.
    """

    allowed: int
    reserved: int
    needed: int
    projected: int


@dataclass(frozen=True, eq=False, slots=True)
class Route:
    """How a group of rows is answered.

    group: pattern and rows, and what else was offered for them.
    strategy: what answers them, in their first number format.
    reason: why, for people; never parsed.
    memory: bytes.
    uses: rows of the whole run for which the plan is made.
    plan: None where each row has a tree of its own.
    sizes: of blocks; None where rows go through in chunks or by trees of their own.
    chunks: how rows go through in chunks.
    operations: multiply-adds of the rows that are answered.
    seconds: forecast, of one core or of a GPU; nan until it is forecast.
    work: counts by feature of the cost model, empty until then.
    refused: why the rows cannot be answered.
    circuit_on_gpu: whether a GPU answers rows of a circuit.
    """

    group: PatternGroup
    strategy: Strategy
    reason: str
    memory: MemoryUse
    uses: int = 1
    plan: Plan | None = None
    sizes: BlockSizes | None = None
    chunks: ChunkRoute | None = None
    operations: int = 0
    seconds: float = math.nan
    work: Mapping[str, float] = field(default_factory=dict)
    refused: BudgetError | None = None
    circuit_on_gpu: bool = False

    @property
    def rows(self) -> int:
        """Rows that get answers, copies included."""
        return self.group.served

    @property
    def on_gpu(self) -> bool:
        """True if a GPU of this process or of workers does the work."""
        in_chunks = self.chunks is not None and self.chunks.limits.on_gpu
        return self.strategy is Strategy.GPU_BLOCKS or self.circuit_on_gpu or in_chunks

    @property
    def runs_compiled(self) -> bool:
        """True if compiled code answers the rows."""
        if self.strategy is Strategy.ENTRIES:
            return self.sizes is not None and bool(self.sizes.entry_threads)
        return self.strategy in (
            Strategy.ROW_TREES,
            Strategy.CPU_BLOCKS,
            Strategy.GPU_BLOCKS,
            Strategy.CHUNKS,
            Strategy.CIRCUIT,
        )

    @property
    def shares_row(self) -> bool:
        """True if all threads share a row: over the entries of its tables, or its chunks, in compiled code."""
        if self.chunks is not None:
            return not (self.chunks.limits.on_gpu or self.chunks.workers)
        return self.strategy is Strategy.ENTRIES and self.sizes is not None and bool(self.sizes.entry_threads)

    @property
    def block_cases(self) -> int:
        """Cases of a block: at most so many are propagated together by one thread."""
        if self.sizes is None:
            return 1
        return self.sizes.lanes or self.sizes.cases(8)

    @property
    def threads(self) -> int:
        """Threads that answer the rows."""
        if self.sizes is None:
            return 1 if self.chunks is None else max(1, self.chunks.entry_threads)
        return self.sizes.threads if self.strategy is Strategy.CPU_BLOCKS else max(1, self.sizes.entry_threads)
