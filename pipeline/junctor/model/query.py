"""What is asked of every row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from junctor.model.errors import EvidenceError, nearest

if TYPE_CHECKING:
    from junctor.model.network import Network

# Fewer samples tell nothing of their errors; counters have room for more than the most.
LEAST_SAMPLES, MOST_SAMPLES = 100, 2**40

QueryKind = Literal["posteriors", "mpe"]
Precision = Literal["double", "single", "log"]
Method = Literal["exact", "sampling", "auto"]
Sampler = Literal["ais-bn", "epis-bn", "sis", "lw"]
Stages = Literal["last", "all"]
# How joint posteriors are found: by messages, from stored clique tables, or what takes less time.
Architecture = Literal["auto", "messages", "stored"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How rows are sampled.

    sampler: likelihood weighting (`lw`), self-importance sampling (`sis`), AIS-BN or EPIS-BN. samples: of a row,
    learning included, None for what is usual. error: largest standard error of a posterior, instead of a number of
    samples. seed: 64 bits. stages: whether samples that taught the importance function count as well. Raises
    EvidenceError.
    """

    sampler: Sampler = "epis-bn"
    samples: int | None = None
    error: float | None = None
    seed: int = 0
    stages: Stages = "all"

    def __post_init__(self) -> None:
        one_of("sampler", self.sampler, Sampler)
        one_of("stages", self.stages, Stages)
        if self.samples is not None and self.error is not None:
            raise EvidenceError("found both a number of samples and an error, expected one of them")
        if self.samples is not None and not LEAST_SAMPLES <= self.samples < MOST_SAMPLES:
            raise EvidenceError(f"found {self.samples:,} samples, expected {LEAST_SAMPLES:,} or more (below 2^40)")
        if self.error is not None and not 0 < self.error < 1:
            raise EvidenceError(f"found an error of {self.error!r}, expected a number between 0 and 1")
        if not 0 <= self.seed < 2**64:
            raise EvidenceError(f"found seed {self.seed}, expected 0 to 2^64 - 1")


@dataclass(frozen=True, slots=True)
class Query:
    """Posterior marginals (`posteriors`) or the most probable explanation (`mpe`) of `targets`.

    `targets` are variable names; None means all variables, in the order of the network. `log` propagates in log space
    (float64) from the start; `double` and `single` go there only for rows whose numbers left their range. method:
    `auto` samples rows whose exact answers exceed the budget, as `sampling` says. Raises EvidenceError for another
    kind, precision or method, and for explanations that would be sampled.
    """

    kind: QueryKind = "posteriors"
    targets: tuple[str, ...] | None = None
    precision: Precision = "double"
    method: Method = "exact"
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        one_of("query", self.kind, QueryKind)
        one_of("method", self.method, Method)
        if self.method != "exact" and self.kind != "posteriors":
            raise EvidenceError("sampling answers posteriors, not explanations: use --method exact")
        one_of("precision", self.precision, Precision)


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


def one_of(what: str, found: str, allowed: Any) -> None:
    """Raise EvidenceError unless `found` is a name of the literal type `allowed`."""
    names = get_args(allowed)
    if found not in names:
        raise EvidenceError(f"found {what} {found!r}, expected {' or '.join(map(repr, names))}")
