"""Posteriors on a GPU, bit by bit those of the CPU; without a GPU, the kernels compiled for the CPU."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from emulation.chains import SIDE, EmulatedViterbi
from helpers.hmm_models import batch_of, paths, random_batch, random_model, small_cases
from hypothesis import given, settings
from junctor.hmm import build_model, write_model
from junctor.hmm.blocks import TrellisMemory
from junctor.hmm.engine import SequenceEngine
from junctor.hmm.model import HiddenMarkovModel
from junctor.hmm.numbers import logarithms
from junctor.hmm.packing import SequenceBatch
from junctor.hmm.run import SequenceJob
from junctor.hmm.smooth import Smoother
from junctor.hmm.smooth_gpu import PIECE, GpuSmoother
from junctor.model.answers import IMPOSSIBLE, OK
from junctor.model.errors import BudgetError
from junctor.model.options import ComputeOptions
from junctor.runs.run import run
from junctor.runtime.dask_cluster import Resources
from junctor_kernels.hmm import device as hmm_gpu
from junctor_kernels.hmm.device import Chip, SequenceLaunch, stride_of
from junctor_kernels.hmm.forward_backward import posteriors_of
from junctor_kernels.hmm.forward_backward_gpu import launches, panels_of, shared_bytes
from pyarrow import parquet

LENGTHS = [7, 7, 6, 5, 5, 5, 3, 2, 1]
CUDA = hmm_gpu.ChainDevice


def emulated(dtype: Any) -> EmulatedViterbi:
    return EmulatedViterbi(dtype)


def answers(
    model: HiddenMarkovModel,
    batch: SequenceBatch,
    device: Any,
    room: TrellisMemory | None = None,
    here: int | None = None,
) -> tuple[Any, Any, Any]:
    """Return posteriors, log-likelihoods, and the sequences that lost something, of a device in its number format."""
    found = np.arange(len(batch))
    log_value, posteriors = np.full(len(batch), np.nan), np.full((batch.starts[-1], model.states), np.nan, device.dtype)
    smoother = GpuSmoother(model, device.dtype, None, device=device)
    if here is not None:
        smoother.allowed = 2 * smoother.beside * len(batch) + here
    room = TrellisMemory(0, PIECE + room.host, room.disk) if room else TrellisMemory(0, 1 << 40)
    lost = smoother.answer(batch, found, room, Path(gettempdir()), posteriors, log_value)
    return posteriors, log_value, lost


def agree(
    model: HiddenMarkovModel,
    batch: SequenceBatch,
    device: Any,
    room: TrellisMemory | None = None,
    here: int | None = None,
) -> None:
    """Compare a device with the CPU, bit by bit, where nothing is lost; both have to know what is."""
    posteriors, log_value, lost = answers(model, batch, device, room, here)
    wanted = np.full(len(batch), np.nan)
    cpu = Smoother(model, "single" if device.dtype == np.float32 else "double")
    rows = np.full((batch.starts[-1], model.states), np.nan, device.dtype)
    climbed = cpu.smooth(cpu.numbers_of(0), batch, np.arange(len(batch)), rows, wanted, 1, 1 << 20)
    np.testing.assert_array_equal(lost, climbed)
    kept = np.ones(len(batch), np.bool_)
    kept[lost] = False
    np.testing.assert_array_equal(log_value[kept], wanted[kept])
    known = np.repeat(kept, batch.lengths)
    np.testing.assert_array_equal(posteriors[known], rows[known])


# The emulation has a fiber for every thread of the device: small cases, each with its own kernels.
@pytest.mark.parametrize(
    ("dtype", "states", "zeros", "lengths", "kernels"),
    [
        (np.float32, 70, 0.2, [3] * 5 + [2] * 4 + [1], {"begin", "forward_many_2", "backward_few_8", "normalise"}),
        (np.float32, 40, 0.8, [2] * 17, {"forward_many_4", "backward_many_4"}),
        (np.float32, 9, 0.0, [2] * 33, {"forward_many_8", "backward_many_8"}),
        (np.float64, 530, 0.1, [3, 2, 1], {"forward_few_2", "backward_few_1"}),
        pytest.param(np.float64, 530, 0.1, [2] * 9, {"forward_many_2", "backward_many_2"}, marks=pytest.mark.slow),
    ],
)
def test_kernels_compiled_for_the_cpu(
    dtype: Any, states: int, zeros: float, lengths: list[int], kernels: set[str]
) -> None:
    model, device = random_model(states, 4, states, zeros), emulated(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hmm_gpu, "SIDE", SIDE)
        agree(model, random_batch(model, lengths), device)
    assert set(device.kernels) >= kernels


@pytest.mark.parametrize(
    ("shared", "cache", "near"), [(27_000, 0, (0, 0)), (60_000, 1 << 19, (1, 4)), (1 << 17, 0, (3, 0))]
)
def test_units_of_the_matrix_in_every_place(shared: int, cache: int, near: tuple[int, int]) -> None:
    model, device = random_model(530, 4, 1), emulated(np.float32)
    device.chip = Chip(2, shared, cache)
    (launch,) = launches(np.array([1, 1]), 530, False, 4, device.chip)
    assert (launch.kernel, launch.kept, launch.cached) == ("few_1", *near)
    agree(model, random_batch(model, [3]), device)


@pytest.mark.parametrize("zeros", [0.5, 0.95])
def test_sparse_kernels_compiled_for_the_cpu(zeros: float) -> None:
    model = random_model(20, 4, 2, zeros, sparse=True)
    agree(model, random_batch(model, [3, 2]), emulated(np.float32))


def test_blocks_compiled_for_the_cpu() -> None:
    model = random_model(20, 4, 3)
    row = stride_of(20) * 4
    for host, disk in [(0, 0), (20 * row, 20 * row)]:
        agree(model, random_batch(model, [24, 13]), emulated(np.float32), TrellisMemory(0, host, disk), 20 * row)


@pytest.mark.parametrize(("sparse", "memory"), [(False, 100_000), (True, 45_000)])
def test_the_peak_stays_within_the_memory(sparse: bool, memory: int) -> None:
    model = random_model(70, 4, 1, 0.8, sparse)
    device = emulated(np.float32)
    smoother = GpuSmoother(model, np.float32, memory, device=device)
    batch = random_batch(model, [12, 10, 10, 6, 4, 4])
    posteriors, log_value = np.zeros((46, 70), np.float32), np.zeros(6)
    smoother.answer(batch, np.arange(6), TrellisMemory(0, 1 << 40), Path(), posteriors, log_value)
    assert memory // 2 < device.peak <= memory
    with pytest.raises(BudgetError, match="raise --device-memory"):
        GpuSmoother(model, np.float32, smoother.needed + smoother.beside, device=device)


@settings(max_examples=6)
@given(small_cases())
def test_posteriors_of_enumeration(case: tuple[HiddenMarkovModel, list[list[int]]]) -> None:
    model, sequences = case
    batch = batch_of(sequences)
    posteriors, log_value, lost = answers(model, batch, emulated(np.float64))
    assert len(lost) == 0
    for n, symbols in enumerate(sequences):
        every = paths(model, symbols)
        total = math.fsum(p for p, _ in every)
        if not total:
            assert log_value[n] == -np.inf
            continue
        assert log_value[n] == pytest.approx(math.log(total), abs=1e-12)
        for t, found in enumerate(posteriors[batch.starts[n] : batch.starts[n + 1]]):
            wanted = [math.fsum(p for p, path in every if path[t] == i) / total for i in range(model.states)]
            np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_log_likelihoods_and_impossible_sequences() -> None:
    model, rng = random_model(33, 4, 4, 0.6), np.random.default_rng(5)
    logs = np.where(rng.random((14, 33)) < 0.5, -np.inf, rng.normal(size=(14, 33)))
    logs[3] = -np.inf
    batch = SequenceBatch(np.array([0, 6, 10, 14]), None, logs)
    agree(model, batch, emulated(np.float32))
    assert answers(model, batch, emulated(np.float32))[1][0] == -np.inf


def on_emulation(monkeypatch: pytest.MonkeyPatch) -> list[EmulatedViterbi]:
    used: list[EmulatedViterbi] = []

    def opened(dtype: Any) -> EmulatedViterbi:
        used.append(emulated(dtype))
        return used[-1]

    monkeypatch.setattr("junctor.hmm.smooth_gpu.open_device", opened)
    monkeypatch.setattr("junctor.runtime.dask_cluster.check_device", lambda choice: None)
    return used


def test_what_is_lost_climbs(monkeypatch: pytest.MonkeyPatch) -> None:
    # As the test of the same model on the CPU: the first sequence leaves the range of both formats.
    model = build_model([0.5, 0.5], [[1, 0], [0, 1]], [[1e-5, 1e-5, 1 - 2e-5], [0.5, 0.5, 0]])
    batch = batch_of([[0, 1] * 40 + [2], [0, 1] * 8 + [2], [2, 0], [0]])
    used = on_emulation(monkeypatch)
    found = SequenceEngine(model, "posteriors", "single", options=ComputeOptions(device="gpu")).answer(batch)
    wanted = SequenceEngine(model, "posteriors", "single").answer(batch)
    assert [each.dtype for each in used] == [np.float32, np.float64]
    assert found.status.tolist() == [OK] * 4
    np.testing.assert_array_equal(found.log_value, wanted.log_value)
    np.testing.assert_array_equal(found.posteriors, wanted.posteriors)  # type: ignore[arg-type]
    np.testing.assert_allclose(found.posteriors[:81], [[1.0, 0.0]] * 81)  # type: ignore[index]


def test_a_run_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = on_emulation(monkeypatch)
    write_model(random_model(5, 3, 1), tmp_path / "m.json")
    parquet.write_table(pa.table({"s": [[0, 1, 2], [], [2, None], [1], [0, 0, 0]]}), tmp_path / "s.parquet")
    files = str(tmp_path / "m.json"), str(tmp_path / "s.parquet")
    jobs = [SequenceJob(*files, str(tmp_path / name), "posteriors", partition_rows=3) for name in ("gpu", "cpu")]
    first, second = (
        run(job, Resources(workers=0, compute=ComputeOptions(device=job.directory.path.name))) for job in jobs
    )  # type: ignore[arg-type]
    assert first.parts == second.parts
    assert used[0].kernels.count("normalise") == 2
    for part in first.parts:
        assert (tmp_path / "gpu" / part.file).read_bytes() == (tmp_path / "cpu" / part.file).read_bytes()


def test_what_does_not_fit_the_gpu_stays_here_unless_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from junctor.hmm import engine

    on_emulation(monkeypatch)
    monkeypatch.setattr(engine, "has_gpu", lambda: True)
    monkeypatch.setattr(engine, "DEVICE_TERMS", 1)
    model = random_model(70, 4, 1)
    batch = random_batch(model, [3])
    found = SequenceEngine(model, "posteriors", options=ComputeOptions(device="auto", device_memory=1000)).answer(batch)
    wanted = SequenceEngine(model, "posteriors").answer(batch)
    np.testing.assert_array_equal(found.posteriors, wanted.posteriors)  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match="use --device cpu"):
        SequenceEngine(model, "posteriors", options=ComputeOptions(device="gpu", device_memory=1000)).answer(batch)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("states", "zeros"), [(5, 0.3), (70, 0.0), (130, 0.9), (1500, 0.1)])
def test_answers_are_those_of_the_cpu(dtype: Any, states: int, zeros: float) -> None:
    model = random_model(states, 4, states, zeros)
    agree(model, random_batch(model, LENGTHS), CUDA(dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("sequences", [1, 2, 3, 8, 9, 17, 40, 100, 300])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_number_of_sequences(dtype: Any, sequences: int) -> None:
    model = random_model(700, 4, 1)
    agree(model, random_batch(model, [4] * sequences), CUDA(dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("zeros", [0.5, 0.95, 0.999])
def test_sparse_matrices(zeros: float) -> None:
    model = random_model(700, 4, 2, zeros, sparse=True)
    agree(model, random_batch(model, LENGTHS), CUDA(np.float32))


@pytest.mark.gpu
@pytest.mark.parametrize("sequences", [2, 12])
def test_blocks_in_every_place(sequences: int) -> None:
    model = random_model(40, 4, 3)
    batch = random_batch(model, [40] * (sequences - 1) + [20])
    row = stride_of(40) * 4
    for host, disk in [(0, 0), (20 * row, 0), (0, 20 * row), (100 * row, 100 * row), (1 << 30, 0)]:
        agree(model, batch, CUDA(np.float32), TrellisMemory(0, host, disk), 60 * sequences * row)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_likelihoods_given_directly(dtype: Any) -> None:
    model, rng = random_model(33, 4, 4), np.random.default_rng(5)
    logs = np.where(rng.random((14, 33)) < 0.3, -np.inf, rng.normal(size=(14, 33)))
    agree(model, SequenceBatch(np.array([0, 6, 10, 14]), None, logs), CUDA(dtype))


@pytest.mark.gpu
def test_numbers_that_vanish_are_seen() -> None:
    # Posteriors far below the normal numbers of the format, and sequences that climb twice.
    model = build_model([0.5, 0.5], [[1, 0], [0, 1]], [[1e-5, 1e-5, 1 - 2e-5], [0.5, 0.5, 0]])
    batch = batch_of([[0, 1] * 100 + [2], [0, 1] * 10 + [2], [0] * 6, [2, 0], [0], [0] * 4])
    for precision in ("single", "double"):
        there, here = (
            SequenceEngine(model, "posteriors", precision, options=ComputeOptions(device=device)).answer(batch)  # type: ignore[arg-type]
            for device in ("gpu", "cpu")
        )
        np.testing.assert_array_equal(there.log_value, here.log_value)
        np.testing.assert_array_equal(there.posteriors, here.posteriors)  # type: ignore[arg-type]
    never = build_model([0, 1], [[1, 0], [0, 1]], [[1e-5, 1 - 1e-5], [1, 0]])
    found = SequenceEngine(never, "posteriors", options=ComputeOptions(device="gpu")).answer(
        batch_of([[0] * 300 + [1]])
    )
    assert found.status.tolist() == [IMPOSSIBLE]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["single", "double"])
def test_answers_of_hmmlearn(shared: Path, precision: Any) -> None:
    folder = shared / "hmm" / "ud_ewt_pos"
    if not folder.is_dir():
        pytest.skip("no hidden Markov models there")
    given_model = json.loads(gzip.decompress((folder / "model.json.gz").read_bytes()))
    oracle = json.loads(gzip.decompress((folder / "oracle_hmmlearn.json.gz").read_bytes()))["sequences"]
    model = build_model(given_model["startprob"], given_model["transmat"], given_model["emissionprob"])
    batch = batch_of([each["obs"] for each in oracle])
    found = SequenceEngine(model, "posteriors", precision, options=ComputeOptions(device="gpu")).answer(batch)
    close = 1e-5 if precision == "single" else 1e-11
    np.testing.assert_allclose(found.log_value, [each["log_likelihood"] for each in oracle], rtol=close)
    wanted = np.array([row for each in oracle for row in each["posterior"]])
    np.testing.assert_allclose(found.posteriors, wanted, atol=close)  # type: ignore[arg-type]


@pytest.mark.gpu
def test_answers_of_the_reference_in_logarithms() -> None:
    model = random_model(600, 4, 600, 0.5)
    batch = random_batch(model, [6, 5, 5, 1])
    found = SequenceEngine(model, "posteriors", options=ComputeOptions(device="gpu")).answer(batch)
    symbols = np.concatenate([logarithms(model.emission.T), np.zeros((1, 600))])[batch.symbols]  # type: ignore[union-attr]
    for n in range(4):
        where = slice(batch.starts[n], batch.starts[n + 1])
        total, wanted = posteriors_of(logarithms(model.start), logarithms(model.transition), symbols[where])
        assert found.log_value[n] == pytest.approx(total, abs=1e-11)
        np.testing.assert_allclose(found.posteriors[where], wanted, atol=1e-12)  # type: ignore[index]


def test_launches_follow_the_number_of_rows() -> None:
    found = list(launches(np.array([300, 300, 100, 40, 9, 8, 1]), 6000, False, 4, Chip(132, 227 << 10, 0)))
    assert [(each.kernel, each.first, each.last) for each in found] == [
        ("many_8", 0, 2),
        ("many_4", 2, 3),
        ("many_2", 3, 4),
        ("few_8", 4, 5),
        ("few_1", 5, 6),
    ]
    assert shared_bytes(SequenceLaunch("few_8", 0, 1, 8), 6000, 132, 4) <= 227 << 10


def test_panels_hold_all_numbers() -> None:
    matrix = np.arange(49.0).reshape(7, 7)
    panels = panels_of(matrix).reshape(2, 32, 16)
    np.testing.assert_array_equal(panels[0, :7, :7], matrix)
    assert panels.sum() == matrix.sum()


def test_logarithms_stay_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    used = on_emulation(monkeypatch)
    write_model(random_model(5, 3, 1), tmp_path / "m.json")
    parquet.write_table(pa.table({"s": [[0, 1, 2]]}), tmp_path / "s.parquet")
    files = str(tmp_path / "m.json"), str(tmp_path / "s.parquet"), str(tmp_path / "out")
    assert (
        run(
            SequenceJob(*files, "posteriors", precision="log"),
            Resources(workers=0, compute=ComputeOptions(device="gpu")),
        ).statuses["ok"]
        == 1
    )
    assert not used
    assert "posteriors in logarithms stay on the CPU" in caplog.text
