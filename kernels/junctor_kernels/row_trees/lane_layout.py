"""Layout of the messages of rows that share a join tree: groups of rows for each table, and memory (Numba).

Main functions: `lanes_for` and `lay_out`, called by `blocks` before `lanes.answer_lanes`. Rows are
grouped for each table by what they observe there; messages down lie where others are of no use any more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import inlined, part
from junctor_kernels.cpu.vectors import BYTES
from junctor_kernels.row_trees import walk
from junctor_kernels.row_trees.plan import (
    ENTRIES,
    FACTOR,
    FIRST,
    LEFT,
    LENGTH,
    ONES,
    PARENT,
    POSITIONS,
    RIGHT,
    TABLES,
    UNION,
    WANTED,
)

# Numbers of a vector, and lanes of a group: its rows, filled up to whole vectors.
WIDTH = BYTES // 8
# Columns of `groups`: rows; lanes of the message up (1: all rows share it) and down; entries; offsets of both messages
# in the arena; of the flags of their entries; whether many of these are zero in all rows; first member; a row.
COUNT, LANES_UP, LANES_DOWN, SIZE, AT_UP, AT_DOWN, LIVE_UP, LIVE_DOWN, SPARSE_UP, SPARSE_DOWN, START, ROW = range(12)
COLUMNS = 12
# Columns of `spans`, for each table: first group, number of groups, row of `maps` (-1: all rows are one group), whether
# its message up depends on no evidence, offset and numbers of its messages down.
FIRST_GROUP, GROUPS, MAP, SHARED, DOWN_AT, DOWN_LENGTH = range(6)
# Rows of `gaps`.
GAP_AT, GAP_LENGTH = range(2)
# Rows of a map: group and lane of every row, rows in the order of groups.
GROUP, LANE, MEMBER = range(3)
# Needs of a block of rows.
NEED_GROUPS, NEED_MAPS, NEED_ARENA, NEED_LIVE, NEED_LISTS, NEED_ROWS, NEED_BLOCK, NEEDS = range(8)
# Rows of `lists`: offsets of kept entries in both operands, of eliminated ones, and of the terms that are not zero.
KEPT_ONE, KEPT_OTHER, TERM_ONE, TERM_OTHER, LIVE_ONE, LIVE_OTHER = range(6)


class Lanes(NamedTuple):
    """Memory for a block of rows on one tree.

    arena: float64, all messages up, those down that are of use at the same time, then three tables of scratch.
    scratch: int64 [2], offset of the scratch in the arena and length of each of its tables.
    live: uint8, for each entry of a message whether it is above zero in some row.
    groups: int64 [groups, COLUMNS].
    least: float64 [groups, 2], smallest entry above zero of the messages up and down.
    spans: int64 [tables, 6].
    maps: int64 [maps, 3, rows].
    lists: int64 [6, entries].
    axes: uint64 [axes, columns], of `walk`.
    sizes: int64 [variables], entries of each position in the group at hand.
    every: int64 [rows], 0, 1, 2, ...: the lanes of rows that are one group.
    chosen: int64 [lanes], of rows to gather.
    gaps: int64 [2, tables + 1], offsets and lengths of what is free between messages down.
    hosted: int64 [tables], the first position that is read from a table, -1 for none.
    following: int64 [variables], the next one, -1 for none.
    given: int64 [1], number of factors of the network.
    loose: int64 [variables], 1 for positions that only some rows observe.
    ids, starts, members, codes: int64 [rows], classes of rows at hand.
    hashed: int64 [2, slots], codes and classes.
    temporary: float64 [3, lanes].
    exponents: float64 [lanes], of P(e) of each row.
    numbers: float64 [lanes], products of the roots of each row.
    doubt: uint8 [lanes], rows that may have lost digits.
    """

    arena: npt.NDArray[np.float64]
    scratch: npt.NDArray[np.int64]
    live: npt.NDArray[np.uint8]
    groups: npt.NDArray[np.int64]
    least: npt.NDArray[np.float64]
    spans: npt.NDArray[np.int64]
    maps: npt.NDArray[np.int64]
    lists: npt.NDArray[np.int64]
    axes: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.int64]
    every: npt.NDArray[np.int64]
    chosen: npt.NDArray[np.int64]
    gaps: npt.NDArray[np.int64]
    hosted: npt.NDArray[np.int64]
    following: npt.NDArray[np.int64]
    given: npt.NDArray[np.int64]
    loose: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    members: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int64]
    hashed: npt.NDArray[np.int64]
    temporary: npt.NDArray[np.float64]
    exponents: npt.NDArray[np.float64]
    numbers: npt.NDArray[np.float64]
    doubt: npt.NDArray[np.uint8]

    @property
    def rows(self) -> int:
        """Return how many rows a block may have."""
        return len(self.every)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all arrays."""
        return sum(array.nbytes for array in self)


def lanes_for(rows: int, tables: int, variables: int, needs: npt.NDArray[np.int64] | None = None) -> Lanes:
    """Return memory for blocks of so many rows; `needs`: of `lay_out`, none at first."""
    # At least one of each: what is too small is written over until its needs are known.
    groups, maps, arena, live, lists = (
        (1, 1, 1, 1, 1) if needs is None else (max(1, int(need)) for need in needs[:NEED_ROWS])
    )
    width = -(-rows // WIDTH) * WIDTH
    slots = 1 << (4 * rows - 1).bit_length()

    # Vectors that begin at a cache line take half the time.
    memory = np.zeros(arena + WIDTH)
    offset = -(memory.ctypes.data // 8) % WIDTH

    def ints(*shape: int) -> npt.NDArray[np.int64]:
        return np.zeros(shape, dtype=np.int64)

    return Lanes(
        arena=memory[offset : offset + arena],
        scratch=ints(2),
        live=np.zeros(live, dtype=np.uint8),
        groups=ints(groups, COLUMNS),
        least=np.zeros((groups, 2)),
        spans=ints(tables, 6),
        maps=ints(maps, 3, rows),
        lists=ints(6, lists),
        axes=np.zeros((walk.MOST, walk.COLUMNS), dtype=np.uint64),
        sizes=ints(variables),
        every=np.arange(rows, dtype=np.int64),
        chosen=ints(width),
        gaps=ints(2, tables + 1),
        hosted=ints(tables),
        following=ints(variables),
        given=ints(1),
        loose=ints(variables),
        ids=ints(rows),
        starts=ints(rows + 1),
        members=ints(rows),
        codes=ints(rows),
        hashed=ints(2, slots),
        temporary=np.zeros((3, width)),
        exponents=np.zeros(width),
        numbers=np.ones(width),
        doubt=np.zeros(width, dtype=np.uint8),
    )


@part
def lay_out(factors: Any, states: Any, tree: Any, lanes: Any, needs: Any) -> bool:
    """Group the rows of a block for every table, and place the messages; return False if the memory is too small.

    factors: of the network, with the means of the rows of the tree.
    states: int64 [variables, rows], -1 for unobserved.
    tree: planned for these rows: what all of them observe is cut out.
    lanes: written.
    needs: int64 [NEEDS], written: lengths that the memory must have.
    """
    nodes, rows = tree.nodes, states.shape[1]
    tables, spans = nodes.tables, lanes.spans
    for i in range(nodes.counts[POSITIONS]):
        v = tree.order[i]
        # In any row of the tree, not of the block: bytes must not depend on who is in a block.
        lanes.loose[i] = factors.means[v] < factors.cards[v]
    lanes.given[0] = factors.starts.size - 1
    # Offset 0 of the arena is the number 1, and so is the flag of its only entry.
    groups, maps, place, live, listed, widest = 0, 0, WIDTH, 1, 1, 1
    for number in range(nodes.counts[TABLES]):
        table = tables[number]
        spans[number, SHARED] = _is_shared(factors, tree, lanes, number)
        spans[number, FIRST_GROUP] = groups
        spans[number, MAP] = -1
        map_ = min(maps, lanes.maps.shape[0] - 1)
        count = _classes_of_table(states, tree, lanes, number, lanes.maps[map_])
        if count > 1:
            spans[number, MAP] = maps
            maps += 1
        spans[number, GROUPS] = count
        down = 0
        for g in range(count):
            group = lanes.groups[min(groups, lanes.groups.shape[0] - 1)]
            first = lanes.starts[g]
            row = lanes.members[first] if count > 1 else 0
            members = lanes.starts[g + 1] - first if count > 1 else rows
            if count > 1:
                for i in range(first, first + members):
                    lanes.maps[map_, GROUP, lanes.members[i]] = groups
            entries = _entries(states, tree, lanes, number, row)
            width = -(-members // WIDTH) * WIDTH
            group[COUNT], group[START], group[ROW], group[SIZE] = members, first, row, entries
            group[LANES_UP] = 1 if spans[number, SHARED] else width
            group[LANES_DOWN] = width
            group[AT_UP], group[LIVE_UP] = place, live
            # Offsets stay multiples of a vector.
            place += -(-entries * group[LANES_UP] // WIDTH) * WIDTH
            live += entries
            listed, widest = max(listed, entries), max(widest, entries * width)
            if table[WANTED]:
                # Within those of the table.
                group[AT_DOWN], group[LIVE_DOWN] = down, live
                down += -(-entries * width // WIDTH) * WIDTH
                live += entries
            groups += 1
        spans[number, DOWN_LENGTH] = down
        if table[LEFT] >= 0:
            listed = max(listed, table[UNION] // table[ENTRIES] + 1)
        if table[WANTED] and table[PARENT] >= 0:
            listed = max(listed, tables[table[PARENT], UNION] // table[ENTRIES] + 1)
    place = _place_down(tree, lanes, place)
    needs[NEED_GROUPS], needs[NEED_MAPS], needs[NEED_LIVE], needs[NEED_LISTS] = groups, maps, live, listed
    # Two operands and a result of rows that are part of a wider group.
    lanes.scratch[0], lanes.scratch[1] = place, widest
    needs[NEED_ARENA] = place + 3 * widest
    return bool(
        groups <= lanes.groups.shape[0]
        and maps <= lanes.maps.shape[0]
        and needs[NEED_ARENA] <= lanes.arena.size
        and live <= lanes.live.size
        and listed <= lanes.lists.shape[1]
    )


@part
def _place_down(tree: Any, lanes: Any, begin: int) -> int:
    """Place the messages down from an offset on, where earlier ones are of no more use by then; return their end."""
    tables, spans, gaps, groups = tree.nodes.tables, lanes.spans, lanes.gaps, lanes.groups
    end, count = begin, 0
    # In the order of `_distribute`: parents before their children.
    for number in range(tree.nodes.counts[TABLES] - 1, -1, -1):
        parent = tables[number, PARENT]
        if not tables[number, WANTED] or parent < 0:
            continue
        place, length = end, spans[number, DOWN_LENGTH]
        for n in range(count):
            if gaps[GAP_LENGTH, n] >= length:
                place = gaps[GAP_AT, n]
                gaps[GAP_AT, n] += length
                gaps[GAP_LENGTH, n] -= length
                break
        end = max(end, place + length)
        spans[number, DOWN_AT] = place
        first = spans[number, FIRST_GROUP]
        for g in range(first, min(first + spans[number, GROUPS], groups.shape[0])):
            groups[g, AT_DOWN] += place
        left, right = tables[number, LEFT], tables[number, RIGHT]
        if (left < 0 or not tables[left, WANTED]) and (right < 0 or not tables[right, WANTED]):
            count = _free(gaps, count, place, length)
        sibling = tables[parent, LEFT] + tables[parent, RIGHT] - number
        # After the second child of its table. The message down to a root is the number 1.
        if tables[parent, PARENT] >= 0 and (sibling < 0 or sibling > number or not tables[sibling, WANTED]):
            count = _free(gaps, count, spans[parent, DOWN_AT], spans[parent, DOWN_LENGTH])
    return int(end)


@inlined
def _free(gaps: Any, count: int, place: int, length: int) -> int:
    """Add a gap, joined with those that it touches; return the number of gaps."""
    n = 0
    while n < count:
        at, there = gaps[GAP_AT, n], gaps[GAP_LENGTH, n]
        if at + there == place or place + length == at:
            place, length, count = min(place, at), length + there, count - 1
            gaps[GAP_AT, n], gaps[GAP_LENGTH, n] = gaps[GAP_AT, count], gaps[GAP_LENGTH, count]
        else:
            n += 1
    gaps[GAP_AT, count], gaps[GAP_LENGTH, count] = place, length
    return count + 1


@inlined
def _is_shared(factors: Any, tree: Any, lanes: Any, number: int) -> int:
    """Return 1 if no factor below a table has evidence."""
    table = tree.nodes.tables[number]
    if table[LEFT] >= 0:
        shared = lanes.spans[table[LEFT], SHARED]
        return int(shared if table[RIGHT] < 0 else shared & lanes.spans[table[RIGHT], SHARED])
    factor = table[FACTOR]
    if factor == ONES:
        # One term less for rows that observe the variable.
        return int(1 - lanes.loose[tree.nodes.scopes[table[FIRST]]])
    if factor >= factors.starts.size - 1:
        return 0
    for at in range(factors.starts[factor], factors.starts[factor + 1]):
        position = tree.position[factors.scopes[at]]
        if position < 0 or lanes.loose[position]:
            return 0
    return 1


@inlined
def _entries(states: Any, tree: Any, lanes: Any, number: int, row: int) -> int:
    """Return the entries of a table for the rows that observe what `row` observes in its scope."""
    nodes = tree.nodes
    first, entries = nodes.tables[number, FIRST], 1
    for at in range(first, first + nodes.tables[number, LENGTH]):
        position = nodes.scopes[at]
        if not lanes.loose[position] or states[tree.order[position], row] < 0:
            entries *= nodes.sizes[position]
    return int(entries)


@part
def _classes_of_table(states: Any, tree: Any, lanes: Any, number: int, map_: Any) -> int:
    """Group rows by what they observe in the scope of a table; return the number of groups.

    map_: written, unless all rows are one group; it may be the map of another table then.
    """
    nodes, rows = tree.nodes, states.shape[1]
    first, codes, bits = nodes.tables[number, FIRST], lanes.codes, 0
    for at in range(first, first + nodes.tables[number, LENGTH]):
        position = nodes.scopes[at]
        if lanes.loose[position]:
            v = tree.order[position]
            for row in range(rows):
                before = codes[row] << 1 if bits else 0
                codes[row] = before | (states[v, row] >= 0)
            bits += 1
    if not bits:
        return 1
    count: int = classes_of(lanes, rows)
    if count == 1:
        return 1
    for row in range(rows):
        map_[LANE, row] = -1
    for g in range(count):
        for i in range(lanes.starts[g], lanes.starts[g + 1]):
            map_[LANE, lanes.members[i]] = i - lanes.starts[g]
            map_[MEMBER, i] = lanes.members[i]
    return count


@part
def classes_of(lanes: Any, rows: int) -> int:
    """Group rows by their codes, in the order of their first rows, rows ascending; return the number of groups."""
    codes, ids, starts, members = lanes.codes, lanes.ids, lanes.starts, lanes.members
    keys, classes = lanes.hashed[0], lanes.hashed[1]
    mask = np.uint64(keys.size - 1)
    classes[:] = -1
    count = 0
    for row in range(rows):
        code = codes[row]
        # Fibonacci hashing (Knuth 1973, section 6.4), linear probing.
        slot = (np.uint64(code) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
        while True:
            at = np.int64(slot & mask)
            if classes[at] < 0:
                keys[at], classes[at] = code, count
                starts[count] = 0
                count += 1
            if keys[at] == code:
                ids[row] = classes[at]
                starts[classes[at]] += 1
                break
            slot += np.uint64(1)
    before = 0
    for g in range(count):
        before, starts[g] = before + starts[g], before
    starts[count] = before
    for row in range(rows):
        members[starts[ids[row]]] = row
        starts[ids[row]] += 1
    for g in range(count, 0, -1):
        starts[g] = starts[g - 1]
    starts[0] = 0
    return count
