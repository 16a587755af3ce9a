"""Values of circuits for blocks of cases, the cases innermost, and how they flow back to indicators (Numba).

Main functions: `answer_block`, in single or double precision, and `answer_block_in_logs`. Up, a node is the sum or the
product of its children. Down, the flow of a node is its value times the derivative of the root by it (Darwiche, A
differential approach to inference in Bayesian networks, 2003): a product hands its own to each child, a sum divides it
in the shares of its terms. The flow of an indicator, divided by the root, is a posterior.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.circuits.nodes import FlatCircuit
from junctor_kernels.cpu.jit import jit
from junctor_kernels.cpu.jit import loops as _loops
from junctor_kernels.cpu.jit import part as _part
from junctor_kernels.cpu.vectors import BYTES, add, load, multiply, multiply_add, spread, store

# Fused multiply-add is the only liberty taken with IEEE arithmetic.
loops = partial(_loops, fastmath={"contract"})
part = partial(_part, fastmath={"contract"})
inlined = partial(jit, fastmath={"contract"}, inline=True, arrays=False, part=True)

# Bytes of a number for all cases of a block: four vectors of the widest registers.
LINE_BYTES = 256


class CircuitEvidence(NamedTuple):
    """Evidence as the indicators of a circuit read it.

    variables: int32 [indicators], the row of `states` that each reads, -1 for one that is always 1.
    numbers: int32 [indicators], the state of its variable that each stands for.
    states: int32 [variables, rows], observed states; -1 where nothing is.
    soft: int32 [indicators], the row of `likelihoods` that each is multiplied by, -1 for none.
    likelihoods: float64 or float32 [n, rows], at most 1 each; logarithms of them for `answer_block_in_logs`.
    """

    variables: npt.NDArray[np.int32]
    numbers: npt.NDArray[np.int32]
    states: npt.NDArray[np.int32]
    soft: npt.NDArray[np.int32]
    likelihoods: npt.NDArray[Any]


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


def cases_of(dtype: npt.DTypeLike) -> int:
    """Return the cases of a block."""
    return LINE_BYTES // np.dtype(dtype).itemsize


def block_memory(circuit: FlatCircuit, dtype: npt.DTypeLike = np.float64) -> tuple[npt.NDArray[Any], ...]:
    """Return the memory of a block: values and flows."""
    numbers = len(circuit.is_sum) * cases_of(dtype)
    return np.zeros(numbers, dtype), np.zeros(numbers, dtype)


@loops
def answer_block(
    circuit: Any, evidence: Any, answers: Any, rows: Any, start: int, least: float, values: Any, flows: Any
) -> None:
    """Write roots and posteriors of the cases from `start` on; rows whose root is below `least` get none.

    circuit: its weights in the format of `values`.
    rows: int64, rows of the batch by those of the group.
    values, flows: of `block_memory`.
    """
    cases, leaves = LINE_BYTES // values.itemsize, circuit.indicators.size
    count = min(cases, rows.size - start)
    for leaf in range(leaves):
        for case in range(cases):
            values[leaf * cases + case] = indicator_of(evidence, leaf, start + min(case, count - 1))
            if evidence.soft[leaf] >= 0:
                values[leaf * cases + case] *= evidence.likelihoods[evidence.soft[leaf], start + min(case, count - 1)]
    _up(circuit, values, leaves)
    root = (circuit.is_sum.size - 1) * cases
    for case in range(count):
        answers.roots[start + case] = values[root + case]
    if answers.indicators.size == 0:
        return
    _down(circuit, values, flows, leaves)
    for state in range(answers.indicators.size):
        source, at, step = np.int64(answers.indicators[state]) * cases, answers.at[state], answers.steps[state]
        for case in range(count):
            total = values[root + case]
            if total >= least and total > 0:
                found = flows[source + case] / total if source >= 0 else 0.0
                answers.memory[at + rows[start + case] * step] = found


@part
def indicator_of(evidence: Any, leaf: int, row: int) -> Any:
    """Return whether a row allows the state of an indicator, 1 or 0."""
    variable = evidence.variables[leaf]
    if variable < 0:
        return 1.0
    observed = evidence.states[variable, row]
    return 1.0 if observed < 0 or observed == evidence.numbers[leaf] else 0.0


@part
def _up(circuit: Any, values: Any, leaves: int) -> None:
    edges_at, children, weights = circuit.edges_at, circuit.children, circuit.weights
    cases, width = LINE_BYTES // values.itemsize, BYTES // values.itemsize
    for node in range(leaves, circuit.is_sum.size):
        first, last = edges_at[node], edges_at[node + 1]
        for case in range(0, cases, 4 * width):
            child = np.int64(children[first]) * cases + case
            v0, v1 = load(values, child), load(values, child + width)
            v2, v3 = load(values, child + 2 * width), load(values, child + 3 * width)
            if circuit.is_sum[node]:
                weight = spread(weights[first])
                v0, v1, v2, v3 = multiply(weight, v0), multiply(weight, v1), multiply(weight, v2), multiply(weight, v3)
                for edge in range(first + 1, last):
                    child = np.int64(children[edge]) * cases + case
                    weight = spread(weights[edge])
                    v0 = multiply_add(weight, load(values, child), v0)
                    v1 = multiply_add(weight, load(values, child + width), v1)
                    v2 = multiply_add(weight, load(values, child + 2 * width), v2)
                    v3 = multiply_add(weight, load(values, child + 3 * width), v3)
            else:
                for edge in range(first + 1, last):
                    child = np.int64(children[edge]) * cases + case
                    v0, v1 = multiply(v0, load(values, child)), multiply(v1, load(values, child + width))
                    v2 = multiply(v2, load(values, child + 2 * width))
                    v3 = multiply(v3, load(values, child + 3 * width))
            at = node * cases + case
            store(values, at, v0)
            store(values, at + width, v1)
            store(values, at + 2 * width, v2)
            store(values, at + 3 * width, v3)


@part
def _down(circuit: Any, values: Any, flows: Any, leaves: int) -> None:
    edges_at, children, weights = circuit.edges_at, circuit.children, circuit.weights
    nodes, cases, width = circuit.is_sum.size, LINE_BYTES // values.itemsize, BYTES // values.itemsize
    for i in range((nodes - 1) * cases):
        flows[i] = 0.0
    for i in range((nodes - 1) * cases, nodes * cases):
        flows[i] = values[i]
    for node in range(nodes - 1, leaves - 1, -1):
        first, last = edges_at[node], edges_at[node + 1]
        if circuit.is_sum[node]:
            # To the derivative, which nothing flows through where the sum is zero.
            for at in range(node * cases, (node + 1) * cases):
                flows[at] = flows[at] / values[at] if values[at] > 0 else 0.0
        for case in range(0, cases, 4 * width):
            at = node * cases + case
            f0, f1 = load(flows, at), load(flows, at + width)
            f2, f3 = load(flows, at + 2 * width), load(flows, at + 3 * width)
            if circuit.is_sum[node]:
                for edge in range(first, last):
                    child, weight = np.int64(children[edge]) * cases + case, spread(weights[edge])
                    _add_product(flows, child, multiply(weight, f0), load(values, child))
                    _add_product(flows, child + width, multiply(weight, f1), load(values, child + width))
                    _add_product(flows, child + 2 * width, multiply(weight, f2), load(values, child + 2 * width))
                    _add_product(flows, child + 3 * width, multiply(weight, f3), load(values, child + 3 * width))
            else:
                for edge in range(first, last):
                    child = np.int64(children[edge]) * cases + case
                    store(flows, child, add(f0, load(flows, child)))
                    store(flows, child + width, add(f1, load(flows, child + width)))
                    store(flows, child + 2 * width, add(f2, load(flows, child + 2 * width)))
                    store(flows, child + 3 * width, add(f3, load(flows, child + 3 * width)))


@inlined
def _add_product(flows: Any, at: int, one: Any, other: Any) -> None:
    """Add a product of two vectors to what is there."""
    store(flows, at, multiply_add(one, other, load(flows, at)))


@part
def _log_sum(one: float, other: float) -> Any:
    """Return the logarithm of the sum of two numbers, given theirs."""
    high, low = max(one, other), min(one, other)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


@loops
def answer_block_in_logs(
    circuit: Any, evidence: Any, answers: Any, rows: Any, start: int, values: Any, flows: Any
) -> None:
    """Do the same for one case in logarithms: `values` and `flows` of a node each.

    The root of an impossible row is -inf, and it has no posteriors.
    """
    edges_at, children, leaves, nodes = circuit.edges_at, circuit.children, circuit.indicators.size, circuit.is_sum.size
    for leaf in range(leaves):
        values[leaf] = 0.0 if indicator_of(evidence, leaf, start) > 0 else -math.inf
        if evidence.soft[leaf] >= 0:
            values[leaf] += evidence.likelihoods[evidence.soft[leaf], start]
    for node in range(leaves, nodes):
        first, last, total, high = edges_at[node], edges_at[node + 1], 0.0, -math.inf
        if circuit.is_sum[node]:
            for edge in range(first, last):
                high = max(high, values[children[edge]] + math.log(circuit.weights[edge]))
            for edge in range(first, last) if high > -math.inf else range(0):
                total += math.exp(values[children[edge]] + math.log(circuit.weights[edge]) - high)
            values[node] = high + math.log(total) if high > -math.inf else high
        else:
            for edge in range(first, last):
                total += values[children[edge]]
            values[node] = total
    root = values[nodes - 1]
    answers.roots[start] = root
    if answers.indicators.size == 0 or root == -math.inf:
        return
    for node in range(nodes - 1):
        flows[node] = -math.inf
    flows[nodes - 1] = root
    for node in range(nodes - 1, leaves - 1, -1):
        first, last, flow = edges_at[node], edges_at[node + 1], flows[node]
        if flow == -math.inf:
            continue
        for edge in range(first, last):
            child, share = children[edge], flow
            if circuit.is_sum[node]:
                share += values[child] + math.log(circuit.weights[edge]) - values[node]
            flows[child] = _log_sum(flows[child], share)
    for state in range(answers.indicators.size):
        leaf, found = answers.indicators[state], 0.0
        if leaf >= 0:
            found = math.exp(flows[leaf] - root)
        answers.memory[answers.at[state] + rows[start] * answers.steps[state]] = found


@loops
def largest(circuit: Any, values: Any, flows: Any) -> Any:
    """Return a bound of what the root may lose, of numbers too small for a format, in units of the smallest of them.

    values, flows: in doubles.
    No value and no derivative is larger than where every indicator is 1, nor than the bound. inf where one exceeds a
    double.
    """
    cases, leaves = LINE_BYTES // values.itemsize, circuit.indicators.size
    for i in range(leaves * cases):
        values[i] = 1.0
    _up(circuit, values, leaves)
    _down(circuit, values, flows, leaves)
    total = 1.0
    for node in range(circuit.is_sum.size):
        value, edges = values[node * cases], circuit.edges_at[node + 1] - circuit.edges_at[node] + 1
        # Of a sum, its derivative has taken the place of its flow.
        slope = flows[node * cases] if circuit.is_sum[node] else flows[node * cases] / value
        total += edges * (1.0 + value) * (1.0 + slope)
    return total
