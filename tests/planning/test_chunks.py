"""Cut plans: every invariant that propagation in chunks relies on, for any network and any working memory."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from helpers import strategies
from helpers.chunk_plans import ENDLESS, least_working, spilling
from hypothesis import given
from hypothesis import strategies as st
from junctor.generate import grid
from junctor.model.network import Network
from junctor.planning import chunk_search
from junctor.planning import chunks as chunks_module
from junctor.planning.chunk_search import (
    ChunkPrices,
    MemorySplit,
    TooLongError,
    candidates,
    cheapest_chunks,
    waiting_entries,
)
from junctor.planning.chunks import (
    ChunkPass,
    ChunkPlan,
    PassRecord,
    TooSmallError,
    chunk_plan,
    loaded_entries,
    records_of,
)
from junctor.planning.compile import Problem, compile_plan
from junctor.planning.plan import Plan, Reduce
from junctor.planning.recompute import made_again
from junctor.planning.shape import Pattern, shape_of

NOTHING = Pattern(frozenset(), frozenset())
# Operations, and what comes into tasks and out of them.
MOVED = ChunkPrices(
    lambda plan: plan.operations, lambda chunks, _: chunks.plan.operations + chunks.loaded + chunks.stored, 1e-4
)


def check(chunks: ChunkPlan, working: int) -> None:
    """Everything that has to hold of a cut plan."""
    plan = chunks.plan
    reductions = [step for step in plan.steps if isinstance(step, Reduce)]
    assert sorted(step.out for each in chunks.passes for step in each.steps) == sorted(step.out for step in reductions)
    there = {step.out for step in plan.steps if not isinstance(step, Reduce) and hasattr(step, "out")}
    for each in chunks.passes:
        check_pass(chunks, each, there)
        there |= set(each.stores)
    assert there.issuperset(plan.totals)
    assert there.issuperset(table for _, table in plan.marginals)
    assert sum(work(plan, each) for each in chunks.passes) == plan.operations
    assert max((held(plan, each) for each in chunks.passes), default=0) == chunks.working <= working
    for table, cuts in chunks.cuts.items():
        assert set(cuts) <= set(plan.tables[table].scope)
        assert sorted(chunks.layout(table)) == sorted(plan.tables[table].scope)
        assert chunks.piece(table) * plan.shape.entries(cuts) == plan.tables[table].entries


def check_pass(chunks: ChunkPlan, each: ChunkPass, there: set[int]) -> None:
    plan, made = chunks.plan, set[int]()
    for step in each.steps:
        assert made.union(each.loads).issuperset(step.operands)
        assert set(step.operands) <= made | there
        made.add(step.out)
        # A step that does not depend on what is held constant would be done more than once.
        scopes = [plan.tables[table].scope for table in (*step.operands, step.out)]
        assert set(each.fixed) <= set().union(*scopes)
    assert not any(set(each.fixed) & set(step.eliminated) for step in each.steps[:-1])
    assert each.summed == tuple(v for v in each.fixed if v in each.steps[-1].eliminated)
    assert each.fixed[len(each.fixed) - len(each.summed) :] == each.summed
    # Tasks find their parts as whole pieces.
    for table in (*each.loads, *each.stores):
        assert set(each.fixed) & set(plan.tables[table].scope) <= set(chunks.cuts[table])


def work(plan: Plan, each: ChunkPass) -> int:
    """Entry operations of all tasks of a pass."""
    sizes, total = plan.shape.cardinalities, 0
    for step in each.steps:
        axes = {*plan.tables[step.out].scope, *step.eliminated} - set(each.fixed)
        total += math.prod(sizes[v] for v in axes) * max(1, len(step.operands))
    return total * math.prod(sizes[v] for v in each.fixed)


def held(plan: Plan, each: ChunkPass) -> int:
    """The most entries that a task holds, by doing nothing but holding and forgetting."""

    def entries(table: int) -> int:
        return plan.shape.entries(v for v in plan.tables[table].scope if v not in each.fixed)

    holding, most = set[int](), 0
    for n, step in enumerate(each.steps):
        holding |= {*step.operands, step.out}
        most = max(most, sum(map(entries, holding)))
        holding &= {table for later in each.steps[n + 1 :] for table in (*later.operands, later.out)}
    return most + (entries(each.out) if each.summed else 0)


@given(network=strategies.networks(), data=st.data())
def test_cut_plans_keep_what_they_promise(network: Network, data: st.DataObject) -> None:
    variables = st.sets(st.integers(0, len(network.variables) - 1))
    pattern = Pattern(frozenset(data.draw(variables)), frozenset(data.draw(variables)))
    plan = compile_plan(shape_of(network), pattern, rows=1, lean=data.draw(st.booleans()))
    working = least_working(plan) + data.draw(st.sampled_from([0, 1, 5, 40, 500]))
    chunks = chunk_plan(plan, working, ENDLESS, 0)
    check(chunks, working)
    assert not chunks.on_disk
    # What is made may go to disk, what is there from the beginning stays.
    with_disk = chunk_plan(plan, working, spilling(chunks), ENDLESS)
    check(with_disk, working)
    assert with_disk.peak(on_disk=False) <= spilling(chunks)
    peak = with_disk.peak(on_disk=True)
    if peak:
        with pytest.raises(TooSmallError, match=f"disk: {peak} needed, {peak - 1} allowed"):
            chunk_plan(plan, working, spilling(chunks), peak - 1)


@given(network=strategies.networks(), seed=st.integers(0, 1 << 30))
def test_what_one_more_chunk_variable_brings_in_is_what_its_loops_do(network: Network, seed: int) -> None:
    plan, random = compile_plan(shape_of(network), NOTHING, rows=1), Random(seed)
    steps = [step for step in plan.steps if isinstance(step, Reduce)]
    for last in steps:
        own = sorted({v for table in last.operands for v in plan.tables[table].scope})
        # Operands of other steps have none, some or all of what is held constant.
        loads = tuple(dict.fromkeys((*last.operands, *random.choice(steps).operands)))
        chosen = random.sample(own, random.randint(0, len(own)))
        others = set(own).difference(chosen)
        parts = {table: chunks_module.part(plan, table, chosen) for table in loads}
        found = chunks_module._loaded_with(plan, chosen, last, parts, others)
        assert found.keys() == others
        for v in others:
            summed = tuple(each for each in (*chosen, v) if each in last.eliminated)
            fixed = (*(each for each in (*chosen, v) if each not in summed), *summed)
            assert found[v] == loaded_entries(plan, ChunkPass((last,), fixed, summed, loads, ()))


@given(network=strategies.networks(), data=st.data())
def test_passes_are_made_again_of_their_records_and_others_are_refused(network: Network, data: st.DataObject) -> None:
    nothing = Pattern(frozenset(), frozenset())
    plan = compile_plan(shape_of(network), nothing, rows=1, lean=data.draw(st.booleans()))
    working = least_working(plan) + data.draw(st.sampled_from([0, 5, 40]))
    chunks = chunk_plan(plan, working, ENDLESS, 0)
    records = list(records_of(chunks))
    again = chunk_plan(plan, working, ENDLESS, 0, records)
    assert (again.passes, again.cuts, again.working) == (chunks.passes, chunks.cuts, chunks.working)
    numbers = st.integers(-1, len(plan.steps)).map(lambda n: (n,))
    for _ in range(3):
        at, what = (
            data.draw(st.integers(0, len(records))),
            data.draw(st.sampled_from(["drop", "move", "steps", "fixed"])),
        )
        changed = list(records)
        taken = changed.pop(at) if at < len(changed) else None
        if what == "move" and taken is not None:
            changed.insert(data.draw(st.integers(0, len(changed))), taken)
        elif what == "steps" and taken is not None:
            changed.insert(at, taken._replace(steps=data.draw(st.permutations(taken.steps)) or data.draw(numbers)))
        elif what == "fixed" and taken is not None:
            changed.insert(at, taken._replace(fixed=(*taken.fixed[:1], *data.draw(numbers))))
        try:
            found = chunk_plan(plan, working, ENDLESS, 0, [PassRecord(tuple(a), tuple(b)) for a, b in changed])
        except ValueError:
            continue
        # Another plan that does the same work.
        check(found, working)
        assert sorted(step.out for each in found.passes for step in each.steps) == sorted(
            step.out for each in chunks.passes for step in each.steps
        )


@pytest.mark.parametrize("working", [1 << 10, 1 << 12])
def test_both_messages_of_an_edge_come_in_once_for_all_marginals(working: int) -> None:
    plan = compile_plan(shape_of(grid(14, 14, states=2, seed=1)), NOTHING, rows=1, lean=True)
    chunks = chunk_plan(plan, working, ENDLESS, 0)
    check(chunks, working)
    made = {step.out: n for n, each in enumerate(chunks.passes) for step in each.steps}
    joints: dict[tuple[int, ...], set[int]] = {}
    for step in plan.steps:
        if isinstance(step, Reduce) and step.phase == "marginal" and len(step.operands) > 1:
            joints.setdefault(step.operands, set()).add(made[step.out])
    assert max(map(len, joints.values())) == 1
    # Nor once more for P(e).
    (total,) = (step for step in plan.steps if isinstance(step, Reduce) and step.phase == "total")
    assert total.operands[0] in dict(map(reversed, plan.marginals))


def test_more_memory_moves_less_and_consecutive_steps_share_a_pass() -> None:
    plan = compile_plan(shape_of(grid(14, 14, states=2, seed=1)), NOTHING, rows=1)
    cuts = [chunk_plan(plan, working, ENDLESS, 0) for working in (1 << 8, 1 << 11, 1 << 14, 1 << 20)]
    for chunks in cuts:
        check(chunks, chunks.working)
    moved = [chunks.loaded + chunks.stored for chunks in cuts]
    assert moved == sorted(moved, reverse=True)
    assert [chunks.tasks for chunks in cuts] == sorted((chunks.tasks for chunks in cuts), reverse=True)
    assert cuts[-1].tasks == len(cuts[-1].passes)


def test_the_more_steps_share_a_pass_the_less_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(shape_of(grid(14, 14, states=2, seed=1)), NOTHING)
    # That keeps few messages; of the others each is stored for its way back.
    plan = next(each.plan for each in candidates(problem, 1) if each.order.criterion == "sweep")
    moved = []
    for steps in (1, 2, 4, 16, chunks_module.MOST_STEPS):
        monkeypatch.setattr(chunks_module, "MOST_STEPS", steps)
        chunks = chunk_plan(plan, 1 << 14, ENDLESS, 0)
        check(chunks, 1 << 14)
        moved.append(chunks.loaded + chunks.stored)
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < moved[0] / 4


def test_the_cheapest_order_is_kept() -> None:
    problem = Problem(shape_of(grid(10, 10, states=2, seed=1)), NOTHING)
    room = MemorySplit(1 << 12, 1 << 30, 0)
    chunks, found = cheapest_chunks(problem, 8, lambda _: [room, MemorySplit(1 << 9, 1 << 30, 0)], MOVED)
    assert found == room
    every = [chunk_plan(each.plan, room.working // 8, room.memory // 8, 0) for each in candidates(problem, 1)]
    assert len(every) >= 4
    seconds = [MOVED.seconds(each, room) for each in every]
    assert MOVED.seconds(chunks, room) == min(seconds) < max(seconds)
    assert cheapest_chunks(problem, 8, lambda _: [room], MOVED)[0].passes == chunks.passes
    for each in candidates(problem, 1):
        assert waiting_entries(each.plan) <= chunk_plan(each.plan, 1 << 9, ENDLESS, 0).peak(on_disk=False)


def test_the_plan_that_takes_least_at_best_is_cut_for_each_split() -> None:
    problem = Problem(shape_of(grid(10, 10, states=2, seed=1)), NOTHING)
    splits = [MemorySplit(1 << size, 1 << 30, 0) for size in (9, 10, 11, 12, 13, 14)]
    cut: list[tuple[Plan, int]] = []

    def seconds(chunks: ChunkPlan, split: MemorySplit) -> float:
        cut.append((chunks.plan, splits.index(split)))
        return MOVED.seconds(chunks, split)

    # The most operations take least here.
    prices = ChunkPrices(lambda plan: -plan.operations, seconds, 0.0)
    chunks, found = cheapest_chunks(problem, 8, lambda _: splits, prices)
    most = max((each.plan for each in candidates(problem, 1)), key=lambda plan: plan.operations)
    assert [number for plan, number in cut if plan.operations == most.operations][: len(splits)] == list(range(6))
    assert cut[0][0].operations == most.operations
    assert MOVED.seconds(chunks, found) == min(
        MOVED.seconds(chunk_plan(plan, splits[number].working // 8, 1 << 27, 0), found) for plan, number in cut
    )


@pytest.mark.parametrize("observed", [[0, 9, 90, 99], [5], [44, 45, 54, 55], list(range(0, 100, 7))])
def test_evidence_leaves_a_sweep_its_levels(observed: list[int]) -> None:
    """Vertices of a grid at the same distance from a corner stay next to each other, whatever is observed."""
    shape = shape_of(grid(10, 10, states=2, seed=1))

    def entries(pattern: Pattern) -> float:
        orders = [each.order for each in candidates(Problem(shape, pattern), 1)]
        return next(order.entries for order in orders if order.criterion == "sweep")

    assert entries(Pattern(frozenset(observed), frozenset())) <= entries(NOTHING)


def test_what_misses_least_is_named() -> None:
    problem = Problem(shape_of(grid(10, 10, states=2, seed=1)), NOTHING)
    with pytest.raises(TooSmallError) as refused:
        cheapest_chunks(problem, 8, lambda _: [MemorySplit(1 << 12, 1 << 14, 100)], MOVED)
    assert (refused.value.where, refused.value.allowed) == ("disk", 100)
    enough = MemorySplit(1 << 12, 1 << 14, refused.value.needed)
    assert cheapest_chunks(problem, 8, lambda _: [enough], MOVED)[1] == enough
    with pytest.raises(TooSmallError, match="working"):
        cheapest_chunks(problem, 8, lambda _: [MemorySplit(8, 1 << 30, 0)], MOVED)
    with pytest.raises(TooLongError):
        cheapest_chunks(Problem(shape_of(grid(20, 20, states=16)), NOTHING), 8, lambda _: [enough], MOVED)


def test_plans_far_beyond_all_room_are_not_priced() -> None:
    """To count their work takes as long as to lay them out; the one that misses least is named, and made smaller."""
    problem, split = Problem(shape_of(grid(10, 10, states=2, seed=1)), NOTHING), MemorySplit(64, 64, 64)
    priced: list[Plan] = []

    def least(plan: Plan) -> float:
        priced.append(plan)
        return 1.0

    with pytest.raises(TooSmallError) as refused:
        cheapest_chunks(problem, 8, lambda _: [split], replace(MOVED, least=least, room=192))
    waiting = min(waiting_entries(each.plan) for each in candidates(problem, 1))
    assert (refused.value.where, refused.value.needed, refused.value.allowed) == ("disk", 8 * waiting, 64)
    first, *smaller = priced
    assert waiting_entries(first) == waiting
    assert [made_again(plan).messages > 0 for plan in smaller] == [True]


def test_plans_may_have_fewer_splits_than_others() -> None:
    problem, first = Problem(shape_of(grid(6, 6, states=2, seed=1)), NOTHING), set[int]()
    splits = [MemorySplit(8, 1 << 20, 0), MemorySplit(1 << 14, 1 << 20, 0)]

    def ways(plan: Plan) -> list[MemorySplit]:
        first.update(() if first else (id(plan),))
        return splits if id(plan) in first else splits[1:]

    expected = cheapest_chunks(problem, 8, lambda _: splits[1:], MOVED)
    found = cheapest_chunks(problem, 8, ways, MOVED)
    assert (found[0].passes, found[1]) == (expected[0].passes, splits[1])


@pytest.mark.parametrize("observed", [[], list(range(16))])
def test_nothing_fits_no_memory(observed: list[int]) -> None:
    """Even where nothing is left to propagate, records may have taken more than there is."""
    plan = compile_plan(shape_of(grid(4, 4, states=2, seed=1)), Pattern(frozenset(observed), frozenset()), rows=1)
    assert chunk_plan(plan, 1 << 20, 1 << 20, 0)
    with pytest.raises(TooSmallError, match="-1 allowed"):
        chunk_plan(plan, -1, 1 << 20, 0)
    with pytest.raises(TooSmallError):
        chunk_plan(plan, 1 << 20, -1, 0)


def test_plans_that_take_too_long_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, enough = Problem(shape_of(grid(8, 8, states=2, seed=1)), NOTHING), MemorySplit(1 << 20, 1 << 20, 0)
    monkeypatch.setattr(chunk_search, "chunk_plan", lambda *_: pytest.fail("a plan was cut"))
    with pytest.raises(TooLongError) as refused:
        cheapest_chunks(problem, 8, lambda _: [enough], replace(MOVED, most=10.0))
    assert refused.value.seconds == min(each.plan.operations for each in candidates(problem, 1))
    # By the entries of cliques alone, before anything is laid out.
    monkeypatch.setattr(chunk_search, "lay_out", lambda *_: pytest.fail("a plan was laid out"))
    with pytest.raises(TooLongError) as refused:
        cheapest_chunks(problem, 8, lambda _: [enough], replace(MOVED, most=10.0, entry=0.1))
    assert refused.value.seconds is not None
    assert refused.value.seconds > 10
