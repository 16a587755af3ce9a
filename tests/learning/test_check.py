"""What held-out rows say: cells against enumeration, bins by hand, bounds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.expected_counts import enumerate_counts
from helpers.strategies import evidence_batches, networks
from hypothesis import given
from hypothesis import strategies as st
from junctor import generate
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.learning import check
from junctor.learning.check import HoldoutCheck, check_holdout, row_logs
from junctor.learning.pieces import HeldOut
from junctor.model.network import Factor, Network
from junctor.model.options import ONE_THREAD, ComputeOptions


def other(network: Network, seed: int = 0) -> Network:
    """Return the network with other numbers and the same zeros."""
    rng = np.random.default_rng(seed)
    factors = []
    for factor in network.factors:
        table = np.where(factor.table > 0, rng.uniform(0.1, 1.0, factor.table.shape), 0.0)
        factors.append(Factor(factor.scope, table / table.sum(axis=-1, keepdims=True)))
    return Network(network.name, network.variables, tuple(factors), network.kind)


def sampled(network: Network, rows: int, missing: float = 0.3, seed: int = 1) -> HeldOut:
    cells = generate.sample(network, rows, seed)
    cells[np.random.default_rng(seed).random(cells.shape) < missing] = UNOBSERVED
    return HeldOut(EvidenceBatch(rows, {v: cells[:, v].copy() for v in range(cells.shape[1])}), np.ones(rows))


def log_of(network: Network, batch: EvidenceBatch, row: int, changed: dict[int, int]) -> float:
    """Return log P of a row with some cells changed, by enumeration."""
    states = {v: column[row : row + 1].copy() for v, column in batch.states.items()}
    for v, state in changed.items():
        states[v][0] = state
    soft = {
        v: SoftEvidence(np.zeros(1, dtype=np.int64), each.values[each.rows == row])
        for v, each in batch.likelihoods.items()
        if (each.rows == row).any()
    }
    _, log_likelihood, impossible = enumerate_counts(network, EvidenceBatch(1, states, soft))
    return -math.inf if impossible else log_likelihood


@given(st.data())
def test_cells_are_those_of_enumeration(data: Any) -> None:
    network = data.draw(networks(kind="bayes"))
    batch = data.draw(evidence_batches(network, max_rows=4))
    batch = EvidenceBatch(batch.rows, batch.states, batch.likelihoods)
    weights = np.array(data.draw(st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=batch.rows, max_size=batch.rows)))
    both = network, other(network)
    found = check_holdout(*both, [HeldOut(batch, weights)], ONE_THREAD)
    logs = [[log_of(each, batch, row, {}) for row in range(batch.rows)] for each in both]
    possible = [row for row in range(batch.rows) if weights[row] and np.isfinite([logs[0][row], logs[1][row]]).all()]
    assert found.rows == len(possible)
    for each, mean in zip(logs, found.log_likelihoods, strict=True):
        expected = [weights[row] * each[row] for row in possible]
        assert (math.fsum(expected) / weights[possible].sum() if possible else math.nan) == pytest.approx(
            mean, rel=1e-9, abs=1e-9, nan_ok=True
        )
    pairs: list[list[tuple[float, float, float]]] = [[], []]
    cells = scored = weight = 0.0
    scores = [0.0, 0.0]
    for row in range(batch.rows):
        for v, column in batch.states.items():
            if weights[row] == 0 or column[row] == UNOBSERVED:
                continue
            posteriors = []
            for each in both:
                of_states = [log_of(each, batch, row, {v: state}) for state in range(network.variables[v].cardinality)]
                top = max(of_states)
                numbers = [math.exp(log - top) for log in of_states] if top > -math.inf else []
                posteriors.append([number / sum(numbers) for number in numbers])
            if not all(posteriors):
                continue
            cells += 1
            truth = int(column[row])
            if posteriors[0][truth] > 0 and posteriors[1][truth] > 0:
                weight += weights[row]
                scored += 1
                for n in range(2):
                    scores[n] += weights[row] * math.log(posteriors[n][truth])
            for n in range(2):
                pairs[n] += [(p, float(state == truth), weights[row]) for state, p in enumerate(posteriors[n])]
    assert found.cells == cells
    if not cells:
        assert found.after is None
        return
    for n, each in enumerate((found.before, found.after)):
        assert each is not None
        assert sum(bin.states for bin in each.bins) == len(pairs[n])
        assert sum(bin.weight for bin in each.bins) == pytest.approx(1.0)
        total = sum(w for _, _, w in pairs[n])
        assert sum(b.weight * b.predicted for b in each.bins) == pytest.approx(
            sum(p * w for p, _, w in pairs[n]) / total
        )
        assert sum(b.weight * b.seen for b in each.bins) == pytest.approx(sum(h * w for _, h, w in pairs[n]) / total)
        if scored:
            assert each.score == pytest.approx(scores[n] / weight, rel=1e-9, abs=1e-9)
        else:
            assert math.isnan(each.score)


def test_a_network_that_the_rows_are_from_is_calibrated() -> None:
    network = generate.random_network(8, states=3, seed=3)
    held_out = [sampled(network, 1500, seed=seed) for seed in (1, 2)]
    told: list[tuple[int, int, float | None]] = []
    found = check_holdout(other(network), network, held_out, ONE_THREAD, watch=lambda *at: told.append(at))
    assert told[0][0] == 0
    assert told[0][2] is None
    assert (told[-1][0], told[-1][2]) == (told[-1][1], 0.0)
    assert told[-1][1] == 2 * 3 * (found.cells + found.other_cells)
    assert found.before is not None
    assert found.after is not None
    assert found.gain > 5 * found.error > 0
    assert found.after.error < 2.5 * found.after.by_chance
    assert found.before.error > 4 * found.after.error
    assert found.after.score > found.before.score
    assert found.after.hits > found.before.hits
    assert found.rows == 3000
    assert found.impossible == (0, 0)


def test_what_became_impossible_is_counted() -> None:
    network = generate.random_network(2, states=2, seed=1)
    factors = list(network.factors)
    certain = np.zeros_like(factors[0].table)
    certain[..., 0] = 1.0
    factors[0] = Factor(factors[0].scope, certain)
    after = Network(network.name, network.variables, tuple(factors), network.kind)
    batch = EvidenceBatch(4, {0: np.array([0, 1, 1, 0], dtype=np.int32), 1: np.array([0, 0, 1, 1], dtype=np.int32)})
    found = check_holdout(network, after, [HeldOut(batch, np.ones(4))], ONE_THREAD)
    assert (found.rows, found.impossible) == (2, (0, 2))
    # The cells of variable 1 in rows that are impossible without them say nothing.
    assert (found.cells, found.other_cells) == (6, 2)
    assert found.after is not None
    assert math.isfinite(found.after.score)


def test_rows_without_any_cell() -> None:
    network = generate.random_network(2, states=2, seed=1)
    empty = HeldOut(EvidenceBatch(3), np.ones(3))
    for held_out in ([], [empty], [HeldOut(sampled(network, 3).batch, np.zeros(3))]):
        found = check_holdout(network, network, held_out, ONE_THREAD)
        assert (found.cells, found.after) == (0, None)
    assert check_holdout(network, network, [empty], ONE_THREAD).rows == 3


def test_cells_are_bounded_and_do_not_depend_on_batches_or_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    network = generate.random_network(6, states=3, seed=5)
    whole = sampled(network, 400)
    pieces = []
    for start in range(0, 400, 130):
        states = {v: column[start : start + 130] for v, column in whole.batch.states.items()}
        rows = len(states[0])
        pieces.append(HeldOut(EvidenceBatch(rows, states), np.ones(rows)))
    monkeypatch.setattr(check, "MOST_CELLS", 100)

    def found(held_out: list[HeldOut], threads: int, seed: int = 0) -> HoldoutCheck:
        return check_holdout(network, other(network), held_out, ComputeOptions(threads=threads), seed)

    one = found([whole], 1)
    assert one.cells == 100
    assert found([whole], 3) == one
    # The rows of a small batch are answered by other code: last digits of log P(e) are its own.
    apart = found(pieces, 2)
    assert apart.log_likelihoods == pytest.approx(one.log_likelihoods, rel=1e-14)
    assert replace(apart, log_likelihoods=one.log_likelihoods) == one
    assert found([whole], 1, seed=7).before != one.before
    monkeypatch.setattr(check, "MOST_QUESTIONS", 30)
    assert found([whole], 1).cells == 10
    monkeypatch.setattr(check, "MOST_ROWS", 1)
    assert found([whole], 1).cells <= 6
    monkeypatch.setattr(check, "PIECE_ROWS", 1)
    assert found([whole], 1).cells <= 6


def test_logs_of_rows() -> None:
    network = generate.random_network(4, states=2, seed=5)
    held_out = [sampled(network, 10, seed=seed) for seed in (1, 2)]
    logs = row_logs(network, held_out, ONE_THREAD)
    expected = [log_of(network, each.batch, row, {}) for each in held_out for row in range(10)]
    np.testing.assert_allclose(logs, expected, rtol=1e-12)
