"""Evidence that is encoded already, such as a dataset of `junctor ingest`: any rows of it, without reading the others.

Main class: EncodedSource, opened by `junctor.evidence.read` in place of a table.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import accumulate

import pyarrow as pa

from junctor.evidence.encode import EncodedPartition, concatenate, numbered, numbered_in_files
from junctor.evidence.encoded import EncodedColumns, OtherNetworkError, is_encoded, read_cells
from junctor.evidence.files import reading_errors_for
from junctor.evidence.layout import NO_COLUMNS
from junctor.model.errors import EvidenceError, Place, nearest
from junctor.model.network import Network
from junctor.runtime.remote import AnyPath, parquet_source
from junctor.runtime.threads import ahead

# Groups of rows that stay decoded for the partition after them.
_GROUPS = 2


@dataclass(frozen=True)
class EncodedSource:
    """Files of encoded evidence as one table.

    network: that evidence is for; another one than that it was encoded for needs the same names.
    paths: of the files, in their order.
    keep: columns that are carried through.
    strict: whether the first invalid row is refused.
    without: variables whose evidence is left out.
    ignore_extra: whether that on variables that the network lacks is, too.
    """

    network: Network
    paths: tuple[AnyPath, ...]
    keep: tuple[str, ...] = ()
    strict: bool = False
    without: frozenset[str] = frozenset()
    ignore_extra: bool = False
    _columns: list[EncodedColumns] = field(default_factory=list, init=False, repr=False)
    # Of each group its file, its number there and its rows.
    _groups: list[tuple[int, int, int]] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        from pyarrow import parquet

        for at, path in enumerate(self.paths):
            with reading_errors_for(path), parquet.ParquetFile(parquet_source(path)) as file:
                if not is_encoded(file.schema_arrow):
                    raise EvidenceError("not encoded, as other files beside it are: keep them apart", Place(str(path)))
                self._columns.append(EncodedColumns.of(file.schema_arrow, path))
                groups = range(file.num_row_groups)
                self._groups.extend((at, group, file.metadata.row_group(group).num_rows) for group in groups)
        self._refuse_unkept()
        if self.rows:
            # Words are the same in all files: what the network lacks is seen in the first one.
            self.part(0, 1)

    def _refuse_unkept(self) -> None:
        """Raise EvidenceError for files without a column that is kept, or with other types than the first one."""
        # None: of the case ids.
        kinds: dict[str | None, pa.DataType] = {}
        for columns, path in zip(self._columns, self.paths, strict=True):
            there = {} if columns.kept is None else dict(zip(columns.kept.names, columns.kept.types, strict=True))
            for name in self.keep:
                if name not in there:
                    raise EvidenceError(
                        f"no column {name!r} was kept when this was encoded{nearest(name, there)}: encode it anew with "
                        f"--keep {name}",
                        Place(str(path)),
                    )
            carried: dict[str | None, pa.DataType] = {None: columns.case_id_type}
            carried |= {name: there[name] for name in self.keep}
            for named, kind in carried.items():
                if kinds.setdefault(named, kind) != kind:
                    raise EvidenceError(
                        f"found {named or 'case ids'} of type {kind}, in {self.paths[0]} of {kinds[named]}: keep them "
                        "apart",
                        Place(str(path)),
                    )

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(rows for _, _, rows in self._groups)

    @cached_property
    def columns(self) -> list[int]:
        """Indices of the variables that there is evidence on, ascending."""
        names = {name for columns in self._columns for name in (*columns.states, *columns.soft)} - self._left_out
        return sorted(self.network.index[name] for name in names if name in self.network.index)

    @property
    def case_id_type(self) -> pa.DataType:
        """The type of the case ids."""
        return self._columns[0].case_id_type

    @property
    def kept_schema(self) -> pa.Schema:
        """The names and types of the columns that are carried through."""
        kept = self._columns[0].kept
        return NO_COLUMNS if kept is None else pa.schema([kept.field(name) for name in self.keep])

    @cached_property
    def _left_out(self) -> frozenset[str]:
        if not self.ignore_extra:
            return self.without
        names = {name for columns in self._columns for name in (*columns.states, *columns.soft)}
        return self.without | (names - self.network.index.keys())

    def part(self, first: int, rows: int) -> EncodedPartition:
        """Return so many rows from the number `first` on, fewer at the end; raises EvidenceError."""
        starts = self._starts
        found, at = [], max(0, bisect_right(starts, first) - 1)
        while at < len(starts) and starts[at] < first + rows:
            begin = max(0, first - starts[at])
            end = min(self._groups[at][2], first + rows - starts[at])
            found.append(self._group(at).rows(begin, end - begin))
            at += 1
        part = concatenate(found, self.case_id_type, first, self.kept_schema)
        if self.strict and part.batch.invalid:
            row = min(part.batch.invalid)
            place = Place(str(self.paths[0])) if len(self.paths) == 1 else None
            raise EvidenceError(f"row {self.names_of([first + row])[0]}: {part.batch.invalid[row]}", place)
        return part

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(rows for _, _, rows in self._groups)][:-1]

    @cached_property
    def _group(self) -> Callable[[int], EncodedPartition]:
        # Partitions of few rows follow each other in a group.
        return lru_cache(maxsize=_GROUPS)(self._read)

    def _read(self, at: int) -> EncodedPartition:
        number, group, _ = self._groups[at]
        path = self.paths[number]
        with reading_errors_for(path):
            try:
                source = parquet_source(path)
                part = read_cells(source, path, self.network, [group], bool(self.keep), self._left_out)
            except OtherNetworkError as error:
                raise EvidenceError(f"{error}: it was encoded for another network", Place(str(path))) from None
        return replace(part, kept=part.kept.select(list(self.keep)) if self.keep and part.kept is not None else None)

    def partitions(self, rows: int, threads: int = 1) -> Iterator[EncodedPartition]:
        """Yield partitions of `rows` rows; see `EvidenceSource`."""
        firsts = range(0, self.rows, rows)
        return ahead(lambda first: self.part(first, rows), iter(firsts), threads)

    def names_of(self, rows: Sequence[int]) -> list[str]:
        """Return what people find some rows by; see `EvidenceSource`."""
        return numbered(rows) if len(self.paths) == 1 else numbered_in_files(rows, self._spans())

    def _spans(self) -> Iterator[tuple[AnyPath, int, int]]:
        """Yield the files, each with the row that it begins with and the one behind it."""
        rows_of, begin = Counter[int](), 0
        for at, _, rows in self._groups:
            rows_of[at] += rows
        for at, path in enumerate(self.paths):
            yield path, begin, begin + rows_of[at]
            begin += rows_of[at]
