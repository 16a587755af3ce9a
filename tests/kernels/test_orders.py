"""Elimination orders in compiled code against slow and obvious versions, and against published table sizes."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from junctor.formats import read_network
from junctor.planning import elimination
from junctor.planning.elimination import CRITERIA, GreedyElimination, best_order, cliques_of, good_orders
from junctor.planning.shape import bits, mask_of, shape_of
from junctor_kernels.orders import greedy as orders
from junctor_kernels.orders.annealing import SECOND, search
from junctor_kernels.orders.greedy import pack, weights_of, work_for

# The smallest total table sizes that a local search of 40 seconds on one core found, without evidence.
PUBLISHED = {
    "asia": 40,
    "alarm": 996,
    "hailfinder": 9_406,
    "win95pts": 2_684,
    "hepar2": 2_617,
    "andes": 214_250,
    "pigs": 470_880,
    "water": 3_028_305,
    "mildew": 3_400_464,
    "barley": 17_140_796,
    "diabetes": 10_060_657,
    "munin1": 65_522_978,
    "munin2": 2_307_742,
    "munin3": 3_106_624,
    "munin4": 10_323_222,
    "munin": 10_456_523,
    "link": 24_875_510,
    "pathfinder": 182_641,
}

Problem = tuple[list[int], int, list[int]]


def moral_graph(variables: int, scopes: Iterable[Sequence[int]]) -> list[int]:
    """Return neighbour sets as bit sets."""
    return [*map(mask_of, elimination.moral_graph(variables, scopes))]


def as_sets(problem: Problem) -> tuple[list[set[int]], set[int], list[int]]:
    graph, members, cardinalities = problem
    return [set(bits(around)) for around in graph], set(bits(members)), cardinalities


@st.composite
def problems(draw: st.DrawFn, most: int = 12, fewest_states: int = 1) -> Problem:
    """Draw a graph (neighbour sets), the variables to eliminate, and cardinalities."""
    n = draw(st.integers(1, most))
    pairs = [(a, b) for a in range(n) for b in range(a)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=2 * n)) if pairs else []
    cardinalities = draw(st.lists(st.integers(fewest_states, 5), min_size=n, max_size=n))
    everything = (1 << n) - 1
    return moral_graph(n, edges), draw(st.just(everything) | st.integers(0, everything)), cardinalities


def grid(side: int, far: int = 0) -> Problem:
    """Return a grid of binary variables with numbers `far` apart, so that sets take several words."""
    at = [[(side * i + j) * (far + 1) for j in range(side)] for i in range(side)]
    edges = [(at[i][j], at[i][j + 1]) for i in range(side) for j in range(side - 1)]
    edges += [(at[i][j], at[i + 1][j]) for i in range(side - 1) for j in range(side)]
    n = at[-1][-1] + 1
    return moral_graph(n, edges), mask_of(v for row in at for v in row), [2] * n


def cliques_by_elimination(graph: Sequence[int], members: int, order: Sequence[int]) -> list[set[int]]:
    around = {v: set(bits(graph[v] & members)) for v in bits(members)}
    cliques = []
    for v in order:
        neighbours = around.pop(v)
        cliques.append({v} | neighbours)
        for u in neighbours:
            around[u] = (around[u] | neighbours) - {u, v}
    return cliques


def total_by_elimination(problem: Problem, order: Sequence[int]) -> int:
    graph, members, cardinalities = problem
    cliques = cliques_by_elimination(graph, members, order)
    maximal = [c for c in cliques if not any(c < other for other in cliques)]
    return sum(math.prod(cardinalities[v] for v in clique) for clique in maximal)


def evaluated(problem: Problem, order: Sequence[int]) -> float:
    graph, members, cardinalities = problem
    n = len(graph)
    sizes = np.array(cardinalities, dtype=np.float64)
    array = np.array(order, dtype=np.int64)
    return float(orders.evaluate(pack(graph, n), pack([members], n)[0], sizes, array, len(array), *work_for(n)))


def greedily(problem: Problem, criterion: int, noise: float = 0.0, seed: int = 0) -> list[int]:
    graph, members, cardinalities = problem
    n = len(graph)
    order = np.full(n, -1, dtype=np.int64)
    state = np.array([seed], dtype=np.uint64)
    packed, weights = pack(graph, n), weights_of(cardinalities)
    count = orders.greedy(packed, pack([members], n)[0], weights, criterion, noise, state, *work_for(n), order)
    assert (packed == pack(graph, n)).all()
    return order[:count].tolist()


def searched(problem: Problem, start: Sequence[int], steps: int, seed: int = 0) -> tuple[list[int], float]:
    graph, members, cardinalities = problem
    return search(pack(graph, len(graph)), pack([members], len(graph))[0], cardinalities, start, steps, seed)


@given(data=st.data(), problem=problems())
def test_evaluate_counts_the_maximal_cliques_of_an_elimination(data: st.DataObject, problem: Problem) -> None:
    order = data.draw(st.permutations(list(bits(problem[1]))))
    assert evaluated(problem, order) == total_by_elimination(problem, order)
    cliques = cliques_by_elimination(problem[0], problem[1], order)
    assert cliques_of(as_sets(problem)[0], order) == tuple(map(frozenset, cliques))


def test_evaluate_stays_finite() -> None:
    n = 700
    complete: Problem = ([(1 << n) - 1 - (1 << v) for v in range(n)], (1 << n) - 1, [100] * n)
    assert evaluated(complete, range(n)) == orders.LARGEST


@given(problem=problems(), criterion=st.integers(0, orders.CRITERIA - 1))
@example(problem=grid(5, far=40), criterion=orders.WEIGHTED_MIN_FILL)
def test_greedy_takes_the_best_score_at_every_step(problem: Problem, criterion: int) -> None:
    graph, members, cardinalities = problem
    weights = [int(weight) for weight in weights_of(cardinalities)]
    around = {v: set(bits(graph[v] & members)) for v in bits(members)}

    def score(v: int) -> tuple[int, int]:
        weight = weights[v] + sum(weights[u] for u in around[v])
        ends = [max(1, w) if criterion == orders.WEIGHTED_MIN_FILL else 1 for w in weights]
        fill = sum(ends[a] * ends[b] for a in around[v] for b in around[v] if a < b and b not in around[a])
        first = {orders.MIN_WEIGHT: weight, orders.MIN_NEIGHBOURS: len(around[v])}.get(criterion, fill)
        return (first, weight) if fill else (-1, 0)

    order = greedily(problem, criterion)
    assert sorted(order) == list(bits(members))
    for v in order:
        assert score(v) == min(score(u) for u in around)
        neighbours = around.pop(v)
        for u in neighbours:
            around[u] = (around[u] | neighbours) - {u, v}


@given(problem=problems(), criterion=st.sampled_from(CRITERIA), compiled=st.booleans())
@example(problem=grid(5), criterion="weighted-min-fill", compiled=True)
def test_greedy_elimination_makes_the_cliques_of_its_order(problem: Problem, criterion: str, compiled: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elimination, "LARGE_CORE", 0 if compiled else 100)
        order = GreedyElimination(*as_sets(problem)).by(criterion)
    assert sorted(order.variables) == list(bits(problem[1]))
    cliques = cliques_by_elimination(problem[0], problem[1], order.variables)
    assert order.cliques == tuple(map(frozenset, cliques))
    assert order.entries == pytest.approx(total_by_elimination(problem, order.variables))


@given(problem=problems(), seed=st.integers(0, 2**32))
def test_noise_is_repeatable_and_keeps_the_order_whole(problem: Problem, seed: int) -> None:
    order = greedily(problem, orders.MIN_FILL, 0.5, seed)
    assert order == greedily(problem, orders.MIN_FILL, 0.5, seed)
    assert sorted(order) == list(bits(problem[1]))


def test_sets_are_packed_lowest_word_first() -> None:
    assert pack([1 << 64 | 5, 0], 65).tolist() == [[5, 1], [0, 0]]
    assert pack([0], 0).shape == (1, 1)


@given(problem=problems(), steps=st.integers(0, 200_000), seed=st.integers(0, 9))
def test_search_is_repeatable_and_never_worse_than_its_start(problem: Problem, steps: int, seed: int) -> None:
    start = greedily(problem, orders.MIN_NEIGHBOURS)
    order, total = searched(problem, start, steps, seed)
    assert (order, total) == searched(problem, start, steps, seed)
    assert sorted(order) == list(bits(problem[1]))
    assert total == total_by_elimination(problem, order) <= total_by_elimination(problem, start)


# Variables with one state are left out: there, joining two cliques for nothing beats eliminating what is simplicial.
@given(problem=problems(most=7, fewest_states=2))
def test_search_finds_the_optimum_of_small_graphs(problem: Problem) -> None:
    start = greedily(problem, orders.MIN_NEIGHBOURS)
    least = min(evaluated(problem, order) for order in permutations(bits(problem[1])))
    assert searched(problem, start, 2_000_000)[1] == least


def test_search_leaves_a_bad_start_on_a_grid() -> None:
    problem = grid(6, far=20)
    start = sorted(bits(problem[1]), key=lambda v: (v // 21 % 2, v))
    order, total = searched(problem, start, SECOND // 20)
    assert total == total_by_elimination(problem, order)
    assert total < total_by_elimination(problem, start) / 2


def test_search_works_where_no_table_can_be() -> None:
    n = 90
    cycle = moral_graph(n, [(v, (v + d) % n) for v in range(n) for d in range(1, 12)])
    problem: Problem = (cycle, (1 << n) - 1, [2**20] * n)
    start = greedily(problem, orders.MIN_FILL)
    order, total = searched(problem, start, SECOND // 100)
    assert sorted(order) == list(range(n))
    assert 2.0**200 < total <= evaluated(problem, start)


def test_many_rows_are_worth_a_search_and_few_are_not() -> None:
    problem = grid(9)
    greedy = best_order(*as_sets(problem), rows=1)
    assert greedy.criterion in CRITERIA
    found = best_order(*as_sets(problem), rows=1_000_000)
    assert found.criterion == "annealing"
    assert found.entries < greedy.entries
    assert found == best_order(*as_sets(problem), rows=1_000_000)
    assert found.entries == total_by_elimination(problem, found.variables)


@given(problem=problems(), rows=st.integers(1, 10**9))
def test_a_search_is_worth_what_the_best_greedy_order_takes(problem: Problem, rows: int) -> None:
    greedy = GreedyElimination(*as_sets(problem))
    least, given = min(greedy.by(criterion).entries for criterion in CRITERIA), list[tuple[float, int]]()

    def searched(*what: Any) -> Any:
        *_, start, steps, _ = what
        given.append((start.entries, steps))
        return SimpleNamespace(done=lambda: True, result=lambda: start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elimination, "_searched", searched)
        found = good_orders(*as_sets(problem), rows=rows)
    assert found[0].entries == least
    steps = min(elimination.MOST_STEPS, int(elimination.STEPS_PER_ENTRY * rows * least))
    assert given == ([(least, steps)] if greedy.left and steps >= elimination.FEWEST_STEPS else [])


def test_the_greedy_order_is_at_hand_while_a_search_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = grid(9)
    elimination._searched.cache_clear()
    early: list[elimination.EliminationOrder] = []
    told, search = threading.Event(), elimination._search

    def meanwhile(order: elimination.EliminationOrder) -> None:
        early.append(order)
        told.set()

    monkeypatch.setattr(elimination, "_search", lambda *what: told.wait() and search(*what))
    found = good_orders(*as_sets(problem), rows=1_000_000, meanwhile=meanwhile)
    assert [order.criterion in CRITERIA for order in early] == [True]
    assert early[0].entries >= found[0].entries
    assert found[1:] in ([], early)
    # What was searched before is there at once.
    assert found == good_orders(*as_sets(problem), rows=1_000_000, meanwhile=meanwhile)
    assert len(early) == 1


def test_a_search_that_failed_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = grid(9)
    elimination._searched.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(elimination, "_search", lambda *_: (_ for _ in ()).throw(MemoryError("no room")))
        with pytest.raises(MemoryError, match="no room"):
            best_order(*as_sets(problem), rows=1_000_000)
    assert best_order(*as_sets(problem), rows=1_000_000).criterion == "annealing"


def test_chordal_graphs_and_hopeless_ones_are_not_searched() -> None:
    chain = moral_graph(50, [(v, v + 1) for v in range(49)])
    assert best_order(*as_sets((chain, (1 << 50) - 1, [1000] * 50)), rows=10**9).criterion in CRITERIA
    graph, members, _ = as_sets(grid(30))
    assert best_order(graph, members, [100] * len(graph), rows=10**9).criterion in CRITERIA


def test_small_jobs_load_no_compiled_code() -> None:
    code = """if True:
        import sys
        from junctor.planning.elimination import best_order
        best_order([{1, 2}, {0, 3}, {0, 3}, {1, 2}], {0, 1, 2, 3}, [2] * 4, rows=1000)
        sys.exit("numba" in sys.modules or "numpy" in sys.modules)
    """
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def published(shared: Path, name: str) -> tuple[Problem, list[int]]:
    (path,) = (shared / "networks" / "bnlearn").glob(f"{name}.bif*")
    shape = shape_of(read_network(path))
    n = len(shape.cardinalities)
    graph = moral_graph(n, shape.scopes)
    problem = (graph, (1 << n) - 1, list(shape.cardinalities))
    start = GreedyElimination(*as_sets(problem)).by("min-weight")
    return problem, list(start.variables)


# More than a second each, of which others of their size are enough.
LONG = {"andes", "diabetes", "link", "munin", "munin1", "munin2", "munin3"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in PUBLISHED]
)
def test_a_second_comes_within_a_tenth_of_the_published_sizes(shared: Path, name: str) -> None:
    problem, start = published(shared, name)
    assert searched(problem, start, SECOND)[1] <= 1.1 * PUBLISHED[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_ten_seconds_reach_the_published_sizes(shared: Path, name: str) -> None:
    problem, start = published(shared, name)
    assert searched(problem, start, 10 * SECOND)[1] <= PUBLISHED[name]


def test_a_search_that_seldom_helps_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []

    def search(*arguments: Any) -> tuple[tuple[int, ...], float]:
        steps.append(arguments[4])
        return arguments[3].variables, arguments[3].entries

    monkeypatch.setattr(elimination, "_search", search)
    for states in (3, 8):
        graph, members, _ = as_sets(grid(12))
        good_orders(graph, members, [states] * len(graph), rows=10**6)
    assert steps == [elimination.MOST_STEPS, elimination.FEW_STEPS]


def test_orders_of_a_criterion_are_found_once() -> None:
    greedy = GreedyElimination(*as_sets(grid(6)))
    abandoned = greedy.by("min-fill", 10.0)
    whole = greedy.by("min-fill")
    assert math.isinf(abandoned.entries)
    assert greedy.by("min-fill") is whole
    assert greedy.by("min-fill", whole.entries) == abandoned
