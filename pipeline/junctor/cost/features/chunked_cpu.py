"""Features of a case in chunks on a CPU, counted from a cut plan alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from junctor_kernels.tables.axes import Contraction, contraction

from junctor.cost.features.contraction import compiled_work, numpy_work
from junctor.cost.features.names import CHUNK_WORK
from junctor.planning.chunks import ChunkPass, ChunkPlan, part
from junctor.planning.plan import Plan, Reduce

# The cache that the tables of a step may exceed, in bytes: coarse, what exceeding it costs is measured.
CACHE = 1_000_000
# Operations that are worth compiled code, as in `junctor_kernels.entries`, which loads a compiler.
PREPARED = 1 << 13
# What is prepared once for contractions that lie alike.
ONCE = ("prepared", "tabulated")


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How contractions are done.

    itemsize: bytes of an entry.
    scratch: entries of a block in NumPy.
    compiled: whether large ones are done by compiled code.
    """

    itemsize: int
    scratch: int
    compiled: bool


def chunk_work(chunks: ChunkPlan, how: Arithmetic) -> dict[str, float]:
    """Return CHUNK_WORK of a case."""
    plan, counts, contractions = chunks.plan, Counter[str](), dict[Contraction, dict[str, int]]()
    steps = [step for step in plan.steps if isinstance(step, Reduce)]
    leaves = {table for step in steps for table in step.operands} - {step.out for step in steps}
    counts["cases"] = 1
    counts["leaf_entries"] = sum(plan.tables[table].entries for table in leaves)
    counts["stored"] = chunks.stored
    counts["files"] = len(chunks.on_disk)
    counts["spilled"] = sum(plan.tables[table].entries for table in chunks.on_disk)
    for pass_ in chunks.passes:
        counts.update(_pass_work(chunks, pass_, how, contractions))
    return {name: float(counts[name]) for name in CHUNK_WORK}


def least_work(plan: Plan, how: Arithmetic) -> dict[str, float]:
    """Return a lower bound of CHUNK_WORK, however a plan is cut: every contraction once, its tables at hand."""
    steps = tuple(step for step in plan.steps if isinstance(step, Reduce))
    whole = ChunkPlan(plan, (ChunkPass(steps, (), (), (), ()),), {}, frozenset(), 0) if steps else None
    counts = _pass_work(whole, whole.passes[0], how, {}) if whole else {}
    return {name: 0.0 if name == "far" else float(counts.get(name, 0)) for name in CHUNK_WORK}


def _pass_work(
    chunks: ChunkPlan, pass_: ChunkPass, how: Arithmetic, contractions: dict[Contraction, dict[str, int]]
) -> dict[str, int]:
    """Return the counts of all tasks of a pass; contractions: counts of each so far, to which new ones are added."""
    plan, fixed, sizes = chunks.plan, frozenset(pass_.fixed), dict(enumerate(chunks.plan.shape.cardinalities))
    parts = {table: part(plan, table, fixed) for step in pass_.steps for table in (*step.operands, step.out)}
    task, once = Counter[str](tasks=1, contractions=len(pass_.steps)), Counter[str](passes=1, steps=len(pass_.steps))
    task["added"] = parts[pass_.out] if pass_.summed else 0
    for step in pass_.steps:
        tables = parts[step.out] + sum(parts[table] for table in step.operands)
        task["entries"] += parts[step.out]
        task["far"] += max(0, tables - CACHE // how.itemsize)
        what = _lowered(chunks, step, fixed, sizes)
        if what not in contractions:
            contractions[what] = _work(what, how)
            # What is prepared is remembered for other tasks, and for other steps that lie alike.
            once.update({name: contractions[what].pop(name, 0) for name in ONCE})
        task.update(contractions[what])
    tasks = plan.shape.entries(pass_.fixed)
    return {name: tasks * count for name, count in task.items()} | once


def _work(what: Contraction, how: Arithmetic) -> dict[str, int]:
    operations = what.kept_entries * what.eliminated_entries * len(what.operands)
    if how.compiled and operations >= PREPARED:
        return compiled_work(what, how.itemsize)
    return numpy_work(what, how.scratch)


def _lowered(chunks: ChunkPlan, step: Reduce, fixed: frozenset[int], sizes: Mapping[int, int]) -> Contraction:
    """Return the contraction of a step in a task, its operands in the order in which they combine."""

    def left(variables: Iterable[int]) -> list[int]:
        return [v for v in variables if v not in fixed]

    tables = sorted(step.operands, key=lambda table: chunks.plan.tables[table].entries)
    scopes = [left(chunks.layout(table)) for table in tables]
    return contraction(left(chunks.layout(step.out)), left(step.eliminated), scopes, sizes, remember=False)
