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
from junctor.cli.learn import learn
from junctor.cli.learn_chain import learn_chain
from junctor.cli.parameters import inputs_of, parameters_of, refuse_unattended, seconds_of, values
from junctor.cli.run import run
from junctor.cli.viterbi import viterbi

_PANEL = "Schedule"
# What Prefect's names do not hold.
_REFUSED = re.compile("[/%&<>]")

# What can be deployed, with the first line of its help; `run` is meant where none is named.
_COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "run": (run, "Run NETWORK and EVIDENCE on a schedule; `run` may be left out."),
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


def _deploy(
    command: str,
    *,
    cron: Annotated[
        str | None, typer.Option(help="When to run, such as '0 5 * * *'; only when asked for if not given.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the deployment; by network and evidence if not given.")] = None,
    timezone: Annotated[str | None, typer.Option(help="Of --cron, such as Europe/Berlin; UTC if not given.")] = None,
    work_pool: Annotated[
        str | None, typer.Option(help="Prefect work pool whose workers run it; `junctor serve` if not given.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=0, help="Runs at the same time; 0: any number.")] = 1,
    on_overlap: Annotated[
        Literal["skip", "queue"], typer.Option("--on-overlap", help="What becomes of a run above that number.")
    ] = "skip",
    retries: Annotated[int, typer.Option(min=0, help="Further attempts after a failure.")] = 0,
    retry_delay: Annotated[str, typer.Option(help="Pause before another attempt.")] = "1min",
    timeout: Annotated[str | None, typer.Option(help="Longest time of an attempt, such as 2h.")] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Schedule nothing yet.")] = False,
    **given: Any,
) -> None:
    from junctor.cli.prefect_server import configured_server

    function, _ = _COMMANDS[command]
    refuse_unattended(function, given)
    if timezone is not None and cron is None:
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
    for option, limit in (("--retry-delay", retry_delay), ("--timeout", timeout)):
        if limit is not None:
            seconds_of(limit, option)
    own = {"retries": retries, "retry_delay": retry_delay, "timeout": timeout}
    defaults = inspect.signature(_deploy).parameters
    changed = {key: value for key, value in own.items() if value != defaults[key].default}
    parameters = {**values(function, given), **changed}
    from junctor_flows.deployments import DeploymentOptions, deploy

    options = DeploymentOptions(cron, timezone, work_pool, concurrency or None, on_overlap == "skip", paused)
    full = deploy(command, name or _name(command, parameters), parameters, options)
    typer.echo(f"deployed {full}")
    typer.echo(f"  once now:  prefect deployment run '{full}'")
    worker = "junctor serve" if work_pool is None else f"prefect worker start --pool {work_pool}"
    typer.echo(f"  runs it:   {worker}")


def _name(command: str, parameters: dict[str, Any]) -> str:
    inputs = [each.name for each in inputs_of(_COMMANDS[command][0])]
    stems = [_REFUSED.sub("", PurePath(parameters[key]).stem) or key for key in inputs]
    return "-".join(stems if command == "run" else [*stems, command])


def _as_command(command: str) -> Callable[..., None]:
    """Return `_deploy` with the arguments and options of a command, whichever it has."""
    function, about = _COMMANDS[command]
    of_command = {each.argument for each in parameters_of(function)}
    every = inspect.signature(function, eval_str=True).parameters.values()
    shared = [each for each in every if each.name in of_command]
    own = [
        each.replace(annotation=_in_panel(each.annotation))
        for each in inspect.signature(_deploy, eval_str=True).parameters.values()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    ]

    def deploy(**given: Any) -> None:
        _deploy(command, **given)

    deploy.__doc__ = f"{about}\n\nTakes the options of `junctor {command}`. A deployment of the same name is replaced."
    deploy.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
    deploy.__annotations__ = {each.name: each.annotation for each in (*shared, *own)}
    return deploy


def _in_panel(annotation: Any) -> Any:
    for option in annotation.__metadata__:
        option.rich_help_panel = _PANEL
    return annotation


for _each in _COMMANDS:
    app.command(_each)(_as_command(_each))
