"""`junctor demo`: the main job from end to end, on a pumping station's alarms, with a summary for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from junctor.cli import options as cli

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

    from junctor.model.network import Network
    from junctor.runs.storage import RunDirectory

# Faults that nobody sees directly, with their worst states.
FAULTS = ("StrainerClog", "FilterClog", "BearingWear", "SealWear", "ImpellerErosion", "ValveStuck", "MotorWinding")
LIKELY = 0.5
# Small parts, so that the progress of a small job can be seen.
PARTITION_ROWS = 2_000


def demo(
    output: Annotated[str, typer.Option("--output", "-o", help="Directory for input and answers.")] = "demo-run",
    rows: Annotated[int, typer.Option(min=1, help="Rows of sensor readings to make.")] = 20_000,
    prefect: Annotated[bool, typer.Option("--prefect/--no-prefect", help="Show it to a Prefect server.")] = True,
) -> None:
    """Make sensor readings of a pumping station, and infer the faults behind each of them."""
    cli.refuse_empty(output)
    from junctor.runtime.installed import require_extra

    if prefect:
        require_extra("flow", "the page of Prefect", "use --no-prefect")
    from rich.console import Console

    from junctor.cli.display import progress_display, show_manifest
    from junctor.cli.run import watched_work
    from junctor.model.pumping_station import plant
    from junctor.runs.run import run
    from junctor.runs.workload import Job
    from junctor.runtime.dask_cluster import Resources
    from junctor.runtime.remote import local_path

    network, console = plant(), Console()
    folder = local_path(output)
    network_file, evidence_file = folder / "plant.bif", folder / f"sensors-{rows}.parquet"
    _make_input(network, network_file, evidence_file, rows)
    console.print(
        f"Pumping station: {len(network.variables)} variables, {rows:,} rows of sensor readings with gaps. "
        "Which faults are behind each row?"
    )
    if prefect:
        console.print("Prefect starts its own server beside it; --no-prefect does without.")
    answers = str(folder / "answers")
    job = Job(
        str(network_file), str(evidence_file), answers, case_id="case_id", overwrite=True, partition_rows=PARTITION_ROWS
    )
    # The same call as of `junctor run`: the demo shows the product, nothing made for it.
    with progress_display() as progress:
        manifest = watched_work(job, lambda job, progress: run(job, Resources(), progress), prefect, progress)
    _show_faults(console, job.directory, network)
    show_manifest(job.directory, manifest, as_json=False)


def _make_input(network: Network, network_file: Path, evidence_file: Path, rows: int) -> None:
    from pyarrow import parquet

    from junctor.formats import write_network
    from junctor.generate import evidence_batches
    from junctor.model.pumping_station import SENSORS
    from junctor.runtime.files import written_atomically

    # Files appear whole or not at all: an interrupted demo must not leave half an input for the next one.
    with written_atomically(network_file) as temporary:
        write_network(network, temporary, format="bif")
    batches = evidence_batches(network, rows, observed=list(SENSORS), pattern="missing")
    first = next(batches)
    with written_atomically(evidence_file) as temporary, parquet.ParquetWriter(temporary, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)


def _show_faults(console: Console, directory: RunDirectory, network: Network) -> None:
    """Print, for each fault, in how many rows it is likely, and the row where it is most so."""
    from pyarrow import parquet
    from rich.table import Table

    answers = parquet.read_table(directory.path / "posteriors", columns=["case_id", "log_evidence", "status", *FAULTS])
    shown = Table(title="What the sensors say")
    for title, justify in (("fault", "left"), (f"rows with P > {LIKELY:.0%}", "right"), ("surest row", "right")):
        shown.add_column(title, justify=justify)  # type: ignore[arg-type]
    for fault in FAULTS:
        state = network.variables[network.index[fault]].states[-1]
        shown.add_row(f"{fault} = {state}", *_figures(answers, fault))
    console.print(shown)


def _figures(answers: pa.Table, fault: str) -> tuple[str, str]:
    import pyarrow.compute as pc

    # States are ordered from good to bad: the last one is the fault at its worst.
    worst = pc.list_element(answers[fault].combine_chunks(), answers.schema.field(fault).type.list_size - 1)
    surest = pc.index(worst, pc.max(worst)).as_py()
    likely = pc.sum(pc.greater(worst, LIKELY)).as_py() or 0
    return f"{likely:,}", f"{worst[surest].as_py():.1%} in row {answers['case_id'][surest].as_py():,}"
