"""Contraction paths: valid, never dearer than contracting at once, best where all pairs are tried."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junctor.planning.paths import (
    MOST_ON_PATH,
    STEP_OPERATIONS,
    TRIED_PAIRS,
    WRITE_OPERATIONS,
    PathOperand,
    Paths,
    ProductName,
    product_name,
)
from junctor.planning.shape import Shape, bits, mask_of

VARIABLES = 5


@st.composite
def contractions(draw: st.DrawFn, most: int = 6) -> tuple[Shape, list[PathOperand], int]:
    """Draw a shape, the operands of a contraction and what it keeps."""
    shape = Shape(tuple(draw(st.lists(st.integers(1, 9), min_size=VARIABLES, max_size=VARIABLES))), (), False)
    scopes = draw(st.lists(st.integers(0, 2**VARIABLES - 1), min_size=1, max_size=most))
    operands = [PathOperand(i, scope, draw(st.booleans())) for i, scope in enumerate(scopes)]
    return shape, operands, draw(st.integers(0, 2**VARIABLES - 1))


def pass_cost(shape: Shape, operands: Sequence[PathOperand], kept: int) -> int:
    union = kept
    for operand in operands:
        union |= operand.scope
    return shape.entries(bits(union)) * sum(operand.per_case for operand in operands)


def walk(shape: Shape, operands: Sequence[PathOperand], kept: int, path: Sequence) -> int:
    """Follow a path and return what it costs, counted anew."""
    cost, left = 0, list(operands)
    for pair in path:
        assert pair.one < pair.other < len(left)
        other, one = left.pop(pair.other), left.pop(pair.one)
        per_case = one.per_case or other.per_case
        if per_case:
            cost += pass_cost(shape, (one, other), pair.kept) + STEP_OPERATIONS
            cost += WRITE_OPERATIONS * shape.entries(bits(pair.kept))
        left.append(PathOperand(product_name(one.name, other.name, pair.kept), pair.kept, per_case))
    return cost + pass_cost(shape, left, kept)


@given(contractions())
def test_a_path_is_never_dearer_than_contracting_at_once(drawn: tuple[Shape, list[PathOperand], int]) -> None:
    shape, operands, kept = drawn
    if not any(operand.per_case for operand in operands):
        operands = [operand._replace(per_case=True) for operand in operands]
    path = Paths(shape, {}).find(operands, kept)
    assert walk(shape, operands, kept, path) <= pass_cost(shape, operands, kept)


@given(contractions(most=3))
def test_the_path_of_three_operands_is_the_best(drawn: tuple[Shape, list[PathOperand], int]) -> None:
    shape, operands, kept = drawn
    assert TRIED_PAIRS >= 3
    if len(operands) < 3 or not any(operand.per_case for operand in operands):
        return
    costs = [pass_cost(shape, operands, kept)]
    for one, other in itertools.combinations(operands, 2):
        (rest,) = (operand for operand in operands if operand not in (one, other))
        result = (one.scope | other.scope) & (rest.scope | kept)
        product = PathOperand(-1, result, one.per_case or other.per_case)
        first = pass_cost(shape, (one, other), result) + WRITE_OPERATIONS * shape.entries(bits(result))
        costs.append(product.per_case * (first + STEP_OPERATIONS) + pass_cost(shape, (product, rest), kept))
    path = Paths(shape, {}).find(operands, kept)
    assert walk(shape, operands, kept, path) == min(costs)


@given(contractions(), st.integers(0, 2**32 - 1))
def test_a_path_computes_the_same_table(drawn: tuple[Shape, list[PathOperand], int], seed: int) -> None:
    shape, operands, kept = drawn
    rng = np.random.default_rng(seed)

    def einsum(tables: Sequence[tuple[int, np.ndarray]], out: int) -> tuple[int, np.ndarray]:
        arguments = [each for scope, table in tables for each in (table, list(bits(scope)))]
        return out, np.einsum(*arguments, list(bits(out)))

    sizes = shape.cardinalities
    left = [(operand.scope, rng.random([sizes[v] for v in bits(operand.scope)])) for operand in operands]
    covered = kept & mask_of(v for scope, _ in left for v in bits(scope))
    expected = einsum(left, covered)[1]
    for pair in Paths(shape, {}).find(operands, kept):
        other, one = left.pop(pair.other), left.pop(pair.one)
        left.append(einsum((one, other), pair.kept))
    np.testing.assert_allclose(einsum(left, covered)[1], expected, rtol=1e-12)


def test_a_product_that_exists_costs_nothing() -> None:
    # Beforehand the last two go first, because that is a little cheaper; not if the first two are there already.
    shape = Shape((8, 8, 8), (), False)
    operands = [PathOperand(0, 0b011, True), PathOperand(1, 0b110, True), PathOperand(2, 0b110, True)]
    assert [pair[:2] for pair in Paths(shape, {}).find(operands, 0b101)] == [(1, 2)]
    made: dict[ProductName, int] = {product_name(0, 1, 0b111): 7}
    assert [pair[:2] for pair in Paths(shape, made).find(operands, 0b101)] == [(0, 1)]


def test_many_operands_are_contracted_at_once() -> None:
    shape = Shape((9, 9), (), False)
    operands = [PathOperand(i, 0b01, True) for i in range(MOST_ON_PATH)]
    assert Paths(shape, {}).find(operands, 0b11)
    assert not Paths(shape, {}).find([*operands, PathOperand(99, 0b01, True)], 0b11)


@pytest.mark.parametrize("names", [(3, 12), ((1, 2, 0b1), 5), ((1, 2, 0b1), (1, 2, 0b10))])
def test_a_product_has_one_name(names: tuple[object, object]) -> None:
    one, other = names
    assert product_name(one, other, 0b1) == product_name(other, one, 0b1)
    assert product_name(one, other, 0b1) != product_name(one, other, 0b10)
