"""Memory of a GPU behind addresses that are reserved, by the driver itself: it is taken when it is first needed.

What is not needed stays with the other processes of the GPU. Memory that moved as it grew would leave CUDA graphs with
addresses of before. Called by `CudaDevice`; structures and numbers are those of cuda.h ("Virtual Memory Management").
"""

from __future__ import annotations

import ctypes
import weakref
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any, Protocol

from junctor_kernels.gpu.captures import Captures
from junctor_kernels.gpu.early_launch import driver

# Bytes that are taken at a time, where there are so many left: each piece takes the driver a while.
PIECE = 1 << 26
# CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_PINNED, _ON_DEVICE, _READ_WRITE = 1, 1, 3
# CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
_SUPPORTED = 102


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("number", ctypes.c_int))


class _Kind(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("shared_as", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class Device(Protocol):
    """As much of `CudaDevice` as is needed here."""

    number: int
    captures: Captures

    def current(self) -> AbstractContextManager[None]:
        """Context manager: it is the current device of this thread."""

    def allocate(self, size: int) -> Any:
        """Return bytes at the address `ptr` that go back with the object; raises MemoryError."""

    def synchronize_apart(self) -> None:
        """Wait until all work is done, where nothing is captured."""


def can_reserve(number: int) -> bool:
    """Return True if a device can reserve addresses; some of virtual machines cannot."""
    found = ctypes.c_int()
    # Nobody may have started the driver yet; a second start does nothing.
    driver().cuInit(0)
    return not driver().cuDeviceGetAttribute(ctypes.byref(found), _SUPPORTED, number) and found.value != 0


class ReservedMemory:
    """Addresses of a device whose bytes become memory from the first one on; it goes back with the object.

    device: which nobody else keeps. Where it cannot reserve addresses, all is memory at once.
    size: bytes that there may be.
    address: of the first one.
    Raises MemoryError.
    """

    def __init__(self, device: Device, size: int) -> None:
        self._device, self.size = device, size
        self._kind = _Kind(_PINNED, 0, _Location(_ON_DEVICE, device.number))
        self._readers = [device.number]
        self._lock = Lock()
        # Addresses and sizes of what is memory.
        self._pieces: list[tuple[int, int]] = []
        self._at_once = None if can_reserve(device.number) else device.allocate(size)
        if self._at_once is not None:
            self.address = int(self._at_once.ptr)
            return
        granule, address = ctypes.c_size_t(), ctypes.c_uint64()
        with device.current():
            self._ask("cuMemGetAllocationGranularity", size, ctypes.byref(granule), ctypes.byref(self._kind), 0)
            self._granule = granule.value
            whole = self._whole(max(1, size))
            self._ask("cuMemAddressReserve", size, ctypes.byref(address), _bytes(whole), _bytes(0), _word(0), _word(0))
        self.address = address.value
        # At the end of the process the driver takes it back.
        weakref.finalize(self, _give_back, device, self.address, whole, self._pieces).atexit = False

    @property
    def taken(self) -> int:
        """How many bytes are memory."""
        return self.size if self._at_once is not None else sum(size for _, size in self._pieces)

    def take(self, end: int) -> None:
        """Make memory of the bytes ahead of `end` that are none yet; raises MemoryError."""
        with self._lock, self._device.current():
            if end > self.taken:
                self._add(self._whole(min(self.size, max(end, self.taken + PIECE))) - self.taken)

    def open_to(self, number: int) -> None:
        """Let another device read and write what is memory, and what becomes memory later; raises MemoryError."""
        with self._lock, self._device.current():
            if number not in self._readers:
                self._readers.append(number)
                for address, size in self._pieces:
                    self._open(address, size)

    def _add(self, size: int) -> None:
        address, piece = self.address + self.taken, ctypes.c_uint64()
        self._ask("cuMemCreate", size, ctypes.byref(piece), _bytes(size), ctypes.byref(self._kind), _word(0))
        try:
            self._ask("cuMemMap", size, _word(address), _bytes(size), _bytes(0), piece, _word(0))
        finally:
            # The addresses keep it from now on.
            driver().cuMemRelease(piece)
        self._pieces.append((address, size))
        self._open(address, size)

    def _open(self, address: int, size: int) -> None:
        readers = (_Access * len(self._readers))()
        for reader, number in zip(readers, self._readers, strict=True):
            reader.location, reader.flags = _Location(_ON_DEVICE, number), _READ_WRITE
        self._ask("cuMemSetAccess", size, _word(address), _bytes(size), readers, _bytes(len(readers)))

    def _whole(self, size: int) -> int:
        return -(-size // self._granule) * self._granule

    def _ask(self, function: str, size: int, *arguments: Any) -> None:
        """Call a function of the driver for so many bytes."""
        failed = getattr(driver(), function)(*arguments)
        if failed:
            name = ctypes.c_char_p()
            driver().cuGetErrorName(failed, ctypes.byref(name))
            raise MemoryError(f"{size:,} bytes of device memory: {(name.value or b'').decode()}")


def _give_back(device: Device, address: int, size: int, pieces: list[tuple[int, int]]) -> None:
    def unmap() -> None:
        with device.current():
            # The driver does not wait for those who use it.
            device.synchronize_apart()
            for piece, count in pieces:
                driver().cuMemUnmap(_word(piece), _bytes(count))
            driver().cuMemAddressFree(_word(address), _bytes(size))

    device.captures.later(unmap)


# The driver would get 32 bits of a plain number.
_bytes, _word = ctypes.c_size_t, ctypes.c_uint64
