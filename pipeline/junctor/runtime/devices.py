"""Which device does the work: this machine's CPU, or a GPU; GPUs are looked for without loading CuPy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from junctor.model.errors import DeviceError
from junctor.model.options import DEVICE_CHOICES, DeviceChoice

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import BlockDevice, CudaBlockDevice


# The oldest architecture that CUDA 13 and its compiler know.
LEAST_CAPABILITY = 75
# Of the driver: multiprocessors, major and minor compute capability.
_ATTRIBUTES = (16, 75, 76)
_INSTALL = "install junctor[cuda12] or junctor[cuda13], whichever the driver supports"


@cache
def count_gpus() -> int:
    """Return the number of NVIDIA GPUs that this process sees; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


@cache
def gpu_at_hand() -> tuple[str, dict[str, float]]:
    """Return name and figures of the first GPU as `CudaDevice` has them, without CuPy; none without a GPU."""
    if not count_gpus():
        return "no GPU", {}
    driver = ctypes.CDLL("libcuda.so.1")
    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    numbers = []
    for attribute in _ATTRIBUTES:
        number = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        numbers.append(number.value)
    processors, major, minor = numbers
    figures = {"multiprocessors": processors, "memory": memory.value, "capability": 10 * major + minor}
    return name.value.decode(), {key: float(value) for key, value in figures.items()}


def has_gpu() -> bool:
    """Return True if there is a GPU, and CuPy to use it with."""
    from importlib.util import find_spec

    return count_gpus() > 0 and find_spec("cupy") is not None


def check_device(choice: DeviceChoice) -> None:
    """Raise DeviceError where a GPU is asked for and there is none, or nothing to use it with, and for other names."""
    from importlib.util import find_spec

    if choice not in DEVICE_CHOICES:
        raise DeviceError(f"found device {choice!r}, expected {' or '.join(DEVICE_CHOICES)}")
    if choice != "gpu":
        return
    if not count_gpus():
        raise DeviceError(
            "found no NVIDIA GPU (no driver, or none that this process may use: see nvidia-smi and "
            "CUDA_VISIBLE_DEVICES); use --device cpu"
        )
    if find_spec("cupy") is None:
        raise DeviceError(f"found a GPU, but not CuPy: {_INSTALL}, or use --device cpu")


# Called before one piece of work takes all of a GPU: each drops what it keeps there.
_holders: list[Callable[[], None]] = []


def when_gpu_is_needed(release: Callable[[], None]) -> None:
    """Have `release` called before one piece of work takes all of the GPU; it drops programs that are kept there."""
    _holders.append(release)


def open_whole_gpu(memory: int | None) -> CudaBlockDevice:
    """Return the first GPU with at most `memory` bytes, after everything kept there was dropped; raises DeviceError."""
    for release in _holders:
        release()
    open_gpu.cache_clear()
    return open_one(0, memory)


@lru_cache(maxsize=1)
def open_gpu(memory: int | None = None) -> BlockDevice:
    """Return this process's GPU, the first that it sees, with at most `memory` bytes of it; the same at every call.

    Raises DeviceError, in words for users, where it cannot be used.
    """
    check_device("gpu")
    return open_one(0, memory)


@lru_cache(maxsize=1)
def open_other_gpus(memory: int | None = None) -> tuple[CudaBlockDevice, ...]:
    """Return the GPUs that this process sees beside the first, with at most `memory` bytes of each."""
    return tuple(open_one(number, memory) for number in range(1, count_gpus()))


def open_one(number: int, memory: int | None) -> CudaBlockDevice:
    """Return a GPU of this process with a piece of memory of its own; raises DeviceError."""
    with gpu_errors():
        from junctor_kernels.gpu.blocks import CudaBlockDevice
        from junctor_kernels.gpu.device import CudaDevice

        # Asked before anything is allocated or compiled, which would fail in other words.
        capability = CudaDevice(number).capability
        if capability < LEAST_CAPABILITY:
            raise DeviceError(f"found a GPU of compute capability {capability / 10}, expected 7.5 or later")
        return CudaBlockDevice(number, memory)


@contextmanager
def gpu_errors() -> Iterator[None]:
    """Context manager: what goes wrong where a GPU is opened becomes DeviceError, in words for users."""
    from junctor_kernels.gpu.device import CudaError, cuda_errors

    try:
        with cuda_errors():
            yield
    except ImportError as error:
        raise DeviceError(f"CuPy cannot be loaded ({error}): {_INSTALL}") from error
    except MemoryError as error:
        raise DeviceError(f"the GPU has too little free memory ({error}): see nvidia-smi, or --device cpu") from error
    except CudaError as error:
        raise DeviceError(f"the GPU cannot be used ({error}): its driver may be too old; {_INSTALL}") from error
