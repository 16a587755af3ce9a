"""Lowered plans that are kept: equal to those made anew, of the network and the plan alone, never trusted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.blocks import blocks_of, questions
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends import lowered_plans
from junctor.backends import register_tiles as tiles
from junctor.backends.gpu_plan import TILE_SHAPES
from junctor.backends.lowered_plans import LoweredPlan, lowered
from junctor.backends.lowering import Lowering
from junctor.backends.numpy import Program
from junctor.evidence.batch import EvidenceBatch
from junctor.generate import random_network
from junctor.model.network import Network
from junctor.planning.compile import compile_plan
from junctor.planning.shape import Pattern, shape_of
from junctor.runtime.cache import Cache
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra


def assert_same(found: LoweredPlan, expected: LoweredPlan) -> None:
    for name, array in expected.code._asdict().items():
        np.testing.assert_array_equal(getattr(found.code, name), array, err_msg=name)
        assert np.asarray(getattr(found.code, name)).dtype == np.asarray(array).dtype
    assert vars(found.numbers) == vars(expected.numbers)
    for name in ("slots", "likelihoods", "likelihood_rows", "posteriors", "posterior_rows", "arena_rows"):
        assert getattr(found, name) == getattr(expected, name)
    # Their order counts.
    assert list(found.slots) == list(expected.slots)


@given(
    question=questions(),
    shapes=st.sampled_from([TILE_SHAPES, tiles.CPU_SHAPES, ()]),
    algebra=st.sampled_from([reference.SINGLE, reference.LOG, reference.MAX_LOG]),
)
def test_what_is_read_back_is_what_was_lowered(
    question: tuple[Network, EvidenceBatch, bool], shapes: Any, algebra: Algebra
) -> None:
    network, batch, likelihoods = question
    pattern, _ = blocks_of(network, batch, likelihoods)
    explains = algebra is reference.MAX_LOG
    program = Program(compile_plan(shape_of(network), pattern, None, explains), network, algebra)
    rows = {v: row for row, v in enumerate(range(len(network.variables)) if explains else sorted(pattern.sliced))}
    made = LoweredPlan.of(Lowering(program, 16, rows, shapes))
    # Into a program of its own: numbers are not kept.
    again = Program(program.plan, network, algebra)
    assert_same(lowered_plans._parsed(lowered_plans._to_bytes(made), again), made)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A cache for plans of any length."""
    kept = Cache(tmp_path / "kept")
    monkeypatch.setattr(lowered_plans, "user_cache", lambda: kept)
    monkeypatch.setattr(lowered_plans, "KEPT_STEPS", 0)
    return kept


def program_of(network: Network, observed: int = 0, algebra: Algebra = reference.DOUBLE) -> Program:
    pattern = Pattern(frozenset([observed]), frozenset())
    return Program(compile_plan(shape_of(network), pattern), network, algebra)


def lower(program: Program, cases: int = 8) -> LoweredPlan:
    rows = {v: row for row, v in enumerate(sorted(program.plan.pattern.sliced))}
    return lowered(program, cases, rows)


def test_a_plan_is_lowered_once(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network(12, seed=1)
    made = lower(program_of(network))
    with monkeypatch.context() as patch:
        patch.setattr(lowered_plans, "Lowering", None)
        assert_same(lower(program_of(network)), made)
    # Other zeros, another pattern, number format or block: a lowering of its own.
    table = network.factors[-1].table.copy()
    table[..., 0], table[..., 1:] = 0.0, 1.0 / (table.shape[-1] - 1)
    factors = (*network.factors[:-1], replace(network.factors[-1], table=table))
    others = [
        program_of(replace(network, factors=factors)),
        program_of(network, observed=3),
        program_of(network, algebra=reference.SINGLE),
    ]
    for program in others:
        lower(program)
    lower(program_of(network), cases=16)
    assert [entry.kind for entry in cache.entries()] == ["lowered"] * 5


def test_a_strange_entry_is_passed_over(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    network = random_network(12, seed=1)
    made = lower(program_of(network))
    (entry,) = cache.entries()
    entry.path.write_bytes(entry.path.read_bytes()[:-9])
    assert_same(lower(program_of(network)), made)
    assert "damaged" in caplog.text
    for content in (b"", b"nothing", lowered_plans._to_bytes(made)[:500]):
        with pytest.raises(ValueError, match=r"."):
            lowered_plans._parsed(content, program_of(network))


def test_short_plans_are_not_kept(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered_plans, "KEPT_STEPS", 10**6)
    lower(program_of(random_network(12, seed=1)))
    assert not cache.entries()
