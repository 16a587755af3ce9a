"""Influence diagrams: what is left of them without decisions and utilities.

Main function: `leave_out`, called by the readers of formats that hold influence diagrams.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from junctor.model.errors import ModelError, Place
from junctor.model.network import Reading

# Names that a note lists.
SHOWN = 5


@dataclass(frozen=True, slots=True)
class DecisionNode:
    """A decision or utility of an influence diagram: its name, the refusal where it is not left out, and its place."""

    name: str
    refusal: str
    place: Place


def leave_out(
    nodes: Sequence[DecisionNode], families: Iterable[tuple[str, Sequence[str]]], reading: Reading | None
) -> None:
    """Raise ModelError unless decisions and utilities may be left out; what is left out becomes a note.

    nodes: the decisions and utilities of a file.
    families: name and parents of every chance node.
    reading: None for no options.
    """
    if not nodes:
        return
    of = {node.name: node for node in nodes}
    families = list(families)
    if not families:
        raise ModelError(
            f"{nodes[0].refusal}; there is no chance node with probabilities, so that nothing could be asked",
            nodes[0].place,
        )
    for child, parents in families:
        node = next((of[parent] for parent in parents if parent in of), None)
        if node is not None:
            # Without the decision the chance node has no probabilities: nothing is left that could be asked.
            raise ModelError(f"{node.refusal}; the chance node {child!r} depends on it", node.place)
    if reading is None or not reading.ignore_decisions:
        raise ModelError(
            f"{nodes[0].refusal}; no chance node depends on decisions or utilities here: --ignore-decisions, in Python "
            "ignore_decisions=True, leaves them out and takes the rest",
            nodes[0].place,
        )
    names = ", ".join(repr(node.name) for node in nodes[:SHOWN]) + (", ..." if len(nodes) > SHOWN else "")
    reading.notes.append(f"{len(nodes)} decisions and utilities were left out: {names}")
