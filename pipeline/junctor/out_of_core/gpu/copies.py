"""Arrays that lie on a device, as NumPy sees them: addresses, shapes and strides, good for copies only."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Where rows begin, and how many bytes they are apart, in the target and in the source; their width, and how many.
Copy = tuple[int, int, int, int, int, int]
# Bytes that rows of a copy may be apart.
MOST_PITCH = (1 << 31) - 1


def copies(target: Array, source: Array) -> Iterator[Copy]:
    """Yield the fewest copies of rows between two arrays of one shape whose last axes are contiguous."""
    axes = [(1, target.itemsize, source.itemsize)]
    for size, one, other in reversed(list(zip(target.shape, target.strides, source.strides, strict=True))):
        faster, *strides = axes[-1]
        if size > 1 and (one, other) == (faster * strides[0], faster * strides[1]):
            axes[-1] = (faster * size, *strides)
        elif size > 1:
            axes.append((size, one, other))
    width = axes[0][0] * target.itemsize
    rows, *pitches = axes[1] if len(axes) > 1 else (1, width, width)
    outer = axes[2:]
    if max(pitches) > MOST_PITCH:
        rows, outer = 1, axes[1:]
    for index in itertools.product(*(range(size) for size, _, _ in outer)):
        to, of = (sum(n * each[k] for n, each in zip(index, outer, strict=True)) for k in (1, 2))
        yield target.ctypes.data + to, pitches[0], source.ctypes.data + of, pitches[1], width, rows


def enqueue(runtime: Any, stream: Any, target: Array, source: Array) -> None:
    """Enqueue copies between arrays of one shape whose last axes are contiguous, wherever they lie."""
    enqueue_all(runtime, stream, copies(target, source))


def enqueue_all(runtime: Any, stream: Any, each: Iterable[Copy], to_by: int = 0, of_by: int = 0) -> None:
    """Enqueue copies whose targets, and sources, lie so many bytes further on."""
    for to, pitch, of, other_pitch, width, rows in each:
        ends = (to + to_by, of + of_by)
        if rows == 1:
            runtime.memcpyAsync(*ends, width, runtime.memcpyDefault, stream.ptr)
        else:
            runtime.memcpy2DAsync(ends[0], pitch, ends[1], other_pitch, width, rows, runtime.memcpyDefault, stream.ptr)


class DeviceView(np.ndarray[Any, Any]):
    """An array whose address is on the device."""


def lying_at(address: int, entries: int, dtype: np.dtype[Any]) -> DeviceView:
    """Return what lies at an address [entries]."""
    memory: Any = (ctypes.c_char * (entries * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype).view(DeviceView)
