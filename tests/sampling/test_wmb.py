"""Weighted mini-buckets against enumeration: bounds, weights of samples, intervals that hold as often as they say."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import reduce
from typing import Any

import junctor
import numpy as np
import pytest
from helpers import oracle
from helpers.options import on_cpu
from helpers.strategies import evidence_batches, networks, row_evidence
from hypothesis import given, settings
from hypothesis import strategies as st
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch, SoftEvidence
from junctor.generate import grid, layered
from junctor.model.answers import IMPOSSIBLE, MISSED, OK, UNRELIABLE, SampledAnswers
from junctor.model.errors import BudgetError
from junctor.model.network import Factor, Network, Variable
from junctor.model.options import ComputeOptions
from junctor.model.query import Query, Sampling
from junctor.sampling import bounded
from junctor.sampling.bounded import BoundedEngine
from junctor.sampling.intervals import log_bounds, posterior_intervals
from junctor.sampling.mini_buckets import plan_buckets
from junctor.sampling.proposal import BoundedProposal, proposal_of, sums_of
from junctor.sampling.wmb import BoundedElimination, tightened, weighted_of
from junctor_kernels.sampling.layout import Sums, add

# Rounding of a few thousand operations.
CLOSE = 1e-9


@st.composite
def weighed_networks(draw: st.DrawFn) -> tuple[Network, dict[int, int], dict[int, Any], int, int]:
    """A network, evidence, a budget of entries down to single functions, and a number of passes."""
    network = draw(networks(max_variables=6, max_joint=300))
    hard, soft = row_evidence(draw(evidence_batches(network, max_rows=1, min_rows=1, invalid=False)), 0)
    return network, hard, soft, draw(st.sampled_from((1, 8, 32, 4096))), draw(st.integers(0, 3))


def eliminated(
    network: Network, hard: dict[int, int], soft: dict[int, Any], entries: int, passes: int
) -> tuple[BoundedElimination, float, BoundedProposal, bool]:
    """Return elimination, log of the bound, proposal, and whether a bucket was split, as the engine makes them."""
    query = Query(method="sampling", sampling=Sampling("wmb", table_entries=entries))
    engine = BoundedEngine(network, query, on_cpu(1 << 28))
    layout = engine._layout(bounded._pattern(hard, soft))
    logs, certain = engine._logs(layout, hard, soft)
    start = weighted_of(layout.plan, layout.scopes, logs, network.cardinalities)
    found = tightened(layout.plan, start, passes)
    proposal = proposal_of(layout.plan, found, network.cardinalities)
    return found, found.bound + certain, proposal, layout.plan.split > 0


def chances(proposal: BoundedProposal, states: dict[int, int]) -> Iterator[list[float]]:
    """Yield the chances of the states of each variable of a proposal, in its order, given those drawn before."""
    for card, parts in zip(proposal.cards, proposal.conditionals, strict=True):
        mixed = [0.0] * card
        for part in parts:
            row = 0
            for v in part.given:
                row = row * proposal.cards[proposal.variables.index(v)] + states[v]
            said = part.table[:, row]
            for state in range(card):
                mixed[state] += float(said[state] if len(parts) == 1 else part.weight * math.exp(said[state]))
        yield mixed


@given(weighed_networks())
@settings(max_examples=60)
def test_the_bound_is_above_and_samples_weigh_what_they_should(
    drawn: tuple[Network, dict[int, int], dict[int, Any], int, int],
) -> None:
    network, hard, soft, entries, passes = drawn
    log, _ = oracle.enumerate_posteriors(network, hard, soft)
    _, bound, proposal, is_split = eliminated(network, hard, soft, entries, passes)
    assert bound >= log - CLOSE * max(1.0, abs(log))
    if not is_split:
        assert bound == pytest.approx(log, abs=1e-8, rel=1e-9) or bound == log
    if bound == -math.inf:
        return
    ranges = [range(card) for card in proposal.cards]
    all_states, columns, chance_of = [], [], []
    for assignment in itertools.product(*ranges):
        states = dict(zip(proposal.variables, assignment, strict=True))
        whole, middles = 1.0, []
        for mixed, state in zip(chances(proposal, states), assignment, strict=True):
            assert sum(mixed) == pytest.approx(1.0, abs=1e-9)
            whole *= mixed[state]
            # The middle of what the state has of the numbers from 0 to 1 chooses it.
            middles.append(min((sum(mixed[:state]) + mixed[state] / 2) / sum(mixed), 1 - 2**-53))
        all_states.append(states)
        columns.append(middles)
        chance_of.append(whole)
    assert math.fsum(chance_of) == pytest.approx(1.0, abs=1e-9)
    uniforms = iter(np.array(columns).reshape(len(columns), -1).T)
    found, shares = proposal.draw(len(columns), lambda: next(uniforms))
    assert (shares <= 0.0).all()
    total = []
    for n, (states, chance) in enumerate(zip(all_states, chance_of, strict=True)):
        known = [states.get(v, hard.get(v, 0)) for v in range(len(network.variables))]
        joint = oracle.log_joint(network, known, soft)
        # States below the last digits of a number have no number that chooses them.
        if chance < 1e-300 or [int(s) for s in found[:, n]] != [states[v] for v in proposal.variables]:
            assert chance < 1e-9
            assert joint - bound < math.log(1e-8)
            continue
        if joint == -math.inf:
            assert shares[n] == -math.inf
            continue
        # The weight is the product of the factors over the chance, and no larger than the bound.
        assert bound + shares[n] == pytest.approx(joint - math.log(chance), abs=1e-6, rel=1e-9)
        total.append(chance * math.exp(shares[n]))
    # Its expectation is the sum itself.
    assert math.fsum(total) == pytest.approx(math.exp(log - bound), abs=1e-7)


def hard_grid(side: int = 4, coupling: float = 1.0, seed: int = 3) -> Network:
    """A Markov network on a grid with couplings of both signs."""
    rng, factors = np.random.default_rng(seed), []
    for v in range(side * side):
        for u in ([v + 1] if (v + 1) % side else []) + ([v + side] if v + side < side * side else []):
            table = np.exp(coupling * rng.normal() * np.array([[1.0, -1.0], [-1.0, 1.0]]))
            factors.append(Factor((v, u), table))
        factors.append(Factor((v,), np.exp(0.3 * rng.normal(size=2))))
    variables = tuple(Variable(f"v{v}", ("a", "b")) for v in range(side * side))
    return Network("grid", variables, tuple(factors), "markov")


def drawn_sums(proposal: BoundedProposal, samples: int, seed: int) -> tuple[Sums, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    states, logs = proposal.draw(samples, lambda: rng.random(samples))
    return sums_of(states, logs, proposal.cards), states, logs


def test_more_entries_and_more_passes_lower_the_bound() -> None:
    network = hard_grid(6, 1.0)
    bounds = [[eliminated(network, {}, {}, entries, passes)[1] for passes in (0, 1, 10)] for entries in (512, 4096)]
    log, _ = oracle_of(network)
    assert bounds[0][0] > bounds[0][1] > bounds[0][2] > bounds[1][2] >= log - CLOSE
    assert bounds[0][0] > bounds[1][0]


def oracle_of(network: Network, hard: dict[int, int] | None = None) -> tuple[float, dict[int, Any]]:
    """Return log Z and posteriors of a network that is too large to enumerate, by exact answers."""
    batch = EvidenceBatch(1, {v: np.array([s], np.int32) for v, s in (hard or {}).items()})
    answers = Engine(network, Query()).answer(batch)
    return float(answers.log_value[0]), {v: table[0] for v, table in answers.posteriors.items()}


def test_intervals_have_the_ends_that_raw_samples_say() -> None:
    """At each end of an interval the mean of w (1[x = s] - p) is just within the bound of Maurer and Pontil."""
    proposal = eliminated(hard_grid(), {}, {}, 64, 3)[2]
    sums, states, logs = drawn_sums(proposal, 20_000, 1)
    weights, count, doubt = np.exp(logs), logs.size, 0.1
    scale = math.log(4 / doubt)
    lower, upper = posterior_intervals(sums, doubt)
    slot = 0
    for n, card in enumerate(proposal.cards):
        for state in range(card):
            for end in (lower[slot], upper[slot]):
                numbers = weights * ((states[n] == state) - end)
                allowed = math.sqrt(2 * numbers.var(ddof=1) * scale / count) + 7 * scale / (3 * (count - 1))
                assert abs(numbers.mean()) == pytest.approx(allowed, rel=1e-6)
            assert lower[slot] < (weights * (states[n] == state)).sum() / weights.sum() < upper[slot]
            slot += 1
    low, high = log_bounds(sums, 0.0, doubt)
    allowed = math.sqrt(2 * weights.var(ddof=1) * scale / count) + 7 * scale / (3 * (count - 1))
    assert high == pytest.approx(math.log(weights.mean() + allowed))
    assert low < math.log(weights.mean() - allowed)


def test_intervals_hold_as_often_as_they_say_and_not_always() -> None:
    """Bernstein's bounds are wide, so that intervals of a tenth fail now and then, and those of nine tenths seldom."""
    network = hard_grid()
    log, truth = oracle.enumerate_posteriors(network, {}, {})
    _, bound, proposal, _ = eliminated(network, {}, {}, 24, 0)
    exact = np.concatenate([truth[v] for v in proposal.variables])
    held: dict[float, list[float]] = {0.1: [], 0.9: []}
    for seed in range(200):
        sums, _, _ = drawn_sums(proposal, 300, seed)
        for doubt, shares in held.items():
            lower, upper = posterior_intervals(sums, doubt)
            low, high = log_bounds(sums, bound, doubt)
            shares.append(float(((lower <= exact) & (exact <= upper)).mean()))
            shares.append(float(low <= log <= high))
    assert np.mean(held[0.1]) >= 0.95
    assert 0.5 < np.mean(held[0.9]) <= np.mean(held[0.1])


def test_a_weak_bound_gives_wide_intervals_and_no_wrong_ones() -> None:
    """All weights are far below the bound: nothing is known of posteriors, and log P(e) has Markov's lower end."""
    slots = np.array([[3.0, 2.0], [7.0, 5.0]])
    sums = Sums(-900.0, slots, slots.sum(axis=0), 1_000, 10, 1.0)
    lower, upper = posterior_intervals(sums, 0.05)
    assert (lower == 0.0).all()
    assert (upper == 1.0).all()
    low, high = log_bounds(sums, 5.0, 0.05)
    assert high == 5.0
    assert low == pytest.approx(5.0 - 900.0 + math.log(0.01) + math.log(0.05 / 2 / 10))


def test_sums_over_samples_in_pieces_are_those_over_all() -> None:
    proposal = eliminated(hard_grid(), {}, {}, 64, 1)[2]
    _, states, logs = drawn_sums(proposal, 1_000, 2)
    parts = [sums_of(states[:, n : n + 250], logs[n : n + 250], proposal.cards) for n in range(0, 1_000, 250)]
    weights, together = np.exp(logs), reduce(add, parts)
    expected = [[weights[states[0] == s].sum(), (weights[states[0] == s] ** 2).sum()] for s in range(2)]
    scale = np.exp([together.shift, 2 * together.shift])
    assert together.slots[:2] * scale == pytest.approx(np.array(expected))
    assert together.total * scale == pytest.approx([weights.sum(), (weights**2).sum()])
    nothing = sums_of(states, np.full(1_000, -np.inf), proposal.cards)
    assert (nothing.hits, nothing.shift) == (0, -np.inf)


def test_plans_keep_their_budget_and_split_no_more_than_it_takes() -> None:
    network = hard_grid(5)
    scopes, order = [factor.scope for factor in network.factors], list(range(25))
    splits = []
    for entries in (1, 200, 500, 1_000, 100_000):
        plan = plan_buckets(scopes, network.cardinalities, order, entries)
        assert plan.entries == sum(2 ** len(mini.scope) for mini in plan.minis)
        assert plan.entries <= max(entries, 2 * sum(factor.table.size for factor in network.factors))
        # Every factor and every message is in one mini-bucket, that of its first variable to go.
        assert sorted(f for mini in plan.minis for f in mini.factors) == list(range(len(scopes)))
        for r, taker in enumerate(plan.takers):
            inner = plan.minis[r].scope[1:]
            assert (taker < 0) == (not inner)
            assert not inner or (r in plan.minis[taker].messages and set(inner) <= set(plan.minis[taker].scope))
        splits.append(plan.split)
    assert splits == sorted(splits, reverse=True)
    assert splits[-1] == 0 < splits[0]


def sampled(network: Network, rows: EvidenceBatch, memory: int = 1 << 28, threads: int = 1, **how: Any) -> Any:
    how = {"sampler": "wmb", "samples": 2_000, "table_entries": 64, **how}
    answers = Engine(network, Query(method="sampling", sampling=Sampling(**how)), on_cpu(memory)).answer(rows)
    assert isinstance(answers, SampledAnswers)
    return answers


def rows_of_grid(rows: int) -> EvidenceBatch:
    rng = np.random.default_rng(4)
    states = {v: rng.integers(-1, 2, rows).astype(np.int32) for v in (0, 5, 9)}
    return EvidenceBatch(rows, states, {3: SoftEvidence(np.arange(0, rows, 2), rng.random(((rows + 1) // 2, 2)))})


def of_row(answers: Any, row: int) -> list[Any]:
    numbers = [tables[v][row] for tables in (answers.posteriors, answers.lower, answers.upper) for v in range(16)]
    return [answers.log_value[row], *answers.log_bounds[:, row], *np.concatenate(numbers)]


def test_a_row_depends_on_its_evidence_and_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    network, rows = hard_grid(), rows_of_grid(6)
    one = sampled(network, rows)
    assert (one.status == OK).all()
    turned = EvidenceBatch(
        6,
        {v: column[::-1].copy() for v, column in rows.states.items()},
        {3: SoftEvidence(5 - rows.likelihoods[3].rows[::-1], rows.likelihoods[3].values[::-1])},
    )
    other = sampled(network, turned)
    for row in range(6):
        assert of_row(one, row) == of_row(other, 5 - row)
    seeded = sampled(network, rows, seed=1)
    assert of_row(one, 0) != of_row(seeded, 0)
    monkeypatch.setattr(bounded, "usable_cores", lambda: 3)
    query = Query(method="sampling", sampling=Sampling("wmb", 9_000, table_entries=64))
    options = [on_cpu(1 << 28, threads=threads) for threads in (1, 3)]
    few = EvidenceBatch(1, {0: np.array([1], np.int32)})
    alone = [Engine(network, query, each).answer(few) for each in options]
    assert of_row(alone[0], 0) == of_row(alone[1], 0)


@pytest.mark.parametrize(("rows", "room", "expected"), [(1, 0, 1), (1, 1, 2), (1, 9, 4), (9, 9, 1), (2, 9, 2)])
def test_threads_have_memory_each(rows: int, room: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one row they draw samples side by side, of several rows they have tables, too."""
    found: list[int] = []
    monkeypatch.setattr(
        BoundedEngine, "_estimate", lambda engine, layout, hard, soft, threads: (found.append(threads), (0.0, None))[1]
    )
    query = Query(method="sampling", sampling=Sampling("wmb", table_entries=64))
    needed = BoundedEngine(hard_grid(), query)
    memory = needed.least + room * (needed._draw_bytes if rows == 1 else 4 * needed.least)
    engine = BoundedEngine(hard_grid(), query, on_cpu(memory, threads=4))
    batch = EvidenceBatch(rows, {v: np.arange(rows, dtype=np.int32) >> v & 1 for v in range(4)})
    engine.answer(batch, np.arange(rows), Engine(hard_grid(), query).blank(batch), 0)  # type: ignore[arg-type]
    assert set(found) == {expected}
    assert len(found) == rows


def test_equal_rows_are_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[dict[int, int]] = []
    known = BoundedEngine._estimate

    def counted(self: BoundedEngine, layout: Any, hard: Any, soft: Any, threads: int) -> Any:
        done.append(hard)
        return known(self, layout, hard, soft, threads)

    monkeypatch.setattr(BoundedEngine, "_estimate", counted)
    answers = sampled(hard_grid(), EvidenceBatch(5, {0: np.array([0, 1, 0, -1, 1], np.int32)}))
    assert done == [{0: 0}, {0: 1}, {}]
    assert of_row(answers, 0) == of_row(answers, 2)
    assert of_row(answers, 1) == of_row(answers, 4) != of_row(answers, 0)


@pytest.mark.parametrize("kind", ["bayes", "markov"])
def test_answers_are_near_exact_ones_within_their_intervals(kind: str) -> None:
    network = layered(4, 6, states=3, parents=3, seed=2) if kind == "bayes" else grid(5, 5, states=2, seed=1)
    hard = {len(network.variables) - 1: 1, 4: 0}
    log, truth = oracle_of(network, hard)
    rows = EvidenceBatch(1, {v: np.array([s], np.int32) for v, s in hard.items()})
    answers = sampled(network, rows, samples=20_000, table_entries=900, confidence=0.999_99)
    assert answers.status[0] == OK
    low, high, bound = answers.log_bounds[:, 0]
    assert low <= log <= high <= bound
    assert high - low < 0.5
    # Rounding is allowed for where nothing is split.
    low, high, bound = sampled(network, rows, table_entries=1 << 20).log_bounds[:, 0]
    assert log - 1e-8 < low <= log <= high == bound < log + 1e-8
    for v, expected in truth.items():
        assert (answers.lower[v][0] <= expected + CLOSE).all()
        assert (expected <= answers.upper[v][0] + CLOSE).all()
        assert (answers.upper[v][0] - answers.lower[v][0] < 0.3).all()
        assert np.abs(answers.posteriors[v][0] - expected).max() < 0.1


def test_samples_go_on_until_intervals_are_narrow_at_the_price_of_every_check() -> None:
    network, rows = hard_grid(), EvidenceBatch(1)
    found = sampled(network, rows, samples=None, error=0.02)
    half = max(float((found.upper[v] - found.lower[v]).max()) for v in range(16)) / 2
    assert half <= 0.02
    checks = round(math.log2(found.samples[0] / (1 << 14))) + 1
    assert checks > 1
    # A check may fail with its share of the probability: d/2 the first, d/6 the second, ...
    share = 1 - 0.05 / (checks * (checks + 1))
    again = sampled(network, rows, samples=int(found.samples[0]), confidence=share)
    assert of_row(found, 0) == pytest.approx(of_row(again, 0))


def test_an_error_out_of_reach_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "MOST_SAMPLES", 1 << 15)
    answers = sampled(hard_grid(), EvidenceBatch(1), samples=None, error=1e-4)
    assert answers.status[0] == OK
    assert answers.reasons[0].startswith("half of the widest interval is ")
    assert answers.reasons[0].endswith(" after 32,768 samples")


def ruled_out() -> Network:
    """A cycle of four variables whose first and third differ by what stands between them, on either side otherwise."""
    same, other = np.eye(2), 1 - np.eye(2)
    scopes = [((0, 1), same), ((1, 2), same), ((2, 3), same), ((3, 0), other), ((0,), np.array([0.5, 0.5]))]
    variables = tuple(Variable(f"v{v}", ("a", "b")) for v in range(4))
    return Network("cycle", variables, tuple(Factor(scope, table) for scope, table in scopes), "markov")


def test_evidence_that_tables_rule_out_is_impossible_and_what_no_sample_meets_is_missed() -> None:
    rows = EvidenceBatch(1)
    assert sampled(ruled_out(), rows, table_entries=4_096).status[0] == IMPOSSIBLE
    # Of single functions no mini-bucket sees the contradiction.
    missed = sampled(ruled_out(), rows, table_entries=1)
    assert missed.status[0] in (MISSED, IMPOSSIBLE)
    if missed.status[0] == MISSED:
        assert "at most" in missed.reasons[0]
    nothing = EvidenceBatch(1, {}, {0: SoftEvidence(np.array([0]), np.zeros((1, 2)))})
    assert sampled(hard_grid(), nothing).status[0] == IMPOSSIBLE


def test_few_effective_samples_are_said_beside_intervals_that_hold() -> None:
    network = hard_grid(6, 3.0)
    answers = sampled(network, EvidenceBatch(1), samples=200, table_entries=200)
    log, truth = oracle_of(network)
    assert answers.status[0] == UNRELIABLE
    assert "while the intervals hold" in answers.reasons[0]
    assert answers.log_bounds[0, 0] <= log <= answers.log_bounds[1, 0]
    for v, expected in truth.items():
        assert (answers.lower[v][0] <= expected).all()
        assert (expected <= answers.upper[v][0]).all()


def test_factors_beyond_the_range_of_doubles_are_logarithms() -> None:
    network = hard_grid(3)
    factors = [Factor(factor.scope, factor.table * 1e200) for factor in network.factors]
    answers = sampled(
        Network("huge", network.variables, tuple(factors), "markov"), EvidenceBatch(1), table_entries=1_000
    )
    log, _ = oracle.enumerate_posteriors(network, {}, {})
    assert answers.log_value[0] == pytest.approx(log + len(factors) * 200 * math.log(10))


def test_a_gpu_that_is_asked_for_is_not_used_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    BoundedEngine(hard_grid(), Query(method="sampling"), ComputeOptions(device="auto"))
    assert not caplog.messages
    BoundedEngine(hard_grid(), Query(method="sampling"), ComputeOptions(device="gpu"))
    assert caplog.messages == ["the sampler wmb computes on the CPU, whatever the device"]


def test_variables_of_many_states_and_of_no_factor_are_drawn() -> None:
    """More states than a byte holds, and a variable that no factor names, which is uniform."""
    rng = np.random.default_rng(6)
    table = rng.random((300, 3))
    names = [tuple(map(str, range(card))) for card in (300, 3, 4, 1)]
    variables = tuple(Variable(f"v{v}", states) for v, states in enumerate(names))
    network = Network("wide", variables, (Factor((0, 1), table), Factor((1, 3), rng.random((3, 1)))), "markov")
    answers = sampled(network, EvidenceBatch(1), samples=20_000, table_entries=4_096)
    log, truth = oracle.enumerate_posteriors(network, {}, {})
    assert answers.log_value[0] == pytest.approx(log)
    for v, expected in truth.items():
        assert (answers.lower[v][0] <= expected).all()
        assert (expected <= answers.upper[v][0]).all()
    assert answers.posteriors[2][0] == pytest.approx(np.full(4, 0.25), abs=0.03)
    assert answers.posteriors[3][0].tolist() == answers.lower[3][0].tolist() == [1.0]


def test_barren_variables_are_left_out() -> None:
    network = layered(6, 8, parents=3, seed=1)
    query = Query(targets=(network.variables[0].name,), method="sampling", sampling=Sampling("wmb"))
    engine = BoundedEngine(network, query)
    assert len(engine.plan({5: 1}, {}).buckets) < 8
    bound, estimate = engine.estimate({5: 1}, {})
    log, _ = oracle_of(network, {5: 1})
    assert bound == pytest.approx(log)
    assert estimate is not None


def test_what_is_asked_of_mini_buckets_alone_asks_for_them() -> None:
    table = junctor.posteriors("data/asia.bif", [{}], targets=["lung"], method="sampling", samples=200, confidence=0.9)
    assert table.column_names == [
        *("case_id", "lung", "lung_error", "lung_lower", "lung_upper", "log_evidence", "log_evidence_error"),
        *("log_evidence_lower", "log_evidence_upper", "log_evidence_bound"),
        *("effective_samples", "samples", "method", "status", "reason"),
    ]
    plain = junctor.posteriors("data/asia.bif", [{}], targets=["lung"], method="sampling", samples=200)
    assert "lung_lower" not in plain.column_names


def test_tables_beyond_the_memory_are_refused() -> None:
    with pytest.raises(BudgetError, match="--table-entries"):
        sampled(hard_grid(), EvidenceBatch(1), memory=1 << 20, table_entries=1 << 20)
