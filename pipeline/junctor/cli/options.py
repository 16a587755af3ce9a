"""Options of the command line, made of the table, and arguments that several commands share.

Main function: `takes_options`, a decorator of commands.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar, get_args, get_origin

import typer

from junctor.cli.lines import LogFormat, set_log_format
from junctor.model import option_table as table
from junctor.model.errors import InputError, JunctorError
from junctor.model.option_table import DISPLAY, Option, group_of, options_of, type_of
from junctor.planning.budget import parse_time_limit, parse_told_bytes

if TYPE_CHECKING:
    from junctor.model.network import Network
    from junctor.model.query import Query

Command = TypeVar("Command", bound=Callable[..., None])
Number = TypeVar("Number", int, float)


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
        help="BIF, XMLBIF, Hugin .net, GeNIe .xdsl .dsl, Netica .dne, OpenMarkov .pgmx, UAI, .cfn, Parquet; .gz; URL.",
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
SequencesFile = Annotated[
    str,
    typer.Argument(
        metavar="SEQUENCES",
        help="Parquet or Arrow with a list column, a row each; also CSV with a row for each step (--case-id, --step).",
    ),
]


class JsonOptions(TypedDict, total=False):
    """A document in the place of lines."""

    json: Annotated[bool, Option(False, "Print one JSON document.", DISPLAY)]


class ExplainOptions(TypedDict, total=False):
    """What rows were answered by."""

    explain: Annotated[
        bool, Option(False, "Print how rows were answered, what else there was and why not, and what it took.", DISPLAY)
    ]


class MessageOptions(TypedDict, total=False):
    """Progress and messages."""

    quiet: Annotated[bool, Option(False, "Show no progress.", DISPLAY, flag="--quiet -q")]
    # Holds from here on, for errors that are found before a command begins too.
    log_format: Annotated[
        LogFormat,
        Option(
            "text",
            "Progress and messages on stderr as text, or a JSON document a line.",
            DISPLAY,
            callback=set_log_format,
        ),
    ]


class WeightedRowOptions(
    table.WeightOptions,
    table.CaseOptions,
    table.StrictOptions,
    table.MeaningOptions,
    table.NetworkOptions,
    table.FormatOptions,
    table.SeparatorOptions,
    table.WorkerOptions,
    table.FitResources,
    table.SchedulerOptions,
    JsonOptions,
    MessageOptions,
    total=False,
):
    """How rows with weights are read and counted."""


# Of commands that take no GPU unasked, whatever is set for others.
ON_CPU = {"default": "cpu", "is_setting": False}
# Of commands that count rows.
READERS = "Processes that read and prepare the rows; this process alone if not given."
# Of a fit that has begun.
FIT_OVERWRITE = {"help": "Give up an interrupted fit of other input or options.", "panel": table.RESULT}
# Fits and sequences have no drift.
FAIL_IF = "End as failed (code 7) where it holds: 'impossible > 1%', 'rows < 1000', ...; repeatable."


def takes_options(**changes: dict[str, Any]) -> Callable[[Command], Command]:
    """Return a decorator that makes options of the command line of `**options: Unpack[group]` of a command.

    The command gets values as functions of Python do: a size in bytes for "4GiB". A setting that is not given is none
    of its options. Raises BadParameter for texts that stand for nothing.

    changes: fields of options that differ for this command, by the name of the option.
    """

    def decorate(command: Command) -> Command:
        group = group_of(command)
        rows = {name: replace(row, **changes.get(name, {})) for name, row in options_of(group).items()}
        own = list(inspect.signature(command, eval_str=True).parameters.values())[:-1]
        options = [option_parameter(name, row, type_of(group, name)) for name, row in rows.items()]
        unset = {each.name: each.default for each in options}

        @wraps(command)
        def called(**given: Any) -> None:
            told = {name: given.pop(name, default) for name, default in unset.items()}
            command(**given, **{n: _value(n, rows[n], told[n]) for n in rows if not _is_unset(rows[n], told[n])})

        called.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in (*own, *options)}
        return called  # type: ignore[return-value]

    return decorate


def option_parameter(name: str, row: Option, kind: Any) -> inspect.Parameter:
    """Return an option as the parameter that Typer reads, and Prefect's form."""
    kind = _told_as(kind, row)
    default = None if (row.is_setting and kind is not bool) or row.default == () or row.text else row.default
    # Within all bounds lies nan.
    row = replace(row, callback=refuse_nan) if kind is float else row
    annotation = Annotated[kind, _option(name, row)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _told_as(kind: Any, row: Option) -> Any:
    """Return the type on the command line for that of a keyword."""
    if row.text in ("conditions", "counts") or (get_origin(kind) is Sequence and row.text is None):
        return list[str] | None
    # A text stands for names, sizes, times and files.
    if row.text or str in get_args(kind):
        return str | None
    return kind | None if row.is_setting and kind is not bool else kind


def _flags(name: str, row: Option) -> list[str]:
    # Always given: a switch would otherwise have another one that turns it off.
    return (row.flag or "--" + name.replace("_", "-")).split()


def _option(name: str, row: Option) -> Any:
    return typer.Option(
        *_flags(name, row),
        help=row.help,
        rich_help_panel=row.panel,
        metavar=row.metavar,
        min=row.least,
        max=row.most,
        callback=row.callback,
    )


def _is_unset(row: Option, value: Any) -> bool:
    """Return True for a setting that the command line does not name; a switch has no third way to be."""
    return row.is_setting and (value is None or value is row.default is False)


def _value(name: str, row: Option, told: Any) -> Any:
    """Return what the text of an option stands for."""
    if told is None or row.text is None:
        return row.default if told is None else tuple(told) if isinstance(told, list) else told
    return _READ[row.text](told, _flags(name, row)[0])


def refuse_empty(directory: str, option: str = "--output") -> None:
    """Raise BadParameter for a directory without a name, which would be the current one; option: that names it."""
    if not directory:
        raise typer.BadParameter("it is empty, expected the name of a directory", param_hint=option)


def refuse_idle(query: Query, options: table.StrategyOptions) -> None:
    """Raise BadParameter for options that say how to sample where nothing is, or how to answer where rows may be."""
    idle = [each.name for each in fields(query.sampling) if getattr(query.sampling, each.name) != each.default]
    if query.method == "exact" and idle:
        raise typer.BadParameter("exact answers take no samples: add --method sampling", param_hint=f"--{idle[0]}")
    if query.method != "exact" and options["strategy"] is not None:
        raise typer.BadParameter("it is about exact answers: leave out --method", param_hint="--strategy")


def network_of(file: str, options: table.NetworkOptions) -> Network:
    """Return the network of a file, read as the options say."""
    from junctor.formats import read_network

    return read_network(
        file,
        options["network_format"],
        normalize=options["normalize"],
        ignore_decisions=options["ignore_decisions"],
    )


def mapping_of(options: table.MeaningOptions) -> str | None:
    """Return the mapping file: on the command line no mapping is anything else."""
    mapping = options["mapping"]
    return mapping if isinstance(mapping, str) else None


def thresholds(texts: Sequence[str] | None) -> tuple[str, ...]:
    """Return the conditions of --fail-if; raises BadParameter for those that cannot be read."""
    if not texts:
        return ()
    from junctor.runs.thresholds import parse_threshold

    try:
        return tuple(parse_threshold(text).text for text in texts)
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint="--fail-if") from None


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in `A,"B, with a comma",C`; raises BadParameter for what is no such list."""
    import csv

    # The quoting of CSV, which users know: names may contain commas.
    try:
        # A line without anything has no names, where there is one that is empty.
        names = next(csv.reader([text], skipinitialspace=True)) or [""]
    except csv.Error as error:
        raise typer.BadParameter(f"found {text!r}, expected names like A,B,C ({error})") from None
    names = [name.strip() for name in names]
    if not all(names):
        raise typer.BadParameter(f"found {text!r}, in which a name is empty; expected names like A,B,C")
    return tuple(names)


def _size(text: str, option: str) -> int:
    return _parsed(text, parse_told_bytes, option)


def _time(text: str, option: str) -> float:
    return _parsed(text, parse_time_limit, option)


def _parsed(text: str, parse: Callable[[str], Number], option: str) -> Number:
    try:
        return parse(text)
    except JunctorError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _share(text: str, option: str) -> float:
    """Return the number in `10%` or `0.1`; raises BadParameter for anything else."""
    try:
        number = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        number = math.nan
    if not 0 <= number < 1:
        raise typer.BadParameter(f"found {text!r}, expected a share such as 10%", param_hint=option)
    return number


def _counts(texts: Sequence[str], option: str) -> dict[str, float]:
    counts: dict[str, float] = {}
    for text in texts:
        part, equals, number = text.partition("=")
        try:
            count = float(number) if equals else None
        except ValueError:
            count = None
        if count is None:
            raise typer.BadParameter(f"found {text!r}, expected PART=COUNT, such as emission=0.5", param_hint=option)
        if part.strip() in counts:
            raise typer.BadParameter(f"{part.strip()} is given twice", param_hint=option)
        counts[part.strip()] = count
    return counts


def _folder(text: str, option: str) -> str:
    refuse_empty(text, option)
    return text


# By what a text stands for: a function of the text and the option.
_READ: dict[table.Text, Callable[[Any, str], Any]] = {
    "size": _size,
    "time": _time,
    "folder": _folder,
    "names": lambda text, _: names_in(text),
    "conditions": lambda texts, _: thresholds(texts),
    "share": _share,
    "counts": _counts,
}
