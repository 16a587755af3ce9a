"""Generators: structure, reproducibility, samples against exact marginals, and the patterns of evidence tables."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import oracle, strategies
from hypothesis import given
from junctor import generate
from junctor.model.errors import EvidenceError, ModelError, Place
from junctor.model.network import DraftTable, DraftVariable, Network, build_network
from junctor.model.pumping_station import CAUSES, SENSORS, plant

# Probability that a correct sampler fails one of the tests below: about 1e-9 for each state that it checks.
SIGMAS = 6.1

CASINO = {
    "start": [0.5, 0.5],
    "transition": [[0.95, 0.05], [0.1, 0.9]],
    "emission": [[1 / 6] * 6, [0.1] * 5 + [0.5]],
    "states": ["fair", "loaded"],
    "symbols": list("123456"),
}


def test_grid_has_a_factor_for_each_variable_and_edge() -> None:
    network = generate.grid(3, 4, states=(2, 3), seed=5)
    assert network.kind == "markov"
    assert [variable.name for variable in network.variables][:5] == ["x_0_0", "x_0_1", "x_0_2", "x_0_3", "x_1_0"]
    sizes = [len(factor.scope) for factor in network.factors]
    assert sizes.count(1) == 12
    assert sizes.count(2) == 3 * 3 + 2 * 4
    assert set(network.cardinalities) == {2, 3}
    assert all((factor.table > 0).all() for factor in network.factors)


def test_chain_links_each_variable_to_the_one_before() -> None:
    network = generate.chain(4, states=3)
    assert [factor.scope for factor in network.factors] == [(0,), (0, 1), (1, 2), (2, 3)]
    assert network.cardinalities == (3, 3, 3, 3)


@pytest.mark.parametrize("window", [None, 3])
def test_tree_gives_each_variable_one_parent_before_it(window: int | None) -> None:
    network = generate.tree(200, states=(2, 4), seed=1, window=window)
    assert network.factors[0].scope == (0,)
    distances = {child - network.factors[child].scope[0] for child in range(1, 200)}
    assert min(distances) == 1
    assert max(distances) == 3 if window else max(distances) > 50
    assert network.digest == generate.tree(200, states=(2, 4), seed=1, window=window).digest


def test_dynamic_repeats_the_tables_of_its_second_step() -> None:
    network = generate.dynamic(4, 3, states=(2, 3), parents=1, seed=2)
    assert [variable.name for variable in network.variables][2:5] == ["x_0_2", "x_1_0", "x_1_1"]
    first, second, third = network.factors[:3], network.factors[3:6], network.factors[6:9]
    assert [factor.scope[:-1] for factor in first] == [(), (0,), (first[2].scope[0],)]
    for position, (early, late) in enumerate(zip(second, third, strict=True)):
        assert early.scope[0] == position
        assert late.scope == tuple(v + 3 for v in early.scope)
        assert np.array_equal(early.table, late.table)


def test_tables_do_not_depend_on_how_they_are_drawn() -> None:
    # Tables with zeros are drawn one by one, all others at once.
    rng = np.random.default_rng(5)
    shapes = [(3,), (2, 4), (1, 1), (5, 2, 9), (1,)]
    together = list(generate._conditionals(shapes, np.random.default_rng(5)))
    for table, shape in zip(together, shapes, strict=True):
        assert np.array_equal(table, generate._random_conditional(shape, 0.0, rng))


def test_layered_parents_come_from_the_layer_before_and_near_by() -> None:
    network = generate.layered(4, 5, states=(2, 4), parents=3, reach=1, seed=2)
    for child, factor in enumerate(network.factors):
        layer, position = divmod(child, 5)
        parents = factor.scope[:-1]
        assert len(parents) == (0 if layer == 0 else min(3, 2 if position in (0, 4) else 3))
        assert all(parent // 5 == layer - 1 and abs(parent % 5 - position) <= 1 for parent in parents)


def test_random_network_parents_come_from_the_window() -> None:
    network = generate.random_network(40, parents=3, window=4, seed=1)
    counts = set()
    for child, factor in enumerate(network.factors):
        counts.add(len(factor.scope) - 1)
        assert all(child - 4 <= parent < child for parent in factor.scope[:-1])
    assert counts == {0, 1, 2, 3}


def test_zeros_are_about_the_share_asked_for() -> None:
    network = generate.random_network(200, states=4, zeros=0.4, seed=1)
    entries = np.concatenate([factor.table.ravel() for factor in network.factors])
    # The largest entry of each row of four stays: 0.4 of the other three.
    assert (entries == 0).mean() == pytest.approx(0.3, abs=0.02)


def test_hmm_unrolls_the_casino() -> None:
    network = generate.hmm(3, **CASINO)
    assert [v.name for v in network.variables] == ["state_1", "symbol_1", "state_2", "symbol_2", "state_3", "symbol_3"]
    assert network.variables[0].states == ("fair", "loaded")
    _, posteriors = oracle.enumerate_posteriors(network, {1: 5, 3: 5, 5: 5}, {})
    # Forward and backward by hand, for three sixes.
    forward = np.array([0.5 / 6, 0.25])
    for _ in range(2):
        forward = (forward @ np.array(CASINO["transition"])) * [1 / 6, 0.5]
    np.testing.assert_allclose(posteriors[4], forward / forward.sum(), rtol=1e-13)


def test_hmm_names_the_table_that_does_not_fit() -> None:
    with pytest.raises(ModelError, match=r"transition .* found the shape \(3, 3\), expected \(2, 2\)"):
        generate.hmm(2, [0.5, 0.5], np.eye(3), np.eye(2))
    with pytest.raises(ModelError, match=r"emission .* found the shape \(2,\), expected \(2, 2\)"):
        generate.hmm(2, [0.5, 0.5], np.eye(2), [0.5, 0.5])


def test_plant_is_a_bayesian_network_whose_sensors_have_causes() -> None:
    network = plant()
    assert len(network.variables) == 41
    assert all(network.factors[network.find(name)].scope[:-1] for name in SENSORS)
    assert all((factor.table > 0).all() for factor in network.factors)
    # A binomial: three trials of chance 0.05 where nothing is wrong.
    clean = network.factors[network.find("FilterClog")].table[0, 0]
    np.testing.assert_allclose(clean, [0.95**3, 3 * 0.05 * 0.95**2, 3 * 0.05**2 * 0.95, 0.05**3], rtol=1e-12)
    assert "Maintenance" in CAUSES


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: generate.grid(3, 3, seed=seed),
        lambda seed: generate.chain(5, seed=seed),
        lambda seed: generate.layered(3, 4, seed=seed),
        lambda seed: generate.random_network(9, seed=seed),
    ],
)
def test_the_seed_decides_everything(make) -> None:
    assert make(7).digest == make(7).digest
    assert make(7).digest != make(8).digest


def test_generated_networks_stay_the_same_everywhere() -> None:
    """Recorded once: benchmark figures would not compare if a new version made other networks."""
    digests = [generate.grid(4, 4).digest, generate.random_network(20, zeros=0.1).digest]
    digests.append(hashlib.sha256(generate.sample(plant(), 1000, seed=1).tobytes()).hexdigest())
    assert [digest[:12] for digest in digests] == RECORDED


RECORDED = ["809870f2c53e", "8d387bade880", "6d7cfc7af291"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: generate.grid(0, 3), "found rows=0, expected at least 1"),
        (lambda: generate.chain(0), "found length=0"),
        (lambda: generate.random_network(3, states=(3, 2)), r"found states=\(3, 2\)"),
        (lambda: generate.random_network(3, states=(3,)), r"found states=\(3,\)"),
        (lambda: generate.random_network(3, states="3"), "found states '3', expected a whole number"),
        (lambda: generate.random_network(3, parents=-1), "found parents=-1, expected at least 0"),
        (lambda: generate.random_network(3, seed=-1), "found seed=-1, expected at least 0"),
        (lambda: generate.random_network(3, seed=None), "found seed None, expected a whole number"),
        (lambda: generate.grid(2.0, 2), "found rows 2.0, expected a whole number"),
        (lambda: generate.sample(generate.chain(3), -1), "found rows=-1, expected at least 0"),
        (lambda: list(generate.evidence_batches(generate.chain(3), 5, seed=-1)), "found seed=-1"),
        (lambda: generate.hmm(2, ["a"], [[1]], [[1]]), "not arrays of numbers"),
        (lambda: generate.random_network(3, zeros=1.0), "found zeros=1.0"),
        (lambda: generate.layered(2, 40, states=10, parents=12, reach=20), "entries, allowed are"),
    ],
)
def test_settings_that_make_no_sense_are_refused(call, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        call()


@given(strategies.networks(max_variables=5, max_joint=200, kind="bayes"))
def test_samples_follow_the_exact_marginals(network: Network) -> None:
    rows = 4000
    samples = generate.sample(network, rows, seed=3)
    _, posteriors = oracle.enumerate_posteriors(network, {}, {})
    for variable, expected in posteriors.items():
        share = np.bincount(samples[:, variable], minlength=len(expected)) / rows
        assert (share[expected == 0] == 0).all()
        bound = SIGMAS * np.sqrt(expected * (1 - expected) / rows) + 20 / rows
        assert (np.abs(share - expected) <= bound).all()


def test_samples_follow_the_exact_joint() -> None:
    network = generate.random_network(5, states=(2, 3), seed=4)
    rows = 200_000
    samples = generate.sample(network, rows, seed=1)
    joint = np.ldexp(*oracle.joint_table(network, {}, {}))
    counts = np.bincount(np.ravel_multi_index(samples.T, joint.shape), minlength=joint.size)
    expected = joint.ravel() * rows
    large = expected >= 5
    chi_square = ((counts - expected)[large] ** 2 / expected[large]).sum()
    freedom = large.sum()
    assert chi_square < freedom + SIGMAS * np.sqrt(2 * freedom)
    assert counts[~large].sum() <= expected[~large].sum() + SIGMAS * np.sqrt(expected[~large].sum()) + 20


def test_states_of_probability_zero_are_never_drawn() -> None:
    place = Place("test")
    row = [0.0, 0.1, 0.0, 0.2, 0.7, 0.0]
    network = build_network(
        "zeros",
        "bayes",
        [DraftVariable("a", [str(i) for i in range(6)], place)],
        [DraftTable(("a",), row, place)],
    )
    assert set(np.unique(generate.sample(network, 100_000))) == {1, 3, 4}


def test_the_rounding_error_of_a_row_goes_to_no_impossible_state() -> None:
    place = Place("test")
    # Near enough to 1 to be taken as written: in ten million draws some eight would fall beyond the sum.
    row = [0.4999996, 0.4999996, 0.0]
    network = build_network(
        "short", "bayes", [DraftVariable("a", ("0", "1", "2"), place)], [DraftTable(("a",), row, place)]
    )
    assert generate.sample(network, 10_000_000).max() == 1


def test_samples_are_int32_and_a_prefix_of_more_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "BLOCK_ROWS", 64)
    network = generate.random_network(6, seed=1)
    samples = generate.sample(network, 150, seed=9)
    assert samples.dtype == np.int32
    assert samples.shape == (150, 6)
    assert (samples[:100] == generate.sample(network, 100, seed=9)).all()
    assert (samples[:64] != samples[64:128]).any()
    assert (samples != generate.sample(network, 150, seed=10)).any()
    assert generate.sample(network, 0).shape == (0, 6)


def test_children_may_stand_before_their_parents() -> None:
    place = Place("test")
    network = build_network(
        "backwards",
        "bayes",
        [DraftVariable(name, ("0", "1"), place) for name in ("child", "parent")],
        [DraftTable(("parent", "child"), [1, 0, 0, 1], place), DraftTable(("parent",), [0.5, 0.5], place)],
    )
    samples = generate.sample(network, 1000)
    assert (samples[:, 0] == samples[:, 1]).all()
    assert 400 < samples[:, 0].sum() < 600


def test_a_markov_network_cannot_be_sampled() -> None:
    with pytest.raises(ModelError, match="'grid_2x2' is a Markov network"):
        generate.sample(generate.grid(2, 2), 10)


def table(pattern: generate.Pattern, **settings) -> tuple[Network, np.ndarray, pa.Table]:
    network = generate.random_network(10, states=(2, 4), seed=1)
    samples = generate.sample(network, 500, seed=2)
    return network, samples, generate.evidence_table(network, samples, pattern=pattern, seed=3, **settings)


@pytest.mark.parametrize("pattern", ["fixed", "missing", "random"])
def test_shown_cells_are_the_samples_by_name(pattern: generate.Pattern) -> None:
    network, samples, evidence = table(pattern, observed=0.4)
    assert evidence["case_id"].to_pylist() == list(range(500))
    for name in evidence.column_names[1:]:
        assert pa.types.is_dictionary(evidence.schema.field(name).type)
        variable = network.find(name)
        for row, state in enumerate(evidence[name].to_pylist()):
            assert state is None or state == network.variables[variable].states[samples[row, variable]]


def test_fixed_shows_the_same_variables_in_every_row() -> None:
    _, _, evidence = table("fixed", observed=0.4)
    assert evidence.num_columns == 1 + 4
    assert all(column.null_count == 0 for column in evidence.columns)


def test_missing_leaves_out_a_share_of_the_cells() -> None:
    _, _, evidence = table("missing", observed=0.4, missing=0.1)
    assert evidence.num_columns == 1 + 4
    nulls = sum(column.null_count for column in evidence.columns)
    assert abs(nulls - 200) < SIGMAS * np.sqrt(2000 * 0.09)
    assert evidence["case_id"].null_count == 0


def test_random_shows_as_many_variables_in_every_row_but_others() -> None:
    _, _, evidence = table("random", observed=0.4)
    shown = np.array([evidence[name].is_valid().to_numpy() for name in evidence.column_names[1:]])
    assert shown.shape == (10, 500)
    assert (shown.sum(axis=0) == 4).all()
    assert len(np.unique(shown, axis=1).T) > 150


def test_observed_variables_can_be_named() -> None:
    _, _, evidence = table("missing", observed=["x_7", "x_2"])
    assert evidence.column_names == ["case_id", "x_2", "x_7"]


@pytest.mark.parametrize("pattern", ["fixed", "missing", "random"])
def test_nothing_observed_leaves_the_case_numbers(pattern: generate.Pattern) -> None:
    _, _, evidence = table(pattern, observed=0.0)
    assert evidence.column_names == ["case_id"]
    assert evidence.num_rows == 500


@pytest.mark.parametrize("pattern", ["fixed", "missing", "random"])
def test_a_stream_of_batches_equals_the_table(pattern: generate.Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "BLOCK_ROWS", 100)
    network = generate.random_network(8, seed=1)
    batches = list(generate.evidence_batches(network, 250, 0.5, pattern, seed=4))
    assert [batch.num_rows for batch in batches] == [100, 100, 50]
    expected = generate.evidence_table(network, generate.sample(network, 250, seed=4), 0.5, pattern, seed=4)
    assert pa.Table.from_batches(batches).equals(expected)
    shorter = pa.Table.from_batches(list(generate.evidence_batches(network, 130, 0.5, pattern, seed=4)))
    assert shorter.equals(expected.slice(0, 130))


def test_batches_of_a_markov_network_hold_any_states() -> None:
    network = generate.grid(3, 3, states=(2, 4))
    [batch] = generate.evidence_batches(network, 1000, observed=1.0)
    for variable in network.variables:
        assert set(batch[variable.name].to_pylist()) == set(variable.states)


def test_no_rows_still_have_a_schema() -> None:
    network = generate.chain(5)
    assert generate.evidence_table(network, generate.sample(network, 0), 0.4).num_columns == 3
    [batch] = generate.evidence_batches(network, 0, 0.4)
    assert batch.num_rows == 0


def test_tables_survive_parquet(tmp_path: Path) -> None:
    _, _, evidence = table("missing", observed=0.4)
    pq.write_table(evidence, tmp_path / "evidence.parquet")
    assert pq.read_table(tmp_path / "evidence.parquet").equals(evidence)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"observed": 1.5}, "found observed=1.5"),
        ({"missing": -0.1}, "found missing=-0.1"),
        ({"missing": "few"}, "found missing 'few', expected a number"),
        ({"samples": np.zeros((2, 2), np.int32)}, r"found samples int32 \(2, 2\), expected .* \[rows, 3\]"),
        ({"samples": [[0, 0, 0]]}, "found samples list"),
        ({"samples": np.array([[0, 2, 0]])}, "found a sample that is no state of its variable"),
        ({"pattern": "rare"}, "found the pattern 'rare'"),
        ({"pattern": "random", "observed": ["x_0"]}, "found names, expected a share"),
    ],
)
def test_evidence_settings_that_make_no_sense_are_refused(settings, message: str) -> None:
    network = generate.chain(3)
    with pytest.raises(EvidenceError, match=message):
        generate.evidence_table(network, **{"samples": generate.sample(network, 2)} | settings)


def test_shares_may_be_numbers_of_numpy_and_a_name_alone_is_one_variable() -> None:
    network = generate.chain(4)
    samples = generate.sample(network, 2)
    assert generate.evidence_table(network, samples, observed=np.float32(0.5)).num_columns == 3
    assert generate.evidence_table(network, samples, observed="x_1").column_names == ["case_id", "x_1"]


def test_unknown_observed_variables_are_named_with_their_nearest() -> None:
    network = plant()
    with pytest.raises(ModelError, match="'FlowMetre', did you mean 'FlowMeter'"):
        generate.evidence_table(network, generate.sample(network, 2), observed=["FlowMetre"])


def test_a_variable_named_like_the_case_column_is_refused() -> None:
    place = Place("test")
    network = build_network(
        "clash", "bayes", [DraftVariable("case_id", ("0",), place)], [DraftTable(("case_id",), [1.0], place)]
    )
    with pytest.raises(EvidenceError, match="the column of case numbers"):
        generate.evidence_table(network, generate.sample(network, 2))
