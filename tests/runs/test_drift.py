from __future__ import annotations

import math

import junctor
import numpy as np
import pytest
from helpers.files import ASIA
from hypothesis import given
from hypothesis import strategies as st
from junctor.generate import grid
from junctor.runs import drift
from junctor.runs.drift import by_chance, distance, drifts, marginals
from junctor.runs.statistics import Cells

VECTORS = st.integers(1, 6).flatmap(
    lambda size: st.tuples(*[st.lists(st.integers(0, 1000), min_size=size, max_size=size).filter(any)] * 3)
)


@given(VECTORS)
def test_the_distance_is_a_metric(vectors: tuple[list[int], ...]) -> None:
    one, two, three = vectors
    assert distance(one, one) == pytest.approx(0, abs=1e-7)
    assert distance(one, two) == pytest.approx(distance(two, one), abs=1e-9)
    assert 0 <= distance(one, two) <= 1
    assert distance(one, three) <= distance(one, two) + distance(two, three) + 1e-7
    # Only shares count.
    assert distance([7 * n for n in one], two) == pytest.approx(distance(one, two), abs=1e-7)


def test_the_distance_against_its_definition() -> None:
    p, q = np.array([0.1, 0.9]), np.array([0.6, 0.4])
    m = (p + q) / 2
    divergence = sum(float((x * np.log2(x / m)).sum()) / 2 for x in (p, q))
    assert distance(p, q) == pytest.approx(math.sqrt(divergence))
    assert distance([1, 0], [0, 1]) == 1
    assert math.isnan(distance([0, 0], [1, 1]))


def test_what_chance_explains() -> None:
    rng, p = np.random.default_rng(0), np.array([0.5, 0.3, 0.2])
    found = [distance(rng.multinomial(500, p), p) for _ in range(300)]
    assert by_chance(3, 500) == pytest.approx(np.sqrt(np.mean(np.square(found))), rel=0.15)
    columns = {"a": Cells((5, 2)), "b": Cells((500, 200)), "c": Cells((0, 0), 0, 9), "d": Cells((1,))}
    expected = {name: np.array([0.5, 0.5]) for name in "abc"}
    ranked = drifts(columns, expected)
    assert [each.name for each in ranked][2:] == ["c", "d"]
    # A handful of cells proves nothing.
    assert {each.name: each.drifted for each in ranked} == {"a": False, "b": True, "c": False, "d": False}


def test_marginals_are_those_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    network = junctor.read_network(ASIA)
    expected = junctor.posteriors(network, [{}])
    found, how = marginals(network, ["xray", "asia"])
    assert how == "exact"
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name][0].as_py(), atol=1e-12)
    monkeypatch.setattr(drift, "MOST_OPERATIONS", 0)
    sampled, how = marginals(network, ["xray"])
    assert how == "from 20,000 samples"
    np.testing.assert_allclose(sampled["xray"], found["xray"], atol=0.02)
    assert marginals(grid(3, 3, seed=1), ["x_0_0"])[0] == {}
    assert marginals(network, []) == ({}, "exact")
