"""The table of options: each is said once, for the command line, Python, Prefect's form and settings.

A class is a group of options that go together; a command or function takes the groups that it names:
`**options: Unpack[RunOptions]`. Main functions: `options_of`, the rows of a class, and `takes_keywords`, which shows
them as keywords of a Python function; `junctor.cli.options` makes options of the command line of them, from which
Prefect's form comes, `junctor.runtime.settings` the names `JUNCTOR_*`.
"""

# Annotations are values here, not texts: they are read at each start, and to evaluate texts would take longer.
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, reduce, wraps
from typing import Annotated, Any, Literal, TypedDict, TypeVar, get_args, get_type_hints

from junctor.model.options import (
    Acceleration,
    ChainStart,
    Compression,
    DeviceChoice,
    Gaps,
    Impossible,
    Layout,
    OutputFormat,
    PipelineName,
    Start,
)
from junctor.model.query import (
    CONFIDENCE,
    LEAST_SAMPLES,
    MOST_TOP,
    Architecture,
    Method,
    Precision,
    Query,
    Sampler,
    Sampling,
    Stages,
)
from junctor.model.question import AnswerKind, QueryKind
from junctor.model.strategies import StrategyName

# What a text of the command line stands for.
Text = Literal["size", "time", "names", "conditions", "folder", "share", "counts"]
Function = TypeVar("Function", bound=Callable[..., Any])
Group = TypeVar("Group")

# Panels of the help.
QUESTION, EVIDENCE, NETWORK, OUTPUT = "Question", "Evidence", "Network", "Answers"
SAMPLING, CHECKS, GROWTH = "Sampling", "Checks and reports", "Evidence that grows"
RESOURCES, DISPLAY = "Resources", "Progress and messages"
FIT, LOOP, RESULT = "What is fitted", "Iterations", "Result"


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table.

    default: what holds where nothing is said; on the command line an option of `settings` has none.
    help: for the command line, and for Prefect's form.
    panel: of the help; None for the first one.
    python: for the docstring of functions; None for `help`.
    flag: on the command line, such as `--report/--no-report`, or several; None for the name with dashes.
    metavar: what its value is called; "DIR" and "FILE" mark paths.
    least, most: inclusive bounds of a number.
    text: what a text on the command line stands for; None for itself.
    is_setting: whether `JUNCTOR_*` and junctor.toml have it.
    callback: of Typer, called with the value as soon as it is read.
    """

    default: Any
    help: str
    panel: str | None = None
    python: str | None = None
    flag: str | None = None
    metavar: str | None = None
    least: float | None = None
    most: float | None = None
    text: Text | None = None
    is_setting: bool = False
    callback: Callable[[Any], Any] | None = None


class TargetOptions(TypedDict, total=False):
    """The variables to answer."""

    targets: Annotated[
        Sequence[str] | None,
        Option(
            None,
            "Variables to answer, A,B,C, or patterns in quotes, such as 'DIAG_*'; all if not given.",
            QUESTION,
            "names of variables or patterns of names (`DIAG_*`), None for all.",
            text="names",
        ),
    ]


class HidingOptions(TypedDict, total=False):
    """Whether targets may be observed."""

    hide_targets: Annotated[
        bool,
        Option(
            False,
            "Take variables named in --targets, --probability and --expected as unobserved, whatever EVIDENCE says.",
            QUESTION,
            "whether the variables named in `targets`, `probabilities` and `expected` count as unobserved, whatever "
            "the evidence says of them. Where rows observe them all the same, a warning says so: answers repeat the "
            "input there.",
        ),
    ]


class QueryOptions(TypedDict, total=False):
    """The kind of answers."""

    query: Annotated[QueryKind, Option("posteriors", "Posterior marginals or most probable explanations.", QUESTION)]


class ScoreOptions(TypedDict, total=False):
    """What a row shows of posteriors."""

    answers: Annotated[
        AnswerKind,
        Option(
            "posteriors",
            "All posterior probabilities, or scores: most probable state, its probability and entropy.",
            QUESTION,
            '"scores" has, instead of the list of a target X, its most probable state (the name), `X_probability` and '
            "`X_entropy` in nats; sampled, also `X_error` (`junctor.runs.score_tables`).",
        ),
    ]
    top: Annotated[
        int | None,
        Option(
            None,
            "Scores have lists of so many states, the most probable first.",
            QUESTION,
            "scores have lists of so many states and probabilities, the most probable first, null beyond the last.",
            least=1,
            most=MOST_TOP,
        ),
    ]
    probabilities: Annotated[
        Sequence[str],
        Option(
            (),
            "A column of scores with this probability; repeatable.",
            QUESTION,
            "`variable=state`, each a column of scores with its posterior probability; also of other variables.",
            flag="--probability",
            metavar="VARIABLE=STATE",
        ),
    ]
    expected: Annotated[
        Sequence[str],
        Option(
            (),
            "Columns of scores with mean and variance of a variable whose states stand for numbers; repeatable.",
            QUESTION,
            "variables, each with columns of scores `X_mean` and `X_variance`: those of the numbers that its states "
            "stand for, by the mapping (`values`, or midpoints of its bins) or by their names; also other variables.",
            metavar="VARIABLE",
        ),
    ]


class PrecisionOptions(TypedDict, total=False):
    """Numbers to compute with."""

    precision: Annotated[
        Precision, Option("double", "Number format of the computation.", QUESTION, "numbers to compute with.")
    ]


class SamplingOptions(TypedDict, total=False):
    """Exact answers or estimates, and how rows are sampled."""

    method: Annotated[
        Method,
        Option(
            "exact",
            "Exact answers, estimates by sampling, or auto: sampling where exact ones exceed the memory.",
            SAMPLING,
            '"sampling" estimates posteriors, "auto" does so for rows whose exact answers exceed '
            "the memory; there are more columns then (`junctor.runs.results`).",
        ),
    ]
    sampler: Annotated[
        Sampler | None,
        Option(
            None,
            "Weighted mini-buckets (wmb, the default of Markov networks, which have no other), EPIS-BN (of Bayesian "
            "ones), AIS-BN, self-importance sampling or likelihood weighting.",
            SAMPLING,
            'as in `junctor.model.query.Sampling`; None for "epis-bn", of Markov networks "wmb".',
        ),
    ]
    samples: Annotated[
        int | None,
        Option(
            None,
            "Samples of each row, learning included; 100,000 if not given.",
            SAMPLING,
            "of each row, learning included; None for 100,000.",
            least=LEAST_SAMPLES,
        ),
    ]
    error: Annotated[
        float | None,
        Option(
            None,
            "Sample until no posterior has a larger standard error, of wmb half of its interval, such as 0.001.",
            SAMPLING,
            "largest standard error of a posterior, of wmb half of its interval, instead of a number of samples.",
        ),
    ]
    confidence: Annotated[
        float,
        Option(
            CONFIDENCE,
            "Of wmb: the probability that an interval holds, each by itself.",
            SAMPLING,
            "of wmb, the probability that an interval holds, each by itself.",
        ),
    ]
    table_entries: Annotated[
        int | None,
        Option(
            None,
            "Of wmb: entries of all tables of a row together; 1,048,576 if not given, more give narrower intervals.",
            SAMPLING,
            "of wmb, of all tables of a row together; None for 1,048,576.",
            least=1,
        ),
    ]
    stages: Annotated[
        Stages,
        Option(
            "all",
            "Which samples count: those after learning, or all, by what they are worth.",
            SAMPLING,
            '"all" counts the samples of the learning stages as well, "last" those of the last stage only.',
        ),
    ]
    seed: Annotated[
        int,
        Option(
            0,
            "Of the random numbers; the same seed, the same answers.",
            SAMPLING,
            "of the random numbers; the same seed, the same answers.",
            least=0,
        ),
    ]


class WeightOptions(TypedDict, total=False):
    """The weights of rows."""

    weight: Annotated[
        str | None,
        Option(
            None,
            "Evidence column of weights.",
            EVIDENCE,
            "name of the column of weights, None for a weight of 1 each.",
            metavar="COLUMN",
        ),
    ]


class CaseIdOptions(TypedDict, total=False):
    """Which column names the cases."""

    case_id: Annotated[
        str | None,
        Option(None, "Evidence column that names the cases.", EVIDENCE, "name of the column that names the cases."),
    ]


class CaseOptions(CaseIdOptions, total=False):
    """Which columns name cases or variables."""

    ignore_extra: Annotated[
        bool,
        Option(
            False,
            "Pass over columns that are not in the network.",
            EVIDENCE,
            "whether columns that are not in the network are passed over.",
        ),
    ]


class StrictOptions(TypedDict, total=False):
    """What becomes of invalid rows."""

    strict: Annotated[
        bool,
        Option(
            False,
            "Refuse the evidence at its first invalid row.",
            EVIDENCE,
            "whether the first invalid row is an error.",
        ),
    ]


class KeepOptions(TypedDict, total=False):
    """Columns that are carried through."""

    keep: Annotated[
        Sequence[str],
        Option(
            (),
            "Evidence column to carry through to the answers; repeatable.",
            EVIDENCE,
            "names of columns of the evidence that are carried through, after `case_id`.",
            metavar="COLUMN",
        ),
    ]


class MappingOptions(TypedDict, total=False):
    """What columns and cells mean."""

    mapping: Annotated[
        str | os.PathLike[str] | Mapping[str, Any] | None,
        Option(
            None,
            "TOML file: what columns and cells of EVIDENCE mean (`junctor map`).",
            None,
            "what columns and cells mean: a mapping file, or a dictionary of the same content.",
            metavar="FILE",
        ),
    ]


class MissingOptions(TypedDict, total=False):
    """Cells without observation."""

    missing: Annotated[
        Sequence[str | int],
        Option(
            (),
            "Cells that observe nothing, in any case, beside empty, *, ., -, ?, NA, N/A, NaN, None, NULL; repeatable.",
            EVIDENCE,
            "texts or integers for no observation, in any case, beside empty, `*`, `-`, `?`, `NA`, `None`, `null` ....",
            metavar="TEXT",
        ),
    ]


class MeaningOptions(MappingOptions, MissingOptions, total=False):
    """What columns and cells mean, and which observe nothing."""


class NetworkOptions(TypedDict, total=False):
    """How a network file is read."""

    network_format: Annotated[
        str | None,
        Option(
            None,
            "Format of NETWORK, if its name does not say: bif, xmlbif, hugin, xdsl, dsl, netica, pgmx, uai, fg, "
            "wcsp, cfn or parquet.",
            NETWORK,
            flag="--format",
        ),
    ]
    normalize: Annotated[
        bool,
        Option(False, "Divide the rows of NETWORK's tables, such as counts or percentages, by their sums.", NETWORK),
    ]
    ignore_decisions: Annotated[
        bool,
        Option(False, "Leave out decisions and utilities where no chance node depends on them.", NETWORK),
    ]


class FormatOptions(TypedDict, total=False):
    """The format of evidence files."""

    evidence_format: Annotated[
        str | None,
        Option(None, "Format of EVIDENCE, if its name does not say: csv, tsv, text, parquet, arrow, evid.", EVIDENCE),
    ]


class SeparatorOptions(TypedDict, total=False):
    """Columns of text."""

    separator: Annotated[
        str | None,
        Option(
            None,
            "What separates columns of text: a sign such as ';', tab or blanks; by default what the first lines show.",
            EVIDENCE,
            'of the columns of a file of text, as "tab", "blanks" or ";"; None for the one that its first lines show.',
            metavar="SIGN",
        ),
    ]


class CsvOptions(TypedDict, total=False):
    """Another file of the answers."""

    csv: Annotated[bool, Option(False, "Also write the answers as one CSV file.", OUTPUT)]


class AnswerFileOptions(TypedDict, total=False):
    """How answers are written."""

    output_format: Annotated[
        OutputFormat, Option("parquet", "Format of the answers; Arrow is written 2.5 times as fast.", OUTPUT)
    ]
    layout: Annotated[
        Layout,
        Option("lists", "Posteriors as one list a variable, or one column a state: 'variable=state'.", OUTPUT),
    ]
    compression: Annotated[
        Compression | None,
        Option(None, "Of the answers: zstd is smallest, none is fastest. Default: zstd, and lz4 for scores.", OUTPUT),
    ]


class ReportOptions(TypedDict, total=False):
    """The page of a run."""

    report: Annotated[
        bool | None,
        Option(
            None,
            "Write a page on the run, report.html; yes where Prefect shows it.",
            CHECKS,
            flag="--report/--no-report",
        ),
    ]


class FailOptions(TypedDict, total=False):
    """Conditions on all answers."""

    fail_if: Annotated[
        Sequence[str],
        Option(
            (),
            "End as failed (code 7) where it holds: 'impossible > 1%', 'drift(xray) > 0.2', ...; repeatable.",
            CHECKS,
            metavar="CONDITION",
            text="conditions",
        ),
    ]


class RejectOptions(TypedDict, total=False):
    """Rows that are not ok."""

    rejects: Annotated[
        str | None, Option(None, "Rows that are not ok, with reasons: .csv or .parquet.", CHECKS, metavar="FILE")
    ]


class OverwriteOptions(TypedDict, total=False):
    """What becomes of another run."""

    overwrite: Annotated[bool, Option(False, "Replace a different run that lies in the output directory.", OUTPUT)]


class IncrementOptions(TypedDict, total=False):
    """Whether evidence grows."""

    incremental: Annotated[
        bool,
        Option(False, "Answer only files that are new or changed since the last run, and commit them.", GROWTH),
    ]


class GrowthOptions(IncrementOptions, total=False):
    """Evidence that grows."""

    backfill: Annotated[
        Sequence[str],
        Option(
            (),
            "With --incremental: answer these partitions again; repeatable.",
            GROWTH,
            metavar="COLUMN=FIRST..LAST",
        ),
    ]
    drop_removed: Annotated[
        bool, Option(False, "With --incremental: remove the answers to files that are gone.", GROWTH)
    ]


class StepOptions(TypedDict, total=False):
    """The columns of sequences."""

    column: Annotated[
        str | None,
        Option(
            None,
            "Column of lists, or of symbols, where there are several.",
            None,
            "name of the column of lists in a table, or of symbols in one with a row for each step; None for the one "
            "that is found.",
        ),
    ]
    case_id: Annotated[
        str | None,
        Option(
            None,
            "Column that names the sequences; case_id if there.",
            None,
            "name of the column that names the sequences; None for `case_id` if there.",
        ),
    ]
    step: Annotated[
        str | None,
        Option(
            None,
            "In a table with a row for each step: numbers or times that order the rows of a sequence.",
            None,
            "name of the column of numbers or times of steps, in a table with a row for each step.",
            metavar="COLUMN",
        ),
    ]
    gaps: Annotated[
        Gaps,
        Option(
            "invalid",
            "Whole numbers of steps that are left out: invalid, steps without observation, or nothing.",
            None,
            'what becomes of gaps in whole numbers of steps: the sequence is "invalid", they are "unobserved", or '
            '"ignore".',
        ),
    ]


class LabelOptions(TypedDict, total=False):
    """States that are known."""

    labels: Annotated[str | None, Option(None, "Column of states that are known, null for others.", metavar="COLUMN")]


class SequenceColumnOptions(WeightOptions, StepOptions, LabelOptions, total=False):
    """The columns of sequences with weights, whose states may be known."""


class SequenceFileOptions(TypedDict, total=False):
    """How files of models and sequences are read."""

    strict: Annotated[bool, Option(False, "Refuse the file at its first invalid sequence.")]
    model_format: Annotated[
        str | None,
        Option(None, "Format of MODEL, if its name does not say: parquet, json, bif, ...", flag="--format"),
    ]
    sequences_format: Annotated[
        str | None, Option(None, "Format of SEQUENCES, if its name does not say: parquet, arrow, csv, tsv.")
    ]


class PriorOptions(TypedDict, total=False):
    """The prior of a network."""

    prior: Annotated[
        str,
        Option(
            "none",
            "bdeu:N (equivalent sample size), dirichlet:FILE (pseudo counts, or a network) or none.",
            FIT,
            '"none", "bdeu:N" or "dirichlet:FILE" (`junctor.learning.priors`).',
            metavar="PRIOR",
        ),
    ]


class ChainPriorOptions(TypedDict, total=False):
    """The prior of a hidden Markov model."""

    prior: Annotated[
        Mapping[str, float] | None,
        Option(
            None,
            "Pseudo count of each probability above zero, such as emission=0.5; parts are start, transition and "
            "emission; repeatable.",
            FIT,
            'pseudo counts by part, such as {"emission": 0.5}, added to the expected count of each entry above zero.',
            metavar="PART=COUNT",
            text="counts",
        ),
    ]


class FittedOptions(TypedDict, total=False):
    """What a fit may change."""

    fix: Annotated[
        Sequence[str],
        Option(
            (),
            "Variables whose tables stay, or patterns such as 'X_*'.",
            FIT,
            "names of variables, or patterns, whose tables stay.",
            metavar="A,B,...",
            text="names",
        ),
    ]
    tie: Annotated[
        Sequence[str],
        Option(
            (),
            "Variables that share one table; repeatable.",
            FIT,
            'texts "A=B": variables that share a table.',
            metavar="A=B",
        ),
    ]
    impossible: Annotated[
        Impossible,
        Option(
            "refuse",
            "Rows or sequences that zeros rule out: refuse them, skip them, or smooth the zeros away.",
            FIT,
            '"refuse" rows or sequences that zeros rule out, "skip" them, or "smooth" the zeros.',
        ),
    ]


class NewStateOptions(TypedDict, total=False):
    """States that a network lacks."""

    new_states: Annotated[
        bool,
        Option(
            False,
            "Add states that EVIDENCE names and NETWORK lacks.",
            FIT,
            "add states that rows name and the network lacks.",
        ),
    ]


class StartOptions(TypedDict, total=False):
    """The first tables of a network."""

    start: Annotated[
        Start,
        Option(
            "network",
            "First tables: those of NETWORK, random or uniform ones.",
            LOOP,
            'the tables of the network, "random" or "uniform".',
        ),
    ]


class ChainStartOptions(TypedDict, total=False):
    """The first probabilities of a hidden Markov model."""

    start: Annotated[
        ChainStart,
        Option(
            "model",
            "First probabilities: those of MODEL, random or uniform ones.",
            LOOP,
            'the numbers of the model, "random" or "uniform"; zeros are kept.',
        ),
    ]


class LoopOptions(TypedDict, total=False):
    """When a fit ends."""

    restarts: Annotated[
        int,
        Option(
            1,
            "Starts, the best of which is kept; more than one with --start random.",
            LOOP,
            "random starts, the best of which is returned.",
            least=1,
        ),
    ]
    tolerance: Annotated[
        float,
        Option(
            1e-6,
            "Relative change of the objective that ends it.",
            LOOP,
            "relative change of the objective, at least a nat for each unit of weight, at which a fit has converged.",
            least=0.0,
        ),
    ]
    max_iterations: Annotated[int, Option(200, "Iterations of a start at most.", LOOP, "of a start.", least=1)]
    acceleration: Annotated[
        Acceleration, Option("squarem", "Extrapolation of every third step.", LOOP, '"squarem" or "none".')
    ]
    seed: Annotated[
        int,
        Option(
            0,
            "Of random starts and of what is held out.",
            LOOP,
            "of random starts and of what is held out.",
            least=0,
        ),
    ]


class FindingOptions(TypedDict, total=False):
    """What is found out of a fit."""

    holdout: Annotated[
        float,
        Option(
            0.0,
            "Rows or sequences kept for a check of the fit, such as 10%.",
            RESULT,
            "share of the rows or sequences that are kept for a check.",
            metavar="SHARE",
            text="share",
        ),
    ]
    errors: Annotated[
        bool,
        Option(
            False,
            "Standard errors of all parameters, in NAME.parameters.parquet beside the output.",
            RESULT,
            "whether `parameters` of the result has standard errors: two E-steps a free parameter, unless rows are "
            "complete.",
        ),
    ]
    report: Annotated[
        str | os.PathLike[str] | None,
        Option(
            None,
            "A page on the fit, HTML that needs no network.",
            RESULT,
            "path of a page on the fit, HTML.",
            metavar="FILE",
        ),
    ]


class NetworkFitOptions(
    PriorOptions, FittedOptions, NewStateOptions, StartOptions, LoopOptions, FindingOptions, total=False
):
    """How a network is fitted."""


class ChainFitOptions(ChainPriorOptions, FittedOptions, ChainStartOptions, LoopOptions, FindingOptions, total=False):
    """How a hidden Markov model is fitted."""


class WorkerOptions(TypedDict, total=False):
    """Processes."""

    workers: Annotated[
        int | None,
        Option(
            None,
            "Processes; as many as the work is worth if not given; 0: this process itself.",
            RESOURCES,
            least=0,
            is_setting=True,
        ),
    ]


class ThreadOptions(TypedDict, total=False):
    """Cores."""

    threads: Annotated[
        int | None,
        Option(
            None,
            "Threads of each process; its share of the cores if not given.",
            RESOURCES,
            "None for the cores that this process may use, 32 of them at most; answers do not depend on it.",
            least=1,
            is_setting=True,
        ),
    ]


class MemoryOptions(TypedDict, total=False):
    """Memory of the host."""

    memory: Annotated[
        int | str | None,
        Option(
            None,
            "What propagation may take in all workers, such as 4GiB; by default 60 % of what is free.",
            RESOURCES,
            'bytes (or "4GiB") that propagation may take, None for a share of what is free.',
            text="size",
            is_setting=True,
        ),
    ]


class DeviceOptions(TypedDict, total=False):
    """CPU or GPU."""

    device: Annotated[
        DeviceChoice,
        Option(
            "auto",
            "CPU or GPU; auto: a GPU where there is one and the work is worth it.",
            RESOURCES,
            '"auto" is a GPU where there is one that, with its plans, answers this call before the cores would.',
            is_setting=True,
        ),
    ]
    device_memory: Annotated[
        int | str | None,
        Option(
            None,
            "What blocks, and tasks of tables in chunks, may take of each GPU, such as 40GiB; by default 85 % "
            "of its memory. On a CPU: what their tables may take of the memory.",
            RESOURCES,
            "bytes that tables may take of it, None for a share of a GPU's, and on a CPU for no limit beside `memory`.",
            text="size",
            is_setting=True,
        ),
    ]


class StreamingOptions(TypedDict, total=False):
    """Clique tables that exceed a GPU: chunks of them go through it."""

    pipeline: Annotated[
        PipelineName | None,
        Option(
            None,
            "Copies of clique tables that exceed the GPU: none of them beside its work, in one queue, or in two, one "
            "for either way; by default what is forecast to take least.",
            RESOURCES,
            'how copies of clique tables that exceed the GPU overlap with its work: not at all ("none"), in one queue, '
            "or in two, one for either way; None for what is forecast to take least.",
        ),
    ]
    in_flight: Annotated[
        int | None,
        Option(
            None,
            "Chunks of such tables that are on the GPU at a time, at most; by default as --pipeline.",
            RESOURCES,
            "chunks of such tables that are on the GPU at a time, at most; None likewise.",
            least=1,
        ),
    ]


class SpillOptions(TypedDict, total=False):
    """Tables on disk."""

    spill: Annotated[
        str | os.PathLike[str] | None,
        Option(
            None,
            "Folder for tables that exceed the memory; the temporary one if not given.",
            RESOURCES,
            "folder for tables that exceed the memory, None for the system's temporary folder.",
            metavar="DIR",
            text="folder",
            is_setting=True,
        ),
    ]
    disk: Annotated[
        int | str | None,
        Option(
            None,
            "What such tables may take there, such as 200GiB; half of what is free if not given.",
            RESOURCES,
            "bytes of files there, None for half of what is free.",
            text="size",
            is_setting=True,
        ),
    ]


class TimeOptions(TypedDict, total=False):
    """Time of a row."""

    time_limit: Annotated[
        float | str | None,
        Option(
            None,
            "Refuse what is forecast to take a row longer, such as 90s, 10min, 2d; none: take it. "
            "By default 24h; with --method auto such rows are sampled, from 60s on.",
            RESOURCES,
            'seconds (or "10min", "none") that a row may be forecast to take, None for a day, and for a minute where '
            'the method is "auto".',
            metavar="TIME",
            text="time",
            is_setting=True,
        ),
    ]


class StrategyOptions(TypedDict, total=False):
    """The way that rows go."""

    strategy: Annotated[
        StrategyName | None,
        Option(
            None,
            "Answer all rows this way, or refuse; by default each goes the way that is forecast to take least. "
            "Of exact answers; for tests and measurements.",
            RESOURCES,
            "the way that all rows go, or a refusal; None for the one that is forecast to take least (exact answers).",
        ),
    ]


class PartRowOptions(TypedDict, total=False):
    """Rows of a part."""

    partition_rows: Annotated[
        int | None,
        Option(None, "Rows in one part; by default 524,288, or 20 s of work, at most.", OUTPUT, least=1),
    ]


class PartSizeOptions(TypedDict, total=False):
    """Bytes of a part."""

    part_size: Annotated[
        int | str | None,
        Option(
            None,
            "Answers in one part before compression, such as 512MiB, in place of --partition-rows.",
            OUTPUT,
            text="size",
        ),
    ]


class ShareOptions(TypedDict, total=False):
    """The share of an array job."""

    part: Annotated[
        str | None,
        Option(
            None,
            "Answer only this share of the run, beside others with the same OUTPUT; then `junctor finalise OUTPUT`.",
            RESOURCES,
            metavar="3/16",
        ),
    ]


class SchedulerOptions(TypedDict, total=False):
    """Workers elsewhere."""

    scheduler: Annotated[
        str | None, Option(None, "Dask scheduler whose workers do the work.", RESOURCES, is_setting=True)
    ]
    insecure_scheduler: Annotated[
        bool, Option(False, "Allow a scheduler elsewhere without TLS.", RESOURCES, is_setting=True)
    ]


class PrefectOptions(TypedDict, total=False):
    """The page of a Prefect server."""

    prefect: Annotated[
        bool | None,
        Option(
            None,
            "Show it on the page of a Prefect server; yes if one is configured.",
            DISPLAY,
            flag="--prefect/--no-prefect",
            is_setting=True,
        ),
    ]


class FitResources(ThreadOptions, MemoryOptions, DeviceOptions, TimeOptions, total=False):
    """What a fit may use."""


class RowOptions(
    WeightOptions, CaseOptions, StrictOptions, MeaningOptions, FormatOptions, SeparatorOptions, total=False
):
    """How rows to learn from are read."""


class DrawOptions(
    CaseOptions, StrictOptions, MeaningOptions, FormatOptions, SeparatorOptions, MemoryOptions, total=False
):
    """How rows are drawn, and how the evidence is read that they are drawn for."""

    observed: Annotated[
        float,
        Option(
            1.0,
            "Share of cells to keep, such as 0.6; others, at random, are empty.",
            None,
            "share of cells that are kept, others, at random, are null.",
            least=0,
            most=1,
        ),
    ]
    seed: Annotated[
        int,
        Option(
            0,
            "Of the random numbers; the same seed, the same rows.",
            None,
            "of the random numbers; the same seed, the same rows, on every machine.",
            least=0,
        ),
    ]


class LearningOptions(
    WeightOptions, CaseOptions, StrictOptions, MeaningOptions, SeparatorOptions, FitResources, total=False
):
    """Keywords of functions that learn from rows."""


class NetworkLearningOptions(NetworkFitOptions, LearningOptions, total=False):
    """Keywords of `learn`."""


class ChainLearningOptions(StepOptions, ChainFitOptions, FitResources, total=False):
    """Keywords of `junctor.hmm.learning.learn`."""


class ResourceOptions(ThreadOptions, MemoryOptions, DeviceOptions, SpillOptions, TimeOptions, total=False):
    """What a computation may use: `ComputeOptions` as users give it."""


class RowResources(ResourceOptions, StrategyOptions, total=False):
    """What answers to rows of evidence may use, and the way that they go."""


class EvidenceOptions(CaseOptions, StrictOptions, KeepOptions, MeaningOptions, total=False):
    """How evidence is read."""


class ArchitectureOptions(TypedDict, total=False):
    """The way to joint posteriors."""

    architecture: Annotated[
        Architecture,
        Option(
            "auto",
            "By messages, from stored clique tables, or what is forecast to take less time.",
            None,
            "by messages, from stored clique tables (whose variables have to share a clique), or what is forecast to "
            "take less time.",
        ),
    ]


class CliqueResources(MemoryOptions, DeviceOptions, TimeOptions, total=False):
    """What clique tables and joint posteriors may use."""


class JointOptions(ArchitectureOptions, CliqueResources, StreamingOptions, total=False):
    """Keywords of `joint_posteriors`."""


class TableOptions(CaseOptions, StrictOptions, KeepOptions, MissingOptions, total=False):
    """How tables of evidence are read, whatever their columns and cells mean."""


class ReadingOptions(TableOptions, FormatOptions, SeparatorOptions, total=False):
    """How files of evidence are read, whatever their columns and cells mean."""


class ProposalOptions(CaseIdOptions, FormatOptions, SeparatorOptions, total=False):
    """How files of evidence are read for a mapping."""

    bins_about: Annotated[
        str | None,
        Option(
            None,
            "Variable that bins are to tell most about; without one, bins have about as many rows each.",
            QUESTION,
            "variable that bins are to tell most about, None for bins of about as many rows each.",
            flag="--target",
            metavar="VARIABLE",
        ),
    ]


class ExplanationOptions(RowResources, EvidenceOptions, HidingOptions, total=False):
    """Keywords of `most_probable`."""


class PosteriorOptions(RowResources, EvidenceOptions, SamplingOptions, ScoreOptions, HidingOptions, total=False):
    """Keywords of `posteriors`."""


class QuestionOptions(
    TargetOptions, HidingOptions, QueryOptions, ScoreOptions, PrecisionOptions, SamplingOptions, total=False
):
    """What is asked of each row: `Query` as users give it."""


class SequenceOptions(StepOptions, ResourceOptions, total=False):
    """Keywords of functions that answer sequences."""


class ClosingOptions(ReportOptions, FailOptions, RejectOptions, total=False):
    """What is made of a finished run beside its answers."""


class WorkloadOptions(ClosingOptions, OverwriteOptions, PartRowOptions, total=False):
    """What runs of rows and of sequences are told."""


class SequenceJobOptions(PrecisionOptions, StepOptions, SequenceFileOptions, WorkloadOptions, total=False):
    """What a run of sequences is told beside its question and its resources."""


class JobOptions(
    EvidenceOptions,
    NetworkOptions,
    FormatOptions,
    SeparatorOptions,
    AnswerFileOptions,
    CsvOptions,
    ClosingOptions,
    OverwriteOptions,
    GrowthOptions,
    PartRowOptions,
    PartSizeOptions,
    total=False,
):
    """What a run of rows is told beside its question and its resources."""


class IngestOptions(
    EvidenceOptions,
    NetworkOptions,
    FormatOptions,
    SeparatorOptions,
    OverwriteOptions,
    GrowthOptions,
    PartRowOptions,
    total=False,
):
    """How evidence becomes a dataset."""


@cache
def _kinds(group: Any) -> dict[str, Any]:
    return get_type_hints(group, include_extras=True)


@cache
def options_of(group: Any) -> dict[str, Option]:
    """Return the rows of a class of options, by their names."""
    return {name: kind.__metadata__[0] for name, kind in _kinds(group).items()}


def options_for(group: type[Group], options: Mapping[str, Any]) -> Group:
    """Return those of some options that are of a group; one that is not given is none of them."""
    return {name: options[name] for name in options_of(group) if name in options}  # type: ignore[return-value, arg-type]


def type_of(group: Any, name: str) -> Any:
    """Return the type of the keyword of an option."""
    return _kinds(group)[name].__origin__


def defaults_of(group: Any) -> dict[str, Any]:
    """Return what holds for each option of a class where nothing is said."""
    return {name: option.default for name, option in options_of(group).items()}


def group_of(function: Callable[..., Any]) -> Any:
    """Return the class of options of a function with `**options: Unpack[class]`."""
    told = function.__annotations__["options"]
    if not isinstance(told, str):
        return get_args(told)[0]
    # The text of `Unpack[module.Group]`, where annotations are texts.
    first, *rest = told.removeprefix("Unpack[").removesuffix("]").split(".")
    return reduce(getattr, rest, function.__globals__[first])


# What functions that learn say otherwise.
FIT_KEYWORDS: dict[str, dict[str, Any]] = {
    "memory": {"python": 'bytes (or "4GiB"), None for a share of what is free.'},
    "threads": {"python": "None for all usable cores."},
    "device": {"default": "cpu", "python": '"cpu", "gpu", or "auto" for a GPU where there is one and enough work.'},
    "device_memory": {"python": "bytes of the GPU."},
    "time_limit": {
        "python": 'seconds (or "10min", "none") that a row or sequence may be forecast to take, None for a day.'
    },
}


def takes_keywords(**changes: dict[str, Any]) -> Callable[[Function], Function]:
    """Return a decorator that fills in `**options` of a function, and shows them as its keywords.

    The signature and the line `options:` of the docstring become those of the table; other names are refused as Python
    refuses them.

    changes: fields of options that differ for this function, by the name of the option.
    """

    def decorate(function: Function) -> Function:
        group = group_of(function)
        options = options_of(group) | {n: replace(options_of(group)[n], **change) for n, change in changes.items()}
        signature = inspect.signature(function)
        own = list(signature.parameters.values())[:-1]
        known = {each.name for each in own} | options.keys()
        defaults = {name: option.default for name, option in options.items()}

        @wraps(function)
        def called(*given: Any, **named: Any) -> Any:
            for name in named:
                if name not in known:
                    raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}")
            return function(*given, **{**defaults, **named})

        keyword = inspect.Parameter.KEYWORD_ONLY
        shown = [
            inspect.Parameter(name, keyword, default=option.default, annotation=type_of(group, name))
            for name, option in options.items()
        ]
        called.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
        called.__doc__ = _with_options(function.__doc__, options)
        return called  # type: ignore[return-value]

    return decorate


def _with_options(text: str | None, options: Mapping[str, Option]) -> str | None:
    """Return a docstring with a line for each option in the place of its line `options:`."""
    if text is None:
        return None
    before, found, after = text.partition("    options: ")
    if not found:
        return text
    lines = (f"    {name}: {option.python or option.help}" for name, option in options.items())
    return "\n".join([before + next(lines), *lines]) + "\n" + after.partition("\n")[2]


def query_of(options: QuestionOptions) -> Query:
    """Return the record of a question; raises EvidenceError for values out of range."""
    asked = _QUESTION | options
    targets = asked["targets"]
    return Query(
        asked["query"],
        None if targets is None else tuple(targets),
        asked["precision"],
        asked["method"],
        sampling_of(asked),
        asked["answers"],
        asked["top"],
        tuple(asked["probabilities"]),
        asked["hide_targets"],
        tuple((name, ()) for name in asked["expected"]),
    )


def sampling_of(options: SamplingOptions) -> Sampling:
    """Return the record of how rows are sampled; raises EvidenceError for values out of range."""
    return Sampling(**{each.name: options[each.name] for each in fields(Sampling)})  # type: ignore[literal-required]


_QUESTION: QuestionOptions = defaults_of(QuestionOptions)  # type: ignore[assignment]
