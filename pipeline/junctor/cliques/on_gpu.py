"""Which GPU stored clique tables take, and how much of it. Main functions: `opened_device` and `allowed_bytes`."""

from __future__ import annotations

from collections.abc import Callable

from junctor_kernels.gpu.blocks import room_of
from junctor_kernels.gpu.stored import CliqueDevice

from junctor.model.options import ComputeOptions
from junctor.runtime.devices import check_device, gpu_at_hand, has_gpu


def takes_gpu(options: ComputeOptions, is_worth: Callable[[], bool]) -> bool:
    """Return True where a GPU is asked for, or is there and worth it; raises DeviceError."""
    check_device(options.device)
    return options.device == "gpu" or (options.device == "auto" and has_gpu() and is_worth())


def opened_device(options: ComputeOptions, is_worth: Callable[[], bool]) -> CliqueDevice | None:
    """Return the GPU for stored tables, None for the CPU; raises DeviceError."""
    if not takes_gpu(options, is_worth):
        return None
    from junctor_kernels.gpu.stored import CudaCliqueDevice

    return CudaCliqueDevice()


def allowed_bytes(options: ComputeOptions, device: CliqueDevice) -> int:
    """Return the bytes that tables may take of a GPU."""
    return room_of(device.free(), options.device_memory)


def room_at_hand(options: ComputeOptions) -> int:
    """Return the same of the GPU of this machine before it is opened: 0 without one."""
    return room_of(gpu_at_hand()[1].get("memory", 0.0), options.device_memory)
