"""The work of a plan on a GPU: items, cut so that each is worth its way, in the order of stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from junctor_kernels.cpu import bytecode as layout
from junctor_kernels.gpu import blocks as gpu
from junctor_kernels.gpu.blocks import BOUND, CONTRACT, FIND, FINISH, FIXED_TABLE, MAKE, MARGINAL, NOTHING, BlockLaunch

from junctor.backends.lowering import LoweredPlan
from junctor.cost.features import gpu_stages
from junctor.planning.levels import LaunchLevels

Ints = npt.NDArray[np.int64]
# Rows of fields of Item: a wide plan has hundreds of thousands.
Items = npt.NDArray[np.int32]


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
    """The work of a plan: items, the launches of every stage over them, and counts of work, FEW_WORK or MANY_WORK.

    items: int32 [items, fields of Item].
    """

    items: Items
    stages: list[list[BlockLaunch]]
    work: npt.NDArray[np.float64]


def items_of(
    plan: LoweredPlan,
    stages: LaunchLevels,
    cases: int,
    chunks: int,
    launching: gpu_stages.LaunchTuner,
) -> Schedule:
    """Return the work of a plan.

    cases: how many there are for threads over entries, 0 for warps over cases; of those so many `chunks` in a block.
    """
    code = plan.code
    contractions: list[list[int]] = [[] for _ in range(stages.count + 1)]
    rest: list[list[Item]] = [[] for _ in contractions]
    slice_rows = max(1, MAKE_ROUNDS * gpu.FEW_THREADS // cases) if cases else MAKE_ROWS
    for n, table in enumerate(plan.numbers.tables):
        step = code.steps[n]
        marginal = int(code.results[n, 1])
        if step[layout.KIND] == layout.FIXED:
            continue
        at = stages.made[table]
        if step[layout.KIND] == layout.REDUCE:
            contractions[at].append(n)
            # Bounds need the largest entry of the whole table: one launch later.
            rest[at + 1].append(Item(BOUND, n))
        else:
            rows = int(step[layout.ENTRIES])
            # A likelihood is scaled by its largest entry, so one item makes all of it.
            size = rows if step[layout.KIND] == layout.LIKELIHOOD else slice_rows
            rest[at] += [Item(MAKE, n, first, min(first + size, rows)) for first in range(0, rows, size)]
        if marginal >= 0:
            rest[at + 1].append(Item(MARGINAL, n, marginal))
    # Many cases: warps gather the results of a block in parts, then one launch adds them up.
    if not cases:
        rest[-1] += [Item(FIND, 0, part) for part in range(gpu.PARTS)]
        rest.append([])
        contractions.append([])
    rest[-1].append(Item(FINISH))
    fixed = [slot for table, slot in plan.slots.items() if table not in stages.made]
    rest[0] += [Item(FIXED_TABLE, slot, n) for n, slot in enumerate(fixed)]
    cut, work = [], np.zeros(len(gpu_stages.FEW_WORK) if cases else len(gpu_stages.MANY_WORK))
    launched = [pair for pair in zip(contractions, rest, strict=True) if any(pair)]
    for members, beside in launched:
        stage = gpu_stages.stage_of(code, members, _beside(beside, code))
        if cases:
            few, counts = launching.for_few(stage, cases)
            cut.append(_few(members, stage, cases, few))
        else:
            many, counts = launching.for_many(stage, chunks)
            cut.append(_many(members, stage, many))
        work += counts
    if cases:
        work[gpu_stages.FEW_WORK.index("offsets")] = code.offsets.size
    return Schedule(*_in_order(cut, [beside for _, beside in launched], few=bool(cases)), work)


def _beside(items: list[Item], code: layout.Bytecode) -> gpu_stages.SideWork:
    """Return what there is beside contractions."""
    rows: dict[int, list[int]] = {layout.SLICE: [], layout.LIKELIHOOD: []}
    for item in (item for item in items if item.what == MAKE):
        rows[int(code.steps[item.step, layout.KIND])].append(item.last - item.first)
    marginals = [int(code.steps[item.step, layout.ENTRIES]) for item in items if item.what == MARGINAL]
    return gpu_stages.SideWork(
        made=sum(map(sum, rows.values())),
        bounds=sum(item.what == BOUND for item in items),
        marginals=sum(marginals),
        likelihood=max(rows[layout.LIKELIHOOD], default=0),
        marginal=max(marginals, default=0),
    )


def _in_order(contractions: list[Items], rest: list[list[Item]], few: bool) -> tuple[Items, list[list[BlockLaunch]]]:
    parts: list[Items] = []
    begin, stages = 0, []
    for contracted, beside in zip(contractions, rest, strict=True):
        both = contracted, _rows_of(beside)
        of_stage = {"propagate_few": np.concatenate(both)} if few else dict(zip(MANY_KERNELS, both, strict=True))
        launches = []
        for kernel, members in of_stage.items():
            if len(members):
                whole = members if few else _in_blocks(members)
                launches.append(BlockLaunch(kernel, begin, len(whole)))
                parts.append(whole)
                begin += len(whole)
        stages.append(launches)
    return np.concatenate(parts), stages


def _rows_of(items: Sequence[Item]) -> Items:
    return np.array(items, dtype=np.int32).reshape(-1, len(Item._fields))


def _pieces(whole: Ints, size: Ints) -> tuple[Ints, Ints, Ints]:
    """Return of each piece of some wholes which one it is of, its first part and the one behind its last.

    whole: how many parts each has. size: how many of them make a piece, the last one may be smaller.
    """
    count = -(-whole // size)
    of = np.repeat(np.arange(len(whole)), count)
    first = (np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count)) * size[of]
    return of, first, np.minimum(first + size[of], whole[of])


def _contractions(numbers: Ints, first: Ints, last: Ints, shares: Ints, *others: Ints) -> Items:
    """Return items of contractions; all by piece, others: what follows `shares` in an item."""
    items = np.zeros((len(numbers), len(Item._fields)), dtype=np.int32)
    items[:, 0] = CONTRACT
    for column, values in enumerate((numbers, first, last, shares, *others), start=1):
        items[:, column] = values
    return items


def _many(members: list[int], stage: gpu_stages.StageWork, setting: gpu_stages.CaseParallel) -> Items:
    """Return items of warps over cases, long ones first, so that none begins when the others end."""
    steps, longest = stage.steps, stage.longest
    size = np.maximum(1, setting.terms // longest)
    of, first, last = _pieces(steps[:, layout.TILES], size)
    # Long sums are shared by all warps of a thread block.
    shares = np.where(longest >= setting.shared, gpu.MANY_THREADS // gpu.WARP, 1)[of]
    lines = steps[:, layout.LINES_OF_TILE]
    cost = (size * longest * (lines + steps[:, layout.SIZE] // lines))[of]
    items = _contractions(np.array(members, dtype=np.int64)[of], first, last, shares)
    return items[np.lexsort((-cost, shares == 1))]


def _in_blocks(items: Items) -> Items:
    """Return items such that every thread block has one for each of its warps, or one that all of them share."""
    warps = gpu.MANY_THREADS // gpu.WARP
    places = np.where(items[:, Item._fields.index("shares")] > 1, warps, 1)
    count = int(places.sum())
    result = np.tile(_rows_of([Item(NOTHING)]), (count + -count % warps, 1))
    result[np.cumsum(places) - places] = items
    return result


def _few(members: list[int], stage: gpu_stages.StageWork, cases: int, setting: gpu_stages.EntryParallel) -> Items:
    """Return items of thread blocks over entries; threads have about as many terms each in all steps of a stage."""
    steps = stage.steps
    split, size = (array[0] for array in gpu_stages.each_block(stage, [setting], cases))
    of, first, last = _pieces(steps[:, layout.ENTRIES], size)
    operands = steps[of, layout.FIRST], steps[of, layout.COUNT]
    return _contractions(
        np.array(members, dtype=np.int64)[of], first, last, split[of], stage.along[of].astype(np.int64), *operands
    )


def closing_of(code: layout.Bytecode) -> tuple[npt.NDArray[np.int32], int]:
    """Return what `finish` reads of the tables that have a part in the results, and how many of them are totals."""
    rows = []
    for step, (total, marginal, up, whole) in zip(code.steps, code.results, strict=True):
        if total == 1 or marginal >= 0 or up >= 0:
            # Totals that cases share are among the constants.
            is_total, is_result = total == 1 and step[layout.KIND] != layout.FIXED, total == 1 or marginal >= 0
            rows.append((int(not is_total), int(is_result), step[layout.SLOT], step[layout.ENTRIES], up, whole))
    rows.sort(key=lambda row: row[0])
    totals = sum(row[0] == 0 for row in rows)
    return np.array([row[1:] for row in rows], dtype=np.int32).reshape(-1, gpu.CLOSING_COLUMNS), totals


def too_many_operands(code: layout.Bytecode, many: bool) -> bool:
    """Return True if a contraction has more operands than the kernels take.

    many: whether warps go over cases, whose contractions take any number; tracing back does not.
    """
    contracted = code.steps[code.steps[:, layout.KIND] == layout.REDUCE, layout.COUNT]
    counts = code.trace[:, 1] if many else np.concatenate([contracted, code.trace[:, 1]])
    return int(counts.max(initial=0)) > gpu.MOST_OPERANDS
