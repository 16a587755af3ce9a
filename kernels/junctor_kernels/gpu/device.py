"""The only module that touches CuPy: compiled CUDA sources, and memory, streams, copies and launches of a device.

`KernelModule` makes kernels of the files in `cuda/`. `CudaDevice` is what the devices for blocks of cases, stored
cliques, hidden Markov models, samples and plans out of core are made of. CuPy is loaded with the first of them.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.compilation import compilation
from junctor_kernels.gpu import early_launch
from junctor_kernels.gpu.captures import captures_of
from junctor_kernels.gpu.reserved import ReservedMemory

CUDA_FILES = Path(__file__).parent / "cuda"
STANDARD = "-std=c++17"
# Kinds of copies (cudaMemcpyKind). With the last the driver finds out by the addresses where both ends are.
TO_DEVICE, TO_HOST, ON_DEVICE, ANYWHERE = 1, 2, 3, 4
# Pinned for all devices of the process, not for the current one alone (cudaHostRegisterPortable).
PORTABLE = 1

# Compute capability, in tenths, from which on there are bulk copies.
BULK_CAPABILITY = 90

# Bytes of pinned memory from which on it is taken from the system: whole pages, which no other array has a part of.
REGISTERED_BYTES = 1 << 26
# What the driver says of addresses that have something already, and seconds until it is asked again: what another
# thread gives back is free for the system before it is for the driver, and both share one range of addresses.
ALREADY_MAPPED, ASK_AGAIN = "cudaErrorAlreadyMapped", (0.001, 0.01, 0.1)

# Arrays, streams, events, graphs and kernels of CuPy, whose types are not known where it is not installed.
DeviceArray = Any
Stream = Any
Event = Any
Graph = Any
Kernel = Any
Array = npt.NDArray[Any]
Allocated = TypeVar("Allocated")


class CudaError(RuntimeError):
    """What CUDA refused to do, in its own words."""


@contextmanager
def cuda_errors() -> Iterator[None]:
    """Context manager: errors of CUDA become CudaError, lacks of memory MemoryError; ImportError without CuPy."""
    import cupy

    try:
        yield
    except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
        # As the runtime and the driver say it, also of memory for a context, a module or a graph.
        raise (MemoryError if "out of memory" in str(error) else CudaError)(str(error)) from error


def cuda_source(files: Sequence[str], constants: Mapping[str, int], double: bool = False, before: str = "") -> str:
    """Return CUDA files as one text.

    files: names in `cuda/`, in their order.
    constants: integers by name. They come as an enumeration: unlike macros, they cannot change what a file means.
    double: whether the macro DOUBLE makes numbers those of double precision.
    before: lines behind that macro and before the constants.
    """
    values = ", ".join(f"{name} = {value}" for name, value in constants.items())
    head = ["#define DOUBLE"] * double + [before] * bool(before) + [f"enum {{ {values} }};"]
    return "\n".join([*head, *((CUDA_FILES / file).read_text() for file in files)])


# Compared by identity: it is part of the key of every look-up of a kernel.
@dataclass(frozen=True, eq=False, slots=True)
class KernelModule:
    """Kernels that are compiled together, when one of them is first asked for on a device.

    source: returns their CUDA C++ text, of a variant (an algebra or the name of a number format) where there are some.
    options: of the compiler, beside the C++ standard.
    """

    source: Callable[..., str]
    options: tuple[str, ...] = ()

    def text(self, variant: str | None = None) -> str:
        """Return the CUDA C++ text of a variant."""
        return self.source() if variant is None else self.source(variant)

    def load(self, device: CudaDevice, variant: str | None = None) -> None:
        """Compile now what would be compiled at the first use."""
        import cupy

        with device.current():
            _compiled(cupy, self, device.number, variant).compile()

    def function(self, device: CudaDevice, name: str, variant: str | None = None) -> Kernel:
        """Return a kernel on a device; the same object at every call."""
        import cupy

        return _function(cupy, self, device.number, variant, name)

    def address(self, device: CudaDevice, name: str, variant: str | None = None) -> int:
        """Return the address of a global variable of the module on a device."""
        import cupy

        with device.current():
            return int(_compiled(cupy, self, device.number, variant).get_global(name).ptr)


# CuPy is part of the key: where a stand-in takes its place for a while, kernels of the one are none of the other.
@cache
def _compiled(cupy: Any, module: KernelModule, number: int, variant: str | None) -> Any:
    # A module belongs to the device on which it is loaded.
    text = module.text(variant)
    _count_compilation(cupy)
    _texts.add(text)
    with cupy.cuda.Device(number):
        return cupy.RawModule(code=text, options=(STANDARD, *module.options))


# Sources of kernels, among those of others in this process.
_texts: set[str] = set()


@cache
def _count_compilation(cupy: Any) -> None:
    """Let `compilation` count, and tell, what the compiler of CUDA compiles, which CuPy has not kept on disk."""
    with suppress(AttributeError):
        program = cupy.cuda.compiler._NVRTCProgram
        compile_program = program.compile

        def compile_and_count(self: Any, *args: Any, **options: Any) -> Any:
            if getattr(self, "src", None) not in _texts:
                return compile_program(self, *args, **options)
            compilation.begin()
            try:
                return compile_program(self, *args, **options)
            finally:
                compilation.end()

        program.compile = compile_and_count


@cache
def _function(cupy: Any, module: KernelModule, number: int, variant: str | None, name: str) -> Kernel:
    # CuPy compiles and loads here, for whichever device is the current one.
    with cupy.cuda.Device(number):
        try:
            return _compiled(cupy, module, number, variant).get_function(name)
        except Exception as error:
            error.add_note(f"the CUDA kernel {name} of {module.source.__module__} ({variant or 'all numbers'})")
            raise


def as_struct(words: npt.NDArray[np.int64]) -> Array:
    """Return the words of a struct as one value, to be passed to a kernel: CuPy passes no longer arrays by value."""
    return words.view(_struct_type(words.nbytes))


@cache
def _struct_type(size: int) -> np.dtype[np.void]:
    # Kept: making one from its name takes longer than the view.
    return np.dtype((np.void, size))


def address_of(array: DeviceArray) -> int:
    """Return where an array of a device begins."""
    return int(array.data.ptr)


def register_host(array: Array) -> None:
    """Pin the memory of an array, for all devices and as long as the array lives; raises MemoryError."""
    import cupy

    runtime, address = cupy.cuda.runtime, array.ctypes.data
    _pin(lambda: runtime.hostRegister(address, array.nbytes, PORTABLE), array.nbytes)
    # At the end of the process the system takes it back faster.
    weakref.finalize(array, runtime.hostUnregister, address).atexit = False


def _pin(take: Callable[[], Allocated], size: int) -> Allocated:
    """Return what `take` does, memory of the host that is pinned; raises MemoryError."""
    with _memory_errors(size, "pinned memory"):
        return _taken(take)


def _taken(take: Callable[[], Allocated]) -> Allocated:
    """Return memory that `take` asks the driver for, which may have to be asked again."""
    import cupy

    for wait in ASK_AGAIN:
        try:
            return take()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            if ALREADY_MAPPED not in str(error):
                raise
        time.sleep(wait)
    return take()


@contextmanager
def _memory_errors(size: int, what: str) -> Iterator[None]:
    """Context manager: errors of CUDA become MemoryError."""
    try:
        with cuda_errors():
            yield
    except (CudaError, MemoryError) as error:
        raise MemoryError(f"{size:,} bytes of {what}: {error}") from error


class CudaDevice:
    """A GPU of this process: memory, streams, events, copies, launches and graphs.

    Nothing is allocated and no context created before something is asked of it.

    number: of the device, among those that the process sees.
    queue: who enqueues things that belong together holds it.
    captures: who captures a graph, or waits for the device.
    main: the stream of whatever names no other; None for the current one of the thread.
    Raises ImportError without CuPy.
    """

    def __init__(self, number: int = 0) -> None:
        import cupy

        self._cupy = cupy
        # Kept, because copies ask for it thousands of times a second.
        self._runtime = cupy.cuda.runtime
        self.number = number
        self.queue = DeviceLock(self._cupy, number)
        self.captures = captures_of(number)
        self.main: Stream | None = None

    # What it is.

    @cached_property
    def name(self) -> str:
        """Its name, as its maker calls it."""
        return str(self._properties["name"].decode())

    @cached_property
    def figures(self) -> dict[str, float]:
        """Multiprocessors, bytes of memory and compute capability: by these devices are alike or not."""
        figures = {
            "multiprocessors": self._properties["multiProcessorCount"],
            "memory": self._properties["totalGlobalMem"],
            "capability": self.capability,
        }
        return {name: float(figure) for name, figure in figures.items()}

    @cached_property
    def capability(self) -> int:
        """Compute capability in tenths: 90 for 9.0."""
        return int(self._cupy.cuda.Device(self.number).compute_capability)

    @property
    def overlaps_launches(self) -> bool:
        """Whether a launch may begin before the one ahead of it has ended."""
        return self.capability >= early_launch.OVERLAP_CAPABILITY

    @property
    def copies_in_bulk(self) -> bool:
        """Whether a thread may copy runs through shared memory without moving their bytes itself."""
        return self.capability >= BULK_CAPABILITY

    def attribute(self, name: str) -> int:
        """Return an attribute of the device, by its CUDA name without `cudaDevAttr`."""
        return int(self._cupy.cuda.Device(self.number).attributes[name])

    def copy_engines(self) -> int:
        """Return how many copies it does at a time: with two, one each way."""
        return int(self._properties["asyncEngineCount"])

    @cached_property
    def _properties(self) -> dict[str, Any]:
        properties: dict[str, Any] = self._cupy.cuda.runtime.getDeviceProperties(self.number)
        return properties

    # The current device and stream of a thread.

    @contextmanager
    def current(self, stream: Stream | None = None) -> Iterator[None]:
        """Context manager: the device, and a stream or `main`, are the current ones of this thread."""
        # A new object every time: CuPy's keeps the device before on a stack that threads would share.
        with self._cupy.cuda.Device(self.number), stream or self.main or nullcontext():
            yield

    def use(self) -> None:
        """Make it the current device of this thread from now on."""
        self._cupy.cuda.Device(self.number).use()

    # Memory of the device.

    def free(self) -> int:
        """Return the bytes of the device that nobody has, CuPy's pool of memory included among those who have some."""
        with self.current():
            return int(self._cupy.cuda.runtime.memGetInfo()[0])

    def pooled(self) -> int:
        """Return the bytes that CuPy's pool keeps for arrays to come."""
        with self.current():
            return int(self._cupy.get_default_memory_pool().free_bytes())

    def allocate(self, size: int) -> Any:
        """Return bytes at the address `ptr` that go back with the object, past CuPy's pool; raises MemoryError."""
        with self.current(), _memory_errors(size, "device memory"):
            return _taken(lambda: self._cupy.cuda.Memory(max(1, size)))

    def reserve(self, size: int) -> ReservedMemory:
        """Return addresses of so many bytes for arrays of `array_at`, which take the memory; raises MemoryError."""
        return ReservedMemory(CudaDevice(self.number), size)

    def array_at(
        self, reserved: ReservedMemory, start: int, shape: tuple[int, ...], dtype: npt.DTypeLike
    ) -> DeviceArray:
        """Return the array that begins at a byte of reserved memory; raises MemoryError."""
        reserved.take(start + math.prod(shape) * np.dtype(dtype).itemsize)
        memory = self._cupy.cuda.UnownedMemory(reserved.address, reserved.size, reserved, self.number)
        return self._cupy.ndarray(shape, dtype, self._cupy.cuda.MemoryPointer(memory, start))

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Return an array on the device, not cleared; raises MemoryError."""
        with self.current():
            return _taken(lambda: self._cupy.empty(shape, dtype))

    def zeros(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Return an array of zeros on the device; raises MemoryError."""
        with self.current():
            return _taken(lambda: self._cupy.zeros(shape, dtype))

    def put(self, array: Array) -> DeviceArray:
        """Return a copy of a NumPy array on the device; raises MemoryError."""
        with self.current():
            return _taken(lambda: self._cupy.asarray(array))

    def get(self, array: DeviceArray, out: Array | None = None) -> Array:
        """Return a copy of an array of the device, in `out` if that is given, once everything before is done."""
        with self.current():
            copied: Array = array.get(out=out)
            return copied

    def set(self, array: DeviceArray, values: Array) -> None:
        """Copy values to the beginning of an array of the device."""
        with self.current():
            array[: values.size].set(values)

    def address(self, array: DeviceArray) -> int:
        """Return where an array of the device begins."""
        return address_of(array)

    # Memory of the host.

    def pinned(self, entries: int, dtype: npt.DTypeLike = np.uint8, pooled: bool = False) -> Array:
        """Return memory of the host at the same address on the device, not cleared; raises MemoryError.

        entries: of the array [entries].
        dtype: of an entry.
        pooled: from CuPy's pool, which is fast, but rounds sizes up to powers of two and keeps what was ever used.
        """
        cuda, size = self._cupy.cuda, max(1, entries * np.dtype(dtype).itemsize)
        if not pooled and size >= REGISTERED_BYTES:
            # Half of the time of an allocation by CUDA, because NumPy asks the system for large pages.
            array = np.empty(entries, dtype)
            with self.current():
                register_host(array)
            return array
        with self.current():
            memory = _pin(
                lambda: (
                    cuda.alloc_pinned_memory(size) if pooled else cuda.PinnedMemoryPointer(cuda.PinnedMemory(size), 0)
                ),
                size,
            )
        return np.frombuffer(memory, dtype, entries)

    # Streams and events.

    def stream(self, priority: int | None = None) -> Stream:
        """Return a new stream that does not wait for the default one; priority: lower numbers go first."""
        with self.current():
            return self._cupy.cuda.Stream(non_blocking=True, priority=priority)

    def event(self, timing: bool = False, block: bool = False) -> Event:
        """Return a new event.

        timing: whether `elapsed` may ask it; without, streams wait for it at less cost.
        block: whether who waits for it sleeps rather than spins.
        """
        # An event belongs to the device that is current when it is made, and can be recorded in streams of that alone.
        # Asking costs less than making the device current, which it is where many events are made.
        if self._runtime.getDevice() == self.number:
            return self._cupy.cuda.Event(block=block, disable_timing=not timing)
        with self.current():
            return self._cupy.cuda.Event(block=block, disable_timing=not timing)

    def elapsed(self, begin: Event, end: Event) -> float:
        """Return the seconds between two events that the device has come by."""
        return float(self._cupy.cuda.get_elapsed_time(begin, end)) / 1e3

    def synchronize_all(self) -> None:
        """Wait until the device has done all work of all streams."""
        with self.captures.apart():
            self.synchronize_apart()

    def synchronize_apart(self) -> None:
        """The same, for who keeps captures apart."""
        with self.current():
            self._cupy.cuda.runtime.deviceSynchronize()

    # Copies.

    def copy_bytes(self, target: int, source: int, size: int, stream: Stream, kind: int = ANYWHERE) -> None:
        """Enqueue a copy; what is not pinned on the host has to live, unchanged, until it is done.

        target, source: addresses.
        size: bytes.
        kind: TO_DEVICE, TO_HOST, ON_DEVICE or ANYWHERE.
        """
        self._runtime.memcpyAsync(target, source, size, kind, stream.ptr)

    def copy_rows(
        self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, rows: int, stream: Stream
    ) -> None:
        """Enqueue a copy of rows that lie apart, on the host or any device.

        target, source: addresses.
        target_pitch, source_pitch: bytes from one row to the next.
        width: bytes of a row.
        """
        self._runtime.memcpy2DAsync(target, target_pitch, source, source_pitch, width, rows, ANYWHERE, stream.ptr)

    def fill(self, address: int, byte: int, size: int, stream: Stream) -> None:
        """Enqueue the same byte, from an address on."""
        self._cupy.cuda.runtime.memsetAsync(address, byte, size, stream.ptr)

    # Launches.

    def launch_kernel(
        self,
        kernel: Kernel,
        blocks: tuple[int, ...],
        threads: int,
        arguments: tuple[Any, ...],
        stream: Stream | None = None,
        shared: int = 0,
    ) -> None:
        """Enqueue a kernel; the device has to be the current one.

        blocks: in x, y and z, as many as there are.
        threads: of a block.
        arguments: NumPy scalars, device arrays, or structs (`as_struct`).
        stream: None for the current one.
        shared: bytes of dynamic shared memory.
        """
        if stream is None:
            # Thousands of launches a second come this way: no context of its own.
            kernel(blocks, (threads,), arguments, shared_mem=shared)
            return
        with stream:
            kernel(blocks, (threads,), arguments, shared_mem=shared)

    def launch_early(self, kernel: Kernel, blocks: tuple[int, int], threads: int, number: int, stream: Stream) -> None:
        """Enqueue a kernel of one int that may begin before the launch ahead of it has ended; raises RuntimeError."""
        early_launch.launch_early(kernel.kernel.ptr, blocks, threads, number, stream.ptr)

    def launch_together(
        self,
        kernel: Kernel,
        blocks: int,
        threads: int,
        words: npt.NDArray[np.int64],
        stream: Stream,
        shared: int = 0,
        together: bool = True,
    ) -> None:
        """Enqueue a kernel of one struct, its blocks on the device together; raises RuntimeError where they do not fit.

        words: of the struct.
        shared: bytes of dynamic shared memory.
        together: False for blocks that do not wait for each other, of which there may be any number.
        """
        early_launch.launch_together(kernel.kernel.ptr, blocks, threads, shared, words, stream.ptr, together)

    def blocks_at_once(self, kernel: Kernel, threads: int) -> int:
        """Return the blocks of a kernel that are on a multiprocessor together."""
        return early_launch.blocks_at_once(kernel.kernel.ptr, threads)

    def capture(self, stream: Stream, enqueue: Callable[[], None]) -> Graph:
        """Return what `enqueue` puts into a stream as a graph, which `launch(stream)` replays; nothing is run now."""
        with self.captures.apart():
            stream.begin_capture()
            try:
                enqueue()
            except BaseException:
                # A capture that stays open refuses all that this process asks of the device from then on. Its end says
                # that it is broken, too.
                with suppress(self._runtime.CUDARuntimeError):
                    stream.end_capture()
                raise
            return stream.end_capture()

    # Other devices.

    def enable_peer(self, other: CudaDevice) -> bool:
        """Let kernels and copies of this device use the memory of another one; returns False where it cannot."""
        if self.number == other.number:
            # The same GPU, with another room.
            return True
        runtime = self._cupy.cuda.runtime
        if not runtime.deviceCanAccessPeer(self.number, other.number):
            return False
        # An error where that has been done before.
        with self.current(), suppress(runtime.CUDARuntimeError):
            runtime.deviceEnablePeerAccess(other.number)
        return True


class DeviceLock(AbstractContextManager[None]):
    """A lock, with its device as the current one of the thread that holds it."""

    def __init__(self, cupy: Any, number: int) -> None:
        self._lock = Lock()
        # Not the device itself: its memory is to go as soon as nobody needs it, without the collector.
        self._cupy, self._number = cupy, number

    def __enter__(self) -> None:
        self._lock.acquire()
        self._cupy.cuda.Device(self._number).use()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
