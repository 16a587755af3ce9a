"""Reduced tables of a search: slices of factors without idle states and axes, equal ones kept once (Numba).

Main functions: `whole`, of a factor, and `restricted`, of a table whose variable loses states. A table holds values for
the states that it supports alone; what a restriction leads to is remembered. Keys have 128 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import as_bits, inlined, loops, part
from junctor_kernels.cpu.mixing import STEP, mixed

Ints = npt.NDArray[np.int64]
ShortInts = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

ONE = np.uint64(1)
# Entries of `TableStore.counts`: used lengths.
TABLES, AXES, VALUES, STEPS, TRANSITIONS, NARROWED, WIDE, TABLE_COUNTS = range(8)
# What a transition leads to instead of a table: a number, or zeros alone. No transition: there is no room.
NUMBER, ZEROS, NO_ROOM, UNKNOWN = -1, -2, -1, -1
# Axes of a factor, and states of a variable: bits of a word.
MOST_AXES, MOST_STATES = 64, 64


class TableStore(NamedTuple):
    """Tables and transitions, each one after the other.

    axes_at, values_at: int64 [tables + 1], the first axis and the first value of each table.
    keys: uint64 [tables, 2].
    variables, supports, steps_at: of each axis: its variable, its states, the first of its `steps`.
    values: float64, the last axis fastest.
    steps: int32, the transition to each single state of an axis, UNKNOWN before it is asked for.
    results, numbers, narrowed_at: of each transition: its table (NUMBER, ZEROS), a factor, what it narrows first.
    narrowed, narrowed_to: variables that lose states with a transition, and the states that are left.
    slots: int32, a table + 1 by its key; 0: free.
    wide_keys, wide: uint64 [n, 2] and int32: transitions to several states by table, axis and states.
    work: float64, values of a table in the making.
    axis_variables, axis_supports, gone, gone_to: its axes, and what it narrows.
    counts: int64 [TABLE_COUNTS].
    """

    axes_at: Ints
    values_at: Ints
    keys: Words
    variables: ShortInts
    supports: Words
    steps_at: Ints
    values: Floats
    steps: ShortInts
    results: ShortInts
    numbers: Floats
    narrowed_at: Ints
    narrowed: ShortInts
    narrowed_to: Words
    slots: ShortInts
    wide_keys: Words
    wide: ShortInts
    work: Floats
    axis_variables: ShortInts
    axis_supports: Words
    gone: ShortInts
    gone_to: Words
    counts: Ints


# Arrays that grow, with the count of what they hold; and the hashes, with theirs.
GROWING = {
    "axes_at": TABLES,
    "values_at": TABLES,
    "keys": TABLES,
    "variables": AXES,
    "supports": AXES,
    "steps_at": AXES,
    "values": VALUES,
    "steps": STEPS,
    "results": TRANSITIONS,
    "numbers": TRANSITIONS,
    "narrowed_at": TRANSITIONS,
    "narrowed": NARROWED,
    "narrowed_to": NARROWED,
}


def table_store(largest: int) -> TableStore:
    """Return a store without tables; largest: entries of the largest factor."""
    few, wide = 1024, 1 << 10
    return TableStore(
        axes_at=np.zeros(few, dtype=np.int64),
        values_at=np.zeros(few, dtype=np.int64),
        keys=np.zeros((few, 2), dtype=np.uint64),
        variables=np.zeros(few, dtype=np.int32),
        supports=np.zeros(few, dtype=np.uint64),
        steps_at=np.zeros(few, dtype=np.int64),
        values=np.zeros(max(few, 2 * largest)),
        steps=np.full(few, UNKNOWN, dtype=np.int32),
        results=np.zeros(few, dtype=np.int32),
        numbers=np.zeros(few),
        narrowed_at=np.zeros(few, dtype=np.int64),
        narrowed=np.zeros(few, dtype=np.int32),
        narrowed_to=np.zeros(few, dtype=np.uint64),
        slots=np.zeros(2 * few, dtype=np.int32),
        wide_keys=np.zeros((wide, 2), dtype=np.uint64),
        wide=np.zeros(wide, dtype=np.int32),
        work=np.zeros(largest),
        axis_variables=np.zeros(MOST_AXES, dtype=np.int32),
        axis_supports=np.zeros(MOST_AXES, dtype=np.uint64),
        gone=np.zeros(2 * MOST_AXES, dtype=np.int32),
        gone_to=np.zeros(2 * MOST_AXES, dtype=np.uint64),
        counts=np.zeros(TABLE_COUNTS, dtype=np.int64),
    )


def larger(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array of twice the length; what is not written yet is UNKNOWN, as a step is."""
    made = np.empty((2 * len(array), *array.shape[1:]), dtype=array.dtype)
    made[: len(array)] = array
    if array.dtype == np.int32:
        made[len(array) :] = UNKNOWN
    return made


def grown(arrays: Any, growing: Mapping[str, int], room: int) -> dict[str, npt.NDArray[Any]]:
    """Return arrays of a named tuple with `counts` by their names, with room for so many more entries.

    growing: the place in `counts` of the length in use of each.
    """
    made = {}
    for name, count in growing.items():
        made[name] = getattr(arrays, name)
        while int(arrays.counts[count]) + room > len(made[name]):
            made[name] = larger(made[name])
    return made


def with_table_room(store: TableStore) -> TableStore:
    """Return a store in which whatever is more than half full has twice the room."""
    counts, work = store.counts.tolist(), len(store.work)
    made = {}
    for name, count in GROWING.items():
        array = getattr(store, name)
        while 2 * (counts[count] + MOST_AXES + (work if name == "values" else 0)) > len(array):
            array = larger(array)
        # Steps of one table may be many.
        while name == "steps" and counts[count] + MOST_AXES * MOST_STATES > len(array):
            array = larger(array)
        if array is not getattr(store, name):
            made[name] = array
    store = store._replace(**made)
    if 4 * counts[TABLES] > len(store.slots):
        slots = np.zeros(2 * len(store.slots), dtype=np.int32)
        fill_slots(store.keys, counts[TABLES], slots)
        store = store._replace(slots=slots)
    if 4 * counts[WIDE] > len(store.wide):
        keys, wide = np.zeros((2 * len(store.wide), 2), dtype=np.uint64), np.zeros(2 * len(store.wide), dtype=np.int32)
        refill_wide(store.wide_keys, store.wide, keys, wide)
        store = store._replace(wide_keys=keys, wide=wide)
    return store


def table_bytes(store: TableStore) -> int:
    """Return the bytes of a store."""
    return sum(array.nbytes for array in store)


@inlined
def states_of(word: Any) -> Any:
    """Return the number of set bits of a uint64."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@inlined
def is_several(word: Any) -> Any:
    """Return True for two set bits or more."""
    return word & (word - ONE) != np.uint64(0)


@loops
def fill_slots(keys: Any, tables: int, slots: Any) -> None:
    """Write tables into empty slots by their keys."""
    last = np.int64(slots.size - 1)
    for table in range(tables):
        at = np.int64(keys[table, 0]) & last
        while slots[at] > 0:
            at = (at + 1) & last
        slots[at] = table + 1


@loops
def refill_wide(keys: Any, wide: Any, new_keys: Any, new_wide: Any) -> None:
    """Write transitions to several states into larger empty arrays."""
    for i in range(wide.size):
        if keys[i, 0] != np.uint64(0):
            at = _wide_place(new_keys, keys[i, 0], keys[i, 1])
            new_keys[at, 0], new_keys[at, 1], new_wide[at] = keys[i, 0], keys[i, 1], wide[i]


@part
def _wide_place(keys: Any, one: Any, two: Any) -> Any:
    """Return the place of a key, or the free one where it belongs."""
    last = np.int64(keys.shape[0] - 1)
    at = np.int64(mixed(one ^ mixed(two + STEP))) & last
    while keys[at, 0] != np.uint64(0) and (keys[at, 0] != one or keys[at, 1] != two):
        at = (at + 1) & last
    return at


@part
def whole(store: Any, axes: int, size: int) -> Any:
    """Return the transition to the reduced table of what `work`, `axis_variables` and `axis_supports` hold."""
    return _canonical(store, axes, size)


@part
def restricted(store: Any, table: int, axis: int, states: Any) -> Any:
    """Return the transition of a table whose variable is left some of its states; NO_ROOM where the store is full."""
    first = store.axes_at[table]
    support = store.supports[first + axis]
    several = is_several(states)
    step, place = np.int64(0), np.int64(0)
    if several:
        one, two = np.uint64(table * MOST_AXES + axis + 1), states
        place = _wide_place(store.wide_keys, one, two)
        if store.wide_keys[place, 0] != np.uint64(0):
            return np.int64(store.wide[place])
        if 2 * (store.counts[WIDE] + 1) > store.wide.size:
            return NO_ROOM
    else:
        step = store.steps_at[first + axis] + states_of(support & (states - ONE))
        if store.steps[step] != UNKNOWN:
            return np.int64(store.steps[step])
    made = _canonical(store, store.axes_at[table + 1] - first, _slice(store, table, axis, states))
    if made != NO_ROOM:
        if several:
            store.wide_keys[place, 0], store.wide_keys[place, 1] = np.uint64(table * MOST_AXES + axis + 1), states
            store.wide[place] = made
            store.counts[WIDE] += 1
        else:
            store.steps[step] = made
    return made


@part
def _slice(store: Any, table: int, axis: int, states: Any) -> Any:
    """Copy some states of an axis of a table into `work`, and return the number of values."""
    first, axes = store.axes_at[table], store.axes_at[table + 1] - store.axes_at[table]
    inner = 1
    for a in range(axes):
        store.axis_variables[a], store.axis_supports[a] = store.variables[first + a], store.supports[first + a]
        if a > axis:
            inner *= states_of(store.supports[first + a])
    store.axis_supports[axis] = states
    at, end, written = store.values_at[table], store.values_at[table + 1], 0
    while at < end:
        left = store.supports[first + axis]
        while left != np.uint64(0):
            bit = left & (~left + ONE)
            left ^= bit
            if bit & states != np.uint64(0):
                for i in range(inner):
                    store.work[written + i] = store.values[at + i]
                written += inner
            at += inner
    return written


@part
def _canonical(store: Any, axes: int, size: int) -> Any:
    """Return the transition to the table in `work` without idle states and axes, kept if it is a new one."""
    counts = store.counts
    if (
        counts[TABLES] + 2 > store.axes_at.size
        or counts[AXES] + axes > store.variables.size
        or counts[VALUES] + size > store.values.size
        or counts[STEPS] + axes * MOST_STATES > store.steps.size
        or counts[TRANSITIONS] + 2 > store.results.size
        or counts[NARROWED] + axes > store.narrowed.size
        or 2 * (counts[TABLES] + 1) > store.slots.size
    ):
        return NO_ROOM
    made, gone, axis = counts[TRANSITIONS], 0, 0
    result: Any = np.int64(ZEROS)
    number = 1.0
    while axis < axes:
        inner = 1
        for a in range(axis + 1, axes):
            inner *= states_of(store.axis_supports[a])
        before = store.axis_supports[axis]
        size = _supported(store, axis, inner, size)
        support = store.axis_supports[axis]
        if support == np.uint64(0):
            break
        if support != before:
            store.gone[gone], store.gone_to[gone] = store.axis_variables[axis], support
            gone += 1
        count = states_of(support)
        if count == 1 or _is_idle(store.work, size, inner, count):
            size = _without_axis(store.work, size, inner, count)
            axes -= 1
            for a in range(axis, axes):
                store.axis_variables[a], store.axis_supports[a] = (
                    store.axis_variables[a + 1],
                    store.axis_supports[a + 1],
                )
        else:
            axis += 1
    if axis == axes:
        if axes == 0:
            number = store.work[0]
            result = NUMBER if number > 0 else ZEROS
        else:
            result = _kept(store, axes, size)
    store.results[made], store.numbers[made], store.narrowed_at[made] = result, number, counts[NARROWED]
    for i in range(gone):
        store.narrowed[counts[NARROWED] + i], store.narrowed_to[counts[NARROWED] + i] = store.gone[i], store.gone_to[i]
    counts[NARROWED] += gone
    store.narrowed_at[made + 1] = counts[NARROWED]
    counts[TRANSITIONS] = made + 1
    return made


@part
def _supported(store: Any, axis: int, inner: int, size: int) -> Any:
    """Take states of an axis without values above zero out of `work` and of its support; return the values left."""
    work, states = store.work, store.axis_supports[axis]
    count = states_of(states)
    outer, alive, left, at = size // (inner * count), np.uint64(0), states, 0
    while left != np.uint64(0):
        bit = left & (~left + ONE)
        left ^= bit
        found = False
        for o in range(outer):
            start = (o * count + at) * inner
            for i in range(start, start + inner):
                if work[i] > 0:
                    found = True
                    break
            if found:
                break
        if found:
            alive |= bit
        at += 1
    if alive == states:
        return size
    store.axis_supports[axis] = alive
    written, start = 0, 0
    for _ in range(outer):
        left = states
        while left != np.uint64(0):
            bit = left & (~left + ONE)
            left ^= bit
            if bit & alive != np.uint64(0):
                # In place: what is read lies at or behind what is written.
                for i in range(inner):
                    work[written + i] = work[start + i]
                written += inner
            start += inner
    return written


@part
def _is_idle(work: Any, size: int, inner: int, count: int) -> Any:
    """Return True if values are the same along an axis."""
    for start in range(0, size, inner * count):
        for i in range(start + inner, start + inner * count):
            if work[i] != work[i - inner]:
                return False
    return True


@part
def _without_axis(work: Any, size: int, inner: int, count: int) -> Any:
    """Keep the first of the states of an axis, and return the number of values."""
    written = 0
    for start in range(0, size, inner * count):
        for i in range(inner):
            work[written + i] = work[start + i]
        written += inner
    return written


@part
def _kept(store: Any, axes: int, size: int) -> Any:
    """Return the number of the table in `work`, an earlier one that is equal or a new one."""
    one, two = STEP, mixed(STEP)
    for a in range(axes):
        # Each word is mixed in by itself: sums of small numbers would be equal for others.
        one = mixed(mixed(one ^ np.uint64(store.axis_variables[a])) ^ store.axis_supports[a])
        two = mixed(mixed(two + np.uint64(store.axis_variables[a])) + store.axis_supports[a])
    for i in range(size):
        bits = np.uint64(as_bits(store.work[i]))
        one = mixed(one ^ bits) + STEP
        two = mixed(two + bits)
    last = np.int64(store.slots.size - 1)
    at = np.int64(one) & last
    while store.slots[at] > 0:
        table = np.int64(store.slots[at]) - 1
        if store.keys[table, 0] == one and store.keys[table, 1] == two:
            return table
        at = (at + 1) & last
    counts = store.counts
    table = counts[TABLES]
    store.slots[at] = table + 1
    store.keys[table, 0], store.keys[table, 1] = one, two
    for a in range(axes):
        axis = counts[AXES] + a
        store.variables[axis], store.supports[axis] = store.axis_variables[a], store.axis_supports[a]
        store.steps_at[axis] = counts[STEPS]
        counts[STEPS] += states_of(store.axis_supports[a])
    for i in range(size):
        store.values[counts[VALUES] + i] = store.work[i]
    counts[AXES] += axes
    counts[VALUES] += size
    counts[TABLES] = table + 1
    store.axes_at[table + 1], store.values_at[table + 1] = counts[AXES], counts[VALUES]
    return table
