"""The device layer over CuPy, on its stand-in: kernels, copies, launches and errors."""

from __future__ import annotations

import shutil
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from junctor_kernels.cpu.compilation import Compilation
from junctor_kernels.gpu import blocks, device, entries
from junctor_kernels.gpu.blocks import CudaBlockDevice
from junctor_kernels.gpu.device import (
    TO_HOST,
    CudaDevice,
    CudaError,
    KernelModule,
    as_struct,
    cuda_errors,
    cuda_source,
    register_host,
)
from junctor_kernels.gpu.entries import carried


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    from emulation import cupy_memory

    cupy_memory.stand_in(monkeypatch)
    return cupy_memory


def test_a_source_begins_with_macros_and_constants() -> None:
    text = cuda_source(("numbers.cu",), {"A": 1, "B": 2}, double=True, before="#define LOGS")
    assert text.splitlines()[:3] == ["#define DOUBLE", "#define LOGS", "enum { A = 1, B = 2 };"]
    assert cuda_source(("numbers.cu",), {"A": 1}).startswith("enum { A = 1 };\n")


def test_kernels_are_looked_up_once_for_each_device_and_variant(monkeypatch: pytest.MonkeyPatch, cupy: Any) -> None:
    made = []

    class Module:
        def __init__(self, code: str, options: tuple[str, ...]) -> None:
            made.append((code, options))

        def get_function(self, name: str) -> Any:
            if name == "missing":
                raise KeyError(name)
            return object()

    monkeypatch.setattr(cupy, "RawModule", Module)
    module = KernelModule(lambda variant="plain": f"code of {variant}", ("-fmad=false",))
    one, other = CudaDevice(0), CudaDevice(1)
    kernel = module.function(one, "add", "single")
    assert module.function(one, "add", "single") is kernel
    assert module.function(CudaDevice(0), "add", "single") is kernel
    assert module.function(one, "add", "double") is not kernel
    assert module.function(other, "add", "single") is not kernel
    module.function(one, "add")
    options = ("-std=c++17", "-fmad=false")
    assert made == [(f"code of {name}", options) for name in ("single", "double", "single", "plain")]
    with pytest.raises(KeyError) as caught:
        module.function(one, "missing", "single")
    assert "missing" in caught.value.__notes__[0]


def test_what_the_compiler_of_cuda_compiles_is_told_and_counted(monkeypatch: pytest.MonkeyPatch, cupy: Any) -> None:
    kept: set[str] = set()

    class Program:
        def __init__(self, text: str) -> None:
            self.src = text

        def compile(self, options: tuple[str, ...], log: Any = None) -> str:
            if self.src.startswith("bad"):
                raise RuntimeError(self.src)
            kept.add(self.src)
            return "code"

    class Module:
        def __init__(self, code: str, options: tuple[str, ...]) -> None:
            self.code, self.options = code, options

        def get_function(self, name: str) -> Any:
            # CuPy asks its files first.
            return self.code in kept or Program(self.code).compile(self.options, log=None)

    counted, told = Compilation(), list[str]()
    counted.listener = lambda: told.append("told")
    monkeypatch.setattr(device, "compilation", counted)
    monkeypatch.setattr(cupy, "RawModule", Module)
    monkeypatch.setattr(cupy.cuda, "compiler", SimpleNamespace(_NVRTCProgram=Program), raising=False)
    device._count_compilation.cache_clear()
    module = KernelModule(lambda variant="plain": f"source of {variant}")
    # Those of others, and what CuPy has on disk, are not told of.
    Program("source of others").compile(())
    kept.add("source of kept")
    module.function(CudaDevice(0), "add", "kept")
    assert (counted.functions, told) == (0, [])
    assert module.function(CudaDevice(0), "add", "single") == "code"
    assert (counted.functions, told) == (1, ["told"])
    module.function(CudaDevice(0), "multiply", "single")
    module.function(CudaDevice(0), "add", "double")
    assert (counted.functions, told) == (2, ["told"])
    with pytest.raises(RuntimeError, match="bad source"):
        KernelModule(lambda: "bad source").function(CudaDevice(0), "add")
    # It has ended, too.
    assert counted._under_way == 0


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to compile the GPU kernels for the CPU")
def test_copies_and_launches_of_a_stream_arrive_in_order(cupy: Any) -> None:
    device = CudaDevice()
    stream = device.stream()
    source = np.arange(12, dtype=np.float32).reshape(3, 4)
    target, carried_to, back = np.zeros((3, 2), np.float32), np.zeros(6, np.float32), np.zeros(6, np.float32)
    device.copy_rows(target.ctypes.data, 8, source[:, 1:].ctypes.data, 16, 8, 3, stream)
    words = carried(carried_to.ctypes.data, target.ctypes.data, 6)
    kernel = entries.KERNELS.function(device, "carry", "single")
    device.launch_kernel(kernel, (1,), entries.THREADS, (as_struct(words),), stream)
    device.copy_bytes(back.ctypes.data, carried_to.ctypes.data, 24, stream, TO_HOST)
    device.synchronize_all()
    assert back.tolist() == source[:, 1:3].reshape(-1).tolist()


def test_errors_of_the_runtime_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch, cupy: Any) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("out of memory")

    def misread(*_: Any) -> None:
        raise RuntimeError("illegal address")

    with pytest.raises(CudaError, match="illegal address"), cuda_errors():
        misread()
    with pytest.raises(MemoryError, match="out of memory"), cuda_errors():
        refuse()
    with pytest.raises(MemoryError, match="3 bytes"), cuda_errors():
        raise MemoryError("3 bytes")
    monkeypatch.setattr(cupy.cuda, "alloc_pinned_memory", refuse)
    with pytest.raises(MemoryError, match="80 bytes of pinned memory: out of memory"):
        CudaDevice().pinned(10, np.float64, pooled=True)
    monkeypatch.setattr(cupy.runtime, "hostRegister", refuse)
    with pytest.raises(MemoryError, match="16 bytes of pinned memory"):
        register_host(np.zeros(2))
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError):
        CudaDevice()


@pytest.mark.parametrize("times", [1, 3, 4])
def test_pages_that_another_thread_gives_back_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, cupy: Any, times: int
) -> None:
    errors = [RuntimeError("cudaErrorAlreadyMapped: resource already mapped")] * times

    def take(size: int) -> bytearray:
        if errors:
            raise errors.pop()
        return bytearray(size)

    monkeypatch.setattr(device, "ASK_AGAIN", (0, 0, 0))
    monkeypatch.setattr(cupy.cuda, "alloc_pinned_memory", take)
    if times < 4:
        assert CudaDevice().pinned(10, pooled=True).size == 10
    else:
        with pytest.raises(MemoryError, match="already mapped"):
            CudaDevice().pinned(10, pooled=True)


@pytest.mark.parametrize("make", ["empty", "zeros", "asarray"])
def test_so_is_memory_of_the_device(monkeypatch: pytest.MonkeyPatch, cupy: Any, make: str) -> None:
    errors = [RuntimeError("cudaErrorAlreadyMapped: resource already mapped")] * 2
    real = getattr(cupy, make)

    def refuse(*what: Any) -> Any:
        if errors:
            raise errors.pop()
        return real(*what)

    monkeypatch.setattr(device, "ASK_AGAIN", (0, 0, 0))
    monkeypatch.setattr(cupy, make, refuse)
    ask = {"empty": (3, np.int64), "zeros": (3, np.int64), "asarray": (np.zeros(3),)}[make]
    method = {"asarray": "put"}.get(make, make)
    assert getattr(CudaDevice(), method)(*ask).size == 3
    assert not errors
    errors += [RuntimeError("cudaErrorInvalidValue: invalid argument")]
    with pytest.raises(RuntimeError, match="invalid argument"):
        getattr(CudaDevice(), method)(*ask)
    assert not errors


@pytest.mark.parametrize("end", ["", "the capture was invalidated"])
def test_a_capture_that_fails_is_ended(cupy: Any, end: str) -> None:
    class Recorded:
        capturing = False

        def begin_capture(self) -> None:
            self.capturing = True

        def end_capture(self) -> None:
            self.capturing = False
            if end:
                raise cupy.cuda.runtime.CUDARuntimeError(end)

    def enqueue() -> None:
        assert stream.capturing
        raise cupy.cuda.runtime.CUDARuntimeError("out of memory")

    stream: Any = Recorded()
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="out of memory"):
        CudaDevice().capture(stream, enqueue)
    assert not stream.capturing


def test_devices_reach_each_other_where_they_can(monkeypatch: pytest.MonkeyPatch, cupy: Any) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("already enabled")

    one, other = CudaDevice(0), CudaDevice(1)
    assert one.enable_peer(other)
    monkeypatch.setattr(cupy.runtime, "deviceEnablePeerAccess", refuse)
    assert one.enable_peer(other)
    monkeypatch.setattr(cupy.runtime, "deviceCanAccessPeer", lambda *_: 0)
    assert not one.enable_peer(other)


def test_pinned_memory_of_no_entries_is_an_empty_array(cupy: Any) -> None:
    assert CudaDevice().pinned(0, np.float64, pooled=True).shape == (0,)


def test_large_pinned_memory_is_registered_as_long_as_it_is_used(monkeypatch: pytest.MonkeyPatch, cupy: Any) -> None:
    pinned: dict[int, int] = {}
    monkeypatch.setattr(cupy.runtime, "hostRegister", lambda address, size, _: pinned.update({address: size}))
    monkeypatch.setattr(cupy.runtime, "hostUnregister", pinned.pop, raising=False)
    monkeypatch.setattr(device, "REGISTERED_BYTES", 800)
    array = CudaDevice().pinned(100, np.float64)
    assert pinned == {array.ctypes.data: 800}
    part = array[50:]
    del array
    assert len(pinned) == 1
    del part
    assert not pinned


@pytest.mark.usefixtures("memory")
def test_pages_that_others_have_mapped_are_pinned_as_long_as_they_are_used(
    monkeypatch: pytest.MonkeyPatch, cupy: Any
) -> None:
    pinned: dict[int, int] = {}
    monkeypatch.setattr(cupy.runtime, "hostRegister", lambda address, size, _: pinned.update({address: size}))
    monkeypatch.setattr(cupy.runtime, "hostUnregister", pinned.pop, raising=False)
    monkeypatch.setattr(blocks, "MAPPED_BYTES", 1000)
    memory = CudaBlockDevice(0, 1 << 20).host(1000, lambda size: np.full(size, 7, np.uint8))
    assert pinned == {memory.ctypes.data: 1000}
    assert memory.tolist() == [7] * 1000
    part = memory.view(np.float32)[5:].reshape(-1, 5)
    del memory
    assert len(pinned) == 1
    del part
    assert not pinned


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, cupy: Any) -> dict[str, int]:
    """The bytes that are free and that there are in all, as the stand-in tells them."""
    words = {"free": 1 << 30, "all": 1 << 30}
    monkeypatch.setattr(cupy.runtime, "memGetInfo", lambda: (words["free"], words["all"]), raising=False)
    properties = {"multiProcessorCount": 1, "totalGlobalMem": words["all"], "name": b"stand-in"}
    monkeypatch.setattr(CudaDevice, "_properties", properties)
    monkeypatch.setattr(CudaDevice, "capability", 90)
    monkeypatch.setattr(CudaDevice, "reserve", lambda self, size: None)
    return words


@pytest.mark.usefixtures("memory")
def test_blocks_on_one_gpu_go_one_after_the_other() -> None:
    # Kernels find what they read in one place of a GPU: blocks in other streams would change it meanwhile.
    one, other, apart = CudaBlockDevice(0, 1 << 20), CudaBlockDevice(0, 1 << 21), CudaBlockDevice(1)
    assert one._work is other._work
    assert one._work is not apart._work
    # What one thread records is none of what another one enqueues.
    recorded = {stream.ptr for gpu in (one, other) for stream in (gpu._recorded, gpu._beside)}
    assert len(recorded) == 4
    assert not recorded & {stream.ptr for stream in (one._in, one._work, one._out)}


@pytest.mark.usefixtures("memory")
def test_a_lack_of_memory_for_a_graph_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(*_: Any) -> None:
        raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory")

    device, work = CudaBlockDevice(0, 1 << 20), blocks.LaunchList("double", None, None, [], 1, blocks.FEW_CASES)
    monkeypatch.setattr(CudaDevice, "capture", capture)
    with pytest.raises(MemoryError, match="out of memory"):
        device.replay(work)


def test_a_gpu_with_hardly_any_memory_is_not_opened(memory: dict[str, int]) -> None:
    # Two sizes: the driver needs some for itself, and what is allowed may be less than what is free.
    assert CudaBlockDevice(0).room == int(blocks.DEVICE_SHARE * memory["all"])
    assert CudaBlockDevice(0, 5000).room == 5000
    memory["free"] = blocks.LEAST_ROOM
    with pytest.raises(MemoryError, match="67,108,864 bytes of device memory are free"):
        CudaBlockDevice(0, 5000)
