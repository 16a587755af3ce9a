"""What exact answers may take before rows are sampled: fixed when a run begins, and kept in its directory."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from junctor.cost.policy import EXACT_ROW
from junctor.model.errors import RunError
from junctor.model.options import ComputeOptions
from junctor.runtime.files import read_json, write_json
from junctor.runtime.machine import allowed_disk, allowed_memory, spill_folder
from junctor.runtime.records import typed
from junctor.runtime.remote import AnyPath


@dataclass(frozen=True, slots=True)
class ExactBudget:
    """Limits of exact answers.

    memory, disk: bytes.
    seconds: of one core, for a row.
    """

    memory: int
    disk: int
    # One without seconds is of a run that was given no limit of time.
    seconds: float = EXACT_ROW

    def options(self) -> ComputeOptions:
        """Return the options of one thread of a CPU, by which no choice depends on the machine."""
        return ComputeOptions(self.memory, 1, "cpu", spill_bytes=self.disk, time_limit=self.seconds)


def exact_budget(options: ComputeOptions, file: AnyPath | None) -> ExactBudget:
    """Return the budget that a file has, or that of some options, which is written there.

    options: what the process may use.
    file: None for none.
    Raises RunError for a file of anything else.
    """
    kept = None if file is None else read_json(file)
    if kept is None:
        # Fixed once: free memory and disk change while a run is interrupted.
        disk = allowed_disk(spill_folder(options.spill_dir)) if options.spill_bytes is None else options.spill_bytes
        seconds = EXACT_ROW if options.time_limit is None else options.time_limit
        found = ExactBudget(allowed_memory(options), disk, seconds)
        if file is not None:
            write_json(file, asdict(found))
        return found
    try:
        return typed(ExactBudget, kept)
    except TypeError as error:
        raise RunError(f"{file}: not the budget of exact answers ({error}): start afresh with --overwrite") from error
