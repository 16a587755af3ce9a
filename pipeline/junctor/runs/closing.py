"""What is made of a finished run beside its answers: rows that are not ok, its page, what comes of thresholds.

Main class: Closing, of a job at the end of its run, or of the command line at the end of an array job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from junctor.evidence.files import refuse_target
from junctor.model.errors import InputError, RunError
from junctor.model.option_table import ClosingOptions
from junctor.runs.storage import Directory, RunSpec
from junctor.runtime.installed import require_extra
from junctor.runtime.progress import Progress
from junctor.runtime.remote import AnyPath, location, shown

if TYPE_CHECKING:
    from junctor.runs.manifest import Manifest
    from junctor.runs.outcome import Outcome
    from junctor.runs.thresholds import Verdict

# First bytes of a page, in lower case.
PAGE_START = b"<!doctype html"


@dataclass(frozen=True, slots=True)
class Closing:
    """What is asked for at the end of a run.

    directory: of the run.
    options: report, fail_if and rejects, of the table.
    """

    directory: Directory[Any]
    options: ClosingOptions

    def check_places(self, sources: Sequence[str] = ()) -> None:
        """Raise InputError or RunError for a file of rejects that cannot be written, or is of something else.

        sources: what the run reads, as it was given; none where that is not known.
        Raises InputError for a page where nothing draws it.
        """
        if self.options["report"]:
            require_extra("report", "a page", "leave the report out")
        rejects = self.options["rejects"]
        if rejects is None:
            return
        from junctor.runs.rejects import refuse_ending, refuse_others

        refuse_target(rejects, "--rejects", sources)
        refuse_bytes(location(rejects).absolute())
        self.directory.refuse_target(rejects, "--rejects")
        refuse_ending(rejects)
        if not sources:
            # It may be the evidence.
            refuse_others(rejects)

    def write_rejects(self, manifest: Manifest, progress: Progress) -> None:
        """Write the rows that are not ok, if requested; progress: shows the stage."""
        rejects = self.options["rejects"]
        if rejects is None:
            return
        from junctor.runs.rejects import write_rejects

        progress.stage("writing rows that are not ok")
        kept = len(manifest.spec.keep) if isinstance(manifest.spec, RunSpec) else 0
        write_rejects(self.directory.path, manifest.parts, kept, location(rejects).absolute())

    def refuse_unknown(self, manifest: Manifest) -> None:
        """Raise InputError for thresholds on what the run has not, as far as that was not known before it began."""
        if self.options["fail_if"]:
            from junctor.runs.outcome import outcome_of

            outcome_of(self.directory, manifest).refuse_unknown(self.options["fail_if"])

    def judge(self, manifest: Manifest, progress: Progress) -> None:
        """Write the page, if requested; raises ThresholdError for thresholds that are crossed: the answers are kept.

        manifest: of the run.
        progress: shows the stage.
        """
        if not self.options["report"] and not self.options["fail_if"]:
            return
        from junctor.runs.outcome import outcome_of
        from junctor.runs.thresholds import refuse_crossed

        outcome = outcome_of(self.directory, manifest)
        found = outcome.verdicts(self.options["fail_if"])
        if self.options["report"]:
            self._write_page(outcome, found, progress)
        rows, page = (
            f"status and reason of all rows: {self.directory.path / manifest.spec.folder}",
            self.directory.report,
        )
        if (rejects := self.options["rejects"]) is not None:
            rows = f"all rows that are not ok are in {shown(rejects)}"
        refuse_crossed(found, rows, str(page) if page.exists() else None)

    def _write_page(self, outcome: Outcome, found: Sequence[Verdict], progress: Progress) -> None:
        # Imported here: pictures take a second to import.
        from junctor.runs.report.page import write_page

        progress.stage("writing the report")
        write_page(outcome, found, self.directory.report)


def refuse_no_page(name: str, option: str) -> None:
    """Raise InputError for a file that is there and is no page; an empty one is nobody's.

    name: of a page to write, as it was given.
    option: that names it.
    """
    path = location(name)
    if not path.exists():
        return
    with path.open("rb") as file:
        start = file.read(len(PAGE_START))
    if start and start.lower() != PAGE_START:
        raise InputError(
            f"{option} {shown(name)}: a file is there that is no page: name another file, or remove that one"
        )


def refuse_bytes(path: AnyPath) -> None:
    """Raise RunError for a path that Arrow cannot write to."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise RunError(f"{str(path)!r}: the path is not UTF-8, and Arrow writes to no other: name one") from None
