"""Passes side by side: each after those that it needs, and tables there for as long as anybody reads them."""

from __future__ import annotations

from itertools import pairwise

from helpers.chunk_plans import cut_grid
from hypothesis import given
from hypothesis import strategies as st
from junctor.placement.pass_spans import ABREAST, side_by_side
from junctor.planning.chunks import ChunkPlan


def needs(chunks: ChunkPlan) -> list[set[int]]:
    """Return for each pass those that make what it reads."""
    made = {table: n for n, each in enumerate(chunks.passes) for table in each.stores}
    return [{made[table] for table in each.loads if table in made} for each in chunks.passes]


@given(st.integers(3, 6), st.integers(3, 6), st.integers(40, 400), st.data())
def test_every_pass_once_after_those_that_it_needs(rows: int, columns: int, working: int, data: st.DataObject) -> None:
    chunks = cut_grid(rows, columns, working)
    count = len(chunks.passes)
    seconds = data.draw(st.lists(st.floats(1e-3, 1e3), min_size=count, max_size=count))
    found = side_by_side(chunks, seconds)
    assert sorted(map(id, found.passes)) == sorted(map(id, chunks.passes))
    assert all(one[0] <= other[0] for one, other in pairwise(found.spans))
    for n, (begin, end) in enumerate(found.spans):
        assert begin < end
        assert all(found.spans[other][1] <= begin for other in needs(found)[n])
        at_begin = [other for other, span in enumerate(found.spans) if span[0] <= begin < span[1]]
        assert len(at_begin) <= ABREAST
        assert found.beside[n] == max(other for other, span in enumerate(found.spans) if span[0] < end)
    assert max(end for _, end in found.spans) <= sum(seconds) * (1 + 1e-9)


@given(st.integers(3, 6), st.integers(3, 6), st.integers(40, 400), st.data())
def test_tables_last_until_all_that_read_them_have_ended(
    rows: int, columns: int, working: int, data: st.DataObject
) -> None:
    chunks = cut_grid(rows, columns, working)
    count = len(chunks.passes)
    found = side_by_side(chunks, data.draw(st.lists(st.floats(0.1, 9), min_size=count, max_size=count)))
    lives = found.lifetimes()
    for n, each in enumerate(found.passes):
        for table in {*each.loads, *each.stores}:
            first, last = lives[table]
            assert first <= n
            # Whatever begins behind the last one begins when this pass has ended.
            assert all(found.spans[other][0] >= found.spans[n][1] for other in range(last + 1, count))
    assert {t for t, (first, _) in lives.items() if first < 0} == {
        t for t, (first, _) in chunks.lifetimes().items() if first < 0
    }


def test_two_branches_take_less_than_one_after_the_other() -> None:
    chunks = cut_grid(6, 6, 64)
    found = side_by_side(chunks, [1.0] * len(chunks.passes))
    assert max(end for _, end in found.spans) < 0.7 * len(chunks.passes)
    assert chunks.beside == tuple(range(len(chunks.passes)))
