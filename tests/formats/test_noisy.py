from __future__ import annotations

import itertools
import json
from pathlib import Path

import junctor
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
from helpers.command_line import junctor_cli
from helpers.format_helpers import assert_same, error_of
from hypothesis import given
from hypothesis import strategies as st
from junctor.formats import noisy, read_network, store, write_network
from junctor.formats.noisy import NoisyMax, tables_of
from junctor.generate import evidence_table, sample
from junctor.model.errors import EvidenceError, Place
from junctor.model.network import DraftTable, DraftVariable, Network, build_network

HERE = Place("f", 3)


def gate(sizes: list[int], states: int, rng: np.random.Generator, strongest_last: bool) -> NoisyMax:
    """A noisy node over parents of these sizes, with zeros in its parameters."""
    names = [f"p{i}" for i in range(len(sizes))]
    parts = [_rows(size, states, rng) for size in sizes]
    return NoisyMax([*names, "child"], parts, _rows(1, states, rng)[0], strongest_last, HERE)


def _rows(number: int, states: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    weights = rng.random((number, states)) * (rng.random((number, states)) < 0.7)
    weights[:, 0] += 1e-3
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def network_of(node: NoisyMax, rng: np.random.Generator, factored: bool) -> Network:
    """The node with its parents, and a child of it that is named before them."""
    drafts = [DraftVariable("below", ["no", "yes"], HERE)]
    states = [str(i) for i in range(len(node.leak))]
    tables = [DraftTable(["child", "below"], _rows(len(states), 2, rng), HERE)]
    for name, contribution in zip(node.scope[:-1], node.contributions, strict=True):
        drafts.append(DraftVariable(name, [str(i) for i in range(len(contribution))], HERE))
        tables.append(DraftTable([name], _rows(1, len(contribution), rng), HERE))
    drafts.append(DraftVariable("child", states, HERE))
    hidden, own = tables_of([node], [draft.name for draft in drafts]) if factored else ([], [node.table()])
    return build_network("n", "bayes", drafts + hidden, tables + own, HERE, hidden=len(hidden))


@pytest.fixture(autouse=True)
def always_factored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noisy.NoisyMax, "is_whole", property(lambda node: len(node.scope) < 3))


def both(sizes: list[int], states: int, seed: int, strongest_last: bool) -> tuple[Network, Network]:
    """The same network factored and expanded."""
    rngs = [np.random.default_rng(seed) for _ in range(2)]
    node = gate(sizes, states, np.random.default_rng(seed + 1), strongest_last)
    return network_of(node, rngs[0], True), network_of(node, rngs[1], False)


@given(st.lists(st.integers(1, 3), min_size=2, max_size=5), st.integers(1, 4), st.integers(0, 2**32), st.booleans())
def test_a_chain_is_its_table(sizes: list[int], states: int, seed: int, strongest_last: bool) -> None:
    factored, whole = both(sizes, states, seed, strongest_last)
    assert factored.hidden == len(sizes) - 1
    assert factored.public == whole.variables
    assert [factored.parents(v) for v in range(len(whole.variables))] == [f.scope[:-1] for f in whole.factors]
    again = factored.expanded
    assert again.variables == whole.variables
    for ours, theirs in zip(again.factors, whole.factors, strict=True):
        assert ours.scope == theirs.scope
        np.testing.assert_allclose(ours.table, theirs.table, rtol=1e-13, atol=0)
    assert_same(store.read(store.to_bytes(factored), "n"), factored)
    assert store.read(store.to_bytes(factored), "n").digest == factored.digest


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(1, 3), st.integers(0, 2**32), st.booleans())
def test_the_table_is_the_strongest_of_independent_contributions(
    sizes: list[int], states: int, seed: int, strongest_last: bool
) -> None:
    node = gate(sizes, states, np.random.default_rng(seed), strongest_last)
    table = np.asarray(node.table().values).reshape(node.shape)
    choose = max if strongest_last else min
    for at in itertools.product(*map(range, sizes)):
        parts = [part[i] for part, i in zip(node.contributions, at, strict=True)] + [node.leak]
        expected = np.zeros(states)
        for effects in itertools.product(range(states), repeat=len(parts)):
            expected[choose(effects)] += np.prod([part[e] for part, e in zip(parts, effects, strict=True)])
        np.testing.assert_allclose(table[at], expected, rtol=1e-12, atol=0)


@given(st.lists(st.integers(1, 3), min_size=2, max_size=5), st.integers(2, 3), st.integers(0, 2**32), st.booleans())
def test_answers_are_those_of_the_table(sizes: list[int], states: int, seed: int, strongest_last: bool) -> None:
    factored, whole = both(sizes, states, seed, strongest_last)
    evidence = evidence_table(whole, sample(whole, 7, seed), 0.5, "missing", seed, 0.3)
    ours, theirs = (junctor.posteriors(network, evidence) for network in (factored, whole))
    assert ours.column_names == theirs.column_names
    for name in ours.column_names:
        for one, other in zip(ours[name].to_pylist(), theirs[name].to_pylist(), strict=True):
            assert one == other or np.allclose(one, other, rtol=1e-10)
    # Ties may be broken by the last bit, so that explanations are compared by their probabilities.
    ours, theirs = (junctor.most_probable(network, evidence) for network in (factored, whole))
    assert ours.column_names == theirs.column_names
    np.testing.assert_allclose(ours["log_probability"], theirs["log_probability"], rtol=1e-10)


def test_auxiliary_variables_are_no_variables(tmp_path: Path) -> None:
    factored, whole = both([2, 2, 2], 2, 5, False)
    assert [v.name for v in factored.variables[-2:]] == ["child after p0", "child after p1"]
    assert "child after p0" not in factored.index
    assert repr(factored) == "Network('n', bayes, 5 variables, 7 factors)"
    with pytest.raises(EvidenceError, match="unknown target 'child after p0'"):
        junctor.posteriors(factored, [{}], targets=["child after p0"])
    with pytest.raises(EvidenceError, match="child after p0"):
        junctor.posteriors(factored, [{"child after p0": "0"}])
    assert sample(factored, 3).shape == (3, 5)
    path, evidence = tmp_path / "n.parquet", tmp_path / "e.csv"
    store.write(factored, path)
    evidence.write_text("below\nyes\nno\n")
    assert junctor_cli("run", str(path), str(evidence), "-o", str(tmp_path / "out"), "-q").exit_code == 0
    answers = pq.read_table(next((tmp_path / "out" / "posteriors").glob("*.parquet")))
    assert not [name for name in answers.column_names if "after" in name]
    for command in (["inspect", str(path), "--json"], ["validate", str(path), "--json"], ["inspect", str(path)]):
        ran = junctor_cli(*command)
        assert ran.exit_code == 0
        assert "child after" not in ran.output
    record = json.loads(junctor_cli("inspect", str(path), "--json").output)
    assert record["variables"][-1]["parents"] == ["p0", "p1", "p2"]
    assert (
        whole.digest
        == build_network(
            "n",
            "bayes",
            [DraftVariable(v.name, v.states, HERE) for v in whole.variables],
            [DraftTable([whole.variables[i].name for i in f.scope], f.table, HERE) for f in whole.factors],
        ).digest
    )


def test_a_name_that_is_taken_gets_a_stroke() -> None:
    node = gate([2, 2, 2], 2, np.random.default_rng(1), False)
    hidden, _ = tables_of([node], ["p0", "p1", "p2", "child", "child after p0"])
    assert [variable.name for variable in hidden] == ["child after p0'", "child after p1"]


def test_a_parent_that_stands_twice_is_refused() -> None:
    node = gate([2, 2, 2], 2, np.random.default_rng(1), False)
    twice = NoisyMax(["p0", "p1", "p0", "child"], node.contributions, node.leak, False, HERE)
    assert "a variable stands twice in its scope" in error_of(lambda: tables_of([twice], []))


def test_a_node_of_thirty_parents_has_no_table_of_two_to_the_thirty(tmp_path: Path) -> None:
    names = [f"p{i}" for i in range(30)]
    parents = "".join(
        f'<cpt id="{name}"><state id="t"/><state id="f"/><probabilities>0.5 0.5</probabilities></cpt>' for name in names
    )
    numbers = " ".join(f"{0.01 * i} {1 - 0.01 * i} 0 1" for i in range(1, 31))
    path = tmp_path / "n.xdsl"
    path.write_text(
        f'<smile id="n"><nodes>{parents}<noisymax id="c"><state id="t"/><state id="f"/>'
        f"<parents>{' '.join(names)}</parents><parameters>{numbers} 0.1 0.9</parameters></noisymax></nodes></smile>"
    )
    network = read_network(path)
    assert max(factor.table.size for factor in network.factors) == 8
    # All parents that are present fail to act, one by one, and so does the leak.
    expected = 0.9 * np.prod([1 - 0.01 * i for i in range(1, 31)])
    answers = junctor.posteriors(network, [dict.fromkeys(names, "t")], targets=["c"])
    np.testing.assert_allclose(answers["c"][0].as_py(), [1 - expected, expected], rtol=1e-13)
    prior = 0.9 * np.prod([1 - 0.005 * i for i in range(1, 31)])
    answers = junctor.posteriors(network, [{}], targets=["c"])
    np.testing.assert_allclose(answers["c"][0].as_py(), [1 - prior, prior], rtol=1e-13)
    assert "the whole table of 'c' would have 2,147,483,648 entries" in error_of(
        lambda: junctor.most_probable(network, [{}])
    )
    assert "would have 2,147,483,648 entries" in error_of(lambda: write_network(network, tmp_path / "n.bif"))
    write_network(network, tmp_path / "n.parquet")
    assert_same(read_network(tmp_path / "n.parquet"), network)
