"""Rows whose tables fit nowhere, slice by slice: variables held constant, and the results of all slices added up.

log P(e) is the sum over the slices, posteriors are their weighted means, max-marginals the largest of all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from junctor_kernels.tables.reference import Algebra

from junctor.backends.numpy import BlockOutcome, EvidenceBlock
from junctor.runtime.threads import in_threads

if TYPE_CHECKING:
    from junctor.out_of_core.programs import SingleCaseProgram

Floats = npt.NDArray[np.float64]


class SlicedProgram:
    """Answers one case at a time by programs of its slices.

    programs: of a plan that has the variables as evidence; each answers a slice at a time.
    variables: held constant.
    sizes: numbers of their states.
    algebra: of the program.
    """

    def __init__(
        self, programs: Sequence[SingleCaseProgram], variables: Sequence[int], sizes: Sequence[int], algebra: Algebra
    ) -> None:
        self._programs, self._variables, self._sizes, self._algebra = tuple(programs), variables, sizes, algebra

    def run(self, block: EvidenceBlock) -> BlockOutcome:
        """Propagate all slices of one case; doubtful where one of them is."""
        # By what the case has alone: the batch knows no states of these variables.
        alone = block.alone()

        doubtful: list[BlockOutcome] = []

        def propagate(states: tuple[int, ...], place: int) -> BlockOutcome:
            # The first doubtful slice is the last one.
            if doubtful:
                return doubtful[0]
            held = {v: np.array([state], np.int32) for v, state in zip(self._variables, states, strict=True)}
            outcome = self._programs[place].run(replace(alone, states={**alone.states, **held}))
            if outcome.doubtful[0]:
                doubtful.append(outcome)
            return outcome

        slices = list(itertools.product(*map(range, self._sizes)))
        found = in_threads(propagate, slices, len(self._programs))
        return self._nothing_of(doubtful[0]) if doubtful else self._together(list(zip(slices, found, strict=True)))

    def _together(self, found: Sequence[tuple[tuple[int, ...], BlockOutcome]]) -> BlockOutcome:
        """Return what all slices together tell; found: states of the variables, and what their slice tells."""
        logs = np.array([float(outcome.log_value[0]) for _, outcome in found])
        largest = float(logs.max())
        if largest == -math.inf:
            return self._nothing_of(found[0][1])
        weights = np.exp(logs - largest)
        maximises = self._algebra.maximises
        marginals = {
            v: self._mean([outcome.posteriors[v][:, 0] for _, outcome in found], weights)
            for v in found[0][1].posteriors
        }
        for place, v in enumerate(self._variables):
            of_state = np.zeros(self._sizes[place])
            for (states, _), weight in zip(found, weights.tolist(), strict=True):
                here = of_state[states[place]]
                of_state[states[place]] = max(here, weight) if maximises else here + weight
            marginals[v] = of_state / of_state.sum()
        total = 0.0 if maximises else math.log(weights.sum())
        posteriors: dict[int, npt.NDArray[Any]] = {v: numbers[:, None] for v, numbers in marginals.items()}
        return BlockOutcome(np.array([largest + total]), posteriors, {}, np.zeros(1, np.bool_))

    def _nothing_of(self, outcome: BlockOutcome) -> BlockOutcome:
        """Return what a slice found that tells nothing of the case, with numbers for all variables."""
        held = {v: np.full((size, 1), np.nan) for v, size in zip(self._variables, self._sizes, strict=True)}
        return replace(outcome, posteriors={**outcome.posteriors, **held})

    def _mean(self, marginals: Sequence[npt.NDArray[Any]], weights: Floats) -> Floats:
        """Return the weighted mean of posteriors, or the largest of max-marginals."""
        there = [(each.astype(np.float64), weight) for each, weight in zip(marginals, weights, strict=True) if weight]
        if not self._algebra.maximises:
            return np.asarray(np.sum([weight * each for each, weight in there], axis=0) / weights.sum())
        # The best state of each slice is as probable as the slice itself.
        best = np.max([weight / each.max() * each for each, weight in there], axis=0)
        return np.asarray(best / best.sum())
