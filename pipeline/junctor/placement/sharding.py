"""Sharding: which GPU does which tasks of a pass, and so which part of a table it makes, and may keep.

Groups of tasks are sharded by some of their chunk variables. What they make stays with them, so where the passes that
read it are sharded by the same variables, nothing moves. Pure arithmetic, known before anything runs.
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
    """Configurations of some variables, divided over GPUs in blocks of neighbours.

    gpus: how many there are.
    by: the variables.
    sizes: how many states each has.
    first: the GPU that the first configuration is on.
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
        number = 0
        for v, size in zip(self.by, self.sizes, strict=True):
            number = number * size + states[v]
        return number

    def gpu(self, states: Mapping[int, int]) -> int:
        """Return the GPU that a configuration is on."""
        return self._gpu_of(self.number(states))

    def begin(self, gpu: int) -> int:
        """Return the number of the first configuration on a GPU that has any."""
        # Rounded up: blocks of neighbours differ in size by one at the most.
        return -(-((gpu - self.first) % self.gpus) * self.count // self.gpus)

    def _gpu_of(self, number: int) -> int:
        return (self.first + number * self.gpus // self.count) % self.gpus


@dataclass(frozen=True)
class Shardings:
    """The sharding of every pass, and of every table that a pass stores."""

    passes: tuple[Sharding, ...]
    tables: Mapping[int, Sharding]


def shard_passes(chunks: ChunkPlan, outer: Sequence[Sequence[int]], gpus: int) -> Shardings:
    """Shard the groups of all passes over GPUs, so that most of what they read has been made on the same GPU.

    chunks: the plan.
    outer: for each pass the variables that its groups differ in.
    gpus: how many there are.
    """
    # One GPU has everything; the search below would take long for nothing.
    if gpus == 1:
        stored = (table for pass_ in chunks.passes for table in pass_.stores)
        return Shardings((Sharding(),) * len(outer), {table: Sharding() for table in stored})
    entries = {t: float(chunks.plan.tables[t].entries) for p in chunks.passes for t in (*p.loads, *p.stores)}
    readers = _readers(chunks)
    passes: list[Sharding] = []
    tables: dict[int, Sharding] = {}
    busy = [0.0] * gpus
    for pass_, variables in zip(chunks.passes, outer, strict=True):
        made = [(tables[t], entries[t]) for t in pass_.loads if t in tables]
        later = [(set(outer[n]), entries[t]) for t in pass_.stores for n in readers.get(t, ())]
        best = max(_ways(chunks, variables, gpus), key=partial(_worth, made=made, later=later, busy=busy))
        for gpu in best.used:
            # Work evens out over passes that have too few groups for all GPUs.
            busy[gpu] += sum(map(chunks.plan.work, pass_.steps)) / len(best.used)
        passes.append(best)
        tables |= dict.fromkeys(pass_.stores, best)
    return Shardings(tuple(passes), tables)


def _worth(
    sharding: Sharding,
    made: Iterable[tuple[Sharding, float]],
    later: Iterable[tuple[Container[int], float]],
    busy: Sequence[float],
) -> tuple[float, float]:
    """Return the entries that need not move with a sharding of a pass, then how little its GPUs have had to do.

    made: shardings of what it reads, and entries.
    later: for all readers of what it stores the variables that their groups differ in, and entries.
    busy: operations of each GPU so far.
    """
    unmoved = sum(entries * agreement(other, sharding) for other, entries in made)
    unmoved += sum(entries for variables, entries in later if all(v in variables for v in sharding.by))
    return unmoved, -sum(busy[gpu] for gpu in sharding.used)


def _ways(chunks: ChunkPlan, variables: Sequence[int], gpus: int) -> Iterator[Sharding]:
    """Yield shardings by as few variables as keep all GPUs busy, or on some of the GPUs where there are too few."""
    cardinalities = chunks.plan.shape.cardinalities
    if math.prod(cardinalities[v] for v in variables) <= gpus:
        by = tuple(sorted(variables))
        for first in range(gpus):
            yield Sharding(gpus, by, tuple(cardinalities[v] for v in by), first)
        return
    for count in range(1, len(variables) + 1):
        for by in itertools.combinations(sorted(variables), count):
            sizes = tuple(cardinalities[v] for v in by)
            # With one variable less there would be too few configurations.
            if math.prod(sizes) >= gpus > math.prod(sizes) // min(sizes):
                yield Sharding(gpus, by, sizes)


@lru_cache(maxsize=1 << 14)
def agreement(one: Sharding, other: Sharding) -> float:
    """Return the share of all configurations that two shardings have on the same GPU."""
    sizes = dict(zip((*one.by, *other.by), (*one.sizes, *other.sizes), strict=True))
    all_states = [dict(zip(sizes, states, strict=True)) for states in configurations(list(sizes.values()))]
    return sum(one.gpu(states) == other.gpu(states) for states in all_states) / len(all_states)


def _readers(chunks: ChunkPlan) -> dict[int, list[int]]:
    """Return the passes that read each table."""
    readers: dict[int, list[int]] = {}
    for n, pass_ in enumerate(chunks.passes):
        for table in pass_.loads:
            readers.setdefault(table, []).append(n)
    return readers
