"""Samples on a GPU against those of the CPU; without a GPU, the kernels compiled for the CPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emulation.nvrtc import ARCHITECTURES, compiles
from emulation.sampling import EmulatedSampling
from helpers.sampling_cases import Hard, Soft, case_of, mixed, network_of
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch
from junctor.model.answers import SampledAnswers
from junctor.model.errors import BudgetError, DeviceError
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query, Sampling
from junctor.sampling import engine as engines
from junctor.sampling import gpu
from junctor.sampling.cases import layout_of
from junctor.sampling.engine import SamplingEngine
from junctor.sampling.epis import SWEEPS, beliefs_of, epis_function
from junctor.sampling.gpu import GpuRow, GpuSampling
from junctor.sampling.sampler import CpuSampling, SamplingRequest
from junctor_kernels.sampling import gpu as sampling_gpu
from junctor_kernels.sampling import loopy as beliefs
from junctor_kernels.sampling import loopy_gpu as beliefs_gpu

SOFT = {1: np.array([0.1, 1.0, 0.4])}
HARD = {6: 1, 3: 0}


@pytest.mark.parametrize(
    "architecture", [pytest.param(each, marks=[pytest.mark.slow] if each != "sm_90" else []) for each in ARCHITECTURES]
)
def test_kernels_compile(architecture: str) -> None:
    compiles(sampling_gpu.source(), architecture)
    compiles(beliefs_gpu.source(), architecture)


def test_the_source_has_every_field_in_order() -> None:
    assert fields_of(sampling_gpu.source(), "Job") == (*sampling_gpu.FIELDS, *sampling_gpu.DOUBLES)
    assert fields_of(beliefs_gpu.source(), "Messages") == beliefs_gpu.FIELDS
    with pytest.raises(KeyError, match="nonsense"):
        sampling_gpu.SamplingJob(nonsense=1)


def fields_of(text: str, name: str) -> tuple[str, ...]:
    body = text[text.index(f"struct {name} {{") :]
    lines = body[: body.index("};")].split(";")[:-1]
    return tuple(part.split()[-1].strip("* ") for line in lines for part in line.split("{")[-1].split(","))


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "cuda":
        return sampling_gpu.CudaSampling()
    # Fibers of the emulation wait for each other in every step: as few as a block can have several warps with.
    monkeypatch.setattr(gpu, "THREADS", 64)
    monkeypatch.setattr(gpu, "WAVE_THREADS", 64)
    monkeypatch.setattr(beliefs_gpu, "THREADS", 64)
    return EmulatedSampling()


def engine_on(device: Any, sampler: Any, samples: int, group: int | None = None) -> SamplingEngine:
    query = Query(method="sampling", sampling=Sampling(sampler, samples, seed=11, stages="all"))
    engine = SamplingEngine(mixed(), query, ComputeOptions(threads=1, device="gpu" if device else "cpu"))
    if device:
        found = GpuSampling(engine.sampled, device, engine.cpu)
        if group is not None:
            found.way = lambda *_: group
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu, "gpu_sampling", lambda *_: found)
            assert engine.gpu is found
    return engine


@pytest.mark.parametrize(("sampler", "logs"), [("lw", False), ("ais-bn", True), ("epis-bn", False)])
@pytest.mark.parametrize(("group", "several"), [(0, False), (0, True), (32, False), (4, False)])
def test_both_kernels_find_what_the_cpu_finds(
    device: Any, sampler: str, logs: bool, group: int, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "SEVERAL_SAMPLES", 0 if several else 1 << 30)
    monkeypatch.setattr(engines, "PLAIN_LIMIT", -1.0 if logs else 1e9)
    cpu, on_gpu = engine_on(None, sampler, 300), engine_on(device, sampler, 300, group)
    expected, found = (engine.estimate(HARD, SOFT, 3)[2] for engine in (cpu, on_gpu))
    assert expected is not None
    assert found is not None
    np.testing.assert_allclose(found.posteriors, expected.posteriors, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.errors, expected.errors, rtol=1e-9)
    assert found.log_evidence == pytest.approx(expected.log_evidence, abs=1e-12)
    assert found.effective == pytest.approx(expected.effective)


@pytest.mark.parametrize("threads", [32, 128])
def test_threads_of_a_wave_change_no_state_and_weights_by_rounding(device: Any, threads: int) -> None:
    found = []
    for wave_threads in (64, threads):
        engine = engine_on(device, "ais-bn", 100, 16)
        engine.gpu.wave_threads = wave_threads
        found.append(engine.estimate(HARD, SOFT, 3)[2])
    one, other = found
    assert one is not None
    assert other is not None
    np.testing.assert_allclose(one.posteriors, other.posteriors, rtol=0, atol=1e-12)
    assert one.effective == pytest.approx(other.effective, rel=1e-12)


def test_what_is_learned_from_plain_weights_is_the_same_in_every_bit(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "PLAIN_LIMIT", 1e9)
    cpu, on_gpu = engine_on(None, "ais-bn", 400), engine_on(device, "ais-bn", 400, 0)
    rows, row_of = [], CpuSampling.row
    monkeypatch.setattr(CpuSampling, "row", lambda self, ask: rows.append(row_of(self, ask)) or rows[-1])
    for engine in (cpu, on_gpu):
        engine.estimate(HARD, SOFT, 0)
    mine, its = rows[0].function, on_gpu.gpu.learned
    layout = layout_of(cpu.sampled, rows_evidence(), None)
    for v in layout.weighed:
        span = slice(cpu.sampled.entries[v], cpu.sampled.entries[v + 1])
        cuts = slice(cpu.sampled.cuts[v], cpu.sampled.cuts[v + 1])
        assert (mine.chances[span] == device.get(its.chances)[span]).all()
        assert (mine.thresholds[cuts] == device.get(its.thresholds)[cuts]).all()
        assert (mine.order[span] == device.get(its.order)[span]).all()


@pytest.mark.parametrize("name", ["mixed", "wide"])
@pytest.mark.parametrize("logs", [False, True])
def test_functions_of_messages_are_the_same_in_every_bit(
    device: Any, name: str, logs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "DEVICE_ENTRIES", 0)
    network, hard, soft = (mixed(), HARD, SOFT) if name == "mixed" else wide()
    sampled, layout, case = case_of(network, hard, soft, True)
    pattern = beliefs_of(layout)
    ask = SamplingRequest(layout, case, "epis-bn", (), logs, beliefs=pattern)
    owner = GpuSampling(sampled, device, CpuSampling(sampled))
    row = owner.row(ask)
    links, own = pattern.of(case)
    said = beliefs.propagate(links, sampled.tables.probabilities, own, SWEEPS)
    assert isinstance(row, GpuRow)
    begin = 2 * links.messages + 2 * links.numbers
    found = device.get(owner.room("messages", (1,), np.float64)).view(np.float64)[begin : begin + links.numbers]
    assert (found == said).all()
    cpu, its = epis_function(sampled, pattern, case, logs), owner.learned
    for n in pattern.nodes.tolist():
        first, entry, card = case.nodes[n, :3]
        span, cuts = slice(entry, entry + case.spans[n] * card), slice(first, first + case.spans[n] * (card - 1))
        assert (cpu.thresholds[cuts] == device.get(its.thresholds)[cuts]).all()
        assert (cpu.order[span] == device.get(its.order)[span]).all()
        np.testing.assert_allclose(device.get(its.ratios)[span], cpu.ratios[span], rtol=1e-15 if logs else 0)


def wide() -> tuple[Network, Hard, Soft]:
    """A node of eleven parents, one of them observed in the middle; a hub with 40 children; a loop below."""
    rng = np.random.default_rng(3)
    cards = [2, 3, *[2] * 9, 3, 2, *[2] * 40]
    scopes = [*((v,) for v in range(11)), (*range(11), 11), (0, 11, 12), *((11, v) for v in range(13, 53))]
    tables = [
        (scope, rng.dirichlet(np.ones(cards[scope[-1]]), size=[cards[v] for v in scope[:-1]])) for scope in scopes
    ]
    return network_of(tables, cards), {5: 1, 12: 0} | {v: v % 2 for v in range(13, 50)}, {50: np.array([0.2, 0.9])}


def rows_evidence() -> Any:
    from junctor.sampling.rows import Evidence

    return Evidence(frozenset(HARD), frozenset(SOFT))


@pytest.mark.parametrize("sampler", ["epis-bn", "ais-bn"])
def test_rows_of_a_batch_are_answered_as_on_the_cpu(device: Any, sampler: str) -> None:
    rows = 4
    rng = np.random.default_rng(4)
    columns = {v: rng.integers(-1, 2, rows).astype(np.int32) for v in (6, 3)}
    batch = EvidenceBatch(rows, columns, invalid={2: "wrong"})
    cpu, on_gpu = engine_on(None, sampler, 200), engine_on(device, sampler, 200)
    expected, found = (Engine(mixed(), cpu.query).blank(batch) for _ in range(2))
    for engine, answers in ((cpu, expected), (on_gpu, found)):
        assert isinstance(answers, SampledAnswers)
        engine.answer(batch, batch.valid, answers, 2)
    assert (found.status == expected.status).all()
    for v in range(8):
        np.testing.assert_allclose(found.posteriors[v], expected.posteriors[v], rtol=0, atol=1e-12)


@pytest.mark.parametrize("sampler", ["lw", "ais-bn"])
def test_a_row_over_several_devices_is_the_same_in_every_bit(
    device: Any, sampler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "CHUNK", 256)
    monkeypatch.setattr(gpu, "SPREAD_SAMPLES", 512)
    one, three = (engine_on(device, sampler, 1400) for _ in range(2))
    others = [GpuSampling(three.sampled, type(device)(), three.cpu) for _ in range(2)]
    used, row_of = [], GpuSampling.row
    monkeypatch.setattr(GpuSampling, "row", lambda self, ask: used.append(self) or row_of(self, ask))
    three.gpu.open_others = lambda: others
    alone, spread = (engine.estimate(HARD, SOFT, 1)[2] for engine in (one, three))
    assert used == [one.gpu, three.gpu, *others]
    assert alone is not None
    assert spread is not None
    assert (alone.posteriors == spread.posteriors).all()
    assert (alone.log_evidence, alone.samples) == (spread.log_evidence, spread.samples)


def test_large_runs_go_in_chunks_of_any_size(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = engine_on(None, "lw", 1300).estimate(HARD, SOFT, 1)[2]
    monkeypatch.setattr(gpu, "CHUNK", 256)
    found = engine_on(device, "lw", 1300, 0).estimate(HARD, SOFT, 1)[2]
    assert cpu is not None
    assert found is not None
    np.testing.assert_allclose(found.posteriors, cpu.posteriors, rtol=0, atol=1e-12)


def test_a_second_run_is_the_same_in_every_bit(device: Any) -> None:
    found = [engine_on(device, "ais-bn", 200).estimate(HARD, SOFT, 1)[2] for _ in range(2)]
    assert found[0] is not None
    assert found[1] is not None
    assert (found[0].posteriors == found[1].posteriors).all()
    assert found[0].log_evidence == found[1].log_evidence


def test_evidence_that_no_sample_agrees_with(device: Any) -> None:
    # v4 is on only where v0 is.
    for sampler in ("lw", "ais-bn"):
        engine = engine_on(device, sampler, 500)
        layout, case, found = engine.estimate({0: 0, 4: 1, 2: 1}, {}, 0)
        assert case.certain == -np.inf
        assert found is None
        del layout


def test_the_cpu_takes_rows_whose_states_exceed_shared_memory(
    device: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(device, "most_shared", 8)
    found = engine_on(device, "ais-bn", 500).estimate(HARD, SOFT, 0)[2]
    expected = engine_on(None, "ais-bn", 500).estimate(HARD, SOFT, 0)[2]
    assert "shared memory" in caplog.text
    assert found is not None
    assert expected is not None
    assert (found.posteriors == expected.posteriors).all()


def test_a_gpu_that_cannot_be_used_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(EmulatedSampling):
        def __init__(self, number: int) -> None:
            assert number == 0

        def free(self) -> int:
            return 1 << 30

    runtime, driver = SimpleNamespace(CUDARuntimeError=RuntimeError), SimpleNamespace(CUDADriverError=RuntimeError)
    fake = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, driver=driver))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(gpu, "check_device", lambda _: None)
    monkeypatch.setattr(sampling_gpu, "CudaSampling", Small)
    starts = engine_on(None, "lw", 500).cpu
    assert isinstance(gpu.gpu_sampling(starts), GpuSampling)
    with pytest.raises(BudgetError, match="--device-memory"):
        gpu.gpu_sampling(starts, memory=1000)

    def broken(number: int) -> None:
        raise RuntimeError("no such device")

    monkeypatch.setattr(sampling_gpu, "CudaSampling", broken)
    with pytest.raises(DeviceError, match="no such device"):
        gpu.gpu_sampling(starts)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match="CuPy cannot be loaded"):
        gpu.gpu_sampling(starts)


def test_the_kernel_is_chosen_by_samples_and_levels() -> None:
    assert [gpu.way(count, 400, 7) for count in (1, 4096, 10_000, 32_768, 1 << 17)] == [4, 4, 16, 32, 32]
    assert gpu.way((1 << 17) + 1, 400, 7) == 0
    # A chain has a node a level.
    assert gpu.way(1 << 14, 500, 500) == 16
    assert gpu.way((1 << 14) + 1, 500, 500) == 0
