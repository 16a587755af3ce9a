"""Networks with local structure, made by code: gates on a grid, and diagnoses of wide noisy-OR nodes.

For `circuits.py --small` and for tests.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from junctor.formats.noisy import NoisyMax, tables_of
from junctor.model.errors import Place
from junctor.model.network import DraftTable, DraftVariable, Factor, Network, Variable, build_network

Floats = npt.NDArray[np.float64]

PLACE = Place("made by code")


def gates(size: int) -> Network:
    """Return a grid of gates: each is on where the one above is, and the one on the left where there is any."""
    rng, factors = np.random.default_rng(2), []
    both = np.zeros((2, 2, 2))
    both[..., 0] = 1
    both[1, 1] = 0.2, 0.8
    for v in range(size * size):
        row, column = divmod(v, size)
        if row and column:
            factors.append(Factor((v - size, v - 1, v), both))
        else:
            on = rng.uniform(0.3, 0.6)
            factors.append(Factor((v,), np.array([1 - on, on])))
    variables = tuple(Variable(f"v{i}", ("off", "on")) for i in range(size * size))
    return Network("gates", variables, tuple(factors))


def diagnosis(diseases: int, findings: int, parents: int, seed: int = 1, states: int = 2) -> Network:
    """Return a network of two layers, as QMR-DT: each finding is the strongest effect of its diseases, and of a leak.

    diseases: d0, d1, ...: "no" or "yes".
    findings: f0, f1, ...: noisy-OR of two states, noisy-MAX of more, the first of them is "no".
    parents: of each finding; chains of auxiliary variables come after all others.
    """
    names = [f"d{i}" for i in range(diseases)]
    levels = ["no", "yes"] if states == 2 else ["no", *(f"level{i}" for i in range(1, states))]
    nodes = noisy_findings(diseases, findings, parents, seed, states)
    chances = np.random.default_rng((seed, 1)).uniform(0.001, 0.1, diseases)
    roots = [DraftTable([name], _rare(chance, 2), PLACE) for name, chance in zip(names, chances, strict=True)]
    variables = [DraftVariable(name, ["no", "yes"], PLACE) for name in names]
    variables += [DraftVariable(node.scope[-1], levels, PLACE) for node in nodes]
    auxiliary, tables = tables_of(nodes, [variable.name for variable in variables])
    drafts = [*variables, *auxiliary]
    return build_network("diagnosis", "bayes", drafts, [*roots, *tables], hidden=len(auxiliary))


def noisy_findings(diseases: int, findings: int, parents: int, seed: int = 1, states: int = 2) -> list[NoisyMax]:
    """Return the noisy nodes of `diagnosis`."""
    rng = np.random.default_rng(seed)
    return [_finding(f"f{i}", rng.choice(diseases, parents, replace=False), states, rng) for i in range(findings)]


def _finding(name: str, causes: npt.NDArray[np.int64], states: int, rng: np.random.Generator) -> NoisyMax:
    """Return a noisy node: an absent disease does nothing, a present one has an effect in most cases."""
    effects = [np.array([np.eye(states)[0], _rare(rng.uniform(0.2, 0.9), states)]) for _ in causes]
    leak = _rare(rng.uniform(0.001, 0.05), states)
    return NoisyMax([*(f"d{cause}" for cause in sorted(causes)), name], effects, leak, True, PLACE)


def _rare(chance: float, states: int) -> Floats:
    """Return a distribution that gives the states but the first a chance together, the strongest the least of it."""
    shares = np.arange(states - 1, 0, -1, dtype=np.float64)
    return np.array([1 - chance, *(chance * shares / shares.sum())])
