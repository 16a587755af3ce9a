"""What is kept of plans: equal to what is made anew, of what it depends on alone, never trusted."""

from __future__ import annotations

import io
import json
import logging
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.blocks import blocks_of, questions
from helpers.encoding import encode_table
from hypothesis import given, settings
from hypothesis import strategies as st
from junctor import generate
from junctor.backends import prepared_plans
from junctor.backends import register_tiles as tiles
from junctor.backends.lowering import LoweredPlan, Lowering, NumberTables
from junctor.backends.numpy import Program
from junctor.backends.prepared_plans import LOWERED, NUMBERS, PLAN, Section, kept_numbers, kept_plan, lowered
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.out_of_core.kept_cuts import CUT, OVERLAP
from junctor.out_of_core.memory_splits import Overlap
from junctor.planning import elimination
from junctor.planning.chunk_search import ChunkChoice
from junctor.planning.chunks import PassRecord
from junctor.planning.compile import compile_plan
from junctor.planning.plan import Plan
from junctor.planning.shape import Pattern, shape_of
from junctor.runtime.cache import Cache, user_cache
from junctor_kernels.gpu.blocks import TILE_SHAPES
from junctor_kernels.tables import reference
from junctor_kernels.tables.reference import Algebra

GRID = generate.grid(6, 6, 3, seed=4)
PATTERN = Pattern(frozenset({3, 17}), frozenset({5}))
NETWORK = generate.random_network(12, seed=1)


def program_of(network: Network, observed: int = 0, algebra: Algebra = reference.DOUBLE, threads: int = 0) -> Program:
    plan = compile_plan(shape_of(network), Pattern(frozenset([observed]), frozenset()))
    return Program(plan, network, algebra, threads, keep=kept_numbers)


def lower(program: Program, cases: int = 8) -> LoweredPlan:
    return lowered(program, cases, {v: row for row, v in enumerate(sorted(program.plan.pattern.sliced))})


@dataclass(frozen=True)
class Example:
    """A content of a section, and what it is for."""

    section: Section[Any]
    content: Any
    about: tuple[Any, ...] = ()


def examples() -> dict[str, Example]:
    program, plan = program_of(NETWORK), compile_plan(shape_of(GRID), PATTERN)
    choice = ChunkChoice((2, 0, 1, 3), "sweep", True, 1, (PassRecord((0, 1), (3,)),))
    return {
        "plan": Example(PLAN, plan, (plan.shape, PATTERN)),
        "numbers": Example(NUMBERS, program._bound(), (program.plan, reference.DOUBLE)),
        "lowered": Example(LOWERED, lower(program), (program,)),
        "cut": Example(CUT, choice, (frozenset(range(4)),)),
        "overlap": Example(OVERLAP, Overlap(2, 3)),
    }


EXAMPLES = examples()
of_each_section = pytest.mark.parametrize("example", EXAMPLES.values(), ids=list(EXAMPLES))


def assert_same(found: Any, expected: Any) -> None:
    """Values, dtypes and the order of entries are equal, all the way in."""
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
    elif isinstance(expected, dict):
        assert_same(list(found.items()), list(expected.items()))
    elif isinstance(expected, list | tuple):
        for mine, its in zip(found, expected, strict=True):
            assert_same(mine, its)
    elif isinstance(expected, NumberTables):
        assert_same(vars(found), vars(expected))
    elif is_dataclass(expected):
        for name in expected.__dataclass_fields__:
            assert_same(getattr(found, name), getattr(expected, name))
    else:
        assert found == expected


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A cache of its own, for plans of any length and of few rows as well."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JUNCTOR_CACHE")
    for name in ("LEAST_VARIABLES", "LEAST_ROWS", "KEPT_STEPS"):
        monkeypatch.setattr(prepared_plans, name, 0)
    return user_cache()


def kinds(cache: Cache) -> list[str]:
    return [entry.kind for entry in cache.entries()]


@given(
    question=questions(),
    algebra=st.sampled_from([reference.DOUBLE, reference.SINGLE, reference.LOG, reference.MAX_LOG]),
    shapes=st.sampled_from([TILE_SHAPES, tiles.CPU_SHAPES, ()]),
    data=st.data(),
)
def test_what_is_read_back_is_what_was_made(
    question: tuple[Network, EvidenceBatch, bool], algebra: Algebra, shapes: Any, data: st.DataObject
) -> None:
    network, batch, likelihoods = question
    pattern, _ = blocks_of(network, batch, likelihoods)
    shape, explains, variables = shape_of(network), algebra is reference.MAX_LOG, range(len(network.variables))
    targets = None if explains else data.draw(st.none() | st.sets(st.sampled_from(variables)))
    plan = compile_plan(shape, pattern, targets, explains)
    assert PLAN.read(PLAN.to_bytes(plan), shape, pattern) == plan
    read: list[Any] = []

    def read_back(program: Program, make: Any) -> Any:
        read.append(NUMBERS.read(NUMBERS.to_bytes(make()), program.plan, program.algebra))
        return read[0]

    found, expected = Program(plan, network, algebra, keep=read_back), Program(plan, network, algebra)
    assert_same(read[0], expected._bound())
    for name in ("shared", "columns", "_constants", "lowered"):
        assert_same(getattr(found, name), getattr(expected, name))
    rows = {v: row for row, v in enumerate(variables if explains else sorted(pattern.sliced))}
    made = LoweredPlan.of(Lowering(expected, 16, rows, shapes))
    # Into a program of its own: numbers are not kept.
    assert_same(LOWERED.read(LOWERED.to_bytes(made), found), made)


@of_each_section
def test_damaged_and_older_entries_are_passed_over(
    example: Example, cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    section, whole = example.section, example.section.to_bytes(example.content)
    older = b'{"order": [0], "tables": [], "steps": []}'
    section.keep("key", example.content)
    assert_same(section.find("key", *example.about), example.content)
    assert section.find("another", *example.about) is None
    assert kinds(cache) == [section.kind]
    with caplog.at_level(logging.WARNING, "junctor"):
        for content in (b"", b"nothing", whole[:-9], whole[: len(whole) // 2], older):
            cache.write(section.kind, repr("key"), content)
            assert section.find("key", *example.about) is None
    assert len(caplog.records) == 1
    assert "damaged" in caplog.text
    assert_same(section.kept("key", example.about, lambda: example.content), example.content)
    assert_same(section.kept("key", example.about, lambda: pytest.fail("made again")), example.content)


def _entry(record: Any, arrays: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, record=np.frombuffer(json.dumps(record).encode(), np.uint8), **arrays)
    return file.getvalue()


def _inner(record: Any, place: list[int]) -> tuple[list[Any], int]:
    """Return a list somewhere inside of a record, and a place in it."""
    for step in place[:-1]:
        if not isinstance(record[step % len(record)], list) or not record[step % len(record)]:
            break
        record = record[step % len(record)]
    return record, place[-1] % len(record)


@settings(max_examples=60)
@given(
    name=st.sampled_from(["plan", "cut", "overlap"]),
    place=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    strange=st.none() | st.booleans() | st.integers(-2, 10**20) | st.text(max_size=2) | st.lists(st.integers(0, 3)),
    drops=st.booleans(),
)
def test_what_is_strange_is_refused(name: str, place: list[int], strange: object, drops: bool) -> None:
    example = EXAMPLES[name]
    record = json.loads(json.dumps(example.section.pack(example.content)[0]))
    inner, at = _inner(record, place)
    inner[at : at + 1] = [] if drops else [strange]
    try:
        found = example.section.read(_entry(record, {}), *example.about)
    except (ValueError, TypeError, LookupError):
        return
    if isinstance(found, Plan):
        tables = {out for step in found.steps for out in [getattr(step, "out", getattr(step, "table", None))]}
        assert tables <= set(range(len(found.tables)))
    elif isinstance(found, ChunkChoice):
        assert sorted(found.variables) == [0, 1, 2, 3]
        assert isinstance(found.lean, bool)
        assert found.split >= 0
        assert all(done.steps for done in found.passes)
    else:
        assert list(found) == record


@pytest.mark.parametrize("name", ["tables", "facts", "columns", "exponents", "leasts", "growth"])
def test_numbers_of_another_plan_are_refused(name: str) -> None:
    example = EXAMPLES["numbers"]
    record, arrays = NUMBERS.pack(example.content)
    for other in (None, arrays[name][:-1], np.append(arrays[name], 1.0), np.array(["x"] * arrays[name].size)):
        entry = _entry(record, {each: its for each, its in (arrays | {name: other}).items() if its is not None})
        with pytest.raises((ValueError, KeyError), match=r"."):
            NUMBERS.read(entry, *example.about)


def test_what_is_kept_depends_on_its_key(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, pattern = shape_of(GRID), Pattern(PATTERN.sliced, frozenset())
    asked: list[tuple[Any, ...]] = [
        (shape, PATTERN, None, False, 4),
        (shape_of(generate.grid(6, 6, 2, seed=4)), PATTERN, None, False, 4),
        (shape, pattern, None, False, 4),
        (shape, PATTERN, (1,), False, 4),
        (shape, PATTERN, None, True, 4),
        (shape, PATTERN, None, False, 16),
    ]
    for what in asked:
        made = compile_plan(*what)
        assert kept_plan(*what, lambda made=made: made) is made
    # A network of other numbers has the same plans.
    what = (shape_of(generate.grid(6, 6, 3, seed=5)), *asked[0][1:])
    assert kept_plan(*what, lambda: pytest.fail("made again")) == compile_plan(*what)
    assert kinds(cache) == ["plan"] * len(asked)
    cache.clear()
    made = program_of(NETWORK)
    layout = lower(made)
    with monkeypatch.context() as patch:
        patch.setattr(Program, "_bind_all", None)
        patch.setattr(Lowering, "__init__", None)
        assert_same(program_of(NETWORK)._growths, made._growths)
        assert_same(lower(program_of(NETWORK)), layout)
    # Other zeros, another pattern, number format, code or processor: numbers of their own; of a block a lowering.
    table = NETWORK.factors[-1].table.copy()
    table[..., 0], table[..., 1:] = 0.0, 1.0 / (table.shape[-1] - 1)
    other = replace(NETWORK, factors=(*NETWORK.factors[:-1], replace(NETWORK.factors[-1], table=table)))
    for program in (program_of(other), program_of(NETWORK, 3), program_of(NETWORK, algebra=reference.SINGLE)):
        lower(program)
    lower(program_of(NETWORK, threads=1))
    lower(made, cases=16)
    monkeypatch.setattr(prepared_plans, "cpu_name", lambda: "another")
    lower(program_of(NETWORK))
    assert sorted(kinds(cache)) == ["bound"] * 6 + ["lowered"] * 5


def test_what_takes_too_much_or_little_is_not_kept(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("KEPT_STEPS", 10**6), ("MOST_BYTES", 0)):
        with monkeypatch.context() as patch:
            patch.setattr(prepared_plans, name, value)
            program_of(NETWORK)
    monkeypatch.setattr(prepared_plans, "KEPT_STEPS", 10**6)
    lower(program_of(NETWORK))
    assert not cache.entries()


def test_few_rows_keep_the_plans_of_long_ones_and_of_searches_alone(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_plans, "LEAST_ROWS", 1024)
    what = shape_of(GRID), PATTERN, None, False, 4
    plan = compile_plan(*what)
    searched = replace(plan, criterion=elimination.SEARCHED)
    for least, made, count in ((plan.operations + 1, plan, 0), (plan.operations, plan, 1), (10**30, searched, 1)):
        monkeypatch.setattr(prepared_plans, "LEAST_OPERATIONS", least)
        assert kept_plan(*what, lambda made=made: made) == made
        assert len(cache.entries()) == count
        assert count == 0 or kept_plan(*what, lambda: pytest.fail("made again")) == made
        cache.clear()
    # So are plans of many rows of few variables.
    monkeypatch.setattr(prepared_plans, "LEAST_VARIABLES", 100)
    many = (*what[:-1], 1024)
    for made, count in ((plan, 0), (searched, 1)):
        assert kept_plan(*many, lambda made=made: made) == made
        assert len(cache.entries()) == count
    # Nobody looks for one of few rows and variables.
    assert kept_plan(*what, lambda: searched) is searched
    assert len(cache.entries()) == 1


@pytest.mark.parametrize(
    "query",
    [Query(precision="log"), Query("mpe"), Query(precision="log", targets=(GRID.variables[0].name,))],
    ids=["log", "mpe", "targets"],
)
def test_the_same_bytes_with_and_without(query: Query, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Pattern] = []
    monkeypatch.setattr(elimination, "FEWEST_STEPS", 0)

    def counted(shape: Any, pattern: Pattern, *rest: Any) -> Plan:
        made.append(pattern)
        return compile_plan(shape, pattern, *rest)

    monkeypatch.setattr("junctor.planning.compile.compile_plan", counted)
    states = np.random.default_rng(1).integers(0, 3, (20, 36), dtype=np.int32)
    batch = encode_table(generate.evidence_table(GRID, states, 0.2, seed=2), GRID, case_id="case_id").batch

    def answers() -> bytes:
        """The bytes of the answers of a new process, as far as plans go."""
        elimination._searched.cache_clear()
        found = Engine(GRID, query, ComputeOptions(memory=1 << 28, threads=1), expected_rows=5_000).answer(batch)
        tables = [*found.posteriors.values(), *found.states.values()]
        return b"".join(part.tobytes() for part in (found.status, found.log_value, *tables))

    first, count = answers(), len(made)
    assert count > 0
    assert answers() == first
    assert len(made) == count
    for entry in cache.entries():
        entry.path.write_bytes(entry.path.read_bytes()[:-1])
    assert answers() == first
    assert len(made) == 2 * count
    monkeypatch.setenv("JUNCTOR_CACHE", "off")
    assert answers() == first
    assert len(made) == 3 * count
