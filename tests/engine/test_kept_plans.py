"""Plans from the cache: the same plans and bytes of answers with and without it, whatever lies there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.encoding import encode_table
from helpers.strategies import networks
from hypothesis import given, settings
from hypothesis import strategies as st
from junctor import generate
from junctor.backends import kept_plans
from junctor.backends.kept_plans import KeptPlans
from junctor.engine.engine import Engine
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.planning.compile import compile_plan
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern, shape_of
from junctor.runtime.cache import Cache, user_cache

GRID = generate.grid(6, 6, 3, seed=4)
PATTERN = Pattern(frozenset({3, 17}), frozenset({5}))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A cache of its own, for plans of few variables and rows as well."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JUNCTOR_CACHE")
    monkeypatch.setattr(kept_plans, "LEAST_VARIABLES", 0)
    monkeypatch.setattr(kept_plans, "LEAST_ROWS", 0)
    return user_cache()


def _plans(cache: Cache) -> list[Path]:
    return [entry.path for entry in cache.entries() if entry.kind == kept_plans.KIND]


@given(network=networks(max_variables=10, max_joint=1 << 14), data=st.data(), explain=st.booleans())
def test_a_plan_comes_back_as_it_was(network: Any, data: st.DataObject, explain: bool) -> None:
    variables = st.sets(st.sampled_from(range(len(network.variables))))
    sliced, weighted = data.draw(variables), data.draw(variables)
    pattern = Pattern(frozenset(sliced), frozenset(weighted - sliced))
    targets = None if explain else data.draw(st.none() | variables)
    shape = shape_of(network)
    plan = compile_plan(shape, pattern, targets, explain)
    assert kept_plans._parsed(kept_plans._to_bytes(plan), shape, pattern) == plan


def test_the_same_bytes_with_and_without(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Pattern] = []

    def counted(shape: Any, pattern: Pattern, *rest: Any) -> Plan:
        made.append(pattern)
        return compile_plan(shape, pattern, *rest)

    monkeypatch.setattr("junctor.planning.compile.compile_plan", counted)

    def answers(query: Query) -> bytes:
        table = generate.evidence_table(
            GRID, np.random.default_rng(1).integers(0, 3, (20, 36), dtype=np.int32), 0.2, seed=2
        )
        batch = encode_table(table, GRID, case_id="case_id").batch
        found = Engine(GRID, query, ComputeOptions(memory=1 << 28, threads=1), expected_rows=5_000).answer(batch)
        return b"".join(part.tobytes() for part in (found.status, found.log_value, *found.posteriors.values()))

    # Other targets have other plans.
    for query in (Query(precision="log"), Query(precision="log", targets=(GRID.variables[0].name,))):
        made.clear()
        first, count = answers(query), len(made)
        assert count > 0
        assert answers(query) == first
        assert len(made) == count
        for path in _plans(cache):
            path.write_bytes(path.read_bytes()[:-1])
        assert answers(query) == first
        assert len(made) == 2 * count
        with monkeypatch.context() as patch:
            patch.setenv("JUNCTOR_CACHE", "off")
            assert answers(query) == first
        assert len(made) == 3 * count


def test_what_a_plan_depends_on_is_its_key(cache: Cache) -> None:
    kept, plan = KeptPlans(cache), compile_plan(shape_of(GRID), PATTERN)
    other = generate.grid(6, 6, 3, seed=5)
    asked: list[tuple[Any, ...]] = [
        (GRID, PATTERN, None, False, 4),
        (other, PATTERN, None, False, 4),
        (GRID, Pattern(PATTERN.sliced, frozenset()), None, False, 4),
        (GRID, PATTERN, (1,), False, 4),
        (GRID, PATTERN, None, True, 4),
        (GRID, PATTERN, None, False, 16),
    ]
    for what in asked:
        made = compile_plan(shape_of(what[0]), *what[1:])
        assert kept.plan(*what, lambda made=made: made) is made
    assert len(_plans(cache)) == len(asked)
    assert kept.plan(*asked[0], lambda: pytest.fail("made again")) == compile_plan(shape_of(GRID), PATTERN, rows=4)
    assert plan.pattern == PATTERN


@settings(max_examples=60)
@given(
    place=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    strange=st.none() | st.booleans() | st.integers(-2, 10**20) | st.text(max_size=2) | st.lists(st.integers(0, 3)),
)
def test_what_is_no_plan_is_refused(place: list[int], strange: object) -> None:
    shape = shape_of(GRID)
    record = json.loads(kept_plans._to_bytes(compile_plan(shape, PATTERN)))
    inner: Any = record
    # A place somewhere inside of the record.
    *way, last = place
    for step in way:
        inside = inner[sorted(inner)[step % len(inner)]] if isinstance(inner, dict) else inner[step % len(inner)]
        if not isinstance(inside, dict | list) or not inside:
            break
        inner = inside
    inner[sorted(inner)[last % len(inner)] if isinstance(inner, dict) else last % len(inner)] = strange
    try:
        plan = kept_plans._parsed(json.dumps(record).encode(), shape, PATTERN)
    except ValueError:
        return
    tables = {out for step in plan.steps for out in [getattr(step, "out", getattr(step, "table", None))]}
    assert tables <= set(range(len(plan.tables)))


def test_few_rows_keep_the_plans_of_long_ones_alone(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_plans, "LEAST_ROWS", 1024)
    kept, what = KeptPlans(cache), (GRID, PATTERN, None, False, 4)
    plan = compile_plan(shape_of(GRID), *what[1:])
    operations = plan.shared_operations + plan.case_operations
    for least, count in ((operations + 1, 0), (operations, 1)):
        monkeypatch.setattr(kept_plans, "LEAST_OPERATIONS", least)
        assert kept.plan(*what, lambda: plan) == plan
        assert len(_plans(cache)) == count
    assert kept.plan(*what, lambda: pytest.fail("made again")) == plan
