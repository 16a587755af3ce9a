"""A network as a picture, with the posteriors of its variables. Main function: `drawing_of`, for `Network.draw`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from junctor.api import posteriors
from junctor.formats.files import publish
from junctor.model.errors import EvidenceError, InputError
from junctor.model.network import Network
from junctor.model.picture import Node, picture_of
from junctor.runtime.remote import RemotePath, location

# Boxes beyond this many are a carpet that nobody reads.
MOST_VARIABLES = 200


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture, which notebooks show; `svg`: its document."""

    svg: str

    def _repr_html_(self) -> str:
        return f'<div style="overflow:auto">{self.svg}</div>'

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | os.PathLike[str] | RemotePath) -> None:
        """Write the document whole or not at all; raises RunError if it cannot be written."""
        publish(location(path), self.svg.encode())


def drawing_of(network: Network, evidence: Mapping[str, Any] | None = None) -> Drawing:
    """Return a network with a bar for each state of its variables; arguments and errors as of `Network.draw`."""
    if len(network.public) > MOST_VARIABLES:
        raise InputError(f"{len(network.public):,} variables make no picture, {MOST_VARIABLES} or fewer do")
    given = {name: state for name, state in (evidence or {}).items() if state is not None}
    for name in given:
        network.find(name)
    with warnings.catch_warnings():
        # That the answers of observed variables repeat the input is what the picture shows.
        warnings.simplefilter("ignore")
        row = posteriors(network, [{name: given.get(name) for name in network.index}]).to_pylist()[0]
    if row["status"] != "ok":
        raise EvidenceError(f"no picture of evidence that is {row['status']}: {row['reason']}")
    nodes = [Node(each.name, each.states, row[each.name], each.name in given) for each in network.public]
    return Drawing(picture_of(nodes, network.edges(), network.kind == "bayes"))
