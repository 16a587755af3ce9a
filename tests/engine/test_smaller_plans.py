"""Smaller plans for some of the rows: every row is served, they pay, and the next batch gets the same ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers import strategies
from hypothesis import given
from hypothesis import strategies as st
from junctor.engine import smaller_plans
from junctor.engine.patterns import PatternPricer
from junctor.engine.smaller_plans import SmallerPlan, SmallerPlanCosts, rounded_shares, rows_by_plan
from junctor.evidence.batch import UNOBSERVED
from junctor.planning.shape import Pattern

# What the first columns make of the seconds of a row if they are cut out of its plan; the others make nothing of it.
SAVING = {0: 0.5, 1: 0.6, 2: 0.7}
COLUMNS = range(8)
WHOLE = Pattern(frozenset({9}), frozenset(COLUMNS))


def costs(once: float = 1.0, rows: int = 1 << 20, most: int = 99, group: float = 0.0) -> SmallerPlanCosts:
    """A row of the whole plan takes 10 microseconds, and plans fit that cut out so many columns."""

    def row(pattern: Pattern) -> float:
        return 1e-5 * math.prod(SAVING.get(v, 1.0) for v in pattern.sliced)

    def savings(pattern: Pattern) -> dict[int, float]:
        return {v: row(pattern) * (1 - SAVING.get(v, 1.0)) for v in pattern.weighted}

    prices = PatternPricer(row, lambda _: once, lambda pattern: len(pattern.sliced) <= most)
    return SmallerPlanCosts(prices, savings, group, rows, 16)


def columns_of(shares: float, **how: float) -> list[set[int]]:
    found = smaller_plans.smaller_plans(WHOLE, COLUMNS, np.full(8, shares), costs(**how))  # type: ignore[arg-type]
    for plan in found:
        assert plan.pattern == Pattern(WHOLE.sliced | plan.columns, WHOLE.weighted - plan.columns)
        assert plan.saved == pytest.approx(1e-5 - costs().prices.row(plan.pattern))
    assert [plan.saved for plan in found] == sorted((plan.saved for plan in found), reverse=True)
    return [set(plan.columns) for plan in found]


def test_columns_that_save_most_are_cut_out_where_most_rows_observe_them() -> None:
    assert columns_of(15 / 16)[0] == {0, 1, 2}
    # Fewer rows observe all three.
    assert {0, 1} in columns_of(3 / 4)
    assert {0} in columns_of(1 / 4, once=0.5)


def test_no_plan_that_takes_more_than_it_saves() -> None:
    assert columns_of(15 / 16, once=1e3) == []
    assert columns_of(15 / 16, rows=1 << 12) == []
    assert columns_of(15 / 16, group=10.0) == []
    assert columns_of(15 / 16, most=1) == []
    assert columns_of(1 / 1024) == []
    assert columns_of(15 / 16, most=2)[0] == {0}


@given(
    once=st.floats(0, 4), shares=st.lists(st.sampled_from([0.0, 1 / 4, 3 / 4, 15 / 16, 1.0]), min_size=8, max_size=8)
)
def test_plans_pay(once: float, shares: list[float]) -> None:
    priced = costs(once)
    found = smaller_plans.smaller_plans(WHOLE, COLUMNS, np.array(shares), priced)
    assert len(found) <= smaller_plans.MOST_PLANS
    rows = np.random.default_rng(1).random((1 << 14, 8)) < np.array(shares)
    served = np.full(len(rows), priced.prices.row(WHOLE))
    for plan in found:
        here = rows[:, sorted(plan.columns)].all(axis=1)
        served[here] = np.minimum(served[here], priced.prices.row(plan.pattern))
    saved = (priced.prices.row(WHOLE) - served.mean()) * priced.rows
    assert saved >= (smaller_plans.SURE - 0.1) * once * len(found)


def test_batches_of_a_kind_have_the_same_shares() -> None:
    rng = np.random.default_rng(1)
    for share in (0.0, 0.05, 0.2, 0.7, 0.95, 1.0):
        seen = {tuple(rounded_shares((rng.random((4096, 50)) < share).mean(axis=0)).tolist()) for _ in range(20)}
        assert len(seen) == 1
        (rounded,) = seen
        assert set(rounded) == {rounded[0]}
        assert rounded[0] == pytest.approx(share, rel=1, abs=0.0)


@given(data=st.data())
def test_every_row_is_served(data: st.DataObject) -> None:
    network = data.draw(strategies.networks(max_variables=6))
    batch = data.draw(strategies.evidence_batches(network, max_rows=12))
    variables = sorted(batch.states)
    chosen = data.draw(st.lists(st.frozensets(st.sampled_from(variables)), max_size=3)) if variables else []
    plans = [SmallerPlan(cut, Pattern(cut, frozenset(variables) - cut), 1.0) for cut in chosen]
    least = data.draw(st.sampled_from([0.0, 2.0]))
    rows = batch.valid
    parts = rows_by_plan(batch, rows, plans, least)
    assert sorted(np.concatenate(parts).tolist()) == rows.tolist()
    for plan, part in zip(plans, parts, strict=False):
        assert (np.diff(part) > 0).all()
        assert not part.size or part.size > least
        assert all((batch.states[v][part] != UNOBSERVED).all() for v in plan.columns)
    # A row is with the first plan that serves it, unless too few are.
    if not least:
        for row in parts[-1].tolist():
            assert not any(all(batch.states[v][row] != UNOBSERVED for v in plan.columns) for plan in plans)
