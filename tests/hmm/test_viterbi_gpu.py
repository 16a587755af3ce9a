"""Most probable paths on a GPU, bit by bit those of the CPU; without a GPU, the kernels compiled for the CPU."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from tempfile import gettempdir
from types import SimpleNamespace
from typing import Any

import hmm_gpu as hmm_benchmark
import numpy as np
import pyarrow as pa
import pytest
from baselines import viterbi_versions
from emulation.build import built
from emulation.chains import SIDE, EmulatedViterbi
from emulation.nvrtc import compiles
from helpers.hmm_models import batch_of, paths, random_batch, random_model, small_cases, sparse_of
from hypothesis import given, settings
from junctor.hmm import build_model, write_model
from junctor.hmm.blocks import TickBlock, TrellisMemory
from junctor.hmm.decode import CpuDecoder, decode
from junctor.hmm.decode_gpu import GpuDecoder
from junctor.hmm.engine import SequenceEngine, SequenceKind
from junctor.hmm.model import HiddenMarkovModel
from junctor.hmm.numbers import PathNumbers, logarithms
from junctor.hmm.packing import SequenceBatch, locksteps
from junctor.hmm.run import SequenceJob
from junctor.model.errors import BudgetError, DeviceError
from junctor.model.options import ComputeOptions
from junctor.runs.run import run
from junctor.runtime.dask_cluster import Resources
from junctor_kernels.hmm import device as hmm_gpu
from junctor_kernels.hmm import forward_backward_gpu, viterbi_gpu
from junctor_kernels.hmm.device import Chip, SequenceLaunch, stride_of
from junctor_kernels.hmm.viterbi_gpu import launches, shared_bytes
from pyarrow import parquet

H100 = Chip(132, 227 << 10, 50 << 20)
LENGTHS = [7, 7, 6, 5, 5, 5, 3, 2, 1]
CUDA = hmm_gpu.ChainDevice


def agree(model: HiddenMarkovModel, batch: SequenceBatch, device: Any, room: TrellisMemory | None = None) -> None:
    """Compare rows and paths of a device with those of the CPU, bit by bit."""
    cpu = CpuDecoder(PathNumbers(model, device.dtype))
    (steps,) = locksteps(batch.lengths, np.arange(len(batch)), len(batch))
    wanted = decode(cpu, batch, steps, TrellisMemory(1 << 40), Path())
    machine = GpuDecoder(model, device.dtype, device=device)
    found = decode(machine, batch, steps, room or TrellisMemory(1 << 40), Path(gettempdir()))
    np.testing.assert_array_equal(found, wanted)
    if room is None:
        here = cpu.room(steps.rows)
        cpu.advance(here, batch, steps, TickBlock(0, steps.ticks - 1, "here"))
        rows = machine.save(machine.room(0), 0, steps.rows)[:, : model.states]
        np.testing.assert_array_equal(rows, cpu.save(here, 0, steps.rows)[:, : model.states])


def emulated(dtype: Any = np.float32) -> EmulatedViterbi:
    return EmulatedViterbi(dtype)


# The emulation has a fiber for every thread of the device: small cases, each with its own kernels.
@pytest.mark.parametrize(
    ("dtype", "states", "zeros", "lengths", "kernels"),
    [
        (np.float32, 70, 0.2, [3] * 5 + [2] * 4 + [1], {"begin", "many_2", "few_8", "trace"}),
        (np.float32, 40, 0.8, [2] * 17, {"begin", "many_4", "trace"}),
        (np.float32, 9, 0.0, [2] * 33, {"begin", "many_8", "trace"}),
        pytest.param(np.float64, 70, 0.0, [3, 2], {"begin", "few_2", "trace"}, marks=pytest.mark.slow),
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


@pytest.mark.parametrize(("shared", "near"), [(2144, (0, 12)), (4064, (20, 12)), (1 << 17, (140, 0))])
def test_parts_of_the_matrix_in_every_place(shared: int, near: tuple[int, int]) -> None:
    model, device = random_model(70, 4, 1), EmulatedViterbi(np.float32, shared=shared)
    (launch,) = launches(np.array([2, 2]), 70, None, 4, device.chip)
    assert (launch.kernel, launch.kept, launch.cached) == ("few_2", *near)
    agree(model, random_batch(model, [4, 3]), device)


@pytest.mark.parametrize("zeros", [0.5, 0.95])
def test_sparse_kernels_compiled_for_the_cpu(zeros: float) -> None:
    model = random_model(20, 4, 2, zeros, sparse=True)
    agree(model, random_batch(model, [3, 2]), emulated())


@pytest.mark.parametrize("sparse", [False, True])
def test_ties_compiled_for_the_cpu(sparse: bool) -> None:
    flat = np.full((70, 70), 1 / 70)
    model = build_model(flat[0], sparse_of(flat) if sparse else flat, np.full((70, 2), 0.5))
    agree(model, batch_of([[0, 1, 0], [1, 0]]), emulated())


def test_blocks_compiled_for_the_cpu() -> None:
    model = random_model(20, 4, 3)
    row = stride_of(20) * 4
    agree(model, random_batch(model, [14, 8]), emulated(), TrellisMemory(16 * row, 8 * row, 0))


@settings(max_examples=6)
@given(small_cases())
def test_paths_of_enumeration(case: tuple[HiddenMarkovModel, list[list[int]]]) -> None:
    model, sequences = case
    batch = batch_of(sequences)
    (steps,) = locksteps(batch.lengths, np.arange(len(batch)), len(batch))
    machine = GpuDecoder(model, np.float32, device=emulated())
    states = np.zeros(len(batch.symbols), np.int64)  # type: ignore[arg-type]
    states[steps.steps(batch.starts, 0, steps.ticks - 1)] = decode(
        machine, batch, steps, TrellisMemory(1 << 40), Path()
    )
    for n, symbols in enumerate(sequences):
        every = {path: p for p, path in paths(model, symbols)}
        found = every[tuple(states[batch.starts[n] : batch.starts[n + 1]])]
        assert found == pytest.approx(max(every.values()), rel=1e-5)


def test_a_run_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[EmulatedViterbi] = []

    def opened(dtype: Any) -> EmulatedViterbi:
        used.append(emulated(dtype))
        return used[-1]

    monkeypatch.setattr("junctor.hmm.decode_gpu.open_device", opened)
    monkeypatch.setattr("junctor.runtime.dask_cluster.check_device", lambda choice: None)
    write_model(random_model(5, 3, 1), tmp_path / "m.json")
    parquet.write_table(pa.table({"s": [[0, 1, 2], [], [2, None], [1], [0, 0, 0]]}), tmp_path / "s.parquet")
    files = str(tmp_path / "m.json"), str(tmp_path / "s.parquet")
    job = SequenceJob(*files, str(tmp_path / "gpu"), precision="single", partition_rows=3)
    other = SequenceJob(*files, str(tmp_path / "cpu"), precision="single", partition_rows=3)
    first, second = (
        run(job, Resources(workers=0, compute=ComputeOptions(device="gpu"))),
        run(other, Resources(workers=0, compute=ComputeOptions(device="cpu"))),
    )
    assert first.parts == second.parts
    assert len(used) == 1
    assert used[0].kernels.count("trace") == 2
    for part in first.parts:
        assert (tmp_path / "gpu" / part.file).read_bytes() == (tmp_path / "cpu" / part.file).read_bytes()


@pytest.mark.parametrize("kind", ["viterbi", "posteriors"])
def test_a_gpu_whose_memory_others_take_is_told(kind: SequenceKind, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise MemoryError("out of memory allocating 5 bytes")

    monkeypatch.setattr("junctor.hmm.decode_gpu.open_device", refuse)
    monkeypatch.setattr("junctor.hmm.smooth_gpu.open_device", refuse)
    engine = SequenceEngine(random_model(5, 3, 1), kind, "single", ComputeOptions(device="gpu"))
    with pytest.raises(DeviceError, match=r"too little free memory.*allocating 5 bytes"):
        engine.answer(batch_of([[0, 1]]))


def test_what_does_not_fit_the_gpu_stays_here_unless_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from junctor.hmm import engine

    monkeypatch.setattr("junctor.hmm.decode_gpu.open_device", emulated)
    monkeypatch.setattr(engine, "has_gpu", lambda: True)
    monkeypatch.setattr(engine, "DEVICE_TERMS", 1)
    model = random_model(70, 4, 1)
    batch = random_batch(model, [3])
    found = SequenceEngine(model, options=ComputeOptions(device="auto", device_memory=1000)).answer(batch)
    np.testing.assert_array_equal(found.states, SequenceEngine(model).answer(batch).states)  # type: ignore[arg-type]
    with pytest.raises(BudgetError):
        SequenceEngine(model, options=ComputeOptions(device="gpu", device_memory=1000)).answer(batch)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("states", "zeros"), [(5, 0.3), (70, 0.0), (130, 0.9), (1500, 0.1)])
def test_rows_and_paths_are_those_of_the_cpu(dtype: Any, states: int, zeros: float) -> None:
    model = random_model(states, 4, states, zeros)
    agree(model, random_batch(model, LENGTHS), CUDA(dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("sequences", [1, 2, 3, 8, 9, 17, 40, 100, 300])
def test_every_number_of_sequences(sequences: int) -> None:
    model = random_model(300, 4, 1)
    agree(model, random_batch(model, [3] * sequences), CUDA(np.float32))


@pytest.mark.gpu
@pytest.mark.parametrize("zeros", [0.5, 0.95, 0.999])
def test_sparse_matrices(zeros: float) -> None:
    model = random_model(700, 4, 2, zeros, sparse=True)
    agree(model, random_batch(model, LENGTHS), CUDA(np.float32))


@pytest.mark.gpu
def test_blocks_in_every_place() -> None:
    model = random_model(40, 4, 3)
    batch = random_batch(model, [40, 39, 39, 20, 1])
    row = stride_of(40) * 4
    for host, disk in [(0, 0), (20 * row, 0), (0, 20 * row), (20 * row, 20 * row), (1 << 30, 0)]:
        agree(model, batch, CUDA(np.float32), TrellisMemory(60 * row, host, disk))


@pytest.mark.gpu
def test_log_likelihoods_given_directly() -> None:
    model, rng = random_model(33, 4, 4), np.random.default_rng(5)
    logs = np.where(rng.random((14, 33)) < 0.3, -np.inf, rng.normal(size=(14, 33)))
    agree(model, SequenceBatch(np.array([0, 6, 10, 14]), None, logs), CUDA(np.float32))


@pytest.mark.gpu
def test_impossible_sequences() -> None:
    model = random_model(6, 3, 6, 0.9)
    agree(model, random_batch(model, [9] * 4, 7), CUDA(np.float64))


LAUNCH = """
extern "C" void run(int kernel, int blocks, int threads, const float *before, const float *transition,
                    const float *emission, float *out, int *back, int states) {
    decltype(&cached) kernels[] = {thread_for_state, transposed, cached, cached_as_printed};
    for_all(blocks, 1, threads, [&] { kernels[kernel](before, transition, emission, out, back, states); });
}
"""
KERNELS = ("thread_for_state", "transposed", "cached", "cached_as_printed")
READINGS = [*viterbi_versions.VERSIONS.values(), viterbi_versions.PRINTED[4]]


class NoCupy:
    """As much of CuPy as versions of the paper need, with their kernels compiled for the CPU."""

    asarray, asnumpy, empty = staticmethod(np.asarray), staticmethod(np.asarray), staticmethod(np.empty)
    cuda = SimpleNamespace(runtime=SimpleNamespace(deviceSynchronize=lambda: None))

    class RawModule:
        def __init__(self, code: str, options: Any) -> None:
            self._library = built(code, LAUNCH)

        def get_function(self, name: str) -> Any:
            def launch(blocks: Any, threads: Any, arguments: Any) -> None:
                *arrays, states = arguments
                addresses = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
                self._library.run(KERNELS.index(name), blocks[0], threads[0], *addresses, int(states))

            return launch


@pytest.fixture
def no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few threads a block, which are fibers."""
    monkeypatch.setitem(sys.modules, "cupy", NoCupy)
    monkeypatch.setattr(viterbi_versions, "_module", lambda: NoCupy.RawModule(viterbi_versions.source(), ()))
    monkeypatch.setattr(viterbi_versions, "THREADS", 16)


@pytest.mark.parametrize("version", READINGS, ids=lambda version: version[0])
def test_versions_of_the_paper_without_a_gpu(version: tuple[str, bool], no_cupy: None) -> None:
    # The last block, and the last part of the step before, are not whole.
    assert_version(version, 37, 12)


def test_the_table_of_versions(no_cupy: None, capsys: pytest.CaptureFixture[str]) -> None:
    hmm_benchmark.versions_table((21,), (2, 3, 4))
    header, _, row = ([cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines())
    assert header[:-1] == ["states", "1", "2", "2 as printed", "3", "3 as printed", "4", "4 as printed"]
    *seconds, gains = row[1:]
    by_text = [float(each.replace(",", "")) for each in seconds[1::2]]
    found = [float(gain) for gain in gains.split(", ")]
    assert len(found) == 4
    assert found[1:3] == pytest.approx([by_text[0] / by_text[1], by_text[1] / by_text[2]], abs=0.06)


def test_the_printed_indices_are_the_reverse_of_the_text() -> None:
    found = {
        number: [viterbi_versions.lines_read(of[number][1], 6000) for of in (by_text, by_index)]
        for by_text, by_index in [(viterbi_versions.VERSIONS, viterbi_versions.PRINTED)]
        for number in by_text
    }
    assert found == {2: [32, 1], 3: [1, 32], 4: [1, 32]}
    # Four numbers of a step of 96 bytes: places 0, 96, 192 and 288.
    assert viterbi_versions.lines_read(False, 24, threads=4) == 3


@pytest.mark.gpu
@pytest.mark.parametrize("version", READINGS, ids=lambda version: version[0])
def test_versions_of_the_paper(version: tuple[str, bool]) -> None:
    assert_version(version, 300, 40)


def assert_version(version: tuple[str, bool], states: int, steps: int) -> None:
    model = random_model(states, 5, 8)
    batch = random_batch(model, [steps])
    symbols = np.abs(batch.symbols)  # type: ignore[arg-type]
    batch = SequenceBatch(batch.starts, symbols)
    logs = [logarithms(each).astype(np.float32) for each in (model.start, model.transition, model.emission.T)]  # type: ignore[union-attr, arg-type]
    run = viterbi_versions.GpuVersion(version, *logs, symbols)
    run.forward()
    value, path = run.path()
    wanted = SequenceEngine(model, precision="single").answer(batch)
    assert value == pytest.approx(wanted.log_value[0], rel=1e-5)
    np.testing.assert_array_equal(path, wanted.states)  # type: ignore[arg-type]


@pytest.mark.gpu
def test_the_engine_uses_the_gpu() -> None:
    model = random_model(300, 5, 8)
    batch = random_batch(model, [50, 20, 20, 1, 7])
    here, there = (
        SequenceEngine(model, options=ComputeOptions(device=device)).answer(batch) for device in ("cpu", "gpu")
    )
    np.testing.assert_array_equal(here.states, there.states)
    np.testing.assert_array_equal(here.log_value, there.log_value)


def test_launches_follow_the_number_of_rows() -> None:
    counts = np.array([300, 300, 100, 70, 40, 9, 8, 3, 1, 1])
    found = list(launches(counts, 6000, None, 4, H100))
    assert [(each.kernel, each.first, each.last) for each in found] == [
        ("many_8", 0, 3),
        ("many_4", 3, 4),
        ("many_2", 4, 5),
        ("few_8", 5, 6),
        ("few_4", 6, 7),
        ("few_1", 7, 9),
    ]


def test_a_row_that_exceeds_shared_memory_takes_the_product() -> None:
    (launch,) = launches(np.array([1, 1]), 60_000, None, 4, H100)
    assert launch.kernel == "many_2"
    assert shared_bytes(SequenceLaunch("few_1", 0, 1, 1), 6000, 132, 4) < 48 << 10


def test_a_model_that_exceeds_the_device_is_refused() -> None:
    model = random_model(70, 4, 1)
    with pytest.raises(BudgetError, match="use --device cpu"):
        GpuDecoder(model, np.float32, 1000, EmulatedViterbi(np.float32))


SOURCES = pytest.mark.parametrize("kernels", [viterbi_gpu, forward_backward_gpu], ids=["paths", "posteriors"])


@SOURCES
@pytest.mark.parametrize(
    ("architecture", "dtype"), [("sm_80", "<f4"), pytest.param("sm_100", "<f8", marks=pytest.mark.slow)]
)
def test_the_kernels_compile(kernels: Any, architecture: str, dtype: str) -> None:
    compiles(kernels.source(np.dtype(dtype)), architecture)


@SOURCES
def test_the_source_has_every_field_in_order(kernels: Any) -> None:
    text = kernels.source(np.float32)
    body = text[text.index("struct Work {") : text.index("__device__ long long count")]
    assert tuple(re.findall(r"(\w+)\s*[,;]", body)) == kernels.FIELDS


def test_the_versions_of_the_paper_compile() -> None:
    compiles(viterbi_versions.source(), "sm_90")
