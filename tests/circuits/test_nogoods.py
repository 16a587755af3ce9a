"""Nogoods of a search: no possible state has all of their literals, and circuits stay as they are to the last term."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junctor.circuits.compile import Circuit, _begun, _circuit, _copies, _Search
from junctor.circuits.orders import orders_of
from junctor.model.network import Factor, Network, Variable
from junctor_kernels.circuits.nogoods import FIRED, NOGOODS
from junctor_kernels.circuits.search import DONE
from junctor_kernels.circuits.state import DEAD_ENDS

Floats = npt.NDArray[np.float64]


def constraints(seed: int, states: int) -> Network:
    """Return two sets of variables, each with constraints of its own of three variables, and a few that join them.

    Each constraint rules out single combinations, so that nothing is seen to be impossible before much is decided.
    """
    rng = np.random.default_rng(seed)
    own, between = (5, 3) if states == 2 else (3, 2)
    sides = [list(range(between + side * own, between + (side + 1) * own)) for side in range(2)]
    scopes = [tuple(rng.choice(side, 3, replace=False)) for side in sides for _ in range(rng.integers(own, 5 * own))]
    scopes += [
        (rng.integers(between), *rng.choice(side, 2, replace=False))
        for side in sides
        for _ in range(rng.integers(3, 12))
    ]
    factors = []
    for scope in scopes:
        table = rng.choice([1.0, 0.5, 0.25], [states] * 3)
        for _ in range(1 if states == 2 else 6):
            table[tuple(rng.integers(states, size=3))] = 0.0
        factors.append(Factor(tuple(int(v) for v in sorted(scope)), table))
    variables = tuple(Variable(f"v{v}", ("a", "b", "c")[:states]) for v in range(between + 2 * own))
    return Network("constraints", variables, tuple(factors), "markov")


def joint(network: Network) -> Floats:
    """Return the product of all tables."""
    total = np.ones(network.cardinalities)
    for factor in network.factors:
        shape = [card if v in factor.scope else 1 for v, card in enumerate(network.cardinalities)]
        total = total * factor.table.reshape(shape)
    return total


def value(circuit: Circuit, indicators: Floats) -> float:
    """Return the value of a circuit, node by node."""
    flat = circuit.flat
    # The number one is the leaf of no indicator.
    values = [float(indicators[i]) if i >= 0 else 1.0 for i in flat.indicators.tolist()]
    for node in range(len(values), len(flat.is_sum)):
        edges = slice(flat.edges_at[node], flat.edges_at[node + 1])
        terms = np.array([values[child] for child in flat.children[edges]])
        values.append(float(terms @ flat.weights[edges] if flat.is_sum[node] else terms.prod()))
    return values[-1] * float(np.exp(circuit.log)) if len(values) else 0.0


@given(seed=st.integers(0, 10_000), states=st.sampled_from([2, 3]), shuffled=st.booleans())
def test_what_is_learned_is_impossible_and_nothing_else_goes(seed: int, states: int, shuffled: bool) -> None:
    network = constraints(seed, states)
    possible = joint(network)
    rng, variables = np.random.default_rng(seed), set(range(possible.ndim))
    indicators = rng.random(states * possible.ndim)
    expected = possible
    for v in variables:
        shape = [states if u == v else 1 for u in variables]
        expected = expected * indicators[states * v : states * (v + 1)].reshape(shape)
    begun = _begun(network, network.factors, {}, variables)
    if isinstance(begun, Circuit):
        assert not possible.any()
        return
    for order in orders_of(*begun[:2]):
        ranks = rng.permutation(possible.ndim).astype(np.int32) if shuffled else order.ranks
        search = _Search(order, *_copies(*begun, replace(order, ranks=ranks)))
        assert search.go_on(10**9) == DONE
        found = _circuit(search, ())
        if possible.any():
            assert value(found, indicators) == pytest.approx(expected.sum(), rel=1e-12)
        else:
            assert found.log == -np.inf
        for literals in learned(search):
            left = possible
            for v, word in literals:
                kept = [state for state in range(states) if word >> state & 1]
                left = left[tuple(kept if u == v else slice(None) for u in variables)]
            assert not left.any()


def learned(search: _Search) -> list[list[tuple[int, int]]]:
    """Return the nogoods of a search: variables and words of states."""
    nogoods = search.nogoods
    ends = nogoods.starts[: nogoods.counts[NOGOODS] + 1].tolist()
    pairs = list(zip(nogoods.variables.tolist(), nogoods.states.tolist(), strict=True))
    return [pairs[first:last] for first, last in pairwise(ends)]


def test_dead_ends_are_not_met_again() -> None:
    """A contradiction behind twelve variables that are decided first: it is found once, not 4,096 times.

    Parities of three of six variables each, in which each variable is twice, and of which one alone is even.
    """
    others, rng = 12, np.random.default_rng(1)
    factors = [Factor((v, others + v % 6), rng.uniform(0.1, 1.0, (2, 2))) for v in range(others)]
    factors += [Factor((v, v + 1), rng.uniform(0.1, 1.0, (2, 2))) for v in range(others - 1)]
    is_odd = np.indices((2, 2, 2)).sum(axis=0) % 2 == 1
    for i, scope in enumerate([(0, 1, 2), (2, 3, 4), (0, 4, 5), (1, 3, 5)]):
        factors.append(Factor(tuple(others + v for v in scope), np.where(is_odd == (i > 0), 1.0, 0.0)))
    variables = tuple(Variable(f"v{v}", ("a", "b")) for v in range(others + 6))
    network = Network("contradiction", variables, tuple(factors), "markov")
    begun = _begun(network, network.factors, {}, set(range(len(variables))))
    assert not isinstance(begun, Circuit)
    order = next(iter(orders_of(*begun[:2])))
    first = replace(order, ranks=np.arange(len(variables), dtype=np.int32)[::-1].copy())
    search = _Search(first, *_copies(*begun, first))
    assert search.go_on(10**9) == DONE
    assert _circuit(search, ()).log == -np.inf
    assert search.nogoods.counts[FIRED]
    assert search.state.counts[DEAD_ENDS] < 64
