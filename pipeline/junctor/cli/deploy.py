"""`junctor deploy`: a run, a fit or the decoding of sequences on a schedule of a Prefect server."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import PurePath
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from junctor.cli.deployed import checking
from junctor.cli.ingest import ingest
from junctor.cli.learn import learn
from junctor.cli.learn_chain import learn_chain
from junctor.cli.parameters import (
    SCHEDULE,
    RetryOptions,
    in_signature,
    inputs_of,
    parameters_of,
    places_in,
    refuse_unattended,
    seconds_of,
    values,
)
from junctor.cli.run import run
from junctor.cli.viterbi import viterbi
from junctor.model.option_table import Option, options_for, options_of

# What Prefect's names do not hold.
_REFUSED = re.compile("[/%&<>]")

# What can be deployed, with the first line of its help; `run` is meant where none is named.
_COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "run": (run, "Run NETWORK and EVIDENCE on a schedule; `run` may be left out."),
    "ingest": (ingest, "Encode EVIDENCE into a dataset on a schedule."),
    "learn": (learn, "Fit NETWORK to EVIDENCE on a schedule."),
    "learn-chain": (learn_chain, "Fit MODEL to SEQUENCES on a schedule."),
    "viterbi": (viterbi, "Decode SEQUENCES by MODEL on a schedule."),
}


class _Deployable(TyperGroup):
    """The commands that can be deployed: `junctor deploy asia.bif rows` is `junctor deploy run asia.bif rows`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Name the command that is meant."""
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["run", *args]
        rest: list[str] = super().parse_args(ctx, args)
        return rest


app = typer.Typer(cls=_Deployable, no_args_is_help=True)


@app.callback()
def _about() -> None:
    """Put a run, a fit or the decoding of sequences on a schedule of the configured Prefect server (PREFECT_API_URL).

    NETWORK EVIDENCE without the name of a command is a run: `junctor deploy asia.bif patients --output answers`. A
    deployment of the same name is replaced. Local paths are those of the machine that does the work.
    """


class DeployOptions(RetryOptions, total=False):
    """When and where a deployment runs."""

    cron: Annotated[
        str | None, Option(None, "When to run, such as '0 5 * * *'; only when asked for if not given.", SCHEDULE)
    ]
    name: Annotated[str | None, Option(None, "Of the deployment; by network and evidence if not given.", SCHEDULE)]
    timezone: Annotated[str | None, Option(None, "Of --cron, such as Europe/Berlin; UTC if not given.", SCHEDULE)]
    work_pool: Annotated[
        str | None, Option(None, "Prefect work pool whose workers run it; `junctor serve` if not given.", SCHEDULE)
    ]
    concurrency: Annotated[int, Option(1, "Runs at the same time; 0: any number.", SCHEDULE, least=0)]
    on_overlap: Annotated[
        Literal["skip", "queue"], Option("skip", "What becomes of a run above that number.", SCHEDULE)
    ]
    paused: Annotated[bool, Option(False, "Schedule nothing yet.", SCHEDULE)]


def _deploy(command: str, given: dict[str, Any], options: DeployOptions) -> None:
    """Deploy a command; given: its arguments."""
    from junctor.cli.prefect_server import configured_server

    function, _ = _COMMANDS[command]
    name, timezone = options["name"], options["timezone"]
    refuse_unattended(function, given)
    if timezone is not None and options["cron"] is None:
        raise typer.BadParameter("it belongs to --cron: give both, or leave it out", param_hint="--timezone")
    if timezone == "":
        raise typer.BadParameter("it is empty, expected a name such as Europe/Berlin", param_hint="--timezone")
    if name == "":
        raise typer.BadParameter("it is empty, expected a name, or leave it out", param_hint="--name")
    if name is not None and _REFUSED.search(name):
        raise typer.BadParameter(f"found {name!r}, expected a name without / % & < >", param_hint="--name")
    configured_server()
    # What a run would refuse at night is refused now.
    with checking():
        function(**given)
    own: dict[str, Any] = {**options_for(RetryOptions, options)}
    for name_of_limit in ("retry_delay", "timeout"):
        if (limit := own[name_of_limit]) is not None:
            seconds_of(limit, f"--{name_of_limit.replace('_', '-')}")
    changed = {key: value for key, value in own.items() if value != options_of(RetryOptions)[key].default}
    parameters = {**values(function, given), **changed}
    from junctor_flows.deployments import DeploymentOptions, deploy

    work_pool, most, skips = options["work_pool"], options["concurrency"] or None, options["on_overlap"] == "skip"
    when = DeploymentOptions(options["cron"], timezone, work_pool, most, skips, options["paused"])
    full = deploy(command, name or _name(command, parameters), parameters, when)
    typer.echo(f"deployed {full}")
    typer.echo(f"  once now:  prefect deployment run '{full}'")
    worker = "junctor serve" if work_pool is None else f"prefect worker start --pool {work_pool}"
    typer.echo(f"  runs it:   {worker}")


def _name(command: str, parameters: dict[str, Any]) -> str:
    places = {each.name: places_in(parameters.get(each.name)) for each in inputs_of(_COMMANDS[command][0])}
    stems = [_REFUSED.sub("", PurePath(place[0]).stem) or key for key, place in places.items() if place]
    return "-".join(stems if command == "run" else [*stems, command])


def _as_command(command: str) -> Callable[..., None]:
    """Return `_deploy` with the arguments and options of a command, whichever it has."""
    function, about = _COMMANDS[command]
    of_command = {each.argument for each in parameters_of(function)}
    every = inspect.signature(function, eval_str=True).parameters.values()
    shared = [each for each in every if each.name in of_command]
    own = in_signature(DeployOptions)

    def deploy(**given: Any) -> None:
        mine: Any = {each.name: given.pop(each.name) for each in own}
        _deploy(command, given, mine)

    deploy.__doc__ = f"{about}\n\nTakes the options of `junctor {command}`. A deployment of the same name is replaced."
    deploy.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
    deploy.__annotations__ = {each.name: each.annotation for each in (*shared, *own)}
    return deploy


for _each in _COMMANDS:
    app.command(_each, epilog="More: docs/scheduling.md")(_as_command(_each))
