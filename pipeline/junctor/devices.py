"""Which device does the work: this machine's CPU, or a GPU; GPUs are looked for without loading CuPy."""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Literal, get_args

from junctor.errors import DeviceError

if TYPE_CHECKING:
    from junctor_kernels.gpu import CudaDevice, Device

DeviceChoice = Literal["cpu", "gpu", "auto"]
CHOICES: tuple[DeviceChoice, ...] = get_args(DeviceChoice)
# The oldest architecture that CUDA 13 and its compiler know.
LEAST_CAPABILITY = 75
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


def has_gpu() -> bool:
    """Tell whether there is a GPU, and CuPy to use it with."""
    from importlib.util import find_spec

    return count_gpus() > 0 and find_spec("cupy") is not None


def check_device(choice: DeviceChoice) -> None:
    """Raise DeviceError where a GPU is asked for and there is none, or nothing to use it with."""
    from importlib.util import find_spec

    if choice != "gpu":
        return
    if not count_gpus():
        raise DeviceError(
            "found no NVIDIA GPU (no driver, or none that this process may use: see nvidia-smi and "
            "CUDA_VISIBLE_DEVICES); use --device cpu"
        )
    if find_spec("cupy") is None:
        raise DeviceError(f"found a GPU, but not CuPy: {_INSTALL}, or use --device cpu")


@lru_cache(maxsize=1)
def open_gpu(memory: int | None = None) -> Device:
    """Return this process's GPU, the first that it sees, with at most `memory` bytes of it; the same at every call.

    Raises DeviceError, in words for users, where it cannot be used.
    """
    check_device("gpu")
    return _opened(0, memory)


@lru_cache(maxsize=1)
def open_other_gpus(memory: int | None = None) -> tuple[CudaDevice, ...]:
    """Return the GPUs that this process sees beside the first, with at most `memory` bytes of each."""
    return tuple(_opened(number, memory) for number in range(1, count_gpus()))


def _opened(number: int, memory: int | None) -> CudaDevice:
    try:
        import cupy
        from junctor_kernels.gpu import CudaDevice

        capability = int(cupy.cuda.Device(number).compute_capability)
        if capability < LEAST_CAPABILITY:
            raise DeviceError(f"found a GPU of compute capability {capability / 10}, expected 7.5 or later")
        return CudaDevice(number, memory)
    except ImportError as error:
        raise DeviceError(f"CuPy cannot be loaded ({error}): {_INSTALL}") from error
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise DeviceError(f"the GPU has too little free memory ({error}): see nvidia-smi, or --device cpu") from error
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(f"the GPU cannot be used ({error}): its driver may be too old; {_INSTALL}") from error
