"""Prices before planning: in proportion to what they stand for, and plans made for the rows that will use them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.options import on_cpu
from junctor.backends import register_tiles as tiles
from junctor.backends import sparsity as support
from junctor.backends.cpu import CompiledProgram
from junctor.backends.numpy import Program
from junctor.engine import choose
from junctor.engine import plan_groups as pricing
from junctor.engine.engine import Engine
from junctor.engine.plan_groups import PatternChoice
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.evidence.patterns import patterns_of
from junctor.generate import layered
from junctor.model.network import Network
from junctor.model.query import Query
from junctor.planning import compile as planning
from junctor.planning.elimination import EliminationOrder, cliques_of
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern, shape_of
from junctor.strategies.facts import Facts
from junctor_kernels.tables import reference

NOTHING: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def network() -> Network:
    return layered(layers=5, width=5, states=3, parents=2, seed=1, zeros=0.3)


# Seconds of a cell that enters as a likelihood.
LIKELIHOOD = 1e-7


def holes(rows: int, variables: int) -> EvidenceBatch:
    """Some variables of three states, each missing in a tenth of the rows."""
    rng = np.random.default_rng(1)
    states = rng.integers(0, 3, (variables, rows)).astype(np.int32)
    states[rng.random(states.shape) < 0.1] = UNOBSERVED
    return EvidenceBatch(rows, dict(enumerate(states)))


def test_evidence_cut_out_is_cheaper_than_evidence_that_enters(network: Network) -> None:
    engine, batch = Engine(network, Query()), holes(40, 6)
    alone = pricing.row_tree_seconds(engine.facts, patterns_of(batch), batch)
    prices = pricing.compiled_prices(engine.facts, alone, LIKELIHOOD)
    cut, entering, none = (
        Pattern(frozenset(range(8)), NOTHING),
        Pattern(NOTHING, frozenset(range(8))),
        Pattern(NOTHING, NOTHING),
    )
    assert prices.row(cut) < prices.row(none) < prices.row(entering)
    assert prices.once(cut) < prices.once(none) < prices.once(entering)
    assert 0 < prices.per_row < math.inf
    plain = pricing.plain_prices(engine.facts)
    assert plain.row(cut) < plain.row(entering)
    assert plain.once(cut) < plain.once(none)
    assert plain.per_row == math.inf


def test_what_does_not_fit(network: Network) -> None:
    engine = Engine(network, Query())
    pattern = Pattern(frozenset(range(8)), NOTHING)
    entries = engine.facts.row_engine.work(pattern.sliced)[1]
    for allowed, fits in ((int(8 * entries), False), (int(8 * entries) + 1, True)):
        engine.facts.allowed = allowed
        assert pricing.compiled_prices(engine.facts, math.inf, LIKELIHOOD).fits(pattern) == fits


def test_one_pattern_is_planned_for_all_rows_to_come_and_several_for_those_that_are_here(network: Network) -> None:
    batch = holes(60, 8)
    engine = Engine(network, Query(), expected_rows=600)
    exact = patterns_of(batch).exact(np.arange(60))[0]
    assert engine.facts.uses(exact, batch) == 10 * len(exact.rows)
    several = engine.choice(batch).groups[-1]
    assert several.patterns > 1
    # A group of all rows comes again, too.
    again = len(several.rows) == batch.rows
    assert engine.facts.uses(several, batch) == (10 if again else 1) * len(several.rows)
    part = replace(several, rows=several.rows[1:])
    assert engine.facts.uses(part, batch) == len(part.rows)


def test_the_next_batch_of_the_same_kind_needs_no_new_plans(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """The columns of lowest price stay loose, though each batch misses a little more of one and less of another."""
    rng = np.random.default_rng(2)
    found = [
        EvidenceBatch(4000, {v: np.where(rng.random(4000) < 0.94, 0, UNOBSERVED).astype(np.int32) for v in range(12)})
        for _ in range(2)
    ]
    monkeypatch.setattr(Facts, "row_price", (2e-10, 1.8e-8))
    prices = pricing.compiled_prices(Facts(network, Query(), on_cpu(1 << 30)), math.inf, LIKELIHOOD)
    one, other = (PatternChoice(patterns_of(batch), prices, search=True).groups() for batch in found)
    assert one[0].pattern == other[0].pattern
    assert one[0].pattern.weighted


def test_no_plan_is_made_twice(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Pattern, int]] = []
    compile_plan = planning.compile_plan

    def counted(shape: Any, pattern: Pattern, targets: Any, explain: bool, rows: int) -> Plan:
        made.append((pattern, rows))
        return compile_plan(shape, pattern, targets, explain, rows)

    monkeypatch.setattr("junctor.planning.compile.compile_plan", counted)
    # Trees are no way out.
    monkeypatch.setattr(choose, "_has_room_for_shared", lambda *_: False)
    monkeypatch.setattr(choose, "row_tree_seconds", lambda *_: math.inf)
    engine, batch = Engine(network, Query()), holes(3000, 8)
    engine.answer(batch)
    groups = engine.choice(batch).groups
    assert made
    assert len(made) == len(set(made))
    # The first look at all patterns together plans for a single row.
    assert len({pattern for pattern, _ in made}) <= len(groups) + 1


def test_the_plan_with_the_fewest_operations_is_taken(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = planning.Problem(shape_of(network), Pattern(frozenset([3, 11]), NOTHING))
    good, order = planning.cheapest_plan(problem, 1)[0], tuple(sorted(problem.free()))
    graph = problem.graph()
    cliques = cliques_of(graph, order)
    # Claims to be small, and is not: the operations decide.
    poor = EliminationOrder(order, cliques, 1.0, "as numbered")
    monkeypatch.setattr(planning, "good_orders", lambda *_, **__: [poor, good])
    chosen, plan = planning.cheapest_plan(problem, 1)
    assert chosen is good
    assert plan.case_operations < planning.lay_out(problem, poor).case_operations


def test_what_is_kept_of_small_contractions_changes_nothing(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planning.compile_plan(shape_of(network), Pattern(frozenset([3, 11]), frozenset([5])))
    codes = []
    for small in (support.SMALL_CONTRACTION, support.SMALL_CONTRACTION, 0):
        monkeypatch.setattr(support, "SMALL_CONTRACTION", small)
        monkeypatch.setattr(tiles, "SMALL_CONTRACTION", small)
        program = Program(plan, network, reference.DOUBLE)
        codes.append(CompiledProgram(program, 32).code)
    for code in codes[1:]:
        for kept, new in zip(codes[0], code, strict=True):
            np.testing.assert_array_equal(kept, new)
