"""Stored cliques: which tables there are, in which order of variables, and the passes over them; integers only.

Every clique of the junction tree has a table, its separator to the parent in the most significant places. Propagation
goes over the tables in *passes*. Towards the root a pass multiplies what came up from the children (and evidence) into
the table and sums it over the runs of the separator; on the way back it multiplies by what the separator has changed by
and sums for the children. Passes of one stage are independent of each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from junctor_kernels.tables.swaps import Swap, swaps_to_front

from junctor.planning.elimination import best_order, moral_graph
from junctor.planning.junction_tree import JunctionTree, junction_tree
from junctor.planning.shape import Shape, mask_of

# Entries from which on compiled kernels are worth loading.
COMPILED_ENTRIES = 1 << 20
# Entries of a table that kernels take at a time.
CHUNK = 1 << 20
UP: Final = "up"
DOWN: Final = "down"
EVIDENCE: Final = "evidence"


class CliqueOperand(NamedTuple):
    """What a pass multiplies by: what came up from a child, what comes down to the clique, evidence on a variable."""

    kind: Literal["up", "down", "evidence"]
    number: int


@dataclass(frozen=True, slots=True)
class StoredClique:
    """A clique: variables in ascending order, the swaps from there to `layout`, factors, and its place in the tree."""

    natural: tuple[int, ...]
    swaps: tuple[Swap, ...]
    layout: tuple[int, ...]
    separator: tuple[int, ...]
    parent: int | None
    children: tuple[int, ...]
    factors: tuple[int, ...]
    variables: tuple[int, ...]

    def shape(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the sizes of the table's axes."""
        return tuple(sizes[v] for v in self.layout)


@dataclass(frozen=True, slots=True)
class CliquePass:
    """One way over the table of a clique: multiply by `factors`, then sum for the separators `sums`.

    A separator has the number of the clique below it; a clique's own comes first. first: reads the initial table.
    """

    clique: int
    first: bool
    factors: tuple[CliqueOperand, ...]
    sums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """The stored cliques of a network, children before parents; sizes: states of every variable."""

    sizes: tuple[int, ...]
    cliques: tuple[StoredClique, ...]

    def entries(self, clique: int) -> int:
        """Entries of the table of a clique."""
        return math.prod(self.sizes[v] for v in self.cliques[clique].layout)

    def separator_entries(self, clique: int) -> int:
        """Entries of its separator to the parent (1 for a root)."""
        return math.prod(self.sizes[v] for v in self.cliques[clique].separator)

    def total_entries(self) -> int:
        """Entries of all clique tables."""
        return sum(self.entries(i) for i in range(len(self.cliques)))


def plan_stored(shape: Shape, rows: int = 1) -> StoredPlan:
    """Return the stored cliques of a network; rows: cases that the elimination order should be worth a search for."""
    everything = range(len(shape.cardinalities))
    graph = moral_graph(len(shape.cardinalities), shape.scopes)
    order = best_order(graph, mask_of(everything), shape.cardinalities, rows)
    return stored_plan(junction_tree(order, shape), shape)


def stored_plan(tree: JunctionTree, shape: Shape) -> StoredPlan:
    """Lay the cliques of a junction tree out as stored tables."""
    sizes = shape.cardinalities
    factors, variables = _homes(tree, shape)
    children = tree.children()
    cliques = []
    for i, clique in enumerate(tree.cliques):
        natural = tuple(sorted(clique.scope))
        swaps, layout = swaps_to_front(natural, clique.separator, sizes)
        place = (clique.separator, clique.parent, tuple(children[i]))
        cliques.append(
            StoredClique(natural, tuple(swaps), tuple(layout), *place, tuple(factors[i]), tuple(variables[i]))
        )
    return StoredPlan(sizes, tuple(cliques))


def _homes(tree: JunctionTree, shape: Shape) -> tuple[list[list[int]], list[list[int]]]:
    """Return the factors that each clique takes in, and the variables whose evidence enters there: the smallest fit."""
    masks = [mask_of(clique.scope) for clique in tree.cliques]
    by_size = sorted(range(len(masks)), key=lambda i: (shape.entries(tree.cliques[i].scope), i))
    around: dict[int, list[int]] = {}
    for i in by_size:
        for v in tree.cliques[i].scope:
            around.setdefault(v, []).append(i)
    factors: list[list[int]] = [[] for _ in masks]
    variables: list[list[int]] = [[] for _ in masks]
    for number, scope in enumerate(shape.scopes):
        needed = mask_of(scope)
        candidates = around[scope[0]] if scope else by_size[:1]
        factors[next(i for i in candidates if not needed & ~masks[i])].append(number)
    for v, homes in around.items():
        variables[homes[0]].append(v)
    return factors, variables


def passes(plan: StoredPlan, observed: frozenset[int]) -> list[list[CliquePass]]:
    """Return the passes that calibrate all tables, stage by stage; observed: variables with evidence."""
    cliques = plan.cliques
    depth = [0] * len(cliques)
    for i in reversed(range(len(cliques))):
        parent = cliques[i].parent
        depth[i] = 0 if parent is None else depth[parent] + 1
    levels: list[list[int]] = [[] for _ in range(max(depth) + 1)]
    for i, at in enumerate(depth):
        levels[at].append(i)
    up = [[_collect(i, cliques[i], observed) for i in level] for level in reversed(levels)]
    return up + [[_distribute(i, cliques[i]) for i in level] for level in levels[1:]]


def widest(plan: StoredPlan, i: int) -> CliquePass:
    """Return a pass over a clique that has everything any pass over it has."""
    clique = plan.cliques[i]
    messages = [CliqueOperand(UP, child) for child in clique.children]
    evidence = [CliqueOperand(EVIDENCE, v) for v in clique.variables]
    return CliquePass(i, True, (*messages, *evidence, CliqueOperand(DOWN, i)), (i, *clique.children))


def _collect(i: int, clique: StoredClique, observed: frozenset[int]) -> CliquePass:
    messages = [CliqueOperand(UP, child) for child in clique.children]
    evidence = [CliqueOperand(EVIDENCE, v) for v in clique.variables if v in observed]
    # The table of a root is calibrated once all children are in it: it sums for them at once, and for its total.
    return CliquePass(i, True, (*messages, *evidence), (i, *clique.children) if clique.parent is None else (i,))


def _distribute(i: int, clique: StoredClique) -> CliquePass:
    return CliquePass(i, False, (CliqueOperand(DOWN, i),), clique.children)
