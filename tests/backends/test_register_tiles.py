"""Tiles: lists of terms against enumeration, the walk whose terms cost the least, prices that decide."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends import register_tiles as tiles
from junctor.backends.sparsity import NonzeroSupport
from junctor_kernels.gpu.blocks import TILE_SHAPES
from junctor_kernels.tables.axes import Contraction, contraction

# More than any backend has.
ALL_SHAPES = (*((1, n) for n in range(2, 9)), (2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (4, 2))


@st.composite
def products(draw: st.DrawFn) -> tuple[Contraction, list[np.ndarray]]:
    """A contraction of two tables that together have four axes, and which of their entries can differ from zero."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=4, max_size=4))
    scopes = [draw(st.lists(st.sampled_from(range(4)), unique=True).map(sorted).map(tuple)) for _ in range(2)]
    scopes[1] = tuple(sorted({*scopes[1], *range(4)} - {*scopes[0]} | {*scopes[1]}))
    kept = draw(st.integers(1, 3))
    what = contraction(tuple(range(kept)), tuple(range(kept, 4)), scopes, dict(enumerate(sizes)))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    share = draw(st.sampled_from([0.0, 0.2, 0.6]))
    return what, [rng.random(math.prod(sizes[v] for v in scope)) < share for scope in scopes]


def terms_of(what: Contraction, masks: list[np.ndarray], entries: list[int]) -> list[int]:
    """The terms that any of some kept entries has, one by one."""

    def at(k: int, s: int, r: int) -> int:
        strides = what.operands[k]
        kept, eliminated = np.unravel_index(s, what.kept or (1,)), np.unravel_index(r, what.eliminated or (1,))
        return int(np.dot(kept, strides.kept or (0,)) + np.dot(eliminated, strides.eliminated or (0,)))

    return [
        r
        for r in range(what.eliminated_entries)
        if any(all(mask[at(k, s, r)] for k, mask in enumerate(masks)) for s in entries)
    ]


@given(drawn=products(), factor=st.booleans(), shapes=st.sampled_from([ALL_SHAPES, TILE_SHAPES, tiles.CPU_SHAPES]))
def test_the_cheapest_walk_lists_the_terms_of_its_tiles(
    drawn: tuple[Contraction, list[np.ndarray]], factor: bool, shapes: tiles.Shapes
) -> None:
    what, masks = drawn
    rows = (1,) if factor else (0, 1)
    walks = tiles.walks(what, rows, factor, shapes)
    walk, terms = tiles.cheapest(what, walks, NonzeroSupport(dict(enumerate(masks))), range(len(masks)))
    costs = []
    for each in walks:
        listed = [terms_of(what, masks, entries) for entries in each.order.reshape(-1, each.size).tolist()]
        costs.append(sum(map(len, listed)) * each.term_cost)
        if each is walk:
            found = [terms.listed[b:e].tolist() for b, e in zip(terms.begins, terms.begins[1:], strict=False)]
            assert found == listed
    assert costs[walks.index(walk)] == min(costs)


@given(drawn=products())
def test_walks_cover_every_entry_and_share_what_tiles_read(drawn: tuple[Contraction, list[np.ndarray]]) -> None:
    what, _ = drawn
    for walk in tiles.walks(what, (0, 1), False, ALL_SHAPES):
        assert sorted(set(walk.order.tolist())) == list(range(what.kept_entries))
        assert walk.order.size <= tiles.MOST_PADDING * what.kept_entries
        lines, width = walk.shape
        offsets = [tiles.offsets(what.kept, what.operands[k].kept)[walk.order] for k in walk.rows]
        x, y = (each.reshape(-1, lines, width) for each in offsets)
        assert (x == x[:, :, :1]).all()
        assert lines == 1 or (y == y[:, :1]).all()


def test_tiles_read_as_few_rows_as_they_can() -> None:
    what = contraction((0, 1), (2,), [(0, 2), (1, 2)], {0: 9, 1: 8, 2: 5})
    best, *others, alone = tiles.walks(what, (0, 1), False, ALL_SHAPES)
    # Nine tiles that read six rows each for a term, nine of whose entries are there twice.
    assert (best.shape, best.tiles) == ((3, 3), 9)
    assert all(each.tiles * sum(each.shape) >= 9 * 6 for each in others)
    assert (alone.shape, alone.tiles) == ((1, 1), 72)


def test_only_the_best_walk_is_made_where_it_is_asked_for() -> None:
    what = contraction((0, 1), (2,), [(0, 2), (1, 2)], {0: 60, 1: 60, 2: 5})
    (best,) = tiles.walks(what, (0, 1), False, ALL_SHAPES, every=False)
    assert best.shape == tiles.walks(what, (0, 1), False, ALL_SHAPES)[0].shape == (3, 3)
