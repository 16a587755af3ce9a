"""What lies in an output: the state of its run, rows, inputs and increments, from its records alone.

Main function: `read_status`, called by the command line for runs of all kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from junctor.model.errors import RefusedError, RunError
from junctor.runs.increments import Increment, IncrementDirectory, total_of
from junctor.runs.inputs import Input
from junctor.runs.partition import Part
from junctor.runs.statistics import observed_in
from junctor.runs.storage import INPUTS, KINDS, no_run, parts_in, read_spec_record
from junctor.runtime.files import read_json
from junctor.runtime.records import told, typed
from junctor.runtime.remote import AnyPath

# Beside an unfinished increment the last one stays what it is.
State = Literal["finished", "unfinished", "finished, with an unfinished increment"]


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The inputs of one partition: their number, rows, and rows of each status."""

    partition: str
    inputs: int
    removed: int
    rows: int
    statuses: dict[str, int]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The state of an output.

    directory: of the run.
    state: whether it has a manifest that is whole.
    spec: the record of run.json.
    rows: that are answered; None where only the manifest will tell.
    statuses: rows of each status.
    parts, bytes: of the answers that the manifest names; of an unfinished run those that are there.
    expected_rows, expected_parts: of an unfinished run, None before its evidence is encoded.
    finished_at, seconds: of the last call.
    inputs, increments: of evidence that grows.
    """

    directory: str
    state: State
    spec: dict[str, Any]
    rows: int | None
    statuses: dict[str, int]
    parts: int
    bytes: int
    expected_rows: int | None = None
    expected_parts: int | None = None
    finished_at: str | None = None
    seconds: float | None = None
    inputs: tuple[Input, ...] = ()
    increments: tuple[Increment, ...] = ()
    observed_targets: dict[str, int] = field(default_factory=dict)

    @property
    def partitions(self) -> list[PartitionStatus]:
        """The partitions of evidence that grows, in the order of their first inputs."""
        groups: dict[str, list[Input]] = {}
        for each in self.inputs:
            groups.setdefault(each.partition, []).append(each)
        return [
            PartitionStatus(
                partition,
                len(group),
                sum(each.removed for each in group),
                sum(each.rows for each in group),
                total_of(each.statuses for each in group),
            )
            for partition, group in groups.items()
        ]

    def to_record(self) -> dict[str, Any]:
        """Return a record for JSON."""
        return {**asdict(self), "partitions": [asdict(each) for each in self.partitions]}


def read_status(path: AnyPath) -> RunStatus:
    """Return the state of an output; raises RunError if there is no run, or its records cannot be read."""
    spec = read_spec_record(path / "run.json")
    if spec is None:
        raise RunError(no_run(path))
    file = path / "manifest.json"
    try:
        manifest = read_json(file)
        found = None if manifest is None else _finished(path, spec, manifest)
    except RefusedError:
        raise
    except (RunError, KeyError, TypeError, ValueError, AttributeError) as error:
        # As `junctor verify`: a manifest of evidence that grows alone knows what was answered.
        remade = "restore it from a copy" if spec.get("incremental") else "the same command again makes a new one"
        raise RunError(f"{file}: not a manifest{told(error)}: {remade}") from error
    if found is None:
        return _unfinished(path, spec)
    return replace(found, state=_state(path, spec, len(found.increments)))


def _finished(path: AnyPath, spec: dict[str, Any], manifest: Mapping[str, Any]) -> RunStatus:
    """Return the state that a manifest tells; raises KeyError or TypeError for another record."""
    parts = typed(tuple[Part, ...], manifest["parts"], "parts")
    return RunStatus(
        directory=str(path),
        state="finished",
        spec=spec,
        rows=typed(int, manifest["rows"], "rows"),
        statuses=typed(dict[str, int], manifest["statuses"], "statuses"),
        parts=len(parts),
        bytes=sum(part.bytes for part in parts),
        finished_at=typed(str, manifest["finished_at"], "finished_at"),
        seconds=typed(float, manifest["seconds"], "seconds"),
        inputs=typed(tuple[Input, ...], manifest.get("inputs", ()), "inputs"),
        increments=typed(tuple[Increment, ...], manifest.get("increments", ()), "increments"),
        observed_targets=observed_in(manifest),
    )


def _state(path: AnyPath, spec: Mapping[str, Any], increments: int) -> State:
    """Return the state of an output with a manifest; `increments` is how many of them it has."""
    if not spec.get("incremental"):
        return "finished"
    # The mark of one that is committed stays where nothing may be deleted.
    pending = IncrementDirectory(path).pending
    is_committed = pending.is_empty or pending.number <= increments
    return "finished" if is_committed else "finished, with an unfinished increment"


def _unfinished(path: AnyPath, spec: dict[str, Any]) -> RunStatus:
    file = next((each for folder in INPUTS if (each := path / folder / "done.json").exists()), None)
    parts = [part for folder in KINDS for part in parts_in(path / folder)]
    try:
        rows, partitions = (None, None) if file is None else _amount(read_json(file))
    except (KeyError, TypeError) as error:
        raise RunError(f"{file}: not the amount of the evidence here: start afresh with --overwrite") from error
    size = sum(part.stat().st_size for part in parts)
    return RunStatus(str(path), "unfinished", spec, None, {}, len(parts), size, rows, partitions)


def _amount(encoded: Mapping[str, Any] | None) -> tuple[int | None, int | None]:
    """Return rows and partitions of encoded inputs; raises KeyError or TypeError for another record."""
    if encoded is None:
        return None, None
    if "inputs" in encoded:
        counts = [rows for each in encoded["inputs"] for rows in each["rows"]]
        rows, partitions = sum(counts), len(counts)
    else:
        rows, partitions = encoded["rows"], encoded["partitions"]
    if type(rows) is not int or type(partitions) is not int:
        raise TypeError("a value of another type")
    return rows, partitions
