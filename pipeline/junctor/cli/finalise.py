"""`junctor finalise`: the end of an array job, whose tasks ran with `--part`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from junctor.cli import options as cli
from junctor.cli.verify import OutputArgument, directory_of
from junctor.model import option_table as table

if TYPE_CHECKING:
    from junctor.runs.manifest import Manifest


class FinaliseOptions(
    table.CsvOptions,
    table.ClosingOptions,
    cli.JsonOptions,
    cli.MessageOptions,
    total=False,
):
    """Options of `junctor finalise`."""


@cli.takes_options(report={"default": False, "flag": "--report", "help": "Write a page on the run, report.html."})
def finalise(output: OutputArgument, **options: Unpack[FinaliseOptions]) -> None:
    """Write the manifest of a run whose parts were answered by tasks of an array (`junctor run --part 3/16`).

    Parts that are missing are named, with exit code 6; code 4 is for invalid rows alone. What is made of
    all answers, the tasks leave to this command.
    """
    from junctor.cli.display import progress_display, show_what_is_done
    from junctor.runs.closing import Closing
    from junctor.runs.export import export_csv
    from junctor.runs.share import close, finish

    directory = directory_of(output)
    closing = Closing(directory, options)
    closing.check_places()

    def work() -> Manifest:
        with progress_display(options["quiet"]) as progress:
            manifest = finish(directory, progress, closing.refuse_unknown)
            if options["csv"]:
                paths = [directory.path / part.file for part in manifest.parts]
                export_csv(directory.csv(manifest.spec.folder), paths, progress)
            close(closing, manifest, progress)
        return manifest

    show_what_is_done(directory, work, options["json"])
