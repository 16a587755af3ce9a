"""What was learned of sequences, as a record. Main class: LearnedModel."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from junctor.hmm.model import HiddenMarkovModel
from junctor.learning.checkpoint import Restart
from junctor.learning.em import Fit, trace_record
from junctor.learning.holdout import HoldoutComparison, HoldoutResult

# Sequences without a part whose reasons are told.
MOST_REASONS = 20


@dataclass(frozen=True, eq=False, slots=True)
class LearnedModel:
    """A fitted model.

    model: with the names of the one that was given.
    fit: the loop that led to it: trace, whether it converged, and why it ended.
    restarts: what came of each start.
    statuses: number of sequences by status; those that are `ok` took part, the others did not.
    weight: sum of the weights of the sequences that took part.
    steps: of the sequences that took part; missing: those of them without an observation.
    reasons: sequence -> why it is invalid or impossible.
    holdout: None where nothing was held out.
    check: what held-out sequences say of the model before and after; None without any.
    parameters: the table of `junctor.hmm.parameter_table`, where it was asked for.
    labelled: steps of the sequences that took part whose states were known.
    """

    model: HiddenMarkovModel
    fit: Fit
    restarts: tuple[Restart, ...]
    statuses: dict[str, int]
    weight: float
    steps: int
    missing: int
    reasons: dict[int, str]
    holdout: HoldoutResult | None = None
    check: HoldoutComparison | None = None
    parameters: pa.Table | None = None
    labelled: int = 0

    @property
    def log_likelihood(self) -> float:
        """Sum of weight * log P over the sequences that took part."""
        return self.fit.log_likelihood

    def to_record(self) -> dict[str, Any]:
        """Return all but parameters, for JSON."""
        return {
            "log_likelihood": self.log_likelihood,
            "log_posterior": self.fit.log_posterior,
            "iterations": self.fit.trace[-1].number,
            "converged": self.fit.converged,
            "reason": self.fit.reason,
            "sequences": self.statuses,
            "weight": self.weight,
            "steps": self.steps,
            "missing": self.missing,
            "labelled": self.labelled,
            "reasons": {str(n): self.reasons[n] for n in sorted(self.reasons)[:MOST_REASONS]},
            "holdout": None if self.holdout is None else asdict(self.holdout),
            "restarts": [each.to_record() for each in self.restarts],
            "trace": trace_record(self.fit.trace),
        }
