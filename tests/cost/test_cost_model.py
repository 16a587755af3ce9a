"""The cost model: prices that fit, measurements as files, choices and forecasts that go by them, `junctor tune`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from hypothesis import given
from hypothesis import strategies as st
from junctor.calibration import blocks as tuning
from junctor.calibration import chunked as chunk_tuning
from junctor.calibration import cliques as stored_tuning
from junctor.calibration import figures as figure_tuning
from junctor.calibration import harness
from junctor.cost import dataset
from junctor.cost import fit as fit_module
from junctor.cost import model as cost_model
from junctor.cost.dataset import (
    Measured,
    MeasuredDevice,
    backends_of,
    device_of,
    file_name,
    own_files,
    read,
    shipped_files,
    write,
)
from junctor.cost.features.gpu_stages import (
    FEW_WORK,
    MANY_WORK,
    CaseParallel,
    EntryParallel,
    LaunchTuner,
    SideWork,
    StageWork,
    few_work,
    many_work,
    splits,
)
from junctor.cost.features.plans import plan_work
from junctor.cost.features.registry import BACKENDS, FeatureSet
from junctor.cost.figures import RECORDS, shipped_figures
from junctor.cost.fit import Coefficients, FittedCoefficients, fit, non_negative
from junctor.cost.model import CostModel, CostModels, cost_models_from_record, fitted_cost_model, local_cost_models
from junctor.engine.engine import Engine
from junctor.engine.forecast import forecast, gpu_seconds
from junctor.evidence.batch import EvidenceBatch
from junctor.generate import layered, random_network
from junctor.model.errors import RunError
from junctor.model.options import ComputeOptions, DeviceChoice
from junctor.model.query import Query
from junctor.runs import partition
from junctor.runs.run import ingest_model
from junctor.runs.workload import Job
from junctor.runtime.machine import has_own_measurements, measured_files, own_measurements
from junctor.runtime.progress import Silence
from junctor_kernels.cpu.bytecode import COUNT, ENTRIES, HOW, LINES_OF_TILE, SIZE, STEP_COLUMNS, TILES
from junctor_kernels.gpu import blocks as gpu

PLANNING = tuple(enumerate(RECORDS["planning"]._fields))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    local_cost_models.cache_clear()
    yield
    local_cost_models.cache_clear()


@given(seed=st.integers(0, 10**6), rows=st.integers(1, 12), columns=st.integers(1, 5))
def test_least_squares_that_are_not_negative(seed: int, rows: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(rows, columns)), rng.normal(size=rows)
    found = non_negative(a, b)
    gradient = a.T @ (a @ found - b)
    # The conditions of Karush, Kuhn and Tucker.
    assert (found >= 0).all()
    assert (gradient > -1e-5).all()
    assert abs(gradient @ found) < 1e-5


def test_prices_are_found_again() -> None:
    rng = np.random.default_rng(1)
    work, prices = 10.0 ** rng.uniform(0, 6, (200, 4)), np.array([2e-9, 0.0, 5e-7, 3e-6])
    seconds = work @ prices * rng.uniform(0.97, 1.03, 200)
    groups = rng.integers(0, 9, 200)
    found = fit(work, seconds, groups)
    np.testing.assert_allclose(found, prices, rtol=0.05, atol=1e-10)
    np.testing.assert_array_equal(found, fit(work, seconds, groups))
    # One that took ten times as long, because the machine did something else.
    seconds[7] *= 10
    np.testing.assert_allclose(fit(work, seconds, groups), prices, rtol=0.08, atol=1e-9)


def measured(backend: str, seconds: float, scale: float, network: str = "n") -> Measured:
    work = tuple(scale * (n + 1.0) for n in range(len(BACKENDS[backend].work)))
    return Measured(backend, network, "label", 10, seconds, work, (1.0, 2.0, 3.0 * scale, 4.0, 5.0), (scale, 2.0))


def test_files_say_what_was_written(tmp_path: Path) -> None:
    device = MeasuredDevice("Some GPU (2)", {"multiprocessors": 3.0})
    rows = [measured("few-log", 0.5, 1.0), measured("cpu", 0.25, 2.0)]
    path = tmp_path / file_name(device)
    assert path.name == "some-gpu-2.parquet"
    write(device, "2026-11-21", rows, path)
    assert (device_of(path), read(path)) == (device, rows)


def test_files_that_are_none_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "broken.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"broken.parquet: not measurements"):
        read(path)
    write(MeasuredDevice("x"), "2026-11-21", [measured("cpu", 1.0, 1.0)], path)
    monkeypatch.setitem(BACKENDS, "cpu", FeatureSet(("something", "else")))
    with pytest.raises(ValueError, match="another version"):
        read(path)


def test_own_files_go_first_and_broken_ones_are_said(caplog: pytest.LogCaptureFixture) -> None:
    own_measurements().mkdir(parents=True)
    (own_measurements() / "a.parquet").write_bytes(b"nothing")
    write(MeasuredDevice("mine"), "2026-11-21", [measured("cpu", 1.0, 1.0)], own_measurements() / "b.parquet")
    assert [device.name for device, _ in own_files()] == ["mine"]
    assert "junctor tune" in caplog.text
    assert next(each.device.name for each in local_cost_models().devices) == "mine"
    assert "mine" not in [each.device.name for each in local_cost_models(own=False).devices]


def test_a_folder_of_own_files_that_may_not_be_entered_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied")

    # Root may enter all.
    monkeypatch.setattr(Path, "glob", refuse)
    assert not has_own_measurements()
    assert measured_files() == []


def test_the_package_has_measurements_of_every_backend() -> None:
    backends = {backend for _, path in shipped_files() for backend in backends_of(path)}
    # Figures of those lie beside the files.
    assert backends | RECORDS.keys() == set(BACKENDS)
    for device, path in shipped_files():
        assert device_of(path).name == device.name
        known = fitted_cost_model(device_of(path), read(path))
        for prices in known.coefficients.values():
            assert all(math.isfinite(price) and price >= 0 for price in (*prices.work, *prices.plan, *prices.row))
            assert any(prices.work)


def test_figures_are_those_of_the_machine_that_measured_them() -> None:
    known = shipped_figures()
    # Planning of variables, tables and entries takes twice as long here; the other features were not measured.
    rows = []
    for number in range(6):
        work = tuple(float(field in ("variable", "table", "entry") and 1 + (number + n) % 3) for n, field in PLANNING)
        seconds = 2 * float(np.dot(work, known.planning))
        rows.append(Measured("planning", str(number), "label", 1, seconds, work, (0.0,) * 5, (0.0, 0.0)))
    own_measurements().mkdir(parents=True)
    write(MeasuredDevice(cost_model.cpu_name(), {"cache": 1e6}), "2026-11-29", rows, own_measurements() / "a.parquet")
    mine = local_cost_models().cpu(cost_model.cpu_name())
    assert mine.figures.planning == pytest.approx([2 * seconds for seconds in known.planning], rel=0.02)
    assert (mine.figures.trees, mine.cache) == (known.trees, 1e6)
    # A run goes by them whatever is measured later, and by those of the package where its record has none.
    record = json.loads(json.dumps(local_cost_models().to_record()))
    assert cost_models_from_record(record).devices[0].figures == mine.figures
    for device in record["devices"]:
        device["prices"] = {name: fit for name, fit in device["prices"].items() if name not in RECORDS}
    assert cost_models_from_record(record).devices[0].figures == known


def test_figures_of_the_package_are_known_without_its_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: object) -> None:
        raise AssertionError("read")

    monkeypatch.setattr("pyarrow.parquet.read_schema", opened)
    assert local_cost_models().cpu("any").figures == shipped_figures()
    assert local_cost_models().gpu(MeasuredDevice("any", {"multiprocessors": 1.0})).figures == shipped_figures()


def off(path: Path, backend: str) -> Any:
    """How far forecasts of networks are off, of prices learned from all others."""
    rows = read(path, backend)
    found = []
    for name in sorted({row.network for row in rows}):
        prices = fitted_cost_model(MeasuredDevice("x"), [row for row in rows if row.network != name]).coefficients[
            backend
        ]
        found += [abs(prices.of_work(row.work) / row.seconds - 1) for row in rows if row.network == name]
    return np.array(found)


SHIPPED = [(device.name, path, backend) for device, path in shipped_files() for backend in sorted(backends_of(path))]


@pytest.mark.parametrize(("device", "path", "backend"), SHIPPED, ids=[f"{name}, {what}" for name, _, what in SHIPPED])
def test_nine_forecasts_of_ten_are_within_a_quarter_on_networks_held_out(device: str, path: Path, backend: str) -> None:
    # In chunks on a GPU it is less, for stored tables 89 of a hundred, and so for blocks of many cases of small ones,
    # which were measured on the H200 only (docs/forecasts.md).
    least = {
        "chunks": 0.8 if "NVIDIA" in device else 0.9,
        "stored": 0.85,
        "many": 0.75 if device == "NVIDIA H200" else 0.9,
        # Exponentials have no count of their own.
        "many-log": 0.45,
    }
    known = least.get(backend, least.get(backend.partition("-")[0], 0.9))
    assert (off(path, backend) <= 0.25).mean() >= known


def test_gpus_that_were_measured_are_found_by_their_names(caplog: pytest.LogCaptureFixture) -> None:
    known = local_cost_models(own=False)
    with caplog.at_level("INFO", "junctor"):
        for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200"):
            assert known.gpu(MeasuredDevice(name, {"multiprocessors": 132.0})).device.name == name
    assert "no measurements" not in caplog.text
    one, other = (
        known.gpu(MeasuredDevice(name, {})).coefficients["few-single"]
        for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
    )
    assert one != other


def test_the_nearest_device_stands_for_others(caplog: pytest.LogCaptureFixture) -> None:
    def gpu_of(name: str, processors: float) -> CostModel:
        return CostModel(MeasuredDevice(name, {"multiprocessors": processors, "memory": 1e9}), {})

    known = CostModels((gpu_of("small", 20.0), gpu_of("large", 130.0), CostModel(MeasuredDevice("some CPU"), {})))
    assert known.gpu(MeasuredDevice("small", {"multiprocessors": 999.0})).device.name == "small"
    with caplog.at_level("INFO", "junctor"):
        assert known.gpu(MeasuredDevice("unheard of", {"multiprocessors": 100.0})).device.name == "large"
    assert "no measurements of unheard of" in caplog.text
    assert known.cpu("another CPU").device.name == "some CPU"


def test_fits_are_kept_for_the_next_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUNCTOR_CACHE")
    path = tmp_path / "x.parquet"
    rows = [measured("cpu", 1.0 + n, 1.0 + n, str(n)) for n in range(6)]
    dataset.write(MeasuredDevice("x"), "2026-11-26", rows, path)
    _, base, _ = SHIPPED[0]
    expected = [FittedCoefficients(rows)["cpu"], FittedCoefficients(rows, FittedCoefficients(base))["cpu"]]

    def found() -> list[Coefficients]:
        return [FittedCoefficients(path)["cpu"], FittedCoefficients(path, FittedCoefficients(base))["cpu"]]

    assert found() == expected
    monkeypatch.setattr("junctor.cost.fit.coefficients_of", None)
    assert found() == expected
    with pytest.raises(KeyError):
        FittedCoefficients(path)["few-double"]
    monkeypatch.undo()
    # Another file is another key.
    dataset.write(MeasuredDevice("x"), "2026-11-26", rows[1:], path)
    assert found()[0] == FittedCoefficients(rows[1:])["cpu"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[[], [], []]", b"[1, 2, 3]", b"\xff", b"nan"],
)
def test_bytes_that_are_no_coefficients_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        fit_module._parsed(content, "cpu")


def test_coefficients_that_are_no_seconds_are_refused() -> None:
    fitted = FittedCoefficients([measured("cpu", 1.0 + n, 1.0 + n, str(n)) for n in range(6)])["cpu"]
    assert fit_module._parsed(fit_module._to_bytes(fitted), "cpu") == fitted
    for seconds in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError):
            fit_module._parsed(fit_module._to_bytes(replace(fitted, row=(seconds, 0.0))), "cpu")


def test_cost_models_survive_json() -> None:
    known = CostModels(
        (fitted_cost_model(MeasuredDevice("c"), [measured("cpu", 1.0, 1.0), measured("cpu", 2.0, 2.0, "other")]),)
    )
    record = json.loads(json.dumps(known.to_record()))
    again = cost_models_from_record(record)
    assert again.devices[0].coefficients["cpu"] == known.devices[0].coefficients["cpu"]
    assert json.loads(json.dumps(again.to_record())) == record
    with pytest.raises(KeyError):
        cost_models_from_record({})


def stage(*contractions: tuple[int, int, int]) -> StageWork:
    """Contractions of so many entries, terms, and tables; none in tiles."""
    steps = np.zeros((len(contractions), STEP_COLUMNS), np.int64)
    for step, (entries, _, count) in zip(steps, contractions, strict=True):
        step[[ENTRIES, TILES, COUNT, SIZE, LINES_OF_TILE, HOW]] = entries, entries, count, 1, 1, 2
    longest = np.array([terms for _, terms, _ in contractions])
    total, strides = longest * steps[:, ENTRIES], [[(8, 1)] for _ in steps]
    return StageWork(steps, longest, total, lambda: strides, SideWork(likelihood=7))


def test_threads_share_terms_in_powers_of_two() -> None:
    each = stage((4, 100, 2), (4, 8, 2), (4, 10**6, 2))
    assert splits(each, 8).tolist() == [16, 1, gpu.FEW_THREADS]
    assert splits(each, [8, 64]).tolist() == [[16, 1, gpu.FEW_THREADS], [2, 1, gpu.FEW_THREADS]]


def test_the_work_of_a_stage_is_counted() -> None:
    each = stage((1000, 64, 2))
    serial, shared = few_work(each, [EntryParallel(64, 1), EntryParallel(8, 1)], cases=1)
    named = dict(zip(FEW_WORK, serial.tolist(), strict=True))
    assert (named["stages"], named["blocks"], named["stored"], named["likelihoods"]) == (1, 4, 1000, 7)
    assert named["longest"] == 64 * 2 + 8
    assert dict(zip(FEW_WORK, shared.tolist(), strict=True))["longest"] == 8 * 2 + 4 * 3 + 8
    ((few,), (more,)) = (many_work(each, [CaseParallel(16, 128)], chunks) for chunks in (1, 3))
    assert (more[MANY_WORK.index("products")], few[MANY_WORK.index("products")]) == (3 * 128_000, 128_000)
    assert more[MANY_WORK.index("longest")] == few[MANY_WORK.index("longest")]


def test_settings_are_those_that_cost_least() -> None:
    each, few, many = stage((5000, 4096, 2)), np.zeros(len(FEW_WORK)), np.zeros(len(MANY_WORK))
    few[FEW_WORK.index("longest")] = 1.0
    many[MANY_WORK.index("items")] = 1.0
    launching = LaunchTuner(few, many)
    assert launching.for_few(each, 1)[0].terms <= 32
    assert launching.for_many(each, 1)[0].terms >= 8
    few[FEW_WORK.index("longest")], few[FEW_WORK.index("blocks")] = 0.0, 1.0
    assert LaunchTuner(few, many).for_few(each, 1)[0].terms > 1024


def test_counts_of_plans_grow_with_rows() -> None:
    case = tuning.case_of("x", layered(3, 3, seed=1), 0.2, True, 1, rows=8)
    one, many = (plan_work(case.plan, 5, 64, rows) for rows in (1, 640))
    assert all(many[name] == 10 * one[name] for name in ("operations", "entries"))
    assert one["calls"] == many["calls"] == 1


def test_a_machine_twice_as_slow_is_known_from_few_measurements() -> None:
    (path,) = (path for device, path in shipped_files() if not device.is_gpu)
    rows = [row for row in read(path) if row.backend == "cpu"]
    few = [replace(row, seconds=2 * row.seconds) for row in rows if row.network in ("alarm", "pigs", "water")]
    prices = FittedCoefficients(few, FittedCoefficients(rows))["cpu"]
    off = np.array([prices.of_work(row.work) / row.seconds / 2 - 1 for row in rows])
    assert (abs(off) <= 0.25).mean() > 0.9


def test_a_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "CPU_ROWS", (64,))
    monkeypatch.setattr(tuning, "PLAIN_ROWS", 8)
    monkeypatch.setattr(tuning, "REPEATS", harness.Repeats(3, 3, 0.0))
    networks = iter([("a", layered(3, 3, seed=1)), ("b", layered(4, 3, states=3, seed=2))])
    cases = list(tuning.cases_of(networks))
    assert [case.name for case in cases[:3]] == ["a", "b", "a"]
    rows = [row for case in cases for row in tuning.measure_cpu(case)]
    assert {row.backend for row in rows} == {
        name for name in BACKENDS.keys() - RECORDS.keys() if not name.startswith(("few", "many", "chunks", "stored"))
    }
    assert all(row.seconds > 0 and len(row.work) == len(BACKENDS[row.backend].work) for row in rows)
    assert fitted_cost_model(MeasuredDevice("x"), rows).coefficients["cpu"].of_work(rows[0].work) > 0


@pytest.fixture
def figures_of_two(monkeypatch: pytest.MonkeyPatch) -> list[Measured]:
    """What is measured of two small networks for the figures that choices weigh; processes are not started."""
    once = harness.Repeats(1, 1, 0.0)
    settings = {"ROWS": (1, 128), "OBSERVED": ((0.3, 1),), "REPEATS": once, "FEW": once}
    for name, value in settings.items():
        monkeypatch.setattr(figure_tuning, name, value)
    networks = [("zeros", random_network(20, zeros=0.3, seed=1)), ("states", random_network(9, states=5, seed=2))]
    monkeypatch.setattr(figure_tuning, "built_in", lambda: iter(networks))
    monkeypatch.setattr(figure_tuning, "_process", lambda *_: "0.25")
    return [row for _, rows in figure_tuning.calibrate_figures(math.inf) for row in rows]


def test_figures_of_a_cpu_are_measured(figures_of_two: list[Measured]) -> None:
    features = {name: np.array([row.work for row in figures_of_two if row.backend == name]) for name in RECORDS}
    measured = {
        f"{name}.{feature}"
        for name, work in features.items()
        for feature, counts in zip(RECORDS[name]._fields, work.T, strict=bool(work.size))
        if counts.any()
    }
    left = {"trees.far_entry", "trees.word", "planning.mark", "loading.compiled", "loading.compiling"}
    backends = ("numpy", "trees", "shared trees", "planning", "loading")
    assert measured == {f"{name}.{feature}" for name in backends for feature in RECORDS[name]._fields} - left
    # Trees of explanations have maxima in place of sums.
    for label, feature, other in (("answered", "operation", "maximum"), ("explained", "maximum", "operation")):
        works = [RECORDS["trees"](*row.work) for row in figures_of_two if row.backend == "trees" and label in row.label]
        assert len(works) == 2
        assert all(getattr(work, feature) > 0 == getattr(work, other) for work in works)


def test_figures_of_few_networks_are_left_out() -> None:
    always = [measured("cpu", 1.0, 1.0), measured("loading", 1.0, 1.0)]
    for networks in (4, 5):
        rows = [measured("trees", 1.0, 1.0, str(n % networks)) for n in range(10)]
        assert figure_tuning.with_enough([*always, *rows]) == [*always, *(rows if networks == 5 else ())]


def test_a_fit_finds_the_figures_that_seconds_were_made_of(figures_of_two: list[Measured]) -> None:
    (base,) = (model.coefficients for model in local_cost_models(own=False).devices if not model.device.is_gpu)
    assert isinstance(base, FittedCoefficients)
    for backend in ("planning", "loading"):
        # Half as fast as the package says, also at what was not measured.
        prices = 2 * np.array(base[backend].work)
        rows = [
            replace(row, seconds=float(np.dot(row.work, prices))) for row in figures_of_two if row.backend == backend
        ]
        np.testing.assert_allclose(FittedCoefficients(rows, base)[backend].work, prices, rtol=0.02)


@pytest.mark.parametrize(("work", "seconds"), [((1.0, 1.0), 1.0), ((1.0, 1.0, math.inf), 1.0), ((1.0, 1.0, 1.0), 0.0)])
def test_figures_that_cannot_have_been_measured_are_refused(
    work: tuple[float, ...], seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    own_measurements().mkdir(parents=True)
    path = own_measurements() / "a.parquet"
    write(MeasuredDevice("mine"), "2026-11-29", [replace(measured("numpy", seconds, 1.0), work=work)], path)
    assert list(own_files()) == []
    (line,) = caplog.messages
    assert line.startswith(f"{path}: damaged")
    assert line.endswith("run junctor tune again")


def test_tune_writes_what_is_used_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure_tuning, "calibrate_figures", lambda seconds: iter([]))
    rows = [measured("cpu", 1.0 + n, 1.0 + n, str(n)) for n in range(6)]
    monkeypatch.setattr(tuning, "calibrate_blocks", lambda device, seconds: iter([("all", rows)]))
    monkeypatch.setattr(chunk_tuning, "calibrate_chunks", lambda device, seconds: iter([]))
    monkeypatch.setattr(stored_tuning, "calibrate_cliques", lambda networks, seconds: iter([]))
    result = junctor_cli("tune")
    assert result.exit_code == 0, result.output
    (path,) = own_measurements().glob("*.parquet")
    assert str(path) in result.output
    assert local_cost_models().cpu(cost_model.cpu_name()).coefficients["cpu"].of_work(rows[0].work) == pytest.approx(
        1.0, rel=0.5
    )
    assert junctor_cli("tune", "--forget").exit_code == 0
    assert not path.exists()


def test_tune_refuses_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tuning, "calibrate_blocks", lambda device, seconds: iter([("one", [measured("cpu", 1.0, 1.0)])])
    )
    monkeypatch.setattr(chunk_tuning, "calibrate_chunks", lambda device, seconds: iter([]))
    monkeypatch.setattr(stored_tuning, "calibrate_cliques", lambda networks, seconds: iter([]))
    result = junctor_cli("tune", "--minutes", "0")
    assert result.exit_code == 5
    assert "allow more" in result.output
    assert junctor_cli("tune", "--minutes", "nan").exit_code == 2
    assert not list(own_measurements().iterdir())


def test_tune_does_not_measure_what_it_cannot_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "calibrate_blocks", lambda device, seconds: pytest.fail("measured"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    result = junctor_cli("tune")
    assert result.exit_code == 3
    assert "XDG_CACHE_HOME" in result.output


def test_a_run_goes_on_with_the_cost_models_that_it_began_with(tmp_path: Path) -> None:
    evidence = tmp_path / "evidence.csv"
    evidence.write_text("smoke\nyes\nno\n")
    plain, tuned = (Job(ASIA, str(evidence), str(tmp_path / name)) for name in ("plain", "tuned"))
    ingest_model(plain, Silence())
    write(MeasuredDevice("mine"), "2026-11-21", [measured("cpu", 1.0, 1.0)], own_measurements() / "mine.parquet")
    local_cost_models.cache_clear()
    ingest_model(tuned, Silence())
    (own_measurements() / "mine.parquet").unlink()
    names = [[each.device.name for each in partition.costs_of(job.directory).devices] for job in (plain, tuned)]
    assert "mine" not in names[0]
    assert names[1] == ["mine", *names[0]]
    tuned.directory.speeds.write_text("{}")
    with pytest.raises(RunError, match=r"speeds.json: not the speeds"):
        partition.costs_of(tuned.directory)


@pytest.mark.parametrize(
    ("query", "device"),
    [
        *((Query(), "cpu"), (Query(), "gpu"), (Query(), "auto"), (Query(precision="log"), "gpu")),
        *((Query("mpe"), "cpu"), (Query("mpe"), "gpu")),
    ],
)
def test_forecasts_of_plans_with_numbers_and_without(query: Query, device: DeviceChoice) -> None:
    network = layered(6, 5, states=3, seed=1)
    rows = 20_000
    batch = EvidenceBatch(rows, {v: (np.arange(rows, dtype=np.int32) + v) % 3 for v in range(3)})
    engine = Engine(network, query, ComputeOptions(memory=1 << 30, device=device, threads=1), expected_rows=rows)
    engine.with_equal_rows = lambda batch: batch  # type: ignore[method-assign]
    gpu = local_cost_models().gpu(MeasuredDevice("any"))
    (alone,), (bound,) = (forecast(engine, batch, bound=most) for most in (0, 10**9))
    assert 0.2 < alone.seconds / bound.seconds < 5
    assert gpu_seconds(engine.facts, alone, gpu) != alone.seconds
    (half,) = forecast(
        engine, EvidenceBatch(rows // 2, {v: s[: rows // 2] for v, s in batch.states.items()}), bound=10**9
    )
    assert half.seconds < bound.seconds


def test_a_forecast_goes_by_the_names_of_counts() -> None:
    costs = CostModel(MeasuredDevice("x"), {"stored-double": Coefficients(tuple(range(12)), (1.0,) * 5, (0.0, 0.0))})
    features = BACKENDS["stored-double"]
    work = {name: float(n == 3) for n, name in enumerate(features.work)}
    assert costs.seconds("stored-double", dict(reversed(work.items()))) == 3.0
    assert costs.seconds("stored-double", dict.fromkeys(features.plan, 2.0)) == 10.0
    with pytest.raises(ValueError, match="are wanted"):
        costs.seconds("stored-double", {"cliques": 1.0})
    with pytest.raises(KeyError):
        costs.seconds("cpu", work)


def test_a_damaged_file_of_the_user_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Its metadata are whole, its numbers are not: forecasts of all runs would fail.
    _, shipped = next(pair for pair in dataset.shipped_files() if not pair[0].is_gpu)
    rows = dataset.read(shipped)[:50]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "junctor" / "measured"
    folder.mkdir(parents=True)
    for name, seconds in (("good", 1.0), ("bad", float("nan"))):
        changed = [replace(row, seconds=seconds) for row in rows]
        dataset.write(dataset.MeasuredDevice(name), "2026-01-01", changed, folder / f"{name}.parquet")
    assert [device.name for device, _ in dataset.own_files()] == ["good"]
    assert "bad.parquet: damaged (found numbers that cannot have been measured): run junctor tune again" in caplog.text
