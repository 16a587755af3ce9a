"""Pieces of tables on disk: what a format costs to write and to read, beside raw files, which is what we keep.

    python benchmarks/spilled.py --folder /tmp --size 1GiB --piece 16MiB
    uv run --with zarr python benchmarks/spilled.py
    python benchmarks/spilled.py --device gpu          # into the memory of a GPU, with kvikio where it is there

Pieces are written one after the other, brought to the disk, put out of the system's cache, and read in another order,
as the passes of a plan do; then once more from the cache. Formats take turns; each figure is a median, in GB/s.
"""

from __future__ import annotations

import argparse
import mmap
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from common import need_gpu
from junctor.out_of_core.store import mapped_file
from junctor.planning.budget import parse_bytes

Array = npt.NDArray[np.float64]


class Mapped:
    """One raw file without a name, mapped: what `ChunkStore` keeps."""

    def __init__(self, folder: Path, pieces: int, entries: int) -> None:
        self._table = mapped_file(folder, (pieces, entries), np.float64)

    def write(self, n: int, piece: Array) -> None:
        self._table[n] = piece

    def flush(self) -> None:
        self._table.flush()

    def forget(self) -> None:
        # The pages of this process.
        self._table._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
        # The file has no name, but the mapping leads to it.
        for path in Path("/proc/self/map_files").iterdir():
            if str(path).startswith(f"/proc/self/map_files/{self._table.ctypes.data:x}-"):
                forget(path)

    def read(self, n: int) -> Array:
        return self._table[n]


class Raw:
    """The same, by system calls."""

    def __init__(self, folder: Path, pieces: int, entries: int) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._size, self._piece = entries * 8, np.empty(entries)
        os.posix_fallocate(self._file.fileno(), 0, pieces * self._size)

    def write(self, n: int, piece: Array) -> None:
        os.pwrite(self._file.fileno(), piece.data, n * self._size)

    def flush(self) -> None:
        os.fdatasync(self._file.fileno())

    def forget(self) -> None:
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def read(self, n: int) -> Array:
        os.preadv(self._file.fileno(), [self._piece.data.cast("B")], n * self._size)
        return self._piece


class Npy:
    """A `.npy` file for each piece."""

    def __init__(self, folder: Path, pieces: int, entries: int) -> None:
        self._folder = Path(tempfile.mkdtemp(dir=folder))

    def write(self, n: int, piece: Array) -> None:
        np.save(self._folder / f"{n}.npy", piece)

    def flush(self) -> None:
        for path in files_in(self._folder):
            with path.open("rb") as file:
                os.fdatasync(file.fileno())

    def forget(self) -> None:
        for path in files_in(self._folder):
            forget(path)

    def read(self, n: int) -> Array:
        found: Array = np.load(self._folder / f"{n}.npy", mmap_mode="r")
        return found

    def close(self) -> None:
        shutil.rmtree(self._folder)


class Arrow(Npy):
    """An Arrow IPC file for each piece, mapped."""

    def write(self, n: int, piece: Array) -> None:
        import pyarrow as pa

        batch = pa.record_batch([pa.array(piece)], ["entries"])
        with pa.OSFile(str(self._folder / f"{n}.arrow"), "wb") as file, pa.ipc.new_file(file, batch.schema) as out:
            out.write(batch)

    def read(self, n: int) -> Array:
        import pyarrow as pa

        found: Array = pa.ipc.open_file(pa.memory_map(str(self._folder / f"{n}.arrow"))).get_batch(0)[0].to_numpy()
        return found


class Zarr(Npy):
    """A Zarr array, a chunk for each piece, without compression."""

    def __init__(self, folder: Path, pieces: int, entries: int) -> None:
        import zarr

        super().__init__(folder, pieces, entries)
        self._array: Any = zarr.create_array(
            str(self._folder), shape=(pieces, entries), chunks=(1, entries), dtype="f8", compressors=None
        )

    def write(self, n: int, piece: Array) -> None:
        self._array[n] = piece

    def read(self, n: int) -> Array:
        found: Array = self._array[n]
        return found


class Kvikio(Npy):
    """A raw file by kvikio: GPUDirect Storage where there is some, threads and bounce buffers where there is none."""

    def __init__(self, folder: Path, pieces: int, entries: int) -> None:
        import kvikio

        super().__init__(folder, pieces, entries)
        self._file, self._size = kvikio.CuFile(str(self._folder / "table"), "w+"), entries * 8
        self._into: Any = np.empty(entries)

    def write(self, n: int, piece: Any) -> None:
        self._file.pwrite(piece, self._size, n * self._size).get()

    def read(self, n: int) -> Any:
        self._file.pread(self._into, self._size, n * self._size).get()
        return self._into


FORMATS: dict[str, Any] = {
    "mapped": Mapped,
    "raw": Raw,
    ".npy": Npy,
    "Arrow IPC": Arrow,
    "Zarr": Zarr,
    "kvikio": Kvikio,
}


def files_in(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def forget(path: Path) -> None:
    """Put a file out of the system's cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


class Host:
    """Pieces come from and go to the memory of this machine."""

    def __init__(self, entries: int) -> None:
        self._target = np.empty(entries)

    def source(self, piece: Array) -> Any:
        return piece

    def take(self, piece: Any) -> None:
        np.copyto(self._target, piece)

    def first(self) -> float:
        return float(self._target[0])


class Gpu:
    """Pieces come from and go to a GPU: by way of pinned memory, or by kvikio itself."""

    def __init__(self, entries: int) -> None:
        import cupy
        from junctor.out_of_core.gpu.staging import pinned

        self._cupy, self._pinned = cupy, pinned(entries * 8).view(np.float64)
        self.target = cupy.empty(entries)

    def source(self, piece: Array) -> Any:
        return self._cupy.asarray(piece)

    def host(self, piece: Any) -> Array:
        piece.get(out=self._pinned)
        return self._pinned

    def take(self, piece: Any) -> None:
        if piece is not self.target:
            np.copyto(self._pinned, piece)
            self.target.set(self._pinned)

    def first(self) -> float:
        return float(self.target[0])


def measured(make: Callable[[], Any], place: Any, pieces: list[Any], order: list[int]) -> list[float]:
    """Return the seconds of writing, of writing and bringing to the disk, of reading from there, and from the cache."""
    format_ = make()
    if isinstance(format_, Kvikio) and isinstance(place, Gpu):
        format_._into = place.target
    to_host = isinstance(place, Gpu) and not isinstance(format_, Kvikio)
    start = time.perf_counter()
    for n, piece in enumerate(pieces):
        format_.write(n, place.host(piece) if to_host else piece)
    written = time.perf_counter() - start
    format_.flush()
    flushed = time.perf_counter() - start
    format_.forget()
    seconds = [written, flushed]
    for _ in range(2):
        start = time.perf_counter()
        for n in order:
            place.take(format_.read(n))
            if place.first() != n + 1:
                raise SystemExit(f"{type(format_).__name__}: piece {n} came back wrong")
        seconds.append(time.perf_counter() - start)
    if hasattr(format_, "close"):
        format_.close()
    return seconds


def there(name: str) -> bool:
    """Return True if a format can be tried."""
    from importlib.util import find_spec

    needed = {"Zarr": "zarr", "kvikio": "kvikio"}.get(name)
    return needed is None or find_spec(needed) is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--size", type=parse_bytes, default=parse_bytes("512MiB"), help="bytes of the table")
    parser.add_argument("--piece", type=parse_bytes, default=parse_bytes("16MiB"), help="bytes of a piece")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    options = parser.parse_args()
    pieces, entries = options.size // options.piece, options.piece // 8
    if options.device == "gpu":
        need_gpu("spilled.py --device gpu")
    place = Gpu(entries) if options.device == "gpu" else Host(entries)
    tables = [place.source(np.full(entries, n + 1.0)) for n in range(pieces)]
    order = np.random.default_rng(0).permutation(pieces).tolist()
    names = [name for name in FORMATS if there(name)]
    found: dict[str, list[list[float]]] = {name: [] for name in names}
    # The first that touches memory of the system's cache may pay for all others: another one each time, and nobody's
    # first time counts.
    for turn in range(1 + options.repeats):
        for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
            make = partial(FORMATS[name], options.folder, pieces, entries)
            found[name].append(measured(make, place, tables, order))
    print(f"{options.size:,} bytes in pieces of {options.piece:,} in {options.folder}, GB/s on a {options.device}")
    print(f"{'format':12}{'written':>12}{'to the disk':>14}{'from there':>12}{'from cache':>12}")
    for name in names:
        rates = [pieces * options.piece / statistics.median(each) / 1e9 for each in zip(*found[name][1:], strict=True)]
        print(f"{name:12}{rates[0]:12.2f}{rates[1]:14.2f}{rates[2]:12.2f}{rates[3]:12.2f}")


if __name__ == "__main__":
    main()
