"""Junction trees: maximal cliques of an elimination order, joined so that those of every variable are connected.

Main class: JunctionTree; built by `junction_tree` and `binary_joins` for `compile` and `cliques`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from junctor.planning.elimination import EliminationOrder
from junctor.planning.shape import Shape

# The variables of a node, and its parent.
_Node = tuple[frozenset[int], int | None]

# Cliques of at most so many entries may have joins as large as themselves, whose messages are stored.
LARGE_CLIQUE = 1 << 20


@dataclass(frozen=True, slots=True)
class Clique:
    """A node of the tree.

    scope: variables, last eliminated first.
    parent: index of the parent, None for a root.
    separator: variables shared with the parent, in the order of `scope`.
    """

    scope: tuple[int, ...]
    parent: int | None
    separator: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JunctionTree:
    """A forest of cliques, one root a component; every clique stands after its children (postorder)."""

    cliques: tuple[Clique, ...]

    def children(self) -> list[list[int]]:
        """Return the children of every clique."""
        below: list[list[int]] = [[] for _ in self.cliques]
        for i, clique in enumerate(self.cliques):
            if clique.parent is not None:
                below[clique.parent].append(i)
        return below

    def roots(self) -> list[int]:
        """Return the cliques without a parent."""
        return [i for i, clique in enumerate(self.cliques) if clique.parent is None]

    def ranks(self) -> dict[int, int]:
        """Return variable -> rank; sorted by rank, every clique has its separator to the parent first."""
        rank: dict[int, int] = {}
        for clique in reversed(self.cliques):
            for v in clique.scope:
                rank.setdefault(v, len(rank))
        return rank

    def total_entries(self, shape: Shape) -> int:
        """Return the sum over cliques of their table entries (none of which need ever be stored)."""
        return sum(shape.entries(clique.scope) for clique in self.cliques)


class SmallestCliques:
    """Finds the smallest clique that contains a scope, where factors and evidence are multiplied in."""

    def __init__(self, tree: JunctionTree, shape: Shape) -> None:
        self._members = [frozenset(clique.scope) for clique in tree.cliques]
        sizes = [shape.entries(clique.scope) for clique in tree.cliques]
        # The smallest first, so that the first one around a scope is the answer.
        self._by_size = sorted(range(len(sizes)), key=sizes.__getitem__)
        self._with: dict[int, list[int]] = {}
        for i in self._by_size:
            for v in self._members[i]:
                self._with.setdefault(v, []).append(i)

    def has(self, variable: int) -> bool:
        """Return True if any clique contains a variable."""
        return variable in self._with

    def of(self, scope: Sequence[int]) -> int:
        """Return the smallest clique around a scope, the first of several; a scope may be empty."""
        # The rarest variable leaves the fewest cliques to test.
        rarest = min(map(self._with.__getitem__, scope), key=len) if scope else self._by_size
        return next(i for i in rarest if self._members[i].issuperset(scope))


def junction_tree(order: EliminationOrder, shape: Shape) -> JunctionTree:
    """Return the tree of an elimination order: maximal cliques only, each component rooted at its centre."""
    # A root at the centre keeps the longest path of dependent messages short.
    position = {v: i for i, v in enumerate(order.variables)}
    members, links = _absorbed(order, position)
    neighbours: dict[int, set[int]] = {node: set() for node in members}
    for child, parent in links.items():
        neighbours[child].add(parent)
        neighbours[parent].add(child)
    weights = {node: shape.entries(clique) for node, clique in members.items()}
    rooted: list[tuple[int, int | None]] = []
    seen: set[int] = set()
    for node in members:
        if node not in seen:
            part = _rooted_at(_centre(node, neighbours, weights), neighbours)
            seen.update(member for member, _ in part)
            # Preorder reversed: every clique stands after its children.
            rooted.extend(reversed(part))
    number = {node: i for i, (node, _) in enumerate(rooted)}
    nodes = [(members[node], None if parent is None else number[parent]) for node, parent in rooted]
    return _as_tree(nodes, lambda v: -position[v])


def _absorbed(order: EliminationOrder, position: dict[int, int]) -> tuple[dict[int, frozenset[int]], dict[int, int]]:
    """Return the maximal cliques (by elimination) and the parent of each."""
    members = dict(enumerate(order.cliques))
    into: dict[int, int] = {}
    links: dict[int, int] = {}
    for i, clique in enumerate(order.cliques):
        if len(clique) == 1:
            continue
        # The clique of the next eliminated neighbour contains all the others: those after `i`, the least of all.
        parent = sorted(map(position.__getitem__, clique))[1]
        if len(order.cliques[parent]) == len(clique) - 1 and parent not in into:
            # The parent lies inside this clique, which takes its place.
            into[parent] = i
        links[i] = parent

    # A clique may be absorbed by one that is absorbed later itself.
    def final(node: int) -> int:
        while node in into:
            node = into[node]
        return node

    for gone in into:
        del members[gone]
    merged: dict[int, int] = {}
    for child, parent in links.items():
        a, b = final(child), final(parent)
        if a != b:
            merged[a] = b
    return members, merged


def _centre(start: int, neighbours: dict[int, set[int]], weights: dict[int, int]) -> int:
    """Return the node in the middle of a longest path (in nodes), the one with the smaller table of two middles."""
    end = _longest_path(start, neighbours)[0]
    # In a tree, the node farthest from any node is an end of a longest path.
    path = _longest_path(end, neighbours)
    middles = {path[(len(path) - 1) // 2], path[len(path) // 2]}
    return min(middles, key=lambda node: (weights[node], node))


def _longest_path(start: int, neighbours: dict[int, set[int]]) -> list[int]:
    """Return a longest path that ends in `start`, its far end first."""
    came_from: dict[int, int | None] = {start: None}
    queue = [start]
    for node in queue:
        for other in sorted(other for other in neighbours[node] if other not in came_from):
            came_from[other] = node
            queue.append(other)
    path = [queue[-1]]
    while (before := came_from[path[-1]]) is not None:
        path.append(before)
    return path


def _rooted_at(root: int, neighbours: dict[int, set[int]]) -> list[tuple[int, int | None]]:
    """Return (node, parent) in preorder."""
    preorder: list[tuple[int, int | None]] = []
    stack: list[tuple[int, int | None]] = [(root, None)]
    while stack:
        node, parent = stack.pop()
        preorder.append((node, parent))
        stack.extend((other, node) for other in sorted(neighbours[node]) if other != parent)
    return preorder


def binary_joins(tree: JunctionTree, shape: Shape) -> JunctionTree:
    """Return the tree with cliques of many neighbours split into binary joins (Shenoy 1997), rooted at separators.

    Shenoy, Binary join trees for computing marginals in the Shenoy-Shafer architecture (1997).
    """
    # A clique with d neighbours sends d messages of d - 1 factors each over all its entries. Here the two children
    # whose separators have the smallest union are joined first, in a new node over that union alone, until three
    # neighbours are left: work no longer grows with neighbours times entries, and most new nodes are far smaller than
    # the clique. A root clique would be summed completely for P(e) alone; the separator to one of its neighbours
    # becomes the root.
    nodes: list[_Node] = []
    renamed: dict[int, int] = {}
    waiting = tree.children()
    separators = [frozenset(clique.separator) for clique in tree.cliques]
    for i, clique in enumerate(tree.cliques):
        tops = {renamed[child]: separators[child] for child in waiting[i]}
        _join(nodes, tops, shape, shape.entries(clique.scope), 3 if clique.parent is None else 2)
        renamed[i] = len(nodes)
        nodes.append((frozenset(clique.scope), None))
        if clique.parent is None and tops:
            across = min(tops, key=lambda top: (shape.entries(tops[top]), top))
            nodes.append((tops.pop(across), None))
            for top in (across, renamed[i]):
                nodes[top] = (nodes[top][0], len(nodes) - 1)
        for top in tops:
            nodes[top] = (nodes[top][0], renamed[i])
    return _as_tree(nodes, tree.ranks().__getitem__)


def _join(nodes: list[_Node], tops: dict[int, frozenset[int]], shape: Shape, entries: int, left: int) -> None:
    """Join nodes pair by pair and append the new nodes.

    nodes: (variables, parent) of all nodes, extended here.
    tops: node -> separator of the nodes to join, changed in place.
    shape: cardinalities.
    entries: entries of the clique.
    left: number of nodes to leave.
    """
    # The message of a join is stored, so in large cliques only joins of at most half their entries are made. The same
    # holds for the last join of any clique: as large as the clique, it would cost as many multiply-adds as it saves.
    if len(tops) <= left:
        return
    half = entries // 2
    most_entries = entries if entries <= LARGE_CLIQUE else half

    def join(a: int, b: int) -> int:
        union = tops.pop(a) | tops.pop(b)
        joined = len(nodes)
        nodes.append((union, None))
        nodes[a], nodes[b] = (nodes[a][0], joined), (nodes[b][0], joined)
        tops[joined] = union
        return joined

    # Equal separators need no search: no union is smaller. A hub with a thousand leaves has only those.
    equal: dict[frozenset[int], deque[int]] = {}
    for top, separator in tops.items():
        if shape.entries(separator) <= most_entries:
            equal.setdefault(separator, deque()).append(top)
    for group in equal.values():
        while len(group) > 1 and len(tops) > left:
            group.append(join(group.popleft(), group.popleft()))

    pairs: list[tuple[int, int, int]] = []

    def offer(new: int, others: Iterable[int]) -> None:
        for other in others:
            heapq.heappush(pairs, (shape.entries(tops[new] | tops[other]), min(new, other), max(new, other)))

    waiting = list(tops)
    for i, top in enumerate(waiting):
        offer(top, waiting[:i])
    while len(tops) > left:
        # Pairs with a node that was joined meanwhile stay in the heap and are skipped.
        joined_entries, a, b = heapq.heappop(pairs)
        if joined_entries > (half if len(tops) == left + 1 else most_entries):
            return
        if a in tops and b in tops:
            joined = join(a, b)
            offer(joined, [other for other in tops if other != joined])


def _as_tree(nodes: Sequence[_Node], rank: Callable[[int], int]) -> JunctionTree:
    """Return the tree of nodes; scopes and separators are sorted by rank."""
    cliques = []
    for members, parent in nodes:
        scope = tuple(sorted(members, key=rank))
        cliques.append(
            Clique(scope, parent, () if parent is None else tuple(filter(nodes[parent][0].__contains__, scope)))
        )
    return JunctionTree(tuple(cliques))
