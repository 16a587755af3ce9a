"""Features of stored clique tables on a CPU: making them, and propagating a case."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

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
    counts = dict.fromkeys(STORED_WORK, 0)
    for i, clique in enumerate(plan.cliques):
        entries = plan.entries(i)
        counts["cliques"] += 1
        counts["made"] += entries
        counts["multiplied"] += entries * len(clique.factors)
        counts["kernels"] += len(clique.factors) * -(-entries // CHUNK)
        counts["permuted"] += entries if clique.swaps else 0
        counts["swapped"] += entries * len(clique.swaps)
    return {name: float(count) for name, count in counts.items()}


def case_work(plan: StoredPlan, observed: frozenset[int]) -> dict[str, float]:
    """Return STORED_WORK of calibrating all tables for a case with evidence on some variables."""
    counts = dict.fromkeys(STORED_WORK, 0)
    counts["cases"] = 1
    for pass_ in chain.from_iterable(passes(plan, observed)):
        entries = plan.entries(pass_.clique)
        counts["passes"] += 1
        counts["kernels"] += (len(pass_.factors) + len(pass_.sums)) * -(-entries // CHUNK)
        counts["copied"] += entries if pass_.first else 0
        counts["scattered"] += entries * len(pass_.factors)
        counts["reduced"] += entries * len(pass_.sums)
        counts["separators"] += sum(plan.separator_entries(i) for i in pass_.sums)
    return {name: float(count) for name, count in counts.items()}


def asking_work(plan: StoredPlan, wanted: Sequence[int]) -> dict[str, float]:
    """Return STORED_WORK of a joint posterior of variables that share a clique: the smallest such table is summed."""
    holding = [i for i, clique in enumerate(plan.cliques) if set(wanted) <= set(clique.layout)]
    entries = min(plan.entries(i) for i in holding)
    counts = dict.fromkeys(STORED_WORK, 0)
    counts["kernels"] = -(-entries // CHUNK)
    counts["reduced"] = entries
    counts["separators"] = math.prod(plan.sizes[v] for v in wanted)
    return {name: float(count) for name, count in counts.items()}
