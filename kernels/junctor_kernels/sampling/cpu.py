"""Samples and their weights on the CPU, compiled: blocks of `BLOCK` samples, node by node (Numba).

Main functions: `sums`, `draw`, `learn`; called by `junctor.sampling.sampler`. The states of a block (a byte for each
node and sample) stay in the cache. Results depend neither on threads nor on their order: counters give random numbers.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from junctor_kernels.cpu.jit import jit, part_with_arrays
from junctor_kernels.sampling.layout import (
    BLOCK,
    COUNT,
    ENTRY,
    FACTOR_COUNT,
    FACTOR_ENTRY,
    FACTOR_PARENTS,
    FIRST,
    NODE,
    OWN_SAMPLES,
    PARENTS,
    SCORE_UNIT,
    SOFT,
    STATES,
    STRIDE,
    WEIGHED,
    Floats,
    Function,
    SampledCase,
    Samples,
    Sums,
)
from junctor_kernels.sampling.philox import RandomStream, fill
from junctor_kernels.sampling.thresholds import build_thresholds, lift

# Samples of a block that are drawn from the importance function.
MIXED = BLOCK - OWN_SAMPLES


def sums(case: SampledCase, function: Function, stream: RandomStream, first: int, count: int, own: float) -> Sums:
    """Draw samples and return their sums.

    case: the row of evidence.
    function: to draw from.
    stream: random numbers of the row and stage.
    first: first sample, a multiple of BLOCK.
    count: number of samples.
    own: share of all samples of the stage that is drawn from the tables themselves; 0 for none, in any block.
    """
    # Samples are not kept: each block is drawn, summed and overwritten by the next one.
    return Sums(*_sum_blocks(_draw_of(case, function, own), stream.record(), first, count))


def sums_of(case: SampledCase, samples: Samples, logs: bool, count: int) -> Sums:
    """Return the sums over samples that were drawn before.

    case: the row of evidence.
    samples: states and weights.
    logs: whether weights are logarithms.
    count: number of samples.
    """
    return Sums(*_sum_drawn(case.nodes, samples, logs, count))


def draw(
    case: SampledCase,
    function: Function,
    stream: RandomStream,
    first: int,
    count: int,
    own: float,
    into: Samples,
    block: int,
) -> None:
    """Draw samples into `into` from its block `block` on; other parameters as for `sums`."""
    _draw_blocks(_draw_of(case, function, own), stream.record(), first, count, into, block)


def learn(
    case: SampledCase,
    function: Function,
    tables: Floats,
    samples: Samples,
    node: int,
    top: float,
    rate: float,
    least: float,
    scores: Any,
) -> None:
    """Move the chances of a node towards weighted samples (Cheng and Druzdzel 2000, equation 9).

    case: the row of evidence.
    function: changed in place; rows without samples stay as they are.
    tables: probabilities of all entries.
    samples: of the stage.
    node: to learn.
    top: the largest weight.
    rate: learning rate.
    least: smallest chance of a possible state.
    scores: int64, zeros, for the entries of the node; zero again afterwards.
    """
    _learn(case.nodes[node], case.parents, node, samples, top, rate, least, tables, function, scores)


class _Draw(NamedTuple):
    """What samples of a row are drawn from: arrays of its SampledCase, and the function.

    soft: likelihoods of soft evidence, logarithms where the weights are.
    own: share of the samples that is drawn from the tables themselves.
    """

    nodes: Any
    parents: Any
    factors: Any
    soft: Any
    function: Function
    own: float


def _draw_of(case: SampledCase, function: Function, own: float) -> _Draw:
    # `values` and `ratios` are logarithms already; soft evidence differs from row to row.
    return _Draw(case.nodes, case.parents, case.factors, case.likelihoods(function.logs), function, own)


@part_with_arrays
def _locate(parents: Any, first: Any, count: Any, states: Any, rows: Any) -> None:
    """Write for each sample the row (or entry) that the states of its parents select, int32 [BLOCK]."""
    # Strides and states fit 32 bits, as tables have fewer than 2^31 entries: twice as many lanes as with 64 bits.
    rows[:] = 0
    for p in range(first, first + count):
        mine, stride = states[parents[p, NODE]], parents[p, STRIDE]
        for i in range(BLOCK):
            rows[i] += stride * np.int32(mine[i])


@part_with_arrays
def _choose(node: Any, words: Any, rows: Any, thresholds: Any, order: Any, out: Any, begin: Any, end: Any) -> None:
    """Write the state of a node for the samples from `begin` to `end` of a block."""
    size, first, entry = node[STATES], node[FIRST], node[ENTRY]
    # Two states need one comparison without a branch; more are searched from the most probable one on.
    if size == 1:
        out[begin:end] = 0
    elif size == 2:
        for i in range(begin, end):
            out[i] = words[i] >= thresholds[first + rows[i]]
    else:
        for i in range(begin, end):
            at, place = first + rows[i] * (size - 1), 0
            while place < size - 1 and words[i] >= thresholds[at + place]:
                place += 1
            out[i] = order[entry + rows[i] * size + place]


@part_with_arrays
def _combine(weights: Any, factors: Any, entry: Any, rows: Any, logs: Any) -> None:
    # The test stands outside of the loops, so that both become vectors.
    if logs:
        for i in range(BLOCK):
            weights[i] += factors[entry + rows[i]]
    else:
        for i in range(BLOCK):
            weights[i] *= factors[entry + rows[i]]


@part_with_arrays
def _draw_block(
    draw: Any, stream: Any, first: Any, count: Any, states: Any, weights: Any, words: Any, rows: Any, said: Any
) -> None:
    """Draw `count` samples of a block and weigh them; `said`: float64 [BLOCK], scratch."""
    # Factors are combined in the order of the reference: nodes first, then evidence.
    nodes, parents, factors = draw.nodes, draw.parents, draw.factors
    thresholds, order, tables = draw.function.thresholds, draw.function.order, draw.function.own
    values, ratios, logs = draw.function.values, draw.function.ratios, draw.function.logs
    weights[:] = said[:] = 0.0 if logs else 1.0
    for n in range(len(nodes)):
        node = nodes[n]
        if n % 4 == 0:
            fill(stream, first, n // 4, words)
        _locate(parents, node[PARENTS], node[COUNT], states, rows)
        # Nodes that are not weighed have their own tables in the function, too. Constant bounds are what LLVM unrolls.
        if draw.own > 0.0 and node[WEIGHED]:
            _choose(node, words[n % 4], rows, thresholds, order, states[n], 0, MIXED)
            _choose(node, words[n % 4], rows, tables.thresholds, tables.order, states[n], MIXED, BLOCK)
        else:
            _choose(node, words[n % 4], rows, thresholds, order, states[n], 0, BLOCK)
        if node[WEIGHED]:
            for i in range(BLOCK):
                rows[i] = rows[i] * node[STATES] + np.int32(states[n, i])
            _combine(weights, ratios, node[ENTRY], rows, logs)
    for f in range(len(factors)):
        _locate(parents, factors[f, FACTOR_PARENTS], factors[f, FACTOR_COUNT], states, rows)
        _combine(said, draw.soft if factors[f, SOFT] else values, factors[f, FACTOR_ENTRY], rows, logs)
    _weigh(weights, said, draw.own, logs)
    # Samples beyond the last one weigh nothing.
    for i in range(count, BLOCK):
        weights[i] = -np.inf if logs else 0.0


@part_with_arrays
def _weigh(weights: Any, said: Any, own: Any, logs: Any) -> None:
    """Make weights by the mixture from products of ratios; `said`: what the evidence makes of each sample."""
    if own == 0.0:
        for i in range(BLOCK):
            weights[i] = weights[i] + said[i] if logs else weights[i] * said[i]
    elif logs:
        for i in range(BLOCK):
            ratio = weights[i]
            # The larger of the two terms outside of the logarithm.
            far = max(ratio, 0.0)
            weights[i] = said[i] + ratio - far - math.log((1.0 - own) * math.exp(-far) + own * math.exp(ratio - far))
    else:
        for i in range(BLOCK):
            weights[i] = said[i] * (weights[i] / ((1.0 - own) + own * weights[i]))


@jit
def _draw_blocks(draw: Any, stream: Any, first: Any, count: Any, into: Any, block: Any) -> None:
    # Scratch arrays are allocated once for all blocks.
    words, rows, said = np.empty((4, BLOCK), np.uint32), np.empty(BLOCK, np.int32), np.empty(BLOCK)
    for done in range(0, count, BLOCK):
        b = block + done // BLOCK
        here = min(BLOCK, count - done)
        _draw_block(draw, stream, first + done, here, into.states[b], into.weights[b], words, rows, said)


@jit
def _sum_blocks(draw: Any, stream: Any, first: Any, count: Any) -> Any:
    """Return the fields of Sums over samples that are drawn block by block."""
    nodes, logs = draw.nodes, draw.function.logs
    words, rows, said = np.empty((4, BLOCK), np.uint32), np.empty(BLOCK, np.int32), np.empty(BLOCK)
    states, weights = np.zeros((len(nodes), BLOCK), np.uint8), np.empty(BLOCK)
    squares, slots, total = np.empty(BLOCK), np.zeros((nodes[:, STATES].sum(), 2)), np.zeros(3)
    shift, hits = (-np.inf if logs else 0.0), 0
    for done in range(0, count, BLOCK):
        _draw_block(draw, stream, first + done, min(BLOCK, count - done), states, weights, words, rows, said)
        if logs:
            shift = _shifted(weights, shift, slots, total)
        hits += _add_block(nodes, states, weights, squares, slots, total)
    return shift, slots, total[:2], count, hits, total[2]


@jit
def _sum_drawn(nodes: Any, samples: Any, logs: Any, count: Any) -> Any:
    """Return the fields of Sums over all blocks; the samples stay unchanged."""
    plain, squares = np.empty(BLOCK), np.empty(BLOCK)
    slots, total = np.zeros((nodes[:, STATES].sum(), 2)), np.zeros(3)
    shift, hits = (-np.inf if logs else 0.0), 0
    for b in range(len(samples.states)):
        # A copy: learning reads the weights again.
        for i in range(BLOCK):
            plain[i] = samples.weights[b, i]
        if logs:
            shift = _shifted(plain, shift, slots, total)
        hits += _add_block(nodes, samples.states[b], plain, squares, slots, total)
    return shift, slots, total[:2], count, hits, total[2]


@part_with_arrays
def _shifted(weights: Any, shift: Any, slots: Any, total: Any) -> Any:
    """Replace logarithms by weights times exp(-shift); a larger shift rescales the sums so far."""
    top = weights.max()
    # A larger weight than all before it: sums so far are brought to its scale, as in a streaming log-sum-exp.
    if top > shift:
        scale = math.exp(shift - top)
        slots[:, 0] *= scale
        slots[:, 1] *= scale * scale
        total[0] *= scale
        total[1] *= scale * scale
        total[2] *= scale
        shift = top
    for i in range(BLOCK):
        weights[i] = math.exp(weights[i] - shift) if shift > -np.inf else 0.0
    return shift


def _masked(states: Any, state: Any, weights: Any, squares: Any) -> Any:
    """Return the sums of weights and squares of the samples in a state."""
    one, two = 0.0, 0.0
    for i in range(BLOCK):
        here = states[i] == state
        one += weights[i] if here else 0.0
        two += squares[i] if here else 0.0
    return one, two


# Only here LLVM may reorder additions, to sum in vectors.
_sum_of: Any = jit(_masked, fastmath={"reassoc"})


@part_with_arrays
def _add_block(nodes: Any, states: Any, weights: Any, squares: Any, slots: Any, total: Any) -> Any:
    """Add the weights of a block and return the number of positive ones.

    squares: float64 [BLOCK], scratch.
    total: float64 [3], sum of the weights and of their squares, and the largest weight.
    """
    # Squares give standard errors and effective sample sizes; they are computed once for all nodes.
    slot, hits = 0, 0
    for i in range(BLOCK):
        hits += weights[i] > 0.0
        squares[i] = weights[i] * weights[i]
    for n in range(len(nodes)):
        for state in range(nodes[n, STATES]):
            one, two = _sum_of(states[n], state, weights, squares)
            slots[slot, 0] += one
            slots[slot, 1] += two
            slot += 1
    for i in range(BLOCK):
        total[0] += weights[i]
        total[1] += squares[i]
        total[2] = max(total[2], weights[i])
    return hits


@jit
def _learn(
    node: Any,
    parents: Any,
    n: Any,
    samples: Any,
    top: Any,
    rate: Any,
    least: Any,
    tables: Any,
    function: Any,
    scores: Any,
) -> None:
    states, weights, chances = samples.states, samples.weights, function.chances
    # Integer scores: their sums do not depend on the order of samples.
    size, entry = node[STATES], node[ENTRY]
    rows, most = np.empty(BLOCK, np.int32), 0
    for b in range(len(states)):
        _locate(parents, node[PARENTS], node[COUNT], states[b], rows)
        for i in range(BLOCK):
            share = math.exp(weights[b, i] - top) if function.logs else weights[b, i] / top
            row = rows[i]
            scores[row * size + states[b, n, i]] += np.int64(np.rint(share * SCORE_UNIT))
            most = max(most, row)
    # Rows that no sample selected keep their chances.
    for row in range(most + 1):
        whole = 0
        for s in range(size):
            whole += scores[row * size + s]
        if whole == 0:
            continue
        for s in range(size):
            at = entry + row * size + s
            # Convex combination of the old chances and the weighted share of the state.
            chances[at] += rate * (scores[row * size + s] / whole - chances[at])
            scores[row * size + s] = 0
        at = entry + row * size
        lift(tables[at : at + size], least, chances[at : at + size])
        build_thresholds(tables, function, at, node[FIRST] + row * (size - 1), size, 1, 1)
