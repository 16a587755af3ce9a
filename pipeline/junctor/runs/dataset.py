"""Datasets: evidence that is encoded once, in a folder that several runs and networks share.

Main function: `ingest_dataset`, called by the command line. A dataset is a run directory whose parts are its evidence.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from junctor.evidence.files import DATASET_EVIDENCE, DATASET_RECORD, DATASET_SPEC
from junctor.evidence.mapping import read_mapping
from junctor.model.errors import EvidenceError
from junctor.model.network import Network
from junctor.model.query import Query
from junctor.runs.increments import IncrementDirectory
from junctor.runs.integrity import verify
from junctor.runs.manifest import Manifest, read_manifest
from junctor.runs.partition import StageTimings
from junctor.runs.run import RunStats, finalise, ingest_inputs, ingest_model
from junctor.runs.storage import Ingested, RunDirectory, RunSpec
from junctor.runs.workload import Job, Words, Workload
from junctor.runtime.files import io_errors_for
from junctor.runtime.gc_pause import collector_paused
from junctor.runtime.progress import Progress, Silence
from junctor.runtime.records import typed
from junctor.runtime.remote import AnyPath, location

#   DATASET/spec.json                        what was asked for; written first, and compared when it goes on
#   DATASET/network.parquet                  the network that names are of
#   DATASET/evidence/part-00000.parquet      encoded evidence; of evidence that grows named by its input
#   DATASET/ingest.json                      its parts, rows and checksums; written when all of them are there
#   DATASET/rejects.parquet                  made of these: the invalid rows, with reasons; the evidence has them too

# Cells of a part and of a group of rows in it, which is the least that is read.
PART_CELLS, GROUP_CELLS = 2**25, 2**22

logger = logging.getLogger("junctor")


@dataclass(frozen=True, slots=True)
class DatasetSpec(RunSpec):
    """All that the evidence of a dataset depends on."""

    @property
    def folder(self) -> str:
        """Name of the folder of its parts."""
        return DATASET_EVIDENCE


class DatasetDirectory(RunDirectory):
    """The files of a dataset."""

    group_cells = GROUP_CELLS

    @property
    def spec_file(self) -> AnyPath:
        """What was asked for, written first."""
        return self.path / DATASET_SPEC

    @property
    def manifest(self) -> AnyPath:
        """List of parts, written last."""
        return self.path / DATASET_RECORD

    @property
    def rejects(self) -> AnyPath:
        """The invalid rows."""
        return self.path / "rejects.parquet"

    @staticmethod
    def parse(record: dict[str, Any]) -> DatasetSpec:
        """Return the spec of a record."""
        return typed(DatasetSpec, record)

    def read_ingested(self) -> Ingested | None:
        """Return the amount of encoded evidence, None while it is incomplete."""
        # Its mark goes with the last step: readers of the folder expect nothing but Parquet.
        if self.manifest.exists():
            manifest = read_manifest(self)
            return Ingested(manifest.rows, len(manifest.parts))
        return RunDirectory.read_ingested(self)

    def read_facts(self, path: AnyPath) -> tuple[int, dict[str, int], str | None]:
        """Return the rows of a part and those of each status."""
        from junctor.evidence.encoded import counts_of
        from junctor.model.answers import STATUS_NAMES

        rows, invalid = counts_of(path)
        return rows, {**dict.fromkeys(STATUS_NAMES, 0), "ok": rows - invalid, "invalid": invalid}, None

    def small_files(self) -> list[AnyPath]:
        """Return the files beside parts, rejects and record."""
        return [self.spec_file, self.network]

    def forget(self) -> None:
        """Remove what is encoded and in no record."""
        with io_errors_for(self.path):
            parts = read_manifest(self).parts if self.manifest.exists() else ()
            self._clear_folder(self.inputs, {self.path / part.file for part in parts})

    def _clear(self) -> None:
        for path in (self.manifest, self.rejects):
            path.unlink(missing_ok=True)
        RunDirectory._clear(self)


class GrowingDataset(DatasetDirectory, IncrementDirectory):
    """The files of a dataset of evidence that grows."""

    def read_ingested(self) -> Ingested | None:
        """Return the amount of evidence of the increment, None while it is not encoded."""
        return IncrementDirectory.read_ingested(self)


class IngestJob(Job):
    """Evidence to encode into a dataset; a job without answers."""

    words = Words("network", "evidence", "encoding")
    flow_name = "junctor-ingest"

    @property
    def directory(self) -> DatasetDirectory:
        """The dataset."""
        return (GrowingDataset if self.grows else DatasetDirectory)(location(self.output).absolute())

    def spec_of(self, model: Network) -> DatasetSpec:
        """Return all that the evidence depends on."""
        spec = Job.spec_of(self, model)
        return DatasetSpec(**{each.name: getattr(spec, each.name) for each in fields(RunSpec)})

    def _asked(self, network: Network) -> Query:
        mapping = read_mapping(self.options["mapping"], network)
        if mapping is not None and mapping.hides_targets:
            raise EvidenceError(
                "hides targets, which a run has: leave it to `junctor run --hide-targets`", mapping.place
            )
        return self.query

    def _partition_rows(self, model: Network) -> int:
        rows = min(2**19, PART_CELLS // len(model.public))
        return self._fewer_rows(1 << max(0, rows.bit_length() - 1))

    def export(self, parts: Sequence[AnyPath], progress: Progress) -> None:
        """Write the rows that are invalid; what marked the evidence as encoded goes."""
        from junctor.runs.rejects import write_rejected_evidence

        progress.stage("writing the rejects")
        write_rejected_evidence(parts, self.directory.rejects)
        self.directory.forget()


def ingest_dataset(job: Workload, progress: Progress | None = None) -> Manifest:
    """Encode evidence into a dataset; continues an earlier call of the same job, and makes damaged parts anew.

    job: an IngestJob.
    progress: None for silence.
    Raises InputError for errors in network, evidence or options, and RunError for the directory: another dataset in
    it, no space, in use.
    """
    progress, started = progress or Silence(), time.monotonic()
    job.check_places()
    directory = job.directory
    assert isinstance(directory, DatasetDirectory)
    with directory.locked():
        with collector_paused():
            _, stamps = ingest_model(job, progress)
            if _discard_damaged(directory):
                _, stamps = ingest_model(job, progress)
        ingest_inputs(job, progress, stamps=stamps)
        return finalise(job, RunStats(0, StageTimings()), time.monotonic() - started, progress)


def _discard_damaged(directory: DatasetDirectory) -> bool:
    """Remove damaged files and the record of them, so that this call makes them anew; returns True if there are any."""
    # Of evidence that grows, what becomes of the inputs of a part is asked for by --backfill.
    if isinstance(directory, GrowingDataset) or not directory.manifest.exists():
        return False
    faults = [fault for fault in verify(directory).faults if fault.kind in ("missing", "damaged")]
    for fault in faults:
        logger.warning("%s: %s (%s): made anew", directory.path / fault.file, fault.kind, fault.detail)
        (directory.path / fault.file).unlink(missing_ok=True)
    if faults:
        directory.manifest.unlink(missing_ok=True)
    return bool(faults)
