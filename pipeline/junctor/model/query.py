"""Queries: what is asked of every row of evidence, and how rows are sampled. Main class: Query."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from junctor.model.errors import EvidenceError, nearest

if TYPE_CHECKING:
    from junctor.model.network import Network

# Fewer samples give no usable estimate of their own standard error.
LEAST_SAMPLES = 100
# Exclusive bound; 64-bit counters have room for more.
MOST_SAMPLES = 2**40

QueryKind = Literal["posteriors", "mpe"]
Precision = Literal["double", "single", "log"]
Method = Literal["exact", "sampling", "auto"]
Sampler = Literal["ais-bn", "epis-bn", "sis", "lw"]
Stages = Literal["last", "all"]
# Joint posteriors come from messages (Shafer-Shenoy), from stored clique tables (Hugin), or from the faster of both.
Architecture = Literal["auto", "messages", "stored"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How rows are sampled; raises EvidenceError for values out of range.

    sampler: likelihood weighting (`lw`), self-importance sampling (`sis`; Shachter and Peot 1990), AIS-BN (Cheng and
        Druzdzel 2000) or EPIS-BN (Yuan and Druzdzel 2003).
    samples: samples for each row, learning included; None for the default of the sampler.
    error: largest standard error of a posterior, instead of a number of samples.
    seed: 64 bits, not negative.
    stages: "all" counts the samples of the learning stages as well, "last" those of the last stage only.
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
    """What is computed for every row; raises EvidenceError for unknown names, and for explanations by sampling.

    kind: posterior marginals (`posteriors`) or the most probable explanation (`mpe`).
    targets: names of variables; None for all, in the order of the network.
    precision: `log` propagates in log space (float64) from the start; `double` and `single` do so only for rows whose
        numbers left their range.
    method: `exact`; `sampling`; `auto` samples the rows whose exact answers exceed the memory budget.
    sampling: options of the sampler.
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
    # Repeated targets would give two columns of one name.
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
