"""Places over a file of evidence, at which rows are sampled: `Spread`, made by tables, read by `sample_rows`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from junctor.evidence.read import ColumnTable


@dataclass(frozen=True, eq=False, slots=True)
class Spread:
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


def spread_over(table: ColumnTable, groups: Sequence[int], count: int) -> Spread:
    """Return about so many places of a table whose groups have so many rows."""
    filled = [number for number, rows in enumerate(groups) if rows]
    numbers = {filled[i * len(filled) // count] for i in range(count)} if filled else set[int]()
    return Spread(table, sorted(numbers), sum(groups))
