"""Launches that CuPy does not have, by the driver itself: early ones, and blocks that are on the device together.

The blocks of an early one may begin before the launch ahead of it has ended (programmatic dependent launch); the kernel
itself waits, where it needs to (`griddepcontrol.wait`). Those of a cooperative one may wait for each other. Called by
`CudaDevice`; structures are those of cuda.h.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import numpy.typing as npt

# Compute capability, in tenths, from which on devices can do that.
OVERLAP_CAPABILITY = 90
# CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_SERIALIZATION = 6
# CU_LAUNCH_ATTRIBUTE_COOPERATIVE
_COOPERATIVE = 2


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


def launch_early(kernel: int, blocks: tuple[int, int], threads: int, argument: int, stream: int) -> None:
    """Launch a kernel of one int; raises RuntimeError with the driver's number.

    kernel: address of its CUfunction.
    blocks: in x and y.
    threads: of a block.
    argument: the int.
    stream: address of its CUstream.
    """
    value = ctypes.c_int(argument)
    _launch(kernel, (*blocks, 1), threads, 0, ctypes.addressof(value), stream, _SERIALIZATION)


def launch_together(
    kernel: int, blocks: int, threads: int, shared: int, words: npt.NDArray[np.int64], stream: int, together: bool
) -> None:
    """Launch a kernel of one struct; raises RuntimeError with the driver's number.

    kernel, stream: addresses of its CUfunction and CUstream.
    blocks, threads: of the grid, and of a block.
    shared: bytes of shared memory.
    words: of the struct.
    together: whether blocks wait for each other, so that more of them than fit the device at once are an error.
    """
    _launch(kernel, (blocks, 1, 1), threads, shared, words.ctypes.data, stream, _COOPERATIVE if together else None)


def _launch(
    kernel: int,
    blocks: tuple[int, int, int],
    threads: int,
    shared: int,
    argument: int,
    stream: int,
    attribute: int | None,
) -> None:
    asked = _Attribute(attribute or 0, b"", 1)
    # All of this has to live until the driver returns, no longer: it copies the argument.
    config = _Config(blocks, (threads, 1, 1), shared, stream, ctypes.pointer(asked), int(attribute is not None))
    arguments = (ctypes.c_void_p * 1)(argument)
    failed = driver().cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(kernel), arguments, None)
    if failed:
        raise RuntimeError(f"a kernel was not launched: the driver says {failed}")


@cache
def blocks_at_once(kernel: int, threads: int) -> int:
    """Return the blocks of a kernel (a CUfunction) without dynamic shared memory that fit a multiprocessor together.

    Raises RuntimeError with the driver's number.
    """
    count = ctypes.c_int()
    failed = driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(count), ctypes.c_void_p(kernel), threads, ctypes.c_size_t(0)
    )
    if failed:
        raise RuntimeError(f"the driver does not say how many blocks fit a multiprocessor: {failed}")
    return max(1, count.value)


@cache
def driver() -> ctypes.CDLL:
    """Return the driver, once there is a GPU."""
    return ctypes.CDLL("libcuda.so.1")
