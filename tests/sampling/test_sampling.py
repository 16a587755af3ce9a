"""Compiled sampling against NumPy, sample by sample; orders, thresholds and learning."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.sampling_cases import Hard, Soft, case_of, mixed, network_of, rows
from hypothesis import given
from hypothesis import strategies as st
from junctor.model.network import Network
from junctor.sampling.engine import PLAIN_LIMIT
from junctor.sampling.importance import (
    STAGES,
    first_function,
    lifted,
    needs_logs,
    own_function,
    parents_to_free,
    prior_of,
    rate,
)
from junctor.sampling.sampler import CpuRow
from junctor.sampling.tables import sampled_network
from junctor_kernels.sampling import cpu as sampling_cpu
from junctor_kernels.sampling import reference as sampling
from junctor_kernels.sampling.layout import (
    BLOCK,
    FULL,
    NODE,
    PARENTS,
    STATES,
    WEIGHED,
    Function,
    Samples,
    Tables,
    add,
    own_share,
)
from junctor_kernels.sampling.philox import RandomStream
from junctor_kernels.sampling.thresholds import build_thresholds


@given(rows(), st.booleans(), st.booleans(), st.integers(0, 2**64 - 1))
def test_compiled_samples_are_those_of_numpy(
    row: tuple[Network, Hard, Soft], learns: bool, logs: bool, seed: int
) -> None:
    sampled, layout, case = case_of(*row, learns)
    # Where plain weights could leave the doubles, nobody asks for them.
    logs = logs or needs_logs(layout, case.least, PLAIN_LIMIT)
    function = own_function(layout, first_function(sampled, "ais-bn", logs)) if learns else sampled.function(logs)
    stream, count = RandomStream(seed, 3, 1), 300
    tables = sampled.tables._replace(thresholds=function.thresholds, order=function.order)
    own = own_share(count) if learns else 0.0
    states = sampling.draw(tables, case, stream, BLOCK, count, sampled.tables if learns else None)
    weights = sampling.weights(function.values, function.ratios, case.likelihoods(logs), case, states, logs, own)
    drawn = Samples(np.zeros((2, len(case.nodes), BLOCK), np.uint8), np.zeros((2, BLOCK)))
    sampling_cpu.draw(case, function, stream, BLOCK, count, own, drawn, 0)
    assert (drawn.states.transpose(1, 0, 2).reshape(len(case.nodes), 2 * BLOCK)[:, :count] == states).all()
    np.testing.assert_allclose(drawn.weights.ravel()[:count], weights, rtol=1e-12, atol=1e-14 if logs else 0)
    assert (drawn.weights.ravel()[count:] == (-np.inf if logs else 0.0)).all()
    expected, found = (
        sampling.sums(case, states, weights, logs),
        sampling_cpu.sums(case, function, stream, BLOCK, count, own),
    )
    assert (found.hits, found.drawn, found.shift) == (expected.hits, count, pytest.approx(expected.shift))
    np.testing.assert_allclose(found.slots, expected.slots, rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(found.total, expected.total, rtol=1e-9, atol=1e-300)
    assert found.largest == pytest.approx(expected.largest)


@given(rows())
def test_every_layout_keeps_its_promises(row: tuple[Network, Hard, Soft]) -> None:
    network, hard, soft = row
    sampled, layout, case = case_of(network, hard, soft, True)
    assert sorted([*layout.drawn, *hard]) == list(range(len(network.variables)))
    assert case.levels[0] == 0
    assert case.levels[-1] == len(case.nodes)
    level_of = np.searchsorted(case.levels, np.arange(len(case.nodes)), side="right")
    above = {p for v in (*hard, *soft) for p in _ancestors(network, v)} | set(soft)
    for n, v in enumerate(layout.drawn):
        first, count = case.nodes[n, PARENTS : PARENTS + 2]
        drawn = {layout.drawn[case.parents[p, NODE]] for p in range(first, first + count)}
        assert drawn == {p for p in sampled.parents(v) if p not in hard}
        # Not only before it: a level before it, and right behind the last of them.
        assert level_of[n] == 1 + max((level_of[layout.drawn.index(p)] for p in drawn), default=0)
        assert bool(case.nodes[n, WEIGHED]) == (v in above)


def _ancestors(network: Network, variable: int) -> set[int]:
    found: set[int] = set()
    waiting = [variable]
    while waiting:
        parents = network.factors[waiting.pop()].scope[:-1]
        waiting += [p for p in parents if p not in found]
        found.update(parents)
    return found


def test_observed_variables_break_levels() -> None:
    chain = network_of([((0,), [0.5, 0.5]), *(((v - 1, v), [[0.9, 0.1], [0.2, 0.8]]) for v in range(1, 6))], [2] * 6)
    assert len(case_of(chain, {}, {}, False)[2].levels) - 1 == 6
    assert len(case_of(chain, {2: 1}, {}, False)[2].levels) - 1 == 3


def test_what_bears_on_no_target_is_not_drawn() -> None:
    from junctor.sampling.cases import layout_of
    from junctor.sampling.rows import Evidence

    network = mixed()
    layout = layout_of(sampled_network(network), Evidence(frozenset({3}), frozenset()), [2])
    assert sorted(layout.drawn) == [0, 1, 2]


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6).filter(lambda row: sum(row) > 1e-3), st.sampled_from([0, 1]))
def test_thresholds_are_those_of_numpy(row: list[float], least: int) -> None:
    table = np.array(row) / sum(row)
    size = len(table)
    function = Function(
        np.zeros(size - 1, np.uint32),
        np.zeros(size, np.uint8),
        table,
        np.zeros(size),
        table.copy(),
        False,
        Tables(table, np.zeros(0, np.uint32), np.zeros(0, np.uint8)),
    )
    build_thresholds(table, function, 0, 0, size, 1, least)
    thresholds, order, widths = sampling.thresholds_of(table, table, least)
    assert function.thresholds.tolist() == thresholds
    assert function.order.tolist() == order
    assert sum(widths) == FULL
    assert all((width > 0) == (p > 0) for width, p in zip(widths, table, strict=True) if least or p == 0)
    drawn = np.array(widths) > 0
    np.testing.assert_allclose(function.ratios[drawn] * np.array(widths)[drawn] / FULL, table[drawn], rtol=1e-12)


def test_values_in_order_read_fewer_thresholds() -> None:
    sampled, _, case = case_of(network_of([((0,), [0.01, 0.01, 0.08, 0.9])], [4]), {}, {}, False)
    states = sampling.draw(sampled.tables, case, RandomStream(0, 0, 0), 0, 4096)
    read = sampling.entries_read(sampled.tables, case, states) / 4096
    assert read == pytest.approx(0.9 + 2 * 0.08 + 3 * 0.02, abs=0.05)
    assert np.minimum(states + 1, 3).mean() > 2.9


@pytest.mark.parametrize("logs", [False, True])
def test_learning_is_that_of_numpy_and_of_any_number_of_threads(logs: bool) -> None:
    hard, soft = {6: 1, 3: 0}, {1: np.array([0.1, 1.0, 0.4])}
    sampled, layout, case = case_of(mixed(), hard, soft, True)
    start = first_function(sampled, "ais-bn", logs)
    found = [CpuRow(sampled, case, own_function(layout, start), threads) for threads in (1, 3)]
    for row in found:
        row.learn(RandomStream(1, 2, 3), 700, 0.4, False)
    one, other = (row.function for row in found)
    assert (one.chances == other.chances).all()
    assert (one.thresholds == other.thresholds).all()

    before = own_function(layout, start)
    tables = sampled.tables._replace(thresholds=before.thresholds, order=before.order)
    states = sampling.draw(tables, case, RandomStream(1, 2, 3), 0, 700, sampled.tables)
    likelihoods = case.likelihoods(logs)
    weights = sampling.weights(before.values, before.ratios, likelihoods, case, states, logs, own_share(700))
    scores = sampling.scores(case, states, weights, logs, sampled.entries[-1])
    for v in layout.weighed:
        span = slice(sampled.entries[v], sampled.entries[v + 1])
        size = sampled.network.cardinalities[v]
        mine, chances = scores[span].reshape(-1, size), before.chances[span].reshape(-1, size)
        whole = mine.sum(axis=1, keepdims=True)
        share = np.divide(mine, whole, out=chances.copy(), where=whole > 0)
        np.testing.assert_allclose(
            one.chances[span].reshape(-1, size), chances + 0.4 * (share - chances), rtol=1e-9, atol=1e-12
        )


def test_sums_are_the_same_for_any_number_of_threads_and_pieces() -> None:
    sampled, _, case = case_of(mixed(), {6: 1}, {}, False)
    rows_ = [CpuRow(sampled, case, sampled.function(True), threads) for threads in (1, 2, 5)]
    found = [row.sums(RandomStream(4, 5, 0), 0, 40_000, 0.0)() for row in rows_]
    for other in found[1:]:
        assert (other.slots == found[0].slots).all()
        assert other.shift == found[0].shift
    drawn = rows_[0].draw(RandomStream(4, 5, 0), 4_000)
    again = sampling_cpu.sums_of(case, drawn, True, 4_000)
    assert (again.slots == rows_[1].sums(RandomStream(4, 5, 0), 0, 4_000, own_share(4_000))().slots).all()
    parts = add(
        rows_[0].sums(RandomStream(4, 5, 0), 0, 16_384, 0.0)(),
        rows_[0].sums(RandomStream(4, 5, 0), 16_384, 40_000 - 16_384, 0.0)(),
    )
    np.testing.assert_allclose(parts.slots, found[0].slots, rtol=1e-12)


def test_small_probabilities_are_lifted_and_zeros_stay() -> None:
    table = np.array([[0.99, 0.01, 0.0], [0.5, 0.5, 0.0], [0.02, 0.03, 0.95]])
    expected = [[0.96, 0.04, 0.0], [0.5, 0.5, 0.0], [0.04, 0.04, 0.92]]
    np.testing.assert_allclose(lifted(table), expected)
    np.testing.assert_allclose(lifted(np.array([0.9996, 1e-4, 1e-4, 1e-4, 1e-4])), [0.996, *[0.001] * 4])
    # Many states: the largest cannot bear it for all others.
    wide = np.full((1, 255), 1e-9)
    wide[0, :25] = (1 - 230e-9) / 25
    assert lifted(wide).sum() == pytest.approx(1.0)
    assert lifted(wide).min() == pytest.approx(0.0005, rel=0.1)


def test_parents_of_unlikely_observations_are_drawn_uniformly() -> None:
    network = network_of(
        [
            ((0,), [0.9, 0.1]),
            ((1,), [0.5, 0.5]),
            ((0, 2), [[0.95, 0.05], [0.5, 0.5]]),
            ((1, 3), [[0.6, 0.4], [0.4, 0.6]]),
        ],
        [2] * 4,
    )
    sampled, layout, _ = case_of(network, {2: 1, 3: 1}, {}, True)
    # P(v2 = 1) = 0.095 < 1/4, P(v3 = 1) = 0.5.
    prior = prior_of(sampled)
    assert prior[2][1] == pytest.approx(0.095, abs=0.01)
    assert parents_to_free(layout, {2: 1, 3: 1}, prior) == [0]
    assert parents_to_free(layout, {2: 0, 3: 1}, prior) == []


def test_learning_rates() -> None:
    assert rate("ais-bn", 0) == 0.4
    assert rate("ais-bn", STAGES) == pytest.approx(0.14)
    # The mean of the table and of the stages so far.
    assert [rate("sis", stage) for stage in range(3)] == [1 / 2, 1 / 3, 1 / 4]


def test_states_with_many_values_have_room() -> None:
    wide = np.full((1, 200), 1 / 200)
    sampled, _, case = case_of(network_of([((0,), wide[0])], [200]), {}, {}, False)
    states = sampling.draw(sampled.tables, case, RandomStream(0, 0, 0), 0, 4096)
    assert case.nodes[0, STATES] == 200
    assert states.max() > 190
