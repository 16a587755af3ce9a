"""Kernels that Python runs while there is no compiled code of them: what it runs, and that it finds the same."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import junctor
import numpy as np
import pytest
from junctor import generate
from junctor.model.network import Network
from junctor_kernels.cpu import interpreted
from junctor_kernels.cpu.compilation import compilation
from junctor_kernels.cpu.interpreted import Interpreted, as_python
from junctor_kernels.row_trees import counts


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let Python run every kernel that it may; names of those that it has run."""
    names: list[str] = []

    def is_worth_it(self: Interpreted, _args: object) -> bool:
        names.append(self._compiled.py_func.__name__)
        return True

    monkeypatch.setattr(Interpreted, "_is_worth_it", is_worth_it)
    monkeypatch.setattr(compilation, "patience", 0.0)
    return names


def rows_of(network: Network, count: int, observed: float, seed: int) -> dict[str, list[str | None]]:
    random = np.random.default_rng(seed)
    return {
        variable.name: [
            variable.states[random.integers(len(variable.states))] if random.random() < observed else None
            for _ in range(count)
        ]
        for variable in network.variables
    }


def test_impossible_rows_and_their_reasons_are_the_same(ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(4):
        # Rows more than a block of one word has.
        network = generate.layered(3, 4, zeros=0.5, seed=seed)
        rows = rows_of(network, 70, 0.4, seed)
        # Another object, of which nothing is known.
        found = junctor.posteriors(network, rows)
        with monkeypatch.context() as compiled:
            compiled.setattr(Interpreted, "_is_worth_it", lambda *_: False)
            expected = junctor.posteriors(generate.layered(3, 4, zeros=0.5, seed=seed), rows)
        assert found["status"].to_pylist() == expected["status"].to_pylist()
        assert found["reason"].to_pylist() == expected["reason"].to_pylist()
        assert "impossible" in found["status"].to_pylist()
    assert {"decide", "choose", "accuse_factors", "advance", "ask", "write_keys", "write_sets"} <= set(ran)


@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_fits_to_rows_with_gaps_are_the_same(zeros: float, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Half of the states are missing: components with many states missing are propagated on trees, others enumerated.
    network = generate.random_network(14, (2, 4), zeros=zeros, seed=3)
    rows = rows_of(network, 12, 0.4, 1)
    fits = []
    for by_python in (True, False):
        with monkeypatch.context() as chosen:
            if not by_python:
                chosen.setattr(Interpreted, "_is_worth_it", lambda *_: False)
            fits.append(junctor.learn(network, rows, prior="bdeu:1", max_iterations=2, impossible="skip"))
    assert {"split", "merge", "count"} <= set(ran)
    one, other = (fit.network for fit in fits)
    for found, expected in zip(one.factors, other.factors, strict=True):
        np.testing.assert_allclose(found.table, expected.table, rtol=1e-12, atol=1e-14)


def test_threads_that_begin_at_once_have_whole_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreted._copy.cache_clear()
    monkeypatch.setattr(interpreted, "_modules", {})
    plain, both = interpreted._plain, Barrier(8)

    def slowly(value: object) -> Any:
        time.sleep(1e-4)
        return plain(value)

    monkeypatch.setattr(interpreted, "_plain", slowly)

    def found(_: int) -> set[str]:
        both.wait()
        # Names of what it calls are there, whoever has copied them.
        return set(counts.count.py_func.__code__.co_names) & as_python(counts.count.py_func).__globals__.keys()

    with ThreadPoolExecutor(8) as threads:
        names = list(threads.map(found, range(8)))
    assert all(each == names[0] for each in names)
    assert {"_listed", "_enumerate", "plan_rows"} <= names[0]


def kernel() -> Any:
    """Return a kernel that is compiled nowhere, and says who has run it."""
    told: list[str] = []

    def run(_array: object) -> np.int64:
        told.append("Python")
        return np.int64(len(told))

    def compiled(_array: object) -> int:
        told.append("code")
        return len(told)

    named = SimpleNamespace(py_func=run, overloads={}, _cache=SimpleNamespace(has_any=False), told=told)

    class Compiled:
        def __getattr__(self, name: str) -> Any:
            return getattr(named, name)

        def __call__(self, array: object) -> int:
            return compiled(array)

    return Interpreted(Compiled())


SMALL = np.zeros(8)


def test_python_runs_what_is_small_until_there_is_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUNCTOR_CACHE", "")
    some = kernel()
    # As compiled code returns it.
    assert type(some(SMALL)) is int
    some((SMALL, (np.zeros(interpreted.MOST_ENTRIES),)))
    some(SMALL)
    some._cache.has_any = True
    some(SMALL)
    some._cache.has_any = False
    some.overloads["any"] = 1
    some(SMALL)
    assert some.told == ["Python", "code", "Python", "code", "code"]


@pytest.mark.parametrize("setting", ["off", "0", " No "])
def test_without_a_cache_everything_is_compiled(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUNCTOR_CACHE", setting)
    some = kernel()
    some(SMALL)
    assert some.told == ["code"]


def test_seconds_of_python_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUNCTOR_CACHE", "")
    monkeypatch.setattr(compilation, "patience", 1e-9)
    some = kernel()
    some(SMALL)
    some(SMALL)
    assert some.told == ["Python", "code"]
