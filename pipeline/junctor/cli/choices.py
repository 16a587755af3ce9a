"""What `junctor inspect` says of choices: what was chosen, and what for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from junctor.engine.engine import Engine
    from junctor.engine.forecast import Forecast


def choices(engine: Engine, found: Sequence[Forecast], stored: Mapping[str, Any]) -> dict[str, str]:
    """Return a line for each choice; stored: what stored clique tables take. Loops are those of the most work."""
    facts = {"device": _device(engine, found), "patterns": _patterns(found)}
    if found and found[0].loops:
        facts["loops"] = found[0].loops
    facts["tables"] = _tables(stored)
    if any(each.chunking is not None for each in found):
        facts["chunk variables"] = "those whose tasks take least by the prices of the device"
    return facts


def show_choices(facts: Mapping[str, str]) -> None:
    """Print such lines."""
    for number, (name, line) in enumerate(facts.items()):
        typer.echo(f"  {'' if number else 'chosen':<12}{name + ':':<17}{line}")


def _device(engine: Engine, found: Sequence[Forecast]) -> str:
    chunks = any(each.chunking is not None and each.chunking.limits.on_gpu for each in found)
    kernels = any(each.loops.startswith("kernels") for each in found)
    where = "GPU" if chunks or kernels else "CPU"
    refused = any(each.refused is not None for each in found) or not found
    if engine.device != "auto":
        asked = refused or where.lower() == engine.device
        return f"{str(engine.device).upper()}: asked for" if asked else f"{where}: a GPU does not do this"
    if not engine.has_device:
        return "CPU: no GPU here that could do this"
    return "GPU: one is here, and the rows are worth it" if where == "GPU" else "CPU: the rows are not worth a GPU"


def _patterns(found: Sequence[Forecast]) -> str:
    patterns, groups = sum(each.group.patterns for each in found), len(found)
    if patterns <= 1:
        return "one"
    plans = "a plan" if groups == 1 else f"{groups:,} groups"
    return f"{patterns:,} in {plans}: least seconds of plans and rows together by prices"


def _tables(stored: Mapping[str, Any]) -> str:
    if stored["pays_from_questions"] is None:
        return "of messages: posteriors need no others"
    least = stored["pays_from_questions"]
    return f"of messages: posteriors need no others; stored ones from about {least:,} joint questions on"
