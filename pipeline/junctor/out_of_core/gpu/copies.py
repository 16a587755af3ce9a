"""Copies between strided arrays of the host and of devices, as the fewest copies of rows.

Arrays on a device are `DeviceView`: NumPy sees their addresses, shapes and strides; they are good for copies only.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from junctor_kernels.gpu.device import CudaDevice, Stream

Array = npt.NDArray[Any]

# Largest distance of rows, in bytes, that cudaMemcpy2D takes.
MOST_PITCH = (1 << 31) - 1


class RowsCopy(NamedTuple):
    """A copy of rows at constant distances.

    target, source: addresses.
    target_pitch, source_pitch: bytes from one row to the next.
    width: bytes of a row.
    rows: how many there are.
    """

    target: int
    target_pitch: int
    source: int
    source_pitch: int
    width: int
    rows: int


def common_axes(target: Array, source: Array) -> list[tuple[int, int, int]]:
    """Return size, and bytes from one to the next in either array, of the fewest axes of two arrays of one shape.

    From the fastest on, which is contiguous in both; neighbours that are contiguous in both are one.
    """
    axes = [(1, target.itemsize, source.itemsize)]
    for size, one, other in reversed(list(zip(target.shape, target.strides, source.strides, strict=True))):
        faster, *strides = axes[-1]
        if size > 1 and (one, other) == (faster * strides[0], faster * strides[1]):
            axes[-1] = (faster * size, *strides)
        elif size > 1:
            axes.append((size, one, other))
    return axes


def copies(target: Array, source: Array) -> Iterator[RowsCopy]:
    """Yield the fewest copies of rows between two arrays of one shape whose last axes are contiguous."""
    axes = common_axes(target, source)
    width = axes[0][0] * target.itemsize
    # A single run is a copy of one row.
    rows, *pitches = axes[1] if len(axes) > 1 else (1, width, width)
    outer = axes[2:]
    if max(pitches) > MOST_PITCH:
        rows, outer = 1, axes[1:]
    for index in itertools.product(*(range(size) for size, _, _ in outer)):
        to, of = (sum(n * axis[k] for n, axis in zip(index, outer, strict=True)) for k in (1, 2))
        yield RowsCopy(target.ctypes.data + to, pitches[0], source.ctypes.data + of, pitches[1], width, rows)


def enqueue(device: CudaDevice, stream: Stream, target: Array, source: Array) -> None:
    """Enqueue copies between arrays of one shape whose last axes are contiguous, wherever they lie."""
    enqueue_all(device, stream, copies(target, source))


def enqueue_all(
    device: CudaDevice, stream: Stream, rows_copies: Iterable[RowsCopy], target_shift: int = 0, source_shift: int = 0
) -> None:
    """Enqueue copies.

    target_shift, source_shift: bytes by which all targets, and sources, lie further on.
    """
    for copy in rows_copies:
        target, source = copy.target + target_shift, copy.source + source_shift
        if copy.rows == 1:
            # A plain copy is cheaper to enqueue than one of rows.
            device.copy_bytes(target, source, copy.width, stream)
        else:
            device.copy_rows(target, copy.target_pitch, source, copy.source_pitch, copy.width, copy.rows, stream)


class DeviceView(np.ndarray[Any, Any]):
    """An array whose address is on a device."""


def device_view(address: int, entries: int, dtype: np.dtype[Any]) -> DeviceView:
    """Return the array [entries] that begins at an address."""
    memory: Any = (ctypes.c_char * (entries * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype).view(DeviceView)
