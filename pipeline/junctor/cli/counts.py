"""`junctor counts`: expected counts of all families of a network, as a table."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer

from junctor.cli import options as cli
from junctor.model.errors import InputError


def counts(
    network: cli.NetworkFile,
    evidence: cli.EvidenceFile,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", help="File for the counts: .parquet or .csv; or its URL."),
    ],
    weight: cli.Weight = None,
    case_id: cli.CaseId = None,
    ignore_extra: cli.IgnoreExtra = False,
    strict: cli.Strict = False,
    mapping: cli.MappingFile = None,
    missing: cli.Missing = None,
    network_format: cli.NetworkFormat = None,
    normalize: cli.Normalize = False,
    ignore_decisions: cli.IgnoreDecisions = False,
    evidence_format: cli.EvidenceFormat = None,
    separator: cli.Separator = None,
    workers: cli.RowWorkers = None,
    threads: cli.Threads = None,
    memory: cli.Memory = None,
    device: cli.LearningDevice = "cpu",
    device_memory: cli.DeviceMemory = None,
    time_limit: cli.TimeLimit = None,
    scheduler: cli.Scheduler = None,
    insecure_scheduler: cli.InsecureScheduler = False,
    json: cli.AsJson = False,
    quiet: cli.Quiet = False,
    log_format: cli.LogFormatOption = "text",
) -> None:
    """Add up P(family | evidence) over the rows of EVIDENCE, for every family of NETWORK: what EM counts.

    One row for each entry of each table. Impossible and invalid rows count nothing.
    """
    from junctor.runtime.remote import location, shown

    path = location(output)
    if path.suffix.lower() not in (".parquet", ".csv"):
        raise InputError(f"{shown(output)}: expected a file .parquet or .csv")
    from junctor.evidence.files import refuse_target

    refuse_target(output, "--output", (network, evidence, mapping))
    from junctor.cli.display import progress_display, show_statuses
    from junctor.cli.failures import all_invalid
    from junctor.formats import read_network
    from junctor.learning.counts import count_rows, counts_table, write_counts
    from junctor.learning.rows import RowOptions
    from junctor.runtime.dask_cluster import check_resources, prepare_workers
    from junctor.runtime.settings import load_settings

    rows = RowOptions(weight, case_id, ignore_extra, strict, tuple(missing or ()), mapping, evidence_format, separator)
    settings = load_settings()
    given = memory, threads, device, device_memory
    compute = cli.compute_options(*given, defaults=settings.compute, time_limit=time_limit)
    resources = settings.resources_with(compute, workers, scheduler, insecure_scheduler)
    check_resources(resources)
    prepare_workers(resources)
    model = read_network(network, network_format, normalize=normalize, ignore_decisions=ignore_decisions)
    with progress_display(quiet) as progress:
        found, statuses, why = count_rows(model, evidence, rows, resources, progress)
    table = counts_table(model, found)
    write_counts(table, path)
    if json:
        typer.echo(json_module.dumps({"output": shown(output), "entries": table.num_rows, "rows": statuses}, indent=2))
    else:
        typer.echo(f"{shown(output)}: {table.num_rows:,} entries; rows: {show_statuses(statuses)}")
    if 0 < statuses["invalid"] == sum(statuses.values()):
        raise all_invalid(statuses["invalid"], why)
