"""Pinned memory of the host."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from emulation import cupy_memory
from junctor.out_of_core.gpu.staging import pinned
from junctor.runtime.buffer_pool import THREAD_BYTES


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy_memory.stand_in(monkeypatch)


@pytest.mark.parametrize("size", [0, 1, 4097, 3 * THREAD_BYTES + 5])
def test_pinned_memory_can_be_written(size: int) -> None:
    memory = pinned(size)
    assert memory.dtype == np.uint8
    assert memory.shape == (size,)
    memory[-1:] = 7
    assert memory[-1:].tolist() == [7][:size]


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not list what it maps")
def test_pages_belong_to_this_process_and_stay_where_they_are() -> None:
    """A device has their addresses: a fork must not make this process go on with copies of them."""
    memory = pinned(1 << 21)
    flags = mapping_flags(memory.ctypes.data)
    assert "wf" in flags  # empty in a child
    assert "sh" not in flags  # shared memory seldom gets huge pages
    memory.fill(3)
    child = os.fork()
    if not child:
        os._exit(int(memory.any()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert int(memory.sum()) == 3 << 21


def mapping_flags(address: int) -> list[str]:
    """Return the kernel's flags of the mapping that holds an address."""
    within = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *others = line.split()
        if "-" in first and ":" not in first:
            start, end = (int(part, 16) for part in first.split("-"))
            within = start <= address < end
        elif within and first == "VmFlags:":
            return others
    pytest.fail(f"no mapping at {address:#x}")
