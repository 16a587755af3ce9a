"""Permutations of stored tables as Bistaffa, Farinelli and Bombieri (2014) make them: for `papers.py`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from itertools import combinations, permutations
from typing import Any

import numpy as np
import numpy.typing as npt
from common import Asked
from junctor.cliques.host import in_layout
from junctor.planning.cliques import StoredClique, StoredPlan
from junctor_kernels.cpu.jit import jit
from junctor_kernels.tables.permutation import permuted, swap_array
from junctor_kernels.tables.swaps import swaps_to_front
from stored import THEIRS, trees_of

Array = npt.NDArray[Any]


@jit
def by_swaps(table: Any, swaps: Any, out: Any) -> None:
    """Algorithm 3: the new index of an entry by Proposition 1, swap by swap.

    table, out: flat. swaps: int64 [swaps, 5], as of `swap_array`.
    """
    for k in range(len(table)):
        at = k
        for n in range(len(swaps)):
            lower, lower_size, upper = swaps[n, 0], swaps[n, 1], swaps[n, 2]
            upper_size, above = swaps[n, 3], swaps[n, 4]
            below, b = at % lower, at // upper % upper_size
            a = at // lower % lower_size
            between = at % upper - below - a * lower
            at += (between + a * upper) // lower_size * upper_size + b * lower + below - at % above
        out[at] = table[k]


@jit
def by_rows(table: Any, sizes: Any, order: Any, out: Any) -> None:
    """The naive way: the states of an entry's variables, in their new order, and the index of those (equation 1).

    sizes: states of each variable. order: for each place after the permutation, the place before it.
    """
    states = np.empty(len(sizes), np.int64)
    moved = np.empty(len(sizes), np.int64)
    for k in range(len(table)):
        rest = k
        for v in range(len(sizes) - 1, -1, -1):
            states[v] = rest % sizes[v]
            rest //= sizes[v]
        for v in range(len(sizes)):
            moved[v] = states[order[v]]
        at = 0
        for v in range(len(sizes)):
            at = at * sizes[order[v]] + moved[v]
        out[at] = table[k]


def ways_of(clique: StoredClique, plan: StoredPlan, table: Array, out: Array) -> dict[str, Callable[[], object]]:
    """Return the three ways to permute a flat table into the layout of its clique."""
    swaps = swap_array(clique.swaps)
    sizes = np.array([plan.sizes[v] for v in clique.natural], np.int64)
    order = np.array([clique.natural.index(v) for v in clique.layout], np.int64)
    return {
        "Algorithm 3": lambda: by_swaps(table, swaps, out),
        "naive": lambda: by_rows(table, sizes, order, out),
        "transposition": lambda: in_layout(table, clique, plan.sizes),
    }


def permuted_cliques(plan: StoredPlan) -> Iterator[tuple[int, StoredClique]]:
    """Yield the cliques whose tables are permuted, with their numbers."""
    yield from ((i, clique) for i, clique in enumerate(plan.cliques) if clique.swaps)


def cpu_seconds(plan: StoredPlan) -> dict[str, float]:
    """Return the CPU seconds of each way for all tables of a tree, on one thread."""
    spent = dict.fromkeys(("Algorithm 3", "naive", "transposition"), 0.0)
    for i, clique in permuted_cliques(plan):
        table = np.random.default_rng(i).random(plan.entries(i), np.float32)
        for name, work in ways_of(clique, plan, table, np.empty_like(table)).items():
            begin = time.process_time()
            work()
            spent[name] += time.process_time() - begin
    return spent


def paper_swaps(plan: StoredPlan) -> list[int]:
    """Return the swaps of either table of every separator by their procedure: it gives the one its order of the
    separator, the other the same."""
    found = []
    for clique in plan.cliques:
        if clique.parent is None:
            continue
        front, count = set(clique.separator), len(clique.separator)
        one = [v for v in clique.natural[count:] if v in front]
        free = iter(one)
        shared = [v if v in front else next(free) for v in clique.natural[:count]]
        found += [len(one), len(swaps_to_front(plan.cliques[clique.parent].natural, shared, plan.sizes)[0])]
    return found


def claims(asked: Asked) -> None:
    """Print the mean number of swaps, and the CPU time of Algorithm 3 beside the naive way and a transposition.

    Swaps by their procedure are of both tables of every separator, ours of the tables that have to move.
    """
    trees = trees_of(asked.files(THEIRS))
    _, _, plan = trees[0]
    cpu_seconds(plan)
    print("CPU time of all tables that are permuted, one thread, compiled; theirs: 3 swaps, a tenth of the naive way")
    print("network | swaps by their procedure | by ours | variables | Algorithm 3 / naive | / transposition")
    print("|".join(["---"] * 6))
    for network, _, plan in trees:
        moved = [clique for _, clique in permuted_cliques(plan)]
        if not moved:
            print(f"{network} | no table has to be permuted")
            continue
        swaps = statistics.mean(paper_swaps(plan)), statistics.mean(len(clique.swaps) for clique in moved)
        spent = cpu_seconds(plan)
        ratios = [spent["Algorithm 3"] / spent[name] for name in ("naive", "transposition")]
        variables = statistics.mean(len(clique.natural) for clique in moved)
        print(f"{network} | {' | '.join(f'{each:.1f}' for each in (*swaps, variables, *ratios))}", flush=True)


def worst_swaps(variables: int, front: int) -> tuple[int, int]:
    """Return the fewest swaps that bring the separator to the front, in the worst case: in any order, in a given one.

    variables: of a table. front: of them, those of the separator.
    """
    # Backwards from all layouts that will do, which are those with the first variables in front.
    layouts = list(permutations(range(variables)))
    given = [layout for layout in layouts if layout[:front] == tuple(range(front))]
    anyhow = [layout for layout in layouts if set(layout[:front]) == set(range(front))]
    return farthest(anyhow, variables), farthest(given, variables)


def farthest(layouts: list[tuple[int, ...]], variables: int) -> int:
    """Return the fewest swaps from which on every layout is within reach of some."""
    reached, edge, swaps = set(layouts), set(layouts), -1
    while edge:
        swaps += 1
        pairs = list(combinations(range(variables), 2))
        edge = {swapped(layout, *pair) for layout in edge for pair in pairs} - reached
        reached |= edge
    return swaps


def swapped(layout: tuple[int, ...], i: int, j: int) -> tuple[int, ...]:
    moved = list(layout)
    moved[i], moved[j] = moved[j], moved[i]
    return tuple(moved)


def proposition_two(asked: Asked) -> None:
    """Print the worst number of swaps beside their bound, |S| / 2, by search through all layouts."""
    print("variables | of the separator | their bound | worst, in any order | worst, in the other table's order")
    print("|".join(["---"] * 5))
    for variables in range(2, 4 if asked.small else 6):
        for front in range(1, variables + 1):
            worst = " | ".join(f"{swaps}{'*' * (swaps > front / 2)}" for swaps in worst_swaps(variables, front))
            print(f"{variables} | {front} | {front / 2:g} | {worst}")
    print("* beyond the bound of Proposition 2")


def examples(asked: Asked) -> None:
    """Print their worked examples: an index by equation 1, and an entry moved by two swaps (Proposition 1)."""
    del asked
    states, sizes = (1, 10, 7), (2, 16, 10)
    print(f"states {states} of sizes {sizes}: index {np.ravel_multi_index(states, sizes)} (theirs: 267)")
    # x3, x2, x1 of 2, 3 and 2 states; x1 with x3, then x3 with x2.
    swaps, _ = swaps_to_front([3, 2, 1], [1, 3, 2], [0, 2, 3, 2])
    for index, what in ((10, "row <1, 2, 0>, a_11"), (11, "the index that they state for it")):
        print(f"index {index} ({what}): {permuted(index, swaps[:1])}, then {permuted(index, swaps)} (theirs: 5, 5)")
