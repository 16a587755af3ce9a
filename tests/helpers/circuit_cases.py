"""Networks for tests of circuits, and circuits of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import assume
from junctor.circuits.compile import Circuit, compile_circuit
from junctor.circuits.limits import SearchLimits
from junctor.model.network import Factor, Network, Variable


def compiled(network: Network, fixed: Mapping[int, int]) -> Circuit:
    circuit = compile_circuit(network, fixed, set(range(len(network.public))) - set(fixed), SearchLimits())
    if isinstance(circuit, str):
        # Entries of 1e-300 multiply to what no double holds.
        assert "too small for a number" in circuit
        assume(False)
    assert isinstance(circuit, Circuit)
    return circuit


def switched(variables: int, seed: int) -> Network:
    """Return a network of tables that copy, swap, ignore and mix their parents: all but zeros and equal entries."""
    rng = np.random.default_rng(seed)
    factors = []
    for v in range(variables):
        parents = sorted(rng.choice(v, min(v, 3), replace=False).tolist()) if v else []
        table = rng.choice([0.0, 1.0, 0.5, 0.25], size=[3] * (len(parents) + 1), p=[0.6, 0.2, 0.1, 0.1])
        table[..., 0] += table.sum(axis=-1) == 0
        if parents and rng.random() < 0.4:
            table[:] = table[:1]
        factors.append(Factor((*parents, v), table / table.sum(axis=-1, keepdims=True)))
    return Network("switched", tuple(Variable(f"v{i}", ("a", "b", "c")) for i in range(variables)), tuple(factors))


def rare() -> Network:
    """Return a network of 150 variables without edges, whose first states have 1e-4 each."""
    variables = tuple(Variable(f"v{i}", ("a", "b")) for i in range(150))
    factors = tuple(Factor((i,), np.array([1e-4, 1 - 1e-4])) for i in range(150))
    return Network("rare", variables, factors)
