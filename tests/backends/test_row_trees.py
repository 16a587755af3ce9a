"""The row engine against full-joint enumeration, and what it hands to others."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from helpers import strategies
from helpers.engine_cases import blank, check_posteriors, in_log_space
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends import row_trees, shared_trees
from junctor.backends.row_queue import RowTask
from junctor.backends.row_trees import RowEngine, TreeRows, factors_of, room_bytes
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch, SoftEvidence
from junctor.evidence.patterns import patterns_of
from junctor.generate import chain, random_network, sample
from junctor.model.answers import OK
from junctor.model.errors import Place
from junctor.model.network import DraftTable, DraftVariable, Factor, Network, Variable, build_network
from junctor_kernels.row_trees import lane_layout, together
from junctor_kernels.row_trees import plan as rowplan
from junctor_kernels.row_trees.lane_layout import WIDTH
from junctor_kernels.row_trees.plan import MOST_TOGETHER

ROOM = 1 << 28


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[RowTask]:
    """Tasks that row engines were given, as they come."""
    given: list[RowTask] = []
    real = RowEngine._run

    def recorded(engine: RowEngine, cells: Any, some: list[RowTask], *rest: Any) -> Any:
        given.extend(some)
        return real(engine, cells, some, *rest)

    monkeypatch.setattr(RowEngine, "_run", recorded)
    return given


@given(data=st.data())
def test_rows_equal_enumeration(data: st.DataObject) -> None:
    network = data.draw(strategies.networks(max_variables=7, max_joint=1024))
    batch = data.draw(strategies.evidence_batches(network, max_rows=6, invalid=False))
    variables = range(len(network.variables))
    targets = data.draw(st.lists(st.sampled_from(variables), unique=True, min_size=1))
    answers = blank(network, batch, targets)
    left = RowEngine(network, targets, ROOM).answer(batch, np.arange(batch.rows), answers)
    check_posteriors(network, batch, answers, 1e-12, left)


@given(data=st.data())
def test_rows_on_one_tree_equal_enumeration(data: st.DataObject) -> None:
    network = data.draw(strategies.networks(max_variables=7, max_joint=1024))
    batch = data.draw(strategies.evidence_batches(network, max_rows=24, invalid=False))
    variables = range(len(network.variables))
    targets = data.draw(st.lists(st.sampled_from(variables), unique=True, min_size=1))
    answers = blank(network, batch, targets)
    rows = np.arange(batch.rows)
    cut = data.draw(st.integers(0, batch.rows))
    groups = [TreeRows(part, shared=True) for part in (rows[:cut], rows[cut:]) if part.size]
    left = RowEngine(network, targets, ROOM).answer_groups(batch, groups, answers)
    check_posteriors(network, batch, answers, 1e-12, left)


def test_rows_of_a_network_without_tables() -> None:
    network = build_network("empty", "markov", [DraftVariable("v", ("s",), Place())], [])
    batch = EvidenceBatch(2, {0: np.zeros(2, np.int32)})
    answers = blank(network, batch, [0])
    left = RowEngine(network, [0], ROOM).answer_groups(batch, [TreeRows(np.arange(2), shared=True)], answers)
    check_posteriors(network, batch, answers, 1e-12, left)


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 300])
def test_rows_on_one_tree_equal_rows_one_by_one(rows: int) -> None:
    network = chain(length=60, states=3, seed=3)
    batch = random_batch(network, rows)
    alone, together = blank(network, batch, range(60)), blank(network, batch, range(60))
    engine = RowEngine(network, range(60), ROOM, threads=2)
    assert not engine.answer(batch, np.arange(rows), alone).size
    assert not engine.answer_groups(batch, [TreeRows(np.arange(rows), shared=True)], together).size
    np.testing.assert_allclose(together.log_value, alone.log_value, rtol=1e-13)
    for v in range(60):
        np.testing.assert_allclose(together.posteriors[v], alone.posteriors[v], rtol=0, atol=1e-13)


@pytest.mark.parametrize("seed", [6, 8])
@pytest.mark.parametrize("rows", [5, 33, 64, 200, 257, 641, 700])
def test_rows_that_share_a_tree_are_divided_among_threads(rows: int, seed: int, tasks: list[RowTask]) -> None:
    """Byte for byte, also where the last block has one row: 257 and 641 of 16 threads."""
    network = random_network(40, seed=seed)
    batch, found, pieces = random_batch(network, rows), [], []
    for threads in (1, 2, 16):
        tasks.clear()
        answers = blank(network, batch, range(40))
        engine = RowEngine(network, range(40), 16 * ROOM, threads)
        assert not engine.answer_groups(batch, [TreeRows(np.arange(rows), shared=True)], answers).size
        assert sum(len(task.rows) for task in tasks) == rows
        pieces.append(sum(task.pieces for task in tasks))
        found.append([answers.log_value.tobytes(), *(table.tobytes() for table in answers.posteriors.values())])
    assert found[0] == found[1] == found[2]
    assert pieces[1] >= min(2, rows // 32)
    assert pieces[2] >= min(16, rows // 40)


@pytest.mark.parametrize("soft", [False, True])
def test_groups_of_a_task_are_answered_as_each_alone(
    soft: bool, tasks: list[RowTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte, whoever shares a task; and about the same where memory is too small for some of them."""
    network, rng = random_network(40, seed=6), np.random.default_rng(3)
    sizes = [1, 2, 7, 8, 64, 65, 1, 130, 300, 20, 3, 90, 256, 257, 40]
    batch = random_batch(network, sum(sizes))
    if soft:
        some = np.flatnonzero(rng.random(batch.rows) < 0.3)
        values = rng.random((len(some), network.cardinalities[5])) + 0.1
        states = {v: column for v, column in batch.states.items() if v != 5}
        batch = EvidenceBatch(batch.rows, states, {5: SoftEvidence(some, values)})
    order, ends = rng.permutation(batch.rows), np.cumsum(sizes)
    groups = [TreeRows(np.sort(order[end - size : end]), shared=True) for end, size in zip(ends, sizes, strict=True)]

    def answered_by(threads: int, parts: list[list[TreeRows]], memory: int = 16 * ROOM) -> list[np.ndarray]:
        answers = blank(network, batch, range(40))
        for part in parts:
            assert not RowEngine(network, range(40), memory, threads).answer_groups(batch, part, answers).size
        return [answers.log_value, *answers.posteriors.values()]

    expected = answered_by(1, [[group] for group in groups])
    tasks.clear()
    for threads in (1, 2, 8):
        for one, other in zip(answered_by(threads, [groups]), expected, strict=True):
            assert one.tobytes() == other.tobytes()
    assert any(task.ends is not None and len(task.ends) > 1 for task in tasks)
    for one, other in zip(answered_by(1, [groups], ROOM >> 6), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    # Likelihoods of few rows at a time.
    tasks.clear()
    monkeypatch.setattr(row_trees, "LIKELIHOOD_BYTES", 1)
    for one, other in zip(answered_by(2, [groups]), expected, strict=True):
        assert one.tobytes() == other.tobytes()
    assert not soft or sum(task.ends is not None for task in tasks) > 1


@pytest.mark.parametrize("seed", range(12))
def test_rows_that_observe_less_and_less(seed: int) -> None:
    """Sensors that fail over time: blocks differ in the variables that all of their rows observe. In a new engine."""
    network, rng = random_network(12, seed=seed % 6), np.random.default_rng(seed)
    rows, threads, share = int(rng.choice([40, 96, 300])), int(rng.choice([1, 2, 5])), rng.choice([0.03, 0.05, 0.3])
    gaps = rng.random((rows, 12)) < share
    gaps[: rows // 2] = False
    # One row of the first block makes the maps that there is memory for; no other differs.
    seen = rng.permutation(12)[:6].tolist()
    gaps[3, seen[0]] = True
    states = np.where(gaps, UNOBSERVED, sample(network, rows, seed)).astype(np.int32)
    batch = EvidenceBatch(rows, {v: np.ascontiguousarray(states[:, v]) for v in seen})
    alone, together = blank(network, batch), blank(network, batch)
    assert not RowEngine(network, range(12), ROOM).answer(batch, np.arange(rows), alone).size
    cut = int(rng.choice([rows // 3, rows]))
    groups = [TreeRows(part, shared=True) for part in np.split(np.arange(rows), [cut]) if part.size]
    assert not RowEngine(network, range(12), 5 * ROOM, threads).answer_groups(batch, groups, together).size
    np.testing.assert_allclose(together.log_value, alone.log_value, rtol=1e-12)
    for v in range(12):
        np.testing.assert_allclose(together.posteriors[v], alone.posteriors[v], rtol=0, atol=1e-12)


def random_batch(network: Network, rows: int, seed: int = 1) -> EvidenceBatch:
    states = sample(network, rows, seed).astype(np.int32)
    states[np.random.default_rng(seed).random(states.shape) < 0.7] = UNOBSERVED
    return EvidenceBatch(rows, {v: np.ascontiguousarray(states[:, v]) for v in range(states.shape[1])})


def answered(engine: RowEngine, network: Network, batch: EvidenceBatch) -> list[bytes]:
    answers = blank(network, batch, range(len(network.variables)))
    assert not engine.answer_groups(batch, [TreeRows(np.arange(batch.rows), shared=True)], answers).size
    return [answers.log_value.tobytes(), *(table.tobytes() for table in answers.posteriors.values())]


def test_trees_of_a_pattern_serve_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network(40, seed=6)
    batches = [EvidenceBatch(100, {v: np.zeros(100, dtype=np.int32) for v in range(n)}) for n in (3, 5)]
    fresh = [answered(RowEngine(network, range(40), 16 * ROOM), network, batch) for batch in batches]
    engine, planned = RowEngine(network, range(40), 16 * ROOM), []
    real = RowEngine._plan
    monkeypatch.setattr(RowEngine, "_plan", lambda *args: planned.append(args[3]) or real(*args))
    for _ in range(2):
        assert [answered(engine, network, batch) for batch in batches] == fresh
        # A tree of other rows in between, in the same memory.
        assert np.isfinite(engine.work(range(9)).operations)
    assert planned == [100, 100]
    # Without room for them, trees are planned anew.
    monkeypatch.setattr(shared_trees, "KEPT_BYTES", 1)
    tight = RowEngine(network, range(40), 16 * ROOM)
    assert [answered(tight, network, batch) for batch in 2 * batches] == 2 * fresh
    assert len(planned) == 6


@pytest.mark.parametrize("rows", [9, 100])
def test_rows_whose_common_tree_is_too_large_have_trees_of_their_own(rows: int) -> None:
    network = random_network(40, seed=6)
    batch = EvidenceBatch(rows, {0: np.zeros(rows, dtype=np.int32)})
    # For two rows, fewer than are worth a vector.
    room = 8 * 2 * 2 * int(RowEngine(network, range(40), ROOM).work([0]).entries)
    answers = [blank(network, batch, range(40)) for _ in range(2)]
    tight = RowEngine(network, range(40), room_bytes(network, 0) + room)
    assert not tight.answer_groups(batch, [TreeRows(np.arange(rows), shared=True)], answers[0]).size
    assert not tight.answer(batch, np.arange(rows), answers[1]).size
    for one, other in zip(*([each.log_value, *each.posteriors.values()] for each in answers), strict=True):
        assert one.tobytes() == other.tobytes()


def test_memory_of_messages_stays_within_its_bound_between_calls() -> None:
    network = random_network(40, seed=6)
    batch = random_batch(network, 200)
    engine = RowEngine(network, range(40), 16 * ROOM, threads=2)
    fresh = answered(engine, network, batch)
    of_all = engine.resting
    assert of_all > 0
    engine.rest(of_all)
    # What single rows take goes in any case.
    assert (engine.resting, engine.held) == (of_all, 2)
    assert answered(engine, network, batch) == fresh
    engine.rest(of_all - 1)
    # One thread may have answered all blocks.
    assert engine.resting < of_all
    assert answered(engine, network, batch) == fresh
    engine.rest(0)
    assert engine.resting == 0
    assert answered(engine, network, batch) == fresh


@pytest.mark.parametrize(("variables", "seed"), [(40, 6), (60, 3), (90, 8)])
def test_messages_down_lie_apart_while_they_are_of_use(variables: int, seed: int) -> None:
    network = random_network(variables, seed=seed)
    engine = RowEngine(network, range(variables), 16 * ROOM)
    batch = random_batch(network, 64)
    answered(engine, network, batch)
    (room,) = engine._rooms
    assert room.lanes is not None
    nodes, spans = room.tree.nodes, room.lanes.spans
    tables = nodes.tables[: nodes.counts[rowplan.TABLES]]
    sent = [n for n, table in enumerate(tables) if table[rowplan.WANTED] and table[rowplan.PARENT] >= 0]
    last = {n: min([n, *(child for child in tables[n, [rowplan.LEFT, rowplan.RIGHT]] if child in sent)]) for n in sent}
    begins = {n: spans[n, lane_layout.DOWN_AT] for n in sent}
    ends = {n: begins[n] + spans[n, lane_layout.DOWN_LENGTH] for n in sent}
    for one, other in itertools.combinations(sent, 2):
        # The one with the larger number comes first.
        if last[other] <= one:
            assert ends[one] <= begins[other] or ends[other] <= begins[one]
    up_end = min(begins.values())
    assert max(ends.values()) <= room.lanes.scratch[0]
    assert max(ends.values()) - up_end < sum(spans[n, lane_layout.DOWN_LENGTH] for n in sent)


def test_rows_of_a_long_chain_equal_the_batch_engine() -> None:
    network = chain(length=400, states=4, seed=3)
    batch = random_batch(network, 70)
    answers = blank(network, batch, range(400))
    assert not RowEngine(network, range(400), ROOM).answer(batch, np.arange(70), answers).size
    expected = in_log_space(network, batch)
    np.testing.assert_allclose(answers.log_value, expected.log_value, rtol=1e-12)
    for v in range(400):
        np.testing.assert_allclose(answers.posteriors[v], expected.posteriors[v], atol=1e-12)


def test_rows_do_not_depend_on_the_others() -> None:
    network = chain(length=30, states=5, seed=4)
    batch = random_batch(network, 150)
    engine, together, single = RowEngine(network, range(30), ROOM), *(blank(network, batch, range(30)) for _ in "ab")
    engine.answer(batch, np.arange(150), together)
    for row in (149, 3, 64):
        engine.answer(batch, np.array([row]), single)
        assert single.log_value[row] == together.log_value[row]
        assert (single.posteriors[7][row] == together.posteriors[7][row]).all()


def test_rows_that_need_more_room_are_left() -> None:
    network = chain(length=30, states=5, seed=4)
    batch = random_batch(network, 20)
    answers = blank(network, batch, range(30))
    patterns = patterns_of(batch).exact(np.arange(20))
    needs = [RowEngine(network, range(30), ROOM).work(each.pattern.sliced).room for each in patterns]
    engine = RowEngine(network, range(30), room_bytes(network, int(np.median(needs))))
    left = engine.answer(batch, np.arange(20), answers)
    assert 0 < left.size < 20
    assert (answers.status[left] == -1).all()
    assert (np.delete(answers.status, left) == OK).all()


def test_room_counts_what_trees_take_and_grows_with_the_length() -> None:
    short, long = (chain(length=length, states=4, seed=1) for length in (2_000, 20_000))
    assert room_bytes(long, 0) < 11 * room_bytes(short, 0)
    for network in (short, random_network(200, seed=3)):
        factors = factors_of(network)
        memory = rowplan.tree(factors.graph, len(factors.starts) - 1 + len(network.variables))
        parts = (*memory.nodes, *memory.work, *(part for part in memory if isinstance(part, np.ndarray)))
        assert sum(part.nbytes for part in parts) <= room_bytes(network, 0)


def near_underflow(length: int, rows: int) -> tuple[Network, dict[int, Any]]:
    """Return a chain and states of rows: products of states 0 and 2 of neighbours leave the range of doubles."""
    rng = np.random.default_rng(0)
    variables = tuple(Variable(f"v{i}", ("a", "b", "c")) for i in range(length))
    factors = []
    for i in range(length):
        table = rng.random((3,) * min(2, i + 1))
        if i:
            table[0, 2] = 1e-160
        table /= table.sum(axis=-1, keepdims=True)
        factors.append(Factor((i,) if i == 0 else (i - 1, i), table))
    states = {v: rng.integers(0, 2, rows).astype(np.int32) for v in range(0, length, 2)}
    states[0][::97], states[2][::97], states[4][::97] = 0, 2, 2
    return Network("", variables, tuple(factors)), states


def test_a_row_near_underflow_is_doubted_for_itself() -> None:
    # Who shares a block depends on threads.
    length, rows = 30, 300
    network, states = near_underflow(length, rows)
    batch, found = EvidenceBatch(rows, states), []
    for threads in (1, 4, 16):
        answers = blank(network, batch, range(length))
        engine = RowEngine(network, range(length), 16 * ROOM, threads)
        left = engine.answer_groups(batch, [TreeRows(np.arange(rows), shared=True)], answers)
        found.append((left.tolist(), answers.log_value.tobytes(), [p.tobytes() for p in answers.posteriors.values()]))
    assert found[1:] == found[:1] * 2


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("power", [1021, 1022, 1023])
def test_likelihoods_near_overflow_change_no_posterior(power: int, shared: bool) -> None:
    length, rows = 30, 300
    network, states = near_underflow(length, rows)
    some, found = np.arange(0, rows, 3), []
    likelihoods = np.random.default_rng(1).uniform(1, 2, (len(some), 3))
    for scale in (1.0, 2.0**power):
        batch = EvidenceBatch(rows, states, {length - 1: SoftEvidence(some, likelihoods * scale)})
        answers = blank(network, batch, range(length))
        engine = RowEngine(network, range(length), 16 * ROOM)
        left = engine.answer_groups(batch, [TreeRows(np.arange(rows), shared)], answers)
        done = np.setdiff1d(np.arange(rows), left)
        answers.log_value[some] -= np.log(scale)
        found.append((left.tolist(), answers.log_value[done], [p[done].tobytes() for p in answers.posteriors.values()]))
    (left_of_ones, log_of_ones, of_ones), (left, log_values, posteriors) = found
    assert (left, posteriors) == (left_of_ones, of_ones)
    np.testing.assert_allclose(log_values, log_of_ones, rtol=1e-12, atol=1e-12)


def test_rows_whose_numbers_underflow_are_left() -> None:
    """The second state of a looks lost for ever until the other factors come: 1e-400 against 1e-600 in the end."""
    place = Place("drawn")
    tables = [
        DraftTable(["a", name], np.array([[first, first], [second, second]]), place)
        for name, first, second in [("b", 1, 1e-200), ("c", 1, 1e-200), ("d", 1e-300, 1), ("e", 1e-300, 1)]
    ]
    variables = [DraftVariable(name, ["x", "y"], place) for name in "abcde"]
    network = build_network("faint", "markov", variables, tables)
    batch = EvidenceBatch(1, {1: np.array([0], np.int32)})
    answers = blank(network, batch, range(5))
    assert RowEngine(network, range(5), ROOM).answer(batch, np.arange(1), answers).tolist() == [0]
    assert answers.status[0] == -1


@given(st.floats(1, 1e12), st.floats(1, 1e6), st.booleans())
def test_rows_of_a_block_fill_vectors_and_lie_apart_in_the_cache(entries: float, tables: float, mixed: bool) -> None:
    rows = together.block_rows(entries, tables, mixed)
    assert 0 <= rows <= MOST_TOGETHER
    # No more bytes than planned, but for rows with few numbers in each table, which may be more.
    assert 8 * entries * rows <= together.BLOCK_BYTES or rows <= together.FEW_NUMBERS_ROWS
    if not mixed and rows >= WIDTH:
        assert rows % WIDTH == 0
        assert 8 * rows % together.ALIASED_BYTES


def test_rows_of_larger_tables_are_fewer_in_a_block() -> None:
    rows = [together.block_rows(1000 * size, 1000, mixed=False) for size in (1, 10, 100, 1000)]
    assert rows == sorted(rows, reverse=True)
    assert rows[0] > 4 * rows[-1]
