"""Rows of evidence as all samplers take them, without compiled code. Main class: Evidence, a pattern."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, Rows
from junctor.model.network import Network

# Samples of a row where nobody says.
DEFAULT_SAMPLES = 100_000
# Patterns whose preparation is kept.
KEPT_LAYOUTS = 256

Hard = Mapping[int, int]
Soft = Mapping[int, npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The variables that rows of a pattern observe, and those with likelihoods."""

    observed: frozenset[int]
    soft: frozenset[int]


def evidence_of(batch: EvidenceBatch, rows: Rows) -> list[tuple[Hard, Soft]]:
    """Return the evidence of some rows (ascending) of a batch: observed states, and likelihoods of other variables."""
    # Column by column: cells of a batch are stored so, and most of them are not observed.
    found: list[tuple[dict[int, int], dict[int, npt.NDArray[np.float64]]]] = [({}, {}) for _ in range(len(rows))]
    for v, column in batch.states.items():
        states = column[rows]
        for n in np.flatnonzero(states != UNOBSERVED).tolist():
            found[n][0][v] = int(states[n])
    for v, likelihood in batch.likelihoods.items():
        here, values = likelihood.among(rows)
        for n, each in zip(here.tolist(), values, strict=True):
            found[n][1][v] = each
    return list(found)


def with_parents(network: Network, variables: frozenset[int]) -> set[int]:
    """Return variables of a Bayesian network and all their ancestors, observed ones too."""
    ancestors, waiting = set[int](), list(variables)
    while waiting:
        v = waiting.pop()
        if v not in ancestors:
            ancestors.add(v)
            waiting.extend(network.factors[v].scope[:-1])
    return ancestors
