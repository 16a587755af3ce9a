"""The tree of one row of evidence: leaves, bucket elimination along an order, and where posteriors are read (Numba).

Variables are numbered by their place in the elimination order (a *position*). A table lists its positions in ascending
order, which is the order of its axes in memory: what is eliminated first is outermost. Tables are rows of an integer
array, children before their parents.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import jit
from junctor_kernels.orders.greedy import add, greedy, words_for, work_for

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

# Columns of `tables`: where the scope starts, how many positions it has, entries, children and parent (-1: none), the
# factor of a leaf (-1: none), entries of the union of both children, whether the message down is wanted, and where both
# messages lie in the arena. Factors beyond the network's are likelihoods.
FIRST, LENGTH, ENTRIES, LEFT, RIGHT, PARENT, FACTOR, UNION, WANTED, UP, DOWN, COLUMNS = range(12)
# A table of more positions or entries leaves the row to others.
MOST_AXES = 48
MOST_ENTRIES = 1 << 40
# Factor of the leaf of a variable that no table has: all ones.
ONES = -2
# Instead of the number of a table.
TOO_LARGE = -1


class Factors(NamedTuple):
    """The factors of a network as flat arrays; the scope of factor f is `scopes[starts[f]:starts[f + 1]]`.

    cards: entries of each variable. strides: beside `scopes`, in entries. places: where each table starts in `values`.
    directed: 1 where factor f is the table of variable f. graph: neighbours of each variable, as `orders` takes them,
    and weights the logarithms of `cards` as it takes those.
    """

    cards: Ints
    starts: Ints
    scopes: Ints
    strides: Ints
    places: Ints
    values: npt.NDArray[np.float64]
    directed: int
    graph: Words
    weights: Ints


class Nodes(NamedTuple):
    """The tables of a row, and the buckets that they wait in.

    sizes: entries of each position. heads, nexts: the first table in the bucket of a position, and the one after a
    table, -1 at the end. counts: positions, tables, entries of the arena, entry operations, length of `scopes`.
    """

    tables: Ints
    scopes: Ints
    sizes: Ints
    counts: Ints
    heads: Ints
    nexts: Ints


POSITIONS, TABLES, ARENA, OPERATIONS, SCOPES = range(5)


class Tree(NamedTuple):
    """Room for the plan of a row, used again for every row.

    order: variable at each position. position: of each variable, -1 where it does not matter and -2 where it is
    observed. bucket: a list of tables. eliminated: the table that eliminates each position. host: the table that each
    position is read from. members, rows, numbers, random: what `orders.greedy` works with.
    """

    nodes: Nodes
    order: Ints
    position: Ints
    bucket: Ints
    eliminated: Ints
    host: Ints
    members: Words
    rows: Words
    numbers: Ints
    random: Words


def tree(variables: int, factors: int) -> Tree:
    """Return room for the tree of a network of so many variables and factors (or likelihoods)."""
    tables = 2 * factors + 3 * variables + 2
    rows, numbers = work_for(variables)

    def ints(*shape: int) -> Ints:
        return np.zeros(shape, dtype=np.int64)

    return Tree(
        nodes=Nodes(
            tables=ints(tables, COLUMNS),
            scopes=ints(tables * MOST_AXES),
            sizes=ints(variables),
            counts=ints(5),
            heads=ints(variables),
            nexts=ints(tables),
        ),
        order=ints(variables),
        position=ints(variables),
        bucket=ints(tables),
        eliminated=ints(variables),
        host=ints(variables),
        members=np.zeros(words_for(variables), dtype=np.uint64),
        rows=rows,
        numbers=numbers,
        random=np.zeros(1, dtype=np.uint64),
    )


@jit
def plan_row(factors: Any, states: Any, soft: Any, wanted: Any, criterion: int, tree: Any) -> bool:
    """Plan the row that observes `states` (int64 [variables], -1: unobserved); returns whether it can be done here.

    soft: variables with likelihoods, or -1. wanted: bool [variables], whose posteriors are asked for.
    """
    nodes, position = tree.nodes, tree.position
    _find_relevant(factors, states, soft, wanted, position, tree.bucket)
    _order(factors, criterion, tree)
    nodes.counts[TABLES] = nodes.counts[SCOPES] = 0
    nodes.heads[:] = -1
    for factor in range(factors.starts.size - 1):
        if not _add_leaf(factors, factor, position, nodes):
            return False
    for number in range(soft.size):
        if soft[number] >= 0 and position[soft[number]] >= 0:
            _add_likelihood(position[soft[number]], factors.starts.size - 1 + number, nodes)
    for eliminated in range(nodes.counts[POSITIONS]):
        if not _eliminate(eliminated, tree.bucket, tree.eliminated, nodes):
            return False
    _choose_hosts(wanted, tree.order, tree.eliminated, tree.host, nodes)
    _place(tree.host, nodes)
    return True


@jit
def _find_relevant(factors: Any, states: Any, soft: Any, wanted: Any, position: Any, waiting: Any) -> None:
    """Mark unobserved variables that matter with position 0, all others with -1.

    In a Bayesian network only ancestors of evidence and of what is asked for matter (Shachter 1986).
    """
    variables = position.size
    count = 0
    for v in range(variables):
        position[v] = -1
        if wanted[v] or states[v] >= 0 or factors.directed == 0:
            position[v] = 0
            waiting[count] = v
            count += 1
    for number in range(soft.size):
        if soft[number] >= 0 and position[soft[number]] < 0:
            position[soft[number]] = 0
            waiting[count] = soft[number]
            count += 1
    if factors.directed == 1:
        while count:
            count -= 1
            v = waiting[count]
            for at in range(factors.starts[v], factors.starts[v + 1]):
                u = factors.scopes[at]
                if position[u] < 0:
                    position[u] = 0
                    waiting[count] = u
                    count += 1
    # A factor takes part where all of its variables matter; -2 marks observed ones until the leaves are made.
    for v in range(variables):
        if position[v] == 0 and states[v] >= 0:
            position[v] = -2


@jit
def _takes_part(factors: Any, factor: int, position: Any) -> bool:
    # Loops, here and below: a generator does not compile.
    for at in range(factors.starts[factor], factors.starts[factor + 1]):  # noqa: SIM110
        if position[factors.scopes[at]] == -1:
            return False
    return True


@jit
def _order(factors: Any, criterion: int, tree: Any) -> None:
    """Number the variables by the order of a greedy elimination of the moral graph without the observed ones."""
    tree.members[:] = 0
    for v in range(tree.position.size):
        if tree.position[v] == 0:
            add(tree.members, v)
    count = greedy(
        factors.graph,
        tree.members,
        factors.weights,
        criterion,
        0.0,
        tree.random,
        tree.rows,
        tree.numbers,
        tree.order,
    )
    for i in range(count):
        v = tree.order[i]
        tree.position[v] = i
        tree.nodes.sizes[i] = factors.cards[v]
    tree.nodes.counts[POSITIONS] = count


@jit
def _new_table(nodes: Any, left: int, right: int, factor: int) -> int:
    number = nodes.counts[TABLES]
    nodes.counts[TABLES] = number + 1
    table = nodes.tables[number]
    table[FIRST] = nodes.counts[SCOPES]
    table[LENGTH] = 0
    table[ENTRIES] = 1
    table[LEFT], table[RIGHT], table[PARENT], table[FACTOR] = left, right, -1, factor
    table[WANTED] = 0
    for child in (left, right):
        if child >= 0:
            nodes.tables[child, PARENT] = number
    return int(number)


@jit
def _append(nodes: Any, table: Any, position: int) -> None:
    nodes.scopes[table[FIRST] + table[LENGTH]] = position
    table[LENGTH] += 1
    table[ENTRIES] *= nodes.sizes[position]
    nodes.counts[SCOPES] = table[FIRST] + table[LENGTH]


@jit
def _hang_up(nodes: Any, number: int) -> None:
    """Put a table into the bucket of the position that is eliminated first; one without axes waits for no one."""
    table = nodes.tables[number]
    if table[LENGTH]:
        position = nodes.scopes[table[FIRST]]
        nodes.nexts[number] = nodes.heads[position]
        nodes.heads[position] = number


@jit
def _add_leaf(factors: Any, factor: int, positions: Any, nodes: Any) -> bool:
    """Add the table of a factor over its unobserved variables; False where it has too many."""
    first, end = factors.starts[factor], factors.starts[factor + 1]
    if end - first > MOST_AXES:
        return False
    if not _takes_part(factors, factor, positions):
        return True
    number = _new_table(nodes, -1, -1, factor)
    table = nodes.tables[number]
    for at in range(first, end):
        position = positions[factors.scopes[at]]
        if position >= 0:
            # Insertion keeps the scope ascending.
            _append(nodes, table, position)
            place = table[FIRST] + table[LENGTH] - 1
            while place > table[FIRST] and nodes.scopes[place - 1] > position:
                nodes.scopes[place] = nodes.scopes[place - 1]
                place -= 1
            nodes.scopes[place] = position
    _hang_up(nodes, number)
    return True


@jit
def _add_likelihood(position: int, factor: int, nodes: Any) -> None:
    number = _new_table(nodes, -1, -1, factor)
    _append(nodes, nodes.tables[number], position)
    _hang_up(nodes, number)


@jit
def _eliminate(position: int, bucket: Any, eliminated: Any, nodes: Any) -> bool:
    """Join the tables of a bucket two by two and sum its position out of the last; False where that is too large."""
    count = 0
    number = nodes.heads[position]
    while number >= 0:
        bucket[count] = number
        count += 1
        number = nodes.nexts[number]
    while count > 2:
        one, other = _closest(bucket, count, nodes)
        joined = _join(nodes, bucket[one], bucket[other])
        if joined < 0:
            return False
        bucket[min(one, other)] = joined
        bucket[max(one, other)] = bucket[count - 1]
        count -= 1
    if count == 0:
        bucket[0] = _new_table(nodes, -1, -1, ONES)
        _append(nodes, nodes.tables[bucket[0]], position)
    last = bucket[0]
    if count == 2:
        last = _join(nodes, bucket[0], bucket[1])
        if last < 0:
            return False
    elif nodes.tables[last, LEFT] < 0:
        # A leaf stays as it is: its message is another table.
        last = _copy(nodes, last)
    table = nodes.tables[last]
    table[FIRST] += 1
    table[LENGTH] -= 1
    table[ENTRIES] //= nodes.sizes[position]
    eliminated[position] = last
    _hang_up(nodes, last)
    return True


@jit
def _closest(bucket: Any, count: int, nodes: Any) -> tuple[int, int]:
    """Return the smallest table of a bucket and the one that has the smallest union with it."""
    one = 0
    for i in range(1, count):
        if nodes.tables[bucket[i], ENTRIES] < nodes.tables[bucket[one], ENTRIES]:
            one = i
    best, other = -1, -1
    for i in range(count):
        if i != one:
            entries = _union(nodes, bucket[one], bucket[i], -1)
            if other < 0 or entries < best:
                best, other = entries, i
    return one, other


@jit
def _union(nodes: Any, one: int, other: int, into: int) -> int:
    """Return the entries over the positions of two tables, at most MOST_ENTRIES; `into`: the table that gets them."""
    scopes = nodes.scopes
    i, j = nodes.tables[one, FIRST], nodes.tables[other, FIRST]
    end_i, end_j = i + nodes.tables[one, LENGTH], j + nodes.tables[other, LENGTH]
    entries = 1
    while i < end_i or j < end_j:
        if j == end_j or (i < end_i and scopes[i] <= scopes[j]):
            position = scopes[i]
            if j < end_j and scopes[j] == position:
                j += 1
            i += 1
        else:
            position = scopes[j]
            j += 1
        entries = min(MOST_ENTRIES, entries * nodes.sizes[position])
        if into >= 0:
            _append(nodes, nodes.tables[into], position)
    return entries


@jit
def _join(nodes: Any, one: int, other: int) -> int:
    """Return a new table over the positions of two others, or TOO_LARGE."""
    entries = _union(nodes, one, other, -1)
    if entries >= MOST_ENTRIES or nodes.tables[one, LENGTH] + nodes.tables[other, LENGTH] > MOST_AXES:
        return TOO_LARGE
    joined = _new_table(nodes, one, other, -1)
    _union(nodes, one, other, joined)
    nodes.tables[joined, UNION] = entries
    return int(joined)


@jit
def _copy(nodes: Any, leaf: int) -> int:
    """Return a table over the positions of a leaf."""
    copied = _new_table(nodes, leaf, -1, -1)
    for i in range(nodes.tables[leaf, LENGTH]):
        _append(nodes, nodes.tables[copied], nodes.scopes[nodes.tables[leaf, FIRST] + i])
    nodes.tables[copied, UNION] = nodes.tables[copied, ENTRIES]
    return int(copied)


@jit
def _choose_hosts(wanted: Any, order: Any, eliminated: Any, host: Any, nodes: Any) -> None:
    """Choose the smallest table to read each wanted position from, and mark the messages down that this takes.

    A message down is needed wherever something wanted is eliminated below; what lies only in tables that need none is
    read from the smaller child of the table that eliminates it.
    """
    tables = nodes.tables
    count, positions = nodes.counts[TABLES], nodes.counts[POSITIONS]
    host[:positions] = -1
    for position in range(positions):
        if wanted[order[position]]:
            tables[eliminated[position], WANTED] = 1
    for number in range(count):
        if tables[number, WANTED] and tables[number, PARENT] >= 0:
            tables[tables[number, PARENT], WANTED] = 1
    for number in range(count):
        if tables[number, WANTED]:
            _offer(number, host, nodes)
    for position in range(positions):
        if wanted[order[position]] and host[position] < 0:
            node = tables[eliminated[position]]
            best = -1
            for child in (node[LEFT], node[RIGHT]):
                if child < 0 or not _has(nodes, child, position):
                    continue
                if best < 0 or tables[child, ENTRIES] < tables[best, ENTRIES]:
                    best = child
            if best >= 0:
                tables[best, WANTED] = 1
                _offer(best, host, nodes)


@jit
def _offer(number: int, host: Any, nodes: Any) -> None:
    table = nodes.tables[number]
    for at in range(table[FIRST], table[FIRST] + table[LENGTH]):
        position = nodes.scopes[at]
        if host[position] < 0 or table[ENTRIES] < nodes.tables[host[position], ENTRIES]:
            host[position] = number


@jit
def _has(nodes: Any, number: int, position: int) -> bool:
    table = nodes.tables[number]
    for at in range(table[FIRST], table[FIRST] + table[LENGTH]):  # noqa: SIM110
        if nodes.scopes[at] == position:
            return True
    return False


@jit
def _place(host: Any, nodes: Any) -> None:
    """Give every message a place in the arena (its first entry is the number 1), and count entry operations."""
    place, operations, widest = 1, 0, 1
    for number in range(nodes.counts[TABLES]):
        table = nodes.tables[number]
        table[UP] = place
        place += table[ENTRIES]
        if table[WANTED]:
            table[DOWN] = place
            place += table[ENTRIES]
        if table[LEFT] >= 0:
            operations += table[UNION]
        if table[WANTED] and table[PARENT] >= 0:
            operations += nodes.tables[table[PARENT], UNION]
    for position in range(nodes.counts[POSITIONS]):
        widest = max(widest, nodes.sizes[position])
        if host[position] >= 0:
            operations += nodes.tables[host[position], ENTRIES]
    # Posteriors are made behind the messages.
    nodes.counts[ARENA] = place + widest
    nodes.counts[OPERATIONS] = operations
