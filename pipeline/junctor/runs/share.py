"""Array jobs: several processes, on any machines that see the directory, each answer a share of one run.

Main functions: `run_share`, one task of the array, `finish`, once after all of them, and `close`, for what else is made
of the run; called by the command line.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from junctor.model.errors import InputError, RunError
from junctor.runs.closing import Closing
from junctor.runs.increments import IncrementDirectory
from junctor.runs.integrity import faulty_parts
from junctor.runs.manifest import Manifest, read_manifest
from junctor.runs.partition import StageTimings
from junctor.runs.run import (
    RunStats,
    claim,
    cut,
    ingest_inputs,
    part_rows,
    plan,
    propagate,
    write_manifest,
)
from junctor.runs.storage import Directory
from junctor.runs.workload import Workload
from junctor.runtime.dask_cluster import Resources, check_resources
from junctor.runtime.gc_pause import collector_paused
from junctor.runtime.progress import Progress
from junctor.runtime.remote import AnyPath

# Missing or damaged parts that a message names.
NAMED = 20


@dataclass(frozen=True, slots=True)
class Share:
    """The share `number` (from 1) of `of`: every `of`-th partition."""

    # Not a range of them: the last partitions of sorted evidence may be the hard ones.
    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Share:
        """Return the share in a text such as 3/16; raises InputError for another text."""
        found = re.fullmatch(r"(\d+)/(\d+)", text.strip())
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise InputError(f"found the part {text!r}, expected a number and how many there are, from 1/16 to 16/16")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def has(self, partition: int) -> bool:
        """Return True if the partition belongs to the share."""
        return partition % self.of == self.number - 1


@dataclass(frozen=True, slots=True)
class ShareStats:
    """What one task of an array did.

    part: of the array, such as 3/16.
    partitions: of the share; all_partitions: of the run.
    reused: partitions of the share with answers of earlier calls.
    rows: answered by this call.
    seconds: of this call.
    stages: seconds of its parts.
    """

    part: str
    partitions: int
    all_partitions: int
    reused: int
    rows: int
    seconds: float
    stages: StageTimings


def run_share(job: Workload, share: Share, resources: Resources, progress: Progress) -> ShareStats:
    """Answer the partitions of a share, beside other processes at other shares of the same job.

    job: equal for all shares.
    share: of this process.
    resources: of this process.
    progress: counts rows of the share.
    Raises the errors of `run`; RunError too where another job is at the directory.
    """
    started = time.monotonic()
    if job.growth is not None:
        raise InputError("found a part of an array job that is incremental: an increment is answered by one process")
    check_resources(resources)
    job.check_places()
    directory = job.directory
    with collector_paused():
        progress.stage(f"reading the {job.words.model}")
        model = job.read_model()
        stamps = job.stamps()
        spec = job.spec_of(model)
    with ExitStack() as using:
        with directory.preparing(lambda: progress.stage(f"waiting for another part to read the {job.words.inputs}")):
            is_first = using.enter_context(directory.shared())
            claim(job, model, spec, stamps, progress, is_first)
            ingest_inputs(job, progress, stamps=stamps)
            # What this decides for all shares, the first one decides.
            if getattr(spec, "method", "exact") != "exact":
                plan(job, resources, progress, share.has)
            elif is_first:
                cut(job, part_rows(job, resources, plan(job, resources, progress)), progress, stamps)
        counts = directory.counts()
        with collector_paused():
            estimate = plan(job, resources, progress, share.has)
        work = propagate(job, resources, estimate, progress, share.has)
    partitions = sum(map(share.has, range(counts.partitions)))
    rows = sum(part.rows for part in work.made)
    seconds = round(time.monotonic() - started, 3)
    return ShareStats(str(share), partitions, counts.partitions, work.reused, rows, seconds, work.stages)


def finish(
    directory: Directory[Any], progress: Progress, check: Callable[[Manifest], None] = lambda _: None
) -> Manifest:
    """Return the manifest of a run whose shares are done; written unless it exists.

    directory: of the run.
    progress: shows the stage.
    check: told of the manifest before it is written; what it raises leaves it unwritten.
    Raises RunError with the parts that are missing or damaged, while a share is under way, and for an incremental run.
    """
    started = time.monotonic()
    directory.read_spec()
    if isinstance(directory, IncrementDirectory):
        raise RunError(
            f"{directory.path}: an incremental run: increments need no finalise, because their own command commits "
            "them; one that was interrupted goes on with the same command"
        )
    with directory.locked():
        # Nothing is removed: whoever makes no parts cannot make them again.
        faulty, parts = faulty_parts(directory), directory.counts().partitions
        if faulty:
            raise RunError(_unusable(directory.path, faulty, parts))
        if directory.manifest.exists():
            manifest = read_manifest(directory)
            check(manifest)
            return manifest
        return write_manifest(directory, RunStats(parts, StageTimings()), time.monotonic() - started, progress, check)


def close(closing: Closing, manifest: Manifest, progress: Progress) -> None:
    """Write rejects and page of a finished run; raises ThresholdError for thresholds that are crossed.

    closing: what is asked for.
    manifest: of the run.
    progress: shows the stages.
    Raises RunError while the directory is in use.
    """
    with closing.directory.locked():
        closing.write_rejects(manifest, progress)
        closing.judge(manifest, progress)


def _unusable(path: AnyPath, faulty: Mapping[AnyPath, str | None], of: int) -> str:
    missing = [part.stem for part, why in faulty.items() if why is None]
    damaged = [f"{part.stem} ({why})" for part, why in faulty.items() if why is not None]
    groups = [
        f"{len(names):,} of {of:,} parts are {what}: {_some(names)}"
        for names, what in ((missing, "missing"), (damaged, "damaged"))
        if names
    ]
    # Whoever has 16 shares needs the numbers of theirs.
    return (
        f"{path}: {'; '.join(groups)}; partition i belongs to --part (i mod N) + 1 of N: run these again, or the "
        "command without --part for all of them"
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
