"""Lists by which a GPU adds up the counts of enumerated components in a fixed order (Numba for what is sorted).

Main function: `lists_of`, called by `junctor.learning.counts_gpu`. A block is a run of components, those of a pattern
together: a part. For each factor the components of a part are sorted by the base of the factor and cut into pieces of
the same base. A state of a piece, a unit, adds to one entry: base + offset of the state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from junctor_kernels.cpu.jit import loops, part
from junctor_kernels.row_trees.components import Families, Store
from junctor_kernels.row_trees.counts import Local, list_offsets

Shorts = npt.NDArray[np.int32]
# Columns of the parts of a block: number of components, factors, states, pattern, and where components, bases, offsets,
# rows of numbers and the threads that multiply these begin.
COUNT, FACTORS, STATES, PATTERN, FIRST, BASES, OFFSETS, ROWS, TASKS, PART_COLUMNS = range(10)
# Components of a piece at most; states that a thread computes at a time.
PIECE, TOGETHER = 256, 8
# Columns of pieces: first member, base, place of its first offset, states.
_START, _BASE, _LINE, _WIDTH, _PIECE_COLUMNS = range(5)
# Values of a digit of the sort.
_DIGITS = 256


def line_length(states: Any) -> Any:
    """Return the offsets that a factor has room for; states: a number, or an array of them."""
    return -(-states // TOGETHER) * TOGETHER


def lists_of(
    families: Families, store: Store, order: npt.NDArray[np.int64], parts: Shorts, local: Local
) -> dict[str, npt.NDArray[np.generic]]:
    """Return the arrays of a block, by the names that `counts_gpu.FIELDS` has for them.

    families, store: of the rows.
    order: int64, the components of the block.
    parts: int32 [parts, PART_COLUMNS].
    local: memory for a pattern, with room for the largest one.
    """
    given = len(families.starts) - 1
    counts, factors, states = (parts[:, column].astype(np.int64) for column in (COUNT, FACTORS, STATES))
    incidences = int((counts * factors).sum())
    offsets = np.zeros(int((factors * line_length(states)).sum()), dtype=np.int32)
    for each in parts:
        length = line_length(each[STATES])
        line = offsets[each[OFFSETS] : each[OFFSETS] + each[FACTORS] * length]
        list_offsets(families, store, int(each[PATTERN]), given, int(each[STATES]), length, local, line)
    bases, members = np.empty(incidences, dtype=np.int32), np.empty(incidences, dtype=np.int32)
    pieces = np.empty((incidences, _PIECE_COLUMNS), dtype=np.int32)
    weights, work = np.empty(len(order)), np.empty((2, int(counts.max())), dtype=np.int32)
    used, number = list_pieces(store, order, parts, given, bases, weights, members, pieces, work, _counters())
    pieces = pieces[:number]
    starts = np.cumsum(pieces[:, _WIDTH], dtype=np.int64) - pieces[:, _WIDTH]
    piece_of = np.repeat(np.arange(number, dtype=np.int32), pieces[:, _WIDTH])
    unit_starts = starts.astype(np.int32)
    # The entry of each unit.
    line = np.arange(len(piece_of), dtype=np.int32)
    line += np.repeat(pieces[:, _LINE] - unit_starts, pieces[:, _WIDTH])
    keys = offsets[line]
    keys += np.repeat(pieces[:, _BASE], pieces[:, _WIDTH])
    units = np.empty_like(keys)
    sort_numbers(keys, units, line, _counters())
    keys = keys[units]
    firsts = np.flatnonzero(np.diff(keys, prepend=-1))
    return {
        "weights": weights,
        "parts": parts,
        "bases": bases,
        "offsets": offsets,
        "members": members[:used],
        "piece_starts": np.append(pieces[:, _START], used).astype(np.int32),
        "unit_starts": unit_starts,
        "piece_of": piece_of,
        "units": units,
        "entries": keys[firsts],
        "entry_starts": np.append(firsts, len(keys)).astype(np.int32),
    }


def _counters() -> npt.NDArray[np.int64]:
    return np.zeros(_DIGITS + 1, dtype=np.int64)


@loops
def list_pieces(
    store: Any,
    order: Any,
    parts: Any,
    given: int,
    bases: Any,
    weights: Any,
    members: Any,
    pieces: Any,
    work: Any,
    counters: Any,
) -> Any:
    """Write bases, weights, members and pieces of a block; return the number of members and of pieces.

    store, order, parts: of `lists_of`.
    given: factors from this on are likelihoods, which have no pieces.
    bases: int32, [factors, components] for each part, one after the other.
    weights: float64 [components].
    members: int32, where the row of numbers of each component of a piece begins.
    pieces: int32 [members, columns].
    work: int32 [2, components of the largest part]; counters: int64.
    """
    used, number = 0, 0
    for p in range(parts.shape[0]):
        first, count, states = parts[p, FIRST], parts[p, COUNT], parts[p, STATES]
        begin, length = store.factor_starts[parts[p, PATTERN]], -(-states // TOGETHER) * TOGETHER
        for i in range(count):
            component = order[first + i]
            start = store.base_starts[component]
            weights[first + i] = store.weights[component, 0] + store.weights[component, 1]
            for f in range(parts[p, FACTORS]):
                bases[parts[p, BASES] + f * count + i] = store.bases[start + f]
        for f in range(parts[p, FACTORS]):
            if store.factors[begin + f] >= given:
                break
            at = parts[p, BASES] + f * count
            keys, sorted_members = bases[at : at + count], work[0, :count]
            _sort(keys, sorted_members, work[1, :count], counters)
            before = -1
            for i in range(count):
                member = sorted_members[i]
                if keys[member] != before or used - pieces[number - 1, _START] == PIECE:
                    before = keys[member]
                    pieces[number, _START], pieces[number, _BASE] = used, before
                    pieces[number, _LINE], pieces[number, _WIDTH] = parts[p, OFFSETS] + f * length, states
                    number += 1
                members[used] = parts[p, ROWS] + member * states
                used += 1
    return used, number


@loops
def sort_numbers(keys: Any, order: Any, spare: Any, counters: Any) -> None:
    """Write the stable ascending order of some numbers; arguments as of `_sort`."""
    _sort(keys, order, spare, counters)


@part
def _sort(keys: Any, order: Any, spare: Any, counters: Any) -> None:
    """Write the stable ascending order of some numbers, by their digits from the last to the first.

    keys: int32 [n], at least 0.
    order: int32 [n], written.
    spare: int32 [n]; counters: int64 [_DIGITS + 1].
    """
    low = high = np.int64(keys[0]) if keys.size else np.int64(0)
    for i in range(keys.size):
        order[i] = i
        low, high = min(low, np.int64(keys[i])), max(high, np.int64(keys[i]))
    shift = 0
    while (high - low) >> shift > 0:
        counters[:] = 0
        for i in range(keys.size):
            counters[((keys[i] - low) >> shift) % _DIGITS + 1] += 1
        for digit in range(_DIGITS):
            counters[digit + 1] += counters[digit]
        for i in range(keys.size):
            spare[i] = order[i]
        for i in range(keys.size):
            member = spare[i]
            digit = ((keys[member] - low) >> shift) % _DIGITS
            order[counters[digit]] = member
            counters[digit] += 1
        shift += 8
