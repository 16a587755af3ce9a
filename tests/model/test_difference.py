"""What differs between two networks, and which are equal."""

from __future__ import annotations

import pickle
from dataclasses import replace

import junctor
import numpy as np
from helpers import strategies
from helpers.files import ASIA
from hypothesis import given
from hypothesis import strategies as st
from junctor.formats import read_network
from junctor.generate import grid
from junctor.model.network import Factor, Network, Variable


def with_table(network: Network, variable: str, table: object) -> Network:
    """The network with another table of a variable."""
    v = network.index[variable]
    factors = list(network.factors)
    factors[v] = Factor(factors[v].scope, np.array(table, dtype=np.float64))
    return replace(network, factors=tuple(factors))


def reordered(network: Network, order: list[int]) -> Network:
    """The network with its variables in another order, and the states of each the other way round."""
    place = {v: n for n, v in enumerate(order)}
    factors = [
        Factor(tuple(place[v] for v in factor.scope), np.flip(factor.table).copy())
        for factor in ([network.factors[v] for v in order] if network.kind == "bayes" else network.factors)
    ]
    variables = [Variable(network.variables[v].name, network.variables[v].states[::-1]) for v in order]
    return replace(network, variables=tuple(variables), factors=tuple(factors))


def test_equal_networks_are_equal_by_content() -> None:
    asia = read_network(ASIA)
    again = replace(pickle.loads(pickle.dumps(asia)), name="another title")
    assert asia == again
    assert hash(asia) == hash(again)
    assert {asia: 1}[again] == 1
    assert not asia.diff(again)
    assert str(asia.diff(again)) == "no difference"
    assert asia != with_table(asia, "tub", [[0.07, 0.93], [0.01, 0.99]])
    assert asia != "asia"
    # What is kept for one network is found by an equal one, and its answers are the same.
    assert junctor.posteriors(asia, [{"xray": "yes"}]).equals(junctor.posteriors(again, [{"xray": "yes"}]))


@given(strategies.networks(max_variables=5, max_joint=128), st.data())
def test_another_order_is_no_other_table(network: Network, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(network.variables))))
    other = reordered(network, list(order))
    difference = network.diff(other)
    assert difference.same_variables
    assert difference.tables_missing == difference.tables_added == ()
    # Potentials are scaled, which rounds.
    assert all(change.change < 1e-12 for change in difference.changes)
    several = [each.name for each in network.variables if each.cardinality > 1]
    assert set(several) == set(difference.reordered) - {"the variables"}
    assert ("the variables" in difference.reordered) == (list(order) != sorted(order))


def test_the_largest_changes_come_first() -> None:
    asia = read_network(ASIA)
    other = with_table(asia, "tub", [[0.07, 0.93], [0.01, 0.99]])
    other = with_table(other, "xray", [[0.5, 0.5], [0.05, 0.95]])
    difference = asia.diff(other)
    assert [(each.scope, each.states, each.before, each.after) for each in difference.changes] == [
        (("either", "xray"), ("yes", "yes"), 0.98, 0.5),
        (("asia", "tub"), ("yes", "yes"), 0.05, 0.07),
    ]
    assert difference.lines == (
        "2 tables with other entries, the largest changes:",
        "  xray=yes given either=yes: 0.98, 0.5",
        "  tub=yes given asia=yes: 0.05, 0.07",
    )


def test_variables_states_and_tables_of_one_alone() -> None:
    asia = read_network(ASIA)
    names = [*asia.variables[:-1], Variable("age", ("young", "old"))]
    # Smoke has a third name of a state, bronc a parent less, and dysp is called otherwise.
    names[asia.index["smoke"]] = Variable("smoke", ("yes", "never"))
    factors = list(asia.factors)
    factors[asia.index["bronc"]] = Factor((asia.index["bronc"],), np.array([0.5, 0.5]))
    difference = asia.diff(replace(asia, variables=tuple(names), factors=tuple(factors)))
    assert (difference.missing, difference.added) == (("dysp",), ("age",))
    assert difference.states == {"smoke": (("yes", "no"), ("yes", "never"))}
    assert not difference.same_variables
    assert difference.tables_missing == (("smoke", "bronc"), ("bronc", "either", "dysp"))
    assert difference.tables_added == (("bronc",), ("bronc", "either", "age"))
    assert "variables only in the first: dysp" in difference.lines
    assert "states of smoke: yes, no; yes, never" in difference.lines
    assert "tables only in the second: bronc; age given bronc, either" in difference.lines
    turned = asia.diff(grid(2, 2))
    assert turned.kinds == ("bayes", "markov")
    assert turned.lines[0] == "a bayes network and a markov network"


def test_potentials_are_compared_up_to_their_scale() -> None:
    field = grid(2, 2, seed=1)
    scaled = replace(field, factors=tuple(Factor(each.scope, each.table * 8) for each in field.factors))
    assert not field.diff(scaled)
    assert field != scaled
    other = replace(field, factors=(Factor(field.factors[0].scope, field.factors[0].table ** 2), *field.factors[1:]))
    (change,) = field.diff(other).changes
    squared = field.factors[0].table ** 2
    moved = np.abs(squared / squared.sum() - field.factors[0].table / field.factors[0].table.sum())
    assert change.change == moved.max()
