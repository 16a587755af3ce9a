"""Messages of loopy belief propagation over the tables of a directed network (Pearl 1988; Numba)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.jit import jit

# Columns of a node: where its table and its numbers begin, its states, its links to parents (first, count), and where
# the links to its children are listed and how many there are.
TABLE, NUMBERS, STATES, FIRST, COUNT, CHILDREN, CHILD_COUNT = range(7)
# Columns of a link to a parent: the parent, and where the numbers of its two messages begin.
PARENT, MESSAGE = range(2)

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Links(NamedTuple):
    """Nodes int64 [n, 7], parents before children; links int64 [m, 2] to their parents in the order of their tables.

    children: links to the children of each node, one node after the other. numbers, messages: of all nodes and links.
    """

    nodes: Integers
    links: Integers
    children: Integers
    numbers: int
    messages: int


def propagate(links: Links, tables: Floats, own: Floats, sweeps: int) -> Floats:
    """Return what evidence below says of each node, [numbers]; exact where links make no loop.

    tables: probabilities of all entries. own: what evidence says of a node itself, likelihoods or a single 1. A sweep
    goes down through all nodes and up again.
    """
    up, down = np.ones(links.messages), np.ones(links.messages)
    below = own.copy()
    for _ in range(sweeps):
        _down(links.nodes, links.links, links.children, tables, own, up, down)
        _up(links.nodes, links.links, links.children, tables, own, up, down, below)
    return below


@jit
def _normalise(numbers: Any) -> None:
    """Divide by the sum; where that is zero, evidence contradicts itself, and nothing is said."""
    total = numbers.sum()
    if total > 0.0:
        numbers /= total
    else:
        numbers[:] = 1.0 / len(numbers)


@jit
def _collect(node: Any, children: Any, links: Any, own: Any, up: Any, out: Any) -> None:
    """Write what evidence says of a node: its own, times the messages of all children."""
    size = node[STATES]
    out[:] = own[node[NUMBERS] : node[NUMBERS] + size]
    for k in range(node[CHILDREN], node[CHILDREN] + node[CHILD_COUNT]):
        at = links[children[k], MESSAGE]
        for s in range(size):
            out[s] *= up[at + s]
        _normalise(out)


@jit
def _without_each(node: Any, children: Any, links: Any, own: Any, up: Any, prior: Any, down: Any) -> None:
    """Write the messages to all children: each what is known of the node but for that child's message."""
    size, count = node[STATES], node[CHILD_COUNT]
    before = np.empty((count + 1, size))
    for s in range(size):
        before[0, s] = prior[s] * own[node[NUMBERS] + s]
    for k in range(count):
        at = links[children[node[CHILDREN] + k], MESSAGE]
        for s in range(size):
            before[k + 1, s] = before[k, s] * up[at + s]
        _normalise(before[k + 1])
    after = np.ones(size)
    for k in range(count - 1, -1, -1):
        at = links[children[node[CHILDREN] + k], MESSAGE]
        for s in range(size):
            down[at + s] = before[k, s] * after[s]
            after[s] *= up[at + s]
        _normalise(down[at : at + size])
        _normalise(after)


@jit
def _down(nodes: Any, links: Any, children: Any, tables: Any, own: Any, up: Any, down: Any) -> None:
    for n in range(len(nodes)):
        node = nodes[n]
        size, count, first = node[STATES], node[COUNT], node[FIRST]
        prior, state, rows = np.zeros(size), np.zeros(count, np.int64), 1
        for j in range(count):
            rows *= nodes[links[first + j, PARENT], STATES]
        for row in range(rows):
            chance = 1.0
            for j in range(count):
                chance *= down[links[first + j, MESSAGE] + state[j]]
            if chance > 0.0:
                for s in range(size):
                    prior[s] += chance * tables[node[TABLE] + row * size + s]
            _step(nodes, links, first, state)
        _normalise(prior)
        _without_each(node, children, links, own, up, prior, down)


@jit
def _up(nodes: Any, links: Any, children: Any, tables: Any, own: Any, up: Any, down: Any, below: Any) -> None:
    for n in range(len(nodes) - 1, -1, -1):
        node = nodes[n]
        size, count, first = node[STATES], node[COUNT], node[FIRST]
        mine = below[node[NUMBERS] : node[NUMBERS] + size]
        _collect(node, children, links, own, up, mine)
        state, left, rows = np.zeros(count, np.int64), np.ones(count + 1), 1
        for j in range(count):
            parent = nodes[links[first + j, PARENT]]
            rows *= parent[STATES]
            up[links[first + j, MESSAGE] : links[first + j, MESSAGE] + parent[STATES]] = 0.0
        for row in range(rows):
            said = 0.0
            for s in range(size):
                said += tables[node[TABLE] + row * size + s] * mine[s]
            if said > 0.0:
                for j in range(count):
                    left[j + 1] = left[j] * down[links[first + j, MESSAGE] + state[j]]
                right = said
                for j in range(count - 1, -1, -1):
                    at = links[first + j, MESSAGE] + state[j]
                    up[at] += left[j] * right
                    right *= down[at]
            _step(nodes, links, first, state)
        for j in range(count):
            at = links[first + j, MESSAGE]
            _normalise(up[at : at + nodes[links[first + j, PARENT], STATES]])


@jit
def _step(nodes: Any, links: Any, first: Any, state: Any) -> None:
    """Go on to the states of the next row, the last parent fastest."""
    for j in range(len(state) - 1, -1, -1):
        state[j] += 1
        if state[j] < nodes[links[first + j, PARENT], STATES]:
            return
        state[j] = 0
