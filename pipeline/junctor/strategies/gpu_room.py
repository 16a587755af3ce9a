"""What a GPU has room for. Main class: GpuRoom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from junctor_kernels.gpu.blocks import CudaBlockDevice

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import BlockDevice


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
