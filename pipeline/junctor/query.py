"""What is asked of every row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from junctor.errors import EvidenceError, nearest

if TYPE_CHECKING:
    from junctor.model import Network

QueryKind = Literal["posteriors", "mpe"]
Precision = Literal["double", "single", "log"]


@dataclass(frozen=True, slots=True)
class Query:
    """Posterior marginals (`posteriors`) or the most probable explanation (`mpe`) of `targets`.

    `targets` are variable names; None means all variables, in the order of the network. `log` propagates in log space
    (float64) from the start; `double` and `single` go there only for rows whose numbers left their range. Raises
    EvidenceError for another kind or precision.
    """

    kind: QueryKind = "posteriors"
    targets: tuple[str, ...] | None = None
    precision: Precision = "double"

    def __post_init__(self) -> None:
        _one_of("query", self.kind, QueryKind)
        _one_of("precision", self.precision, Precision)


def target_names(network: Network, query: Query) -> tuple[str, ...]:
    """Return the names of the targets in the order asked; raises EvidenceError for unknown or repeated ones."""
    if query.targets is None:
        return tuple(variable.name for variable in network.variables)
    if not query.targets:
        raise EvidenceError("no targets given, expected at least one (or none named, for all variables)")
    seen: set[str] = set()
    for name in query.targets:
        if name not in network.index:
            raise EvidenceError(f"unknown target {name!r}{nearest(name, network.index)}")
        if name in seen:
            raise EvidenceError(f"target {name!r} is named twice")
        seen.add(name)
    return query.targets


def _one_of(what: str, found: str, allowed: Any) -> None:
    names = get_args(allowed)
    if found not in names:
        raise EvidenceError(f"found {what} {found!r}, expected {' or '.join(map(repr, names))}")
