"""Evidence of many columns at once, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junctor_kernels.cpu.columns import (
    PIECE,
    add_keys,
    addresses_of,
    mark_different,
    mark_observed,
    multiply_constants,
    take_codes,
    take_states,
)
from junctor_kernels.tables.reference import DOUBLE, LOG, multiplied


def drawn(data: st.DataObject) -> tuple[list[np.ndarray], np.ndarray]:
    """Columns of states, -1 where there is none, and some of their rows."""
    rows, count = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 5))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    columns = [rng.integers(-1, 3, rows).astype(np.int32) for _ in range(count)]
    if data.draw(st.booleans()):
        first = data.draw(st.integers(0, rows - 1))
        return columns, np.arange(first, data.draw(st.integers(first + 1, rows)))
    return columns, np.flatnonzero(np.append(rng.random(rows - 1) < 0.5, True))


@given(data=st.data())
def test_marks_of_some_rows(data: st.DataObject) -> None:
    columns, rows = drawn(data)
    words = np.uint64(1) << np.arange(len(columns), dtype=np.uint64)
    marks = np.empty((len(columns), len(rows)), dtype=np.bool_)
    keys = np.zeros(len(rows), dtype=np.uint64)
    often = np.empty(len(columns), dtype=np.int64)
    mark_observed(addresses_of(columns), rows, words, marks, keys, often)
    expected = np.array(columns)[:, rows] != -1
    np.testing.assert_array_equal(often, expected.sum(axis=1))
    np.testing.assert_array_equal(marks, expected)
    np.testing.assert_array_equal(keys, words @ expected)


@pytest.mark.parametrize("dtype", [np.int16, np.int64])
@given(data=st.data())
def test_states_of_some_rows(dtype: type[np.integer], data: st.DataObject) -> None:
    columns, rows = drawn(data)
    lanes = len(rows) + data.draw(st.integers(0, 5))
    lines = np.random.default_rng(1).permutation(len(columns) + 1)[: len(columns)]
    states = np.full((len(columns) + 1, lanes), 99, dtype=dtype)
    take_states(addresses_of(columns), rows, lines, states)
    for column, line in zip(columns, lines, strict=True):
        np.testing.assert_array_equal(states[line], np.pad(column[rows], (0, lanes - len(rows)), mode="edge"))
    assert (np.delete(states, lines, axis=0) == 99).all()


@given(data=st.data())
def test_codes_of_some_rows(data: st.DataObject) -> None:
    columns, rows = drawn(data)
    sizes = np.arange(3, 3 + len(columns), dtype=np.int32)
    codes = np.empty((len(columns), len(rows)), dtype=np.int32)
    take_codes(addresses_of(columns), rows, sizes, codes)
    there = np.array(columns)[:, rows]
    np.testing.assert_array_equal(codes, np.where(there == -1, sizes[:, None], there))


@pytest.mark.parametrize("rows", [1, 7, PIECE, 2 * PIECE + 3])
def test_keys_of_consecutive_rows_and_what_differs(rows: int) -> None:
    rng = np.random.default_rng(rows)
    columns = [rng.integers(-1, 2, rows + 5).astype(np.int32) for _ in range(3)]
    words, first = rng.integers(1 << 62, size=3), 2
    keys = np.ones(rows, dtype=np.int64)
    add_keys(addresses_of(columns), words, first, keys)
    here = np.array(columns, dtype=np.int64)[:, first : first + rows] + 1
    np.testing.assert_array_equal(keys, 1 + (here * words[:, None]).sum(axis=0))
    some, others = rng.integers(0, rows + 5, (2, rows))
    differs = np.zeros(rows, dtype=np.bool_)
    mark_different(addresses_of(columns), some, others, differs)
    np.testing.assert_array_equal(differs, (np.array(columns)[:, some] != np.array(columns)[:, others]).any(axis=0))


@pytest.mark.parametrize("dtype", [np.int16, np.int64])
@pytest.mark.parametrize("logs", [None, True])
@given(data=st.data())
def test_products_of_observed_factors(dtype: type[np.integer], logs: bool | None, data: st.DataObject) -> None:
    sizes, algebra = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)), LOG if logs else DOUBLE
    lanes, rng = data.draw(st.integers(1, 9)), np.random.default_rng(data.draw(st.integers(0, 9)))
    states = np.array([rng.integers(0, size, lanes + 1) for size in sizes]).astype(dtype)
    factors, observed, tables = [], [], []
    expected = np.full(lanes, algebra.one), np.zeros(lanes)
    for scope in data.draw(st.lists(st.lists(st.sampled_from(range(len(sizes))), unique=True), max_size=4)):
        table = rng.uniform(0.5, 1, [sizes[v] for v in scope])
        table = np.log(table) if logs else table
        exponent = np.floor(rng.uniform(-900, 900, table.shape))
        factors.append((len(observed), len(scope), sum(map(np.size, tables)) // 2))
        observed += [(v, stride // table.itemsize) for v, stride in zip(scope, table.strides, strict=True)]
        tables.append(np.stack([table, exponent], axis=-1))
        at = tuple(states[v, :lanes] for v in scope)
        expected = multiplied(*expected, table[at], exponent[at], algebra)
    numbers = np.concatenate([np.zeros((0, 2)), *(table.reshape(-1, 2) for table in tables)])
    found = np.full((2, lanes), np.nan)
    rows = (np.array(each, dtype=np.int64).reshape(-1, width) for each, width in ((factors, 3), (observed, 2)))
    multiply_constants(states, *rows, numbers, logs, *found)
    np.testing.assert_array_equal(found, expected)
