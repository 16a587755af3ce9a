"""What `junctor inspect` says of choices: what was chosen, and what for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from junctor.runs.manifest import Manifest
    from junctor.strategies.facts import Facts
    from junctor.strategies.strategy import Route


def choices(facts: Facts, routes: Sequence[Route], stored: Mapping[str, Any]) -> dict[str, str]:
    """Return a line for each choice.

    routes: of a batch, the one with the most work first; the reason for its loops is printed.
    stored: what stored clique tables take.
    """
    told = {"device": _device(facts, routes), "patterns": _patterns(routes)}
    # The route with the most work speaks for all: a line for each would hide it.
    if routes and routes[0].refused is None:
        told["loops"] = routes[0].reason
    told["tables"] = _tables(stored)
    if any(route.chunks is not None for route in routes):
        told["chunk variables"] = "those whose tasks take least by the prices of the device"
    return told


def show_choices(facts: Mapping[str, str]) -> None:
    """Print the lines of `choices`."""
    for number, (name, line) in enumerate(facts.items()):
        typer.echo(f"  {'' if number else 'chosen':<12}{name + ':':<17}{line}")


def chosen_lines(chosen: Mapping[str, Any]) -> list[str]:
    """Return lines for what was chosen for some rows, and what was not; chosen: fields of Chosen."""
    from junctor.cli.display import duration

    def told(seconds: float | None) -> str:
        return "" if seconds is None else f" ({duration(seconds)})"

    lines: dict[str, list[str]] = {}
    for each in chosen["others"]:
        lines.setdefault(f"{each['reason']}{told(each['seconds'])}", []).append(each["strategy"])
    others = [f"  not {' or '.join(names)}: {why}" for why, names in lines.items()]
    return [f"by {chosen['strategy']}{told(chosen['price'])}", *others]


def show_run_choices(manifest: Manifest) -> None:
    """Print where and how a finished run answered rows, what else there was, and what it took."""
    from junctor.planning.budget import format_bytes

    typer.echo(f"answered on {manifest.placement}" if manifest.placement else "nothing was left to answer")
    for chosen in manifest.choices:
        typer.echo(f"  {chosen.rows:>9,} rows of the first part: {chosen.reason}")
        for line in chosen_lines(asdict(chosen)):
            typer.echo(f"            {line}")
    took = manifest.stages.propagating, manifest.seconds, format_bytes(max(manifest.peak_bytes))
    typer.echo("  took      {:.2g} s to answer, {:.2g} s in all, {} of memory".format(*took))


def _device(facts: Facts, routes: Sequence[Route]) -> str:
    where = "GPU" if any(route.on_gpu for route in routes) else "CPU"
    refused = any(route.refused is not None for route in routes) or not routes
    wanted = facts.options.device
    # A device that was asked for is named even where the rows are refused and nothing runs on it.
    if wanted != "auto":
        asked = refused or where.lower() == wanted
        return f"{wanted.upper()}: asked for" if asked else f"{where}: a GPU does not do this"
    if where == "GPU":
        return "GPU: one is here, and the rows are worth it"
    return "CPU: the rows are not worth a GPU" if facts.takes_gpu else "CPU: no GPU here that could do this"


def _patterns(routes: Sequence[Route]) -> str:
    patterns = sum(route.group.patterns for route in routes)
    if any(route.group.patterns == 0 for route in routes):
        return "not looked at: each row goes by itself"
    if patterns <= 1:
        return "one"
    plans = "a plan" if len(routes) == 1 else f"{len(routes):,} groups"
    return f"{patterns:,} in {plans}: least seconds of plans and rows together by prices"


def _tables(stored: Mapping[str, Any]) -> str:
    least = stored["pays_from_questions"]
    # None where stored tables have no forecast, or do not fit.
    otherwise = "" if least is None else f"; stored ones from about {least:,} joint questions on"
    return f"of messages: posteriors need no others{otherwise}"
