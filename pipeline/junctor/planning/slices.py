"""Slices of a row: some variables held constant for a whole propagation, one for each of their configurations.

Tables lose these variables, and the work grows: a slice takes less than all, but there are many. (Cutset conditioning,
Pearl 1988; slicing of tensor networks, Gray and Kourtis 2021.)
"""

from __future__ import annotations

import math

from junctor.planning.plan import Plan, Reduce

# Configurations of the variables that are held constant, at the most.
MOST_SLICES = 1 << 10


def best_slice(plan: Plan, allowed: frozenset[int]) -> int | None:
    """Return the variable whose states make the large tables of a plan smaller, for the configurations that it adds.

    allowed: variables to choose from. None where no table has one of them.
    """
    sizes, gains = plan.shape.cardinalities, [0.0] * len(plan.shape.cardinalities)
    for step in plan.steps:
        if isinstance(step, Reduce):
            table = plan.tables[step.out]
            for v in table.scope:
                # Squared, because the largest have to become smaller.
                gains[v] += float(table.entries) ** 2
    share = {v: gains[v] * (1 - 1 / sizes[v]) / math.log(sizes[v]) for v in allowed if sizes[v] > 1 and gains[v] > 0}
    # The first of equals.
    return min(share, key=lambda v: (-share[v], v)) if share else None
