"""Values of circuits for blocks of cases, the cases innermost, and how they flow back to indicators (Numba).

Main functions: `answer_block`, in single or double precision, `answer_block_in_logs`, and `slopes_in_logs`. Up, a node
is the sum or the product of its children. Down, the flow of a node is its value times the derivative of the root by it
(Darwiche, A differential approach to inference in Bayesian networks, 2003): a product hands its own to each child, a
sum divides it in the shares of its terms. The flow of an indicator, divided by the root, is a posterior. In logarithms
the derivative itself goes down: of an indicator it is the root of what the row would be with all evidence on its
variable replaced by its state, whatever the evidence on it is.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.circuits.nodes import FlatCircuit
from junctor_kernels.circuits.tables import ONE
from junctor_kernels.cpu.jit import jit
from junctor_kernels.cpu.jit import loops as _loops
from junctor_kernels.cpu.jit import part as _part
from junctor_kernels.cpu.vectors import BYTES, add, load, multiply, multiply_add, share_of, spread, store

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


class Parents(NamedTuple):
    """The edges of a circuit by their child: sums first, then products, both in their order.

    at: int64 [nodes + 1], the first edge of each child.
    products_at: int64 [nodes], the first of them from a product.
    nodes: int32 of each edge, the parent.
    shares: of each edge, its weight.
    """

    at: npt.NDArray[np.int64]
    products_at: npt.NDArray[np.int64]
    nodes: npt.NDArray[np.int32]
    shares: npt.NDArray[Any]


def parents_of(circuit: FlatCircuit) -> Parents:
    """Return the edges of a circuit by their child, with weights in the format of the circuit's."""
    nodes, edges = len(circuit.is_sum), len(circuit.children)
    found = Parents(
        np.zeros(nodes + 1, dtype=np.int64),
        np.zeros(nodes, dtype=np.int64),
        np.zeros(edges, dtype=np.int32),
        np.zeros(edges, dtype=circuit.weights.dtype),
    )
    _sort_by_child(circuit, found, np.zeros(nodes, dtype=np.int64))
    return found


@loops
def _sort_by_child(circuit: Any, parents: Any, ends: Any) -> None:
    """Write the edges of a circuit; ends: int64 [nodes], zeros."""
    children, edges_at, at, nodes = circuit.children, circuit.edges_at, parents.at, circuit.is_sum.size
    for node in range(nodes):
        for edge in range(edges_at[node], edges_at[node + 1]):
            at[children[edge] + 1] += 1
            ends[children[edge]] += circuit.is_sum[node]
    for node in range(nodes):
        at[node + 1] += at[node]
        parents.products_at[node] = at[node] + ends[node]
    for of_sums in (True, False):
        for node in range(nodes):
            ends[node] = at[node] if of_sums else parents.products_at[node]
        for node in range(nodes):
            for edge in range(edges_at[node], edges_at[node + 1]) if circuit.is_sum[node] == of_sums else range(0):
                child = children[edge]
                parents.nodes[ends[child]], parents.shares[ends[child]] = node, circuit.weights[edge]
                ends[child] += 1


def cases_of(dtype: npt.DTypeLike) -> int:
    """Return the cases of a block."""
    return LINE_BYTES // np.dtype(dtype).itemsize


def block_memory(circuit: FlatCircuit, dtype: npt.DTypeLike = np.float64) -> tuple[npt.NDArray[Any], ...]:
    """Return the memory of a block: values, and what nodes hand on."""
    numbers = len(circuit.is_sum) * cases_of(dtype)
    return np.zeros(numbers, dtype), np.zeros(numbers, dtype)


@loops
def answer_block(
    circuit: Any,
    parents: Any,
    evidence: Any,
    answers: Any,
    rows: Any,
    start: int,
    least: float,
    values: Any,
    slopes: Any,
) -> None:
    """Write roots and posteriors of the cases from `start` on; rows whose root is below `least` get none.

    circuit, parents: their weights in the format of `values`.
    rows: int64, rows of the batch by those of the group.
    values, slopes: of `block_memory`.
    """
    cases, leaves = LINE_BYTES // values.itemsize, circuit.indicators.size
    count = min(cases, rows.size - start)
    for leaf in range(leaves):
        _indicate(evidence, leaf, start, count, values, cases)
    _up(circuit, values, leaves)
    root = (circuit.is_sum.size - 1) * cases
    for case in range(count):
        answers.roots[start + case] = values[root + case]
    if answers.indicators.size == 0:
        return
    _down(circuit, parents, values, slopes)
    for state in range(answers.indicators.size):
        source, at, step = np.int64(answers.indicators[state]) * cases, answers.at[state], answers.steps[state]
        for case in range(count):
            total = values[root + case]
            if total >= least and total > 0:
                found = slopes[source + case] / total if source >= 0 else 0.0
                answers.memory[at + rows[start + case] * step] = found


@part
def _indicate(evidence: Any, leaf: int, start: int, count: int, values: Any, cases: int) -> None:
    """Write the values of an indicator; cases beyond the last one have any."""
    variable, number, soft, first = evidence.variables[leaf], evidence.numbers[leaf], evidence.soft[leaf], leaf * cases
    for i in range(first, first + cases):
        values[i] = 1.0
    if variable >= 0:
        for case in range(count):
            observed = evidence.states[variable, start + case]
            values[first + case] = 1.0 if observed < 0 or observed == number else 0.0
    if soft >= 0:
        for case in range(count):
            values[first + case] *= evidence.likelihoods[soft, start + case]


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
        # Indices of edges have no sign, for speed, as in `circuits.search`.
        first, last = np.uint64(edges_at[np.uint64(node)]), np.uint64(edges_at[np.uint64(node + 1)])
        for case in range(0, cases, 4 * width):
            child = np.int64(children[first]) * cases + case
            v0, v1 = load(values, child), load(values, child + width)
            v2, v3 = load(values, child + 2 * width), load(values, child + 3 * width)
            if circuit.is_sum[node]:
                weight = spread(weights[first])
                v0, v1, v2, v3 = multiply(weight, v0), multiply(weight, v1), multiply(weight, v2), multiply(weight, v3)
                for edge in range(first + ONE, last):
                    child = np.int64(children[edge]) * cases + case
                    weight = spread(weights[edge])
                    v0 = multiply_add(weight, load(values, child), v0)
                    v1 = multiply_add(weight, load(values, child + width), v1)
                    v2 = multiply_add(weight, load(values, child + 2 * width), v2)
                    v3 = multiply_add(weight, load(values, child + 3 * width), v3)
            else:
                for edge in range(first + ONE, last):
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
def _down(circuit: Any, parents: Any, values: Any, slopes: Any) -> None:
    """Write what each node hands on: of a sum its flow divided by its value, of others their flow."""
    nodes, cases, width = circuit.is_sum.size, LINE_BYTES // values.itemsize, BYTES // values.itemsize
    for node in range(nodes - 1, -1, -1):
        first, products, last = (
            np.uint64(parents.at[node]),
            np.uint64(parents.products_at[node]),
            np.uint64(parents.at[node + 1]),
        )
        for case in range(0, cases, 4 * width):
            at = node * cases + case
            v0, v1, v2, v3 = _four(values, at, width)
            # Everything flows from the root.
            f0, f1, f2, f3, begin = v0, v1, v2, v3, products
            if products > first:
                share, s0, s1, s2, s3 = _edge(parents, first, slopes, cases, case, width)
                f0, f1, f2, f3 = multiply(share, s0), multiply(share, s1), multiply(share, s2), multiply(share, s3)
                for edge in range(first + ONE, products):
                    share, s0, s1, s2, s3 = _edge(parents, edge, slopes, cases, case, width)
                    f0, f1 = multiply_add(share, s0, f0), multiply_add(share, s1, f1)
                    f2, f3 = multiply_add(share, s2, f2), multiply_add(share, s3, f3)
                f0, f1, f2, f3 = multiply(f0, v0), multiply(f1, v1), multiply(f2, v2), multiply(f3, v3)
            elif last > products:
                _, f0, f1, f2, f3 = _edge(parents, products, slopes, cases, case, width)
                begin += ONE
            for edge in range(begin, last):
                _, s0, s1, s2, s3 = _edge(parents, edge, slopes, cases, case, width)
                f0, f1, f2, f3 = add(f0, s0), add(f1, s1), add(f2, s2), add(f3, s3)
            if circuit.is_sum[node]:
                # Nothing flows through where the sum is zero.
                f0, f1, f2, f3 = share_of(f0, v0), share_of(f1, v1), share_of(f2, v2), share_of(f3, v3)
            store(slopes, at, f0)
            store(slopes, at + width, f1)
            store(slopes, at + 2 * width, f2)
            store(slopes, at + 3 * width, f3)


@inlined
def _four(numbers: Any, at: int, width: int) -> Any:
    """Return four neighbouring vectors."""
    return load(numbers, at), load(numbers, at + width), load(numbers, at + 2 * width), load(numbers, at + 3 * width)


@inlined
def _edge(parents: Any, edge: int, slopes: Any, cases: int, case: int, width: int) -> Any:
    """Return the weight of an edge, and what its parent hands on."""
    at = np.int64(parents.nodes[edge]) * cases + case
    s0, s1, s2, s3 = _four(slopes, at, width)
    return spread(parents.shares[edge]), s0, s1, s2, s3


@part
def _log_sum(one: float, other: float) -> Any:
    """Return the logarithm of the sum of two numbers, given theirs."""
    high, low = max(one, other), min(one, other)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


@part
def log_indicator_of(evidence: Any, leaf: int, row: int) -> Any:
    """Return the logarithm of an indicator times its likelihood for one row, whose likelihoods are logarithms."""
    found = 0.0 if indicator_of(evidence, leaf, row) > 0 else -math.inf
    if evidence.soft[leaf] >= 0:
        found += evidence.likelihoods[evidence.soft[leaf], row]
    return found


@part
def up_in_logs(circuit: Any, evidence: Any, row: int, values: Any) -> Any:
    """Write the logarithms of the values of all nodes for one row, float64 [nodes], and return that of the root."""
    edges_at, children, leaves, nodes = circuit.edges_at, circuit.children, circuit.indicators.size, circuit.is_sum.size
    for leaf in range(leaves):
        values[leaf] = log_indicator_of(evidence, leaf, row)
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
    return values[nodes - 1]


@part
def _down_in_logs(circuit: Any, values: Any, slopes: Any) -> None:
    """Write the logarithms of the derivatives of the root by all nodes, float64 [nodes], given values of `up_in_logs`.

    Of a product that is zero they are those of what its other children multiply to.
    """
    edges_at, children, leaves, nodes = circuit.edges_at, circuit.children, circuit.indicators.size, circuit.is_sum.size
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
            continue
        zeros = 0
        for edge in range(first, last):
            zeros += values[children[edge]] == -math.inf
            slope += values[children[edge]] if values[children[edge]] > -math.inf else 0.0
        for edge in range(first, last) if zeros < 2 else range(0):
            child = children[edge]
            if values[child] == -math.inf:
                slopes[child] = _log_sum(slopes[child], slope)
            elif zeros == 0:
                slopes[child] = _log_sum(slopes[child], slope - values[child])


@loops
def answer_block_in_logs(
    circuit: Any, evidence: Any, answers: Any, rows: Any, start: int, values: Any, slopes: Any
) -> None:
    """Do the same for one case in logarithms: `values` and `slopes`, derivatives of the root, of a node each.

    The root of an impossible row is -inf, and it has no posteriors.
    """
    answers.roots[start] = root = up_in_logs(circuit, evidence, start, values)
    if answers.indicators.size == 0 or root == -math.inf:
        return
    _down_in_logs(circuit, values, slopes)
    for state in range(answers.indicators.size):
        leaf, found = answers.indicators[state], 0.0
        if leaf >= 0:
            found = math.exp(slopes[leaf] + values[leaf] - root)
        answers.memory[answers.at[state] + rows[start] * answers.steps[state]] = found


@loops
def slopes_in_logs(circuit: Any, evidence: Any, row: int, values: Any, slopes: Any) -> None:
    """Write the logarithms of values and of derivatives of the root of one row, possible or not; float64 [nodes]."""
    up_in_logs(circuit, evidence, row, values)
    _down_in_logs(circuit, values, slopes)


@loops
def largest(circuit: Any, parents: Any, values: Any, slopes: Any) -> Any:
    """Return a bound of what the root may lose, of numbers too small for a format, in units of the smallest of them.

    values, slopes: in doubles.
    No value and no derivative is larger than where every indicator is 1, nor than the bound. inf where one exceeds a
    double.
    """
    cases, leaves = LINE_BYTES // values.itemsize, circuit.indicators.size
    for i in range(leaves * cases):
        values[i] = 1.0
    _up(circuit, values, leaves)
    _down(circuit, parents, values, slopes)
    total = 1.0
    for node in range(circuit.is_sum.size):
        value, slope = values[node * cases], slopes[node * cases]
        edges = circuit.edges_at[node + 1] - circuit.edges_at[node] + parents.at[node + 1] - parents.at[node] + 1
        if not circuit.is_sum[node]:
            slope /= value
        total += edges * (1.0 + value) * (1.0 + slope)
    return total


@loops
def smallest(circuit: Any, values: Any) -> Any:
    """Return the logarithm of a number that no root above zero is below, whatever states are observed.

    values: float64 [nodes], memory.
    """
    leaves, edges_at = circuit.indicators.size, circuit.edges_at
    for node in range(circuit.is_sum.size):
        values[node] = 0.0
        if node >= leaves and circuit.is_sum[node]:
            # Some term is above zero.
            values[node] = math.inf
            for edge in range(edges_at[node], edges_at[node + 1]):
                values[node] = min(values[node], values[circuit.children[edge]] + math.log(circuit.weights[edge]))
        elif node >= leaves:
            for edge in range(edges_at[node], edges_at[node + 1]):
                values[node] += values[circuit.children[edge]]
    return values[circuit.is_sum.size - 1]
