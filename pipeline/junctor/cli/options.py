"""Arguments and options that several commands share, and the records that they make."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from junctor.cli.lines import LogFormat, set_log_format
from junctor.model.errors import InputError, JunctorError
from junctor.model.options import Compression, ComputeOptions, DeviceChoice, Layout, OutputFormat
from junctor.model.query import LEAST_SAMPLES, MOST_TOP, AnswerKind, Method, Precision, Sampler, Stages
from junctor.planning.budget import parse_bytes
from junctor.runtime.remote import local_path

NetworkFile = Annotated[
    str,
    typer.Argument(
        metavar="NETWORK",
        help="BIF, XMLBIF, Hugin .net, GeNIe .xdsl .dsl, Netica .dne, OpenMarkov .pgmx, UAI, Parquet; .gz; a URL.",
    ),
]
EvidenceFile = Annotated[
    str,
    typer.Argument(
        metavar="EVIDENCE",
        help="Evidence, one row a case: CSV, Parquet, Arrow or .evid; a file, folder or glob in quotes, or its URL.",
    ),
]
CaseId = Annotated[str | None, typer.Option(help="Evidence column that names the cases.")]
IgnoreExtra = Annotated[bool, typer.Option("--ignore-extra", help="Pass over columns that are not in the network.")]
PartOfRun = Annotated[
    str | None,
    typer.Option(
        "--part",
        metavar="3/16",
        help="Answer only this share of the run, beside others with the same OUTPUT; then `junctor finalise OUTPUT`.",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse the evidence at its first invalid row.")]
Targets = Annotated[
    str | None,
    typer.Option(help="Variables to answer, A,B,C, or patterns in quotes, such as 'DIAG_*'; all if not given."),
]
AnswersOption = Annotated[
    AnswerKind,
    typer.Option(
        "--answers", help="All posterior probabilities, or scores: most probable state, its probability and entropy."
    ),
]
Top = Annotated[
    int | None,
    typer.Option(min=1, max=MOST_TOP, help="Lists of so many states in scores, the most probable first."),
]
Probabilities = Annotated[
    list[str] | None,
    typer.Option(
        "--probability", metavar="VARIABLE=STATE", help="A column of scores with this probability; repeatable."
    ),
]
PrecisionOption = Annotated[Precision, typer.Option("--precision", help="Numbers to compute with.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace a different run that lies in the output directory.")
]
Incremental = Annotated[
    bool,
    typer.Option(
        "--incremental", help="Answer only files that are new or changed since the last run, and commit them."
    ),
]
Backfill = Annotated[
    list[str] | None,
    typer.Option(
        "--backfill",
        metavar="COLUMN=FIRST..LAST",
        help="With --incremental: answer these partitions again; repeatable.",
    ),
]
DropRemoved = Annotated[
    bool, typer.Option("--drop-removed", help="With --incremental: remove the answers to files that are gone.")
]
Workers = Annotated[
    int | None, typer.Option(min=0, help="Processes, as many as the work is worth; 0: this process itself.")
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads of each process; its share of the cores if not given.")
]
Device = Annotated[
    DeviceChoice | None, typer.Option(help="CPU or GPU; auto: a GPU where there is one and the work is worth it.")
]
DeviceMemory = Annotated[
    str | None,
    typer.Option(
        help="What blocks, and tasks of tables in chunks, may take of each GPU, such as 40GiB; 70 % of what is free. "
        "On a CPU: what their tables may take of the memory."
    ),
]
Spill = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Folder for tables that exceed the memory; the temporary one if not given."),
]
Disk = Annotated[
    str | None, typer.Option(help="What such tables may take there, such as 200GiB; half of what is free if not given.")
]
Scheduler = Annotated[str | None, typer.Option(help="Dask scheduler whose workers do the work.")]
InsecureScheduler = Annotated[
    bool, typer.Option("--insecure-scheduler", help="Allow a scheduler elsewhere without TLS.")
]
UsePrefect = Annotated[
    bool | None,
    typer.Option("--prefect/--no-prefect", help="Show it on the page of a Prefect server; yes if one is configured."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
# Holds from here on, for errors that are found before a command begins too.
LogFormatOption = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        callback=set_log_format,
        help="Progress and messages on stderr as text, or a JSON document a line.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Report = Annotated[
    bool | None, typer.Option("--report/--no-report", help="Write a page on the run, report.html; yes as a flow.")
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        metavar="CONDITION",
        help="End as failed (code 7) where it holds: 'impossible > 1%', 'drift(xray) > 0.2', ...; repeatable.",
    ),
]
Rejects = Annotated[
    str | None, typer.Option(metavar="FILE", help="Rows that are not ok, with reasons: .csv or .parquet.")
]
NetworkFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Format of NETWORK, if its name does not say: bif, xmlbif, hugin, xdsl, dsl, netica, pgmx, uai, parquet.",
    ),
]
Normalize = Annotated[
    bool, typer.Option("--normalize", help="Divide the rows of NETWORK's tables by their sums: counts, percentages.")
]
IgnoreDecisions = Annotated[
    bool,
    typer.Option("--ignore-decisions", help="Leave out decisions and utilities where no chance node depends on them."),
]
EvidenceFormat = Annotated[
    str | None, typer.Option(help="Format of EVIDENCE, if its name does not say: csv, tsv, parquet, arrow, evid.")
]
Keep = Annotated[
    list[str] | None,
    typer.Option("--keep", metavar="COLUMN", help="Evidence column to carry through to the answers; repeatable."),
]
OutputFormatOption = Annotated[
    OutputFormat, typer.Option("--output-format", help="Format of the answers; Arrow is written 2.5 times as fast.")
]
LayoutOption = Annotated[
    Layout, typer.Option("--layout", help="Posteriors as one list a variable, or one column a state: 'variable=state'.")
]
CompressionOption = Annotated[
    Compression, typer.Option("--compression", help="Of the answers: zstd is smallest, none is fastest.")
]
PartSize = Annotated[
    str | None,
    typer.Option(help="Answers in one part before compression, such as 512MiB, in place of --partition-rows."),
]
MethodOption = Annotated[
    Method,
    typer.Option(
        "--method", help="Exact answers, estimates by sampling, or auto: sampling where exact ones exceed the memory."
    ),
]
SamplerOption = Annotated[
    Sampler, typer.Option("--sampler", help="EPIS-BN, AIS-BN, self-importance sampling or likelihood weighting.")
]
Samples = Annotated[
    int | None, typer.Option(min=LEAST_SAMPLES, help="Samples of each row, learning included; 100,000 if not given.")
]
Error = Annotated[
    float | None, typer.Option(help="Sample each row until no posterior has a larger standard error, such as 0.001.")
]
StagesOption = Annotated[
    Stages, typer.Option("--stages", help="Which samples count: those after learning, or all, by what they are worth.")
]
Seed = Annotated[int, typer.Option(min=0, help="Of the random numbers; the same seed, the same answers.")]


def compute_options(
    memory: str | None = None,
    threads: int | None = None,
    device: DeviceChoice | None = None,
    device_memory: str | None = None,
    spill: str | None = None,
    disk: str | None = None,
    defaults: ComputeOptions | None = None,
) -> ComputeOptions:
    """Return the record of what a command line says, the options under the names that they have there.

    defaults: for those that are not given (None).
    Raises BadParameter for texts that are no sizes.
    """
    given = {
        "memory": memory_size(memory, "--memory"),
        "threads": threads,
        "device": device,
        "device_memory": memory_size(device_memory, "--device-memory"),
        "spill_dir": None if spill is None else local_path(spill),
        "spill_bytes": memory_size(disk, "--disk"),
    }
    # Zero is a size: only what was not given is left to the defaults.
    chosen = {name: value for name, value in given.items() if value is not None}
    return replace(defaults or ComputeOptions(), **chosen)  # type: ignore[arg-type]


def thresholds(texts: list[str] | None) -> tuple[str, ...]:
    """Return the conditions of --fail-if; raises BadParameter for those that cannot be read."""
    if not texts:
        return ()
    from junctor.runs.thresholds import parse_threshold

    try:
        return tuple(parse_threshold(text).text for text in texts)
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint="--fail-if") from None


def memory_size(text: str | None, option: str = "--memory") -> int | None:
    """Return the bytes that an option asks for, None for None; raises BadParameter where it is not a size."""
    try:
        return None if text is None else parse_bytes(text)
    except JunctorError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
