"""Numbers of plans that are kept: equal to those computed anew, of the network and the plan alone, never trusted."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.blocks import blocks_of, questions
from hypothesis import given
from hypothesis import strategies as st
from junctor.backends import bound_numbers
from junctor.backends.numpy import Program
from junctor.evidence.batch import EvidenceBatch
from junctor.generate import random_network
from junctor.model.network import Network
from junctor.planning.compile import compile_plan
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern, shape_of
from junctor.runtime.cache import Cache
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra

ALGEBRAS = [reference.DOUBLE, reference.SINGLE, reference.LOG, reference.MAX_LOG]


def numbers_of(program: Program) -> list[Any]:
    """All that a program has of a network, in an order."""
    tables = [
        (key, *(getattr(value, name) for name in ("table", *bound_numbers._FACTS)))
        for key, value in program.shared.items()
    ]
    columns = [*program.columns.items(), *enumerate(program._constants)]
    tables += [(key, each.table, each.exponent, each.least, each.observed, each.radices) for key, each in columns]
    return [*tables, *((key, *vars_of(program, key)) for key in program.lowered)]


def vars_of(program: Program, table: int) -> tuple[Any, ...]:
    lowered = program.lowered[table]
    return lowered.operands, lowered.contraction, program.growth_of(table)


def assert_same(found: Program, expected: Program) -> None:
    for one, other in zip(numbers_of(found), numbers_of(expected), strict=True):
        for mine, its in zip(one, other, strict=True):
            if isinstance(its, np.ndarray):
                assert (mine.dtype, mine.shape, mine.tobytes()) == (its.dtype, its.shape, its.tobytes())
            else:
                assert mine == its


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A cache for plans of any length."""
    kept = Cache(tmp_path / "kept")
    monkeypatch.setattr(bound_numbers, "user_cache", lambda: kept)
    monkeypatch.setattr(bound_numbers, "KEPT_STEPS", 0)
    return kept


@given(question=questions(), algebra=st.sampled_from(ALGEBRAS))
def test_what_is_read_back_is_what_was_computed(
    question: tuple[Network, EvidenceBatch, bool], algebra: Algebra
) -> None:
    network, batch, likelihoods = question
    pattern, _ = blocks_of(network, batch, likelihoods)
    plan = compile_plan(shape_of(network), pattern, None, algebra is reference.MAX_LOG)
    expected = Program(plan, network, algebra)
    kept: list[bytes] = []

    def read_back(plan: Plan, network: Network, algebra: Algebra, _: bool, make: Any) -> Any:
        kept.append(bound_numbers._to_bytes(make()))
        return bound_numbers._parsed(kept[0], plan, algebra)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("junctor.backends.numpy.bound", read_back)
        found = Program(plan, network, algebra, keeps=True)
    assert kept
    assert_same(found, expected)


def program_of(network: Network, observed: int = 0, algebra: Algebra = reference.DOUBLE, threads: int = 0) -> Program:
    pattern = Pattern(frozenset([observed]), frozenset())
    return Program(compile_plan(shape_of(network), pattern), network, algebra, threads, keeps=True)


def test_a_plan_is_bound_once(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network(12, seed=1)
    made = program_of(network)
    with monkeypatch.context() as patch:
        patch.setattr(Program, "_bind_all", None)
        assert_same(program_of(network), made)
    # Other numbers, another pattern or number format, other code, another processor: numbers of their own.
    program_of(random_network(12, seed=2))
    program_of(network, observed=3)
    program_of(network, algebra=reference.SINGLE)
    program_of(network, threads=1)
    monkeypatch.setattr(bound_numbers, "cpu_name", lambda: "another")
    program_of(network)
    assert [entry.kind for entry in cache.entries()] == ["bound"] * 6


def test_a_strange_entry_is_passed_over(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    network = random_network(12, seed=1)
    made = program_of(network)
    (entry,) = cache.entries()
    entry.path.write_bytes(entry.path.read_bytes()[:-9])
    assert_same(program_of(network), made)
    assert "damaged" in caplog.text


@pytest.mark.parametrize("name", ["tables", "facts", "columns", "exponents", "leasts", "growth"])
def test_numbers_of_another_plan_are_refused(name: str) -> None:
    network = random_network(12, seed=1)
    made = program_of(network)
    content = bound_numbers._to_bytes(made._bound())
    assert bound_numbers._parsed(content, made.plan, reference.DOUBLE)
    with np.load(io.BytesIO(content)) as file:
        arrays: dict[str, Any] = {each: file[each] for each in file.files}
    for other in (None, arrays[name][:-1], np.append(arrays[name], 1.0), np.array(["x"] * arrays[name].size)):
        file = io.BytesIO()
        np.savez(file, **{each: its for each, its in (arrays | {name: other}).items() if its is not None})
        with pytest.raises(ValueError, match=r"."):
            bound_numbers._parsed(file.getvalue(), made.plan, reference.DOUBLE)
    with pytest.raises(ValueError, match=r"."):
        bound_numbers._parsed(b"nothing", made.plan, reference.DOUBLE)


def test_what_takes_too_much_or_little_is_not_kept(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network(12, seed=1)
    for name, value in (("KEPT_STEPS", 10**6), ("MOST_BYTES", 0)):
        with monkeypatch.context() as patch:
            patch.setattr(bound_numbers, name, value)
            program_of(network)
    Program(compile_plan(shape_of(network), Pattern(frozenset(), frozenset())), network, reference.DOUBLE)
    assert not cache.entries()
