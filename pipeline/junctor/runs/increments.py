"""Increments: runs that answer what is new of evidence that grows, and commit it with one new manifest.

Main class: IncrementDirectory; main function: `merge`, called by the last step of `junctor.runs.run`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import get_args

from junctor.evidence.files import partition_of
from junctor.model.errors import RunError, counted
from junctor.model.options import OutputFormat
from junctor.runs.inputs import Input, Listed, Why
from junctor.runs.partition import Part, PartTask
from junctor.runs.storage import STATISTICS, AnySpec, Ingested, RunDirectory, RunSpec, parts_in
from junctor.runtime.files import io_errors_for, read_json
from junctor.runtime.records import typed
from junctor.runtime.remote import AnyPath

#   DIR/evidence/date=2026-11-22/KEY-00000.parquet      encoded evidence of the increment in progress
#   DIR/evidence/done.json                              its inputs; removed last, after the commit
#   DIR/posteriors/date=2026-11-22/KEY-00000.parquet    answers, under the partition of their input
#   DIR/manifest.json                                   the commit: names all inputs and parts; nothing else counts
#
# Keys are digests of question, content and types of kept columns: an interrupted increment finds its finished parts by
# their names, whatever has arrived meanwhile, and a part is never written over. Another part of such a name, left by an
# earlier increment, gives an input another key.

# Most inputs that a message names.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class EvidenceColumns:
    """Columns of the inputs so far.

    evidence: names of observed variables, of all inputs together.
    case_id: type of the case ids.
    kept: names and types of the columns that are carried through.
    """

    evidence: tuple[str, ...]
    case_id: str
    kept: dict[str, str]


@dataclass(frozen=True, slots=True)
class Increment:
    """A commit, and the paths of the inputs that made it.

    number: from 1.
    finished_at: date and time, in UTC.
    seconds: of its last call.
    junctor_version: that answered.
    rows, statuses: of the inputs that it answered.
    new: number of new inputs.
    late: those of partitions older than the newest one answered before.
    changed, backfilled: answered again.
    renamed: new path -> old path; not answered again.
    removed: not there any more; their answers stay.
    dropped: removed inputs whose answers left.
    returned: removed inputs that are there again, of the content that is answered.
    """

    number: int
    finished_at: str
    seconds: float
    junctor_version: str
    rows: int
    statuses: dict[str, int]
    new: int
    late: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    backfilled: tuple[str, ...] = ()
    renamed: dict[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Encoded:
    """An input whose evidence is encoded.

    rows: of each of its partitions.
    """

    path: str
    digest: str
    bytes: int
    modified: float | None
    key: str
    why: Why
    rows: tuple[int, ...]

    @property
    def names(self) -> list[str]:
        """Names of its partitions, without their endings."""
        return [stem_of(self.path, self.key, i) for i in range(len(self.rows))]


@dataclass(frozen=True, slots=True)
class Pending:
    """An increment in progress.

    number: of the increment.
    inputs: to answer.
    renamed, touched, removed, broken: as in `Changes`.
    dropped: removed inputs whose answers leave.
    returned: removed inputs among those that are touched.
    columns: of all inputs; None without any.
    is_clean: whether no interrupted increment left files.
    root: folder in which the paths of inputs begin, or its URL; earlier versions told none.
    """

    number: int
    inputs: tuple[Encoded, ...]
    renamed: dict[str, str]
    touched: tuple[Listed, ...]
    removed: tuple[str, ...]
    dropped: tuple[str, ...]
    returned: tuple[str, ...]
    broken: dict[str, str]
    columns: EvidenceColumns | None
    is_clean: bool
    root: str | None = None

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to commit."""
        return not (self.inputs or self.renamed or self.removed or self.dropped or self.returned)


@dataclass(frozen=True)
class IncrementDirectory(RunDirectory):
    """The files of a run of evidence that grows; its partitions are those of the increment in progress.

    names: of some partitions, without their endings; None for all of the increment.
    """

    names: Mapping[int, str] | None = field(default=None, compare=False, repr=False)

    @cached_property
    def pending(self) -> Pending:
        """The increment in progress."""
        record = read_json(self.ingested)
        try:
            return typed(Pending, record) if record is not None else Pending(0, (), {}, (), (), (), (), {}, None, True)
        except (KeyError, TypeError) as error:
            raise RunError(f"{self.ingested}: no list of inputs ({error}): delete it and run again") from error

    @property
    def encoded(self) -> Pending:
        """The same; raises RunError where none is there: it would pass for one without anything to answer."""
        if not self.pending.number:
            raise RunError(f"{self.path}: its evidence is not complete: run the same command again")
        return self.pending

    @cached_property
    def _named(self) -> Mapping[int, str]:
        if self.names is not None:
            return self.names
        return dict(enumerate(name for each in self.encoded.inputs for name in each.names))

    def stem_of(self, part: int) -> str:
        """Return the name of a partition, without its ending."""
        return self._named[part]

    def evidence_part(self, part: int) -> AnyPath:
        """The encoded evidence of one partition."""
        return self.path / self.inputs / f"{self.stem_of(part)}.parquet"

    def answers_part(self, kind: str, part: int, format: OutputFormat = "parquet") -> AnyPath:
        """The answers to one partition."""
        return self.path / kind / f"{self.stem_of(part)}.{format}"

    def read_ingested(self) -> Ingested | None:
        """Return the amount of evidence of the increment, None while it is not encoded."""
        with io_errors_for(self.path):
            if not self.ingested.exists():
                return None
        rows = [rows for each in self.encoded.inputs for rows in each.rows]
        return Ingested(sum(rows), len(rows))

    def rows_in(self, parts: Sequence[int]) -> int:
        """Return the rows of some partitions."""
        rows = [rows for each in self.encoded.inputs for rows in each.rows]
        return sum(rows[part] for part in parts)

    def small_files(self) -> list[AnyPath]:
        """Return the files that stay as they are from increment to increment, there or not."""
        return [self.network, self.path / "speeds.json", self.budget]

    def expected(self, spec: AnySpec) -> Ingested:
        """Return the rows and partitions that plans are made for, whatever the increment."""
        # An input gets the same answers, bit for bit, with whichever others it comes.
        return Ingested(spec.partition_rows, 2)

    def leftovers(self, spec: RunSpec, known: Sequence[Input], number: int) -> set[tuple[str, str]]:
        """Return partitions and keys of parts that an earlier increment left: killed, or without the right to delete.

        known: inputs of the manifest.
        number: of the increment in progress, whose parts are not among them.
        """
        # Old answers, damaged perhaps, must not pass for those that a backfill or equal content is to get.
        if not self.pending.number:
            return set()
        ours = {part for each in known for part in each.parts}
        if self.pending.number == number:
            ours.update(map(self.name_of, self.expected_parts(spec)))
        names = (self.name_of(path) for path in parts_in(self.path / spec.folder))
        return {(partition_of(name), key_of(name)) for name in names if name not in ours}

    def sweep(self, spec: RunSpec, parts: Sequence[Part]) -> None:
        """Remove the evidence of the increment, and all parts but those of the manifest."""
        with io_errors_for(self.path):
            named = {self.path / part.file for part in parts}
            self._clear_folder(spec.folder, named)
            self._clear_folder(STATISTICS, {self.statistics(part) for part in named})
        self.forget()

    def _is_continued_by(self, there: RunSpec, spec: RunSpec) -> bool:
        # Nightly runs outlive versions; each increment tells its own.
        return replace(there, junctor_version=spec.junctor_version) == spec


@dataclass(frozen=True, slots=True)
class IncrementTask(PartTask):
    """Rows of a new input to answer.

    name: of the partition.
    """

    name: str

    @property
    def home(self) -> IncrementDirectory:
        """The run directory."""
        return IncrementDirectory(self.directory, {self.part: self.name})


def merge(pending: Pending, known: Sequence[Input], parts: Sequence[Part]) -> tuple[Input, ...]:
    """Return the inputs after an increment, in the order of their paths.

    known: before it.
    parts: of the inputs that it answered, in their order.
    """
    inputs = {each.path: each for each in known}
    for path in pending.removed:
        inputs[path] = replace(inputs[path], removed=True)
    for new, old in pending.renamed.items():
        inputs[new] = replace(inputs.pop(old), path=new)
    for path in pending.dropped:
        del inputs[path]
    for listed in pending.touched:
        its = {"bytes": listed.bytes, "modified": listed.modified}
        inputs[listed.path] = replace(inputs[listed.path], **its, removed=False)  # type: ignore[arg-type]
    written = iter(parts)
    for each in pending.inputs:
        its_parts = [next(written) for _ in each.rows]
        inputs[each.path] = Input(
            path=each.path,
            partition=partition_of(each.path),
            digest=each.digest,
            bytes=each.bytes,
            modified=each.modified,
            key=each.key,
            increment=pending.number,
            rows=sum(each.rows),
            statuses=total_of(part.statuses for part in its_parts),
            parts=tuple(part.file for part in its_parts),
        )
    return tuple(sorted(inputs.values(), key=lambda each: each.path.split("/")))


def increment_of(pending: Pending, parts: Sequence[Part], version: str, seconds: float, finished_at: str) -> Increment:
    """Return the record of an increment.

    parts: of the inputs that it answered.
    version: of Junctor.
    seconds: of the last call.
    finished_at: date and time.
    """
    paths = {why: tuple(each.path for each in pending.inputs if each.why == why) for why in get_args(Why)}
    return Increment(
        number=pending.number,
        finished_at=finished_at,
        seconds=seconds,
        junctor_version=version,
        rows=sum(part.rows for part in parts),
        statuses=total_of(part.statuses for part in parts),
        new=len(paths["new"]) + len(paths["late"]),
        late=paths["late"],
        changed=paths["changed"],
        backfilled=paths["backfilled"],
        renamed=pending.renamed,
        removed=tuple(path for path in pending.removed if path not in pending.dropped),
        dropped=pending.dropped,
        returned=pending.returned,
    )


def lines_of(increment: Increment, inputs: Sequence[Input]) -> list[str]:
    """Return a line for each input that an increment is about; what nobody expects comes first.

    inputs: after it.
    """
    reasons = {**dict.fromkeys(increment.late, "late"), **dict.fromkeys(increment.changed, "changed")}
    reasons |= dict.fromkeys(increment.backfilled, "backfilled")
    lines = [f"renamed: {new}, before {old}" for new, old in increment.renamed.items()]
    lines += [f"removed: {path}, its answers stay" for path in increment.removed]
    lines += [f"removed: {path}, and its answers" for path in increment.dropped]
    lines += [f"returned: {path}, its answers are there" for path in increment.returned]
    answered = (each for each in inputs if each.increment == increment.number)
    for each in sorted(answered, key=lambda each: each.path not in reasons):
        lines.append(f"{reasons.get(each.path, 'new')}: {each.path}, {counted(each.rows, 'row')}")
    return lines


def total_of(statuses: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of counts by name."""
    total: dict[str, int] = {}
    for counts in statuses:
        for name, rows in counts.items():
            total[name] = total.get(name, 0) + rows
    return total


def broken_inputs(pending: Pending) -> str | None:
    """Return a line that names the inputs that could not be read, None without any."""
    if not pending.broken:
        return None
    reasons = list(pending.broken.values())
    more = f" (and {len(reasons) - _NAMED} more)" if len(reasons) > _NAMED else ""
    return (
        f"inputs: {len(reasons)} could not be read, {len(pending.inputs)} answered and committed; the next run tries "
        f"again: {'; '.join(reasons[:_NAMED])}{more}"
    )


def stem_of(path: str, key: str, number: int) -> str:
    """Return the name of a partition of an input, without its ending."""
    partition = partition_of(path)
    return f"{partition}/{key}-{number:05d}" if partition else f"{key}-{number:05d}"


def key_of(part: str) -> str:
    """Return the key in the name of a part."""
    return part.rpartition("/")[2].rpartition("-")[0]
