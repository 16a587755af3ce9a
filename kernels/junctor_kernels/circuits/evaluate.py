"""Values of circuits for blocks of cases, the cases innermost, and derivatives by indicators (Numba).

Main functions: `answer_block`, in doubles, and `answer_block_in_logs`. Up, a node is the sum or the product of its
children; down, the derivatives of the root by its nodes (Darwiche, A differential approach to inference in Bayesian
networks, 2003). A value times the derivative by an indicator, divided by the root, is a posterior.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.circuits.nodes import FlatCircuit
from junctor_kernels.cpu.jit import loops as _loops
from junctor_kernels.cpu.jit import part as _part
from junctor_kernels.cpu.vectors import BYTES, load, multiply, multiply_add, spread, store

# Fused multiply-add is the only liberty taken with IEEE arithmetic.
loops = partial(_loops, fastmath={"contract"})
part = partial(_part, fastmath={"contract"})

# Cases of a block, and those of a vector.
CASES, WIDTH = 32, BYTES // 8


class CircuitEvidence(NamedTuple):
    """Evidence as the indicators of a circuit read it.

    variables: int32 [indicators], the row of `states` that each reads, -1 for one that is always 1.
    numbers: int32 [indicators], the state of its variable that each stands for.
    states: int32 [variables, rows], observed states; -1 where nothing is.
    soft: int32 [indicators], the row of `likelihoods` that each is multiplied by, -1 for none.
    likelihoods: float64 [n, rows], at most 1 each; logarithms of them for `answer_block_in_logs`.
    """

    variables: npt.NDArray[np.int32]
    numbers: npt.NDArray[np.int32]
    states: npt.NDArray[np.int32]
    soft: npt.NDArray[np.int32]
    likelihoods: npt.NDArray[np.float64]


class CircuitAnswers(NamedTuple):
    """Where the posteriors of rows go, as of `model.answers`.

    indicators: int32 [states of all targets], the indicator that tells of each, -1 for impossible states.
    at: int64 [states of all targets], the place of the first row of the batch.
    steps: int64 [states of all targets], from row to row.
    memory: float64 or float32, posteriors.
    roots: float64 [rows of the group], values of the root, or their logarithms.
    """

    indicators: npt.NDArray[np.int32]
    at: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]
    memory: npt.NDArray[Any]
    roots: npt.NDArray[np.float64]


def block_memory(circuit: FlatCircuit) -> tuple[npt.NDArray[np.float64], ...]:
    """Return the memory of a block: values, derivatives, products of the largest product."""
    nodes = len(circuit.is_sum)
    longest = int(np.diff(circuit.edges_at).max(initial=0))
    return np.zeros(nodes * CASES), np.zeros(nodes * CASES), np.zeros(max(1, longest) * CASES)


@loops
def answer_block(
    circuit: Any,
    evidence: Any,
    answers: Any,
    rows: Any,
    start: int,
    least: float,
    values: Any,
    slopes: Any,
    products: Any,
) -> None:
    """Write roots and posteriors of the cases from `start` on; rows whose root is below `least` get none.

    rows: int64, rows of the batch by those of the group.
    values, slopes, products: of `block_memory`.
    """
    count = min(CASES, rows.size - start)
    leaves = circuit.indicators.size
    for leaf in range(leaves):
        for case in range(CASES):
            values[leaf * CASES + case] = _indicator(evidence, leaf, start + min(case, count - 1))
            if evidence.soft[leaf] >= 0:
                values[leaf * CASES + case] *= evidence.likelihoods[evidence.soft[leaf], start + min(case, count - 1)]
    _up(circuit, values, leaves)
    root = (circuit.is_sum.size - 1) * CASES
    for case in range(count):
        answers.roots[start + case] = values[root + case]
    if answers.indicators.size == 0:
        return
    _down(circuit, values, slopes, products, leaves)
    for case in range(count):
        total = values[root + case]
        if total < least or total <= 0:
            continue
        row = rows[start + case]
        for state in range(answers.indicators.size):
            leaf, found = answers.indicators[state], 0.0
            if leaf >= 0:
                found = slopes[leaf * CASES + case] * values[leaf * CASES + case] / total
            answers.memory[answers.at[state] + row * answers.steps[state]] = found


@part
def _indicator(evidence: Any, leaf: int, row: int) -> Any:
    """Return whether a row allows the state of an indicator, 1 or 0."""
    variable = evidence.variables[leaf]
    if variable < 0:
        return 1.0
    observed = evidence.states[variable, row]
    return 1.0 if observed < 0 or observed == evidence.numbers[leaf] else 0.0


@part
def _up(circuit: Any, values: Any, leaves: int) -> None:
    edges_at, children, weights = circuit.edges_at, circuit.children, circuit.weights
    for node in range(leaves, circuit.is_sum.size):
        first, last = edges_at[node], edges_at[node + 1]
        for case in range(0, CASES, 4 * WIDTH):
            child = np.int64(children[first]) * CASES + case
            v0, v1 = load(values, child), load(values, child + WIDTH)
            v2, v3 = load(values, child + 2 * WIDTH), load(values, child + 3 * WIDTH)
            if circuit.is_sum[node]:
                weight = spread(weights[first])
                v0, v1, v2, v3 = multiply(weight, v0), multiply(weight, v1), multiply(weight, v2), multiply(weight, v3)
                for edge in range(first + 1, last):
                    child = np.int64(children[edge]) * CASES + case
                    weight = spread(weights[edge])
                    v0 = multiply_add(weight, load(values, child), v0)
                    v1 = multiply_add(weight, load(values, child + WIDTH), v1)
                    v2 = multiply_add(weight, load(values, child + 2 * WIDTH), v2)
                    v3 = multiply_add(weight, load(values, child + 3 * WIDTH), v3)
            else:
                for edge in range(first + 1, last):
                    child = np.int64(children[edge]) * CASES + case
                    v0, v1 = multiply(v0, load(values, child)), multiply(v1, load(values, child + WIDTH))
                    v2 = multiply(v2, load(values, child + 2 * WIDTH))
                    v3 = multiply(v3, load(values, child + 3 * WIDTH))
            at = node * CASES + case
            store(values, at, v0)
            store(values, at + WIDTH, v1)
            store(values, at + 2 * WIDTH, v2)
            store(values, at + 3 * WIDTH, v3)


@part
def _down(circuit: Any, values: Any, slopes: Any, products: Any, leaves: int) -> None:
    edges_at, children, weights = circuit.edges_at, circuit.children, circuit.weights
    nodes = circuit.is_sum.size
    for i in range((nodes - 1) * CASES):
        slopes[i] = 0.0
    for i in range((nodes - 1) * CASES, nodes * CASES):
        slopes[i] = 1.0
    for node in range(nodes - 1, leaves - 1, -1):
        first, last = edges_at[node], edges_at[node + 1]
        for case in range(0, CASES, WIDTH):
            slope = load(slopes, node * CASES + case)
            if circuit.is_sum[node]:
                for edge in range(first, last):
                    child = np.int64(children[edge]) * CASES + case
                    store(slopes, child, multiply_add(spread(weights[edge]), slope, load(slopes, child)))
            elif last - first == 2:
                one, other = np.int64(children[first]) * CASES + case, np.int64(children[first + 1]) * CASES + case
                store(slopes, one, multiply_add(slope, load(values, other), load(slopes, one)))
                store(slopes, other, multiply_add(slope, load(values, one), load(slopes, other)))
            else:
                # Without a division: products of those before, then of those behind.
                for edge in range(first, last):
                    store(products, (edge - first) * WIDTH, slope)
                    slope = multiply(slope, load(values, np.int64(children[edge]) * CASES + case))
                behind = spread(1.0)
                for edge in range(last - 1, first - 1, -1):
                    child = np.int64(children[edge]) * CASES + case
                    store(
                        slopes, child, multiply_add(load(products, (edge - first) * WIDTH), behind, load(slopes, child))
                    )
                    behind = multiply(behind, load(values, child))


@part
def _log_sum(one: float, other: float) -> Any:
    """Return the logarithm of the sum of two numbers."""
    high, low = max(one, other), min(one, other)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


@loops
def answer_block_in_logs(
    circuit: Any, evidence: Any, answers: Any, rows: Any, start: int, values: Any, slopes: Any, products: Any
) -> None:
    """Do the same for one case in logarithms: `values`, `slopes` and `products` of a node each.

    The root of an impossible row is -inf, and it has no posteriors.
    """
    edges_at, children = circuit.edges_at, circuit.children
    leaves, nodes = circuit.indicators.size, circuit.is_sum.size
    for leaf in range(leaves):
        values[leaf] = 0.0 if _indicator(evidence, leaf, start) > 0 else -math.inf
        if evidence.soft[leaf] >= 0:
            values[leaf] += evidence.likelihoods[evidence.soft[leaf], start]
    for node in range(leaves, nodes):
        first, last = edges_at[node], edges_at[node + 1]
        if circuit.is_sum[node]:
            high = -math.inf
            for edge in range(first, last):
                high = max(high, values[children[edge]] + math.log(circuit.weights[edge]))
            total = 0.0
            for edge in range(first, last) if high > -math.inf else range(0):
                total += math.exp(values[children[edge]] + math.log(circuit.weights[edge]) - high)
            values[node] = high + math.log(total) if high > -math.inf else high
        else:
            total = 0.0
            for edge in range(first, last):
                total += values[children[edge]]
            values[node] = total
    root = values[nodes - 1]
    answers.roots[start] = root
    if answers.indicators.size == 0 or root == -math.inf:
        return
    for node in range(nodes - 1):
        slopes[node] = -math.inf
    slopes[nodes - 1] = 0.0
    for node in range(nodes - 1, leaves - 1, -1):
        first, last, slope = edges_at[node], edges_at[node + 1], slopes[node]
        if slope == -math.inf:
            continue
        if circuit.is_sum[node]:
            for edge in range(first, last):
                child = children[edge]
                slopes[child] = _log_sum(slopes[child], slope + math.log(circuit.weights[edge]))
        else:
            for edge in range(first, last):
                products[edge - first] = slope
                slope += values[children[edge]]
            behind = 0.0
            for edge in range(last - 1, first - 1, -1):
                child = children[edge]
                slopes[child] = _log_sum(slopes[child], products[edge - first] + behind)
                behind += values[child]
    for state in range(answers.indicators.size):
        leaf, found = answers.indicators[state], 0.0
        if leaf >= 0:
            found = math.exp(slopes[leaf] + values[leaf] - root)
        answers.memory[answers.at[state] + rows[start] * answers.steps[state]] = found


@loops
def largest(circuit: Any, values: Any, slopes: Any, products: Any) -> Any:
    """Return a bound of what the root may lose, of numbers too small for a double, in units of the smallest of them.

    No value and no derivative is larger than where every indicator is 1. inf where one exceeds a double.
    """
    leaves = circuit.indicators.size
    for i in range(leaves * CASES):
        values[i] = 1.0
    _up(circuit, values, leaves)
    _down(circuit, values, slopes, products, leaves)
    total = 1.0
    for node in range(circuit.is_sum.size):
        edges = circuit.edges_at[node + 1] - circuit.edges_at[node] + 1
        total += edges * (1.0 + values[node * CASES]) * (1.0 + slopes[node * CASES])
    return total
