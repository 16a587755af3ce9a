"""`junctor finalise`: the end of an array job, whose tasks ran with `--part`."""

from __future__ import annotations

from typing import Annotated

import typer

from junctor.cli import options as cli
from junctor.cli.verify import OutputArgument, directory_of


def finalise(
    output: OutputArgument,
    csv: Annotated[bool, typer.Option("--csv", help="Also write the answers as one CSV file.")] = False,
    json: cli.AsJson = False,
    quiet: cli.Quiet = False,
) -> None:
    """Write the manifest of a run whose parts were answered by tasks of an array (`junctor run --part 3/16`).

    Parts that are missing are named, with exit code 6.
    """
    from junctor.cli.display import progress_display, show_manifest
    from junctor.runs.export import export_csv
    from junctor.runs.share import finish

    directory = directory_of(output)
    with progress_display(quiet) as progress:
        manifest = finish(directory, progress)
        if csv:
            paths = [directory.path / part.file for part in manifest.parts]
            export_csv(directory.csv(manifest.spec.folder), paths, progress)
    show_manifest(directory, manifest, json)
