"""Models: what a call prepares serves the next one, in any thread, within bounds, and goes with its network."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import junctor
import numpy as np
import pytest
from helpers.files import ASIA
from helpers.forced import forcing
from junctor import api
from junctor.engine.engine import Engine
from junctor.evidence.encode import as_arrow
from junctor.generate import evidence_table, grid, random_network, sample
from junctor.model.network import Network
from junctor.model.strategies import Strategy
from junctor.strategies import row_trees
from junctor_kernels.row_trees import ahead, queue

LARGER = random_network(40, seed=3, zeros=0.1)
ROWS = evidence_table(LARGER, sample(LARGER, 100, seed=1), 0.3, "random", seed=1)


@pytest.fixture(autouse=True)
def nothing_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal networks share what was prepared, those of other tests as well."""
    monkeypatch.setattr(api, "_networks", weakref.WeakKeyDictionary())


@pytest.fixture
def network() -> Network:
    return junctor.read_network(ASIA)


def few(count: int) -> list[dict[str, Any]]:
    return ROWS.slice(0, count).to_pylist()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    """The engines that were made, in their order."""
    found: list[Engine] = []
    first = Engine.__init__

    def noted(self: Engine, *args: Any, **more: Any) -> None:
        found.append(self)
        first(self, *args, **more)

    monkeypatch.setattr(Engine, "__init__", noted)
    return found


def test_a_model_answers_as_the_functions_do(network: Network) -> None:
    model = junctor.Model(ASIA)
    assert model.network.digest == network.digest
    for evidence in ([{"smoke": "yes"}], {"xray": ["yes", None], "case_id": ["a", "b"]}, [{"smoke": [0.5, 2.0]}]):
        assert model.posteriors(evidence).equals(junctor.posteriors(network, evidence), check_metadata=True)
        found = model.most_probable(evidence, "lung")
        assert found.equals(junctor.most_probable(network, evidence, "lung"), check_metadata=True)
    sampled = {"method": "sampling", "samples": 1000, "seed": 3}
    assert model.posteriors([{}], **sampled).equals(junctor.posteriors(network, [{}], **sampled))


def test_the_next_call_uses_what_was_prepared(network: Network, made: list[Engine]) -> None:
    rows = as_arrow([{"smoke": "yes"}] * 100)
    for _ in range(3):
        junctor.posteriors(network, [{"smoke": "yes"}])
        junctor.Model(network).posteriors([{"xray": "yes"}])
    assert len(made) == 1
    for _ in range(3):
        junctor.posteriors(network, rows, device="cpu")
    assert len(made) == 2
    # Another question, and other options, have their own.
    junctor.posteriors(network, [{}], ["lung"])
    junctor.posteriors(network, [{}], threads=1)
    assert len(made) == 4
    # An equal network has what was prepared for the first.
    junctor.posteriors(junctor.read_network(ASIA), [{}])
    junctor.posteriors(ASIA, [{}])
    assert len(made) == 4


def test_answers_do_not_depend_on_earlier_calls() -> None:
    asked = [(ROWS, {}), (few(3), {}), (few(20), {}), (ROWS.slice(0, 70), {}), (few(5), {"precision": "log"})]
    asked += [(few(4), {"memory": "1GiB"}), (ROWS.slice(3, 66), {"precision": "single"})]
    alone = [junctor.posteriors(pickle.loads(pickle.dumps(LARGER)), rows, **how) for rows, how in asked]
    model = junctor.Model(LARGER)
    for order in (range(len(asked)), reversed(range(len(asked)))):
        for i in order:
            rows, how = asked[i]
            assert model.posteriors(rows, **how).equals(alone[i]), i


def test_an_engine_for_another_amount_of_memory_is_made_anew(
    network: Network, made: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, allowed = as_arrow([{"smoke": "yes"}] * 100), [1 << 30]
    monkeypatch.setattr(api, "_allowed", lambda _: allowed[-1])
    monkeypatch.setattr("junctor.runtime.machine.available_memory", lambda: allowed[-1] / 0.6 + 1)
    expected = junctor.posteriors(network, rows, device="cpu")
    counts = []
    for size in (1 << 30, (1 << 30) - 1000, 1 << 32, 1 << 29):
        allowed.append(size)
        assert junctor.posteriors(network, rows, device="cpu").equals(expected)
        counts.append(len(made))
    assert counts == [1, 1, 2, 3]


def test_what_was_prepared_goes_with_its_network() -> None:
    def answered() -> list[weakref.ref[Any]]:
        network = junctor.read_network(ASIA)
        model = junctor.Model(network)
        model.posteriors([{"smoke": "yes"}])
        model.posteriors(as_arrow([{"smoke": "yes"}] * 100))
        model.most_probable([{"smoke": "yes"}])
        prepared = api._networks[network]
        engines = [idle._engine for idle in prepared._idle if idle._engine is not None]
        assert len(engines) == 2
        return [weakref.ref(each) for each in (network, model, prepared, *engines)]

    before = len(api._networks)
    left = answered()
    gc.collect()
    assert [each() for each in left] == [None] * len(left)
    assert len(api._networks) <= before


def test_little_is_kept(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "KEPT_QUERIES", 3)
    names = [variable.name for variable in network.variables]
    for name in names:
        junctor.posteriors(network, [{}], [name])
    idle = api._networks[network]._idle
    assert [each.question[0].targets for each in idle] == [(name,) for name in names[-3:]]
    # A question that is asked again is the youngest.
    junctor.posteriors(network, [{}], names[-3:-2])
    assert [each.question[0].targets for each in idle] == [(names[-2],), (names[-1],), (names[-3],)]


def _fail(*_: object) -> None:
    raise RuntimeError


def test_bytes_of_all_questions_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    model = junctor.Model(random_network(30, seed=5))
    prepared, names = model._prepared, [variable.name for variable in model.network.variables]
    plans = {"strategy": "entries"}
    for name in names[:4]:
        model.most_probable([{name: 0}], [name], **plans)
        assert prepared._held == sum(idle.held for idle in prepared._idle)
    assert len(prepared._idle) == 4
    monkeypatch.setattr(api, "KEPT_BYTES", prepared._held - 1)
    for name in names[:2]:
        model.most_probable([{name: 0}], [name], **plans)
        assert 0 < prepared._held == sum(idle.held for idle in prepared._idle) < api.KEPT_BYTES
    # One that fails is not there any more.
    monkeypatch.setattr(api._Answerer, "_answer", _fail)
    with pytest.raises(RuntimeError):
        model.most_probable([{names[0]: 0}], [names[0]], **plans)
    assert prepared._held == sum(idle.held for idle in prepared._idle)


def test_programs_and_plans_are_kept_within_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network(30, seed=5)
    model = junctor.Model(network)
    names = [variable.name for variable in network.variables]
    with forcing(Strategy.ENTRIES):
        for count in range(6):
            model.posteriors(70 * [dict.fromkeys(names[:count], 0)])
        idle = model._prepared._idle[0]
        assert idle._engine is not None
        assert len(idle._engine.programs) == len(idle._engine.facts.store.plans) == 6
        held = idle.held
        monkeypatch.setattr(api, "KEPT_BYTES", held // 2)
        model.posteriors(70 * [dict.fromkeys(names[:2], 0)])
        assert 0 < idle.held <= held // 2
        assert len(idle._engine.facts.store.plans) < 6
        # Nothing stays where a single program is too large, and calls go on.
        monkeypatch.setattr(api, "KEPT_BYTES", 1)
        assert model.posteriors(70 * [{}])["status"].to_pylist() == 70 * ["ok"]
        assert idle.held == 0


def test_plans_stay_where_blocks_of_all_threads_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network(30, seed=5)
    model = junctor.Model(network)
    rows = evidence_table(network, sample(network, 300), observed=0.2)
    how = {"device": "cpu", "threads": 2, "strategy": "cpu-blocks"}
    first = model.posteriors(rows, **how)
    idle = model._prepared._idle[0]
    assert idle._engine is not None
    ((key, plan),) = idle._engine.facts.store.plans.items()
    (program,) = idle._engine.programs
    blocks = sum(each.held for each in program._compiled.values())
    assert blocks > 0
    monkeypatch.setattr(api, "KEPT_BYTES", idle.held - blocks // 2)
    for _ in range(2):
        assert model.posteriors(rows, **how).equals(first)
        assert idle._engine.facts.store.plans == {key: plan}
        assert idle._engine.programs == (program,)
        assert idle.held <= api.KEPT_BYTES


def test_large_tables_leave_no_memory_behind() -> None:
    network = grid(6, 6, 3, seed=1)
    model = junctor.Model(network)
    model.posteriors([{}])
    assert model._prepared._idle[0].held < 1 << 26


def test_a_bad_call_changes_nothing(network: Network, made: list[Engine]) -> None:
    model = junctor.Model(network)
    expected = model.posteriors([{"smoke": "yes"}])
    for evidence, message in (
        ([{"smok": "yes"}], "unknown column 'smok', did you mean 'smoke'"),
        ({"smoke": "yes"}, "expected a list of cells"),
        ([{"smoke": "maybe"}], "unknown state 'maybe'"),
    ):
        with pytest.raises(junctor.EvidenceError, match=message):
            model.posteriors(evidence, strict=True)
    for arguments, message in (
        ({"targets": ["lungs"]}, "unknown target 'lungs', did you mean 'lung'"),
        ({"precision": ["double"]}, "found precision"),
        ({"sampler": "best"}, "found sampler 'best'"),
        ({"memory": "much"}, "found the size 'much'"),
        ({"device": "tpu"}, "found device 'tpu'"),
    ):
        with pytest.raises(junctor.JunctorError, match=message):
            model.posteriors([{}], **arguments)  # type: ignore[arg-type]
    assert model.posteriors([{"smoke": "yes"}]).equals(expected)
    assert len(made) == 1
    table = model.posteriors([{"smoke": "maybe"}, {"smoke": "yes"}])
    assert table["status"].to_pylist() == ["invalid", "ok"]
    assert table["reason"].to_pylist() == ["column 'smoke': unknown state 'maybe'; states are yes, no", None]
    with pytest.raises(junctor.ModelError, match="nowhere"):
        junctor.Model("nowhere.bif")


def test_messages_do_not_run_out(network: Network) -> None:
    # A reader of a file stops suggesting names after a thousand; each call is a file of its own.
    model = junctor.Model(network)
    for i in range(1100):
        reason = model.posteriors([{"smoke": f"ye{i}"}], ["lung"])["reason"][0].as_py()
    assert "did you mean 'yes'" not in reason
    assert "did you mean 'yes'" in model.posteriors([{"smoke": "yess"}], ["lung"])["reason"][0].as_py()


def test_a_model_is_pickled_without_what_it_prepared(network: Network) -> None:
    model = junctor.Model(network)
    expected = model.posteriors([{"smoke": "yes"}])
    again = pickle.loads(pickle.dumps(model))
    assert again.network.digest == network.digest
    assert again.posteriors([{"smoke": "yes"}]).equals(expected)
    assert repr(model) == f"Model({network!r})"


def test_tables_of_answers_do_not_change_with_the_next_call() -> None:
    model = junctor.Model(LARGER)
    rows = [few(3)[i : i + 1] for i in range(3)]
    tables = [model.posteriors(row) for row in rows]
    copies = [table.to_pylist() for table in tables]
    for row in rows * 3:
        model.posteriors(row)
        model.posteriors(ROWS)
    assert [table.to_pylist() for table in tables] == copies


THREADS = 8
TURNS = 6


def test_threads_share_a_model() -> None:
    model = junctor.Model(pickle.loads(pickle.dumps(LARGER)))
    asked: list[tuple[str, Any, dict[str, Any]]] = [("posteriors", few(20)[i : i + 1], {}) for i in range(20)]
    asked += [("posteriors", ROWS, {}), ("posteriors", ROWS.slice(0, 80), {"threads": 2})]
    asked += [("posteriors", few(4), {"precision": precision}) for precision in ("single", "log")]
    asked += [("most_probable", few(6)[i : i + 1], {}) for i in range(6)]
    expected = [getattr(junctor.Model(pickle.loads(pickle.dumps(LARGER))), kind)(r, **how) for kind, r, how in asked]
    begin = threading.Barrier(THREADS)

    def work(seed: int) -> list[int]:
        order = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(asked)), TURNS))
        begin.wait()
        wrong = []
        for i in order.tolist():
            kind, rows, how = asked[i]
            if not getattr(model, kind)(rows, **how).equals(expected[i], check_metadata=True):
                wrong.append(i)
        return wrong

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(work, range(THREADS))) == [[]] * THREADS
    idle = model._prepared._idle
    assert len(idle) <= api.KEPT_QUERIES
    assert len({id(each) for each in idle}) == len(idle)


def test_threads_begin_with_a_network_at_once() -> None:
    network = pickle.loads(pickle.dumps(LARGER))
    expected = junctor.posteriors(LARGER, few(1))
    begin = threading.Barrier(THREADS)

    def work(_: int) -> bool:
        begin.wait()
        return bool(junctor.posteriors(network, few(1)).equals(expected))

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(work, range(THREADS)))


def loaded(code: str) -> set[str]:
    told = "import atexit, json, sys\natexit.register(lambda: print('\\n' + ' '.join(sys.modules)))\n"
    done = subprocess.run([sys.executable, "-c", told + code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_a_call_for_a_row_loads_little() -> None:
    begin = "import junctor\nnetwork = junctor.read_network"
    found = loaded(f"{begin}({ASIA!r})\njunctor.posteriors(network, [{{'smoke': 'yes'}}])")
    rest = {"numba", "pandas", "scipy", "pyarrow.compute", "pyarrow.parquet", "psutil"}
    assert "junctor.strategies.joint_table" in found
    assert not found & (
        rest | {f"junctor.strategies.{name}" for name in ("row_trees", "entries", "cpu_blocks", "chunks")}
    )
    assert "numba" not in loaded(f"import junctor\njunctor.Model({ASIA!r})")


def test_a_model_of_a_larger_network_loads_compiled_code(tmp_path: Any) -> None:
    path = str(tmp_path / "larger.bif")
    junctor.write_network(LARGER, path)
    found = loaded(f"import junctor\njunctor.Model({path!r})")
    assert "junctor_kernels.row_trees.propagate" in found
    assert not found & {"pandas", "junctor.engine.engine", "prefect", "dask"}


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (1, {}),
        (1, {"answers": "scores", "top": 2}),
        (1, {"method": "sampling", "samples": 200}),
        (1, {"method": "auto"}),
        (3000, {}),
        (3000, {"precision": "log"}),
        (3000, {"answers": "scores"}),
    ],
)
def test_what_is_let_go_is_free_at_once(rows: int, options: dict[str, Any]) -> None:
    model = junctor.Model(random_network(20, seed=5))
    evidence = {"x_3": list(range(2)) * (rows // 2) + [0] * (rows % 2), "x_7": [None, *[0] * (rows - 1)]}
    model.posteriors(evidence, **options)
    model.most_probable(evidence)
    left = [weakref.ref(each) for each in model._prepared._idle]
    left += [weakref.ref(part) for each in left for part in (each()._tables, each()._engine) if part]  # type: ignore[union-attr]
    gc.collect()
    gc.disable()
    try:
        model._prepared._idle.clear()
        # Without a search for garbage: objects are few and large, so that one would come late.
        assert [each() for each in left] == [None] * len(left)
    finally:
        gc.enable()


@pytest.mark.parametrize("is_compiled", [True, False])
def test_what_a_model_needs_is_loaded_or_compiled_beside(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setenv("JUNCTOR_CACHE", "")
    monkeypatch.setattr(queue, "is_compiled", lambda: is_compiled)
    monkeypatch.setattr(ahead, "begin", begun.append)
    monkeypatch.setattr(row_trees, "load_trees", lambda: begun.append("loaded"))
    junctor.Model(LARGER)
    assert begun == ["loaded" if is_compiled else row_trees.__name__]
    # A small one needs none of it.
    junctor.Model(ASIA)
    assert len(begun) == 1


def test_what_compiles_beside_ends_with_its_parent(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", row_trees.__name__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=50) == 0
    assert not list(tmp_path.rglob("*.nbc"))
