"""Expected counts against sums over all states, whatever the network, the evidence, the threads and the pieces."""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import numpy.typing as npt
import pytest
from helpers.expected_counts import sampled
from helpers.oracle import joint_table
from helpers.strategies import evidence_batches, networks, row_evidence
from hypothesis import given
from hypothesis import strategies as st
from junctor import generate
from junctor.evidence.batch import EvidenceBatch
from junctor.learning import observations
from junctor.learning.observations import Observations, gather, observe, split_rows, values_of
from junctor.model.errors import BudgetError, EvidenceError, ModelError
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor_kernels.row_trees import components as split
from junctor_kernels.row_trees import counts as kernel

Floats = npt.NDArray[np.float64]


def enumerated(network: Network, batch: EvidenceBatch, weights: Floats) -> tuple[Floats, float, tuple[int, ...]]:
    """Return expected counts, log-likelihood and impossible rows by sums over all states."""
    counts = [np.zeros(factor.table.shape) for factor in network.factors]
    log_likelihoods, impossible = [], []
    for row in range(batch.rows):
        if row in batch.invalid or not weights[row]:
            continue
        joint = joint_table(network, *row_evidence(batch, row))
        power = joint.power.max()
        if power < -(2**30):
            impossible.append(row)
            continue
        shares = np.ldexp(joint.mantissa, np.maximum(joint.power - power, -5000).astype(np.int32))
        log_likelihoods.append(weights[row] * (math.log(shares.sum()) + float(power) * math.log(2)))
        shares /= shares.sum()
        for table, factor in zip(counts, network.factors, strict=True):
            others = tuple(v for v in range(shares.ndim) if v not in factor.scope)
            family = shares.sum(axis=others)
            here = sorted(factor.scope)
            table += weights[row] * family.transpose([here.index(v) for v in factor.scope])
    return np.concatenate([table.ravel() for table in counts]), math.fsum(log_likelihoods), tuple(impossible)


def bytes_of(found: Observations, values: Floats) -> tuple[bytes, float]:
    """Return what must not change."""
    expected = found.expect(values)
    return expected.counts.tobytes(), expected.log_likelihood


def test_small_components_need_no_code_of_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    # Four variables of three states at most: 81 states.
    network = generate.random_network(4, (2, 3), seed=1)
    random = np.random.default_rng(1)
    states = {v: random.integers(-1, size, 40, dtype=np.int32) for v, size in enumerate(network.cardinalities)}
    values = values_of(network)
    asked, count = [], kernel.count

    def counted(*args: object) -> int:
        asked.append(1)
        return int(count(*args))

    monkeypatch.setattr(kernel, "count", counted)
    alone = bytes_of(observe(network, [EvidenceBatch(40, states)]), values)
    assert not asked
    # Both ways the same, in the same order.
    monkeypatch.setattr(kernel, "enumerate_components", lambda _families, _store, _part, at, *_: at)
    assert bytes_of(observe(network, [EvidenceBatch(40, states)]), values) == alone
    assert asked


def test_components_that_may_have_lost_digits_go_on_with_trees() -> None:
    # Products of six numbers leave the range; the first rows do not.
    network = generate.random_network(6, (2, 2), seed=1)
    random = np.random.default_rng(1)
    states = {v: random.integers(-1, size, 40, dtype=np.int32) for v, size in enumerate(network.cardinalities)}
    found = observe(network, [EvidenceBatch(40, states)])
    values = values_of(network)
    tiny = found.expect(np.where(values > 0.5, values, values * 1e-80))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "enumerate_components", lambda _families, _store, _part, at, *_: at)
        expected = observe(network, [EvidenceBatch(40, states)]).expect(np.where(values > 0.5, values, values * 1e-80))
    np.testing.assert_array_equal(tiny.counts, expected.counts)
    assert tiny.log_likelihood == expected.log_likelihood


@pytest.mark.parametrize("states", [observations.ENUMERATED, 0])
@given(st.data())
def test_any_network_and_evidence(states: int, data: st.DataObject) -> None:
    network = data.draw(networks(kind="bayes"))
    batch = data.draw(evidence_batches(network))
    drawn = st.lists(st.sampled_from((1.0, 0.0, 2.0, 0.3)), min_size=batch.rows, max_size=batch.rows)
    weights = np.array(data.draw(drawn))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observations, "ENUMERATED", states)
        found = observe(network, [batch], [weights])
        counts, log_likelihood, impossible = enumerated(network, batch, weights)
        assert found.impossible == impossible
        expected = found.expect(values_of(network))
    taken = [row for row in range(batch.rows) if row not in (*batch.invalid, *impossible) and weights[row]]
    assert found.rows == len(taken)
    assert found.weight == pytest.approx(math.fsum(weights[taken]), rel=1e-15)
    np.testing.assert_allclose(expected.counts, counts, rtol=1e-12, atol=1e-13 * max(1.0, found.weight))
    assert expected.log_likelihood == pytest.approx(log_likelihood, rel=1e-11, abs=1e-11)


def rows_of(batch: EvidenceBatch, rows: slice) -> EvidenceBatch:
    """Return some rows of a batch without likelihoods."""
    states = {v: column[rows] for v, column in batch.states.items()}
    return EvidenceBatch(len(range(batch.rows)[rows]), states)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> tuple[Network, EvidenceBatch]:
    """A network and rows that take several pieces and enlargements of stores."""
    for name, value in (("PIECE_ROWS", 100), ("ROOM", 2), ("CHUNK_FACTORS", 50)):
        monkeypatch.setattr(observations, name, value)
    network = generate.random_network(12, seed=3)
    return network, sampled(network, 700, 0.4, 5)


@pytest.mark.parametrize("states", [observations.ENUMERATED, 2])
def test_threads_change_nothing(
    states: int, small: tuple[Network, EvidenceBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observations, "ENUMERATED", states)
    network, batch = small
    found = {
        bytes_of(observe(network, [batch], options=ComputeOptions(threads=threads)), values_of(network))
        for threads in (1, 2, 5)
    }
    assert len(found) == 1


def test_pieces_and_batches_change_rounding_alone(
    small: tuple[Network, EvidenceBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, batch = small
    in_pieces = observe(network, [rows_of(batch, slice(0, 333)), rows_of(batch, slice(333, 700))])
    monkeypatch.undo()
    whole = observe(network, [batch])
    values = values_of(network)
    one, other = in_pieces.expect(values), whole.expect(values)
    np.testing.assert_allclose(one.counts, other.counts, rtol=1e-14)
    assert one.log_likelihood == pytest.approx(other.log_likelihood, rel=1e-14)
    # Rows that repeat cost nothing.
    assert observe(network, [batch, batch]).components == whole.components


def test_a_weight_is_so_many_rows() -> None:
    network = generate.random_network(8, seed=1)
    batch = sampled(network, 60, 0.3, 2)
    values = values_of(network)
    twice = observe(network, [batch, batch]).expect(values)
    weighted = observe(network, [batch], [np.full(60, 2.0)]).expect(values)
    np.testing.assert_allclose(weighted.counts, twice.counts, rtol=1e-14)
    assert weighted.log_likelihood == pytest.approx(twice.log_likelihood)


def test_complete_rows_are_counted_plainly() -> None:
    network = generate.random_network(9, seed=4)
    batch = sampled(network, 500, 0.0, 6)
    found = observe(network, [batch])
    assert found.components == 0
    counts = found.expect(values_of(network)).counts
    place = 0
    for factor in network.factors:
        table = np.zeros(factor.table.shape)
        np.add.at(table, tuple(batch.states[v] for v in factor.scope), 1.0)
        np.testing.assert_array_equal(counts[place : place + table.size], table.ravel())
        place += table.size


@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_complete_rows_need_no_compiled_code_and_are_the_same_to_the_bit(
    zeros: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three pieces, with weights of 0, and rows with a gap that have none; other weights are counted as others."""
    network = generate.layered(3, 3, states=(2, 3), zeros=zeros, seed=4)
    batch, rng = sampled(network, 300, 0.0, 6), np.random.default_rng(1)
    weights = rng.integers(0, 5, 300).astype(float)
    batch.states[0][weights == 0] = -1
    values = values_of(network)
    monkeypatch.setattr(observations, "PIECE_ROWS", 100)
    with monkeypatch.context() as patch:
        patch.setattr(observations, "_are_plain", lambda *_: False)
        compiled = bytes_of(observe(network, [batch, batch], [weights, weights]), values)
    with monkeypatch.context() as patch:
        for module, name in ((split, "split"), (split, "merge"), (kernel, "count")):
            patch.setattr(module, name, None)
        assert bytes_of(observe(network, [batch, batch], [weights, weights]), values) == compiled
        for other in (weights + 0.5, weights * 2.0**53):
            with pytest.raises(TypeError, match="'NoneType' object is not callable"):
                observe(network, [batch], [other])
    assert observe(network, [batch], [weights * 0.3]).weight == pytest.approx(weights.sum() * 0.3)


def test_other_numbers_than_those_of_the_network() -> None:
    network = generate.random_network(7, seed=8)
    other = generate.random_network(7, seed=8)
    values = np.concatenate([np.roll(factor.table, 1, axis=-1).ravel() for factor in other.factors])
    shifted = Network(
        "shifted",
        network.variables,
        tuple(type(factor)(factor.scope, np.roll(factor.table, 1, axis=-1).copy()) for factor in network.factors),
    )
    batch = sampled(network, 40, 0.5, 1)
    counts, log_likelihood, _ = enumerated(shifted, batch, np.ones(40))
    expected = observe(network, [batch]).expect(values)
    np.testing.assert_allclose(expected.counts, counts, rtol=1e-12)
    assert expected.log_likelihood == pytest.approx(log_likelihood, rel=1e-12)


def test_rows_that_become_impossible_make_the_likelihood_zero() -> None:
    network = generate.random_network(3, seed=2)
    values = values_of(network)
    batch = EvidenceBatch(1, {0: np.zeros(1, np.int32)})
    values[: network.factors[0].table.size] = 0.0
    assert observe(network, [batch]).expect(values).log_likelihood == -math.inf


def test_little_memory_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    network = generate.random_network(10, seed=9)
    batch = sampled(network, 30, 0.9, 3)
    values = values_of(network)
    monkeypatch.setattr(observations, "ENUMERATED", 0)
    whole = observe(network, [batch]).expect(values)
    monkeypatch.setattr(observations, "ARENA_ENTRIES", 8)
    assert observe(network, [batch]).expect(values).counts.tobytes() == whole.counts.tobytes()
    monkeypatch.setattr(observations, "most_entries", lambda *_: 8)
    alone = observe(network, [batch]).expect(values)
    np.testing.assert_allclose(alone.counts, whole.counts, rtol=1e-11)
    assert alone.log_likelihood == pytest.approx(whole.log_likelihood, rel=1e-12)


def test_what_is_refused() -> None:
    grid = generate.grid(2, 2)
    with pytest.raises(ModelError, match="no families"):
        observe(grid, [])
    network = generate.random_network(2, seed=1)
    batch = EvidenceBatch(2, {})
    for weights in ([1.0], [1.0, -1.0], [1.0, math.nan], [math.inf, 1.0]):
        with pytest.raises(EvidenceError, match="weights"):
            observe(network, [batch], [np.array(weights)])


def test_no_rows_at_all() -> None:
    network = generate.random_network(4, seed=1)
    for batches in ([], [EvidenceBatch(0)]):
        found = observe(network, batches)
        expected = found.expect(values_of(network))
        assert (found.rows, found.weight, expected.log_likelihood) == (0, 0.0, 0.0)
        assert not expected.counts.any()


def test_rows_with_nothing_observed_give_the_prior() -> None:
    network = generate.random_network(5, seed=6)
    batch = EvidenceBatch(3, {})
    expected = observe(network, [batch]).expect(values_of(network))
    joint = np.zeros(network.cardinalities)
    for states in itertools.product(*map(range, network.cardinalities)):
        joint[states] = math.prod(factor.table[tuple(states[v] for v in factor.scope)] for factor in network.factors)
    place = 0
    for factor in network.factors:
        family = joint.sum(axis=tuple(v for v in range(joint.ndim) if v not in factor.scope))
        here = sorted(factor.scope)
        family = family.transpose([here.index(v) for v in factor.scope])
        np.testing.assert_allclose(expected.counts[place : place + family.size], 3 * family.ravel(), rtol=1e-12)
        place += family.size
    assert expected.log_likelihood == pytest.approx(0.0, abs=1e-12)


@given(st.data())
def test_batches_with_likelihoods_are_gathered(data: st.DataObject) -> None:
    network = data.draw(networks(kind="bayes", max_variables=4))
    batches = [data.draw(evidence_batches(network, max_rows=4)) for _ in range(3)]
    found = observe(network, batches)
    expected = found.expect(values_of(network))
    counts, log_likelihoods, impossible, before = np.zeros(len(expected.counts)), [], [], 0
    for batch in batches:
        some, log_likelihood, rows = enumerated(network, batch, np.ones(batch.rows))
        counts += some
        log_likelihoods.append(log_likelihood)
        impossible += [before + row for row in rows]
        before += batch.rows
    assert found.impossible == tuple(impossible)
    np.testing.assert_allclose(expected.counts, counts, rtol=1e-12, atol=1e-13 * max(1.0, found.weight))
    assert expected.log_likelihood == pytest.approx(math.fsum(log_likelihoods), rel=1e-11, abs=1e-11)
    # As by workers, in the order of the batches.
    apart = gather(network, [pickle.loads(pickle.dumps(split_rows(network, batch))) for batch in batches])
    assert bytes_of(apart, values_of(network)) == bytes_of(found, values_of(network))


def test_gaps_that_take_too_much_memory_are_refused() -> None:
    network = generate.random_network(12, seed=3)
    batch = sampled(network, 2000, 0.4, 5)
    with pytest.raises(BudgetError, match=r"2,000 rows take .* bytes\), allowed are .* \(65,536 bytes\): .*--memory"):
        observe(network, [batch], options=ComputeOptions(memory=1 << 16))
