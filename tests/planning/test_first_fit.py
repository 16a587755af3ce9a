"""First fit: every piece at the lowest offset that is free for its whole life."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from junctor.planning.first_fit import aligned, first_fit

Pieces = list[tuple[int, int, int]]


@st.composite
def pieces(draw: st.DrawFn) -> Pieces:
    """Draw the first and last moment and the size of each piece."""
    moment, size = st.integers(0, 20), st.integers(1, 9)
    drawn = draw(st.lists(st.tuples(moment, st.integers(0, 8), size), max_size=40))
    return [(first, first + length, size) for first, length, size in drawn]


def naive(pieces: Pieces, align: int) -> tuple[list[int], int]:
    """Try one offset after the other."""
    offsets: dict[int, int] = {}
    for i in sorted(range(len(pieces)), key=lambda i: pieces[i][0]):
        first, _, size = pieces[i]
        others = [j for j in offsets if pieces[j][1] >= first]
        start = 0
        while any(start < offsets[j] + aligned(pieces[j][2], align) and offsets[j] < start + size for j in others):
            start += align
        offsets[i] = start
    total = max((offsets[i] + aligned(size, align) for i, (_, _, size) in enumerate(pieces)), default=0)
    return [offsets[i] for i in range(len(pieces))], total


@given(pieces(), st.sampled_from([1, 2, 4]))
def test_pieces_lie_at_the_first_offset_that_is_free(pieces: Pieces, align: int) -> None:
    lifetimes = {i: (first, last) for i, (first, last, _) in enumerate(pieces)}
    sizes = {i: size for i, (*_, size) in enumerate(pieces)}
    offsets, total = first_fit(lifetimes, sizes, align)
    assert ([offsets[i] for i in range(len(pieces))], total) == naive(pieces, align)


def test_pieces_without_a_size_take_nothing() -> None:
    assert first_fit({"a": (0, 1), "b": (0, 2), "c": (2, 3)}, {"a": 4, "b": 0, "c": 4}) == ({"a": 0, "b": 4, "c": 0}, 4)
