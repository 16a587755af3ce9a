"""Detection and opening of GPUs. Main functions: `check_device`, `has_gpu` and `open_gpu`, called by all backends."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from itertools import permutations
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from junctor.model.errors import DeviceError
from junctor.model.options import DEVICE_CHOICES, DeviceChoice

if TYPE_CHECKING:
    from junctor_kernels.gpu.blocks import BlockDevice, CudaBlockDevice


# The oldest architecture that CUDA 13 and its compiler know.
LEAST_CAPABILITY = 75
# Numbers of attributes in the driver's API: multiprocessors, major and minor compute capability.
_ATTRIBUTES = (16, 75, 76)
_INSTALL = "install junctor[cuda12] or junctor[cuda13], whichever the driver supports"


@cache
def count_gpus() -> int:
    """Return the number of NVIDIA GPUs that this process sees; 0 without a driver."""
    driver, count = _driver(), ctypes.c_int()
    if driver is None or driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def count_gpus_ahead() -> None:
    """Begin `count_gpus` in another thread: CUDA's driver takes a tenth of a second to start, without Python's lock."""
    threading.Thread(target=count_gpus, name="junctor-driver", daemon=True).start()


def _driver() -> ctypes.CDLL | None:
    """Return the driver, without CuPy, whose import takes a second; None where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


@cache
def gpu_at_hand() -> tuple[str, dict[str, float]]:
    """Return name and figures of the first GPU, as of `CudaDevice`, without CuPy; no figures without a GPU."""
    driver = _driver()
    if driver is None or not count_gpus():
        return "no GPU", {}
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


@cache
def visible_gpus() -> tuple[str, ...]:
    """Return the unique names of the GPUs that this process sees, in its order."""
    driver, names = _driver(), list[str]()
    # The name of a part of a GPU (MIG) instead of that of the whole, where the driver knows both.
    name_of = getattr(driver, "cuDeviceGetUuid_v2", None) or getattr(driver, "cuDeviceGetUuid", None)
    for number in range(count_gpus()):
        name = ctypes.create_string_buffer(16)
        assert name_of is not None
        name_of(name, number)
        names.append(name.raw.hex())
    return tuple(names)


@cache
def gpus_reach_each_other() -> bool:
    """Return True if all GPUs that this process sees reach each other's memory."""
    driver, reaches = _driver(), ctypes.c_int()
    for one, other in permutations(range(count_gpus()), 2):
        if driver is None or driver.cuDeviceCanAccessPeer(ctypes.byref(reaches), one, other) or not reaches.value:
            return False
    return True


def has_gpu() -> bool:
    """Return True if there is a GPU, and CuPy to use it with."""
    from importlib.util import find_spec

    return count_gpus() > 0 and find_spec("cupy") is not None


def check_device(choice: DeviceChoice) -> None:
    """Raise DeviceError for "gpu" without a GPU or without CuPy, and for unknown names."""
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


# Held by who opens the first GPU.
_opening = threading.Lock()

# Called before one task uses all of a GPU: each releases its memory there.
_holders: list[Callable[[], None]] = []


def when_gpu_is_needed(release: Callable[[], None]) -> None:
    """Register `release`, which drops kept programs, for the time before one task uses all of a GPU."""
    _holders.append(release)


def give_gpus_back() -> None:
    """Release what this process keeps on GPUs and does not use now: another task, or process, may need all of it."""
    for release in _holders:
        release()
    _first_gpu.cache_clear()
    open_other_gpus.cache_clear()


def open_gpu(memory: int | None = None) -> BlockDevice:
    """Return the first GPU of this process, with at most `memory` bytes, the same at every call; raises DeviceError."""
    # Another thread may be at it.
    with _opening:
        return _first_gpu(memory)


@lru_cache(maxsize=1)
def _first_gpu(memory: int | None) -> BlockDevice:
    check_device("gpu")
    device = _in_use.get(memory)
    if device is None:
        if _first_gpu.cache_info().currsize:
            # Opened with another limit before: the memory of engines that nobody holds goes first. They are in cycles.
            _first_gpu.cache_clear()
            gc.collect()
        device = _in_use[memory] = open_one(0, memory)
    return device


# Limit -> the first GPU with it, as long as somebody holds that: one more would take memory beside it.
_in_use: WeakValueDictionary[int | None, CudaBlockDevice] = WeakValueDictionary()


def open_gpu_ahead(memory: int | None = None) -> None:
    """Begin to open the first GPU in another thread, so that `open_gpu` finds it open; errors are left to that."""

    def open_it() -> None:
        with suppress(Exception):
            open_gpu(memory)

    # No daemon: the interpreter waits for it, where CUDA would lose its memory in the middle.
    threading.Thread(target=open_it, name="junctor-gpu").start()


@lru_cache(maxsize=1)
def open_other_gpus(memory: int | None = None) -> tuple[CudaBlockDevice, ...]:
    """Return the GPUs of this process other than the first, with at most `memory` bytes of each."""
    return tuple(open_one(number, memory) for number in range(1, count_gpus()))


def open_one(number: int, memory: int | None) -> CudaBlockDevice:
    """Return a GPU of this process with an arena of its own; raises DeviceError."""
    with gpu_errors():
        from junctor_kernels.gpu.blocks import CudaBlockDevice
        from junctor_kernels.gpu.device import CudaDevice

        # Checked before allocations and compilations, whose errors would be harder to read.
        capability = CudaDevice(number).capability
        if capability < LEAST_CAPABILITY:
            raise DeviceError(f"found a GPU of compute capability {capability / 10}, expected 7.5 or later")
        return CudaBlockDevice(number, memory)


@contextmanager
def gpu_errors() -> Iterator[None]:
    """Context manager: errors of opening a GPU become DeviceError, in words for users."""
    from junctor_kernels.gpu.device import CudaError, cuda_errors

    try:
        with lack_of_memory(), cuda_errors():
            yield
    except ImportError as error:
        raise DeviceError(f"CuPy cannot be loaded ({error}): {_INSTALL}") from error
    except CudaError as error:
        raise DeviceError(f"the GPU cannot be used ({error}): its driver may be too old; {_INSTALL}") from error


@contextmanager
def lack_of_memory() -> Iterator[None]:
    """Context manager: a lack of memory of a GPU becomes DeviceError, in words for users."""
    try:
        yield
    except MemoryError as error:
        raise DeviceError(f"the GPU has too little free memory ({error}): see nvidia-smi, or --device cpu") from error
