"""Calls for rows with trees: all rows once, whoever takes them."""

from __future__ import annotations

import time
from itertools import pairwise
from threading import Thread

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends.row_calls import (
    LEAST_VARIABLES,
    MOST_ROWS,
    SHARED_CALL_BYTES,
    RowCall,
    RowCalls,
    Rows,
    call_rows,
    calls_of,
    calls_of_groups,
)

calls = st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=12)


@given(calls, st.integers(1, 3), st.sampled_from([0.0, 1e-4]))
def test_threads_answer_every_row_once_and_rows_of_a_call_ascend(
    sizes: list[tuple[int, bool]], threads: int, seconds: float
) -> None:
    # Groups of rows that alternate: those of the next call may come before.
    asked = [
        RowCall(np.arange(size) * 7 + n % 3, np.array([size]) if shared else None)
        for n, (size, shared) in enumerate(sizes)
    ]
    waiting = RowCalls(asked)
    taken: list[RowCall] = []
    found: list[tuple[Rows, Rows]] = []

    def answer(call: RowCall) -> Rows:
        taken.append(call)
        time.sleep(seconds * len(call.rows))
        return 2 * call.rows

    workers = [Thread(target=lambda: found.extend(waiting.answer(answer))) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert waiting.answer(answer) == []
    given_rows = np.concatenate([np.zeros(0, dtype=np.int64), *(call.rows for call in asked)])
    found_rows = np.concatenate([np.zeros(0, dtype=np.int64), *(rows for rows, _ in found)])
    assert sorted(found_rows.tolist()) == sorted(given_rows.tolist())
    assert all((status == 2 * rows).all() for rows, status in found)
    assert all((np.diff(call.rows) > 0).all() and len(call.rows) <= MOST_ROWS for call in taken)
    shared = [call.rows.tolist() for call in asked if call.shared]
    assert sorted(call.rows.tolist() for call in taken if call.shared) == sorted(shared)


def test_quick_rows_go_in_fewer_calls() -> None:
    taken: list[int] = []

    def answer(call: RowCall) -> Rows:
        taken.append(len(call.rows))
        return call.rows

    # Four kilobytes of answers a row.
    RowCalls(calls_of(np.arange(2048), 4096)).answer(answer)
    assert sum(taken) == 2048
    assert taken[0] == 64
    assert len(taken) <= 4


def test_no_call_begins_once_they_are_cleared() -> None:
    waiting = RowCalls(calls_of(np.arange(100), 1 << 20))

    def answer(call: RowCall) -> Rows:
        waiting.clear()
        return call.rows

    assert len(waiting.answer(answer)) == 1


@given(st.integers(0, 5000), st.integers(1, 1 << 16), st.integers(1, 2000), st.integers(1, 64))
def test_few_rows_are_divided_among_threads(count: int, row_bytes: int, variables: int, threads: int) -> None:
    rows = np.arange(count) * 3
    calls = calls_of(rows, row_bytes, variables, threads)
    assert np.array_equal(np.concatenate([rows[:0], *(call.rows for call in calls)]), rows)
    if threads == 1:
        return
    largest = max((len(call.rows) for call in calls), default=0)
    # Two calls for each thread, or so few rows that a call would take longer than they do.
    assert largest <= max(-(-count // (2 * threads)), LEAST_VARIABLES // variables, 1)
    assert len(calls) >= len(calls_of(rows, row_bytes, variables))


@given(
    st.lists(st.integers(1, 300), max_size=40), st.integers(1, 10_000_000), st.integers(1, 1 << 20), st.integers(1, 64)
)
def test_groups_of_calls(sizes: list[int], rows: int, row_bytes: int, threads: int) -> None:
    """Every group whole, in one call; calls end as soon as they have rows enough, which fit the cache."""
    most = call_rows(rows, row_bytes, threads)
    assert most == 1 or most * row_bytes <= SHARED_CALL_BYTES
    ends = np.cumsum([0, *sizes])
    groups = [np.arange(*bounds) for bounds in pairwise(ends)]
    calls = calls_of_groups(groups, most)
    found = [part for call in calls for part in np.split(call.rows, call.ends[:-1])]  # type: ignore[index]
    assert [part.tolist() for part in found] == [group.tolist() for group in groups]
    assert all(call.shared and len(call.rows) == call.ends[-1] for call in calls)  # type: ignore[index]
    assert all(len(call.rows) >= most for call in calls[:-1])
