"""Choices of searches for plans in chunks, from process to process: a search takes up to half a minute.

Main function: `kept_cut`, called where rows get routes in chunks.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

from junctor_kernels.tables.reference import Algebra

from junctor.backends.prepared_plans import Arrays, Section
from junctor.cost.model import CostModel
from junctor.out_of_core.memory_splits import MemoryLimits, Overlap, priced_backends
from junctor.planning.chunk_search import ChunkChoice
from junctor.planning.chunks import PassRecord
from junctor.planning.compile import Problem
from junctor.planning.recompute import Drop
from junctor.runtime.records import typed

# Part of the key: another way to search, another number.
SEARCH = 7
_Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CachedChoice:
    """The entries for one problem: implements `KeptSearch`. key: all that the search depends on."""

    key: object

    def find(self, members: frozenset[int]) -> ChunkChoice | None:
        """Return the choice for the elimination of `members`, None where there is none."""
        return CUT.find(self.key, members)

    def keep(self, choice: ChunkChoice) -> None:
        """Keep what a search chose."""
        CUT.keep(self.key, choice)

    def find_overlap(self) -> Overlap | None:
        """Return how the tasks of the plan overlap on a GPU, None where it is not known."""
        return OVERLAP.find(self.key)

    def keep_overlap(self, overlap: Overlap) -> None:
        """Keep how the tasks of the plan overlap on a GPU."""
        OVERLAP.keep(self.key, overlap)

    def find_slices(self) -> tuple[_Numbers, int] | None:
        """Return the variables that are held constant and the operations without that; None where it is not known."""
        return SLICES.find(self.key)

    def keep_slices(self, variables: _Numbers, whole: int) -> None:
        """Keep which variables are held constant, and the operations of a row by the plan without that."""
        SLICES.keep(self.key, (variables, whole))

    def of_slices(self, variables: _Numbers) -> CachedChoice:
        """Return where the choice for the slices of a row is kept."""
        return CachedChoice((self.key, variables))


def kept_cut(
    problem: Problem, algebra: Algebra, limits: MemoryLimits, costs: CostModel, rows: int, gpus: int
) -> CachedChoice:
    """Return where the choice for a problem is kept.

    Arguments: as of `junctor.out_of_core.programs.cut`.
    """
    pattern = problem.pattern
    targets = None if problem.targets is None else sorted(problem.targets)
    task = sorted(pattern.sliced), sorted(pattern.weighted), targets, problem.explain, problem.drops_barren
    # What a user allowed with evidence and answers is for messages, and the folder is a name.
    memory = limits.memory, limits.task, limits.disk, limits.threads, limits.on_gpu
    names = priced_backends(algebra, limits.on_gpu)
    known = costs.coefficients
    prices = [(name, astuple(known[name])) for name in names if name in known]
    return CachedChoice((SEARCH, problem.shape, task, algebra.name, memory, prices, rows, gpus))


def _unpack_choice(record: Any, _: Arrays, members: frozenset[int]) -> ChunkChoice:
    kinds = tuple[_Numbers, str, bool, int, tuple[tuple[_Numbers, _Numbers], ...], tuple[tuple[int, int], ...]]
    variables, criterion, lean, split, passes, drops = typed(kinds, record)
    # Any permutation gives right answers, nothing else does. Whether passes are those of the plan shows when it is cut.
    if len(variables) != len(members) or frozenset(variables) != members or split < 0:
        raise ValueError("no choice for these variables")
    if not all(done for done, _ in passes):
        raise ValueError("a pass of no steps")
    recorded, again = tuple(PassRecord(*each) for each in passes), tuple(Drop(*each) for each in drops)
    return ChunkChoice(variables, criterion, lean, split, recorded, again)


def _unpack_overlap(record: Any, _: Arrays) -> Overlap:
    # Whether there is room for so many slots shows when the plan is cut.
    return Overlap(*typed(tuple[int, int], record))


CUT = Section("cut", lambda choice: (choice, {}), _unpack_choice)
SLICES = Section("slices", lambda slices: (slices, {}), lambda record, _: typed(tuple[_Numbers, int], record))
OVERLAP = Section("overlap", lambda overlap: (overlap, {}), _unpack_overlap)
