"""Posteriors of rows on their way to the answers of a batch, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junctor_kernels.cpu.answers import clear_rows, write_rows
from junctor_kernels.cpu.jit import loops


@loops
def write(posteriors: Any, by_row: int, by_entry: int, status: Any, rows: Any, places: Any, answers: Any) -> None:
    write_rows(posteriors, by_row, by_entry, status, rows, places, answers)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], int, np.ndarray]:
    """Numbers of states, rows of a batch, and some of these, ascending."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    rows = draw(st.integers(1, 40))
    some = sorted(draw(st.sets(st.integers(0, rows - 1))))
    return sizes, rows, np.array(some, dtype=np.int64)


def tables_of(memory: np.ndarray, sizes: list[int], rows: int) -> list[np.ndarray]:
    ends = rows * np.cumsum(sizes)
    return [part.reshape(rows, size) for part, size in zip(np.split(memory, ends[:-1]), sizes, strict=True)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(batch=batches())
def test_rows_are_cleared_and_no_others(batch: tuple[list[int], int, np.ndarray], dtype: type) -> None:
    sizes, rows, some = batch
    memory = np.ones(rows * sum(sizes), dtype=dtype)
    clear_rows(some, np.array(sizes, dtype=np.int64), memory)
    for table in tables_of(memory, sizes, rows):
        assert np.flatnonzero(np.isnan(table).all(axis=1)).tolist() == some.tolist()
        assert (np.delete(table, some, axis=0) == 1).all()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(batch=batches(), data=st.data())
def test_rows_are_written_and_no_others(
    batch: tuple[list[int], int, np.ndarray], data: st.DataObject, dtype: type, transposed: bool
) -> None:
    sizes, rows, some = batch
    width = sum(sizes)
    posteriors = np.arange(1.0, 1 + len(some) * width).reshape(len(some), width)
    posteriors = np.asfortranarray(posteriors) if transposed else posteriors
    done = np.array(sorted(data.draw(st.sets(st.sampled_from(range(len(some)))))) if len(some) else [], dtype=np.int64)
    starts = np.cumsum([0, *sizes[:-1]])
    # Targets in another order than that of a row.
    order = np.array(data.draw(st.permutations(range(len(sizes)))), dtype=np.int64)
    targets = np.array(sizes, dtype=np.int64)[order]
    places = np.stack([starts[order], targets, np.cumsum(targets) - targets], axis=1)
    by_row, by_entry = (stride // 8 for stride in posteriors.strides)
    memory = np.zeros(rows * width, dtype=dtype)
    status = np.ones(len(some), dtype=np.int64)
    status[done] = 0
    write(posteriors.ravel(order="K"), by_row, by_entry, status, some, places, memory)
    for table, target in zip(tables_of(memory, targets.tolist(), rows), order, strict=True):
        expected = np.zeros(table.shape)
        expected[some[done]] = posteriors[done][:, starts[target] : starts[target] + sizes[target]]
        np.testing.assert_array_equal(table, expected.astype(dtype))
