"""A kernel whose blocks may begin before the launch ahead of it has ended (programmatic dependent launch).

The kernel itself waits, where it needs to (`griddepcontrol.wait`). CuPy has no such launch. Structures as in cuda.h.
"""

from __future__ import annotations

import ctypes
from functools import cache

# Compute capability, in tenths, from which on devices can do that.
OVERLAP_CAPABILITY = 90
# CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_SERIALIZATION = 6


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
    """Launch a kernel (a CUfunction) with one int as its argument; raises RuntimeError with the driver's number."""
    attribute = _Attribute(_SERIALIZATION, b"", 1)
    config = _Config((*blocks, 1), (threads, 1, 1), 0, stream, ctypes.pointer(attribute), 1)
    value = ctypes.c_int(argument)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    failed = _driver().cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(kernel), arguments, None)
    if failed:
        raise RuntimeError(f"a kernel was not launched: the driver says {failed}")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
