"""Messages of loopy belief propagation over the tables of a Bayesian network (Pearl 1988; Numba).

Main function: `propagate`, called by `junctor.sampling.epis`. Observed variables are cut out: their tables are factors
over their parents, and rows that they do not select are never read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import jit, part_with_arrays
from junctor_kernels.sampling.layout import Floats, Integers

# A table is a tensor over its parents and, last, its node. Its slowest variable is summed out first, then the next one:
# every step reads contiguous numbers, and all steps together at most twice the table.
# Columns of a table: states of its node (1 for a factor), first link, number of links, first entry; for nodes also
# first number, first of its children's messages in `children`, and their number.
STATES, FIRST, COUNT, ENTRY, NUMBERS, CHILDREN, CHILD_COUNT = range(7)
TABLE_COLUMNS = 8
# Columns of a link to a parent: its node, stride of its states in entries, offset of both messages, number of states.
PARENT, STRIDE, MESSAGE, CARD = range(4)
# Low bits of a result that are rounded off; 20 of the mantissa stay. Backends that differ in the last bits then have
# the same importance function.
CLEARED = 32


class Links(NamedTuple):
    """Tables of nodes, then of factors, and the links between them: int32 arrays.

    tables: [t, 8].
    links: [m, 4], those of a table contiguous, the slowest parent first; no parent has a single state.
    children: [m], offsets of the messages of each node's children.
    levels: [l + 2, 3], first table, number and message of each level of nodes, of the factors, and the ends.
    numbers: states of all nodes together.
    messages: numbers of all messages in one direction.
    """

    tables: Integers
    links: Integers
    children: Integers
    levels: Integers
    numbers: int
    messages: int


def propagate(links: Links, probabilities: Floats, own: Floats, sweeps: int) -> Floats:
    """Return the likelihood of each node's states from evidence below, float64 [numbers], to 20 bits.

    links: of the pattern and row.
    probabilities: of all entries.
    own: float64 [numbers], likelihoods from evidence on the node itself, or ones.
    sweeps: passes down through all levels and up again; results are exact in polytrees.
    """
    # Uniform messages at first; they need no normalisation.
    up, down = np.ones(links.messages), np.ones(links.messages)
    below = own.copy()
    # Two tables of partial sums, a compact copy, and products of messages.
    room = np.empty(4 * int(sizes(links).max(initial=1)))
    _sweeps(links, int(links.levels[-2, 0]), probabilities, own, up, down, below, room, sweeps)
    return rounded(below)


def sizes(links: Links) -> npt.NDArray[np.int64]:
    """Return the entries of each table without observed variables, int64 [t]."""
    entries = links.tables[:, STATES].astype(np.int64)
    np.multiply.at(entries, np.repeat(np.arange(len(entries)), links.tables[:, COUNT]), links.links[:, CARD])
    return entries


def rounded(numbers: Floats) -> Floats:
    """Return non-negative numbers rounded to 20 bits of the mantissa."""
    bits = numbers.view(np.int64) + (1 << CLEARED - 1)
    result: Floats = (bits >> CLEARED << CLEARED).view(np.float64)
    return result


@jit
def _sweeps(of: Any, nodes: Any, values: Any, own: Any, up: Any, down: Any, below: Any, room: Any, sweeps: Any) -> None:
    tables, links, children = of.tables, of.links, of.children
    for _ in range(sweeps):
        # Nodes are ordered with parents first: one pass carries messages through all levels.
        for n in range(nodes):
            table = tables[n]
            prior = _prior(table, links, values, down, room)
            _without_each(table, children, own, up, prior, down)
        for n in range(len(tables) - 1, -1, -1):
            table = tables[n]
            # A factor has no states of its own: its table is a likelihood over its parents.
            mine = np.ones(1)
            if n < nodes:
                mine = below[table[NUMBERS] : table[NUMBERS] + table[STATES]]
                _collect(table, children, own, up, mine)
            _up(table, links, values, mine, up, down, room)


@part_with_arrays
def _normalise(numbers: Any) -> None:
    """Divide by the sum; where that is zero, evidence is contradictory, and the message becomes uniform."""
    if not _scaled(numbers):
        numbers[:] = 1.0 / len(numbers)


@part_with_arrays
def _scaled(numbers: Any) -> Any:
    """Divide by the sum unless that is zero; return whether it is not."""
    total = numbers.sum()
    if total > 0.0:
        numbers /= total
    return total > 0.0


@part_with_arrays
def _collect(table: Any, children: Any, own: Any, up: Any, out: Any) -> None:
    """Write the likelihood of a node: from its own evidence times the messages of all children."""
    size = table[STATES]
    for s in range(size):
        out[s] = own[table[NUMBERS] + s]
    _scaled(out)
    for k in range(table[CHILDREN], table[CHILDREN] + table[CHILD_COUNT]):
        at = children[k]
        for s in range(size):
            out[s] *= up[at + s]
        # After every child: products of many messages would underflow. What is zero everywhere stays so to the end.
        _scaled(out)
    _normalise(out)


@part_with_arrays
def _without_each(table: Any, children: Any, own: Any, up: Any, prior: Any, down: Any) -> None:
    """Write the messages to all children: the belief of the node without the message of that child."""
    # Products of all others from both ends, not by division: messages may be zero.
    size, count = table[STATES], table[CHILD_COUNT]
    before = np.empty((count + 1, size))
    for s in range(size):
        before[0, s] = prior[s] * own[table[NUMBERS] + s]
    for k in range(count):
        at = children[table[CHILDREN] + k]
        for s in range(size):
            before[k + 1, s] = before[k, s] * up[at + s]
        _scaled(before[k + 1])
    after = np.ones(size)
    for k in range(count - 1, -1, -1):
        at = children[table[CHILDREN] + k]
        for s in range(size):
            down[at + s] = before[k, s] * after[s]
            after[s] *= up[at + s]
        _normalise(down[at : at + size])
        _scaled(after)


@part_with_arrays
def _prior(table: Any, links: Any, values: Any, down: Any, room: Any) -> Any:
    """Return the message of the parents to a node, in the scratch memory `room`."""
    rest, size = _compact(table, links, values, room)
    work, other = room[size:], room[2 * size :]
    for j in range(table[FIRST], table[FIRST] + table[COUNT]):
        size //= links[j, CARD]
        _sum_out(rest, size, down[links[j, MESSAGE] : links[j, MESSAGE] + links[j, CARD]], work)
        rest, work, other = work, other, work
    return rest[:size]


@part_with_arrays
def _up(table: Any, links: Any, values: Any, mine: Any, up: Any, down: Any, room: Any) -> None:
    """Write the messages to all parents: sums over all other variables, weighted by their messages."""
    if table[COUNT] == 0:
        return
    first, last = table[FIRST], table[FIRST] + table[COUNT] - 1
    rest, size = _compact(table, links, values, room)
    work, other, faster = room[size:], room[2 * size :], room[3 * size :]
    if len(mine) > 1:
        _sum_fastest(rest[:size], mine, work)
        rest, work, other = work, other, work
    # Products of the messages of all faster parents, one array for each parent, the fastest first.
    width, at = 1, 0
    faster[0] = 1.0
    for j in range(last, first, -1):
        message, card = links[j, MESSAGE], links[j, CARD]
        for x in range(card):
            start = at + width + x * width
            _scale(faster[at : at + width], down[message + x], faster[start : start + width])
        at += width
        width *= card
    for j in range(first, last + 1):
        message, card = links[j, MESSAGE], links[j, CARD]
        for x in range(card):
            up[message + x] = _dot(rest[x * width : (x + 1) * width], faster[at : at + width])
        _sum_out(rest, width, down[message : message + card], work)
        rest, work, other = work, other, work
        if j < last:
            width //= links[j + 1, CARD]
            at -= width
        _normalise(up[message : message + card])


@part_with_arrays
def _compact(table: Any, links: Any, values: Any, room: Any) -> Any:
    """Return the entries of a table without observed variables, contiguous (a copy if necessary), and their number."""
    size, gaps = table[STATES], False
    for j in range(table[FIRST] + table[COUNT] - 1, table[FIRST] - 1, -1):
        gaps |= links[j, STRIDE] != size
        size *= links[j, CARD]
    # Without observed parents the table is contiguous already and is not copied.
    if not gaps:
        return values[table[ENTRY] : table[ENTRY] + size], size
    width = table[STATES]
    for s in range(width):
        room[s] = values[table[ENTRY] + s]
    state = np.zeros(table[COUNT], np.int64)
    at = table[ENTRY]
    for start in range(width, size, width):
        for j in range(table[COUNT] - 1, -1, -1):
            link = table[FIRST] + j
            state[j] += 1
            at += links[link, STRIDE]
            if state[j] < links[link, CARD]:
                break
            at -= links[link, CARD] * links[link, STRIDE]
            state[j] = 0
        for s in range(width):
            room[start + s] = values[at + s]
    return room[:size], size


@part_with_arrays
def _sum_out(rest: Any, width: Any, message: Any, out: Any) -> None:
    """Sum the slowest variable out."""
    # Weights are read before the loop: LLVM must assume that it overwrites them.
    # Two states at a time halve the reads and writes of `out`.
    for x in range(0, len(message) - 1, 2):
        one, other = message[x], message[x + 1]
        here, next_ = rest[x * width : (x + 1) * width], rest[(x + 1) * width : (x + 2) * width]
        if x == 0:
            for i in range(width):
                out[i] = one * here[i] + other * next_[i]
        else:
            for i in range(width):
                out[i] += one * here[i] + other * next_[i]
    if len(message) % 2:
        one, here = message[-1], rest[(len(message) - 1) * width :]
        for i in range(width):
            out[i] += one * here[i]


@part_with_arrays
def _scale(numbers: Any, weight: Any, out: Any) -> None:
    for i in range(len(numbers)):
        out[i] = weight * numbers[i]


@part_with_arrays
def _sum_fastest(rest: Any, message: Any, out: Any) -> None:
    """Sum the fastest variable out."""
    size = len(message)
    # Rows of two are the most frequent ones; a loop over two states would cost more than its body.
    if size == 2:
        one, other = message[0], message[1]
        for row in range(len(rest) // 2):
            out[row] = rest[2 * row] * one + rest[2 * row + 1] * other
        return
    for row in range(len(rest) // size):
        total = 0.0
        for s in range(size):
            total += rest[row * size + s] * message[s]
        out[row] = total


def _product(one: Any, other: Any) -> Any:
    total = 0.0
    for i in range(len(one)):
        total += one[i] * other[i]
    return total


# The order of additions depends on the vector width of the processor; the 20 bits that are kept do not.
_dot: Any = jit(_product, fastmath={"reassoc"})
