"""Scores of posteriors: the NumPy reference against exact logarithms, the compiled kernel against the reference."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junctor_kernels.cpu.scores import TERMS, score_rows
from junctor_kernels.tables.scores import score, terms

# Equal numbers among them, and all that a posterior may hold.
NUMBERS = (0.0, 0.25, 0.5, 1.0, 1 / 3, 1e-300, 5e-324, 1.0 + 2**-52, 1 - 2**-53, 0.25 + 2**-54, 0.25 + 2**-37)


def empty(rows: int, top: int, kind: npt.DTypeLike) -> tuple[npt.NDArray[np.int32], ...]:
    return np.zeros((rows, top), np.int32), np.zeros((rows, top), kind), np.zeros(rows, kind)  # type: ignore[return-value]


@given(data=st.data(), kind=st.sampled_from([np.float64, np.float32]), top=st.integers(1, 5))
def test_compiled_scores_are_those_of_the_reference(data: st.DataObject, kind: type, top: int) -> None:
    sizes = np.array(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)), dtype=np.int64)
    rows = data.draw(st.integers(1, 9))
    begin = data.draw(st.integers(0, rows))
    end = data.draw(st.integers(begin, rows))
    numbers = data.draw(st.lists(st.sampled_from(NUMBERS), min_size=rows * int(sizes.sum()), max_size=rows * 28))
    memory = np.array(numbers, dtype=kind)
    shift = data.draw(st.integers(0, 3))
    has_gaps = data.draw(st.booleans())
    every = range(shift + rows)
    places = data.draw(st.permutations(every))[:rows] if has_gaps else []
    at = np.array(places, dtype=np.int64)[begin:end] if has_gaps else np.arange(shift + begin, shift + end)
    shape = len(sizes), rows + shift, top
    states, probabilities, entropies = np.full(shape, 7, np.int32), np.zeros(shape, kind), np.zeros(shape[:2], kind)
    asked = memory, sizes, rows, begin, end, shift + begin, np.array(places, dtype=np.int64)
    score_rows(*asked, states, probabilities, entropies)
    start = 0
    for n, size in enumerate(sizes.tolist()):
        expected = empty(rows, top, kind)
        score(memory[start : start + rows * size].reshape(rows, size), *expected)
        start += rows * size
        for found, wanted in zip((states, probabilities, entropies), expected, strict=True):
            assert found[n, at].tobytes() == wanted[begin:end].tobytes()
        # Rows that were not asked for stay as they were.
        assert (np.delete(states[n], at, axis=0) == 7).all()


@pytest.mark.parametrize("size", [TERMS - 1, TERMS, TERMS + 1, 3 * TERMS])
def test_variables_of_very_many_states(size: int) -> None:
    rng = np.random.default_rng(size)
    posteriors = rng.dirichlet(np.full(size, 0.1), 3)
    expected, found = empty(3, 2, np.float64), [array[None] for array in empty(3, 2, np.float64)]
    score(posteriors, *expected)
    score_rows(posteriors.ravel(), np.array([size]), 3, 0, 3, 0, np.zeros(0, dtype=np.int64), *found)
    for array, wanted in zip(found, expected, strict=True):
        assert array[0].tobytes() == wanted.tobytes()


def test_logarithms_are_accurate_to_two_ulps() -> None:
    rng = np.random.default_rng(1)
    numbers = [rng.random(20_000), 10.0 ** rng.uniform(-300, 0, 20_000), 1 - 10.0 ** rng.uniform(-16, 0, 20_000)]
    p = np.concatenate([*numbers, np.geomspace(0.7, 1.5, 20_000), [0.5, 2**-0.5, 1.0, np.nextafter(1, 2)]])
    exact = p.astype(np.longdouble) * np.log(p.astype(np.longdouble))
    assert (np.abs(terms(p) - exact) <= 2 * np.spacing(np.abs(exact.astype(np.float64)))).all()


def test_nothing_is_added_for_what_cannot_be() -> None:
    found = terms(np.array([0.0, 5e-324, 1e-310, 1.0]))
    assert found[0] == found[3] == 0
    assert (np.abs(found) < 2e-305).all()


@given(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=9), st.integers(1, 12))
def test_states_are_in_order_and_ties_in_that_of_the_states(numbers: list[float], top: int) -> None:
    states, probabilities, entropies = empty(1, top, np.float64)
    score(np.array([numbers]), states, probabilities, entropies)
    # The largest that is left and all that it equals up to rounding come next.
    left, order = set(range(len(numbers))), list[int]()
    while left:
        best = max(numbers[state] for state in left)
        group = [state for state in sorted(left) if numbers[state] >= best * (1 - 2.0**-36)]
        order += group
        left -= set(group)
    order = order[:top]
    beyond = top - len(order)
    assert states[0].tolist() == order + [-1] * beyond
    assert probabilities[0, : len(order)].tolist() == [numbers[state] for state in order]
    assert np.isnan(probabilities[0, len(order) :]).sum() == beyond
    expected = -math.fsum(p * math.log(p) for p in numbers if p)
    assert entropies[0] == pytest.approx(max(0.0, expected), rel=1e-14, abs=1e-15)
