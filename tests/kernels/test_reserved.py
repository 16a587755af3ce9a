"""Memory of a GPU that is taken when it is first needed, on a stand-in for the driver and on a GPU."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junctor_kernels.gpu import reserved
from junctor_kernels.gpu.device import CudaDevice
from junctor_kernels.gpu.reserved import ReservedMemory

GRANULE, START, NO_MEMORY, NOT_STARTED, INVALID = 1 << 21, 1 << 40, 2, 3, 1


class Driver:
    """A driver of one address range: what is mapped there, and which devices may use it.

    free: bytes of the device. ranges: (address, size) -> devices. pieces: size of what nobody has mapped yet.
    """

    def __init__(self, free: int, supported: int = 1) -> None:
        self.free, self.supported = free, supported
        self.reserved = 0
        self.pieces: dict[int, int] = {}
        self.ranges: dict[tuple[int, int], list[int]] = {}
        self.refuses = ""
        self.started = False

    def cuInit(self, flags: int) -> int:
        self.started = True
        return 0

    def cuDeviceGetAttribute(self, found: Any, attribute: int, number: int) -> int:
        if not self.started:
            return NOT_STARTED
        found._obj.value = self.supported
        return 0

    def cuMemGetAllocationGranularity(self, granule: Any, kind: Any, option: int) -> int:
        granule._obj.value = GRANULE
        return 0

    def cuMemAddressReserve(self, address: Any, size: Any, *rest: Any) -> int:
        assert size.value % GRANULE == 0
        self.reserved, address._obj.value = size.value, START
        return 0

    def cuMemCreate(self, piece: Any, size: Any, kind: Any, flags: Any) -> int:
        assert size.value % GRANULE == 0
        assert (kind._obj.type, kind._obj.location.type) == (1, 1)
        if size.value > self.free:
            return NO_MEMORY
        self.free -= size.value
        piece._obj.value = len(self.pieces) + 1
        self.pieces[piece._obj.value] = size.value
        return 0

    def cuMemMap(self, address: Any, size: Any, offset: Any, piece: Any, flags: Any) -> int:
        if self.refuses == "cuMemMap":
            return INVALID
        assert START <= address.value <= START + self.reserved - size.value
        assert self.pieces.pop(piece.value) == size.value
        for other, count in self.ranges:
            assert other + count <= address.value
        self.ranges[address.value, size.value] = []
        return 0

    def cuMemRelease(self, piece: Any) -> int:
        # What is mapped stays.
        self.free += self.pieces.pop(piece.value, 0)
        return 0

    def cuMemSetAccess(self, address: Any, size: Any, readers: Any, count: Any) -> int:
        assert all((reader.location.type, reader.flags) == (1, 3) for reader in readers)
        assert len(readers) == count.value
        self.ranges[address.value, size.value] = [reader.location.number for reader in readers]
        return 0

    def cuMemUnmap(self, address: Any, size: Any) -> int:
        del self.ranges[address.value, size.value]
        self.free += size.value
        return 0

    def cuMemAddressFree(self, address: Any, size: Any) -> int:
        assert (address.value, size.value, self.ranges) == (START, self.reserved, {})
        self.reserved = 0
        return 0

    def cuGetErrorName(self, failed: int, name: Any) -> int:
        name._obj.value = {NO_MEMORY: b"CUDA_ERROR_OUT_OF_MEMORY", INVALID: b"CUDA_ERROR_INVALID_VALUE"}[failed]
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    from emulation import cupy_memory

    cupy_memory.stand_in(monkeypatch)
    driver = Driver(free=1 << 30)
    monkeypatch.setattr(reserved, "driver", lambda: driver)
    return driver


def test_memory_is_taken_when_it_is_needed_and_goes_back(driver: Driver) -> None:
    memory = ReservedMemory(CudaDevice(), 300 << 20)
    assert (memory.address, memory.taken, driver.free) == (START, 0, 1 << 30)
    memory.take(1000)
    # A piece at a time, and no more than there may be.
    assert memory.taken == reserved.PIECE == (1 << 30) - driver.free
    memory.take(reserved.PIECE)
    assert memory.taken == reserved.PIECE
    memory.take(250 << 20)
    assert memory.taken == 250 << 20
    memory.take(300 << 20)
    assert memory.taken == 300 << 20
    del memory
    assert (driver.reserved, driver.free) == (0, 1 << 30)


def test_memory_goes_back_once_nothing_is_captured(driver: Driver) -> None:
    device = CudaDevice()
    memory = ReservedMemory(device, 1 << 26)
    memory.take(1)
    with device.captures.apart():
        # As a collection does, whenever it comes.
        del memory
        assert driver.reserved == 1 << 26
    assert (driver.reserved, driver.free) == (0, 1 << 30)


@given(st.integers(1, 1 << 29), st.lists(st.floats(0, 1), max_size=8))
def test_what_is_taken_is_whole_and_holds_what_was_asked_for(size: int, shares: list[float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        driver = Driver(free=1 << 30)
        from emulation import cupy_memory

        cupy_memory.stand_in(patch)
        patch.setattr(reserved, "driver", lambda: driver)
        memory, most = ReservedMemory(CudaDevice(), size), 0
        for share in shares:
            most = max(most, int(share * size))
            memory.take(int(share * size))
            assert most <= memory.taken < max(most, reserved.PIECE) + GRANULE or memory.taken < size + GRANULE
            assert sum(count for _, count in driver.ranges) == memory.taken
        del memory
        assert (driver.reserved, driver.free) == (0, 1 << 30)


def test_other_devices_reach_what_is_there_and_what_comes(driver: Driver) -> None:
    memory = ReservedMemory(CudaDevice(2), 1 << 28)
    memory.take(1)
    memory.open_to(0)
    memory.open_to(0)
    memory.take(1 << 28)
    assert list(driver.ranges.values()) == [[2, 0], [2, 0]]


def test_a_lack_of_memory_is_told_and_leaves_what_there_was(driver: Driver) -> None:
    memory = ReservedMemory(CudaDevice(), 1 << 31)
    memory.take(1 << 28)
    with pytest.raises(MemoryError, match="1,879,048,192 bytes of device memory: CUDA_ERROR_OUT_OF_MEMORY"):
        memory.take(1 << 31)
    driver.refuses = "cuMemMap"
    with pytest.raises(MemoryError, match="67,108,864 bytes of device memory: CUDA_ERROR_INVALID_VALUE"):
        memory.take((1 << 28) + 1)
    driver.refuses = ""
    assert (memory.taken, driver.free) == (1 << 28, (1 << 30) - (1 << 28))
    memory.take(1 << 29)
    assert memory.taken == 1 << 29


def test_without_addresses_all_is_taken_at_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.supported, sizes = 0, list[int]()

    def allocate(_: CudaDevice, size: int) -> Any:
        sizes.append(size)
        return SimpleNamespace(ptr=12345)

    monkeypatch.setattr(CudaDevice, "allocate", allocate)
    memory = ReservedMemory(CudaDevice(), 1000)
    memory.take(1000)
    memory.open_to(1)
    assert (sizes, memory.address, memory.taken, driver.ranges) == ([1000], 12345, 1000, {})


@pytest.mark.gpu
@pytest.mark.parametrize("reserves", [True, False])
def test_arrays_of_a_gpu_lie_in_its_memory(monkeypatch: pytest.MonkeyPatch, reserves: bool) -> None:
    import cupy

    if not reserves:
        monkeypatch.setattr(reserved, "can_reserve", lambda number: False)
    device, size = CudaDevice(), 1 << 29
    memory = device.reserve(size)
    assert memory.taken == (0 if reserves else size)
    first = device.array_at(memory, 0, (1000,), np.int64)
    first[:] = cupy.arange(1000)
    assert memory.taken == (reserved.PIECE if reserves else size)
    last = device.array_at(memory, size - 8000, (1000,), np.int64)
    last[:] = first
    assert memory.taken == size
    del memory, first
    # Arrays keep it.
    assert device.get(last).tolist() == list(range(1000))


@pytest.mark.gpu
def test_a_gpu_gets_its_memory_back() -> None:
    device = CudaDevice()
    # Other processes may use it meanwhile: not by what is free.
    share = int(0.4 * device.figures["memory"])
    several = [device.reserve(share) for _ in range(4)]
    for _ in range(3):
        several.pop().take(share)
    with pytest.raises(MemoryError, match="bytes of device memory"):
        device.reserve(1 << 44).take(1 << 44)


@pytest.mark.gpu
def test_a_capture_outlives_what_goes_back_meanwhile() -> None:
    import cupy

    device, stream, ran = CudaDevice(), cupy.cuda.Stream(non_blocking=True), cupy.zeros(1000, np.int32)
    several = [device.reserve(1 << 26) for _ in range(8)]
    others, done = [device.reserve(1 << 26) for _ in range(8)], threading.Event()
    for memory in (*several, *others):
        memory.take(1)

    def of_another_thread() -> None:
        while others:
            others.pop()
            CudaDevice().synchronize_all()
        done.set()

    thread = threading.Thread(target=of_another_thread)

    def enqueue() -> None:
        if others:
            thread.start()
        for _ in range(8):
            several.pop()
            with stream:
                ran[...] += 1
            # The other thread waits for this capture.
            assert not done.wait(0.01)

    # Compiled before.
    ran[...] += 0
    device.synchronize_all()
    graph = device.capture(stream, enqueue)
    graph.launch(stream)
    stream.synchronize()
    thread.join()
    assert device.get(ran).tolist() == [8] * 1000
