"""The compiled backend against the NumPy reference: one body for every algebra, network, evidence and block size."""

from __future__ import annotations

import ctypes
import itertools
import math
import time
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from helpers.blocks import TOLERANCE, blocks_of, compare, questions
from hypothesis import example, given
from hypothesis import strategies as st
from junctor.backends import cpu, lowering
from junctor.backends import register_tiles as tiles
from junctor.backends.cpu import CompiledProgram
from junctor.backends.numpy import EvidenceBlock, Program
from junctor.evidence.batch import EvidenceBatch
from junctor.generate import layered
from junctor.model.answers import Answers, unanswered
from junctor.model.errors import Place
from junctor.model.network import DraftTable, DraftVariable, Factor, Network, Variable, build_network
from junctor.model.query import Query
from junctor.planning.compile import compile_plan
from junctor.planning.shape import Pattern, shape_of
from junctor_kernels.cpu.plan import propagate
from junctor_kernels.tables.axes import contraction
from junctor_kernels.tables.reference import DOUBLE, LOG, MAX_LOG, SINGLE, Algebra


def check(network: Network, pattern: Pattern, block: EvidenceBlock, algebra: Algebra, lanes: int = 32) -> Program:
    explains = algebra is MAX_LOG
    program = Program(compile_plan(shape_of(network), pattern, None, explains, rows=1), network, algebra)
    compiled = CompiledProgram(program, lanes)
    for _ in range(2):
        # Again, because memory keeps what the first run left.
        compare(compiled.run(block), program.explain(block) if explains else program.run(block), algebra)
    return program


@pytest.mark.parametrize("algebra", [DOUBLE, SINGLE, LOG, MAX_LOG], ids=lambda algebra: algebra.name)
@given(question=questions())
def test_any_network_and_evidence(algebra: Algebra, question: tuple[Network, EvidenceBatch, bool]) -> None:
    network, batch, likelihoods = question
    pattern, block = blocks_of(network, batch, likelihoods)
    check(network, pattern, block, algebra)


@pytest.mark.parametrize("algebra", [DOUBLE, SINGLE, LOG, MAX_LOG], ids=lambda algebra: algebra.name)
@pytest.mark.parametrize("states", [2, 3, 5])
@pytest.mark.parametrize("zeros", [0.0, 0.6])
def test_networks_with_cliques_of_every_shape(algebra: Algebra, states: int, zeros: float) -> None:
    network = layered(layers=5, width=4, states=states, parents=3, seed=states, zeros=zeros)
    rng = np.random.default_rng(7)
    cases = 40
    weights = {v: rng.random((states, cases)) for v in (9, 13)}
    observed = {v: rng.integers(0, states, cases) for v in (3, 6, 17)}
    check(
        network,
        Pattern(frozenset(observed), frozenset(weights)),
        EvidenceBlock(cases, observed, weights),
        algebra,
        lanes=64,
    )


@pytest.mark.parametrize("algebra", [DOUBLE, SINGLE, LOG], ids=lambda algebra: algebra.name)
@given(question=questions(), rows=st.integers(1, 5))
def test_several_blocks_at_once_are_those_one_by_one(
    algebra: Algebra, question: tuple[Network, EvidenceBatch, bool], rows: int
) -> None:
    """Same bytes; the last block is not full, and the answers lie in another order."""
    network, batch, likelihoods = question
    pattern, block = blocks_of(network, batch, likelihoods)
    # Each case of the block often enough for `rows` blocks and a part of one.
    lanes = 32
    which = np.resize(np.arange(block.cases), lanes * rows + 5)

    def part(first: int, last: int) -> EvidenceBlock:
        taken = which[first:last]
        states = {v: values[taken] for v, values in block.states.items()}
        weights = {v: values[:, taken] for v, values in block.likelihoods.items()}
        return EvidenceBlock(len(taken), states, weights)

    targets, sizes = tuple(range(len(network.variables))), network.cardinalities
    program = Program(compile_plan(shape_of(network), pattern, rows=1), network, algebra)
    places = np.arange(len(which))[::-1].copy()
    found = []
    for step, threads in ((lanes, 1), (len(which), 1), (len(which), 3)):
        compiled = CompiledProgram(program, lanes, threads)
        memory = np.full(len(which) * sum(sizes), np.nan, algebra.dtype)
        answers = Answers(targets, np.zeros(len(which), np.int8), np.zeros(len(which)), memory=memory)
        answer = compiled.share if threads > 1 else compiled.answer
        outcomes = [
            answer(part(first, first + step), places[first : first + step], answers)
            for first in range(0, len(which), step)
        ]
        joined = [np.concatenate([getattr(each, name) for each in outcomes]) for name in ("log_value", "doubtful")]
        found.append([memory, *joined])
    for one_by_one, at_once, shared in zip(*found, strict=True):
        assert one_by_one.tobytes() == at_once.tobytes() == shared.tobytes()


def test_threads_that_share_blocks_end_where_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    network = layered(layers=3, width=3, states=3, seed=1)
    program = Program(compile_plan(shape_of(network), Pattern(frozenset([4]), frozenset()), rows=1), network, DOUBLE)
    compiled, sizes = CompiledProgram(program, 32, threads=2), network.cardinalities
    begun, both, propagate = [], Barrier(2), compiled._propagate

    def failing(code: Any, work: Any, cases: Any) -> None:
        both.wait()
        if work is compiled._works[0]:
            raise KeyboardInterrupt
        # Until it is told that others have ended.
        while (number := ctypes.c_int64.from_address(cases.begun).value) == 0:
            time.sleep(0.001)
        begun.append(number)
        propagate(code, work, cases)

    monkeypatch.setattr(compiled, "_propagate", failing)
    answers = unanswered(Query(), tuple(range(9)), sizes, 320, {}, np.full(8 * 320 * sum(sizes), 0xA5, np.uint8))
    with pytest.raises(KeyboardInterrupt):
        compiled.share(EvidenceBlock(320, {4: np.zeros(320, np.int64)}, {}), np.arange(320), answers)
    assert begun == [10]
    assert (answers.memory.view(np.uint8) == 0xA5).all()


def test_code_of_plans_is_the_same_for_answers_of_either_precision() -> None:
    network = layered(layers=3, width=3, states=3, seed=1)
    program = Program(compile_plan(shape_of(network), Pattern(frozenset([4]), frozenset()), rows=1), network, DOUBLE)
    compiled, found = CompiledProgram(program, 32, 1), []
    for query in (Query(), Query(precision="single")):
        memory = np.zeros(query.number_bytes * 40 * sum(network.cardinalities), np.uint8)
        answers = unanswered(query, tuple(range(9)), network.cardinalities, 40, {}, memory)
        compiled.answer(EvidenceBlock(40, {4: np.arange(40) % 3}, {}), np.arange(40), answers)
        found.append(answers.posteriors)
    for v, posterior in found[0].items():
        assert (posterior.dtype, found[1][v].dtype) == (np.float64, np.float32)
        np.testing.assert_array_equal(posterior.astype(np.float32), found[1][v])
    # One of plans in each precision.
    assert len(propagate.overloads) <= 2


def test_blocks_that_were_dropped_are_made_again() -> None:
    connected = layered(layers=3, width=3, states=3, seed=1)
    # Kernels do not write the posterior of a variable that no evidence changes.
    alone = Factor((9,), np.array([0.2, 0.8]))
    network = Network("", (*connected.variables, Variable("alone", ("0", "1"))), (*connected.factors, alone))
    program = Program(compile_plan(shape_of(network), Pattern(frozenset([4]), frozenset()), rows=1), network, DOUBLE)
    assert [v for v, table in program.plan.marginals if table in program.shared] == [9]
    compiled, sizes = CompiledProgram(program, 32, threads=3), network.cardinalities
    block = EvidenceBlock(96, {4: np.arange(96) % 3}, {})

    def found() -> bytes:
        memory = np.full(96 * sum(sizes), np.nan)
        answers = Answers(tuple(range(10)), np.zeros(96, np.int8), np.zeros(96), memory=memory)
        compiled.share(block, np.arange(96), answers)
        return memory.tobytes()

    assert compiled.held == 0
    first, held = found(), compiled.held
    assert held > 0
    assert compiled.rest(0) == 0
    assert compiled.rest(1) == held // 3
    assert compiled.held == held // 3 * 2
    assert found() == first
    assert compiled.rest(2 * held) == held
    assert compiled.held == 0
    assert found() == first


def test_calls_are_of_whole_blocks_and_bounded_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    network = layered(layers=3, width=3, states=3, seed=1)
    program = Program(compile_plan(shape_of(network), Pattern(frozenset([4]), frozenset())), network, DOUBLE)
    compiled = CompiledProgram(program, 32, threads=2)
    assert [compiled.cases_at_once(rows) for rows in (1, 256, 257, 8192)] == [32, 32, 64, 1024]
    monkeypatch.setattr(cpu, "PART_BYTES", 100 * (8 + 8))
    assert compiled.cases_at_once(8192) == 96
    monkeypatch.setattr(cpu, "PART_BYTES", 1)
    assert compiled.cases_at_once(8192) == 32


def test_many_terms_are_listed_or_not_with_the_same_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    network = layered(layers=4, width=4, states=4, parents=3, seed=1, zeros=0.7)
    observed = {5: np.arange(32) % 4}
    pattern, block = Pattern(frozenset(observed), frozenset()), EvidenceBlock(32, observed, {})
    program = check(network, pattern, block, DOUBLE)
    everything = program.plan.case_operations
    assert 0 < program.nonzero_operations < 0.6 * everything
    monkeypatch.setattr(lowering, "MOST_LISTED", 0)
    check(network, pattern, block, DOUBLE)
    monkeypatch.setattr(lowering, "MOST_LISTED", 1 << 22)
    monkeypatch.setattr(tiles, "LISTING_ENTRIES", 64)
    monkeypatch.setattr(tiles, "SMALL_CONTRACTION", 0)
    check(network, pattern, block, DOUBLE)


def test_no_zeros_no_operations_saved() -> None:
    network = layered(layers=3, width=3, states=3, seed=1)
    program = Program(compile_plan(shape_of(network), Pattern(frozenset([4]), frozenset())), network, DOUBLE)
    assert program.nonzero_operations == program.plan.case_operations


@given(question=questions())
def test_support_covers_everything_that_evidence_can_make_positive(
    question: tuple[Network, EvidenceBatch, bool],
) -> None:
    network, batch, likelihoods = question
    pattern, block = blocks_of(network, batch, likelihoods)
    program = Program(compile_plan(shape_of(network), pattern), network, DOUBLE)
    seen: dict[int, np.ndarray] = {}
    perform = program.perform

    def watching(step: object, *rest: object) -> object:
        value = perform(step, *rest)
        seen[step.out] = value.table
        return value

    program.perform = watching
    program.run(block)
    for table, numbers in seen.items():
        assert not (numbers > 0).any(axis=1)[~program.support.tables[table]].any()


@pytest.mark.parametrize("algebra", [DOUBLE, SINGLE], ids=lambda algebra: algebra.name)
@pytest.mark.parametrize("step", [1e-20, 1e-160])
def test_terms_lost_at_both_ends_of_a_chain_are_noticed(algebra: Algebra, step: float) -> None:
    """Both ends flush the entry that the middle favours, in every other case; every single message looks harmless."""
    names = [f"v{i}" for i in range(6)]
    links = [DraftTable(pair, np.array([[step, 0], [0, 1]]), Place()) for pair in itertools.pairwise(names)]
    ends = [DraftTable((name,), np.array([1, step]), Place()) for name in (names[0], names[-1])]
    network = build_network("chain", "markov", [DraftVariable(n, ("a", "b"), Place()) for n in names], links + ends)
    weights = np.array([[1, 1], [step**0.9, 1]]).repeat(16, axis=1)
    block = EvidenceBlock(32, {}, {0: weights, 5: weights})
    program = check(network, Pattern(frozenset(), frozenset([0, 5])), block, algebra)
    found, exact = program.run(block), Program(program.plan, network, LOG).run(block)
    # Steps of 1e-20 meet in products that are made in double and scaled once for all cases: nothing is lost.
    assert found.doubtful[:16].all() or step > 1e-100
    sure = ~found.doubtful
    for v, posterior in exact.posteriors.items():
        np.testing.assert_allclose(found.posteriors[v][:, sure], posterior[:, sure], atol=TOLERANCE[algebra.name])


@st.composite
def far_apart(draw: st.DrawFn) -> tuple[Network, EvidenceBlock]:
    """Draw a Markov tree of small variables, its entries and likelihoods zero or any power of ten down to 1e-60."""
    count, states = draw(st.integers(2, 7)), draw(st.integers(2, 3))
    lowest = draw(st.sampled_from([5, 20, 40, 60]))
    number = st.one_of(st.just(0.0), st.integers(-lowest, 0).map(lambda power: 10.0**power))

    def table(*sizes: int) -> np.ndarray:
        values = np.array(draw(st.lists(number, min_size=math.prod(sizes), max_size=math.prod(sizes))))
        values[draw(st.integers(0, values.size - 1))] = 1.0
        return values.reshape(sizes)

    names = [f"v{i}" for i in range(count)]
    links = [(draw(st.integers(0, child - 1)), child) for child in range(1, count)]
    tables = [DraftTable((names[one], names[other]), table(states, states), Place()) for one, other in links]
    network = build_network(
        "tree", "markov", [DraftVariable(name, ("a", "b", "c")[:states], Place()) for name in names], tables
    )
    seen = draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True))
    return network, EvidenceBlock(4, {}, {v: np.stack([table(states) for _ in range(4)], axis=1) for v in seen})


def lift_beyond_the_format() -> tuple[Network, EvidenceBlock]:
    """A message so small that its lift ends at the largest factor, and a loss a little above the tolerance."""
    names = [f"v{i}" for i in range(3)]
    one, other = np.zeros((3, 3)), np.array([[1, 1e-16, 1e-38], [0, 0, 0], [0, 1e-12, 0]])
    one[0, 0] = 1
    tables = [DraftTable(("v0", "v1"), one, Place()), DraftTable(("v0", "v2"), other, Place())]
    network = build_network("lift", "markov", [DraftVariable(name, ("a", "b", "c"), Place()) for name in names], tables)
    return network, EvidenceBlock(4, {}, {2: np.eye(3)[[1, 0, 0, 0]].T})


@pytest.mark.parametrize("algebra", [DOUBLE, SINGLE], ids=lambda algebra: algebra.name)
@example(question=lift_beyond_the_format())
@given(question=far_apart())
def test_what_is_not_doubted_equals_log_space(algebra: Algebra, question: tuple[Network, EvidenceBlock]) -> None:
    network, block = question
    program = check(network, Pattern(frozenset(), frozenset(block.likelihoods)), block, algebra)
    exact = Program(program.plan, network, LOG).run(block)
    for lifted in (True, False):
        found = Program(program.plan, network, algebra, lifted=lifted).run(block)
        sure = ~found.doubtful
        assert np.isfinite(exact.log_value[sure]).all()
        tolerance = TOLERANCE[algebra.name]
        np.testing.assert_allclose(found.log_value[sure], exact.log_value[sure], rtol=tolerance, atol=10 * tolerance)
        for v, posterior in exact.posteriors.items():
            for_all = np.broadcast_to(posterior, (len(posterior), 4))
            shown = np.broadcast_to(found.posteriors[v], for_all.shape)
            np.testing.assert_allclose(shown[:, sure], for_all[:, sure], atol=tolerance)


@pytest.mark.parametrize("apart", [1e-6, 1e-22])
def test_lifts_keep_what_would_be_lost_without(apart: float) -> None:
    """Copies of a variable, half of them in favour of one state and half of the other."""
    names = [f"v{i}" for i in range(8)]
    links = [DraftTable(pair, np.eye(2), Place()) for pair in itertools.pairwise(names)]
    network = build_network("copies", "markov", [DraftVariable(n, ("a", "b"), Place()) for n in names], links)
    weights = {v: np.array([1, apart][:: 1 if v < 4 else -1])[:, None].repeat(32, axis=1) for v in (0, 2, 5, 7)}
    program = check(network, Pattern(frozenset(), frozenset(weights)), EvidenceBlock(32, {}, weights), SINGLE)
    assert program.lifts
    found, without = (
        Program(program.plan, network, SINGLE, lifted=lifted).run(EvidenceBlock(32, {}, weights))
        for lifted in (True, False)
    )
    assert not found.doubtful.any()
    assert (without.doubtful == (apart < 1e-20)).all()
    for v, posterior in found.posteriors.items():
        np.testing.assert_allclose(posterior, 0.5, rtol=1e-6)
        # Where nothing is lost lifts change no bit.
        assert without.doubtful.all() or posterior.tobytes() == without.posteriors[v].tobytes()


def test_blocks_must_fill_whole_vectors() -> None:
    network = layered(layers=2, width=2, seed=1)
    program = Program(compile_plan(shape_of(network), Pattern(frozenset([0]), frozenset())), network, SINGLE)
    with pytest.raises(ValueError, match="found blocks of 24 cases, expected a multiple of"):
        CompiledProgram(program, 24)


def test_walks_visit_every_entry() -> None:
    """Tiles of four share a row; a third of a tile is repeated at most, otherwise entries go alone."""
    for sizes, scopes, how in (
        ((4, 3, 5), [(0, 2), (1, 2)], "pairs"),
        ((2, 5, 5), [(0, 2), (1, 2)], "alone"),
        ((2, 8, 5), [(0, 2), (1, 2)], "pairs"),
        ((2, 2, 2), [(0, 1, 2), (0, 1, 2)], "alone"),
    ):
        what = contraction((0, 1), (2,), scopes, dict(enumerate(sizes)))
        *tiled, alone = tiles.walks(what, (0, 1), factor=False)
        assert alone.order.tolist() == list(range(what.kept_entries))
        assert (tiled != []) == (how == "pairs")
        for walk in tiled:
            assert sorted(set(walk.order.tolist())) == list(range(what.kept_entries))
            assert walk.order.size % 4 == 0
            strides = what.operands[walk.rows[0]]
            common = tiles.offsets(what.kept, strides.kept)[walk.order].reshape(-1, 4)
            assert (common == common[:, :1]).all()


def hidden_markov(length: int) -> Network:
    """Return a hidden chain of three states that leaves a state now and then, and an observation of each step."""
    rng = np.random.default_rng(5)
    states = ("a", "b", "c")
    step = np.array([[0.9, 0.1, 0.0], [0.0, 0.999, 0.001], [0.05, 0.0, 0.95]])
    variables, tables = [], []
    for i in range(length):
        variables += [DraftVariable(f"x{i}", states, Place()), DraftVariable(f"y{i}", states, Place())]
        seen = rng.random((3, 3)) + 1e-3
        tables.append(
            DraftTable((f"x{i - 1}", f"x{i}"), step, Place())
            if i
            else DraftTable(("x0",), np.array([0.2, 0.3, 0.5]), Place())
        )
        tables.append(DraftTable((f"x{i}", f"y{i}"), seen / seen.sum(axis=1, keepdims=True), Place()))
    return build_network("hidden", "bayes", variables, tables)


@pytest.mark.slow
def test_three_thousand_steps_of_a_hidden_chain_stay_in_their_format() -> None:
    """Nothing comes near the smallest number, so nothing is lost, however long the path of messages."""
    network = hidden_markov(3000)
    rng = np.random.default_rng(1)
    observed = {2 * i + 1: rng.integers(0, 3, 32) for i in range(3000)}
    block = EvidenceBlock(32, observed, {})
    plan = compile_plan(shape_of(network), Pattern(frozenset(observed), frozenset()), rows=1)
    log_value, posteriors = forward_backward(network, observed)
    for algebra, tolerance in ((DOUBLE, 1e-11), (SINGLE, 2e-5)):
        program = Program(plan, network, algebra)
        found = CompiledProgram(program, 32).run(block)
        compare(found, program.run(block), algebra)
        assert not found.doubtful.any()
        np.testing.assert_allclose(found.log_value, log_value, rtol=1e-6 if algebra is SINGLE else 1e-12)
        for i in range(3000):
            np.testing.assert_allclose(found.posteriors[2 * i], posteriors[i], atol=tolerance)


def forward_backward(network: Network, observed: dict[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The recursion of a textbook (Rabiner 1989, section III), scaled to sums of 1; posteriors [steps, 3, cases]."""
    length = len(observed)
    tables = [factor.table for factor in network.factors]
    seen = [tables[2 * i + 1][:, observed[2 * i + 1]] for i in range(length)]
    forward, log_value = [], np.zeros(seen[0].shape[1])
    for i in range(length):
        arrives = tables[0][:, None] * seen[0] if i == 0 else (tables[2 * i].T @ forward[-1]) * seen[i]
        log_value += np.log(arrives.sum(axis=0))
        forward.append(arrives / arrives.sum(axis=0))
    back = np.ones_like(forward[0])
    posteriors = [forward[-1]]
    for i in range(length - 1, 0, -1):
        back = tables[2 * i] @ (seen[i] * back)
        back /= back.sum(axis=0)
        posteriors.append(forward[i - 1] * back / (forward[i - 1] * back).sum(axis=0))
    return log_value, np.array(posteriors[::-1])
