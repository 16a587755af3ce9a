"""Networks of pgmpy and pyAgrum, and back, with both libraries."""

from __future__ import annotations

import pickle
import sys
import warnings
from typing import Any

import junctor
import numpy as np
import pytest
from helpers import strategies
from helpers.files import ROOT
from helpers.oracle import log_joint_table
from hypothesis import given
from junctor.formats import read_network
from junctor.generate import grid, random_network
from junctor.model.errors import InputError, ModelError
from junctor.model.network import Network

pyagrum: Any = pytest.importorskip("pyagrum")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    models: Any = pytest.importorskip("pgmpy.models")
    factors: Any = pytest.importorskip("pgmpy.factors.discrete")
    inference: Any = pytest.importorskip("pgmpy.inference")

NETWORKS = [
    *(read_network(path) for path in sorted((ROOT / "data").glob("*.*")) if path.suffix in (".bif", ".uai")),
    *(random_network(8, seed=seed) for seed in range(12)),
    *(grid(2, 3, seed=seed) for seed in range(3)),
]


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
def test_networks_come_back_as_they_were(network: Network) -> None:
    assert junctor.from_pgmpy(junctor.to_pgmpy(network)).digest == network.digest
    back = junctor.from_pyagrum(junctor.to_pyagrum(network))
    # Factors of random fields have no order there.
    assert back.digest == network.digest or network.kind == "markov"
    assert_alike(back, network)
    assert back.name in (network.name, "pyagrum")


@given(strategies.networks(max_variables=5, max_joint=128))
def test_any_network_keeps_its_distribution(network: Network) -> None:
    assert_alike(junctor.from_pgmpy(junctor.to_pgmpy(network)), network)
    # Factors over the same variables are one there.
    scopes = [frozenset(factor.scope or (0,)) for factor in network.factors]
    largest = max((factor.table.max() for factor in network.factors), default=1.0)
    if len(set(scopes)) == len(scopes) or largest < 1e30:
        assert_alike(junctor.from_pyagrum(junctor.to_pyagrum(network)), network)


def assert_alike(found: Network, network: Network) -> None:
    """Variables, states and the logarithm of the product of all factors are the same."""
    assert found.variables == network.variables
    np.testing.assert_allclose(log_joint_table(found), log_joint_table(network), rtol=1e-12, atol=1e-12)


def model() -> Any:
    """States that are booleans and integers, those of a parent in another order, and names that are numbers."""
    made = models.DiscreteBayesianNetwork([("rain", "wet"), (7, "wet")])
    made.add_cpds(
        factors.TabularCPD("rain", 2, [[0.2], [0.8]], state_names={"rain": [True, False]}),
        factors.TabularCPD(7, 3, [[0.2], [0.3], [0.5]]),
        factors.TabularCPD(
            "wet",
            2,
            [[0.4, 0.5, 0.6, 0.1, 0.2, 0.3], [0.6, 0.5, 0.4, 0.9, 0.8, 0.7]],
            evidence=["rain", 7],
            evidence_card=[2, 3],
            state_names={"wet": ["no", "yes"], "rain": [False, True], 7: [0, 1, 2]},
        ),
    )
    return made


def test_states_of_pgmpy_keep_their_kind_and_order() -> None:
    network = junctor.from_pgmpy(model())
    assert [(each.name, each.states) for each in network.variables] == [
        ("rain", ("True", "False")),
        ("wet", ("no", "yes")),
        ("7", ("0", "1", "2")),
    ]
    # The first rows of the table there are those of no rain.
    np.testing.assert_array_equal(network.factors[1].table[0, :, 0], [0.1, 0.2, 0.3])
    back = junctor.to_pgmpy(pickle.loads(pickle.dumps(network)))
    assert list(back.nodes()) == ["rain", "wet", 7]
    assert back.get_cpds("wet").state_names == {"wet": ["no", "yes"], "rain": [True, False], 7: [0, 1, 2]}
    asked = {"rain": True, 7: 2}
    theirs = inference.VariableElimination(back).query(["wet"], asked, show_progress=False)
    ours = junctor.posteriors(network, [{"rain": True, "7": 2}], ["wet"])
    np.testing.assert_allclose(ours["wet"][0].as_py(), theirs.values, rtol=1e-12)


def test_markov_models_of_pgmpy() -> None:
    edges = models.DiscreteMarkovNetwork([("a", "b"), ("b", "c")])
    graph = models.FactorGraph()
    tables = (
        factors.DiscreteFactor(["a", "b"], [2, 2], [1, 2, 3, 4]),
        factors.DiscreteFactor(["b", "c"], [2, 3], [5, 0, 1, 2, 2, 9]),
    )
    graph.add_nodes_from(["a", "b", "c"])
    for table in tables:
        graph.add_factors(table)
        graph.add_edges_from((name, table) for name in table.variables)
    edges.add_factors(*tables)
    for made in (edges, graph):
        network = junctor.from_pgmpy(made)
        assert (network.kind, [each.name for each in network.variables]) == ("markov", ["a", "b", "c"])
        assert [factor.table.tolist() for factor in network.factors] == [[[1, 2], [3, 4]], [[5, 0, 1], [2, 2, 9]]]


def test_kinds_of_variables_of_pyagrum() -> None:
    made = pyagrum.fastBN("free{low|high}->range[2,4]<-whole{1|3|7};cut[0,3,6]")
    network = junctor.from_pyagrum(made)
    assert {each.name: each.states for each in network.variables} == {
        "free": ("low", "high"),
        "range": ("2", "3", "4"),
        "whole": ("1", "3", "7"),
        "cut": ("[0;3[", "[3;6]"),
    }
    back = junctor.to_pyagrum(network)
    kinds = {str(back.variable(node)).partition(":")[2].partition("(")[0] for node in back.nodes()}
    assert kinds == {"Labelized", "Range", "Integer"}
    engine = pyagrum.LazyPropagation(made)
    engine.setEvidence({"free": "high", "whole": "7"})
    theirs = engine.posterior("range").toarray()
    ours = junctor.posteriors(network, [{"free": "high", "whole": 7}], ["range"])
    np.testing.assert_allclose(ours["range"][0].as_py(), theirs, rtol=1e-12)


def test_what_is_no_network_of_theirs() -> None:
    lacking = models.DiscreteBayesianNetwork([("a", "b")])
    lacking.add_cpds(factors.TabularCPD("a", 2, [[0.5], [0.5]]))
    with pytest.raises(ModelError, match=r"the model of pgmpy: variable 'b' has no table"):
        junctor.from_pgmpy(lacking)
    other = model()
    other.get_cpds("wet").state_names["rain"] = [False, "maybe"]
    with pytest.raises(ModelError, match="tables have the states True, False and False, maybe of 'rain'"):
        junctor.from_pgmpy(other)
    twins = models.DiscreteBayesianNetwork()
    twins.add_nodes_from(["1", 1])
    twins.add_cpds(factors.TabularCPD("1", 2, [[0.5], [0.5]]), factors.TabularCPD(1, 2, [[0.5], [0.5]]))
    with pytest.raises(ModelError, match="'1' is defined twice"):
        junctor.from_pgmpy(twins)
    with pytest.raises(ModelError, match=r"found a builtins.dict, expected a Bayesian or Markov network of pgmpy"):
        junctor.from_pgmpy({})
    with pytest.raises(ModelError, match=r"found a pyagrum.* expected a Bayesian or Markov network of pgmpy"):
        junctor.from_pgmpy(pyagrum.fastBN("a->b"))
    with pytest.raises(ModelError, match=r"found a pyagrum.*InfluenceDiagram, expected"):
        junctor.from_pyagrum(pyagrum.fastID("a->*b->$c"))
    counts = pyagrum.fastBN("a[2]")
    counts.cpt("a")[:] = [3, 1]
    with pytest.raises(ModelError, match=r"the model of pyAgrum: table of 'a': the row sums to 4"):
        junctor.from_pyagrum(counts)
    assert junctor.from_pyagrum(counts, normalize=True).factors[0].table.tolist() == [0.75, 0.25]


def test_read_network_names_the_function() -> None:
    with pytest.raises(InputError, match=r"DiscreteBayesianNetwork of pgmpy as network: junctor\.from_pgmpy takes it"):
        read_network(model())
    with pytest.raises(InputError, match=r"BayesNet of pyagrum as network: junctor\.from_pyagrum takes it"):
        junctor.posteriors(pyagrum.fastBN("a->b"), [{}])


def test_a_library_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyagrum", None)
    with pytest.raises(InputError, match="to_pyagrum needs pyagrum, not installed here: pip install pyagrum"):
        junctor.to_pyagrum(grid(2, 2))
