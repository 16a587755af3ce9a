"""Tables that are cut into pieces, kept in memory or in files."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from junctor.model.errors import DiskError
from junctor.planning.budget import format_bytes
from junctor.planning.chunks import ChunkPlan

Array = npt.NDArray[np.floating[Any]]
# Returns the array of a table [entries], not cleared; another one may have it when the table is dropped.
Allocate = Callable[[int, int], Array]


@dataclass(frozen=True, eq=False, slots=True)
class CutTable:
    """A table with its chunk variables in front. sizes: of the chunk variables."""

    entries: Array
    cuts: tuple[int, ...]
    sizes: tuple[int, ...]

    def part(self, states: Mapping[int, int]) -> Array:
        """Return what agrees with `states`, a view [free chunk variables..., entries of a piece]."""
        grid = self.entries.reshape(*self.sizes, -1)
        return grid[tuple(states.get(v, slice(None)) for v in self.cuts)]


class ChunkStore:
    """The stored tables of one propagation, each one array with its chunk variables in front.

    folder: where those lie that the plan keeps on disk. A file is gone as soon as its table is: it has no name from the
    beginning, so nothing is left behind by a process that dies. Raises DiskError where the disk is full, before
    anything is written to the table that does not fit. allocate: returns that of other tables, NumPy's if not
    given.
    """

    def __init__(
        self, chunks: ChunkPlan, dtype: npt.DTypeLike, folder: Path | None = None, allocate: Allocate | None = None
    ) -> None:
        self._chunks = chunks
        self._sizes = chunks.plan.shape.cardinalities
        self._dtype = np.dtype(dtype)
        self._allocate = allocate or (lambda _, entries: np.empty(entries, self._dtype))
        self._folder = folder
        self.tables: dict[int, CutTable] = {}

    def make(self, table: int) -> None:
        """Make room for a table."""
        entries, on_disk = self._chunks.plan.tables[table].entries, table in self._chunks.on_disk
        made = mapped_file(self._folder, (entries,), self._dtype) if on_disk else self._allocate(table, entries)
        self.keep(table, made)

    def put(self, table: int, values: Array) -> None:
        """Store a whole table, whose axes are in the order of its scope."""
        scope, layout = self._chunks.plan.tables[table].scope, self._chunks.layout(table)
        axes = [scope.index(v) for v in layout]
        whole = values.reshape([self._sizes[v] for v in scope]).transpose(axes)
        # Copied into an array in its order of axes: a transposed view would make each piece strided.
        kept = self._allocate(table, whole.size)
        kept.reshape(whole.shape)[...] = whole
        self.keep(table, kept)

    def drop(self, table: int) -> None:
        """Forget a table."""
        del self.tables[table]

    def part(self, table: int, states: Mapping[int, int]) -> Array:
        """Return what of a table agrees with `states`, a view [free chunk variables..., entries of a piece]."""
        return self.tables[table].part(states)

    def keep(self, table: int, entries: Array) -> None:
        """Store a whole table that has its chunk variables in front."""
        cuts = self._chunks.cuts.get(table, ())
        self.tables[table] = CutTable(entries, cuts, tuple(self._sizes[v] for v in cuts))


def mapped_file(folder: Path | None, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array in a file without a name; raises DiskError where there is no room for it in `folder`."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    try:
        # Reserved at once: a full disk is found out here, not by a signal when a page is written.
        with tempfile.TemporaryFile(dir=folder) as file:
            reserve(file.fileno(), size)
            return np.memmap(file, dtype, "r+", shape=shape)
    except OSError as error:
        raise DiskError(
            f"{folder or tempfile.gettempdir()}: no file of {format_bytes(size)} can be made for a table that does not "
            f"fit the memory ({error.strerror or error}): make room there, or name another folder with --spill"
        ) from error


def reserve(descriptor: int, size: int) -> None:
    """Reserve `size` bytes of the disk for a file; raises OSError where there are none."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        # A sparse file: without reservation a full disk shows only when pages are written.
        os.truncate(descriptor, size)
