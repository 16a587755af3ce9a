"""Messages that are made again in place of waiting, and variables to be held constant: the same answers."""

from __future__ import annotations

import pytest
from helpers import strategies
from helpers.blocks import blocks_of, compare
from helpers.chunk_plans import ENDLESS, least_working
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends.numpy import Program
from junctor.generate import grid
from junctor.out_of_core.program import ChunkedProgram
from junctor.planning.chunk_search import Candidate, _with_fewer, candidates
from junctor.planning.chunks import chunk_plan
from junctor.planning.compile import Problem, compile_plan
from junctor.planning.plan import Plan, Reduce
from junctor.planning.recompute import LEAST_WAIT, Drop, Waiting, made_again, with_drops
from junctor.planning.shape import Pattern, shape_of
from junctor.planning.slices import best_slice
from junctor_kernels.tables import reference

NOTHING = Pattern(frozenset(), frozenset())


@pytest.mark.parametrize("algebra", [reference.DOUBLE, reference.SINGLE, reference.LOG, reference.MAX_LOG])
@given(data=st.data(), working=st.sampled_from([0, 3, 50]))
def test_messages_made_again_change_no_answer(algebra: reference.Algebra, data: st.DataObject, working: int) -> None:
    """Any of those that wait, one after the other; in one piece and in chunks."""
    network = data.draw(strategies.networks(max_variables=8, max_joint=512))
    batch = data.draw(strategies.evidence_batches(network, max_rows=1, min_rows=1, invalid=False))
    pattern, block = blocks_of(network, batch, data.draw(st.booleans()))
    first = compile_plan(shape_of(network), pattern, rows=1, lean=data.draw(st.booleans()))
    plan, drops = first, list[Drop]()
    for _ in range(data.draw(st.integers(1, 4))):
        waiting = Waiting(plan, least=0)
        gaps = [Drop(table, end) for table, _, end in waiting.gaps()]
        if gaps:
            drops.append(data.draw(st.sampled_from(gaps)))
            plan = waiting.without(drops[-1])
        wrong = data.draw(st.builds(Drop, st.integers(-1, len(plan.tables) + 1), st.integers(-1, len(plan.steps) + 1)))
        if wrong not in gaps:
            with pytest.raises(ValueError, match="not a message that waits"):
                with_drops(first, [*drops[: len(drops) - bool(gaps)], wrong], least=0)
    assert with_drops(first, drops, least=0) == plan
    again = made_again(plan)
    assert again.messages == len(plan.tables) - len(first.tables) >= len(drops)
    assert again.operations == plan.operations - first.operations
    chunks = [chunk_plan(each, least_working(each) + working, ENDLESS, 0) for each in (first, plan)]
    programs = Program(plan, network, algebra), *(ChunkedProgram(each, network, algebra) for each in chunks)
    expected = Program(first, network, algebra).run(block)
    in_one_piece, cut, cut_again = (program.run(block) for program in programs)
    # What is made again loses no more.
    assert cut_again.doubtful.tolist() == cut.doubtful.tolist()
    for found in (in_one_piece, cut_again):
        if not (found.doubtful[0] or expected.doubtful[0]):
            compare(found, expected, algebra)


def sweep(size: int) -> Candidate:
    """The plan of a grid whose messages all wait for their way back."""
    problem = Problem(shape_of(grid(size, size, states=2, seed=1)), NOTHING)
    return next(each for each in candidates(problem, 1) if each.lean and each.order.criterion == "sweep")


@pytest.mark.parametrize("size", [9, 12])
def test_the_peak_falls_drop_by_drop(size: int) -> None:
    candidate = sweep(size)
    first = peak = max(Waiting(candidate.plan).profile())
    while (fewer := _with_fewer(candidate, 1, whole=True)) is not None:
        candidate, below = fewer, max(Waiting(fewer.plan).profile())
        assert below < peak
        peak = below
    assert len(candidate.drops) > 3
    assert peak < first / 8
    assert with_drops(sweep(size).plan, candidate.drops) == candidate.plan


def test_so_many_messages_are_made_again_as_are_needed() -> None:
    first = sweep(12)
    peak = max(Waiting(first.plan).profile())
    few, more = (_with_fewer(first, entries, whole=True) for entries in (1, peak // 4))
    assert few is not None
    assert more is not None
    assert 0 < len(few.drops) < len(more.drops)
    for entries, each in ((1, few), (peak // 4, more)):
        assert max(Waiting(each.plan).profile()) <= peak - entries
        assert with_drops(first.plan, each.drops) == each.plan
        # What waits no longer than a pass has steps is left.
        made = {step.out: n for n, step in enumerate(_reductions(first.plan))}
        assert all(drop.step - made[drop.table] > LEAST_WAIT for drop in each.drops if drop.table in made)
    # All of them would not do.
    assert _with_fewer(first, 2 * peak, whole=True) is None
    some = _with_fewer(first, 2 * peak, whole=False)
    assert some is not None
    assert max(Waiting(some.plan).profile()) < peak


def _reductions(plan: Plan) -> list[Reduce]:
    return [step for step in plan.steps if isinstance(step, Reduce)]


def test_plans_without_messages_have_nothing_to_drop() -> None:
    plan = compile_plan(shape_of(grid(2, 2, states=2, seed=1)), Pattern(frozenset(range(4)), frozenset()), rows=1)
    assert Waiting(plan).best_drop() is None
    assert made_again(plan) == (0, 0)
    with pytest.raises(ValueError, match="not a message"):
        with_drops(plan, [Drop(0, 0)])


@given(network=strategies.networks(), data=st.data())
def test_the_slice_is_of_the_largest_tables(network: strategies.Network, data: st.DataObject) -> None:
    shape, allowed = shape_of(network), data.draw(st.sets(st.integers(0, len(network.variables) - 1)))
    plan = compile_plan(shape, NOTHING, rows=1)
    found = best_slice(plan, frozenset(allowed))
    scopes = [plan.tables[step.out].scope for step in _reductions(plan)]
    there = {v for v in allowed if shape.cardinalities[v] > 1 and any(v in scope for scope in scopes)}
    assert (found is None) == (not there)
    if found is None:
        return

    def left(v: int) -> float:
        """The squares of what tables take with a variable held constant."""
        sizes = [shape.entries(other for other in scope if other != v) for scope in scopes]
        whole = [shape.entries(scope) for scope in scopes]
        return sum(a * b if a < b else b * b for a, b in zip(sizes, whole, strict=True))

    # Of variables with as many states the one that leaves least.
    assert left(found) == min(left(v) for v in there if shape.cardinalities[v] == shape.cardinalities[found])
