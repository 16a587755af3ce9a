"""Rows that share a join tree: a message for all of them at once, cases in the lanes of vectors (Numba).

Main function: `answer_lanes`, called by `blocks` for rows that `lane_layout` has laid out. Rows
may differ in what they observe: a message depends on the pattern of evidence in its own scope only, so rows are grouped
for each table by what they observe there, and observed variables are cut out of the tables of a group. Rows that
observe the same are one group everywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from junctor_kernels.cpu.jit import as_bits, inlined, inverse_power, part
from junctor_kernels.cpu.scaled import log_of, multiplied
from junctor_kernels.cpu.vectors import (
    above_zero,
    larger,
    least_above_zero,
    load,
    multiply,
    multiply_add,
    spread,
    store,
)
from junctor_kernels.row_trees import walk
from junctor_kernels.row_trees.lane_layout import (
    AT_DOWN,
    AT_UP,
    COUNT,
    FIRST_GROUP,
    GROUP,
    GROUPS,
    KEPT_ONE,
    KEPT_OTHER,
    LANE,
    LANES_DOWN,
    LANES_UP,
    LIVE_DOWN,
    LIVE_ONE,
    LIVE_OTHER,
    LIVE_UP,
    MAP,
    MEMBER,
    ROW,
    SIZE,
    SPARSE_DOWN,
    SPARSE_UP,
    START,
    TERM_ONE,
    TERM_OTHER,
    WIDTH,
    classes_of,
)
from junctor_kernels.row_trees.plan import (
    DOWN,
    FACTOR,
    FIRST,
    LEFT,
    LENGTH,
    ONES,
    PARENT,
    POSITIONS,
    RIGHT,
    SCOPES,
    TABLES,
    UP,
    WANTED,
)
from junctor_kernels.row_trees.propagate import ANSWERED, DOUBTFUL, IMPOSSIBLE, TINY

# From this share of zero entries on, terms are tested before they are computed.
SPARSE_FROM = 0.25
# A view of an operand: offset, lanes, offset of its flags, whether it is sparse, its smallest entry above zero.
PLACE, WIDE, FLAGS, SPARSE, LEAST_ENTRY = range(5)
# Rows of `temporary`.
LARGEST, SMALLEST, BY = range(3)


@part
def answer_lanes(
    factors: Any, states: Any, soft: Any, first: int, wanted: Any, starts: Any, tree: Any, lanes: Any, results: Any
) -> None:
    """Answer the rows of a block that was laid out.

    factors: of the network.
    states: int64 [variables, rows], -1 for unobserved.
    soft: likelihoods of more rows: variables int64 [rows, kinds] (-1: none), values float64 [rows, entries], first
        column of each kind int64 [kinds].
    first: the first row of the block in `soft` and in the results.
    wanted: bool [variables], whose posteriors are computed.
    starts: int64 [variables], the first entry of each posterior in the results.
    tree: of all rows.
    lanes: of `lay_out`.
    results: posteriors float64 [entries, rows], log P(e) float64 [rows], status int64 [rows].
    """
    posteriors, log_values, status = results
    rows = states.shape[1]
    lanes.arena[0], lanes.live[0] = 1.0, 1
    lanes.exponents[:] = 0.0
    lanes.numbers[:] = 1.0
    lanes.doubt[:] = 0
    _collect(factors, states, soft, first, tree, lanes)
    _list_hosted(wanted, tree, lanes)
    _distribute(factors, states, first, starts, tree, lanes, posteriors)
    for v in range(wanted.size):
        # All others are read from tables.
        if wanted[v] and tree.position[v] < 0:
            _read(v, starts[v], states, first, tree, lanes, posteriors, factors.cards[v])
    for row in range(rows):
        at = first + row
        log_values[at] = log_of(lanes.numbers[row], lanes.exponents[row])
        status[at] = ANSWERED
        if lanes.doubt[row]:
            status[at] = DOUBTFUL
        elif log_values[at] == -np.inf:
            status[at] = IMPOSSIBLE


@part
def _collect(factors: Any, states: Any, soft: Any, first: int, tree: Any, lanes: Any) -> None:
    nodes = tree.nodes
    tables, spans = nodes.tables, lanes.spans
    for number in range(nodes.counts[TABLES]):
        left, right = tables[number, LEFT], tables[number, RIGHT]
        if left >= 0:
            _message(states, tree, lanes, left, UP, right, UP, number, UP)
        else:
            _leaf(factors, states, soft, first, tree, lanes, number)
        for g in range(spans[number, FIRST_GROUP], spans[number, FIRST_GROUP] + spans[number, GROUPS]):
            _rescale(lanes, number, g, UP, states.shape[1])
        if tables[number, PARENT] < 0:
            # A root has no axes, so its rows are one group.
            group = lanes.groups[spans[number, FIRST_GROUP]]
            for row in range(states.shape[1]):
                at = group[AT_UP] + (row if group[LANES_UP] > 1 else 0)
                number, exponent = lanes.numbers[row], lanes.exponents[row]
                lanes.numbers[row], lanes.exponents[row] = multiplied(number, exponent, lanes.arena[at], 0.0, None)


@inlined
def _list_hosted(wanted: Any, tree: Any, lanes: Any) -> None:
    """List the positions that are read from each table."""
    hosted, following = lanes.hosted, lanes.following
    hosted[:] = -1
    for position in range(tree.nodes.counts[POSITIONS]):
        if wanted[tree.order[position]]:
            host = tree.host[position]
            following[position] = hosted[host]
            hosted[host] = position


@part
def _distribute(factors: Any, states: Any, first: int, starts: Any, tree: Any, lanes: Any, posteriors: Any) -> None:
    """Send the messages down, and read the posteriors of each table while the message to it is there."""
    tables, spans = tree.nodes.tables, lanes.spans
    for number in range(tree.nodes.counts[TABLES] - 1, -1, -1):
        parent = tables[number, PARENT]
        if tables[number, WANTED] and parent >= 0:
            sibling = tables[parent, LEFT] + tables[parent, RIGHT] - number
            # The message down to a root is the number 1.
            above = parent if tables[parent, PARENT] >= 0 else -1
            _message(states, tree, lanes, above, DOWN, sibling, UP, number, DOWN)
            for g in range(spans[number, FIRST_GROUP], spans[number, FIRST_GROUP] + spans[number, GROUPS]):
                _rescale(lanes, number, g, DOWN, states.shape[1])
        position = lanes.hosted[number]
        while position >= 0:
            v = tree.order[position]
            _read(v, starts[v], states, first, tree, lanes, posteriors, factors.cards[v])
            position = lanes.following[position]


@inlined
def _set_sizes(states: Any, tree: Any, lanes: Any, number: int, row: int) -> None:
    """Set the entries of the positions of a table: 1 where `row` observes the variable."""
    nodes = tree.nodes
    if number < 0:
        return
    first = nodes.tables[number, FIRST]
    for at in range(first, first + nodes.tables[number, LENGTH]):
        position = nodes.scopes[at]
        observed = lanes.loose[position] and states[tree.order[position], row] >= 0
        lanes.sizes[position] = 1 if observed else nodes.sizes[position]


@part
def _message(
    states: Any, tree: Any, lanes: Any, one: int, one_column: int, other: int, other_column: int, out: int, column: int
) -> None:
    """Contract two messages into a third, group by group.

    states: int64 [variables, rows].
    tree, lanes: tables and numbers of the rows.
    one, other, out: tables; -1 is the number 1.
    one_column, other_column, column: UP or DOWN.
    """
    spans, rows = lanes.spans, states.shape[1]
    map_one = spans[one, MAP] if one >= 0 else -1
    map_other = spans[other, MAP] if other >= 0 else -1
    map_out = spans[out, MAP]
    count = 1
    if map_one >= 0 or map_other >= 0 or map_out >= 0:
        # Rows that agree in the groups of the three tables: what they observe in the union of the scopes.
        for row in range(rows):
            code = np.int64(0)
            for map_ in (map_one, map_other, map_out):
                code = (code << 21) | (lanes.maps[map_, GROUP, row] if map_ >= 0 else 0)
            lanes.codes[row] = code
        count = classes_of(lanes, rows)
    for g in range(count):
        first = lanes.starts[g] if count > 1 else 0
        members = lanes.starts[g + 1] - first if count > 1 else rows
        row = lanes.members[first] if count > 1 else 0
        _set_sizes(states, tree, lanes, one, row)
        _set_sizes(states, tree, lanes, other, row)
        _set_sizes(states, tree, lanes, out, row)
        view_one = _operand(lanes, one, one_column, row, first, members, 0)
        view_other = _operand(lanes, other, other_column, row, first, members, 1)
        group = lanes.groups[_group_of(lanes, out, row)]
        place, width = group[AT_DOWN], group[LANES_DOWN]
        if column == UP:
            place, width = group[AT_UP], group[LANES_UP]
        part = group[COUNT] != members
        target = place
        if part:
            target = lanes.scratch[0] + 2 * lanes.scratch[1]
        lanes_out = -(-members // WIDTH) * WIDTH if part else width
        axes = _write_axes(tree.nodes, lanes, one, other, walk.scope_of(tree.nodes.tables, out))
        kept, terms = _list_offsets(lanes, axes)
        _contract(lanes, kept, terms, view_one, view_other, target, lanes_out)
        if not view_one[LEAST_ENTRY] * view_other[LEAST_ENTRY] >= TINY:
            entries_one, entries_other = _entries_of(lanes, one, row), _entries_of(lanes, other, row)
            for i in range(members):
                if _may_lose(lanes, view_one, entries_one, view_other, entries_other, i):
                    lanes.doubt[lanes.members[first + i] if count > 1 else i] = 1
        if part:
            _scatter(lanes, out, first, members, kept, target, lanes_out, place, width)


@inlined
def _group_of(lanes: Any, number: int, row: int) -> int:
    map_ = lanes.spans[number, MAP]
    return int(lanes.maps[map_, GROUP, row] if map_ >= 0 else lanes.spans[number, FIRST_GROUP])


@inlined
def _entries_of(lanes: Any, number: int, row: int) -> int:
    """Return how many entries the message of a table has for a row."""
    return int(lanes.groups[_group_of(lanes, number, row), SIZE]) if number >= 0 else 1


@inlined
def _may_lose(lanes: Any, one: Any, entries_one: int, other: Any, entries_other: int, lane: int) -> bool:
    """Return True if the smallest entries of a lane of two operands may give a product that loses digits.

    Of the lane alone: which rows share a block, and so a group, depends on the number of threads.
    """
    return not _least_of(lanes, one, entries_one, lane) * _least_of(lanes, other, entries_other, lane) >= TINY


@inlined
def _least_of(lanes: Any, view: Any, entries: int, lane: int) -> float:
    place, width, least = view[PLACE], view[WIDE], 1.0
    at = place + lane if width > 1 else place
    for e in range(entries):
        x = lanes.arena[at + e * width]
        if x > 0.0:
            least = min(least, x)
    return least


@inlined
def _operand(lanes: Any, number: int, column: int, row: int, first: int, members: int, slot: int) -> Any:
    """Return the view of an operand for the rows at hand; those of a wider group are gathered in a slot of scratch."""
    if number < 0:
        return np.int64(0), np.int64(1), np.int64(0), np.int64(0), 1.0
    index = _group_of(lanes, number, row)
    group = lanes.groups[index]
    place, width, flags, sparse = group[AT_DOWN], group[LANES_DOWN], group[LIVE_DOWN], group[SPARSE_DOWN]
    least = lanes.least[index, 1]
    if column == UP:
        place, width, flags, sparse = group[AT_UP], group[LANES_UP], group[LIVE_UP], group[SPARSE_UP]
        least = lanes.least[index, 0]
    if width == 1 or group[COUNT] == members:
        return place, width, flags, sparse, least
    arena, lane = (
        lanes.arena,
        lanes.maps[lanes.spans[number, MAP], LANE] if lanes.spans[number, MAP] >= 0 else lanes.every,
    )
    target = lanes.scratch[0] + slot * lanes.scratch[1]
    wide = -(-members // WIDTH) * WIDTH
    chosen = lanes.chosen
    for i in range(wide):
        # Lanes beyond the last row repeat it.
        chosen[i] = lane[lanes.members[first + min(i, members - 1)]]
    for e in range(group[SIZE]):
        source = place + e * width
        for i in range(wide):
            arena[target + e * wide + i] = arena[source + chosen[i]]
    return target, wide, flags, sparse, least


@inlined
def _scatter(
    lanes: Any, number: int, first: int, members: int, entries: int, source: int, wide: int, place: int, width: int
) -> None:
    """Copy the entries of a result from scratch to the lanes of its rows in a wider group."""
    arena, lane = (
        lanes.arena,
        lanes.maps[lanes.spans[number, MAP], LANE] if lanes.spans[number, MAP] >= 0 else lanes.every,
    )
    for e in range(entries):
        for i in range(members):
            arena[place + e * width + lane[lanes.members[first + i]]] = arena[source + e * wide + i]


@inlined
def _write_axes(nodes: Any, lanes: Any, one: int, other: int, out: Any) -> int:
    """Write the axes of a contraction of two tables; `out`: (first, length) of the scope of the result."""
    scope_one, scope_other = walk.scope_of(nodes.tables, one), walk.scope_of(nodes.tables, other)
    return int(walk.write_axes(nodes.scopes, lanes.sizes, lanes.axes, scope_one, scope_other, out))


@inlined
def _list_offsets(lanes: Any, axes: int) -> Any:
    """List the offsets of kept and of eliminated entries in both operands; return the number of each."""
    lists = lanes.lists
    kept, terms = 1, 1
    lists[KEPT_ONE, 0] = lists[KEPT_OTHER, 0] = lists[TERM_ONE, 0] = lists[TERM_OTHER, 0] = 0
    for axis in range(axes):
        # Signed: Numba would add signed and unsigned integers as doubles.
        size, one = np.int64(lanes.axes[axis, walk.SIZE]), np.int64(lanes.axes[axis, walk.ONE])
        other = np.int64(lanes.axes[axis, walk.OTHER])
        if lanes.axes[axis, walk.OUT] != walk.ZERO:
            kept = walk.repeat_places(lists[KEPT_ONE], lists[KEPT_OTHER], kept, size, one, other)
        else:
            terms = walk.repeat_places(lists[TERM_ONE], lists[TERM_OTHER], terms, size, one, other)
    return kept, terms


@inlined
def _contract(lanes: Any, kept: int, terms: int, one: Any, other: Any, out: int, width: int) -> None:
    """Sum the products of two tables, out[s] = sum over r of one[s, r] * other[s, r], for all lanes.

    lanes: with the offsets of s and r in `lists`.
    kept, terms: number of s, and of r.
    one, other: views.
    out, width: offset and lanes of the result; 1 lane if both operands have one.
    """
    if one[WIDE] == 1 and other[WIDE] == 1:
        _scalars(lanes.arena, lanes.lists, kept, terms, one, other, out, width)
        return
    # The operand without lanes, if any, comes first.
    arena, live, lists = lanes.arena, lanes.live, lanes.lists
    if other[WIDE] == 1:
        _sums(arena, live, lists, kept, terms, other, one, 1, out, width, True)
    elif one[WIDE] == 1:
        _sums(arena, live, lists, kept, terms, one, other, 0, out, width, True)
    else:
        _sums(arena, live, lists, kept, terms, one, other, 0, out, width, None)


@part
def _scalars(arena: Any, lists: Any, kept: int, terms: int, one: Any, other: Any, out: int, width: int) -> None:
    """Contract two tables that all lanes share; all lanes of the result get it."""
    for s in range(kept):
        total = 0.0
        for r in range(terms):
            at, partner = lists[KEPT_ONE, s] + lists[TERM_ONE, r], lists[KEPT_OTHER, s] + lists[TERM_OTHER, r]
            total += arena[one[PLACE] + at] * arena[other[PLACE] + partner]
        for i in range(width):
            arena[out + s * width + i] = total


@part
def _sums(
    arena: Any,
    live: Any,
    lists: Any,
    kept: int,
    terms: int,
    one: Any,
    other: Any,
    swapped: int,
    out: int,
    width: int,
    shares: bool | None,
) -> None:
    """Contract two tables, of which the second has lanes; terms that are zero in all of them are skipped.

    swapped: 1 where the operands have changed places, else 0.
    shares: whether all lanes share the first table; else None, and it has lanes.
    """
    kept_one, kept_other = lists[KEPT_ONE + swapped], lists[KEPT_OTHER - swapped]
    terms_one, terms_other = lists[TERM_ONE + swapped], lists[TERM_OTHER - swapped]
    chosen_one, chosen_other = lists[LIVE_ONE], lists[LIVE_OTHER]
    sparse = other[SPARSE] != 0
    if shares is None:
        sparse |= one[SPARSE] != 0
    for s in range(kept):
        at, beside = kept_one[s], kept_other[s]
        count = 0
        for r in range(terms):
            entry, partner = at + terms_one[r], beside + terms_other[r]
            if shares is None:
                counts = not sparse or (live[one[FLAGS] + entry] != 0 and live[other[FLAGS] + partner] != 0)
            else:
                counts = arena[one[PLACE] + entry] != 0.0 and (not sparse or live[other[FLAGS] + partner] != 0)
            if counts:
                chosen_one[count] = one[PLACE] + entry * one[WIDE]
                chosen_other[count] = other[PLACE] + partner * width
                count += 1
        target = out + s * width
        i = 0
        while i + 2 * WIDTH <= width:
            x = y = spread(0.0)
            for r in range(count):
                source, partner = chosen_one[r], chosen_other[r] + i
                x = multiply_add(_numbers(arena, source, i, shares), load(arena, partner), x)
                y = multiply_add(_numbers(arena, source, i + WIDTH, shares), load(arena, partner + WIDTH), y)
            store(arena, target + i, x)
            store(arena, target + i + WIDTH, y)
            i += 2 * WIDTH
        if i < width:
            x = spread(0.0)
            for r in range(count):
                x = multiply_add(_numbers(arena, chosen_one[r], i, shares), load(arena, chosen_other[r] + i), x)
            store(arena, target + i, x)


@inlined
def _numbers(arena: Any, at: int, lane: int, shares: bool | None) -> Any:
    """Return an entry in the lanes of a vector."""
    return load(arena, at + lane) if shares is None else spread(arena[at])


@inlined
def _rescale(lanes: Any, number: int, index: int, column: int, rows: int) -> None:
    """Divide a message by the power of two of each row that brings its largest entry into [0.5, 1).

    lanes: of the rows; exponents of messages up are added to those of the rows.
    number, index: table and group.
    column: UP or DOWN.
    rows: of the block.
    """
    arena, group, temporary = lanes.arena, lanes.groups[index], lanes.temporary
    place, width, flags = group[AT_DOWN], group[LANES_DOWN], group[LIVE_DOWN]
    if column == UP:
        place, width, flags = group[AT_UP], group[LANES_UP], group[LIVE_UP]
    entries, members = group[SIZE], group[COUNT]
    largest, smallest, by = temporary[LARGEST], temporary[SMALLEST], temporary[BY]
    if width == 1:
        zeros = _extremes_of_one(lanes, place, entries, flags)
    else:
        # Lanes beyond the last row may be left over from other messages.
        for i in range(members, width):
            for e in range(entries):
                arena[place + e * width + i] = arena[place + e * width]
        zeros = _extremes(lanes, place, entries, width, flags)
    mapped = lanes.spans[number, MAP]
    least = 1.0
    used = 1 if width == 1 else width
    for i in range(used):
        bits = as_bits(largest[i])
        if bits == np.uint64(0):
            # No entry above zero: nothing to scale.
            by[i] = 1.0
            continue
        exponent = np.int64(bits >> np.uint64(52)) - 1022
        by[i] = inverse_power(exponent) if exponent > -1022 else 1.0
        of_lane = smallest[i] * by[i] if exponent > -1022 else 0.0
        least = min(least, of_lane)
        if of_lane < TINY:
            # Of lanes beyond the last row there are none.
            for k in range(i, members if width == 1 else min(i + 1, members)):
                lanes.doubt[lanes.maps[mapped, MEMBER, group[START] + k] if mapped >= 0 else k] = 1
        if column == UP:
            largest[i] = float(exponent) if exponent > -1022 else 0.0
    if column == UP:
        for i in range(members):
            lane = 0 if width == 1 else i
            row = lanes.maps[mapped, MEMBER, group[START] + i] if mapped >= 0 else i
            lanes.exponents[row] += largest[lane]
    if width == 1:
        for e in range(entries):
            arena[place + e] *= by[0]
    else:
        for i in range(0, width, WIDTH):
            factor = load(by, i)
            for e in range(entries):
                at = place + e * width + i
                store(arena, at, multiply(load(arena, at), factor))
    sparse = zeros > SPARSE_FROM * entries
    if column == UP:
        group[SPARSE_UP], lanes.least[index, 0] = sparse, least
    else:
        group[SPARSE_DOWN], lanes.least[index, 1] = sparse, least


@inlined
def _extremes(lanes: Any, place: int, entries: int, width: int, flags: int) -> int:
    """Find the largest and the smallest positive entry of each lane, and which entries are zero in all."""
    arena, temporary = lanes.arena, lanes.temporary
    largest, smallest = temporary[LARGEST], temporary[SMALLEST]
    for e in range(entries):
        lanes.live[flags + e] = 0
    for i in range(0, width, WIDTH):
        high, low = spread(0.0), spread(np.inf)
        for e in range(entries):
            line = load(arena, place + e * width + i)
            high, low = larger(line, high), least_above_zero(low, line)
            if above_zero(line):
                lanes.live[flags + e] = 1
        store(largest, i, high)
        store(smallest, i, low)
    zeros = 0
    for e in range(entries):
        zeros += lanes.live[flags + e] == 0
    return zeros


@inlined
def _extremes_of_one(lanes: Any, place: int, entries: int, flags: int) -> int:
    high, low, zeros = 0.0, np.inf, 0
    for e in range(entries):
        x = lanes.arena[place + e]
        lanes.live[flags + e] = x > 0.0
        if x > 0.0:
            high, low = max(high, x), min(low, x)
        else:
            zeros += 1
    lanes.temporary[LARGEST, 0], lanes.temporary[SMALLEST, 0] = high, low
    return zeros


@part
def _leaf(factors: Any, states: Any, soft: Any, first: int, tree: Any, lanes: Any, number: int) -> None:
    """Write the entries of a factor, or of a likelihood, at the observed states of every row."""
    nodes, arena, spans = tree.nodes, lanes.arena, lanes.spans
    table = nodes.tables[number]
    factor, given = table[FACTOR], factors.starts.size - 1
    for index in range(spans[number, FIRST_GROUP], spans[number, FIRST_GROUP] + spans[number, GROUPS]):
        group = lanes.groups[index]
        place, width, entries = group[AT_UP], group[LANES_UP], group[SIZE]
        members = group[COUNT] if width > 1 else 1
        mapped = spans[number, MAP]
        if factor == ONES:
            for e in range(entries * width):
                arena[place + e] = 1.0
            continue
        _set_sizes(states, tree, lanes, number, group[ROW])
        if factor >= given:
            _likelihood(soft, first, tree, lanes, index, number)
            continue
        axes = walk.write_factor_axes(factors, factor, nodes, lanes.sizes, tree.order, number, lanes.axes)
        _, entries = _list_offsets(lanes, axes)
        for i in range(members):
            row = lanes.maps[mapped, MEMBER, group[START] + i] if mapped >= 0 else i
            base = factors.places[factor]
            for at in range(factors.starts[factor], factors.starts[factor + 1]):
                v = factors.scopes[at]
                if states[v, row] >= 0:
                    base += states[v, row] * factors.strides[at]
            for e in range(entries):
                arena[place + e * width + i] = factors.values[base + lanes.lists[TERM_ONE, e]]


@part
def _likelihood(soft: Any, first: int, tree: Any, lanes: Any, index: int, number: int) -> None:
    """Write the likelihoods of a variable for the rows of a group: ones for rows without any."""
    variables, likelihoods, places = soft
    group, mapped = lanes.groups[index], lanes.spans[number, MAP]
    kind = tree.nodes.tables[number, FACTOR] - lanes.given[0]
    for i in range(group[COUNT]):
        row = first + (lanes.maps[mapped, MEMBER, group[START] + i] if mapped >= 0 else i)
        for e in range(group[SIZE]):
            value = 1.0
            if variables[row, kind] >= 0:
                value = likelihoods[row, places[kind] + e]
            lanes.arena[group[AT_UP] + e * group[LANES_UP] + i] = value


@part
def _read(v: int, start: int, states: Any, first: int, tree: Any, lanes: Any, posteriors: Any, size: int) -> None:
    """Write the posteriors of a variable for all rows of a block."""
    rows = states.shape[1]
    for row in range(rows):
        # Observed: certain, whatever the tables say.
        if states[v, row] >= 0:
            for e in range(size):
                posteriors[start + e, first + row] = 0.0
            posteriors[start + states[v, row], first + row] = 1.0
    position = tree.position[v]
    if position < 0:
        return
    nodes = tree.nodes
    host = tree.host[position]
    # The scope of the result is one position, listed after all others.
    nodes.scopes[nodes.counts[SCOPES]] = position
    scope = nodes.counts[SCOPES], np.int64(1)
    above = host if nodes.tables[host, PARENT] >= 0 else -1
    mapped = lanes.spans[host, MAP]
    for index in range(lanes.spans[host, FIRST_GROUP], lanes.spans[host, FIRST_GROUP] + lanes.spans[host, GROUPS]):
        group = lanes.groups[index]
        if lanes.loose[position] and states[v, group[ROW]] >= 0:
            continue
        _set_sizes(states, tree, lanes, host, group[ROW])
        kept, terms = _list_offsets(lanes, _write_axes(nodes, lanes, host, above, scope))
        one = group[AT_UP], group[LANES_UP], group[LIVE_UP], group[SPARSE_UP], lanes.least[index, 0]
        other = np.int64(0), np.int64(1), np.int64(0), np.int64(0), 1.0
        if above >= 0:
            other = group[AT_DOWN], group[LANES_DOWN], group[LIVE_DOWN], group[SPARSE_DOWN], lanes.least[index, 1]
        out, width = lanes.scratch[0], group[LANES_DOWN]
        _contract(lanes, kept, terms, one, other, out, width)
        doubt = not one[LEAST_ENTRY] * other[LEAST_ENTRY] >= TINY
        for i in range(group[COUNT]):
            row = lanes.maps[mapped, MEMBER, group[START] + i] if mapped >= 0 else i
            total = 0.0
            for e in range(kept):
                total += lanes.arena[out + e * width + i]
            # Impossible rows get zeros, not 0 / 0.
            total = total if total > 0 else 1.0
            for e in range(kept):
                posteriors[start + e, first + row] = lanes.arena[out + e * width + i] / total
            if doubt and _may_lose(lanes, one, group[SIZE], other, group[SIZE] if above >= 0 else 1, i):
                lanes.doubt[row] = 1
