"""How a group of rows is answered: one record.

The router chooses a `Route` for every group of a batch, `junctor inspect` prints routes, `Engine` executes them,
forecasts add them up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from junctor_kernels.gpu.blocks import CudaBlockDevice

from junctor.backends.plan_memory import BlockSizes
from junctor.evidence.patterns import PatternGroup
from junctor.model.errors import BudgetError
from junctor.model.strategies import Strategy
from junctor.planning.plan import Plan

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import BlockDevice

    from junctor.out_of_core.memory_splits import ChunkRoute


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

    group: pattern and rows.
    strategy: what answers them, in their first number format.
    reason: why, for people; never parsed.
    memory: bytes.
    uses: rows of the whole run for which the plan is made.
    plan: None where each row has a tree of its own.
    sizes: of blocks; None where rows go through in chunks or by trees of their own.
    chunks: how rows go through in chunks.
    operations: multiply-adds of the rows that are answered.
    seconds: forecast, of one core or of a GPU; nan until `forecast.estimate`.
    work: counts by feature of the cost model, empty until then.
    refused: why the rows cannot be answered.
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

    @property
    def rows(self) -> int:
        """Rows that get answers, copies included."""
        return self.group.served

    @property
    def on_gpu(self) -> bool:
        """True if a GPU of this process or of workers does the work."""
        return self.strategy is Strategy.GPU_BLOCKS or (self.chunks is not None and self.chunks.limits.on_gpu)

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


@dataclass(frozen=True, slots=True)
class GpuRoom:
    """A GPU that answers rows: bytes that blocks may take, and whether it can do chunks."""

    bytes: int
    chunks: bool

    @classmethod
    def of(cls, device: BlockDevice) -> GpuRoom:
        """Return the room of an opened GPU."""
        # Chunks need CUDA streams; stand-ins for a GPU answer blocks only.
        return cls(int(device.room), isinstance(device, CudaBlockDevice))
