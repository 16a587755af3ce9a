"""Data of samplers on all backends: tables of a network, the draws of a row, an importance function, sums.

Main classes: Tables, SampledCase, Function, Sums. Drawn variables are nodes, parents first. A draw is an integer of 31
bits, compared with thresholds: cumulative probabilities of a table row, its most probable state first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# Draws have 31 bits and are below this; thresholds are at most this.
FULL = 1 << 31
# Columns of a node: offset of its thresholds, offset of its entries, number of states, first parent and number of
# parents, first bit plane and number of planes, whether it is drawn from the importance function.
FIRST, ENTRY, STATES, PARENTS, COUNT, PLANE, PLANES, WEIGHED = range(8)
# Columns of a parent: its node, stride of its state (rows of a table, entries of a factor), first plane and planes.
NODE, STRIDE, PARENT_PLANE, PARENT_PLANES = range(4)
# Columns of a factor of the weight: offset of its entry, first parent, number of parents, whether it is soft evidence.
FACTOR_ENTRY, FACTOR_PARENTS, FACTOR_COUNT, SOFT = range(4)
# Samples that are computed together; weights are summed within a block first, on every backend.
BLOCK = 256
# The last samples of each block, so many, are drawn from the tables themselves: a defensive mixture.
OWN_SAMPLES = 64
# The chance of a possible state is at least this part of its own probability, so that no node can make a weight large.
OWN_PART = 0.1
# Most states of a variable: states are stored as bytes.
MOST_STATES = 256
# Integer weight of the heaviest learning sample of a stage: integer sums do not depend on their order.
SCORE_UNIT = 1 << 40

Integers = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


class Tables(NamedTuple):
    """Tables of all variables of a network, concatenated.

    probabilities: float64 [entries], the states of a row contiguous.
    thresholds: uint32 [rows * (states - 1)].
    order: uint8 [entries], the states of a row by falling probability; for two states in their own order.
    """

    probabilities: Floats
    thresholds: npt.NDArray[np.uint32]
    order: npt.NDArray[np.uint8]


class SampledCase(NamedTuple):
    """A row of evidence, as its samples need it.

    nodes: int32 [n, 8].
    parents: int32 [m, 4].
    factors: int32 [f, 4].
    levels: int32, first node of each level, and n; nodes of a level do not depend on each other.
    spans: int32 [n], rows of a node's table from the first to the last that parents can select.
    slots: int32 [slots, 4], see `slots_of`.
    soft: float64, likelihoods of all soft evidence.
    tops: float64, for each of them the largest of its variable.
    certain: sum of the logarithms of factors that are the same for all samples, -inf for a zero, and of the largest
        likelihoods.
    planes: bits of the states of all nodes.
    least: bound on the logarithm of a positive weight without `certain`, which is at most 0, for nodes drawn from their
        own tables.
    """

    nodes: Integers
    parents: Integers
    factors: Integers
    levels: Integers
    spans: Integers
    slots: Integers
    soft: Floats
    tops: Floats
    certain: float
    planes: int
    least: float

    def likelihoods(self, logs: bool) -> Floats:
        """Return the likelihoods as factors of weights, or their logarithms.

        At most 1, so that no product of some of them leaves the range of doubles where that of all is in it.
        """
        if not logs:
            return self.soft / self.tops
        with np.errstate(divide="ignore"):
            return np.log(self.soft) - np.log(self.tops)


class Function(NamedTuple):
    """An importance function.

    thresholds, order: as in `Tables`.
    values: float64, probabilities of all entries.
    ratios: float64, probability of an entry over its chance of being drawn, for weighed nodes.
    chances: float64, chances of the entries of weighed nodes.
    logs: whether `values` and `ratios` are logarithms.
    own: the tables themselves, which a share of the samples is drawn from.
    """

    thresholds: npt.NDArray[np.uint32]
    order: npt.NDArray[np.uint8]
    values: Floats
    ratios: Floats
    chances: Floats
    logs: bool
    own: Tables


class Samples(NamedTuple):
    """Samples of a stage.

    states: uint8 [blocks, nodes, BLOCK].
    weights: float64 [blocks, BLOCK], 0 (-inf as logarithms) beyond the last sample.
    """

    states: npt.NDArray[np.uint8]
    weights: Floats


class Sums(NamedTuple):
    """Sums over samples of weights times exp(-shift), and of their squares.

    shift: logarithm, 0 unless weights are logarithms.
    slots: float64 [slots, 2], sum and sum of squares for each state of each node.
    total: float64 [2], the same over all samples.
    drawn: number of samples, scaled where stages have different weights.
    hits: number of samples with a positive weight.
    largest: the largest weight.
    """

    shift: float
    slots: Floats
    total: Floats
    drawn: float
    hits: int
    largest: float


def own_share(count: int) -> float:
    """Return the share of so many samples, from a multiple of BLOCK on, that is drawn from the tables themselves."""
    own = count // BLOCK * OWN_SAMPLES + max(0, count % BLOCK - (BLOCK - OWN_SAMPLES))
    return own / count


def slots_of(nodes: Integers) -> Integers:
    """Return int32 [slots, 4]: node, state, first plane and planes of each slot, the states of a node contiguous."""
    slots = [(n, s, node[PLANE], node[PLANES]) for n, node in enumerate(nodes.tolist()) for s in range(node[STATES])]
    return np.array(slots, dtype=np.int32).reshape(-1, 4)


def add(one: Sums, other: Sums) -> Sums:
    """Return the sum of two sums, with the larger of their shifts."""
    shift = max(one.shift, other.shift)
    # No sample had a weight yet: nothing to rescale.
    if shift == -np.inf:
        return one._replace(drawn=one.drawn + other.drawn)
    mine, its = np.exp(one.shift - shift), np.exp(other.shift - shift)
    scales = np.array([mine, mine**2]), np.array([its, its**2])
    slots = one.slots * scales[0] + other.slots * scales[1]
    total = one.total * scales[0] + other.total * scales[1]
    largest = max(one.largest * float(mine), other.largest * float(its))
    return Sums(shift, slots, total, one.drawn + other.drawn, one.hits + other.hits, largest)
