"""Files of evidence that grows: what is new, late, changed, renamed or gone since they were answered.

Main function: `compare`, called by `junctor.runs.increments`; nothing here touches a file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from junctor.evidence.files import NULL_FOLDER, partition_columns, partition_of
from junctor.model.errors import EvidenceError

# Why an input is answered.
Why = Literal["new", "late", "changed", "backfilled"]


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as it is listed.

    path: in the folder of the evidence, with slashes.
    bytes: its size.
    modified: its time in seconds since 1970, None where a later change might leave it as it is.
    """

    path: str
    bytes: int
    modified: float | None


@dataclass(frozen=True, slots=True)
class Input:
    """A file that is answered.

    path, bytes, modified: as in `Listed`.
    partition: the folders `column=value` in its path.
    digest: SHA-256 of its bytes.
    key: the start of the names of its parts.
    increment: number of the increment that answered it.
    rows: in it.
    statuses: rows of each status.
    parts: files of its answers, relative to the run directory.
    removed: whether it was not there any more at the last increment.
    """

    path: str
    partition: str
    digest: str
    bytes: int
    modified: float | None
    key: str
    increment: int
    rows: int
    statuses: dict[str, int]
    parts: tuple[str, ...]
    removed: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A file to answer."""

    listed: Listed
    digest: str
    why: Why


@dataclass(frozen=True, slots=True)
class Changes:
    """What differs between a listing and the inputs that are answered.

    answer: files to answer.
    renamed: new path -> old path of inputs of equal content in one partition.
    touched: files of equal content and another time or name, or that are there again.
    removed: paths of inputs that are not listed any more.
    broken: path -> reason of files that cannot be read.
    """

    answer: tuple[Change, ...]
    renamed: dict[str, str]
    touched: tuple[Listed, ...]
    removed: tuple[str, ...]
    broken: dict[str, str]


@dataclass(frozen=True, slots=True)
class Backfill:
    """A range of values of a partition column; both ends belong to it."""

    column: str
    first: str
    last: str

    @classmethod
    def parse(cls, text: str) -> Backfill:
        """Return the range in `date=2026-11-01..2026-11-20` or `date=2026-11-01`; raises EvidenceError."""
        column, sign, values = text.partition("=")
        first, dots, last = values.partition("..")
        if not (column and sign and first) or (dots and not last):
            raise EvidenceError(f"found the backfill {text!r}, expected COLUMN=VALUE or COLUMN=FIRST..LAST")
        backfill = cls(column, first, last or first)
        if _order(backfill.last) < _order(first):
            raise EvidenceError(f"the backfill {text!r} ends before it begins")
        return backfill

    def has(self, value: str | None) -> bool:
        """Return True if a value is in the range: compared as numbers where both are whole numbers, else as text.

        value: None for null, which is in no range and is asked for by the name of its folder.
        """
        if value is None:
            return self.first == self.last == NULL_FOLDER
        return _order(self.first) <= _order(value) <= _order(self.last)


def selects(backfills: Sequence[Backfill], path: str) -> bool:
    """Return True if a file is to be answered again: each column that is named has a value in one of its ranges."""
    columns = partition_columns(path)
    by_column = groupby(sorted(backfills, key=lambda each: each.column), key=lambda each: each.column)
    return bool(backfills) and all(any(each.has(columns.get(name)) for each in group) for name, group in by_column)


def compare(
    listed: Sequence[Listed],
    known: Sequence[Input],
    digest: Callable[[Listed], str],
    again: Callable[[str], bool] = lambda path: False,
    covers: Callable[[str], bool] = lambda path: True,
    is_there: Callable[[str], bool] = lambda path: True,
) -> Changes:
    """Return what is to be done about the files that are listed.

    listed: in the order of their paths.
    known: inputs that are answered.
    digest: reads a file; called only where size and time do not tell that it is unchanged; raises EvidenceError.
    again: returns True for a path that is answered again in any case.
    covers: returns True for a path that would be listed if it was there.
    is_there: returns True for another path if it is there; called only where a new file has its content.
    """
    before, there = {each.path: each for each in known}, {each.path for each in listed}
    gone = defaultdict(list)
    for old in known:
        # Whatever comes after a file was removed is new: the answers of that file stay its own.
        if old.path not in there and not old.removed:
            gone[old.partition, old.digest].append(old.path)
    newest = max((_times(old.partition) for old in known), default=())
    answer: list[Change] = []
    touched: list[Listed] = []
    renamed: dict[str, str] = {}
    broken: dict[str, str] = {}
    for each in listed:
        answered = before.get(each.path)
        repeat = again(each.path)
        if answered is not None and not repeat and not answered.removed and _is_unchanged(each, answered):
            continue
        try:
            found = digest(each)
        except EvidenceError as error:
            broken[each.path] = str(error)
            continue
        partition = partition_of(each.path)
        candidates = gone[partition, found] if answered is None else []
        moved = next((path for path in candidates if covers(path) or not is_there(path)), None)
        if moved is not None:
            candidates.remove(moved)
            renamed[each.path] = moved
            touched.append(each)
        if repeat:
            answer.append(Change(each, found, "backfilled"))
        elif answered is None and each.path not in renamed:
            answer.append(Change(each, found, "late" if () < _times(partition) < newest else "new"))
        elif answered is not None and answered.digest != found:
            answer.append(Change(each, found, "changed"))
        elif answered is not None:
            touched.append(each)
    kept = there | {*renamed.values()}
    removed = [old.path for old in known if not (old.path in kept or old.removed) and covers(old.path)]
    return Changes(tuple(answer), renamed, tuple(touched), tuple(sorted(removed)), broken)


def _is_unchanged(listed: Listed, old: Input) -> bool:
    return listed.modified is not None and (listed.bytes, listed.modified) == (old.bytes, old.modified)


def _times(partition: str) -> tuple[tuple[int, int, str], ...]:
    """Return what orders partitions in time: the values that begin with a digit, such as dates, months or hours."""
    values = partition_columns(f"{partition}/").values()
    return tuple(_order(value) for value in values if value is not None and value[:1].isdecimal())


def _order(value: str) -> tuple[int, int, str]:
    return (0, int(value), "") if value.removeprefix("-").isdecimal() else (1, 0, value)
