"""Arguments and options that several commands share, and the records that they make."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import typer

from junctor.cli.lines import LogFormat, set_log_format
from junctor.model.errors import InputError, JunctorError
from junctor.model.options import Compression, ComputeOptions, DeviceChoice, Gaps, Layout, OutputFormat
from junctor.model.query import LEAST_SAMPLES, MOST_TOP, AnswerKind, Method, Precision, Sampler, Stages
from junctor.model.strategies import Strategy
from junctor.planning.budget import parse_bytes, parse_time_limit
from junctor.runtime.remote import local_path

Number = TypeVar("Number", int, float)

# Panels of the help.
QUESTION, EVIDENCE, NETWORK, OUTPUT = "Question", "Evidence", "Network", "Answers"
SAMPLING, CHECKS, GROWTH = "Sampling", "Checks and reports", "Evidence that grows"
RESOURCES, DISPLAY = "Resources", "Progress and messages"


def refuse_nan(number: float) -> float:
    """Return a number of the command line; raises BadParameter for nan, which lies within all bounds."""
    if math.isnan(number):
        raise typer.BadParameter("found nan, expected a number")
    return number


def _named(path: str | None) -> str | None:
    """Return what is to be read; raises BadParameter for an empty one, which would be the current folder."""
    if path == "":
        raise typer.BadParameter("it is empty, expected the name of a file or folder")
    return path


NetworkFile = Annotated[
    str,
    typer.Argument(
        metavar="NETWORK",
        help="BIF, XMLBIF, Hugin .net, GeNIe .xdsl .dsl, Netica .dne, OpenMarkov .pgmx, UAI, Parquet; .gz; a URL.",
        callback=_named,
    ),
]
EvidenceFile = Annotated[
    str,
    typer.Argument(
        metavar="EVIDENCE",
        help="Evidence, one row a case: CSV, Parquet, Arrow or .evid; a file, folder or glob in quotes, a URL, or -.",
        callback=_named,
    ),
]
CaseId = Annotated[str | None, typer.Option(help="Evidence column that names the cases.", rich_help_panel=EVIDENCE)]
SequencesFile = Annotated[
    str,
    typer.Argument(
        metavar="SEQUENCES",
        help="Parquet or Arrow with a list column, a row each; also CSV with a row for each step (--case-id, --step).",
    ),
]
SequenceColumn = Annotated[str | None, typer.Option(help="Column of lists, or of symbols, where there are several.")]
SequenceId = Annotated[str | None, typer.Option(help="Column that names the sequences; case_id if there.")]
StepColumn = Annotated[
    str | None,
    typer.Option(
        "--step",
        metavar="COLUMN",
        help="In a table with a row for each step: numbers or times that order the rows of a sequence.",
    ),
]
StepGaps = Annotated[
    Gaps, typer.Option(help="Whole numbers of steps that are left out: invalid, steps without observation, or nothing.")
]
SequencesFormat = Annotated[
    str | None, typer.Option(help="Format of SEQUENCES, if its name does not say: parquet, arrow, csv, tsv.")
]
IgnoreExtra = Annotated[
    bool,
    typer.Option("--ignore-extra", help="Pass over columns that are not in the network.", rich_help_panel=EVIDENCE),
]
Missing = Annotated[
    list[str] | None,
    typer.Option(
        "--missing",
        metavar="TEXT",
        help="Cells that observe nothing, in any case, beside empty, *, ., -, ?, NA, N/A, NaN, None, NULL; repeatable.",
        rich_help_panel=EVIDENCE,
    ),
]
PartOfRun = Annotated[
    str | None,
    typer.Option(
        "--part",
        metavar="3/16",
        help="Answer only this share of the run, beside others with the same OUTPUT; then `junctor finalise OUTPUT`.",
        rich_help_panel=RESOURCES,
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse the evidence at its first invalid row.", rich_help_panel=EVIDENCE)
]
Targets = Annotated[
    str | None,
    typer.Option(
        help="Variables to answer, A,B,C, or patterns in quotes, such as 'DIAG_*'; all if not given.",
        rich_help_panel=QUESTION,
    ),
]
HideTargets = Annotated[
    bool,
    typer.Option(
        "--hide-targets",
        help="Take the variables named in --targets and --probability as unobserved, whatever EVIDENCE says of them.",
        rich_help_panel=QUESTION,
    ),
]
AnswersOption = Annotated[
    AnswerKind,
    typer.Option(
        "--answers",
        help="All posterior probabilities, or scores: most probable state, its probability and entropy.",
        rich_help_panel=QUESTION,
    ),
]
Top = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST_TOP,
        help="Scores have lists of so many states, the most probable first.",
        rich_help_panel=QUESTION,
    ),
]
Probabilities = Annotated[
    list[str] | None,
    typer.Option(
        "--probability",
        metavar="VARIABLE=STATE",
        help="A column of scores with this probability; repeatable.",
        rich_help_panel=QUESTION,
    ),
]
PrecisionOption = Annotated[
    Precision, typer.Option("--precision", help="Number format of the computation.", rich_help_panel=QUESTION)
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace a different run that lies in the output directory.", rich_help_panel=OUTPUT
    ),
]
Incremental = Annotated[
    bool,
    typer.Option(
        "--incremental",
        help="Answer only files that are new or changed since the last run, and commit them.",
        rich_help_panel=GROWTH,
    ),
]
Backfill = Annotated[
    list[str] | None,
    typer.Option(
        "--backfill",
        metavar="COLUMN=FIRST..LAST",
        help="With --incremental: answer these partitions again; repeatable.",
        rich_help_panel=GROWTH,
    ),
]
DropRemoved = Annotated[
    bool,
    typer.Option(
        "--drop-removed", help="With --incremental: remove the answers to files that are gone.", rich_help_panel=GROWTH
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Processes; as many as the work is worth if not given; 0: this process itself.",
        rich_help_panel=RESOURCES,
    ),
]
RowWorkers = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Processes that read and prepare the rows; this process alone if not given.",
        rich_help_panel=RESOURCES,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1, help="Threads of each process; its share of the cores if not given.", rich_help_panel=RESOURCES
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        help="What propagation may take in all workers, such as 4GiB; by default 60 % of what is free.",
        rich_help_panel=RESOURCES,
    ),
]
_DEVICE = typer.Option(
    help="CPU or GPU; auto: a GPU where there is one and the work is worth it.", rich_help_panel=RESOURCES
)
Device = Annotated[DeviceChoice | None, _DEVICE]
LearningDevice = Annotated[DeviceChoice, _DEVICE]
DeviceMemory = Annotated[
    str | None,
    typer.Option(
        help="What blocks, and tasks of tables in chunks, may take of each GPU, such as 40GiB; by default 70 % "
        "of its memory. On a CPU: what their tables may take of the memory.",
        rich_help_panel=RESOURCES,
    ),
]
Spill = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Folder for tables that exceed the memory; the temporary one if not given.",
        rich_help_panel=RESOURCES,
    ),
]
Disk = Annotated[
    str | None,
    typer.Option(
        help="What such tables may take there, such as 200GiB; half of what is free if not given.",
        rich_help_panel=RESOURCES,
    ),
]
TimeLimit = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Refuse what is forecast to take a row longer, such as 90s, 10min, 2d; none: take it. "
        "By default 24h; with --method auto such rows are sampled, from 60s on.",
        rich_help_panel=RESOURCES,
    ),
]
StrategyName = Annotated[
    Strategy | None,
    typer.Option(
        "--strategy",
        help="Answer all rows this way, or refuse; by default each goes the way that is forecast to take least. "
        "Of exact answers; for tests and measurements.",
        rich_help_panel=RESOURCES,
    ),
]
Scheduler = Annotated[
    str | None, typer.Option(help="Dask scheduler whose workers do the work.", rich_help_panel=RESOURCES)
]
InsecureScheduler = Annotated[
    bool,
    typer.Option("--insecure-scheduler", help="Allow a scheduler elsewhere without TLS.", rich_help_panel=RESOURCES),
]
UsePrefect = Annotated[
    bool | None,
    typer.Option(
        "--prefect/--no-prefect",
        help="Show it on the page of a Prefect server; yes if one is configured.",
        rich_help_panel=DISPLAY,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.", rich_help_panel=DISPLAY)]
# Holds from here on, for errors that are found before a command begins too.
LogFormatOption = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        callback=set_log_format,
        help="Progress and messages on stderr as text, or a JSON document a line.",
        rich_help_panel=DISPLAY,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.", rich_help_panel=DISPLAY)]
Report = Annotated[
    bool | None,
    typer.Option(
        "--report/--no-report",
        help="Write a page on the run, report.html; yes where Prefect shows it.",
        rich_help_panel=CHECKS,
    ),
]


def _fail_if(examples: str) -> Any:
    return typer.Option(
        "--fail-if",
        metavar="CONDITION",
        help=f"End as failed (code 7) where it holds: {examples}, ...; repeatable.",
        rich_help_panel=CHECKS,
    )


FailIf = Annotated[list[str] | None, _fail_if("'impossible > 1%', 'drift(xray) > 0.2'")]
# Fits and sequences have no drift.
FailIfWithoutDrift = Annotated[list[str] | None, _fail_if("'impossible > 1%', 'rows < 1000'")]
Rejects = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Rows that are not ok, with reasons: .csv or .parquet.", rich_help_panel=CHECKS),
]
NetworkFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Format of NETWORK, if its name does not say: bif, xmlbif, hugin, xdsl, dsl, netica, pgmx, uai, fg or "
        "parquet.",
        rich_help_panel=NETWORK,
    ),
]
Normalize = Annotated[
    bool,
    typer.Option(
        "--normalize",
        help="Divide the rows of NETWORK's tables, such as counts or percentages, by their sums.",
        rich_help_panel=NETWORK,
    ),
]
IgnoreDecisions = Annotated[
    bool,
    typer.Option(
        "--ignore-decisions",
        help="Leave out decisions and utilities where no chance node depends on them.",
        rich_help_panel=NETWORK,
    ),
]
EvidenceFormat = Annotated[
    str | None,
    typer.Option(
        help="Format of EVIDENCE, if its name does not say: csv, tsv, text, parquet, arrow, evid.",
        rich_help_panel=EVIDENCE,
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(
        "--separator",
        metavar="SIGN",
        help="What separates columns of text: a sign such as ';', tab or blanks; by default what the first lines show.",
        rich_help_panel=EVIDENCE,
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        "--keep",
        metavar="COLUMN",
        help="Evidence column to carry through to the answers; repeatable.",
        rich_help_panel=EVIDENCE,
    ),
]
MappingFile = Annotated[
    str | None,
    typer.Option(
        "--mapping",
        metavar="FILE",
        help="TOML file: what columns and cells of EVIDENCE mean (`junctor map`).",
    ),
]
OutputFormatOption = Annotated[
    OutputFormat,
    typer.Option(
        "--output-format", help="Format of the answers; Arrow is written 2.5 times as fast.", rich_help_panel=OUTPUT
    ),
]
LayoutOption = Annotated[
    Layout,
    typer.Option(
        "--layout",
        help="Posteriors as one list a variable, or one column a state: 'variable=state'.",
        rich_help_panel=OUTPUT,
    ),
]
CompressionOption = Annotated[
    Compression | None,
    typer.Option(
        "--compression",
        help="Of the answers: zstd is smallest, none is fastest. Default: zstd, and lz4 for scores.",
        rich_help_panel=OUTPUT,
    ),
]
PartSize = Annotated[
    str | None,
    typer.Option(
        help="Answers in one part before compression, such as 512MiB, in place of --partition-rows.",
        rich_help_panel=OUTPUT,
    ),
]
MethodOption = Annotated[
    Method,
    typer.Option(
        "--method",
        help="Exact answers, estimates by sampling, or auto: sampling where exact ones exceed the memory.",
        rich_help_panel=SAMPLING,
    ),
]
SamplerOption = Annotated[
    Sampler,
    typer.Option(
        "--sampler", help="EPIS-BN, AIS-BN, self-importance sampling or likelihood weighting.", rich_help_panel=SAMPLING
    ),
]
Samples = Annotated[
    int | None,
    typer.Option(
        min=LEAST_SAMPLES,
        help="Samples of each row, learning included; 100,000 if not given.",
        rich_help_panel=SAMPLING,
    ),
]
Error = Annotated[
    float | None,
    typer.Option(
        help="Sample each row until no posterior has a larger standard error, such as 0.001.", rich_help_panel=SAMPLING
    ),
]
StagesOption = Annotated[
    Stages,
    typer.Option(
        "--stages",
        help="Which samples count: those after learning, or all, by what they are worth.",
        rich_help_panel=SAMPLING,
    ),
]
Seed = Annotated[
    int, typer.Option(min=0, help="Of the random numbers; the same seed, the same answers.", rich_help_panel=SAMPLING)
]

Weight = Annotated[
    str | None,
    typer.Option("--weight", metavar="COLUMN", help="Evidence column of weights.", rich_help_panel=EVIDENCE),
]


def refuse_empty(directory: str, option: str = "--output") -> None:
    """Raise BadParameter for a directory without a name, which would be the current one; option: that names it."""
    if not directory:
        raise typer.BadParameter("it is empty, expected the name of a directory", param_hint=option)


def compute_options(
    memory: str | None = None,
    threads: int | None = None,
    device: DeviceChoice | None = None,
    device_memory: str | None = None,
    spill: str | None = None,
    disk: str | None = None,
    defaults: ComputeOptions | None = None,
    time_limit: str | None = None,
    strategy: Strategy | None = None,
) -> ComputeOptions:
    """Return the record of what a command line says, the options under the names that they have there.

    defaults: for those that are not given (None).
    Raises BadParameter for texts that are no sizes or times, and for a folder without a name.
    """
    if spill is not None:
        refuse_empty(spill, "--spill")
    given = {
        "memory": memory_size(memory, "--memory"),
        "threads": threads,
        "device": device,
        "device_memory": memory_size(device_memory, "--device-memory"),
        "spill_dir": None if spill is None else local_path(spill),
        "spill_bytes": memory_size(disk, "--disk"),
        "time_limit": _parsed(time_limit, parse_time_limit, "--time-limit"),
        "strategy": strategy,
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
    return _parsed(text, parse_bytes, option)


def _parsed(text: str | None, parse: Callable[[str], Number], option: str) -> Number | None:
    try:
        return None if text is None else parse(text)
    except JunctorError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
