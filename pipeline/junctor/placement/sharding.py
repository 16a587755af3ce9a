"""Which GPU does which tasks of a pass, and so where the parts of a table are made, and may stay.

Groups of tasks are dealt by some of their chunk variables. What they make stays with them, so where the passes that
read it are dealt by the same variables, nothing of it moves. Pure arithmetic, known before anything runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from junctor.planning.chunks import ChunkPlan, configurations


@dataclass(frozen=True, slots=True)
class Sharding:
    """Configurations of some variables, dealt over GPUs in blocks of neighbours.

    by: the variables. sizes: how many states each has. first: the GPU that the first configuration is on.
    """

    gpus: int = 1
    by: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    first: int = 0

    @property
    def count(self) -> int:
        """Number of configurations."""
        return math.prod(self.sizes)

    @property
    def most(self) -> int:
        """The most configurations that a GPU has."""
        return -(-self.count // self.gpus)

    @property
    def used(self) -> frozenset[int]:
        """The GPUs that have any."""
        return frozenset(self._gpu_of(n) for n in range(self.count))

    def number(self, states: Mapping[int, int]) -> int:
        """Return the number of a configuration."""
        found = 0
        for v, size in zip(self.by, self.sizes, strict=True):
            found = found * size + states[v]
        return found

    def gpu(self, states: Mapping[int, int]) -> int:
        """Return the GPU that a configuration is on."""
        return self._gpu_of(self.number(states))

    def begin(self, gpu: int) -> int:
        """Return the number of the first configuration on a GPU that has any."""
        return -(-((gpu - self.first) % self.gpus) * self.count // self.gpus)

    def configurations(self) -> Iterator[dict[int, int]]:
        """Yield all configurations, in order."""
        return (dict(zip(self.by, each, strict=True)) for each in configurations(self.sizes))

    def _gpu_of(self, number: int) -> int:
        return (self.first + number * self.gpus // self.count) % self.gpus


@dataclass(frozen=True)
class Shardings:
    """How every pass is dealt, and every table that a pass stores."""

    passes: tuple[Sharding, ...]
    tables: Mapping[int, Sharding]


def deals(chunks: ChunkPlan, outer: Sequence[Sequence[int]], gpus: int) -> Shardings:
    """Deal the groups of all passes over GPUs, so that most of what they read has been made on the same GPU.

    outer: for each pass the variables that its groups differ in.
    """
    if gpus == 1:
        return Shardings((Sharding(),) * len(outer), {t: Sharding() for each in chunks.passes for t in each.stores})
    entries = {t: float(chunks.plan.tables[t].entries) for each in chunks.passes for t in (*each.loads, *each.stores)}
    readers = _readers(chunks)
    passes: list[Sharding] = []
    tables: dict[int, Sharding] = {}
    busy = [0.0] * gpus
    for each, variables in zip(chunks.passes, outer, strict=True):
        made = [(tables[t], entries[t]) for t in each.loads if t in tables]
        later = [(set(outer[n]), entries[t]) for t in each.stores for n in readers.get(t, ())]
        best = max(
            _ways(chunks, variables, gpus),
            key=partial(_worth, made=made, later=later, busy=busy),
        )
        for gpu in best.used:
            busy[gpu] += sum(map(chunks.plan.work, each.steps)) / len(best.used)
        passes.append(best)
        tables |= dict.fromkeys(each.stores, best)
    return Shardings(tuple(passes), tables)


def _worth(
    deal: Sharding,
    made: Iterable[tuple[Sharding, float]],
    later: Iterable[tuple[Container[int], float]],
    busy: Sequence[float],
) -> tuple[float, float]:
    """Return the entries that need not move if a pass is dealt so, then how little its GPUs have had to do.

    made: how what it reads was dealt, and entries. later: for all readers of what it stores the variables that their
    groups differ in, and entries.
    """
    stays = sum(entries * agreement(each, deal) for each, entries in made)
    stays += sum(entries for variables, entries in later if all(v in variables for v in deal.by))
    return stays, -sum(busy[gpu] for gpu in deal.used)


def _ways(chunks: ChunkPlan, variables: Sequence[int], gpus: int) -> Iterator[Sharding]:
    """Yield deals by as few variables as keep all GPUs busy, or on some of the GPUs where there are too few."""
    sizes = chunks.plan.shape.cardinalities
    if math.prod(sizes[v] for v in variables) <= gpus:
        by = tuple(sorted(variables))
        for first in range(gpus):
            yield Sharding(gpus, by, tuple(sizes[v] for v in by), first)
        return
    for count in range(1, len(variables) + 1):
        for by in itertools.combinations(sorted(variables), count):
            each = tuple(sizes[v] for v in by)
            # With one less there would be too few.
            if math.prod(each) >= gpus > math.prod(each) // min(each):
                yield Sharding(gpus, by, each)


@lru_cache(maxsize=1 << 14)
def agreement(one: Sharding, other: Sharding) -> float:
    """Return the share of all configurations that two deals have on the same GPU."""
    sizes = dict(zip((*one.by, *other.by), (*one.sizes, *other.sizes), strict=True))
    whole = [dict(zip(sizes, each, strict=True)) for each in configurations(list(sizes.values()))]
    return sum(one.gpu(states) == other.gpu(states) for states in whole) / len(whole)


def _readers(chunks: ChunkPlan) -> dict[int, list[int]]:
    """Return the passes that read each table."""
    readers: dict[int, list[int]] = {}
    for n, each in enumerate(chunks.passes):
        for table in each.loads:
            readers.setdefault(table, []).append(n)
    return readers
