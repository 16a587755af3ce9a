"""What a case in chunks takes of a CPU, in counts whose prices a cost model learns; from a cut plan alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from junctor.planning.chunks import ChunkPlan, Pass, part
from junctor.planning.plan import Plan, Reduce

# Caches that the tables of a step may exceed, in bytes: coarse, what exceeding them costs is measured.
CACHES = (1_000_000, 32_000_000)
# As in `junctor_kernels.entries`, which loads a compiler: operations that are worth compiled code, entries below which
# some terms are kept at first, entries of a panel, and how often it reads what it copies first. Bytes of a vector.
PREPARED, LEAST_KEPT, PANEL, COPY_FROM, VECTOR_BYTES = 1 << 13, 4096, 4096, 4, 64
CHUNK_WORK = (
    # Of the case: one; factors and evidence, and their entries; passes, and the steps of all of them.
    *("cases", "leaves", "leaf_entries", "passes", "steps"),
    # Of each task: one, its contractions, parts that come in, entries of those that lie scattered.
    *("tasks", "contractions", "parts", "scattered"),
    # Contractions in NumPy: blocks, products, runs of products that lie side by side, terms that are summed.
    *("blocks", "products", "runs", "summed"),
    # In compiled code: how often one is prepared, entries whose places are tabulated then; terms, and terms of operands
    # that lie side by side, in one place, anywhere; terms of contractions that keep few entries, and those of operands.
    *("prepared", "tabulated", "terms", "near", "same", "apart", "few_terms", "few"),
    # Entries that are made and looked through, added to others, taken out; tables on disk, and their entries.
    *("entries", "added", "stored", "files", "spilled"),
    # Entries of steps whose tables exceed a cache.
    *("far", "farthest"),
)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How contractions are done: bytes of an entry, entries of a block in NumPy, whether large ones are compiled."""

    itemsize: int
    scratch: int
    compiled: bool


def chunk_work(chunks: ChunkPlan, how: Arithmetic) -> tuple[float, ...]:
    """Return what a case takes, in the order of CHUNK_WORK."""
    plan, found = chunks.plan, dict.fromkeys(CHUNK_WORK, 0)
    steps = [step for step in plan.steps if isinstance(step, Reduce)]
    leaves = {table for step in steps for table in step.operands} - {step.out for step in steps}
    found["cases"], found["leaves"] = 1, len(leaves)
    found["leaf_entries"] = sum(plan.tables[table].entries for table in leaves)
    found["stored"] = chunks.stored
    found["files"] = len(chunks.on_disk)
    found["spilled"] = sum(plan.tables[table].entries for table in chunks.on_disk)
    for each in chunks.passes:
        for name, count in _pass_work(chunks, each, how).items():
            found[name] += count
    return tuple(map(float, found.values()))


def least_work(plan: Plan, how: Arithmetic) -> tuple[float, ...]:
    """Return what a case takes at the least, however its plan is cut: every contraction once, its tables at hand."""
    steps = tuple(step for step in plan.steps if isinstance(step, Reduce))
    whole = ChunkPlan(plan, (Pass(steps, (), (), (), ()),), {}, frozenset(), 0) if steps else None
    found = _pass_work(whole, whole.passes[0], how) if whole else {}
    return tuple(0.0 if name in ("far", "farthest") else float(found.get(name, 0)) for name in CHUNK_WORK)


def _pass_work(chunks: ChunkPlan, each: Pass, how: Arithmetic) -> dict[str, int]:
    """Return what the tasks of a pass take."""
    plan, fixed = chunks.plan, frozenset(each.fixed)
    parts = {table: part(plan, table, fixed) for step in each.steps for table in (*step.operands, step.out)}
    task = dict.fromkeys(CHUNK_WORK, 0)
    task["tasks"], task["contractions"], task["parts"] = 1, len(each.steps), len(each.loads)
    task["scattered"] = sum(parts[table] for table in each.loads if scatters(chunks.cuts.get(table, ()), fixed))
    task["added"] = parts[each.out] if each.summed else 0
    for step in each.steps:
        _add_step(task, chunks, step, fixed, parts, how)
    tasks = plan.shape.entries(each.fixed)
    # What is prepared is remembered for the other tasks.
    once = {name: task[name] for name in ("prepared", "tabulated")}
    return {name: tasks * count for name, count in task.items()} | {"passes": 1, "steps": len(each.steps)} | once


def scatters(cuts: Sequence[int], fixed: frozenset[int]) -> bool:
    """Tell whether a part lies in several pieces: a chunk variable that varies comes before one that is constant."""
    varies = [v not in fixed for v in cuts]
    return any(varies[n] and not varies[n + 1] for n in range(len(varies) - 1))


def _add_step(
    task: dict[str, int],
    chunks: ChunkPlan,
    step: Reduce,
    fixed: frozenset[int],
    parts: Mapping[int, int],
    how: Arithmetic,
) -> None:
    """Add what a contraction takes in one task."""
    kept, operands = parts[step.out], len(step.operands)
    terms = kept * chunks.plan.shape.entries(v for v in step.eliminated if v not in fixed)
    tables = kept + sum(parts[table] for table in step.operands)
    task["entries"] += kept
    for name, cache in zip(("far", "farthest"), CACHES, strict=True):
        task[name] += max(0, tables - cache // how.itemsize)
    axes = [v for v in chunks.layout(step.out) if v not in fixed]
    small_first = sorted(step.operands, key=lambda table: chunks.plan.tables[table].entries)
    scopes = [[v for v in chunks.layout(table) if v not in fixed] for table in small_first]
    if not how.compiled or terms * operands < PREPARED:
        task["blocks"] += -(-terms // how.scratch)
        products = _products(chunks.plan, scopes, kept)
        task["products"] += products
        task["runs"] += products // run_of(chunks.plan, scopes[-1] if scopes else axes, scopes)
        task["summed"] += terms if terms > kept else 0
        return
    task["prepared"] += 1
    if kept < min(terms, LEAST_KEPT):
        task["tabulated"] += PANEL * operands
        task["few_terms"] += terms
        task["few"] += terms * operands
        return
    task["tabulated"] += min(kept, PANEL) * operands
    task["terms"] += terms
    for scope in scopes:
        task[lies(chunks.plan, axes, scope, terms // kept, VECTOR_BYTES // how.itemsize)] += terms


def lies(plan: Plan, axes: Sequence[int], scope: Sequence[int], terms: int, width: int) -> str:
    """Return how a vector of entries finds an operand: "near", "same" or "apart"; what is copied first is near.

    axes: of the result, scope: of the operand, both slowest first. terms: of an entry. width: entries of a vector.
    """
    sizes, members = plan.shape.cardinalities, frozenset(scope)
    within, absent, together, repeated = 1, 1, 1, 1
    for v in reversed(axes):
        if v not in members and within % width == 0:
            # Vectors that differ in nothing else read the same entries.
            repeated *= sizes[v]
        within *= sizes[v]
    for v in reversed(axes):
        if v in members:
            break
        absent *= sizes[v]
    for v, own in zip(reversed(axes), reversed(scope), strict=False):
        if v != own:
            break
        together *= sizes[v]
    if absent > 1 and absent % width == 0:
        return "same"
    copied = min(repeated, terms) >= COPY_FROM
    return "near" if copied or together == within or (together > 1 and together % width == 0) else "apart"


def _products(plan: Plan, scopes: Sequence[Sequence[int]], kept: int) -> int:
    """Return the entries of all products of the first two operands, the first three and so on."""
    together, products = frozenset(scopes[0]) if scopes else frozenset[int](), 0 if scopes else kept
    for scope in scopes[1:]:
        together |= frozenset(scope)
        products += plan.shape.entries(together)
    return products


def run_of(plan: Plan, axes: Sequence[int], scopes: Sequence[Sequence[int]]) -> int:
    """Return how many neighbouring entries lie in the same way in all operands: NumPy's innermost loop."""
    run, before = 1, None
    for n, v in enumerate(reversed(axes), 1):
        here = tuple(bool(len(scope) >= n and scope[-n] == v) for scope in scopes)
        others = any(v in scope and not near for scope, near in zip(scopes, here, strict=True))
        if others or before not in (None, here):
            break
        run, before = run * plan.shape.cardinalities[v], here
    return run
