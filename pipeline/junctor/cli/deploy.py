"""`junctor deploy`: a run on a schedule of a Prefect server."""

from __future__ import annotations

import inspect
from pathlib import PurePath
from typing import Annotated, Any, Literal

import typer

from junctor.cli.deployed import checking
from junctor.cli.parameters import parameters_of, seconds_of, values
from junctor.cli.run import run

_PANEL = "Schedule"


def _deploy(
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

    configured_server()
    # What a run would refuse at night is refused now.
    with checking():
        run(**given)
    for limit in (retry_delay, *([] if timeout is None else [timeout])):
        seconds_of(limit)
    own = {"retries": retries, "retry_delay": retry_delay, "timeout": timeout}
    defaults = inspect.signature(_deploy).parameters
    changed = {key: value for key, value in own.items() if value != defaults[key].default}
    parameters = {**values(run, given), **changed}
    from junctor_flows.deployments import DeploymentOptions, deploy

    options = DeploymentOptions(cron, timezone, work_pool, concurrency or None, on_overlap == "skip", paused)
    full = deploy(name or _name(parameters), parameters, options)
    typer.echo(f"deployed {full}")
    typer.echo(f"  once now:  prefect deployment run '{full}'")
    worker = "junctor serve" if work_pool is None else f"prefect worker start --pool {work_pool}"
    typer.echo(f"  runs it:   {worker}")


def _name(parameters: dict[str, Any]) -> str:
    # Prefect's names hold anything but slashes and percent signs.
    return "-".join(PurePath(parameters[key]).stem.replace("%", "") or key for key in ("network", "evidence"))


def _as_command() -> Any:
    """Return `_deploy` with the arguments and options of `junctor run`, whichever it has."""
    of_run = {each.argument for each in parameters_of(run)}
    shared = [each for each in inspect.signature(run, eval_str=True).parameters.values() if each.name in of_run]
    own = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=_in_panel(each.annotation))
        for each in inspect.signature(_deploy, eval_str=True).parameters.values()
        if each.kind is not inspect.Parameter.VAR_KEYWORD
    ]

    def deploy(**given: Any) -> None:
        """Run NETWORK and EVIDENCE on a schedule of the configured Prefect server (PREFECT_API_URL).

        Takes the options of `junctor run`. A deployment of the same name is replaced. Local paths are those of the
        machine that runs it.
        """
        _deploy(**given)

    deploy.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
    deploy.__annotations__ = {each.name: each.annotation for each in (*shared, *own)}
    return deploy


def _in_panel(annotation: Any) -> Any:
    for option in annotation.__metadata__:
        option.rich_help_panel = _PANEL
    return annotation


deploy = _as_command()
