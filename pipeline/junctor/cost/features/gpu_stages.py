"""Features of a stage of a plan on a GPU, and its launch parameters.

A stage is one launch: as fast as its longest thread, and as all its work. Launch parameters trade one for the other; of
a few that are tried `LaunchTuner` takes those with the lowest forecast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from junctor_kernels.cpu import bytecode
from junctor_kernels.cpu.bytecode import Bytecode
from junctor_kernels.gpu import blocks as gpu

from junctor.cost.features.cpu_blocks import spans

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

FEW_WORK = (
    # Of each stage: one; steps of its longest thread block, of all of them side by side, the larger of both; blocks.
    *("stages", "longest", "side_by_side", "slower", "blocks"),
    # Offsets of the whole plan; parts of lines of the cache that loads touch, entries that are stored, and of the
    # largest message.
    *("offsets", "sectors", "stored", "most_stored"),
    # States of likelihoods and posteriors that one thread goes through, contractions aside; of each stage the most.
    *("likelihoods", "posteriors"),
)
MANY_WORK = (
    # Of each stage: one, rows that its longest warp loads one after the other.
    *("stages", "longest"),
    # For each chunk of cases: products, rows and factors that are loaded, items that begin, entries that are stored.
    *("products", "rows", "factors", "items", "stored"),
    # Beside contractions: rows that are made, bounds, posteriors.
    *("made", "bounds", "marginals"),
)


class EntryParallel(NamedTuple):
    """Launch parameters of a stage for few cases: terms that a thread sums, and entries that it does one by one."""

    terms: int
    rounds: int


class CaseParallel(NamedTuple):
    """Launch parameters for many: terms of tiles in an item of a warp, and from how many on warps share a tile."""

    terms: int
    shared: int


# Steps that count for summing the results of a block's threads, each time by half, and for its beginning.
MEETING, BEGINNING = 4, 8
# Thread blocks that run side by side, about.
SIDE_BY_SIDE = 1024
# Numbers of a part of a line of the cache, the least that is read at once.
SECTOR = 8

# What is tried. Fewer terms than these are not worth a thread, nor more worth a warp of its own.
FEW_SETTINGS = tuple(EntryParallel(1 << n, rounds) for n in range(2, 13) for rounds in (1, 2, 4))
MANY_SETTINGS = tuple(CaseParallel(terms, shared) for terms in (8, 16, 32, 64) for shared in (64, 128, 256, 1024))


class SideWork(NamedTuple):
    """Work of a launch in addition to contractions.

    made: rows of evidence.
    bounds: of messages.
    marginals: entries of posteriors.
    likelihood, marginal: entries of the largest of that kind.
    """

    made: int = 0
    bounds: int = 0
    marginals: int = 0
    likelihood: int = 0
    marginal: int = 0


@dataclass(frozen=True, eq=False)
class StageWork:
    """The contractions of a launch: rows of `Bytecode.steps`; of each all terms, and those of its longest entry.

    strides: returns of each how far the next kept entry and the next term of each operand are, 0 where there is none.
    side: work of the launch in addition to contractions.
    """

    steps: Ints
    longest: Ints
    total: Ints
    strides: Callable[[], Sequence[Sequence[tuple[int, int]]]]
    side: SideWork

    # Only threads over entries ask for these, and a plan has thousands of steps.
    @cached_property
    def walked(self) -> Sequence[Sequence[tuple[int, int]]]:
        """The strides of each contraction."""
        return self.strides()

    @cached_property
    def along(self) -> npt.NDArray[np.bool_]:
        """Whether neighbouring threads that share an entry have neighbouring terms, of each contraction."""
        return np.array([terms_follow(strides) for strides in self.walked], np.bool_)

    @cached_property
    def apart(self) -> Floats:
        """Parts of a line that neighbouring threads touch for a number, [2, contractions].

        They have neighbouring entries, or terms.
        """
        return np.array([[_apart(strides, n) for strides in self.walked] for n in (0, 1)]).reshape(2, len(self.steps))

    @cached_property
    def operands(self) -> Ints:
        """Loads of a term: its operands."""
        operands: Ints = self.steps[:, bytecode.COUNT]
        return operands

    @cached_property
    def tile(self) -> tuple[Ints, Ints, Ints]:
        """Rows, factors and products of a term of a tile."""
        lines = self.steps[:, bytecode.LINES_OF_TILE]
        width = self.steps[:, bytecode.SIZE] // np.maximum(1, lines)
        how = self.steps[:, bytecode.HOW]
        rows = np.where(how == bytecode.PAIRS, lines + width, np.where(how == bytecode.LINES, lines, self.operands - 1))
        return rows, np.where(how == bytecode.LINES, width, 1), np.where(how < 2, lines * width, self.operands)


def stage_of(code: Bytecode, members: Sequence[int], side: SideWork) -> StageWork:
    """Return a stage with the contractions `members`."""
    steps = code.steps[list(members)].reshape(len(members), code.steps.shape[1])
    longest = np.array([longest_terms(step, code) for step in steps], np.int64)
    return StageWork(steps, longest, spans(steps, code), lambda: [_strides(step, code) for step in steps], side)


def _strides(step: Ints, code: Bytecode) -> list[tuple[int, int]]:
    """Return how far the next kept entry and the next term of each operand are; 0 where there is no other."""
    strides = []
    for kept, terms, _ in code.operands[step[bytecode.FIRST] : step[bytecode.FIRST] + step[bytecode.COUNT]]:
        if kept >= 0:
            next_kept = code.offsets[kept + 1] - code.offsets[kept] if step[bytecode.ENTRIES] > 1 else 0
            next_term = code.offsets[terms + 1] - code.offsets[terms] if step[bytecode.TERMS] > 1 else 0
            strides.append((int(next_kept), int(next_term)))
    return strides


def terms_follow(strides: Sequence[tuple[int, int]]) -> bool:
    """Return True if more operands have the next term as an entry's neighbour than the next kept entry."""
    return sum((terms == 1) - (kept == 1) for kept, terms in strides) > 0


def _apart(strides: Sequence[tuple[int, int]], which: int) -> float:
    # A number that all threads read costs as much as one next to its neighbours.
    return sum(min(SECTOR, max(1, abs(stride[which]))) for stride in strides) / SECTOR


def longest_terms(step: Ints, code: Bytecode) -> int:
    """Return the most terms that an entry (or tile) of a contraction has."""
    if not step[bytecode.STRIDE]:
        return int(step[bytecode.TERMS])
    return max(1, int(np.diff(code.span[step[bytecode.SPAN] : step[bytecode.SPAN] + step[bytecode.TILES] + 1]).max()))


def splits(stage: StageWork, terms: npt.ArrayLike) -> Ints:
    """Return how many threads share an entry of each contraction so that each has so many terms: powers of two."""
    wanted = np.maximum(1, -(-stage.longest // np.asarray(terms)[..., None]))
    shares: Ints = np.minimum(gpu.FEW_THREADS, 1 << np.ceil(np.log2(wanted)).astype(np.int64))
    return shares


def each_block(stage: StageWork, settings: Sequence[EntryParallel], cases: int) -> tuple[Ints, Ints]:
    """Return splits, and entries of a block, [settings, contractions]."""
    split = splits(stage, [setting.terms for setting in settings])
    rounds = np.array([setting.rounds for setting in settings])[:, None]
    return split, np.maximum(1, rounds * (gpu.FEW_THREADS // split) // cases)


def few_work(stage: StageWork, settings: Sequence[EntryParallel], cases: int) -> Floats:
    """Return [settings, FEW_WORK] of a stage for few cases, without what the whole plan has."""
    split, per_block = each_block(stage, settings, cases)
    entries, sharing = stage.steps[:, bytecode.ENTRIES], np.log2(split)
    blocks = -(-entries // per_block)
    rounds = -(-np.minimum(per_block, entries) * cases // (gpu.FEW_THREADS // split))
    steps = rounds * (-(-stage.longest // split) * stage.operands + MEETING * sharing + BEGINNING)
    longest, together = steps.max(axis=1, initial=0), (steps * blocks).sum(axis=1) / SIDE_BY_SIDE
    # Cases lie side by side.
    apart = (
        np.where(stage.along & (split > 1), stage.apart[1], stage.apart[0]) if cases == 1 else stage.operands / SECTOR
    )
    side = stage.side
    columns = [
        1,
        longest,
        together,
        np.maximum(longest, together),
        blocks.sum(axis=1),
        0,
        (stage.total * apart).sum(axis=-1) * cases,
        entries.sum() * cases,
        entries.max(initial=0) * cases,
        *(side.likelihood, side.marginal),
    ]
    return np.stack(np.broadcast_arrays(*columns, np.zeros(len(settings)))[:-1], axis=1).astype(np.float64)


def many_work(stage: StageWork, settings: Sequence[CaseParallel], chunks: int) -> Floats:
    """Return [settings, MANY_WORK] of a stage for so many chunks of cases."""
    rows, factors, products = stage.tile
    per_item = np.maximum(1, np.array([setting.terms for setting in settings])[:, None] // stage.longest)
    shared = stage.longest >= np.array([setting.shared for setting in settings])[:, None]
    warps = np.where(shared, gpu.MANY_THREADS // gpu.WARP, 1)
    items = -(-stage.steps[:, bytecode.TILES] // per_item) * warps
    side = stage.side
    columns = [
        1,
        (-(-stage.longest * per_item // warps) * rows).max(axis=1, initial=0),
        (stage.total * products).sum() * chunks,
        (stage.total * rows).sum() * chunks,
        (stage.total * factors).sum() * chunks,
        items.sum(axis=1) * chunks,
        stage.steps[:, bytecode.ENTRIES].sum() * chunks,
        *(number * chunks for number in (side.made, side.bounds, side.marginals)),
    ]
    return np.stack(np.broadcast_arrays(*columns, np.zeros(len(settings)))[:-1], axis=1).astype(np.float64)


@dataclass(frozen=True, eq=False)
class LaunchTuner:
    """The choice of launch parameters, by coefficients of FEW_WORK and MANY_WORK, among settings.

    With a single setting there is nothing to choose, and coefficients do not matter.
    """

    few: Floats
    many: Floats
    few_settings: tuple[EntryParallel, ...] = FEW_SETTINGS
    many_settings: tuple[CaseParallel, ...] = MANY_SETTINGS

    def for_few(self, stage: StageWork, cases: int) -> tuple[EntryParallel, Floats]:
        """Return the launch parameters of a stage for few cases, and its work with them."""
        work = few_work(stage, self.few_settings, cases)
        best = int(np.argmin(work @ self.few)) if len(work) > 1 else 0
        return self.few_settings[best], work[best]

    def for_many(self, stage: StageWork, chunks: int) -> tuple[CaseParallel, Floats]:
        """Return the launch parameters of a stage for many cases, and its work with them."""
        work = many_work(stage, self.many_settings, chunks)
        best = int(np.argmin(work @ self.many)) if len(work) > 1 else 0
        return self.many_settings[best], work[best]
