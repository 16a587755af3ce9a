"""The record of a finished run. Main function: `read_manifest`, for all that looks at one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from junctor.model.errors import RunError
from junctor.model.strategies import Chosen
from junctor.runs.increments import EvidenceColumns, Increment
from junctor.runs.inputs import Input
from junctor.runs.partition import Part, StageTimings
from junctor.runs.storage import Directory, spec_record
from junctor.runtime.files import Checksum, read_json, refused
from junctor.runtime.records import typed

# Fields of a manifest that other runs have not.
_OF_INCREMENTS = ("increment", "inputs", "increments", "columns", "root")


@dataclass(frozen=True, slots=True)
class Manifest:
    """A finished run.

    spec: specification of the run.
    rows: of all parts.
    statuses: rows of each status.
    parts: in the order of their rows.
    reused_parts: number of parts from calls before the last one.
    seconds: of the last call.
    stages: seconds of its own parts.
    finished_at: date and time, in UTC.
    peak_bytes: of memory of this process, and of its largest worker on this machine; all that they are made of, where
        `--memory` is about propagation alone.
    files: checksums of the network, of the specification and of other small files.
    increment: number of the increment of the last call, None if nothing was new; this and the rest are of runs whose
        evidence grows.
    inputs: files that are answered; their parts follow each other in `parts`.
    increments: in their order.
    columns: of the inputs.
    root: folder in which the paths of inputs begin, or its URL; earlier versions told none.
    observed_targets: variables that the query names -> valid rows that observe them, without those of no rows.
    placement: where the last call answered rows, and why.
    choices: how it answered those of its first partition, and what else there was.
    """

    # Of either kind; what it is of, its directory knows.
    spec: Any
    rows: int
    statuses: dict[str, int]
    parts: tuple[Part, ...]
    reused_parts: int
    seconds: float
    stages: StageTimings
    finished_at: str
    peak_bytes: tuple[int, int] = (0, 0)
    files: dict[str, Checksum] = field(default_factory=dict)
    increment: int | None = None
    inputs: tuple[Input, ...] = ()
    increments: tuple[Increment, ...] = ()
    columns: EvidenceColumns | None = None
    root: str | None = None
    observed_targets: dict[str, int] = field(default_factory=dict)
    placement: str = ""
    choices: tuple[Chosen, ...] = ()

    def to_record(self) -> dict[str, Any]:
        """Return a record for JSON."""
        parts = [part.to_record() for part in self.parts]
        record = {**asdict(replace(self, parts=())), "spec": spec_record(self.spec), "parts": parts}
        left_out: tuple[str, ...] = () if self.increments else _OF_INCREMENTS
        left_out += tuple(name for name in ("observed_targets", "placement", "choices") if not record[name])
        return {name: record[name] for name in record if name not in left_out}


def read_manifest(directory: Directory[Any]) -> Manifest:
    """Return the manifest of a finished run; raises RunError if it is missing or unreadable."""
    record = read_json(directory.manifest)
    if record is None:
        raise RunError(f"{directory.path}: not finished (manifest.json is missing)")
    with refused(lambda said: RunError(f"{directory.manifest}: not a manifest ({said}): delete it and run again")):
        return manifest_of(record, directory.parse)


def manifest_of(record: dict[str, Any], parse: Callable[[dict[str, Any]], Any]) -> Manifest:
    """Return the manifest of a record of `Manifest.to_record`; raises KeyError or TypeError for another record.

    parse: makes the spec of its record.
    """
    known = {each.name: record[each.name] for each in fields(Manifest) if each.name in record}
    return typed(Manifest, known | {"spec": parse(record["spec"])})
