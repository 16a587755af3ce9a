"""Slices for other workers of one machine: they lie in memory files, of which only a name is sent.

Such a file (`memfd_create`) lies in no folder: the system takes it back when the last process that has it ends, however
it ends. The owner writes, then sends its process and descriptor; the reader opens that, with a shared lock as long as
it reads, and the owner writes nothing new into a file that somebody has locked. Every content has a token of its own,
in the file and in the name. A reader that finds no file, or another token, says that the connection failed: Dask asks
again, and what is asked for again comes as bytes. So do slices that go to another machine, or to a disk.

Files, and the mappings of readers, are used again: memory that nobody has touched yet takes five times as long.
"""

from __future__ import annotations

import errno
import fcntl
import math
import mmap
import os
import pickle
import stat
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
from distributed.protocol import dask_deserialize, dask_serialize

from junctor.planning.budget import format_bytes
from junctor.planning.first_fit import side_by_side
from junctor.runtime.machine import available_memory

Array = npt.NDArray[Any]
# For each slice in a file its offset, its shape and the name of its dtype.
Layout = list[tuple[int, tuple[int, ...], str]]
# Process, descriptor and token of a file, and its layout: plain values, because it is pickled.
Name = tuple[int, int, bytes, Layout]

TOKEN_BYTES = 16
# Names that others did not find, from which on this process sends bytes only.
MOST_MISSED = 3


def machine() -> tuple[str, str, int] | None:
    """Return what processes have in common that can read each other's memory files, None where there are none."""
    if not hasattr(os, "memfd_create"):
        return None
    started = Path("/proc/sys/kernel/random/boot_id")
    # Host names may repeat; the id of a boot does not.
    one = started.read_text() if started.exists() else os.uname().nodename
    return one, os.readlink("/proc/self/ns/pid"), os.getuid()


class MappedFile:
    """A memory file in the memory of this process, for as long as this object is there."""

    def __init__(self, descriptor: int) -> None:
        """Map a file; the descriptor stays its caller's."""
        self.memory = np.frombuffer(mmap.mmap(descriptor, os.fstat(descriptor).st_size), np.uint8)
        if pin is not None:
            pin(self.memory)

    def view(self) -> Array:
        """Return the memory as an array that views of it refer to: it lives as long as any of them."""
        return np.frombuffer(self.memory.data, np.uint8)


class OwnFile(MappedFile):
    """A memory file of this process; taken: whether its content may still be sent."""

    def __init__(self, size: int) -> None:
        """Make a file, locked; raises OSError where there is no memory for it."""
        # The system gives away more than it has, and then ends processes.
        if size > available_memory():
            raise OSError(errno.ENOMEM, f"no {format_bytes(size)} of memory for a file")
        self.descriptor, self.taken = os.memfd_create("junctor"), False
        # The system takes the memory back when the last descriptor and mapping are gone.
        weakref.finalize(self, os.close, self.descriptor)
        # Reserved at once: a limit is found out here, not by a signal when a page is written.
        os.posix_fallocate(self.descriptor, 0, size)
        locks(self.descriptor, fcntl.LOCK_EX)
        super().__init__(self.descriptor)

    def release(self) -> None:
        """Let the file be written again once its readers are done."""
        self.taken = False


def locks(descriptor: int, how: int) -> bool:
    """Lock a file, or unlock it; returns False where others have locked it."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _arrays(memory: Array, layout: Layout) -> list[Array]:
    """Return the slices in some memory."""
    sizes = [math.prod(shape) * np.dtype(name).itemsize for _, shape, name in layout]
    return [
        memory[at : at + size].view(name).reshape(shape) for (at, shape, name), size in zip(layout, sizes, strict=True)
    ]


# Pins memory, so that a device reaches it by itself; set by `reach` while a device is open.
pin: Callable[[Array], None] | None = None
_lock = threading.RLock()
# The files of this process, and those of others that it has mapped, by process, descriptor and number of the file.
own_files: list[OwnFile] = []
others_files: dict[tuple[int, int, int], MappedFile] = {}
_missed = 0


class SentSlices:
    """Slices on their way, in a file of this process; here, an iterable of copies of them."""

    def __init__(self, file: OwnFile, layout: Layout) -> None:
        self._file = file
        self._layout = layout
        self._named = False
        self._token = file.memory[:TOKEN_BYTES].tobytes()
        self.arrays = _arrays(file.view(), layout)
        weakref.finalize(self, file.release).atexit = False

    def __iter__(self) -> Iterator[Array]:
        return iter([array.copy() for array in self.arrays])

    def __reduce__(self) -> Any:
        return list, (list(self),)

    def __sizeof__(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def show(self) -> None:
        """Let others read what has been written."""
        locks(self._file.descriptor, fcntl.LOCK_UN)

    def name(self) -> Name | None:
        """Return what another process finds the slices by; None from the second time on: it did not find them."""
        global _missed
        # Asked twice means that the reader could not open the file.
        named, self._named = self._named, True
        _missed += named
        if named or _missed >= MOST_MISSED:
            return None
        return os.getpid(), self._file.descriptor, self._token, self._layout


def room_for(shapes: Sequence[tuple[int, ...]], dtype: np.dtype[Any], kept: int) -> SentSlices:
    """Return slices to be written, then to be shown. kept: bytes of files that wait for the next slices, at most.

    Raises OSError where there is no memory for a file.
    """
    # The token lies in front; slices begin at aligned offsets behind it.
    sizes = {-1: TOKEN_BYTES} | {n: math.prod(shape) * dtype.itemsize for n, shape in enumerate(shapes)}
    offsets, total = side_by_side(sizes)
    return SentSlices(_file_of(total, kept), [(offsets[n], shape, dtype.str) for n, shape in enumerate(shapes)])


def _file_of(size: int, kept: int) -> OwnFile:
    """Return a locked file with a new token: the smallest that is large enough and that nobody reads, or a new one."""
    with _lock:
        idle = sorted((file for file in own_files if not file.taken), key=lambda file: file.memory.nbytes)
        fits = (f for f in idle if f.memory.nbytes >= size and locks(f.descriptor, fcntl.LOCK_EX))
        file = next(fits, None)
        if file is None:
            # What is too small goes first.
            while idle and sum(other.memory.nbytes for other in idle) + size > kept:
                own_files.remove(idle.pop(0))
            file = OwnFile(size)
            own_files.append(file)
        file.taken = True
        # New for each content: descriptors and inode numbers are used again.
        file.memory[:TOKEN_BYTES] = np.frombuffer(os.urandom(TOKEN_BYTES), np.uint8)
        return file


def opened(name: Name) -> list[Array]:
    """Return the slices of a name, their file locked as long as anybody has any of them.

    Raises OSError where the file is not there any more, or has another content.
    """
    process, descriptor, token, layout = name
    # A lock belongs to what was opened, so each content has its own.
    lock = _open(f"/proc/{process}/fd/{descriptor}")
    try:
        status = os.fstat(lock)
        if not stat.S_ISREG(status.st_mode) or not locks(lock, fcntl.LOCK_SH) or os.pread(lock, len(token), 0) != token:
            raise OSError("a memory file of another worker has another content by now")
        view = _mapping((process, descriptor, status.st_ino), lock).view()
    except BaseException:
        os.close(lock)
        raise
    # The lock ends with the last array that refers to the view.
    weakref.finalize(view, os.close, lock)
    return _arrays(view, layout)


def _open(path: str) -> int:
    # Whatever it is by now, a pipe would wait for somebody.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def _mapping(at: tuple[int, int, int], locked: int) -> MappedFile:
    """Return a file of another process, mapped when it is first seen; those that are not there any more go then."""
    with _lock:
        if at not in others_files:
            for other in [key for key in others_files if not _is_there(*key)]:
                del others_files[other]
            # Opened once more: a mapping would keep the lock.
            own = _open(f"/proc/self/fd/{locked}")
            try:
                others_files[at] = MappedFile(own)
            finally:
                os.close(own)
        return others_files[at]


def _is_there(process: int, descriptor: int, number: int) -> bool:
    try:
        return os.stat(f"/proc/{process}/fd/{descriptor}").st_ino == number
    except OSError:
        return False


def reach(register: Callable[[Array], None] | None) -> None:
    """Pin all files from now on, those that are there first; None: pin no more."""
    global pin
    with _lock:
        if register is not None and pin is None:
            for file in (*own_files, *others_files.values()):
                register(file.memory)
        pin = register


def forget() -> None:
    """Give files back: now those that nobody needs, the others when they are not needed any more."""
    global _missed
    with _lock:
        _missed = 0
        own_files.clear()
        others_files.clear()


def _serialized(sent: SentSlices, context: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], list[Any]]:
    """Return a name for another process of this machine, for all others bytes."""
    name = sent.name() if _stays_here(context) else None
    if name is not None:
        return {"named": True}, [pickle.dumps(name)]
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(list(sent), protocol=5, buffer_callback=buffers.append)
    return {"named": False}, [pickled, *(buffer.raw() for buffer in buffers)]


def _deserialized(header: Mapping[str, Any], frames: Sequence[Any]) -> list[Array]:
    content: Any = pickle.loads(frames[0], buffers=frames[1:])
    slices: list[Array] = opened(content) if header["named"] else content
    return slices


def _stays_here(context: Mapping[str, Any] | None) -> bool:
    """Return True if a message goes over a connection within one machine; without a connection it goes to a disk."""
    if not context:
        return False
    sender, recipient = (urlsplit(context[side]["address"]).hostname for side in ("sender", "recipient"))
    return bool(sender == recipient)


dask_serialize.register(SentSlices, _serialized)
dask_deserialize.register(SentSlices, _deserialized)
