"""Plans: one checker of everything that has to hold, applied to plans of any network, pattern and query."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from helpers import strategies
from hypothesis import given
from hypothesis import strategies as st
from junctor.generate import grid
from junctor.model.errors import BudgetError
from junctor.planning import elimination
from junctor.planning.budget import format_bytes, parse_bytes, parse_told_bytes
from junctor.planning.chunk_search import candidates
from junctor.planning.compile import Problem, compile_plan
from junctor.planning.elimination import (
    CRITERIA,
    HOPELESS,
    MOST_BITS,
    EliminationOrder,
    GreedyElimination,
    Sizes,
    best_order,
    moral_graph,
    order_of,
)
from junctor.planning.junction_tree import JunctionTree, binary_joins, junction_tree
from junctor.planning.plan import Free, Likelihood, Plan, Potential, Reduce, Slice
from junctor.planning.savings import count_savings
from junctor.planning.shape import Pattern, Shape, bits, mask_of, shape_of


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    return shape_of(draw(strategies.networks(max_variables=10, max_joint=1 << 14)))


@st.composite
def patterns(draw: st.DrawFn, shape: Shape) -> Pattern:
    kinds = [draw(st.sampled_from("-sw")) for _ in shape.cardinalities]
    return Pattern(
        frozenset(v for v, kind in enumerate(kinds) if kind == "s"),
        frozenset(v for v, kind in enumerate(kinds) if kind == "w"),
    )


def check_tree(tree: JunctionTree, shape: Shape, scopes: list[tuple[int, ...]]) -> None:
    """Every scope lies in a clique, and the cliques of each variable hang together through separators."""
    members = [set(clique.scope) for clique in tree.cliques]
    for scope in scopes:
        assert not scope or any(clique.issuperset(scope) for clique in members)
    for i, clique in enumerate(tree.cliques):
        if clique.parent is not None:
            assert clique.parent > i
            assert set(clique.separator) == members[i] & members[clique.parent]
    for v in range(len(shape.cardinalities)):
        holders = [i for i, clique in enumerate(members) if v in clique]
        tops = [i for i in holders if tree.cliques[i].parent is None or v not in members[tree.cliques[i].parent]]
        assert len(tops) == (1 if holders else 0)


def check_plan(plan: Plan, targets: frozenset[int] | None) -> None:
    alive: set[int] = set()
    made: set[int] = set()
    loaded: list[int] = list(plan.constants)
    for step in plan.steps:
        if isinstance(step, Free):
            assert plan.tables[step.table].per_case
            alive.remove(step.table)
            continue
        assert step.out not in made
        made.add(step.out)
        alive.add(step.out)
        if isinstance(step, Reduce):
            assert alive.issuperset(step.operands)
            scope = {v for operand in step.operands for v in plan.tables[operand].scope}
            out = set(plan.tables[step.out].scope)
            assert not out & set(step.eliminated)
            assert scope <= out | set(step.eliminated)
            assert plan.tables[step.out].per_case == any(plan.tables[t].per_case for t in step.operands)
        elif isinstance(step, Potential):
            loaded.extend(step.factors)
            assert not any(set(plan.shape.scopes[f]) & plan.pattern.sliced for f in step.factors)
        elif isinstance(step, Slice):
            loaded.append(step.factor)
        else:
            assert isinstance(step, Likelihood)
            assert step.variable in plan.pattern.weighted
    assert made == set(range(len(plan.tables)))
    assert len(loaded) == len(set(loaded))
    if targets is None:
        assert sorted(loaded) == list(range(len(plan.shape.scopes)))
    if not plan.traceback:
        wanted = set(range(len(plan.shape.cardinalities))) if targets is None else set(targets)
        assert {v for v, _ in plan.marginals} == wanted - plan.pattern.sliced
        assert not any(plan.tables[table].per_case for table in alive)
    assert plan.peak_case_entries() >= max((t.entries for t in plan.tables if t.per_case), default=0)


@given(data=st.data(), shape=shapes())
def test_every_plan_keeps_the_rules(data: st.DataObject, shape: Shape) -> None:
    pattern = data.draw(patterns(shape))
    everyone = st.frozensets(st.sampled_from(range(len(shape.cardinalities))))
    targets = data.draw(st.none() | everyone)
    explain = data.draw(st.booleans()) and targets is None
    lean = data.draw(st.booleans())
    plan = compile_plan(shape, pattern, targets, explain, rows=100, lean=lean)
    check_plan(plan, targets)
    assert plan == compile_plan(shape, pattern, targets, explain, rows=100, lean=lean)
    assert json.loads(plan.to_json())["criterion"] in CRITERIA


@given(data=st.data(), shape=shapes())
def test_every_order_makes_a_junction_tree(data: st.DataObject, shape: Shape) -> None:
    pattern = data.draw(patterns(shape))
    scopes = [tuple(v for v in scope if v not in pattern.sliced) for scope in shape.scopes]
    free = [v for v in range(len(shape.cardinalities)) if v not in pattern.sliced]
    order = best_order(moral_graph(len(shape.cardinalities), scopes), frozenset(free), shape.cardinalities, 100)
    assert sorted(order.variables) == free
    tree = junction_tree(order, shape)
    check_tree(tree, shape, scopes)
    assert tree.total_entries(shape) == pytest.approx(order.entries)
    for a in tree.cliques:
        assert not any(a is not b and set(a.scope) <= set(b.scope) for b in tree.cliques)
    joined = binary_joins(tree, shape)
    check_tree(joined, shape, scopes)
    # The last join is left out where it would be as large as the clique.
    assert all(len(below) <= 3 for below in joined.children())


def test_chain_is_eliminated_without_fill() -> None:
    shape = Shape((2,) * 30, tuple((i, i + 1) for i in range(29)), directed=False)
    graph, everything = moral_graph(30, shape.scopes), frozenset(range(30))
    for criterion in CRITERIA:
        assert GreedyElimination(graph, everything, [2] * 30).by(criterion).entries == 29 * 4
    tree = junction_tree(best_order(graph, everything, shape.cardinalities, 0), shape)
    assert max(_depths(tree)) == 14  # 29 cliques in a row, rooted in the middle


def test_grid_has_the_width_that_theory_says() -> None:
    side = 6
    scopes = [(side * i + j, side * i + j + 1) for i in range(side) for j in range(side - 1)]
    scopes += [(side * i + j, side * i + j + side) for i in range(side - 1) for j in range(side)]
    shape = Shape((2,) * side**2, tuple(scopes), directed=False)
    plan = compile_plan(shape, Pattern(frozenset(), frozenset()))
    assert max(plan.clique_entries) <= 2 ** (side + 1)


def test_work_of_a_clique_does_not_grow_with_its_neighbours_squared() -> None:
    def operations(arms: int) -> int:
        scopes = (tuple(range(8)), *((i % 8, (i + 1) % 8, 8 + i) for i in range(arms)))
        plan = compile_plan(Shape((2,) * (8 + arms), scopes, False), Pattern(frozenset(), frozenset()))
        return plan.shared_operations

    assert operations(80) < 3 * operations(40)


def test_the_root_is_a_separator_so_that_the_total_is_cheap() -> None:
    shape = Shape((2, 50, 50, 2, 50, 50), ((0, 1, 2), (0, 3), (3, 4, 5)), False)
    plan = compile_plan(shape, Pattern(frozenset(), frozenset({1})))
    (total,) = (step for step in plan.steps if isinstance(step, Reduce) and step.phase == "total")
    assert plan.work(total) == 4


def test_two_joints_of_an_edge_have_all_of_its_variables_and_the_ends_in_common() -> None:
    problem = Problem(shape_of(grid(14, 14, states=2)), Pattern(frozenset(), frozenset()))
    plan = next(each.plan for each in candidates(problem, 1) if each.lean and each.order.criterion == "sweep")
    joints: dict[tuple[int, ...], list[Reduce]] = {}
    for step in plan.steps:
        if isinstance(step, Reduce) and step.phase == "marginal" and len(step.operands) == 2:
            joints.setdefault(step.operands, []).append(step)
    halved = [pair for pair in joints.values() if len(pair) == 2 and len(pair[0].eliminated) > 1]
    assert len(halved) > 10
    for one, other in halved:
        scope = plan.tables[one.operands[0]].scope
        assert set(scope) == {v for step in (one, other) for v in plan.tables[step.out].scope}
        common = set(scope).difference(one.eliminated, other.eliminated)
        assert {scope[0], scope[-1]} <= common
        assert len(common) >= len(scope) // 2


def test_products_that_several_messages_need_are_made_once() -> None:
    # A hub of three wide arms: each message out of it multiplies the messages of the other two.
    scopes = ((0, 1, 2, 3), (0, 4), (1, 5), (2, 6), (3, 7))
    plan = compile_plan(Shape((6,) * 8, scopes, False), Pattern(frozenset(), frozenset(range(4, 8))))
    products = [step.operands for step in plan.steps if isinstance(step, Reduce) and step.phase == "product"]
    assert products
    assert len(set(products)) == len(products)


def test_savings_count_the_same_question_without_them() -> None:
    arms = 12
    scopes = ((0,), *((0, 1 + i) for i in range(arms)), *((1 + i, 1 + arms + i) for i in range(arms)))
    shape = Shape((4,) * (1 + 2 * arms), scopes, True)
    pattern = Pattern(frozenset(range(1 + arms, 1 + 2 * arms)), frozenset())
    found = {each.name: each for each in count_savings(shape, pattern, rows=1)}
    assert {each.after for each in found.values()} == {compile_plan(shape, pattern, rows=1).case_operations}
    assert all(each.before >= each.after for each in found.values())
    assert found["evidence cut out before triangulation"].before > found["evidence cut out before triangulation"].after
    joins = found["cliques of many neighbours joined in pairs"]
    assert joins.before > joins.after
    assert "barren variables dropped" not in found
    one_arm = Pattern(frozenset({1 + arms}), frozenset())
    (barren,) = (each for each in count_savings(shape, one_arm, [0], rows=1) if each.name == "barren variables dropped")
    assert barren.before >= barren.after
    assert barren.after == compile_plan(shape, one_arm, [0], rows=1).case_operations


def test_barren_variables_are_dropped_only_when_nobody_asks() -> None:
    shape = Shape((2, 2, 2), ((0,), (0, 1), (1, 2)), directed=True)
    nothing = Pattern(frozenset(), frozenset())
    assert len(compile_plan(shape, nothing, [0]).clique_entries) == 1
    assert compile_plan(shape, nothing, [0]).total_clique_entries == 2
    assert compile_plan(shape, nothing, None).total_clique_entries == 8
    assert compile_plan(shape, Pattern(frozenset({2}), frozenset()), [0]).total_clique_entries == 4


def test_messages_that_no_evidence_reaches_are_shared() -> None:
    shape = Shape((2,) * 6, tuple((i, i + 1) for i in range(5)), directed=False)
    plan = compile_plan(shape, Pattern(frozenset(), frozenset()))
    assert plan.case_operations == 0
    plan = compile_plan(shape, Pattern(frozenset({0}), frozenset()))
    assert 0 < plan.case_operations < plan.case_operations + plan.shared_operations


def test_bits_and_masks_are_inverse() -> None:
    assert list(bits(mask_of([5, 0, 300]))) == [0, 5, 300]


@pytest.mark.parametrize(
    ("text", "size"), [("4GiB", 2**32), ("500 MB", 5 * 10**8), ("1e9", 10**9), ("64KiB", 2**16), ("2g", 2**31)]
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "4 XB", "-1GB", "nan", "inf GB", "0"])
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(BudgetError, match="expected"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["4", " 16 ", "512", "1.5"])
def test_few_bytes_have_a_unit(text: str) -> None:
    with pytest.raises(BudgetError, match=f"found the size '{text}', .* was {text.strip()}GiB meant"):
        parse_told_bytes(text)
    # A program may count bytes.
    assert parse_bytes(text) == parse_told_bytes(f"{text.strip()}B") == int(float(text))
    assert parse_told_bytes("1000") == 1000


def test_bytes_are_written_for_people() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1536, 2**40)] == ["0 B", "1023 B", "1.5 KiB", "1.0 TiB"]
    assert math.isclose(parse_bytes("1.5KiB"), 1536)


def _depths(tree: JunctionTree) -> list[int]:
    depth: dict[int, int] = {}
    for i in range(len(tree.cliques) - 1, -1, -1):
        parent = tree.cliques[i].parent
        depth[i] = 0 if parent is None else depth[parent] + 1
    return list(depth.values())


def test_a_notebook_shows_a_plan() -> None:
    plan = compile_plan(
        Shape((2, 2, 2), ((0,), (0, 1), (1, 2)), True), Pattern(frozenset([2]), frozenset()), None, False, rows=1
    )
    shown = plan._repr_html_()
    assert f"<td>{plan.case_operations:,}</td>" in shown
    assert "<td>variables with evidence</td><td>1</td>" in shown


def test_nobody_waits_for_a_search_whose_caller_is_gone() -> None:
    assert elimination._apart(lambda: 3).result() == 3
    with pytest.raises(ZeroDivisionError):
        elimination._apart(lambda: 1 // 0).result()
    code = "import time; from junctor.planning.elimination import _apart; _apart(lambda: time.sleep(60))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)


def test_nobody_counts_the_entries_of_cliques_without_end() -> None:
    """Orders are abandoned, and nothing is laid out in joins and paths, where no memory holds the cliques."""
    wide = [(v, (v * k) % 2503) for v in range(2503) for k in (7, 31, 1201)]
    graph, sizes = moral_graph(2503, wide), Sizes([2] * 2503)
    assert order_of(graph, tuple(range(2503)), sizes, "sweep", HOPELESS) == EliminationOrder((), (), math.inf, "sweep")
    greedy = GreedyElimination(graph, frozenset(range(2503)), [2] * 2503)
    assert math.isinf(greedy.by("min-fill", HOPELESS).entries)
    whole = greedy.by("min-fill")
    assert sorted(whole.variables) == list(range(2503))
    assert 2.0**MOST_BITS <= whole.entries < math.inf
