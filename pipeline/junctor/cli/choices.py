"""What `junctor inspect` says of choices: what was chosen, and what for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
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


def chosen_lines(record: Mapping[str, Any]) -> list[str]:
    """Return lines for what was chosen for some rows, and what was not; record: of `record_of`."""
    from junctor.cli.display import duration

    def told(seconds: float | None) -> str:
        return "" if seconds is None else f" ({duration(seconds)})"

    lines = {f"{each['reason']}{told(each['seconds'])}": list[str]() for each in record["rejected"]}
    for each in record["rejected"]:
        lines[f"{each['reason']}{told(each['seconds'])}"].append(each["strategy"])
    others = [f"  not {' or '.join(names)}: {why}" for why, names in lines.items()]
    return [f"by {record['strategy']}{told(record['price_seconds'])}", *others]


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
