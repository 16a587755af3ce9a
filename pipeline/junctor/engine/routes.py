"""How a group of rows is answered: one record.

The router chooses a `Route` for every group of a batch, `junctor inspect` prints routes, `Engine` executes them,
forecasts add them up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from junctor_kernels.gpu.blocks import CudaBlockDevice

from junctor.backends.plan_memory import BlockSizes
from junctor.engine.patterns import PatternGroup
from junctor.model.errors import BudgetError
from junctor.planning.plan import Plan

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import BlockDevice

    from junctor.out_of_core.memory_splits import ChunkRoute


class Backend(Enum):
    """What answers the rows of a route in their first number format."""

    NUMPY = "numpy"
    ENTRIES = "entries"
    CPU = "cpu"
    GPU = "gpu"
    ROW_TREES = "row trees"
    JOINT_TABLE = "joint table"
    ZEROS = "zeros"
    CHUNKED_CPU = "chunked cpu"
    CHUNKED_GPU = "chunked gpu"
    CHUNKED_WORKERS = "chunked workers"


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
    backend: what answers them.
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
    backend: Backend
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
        return self.backend is Backend.GPU or (self.chunks is not None and self.chunks.limits.on_gpu)

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
        return self.sizes.threads if self.backend is Backend.CPU else max(1, self.sizes.entry_threads)


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
