"""`junctor tune`: measure how fast this machine's CPU or GPU is, for its own forecasts and choices."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Literal

import typer

from junctor.cli.options import refuse_nan

# Fewer networks are no sample of what plans are like.
LEAST_NETWORKS = 5
# Shares of the time that are for plans in chunks, for stored tables, and for figures that choices weigh; these take a
# minute at the most.
CHUNKS_SHARE, STORED_SHARE, FIGURES_SHARE, FIGURES_SECONDS = 0.3, 0.1, 0.2, 60.0


def tune(
    device: Annotated[Literal["cpu", "gpu"], typer.Option(help="What to measure.")] = "cpu",
    minutes: Annotated[
        float, typer.Option(help="Begin no measurement after this many minutes.", min=0.0, callback=refuse_nan)
    ] = 5.0,
    forget: Annotated[bool, typer.Option("--forget", help="Remove what was measured here before.")] = False,
) -> None:
    """Measure plans of built-in networks, and what choices weigh, so that forecasts and choices fit this machine.

    The measurements lie in the user's cache directory (`XDG_CACHE_HOME`, `~/.cache`) and go before those that come
    with the package. Runs that began earlier are not changed by them.
    """
    from junctor.calibration.blocks import calibrate_blocks
    from junctor.calibration.chunked import calibrate_chunks
    from junctor.calibration.cliques import built_in, calibrate_cliques
    from junctor.calibration.figures import calibrate_figures, with_enough
    from junctor.calibration.harness import fewest, local_device, save
    from junctor.cost.dataset import file_name
    from junctor.cost.figures import RECORDS
    from junctor.runtime.devices import check_device, open_gpu
    from junctor.runtime.machine import own_measurements

    check_device(device)
    here = local_device(device)
    path = own_measurements() / file_name(here)
    if forget:
        path.unlink(missing_ok=True)
        typer.echo(f"{path} is gone: forecasts go by the measurements of the package")
        return
    _check_writable(path.parent)
    typer.echo(f"measuring {here.name}: up to {minutes:g} minutes, best while nothing else runs", err=True)
    # Generators: the time of each begins with its first measurement.
    rows, opened, seconds = [], open_gpu() if device == "gpu" else None, 60 * minutes
    in_chunks = calibrate_chunks(opened, CHUNKS_SHARE * seconds)
    stored = calibrate_cliques(built_in() if opened is None else (), STORED_SHARE * seconds)
    figures = calibrate_figures(min(FIGURES_SECONDS, FIGURES_SHARE * seconds)) if opened is None else ()
    in_one_piece = calibrate_blocks(opened, (1 - CHUNKS_SHARE - STORED_SHARE - FIGURES_SHARE) * seconds)
    for name, measured in chain(in_one_piece, in_chunks, stored, figures):
        rows += measured
        typer.echo(f"  {name}: {len(measured)} measurements", err=True)
    # Repeats of a measurement differ by what else the machine did: the fewest seconds are the least disturbed.
    rows = with_enough(fewest(rows))
    networks = len({row.network for row in rows if row.backend not in RECORDS})
    if networks < LEAST_NETWORKS:
        typer.echo(f"only {networks} networks in {minutes:g} minutes: too little to learn from; allow more", err=True)
        raise typer.Exit(5)
    save(here, rows, path)
    typer.echo(f"{len(rows)} measurements of {networks} networks in {path}")


def _check_writable(folder: Path) -> None:
    """Raise InputError, before minutes of measuring, where measurements could not be kept."""
    from junctor.model.errors import InputError

    # Tried, not asked for: permissions do not tell about full or read-only file systems.
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"{folder}: {error.strerror or error}: measurements cannot be kept there; mend that, or let XDG_CACHE_HOME "
            "name another folder"
        ) from error
