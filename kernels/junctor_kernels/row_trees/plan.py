"""The join tree of one row of evidence: leaves, bucket elimination along an order, tables of posteriors (Numba).

Main function: `plan_row`, called by `propagate` for every row and by `junctor.backends.row_trees` for forecasts. Bucket
elimination after Dechter (1999), on binary join trees (Shenoy 1997). Tables are rows of an integer array, children
before their parents.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import inlined, loops, part
from junctor_kernels.orders.greedy import (
    MIN_FILL,
    MIN_WEIGHT,
    UNITS_PER_BIT,
    WEIGHTED_MIN_FILL,
)
from junctor_kernels.orders.sparse import SparseGraph, SparseWork, greedy, sparse_work

Ints = npt.NDArray[np.int64]

# Variables are numbered by their position in the elimination order. A table lists its positions in ascending order,
# which is the order of its axes in memory: the variable that is eliminated first is outermost. Columns of `tables`:
# first position in `scopes`, number of positions, entries, children and parent (-1: none), factor of a leaf (-1: none;
# from the number of factors on, likelihoods), entries of the union of both children, whether the message down is
# wanted, offsets of the messages up and down in the arena.
FIRST, LENGTH, ENTRIES, LEFT, RIGHT, PARENT, FACTOR, UNION, WANTED, UP, DOWN, COLUMNS = range(12)
# A row with a table of more positions or entries is left to other backends.
MOST_AXES = 48
MOST_ENTRIES = 1 << 40
# Of a clique, in units of `weights_of`; more than that of tables with so many entries, whose mean may be smaller.
MOST_WEIGHT = 64 * UNITS_PER_BIT
# Entries behind each table in the arena, which vectors that begin in it reach.
BEHIND = 7
# Factor of a leaf of ones, for a variable without any table.
ONES = -2
# State of a variable that only some rows of a tree observe: it stays in the tree, and so does what it depends on.
LOOSE = -3
# Rows that are computed together at most, and lanes of a vector, by which work is counted on any machine.
MOST_TOGETHER, LANES, LARGEST_COUNT = 256, 8, 2.0**30
# Orders of a tree that are tried at most; the share of the work of its rows that they may take; what a table takes in
# an order, in multiply-adds of a row; noise of random orders.
MOST_ORDERS = 24
SEARCH_SHARE = 0.1
TABLE_OPERATIONS = 600.0
JITTER = 0.3
# Unsigned indices, for which Numba omits the test for negative ones.
index = np.uint64
# Returned instead of the number of a table.
TOO_LARGE = -1


class Factors(NamedTuple):
    """The factors of a network as flat arrays.

    cards: number of states of each variable.
    starts: factor f has the scope scopes[starts[f]:starts[f + 1]].
    scopes: variables of all factors.
    strides: in entries, parallel to `scopes`.
    places: offset of each table in `values`.
    values: entries of all tables.
    directed: 1 where factor f is the table of variable f.
    graph: neighbours of each variable.
    weights: of `orders.greedy.weights_of`.
    means: float64, mean number of states of each variable over the rows that share a tree; that number if not observed.
    """

    cards: Ints
    starts: Ints
    scopes: Ints
    strides: Ints
    places: Ints
    values: npt.NDArray[np.float64]
    directed: int
    graph: SparseGraph
    weights: Ints
    means: npt.NDArray[np.float64]


class Nodes(NamedTuple):
    """The tables of a row and their buckets (linked lists).

    tables: [tables, COLUMNS].
    scopes: positions of all tables.
    sizes: number of states at each position.
    counts: positions, tables, entries of the arena, multiply-adds, length of `scopes`.
    heads: first table in the bucket of a position, -1 for none.
    nexts: next table in the bucket after a table, -1 at the end.
    means: float64, mean number of states at each position over the rows of the tree: 1 for those that observe it.
    expected: float64 [tables], mean entries of each table, products of `means`.
    work: float64 [WORK], mean multiply-adds of a row and mean entries of its messages.
    """

    tables: Ints
    scopes: Ints
    sizes: Ints
    counts: Ints
    heads: Ints
    nexts: Ints
    means: npt.NDArray[np.float64]
    expected: npt.NDArray[np.float64]
    work: npt.NDArray[np.float64]


MEAN_OPERATIONS, MEAN_ENTRIES, WORK = range(3)
POSITIONS, TABLES, ARENA, OPERATIONS, SCOPES = range(5)


class Tree(NamedTuple):
    """Memory for the plan of a row, reused for every row.

    nodes: the tables.
    order: variable at each position.
    position: of each variable, -1 if it is irrelevant and -2 if it is observed.
    bucket: a list of tables.
    eliminated: the table that eliminates each position.
    host: the table that each position is read from.
    members, work, random: work arrays of `orders.sparse`.
    """

    nodes: Nodes
    order: Ints
    position: Ints
    bucket: Ints
    eliminated: Ints
    host: Ints
    members: npt.NDArray[np.bool_]
    work: SparseWork
    random: npt.NDArray[np.uint64]


def tree(graph: SparseGraph, factors: int) -> Tree:
    """Return memory for the trees of a network with a graph and so many factors (likelihoods included)."""
    # Upper bound: leaves (a leaf of ones or a likelihood for each variable among them), joins, and a copy for each
    # variable.
    variables = len(graph.starts) - 1
    tables = 2 * factors + 3 * variables + 2

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
            means=np.ones(variables),
            expected=np.zeros(tables),
            work=np.zeros(WORK),
        ),
        order=ints(variables),
        position=ints(variables),
        bucket=ints(tables),
        eliminated=ints(variables),
        host=ints(variables),
        members=np.zeros(variables, dtype=np.bool_),
        work=sparse_work(graph),
        random=np.zeros(1, dtype=np.uint64),
    )


def stored(tree: Tree) -> tuple[npt.NDArray[Any], ...]:
    """Return copies of what is planned, for `restore`."""
    return tuple(array.copy() for array in _planned(tree, tree.nodes.counts))


def restore(arrays: tuple[npt.NDArray[Any], ...], tree: Tree) -> None:
    """Write what was planned into other memory for trees of the same network."""
    tree.nodes.counts[:] = arrays[0]
    for array, values in zip(_planned(tree, arrays[0]), arrays, strict=True):
        array[:] = values


def _planned(tree: Tree, counts: Ints) -> tuple[npt.NDArray[Any], ...]:
    nodes, tables = tree.nodes, counts[TABLES]
    whole = nodes.counts, nodes.sizes, nodes.means, nodes.work, tree.order, tree.position, tree.host
    return *whole, nodes.tables[:tables], nodes.expected[:tables], nodes.scopes[: counts[SCOPES]]


@part
def plan_rows(factors: Any, states: Any, soft: Any, wanted: Any, rows: int, tree: Any) -> bool:
    """Plan the tree of some rows by the best of several orders, more of them the more there is to gain.

    Arguments as for `plan_row`.
    rows: that share the tree.
    Returns False if the tables are too large.
    """
    find_relevant(factors, states, soft, wanted, tree)
    return bool(plan_relevant(factors, soft, wanted, rows, tree))


@part
def plan_relevant(factors: Any, soft: Any, wanted: Any, rows: int, tree: Any) -> bool:
    """Plan the tree of some rows as `plan_rows` does; `find_relevant` has found their relevant variables."""
    best, criterion, noise, seed = np.inf, WEIGHTED_MIN_FILL, 0.0, np.uint64(0)
    tried = 0
    while True:
        # The first orders are those of the three criteria, the others the best one of these with random ties.
        again, jitter = criterion, noise
        if tried < 3:
            again = (WEIGHTED_MIN_FILL, MIN_WEIGHT, MIN_FILL)[tried]
        else:
            jitter = JITTER
        tree.random[0] = np.uint64(tried)
        fits = plan_by(factors, soft, wanted, again, rows, tree, jitter)
        operations = tree.nodes.work[MEAN_OPERATIONS] if fits else np.inf
        tried += 1
        last = operations
        if operations < best:
            best, criterion, noise, seed = operations, again, jitter, np.uint64(tried - 1)
        # By counts, not by time: equal questions get equal trees.
        cost = tried * tree.nodes.counts[TABLES] * TABLE_OPERATIONS
        if tried >= MOST_ORDERS or cost > SEARCH_SHARE * rows * best:
            break
    if last > best:
        tree.random[0] = seed
        plan_by(factors, soft, wanted, criterion, rows, tree, noise)
    return best < np.inf


@loops
def plan_row(
    factors: Any, states: Any, soft: Any, wanted: Any, criterion: int, rows: int, tree: Any, noise: float
) -> bool:
    """Plan a row; return False if its tables are too large.

    factors: of the network.
    states: int64 [variables], -1 for unobserved, LOOSE.
    soft: int64, variables with likelihoods, or -1.
    wanted: bool [variables], whose posteriors are computed.
    criterion, noise: of greedy elimination.
    rows: that share the tree.
    tree: written.
    """
    find_relevant(factors, states, soft, wanted, tree)
    return bool(plan_by(factors, soft, wanted, criterion, rows, tree, noise))


@loops
def plan_by(factors: Any, soft: Any, wanted: Any, criterion: int, rows: int, tree: Any, noise: float) -> bool:
    """Plan the tree of relevant variables by one order; return False if its tables are too large.

    Arguments as for `plan_row`. Kept on disk by itself: all that answers rows plans them, and would compile it anew.
    """
    nodes, position = tree.nodes, tree.position
    if not _order(factors, criterion, tree, noise):
        return False
    nodes.counts[TABLES] = nodes.counts[SCOPES] = 0
    # Only what the row uses is reset; all other memory keeps old rows.
    nodes.heads[:] = -1
    for factor in range(factors.starts.size - 1):
        if not _add_leaf(factors, factor, position, nodes):
            return False
    # Likelihoods come after the factors of the network, in the order of the columns.
    for number in range(soft.size):
        if soft[number] >= 0 and position[soft[number]] >= 0:
            _add_likelihood(position[soft[number]], factors.starts.size - 1 + number, nodes)
    for eliminated in range(nodes.counts[POSITIONS]):
        if not _eliminate(eliminated, tree.bucket, tree.eliminated, nodes):
            return False
    _choose_hosts(wanted, tree.order, tree.eliminated, tree.host, nodes)
    place_tables(tree.host, nodes, min(rows, MOST_TOGETHER))
    return True


@inlined
def stride_of(factors: Any, factor: int, variable: int) -> int:
    """Return the stride of a variable in a factor, in entries; 0 if it is not in its scope."""
    for at in range(factors.starts[factor], factors.starts[factor + 1]):
        if factors.scopes[at] == variable:
            return int(factors.strides[at])
    return 0


@part
def find_relevant(factors: Any, states: Any, soft: Any, wanted: Any, tree: Any) -> None:
    """Mark relevant unobserved variables with position 0, observed ones with -2, all others with -1.

    In a Bayesian network only ancestors of evidence and of wanted variables are relevant (Shachter 1986). Arguments as
    for `plan_row`.
    """
    # The bucket is the stack of the search: it has room for all variables, and is empty until elimination.
    position, waiting = tree.position, tree.bucket
    variables = position.size
    count = 0
    for v in range(variables):
        position[v] = -1
        if wanted[v] or states[v] != -1 or factors.directed == 0:
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
    # A factor takes part if all of its variables are relevant, so observed ones need a mark of their own.
    for v in range(variables):
        if position[v] == 0 and states[v] >= 0:
            position[v] = -2


@part
def _takes_part(factors: Any, factor: int, position: Any) -> bool:
    # Loops, here and below: a generator does not compile.
    for at in range(factors.starts[factor], factors.starts[factor + 1]):
        if position[index(factors.scopes[index(at)])] == -1:
            return False
    return True


@part
def _order(factors: Any, criterion: int, tree: Any, noise: float) -> bool:
    """Number the variables by greedy elimination of the moral graph without the observed ones; False if too wide."""
    members = 0
    for v in range(tree.position.size):
        # Those relevant at the first order, which has numbered them.
        tree.members[v] = tree.position[v] >= 0
        members += tree.members[v]
    how = criterion, noise, tree.random, tree.work, tree.order, MOST_WEIGHT
    count = greedy(factors.graph, tree.members, factors.weights, *how)
    if count < members:
        return False
    for i in range(count):
        v = tree.order[i]
        tree.position[v] = i
        tree.nodes.sizes[i] = factors.cards[v]
        tree.nodes.means[i] = factors.means[v]
    tree.nodes.counts[POSITIONS] = count
    return True


@part
def _new_table(nodes: Any, left: int, right: int, factor: int, end: int, entries: int, mean: float) -> int:
    """Return a new table, whose positions have been written behind those of the last one, up to `end`."""
    number = nodes.counts[TABLES]
    table = nodes.tables[index(number)]
    table[FIRST] = nodes.counts[SCOPES]
    table[LENGTH] = end - nodes.counts[SCOPES]
    table[ENTRIES], nodes.expected[index(number)] = entries, mean
    table[LEFT], table[RIGHT], table[PARENT], table[FACTOR] = left, right, -1, factor
    table[WANTED] = 0
    if left >= 0:
        nodes.tables[index(left), PARENT] = number
    if right >= 0:
        nodes.tables[index(right), PARENT] = number
    nodes.counts[TABLES], nodes.counts[SCOPES] = number + 1, end
    return int(number)


@part
def _new_table_of(nodes: Any, position: int, factor: int) -> int:
    """Return a new leaf over one position."""
    end = nodes.counts[SCOPES]
    nodes.scopes[end] = position
    return int(_new_table(nodes, -1, -1, factor, end + 1, nodes.sizes[position], nodes.means[position]))


@part
def _put_in_bucket(nodes: Any, number: int) -> None:
    """Put a table into the bucket of its position that is eliminated first; a table without axes goes into none."""
    table = nodes.tables[index(number)]
    if table[LENGTH]:
        position = index(nodes.scopes[index(table[FIRST])])
        nodes.nexts[index(number)] = nodes.heads[position]
        nodes.heads[position] = number


@part
def _add_leaf(factors: Any, factor: int, positions: Any, nodes: Any) -> bool:
    """Add the table of a factor over its unobserved variables; return False if it has too many."""
    first, end = factors.starts[index(factor)], factors.starts[index(factor + 1)]
    # Before observed variables are cut out: scopes have memory for MOST_AXES positions.
    if end - first > MOST_AXES:
        return False
    if not _takes_part(factors, factor, positions):
        return True
    scopes, begin = nodes.scopes, nodes.counts[SCOPES]
    stop, entries, mean = begin, 1, 1.0
    for at in range(first, end):
        position = positions[index(factors.scopes[index(at)])]
        if position < 0:
            continue
        entries, mean = entries * nodes.sizes[index(position)], mean * nodes.means[index(position)]
        # Insertion keeps the scope ascending.
        place = stop
        stop += 1
        while place > begin and scopes[index(place - 1)] > position:
            scopes[index(place)] = scopes[index(place - 1)]
            place -= 1
        scopes[index(place)] = position
    _put_in_bucket(nodes, _new_table(nodes, -1, -1, factor, stop, entries, mean))
    return True


@part
def _add_likelihood(position: int, factor: int, nodes: Any) -> None:
    _put_in_bucket(nodes, _new_table_of(nodes, position, factor))


@inlined
def _eliminate(position: int, bucket: Any, eliminated: Any, nodes: Any) -> bool:
    """Join the tables of a bucket in pairs and sum its position out of the last; return False if that is too large."""
    count = 0
    number = nodes.heads[position]
    while number >= 0:
        bucket[count] = number
        count += 1
        number = nodes.nexts[number]
    # Pairs instead of one product of all tables: a message down needs the product of the siblings only (binary joins).
    while count > 2:
        one, other = _closest(bucket, count, nodes)
        joined = _join(nodes, bucket[one], bucket[other])
        if joined < 0:
            return False
        bucket[min(one, other)] = joined
        # The last table closes the gap.
        bucket[max(one, other)] = bucket[count - 1]
        count -= 1
    if count == 0:
        bucket[0] = _new_table_of(nodes, position, ONES)
    last = bucket[0]
    if count == 2:
        last = _join(nodes, bucket[0], bucket[1])
        if last < 0:
            return False
    elif nodes.tables[last, LEFT] < 0:
        # A leaf keeps its position, since its message up is the factor: the sum needs a table of its own.
        last = _copy(nodes, last)
    table = nodes.tables[last]
    # The eliminated position is the first of the scope, so the scope of the message is the rest of it.
    table[FIRST] += 1
    table[LENGTH] -= 1
    table[ENTRIES] //= nodes.sizes[position]
    nodes.expected[last] /= nodes.means[position]
    eliminated[position] = last
    _put_in_bucket(nodes, last)
    return True


@part
def _closest(bucket: Any, count: int, nodes: Any) -> tuple[int, int]:
    """Return the smallest table of a bucket and the one with the smallest union with it."""
    one = 0
    for i in range(1, count):
        if nodes.expected[bucket[i]] < nodes.expected[bucket[one]]:
            one = i
    best, other = np.inf, -1
    # Greedy: the best of all pairs would take quadratic time.
    for i in range(count):
        if i != one:
            entries = _mean_union(nodes, bucket[one], bucket[i])
            if other < 0 or entries < best:
                best, other = entries, i
    return one, other


@inlined
def _next_position(scopes: Any, i: int, end_i: int, j: int, end_j: int) -> Any:
    """Return the next position of two tables together, both ascending, and where to go on in their scopes."""
    if j == end_j or (i < end_i and scopes[index(i)] <= scopes[index(j)]):
        position = scopes[index(i)]
        return position, i + 1, j + 1 if j < end_j and scopes[index(j)] == position else j
    return scopes[index(j)], i, j + 1


@part
def _mean_union(nodes: Any, one: int, other: int) -> float:
    """Return the mean entries over the positions of two tables."""
    scopes = nodes.scopes
    i, j = nodes.tables[index(one), FIRST], nodes.tables[index(other), FIRST]
    end_i, end_j = i + nodes.tables[index(one), LENGTH], j + nodes.tables[index(other), LENGTH]
    # The product of both, less what they have in common.
    entries = nodes.expected[index(one)] * nodes.expected[index(other)]
    while i < end_i and j < end_j:
        one_next, other_next = scopes[index(i)], scopes[index(j)]
        if one_next == other_next:
            entries /= nodes.means[index(one_next)]
        # Without branches: which one is less is hard to predict.
        i += one_next <= other_next
        j += other_next <= one_next
    return float(entries)


@part
def _join(nodes: Any, one: int, other: int) -> int:
    """Return a new table over the positions of two others, or TOO_LARGE."""
    scopes, end = nodes.scopes, nodes.counts[SCOPES]
    i, j = nodes.tables[index(one), FIRST], nodes.tables[index(other), FIRST]
    end_i, end_j = i + nodes.tables[index(one), LENGTH], j + nodes.tables[index(other), LENGTH]
    # `scopes` has room for so many more.
    if end_i - i + end_j - j > MOST_AXES:
        return TOO_LARGE
    entries, mean = 1, 1.0
    while i < end_i or j < end_j:
        position, i, j = _next_position(scopes, i, end_i, j, end_j)
        scopes[index(end)] = position
        end += 1
        entries = min(MOST_ENTRIES, entries * nodes.sizes[index(position)])
        mean *= nodes.means[index(position)]
    if entries >= MOST_ENTRIES:
        return TOO_LARGE
    joined = _new_table(nodes, one, other, -1, end, entries, mean)
    nodes.tables[index(joined), UNION] = entries
    return int(joined)


@part
def _copy(nodes: Any, leaf: int) -> int:
    """Return a table over the positions of a leaf."""
    first, end, mean = nodes.tables[leaf, FIRST], nodes.counts[SCOPES], 1.0
    for at in range(first, first + nodes.tables[leaf, LENGTH]):
        nodes.scopes[end] = nodes.scopes[at]
        # Not that of the leaf, whose factors come in another order.
        mean *= nodes.means[nodes.scopes[at]]
        end += 1
    entries = nodes.tables[leaf, ENTRIES]
    copied = _new_table(nodes, leaf, -1, -1, end, entries, mean)
    nodes.tables[copied, UNION] = entries
    return int(copied)


@part
def _choose_hosts(wanted: Any, order: Any, eliminated: Any, host: Any, nodes: Any) -> None:
    """Choose the smallest table to read each wanted position from, and mark the messages down that are needed."""
    # A message down is needed wherever a wanted position is eliminated below. A position without such a table is read
    # from the smaller child of the table that eliminates it.
    tables = nodes.tables
    count, positions = nodes.counts[TABLES], nodes.counts[POSITIONS]
    host[:positions] = -1
    for position in range(positions):
        if wanted[order[position]]:
            tables[eliminated[position], WANTED] = 1
    for number in range(count):
        if tables[number, WANTED]:
            if tables[number, PARENT] >= 0:
                tables[tables[number, PARENT], WANTED] = 1
            _offer(number, host, nodes)
    for position in range(positions):
        if wanted[order[position]] and host[position] < 0:
            node = tables[eliminated[position]]
            best = -1
            for child in (node[LEFT], node[RIGHT]):
                if child < 0 or not _has(nodes, child, position):
                    continue
                if best < 0 or nodes.expected[child] < nodes.expected[best]:
                    best = child
            if best >= 0:
                tables[best, WANTED] = 1
                _offer(best, host, nodes)


@part
def _offer(number: int, host: Any, nodes: Any) -> None:
    table, entries = nodes.tables[index(number)], nodes.expected[index(number)]
    for at in range(index(table[FIRST]), index(table[FIRST] + table[LENGTH])):
        position = index(nodes.scopes[at])
        if host[position] < 0 or entries < nodes.expected[index(host[position])]:
            host[position] = number


@part
def _has(nodes: Any, number: int, position: int) -> bool:
    table = nodes.tables[number]
    for at in range(table[FIRST], table[FIRST] + table[LENGTH]):  # noqa: SIM110
        if nodes.scopes[at] == position:
            return True
    return False


@part
def place_tables(host: Any, nodes: Any, rows: int) -> None:
    """Assign offsets in the arena to all messages (its first entry is the number 1), and count multiply-adds.

    A message down may take the place of the message up of its table: `distribute` makes that one last of two children.
    """
    place, operations, entries, widest, is_whole = 1, 0, 0, 1, True
    # Of no more use for buckets: which tables are read, where both messages meet.
    is_host = nodes.nexts
    for number in range(nodes.counts[TABLES]):
        nodes.tables[number, UP] = place
        place += nodes.tables[number, ENTRIES] + BEHIND
        is_host[number] = 0
    for position in range(nodes.counts[POSITIONS]):
        if host[position] >= 0:
            is_host[host[position]] = 1
    for number in range(nodes.counts[TABLES]):
        table = nodes.tables[number]
        entries += table[ENTRIES]
        if table[WANTED]:
            table[DOWN] = table[UP]
            if not _is_overwritten(nodes, is_host, number):
                table[DOWN] = place
                place += table[ENTRIES] + BEHIND
            entries += table[ENTRIES]
        if table[LEFT] >= 0:
            operations += table[UNION]
        if table[WANTED] and table[PARENT] >= 0:
            operations += nodes.tables[table[PARENT], UNION]
    for position in range(nodes.counts[POSITIONS]):
        widest = max(widest, nodes.sizes[position])
        is_whole &= nodes.means[position] == nodes.sizes[position]
        if host[position] >= 0:
            operations += nodes.tables[host[position], ENTRIES]
    # Sums of integers: in doubles they are the same.
    nodes.work[MEAN_OPERATIONS], nodes.work[MEAN_ENTRIES] = operations, entries
    if not is_whole:
        _add_up(host, nodes, rows)
    # The end of the arena is for posteriors.
    nodes.counts[ARENA] = place + widest + BEHIND
    nodes.counts[OPERATIONS] = operations


@inlined
def _is_overwritten(nodes: Any, is_host: Any, number: int) -> bool:
    """Return True if the message up of a table is of no use once there is the one down: of the larger of two children.

    Those of leaves are read for expected counts.
    """
    tables, parent = nodes.tables, nodes.tables[number, PARENT]
    if parent < 0 or tables[number, LEFT] < 0 or is_host[number]:
        return False
    sibling = tables[parent, LEFT] + tables[parent, RIGHT] - number
    if sibling < 0 or not tables[sibling, WANTED] or tables[sibling, LEFT] < 0 or is_host[sibling]:
        return True
    return bool((tables[number, ENTRIES], number) > (tables[sibling, ENTRIES], sibling))


@part
def _add_up(host: Any, nodes: Any, rows: int) -> None:
    """Add up the multiply-adds and the entries of messages of a row, the mean over `rows` that are computed together.

    Rows that observe the same in a table fill whole vectors: rare groups count with the lanes that they leave empty.
    """
    operations, entries = 0.0, 0.0
    for number in range(nodes.counts[TABLES]):
        left, right = nodes.tables[number, LEFT], nodes.tables[number, RIGHT]
        entries += (1 + nodes.tables[number, WANTED]) * _padded(nodes, number, -1, rows)
        if left >= 0:
            union = _padded(nodes, left, right, rows)
            operations += union * (1 + nodes.tables[left, WANTED])
            if right >= 0:
                operations += union * nodes.tables[right, WANTED]
    for position in range(nodes.counts[POSITIONS]):
        if host[position] >= 0:
            operations += _padded(nodes, host[position], -1, rows)
    nodes.work[MEAN_OPERATIONS], nodes.work[MEAN_ENTRIES] = operations, entries


@part
def _padded(nodes: Any, one: int, other: int, rows: int) -> float:
    """Return the mean entries of a row over the positions of one or two tables, empty lanes included."""
    scopes = nodes.scopes
    i, end_i = nodes.tables[one, FIRST], nodes.tables[one, FIRST] + nodes.tables[one, LENGTH]
    j, end_j = 0, 0
    if other >= 0:
        j, end_j = nodes.tables[other, FIRST], nodes.tables[other, FIRST] + nodes.tables[other, LENGTH]
    # The most frequent group and its entries, the entries of all groups, and the number of groups.
    common, smallest, mean, groups = 1.0, 1.0, 1.0, 1.0
    while i < end_i or j < end_j:
        position, i, j = _next_position(scopes, i, end_i, j, end_j)
        size = nodes.sizes[position]
        mean *= nodes.means[position]
        if nodes.means[position] < size:
            seen = (size - nodes.means[position]) / max(1, size - 1)
            groups = min(2 * groups, LARGEST_COUNT)
            common *= max(seen, 1 - seen)
            if seen < 0.5:
                smallest *= size
        else:
            smallest *= size
    if groups == 1.0:
        return mean
    rest = rows * (1 - common)
    lanes = max(rest, LANES * min(groups - 1, rest))
    return common * smallest + (mean - common * smallest) * (lanes / max(rest, 1e-9))


@loops
def gains(nodes: Any, savings: Any) -> None:
    """Write what a row would save if a position were observed in all rows, in multiply-adds: float64 [positions]."""
    savings[:] = 0.0
    for number in range(nodes.counts[TABLES]):
        left, right = nodes.tables[number, LEFT], nodes.tables[number, RIGHT]
        if left < 0:
            continue
        union = nodes.expected[left] if right < 0 else _mean_union(nodes, left, right)
        for child in (left, right):
            if child < 0:
                continue
            for at in range(nodes.tables[child, FIRST], nodes.tables[child, FIRST] + nodes.tables[child, LENGTH]):
                position = nodes.scopes[at]
                savings[position] += union * (1 - 1 / nodes.means[position])
