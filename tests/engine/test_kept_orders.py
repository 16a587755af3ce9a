"""Orders and networks from the cache: the same bytes with and without it, whatever lies there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.encoding import encode_table
from hypothesis import given
from hypothesis import strategies as st
from junctor import generate
from junctor.backends.kept_orders import KIND, KeptOrders
from junctor.engine.engine import Engine
from junctor.formats import read_network, store, write_network
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.planning import elimination
from junctor.planning.compile import compile_plan
from junctor.planning.shape import Pattern, shape_of
from junctor.runtime.cache import Cache, user_cache

GRID = generate.grid(6, 6, 3, seed=4)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cache]:
    """A cache of its own, and searches even where few rows are to come."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JUNCTOR_CACHE")
    monkeypatch.setattr(elimination, "FEWEST_STEPS", 0)
    monkeypatch.setattr(elimination, "_store", None)
    elimination._searched.cache_clear()
    yield user_cache()
    elimination._searched.cache_clear()


def _answers(query: Query) -> bytes:
    """The bytes of the answers of a new process, as far as orders go."""
    elimination._searched.cache_clear()
    samples = np.random.default_rng(1).integers(0, 3, (20, 36), dtype=np.int32)
    table = generate.evidence_table(GRID, samples, 0.2, seed=2)
    batch = encode_table(table, GRID, case_id="case_id").batch
    answers = Engine(GRID, query, ComputeOptions(memory=1 << 28, threads=1), expected_rows=5_000).answer(batch)
    tables = [*answers.posteriors.values(), *answers.states.values()]
    return b"".join(part.tobytes() for part in (answers.status, answers.log_value, *tables))


def _plan(rows: int) -> str:
    elimination._searched.cache_clear()
    return compile_plan(shape_of(GRID), Pattern(frozenset({3, 17}), frozenset()), rows=rows).to_json()


def _searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    done: list[int] = []
    search = elimination._search

    def counted(*args: Any) -> Any:
        done.append(args[4])
        return search(*args)

    monkeypatch.setattr(elimination, "_search", counted)
    return done


def test_plans_are_equal_and_searched_once(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    without = [_plan(rows) for rows in (5_000, 50_000)]
    done = _searches(monkeypatch)
    elimination.keep_orders_in(KeptOrders(cache))
    assert [_plan(rows) for rows in (5_000, 50_000)] == without
    assert len(done) == len(cache.entries()) == 2
    assert [_plan(rows) for rows in (5_000, 50_000)] == without
    assert len(done) == 2


@pytest.mark.parametrize("query", [Query(precision="log"), Query("mpe")], ids=["log", "mpe"])
def test_answers_are_equal(query: Query, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    done = _searches(monkeypatch)
    first, searches = _answers(query), len(done)
    assert searches == len(cache.entries()) > 0
    assert _answers(query) == first
    assert len(done) == searches
    for entry in cache.entries():
        entry.path.write_bytes(entry.path.read_bytes()[:-1])
    assert _answers(query) == first
    assert len(done) == 2 * searches
    monkeypatch.setenv("JUNCTOR_CACHE", "off")
    assert _answers(query) == first
    assert len(done) == 3 * searches


_STRANGE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["order", "entries"]), inner),
    max_leaves=6,
)


@given(_STRANGE)
def test_what_is_no_order_is_passed_over(tmp_path_factory: pytest.TempPathFactory, strange: object) -> None:
    cache = Cache(tmp_path_factory.mktemp("kept"))
    for order in (strange, [0, 1, 2, strange], [0, 1, 1], [0, 1], [0, 1, 3], [True, 0, 2]):
        for entries in (strange, "0x1p3", "nan", "-1"):
            cache.write(KIND, "a", json.dumps({"order": order, "entries": entries}).encode())
            found = KeptOrders(cache).find("a", frozenset({0, 1, 2}))
            assert found is None or (sorted(found[0]) == [0, 1, 2] and found[1] > 0)
    cache.write(KIND, "a", json.dumps(strange).encode())
    assert KeptOrders(cache).find("a", frozenset({0, 1, 2})) is None
    KeptOrders(cache).keep("a", (2, 0, 1), 0.1)
    assert KeptOrders(cache).find("a", frozenset({0, 1, 2})) == ((2, 0, 1), 0.1)


def _same(one: Network, other: Network) -> bool:
    return one.digest == other.digest and one.name == other.name and one.kind == other.kind


@pytest.mark.parametrize("format", ["bif", "uai"])
def test_networks_are_equal(format: str, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("junctor.formats.LEAST_KEPT", 1)
    path = tmp_path / f"kept.{format}"
    write_network(generate.chain(30, (2, 4), seed=3), path)
    monkeypatch.setenv("JUNCTOR_CACHE", "off")
    expected = read_network(path)
    monkeypatch.delenv("JUNCTOR_CACHE")
    assert _same(read_network(path), expected)
    assert [entry.kind for entry in cache.entries()] == ["network"]
    monkeypatch.setattr("junctor.formats._read", None)
    assert _same(read_network(path), expected)
    again = read_network(path)
    # At once, and then made anew.
    assert store.to_bytes(again) == store.to_bytes(again) == store.to_bytes(expected)
    monkeypatch.undo()


def test_a_changed_file_is_read_anew(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("junctor.formats.LEAST_KEPT", 1)
    path = tmp_path / "net.bif"
    networks = [generate.chain(20, 3, seed=seed) for seed in (1, 2)]
    for network in networks:
        write_network(network, path)
        assert read_network(path).digest == network.digest
    for entry in cache.entries():
        entry.path.write_bytes(b"damaged")
    assert read_network(path).digest == networks[1].digest
