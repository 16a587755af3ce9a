"""The work of a plan on a GPU: items, cut so that each is worth its way, in the order of stages."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from junctor_kernels import gpu
from junctor_kernels.gpu import BOUND, CONTRACT, FINISH, MAKE, MARGINAL, NOTHING
from junctor_kernels.layout import COUNT, ENTRIES, FIRST, FIXED, KIND, REDUCE, SLOT, SPAN, STRIDE, TERMS, TILES, Code

from junctor.lowering import Lowering
from junctor.planning.stages import Stages

Item = tuple[int, int, int, int, int, int]

# Terms of tiles that make an item of a warp: enough that its beginning and its end do not count.
ITEM_TERMS = 32
# From so many terms on, the warps of a block share those of a tile.
SHARED_TERMS = 128
# Threads that a device should have at work in a stage when there are few cases.
BUSY_THREADS = 1 << 18


def items_of(lowering: Lowering, code: Code, stages: Stages, cases: int) -> list[list[Item]]:
    """Return the items of every stage; cases: how many there are for threads over entries, 0 for warps over cases."""
    result: list[list[Item]] = [[] for _ in range(stages.count + 1)]
    for n, table in enumerate(lowering.tables):
        step = code.steps[n]
        total, marginal = bool(code.results[n, 0]), int(code.results[n, 1])
        if step[KIND] == FIXED:
            continue
        at = stages.made[table]
        if step[KIND] == REDUCE:
            result[at].extend(_few(n, step, code, cases) if cases else _many(n, step, code))
            result[at + 1].append((BOUND, n, int(total), 0, 0, 0))
        else:
            result[at].append((MAKE, n, 0, 0, 0, 0))
        if marginal >= 0:
            result[at + 1].append((MARGINAL, n, marginal, 0, 0, 0))
    result[-1].append((FINISH, 0, 0, 0, 0, 0))
    return [stage if cases else _in_blocks(stage) for stage in result if stage]


def _many(n: int, step: npt.NDArray[np.int64], code: Code) -> list[Item]:
    tiles, terms = int(step[TILES]), int(step[TERMS])
    if step[STRIDE]:
        span = code.span[step[SPAN] : step[SPAN] + tiles + 1]
        terms = max(1, int(np.diff(span).max()))
    each = max(1, ITEM_TERMS // terms)
    shares = gpu.MANY_THREADS // gpu.WARP if terms >= SHARED_TERMS else 1
    return [(CONTRACT, n, first, min(first + each, tiles), shares, 0) for first in range(0, tiles, each)]


def _in_blocks(stage: list[Item]) -> list[Item]:
    """Return items such that every thread block has one for each of its warps, or one that all of them share."""
    warps = gpu.MANY_THREADS // gpu.WARP
    nothing: Item = (NOTHING, 0, 0, 0, 0, 0)
    # Long items first, so that none begins when the others end.
    result = [part for item in stage if item[4] > 1 for part in (item, *[nothing] * (warps - 1))]
    result += sorted((item for item in stage if item[4] <= 1), key=lambda item: item[0] != CONTRACT)
    return result + [nothing] * (-len(result) % warps)


def _few(n: int, step: npt.NDArray[np.int64], code: Code, cases: int) -> list[Item]:
    entries, terms = int(step[ENTRIES]), int(step[TERMS])
    split = 1
    while split < gpu.FEW_THREADS and 2 * split <= terms and entries * cases * split < BUSY_THREADS:
        split *= 2
    each = max(1, gpu.FEW_THREADS // split // cases)
    along = _terms_follow(step, code)
    return [(CONTRACT, n, first, min(first + each, entries), split, along) for first in range(0, entries, each)]


def _terms_follow(step: npt.NDArray[np.int64], code: Code) -> int:
    """Tell whether more operands have the next term beside an entry than the next kept entry."""
    votes = 0
    for kept, terms, _ in code.operands[step[FIRST] : step[FIRST] + step[COUNT]]:
        if kept >= 0:
            votes += int(step[TERMS] > 1 and code.offsets[terms + 1] - code.offsets[terms] == 1)
            votes -= int(step[ENTRIES] > 1 and code.offsets[kept + 1] - code.offsets[kept] == 1)
    return int(votes > 0)


def closing_of(code: Code) -> tuple[npt.NDArray[np.int32], int]:
    """Return what `finish` reads of the tables that have a part in the results, and how many of them are totals."""
    rows = []
    for step, (total, marginal, up, whole) in zip(code.steps, code.results, strict=True):
        if total == 1 or marginal >= 0 or up >= 0:
            rows.append((int(total != 1), int(total == 1 or marginal >= 0), step[SLOT], step[ENTRIES], up, whole))
    rows.sort(key=lambda row: row[0])
    totals = sum(row[0] == 0 for row in rows)
    return np.array([row[1:] for row in rows], dtype=np.int32).reshape(-1, gpu.CLOSING_COLUMNS), totals


def too_many_operands(code: Code) -> bool:
    """Tell whether a contraction has more operands than the kernels take."""
    return bool(code.steps.size) and int(code.steps[:, COUNT][code.steps[:, KIND] == REDUCE].max(initial=0)) > (
        gpu.MOST_OPERANDS
    )
