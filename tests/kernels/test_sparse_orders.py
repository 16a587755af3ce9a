"""Greedy elimination of sparse graphs: the orders of bit matrices, in linear time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from junctor.planning.elimination import moral_graph
from junctor.planning.shape import mask_of
from junctor_kernels.orders import dense, sparse
from junctor_kernels.orders import greedy as orders
from junctor_kernels.orders.greedy import pack, weights_of, work_for

# Weight of a clique that no graph here has.
MOST = 2**60

Scopes = Sequence[Sequence[int]]
Problem = tuple[Scopes, list[int], list[int]]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Draw scopes, cardinalities, and the variables to eliminate."""
    n = draw(st.integers(1, 40))
    variable = st.integers(0, n - 1)
    scopes = draw(st.lists(st.lists(variable, max_size=5, unique=True), max_size=2 * n))
    cardinalities = draw(st.lists(st.integers(1, 5), min_size=n, max_size=n))
    left_out = draw(st.sets(variable))
    return scopes, cardinalities, [v for v in range(n) if v not in left_out]


def hubs(leaves: int) -> Problem:
    """Return two variables, far apart in the numbering, with all others as neighbours, and chords among these."""
    n = leaves + 2
    scopes = [(0, v) for v in range(1, n - 1)] + [(v, n - 1) for v in range(1, n - 1)]
    return scopes + [(v, v + 5) for v in range(1, n - 6, 3)], [2] * n, list(range(n))


def graph_of(scopes: Scopes, variables: int) -> sparse.SparseGraph:
    starts = np.cumsum([0, *map(len, scopes)], dtype=np.int64)
    flat = np.array([v for scope in scopes for v in scope], dtype=np.int64)
    graph = sparse.moral_graph(variables, starts, flat)
    assert isinstance(graph, sparse.SparseGraph)
    return graph


def eliminated(
    problem: Problem,
    work: sparse.SparseWork | None = None,
    criterion: int = orders.WEIGHTED_MIN_FILL,
    noise: float = 0,
    listed: bool = False,
) -> list[int]:
    scopes, cardinalities, choice = problem
    n = len(cardinalities)
    graph = graph_of(scopes, n)
    if listed:
        graph = sparse.with_triangles(graph)
    members = np.zeros(n, dtype=np.bool_)
    members[choice] = True
    order = np.full(n, -1, dtype=np.int64)
    work = work or sparse.sparse_work(graph)
    state = np.array([3], dtype=np.uint64)
    count = sparse.greedy(graph, members, weights_of(cardinalities), criterion, noise, state, work, order, MOST)
    return order[:count].tolist()


def work_of(graph: sparse.SparseGraph, as_bits: int) -> sparse.SparseWork:
    """Return memory with which so many variables that are left at the end are eliminated as bits."""
    bits, scores = dense.dense_work(as_bits)
    return sparse.sparse_work(graph)._replace(bits=bits, scores=scores)


def by_bit_matrix(problem: Problem, criterion: int, noise: float) -> list[int]:
    scopes, cardinalities, choice = problem
    n = len(cardinalities)
    order = np.full(n, -1, dtype=np.int64)
    graph, members = pack([*map(mask_of, moral_graph(n, scopes))], n), pack([mask_of(choice)], n)[0]
    state = np.array([3], dtype=np.uint64)
    count = orders.greedy(graph, members, weights_of(cardinalities), criterion, noise, state, *work_for(n), order)
    return order[:count].tolist()


@given(problem=problems())
@example(problem=hubs(100))
def test_rows_are_the_neighbours_in_the_moral_graph(problem: Problem) -> None:
    scopes, cardinalities, _ = problem
    n = len(cardinalities)
    graph = graph_of(scopes, n)
    rows = np.split(graph.neighbours, graph.starts[1:-1])
    assert [row.tolist() for row in rows] == [*map(sorted, moral_graph(n, scopes))]


@given(problem=problems())
@example(problem=hubs(100))
def test_triangles_are_all_listed_or_none(problem: Problem) -> None:
    scopes, cardinalities, _ = problem
    graph = graph_of(scopes, len(cardinalities))
    rows = [set(row.tolist()) for row in np.split(graph.neighbours, graph.starts[1:-1])]
    expected = {frozenset((a, b, c)) for a, row in enumerate(rows) for b in row for c in row & rows[b]}
    found = [frozenset(triangle) for triangle in sparse.with_triangles(graph).triangles.tolist()]
    assert len(found) == len(set(found)) <= len(graph.neighbours)
    assert set(found) == expected or not found


def test_complete_graphs_have_more_triangles_than_are_listed() -> None:
    for n, count in ((4, 4), (5, 10), (9, 0), (60, 0)):
        assert len(sparse.with_triangles(graph_of([range(n)], n)).triangles) == count


@given(
    problem=problems(),
    criterion=st.integers(0, orders.CRITERIA - 1),
    noise=st.sampled_from([0.0, 0.3]),
    as_bits=st.integers(0, 40),
    listed=st.booleans(),
)
@example(problem=hubs(200), criterion=orders.WEIGHTED_MIN_FILL, noise=0.0, as_bits=0, listed=False)
@example(problem=hubs(200), criterion=orders.WEIGHTED_MIN_FILL, noise=0.0, as_bits=202, listed=True)
@example(problem=hubs(200), criterion=orders.MIN_WEIGHT, noise=0.3, as_bits=0, listed=True)
@example(problem=hubs(200), criterion=orders.MIN_WEIGHT, noise=0.3, as_bits=150, listed=False)
@example(problem=hubs(200), criterion=orders.MIN_NEIGHBOURS, noise=0.0, as_bits=202, listed=False)
def test_orders_are_those_of_the_bit_matrix(
    problem: Problem, criterion: int, noise: float, as_bits: int, listed: bool
) -> None:
    work = work_of(graph_of(problem[0], len(problem[1])), as_bits)
    assert eliminated(problem, work, criterion, noise, listed) == by_bit_matrix(problem, criterion, noise)


@pytest.mark.parametrize("as_bits", [0, 100, dense.MOST])
@pytest.mark.parametrize("criterion", range(orders.CRITERIA))
def test_wide_graphs_have_the_same_orders_too(criterion: int, as_bits: int) -> None:
    draw = random.Random(criterion)
    for n in (65, 200):
        scopes = [tuple({draw.randrange(n) for _ in range(3)}) for _ in range(2 * n)]
        problem = scopes, [draw.randint(2, 9) for _ in range(n)], [v for v in range(n) if draw.random() < 0.9]
        work = work_of(graph_of(scopes, n), as_bits)
        assert eliminated(problem, work, criterion) == by_bit_matrix(problem, criterion, 0.0)


@given(problem=problems(), other=st.sets(st.integers(0, 39)))
def test_memory_is_reused_and_a_small_pool_outgrown(problem: Problem, other: set[int]) -> None:
    scopes, cardinalities, choice = problem
    expected = eliminated(problem)
    graph = graph_of(scopes, len(cardinalities))
    work = work_of(graph, 4)._replace(pool=np.empty(len(graph.neighbours), dtype=np.int32))
    eliminated((scopes, cardinalities, [v for v in choice if v not in other]), work)
    assert eliminated(problem, work) == expected


def test_an_order_ends_before_the_first_clique_that_is_too_large() -> None:
    members, order, state = np.ones(30, dtype=np.bool_), np.zeros(30, dtype=np.int64), np.zeros(1, dtype=np.uint64)
    # No variable of a ring is simplicial, and each has two neighbours.
    ring = graph_of([(v, (v + 1) % 30) for v in range(30)], 30)
    how = np.full(30, 1024), orders.MIN_FILL, 0.0, state
    assert sparse.greedy(ring, members, *how, work_of(ring, 0), order, 3 * 1024) == 30
    assert sparse.greedy(ring, members, *how, work_of(ring, 0), order, 2 * 1024) == 0


def chain(n: int) -> Scopes:
    return [(v, v + 1) for v in range(n - 1)]


def star(n: int) -> Scopes:
    return [(0, v) for v in range(1, n)]


def tree(n: int) -> Scopes:
    draw = random.Random(n)
    return [(draw.randrange(v), v) for v in range(1, n)]


def hub_of_a_chain(n: int) -> Scopes:
    return [(0, v, v + 1) if v % 2 else (v, v + 1) for v in range(1, n - 1)]


def cylinder(n: int) -> Scopes:
    return [(v, v + d) for v in range(n - 6) for d in (1, 6)]


def parents_of_all(n: int) -> Scopes:
    return [(v, u) for v in range(2, n) for u in (0, 1)]


@pytest.mark.parametrize("scopes", [chain, star, tree, hub_of_a_chain, cylinder, parents_of_all])
def test_steps_grow_with_the_length_only(scopes: Callable[[int], Scopes]) -> None:
    def steps(n: int) -> float:
        graph = graph_of(scopes(n), n)
        # The last few hundred variables do not count: these are no more in a longer network.
        work = work_of(graph, 0)
        members, order, state = np.ones(n, dtype=np.bool_), np.zeros(n, dtype=np.int64), np.zeros(1, dtype=np.uint64)
        weights = np.full(n, 1024)
        assert sparse.greedy(graph, members, weights, orders.WEIGHTED_MIN_FILL, 0.0, state, work, order, MOST) == n
        assert np.array_equal(np.sort(order), np.arange(n))
        return float(work.counters[sparse.STEPS]) / n

    # A heap of sixteen times as many variables is four levels higher.
    assert steps(32_000) < 1.3 * steps(2_000)
    assert steps(32_000) < 250
