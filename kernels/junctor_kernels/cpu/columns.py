"""Evidence of many columns at once (Numba): where some rows have any, and their states as a GPU reads them.

Columns are arrays of their own, so they come as addresses: Python would take as long for each of them as this takes.
Main functions: `mark_observed`, `count_observed`, `take_states`, `take_codes`,
`add_keys`, `mark_different`, `number_keys`, `multiply_constants`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from junctor_kernels.cpu.interpreted import OF_COLUMNS, stand_in
from junctor_kernels.cpu.jit import gradual, loops
from junctor_kernels.cpu.mixing import mixed
from junctor_kernels.cpu.scaled import multiplied

# Bytes of a state, and rows of a piece.
STATE, PIECE = 4, 1024


def _load_state(_typing: Any, _address: Any) -> Any:
    """Return the int32 at an address."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.IntType(32).as_pointer()))

    return types.int32(types.int64), code


state_at = intrinsic(_load_state)
stand_in(globals(), OF_COLUMNS)


def addresses_of(columns: Iterable[npt.NDArray[np.int32]]) -> npt.NDArray[np.int64]:
    """Return where columns begin, int64 [columns]; they must lie in one piece each, and stay while they are read."""
    return np.array([column.__array_interface__["data"][0] for column in columns], dtype=np.int64)


@loops
def mark_observed(columns: Any, rows: Any, words: Any, marks: Any, keys: Any, often: Any) -> None:
    """Note which columns have a state in some rows.

    columns: int64 [c], addresses of int32.
    rows: int64 [n].
    words: uint64 [c], a random number for each column.
    marks: bool [c, n], written: whether there is a state, and not -1.
    keys: uint64 [n], raised by the words of the columns with a state: equal for rows that observe the same.
    often: int64 [c], written: the rows with a state.
    """
    for c in range(columns.size):
        count, word = 0, words[c]
        for i in range(rows.size):
            there = state_at(columns[c] + STATE * rows[i]) != -1
            marks[c, i] = there
            count += there
            # Without a branch, which would be guessed wrong for every other cell.
            keys[i] += word * np.uint64(there)
        often[c] = count


@loops
def count_observed(columns: Any, rows: Any, lines: Any, often: Any) -> None:
    """Count the rows with a state in each column.

    columns: int64 [c], addresses of int32.
    rows: int64 [n].
    lines: int64 [c], the line of each column.
    often: int64 [lines], written: rows with a state, 0 for lines of no column.
    """
    often[:] = 0
    for c in range(columns.size):
        count = 0
        for i in range(rows.size):
            count += state_at(columns[c] + STATE * rows[i]) != -1
        often[lines[c]] = count


@loops
def take_states(columns: Any, rows: Any, lines: Any, states: Any) -> None:
    """Write the states of some rows, one line a column; lanes beyond the last row repeat it.

    columns: int64 [c], addresses of int32.
    rows: int64 [n], at least one.
    lines: int64 [c], the line of each column.
    states: integers [lines, lanes], written.
    """
    last = rows.size - 1
    first, has_gaps = rows[0], rows[last] - rows[0] != last
    for c in range(columns.size):
        line = lines[c]
        if has_gaps:
            for i in range(rows.size):
                states[line, i] = state_at(columns[c] + STATE * rows[i])
        else:
            for i in range(rows.size):
                states[line, i] = state_at(columns[c] + STATE * (first + i))
        for i in range(rows.size, states.shape[1]):
            states[line, i] = states[line, last]


@gradual
@loops
def take_codes(columns: Any, rows: Any, sizes: Any, codes: Any) -> None:
    """Write the codes of some rows.

    columns: int64 [c], addresses of int32.
    rows: int64 [n].
    sizes: int32 [c], what is written for -1.
    codes: int32 [c, n], written.
    """
    for c in range(columns.size):
        for i in range(rows.size):
            code = state_at(columns[c] + STATE * rows[i])
            codes[c, i] = sizes[c] if code < 0 else code


@loops
def add_keys(columns: Any, words: Any, first: int, keys: Any) -> None:
    """Raise keys of consecutive rows by what each of their states gives.

    columns: int64 [c], addresses of int32.
    words: int64 [c], what a state gives, times the state plus 1.
    first: the first row.
    keys: int64 [n], raised; they may overflow.
    """
    # In pieces that stay in the cache while all columns pass.
    for begin in range(0, keys.size, PIECE):
        piece = keys[begin : begin + PIECE]
        for c in range(columns.size):
            word, address = words[c], columns[c] + STATE * (first + begin)
            for i in range(piece.size):
                piece[i] += word * (np.int64(state_at(address + STATE * i)) + 1)


@loops
def mark_different(columns: Any, rows: Any, others: Any, differs: Any) -> None:
    """Note which rows have another state than others in any column.

    columns: int64 [c], addresses of int32.
    rows, others: int64 [n], compared one by one.
    differs: bool [n], set where they differ.
    """
    for begin in range(0, rows.size, PIECE):
        end = min(begin + PIECE, rows.size)
        for c in range(columns.size):
            address = columns[c]
            for i in range(begin, end):
                differs[i] |= state_at(address + STATE * rows[i]) != state_at(address + STATE * others[i])


@loops
def number_keys(keys: Any, table: Any, numbers: Any, first: Any) -> int:
    """Number distinct keys from 0 as they come, and return how many there are.

    keys: uint64 [n].
    table: int32 [a power of two, above n], filled with -1; written.
    numbers: int64 [n], written: the number of each key.
    first: int64 [n], written: where each distinct key comes first.
    """
    count, mask = 0, np.uint64(table.size - 1)
    for i in range(keys.size):
        key = keys[i]
        # Keys may be small numbers, or multiples of one.
        at = mixed(key) & mask
        while table[at] >= 0 and keys[first[table[at]]] != key:
            at = (at + np.uint64(1)) & mask
        if table[at] < 0:
            table[at], first[count] = count, i
            count += 1
        numbers[i] = table[at]
    return count


@loops
def multiply_constants(
    states: Any, factors: Any, observed: Any, numbers: Any, logs: Any, products: Any, exponents: Any
) -> None:
    """Write the products of factors whose variables are all observed, as scaled numbers.

    states: integers [lines, lanes].
    factors, observed, numbers: of `junctor_kernels.cpu.bytecode.Cases`, `factors` its `constants`.
    logs: of `multiplied`.
    products, exponents: float64 [lanes or fewer], written.
    """
    exponents[:] = 0.0
    products[:] = 1.0 if logs is None else 0.0
    # A line at a time: cells of one lane, a power of two apart, would share the lines of a cache.
    for n in range(factors.shape[0]):
        begin, end, first = factors[n, 0], factors[n, 0] + factors[n, 1], factors[n, 2]
        for b in range(products.size):
            at = first
            for v in range(begin, end):
                at += states[observed[v, 0], b] * observed[v, 1]
            number, exponent = products[b], exponents[b]
            products[b], exponents[b] = multiplied(number, exponent, numbers[at, 0], numbers[at, 1], logs)
