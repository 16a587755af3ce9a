"""What is asked of every row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

QueryKind = Literal["posteriors", "mpe"]
Precision = Literal["double", "single", "log"]


@dataclass(frozen=True, slots=True)
class Query:
    """Posterior marginals (`posteriors`) or the most probable explanation (`mpe`) of `targets`.

    `targets` are variable names; None means all variables, in the order of the network. `log` propagates in log space
    (float64) from the start; `double` and `single` go there only for rows whose numbers left their range.
    """

    kind: QueryKind = "posteriors"
    targets: tuple[str, ...] | None = None
    precision: Precision = "double"
