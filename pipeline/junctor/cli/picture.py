"""A picture of a junction tree."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from junctor.model.errors import InputError
from junctor.runtime.remote import local_path

if TYPE_CHECKING:
    from junctor.model.network import Network
    from junctor.planning.junction_tree import JunctionTree

# A picture with more cliques than this has no names in it.
MOST_LABELS = 40


def draw_tree(tree: JunctionTree, network: Network, path: str) -> None:
    """Draw the cliques, coloured by the size of their tables, to a file whose ending says the format.

    Raises InputError for endings that it does not know.
    """
    # Imported here: it takes half a second.
    from matplotlib.figure import Figure

    places = _places(tree)
    # A figure without pyplot needs no display and leaves no state behind.
    width, height = (max(place[i] for place in places) + 1 for i in (0, 1))
    # Bounded, so that trees of thousands of cliques still make a picture.
    figure = Figure(figsize=(min(60.0, 4 + 0.6 * width), min(40.0, 3 + 0.7 * height)), layout="constrained")
    axes = figure.add_subplot()
    for clique, (x, y) in zip(tree.cliques, places, strict=True):
        if clique.parent is not None:
            px, py = places[clique.parent]
            axes.plot([x, px], [-y, -py], color="0.7", linewidth=1, zorder=1)
    # Logarithms: sizes of cliques spread over many powers of ten.
    sizes = [math.log10(math.prod(network.cardinalities[i] for i in clique.scope)) for clique in tree.cliques]
    dots = axes.scatter([x for x, _ in places], [-y for _, y in places], c=sizes, s=60, cmap="viridis", zorder=2)
    box = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
    if len(places) <= MOST_LABELS:
        for clique, (x, y) in zip(tree.cliques, places, strict=True):
            names = "\n".join(network.public[i].name for i in clique.scope if i < len(network.public))
            axes.annotate(names, (x, -y), (4, -4), textcoords="offset points", va="top", fontsize=6, bbox=box)
    figure.colorbar(dots, label="entries of a clique, log10")
    axes.set_title(f"{network.name}: {len(places):,} cliques")
    axes.set_axis_off()
    try:
        figure.savefig(local_path(path), dpi=150)
    except ValueError as error:
        raise InputError(f"cannot draw to {path}: {error}") from error


def _places(tree: JunctionTree) -> list[tuple[float, float]]:
    """Return x and depth of each clique: leaves side by side, parents above the middle of their children."""
    children = tree.children()
    depths = [0] * len(tree.cliques)
    # Cliques stand after their children: backwards, a parent comes first.
    for i in range(len(tree.cliques) - 1, -1, -1):
        parent = tree.cliques[i].parent
        depths[i] = 0 if parent is None else depths[parent] + 1
    across = [0.0] * len(tree.cliques)
    leaves = 0
    for i in _leaves_together(tree, children):
        if children[i]:
            across[i] = sum(across[child] for child in children[i]) / len(children[i])
        else:
            across[i] = float(leaves)
            leaves += 1
    return list(zip(across, map(float, depths), strict=True))


def _leaves_together(tree: JunctionTree, children: list[list[int]]) -> list[int]:
    """Return the cliques, children before parents, each subtree in one piece."""
    order: list[int] = []
    waiting = tree.roots()
    while waiting:
        i = waiting.pop()
        order.append(i)
        waiting.extend(children[i])
    return order[::-1]
