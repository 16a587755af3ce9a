"""Answers to be written: posteriors in one piece of memory, and their views."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from junctor.model.answers import INVALID, UNANSWERED, posteriors_in, table_bytes, unanswered
from junctor.model.query import Query


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5), rows=st.integers(0, 4), data=st.data())
def test_tables_of_targets_are_views_one_after_the_other(sizes: list[int], rows: int, data: st.DataObject) -> None:
    targets = data.draw(st.permutations(range(len(sizes))).map(lambda order: order[: len(order) // 2 + 1]))
    memory = np.arange(float(rows * sum(sizes[v] for v in targets)))
    tables = posteriors_in(memory, targets, sizes, rows)
    assert list(tables) == targets
    assert len(tables) == len(targets)
    assert set(targets) == {v for v in range(len(sizes)) if v in tables}
    assert [table.shape for table in tables.values()] == [(rows, sizes[v]) for v in targets]
    assert np.concatenate([table.ravel() for table in tables.values()]).tolist() == memory.tolist()
    for v in targets:
        tables[v][:] = -1
    assert (memory == -1).all()


def test_rows_are_unanswered_or_invalid_at_first() -> None:
    query, sizes = Query(precision="single"), (2, 3)
    memory = np.zeros(table_bytes(query, (1,), sizes, 3), np.uint8)
    answers = unanswered(query, (1,), sizes, 3, {1: "bad"}, memory)
    assert answers.status.tolist() == [UNANSWERED, INVALID, UNANSWERED]
    assert np.isnan(answers.log_value).all()
    assert np.isnan(answers.posteriors[1]).tolist() == [[False] * 3, [True] * 3, [False] * 3]
    assert answers.posteriors[1].dtype == np.float32
    # Of its own: counts of a batch are nobody else's.
    answers.ways["here"] += 2
    assert not answers.climbed
    assert not unanswered(query, (1,), sizes, 3, {}, memory).ways
