"""Features of blocks of cases on the compiled CPU backend."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from junctor_kernels.cpu import bytecode
from junctor_kernels.cpu.bytecode import Bytecode

from junctor.planning.plan import Plan

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Caches that a step's tables may exceed, in bytes: coarse, what exceeding them costs is measured.
CACHES = (48_000, 1_000_000, 32_000_000)
# Bytes that the loops over cases take at a time.
STRIDE_BYTES = 128
CPU_WORK = (
    # Terms of tiles with a factor, of tiles with two tables, of single entries; operands of those with several.
    *("line_terms", "pair_terms", "single_terms", "scaled_terms", "product_terms", "listed_terms"),
    # Tiles and single entries that begin and end, and entries that are rescaled.
    *("tiles", "single_entries", "rescaled"),
    # Numbers of evidence and answers, one by one for every case.
    *("sliced", "likelihoods", "slice_variables", "edges", "marginals", "states", "observed"),
    # Steps of a block, cases, blocks, calls.
    *("reductions", "steps", "step_cases", "cases", "calls"),
    # Vectors that are loaded in steps whose tables exceed a cache, tables that do, and all tables of plans that do.
    *("near_loads", "far_loads", "farthest_loads", "near_tables", "far_tables", "farthest_tables"),
    *("far_plan", "farthest_plan"),
)


def cpu_work(code: Bytecode, plan: Plan, lanes: int, itemsize: int, arena_bytes: int, rows: int) -> dict[str, float]:
    """Return CPU_WORK of cases in blocks.

    code: the lowered `plan`.
    lanes: cases of a block.
    itemsize: bytes of an entry.
    arena_bytes: of all tables of a block.
    rows: cases to answer.
    """
    blocks = -(-rows // lanes)
    vectors = blocks * lanes * itemsize / STRIDE_BYTES
    parts = [
        _terms(code) * vectors,
        _evidence(code) * blocks * lanes,
        np.array([sum(plan.shape.cardinalities), len(plan.pattern.sliced)]) * float(rows),
        _steps(code, blocks, lanes, rows),
        _loads(code, plan, lanes * itemsize) * vectors,
        _traffic(plan, arena_bytes) * vectors,
    ]
    return dict(zip(CPU_WORK, np.concatenate(parts).tolist(), strict=True))


def spans(reductions: Ints, code: Bytecode) -> Ints:
    """Return the terms that the tiles (or entries) of each reduction have together."""
    first, tiles = reductions[:, bytecode.SPAN], reductions[:, bytecode.TILES]
    listed = reductions[:, bytecode.STRIDE] > 0
    last = np.where(listed, first + tiles, 0)
    terms: Ints = np.where(listed, code.span[last] - code.span[first], tiles * reductions[:, bytecode.TERMS])
    return terms


def reductions_of(code: Bytecode) -> Ints:
    """Return the steps that are contractions."""
    steps: Ints = code.steps[code.steps[:, bytecode.KIND] == bytecode.REDUCE]
    return steps


def _terms(code: Bytecode) -> Floats:
    steps = reductions_of(code)
    terms, how, rows = spans(steps, code), steps[:, bytecode.HOW], steps[:, bytecode.COUNT] - 1
    products = how == bytecode.PRODUCTS
    scaled = products & (code.operands[steps[:, bytecode.FIRST], 0] >= 0) if len(steps) else products
    return np.array(
        [
            terms[how == bytecode.LINES].sum(),
            terms[how == bytecode.PAIRS].sum(),
            terms[products & (rows == 1)].sum(),
            terms[scaled].sum(),
            (terms * rows)[products & (rows > 1)].sum(),
            terms[steps[:, bytecode.STRIDE] > 0].sum(),
            steps[~products][:, bytecode.TILES].sum(),
            steps[products][:, bytecode.TILES].sum(),
            steps[:, bytecode.ENTRIES].sum(),
        ],
        dtype=np.float64,
    )


def _evidence(code: Bytecode) -> Floats:
    steps, results = code.steps, code.results
    slices = steps[steps[:, bytecode.KIND] == bytecode.SLICE]
    return np.array(
        [
            slices[:, bytecode.ENTRIES].sum(),
            steps[steps[:, bytecode.KIND] == bytecode.LIKELIHOOD][:, bytecode.ENTRIES].sum(),
            slices[:, bytecode.VARIABLES].sum(),
            steps[results[:, 2] >= 0][:, bytecode.ENTRIES].sum(),
            steps[results[:, 1] >= 0][:, bytecode.ENTRIES].sum(),
        ],
        dtype=np.float64,
    )


def _steps(code: Bytecode, blocks: int, lanes: int, rows: int) -> Floats:
    count = len(code.steps)
    return np.array([len(reductions_of(code)) * blocks, count * blocks, count * blocks * lanes, rows, 1], np.float64)


def _loads(code: Bytecode, plan: Plan, width: int) -> Floats:
    """Return the loads of steps whose tables exceed each cache, then those tables; width: bytes of an entry."""
    steps = reductions_of(code)
    how, operands = steps[:, bytecode.HOW], steps[:, bytecode.COUNT]
    vectors = np.where(how == bytecode.PAIRS, 5, np.where(how == bytecode.LINES, 1, np.maximum(1, operands - 1)))
    loads, tables = spans(steps, code) * vectors, _tables(plan)
    beyond = [np.clip(1 - cache / (width * np.maximum(1, tables)), 0, 1) for cache in CACHES]
    return np.array([*((loads * share).sum() for share in beyond), *((tables * share).sum() for share in beyond)])


def _tables(plan: Plan) -> Ints:
    """Return the entries that each contraction touches, results included."""
    entries = [table.entries if table.per_case else 0 for table in plan.tables]
    steps = plan.reductions(per_case=True)
    return np.array([entries[step.out] + sum(entries[o] for o in step.operands) for step in steps], dtype=np.int64)


def _traffic(plan: Plan, arena_bytes: int) -> Floats:
    tables = _tables(plan).sum()
    return np.array([tables * max(0.0, 1 - cache / arena_bytes) for cache in CACHES[1:]], dtype=np.float64)
