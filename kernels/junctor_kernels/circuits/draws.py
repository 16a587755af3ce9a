"""Draws of all states of a row from a circuit: values up, in logarithms, and down by one term of each sum (Numba).

Main functions: `weigh_terms`, once a row, and `draw_states`. Given that the walk comes to a sum, each of its terms is
taken with its share of the sum; products hand on to all of their children (Darwiche, A differential approach to
inference in Bayesian networks, 2003: terms of the polynomial).
"""

from __future__ import annotations

import math
from typing import Any

from junctor_kernels.circuits.evaluate import up_in_logs
from junctor_kernels.cpu.jit import loops


@loops
def most_sums(circuit: Any, counts: Any) -> Any:
    """Return the most sums that a draw goes through; counts: int64 [nodes], memory."""
    leaves, nodes = circuit.indicators.size, circuit.is_sum.size
    for node in range(nodes):
        found = 0
        for edge in range(circuit.edges_at[node], circuit.edges_at[node + 1]):
            more = counts[circuit.children[edge]]
            found = max(found, more) if circuit.is_sum[node] else found + more
        counts[node] = found + 1 if node >= leaves and circuit.is_sum[node] else found
    return counts[nodes - 1]


@loops
def weigh_terms(circuit: Any, evidence: Any, row: int, values: Any, bounds: Any) -> Any:
    """Write the running shares of the terms of each sum, and return the logarithm of the root.

    evidence: of `evaluate`, likelihoods in logarithms.
    row: of the evidence.
    values: float64 [nodes], memory.
    bounds: float64 [edges], written; those of sums that are zero mean nothing.
    """
    edges_at = circuit.edges_at
    root = up_in_logs(circuit, evidence, row, values)
    for node in range(circuit.indicators.size, circuit.is_sum.size):
        if circuit.is_sum[node] and values[node] > -math.inf:
            total = 0.0
            for edge in range(edges_at[node], edges_at[node + 1]):
                total += math.exp(values[circuit.children[edge]] + math.log(circuit.weights[edge]) - values[node])
                bounds[edge] = total
    return root


@loops
def draw_states(
    circuit: Any, numbers: Any, variables: Any, bounds: Any, chances: Any, waiting: Any, states: Any
) -> None:
    """Write states of draws, of a row whose root is above zero.

    numbers, variables: int32 [indicators], the state that each stands for, and the variable, -1 for none.
    bounds: of `weigh_terms`.
    chances: float64 [draws, sums of a draw], random numbers from 0 to below 1.
    waiting: int64 [edges + 1], memory.
    states: int32 [all variables, draws], written where an indicator tells.
    """
    edges_at, children, leaves = circuit.edges_at, circuit.children, circuit.indicators.size
    for draw in range(chances.shape[0]):
        used, count = 0, 1
        waiting[0] = circuit.is_sum.size - 1
        while count > 0:
            count -= 1
            node = waiting[count]
            first, last = edges_at[node], edges_at[node + 1]
            if node < leaves:
                if variables[node] >= 0:
                    states[variables[node], draw] = numbers[node]
            elif circuit.is_sum[node]:
                # Below the last bound, however the product is rounded: a chance is at most 1 - 2^-53.
                wanted, edge = chances[draw, used] * bounds[last - 1], first
                while bounds[edge] <= wanted:
                    edge += 1
                waiting[count] = children[edge]
                used, count = used + 1, count + 1
            else:
                for edge in range(first, last):
                    waiting[count] = children[edge]
                    count += 1
