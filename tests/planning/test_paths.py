"""Contraction paths: valid, never dearer than contracting at once, best where all pairs are tried."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from junctor.planning.paths import (
    MOST_ON_PATH,
    STEP_OPERATIONS,
    TRIED_PAIRS,
    WRITE_OPERATIONS,
    Pair,
    PathOperand,
    Paths,
    Products,
)
from junctor.planning.shape import Shape

VARIABLES = 5
NOTHING: frozenset[int] = frozenset()
Contraction = tuple[Shape, list[PathOperand], frozenset[int]]


@st.composite
def contractions(draw: st.DrawFn, most: int = 6) -> Contraction:
    """Draw a shape, the operands of a contraction and what it keeps."""
    shape = Shape(tuple(draw(st.lists(st.integers(1, 9), min_size=VARIABLES, max_size=VARIABLES))), (), False)
    scope = st.lists(st.integers(0, VARIABLES - 1), unique=True)
    scopes = draw(st.lists(scope, min_size=1, max_size=most))
    operands = [PathOperand(i, tuple(scope), draw(st.booleans())) for i, scope in enumerate(scopes)]
    return shape, operands, frozenset(draw(scope))


def pass_cost(shape: Shape, operands: Sequence[PathOperand], kept: frozenset[int]) -> int:
    union = kept.union(*(operand.scope for operand in operands))
    return shape.entries(union) * sum(operand.per_case for operand in operands)


def walk(shape: Shape, operands: Sequence[PathOperand], kept: frozenset[int], path: Sequence[Pair]) -> int:
    """Follow a path and return what it costs, counted anew."""
    cost, left = 0, list(operands)
    for pair in path:
        assert pair.one < pair.other < len(left)
        other, one = left.pop(pair.other), left.pop(pair.one)
        per_case = one.per_case or other.per_case
        if per_case:
            cost += pass_cost(shape, (one, other), pair.kept) + STEP_OPERATIONS
            cost += WRITE_OPERATIONS * shape.entries(pair.kept)
        left.append(PathOperand(-1, tuple(pair.kept), per_case))
    return cost + pass_cost(shape, left, kept)


@given(contractions())
def test_a_path_is_never_dearer_than_contracting_at_once(drawn: Contraction) -> None:
    shape, operands, kept = drawn
    if not any(operand.per_case for operand in operands):
        operands = [operand._replace(per_case=True) for operand in operands]
    path = Paths(shape, Products()).find(operands, kept)
    assert walk(shape, operands, kept, path) <= pass_cost(shape, operands, kept)


@given(contractions(most=3))
def test_the_path_of_three_operands_is_the_best(drawn: Contraction) -> None:
    shape, operands, kept = drawn
    assert TRIED_PAIRS >= 3
    if len(operands) < 3 or not any(operand.per_case for operand in operands):
        return
    costs = [pass_cost(shape, operands, kept)]
    for one, other in itertools.combinations(operands, 2):
        (rest,) = (operand for operand in operands if operand not in (one, other))
        result = frozenset((*one.scope, *other.scope)) & (kept | frozenset(rest.scope))
        product = PathOperand(-1, tuple(result), one.per_case or other.per_case)
        first = pass_cost(shape, (one, other), result) + WRITE_OPERATIONS * shape.entries(result)
        costs.append(product.per_case * (first + STEP_OPERATIONS) + pass_cost(shape, (product, rest), kept))
    path = Paths(shape, Products()).find(operands, kept)
    assert walk(shape, operands, kept, path) == min(costs)


@given(contractions(), st.integers(0, 2**32 - 1))
def test_a_path_computes_the_same_table(drawn: Contraction, seed: int) -> None:
    shape, operands, kept = drawn
    rng = np.random.default_rng(seed)
    Scoped = tuple[list[int], np.ndarray]

    def einsum(tables: Sequence[Scoped], out: list[int]) -> Scoped:
        arguments = [each for scope, table in tables for each in (table, scope)]
        return out, np.einsum(*arguments, out)

    sizes = shape.cardinalities
    left = [(list(operand.scope), rng.random([sizes[v] for v in operand.scope])) for operand in operands]
    covered = sorted(kept & frozenset(v for scope, _ in left for v in scope))
    expected = einsum(left, covered)[1]
    for pair in Paths(shape, Products()).find(operands, kept):
        other, one = left.pop(pair.other), left.pop(pair.one)
        left.append(einsum((one, other), sorted(pair.kept)))
    np.testing.assert_allclose(einsum(left, covered)[1], expected, rtol=1e-12)


@given(contractions(), st.permutations(range(VARIABLES)), st.integers(0, 1000))
def test_numbers_of_variables_and_tables_do_not_matter(drawn: Contraction, names: list[int], first: int) -> None:
    shape, operands, kept = drawn
    path = Paths(shape, Products()).find(operands, kept)
    sizes = [0] * VARIABLES
    for v, name in enumerate(names):
        sizes[name] = shape.cardinalities[v]
    renamed = [
        PathOperand(first - operand.table, tuple(names[v] for v in operand.scope), operand.per_case)
        for operand in operands
    ]
    other = Paths(Shape(tuple(sizes), (), False), Products()).find(renamed, [names[v] for v in kept])
    assert other == [pair._replace(kept=frozenset(names[v] for v in pair.kept)) for pair in path]


def test_a_product_that_exists_costs_nothing() -> None:
    # Beforehand the last two go first, because that is a little cheaper; not if the first two are there already.
    shape = Shape((8, 8, 8), (), False)
    operands = [PathOperand(0, (0, 1), True), PathOperand(1, (1, 2), True), PathOperand(2, (1, 2), True)]
    kept = frozenset([0, 2])
    assert [pair[:2] for pair in Paths(shape, Products()).find(operands, kept)] == [(1, 2)]
    made = Products()
    made.add(1, 0, frozenset([0, 1, 2]), 7)
    assert [pair[:2] for pair in Paths(shape, made).find(operands, kept)] == [(0, 1)]


def test_many_operands_are_contracted_at_once() -> None:
    shape = Shape((9, 9), (), False)
    operands = [PathOperand(i, (0,), True) for i in range(MOST_ON_PATH)]
    paths = Paths(shape, Products())
    assert paths.find(operands, (0, 1))
    assert not paths.find([*operands, PathOperand(99, (0,), True)], (0, 1))


def test_products_are_found_in_either_order() -> None:
    made = Products()
    made.add(3, 12, NOTHING, 20)
    assert made.find(12, 3, NOTHING) == made.find(3, 12, NOTHING) == 20
    assert made.find(12, 3, frozenset([1])) is None
    assert made.find(3, 4, NOTHING) is None
