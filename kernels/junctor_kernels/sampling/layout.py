"""What samplers of all backends read: tables of a network, the draws of a row, an importance function.

Variables that are drawn are *nodes*, in an order in which parents come first. A draw is an integer of 31 bits that is
compared with thresholds: the probabilities of a table row, added up from its most probable state on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# A draw is below this; so are thresholds, or equal to it.
FULL = 1 << 31
# Columns of a node: where the thresholds of its row begin, the entries of that row, its states, where its parents
# begin and how many there are, its first bit plane and planes, and whether the importance function weighs its draws.
FIRST, ENTRY, STATES, PARENTS, COUNT, PLANE, PLANES, WEIGHED = range(8)
# Columns of a parent: its node, what its state is multiplied with (rows of a table, entries for a factor), and planes.
NODE, STRIDE, PARENT_PLANE, PARENT_PLANES = range(4)
# Columns of a factor of the weight: where its entry begins, its parents, and whether it is soft evidence.
FACTOR_ENTRY, FACTOR_PARENTS, FACTOR_COUNT, SOFT = range(4)
# Samples that are computed together; sums of weights are taken within such a block first, on every backend.
BLOCK = 256
# States of a variable, because they are kept as bytes.
MOST_STATES = 256
# Weights of learning samples are integers, this for the largest of their stage: sums do not depend on their order.
SCORE_UNIT = 1 << 40

Integers = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


class Tables(NamedTuple):
    """Tables of all variables of a network, one behind the other.

    probabilities: float64 [entries], the states of a row side by side. thresholds: uint32 [rows x (states - 1)].
    order: uint8 [entries], the states of a row from the most probable on; those of two states stay as they are.
    """

    probabilities: Floats
    thresholds: npt.NDArray[np.uint32]
    order: npt.NDArray[np.uint8]


class SampledCase(NamedTuple):
    """A row of evidence: int32 arrays of nodes [n, 8], parents [m, 4], factors [f, 4], and levels of nodes.

    levels: the first node of each level, and n; nodes of a level do not depend on each other. spans: int32 [n], rows of
    its table, from the first that parents select to the last. slots: int32 [slots, 4], see `slots_of`. soft: float64,
    the likelihoods of all soft evidence. certain: sum of the logarithms of factors that no node changes, -inf for a
    zero. planes: bits in which the states of all nodes lie. least, most: bounds on the logarithm of a weight above zero
    without `certain`, as long as nodes are drawn from their own tables.
    """

    nodes: Integers
    parents: Integers
    factors: Integers
    levels: Integers
    spans: Integers
    slots: Integers
    soft: Floats
    certain: float
    planes: int
    least: float
    most: float


class Function(NamedTuple):
    """What nodes are drawn from, and what weighs them; `values` and `ratios` hold logarithms where `logs` says so.

    thresholds, order: as in `Tables`. values: of the entries of all tables. ratios: for nodes that are weighed, the
    probability of an entry divided by that with which it is drawn. chances: of the entries of weighed nodes.
    """

    thresholds: npt.NDArray[np.uint32]
    order: npt.NDArray[np.uint8]
    values: Floats
    ratios: Floats
    chances: Floats
    logs: bool


class Samples(NamedTuple):
    """Samples of a stage: states uint8 [blocks, nodes, BLOCK], weights float64 [blocks, BLOCK], of 0 beyond them."""

    states: npt.NDArray[np.uint8]
    weights: Floats


class Sums(NamedTuple):
    """Sums over samples, of weights times exp(-shift) and of squares: float64 [slots, 2], a slot a state of a node.

    total: float64 [2], over all samples. drawn: samples (each as one, or as a share where stages weigh differently),
    hits: those whose weight is not zero.
    """

    shift: float
    slots: Floats
    total: Floats
    drawn: float
    hits: int


def slots_of(nodes: Integers) -> Integers:
    """Return int32 [slots, 4]: node, state, first plane and planes of each slot, states of a node side by side."""
    found = [(n, s, node[PLANE], node[PLANES]) for n, node in enumerate(nodes.tolist()) for s in range(node[STATES])]
    return np.array(found, dtype=np.int32).reshape(-1, 4)


def add(one: Sums, other: Sums) -> Sums:
    """Return both together, with the larger of the two shifts."""
    shift = max(one.shift, other.shift)
    if shift == -np.inf:
        return one._replace(drawn=one.drawn + other.drawn)
    mine, its = np.exp(one.shift - shift), np.exp(other.shift - shift)
    scales = np.array([mine, mine**2]), np.array([its, its**2])
    slots = one.slots * scales[0] + other.slots * scales[1]
    total = one.total * scales[0] + other.total * scales[1]
    return Sums(shift, slots, total, one.drawn + other.drawn, one.hits + other.hits)
