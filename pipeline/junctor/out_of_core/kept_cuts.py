"""Choices of searches for plans in chunks, from process to process: a search takes up to half a minute.

Main class: KeptChunks, set up by the router.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from junctor_kernels.tables.reference import Algebra

from junctor.cost.model import CostModel
from junctor.runtime.cache import Cache

if TYPE_CHECKING:
    from junctor.out_of_core.memory_splits import MemoryLimits, Overlap
    from junctor.planning.chunk_search import ChunkChoice
    from junctor.planning.compile import Problem

KIND, OVERLAP = "cut", "overlap"
# Part of the key: another way to search, another number.
SEARCH = 4


class KeptChunks:
    """Choices in a cache, by the digest of all that a search depends on.

    cache: of the user.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def of(
        self,
        problem: Problem,
        algebra: Algebra,
        limits: MemoryLimits,
        costs: CostModel | None,
        rows: int,
        shared_by: object,
    ) -> CachedChoice:
        """Return where the choice for a problem is kept.

        costs: of the device, None where no measurement counts.
        shared_by: how many GPUs share a row, or the workers that do.
        All others: as of `junctor.out_of_core.programs.cut`.
        """
        # Imported where rows go in chunks, here as below.
        from junctor.out_of_core.memory_splits import priced_backends

        pattern = problem.pattern
        targets = None if problem.targets is None else sorted(problem.targets)
        task = sorted(pattern.sliced), sorted(pattern.weighted), targets, problem.explain, problem.drops_barren
        # What a user allowed with evidence and answers is for messages, and the folder is a name.
        memory = limits.memory, limits.task, limits.disk, limits.threads, limits.on_gpu
        names = priced_backends(algebra, limits.on_gpu)
        known = {} if costs is None else costs.coefficients
        prices = [(name, astuple(known[name])) for name in names if name in known]
        key = SEARCH, problem.shape, task, algebra.name, memory, prices, rows, shared_by
        return CachedChoice(self._cache, repr(key))


@dataclass(frozen=True, slots=True)
class CachedChoice:
    """The entries for one problem: implements `KeptSearch`."""

    cache: Cache
    key: str

    def find(self, members: frozenset[int]) -> ChunkChoice | None:
        """Return the choice for the elimination of `members`, None where there is none."""
        return self.cache.read(KIND, self.key, lambda content: _parsed(content, members))

    def keep(self, choice: ChunkChoice) -> None:
        """Keep what a search chose."""
        self.cache.write(KIND, self.key, json.dumps(choice._asdict()).encode())

    def find_overlap(self) -> Overlap | None:
        """Return how the tasks of the plan overlap on a GPU, None where it is not known."""
        return self.cache.read(OVERLAP, self.key, _overlap)

    def keep_overlap(self, overlap: Overlap) -> None:
        """Keep how the tasks of the plan overlap on a GPU."""
        self.cache.write(OVERLAP, self.key, json.dumps(overlap).encode())


def _parsed(content: bytes, members: frozenset[int]) -> ChunkChoice:
    """Return a choice; raises ValueError for other bytes."""
    from junctor.planning.chunk_search import ChunkChoice
    from junctor.planning.chunks import PassRecord

    record = json.loads(content)
    if not isinstance(record, dict) or record.keys() != set(ChunkChoice._fields):
        raise ValueError("not a choice")
    variables, criterion, lean, split, passes = (record[field] for field in ChunkChoice._fields)
    if not _are_numbers(variables):
        raise ValueError("not an order")
    if not isinstance(passes, list) or not all(map(_is_pass, passes)):
        raise ValueError("not passes")
    # Any permutation gives right answers, nothing else does.
    if len(variables) != len(members) or frozenset(variables) != members:
        raise ValueError("not an order of these variables")
    if type(criterion) is not str or type(lean) is not bool or type(split) is not int or split < 0:
        raise ValueError("not a choice")
    # Whether they are passes of the plan shows when it is cut.
    records = tuple(PassRecord(tuple(steps), tuple(fixed)) for steps, fixed in passes)
    return ChunkChoice(tuple(variables), criterion, lean, split, records)


def _overlap(content: bytes) -> Overlap:
    """Return how tasks overlap; raises ValueError for other bytes."""
    from junctor.out_of_core.memory_splits import Overlap

    record = json.loads(content)
    # Whether there is room for so many slots shows when the plan is cut.
    if not _are_numbers(record) or len(record) != 2:
        raise ValueError("not two numbers of slots")
    return Overlap(*record)


def _is_pass(record: object) -> bool:
    return isinstance(record, list) and len(record) == 2 and all(map(_are_numbers, record)) and bool(record[0])


def _are_numbers(record: object) -> bool:
    return isinstance(record, list) and all(type(number) is int for number in record)
