"""Which steps of a pass a GPU does together: chains of eliminations (`chains_gpu.py`), and other steps one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from junctor_kernels.gpu.chains import MOST_STAGES, Chain, Elimination, chain_of, is_stage

from junctor.planning.chunks import ChunkPass, ChunkPlan, part

# A factor of a chain is so many times smaller than the large table.
FACTOR_SHARE = 16


@dataclass(frozen=True, slots=True)
class FusedSteps:
    """Steps of a pass that are one launch, or one step.

    operands: what they read that they do not make, of a chain the large table first. out: what the last one makes.
    """

    steps: range
    operands: tuple[int, ...]
    out: int
    chain: Chain | None = None

    @property
    def inside(self) -> range:
        """Steps whose results only the next one reads, without a place in memory."""
        return self.steps[:-1]


# What `groups_of` has found for the plans that are there, by the last table of a pass.
_FOUND: WeakKeyDictionary[ChunkPlan, dict[int, tuple[FusedSteps, ...]]] = WeakKeyDictionary()


def groups_of(chunks: ChunkPlan, each: ChunkPass) -> tuple[FusedSteps, ...]:
    """Return the steps of a pass, in order, as they go to GPUs."""
    found = _FOUND.setdefault(chunks, {})
    if each.out not in found:
        found[each.out] = _groups(chunks, each)
    return found[each.out]


def _groups(chunks: ChunkPlan, each: ChunkPass) -> tuple[FusedSteps, ...]:
    sizes = dict(enumerate(chunks.plan.shape.cardinalities))
    stages = [_stage(chunks, each, n, sizes) for n in range(len(each.steps))]
    uses = Counter(table for step in each.steps for table in step.operands)
    found: list[FusedSteps] = []
    n = 0
    while n < len(stages):
        end = n + 1
        while end < len(stages) and _follows(each, uses, stages, end):
            end += 1
        group = next(_chains(each, stages, n, end, sizes), None) or _alone(chunks, each, n)
        found.append(group)
        n = group.steps.stop
    return tuple(found)


def one_by_one(chunks: ChunkPlan, each: ChunkPass) -> tuple[FusedSteps, ...]:
    """Return the steps of a pass as they are."""
    return tuple(_alone(chunks, each, n) for n in range(len(each.steps)))


def touched_entries(chunks: ChunkPlan, each: ChunkPass) -> int:
    """Return the entries that the launches of a task read and write."""
    tables = (table for group in groups_of(chunks, each) for table in (*group.operands, group.out))
    return sum(part(chunks.plan, table, each.fixed) for table in tables)


def _alone(chunks: ChunkPlan, each: ChunkPass, n: int) -> FusedSteps:
    step = each.steps[n]
    return FusedSteps(range(n, n + 1), chunks.ordered(step), step.out)


def _stage(chunks: ChunkPlan, each: ChunkPass, n: int, sizes: Mapping[int, int]) -> tuple[Elimination, int, int] | None:
    """Return a step as a stage of a chain, with its small table and its large one; None where it cannot be one."""
    step = each.steps[n]
    # What is added up to what other tasks have made is not only written.
    if len(step.operands) != 2 or (n == len(each.steps) - 1 and each.summed):
        return None
    small, large = chunks.ordered(step)
    entries = [part(chunks.plan, table, each.fixed) for table in (small, large, step.out)]
    if entries[1] != entries[2] or entries[0] * FACTOR_SHARE > entries[1]:
        return None
    stage = Elimination(*(chunks.axes(table, each) for table in (small, large, step.out)))
    eliminated = tuple(v for v in step.eliminated if v not in each.fixed)
    if not is_stage(stage, sizes) or eliminated != stage.leaves:
        return None
    return (stage, small, large) if set(stage.comes) <= set(stage.factor) else None


def _follows(
    each: ChunkPass, uses: Counter[int], stages: Sequence[tuple[Elimination, int, int] | None], n: int
) -> bool:
    """Tell whether a step may go on with a chain: it alone reads what the one before makes."""
    this, made = stages[n], each.steps[n - 1].out
    if this is None or stages[n - 1] is None:
        return False
    return this[2] == made and uses[made] == 1 and made not in each.stores


def _chains(
    each: ChunkPass,
    stages: Sequence[tuple[Elimination, int, int] | None],
    begin: int,
    end: int,
    sizes: Mapping[int, int],
) -> Iterator[FusedSteps]:
    """Yield chains that begin with a step, the best one first; end: of the steps that may follow it."""
    # None is left alone where two shorter chains have it.
    most = MOST_STAGES - 1 if end - begin == MOST_STAGES + 1 else MOST_STAGES
    for count in range(min(most, end - begin), 1, -1):
        steps = range(begin, begin + count)
        parts = [stage for n in steps if (stage := stages[n]) is not None]
        chain = chain_of([stage for stage, _, _ in parts], sizes)
        if chain is not None:
            operands = (parts[0][2], *(small for _, small, _ in parts))
            yield FusedSteps(steps, operands, each.steps[steps[-1]].out, chain)
