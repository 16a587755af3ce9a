"""The work of a plan on a GPU: items, cut so that each is worth its way, in the order of stages."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from junctor_kernels.cpu.bytecode import (
    COUNT,
    ENTRIES,
    FIRST,
    FIXED,
    KIND,
    LIKELIHOOD,
    LINES_OF_TILE,
    REDUCE,
    SIZE,
    SLICE,
    SLOT,
    TILES,
    Bytecode,
)
from junctor_kernels.gpu import blocks as gpu
from junctor_kernels.gpu.blocks import BOUND, CONTRACT, FIND, FINISH, FIXED_TABLE, MAKE, MARGINAL, NOTHING, BlockLaunch

from junctor.backends.lowering import Lowering
from junctor.cost.features.gpu_stages import (
    FEW_WORK,
    MANY_WORK,
    CaseParallel,
    EntryParallel,
    LaunchTuner,
    SideWork,
    StageWork,
    each_block,
    stage_of,
)
from junctor.planning.levels import LaunchLevels


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


# Rows of a slice that make an item, and with few cases numbers that a thread of its block makes.
MAKE_ROWS, MAKE_ROUNDS = 32, 8
MANY_KERNELS = ("contract_many", "rest_many")


class Schedule(NamedTuple):
    """The work of a plan: items, the launches of every stage over them, and counts of work, FEW_WORK or MANY_WORK."""

    items: list[Item]
    stages: list[list[BlockLaunch]]
    work: npt.NDArray[np.float64]


def items_of(
    lowering: Lowering, code: Bytecode, stages: LaunchLevels, cases: int, chunks: int, launching: LaunchTuner
) -> Schedule:
    """Return the work of a plan.

    cases: how many there are for threads over entries, 0 for warps over cases; of those so many `chunks` in a block.
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
            each = rows if step[KIND] == LIKELIHOOD else _rows_of_item(cases)
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
    cut, work = [], np.zeros(len(FEW_WORK) if cases else len(MANY_WORK))
    launched = [pair for pair in zip(contractions, rest, strict=True) if any(pair)]
    for members, beside in launched:
        stage = stage_of(code, members, _beside(beside, code))
        if cases:
            few, counts = launching.for_few(stage, cases)
            cut.append(_few(members, stage, cases, few))
        else:
            many, counts = launching.for_many(stage, chunks)
            cut.append(_many(members, stage, many))
        work += counts
    if cases:
        work[FEW_WORK.index("offsets")] = code.offsets.size
    return Schedule(*_in_order(cut, [beside for _, beside in launched], few=bool(cases)), work)


def _rows_of_item(cases: int) -> int:
    return max(1, MAKE_ROUNDS * gpu.FEW_THREADS // cases) if cases else MAKE_ROWS


def _beside(items: list[Item], code: Bytecode) -> SideWork:
    """Return what there is beside contractions."""
    rows: dict[int, list[int]] = {SLICE: [], LIKELIHOOD: []}
    for item in (each for each in items if each.what == MAKE):
        rows[int(code.steps[item.step, KIND])].append(item.last - item.first)
    marginals = [int(code.steps[item.step, ENTRIES]) for item in items if item.what == MARGINAL]
    return SideWork(
        made=sum(map(sum, rows.values())),
        bounds=sum(item.what == BOUND for item in items),
        marginals=sum(marginals),
        likelihood=max(rows[LIKELIHOOD], default=0),
        marginal=max(marginals, default=0),
    )


def _in_order(
    contractions: list[list[Item]], rest: list[list[Item]], few: bool
) -> tuple[list[Item], list[list[BlockLaunch]]]:
    items: list[Item] = []
    stages = []
    for stage in zip(contractions, rest, strict=True):
        parts = {"propagate_few": [*stage[0], *stage[1]]} if few else dict(zip(MANY_KERNELS, stage, strict=True))
        launches = []
        for kernel, members in parts.items():
            if members:
                whole = members if few else _in_blocks(members)
                launches.append(BlockLaunch(kernel, len(items), len(whole)))
                items.extend(whole)
        stages.append(launches)
    return items, stages


def _many(members: list[int], stage: StageWork, setting: CaseParallel) -> list[Item]:
    """Return items of warps over cases, long ones first, so that none begins when the others end."""
    items: list[tuple[int, Item]] = []
    for n, step, longest in zip(members, stage.steps, stage.longest.tolist(), strict=True):
        tiles = int(step[TILES])
        each = max(1, setting.terms // longest)
        shares = gpu.MANY_THREADS // gpu.WARP if longest >= setting.shared else 1
        cost = each * longest * int(step[LINES_OF_TILE] + step[SIZE] // step[LINES_OF_TILE])
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


def _few(members: list[int], stage: StageWork, cases: int, setting: EntryParallel) -> list[Item]:
    """Return items of thread blocks over entries; threads have about as many terms each in all steps of a stage."""
    split, each_of = (array[0].tolist() for array in each_block(stage, [setting], cases))
    items: list[Item] = []
    for n, step, shares, each, along in zip(members, stage.steps, split, each_of, stage.along.tolist(), strict=True):
        entries = int(step[ENTRIES])
        operands = int(step[FIRST]), int(step[COUNT])
        items += [
            Item(CONTRACT, n, first, min(first + each, entries), shares, int(along), *operands)
            for first in range(0, entries, each)
        ]
    return items


def closing_of(code: Bytecode) -> tuple[npt.NDArray[np.int32], int]:
    """Return what `finish` reads of the tables that have a part in the results, and how many of them are totals."""
    rows = []
    for step, (total, marginal, up, whole) in zip(code.steps, code.results, strict=True):
        if total == 1 or marginal >= 0 or up >= 0:
            rows.append((int(total != 1), int(total == 1 or marginal >= 0), step[SLOT], step[ENTRIES], up, whole))
    rows.sort(key=lambda row: row[0])
    totals = sum(row[0] == 0 for row in rows)
    return np.array([row[1:] for row in rows], dtype=np.int32).reshape(-1, gpu.CLOSING_COLUMNS), totals


def too_many_operands(code: Bytecode) -> bool:
    """Tell whether a contraction has more operands than the kernels take."""
    return bool(code.steps.size) and int(code.steps[:, COUNT][code.steps[:, KIND] == REDUCE].max(initial=0)) > (
        gpu.MOST_OPERANDS
    )
