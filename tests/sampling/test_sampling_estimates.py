"""Estimates against enumeration, over many seeds: no bias, and errors that mean what they say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers import oracle
from helpers.options import on_cpu
from helpers.sampling_cases import Hard, Soft, mixed, network_of
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch, SoftEvidence
from junctor.generate import grid
from junctor.model.answers import IMPOSSIBLE, INVALID, MISSED, OK, UNRELIABLE
from junctor.model.errors import BudgetError, EvidenceError, ModelError
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query, Sampling
from junctor.sampling import engine as engines
from junctor.sampling import estimate as estimates
from junctor.sampling.estimate import estimate_of, weighted, worth
from junctor_kernels.sampling.layout import Sums

HARD: Hard = {6: 1, 3: 0}
SOFT: Soft = {1: np.array([0.1, 1.0, 0.4])}
SEEDS = 100
# The chance that a normal number is further out is 1e-10; some hundred are looked at.
FAR_OUT = 6.5


def engine_of(network: Network, **how: Any) -> Any:
    return Engine(network, Query(method="sampling", sampling=Sampling(**how)))


def rows_of(hard: Hard, soft: Soft, rows: int) -> EvidenceBatch:
    states = {v: np.full(rows, state, dtype=np.int32) for v, state in hard.items()}
    likelihoods = {v: SoftEvidence(np.arange(rows), np.tile(values, (rows, 1))) for v, values in soft.items()}
    return EvidenceBatch(rows, states, likelihoods)


def unlikely() -> tuple[Network, Hard, Soft]:
    """A cause of one in a thousand that two observations speak for."""
    link, weak = [[0.999, 0.001], [0.05, 0.95]], [[0.97, 0.03], [0.3, 0.7]]
    return (
        network_of([((0,), [0.999, 0.001]), ((0, 1), link), ((0, 2), link), ((1, 3), weak)], [2] * 4),
        {2: 1, 3: 1},
        {},
    )


@pytest.mark.parametrize("what", ["mixed", "unlikely"])
@pytest.mark.parametrize(
    ("sampler", "stages", "logs"),
    [
        ("lw", "last", False),
        ("epis-bn", "last", False),
        ("sis", "last", True),
        ("ais-bn", "last", False),
        ("ais-bn", "all", True),
    ],
)
def test_no_bias_over_seeds_and_errors_as_large_as_they_say(
    what: str, sampler: Any, stages: Any, logs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "PLAIN_LIMIT", -1.0 if logs else 1e9)
    network, hard, soft = (mixed(), HARD, SOFT) if what == "mixed" else unlikely()
    # Enough for effective samples: weighting has some in ten thousand.
    samples = 8_000 if what == "mixed" else 400_000 if sampler == "lw" else 40_000
    log, truth = oracle.enumerate_posteriors(network, hard, soft)
    # Rows are as good as seeds: each has numbers of its own.
    answers = engine_of(network, sampler=sampler, samples=samples, stages=stages).answer(rows_of(hard, soft, SEEDS))
    assert (answers.status == OK).all()
    ratios = np.exp(answers.log_value - log)
    assert abs(ratios.mean() - 1) < FAR_OUT * ratios.std(ddof=1) / math.sqrt(SEEDS) + 1e-9
    checked = 0
    for v, expected in truth.items():
        if v in hard:
            assert (answers.posteriors[v] == expected).all()
            continue
        for state in np.flatnonzero((expected > 0.02) & (expected < 0.98)):
            off = answers.posteriors[v][:, state] - expected[state]
            assert abs(off.mean()) < FAR_OUT * off.std(ddof=1) / math.sqrt(SEEDS)
            # 100 squares of normal numbers have a mean of 1 give or take 0.14; errors allow for samples still to come.
            assert 0.1 < ((off / answers.errors[v][:, state]) ** 2).mean() < 1.5
            checked += 1
        assert (answers.posteriors[v][:, expected == 0] == 0).all()
    assert checked >= 1


@pytest.mark.parametrize("sampler", ["lw", "sis", "ais-bn", "epis-bn"])
def test_no_answer_is_far_off_by_its_own_error(sampler: Any) -> None:
    """Networks with zeros and rare states, whose importance functions miss parts of the distribution by themselves."""
    furthest, beyond, checked = 0.0, 0, 0
    for seed in range(60):
        network, hard = with_rare_states(np.random.default_rng(seed))
        log, truth = oracle.enumerate_posteriors(network, hard, {})
        answers = engine_of(network, sampler=sampler, samples=20_000, seed=seed).answer(rows_of(hard, {}, 1))
        if answers.status[0] != OK:
            continue
        off = [abs(answers.log_value[0] - log) / max(answers.log_error[0], 1e-9)]
        for v in truth.keys() - hard.keys():
            common = truth[v] * answers.effective[0] >= 10
            errors, found = answers.errors[v][0], answers.posteriors[v][0]
            off += (np.abs(found - truth[v])[common] / errors[common]).tolist()
            # Of rarer states an upper bound is stated.
            assert (truth[v][~common] < (found + 6 * errors)[~common] + 1e-12).all()
        furthest, beyond, checked = max(furthest, *off), beyond + sum(z > 2 for z in off), checked + len(off)
    assert checked > 500
    assert furthest < FAR_OUT
    assert beyond < 0.08 * checked


def with_rare_states(rng: np.random.Generator) -> tuple[Network, Hard]:
    """Nine variables of two or three states, many entries zero or tiny, and up to four possible observations."""
    cards = rng.integers(2, 4, 9).tolist()
    tables, drawn = [], list[int]()
    for v, card in enumerate(cards):
        above = sorted(rng.choice(v, min(v, int(rng.integers(0, 4))), replace=False).tolist()) if v else []
        table = rng.dirichlet(np.full(card, rng.choice([0.1, 0.3, 1.0])), size=[cards[p] for p in above])
        table[(rng.random(table.shape) < 0.3) & (table < table.max(axis=-1, keepdims=True))] = 0.0
        table /= table.sum(axis=-1, keepdims=True)
        drawn.append(int(rng.choice(card, p=table[tuple(drawn[p] for p in above)])))
        tables.append(((*above, v), table))
    observed = rng.choice(9, int(rng.integers(1, 5)), replace=False).tolist()
    return network_of(tables, cards), {v: drawn[v] for v in observed}


def test_all_stages_together_are_better_than_the_last() -> None:
    log, truth = oracle.enumerate_posteriors(mixed(), HARD, SOFT)
    errors = {}
    for stages in ("last", "all"):
        answers = engine_of(mixed(), sampler="ais-bn", samples=8_000, stages=stages).answer(rows_of(HARD, SOFT, SEEDS))
        free = [v for v in truth if v not in HARD]
        errors[stages] = np.mean([((answers.posteriors[v] - truth[v]) ** 2).mean() for v in free])
        assert answers.log_value.mean() == pytest.approx(log, abs=0.02)
    assert errors["all"] < errors["last"]


def test_ais_bn_beats_weighting_where_evidence_is_unlikely() -> None:
    network, hard, soft = unlikely()
    effective = {
        sampler: engine_of(network, sampler=sampler, samples=40_000).facts.sampler().estimate(hard, soft)[2]
        for sampler in ("lw", "ais-bn", "epis-bn")
    }
    assert effective["ais-bn"] is not None
    assert effective["lw"] is not None
    assert effective["ais-bn"].effective > 50 * effective["lw"].effective


def test_an_answer_depends_on_its_row_and_on_nothing_else() -> None:
    engine = engine_of(mixed(), samples=2_000)
    whole = engine.answer(rows_of(HARD, SOFT, 6))
    part = engine_of(mixed(), samples=2_000).answer(rows_of(HARD, SOFT, 2), first_row=3)
    parallel = Engine(mixed(), engine.query, on_cpu(threads=3)).answer(rows_of(HARD, SOFT, 6))
    for v in whole.targets:
        assert (part.posteriors[v] == whole.posteriors[v][3:5]).all()
        assert (parallel.posteriors[v] == whole.posteriors[v]).all()
    assert len({float(x) for x in whole.log_value}) == 6
    other = Engine(mixed(), Query(method="sampling", sampling=Sampling(samples=2_000, seed=1)))
    assert other.answer(rows_of(HARD, SOFT, 1)).log_value[0] != whole.log_value[0]


def test_statuses() -> None:
    # v4 is on only where v0 is on; v5 and v6 hide that from a single factor.
    batch = EvidenceBatch(
        4,
        {
            0: np.array([0, 1, 1, 1], np.int32),
            2: np.array([1, 1, -1, 0], np.int32),
            4: np.array([1, 1, -1, -1], np.int32),
        },
        invalid={3: "no good"},
    )
    answers = engine_of(mixed(), samples=1_000).answer(batch)
    assert answers.status.tolist() == [IMPOSSIBLE, OK, OK, INVALID]
    assert np.isnan(answers.posteriors[5][0]).all()
    assert answers.reasons[3] == "no good"


def test_everything_observed_leaves_nothing_to_draw() -> None:
    hard = {0: 1, 1: 2, 2: 0, 3: 1, 4: 0, 5: 3, 6: 0, 7: 0}
    answers = engine_of(mixed(), samples=1_000).answer(rows_of(hard, {}, 1))
    assert answers.log_value[0] == pytest.approx(oracle.log_joint(mixed(), [hard[v] for v in range(8)], {}))
    assert answers.posteriors[5][0].tolist() == [0, 0, 0, 1, 0]


def test_evidence_that_all_samples_miss_has_a_status_of_its_own() -> None:
    rare = network_of([((0,), [1 - 1e-12, 1e-12]), ((0, 1), [[1.0, 0.0], [0.0, 1.0]])], [2, 2])
    answers = engine_of(rare, sampler="lw", samples=1_000).answer(rows_of({1: 1}, {}, 1))
    assert answers.status.tolist() == [MISSED]
    assert "none of 1,000 samples" in answers.reasons[0]
    assert np.isnan(answers.log_value[0])
    # AIS-BN lifts small probabilities, EPIS-BN knows of the evidence: both find it.
    log, _ = oracle.enumerate_posteriors(rare, {1: 1}, {})
    for sampler in ("ais-bn", "epis-bn"):
        found = engine_of(rare, sampler=sampler, samples=1_000).answer(rows_of({1: 1}, {}, 1))
        assert found.log_value[0] == pytest.approx(log, abs=0.2)


def test_weights_far_below_the_doubles_are_no_zeros() -> None:
    """Two hundred observations of one in a million each, of one cause: P(e) is about 1e-1200."""
    leaf = [[1 - 1e-6, 1e-6], [1 - 2e-6, 2e-6]]
    network = network_of([((0,), [0.5, 0.5]), *(((0, v), leaf) for v in range(1, 201))], [2] * 201)
    hard = dict.fromkeys(range(1, 201), 1)
    answers = engine_of(network, sampler="lw", samples=10_000).answer(rows_of(hard, {}, 1))
    expected = math.log(0.5) + 200 * math.log(2e-6) + math.log1p(2.0**-200)
    assert answers.log_value[0] == pytest.approx(expected, abs=0.1)
    assert answers.posteriors[0][0, 1] == pytest.approx(1.0)


def test_an_error_is_reached_or_the_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = engine_of(mixed(), sampler="lw", error=0.004).answer(rows_of(HARD, SOFT, 2))
    assert max(float(answers.errors[v].max()) for v in answers.targets) <= 0.004
    assert (answers.samples > estimates.FIRST_SAMPLES).all()
    assert not answers.reasons
    monkeypatch.setattr(estimates, "MOST_SAMPLES", 1 << 15)
    short = engine_of(mixed(), sampler="lw", error=1e-4).answer(rows_of(HARD, SOFT, 1))
    assert short.status.tolist() == [OK]
    assert "after 32,768 samples" in short.reasons[0]


def test_an_error_is_that_of_targets_alone() -> None:
    query = Query(targets=("v7",), method="sampling", sampling=Sampling("lw", error=0.01))
    answers = Engine(mixed(), query).answer(rows_of(HARD, SOFT, 1))
    # v7 has one state: nothing is left to find out.
    assert answers.samples.tolist() == [estimates.FIRST_SAMPLES]


def test_evidence_that_is_missed_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "MISSED_SAMPLES", 1 << 15)
    monkeypatch.setattr(engines, "MISSED_SAMPLES", 1 << 15)
    rare = network_of([((0,), [1 - 1e-12, 1e-12]), ((0, 1), [[1.0, 0.0], [0.0, 1.0]])], [2, 2])
    answers = engine_of(rare, sampler="lw", error=0.01).answer(rows_of({1: 1}, {}, 1))
    assert answers.status.tolist() == [MISSED]
    assert "none of 32,768 samples" in answers.reasons[0]


def test_rows_of_few_effective_samples_say_so() -> None:
    network, hard, soft = unlikely()
    answers = engine_of(network, sampler="lw", samples=5_000).answer(rows_of(hard, soft, 1))
    assert answers.status.tolist() == [UNRELIABLE]
    assert np.isfinite(answers.posteriors[0]).all()
    assert answers.effective[0] < 100
    assert "effective samples are too few" in answers.reasons[0]


@pytest.mark.parametrize("sampler", ["lw", "sis", "ais-bn", "epis-bn"])
@pytest.mark.parametrize(
    "scales", [(1e-200, 1e-200, 1e300), (1e200, 1e200, 1e-300), (5e-324, 1e300, 1.0), (1e300, 1e300, 1e300)]
)
def test_scales_of_likelihoods_make_no_difference(scales: tuple[float, ...], sampler: str) -> None:
    """Products of some of them leave the range of doubles, whatever that of all is."""
    link = [[0.9, 0.1], [0.2, 0.8]]
    network = network_of([((0,), [0.5, 0.5]), *(((0, v), link) for v in (1, 2, 3))], [2] * 4)
    soft = {v: scale * np.array([1.0, 2.0]) for v, scale in zip((1, 2, 3), scales, strict=True)}
    log, truth = oracle.enumerate_posteriors(network, {}, {v: values / scales[v - 1] for v, values in soft.items()})
    found = engine_of(network, sampler=sampler, samples=20_000).facts.sampler().estimate({}, soft)[2]
    assert found is not None
    assert abs(found.posteriors[0] - truth[0][0]) < FAR_OUT * found.errors[0]
    expected = log + sum(map(math.log, scales))
    assert abs(found.log_evidence - expected) < FAR_OUT * found.log_error
    plain = engine_of(network, sampler=sampler, samples=20_000)
    one = plain.facts.sampler().estimate({}, {v: np.array([1.0, 2.0]) for v in soft})[2]
    assert one is not None
    np.testing.assert_allclose(found.posteriors, one.posteriors, rtol=1e-12)


def test_an_error_is_never_less_than_what_three_samples_of_the_largest_weight_would_change() -> None:
    sums = Sums(0.0, np.array([[100.0, 100.0], [0.0, 0.0]]), np.array([100.0, 100.0]), 100, 100, 1.0)
    found, certain = estimate_of([sums], [0], 0.0), estimate_of([sums], [0], 0.0, exact=True)
    assert found is not None
    assert found.errors.tolist() == [0.03, 0.03]
    # Nor that of log P(e), unless all samples have the same weight whatever is drawn.
    assert found.log_error == 0.01
    heavy = estimate_of([sums._replace(largest=3.0)], [0], 0.0)
    assert heavy is not None
    assert heavy.errors.tolist() == pytest.approx([0.09, 0.09])
    assert heavy.log_error == pytest.approx(0.06)
    assert certain is not None
    assert certain.log_error == 0.0
    assert estimate_of([Sums(0.0, np.zeros((2, 2)), np.zeros(2), 100, 0, 0.0)], [0], 0.0) is None


@pytest.mark.parametrize(("sampler", "stages"), [("ais-bn", "all"), ("ais-bn", "last"), ("sis", "all"), ("lw", "all")])
@pytest.mark.parametrize("hard", [{5: 0}, {2: 1, 5: 0}, {5: 1}])
def test_errors_of_the_evidence_are_what_estimates_are_off(sampler: str, stages: str, hard: dict[int, int]) -> None:
    """Of estimates with many seeds: weak evidence, whose samples have much the same weights, and stronger."""
    rng = np.random.default_rng(3)
    parents = [(), (), (0, 1), (2,), (2,), (3, 4)]
    tables = [(*above, v) for v, above in enumerate(parents)]
    network = network_of([(scope, rng.dirichlet([2.0, 2.0], [2] * (len(scope) - 1))) for scope in tables], [2] * 6)
    exact, _ = oracle.enumerate_posteriors(network, hard, {})
    off = []
    for seed in range(60):
        sampling = Sampling(sampler, samples=3_000, seed=seed, stages=stages)  # type: ignore[arg-type]
        query = Query(targets=("v0",), method="sampling", sampling=sampling)
        found = Engine(network, query).answer(rows_of(hard, {}, 1))
        off.append((found.log_value[0] - exact) / found.log_error[0])
    # 95 % and 1 by the normal distribution.
    assert np.mean(np.abs(off) < 2) > 0.85
    assert 0.75 < np.sqrt(np.mean(np.square(off))) < 1.3


def test_without_evidence_nothing_is_left_to_chance() -> None:
    found = engine_of(mixed(), sampler="lw", samples=500).answer(rows_of({}, {}, 1))
    assert found.log_error.tolist() == [0.0]
    assert found.log_value[0] == pytest.approx(0.0, abs=1e-12)


def test_stages_count_by_the_weights_of_the_stage_before() -> None:
    good = Sums(0.0, np.array([[100.0, 100.0]]), np.array([100.0, 100.0]), 100, 100, 1.0)
    # One sample has it all.
    poor = Sums(0.0, np.array([[100.0, 1e4]]), np.array([100.0, 1e4]), 100, 1, 100.0)
    assert worth(good) == 1.0
    assert worth(poor) == pytest.approx(0.01)
    # What a stage says of itself changes nothing: the first does not count, the third counts as the poor one says.
    # The largest weight is that of all stages.
    assert weighted([poor, good, good])[0].largest == 100.0
    both, even = weighted([good, poor, good])
    assert both.total.tolist() == pytest.approx([101.0, 1e4 + 0.01])
    assert both.drawn == pytest.approx(101.0)
    assert both.largest == 100.0
    assert even == pytest.approx(101.0**2 / (100 + 100 * 0.01**2))
    assert weighted([poor])[0].total.tolist() == [100.0, 1e4]
    missed = Sums(-np.inf, np.zeros((1, 2)), np.zeros(2), 100, 0, 0.0)
    assert weighted([missed, missed])[0].hits == 0
    # Where no stage that counts found anything, the last one is all that is known.
    assert weighted([good, missed, good])[0].hits == 100


def test_what_cannot_be_sampled_is_refused() -> None:
    with pytest.raises(ModelError, match=r"epis-bn draws .*; use --sampler wmb"):
        engine_of(grid(2, 2, states=2, seed=1), sampler="epis-bn").answer(rows_of({}, {}, 1))
    wide = network_of([((0,), np.full(300, 1 / 300))], [300])
    with pytest.raises(ModelError, match="300 states"):
        engine_of(wide).answer(rows_of({}, {}, 1))
    with pytest.raises(BudgetError, match=r"take .* bytes\) while .*, allowed are .* \(1,000 bytes\): .*--memory"):
        Engine(mixed(), Query(method="sampling"), ComputeOptions(memory=1000)).answer(rows_of({}, {}, 1))
    with pytest.raises(EvidenceError, match="explanations"):
        Query("mpe", method="sampling")
    with pytest.raises(EvidenceError, match="both"):
        Sampling(samples=1000, error=0.1)
    with pytest.raises(EvidenceError, match="of the sampler 'wmb', the sampler is 'lw'"):
        Sampling("lw", confidence=0.9)
    ranges = {"samples": 1, "error": 0.0, "seed": -1, "sampler": "gibbs", "confidence": 1.0, "table_entries": 0}
    for wrong in (*({name: value} for name, value in ranges.items()), {"error": 2.0}, {"seed": 2**64}):
        with pytest.raises(EvidenceError):
            Sampling(**wrong)  # type: ignore[arg-type]
