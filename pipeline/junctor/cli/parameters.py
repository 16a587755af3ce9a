"""The parameters of a command, read from its signature: deployed flows have the same ones under the same names.

Main functions: `parameters_of` and `refuse_unattended`, for `junctor deploy` and the flows.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict, get_args, get_origin

import typer
from typer.models import ParameterInfo

from junctor.cli.options import option_parameter
from junctor.model.errors import BudgetError
from junctor.model.option_table import Option, options_of, type_of
from junctor.planning.budget import parse_seconds

# Panel of the help.
SCHEDULE = "Schedule"
# Of the terminal and of the way to run, not of the work.
_OF_TERMINALS = ("prefect", "json", "quiet", "log_format")
# What options and arguments that name files or folders are called in the help.
_PATHS = ("NETWORK", "EVIDENCE", "EVIDENCE...", "MODEL", "SEQUENCES", "DIR", "DATASET", "FILE")
# A prior may be a file.
_PRIOR_FILE = "dirichlet:"


class RetryOptions(TypedDict, total=False):
    """What a flow takes in addition to its command."""

    retries: Annotated[int, Option(0, "Further attempts after a failure.", SCHEDULE, least=0)]
    retry_delay: Annotated[str, Option("1min", "Pause before another attempt, such as 1min.", SCHEDULE)]
    timeout: Annotated[str | None, Option(None, "Longest time of an attempt, such as 2h.", SCHEDULE)]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a command.

    name: as on the command line, with underscores.
    argument: its name in the function.
    type: without Typer's annotation.
    default: `inspect.Parameter.empty` where it has to be given.
    help: one or two sentences.
    least, most: inclusive bounds of a number, None without.
    is_path: whether it names a file or folder.
    """

    name: str
    argument: str
    type: Any
    default: Any
    help: str
    least: float | None
    most: float | None
    is_path: bool


def parameters_of(command: Callable[..., Any]) -> tuple[Parameter, ...]:
    """Return the parameters of a command that say what to do, not how to show it."""
    # Evaluated: an annotation that is only text means nothing in another process.
    signature = inspect.signature(command, eval_str=True)
    return tuple(_parameter(each) for each in signature.parameters.values() if each.name not in _OF_TERMINALS)


def own_parameters() -> tuple[Parameter, ...]:
    """Return the parameters that a flow has in addition to its command."""
    return tuple(_parameter(each) for each in in_signature(RetryOptions))


def in_signature(group: Any) -> list[inspect.Parameter]:
    """Return the options of a group as the parameters that Typer reads."""
    return [option_parameter(name, row, type_of(group, name)) for name, row in options_of(group).items()]


def _parameter(of: inspect.Parameter) -> Parameter:
    kind, told = of.annotation, ParameterInfo()
    if get_origin(kind) is Annotated:
        kind, *rest = get_args(kind)
        told = next((each for each in rest if isinstance(each, ParameterInfo)), told)
    # In an annotation, Typer's first argument is not a default but the first name.
    names = (told.default, *(told.param_decls or ()))
    long = [text for text in names if isinstance(text, str) and text.startswith("--")]
    name = long[0].partition("/")[0].lstrip("-").replace("-", "_") if long else of.name
    is_path = told.metavar in _PATHS
    return Parameter(name, of.name, kind, of.default, told.help or "", told.min, told.max, is_path)


def arguments(command: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a command.

    given: values by the names of the command line.
    """
    return {each.argument: given[each.name] for each in parameters_of(command) if each.name in given}


def inputs_of(command: Callable[..., Any]) -> tuple[Parameter, ...]:
    """Return the parameters of a command that are its model and its rows."""
    return parameters_of(command)[:2]


def places_in(value: str | Sequence[str] | None) -> Sequence[str]:
    """Return the places that an argument names: one, several, or none."""
    return [value] if isinstance(value, str) else value or ()


def refuse_unattended(command: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise BadParameter for what a run on a schedule cannot have: standard input, and a share of an array job.

    given: arguments of the command.
    """
    from junctor.evidence.pipes import STDIN

    for each in inputs_of(command):
        if any(place in STDIN for place in places_in(given[each.argument])):
            raise typer.BadParameter(
                "found standard input, which a run on a schedule has not: name a file or folder",
                param_hint=each.name.upper(),
            )
    if given.get("part") is not None:
        raise typer.BadParameter(
            "the parts of an array job are started by its scheduler, not by a deployment: leave it out",
            param_hint="--part",
        )


def values(command: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what differs from the defaults, by the names of the command line, with absolute paths.

    given: arguments of the command.
    """
    told = [(each, given[each.argument]) for each in parameters_of(command)]
    return {each.name: _elsewhere(each, value) for each, value in told if value != each.default}


def _elsewhere(parameter: Parameter, value: Any) -> Any:
    """Return a value as a run that begins in another folder has to have it."""
    if parameter.is_path:
        return _absolute(value) if isinstance(value, str) else [*map(_absolute, value)]
    if parameter.name == "prior" and isinstance(value, str) and value.startswith(_PRIOR_FILE):
        return _PRIOR_FILE + _absolute(value.removeprefix(_PRIOR_FILE))
    return value


def _absolute(path: str) -> str:
    # Places of other machines, such as s3://bucket, are absolute.
    return path if "://" in path else os.path.abspath(path)


def seconds_of(text: str, option: str | None = None) -> float:
    """Return the seconds that "90s", "5min", "2h" or "1d" mean; raises BadParameter, named by `option`, for others."""
    try:
        return parse_seconds(text)
    except BudgetError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
