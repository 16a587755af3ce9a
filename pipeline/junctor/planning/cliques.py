"""Plans of stored cliques (Hugin architecture, Jensen, Lauritzen and Olesen 1990): tables, axis orders, passes.

Main class: StoredPlan; called by `junctor.cliques`. Towards the root a pass multiplies the messages of the children and
evidence into a clique table and sums it for its separator; on the way back it multiplies by the ratio of the new
separator to the old one and sums for the children. Passes of one stage are independent of each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from junctor_kernels.tables.swaps import Swap, swaps_to_front

from junctor.planning.elimination import best_order, moral_graph
from junctor.planning.junction_tree import JunctionTree, SmallestCliques, junction_tree
from junctor.planning.shape import Shape

# Entries of all tables from which on compiled kernels are worth their loading time.
COMPILED_ENTRIES = 1 << 20
# Entries of a table that kernels process at a time: 8 MiB of doubles.
CHUNK = 1 << 20
UP: Final = "up"
DOWN: Final = "down"
EVIDENCE: Final = "evidence"


class CliqueOperand(NamedTuple):
    """A factor of a pass: message up from a child, message down to the clique, or evidence on a variable.

    kind: UP, DOWN or EVIDENCE.
    number: of the child, of the clique, or of the variable.
    """

    kind: Literal["up", "down", "evidence"]
    number: int


@dataclass(frozen=True, slots=True)
class StoredClique:
    """A clique with a stored table.

    natural: variables in ascending order.
    swaps: swaps of axes from `natural` to `layout`.
    layout: variables in the order of the table's axes, the separator first.
    separator: variables shared with the parent.
    parent: index of the parent, None for a root.
    children: indices of the children.
    factors: indices of the factors that are multiplied into the table.
    variables: variables whose evidence enters here.
    """

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
    """One pass over the table of a clique: multiply by `factors`, then sum for separators.

    clique: index of the clique.
    first: whether the pass reads the initial table.
    factors: what the table is multiplied by.
    sums: separators to sum for, by the clique below each; the clique's own comes first.
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
        """Return the entries of the table of a clique."""
        return math.prod(self.sizes[v] for v in self.cliques[clique].layout)

    def separator_entries(self, clique: int) -> int:
        """Return the entries of its separator to the parent (1 for a root)."""
        return math.prod(self.sizes[v] for v in self.cliques[clique].separator)

    def total_entries(self) -> int:
        """Return the entries of all clique tables."""
        return sum(self.entries(i) for i in range(len(self.cliques)))


def plan_stored(shape: Shape, rows: int = 1) -> StoredPlan:
    """Return the stored cliques of a network; `rows`: cases to come, for the effort of the elimination order."""
    everything = frozenset(range(len(shape.cardinalities)))
    graph = moral_graph(len(shape.cardinalities), shape.scopes)
    # One tree for all evidence: none is cut out of the graph.
    order = best_order(graph, everything, shape.cardinalities, rows)
    return stored_plan(junction_tree(order, shape), shape)


def stored_plan(tree: JunctionTree, shape: Shape) -> StoredPlan:
    """Return the cliques of a junction tree as stored tables."""
    sizes = shape.cardinalities
    factors, variables = _assigned(tree, shape)
    children = tree.children()
    cliques = []
    for i, clique in enumerate(tree.cliques):
        natural = tuple(sorted(clique.scope))
        # With the separator in the most significant axes, its sums run over contiguous entries.
        swaps, layout = swaps_to_front(natural, clique.separator, sizes)
        place = (clique.separator, clique.parent, tuple(children[i]))
        cliques.append(
            StoredClique(natural, tuple(swaps), tuple(layout), *place, tuple(factors[i]), tuple(variables[i]))
        )
    return StoredPlan(sizes, tuple(cliques))


def _assigned(tree: JunctionTree, shape: Shape) -> tuple[list[list[int]], list[list[int]]]:
    """Return the factors and the evidence variables of each clique: each goes to the smallest clique around it."""
    smallest = SmallestCliques(tree, shape)
    factors: list[list[int]] = [[] for _ in tree.cliques]
    for number, scope in enumerate(shape.scopes):
        # Factors without variables are constants; the smallest clique takes them.
        factors[smallest.of(scope)].append(number)
    homes = [smallest.of((v,)) for v in range(len(shape.cardinalities))]
    # In the order of scopes: operands of a pass multiply in the order of these lists.
    return factors, [[v for v in clique.scope if homes[v] == i] for i, clique in enumerate(tree.cliques)]


def passes(plan: StoredPlan, observed: frozenset[int]) -> list[list[CliquePass]]:
    """Return the passes that calibrate all tables, by stage; `observed`: variables with evidence."""
    cliques = plan.cliques
    depth = [0] * len(cliques)
    for i in reversed(range(len(cliques))):
        parent = cliques[i].parent
        depth[i] = 0 if parent is None else depth[parent] + 1
    # Cliques of one depth share no separator, so their passes are independent.
    levels: list[list[int]] = [[] for _ in range(max(depth) + 1)]
    for i, at in enumerate(depth):
        levels[at].append(i)
    up = [[_collect(i, cliques[i], observed) for i in level] for level in reversed(levels)]
    return up + [[_distribute(i, cliques[i]) for i in level] for level in levels[1:]]


def widest(plan: StoredPlan, i: int) -> CliquePass:
    """Return a pass with all factors and sums of any pass over a clique: the upper bound for memory and kernels."""
    clique = plan.cliques[i]
    messages = [CliqueOperand(UP, child) for child in clique.children]
    evidence = [CliqueOperand(EVIDENCE, v) for v in clique.variables]
    return CliquePass(i, True, (*messages, *evidence, CliqueOperand(DOWN, i)), (i, *clique.children))


def table_plan(sizes: tuple[int, ...], scope: tuple[int, ...], wanted: tuple[int, ...]) -> StoredPlan:
    """Return one stored table over `scope`; the variables `wanted`, for which it is to be summed, are its separator."""
    return StoredPlan(sizes, (StoredClique(scope, (), scope, wanted, None, (), (), ()),))


# The pass over the table of `table_plan` that sums it.
SUM = CliquePass(0, False, (), (0,))


def _collect(i: int, clique: StoredClique, observed: frozenset[int]) -> CliquePass:
    messages = [CliqueOperand(UP, child) for child in clique.children]
    evidence = [CliqueOperand(EVIDENCE, v) for v in clique.variables if v in observed]
    # The table of a root is calibrated after its children: it sums for them in the same pass, and for its total.
    return CliquePass(i, True, (*messages, *evidence), (i, *clique.children) if clique.parent is None else (i,))


def _distribute(i: int, clique: StoredClique) -> CliquePass:
    return CliquePass(i, False, (CliqueOperand(DOWN, i),), clique.children)
