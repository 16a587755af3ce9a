"""Files of columns, as evidence is read from them: what each format offers, and places at which rows are sampled.

Main class: ColumnTable, the protocol of `DelimitedTable`, `ParquetTable` and `ArrowTable`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from junctor.model.errors import Place
from junctor.runtime.remote import AnyPath


class ColumnTable(Protocol):
    """A file of columns: DelimitedTable, ParquetTable, ArrowTable, or one of them with columns from its folders."""

    path: AnyPath
    schema: pa.Schema

    @property
    def partition(self) -> int:
        """The number of the last columns, those from its folders."""
        ...

    @property
    def groups(self) -> Sequence[int] | None:
        """Rows of the groups that can be read apart, None for a file that is read from its start."""
        ...

    def batches(
        self, positions: Sequence[int], plain: Sequence[int] = (), threads: int = 1, groups: range | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns at `positions`, in that order, batch by batch.

        positions: of the columns.
        plain: positions of those whose texts are mostly different, which do not come as dictionaries.
        threads: that parse.
        groups: numbers of those that are read, None for the whole file.
        """
        ...

    def place_of(self, row: int) -> Place:
        """Return the place of a row, from 0, of the file."""
        ...

    def spread(self, count: int) -> RowPlaces:
        """Return groups at about so many places of the file, and the number of all of its rows."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class RowPlaces:
    """Groups of rows at places over a file.

    table: that reads them.
    groups: numbers of them there; none where a file is read from its start.
    rows: of the whole file.
    is_counted: False where these are extrapolated from bytes.
    """

    table: ColumnTable
    groups: Sequence[int]
    rows: int
    is_counted: bool = True


def spread_over(table: ColumnTable, groups: Sequence[int], count: int) -> RowPlaces:
    """Return about so many places of a table whose groups have so many rows."""
    filled = [number for number, rows in enumerate(groups) if rows]
    numbers = {filled[i * len(filled) // count] for i in range(count)} if filled else set[int]()
    return RowPlaces(table, sorted(numbers), sum(groups))
