"""Bounds on losses: a table that is known to be clean has none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends.scaled_table import NOTHING, floor_of, lost_here, scaled_to, stays_clean
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import DOUBLE, LOG, SINGLE, Algebra

NUMBERS = st.sampled_from([0.0, 1e-320, 1e-310, 1e-200, 1e-160, 1e-45, 1e-30, 1e-12, 0.3, 1.0])


@pytest.mark.parametrize("algebra", [DOUBLE, SINGLE], ids=lambda each: each.name)
@given(
    tables=st.lists(st.lists(st.lists(NUMBERS, min_size=2, max_size=2), min_size=1, max_size=3), min_size=1, max_size=3)
)
def test_what_is_known_to_be_clean_loses_nothing(algebra: Algebra, tables: list[list[list[float]]]) -> None:
    operands = [scaled_to(np.array(table), algebra) for table in tables]
    for operand in operands:
        assert operand.floor <= operand.least.min()
        assert not operand.is_clean or not (operand.lost.any() or operand.open.any())
    # Sums of products, of which all entries of one are multiplied with the first of the others.
    product = operands[0].table.copy()
    for operand in operands[1:]:
        product *= operand.table[:1]
    scaled = reference.rescale(product, algebra)
    if stays_clean(operands, scaled, floor_of(scaled.least), algebra):
        assert not lost_here(operands, 1, scaled, algebra).any()
        assert scaled.largest.all()


def test_logarithms_are_clean() -> None:
    found = scaled_to(np.array([[0.0, 1.0], [1e-320, 0.0]]), LOG)
    assert found.is_clean
    assert found.lost is found.open is NOTHING
