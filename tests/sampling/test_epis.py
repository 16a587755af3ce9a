"""Importance functions from loopy belief propagation: exact in trees, never without support."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import oracle
from helpers.sampling_cases import Hard, Soft, case_of, mixed, network_of, rows
from hypothesis import example, given
from hypothesis import strategies as st
from junctor.model.network import Network
from junctor.model.query import Query, Sampling
from junctor.sampling.cases import CaseLayout
from junctor.sampling.engine import SamplingEngine
from junctor.sampling.epis import SWEEPS, beliefs_of, epis_function
from junctor.sampling.estimate import estimate_of
from junctor.sampling.importance import SMALLEST_LATER, least_of, lifted
from junctor.sampling.tables import SampledNetwork
from junctor_kernels.sampling import cpu as sampling_cpu
from junctor_kernels.sampling import loopy as beliefs
from junctor_kernels.sampling.layout import FULL, Floats, Function, SampledCase, Tables
from junctor_kernels.sampling.philox import RandomStream
from junctor_kernels.sampling.thresholds import shape

# Zeros, and numbers down to where products of two of them are not normal any more.
TINY = st.one_of(st.just(0.0), st.floats(1e-160, 1.0), st.floats(0.001, 1.0))


def evidence_below(sampled: SampledNetwork, layout: CaseLayout, case: SampledCase) -> dict[int, Floats]:
    """Return what messages say of each variable that is weighed."""
    pattern = beliefs_of(layout)
    links, own = pattern.of(case)
    found = beliefs.propagate(links, sampled.tables.probabilities, own, SWEEPS)
    cards = [sampled.network.cardinalities[layout.drawn[n]] for n in pattern.nodes]
    return {
        layout.drawn[n]: each for n, each in zip(pattern.nodes, np.split(found, np.cumsum(cards)[:-1]), strict=True)
    }


def loopy(network: Network, layout: CaseLayout, hard: Hard, soft: Soft, sweeps: int) -> dict[int, Floats]:
    """Return the same over whole tables, observed variables among them, by sums over all axes but one."""
    order = [v for v in [*layout.drawn, *hard] if v in layout.weighed or v in hard]
    done: list[int] = []
    while len(done) < len(order):
        done += [v for v in order if v not in done and set(network.factors[v].scope[:-1]) & set(order) <= set(done)]
    cards = network.cardinalities
    links = {(p, v) for v in done for p in network.factors[v].scope[:-1]}
    up, down = ({link: np.ones(cards[link[0]]) for link in links} for _ in range(2))
    own = {v: soft.get(v, np.ones(cards[v])) for v in done} | {v: np.eye(cards[v])[s] for v, s in hard.items()}

    def into(v: int, target: int, mine: Floats) -> Floats:
        scope = network.factors[v].scope
        said = [down[p, v] for p in scope[:-1]] + [mine]
        operands = [each for u, message in zip(scope, said, strict=True) if u != target for each in (message, [u])]
        return normal(np.einsum(network.factors[v].table, list(scope), *operands, [target]))

    def heard(v: int, leave: int | None = None) -> Floats:
        return np.prod([own[v], *(up[p, c] for p, c in links if p == v and c != leave)], axis=0)

    for _ in range(sweeps):
        for v in done:
            prior = into(v, v, np.ones(cards[v]))
            for p, c in links:
                if p == v:
                    # What is observed stays so, also where it is impossible and products are zero.
                    down[p, c] = own[v] if v in hard else normal(prior * heard(v, c))
        for v in reversed(done):
            mine = own[v] if v in hard else normal(heard(v))
            for p in network.factors[v].scope[:-1]:
                up[p, v] = into(v, p, mine)
    return {v: normal(heard(v)) for v in layout.weighed}


def normal(numbers: Floats) -> Floats:
    total = numbers.sum()
    return numbers / total if total > 0 else np.full(len(numbers), 1 / len(numbers))


def without_loops(joined: bool) -> tuple[Network, Hard, Soft]:
    """Seven variables; v2 has one parent, or two if `joined`, v3 and v4 hang below it, v5 and v6 stand apart."""
    rng = np.random.default_rng(2)
    cards = (2, 3, 3, 2, 4, 2, 2)
    tables = []
    for scope in ((0,), (1,) if joined else (0, 1), (0, 1, 2) if joined else (0, 2), (2, 3), (2, 4), (5,), (5, 6)):
        shape = [cards[v] for v in scope]
        values = rng.random(shape) + 0.2
        tables.append((scope, values / values.sum(axis=-1, keepdims=True)))
    return network_of(tables, cards), {3: 1, 6: 0}, {4: np.array([0.2, 1.0, 0.5, 0.1])}


def test_a_tree_is_drawn_from_its_posterior() -> None:
    network, hard, soft = without_loops(joined=False)
    sampled, layout, case = case_of(network, hard, soft, True)
    function = epis_function(sampled, beliefs_of(layout), case, False)
    sums = sampling_cpu.sums(case, function, RandomStream(0, 0, 0), 0, 5_000, 0.0)
    found = estimate_of([sums], [0], case.certain)
    log, _ = oracle.enumerate_posteriors(network, hard, soft)
    assert found is not None
    # All weights are the same: P(e) is exact, and every sample counts in full.
    assert found.log_evidence == pytest.approx(log, abs=1e-8)
    assert found.effective == pytest.approx(5_000, rel=1e-6)


def test_a_quarter_of_the_samples_costs_at_most_that() -> None:
    network, hard, soft = without_loops(joined=False)
    engine = SamplingEngine(network, Query(method="sampling", sampling=Sampling("epis-bn", 5_120)))
    found = engine.estimate(hard, soft)[2]
    log, _ = oracle.enumerate_posteriors(network, hard, soft)
    assert found is not None
    assert abs(found.log_evidence - log) < 6 * found.log_error
    # Weights by the mixture are at most 4 / 3 of those of the function alone.
    assert found.effective > 0.75 * 5_120
    assert found.samples == 5_120


def test_what_is_said_below_is_the_probability_of_evidence_there() -> None:
    network, hard, soft = without_loops(joined=True)
    sampled, layout, case = case_of(network, hard, soft, True)
    below = evidence_below(sampled, layout, case)
    for v in (0, 1, 2):
        said = []
        for state in range(network.cardinalities[v]):
            log, _ = oracle.enumerate_posteriors(network, {**hard, v: state}, soft)
            prior, _ = oracle.enumerate_posteriors(network, {v: state}, {})
            said.append(np.exp(log - prior))
        expected = np.array(said) / sum(said)
        np.testing.assert_allclose(below[v] / below[v].sum(), expected, rtol=2e-6)


def impossible() -> tuple[Network, Hard, Soft]:
    """A finding that has no probability beside one below it."""
    below = [[[0.5, 0.5], [0.5, 0.5]], [[0.5, 0.5], [1.0, 0.0]]]
    tables = [((0,), [0.5, 0.5]), ((0, 2, 1), below), ((0, 2), [[1.0, 0.0], [1.0, 0.0]])]
    return network_of(tables, (2, 2, 2)), {1: 0, 2: 1}, {}


def contradictory() -> tuple[Network, Hard, Soft]:
    """Two children of one node that contradict each other, beside a third one that does not."""
    tables = [
        ((0,), [0.25, 0.5, 0.25]),
        ((0, 1), [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]),
        ((0, 2), [[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]),
        ((0, 3), [[0.1, 0.9], [0.4, 0.6], [0.5, 0.5]]),
    ]
    return network_of(tables, (3, 2, 2, 2)), {1: 0, 2: 0, 3: 1}, {}


@example(impossible())
@example(contradictory())
@given(rows())
def test_messages_are_those_over_whole_tables(row: tuple[Network, Hard, Soft]) -> None:
    network, hard, soft = row
    sampled, layout, case = case_of(network, hard, soft, True)
    if case.certain == -np.inf or not layout.weighed:
        return
    found, expected = evidence_below(sampled, layout, case), loopy(network, layout, hard, soft, SWEEPS)
    for v in layout.weighed:
        np.testing.assert_allclose(normal(found[v]), expected[v], rtol=3e-6, atol=1e-300)


@given(rows())
def test_every_possible_state_can_be_drawn(row: tuple[Network, Hard, Soft]) -> None:
    network, hard, soft = row
    sampled, layout, case = case_of(network, hard, soft, True)
    if not layout.weighed:
        return
    below = evidence_below(sampled, layout, case)
    for logs in (False, True):
        function = epis_function(sampled, beliefs_of(layout), case, logs)
        for n, v in enumerate(layout.drawn):
            if v in layout.weighed:
                card, entry, span = network.cardinalities[v], case.nodes[n, 1], case.spans[n]
                where = slice(entry, entry + card * span)
                table, ratios = sampled.tables.probabilities[where], function.ratios[where]
                ratios = np.exp(ratios) if logs else ratios
                assert ((ratios > 0) == (table > 0)).all()
                widths = np.divide(table * FULL, ratios, out=np.zeros_like(table), where=table > 0)
                rows_of_table = table.reshape(span, card)
                expected = lifted(with_evidence(rows_of_table, below[v]), SMALLEST_LATER, rows_of_table)
                np.testing.assert_allclose(widths / FULL, expected.ravel(), atol=1e-8)


def with_evidence(table: Floats, said: Floats) -> Floats:
    """Return a table times what is said of its child, rows of it that are left without anything as they were."""
    product = table * said
    total = product.sum(axis=-1, keepdims=True)
    return np.where(total > 0, product / np.where(total > 0, total, 1.0), table)


def test_rows_that_evidence_leaves_nothing_of_stay_as_they_were() -> None:
    table = np.array([[1.0, 0.0], [0.3, 0.7]])
    np.testing.assert_allclose(with_evidence(table, np.array([0.0, 1.0])), [[1.0, 0.0], [0.0, 1.0]])


@given(st.lists(st.tuples(TINY, TINY), min_size=1, max_size=20), TINY, TINY, st.booleans())
def test_pairs_of_states_are_shaped_as_any_number_of_them(
    rows: list[tuple[float, float]], one: float, other: float, logs: bool
) -> None:
    table = np.array([row if sum(row) else (1.0, 0.0) for row in rows])
    table /= table.sum(axis=1, keepdims=True)
    # A third state that nobody can be in changes nothing but what the order says.
    wide = np.concatenate([table, np.zeros((len(table), 1))], axis=1)
    pair, three = (shaped(each, np.array([one, other, 0.5])[: each.shape[1]], logs) for each in (table, wide))
    swapped = three.order.reshape(-1, 3)[:, 0] == 1
    cuts = three.thresholds.reshape(-1, 2)[:, 0]
    assert (pair.thresholds == np.where(swapped, FULL - cuts.astype(np.int64), cuts)).all()
    assert (pair.ratios.reshape(-1, 2) == three.ratios.reshape(-1, 3)[:, :2]).all()
    assert (pair.order.reshape(-1, 2) == [0, 1]).all()


def shaped(table: Floats, below: Floats, logs: bool) -> Function:
    rows, states = table.shape
    case = a_node(rows, states)
    numbered = np.zeros((1, beliefs.TABLE_COLUMNS), dtype=np.int32)
    empty = np.zeros((0, 4), dtype=np.int32)
    links = beliefs.Links(numbered, empty, empty[:, 0], empty[:, :3], states, 0)
    function = Function(
        np.zeros(rows * (states - 1), np.uint32), np.zeros(rows * states, np.uint8), table, np.zeros(table.size),
        np.zeros(0), logs, Tables(table, np.zeros(0, np.uint32), np.zeros(0, np.uint8)),
    )  # fmt: skip
    shape(case, np.zeros((1, 2), np.int32), links, table.ravel(), below, np.array([0.006]), function)
    return function


def a_node(rows: int, states: int) -> SampledCase:
    """A case of one node with so many rows in its table."""
    node = np.zeros((1, 8), dtype=np.int32)
    node[0, 2] = states
    nothing = np.zeros((0, 4), dtype=np.int32)
    spans = np.array([rows], dtype=np.int32)
    return SampledCase(
        node, nothing, nothing, np.array([0, 1], np.int32), spans, nothing, np.zeros(0), 0.0, 1, 0.0, 0.0
    )


def test_functions_are_the_same_for_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("junctor.sampling.epis.PIECE_ENTRIES", 8)
    sampled, layout, case = case_of(mixed(), {6: 1, 3: 0}, {1: np.array([0.1, 1.0, 0.4])}, True)
    one, two = (epis_function(sampled, beliefs_of(layout), case, False, threads) for threads in (1, 2))
    assert (one.thresholds == two.thresholds).all()
    assert (one.order == two.order).all()


def test_numbers_keep_twenty_bits() -> None:
    numbers = np.array([0.0, 1.0, 1 / 3, 1e-300])
    found = beliefs.rounded(numbers)
    assert (found[:2] == numbers[:2]).all()
    np.testing.assert_allclose(found, numbers, rtol=2.0**-21)
    assert (np.abs(found[2:] / numbers[2:] - 1) > 0).all()
    assert [least_of(states) for states in (2, 4, 5, 8, 9, 256)] == [0.006, 0.006, 0.001, 0.001, 0.0005, 0.0005]
