"""What was learned, as records. Main class: Learned."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from junctor.learning.check import HoldoutCheck
from junctor.learning.checkpoint import Restart
from junctor.learning.em import Iteration, trace_record
from junctor.learning.holdout import HoldoutResult
from junctor.model.network import Network


@dataclass(frozen=True, slots=True)
class LearnedCells:
    """Cells of a variable: with a state, with a likelihood, and without either."""

    observed: int
    soft: int
    missing: int


@dataclass(frozen=True, eq=False, slots=True)
class Learned:
    """What was learned.

    network: the fitted one.
    trace: iterations from the best start, the start included.
    restarts: what came of each start.
    converged, reason: whether and why the best fit ended.
    rows: of each status: `ok` took part, the others did not.
    weight: sum of the weights of the rows that took part.
    latent: names of variables that no row observes.
    reasons: row -> why it is invalid, of the first ones.
    holdout: None where nothing was held out.
    cells: of the rows that were read, neither invalid nor held out, by name of variable.
    parameters: the table of `junctor.learning.parameter_table`, where it was asked for.
    check: what held-out rows say of the network before and after, for a page.
    """

    network: Network
    trace: tuple[Iteration, ...]
    restarts: tuple[Restart, ...]
    converged: bool
    reason: str
    rows: dict[str, int]
    weight: float
    latent: tuple[str, ...]
    reasons: dict[int, str]
    holdout: HoldoutResult | None
    cells: dict[str, LearnedCells] = field(default_factory=dict)
    parameters: pa.Table | None = None
    check: HoldoutCheck | None = None

    @property
    def log_likelihood(self) -> float:
        """Of the rows that took part, under the fitted network."""
        return self.trace[-1].log_likelihood

    def to_record(self) -> dict[str, Any]:
        """Return all but the network, tables and cells, for JSON."""
        return {
            "log_likelihood": self.log_likelihood,
            "log_posterior": self.trace[-1].log_posterior,
            "iterations": self.trace[-1].number,
            "converged": self.converged,
            "reason": self.reason,
            "rows": self.rows,
            "weight": self.weight,
            "latent": list(self.latent),
            "holdout": None if self.holdout is None else asdict(self.holdout),
            "restarts": [each.to_record() for each in self.restarts],
            "trace": trace_record(self.trace),
        }
