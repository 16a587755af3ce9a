"""Pictures of networks as SVG: a box for each variable, with a bar for each state where probabilities are known.

Boxes stand in layers, below their parents (Sugiyama, Tagawa and Toda 1981): edges over several layers have a place in
each of them, layers are ordered by the mean places of neighbours, and places are the nearest to these means that leave
boxes apart. Main function: `picture_of`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

# Sizes in pixels: of a box, a line of it, the space around boxes.
BOX, LINE, ASIDE, BETWEEN = 184, 16, 28, 46
# Width of an edge that passes a layer, of a bar of probability 1, and where that begins.
PASSING, BAR, BAR_AT = 24, 46, 90
# States of a box, and letters of names and states, at most.
MOST_STATES, MOST_LETTERS, STATE_LETTERS = 6, 24, 11
# Orders of layers that are tried, there and back each, and rounds of places.
SWEEPS, ROUNDS = 12, 8


@dataclass(frozen=True, slots=True)
class Node:
    """A variable in a picture.

    name, states: of the variable.
    probabilities: of its states, None where they are not known.
    observed: whether there is evidence on it.
    """

    name: str
    states: Sequence[str]
    probabilities: Sequence[float] | None = None
    observed: bool = False


def picture_of(nodes: Sequence[Node], edges: Sequence[tuple[int, int]], directed: bool = True) -> str:
    """Return an SVG document.

    nodes: at least one.
    edges: numbers of two nodes each; parent and child if directed, without circles.
    """
    heights = [_height(node) for node in nodes]
    layers = _layers(len(nodes), edges) if directed else _rings(len(nodes), edges)
    # Beyond the nodes: places of edges that pass a layer.
    ranks, chains, links = list(layers), [], []
    for first, last in edges:
        if ranks[first] > ranks[last]:
            first, last = last, first
        chain = [first]
        for layer in range(layers[first] + 1, layers[last]):
            ranks.append(layer)
            chain.append(len(ranks) - 1)
        chain.append(last)
        chains.append(chain)
        links += list(itertools.pairwise(chain))
    order = _ordered(ranks, links)
    across = _places(order, links, [BOX if n < len(nodes) else PASSING for n in range(len(ranks))])
    tall = [max((heights[n] for n in row if n < len(nodes)), default=0) for row in order]
    tops = [ASIDE + sum(tall[:layer]) + BETWEEN * layer for layer in range(len(order))]
    left = min(across) - BOX / 2 - ASIDE
    across = [x - left for x in across]
    width, height = max(across) + BOX / 2 + ASIDE, tops[-1] + tall[-1] + ASIDE
    parts = [_edge(chain, across, tops, tall, ranks, heights, directed) for chain in chains]
    parts += [_box(node, across[n] - BOX / 2, tops[ranks[n]]) for n, node in enumerate(nodes)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="sans-serif" font-size="11">{_HEAD}{"".join(parts)}</svg>'
    )


_HEAD = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#667"/></marker></defs><rect width="100%" height="100%" fill="white"/>'
)


def _height(node: Node) -> int:
    lines = 0 if node.probabilities is None else min(len(node.states), MOST_STATES)
    return LINE * (lines + 1) + 12


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the layer of each node: below its parents, and roots right above the first of their children."""
    children: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for parent, child in edges:
        children[parent].append(child)
        waiting[child] += 1
    layers, ready = [0] * count, deque(n for n in range(count) if not waiting[n])
    while ready:
        node = ready.popleft()
        for child in children[node]:
            layers[child] = max(layers[child], layers[node] + 1)
            waiting[child] -= 1
            if not waiting[child]:
                ready.append(child)
    has_parents = {child for _, child in edges}
    for node in range(count):
        if node not in has_parents and children[node]:
            layers[node] = min(layers[child] for child in children[node]) - 1
    return layers


def _rings(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the layer of each node of a graph without directions: how far it is from an end of its part."""
    near: list[list[int]] = [[] for _ in range(count)]
    for one, other in edges:
        near[one].append(other)
        near[other].append(one)
    layers = [-1] * count
    for node in range(count):
        if layers[node] < 0:
            # The node that is farthest from any of a part is an end of it.
            end = list(_distances(node, near))[-1]
            for each, distance in _distances(end, near).items():
                layers[each] = distance
    return layers


def _distances(start: int, near: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return the nodes that can be reached, the nearest first, with their distances."""
    found, waiting = {start: 0}, deque([start])
    while waiting:
        node = waiting.popleft()
        for other in near[node]:
            if other not in found:
                found[other] = found[node] + 1
                waiting.append(other)
    return found


def _ordered(ranks: Sequence[int], links: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the nodes of each layer from left to right, with few crossings; nodes of a layer may be linked."""
    rows: list[list[int]] = [[] for _ in range(max(ranks) + 1)]
    for node, rank in enumerate(ranks):
        rows[rank].append(node)
    above, below = _neighbours(ranks, links), _neighbours(ranks, [(b, a) for a, b in links])
    best, fewest = [list(row) for row in rows], _crossings(rows, links, ranks)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        near = above if down else below
        for row in rows if down else rows[::-1]:
            place = {node: n for each in rows for n, node in enumerate(each)}
            # Those without neighbours stay where they are.
            keys = {n: sum(place[m] for m in near[n]) / len(near[n]) if near[n] else place[n] for n in row}
            row.sort(key=lambda node: (keys[node], place[node]))
        crossings = _crossings(rows, links, ranks)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    return best


def _neighbours(ranks: Sequence[int], links: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return for each node the first nodes of the links that end in it."""
    near: list[list[int]] = [[] for _ in ranks]
    for first, last in links:
        if ranks[first] != ranks[last]:
            near[last].append(first)
    return near


def _crossings(rows: Sequence[Sequence[int]], links: Sequence[tuple[int, int]], ranks: Sequence[int]) -> int:
    place = {node: n for row in rows for n, node in enumerate(row)}
    between: dict[int, list[tuple[int, int]]] = {}
    for first, last in links:
        between.setdefault(ranks[first], []).append((place[first], place[last]))
    total = 0
    for pairs in between.values():
        pairs.sort()
        total += sum(a[0] < b[0] and a[1] > b[1] for n, a in enumerate(pairs) for b in pairs[n + 1 :])
    return total


def _places(rows: Sequence[Sequence[int]], links: Sequence[tuple[int, int]], widths: Sequence[int]) -> list[float]:
    """Return the middle of each node: as near to the mean of its neighbours as boxes beside it allow."""
    near: list[list[int]] = [[] for _ in widths]
    for first, last in links:
        near[first].append(last)
        near[last].append(first)
    across = [0.0] * len(widths)
    for row in rows:
        apart = _apart(row, widths)
        for node, x in zip(row, apart, strict=True):
            across[node] = x - apart[-1] / 2
    for turn in range(ROUNDS):
        for row in rows if turn % 2 == 0 else rows[::-1]:
            wanted = [sum(across[m] for m in near[n]) / len(near[n]) if near[n] else across[n] for n in row]
            for node, x in zip(row, _nearest(wanted, _apart(row, widths)), strict=True):
                across[node] = x
    return across


def _apart(row: Sequence[int], widths: Sequence[int]) -> list[float]:
    """Return the middles of the nodes of a row that stand side by side, from 0."""
    found = [0.0]
    for before, after in itertools.pairwise(row):
        found.append(found[-1] + (widths[before] + widths[after]) / 2 + ASIDE)
    return found


def _nearest(wanted: Sequence[float], apart: Sequence[float]) -> list[float]:
    """Return the places nearest to those wanted, by squares, that are as far apart as they have to be.

    Less what lies between them they may not fall, so that neighbours that would are pooled into their mean.
    """
    pools: list[tuple[float, int]] = []
    for x, offset in zip(wanted, apart, strict=True):
        pools.append((x - offset, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (last, many), (before, others) = pools.pop(), pools.pop()
            pools.append(((last * many + before * others) / (many + others), many + others))
    flat = [mean for mean, many in pools for _ in range(many)]
    return [x + offset for x, offset in zip(flat, apart, strict=True)]


def _edge(
    chain: Sequence[int],
    across: Sequence[float],
    tops: Sequence[float],
    tall: Sequence[int],
    ranks: Sequence[int],
    heights: Sequence[int],
    directed: bool,
) -> str:
    """Return an edge: curves between layers, straight through those that it passes."""
    first, last = chain[0], chain[-1]
    x, y = across[first], tops[ranks[first]] + heights[first]
    if ranks[first] == ranks[last]:
        # Neighbours in a layer: a curve below both.
        low = tops[ranks[first]] + max(heights[first], heights[last]) + BETWEEN * 0.6
        end = tops[ranks[last]] + heights[last]
        curve = f"C{x:.1f} {low:.1f} {across[last]:.1f} {low:.1f} {across[last]:.1f} {end:.1f}"
        return f'<path d="M{x:.1f} {y:.1f}{curve}"{_LINE}/>'
    path = f"M{x:.1f} {y:.1f}"
    for node in chain[1:]:
        top = tops[ranks[node]]
        middle = (y + top) / 2
        path += f"C{x:.1f} {middle:.1f} {across[node]:.1f} {middle:.1f} {across[node]:.1f} {top:.1f}"
        x, y = across[node], top
        if node != last:
            y = top + tall[ranks[node]]
            path += f"L{x:.1f} {y:.1f}"
    arrow = ' marker-end="url(#arrow)"' if directed else ""
    return f'<path d="{path}"{_LINE}{arrow}/>'


_LINE = ' fill="none" stroke="#667" stroke-width="1.2"'


def _box(node: Node, x: float, y: float) -> str:
    """Return a box with the name, and a line for each state: name, bar, percent."""
    height, fill = _height(node), "#ffe9c7" if node.observed else "#eef3fb"
    parts = [
        f'<g transform="translate({x:.1f} {y:.1f})"><title>{escape(node.name)}: {escape(", ".join(node.states[:50]))}'
        f'</title><rect width="{BOX}" height="{height}" rx="6" fill="{fill}" stroke="#889"/>'
        f'<text x="{BOX / 2}" y="{LINE}" text-anchor="middle" font-weight="bold">{_cut(node.name, MOST_LETTERS)}</text>'
    ]
    for line, (state, share) in enumerate(_shown(node)):
        base = LINE * (line + 2) + 3
        bar = "#d98a1f" if node.observed else "#4a78c2"
        parts.append(
            f'<text x="8" y="{base}">{_cut(state, STATE_LETTERS)}</text>'
            f'<rect x="{BAR_AT}" y="{base - 9}" width="{BAR}" height="10" fill="white" stroke="#ccd"/>'
            f'<rect x="{BAR_AT}" y="{base - 9}" width="{share * BAR:.2f}" height="10" fill="{bar}"/>'
            f'<text x="{BOX - 6}" y="{base}" text-anchor="end">{share:.1%}</text>'
        )
    return "".join(parts) + "</g>"


def _shown(node: Node) -> list[tuple[str, float]]:
    """Return the states in a box, the most probable ones of many, the others together."""
    if node.probabilities is None:
        return []
    pairs = list(zip(node.states, node.probabilities, strict=True))
    if len(pairs) <= MOST_STATES:
        return pairs
    kept = sorted(sorted(range(len(pairs)), key=lambda n: -pairs[n][1])[: MOST_STATES - 1])
    others = sum(share for n, (_, share) in enumerate(pairs) if n not in kept)
    return [*(pairs[n] for n in kept), (f"{len(pairs) - len(kept)} others", others)]


def _cut(text: str, most: int) -> str:
    return escape(text if len(text) <= most else f"{text[: most - 1]}…")
