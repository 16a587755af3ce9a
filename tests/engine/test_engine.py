"""The engine against full-joint enumeration: any network, any evidence, every precision, any block size."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers import strategies
from helpers.engine_cases import TOLERANCE, check_explanations, check_posteriors, in_log_space, markov
from helpers.figures import set_figures
from helpers.options import on_cpu
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends import plan_memory as memory
from junctor.engine import choose
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch, SoftEvidence
from junctor.generate import chain, sample
from junctor.model.answers import OK
from junctor.model.errors import EvidenceError
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.model.strategies import Strategy
from junctor.strategies.facts import Facts
from junctor_kernels.tables import reference


@pytest.mark.parametrize("precision", ["double", "single", "log"])
@given(question=strategies.questions(max_rows=8))
def test_posteriors_equal_enumeration(precision: str, question: tuple[Network, EvidenceBatch]) -> None:
    network, batch = question
    answers = Engine(network, Query(precision=precision)).answer(batch)
    check_posteriors(network, batch, answers, TOLERANCE[precision])


@given(question=strategies.questions(max_rows=8), data=st.data())
def test_targets_leave_out_nothing_that_matters(question: tuple[Network, EvidenceBatch], data: st.DataObject) -> None:
    network, batch = question
    names = [variable.name for variable in network.variables]
    targets = tuple(data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1)))
    answers = Engine(network, Query(targets=targets)).answer(batch)
    assert answers.targets == tuple(network.index[name] for name in targets)
    # Dropped tables may miss a row sum of 1 by what the model allows as written.
    check_posteriors(network, batch, answers, 1e-12)


@given(question=strategies.questions(max_rows=8))
def test_explanations_equal_enumeration(question: tuple[Network, EvidenceBatch]) -> None:
    network, batch = question
    check_explanations(network, batch, Engine(network, Query(kind="mpe")).answer(batch), 1e-9)


@given(
    question=strategies.questions(max_rows=8), most_cases=st.integers(1, 4), scratch=st.sampled_from([1, 5, 1 << 16])
)
def test_blocks_of_any_size_give_the_same_answers(
    question: tuple[Network, EvidenceBatch], most_cases: int, scratch: int
) -> None:
    network, batch = question
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "MOST_CASES", most_cases)
        patch.setattr(memory, "LEAST_SCRATCH", scratch)
        patch.setattr(reference, "SCRATCH_ENTRIES", scratch)
        answers = Engine(network, Query(), on_cpu(strategy=Strategy.ENTRIES)).answer(batch)
    check_posteriors(network, batch, answers, 1e-12)


@pytest.mark.parametrize("alone", [0.0, 2e-8, 1e-6])
@given(question=strategies.questions(max_rows=8))
def test_rows_of_many_patterns_equal_enumeration(alone: float, question: tuple[Network, EvidenceBatch]) -> None:
    network, batch = question
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Facts, "has_joint_table", False)
        patch.setattr(choose, "_has_room_for_shared", lambda *_: False)
        patch.setattr(Facts, "is_heavy", lambda *_: True)
        # A table of its own takes so long: from everything row by row to plans for all.
        planning = {"table": 1e-11, "entry": 0.0}
        set_figures(patch, trees={"table": alone}, planning=planning)
        answers = Engine(network, Query()).answer(batch)
    check_posteriors(network, batch, answers, 1e-12)


@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize("step", [1e-20, 1e-160])
def test_terms_lost_at_both_ends_of_a_chain_are_noticed(precision: str, step: float) -> None:
    """Both ends flush the entry that the middle favours; every single message looks harmless."""
    path = "abcdef"
    links = [((one, other), [[step, 0], [0, 1]]) for one, other in itertools.pairwise(path)]
    ends = [(("a",), [1, step]), (("a",), [1, step**0.9]), (("f",), [1, step]), (("f",), [1, step])]
    network = markov(*ends, *links)
    batch = EvidenceBatch(1, {})
    check_posteriors(network, batch, Engine(network, Query(precision=precision)).answer(batch), TOLERANCE[precision])


@pytest.mark.parametrize("precision", ["double", "single"])
def test_terms_lost_inside_one_product_are_noticed(precision: str) -> None:
    tiny = {"double": 1e-300, "single": 1e-37}[precision]
    network = markov((("a",), [1, tiny * 1e-3]), (("a",), [tiny, 1]), (("a", "b"), [[1, 1], [1, 2]]))
    batch = EvidenceBatch(1, {})
    check_posteriors(network, batch, Engine(network, Query(precision=precision)).answer(batch), TOLERANCE[precision])


def test_a_thousand_steps_of_unlikely_evidence_do_not_underflow() -> None:
    network = chain(length=1000, states=2, seed=4)
    states = sample(network, 3, seed=1)
    batch = EvidenceBatch(3, {v: np.ascontiguousarray(1 - states[:, v]) for v in range(0, 1000, 2)})
    double = Engine(network, Query()).answer(batch)
    log = in_log_space(network, batch)
    assert double.status.tolist() == log.status.tolist() == [OK] * 3
    np.testing.assert_allclose(double.log_value, log.log_value, rtol=1e-12)
    assert (double.log_value < -300).all()


def test_soft_evidence_keeps_the_scale_it_was_given_in() -> None:
    network = markov((("a",), [1, 3]))
    one = SoftEvidence(np.array([0], dtype=np.int64), np.array([[2e-200, 1e-200]]))
    answers = Engine(network, Query()).answer(EvidenceBatch(2, {}, {0: one}))
    np.testing.assert_allclose(answers.log_value, [np.log(5) - 200 * np.log(10), np.log(4)])
    np.testing.assert_allclose(answers.posteriors[0], [[0.4, 0.6], [0.25, 0.75]])


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows(rows: int) -> None:
    network = markov((("a", "b"), [[1, 2], [3, 4]]))
    answers = Engine(network, Query()).answer(EvidenceBatch(rows, {0: np.zeros(rows, np.int32)}))
    assert answers.status.tolist() == [OK] * rows
    assert answers.posteriors[1].shape == (rows, 2)


def test_a_kept_program_serves_batches_of_other_sizes() -> None:
    network = chain(length=5, states=3, seed=2)
    states = sample(network, 500, seed=1)
    kept = Engine(network, Query(), on_cpu(strategy=Strategy.CPU_BLOCKS))
    for rows in (260, 500, 270):
        batch = EvidenceBatch(rows, {0: np.ascontiguousarray(states[:rows, 0])})
        answers = kept.answer(batch)
        assert answers.ways == {"cpu-blocks": rows}
        expected = in_log_space(network, batch)
        np.testing.assert_allclose(answers.log_value, expected.log_value, rtol=1e-12)
        np.testing.assert_allclose(answers.posteriors[4], expected.posteriors[4], atol=1e-12)


def test_unknown_targets_are_refused_with_the_nearest_names() -> None:
    network = markov((("smoke", "lung"), [[1, 2], [3, 4]]))
    with pytest.raises(EvidenceError, match="unknown target 'smok', did you mean 'smoke'"):
        Engine(network, Query(targets=("smok",)))
    with pytest.raises(EvidenceError, match="twice"):
        Engine(network, Query(targets=("smoke", "smoke")))


@pytest.mark.parametrize(("asked", "taken"), [(None, 32), (64, 64), (3, 3)])
def test_threads_of_a_batch(asked: int | None, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 32 only where they are asked for."""
    monkeypatch.setattr("junctor.strategies.facts.usable_cores", lambda: 96)
    options = ComputeOptions(threads=asked, device="cpu")
    assert Engine(chain(3, seed=1), Query(), options).facts.threads == taken
