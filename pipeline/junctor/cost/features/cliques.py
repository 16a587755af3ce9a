"""Features of stored clique tables on a CPU: making them, and propagating a case."""

from __future__ import annotations

import math
from collections.abc import Sequence

from junctor.planning.cliques import CHUNK, StoredPlan, passes

STORED_WORK = (
    # Making tables: cliques, their entries, those times factors, those brought into another order, and times its swaps.
    *("cliques", "made", "multiplied", "permuted", "swapped"),
    # A case: one, passes, kernels; entries that are copied, times what they are multiplied by and times the separators
    # that they are summed for; entries of those separators.
    *("cases", "passes", "kernels", "copied", "scattered", "reduced", "separators"),
)


def making_work(plan: StoredPlan) -> dict[str, float]:
    """Return STORED_WORK of making all tables."""
    found = dict.fromkeys(STORED_WORK, 0)
    for i, clique in enumerate(plan.cliques):
        entries = plan.entries(i)
        found["cliques"] += 1
        found["made"] += entries
        found["multiplied"] += entries * len(clique.factors)
        found["kernels"] += len(clique.factors) * -(-entries // CHUNK)
        found["permuted"] += entries if clique.swaps else 0
        found["swapped"] += entries * len(clique.swaps)
    return {name: float(count) for name, count in found.items()}


def case_work(plan: StoredPlan, observed: frozenset[int]) -> dict[str, float]:
    """Return STORED_WORK of calibrating all tables for a case with evidence on some variables."""
    found = dict.fromkeys(STORED_WORK, 0)
    found["cases"] = 1
    for each in (each for stage in passes(plan, observed) for each in stage):
        entries = plan.entries(each.clique)
        found["passes"] += 1
        found["kernels"] += (len(each.factors) + len(each.sums)) * -(-entries // CHUNK)
        found["copied"] += entries if each.first else 0
        found["scattered"] += entries * len(each.factors)
        found["reduced"] += entries * len(each.sums)
        found["separators"] += sum(plan.separator_entries(i) for i in each.sums)
    return {name: float(count) for name, count in found.items()}


def asking_work(plan: StoredPlan, wanted: Sequence[int]) -> dict[str, float]:
    """Return STORED_WORK of a joint posterior of variables that share a clique: the smallest such table is summed."""
    holding = [i for i, clique in enumerate(plan.cliques) if set(wanted) <= set(clique.layout)]
    entries = min(plan.entries(i) for i in holding)
    found = dict.fromkeys(STORED_WORK, 0)
    found["kernels"], found["reduced"] = -(-entries // CHUNK), entries
    found["separators"] = math.prod(plan.sizes[v] for v in wanted)
    return {name: float(count) for name, count in found.items()}
