"""Most probable states from circuits: maxima up, in logarithms, and back down to an indicator of each variable (Numba).

Main function: `explain_case`. Sums become maxima, products sums: the root is the logarithm of the largest term (Chan
and Darwiche, On the robustness of most probable explanations, 2006).
"""

from __future__ import annotations

import math
from typing import Any

from junctor_kernels.circuits.evaluate import log_indicator_of
from junctor_kernels.cpu.jit import loops


@loops
def explain_case(
    circuit: Any, logs: Any, evidence: Any, row: int, variables: Any, values: Any, waiting: Any, states: Any
) -> Any:
    """Write the states of one case, and return the logarithm of their value; -inf where no state is possible.

    logs: float64, logarithms of the weights of all edges.
    evidence: of `evaluate`, likelihoods in logarithms.
    row: of the evidence.
    variables: int32 [indicators], the variable of each.
    values, waiting: float64 and int64, memory of a node each.
    states: int32 [all variables], written where an indicator tells.
    """
    edges_at, children = circuit.edges_at, circuit.children
    leaves, nodes = circuit.indicators.size, circuit.is_sum.size
    for leaf in range(leaves):
        values[leaf] = log_indicator_of(evidence, leaf, row)
    for node in range(leaves, nodes):
        best, total = -math.inf, 0.0
        for edge in range(edges_at[node], edges_at[node + 1]):
            best = max(best, values[children[edge]] + logs[edge])
            total += values[children[edge]]
        values[node] = best if circuit.is_sum[node] else total
    root = values[nodes - 1]
    waiting[0], count = nodes - 1, 1 if root > -math.inf else 0
    while count > 0:
        count -= 1
        node = waiting[count]
        if node < leaves:
            if variables[node] >= 0:
                states[variables[node]] = evidence.numbers[node]
        elif circuit.is_sum[node]:
            for edge in range(edges_at[node], edges_at[node + 1]):
                # The first of equal terms: the same number as before, of the same sum.
                if values[children[edge]] + logs[edge] == values[node]:
                    waiting[count] = children[edge]
                    count += 1
                    break
        else:
            for edge in range(edges_at[node], edges_at[node + 1]):
                waiting[count] = children[edge]
                count += 1
    return root
