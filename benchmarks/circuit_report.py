"""The Markdown table of `circuits.py`. Main function: `text`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

# What Ganak has counted: rows of the benchmark, and the evidence that comes with the network.
COUNTED = ("ganak", "ganak, own evidence")
EVALUATED = ("klay", "pyjuice")

Found = dict[str, Any]


def worst(found: Found) -> float:
    """Return the largest difference of a network; PyJuice has single precision, and is not counted."""
    logs = [each for name in COUNTED for each in found.get(name, {}).get("log_difference", [])]
    klay = found.get("klay", {})
    return max((*logs, klay.get("log_difference", 0.0), klay.get("posterior_difference", 0.0)))


def text(networks: Sequence[Found]) -> str:
    """Return the table: peers and rates that no network has are left out.

    networks: what `circuits.py` found of each.
    """
    kinds = list(dict.fromkeys(kind for found in networks for kind in found.get("rates", {})))
    peers = [peer for peer in (*COUNTED, *EVALUATED) if any(peer in found for found in networks)]
    heads = ["network", "edges", "decisions", "compile s", *(f"rows/s, {kind}" for kind in kinds)]
    heads += [head for peer in peers for head in (f"{peer}, {'s a row' if peer in COUNTED else 'rows/s'}", "×")]
    lines = [f"| {' | '.join([*heads, 'worst difference'])} |", f"|---{'|---:' * len(heads)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(_cells(found, kinds, peers))} |" for found in networks)])


def _cells(found: Found, kinds: Sequence[str], peers: Sequence[str]) -> Iterator[str]:
    rates = found.get("rates", {})
    yield found["network"]
    yield from (f"{found[count]:,}" if count in found else "–" for count in ("edges", "decisions"))
    yield from map(_rounded, [found.get("compile"), *(rates.get(kind) for kind in kinds)])
    for peer in peers:
        said, seconds = found.get(peer, {}), found.get(peer, {}).get("seconds", [])
        # Ganak has one core, other peers what the benchmark has.
        ours = next(iter(rates.values()), 0.0) if peer in COUNTED else max(rates.values(), default=0.0)
        measured = sum(seconds) / len(seconds) if seconds else said.get("rows_a_second", 0.0)
        ratio = ours * measured if peer in COUNTED else ours / measured if measured else 0.0
        yield from (said["error"] if "error" in said else _rounded(measured), _rounded(ratio))
    yield found.get("refused") or found.get("error") or f"{worst(found):.0e}"


def _rounded(number: float | None) -> str:
    """Return three digits of a number, a dash where there is none."""
    if not number:
        return "–"
    digits = 2 - math.floor(math.log10(number))
    return f"{round(number, digits):,.{max(0, digits)}f}" if number >= 0.001 else f"{number:.2g}"
