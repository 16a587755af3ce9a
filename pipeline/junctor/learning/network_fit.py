"""A network that is fitted to rows, as the EM loop and standard errors see it. Main class: NetworkFit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from junctor.learning.em import log_dirichlet
from junctor.learning.expectation import Expectation, Floats
from junctor.learning.observations import Observations
from junctor.learning.parameters import NetworkParameters


@dataclass(frozen=True, eq=False)
class NetworkFit:
    """A network and its rows, as what is fitted.

    parameters: which there are; pseudo: the pseudo count of each, float64.
    observations: rows.
    """

    parameters: NetworkParameters
    pseudo: Floats
    observations: Observations

    @property
    def distributions(self) -> npt.NDArray[np.int64]:
        """Where each distribution begins."""
        return self.parameters.distributions

    @property
    def weight(self) -> float:
        """Sum of the weights of the rows."""
        return self.observations.weight

    def expect(self, parameters: Floats) -> Expectation:
        """E-step."""
        found = self.observations.expect(self.parameters.tables(parameters))
        return Expectation(self.parameters.counts(found.counts, parameters), found.log_likelihood)

    def maximise(self, counts: Floats, parameters: Floats) -> Floats:
        """M-step: counts and pseudo counts, divided by their sums; what has no weight stays."""
        pooled = self.parameters.pooled(counts + self.pseudo)
        sums = np.repeat(np.add.reduceat(pooled, self.distributions), self.parameters.lengths)
        maximum = np.where(sums > 0, pooled / np.where(sums > 0, sums, 1.0), parameters)
        return np.where(self.parameters.is_fixed, self.parameters.values, maximum)

    def log_prior(self, parameters: Floats) -> float:
        """Return the sum of pseudo count * log(parameter)."""
        return log_dirichlet(self.pseudo, parameters)
