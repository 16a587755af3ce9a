"""A network with a noisy-MAX node that is a chain of auxiliary variables."""

from __future__ import annotations

import numpy as np
from junctor.formats.noisy import NoisyMax, tables_of
from junctor.model.network import DraftTable, DraftVariable, Network, build_network

from helpers.strategies import PLACE

NOISY_STATES = ("high", "low", "none")


def noisy_network(strongest_last: bool, parents: int = 7, seed: int = 0) -> Network:
    """Return a noisy-MAX node that is a chain, with three states and parents of two or three."""
    rng = np.random.default_rng(seed)
    names = [f"p{i}" for i in range(parents)]
    sizes = [2 + i % 2 for i in range(parents)]
    weakest = 0 if strongest_last else 2
    contributions = [rng.dirichlet(np.ones(3), size) for size in sizes]
    for each in contributions:
        each[0] = np.eye(3)[weakest]
    leak = np.array([0.05, 0.05, 0.9])[:: -1 if strongest_last else 1]
    node = NoisyMax([*names, "x"], contributions, leak, strongest_last, PLACE)
    assert not node.is_whole
    variables = [
        DraftVariable(name, [f"s{i}" for i in range(size)], PLACE) for name, size in zip(names, sizes, strict=True)
    ]
    variables += [DraftVariable("x", NOISY_STATES, PLACE), DraftVariable("y", ("no", "yes"), PLACE)]
    auxiliary, drawn = tables_of([node], [v.name for v in variables])
    roots = [DraftTable([name], rng.dirichlet(np.ones(size)), PLACE) for name, size in zip(names, sizes, strict=True)]
    last = DraftTable(["x", "y"], rng.dirichlet(np.ones(2), 3), PLACE)
    return build_network("noisy", "bayes", [*variables, *auxiliary], [*roots, *drawn, last], hidden=len(auxiliary))
