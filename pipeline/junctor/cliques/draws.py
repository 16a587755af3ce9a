"""Exact draws from the calibrated clique tables of a case, clique by clique from the roots down.

Main class: CliqueDraws; called by `junctor.draws`. Given its separator, whose states the parent has drawn, the other
variables of a clique depend on nothing drawn before: their probabilities are a row of its table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from junctor.cliques.calibrated import CalibratedCliques
from junctor.planning.cliques import StoredPlan

States = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CliqueDraws:
    """P(all variables | e) of one row, to draw from.

    plan: of the tree of `cliques`.
    cliques: of the case, whose evidence is possible.
    """

    plan: StoredPlan
    cliques: CalibratedCliques

    @property
    def choices(self) -> int:
        """Random numbers that a draw takes: one of each clique."""
        return len(self.plan.cliques)

    def draw(self, chances: Floats) -> States:
        """Return draws, int32 [variables, draws].

        chances: float64 [draws, choices], random numbers from 0 to below 1.
        """
        plan, cliques, sizes, draws = self.plan, self.cliques, self.plan.sizes, len(chances)
        states = np.empty((len(sizes), draws), dtype=np.int32)
        # Children come before their parents.
        for number in reversed(range(len(plan.cliques))):
            clique = plan.cliques[number]
            separator, own = np.split(np.array(clique.layout), [len(clique.separator)])
            given = np.zeros(draws, dtype=np.int64)
            for variable in separator.tolist():
                given = given * sizes[variable] + states[variable]
            rows = cliques.table(number).reshape(plan.separator_entries(number), -1)
            place = _drawn(rows, given, chances[:, number], logs=not cliques.algebra.tiny)
            for variable in reversed(own.tolist()):
                place, states[variable] = np.divmod(place, sizes[variable])
        return states


def _drawn(rows: npt.NDArray[np.float64], given: Places, chances: Floats, logs: bool) -> Places:
    """Return the place in a row of each draw, int64 [draws]; never one whose entry is 0.

    rows: float64 [rows, entries], proportional to probabilities; logs: or their logarithms.
    given: the row of each draw.
    chances: of each draw, from 0 to below 1.
    """
    # Only rows that are drawn from are added up: a few draws need few of a large table.
    distinct, row = np.unique(given, return_inverse=True)
    masses = rows[distinct]
    bounds = np.cumsum(np.exp(masses - masses.max(axis=1, keepdims=True)) if logs else masses, axis=1)
    # Below the last bound, however the product is rounded: a chance is at most 1 - 2^-53.
    wanted = chances * bounds[row, -1]
    # By bisection: the first bound above it.
    low, high = np.zeros(len(given), dtype=np.int64), np.full(len(given), bounds.shape[1] - 1)
    for _ in range(math.ceil(math.log2(bounds.shape[1]))):
        middle = (low + high) // 2
        above = bounds[row, middle] > wanted
        low, high = np.where(above, low, middle + 1), np.where(above, middle, high)
    return low
