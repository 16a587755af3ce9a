"""Rows slice by slice, messages made again and mixtures of both: the same answers, and what is said of them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import oracle, strategies
from helpers.chunk_plans import cut_for
from helpers.engine_cases import TOLERANCE, check_explanations, check_posteriors, markov
from helpers.options import on_cpu
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends.numpy import EvidenceBlock
from junctor.cost.dataset import MeasuredDevice
from junctor.cost.model import local_cost_models
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch, SoftEvidence
from junctor.generate import grid
from junctor.model.answers import IMPOSSIBLE, OK, Answers
from junctor.model.errors import BudgetError, DiskError
from junctor.model.network import Network
from junctor.model.query import Precision, Query
from junctor.out_of_core import memory_splits, programs
from junctor.out_of_core import store as chunk_store
from junctor.out_of_core.gpu.devices import DeviceGroup
from junctor.out_of_core.gpu.run import ChunkedGpuProgram
from junctor.out_of_core.memory_splits import OFFSET_BYTES, ChunkRoute, GpuSplits, MemoryLimits, launch_bytes
from junctor.out_of_core.programs import cut, is_slice
from junctor.planning.compile import Problem
from junctor.planning.shape import Pattern, shape_of
from junctor.planning.slices import MOST_SLICES
from junctor.strategies.chunk_cuts import ChunkCuts
from junctor.strategies.facts import Facts
from junctor.model.strategies import Strategy
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra

NOTHING = Pattern(frozenset(), frozenset())
COSTS = local_cost_models(own=False)
CPU, GPU = COSTS.cpu("AMD EPYC"), COSTS.gpu(MeasuredDevice("NVIDIA H100 80GB HBM3"))
# Variables that are held constant, and messages that are made again.
HELD = st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True)
AGAIN = st.lists(st.integers(0, 99), max_size=3)


@st.composite
def questions(draw: st.DrawFn) -> tuple[Network, EvidenceBatch]:
    network = draw(strategies.networks(max_variables=6, max_joint=256))
    return network, draw(strategies.evidence_batches(network, max_rows=3))


@pytest.mark.parametrize("precision", ["double", "single", "log"])
@given(question=questions(), working=st.sampled_from([0, 3, 100]), lean=st.booleans(), held=HELD, again=AGAIN)
def test_rows_slice_by_slice_equal_enumeration(
    precision: Precision,
    question: tuple[Network, EvidenceBatch],
    working: int,
    lean: bool,
    held: list[int],
    again: list[int],
) -> None:
    network, batch = question
    inside = [v for v in held if v < len(network.variables)]
    with cut_for(working, lean=lean, held=inside, again=again):
        answers = Engine(network, Query(precision=precision)).answer(batch)
    check_posteriors(network, batch, answers, TOLERANCE[precision])


@pytest.mark.parametrize("precision", ["double", "log"])
@given(question=questions(), working=st.sampled_from([0, 3, 100]), held=HELD, again=AGAIN)
def test_explanations_slice_by_slice_are_as_probable_as_any(
    precision: Precision, question: tuple[Network, EvidenceBatch], working: int, held: list[int], again: list[int]
) -> None:
    network, batch = question
    inside = [v for v in held if v < len(network.variables)]
    with cut_for(working, held=inside, again=again), pytest.MonkeyPatch.context() as patch:
        # What is ambiguous of a row goes in chunks as well, or in one piece.
        patch.setattr(ChunkCuts, "in_chunks", lambda cuts, pattern, *_: len(pattern.sliced) < 3)
        patch.setattr(Facts, "forced", None)
        answers = Engine(network, Query("mpe", precision=precision)).answer(batch)
    check_explanations(network, batch, answers, 2e-9)


@pytest.mark.parametrize("held", [(1,), (0, 2), (1, 3)])
def test_slices_that_are_impossible_count_nothing(held: tuple[int, ...]) -> None:
    """Of b one state, of d none beside c = 0; and a row of which no slice is possible."""
    network = markov(
        (("a", "b"), [[1, 0], [3, 0]]), (("b", "c"), [[1, 2], [5, 7]]), (("c", "d"), [[2, 0], [1, 4]]), (("d",), [1, 1])
    )
    soft = SoftEvidence(np.array([1]), np.array([[0.2, 0.9]]))
    batch = EvidenceBatch(3, {2: np.array([-1, -1, 0], np.int32), 3: np.array([-1, -1, 1], np.int32)}, {0: soft})
    with cut_for(0, held=held):
        answers = Engine(network, Query()).answer(batch)
        explained = Engine(network, Query("mpe")).answer(batch)
    assert answers.status.tolist() == explained.status.tolist() == [OK, OK, IMPOSSIBLE]
    check_posteriors(network, batch, answers, 1e-12)
    check_explanations(network, batch, explained, 2e-9)


@pytest.mark.parametrize(("precision", "climbed"), [("single", {"double": 1, "log": 1}), ("double", {"log": 1})])
def test_slices_in_doubt_go_to_logarithms(precision: Precision, climbed: dict[str, int]) -> None:
    """Of one is known that it is possible, not more; without slices it would count nothing beside the other."""
    steep = [((one, other), [[1e-200, 0], [0, 1]]) for one, other in ("ab", "bc")]
    network = markov((("z", "a"), [[1, 0], [1, 1]]), *steep)
    with cut_for(0):
        assert not Engine(network, Query(precision=precision)).answer(EvidenceBatch(1)).climbed
    with cut_for(0, held=(0,)):
        answers = Engine(network, Query(precision=precision)).answer(EvidenceBatch(1))
    assert answers.climbed == climbed
    check_posteriors(network, EvidenceBatch(1), answers, 1e-12)
