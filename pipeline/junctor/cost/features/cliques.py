"""Features of stored clique tables on a CPU: making them, and propagating a case."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

from junctor.cost.features.names import STORED_WORK
from junctor.planning.cliques import CHUNK, StoredPlan, passes


def making_work(plan: StoredPlan) -> dict[str, float]:
    """Return STORED_WORK of making all tables."""
    cliques = [(plan.entries(i), clique) for i, clique in enumerate(plan.cliques)]
    return _stored_work(
        cliques=len(cliques),
        made=sum(entries for entries, _ in cliques),
        multiplied=sum(entries * len(clique.factors) for entries, clique in cliques),
        kernels=sum(len(clique.factors) * -(-entries // CHUNK) for entries, clique in cliques),
        permuted=sum(entries for entries, clique in cliques if clique.swaps),
        far=sum(entries for entries, clique in cliques if clique.swaps and entries > CHUNK),
    )


def case_work(plan: StoredPlan, observed: frozenset[int]) -> dict[str, float]:
    """Return STORED_WORK of calibrating all tables for a case with evidence on some variables."""
    all_passes = [(plan.entries(pass_.clique), pass_) for pass_ in chain.from_iterable(passes(plan, observed))]
    return _stored_work(
        cases=1,
        passes=len(all_passes),
        kernels=sum((len(pass_.factors) + len(pass_.sums)) * -(-entries // CHUNK) for entries, pass_ in all_passes),
        copied=sum(entries for entries, pass_ in all_passes if pass_.first),
        scattered=sum(entries * len(pass_.factors) for entries, pass_ in all_passes),
        reduced=sum(entries * len(pass_.sums) for entries, pass_ in all_passes),
        separators=sum(plan.separator_entries(i) for _, pass_ in all_passes for i in pass_.sums),
    )


def asking_work(plan: StoredPlan, wanted: Sequence[int]) -> dict[str, float]:
    """Return STORED_WORK of a joint posterior of variables that share a clique: the smallest such table is summed."""
    holding = [i for i, clique in enumerate(plan.cliques) if set(wanted) <= set(clique.layout)]
    entries = min(plan.entries(i) for i in holding)
    separators = math.prod(plan.sizes[v] for v in wanted)
    return _stored_work(kernels=-(-entries // CHUNK), reduced=entries, separators=separators)


def _stored_work(**counts: int) -> dict[str, float]:
    return {name: float(counts.get(name, 0)) for name in STORED_WORK}
