"""Which steps of a pass a GPU does in one launch: chains of eliminations (`gpu.chains`); other steps are alone."""

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

    steps: their numbers in the pass.
    operands: tables that they read and do not make, of a chain the large table first.
    out: the table that the last one makes.
    chain: None for one step.
    """

    steps: range
    operands: tuple[int, ...]
    out: int
    chain: Chain | None = None

    @property
    def inside(self) -> range:
        """Steps whose results only the next one reads, in registers."""
        return self.steps[:-1]


# Fused steps of the plans that are alive, by the last table of a pass.
_FUSED: WeakKeyDictionary[ChunkPlan, dict[tuple[int, int], tuple[FusedSteps, ...]]] = WeakKeyDictionary()


def fused_steps(chunks: ChunkPlan, pass_: ChunkPass, itemsize: int) -> tuple[FusedSteps, ...]:
    """Return the steps of a pass, in order, as they go to GPUs; itemsize: bytes of an entry."""
    of_plan, key = _FUSED.setdefault(chunks, {}), (pass_.out, itemsize)
    if key not in of_plan:
        of_plan[key] = _groups(chunks, pass_, MOST_STAGES[itemsize])
    return of_plan[key]


def share_fused(chunks: ChunkPlan, other: ChunkPlan) -> None:
    """Let a plan with the same passes in another order have the fused steps of the first: to find them takes long."""
    _FUSED[other] = _FUSED.setdefault(chunks, {})


def _groups(chunks: ChunkPlan, pass_: ChunkPass, most: int) -> tuple[FusedSteps, ...]:
    sizes = dict(enumerate(chunks.plan.shape.cardinalities))
    stages = [_stage(chunks, pass_, n, sizes) for n in range(len(pass_.steps))]
    uses = Counter(table for step in pass_.steps for table in step.operands)
    groups: list[FusedSteps] = []
    n = 0
    while n < len(stages):
        end = n + 1
        while end < len(stages) and _follows(pass_, uses, stages, end):
            end += 1
        # The longest chain that the kernels take wins; a step without one goes alone.
        group = next(_chains(pass_, stages, range(n, end), sizes, most), None) or _alone(chunks, pass_, n)
        groups.append(group)
        n = group.steps.stop
    return tuple(groups)


def touched_entries(chunks: ChunkPlan, pass_: ChunkPass, itemsize: int) -> int:
    """Return the entries that the launches of a task read and write; itemsize: bytes of one."""
    tables = (table for group in fused_steps(chunks, pass_, itemsize) for table in (*group.operands, group.out))
    return sum(part(chunks.plan, table, pass_.fixed) for table in tables)


def _alone(chunks: ChunkPlan, pass_: ChunkPass, n: int) -> FusedSteps:
    step = pass_.steps[n]
    return FusedSteps(range(n, n + 1), chunks.ordered(step), step.out)


def _stage(
    chunks: ChunkPlan, pass_: ChunkPass, n: int, sizes: Mapping[int, int]
) -> tuple[Elimination, int, int] | None:
    """Return a step as a stage of a chain, with its small table and its large one; None where it cannot be one."""
    step = pass_.steps[n]
    # A result that is added to those of other tasks is read, too: a chain only writes.
    if len(step.operands) != 2 or (n == len(pass_.steps) - 1 and pass_.summed):
        return None
    small, large = chunks.ordered(step)
    entries = [part(chunks.plan, table, pass_.fixed) for table in (small, large, step.out)]
    # Eliminated and new variables have as many states: the result has the size of the large table.
    if entries[1] != entries[2] or entries[0] * FACTOR_SHARE > entries[1]:
        return None
    stage = Elimination(*(chunks.axes(table, pass_) for table in (small, large, step.out)))
    eliminated = tuple(v for v in step.eliminated if v not in pass_.fixed)
    if not is_stage(stage, sizes) or eliminated != stage.leaves:
        return None
    return (stage, small, large) if set(stage.comes) <= set(stage.factor) else None


def _follows(
    pass_: ChunkPass, uses: Counter[int], stages: Sequence[tuple[Elimination, int, int] | None], n: int
) -> bool:
    """Return True if a step may continue a chain: it alone reads what the one before makes."""
    this, made = stages[n], pass_.steps[n - 1].out
    if this is None or stages[n - 1] is None:
        return False
    # A result that others read as well has to be in memory.
    return this[2] == made and uses[made] == 1 and made not in pass_.stores


def _chains(
    pass_: ChunkPass,
    stages: Sequence[tuple[Elimination, int, int] | None],
    following: range,
    sizes: Mapping[int, int],
    most: int,
) -> Iterator[FusedSteps]:
    """Yield chains that begin with the first of some steps that follow each other, the best one first."""
    # Where one stage would be left over, two shorter chains take all.
    longest = most - 1 if len(following) == most + 1 else most
    for count in range(min(longest, len(following)), 1, -1):
        steps = following[:count]
        parts = [stage for n in steps if (stage := stages[n]) is not None]
        chain = chain_of([stage for stage, _, _ in parts], sizes)
        if chain is not None:
            operands = (parts[0][2], *(small for _, small, _ in parts))
            yield FusedSteps(steps, operands, pass_.steps[steps[-1]].out, chain)
