"""The work of a plan on a GPU: items, cut so that each is worth its way, in the order of stages."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from junctor_kernels import gpu
from junctor_kernels.gpu import BOUND, CONTRACT, FIND, FINISH, FIXED_TABLE, MAKE, MARGINAL, NOTHING, Launch
from junctor_kernels.layout import (
    COUNT,
    ENTRIES,
    FIRST,
    FIXED,
    KIND,
    LIKELIHOOD,
    LINES_OF_TILE,
    REDUCE,
    SIZE,
    SLOT,
    SPAN,
    STRIDE,
    TERMS,
    TILES,
    Code,
)

from junctor.lowering import Lowering
from junctor.planning.stages import Stages


class Item(NamedTuple):
    """A row of `items`, as `junctor_kernels.gpu` says."""

    what: int
    step: int = 0
    first: int = 0
    last: int = 0
    shares: int = 1
    along: int = 0
    first_operand: int = 0
    operands: int = 0


# Terms of tiles that make an item of a warp: enough that its beginning and its end do not count.
ITEM_TERMS = 16
# Rows of a slice that make an item.
MAKE_ROWS = 32
# From so many terms on, the warps of a block share those of a tile.
SHARED_TERMS = 128
# With few cases: threads that a device should have at work in a stage, the fewest terms that are worth a thread, and
# blocks from which on each does several rounds.
BUSY_THREADS = 1 << 18
LEAST_TERMS = 8
MOST_BLOCKS = 1 << 12
MANY_KERNELS = ("contract_many", "rest_many")


def items_of(lowering: Lowering, code: Code, stages: Stages, cases: int) -> tuple[list[Item], list[list[Launch]]]:
    """Return all items, and the launches of every stage over them.

    cases: how many there are for threads over entries, 0 for warps over cases.
    """
    contractions: list[list[int]] = [[] for _ in range(stages.count + 1)]
    rest: list[list[Item]] = [[] for _ in contractions]
    for n, table in enumerate(lowering.tables):
        step = code.steps[n]
        total, marginal = bool(code.results[n, 0]), int(code.results[n, 1])
        if step[KIND] == FIXED:
            continue
        at = stages.made[table]
        if step[KIND] == REDUCE:
            contractions[at].append(n)
            rest[at + 1].append(Item(BOUND, n, int(total)))
        else:
            rows = int(step[ENTRIES])
            each = rows if cases or step[KIND] == LIKELIHOOD else MAKE_ROWS
            rest[at] += [Item(MAKE, n, first, min(first + each, rows)) for first in range(0, rows, each)]
        if marginal >= 0:
            rest[at + 1].append(Item(MARGINAL, n, marginal))
    if not cases:
        rest[-1] += [Item(FIND, 0, part) for part in range(gpu.PARTS)]
        rest.append([])
        contractions.append([])
    rest[-1].append(Item(FINISH))
    fixed = [slot for table, slot in lowering.slots.items() if table not in stages.made]
    rest[0] += [Item(FIXED_TABLE, slot, n) for n, slot in enumerate(fixed)]
    cut = partial(_few, cases=cases) if cases else _many
    return _in_order([cut(members, code) for members in contractions], rest, few=bool(cases))


def _in_order(
    contractions: list[list[Item]], rest: list[list[Item]], few: bool
) -> tuple[list[Item], list[list[Launch]]]:
    items: list[Item] = []
    stages = []
    for stage in zip(contractions, rest, strict=True):
        parts = {"propagate_few": [*stage[0], *stage[1]]} if few else dict(zip(MANY_KERNELS, stage, strict=True))
        launches = []
        for kernel, members in parts.items():
            if members:
                whole = members if few else _in_blocks(members)
                launches.append(Launch(kernel, len(items), len(whole)))
                items.extend(whole)
        stages.append(launches)
    return items, [stage for stage in stages if stage]


def _terms(step: npt.NDArray[np.int64], code: Code) -> int:
    """Return the most terms that an entry (or tile) of a contraction has."""
    if not step[STRIDE]:
        return int(step[TERMS])
    return max(1, int(np.diff(code.span[step[SPAN] : step[SPAN] + step[TILES] + 1]).max()))


def _many(members: list[int], code: Code) -> list[Item]:
    """Return items of warps over cases, long ones first, so that none begins when the others end."""
    items: list[tuple[int, Item]] = []
    for n in members:
        step = code.steps[n]
        tiles, terms = int(step[TILES]), _terms(step, code)
        each = max(1, ITEM_TERMS // terms)
        shares = gpu.MANY_THREADS // gpu.WARP if terms >= SHARED_TERMS else 1
        cost = each * terms * int(step[LINES_OF_TILE] + step[SIZE] // step[LINES_OF_TILE])
        items += [(cost, Item(CONTRACT, n, first, min(first + each, tiles), shares)) for first in range(0, tiles, each)]
    return [item for _, item in sorted(items, key=lambda each: (each[1].shares == 1, -each[0]))]


def _in_blocks(items: list[Item]) -> list[Item]:
    """Return items such that every thread block has one for each of its warps, or one that all of them share."""
    warps = gpu.MANY_THREADS // gpu.WARP
    nothing = Item(NOTHING)
    result: list[Item] = []
    for item in items:
        result += [item, *[nothing] * (warps - 1)] if item.shares > 1 else [item]
    return result + [nothing] * (-len(result) % warps)


def _few(members: list[int], code: Code, cases: int) -> list[Item]:
    """Return items of thread blocks over entries; threads have about as many terms each in all steps of a stage."""
    steps = [code.steps[n] for n in members]
    work = sum(int(step[ENTRIES]) * _terms(step, code) * cases for step in steps)
    each_thread = max(LEAST_TERMS, work // BUSY_THREADS)
    splits = [_split(_terms(step, code), each_thread) for step in steps]
    threads = sum(int(step[ENTRIES]) * cases * split for step, split in zip(steps, splits, strict=True))
    rounds = 1 + threads // (gpu.FEW_THREADS * MOST_BLOCKS)
    items: list[Item] = []
    for n, step, split in zip(members, steps, splits, strict=True):
        each = max(1, rounds * (gpu.FEW_THREADS // split) // cases)
        along, entries = _terms_follow(step, code), int(step[ENTRIES])
        operands = int(step[FIRST]), int(step[COUNT])
        items += [
            Item(CONTRACT, n, first, min(first + each, entries), split, along, *operands)
            for first in range(0, entries, each)
        ]
    return items


def _split(terms: int, each_thread: int) -> int:
    """Return how many threads share the terms of an entry, a power of two."""
    wanted = -(-terms // each_thread)
    return int(min(gpu.FEW_THREADS, 1 << (wanted - 1).bit_length()))


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
