"""`junctor verify`: whether a run directory is as the run left it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

from junctor.cli import options as cli
from junctor.cli.lines import print_document

if TYPE_CHECKING:
    from junctor.runs.storage import Directory

OutputArgument = Annotated[str, typer.Argument(metavar="OUTPUT", help="Directory of a run.")]


@cli.takes_options()
def verify(output: OutputArgument, **options: Unpack[cli.JsonOptions]) -> None:
    """Read every file of a run and compare it with its checksum: names what is missing, damaged or foreign.

    A dataset of `junctor ingest` is verified likewise. Exit code 0 if all is whole, 6 if not.
    """
    from dataclasses import asdict

    from junctor.model.errors import RunError
    from junctor.planning.budget import format_bytes
    from junctor.runs import integrity
    from junctor.runtime.files import io_errors_for

    directory = _dataset_of(output) or directory_of(output)
    with io_errors_for(directory.path):
        verified = integrity.verify(directory)
    if options["json"]:
        print_document({"directory": str(directory.path), **asdict(verified)})
    else:
        for fault in verified.faults:
            typer.echo(f"{fault.kind} {fault.file}: {fault.detail}")
        without = f", {verified.without_checksum:,} of them without a checksum" if verified.without_checksum else ""
        typer.echo(f"{verified.files:,} files, {format_bytes(verified.bytes)}{without}")
    if verified.faults:
        many = f"{len(verified.faults):,} file{'s' * (len(verified.faults) != 1)}"
        raise RunError(
            f"{directory.path}: {many} not as the run left them: delete those that are damaged or foreign and run the "
            "same command again"
        )


def _dataset_of(output: str) -> Directory[Any] | None:
    """Return a dataset of `junctor ingest`; None for a directory of something else."""
    from junctor.evidence.files import DATASET_SPEC
    from junctor.runtime.files import read_json
    from junctor.runtime.remote import location

    spec = read_json(location(output or ".").absolute() / DATASET_SPEC)
    if spec is None:
        return None
    from junctor.runs.dataset import DatasetDirectory, GrowingDataset

    return (GrowingDataset if spec.get("incremental") else DatasetDirectory)(location(output).absolute())


def directory_of(output: str) -> Directory[Any]:
    """Return the directory of a run of either kind; raises RunError where there is none, BadParameter for no name."""
    cli.refuse_empty(output, "OUTPUT")
    from junctor.hmm.run import SequenceDirectory
    from junctor.runs.increments import IncrementDirectory
    from junctor.runs.storage import RunDirectory
    from junctor.runtime.files import read_json
    from junctor.runtime.remote import location

    rows = RunDirectory(location(output).absolute())
    spec = read_json(rows.spec_file) or {}
    if "model_digest" in spec:
        return SequenceDirectory(rows.path)
    return IncrementDirectory(rows.path) if spec.get("incremental") else rows
