"""Explanations in chunks: as probable as the best of enumeration and of one piece; one propagation without ties."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import oracle, strategies
from helpers.chunk_plans import cut_for
from helpers.engine_cases import check_explanations, markov
from helpers.options import on_cpu
from hypothesis import example, given, settings
from hypothesis import strategies as st
from junctor.backends.numpy import EvidenceBlock
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch, SoftEvidence
from junctor.generate import grid
from junctor.model.answers import IMPOSSIBLE, OK
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Precision, Query
from junctor.model.strategies import Strategy
from junctor.out_of_core import explanations
from junctor.out_of_core.cluster.workers import pool_here
from junctor.out_of_core.explanations import decisions, log_probability
from junctor.out_of_core.program import ChunkedProgram
from junctor.planning.compile import compile_plan
from junctor.planning.shape import Pattern, shape_of
from junctor.strategies import chunk_explanations
from junctor.strategies.chunk_cuts import ChunkCuts
from junctor.strategies.facts import Facts

MPE = Query("mpe")
# What the log probability of an explanation may be below the largest: rounding decides between those.
NEAR = 2e-9


@contextmanager
def in_chunks(working: int, free: int = 0, disk: bool = False, lean: bool = False) -> Iterator[list[str]]:
    """Let rows go in chunks with more than so many free variables; yields the algebra of every propagation."""
    algebras: list[str] = []
    real = ChunkedProgram.run

    def run(self: ChunkedProgram, block: EvidenceBlock) -> Any:
        algebras.append(self._bound.algebra.name)
        return real(self, block)

    with cut_for(working, disk, lean=lean), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChunkedProgram, "run", run)
        many = lambda cuts, pattern, *_: len(cuts.facts.shape.cardinalities) - len(pattern.sliced) > free  # noqa: E731
        patch.setattr(ChunkCuts, "in_chunks", many)
        # What is left of a row may fit in one piece.
        patch.setattr(Facts, "forced", None)
        yield algebras


@pytest.mark.parametrize("precision", ["double", "log"])
@given(
    question=strategies.questions(max_rows=3, max_variables=7),
    working=st.sampled_from([0, 1, 3, 10, 100]),
    free=st.sampled_from([0, 0, 2, 4]),
    disk=st.booleans(),
    lean=st.booleans(),
)
def test_explanations_are_as_probable_as_any(
    precision: Precision, question: tuple[Network, EvidenceBatch], working: int, free: int, disk: bool, lean: bool
) -> None:
    """With what is ambiguous in chunks again, or in one piece."""
    network, batch = question
    with in_chunks(working, free, disk, lean):
        answers = Engine(network, Query("mpe", precision=precision)).answer(batch)
    check_explanations(network, batch, answers, NEAR)


@pytest.mark.parametrize("states", [2, 3, (2, 4)])
def test_one_propagation_without_ties(states: Any) -> None:
    network = grid(4, 5, states=states, seed=3)
    with in_chunks(20) as algebras:
        answers = Engine(network, MPE).answer(EvidenceBatch(1))
    assert algebras == ["max-single"]
    expected = Engine(network, MPE).answer(EvidenceBatch(1))
    assert {v: column[0] for v, column in answers.states.items()} == {v: c[0] for v, c in expected.states.items()}
    np.testing.assert_allclose(answers.log_value, expected.log_value, rtol=1e-14)


def test_targets_get_their_states_in_the_whole_explanation() -> None:
    network = grid(3, 4, states=3, seed=4)
    with in_chunks(20):
        answers = Engine(network, Query("mpe", targets=(network.variables[5].name,))).answer(EvidenceBatch(1))
    expected = Engine(network, MPE).answer(EvidenceBatch(1))
    assert list(answers.states) == [5]
    assert answers.states[5].tolist() == expected.states[5].tolist()


def pairs(*names: str, same: bool = True) -> list[tuple[tuple[str, ...], object]]:
    table = [[2, 1], [1, 2]] if same else [[1, 2], [2, 1]]
    return [(pair, table) for pair in itertools.pairwise(names)]


def test_parts_that_are_independent_are_decided_together() -> None:
    """Two states of each chain are equally probable: one decision for all chains, and one more propagation."""
    chains = [[f"{letter}{i}" for i in range(4)] for letter in "abcdefgh"]
    network = markov(*itertools.chain.from_iterable(pairs(*chain) for chain in chains))
    with in_chunks(4) as algebras:
        answers = Engine(network, MPE).answer(EvidenceBatch(1))
    assert algebras == ["max-single", "max", "max"]
    assert answers.log_value[0] == pytest.approx(24 * np.log(2))


def test_ambiguous_variables_apart_need_no_other_propagation() -> None:
    """Given the others, which are unambiguous."""
    hub = [(("hub", f"leaf{i}"), [[3, 3], [1, 2]]) for i in range(6)]
    network = markov((("hub",), [3, 1]), *hub)
    with in_chunks(4) as algebras:
        answers = Engine(network, MPE).answer(EvidenceBatch(1))
    assert algebras == ["max-single", "max"]
    assert [int(column[0]) for column in answers.states.values()] == [0] * 7


@pytest.mark.parametrize(("free", "most"), [(0, 14), (6, 7)])
def test_where_all_assignments_are_as_probable(free: int, most: int) -> None:
    """Bounded by the number of variables, and by those that have to be known for the rest to fit."""
    ones = [(pair, [[1, 1], [1, 1]]) for pair in itertools.combinations("abcdefghijkl", 2)]
    network = markov(*ones)
    with in_chunks(10, free) as algebras:
        answers = Engine(network, MPE).answer(EvidenceBatch(1))
    assert answers.log_value.tolist() == [0.0]
    assert algebras[:2] == ["max-single", "max"]
    assert len(algebras) <= most


def test_ties_beside_zeros() -> None:
    """An odd number of ones, wherever they are."""
    odd = np.array([[[0, 1], [1, 0]], [[1, 0], [0, 1]]])
    network = markov(*((tuple(names), odd) for names in ("abc", "cde", "efg", "gha")))
    for working in (0, 8):
        with in_chunks(working):
            answers = Engine(network, MPE).answer(EvidenceBatch(1))
        check_explanations(network, EvidenceBatch(1), answers, NEAR)


@settings(max_examples=10)
@example(693)
@given(st.integers(0, 999))
def test_nearly_ties_are_left_to_logarithms(seed: int) -> None:
    """Less apart than single precision tells."""
    rng = np.random.default_rng(seed)
    near = [(pair, 1 + 1e-7 * rng.integers(0, 9, (2, 2))) for pair in itertools.combinations("abcdef", 2)]
    network = markov(*near)
    with in_chunks(4) as algebras:
        answers = Engine(network, MPE).answer(EvidenceBatch(1))
    best, explained = oracle.enumerate_mpe(network, {}, {})
    # Single precision tells numbers apart that differ by 5e-7 and more, and some seeds have no others near the largest.
    numbers = np.sort(np.ldexp(*oracle.joint_table(network, {}, {})), axis=None)
    assert "max" in algebras or numbers[-1] - numbers[-2] > 4.5e-7
    assert answers.log_value[0] == pytest.approx(best, abs=1e-13)
    assert tuple(int(column[0]) for column in answers.states.values()) in explained


@pytest.mark.parametrize("step", [1e-50, 1e-160])
def test_what_single_precision_loses(step: float) -> None:
    links = [((one, other), [[step, 0], [0, 1]]) for one, other in itertools.pairwise("abcdef")]
    network = markov((("a",), [1, step]), (("a",), [1, step**0.9]), (("f",), [1, step]), *links)
    with in_chunks(0) as algebras:
        answers = Engine(network, MPE).answer(EvidenceBatch(1))
    assert algebras[-1] == "max"
    assert answers.climbed == {"max": 1}
    check_explanations(network, EvidenceBatch(1), answers, NEAR)


def test_what_does_not_add_up_is_decided_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if rounding were no reason for doubt: states that exclude each other count as unambiguous."""
    real, seen = explanations.read_max_marginals, list[float]()

    def read(outcome: Any, block: Any, rounding: float) -> Any:
        found = real(outcome, block, rounding)
        seen.append(rounding)
        if rounding == chunk_explanations.EVERYTHING:
            return found
        return replace(found, unambiguous=found.unambiguous | found.ambiguous | {1: 0}, ambiguous={})

    monkeypatch.setattr(chunk_explanations, "read_max_marginals", read)
    network = markov((("a", "b"), [[0, 1], [1, 0]]), (("b", "c"), [[1, 0], [0, 1]]))
    with in_chunks(0) as algebras:
        answers = Engine(network, MPE).answer(EvidenceBatch(1))
    check_explanations(network, EvidenceBatch(1), answers, NEAR)
    # The one in the middle, then the others.
    assert algebras == ["max-single", "max", "max"]
    assert seen[2:] == [chunk_explanations.EVERYTHING] * 2


@pytest.mark.parametrize("query", [MPE, Query("mpe", precision="log"), Query(precision="log")], ids=str)
def test_tasks_go_to_gpus(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this process, or of workers; without opening one."""
    monkeypatch.setattr(ChunkCuts, "in_chunks", lambda *_: True)
    network, batch = grid(6, 6, seed=1), EvidenceBatch(1)
    for workers, backend in ((None, Strategy.CHUNKS), (pool_here(2, 1 << 30), Strategy.CHUNKS)):
        options = ComputeOptions(memory=1 << 32, device="gpu", device_memory=1 << 28)
        (route,) = Engine(network, query, options, workers=workers).routes(batch)
        assert (route.strategy, route.on_gpu) == (backend, True)
        assert route.chunks is not None
        assert len(route.chunks.chunks.plan.marginals) == 36


def test_impossible_rows() -> None:
    network = markov((("a", "b"), [[1, 0], [0, 1]]), (("b", "c"), [[1, 1], [1, 1]]))
    soft = SoftEvidence(np.array([2]), np.array([[0.0, 0.0]]))
    batch = EvidenceBatch(3, {0: np.array([0, 0, 0], np.int32), 1: np.array([1, 0, 0], np.int32)}, {2: soft})
    for precision in ("double", "log"):
        with in_chunks(0):
            answers = Engine(network, Query("mpe", precision=precision)).answer(batch)
        assert answers.status.tolist() == [IMPOSSIBLE, OK, IMPOSSIBLE]


def test_one_of_each_component_in_the_order_given() -> None:
    network = markov(*pairs("a", "b", "c"), *pairs("d", "e"), (("f",), [1, 1]))
    plan = compile_plan(shape_of(network), Pattern(frozenset(), frozenset()), rows=1)
    every = dict.fromkeys(range(6), 1)
    assert decisions(plan, every, [2, 4, 1, 0, 3]) == {2: 1, 4: 1, 5: 1}
    # Without what connects them there are more components.
    assert decisions(plan, {v: 0 for v in every if v != 1}, []) == {0: 0, 2: 0, 3: 0, 5: 0}
    block = EvidenceBlock(1, {}, {0: np.array([[0.5], [0.0]])})
    assert log_probability(network, dict.fromkeys(range(6), 0), block) == pytest.approx(np.log(2**3 / 2))
    assert log_probability(network, every, block) == -np.inf


@pytest.mark.parametrize("size", [1 << 13, 1 << 15])
def test_within_a_small_memory(size: int) -> None:
    """Routes as they are: a device of so many bytes."""
    network = grid(8, 8, states=2, seed=5)
    engine = Engine(network, MPE, on_cpu(device_memory=size))
    batch = EvidenceBatch(1, {3: np.array([1], np.int32)})
    (route,) = engine.routes(batch)
    assert route.chunks is not None
    answers = engine.answer(batch)
    expected = Engine(network, MPE).answer(batch)
    np.testing.assert_allclose(answers.log_value, expected.log_value, rtol=1e-14)
    assert {v: column[0] for v, column in answers.states.items()} == {v: c[0] for v, c in expected.states.items()}
