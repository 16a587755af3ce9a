"""`junctor.learn` against EM by enumeration, and what has to hold of it whatever the rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import junctor
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from helpers.encoding import encode_table
from helpers.expected_counts import em_step, enumerate_counts
from helpers.noisy_max import noisy_network
from helpers.strategies import PLACE, evidence_batches, networks
from hypothesis import assume, given
from hypothesis import strategies as st
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.evidence.encode import as_arrow
from junctor.learning.choices import check_choices
from junctor.learning.em import Iteration
from junctor.learning.learn import Learned, learn
from junctor.model.errors import EvidenceError, InputError, ModelError
from junctor.model.network import DraftTable, DraftVariable, Network, build_network
from pyarrow import parquet

# Ordinary numbers: EM by enumeration divides where the engine has its own ways.
ORDINARY = (1.0, 0.0, 2.0, 3.0, 0.7, 0.1)


def columns_of(network: Network, batch: EvidenceBatch) -> dict[str, list[Any]]:
    """Return a batch as a table that users would give."""
    table: dict[str, list[Any]] = {"case_id": list(range(batch.rows))}
    for v, states in batch.states.items():
        own = network.variables[v]
        table[own.name] = [None if state == UNOBSERVED else own.states[state] for state in states.tolist()]
    for v, soft in batch.likelihoods.items():
        own = network.variables[v]
        for state, name in enumerate(own.states):
            cells: list[float | None] = [None] * batch.rows
            for row, values in zip(soft.rows.tolist(), soft.values, strict=True):
                cells[row] = float(values[state])
            table[f"{own.name}={name}"] = cells
    return table


@st.composite
def cases(draw: st.DrawFn, soft: bool = True) -> tuple[Network, EvidenceBatch]:
    network = draw(ordinary_networks())
    return network, draw(evidence_batches(network, max_rows=8, min_rows=1, soft=soft, invalid=False))


@st.composite
def ordinary_networks(draw: st.DrawFn) -> Network:
    network = draw(networks(max_variables=5, max_joint=200, kind="bayes"))
    palette = np.array(ORDINARY)
    tables = []
    for factor in network.factors:
        drawn = draw(st.binary(min_size=factor.table.size, max_size=factor.table.size))
        table = palette[np.frombuffer(drawn, np.uint8) % len(palette)].reshape(factor.table.shape).copy()
        table[~table.any(axis=-1)] = 1.0
        table /= table.sum(axis=-1, keepdims=True)
        tables.append(DraftTable([f"v{v}" for v in factor.scope], table, PLACE))
    variables = [DraftVariable(each.name, each.states, PLACE) for each in network.variables]
    return build_network("ordinary", "bayes", variables, tables)


def tables(network: Network) -> npt.NDArray[np.float64]:
    return np.concatenate([factor.table.ravel() for factor in network.factors])


def possible(network: Network, batch: EvidenceBatch) -> None:
    # Likelihoods far apart leave few digits to compare.
    values = [soft.values for soft in batch.likelihoods.values()]
    assume(all(each[each > 0].min() > 1e-6 * each.max() for each in values))
    assume(len(enumerate_counts(network, batch)[2]) < batch.rows)


@given(cases(), st.integers(1, 6))
def test_iterates_are_those_of_enumeration(case: tuple[Network, EvidenceBatch], iterations: int) -> None:
    network, batch = case
    possible(network, batch)
    found = learn(
        network,
        columns_of(network, batch),
        acceleration="none",
        tolerance=0.0,
        max_iterations=iterations,
        impossible="skip",
    )
    expected = network
    for iteration in found.trace:
        counts, log_likelihood, _ = enumerate_counts(expected, batch)
        assert math.isclose(iteration.log_likelihood, log_likelihood, rel_tol=1e-9, abs_tol=1e-9)
        if iteration.number < found.trace[-1].number:
            expected = em_step(expected, counts)
    np.testing.assert_allclose(tables(found.network), tables(expected), atol=1e-9)
    assert [v.name for v in found.network.variables] == [v.name for v in network.variables]


PRIORS = ("none", "bdeu:1", "bdeu:20")


@given(cases(), st.sampled_from(PRIORS), st.sampled_from(("network", "random", "uniform")), st.data())
def test_the_objective_never_falls_and_zeros_fixes_and_ties_hold(
    case: tuple[Network, EvidenceBatch], prior: str, start: Any, data: st.DataObject
) -> None:
    network, batch = case
    possible(network, batch)
    names = [v.name for v in network.variables]
    fix = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=2))
    free = [name for name in names if name not in fix]
    shapes = {name: network.factors[network.index[name]].table.shape for name in free}
    pairs = [(a, b) for a in free for b in free if a < b and shapes[a] == shapes[b]]
    tie = [f"{a}={b}" for a, b in data.draw(st.lists(st.sampled_from(pairs), max_size=1))] if pairs else []
    options: dict[str, Any] = {"prior": prior, "fix": fix, "tie": tie, "start": start, "impossible": "skip"}
    try:
        found = learn(network, columns_of(network, batch), seed=3, max_iterations=25, **options)
    except EvidenceError:
        # Tied tables are the first one's, whose zeros may rule out all rows.
        assert tie
        return
    objective = [iteration.log_posterior for iteration in found.trace]
    assert objective == sorted(objective)
    for v, (before, after) in enumerate(zip(network.factors, found.network.factors, strict=True)):
        np.testing.assert_allclose(after.table.sum(axis=-1), 1.0, rtol=1e-12)
        if network.variables[v].name in fix:
            assert (after.table == before.table).all()
        if not tie:
            assert (after.table[before.table == 0] == 0).all()
    for text in tie:
        a, b = (found.network.factors[network.index[name]].table for name in text.split("="))
        assert (a == b).all()


@given(cases(), st.sampled_from(PRIORS), st.integers(0, 100))
def test_weights_repetition_and_order_of_rows(case: tuple[Network, EvidenceBatch], prior: str, seed: int) -> None:
    network, batch = case
    possible(network, batch)
    rng = np.random.default_rng(seed)
    table = columns_of(network, batch)
    times = rng.integers(1, 4, batch.rows)
    options: dict[str, Any] = {"prior": prior, "impossible": "skip", "tolerance": 0.0, "max_iterations": 4}
    weighted = learn(network, {**table, "weight": times.tolist()}, weight="weight", **options)
    order = rng.permutation(np.repeat(np.arange(batch.rows), times))
    repeated = learn(network, {name: [cells[i] for i in order] for name, cells in table.items()}, **options)
    np.testing.assert_allclose(tables(weighted.network), tables(repeated.network), atol=1e-12)
    assert weighted.weight == repeated.weight
    assert math.isclose(weighted.log_likelihood, repeated.log_likelihood, rel_tol=1e-12, abs_tol=1e-12)


@given(cases(), st.sampled_from(PRIORS))
def test_where_a_fit_ended_another_one_stays(case: tuple[Network, EvidenceBatch], prior: str) -> None:
    network, batch = case
    possible(network, batch)
    table = columns_of(network, batch)
    options: dict[str, Any] = {"prior": prior, "impossible": "skip"}
    first = learn(network, table, tolerance=1e-13, max_iterations=3000, **options)
    again = learn(first.network, table, tolerance=1e-9, **options)
    if first.converged:
        assert again.trace[0].log_posterior == pytest.approx(first.trace[-1].log_posterior, rel=1e-9, abs=1e-9)
        assert again.trace[-1].number <= 1


SMOKE = build_network(
    "smoke",
    "bayes",
    [DraftVariable("smoke", ("yes", "no"), PLACE), DraftVariable("cough", ("no", "yes"), PLACE)],
    [
        DraftTable(["smoke"], [0.5, 0.5], PLACE),
        DraftTable(["smoke", "cough"], [[0.5, 0.5], [0.9, 0.1]], PLACE),
    ],
)


def smoke_rows(counts: Sequence[int] = (3, 5, 6, 2)) -> dict[str, list[str | None]]:
    pairs = [("yes", "no"), ("yes", "yes"), ("no", "no"), ("no", "yes")]
    rows = [pair for pair, count in zip(pairs, counts, strict=True) for _ in range(count)]
    return {"smoke": [row[0] for row in rows], "cough": [row[1] for row in rows]}


def table_of(found: Learned, name: str) -> list[Any]:
    listed: list[Any] = found.network.factors[found.network.index[name]].table.tolist()
    return listed


def test_complete_rows_take_one_step() -> None:
    found = learn(SMOKE, smoke_rows())
    assert table_of(found, "smoke") == [8 / 16, 8 / 16]
    assert table_of(found, "cough") == [[3 / 8, 5 / 8], [6 / 8, 2 / 8]]
    assert (found.converged, found.reason, len(found.trace)) == (True, "complete rows take one step", 2)
    assert found.rows == {"ok": 16, "impossible": 0, "invalid": 0, "held_out": 0}
    expected = 16 * math.log(0.5) + 3 * math.log(3 / 8) + 5 * math.log(5 / 8) + 6 * math.log(0.75) + 2 * math.log(0.25)
    assert found.log_likelihood == pytest.approx(expected, rel=1e-14)
    assert junctor.learn is learn


def test_bdeu_pseudo_counts_are_added_to_counts() -> None:
    found = learn(SMOKE, smoke_rows(), prior="bdeu:4")
    assert table_of(found, "smoke") == [0.5, 0.5]
    np.testing.assert_allclose(table_of(found, "cough"), [[4 / 10, 6 / 10], [7 / 10, 3 / 10]])
    prior = 4 * math.log(0.5) + sum(math.log(p) for p in (0.4, 0.6, 0.7, 0.3))
    assert found.trace[-1].log_posterior - found.log_likelihood == pytest.approx(prior)


def test_parents_without_weight_keep_what_they_had() -> None:
    found = learn(SMOKE, smoke_rows((3, 1, 0, 0)))
    assert table_of(found, "cough") == [[0.75, 0.25], [0.9, 0.1]]
    assert table_of(learn(SMOKE, smoke_rows((3, 1, 0, 0)), prior="bdeu:4"), "cough")[1] == [0.5, 0.5]


def test_priors_from_files(tmp_path: Path) -> None:
    counts = tmp_path / "counts.json"
    counts.write_text('{"cough": [[1, 0], [0, 2.5]]}')
    found = learn(SMOKE, smoke_rows(), prior=f"dirichlet:{counts}")
    np.testing.assert_allclose(table_of(found, "cough"), [[4 / 9, 5 / 9], [6 / 10.5, 4.5 / 10.5]])
    rows = tmp_path / "counts.csv"
    rows.write_text('variable,state,parents,count\ncough,no,"smoke=yes",1\ncough,yes,smoke=no,2.5\n')
    assert table_of(learn(SMOKE, smoke_rows(), prior=f"dirichlet:{rows}"), "cough") == table_of(found, "cough")
    file = tmp_path / "prior.bif"
    junctor.write_network(SMOKE, file)
    found = learn(SMOKE, smoke_rows(), prior=f"dirichlet:{file}@10")
    np.testing.assert_allclose(table_of(found, "cough"), [[8 / 18, 10 / 18], [15 / 18, 3 / 18]])


def test_counts_of_yesterday_are_a_prior_of_today(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    first, second = smoke_rows((3, 5, 6, 2)), smoke_rows((1, 0, 4, 7))
    both = {name: first[name] + second[name] for name in first}
    file = tmp_path / "counts.parquet"
    pq.write_table(junctor.expected_counts(SMOKE, first), file)
    found = learn(SMOKE, second, prior=f"dirichlet:{file}")
    np.testing.assert_allclose(table_of(found, "cough"), table_of(learn(SMOKE, both), "cough"), rtol=1e-14)


def test_expected_counts_have_a_row_for_each_entry() -> None:
    table = junctor.expected_counts(SMOKE, {**smoke_rows((1, 1, 1, 1)), "w": [1, 2, 3, 4]}, weight="w")
    assert table.select(["variable", "state", "count"]).to_pylist() == [
        {"variable": name, "state": state, "count": count}
        for name, state, count in [
            ("smoke", "yes", 3.0),
            ("smoke", "no", 7.0),
            ("cough", "no", 1.0),
            ("cough", "yes", 2.0),
            ("cough", "no", 3.0),
            ("cough", "yes", 4.0),
        ]
    ]
    assert table["parents"].to_pylist()[0] == []
    assert table["parents"].to_pylist()[4] == [{"variable": "smoke", "state": "no"}]


@given(cases())
def test_expected_counts_are_those_of_enumeration(case: tuple[Network, EvidenceBatch]) -> None:
    network, batch = case
    possible(network, batch)
    counts, _, _ = enumerate_counts(network, batch)
    found = junctor.expected_counts(network, columns_of(network, batch))["count"].to_numpy()
    np.testing.assert_allclose(found, np.concatenate([each.ravel() for each in counts]), rtol=1e-9, atol=1e-12)


def test_new_states_are_added() -> None:
    rows = {"smoke": ["yes", "pipe", "no", "yes"], "cough": ["no", "yes", "no", "fits"]}
    refused = learn(SMOKE, rows)
    assert refused.rows["invalid"] == 2
    assert "unknown state 'pipe'" in refused.reasons[1]
    found = learn(SMOKE, rows, new_states=True)
    assert found.network.variables[0].states == ("yes", "no", "pipe")
    assert found.network.variables[1].states == ("no", "yes", "fits")
    assert table_of(found, "smoke") == [0.5, 0.25, 0.25]
    assert table_of(found, "cough") == [[0.5, 0, 0.5], [1, 0, 0], [0, 1, 0]]
    with pytest.raises(ModelError, match="changes the table of a variable that is fixed"):
        learn(SMOKE, rows, new_states=True, fix=["cough"])


def test_columns_of_free_text_are_no_states(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"smoke": ["yes", "no", *(f"text {i}" for i in range(30))], "cough": ["no"] * 32}
    monkeypatch.setattr("junctor.model.network.MAX_TABLE_ENTRIES", 60)
    with pytest.raises(ModelError, match="table of 'cough' with new states would have 64 entries"):
        learn(SMOKE, rows, new_states=True)


ZEROS = build_network(
    "zeros",
    "bayes",
    [DraftVariable("smoke", ("yes", "no"), PLACE), DraftVariable("cough", ("no", "yes"), PLACE)],
    [
        DraftTable(["smoke"], [0.5, 0.5], PLACE),
        DraftTable(["smoke", "cough"], [[0.5, 0.5], [1.0, 0.0]], PLACE),
    ],
)


def test_impossible_rows_are_refused_skipped_or_smoothed() -> None:
    with pytest.raises(EvidenceError, match=r"2 rows are impossible \(15, 16\) by zeros of the network"):
        learn(ZEROS, smoke_rows())
    skipped = learn(ZEROS, smoke_rows(), impossible="skip")
    assert skipped.rows == {"ok": 14, "impossible": 2, "invalid": 0, "held_out": 0}
    assert table_of(skipped, "cough") == [[3 / 8, 5 / 8], [1.0, 0.0]]
    smoothed = learn(ZEROS, smoke_rows(), impossible="smooth")
    assert table_of(smoothed, "cough") == table_of(learn(SMOKE, smoke_rows()), "cough")
    with pytest.raises(EvidenceError, match="2 rows are impossible"):
        learn(ZEROS, smoke_rows(), impossible="smooth", fix=["cough"])


def test_rows_are_held_out_by_their_number_and_the_seed() -> None:
    rows = smoke_rows((300, 500, 600, 200))
    found = learn(SMOKE, rows, holdout=0.1)
    assert found.holdout is not None
    assert 100 < found.holdout.rows < 220
    assert found.rows["ok"] + found.holdout.rows == 1600
    again = learn(SMOKE, {name: [*cells, cells[0]] for name, cells in rows.items()}, holdout=0.1)
    assert again.holdout is not None
    assert again.holdout.rows - found.holdout.rows in (0, 1)
    table = np.array(table_of(found, "cough"))
    assert found.holdout.log_likelihood / found.holdout.rows == pytest.approx(
        found.log_likelihood / found.weight, rel=0.2
    )
    other = learn(SMOKE, rows, holdout=0.1, seed=1)
    assert not (np.array(table_of(other, "cough")) == table).all()
    assert learn(SMOKE, rows).holdout is None


def test_a_latent_variable_needs_random_starts() -> None:
    network = build_network(
        "mixture",
        "bayes",
        [DraftVariable(name, ("a", "b"), PLACE) for name in ("h", "x", "y", "z")],
        [
            DraftTable(["h"], [0.5, 0.5], PLACE),
            *(DraftTable(["h", name], [[0.5, 0.5], [0.5, 0.5]], PLACE) for name in ("x", "y", "z")),
        ],
    )
    rng = np.random.default_rng(1)
    hidden = rng.random(3000) < 0.4
    table = {name: np.where(rng.random(3000) < np.where(hidden, 0.9, 0.2), "a", "b").tolist() for name in "xyz"}
    seen: list[tuple[int, Iteration]] = []
    found = learn(
        network,
        table,
        start="random",
        restarts=4,
        seed=5,
        tolerance=1e-9,
        max_iterations=500,
        watch=lambda *at: seen.append(at),
    )
    assert found.latent == ("h",)
    assert len(found.restarts) == 4
    assert max(each.log_posterior for each in found.restarts) == found.trace[-1].log_posterior
    assert {number for number, _ in seen} == {0, 1, 2, 3}
    # Which state of the latent variable is which, nothing tells.
    shares = np.array(table_of(found, "x"))[:, 0]
    np.testing.assert_allclose(sorted(shares), [0.2, 0.9], atol=0.06)
    uniform = learn(network, table, start="uniform")
    assert uniform.log_likelihood < found.log_likelihood - 100
    assert uniform.trace[-1].number <= 2


@pytest.mark.parametrize("strongest_last", [False, True])
def test_noisy_nodes_keep_their_causal_independence(strongest_last: bool) -> None:
    truth = noisy_network(strongest_last)
    rows = sampled(truth, 4000)
    start = noisy_network(strongest_last, seed=1)
    found = learn(start, rows, tolerance=1e-8, max_iterations=300)
    objective = [iteration.log_posterior for iteration in found.trace]
    assert objective == sorted(objective)
    assert found.network.hidden == truth.hidden
    # Another fit begins where this one ended: the chain still is one.
    again = learn(found.network, rows, max_iterations=1)
    assert again.trace[0].log_likelihood == pytest.approx(found.log_likelihood, rel=1e-9)
    whole = truth.expanded.factors[truth.index["x"]].table
    fitted = found.network.expanded.factors[truth.index["x"]].table
    assert np.abs(fitted - whole).mean() < 0.03
    # As likely as the network that the rows are from, and better than the start.
    assert found.log_likelihood > learn(truth, rows, fix=["*"], max_iterations=1).log_likelihood - 5
    # Zeros of the parents without effect stay, but for the first one's, which holds the leak.
    for number in range(1, 7):
        link = found.network.factors[hidden_of(found.network, number)].table
        weakest = 0 if strongest_last else 2
        assert link[weakest, 0].tolist() == np.eye(3)[weakest].tolist()


def hidden_of(network: Network, parent: int) -> int:
    return next(v for v, factor in enumerate(network.factors) if len(factor.scope) == 3 and factor.scope[1] == parent)


def sampled(network: Network, rows: int) -> dict[str, list[str | None]]:
    """Return rows of a network, a tenth of the cells empty."""
    rng = np.random.default_rng(7)
    states: dict[int, npt.NDArray[np.int64]] = {}
    while len(states) < len(network.factors):
        for v, factor in enumerate(network.factors):
            *parents, _ = factor.scope
            if v in states or any(p not in states for p in parents):
                continue
            cumulated = factor.table[tuple(states[p] for p in parents)].cumsum(axis=-1)
            if not parents:
                cumulated = np.tile(cumulated, (rows, 1))
            states[v] = (rng.random((rows, 1)) > cumulated).sum(axis=1).clip(0, factor.table.shape[-1] - 1)
    return {
        v.name: [None if rng.random() < 0.1 else v.states[s] for s in states[i].tolist()]
        for i, v in enumerate(network.public)
    }


def test_noisy_counts_are_those_of_enumeration() -> None:
    network = noisy_network(True, seed=2)
    rows = sampled(network, 6)
    batch = encode_table(as_arrow(rows), network).batch
    found = learn(network, rows, acceleration="none", tolerance=0.0, max_iterations=1)
    counts, _, _ = enumerate_counts(network, batch)
    link = hidden_of(network, 3)
    contribution = network.factors[link].table[0]
    # Each of the two causes explicitly: how strong it is so far, and the contribution; the result is the stronger.
    expected = np.zeros_like(contribution)
    for so_far in range(3):
        for parent in range(contribution.shape[0]):
            for result in range(3):
                causes = [z for z in range(3) if max(so_far, z) == result]
                total = sum(contribution[parent, z] for z in causes)
                for z in causes:
                    if total > 0:
                        expected[parent, z] += counts[link][so_far, parent, result] * contribution[parent, z] / total
    sums = expected.sum(axis=1, keepdims=True)
    expected = np.where(sums > 0, expected / np.where(sums > 0, sums, 1), contribution)
    np.testing.assert_allclose(found.network.factors[link].table[0], expected, atol=1e-12)


def test_chains_that_are_no_noisy_node_have_to_be_fixed() -> None:
    network = noisy_network(False)
    link = hidden_of(network, 3)
    drafts = [
        DraftTable(
            [network.variables[v].name for v in factor.scope],
            np.full(factor.table.shape, 1 / 3) if number == link else factor.table,
            PLACE,
        )
        for number, factor in enumerate(network.factors)
    ]
    variables = [DraftVariable(v.name, v.states, PLACE) for v in network.variables]
    other = build_network("other", "bayes", variables, drafts, hidden=network.hidden)
    rows = sampled(network, 20)
    with pytest.raises(ModelError, match="no chain of a noisy-MAX node"):
        learn(other, rows)
    found = learn(other, rows, fix=["x"])
    assert (found.network.factors[link].table == 1 / 3).all()


def test_priors_of_noisy_nodes(tmp_path: Path) -> None:
    network = noisy_network(False)
    rows = sampled(network, 50)
    found = learn(network, rows, prior="bdeu:12", max_iterations=3)
    objective = [iteration.log_posterior for iteration in found.trace]
    assert objective == sorted(objective)
    file = tmp_path / "prior.parquet"
    junctor.write_network(network, file)
    with pytest.raises(InputError, match="pseudo counts of 'x': a noisy node with many parents has no table"):
        learn(network, rows, prior=f"dirichlet:{file}")
    kept = learn(network, rows, prior=f"dirichlet:{file}", fix=["x"], max_iterations=1)
    link = hidden_of(network, 3)
    assert (kept.network.factors[link].table == network.factors[link].table).all()
    counts = tmp_path / "prior.json"
    counts.write_text('{"x": [1]}')
    with pytest.raises(InputError, match="has no table"):
        learn(network, rows, prior=f"dirichlet:{counts}")


MARKOV = build_network("m", "markov", [DraftVariable("a", ("x", "y"), PLACE)], [DraftTable(["a"], [1.0, 2.0], PLACE)])


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        (MARKOV, {}, "Markov network has no conditional tables"),
        (SMOKE, {"prior": "flat"}, "expected none, bdeu:N or dirichlet:FILE"),
        (SMOKE, {"prior": "none:1"}, "expected none, bdeu:N or dirichlet:FILE"),
        (SMOKE, {"prior": "bdeu"}, "expected a number from 1e-100"),
        (SMOKE, {"prior": "bdeu:0"}, "expected a number from 1e-100"),
        (SMOKE, {"prior": "bdeu:1e308"}, "expected a number from 1e-100"),
        (SMOKE, {"prior": "bdeu:nan"}, "expected a number from 1e-100"),
        (SMOKE, {"prior": "dirichlet:"}, "expected none, bdeu:N or dirichlet:FILE"),
        (SMOKE, {"prior": "dirichlet:/nowhere/p.json"}, "No such file"),
        (SMOKE, {"prior": "dirichlet:/nowhere/p.csv"}, "No such file"),
        (SMOKE, {"prior": "dirichlet:/nowhere/p.bif"}, "there is no such file"),
        (SMOKE, {"fix": ["smok"]}, "did you mean 'smoke'"),
        (SMOKE, {"fix": ["x*"]}, "no variable is named"),
        (SMOKE, {"tie": ["smoke"]}, "expected two variables as A=B"),
        (SMOKE, {"tie": ["smoke=smoke"]}, "two different variables"),
        (SMOKE, {"tie": ["smoke=caugh"]}, "no variable is named 'caugh', did you mean 'cough'"),
        (SMOKE, {"tie": ["smoke=cough"]}, "their tables have 2 and 2 x 2 entries"),
        (SMOKE, {"start": "zero"}, "found start 'zero'"),
        (SMOKE, {"restarts": 0}, "0 restarts"),
        (SMOKE, {"restarts": 2}, "add --start random"),
        (SMOKE, {"seed": -1}, "found seed -1"),
        (SMOKE, {"tolerance": -1}, "tolerance of -1"),
        (SMOKE, {"max_iterations": 0}, "at most 0 iterations"),
        (SMOKE, {"acceleration": "aitken"}, "found acceleration 'aitken'"),
        (SMOKE, {"holdout": 1.0}, "a holdout of 1.0"),
        (SMOKE, {"impossible": "ignore"}, "found impossible 'ignore'"),
        (SMOKE, {"weight": "w"}, "there is no column 'w'"),
        (SMOKE, {"weight": "cough"}, "has the name of a variable"),
        (SMOKE, {"strict": True, "missing": ["x"], "case_id": "number"}, "no column 'number'"),
    ],
)
def test_bad_input_is_refused(network: Network, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        learn(network, smoke_rows(), **options)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([1.0, -1.0], "row 2: column 'w': found -1.0, expected a weight of 0, or from 1e-100 to 1e100"),
        ([1.0, None], "row 2: column 'w': found nothing"),
        ([math.inf, 1.0], "row 1: column 'w': found inf"),
        ([1.0, 1e-320], "row 2: column 'w': found 1e-320"),
        ([1e308, 1e308], "row 1: column 'w': found 1e[+]308"),
        (["1", "two"], "row 2: column 'w': found 'two'"),
        ([0.0, 0.0], "no row to learn from"),
    ],
)
def test_bad_weights_are_refused(cells: list[Any], message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        learn(SMOKE, {"smoke": ["yes", "no"], "w": cells}, weight="w")


def test_rows_that_cannot_be_read() -> None:
    with pytest.raises(EvidenceError, match="row 2: column 'smoke': unknown state"):
        learn(SMOKE, {"smoke": ["yes", "maybe"]}, strict=True)
    with pytest.raises(EvidenceError, match="no row to learn from"):
        learn(SMOKE, {"smoke": ["maybe"]})
    with pytest.raises(EvidenceError, match="no row to learn from"):
        learn(SMOKE, {"smoke": []})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.json", "[1", "cannot be read as JSON"),
        ("p.json", '{"smoke": [1, 1], "smoke": [2, 2]}', "the key 'smoke' stands twice in an object"),
        ("p.json", "{}", "p.json: none of its variables is in the network"),
        ("p.json", "[1]", "expected an object"),
        ("p.json", '{"smok": [1, 1]}', "did you mean 'smoke'"),
        ("p.json", '{"smoke": [1, 1, 1]}', "found 3, expected 2"),
        ("p.json", '{"smoke": ["a", 1]}', "expected numbers"),
        ("p.json", '{"smoke": [-1, 1]}', "not negative"),
        ("p.json", '{"cough": [[1, 1], [1, 1]]}', "structural zero"),
        ("p.json", '{"smoke": [1e101, 1]}', r"pseudo counts of 'smoke': found 1e\+101, expected at most 1e\+100"),
        ("p.json", f'{{"smoke": [1{"0" * 400}, 1]}}', "expected numbers"),
        ("p.csv", "a,b\n1,2\n", "expected the columns variable, state, parents, count"),
        ("p.csv", "variable,state,parents,count\n", "p.csv: none of its variables is in the network"),
        ("p.csv", "variable,state,parents,count\nx,a,,1\n", "no variable is named 'x'"),
        ("p.csv", "variable,state,parents,count\nsmoke,maybe,,1\n", "row 1: 'smoke' has no 'maybe'"),
        ("p.csv", "variable,state,parents,count\ncough,no,smoke=maybe,1\n", "no the configuration 'smoke=maybe'"),
        ("p.csv", "variable,state,parents,count\nsmoke,yes,,x\n", "expected a number"),
        ("p.csv", "variable,state,parents,count\nsmoke,yes,,1\nsmoke,yes,,1\n", "row 2: a second count"),
        ("p.csv", "variable,state,parents,count\nsmoke,yes,,1\rsmoke,no,,1\n", r"p.csv: line \d: new-line character"),
        ("p.parquet", "PAR1", "cannot be read as Parquet"),
        ("p.uai", "BAYES 1 2 1 1 0 2 0.5 0.5", "p.uai: none of its variables is in the network"),
    ],
)
def test_bad_priors_are_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(InputError, match=message):
        learn(ZEROS, smoke_rows((1, 1, 1, 0)), prior=f"dirichlet:{file}")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"parents": ["smoke=yes"]}, "row 1: found the parents 'smoke=yes', expected a list of records"),
        ({"parents": [["smoke"]]}, r"row 1: found the parents \['smoke'\], expected a list of records"),
        ({"parents": [[{"name": "smoke"}]]}, "row 1: found the parents .*, expected a list of records"),
        ({"variable": [["cough"]]}, r"no variable is named \['cough'\]"),
    ],
)
def test_priors_of_other_tables_are_refused(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    file = tmp_path / "p.parquet"
    right = {
        "variable": ["cough"],
        "state": ["yes"],
        "parents": [[{"variable": "smoke", "state": "yes"}]],
        "count": [1],
    }
    parquet.write_table(pa.table(right | columns), file)
    with pytest.raises(InputError, match=message):
        learn(SMOKE, smoke_rows(), prior=f"dirichlet:{file}")


def test_bad_strengths_of_priors_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text("{}")
    with pytest.raises(InputError, match="expected a number from 1e-100"):
        learn(SMOKE, smoke_rows(), prior=f"dirichlet:{file}@-1")
    file.write_text('{"smoke": [1e60, 1]}')
    with pytest.raises(InputError, match=r"'smoke': found 1e\+60 times 1e\+50, expected at most 1e\+100"):
        learn(SMOKE, smoke_rows(), prior=f"dirichlet:{file}@1e50")


@pytest.mark.parametrize("weight", [1e-100, 1e100])
def test_weights_at_their_bounds(weight: float) -> None:
    cells = {"smoke": ["yes", "no", None, "yes"], "w": [weight] * 4}
    fit = learn(SMOKE, cells, weight="w", max_iterations=3)
    expected = learn(SMOKE, cells | {"w": [1.0] * 4}, weight="w", max_iterations=3)
    for factor, other in zip(fit.network.factors, expected.network.factors, strict=True):
        np.testing.assert_allclose(factor.table, other.table, rtol=1e-9)


def test_a_holdout_may_be_any_number_and_no_text() -> None:
    share: Any
    for share in (0, 0.5, np.float32(0.5)):
        check_choices(1, "network", share, 0, "refuse")
    wrong: Any
    for wrong in ("10%", 1, -0.1, None):
        with pytest.raises(InputError, match="expected a share from 0 to below 1"):
            check_choices(1, "network", wrong, 0, "refuse")
