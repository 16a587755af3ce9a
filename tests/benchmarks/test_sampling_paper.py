"""Figures of Yu and van Engelen, on numbers that are worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sampling_paper as papers
from common import Asked
from emulation.sampling import EmulatedSampling
from helpers.format_helpers import NETWORK
from junctor.sampling import engine as engines
from junctor.sampling import gpu
from sampling import Prepared


def test_reads_are_those_of_the_papers_example() -> None:
    # Its variable C: 1.99 reads with the unlikely state first, 1.01 with the likely one.
    assert papers.expected_reads({0: np.array([0.01, 0.99])}) == pytest.approx((1.99, 1.01))
    assert papers.expected_reads({0: np.array([0.2, 0.5, 0.3])}) == pytest.approx((2.1, 0.5 + 0.6 + 0.6))


def test_reads_are_counted_in_samples() -> None:
    # a: 0.4, 0.6; b: 0.1, 0.9 where a = no, 0.8, 0.2 where a = yes.
    tables = {0: np.array([0.4, 0.6]), 1: np.array([0.52, 0.48])}
    each = Prepared("small", NETWORK, {"unlikely": [{}]}, {"unlikely": [tables]}, {"unlikely": [0.0]})
    found = papers.counted_reads(each, 0, 1 << 14)
    assert found[-1] == 2 << 14
    expected = [1.6 + 1.48, 1.4 + 1.48, 1.4 + 0.4 * 1.1 + 0.6 * 1.2, 2.0]
    np.testing.assert_allclose(found[:-1] / (1 << 14), expected, atol=0.02)


def test_the_error_is_a_root() -> None:
    found, truth = (
        {0: np.array([0.5, 0.5]), 1: np.array([1.0, 0.0])},
        {0: np.array([0.4, 0.6]), 1: np.array([1.0, 0.0])},
    )
    assert papers.mse(found, truth) == pytest.approx((2 * 0.01 / 4) ** 0.5)


@pytest.mark.parametrize("logs", [False, True])
def test_variants_weigh_with_logarithms_or_without(logs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    each = Prepared("small", NETWORK, {}, {}, {})
    asked, ask = [], engines.SamplingEngine._ask
    monkeypatch.setattr(engines.SamplingEngine, "_ask", lambda *of: asked.append(ask(*of)) or asked[-1])
    limit = engines.PLAIN_LIMIT
    with papers.Variant("ais-bn", logs).engine(each, 120_000, "cpu") as engine:
        assert engine._learning == 60_000
        engine.estimate({1: 0}, {}, 0)
    assert [request.logs for request in asked] == [logs]
    assert limit == engines.PLAIN_LIMIT


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Blocks and threads of each launch of waves with logarithms, on an emulated device."""
    found: list[tuple[int, int]] = []

    class Noted(EmulatedSampling):
        def launch(self, kernel: str, blocks: tuple[int, int], threads: int, job: Any, shared: int = 0) -> None:
            if kernel == "wavefront_logs":
                found.append((blocks[0], threads))
            super().launch(kernel, blocks, threads, job, shared)

    monkeypatch.setattr(gpu, "gpu_sampling", lambda starts, *_: gpu.GpuSampling(starts.network, Noted(), starts))
    monkeypatch.setattr(gpu, "THREADS", 64)
    monkeypatch.setattr(gpu, "WAVE_THREADS", 64)
    # Events are CUDA's.
    monkeypatch.setattr("sampling.on_device", lambda row, work, repeats: work() or 0.0)
    monkeypatch.setattr(papers, "observed", lambda *_: 1)
    monkeypatch.setattr(papers, "FEW_SAMPLES", 200)
    return found


def test_figures_of_a_gpu_launch_waves_of_so_many_samples_and_threads(launched: list[tuple[int, int]]) -> None:
    papers.figure_eight(Asked(small=True))
    assert launched == 2 * [(8, 64), (8, 128), (8, 256)]
    launched.clear()
    papers.by_blocks(Asked(small=True), [(4, 64), (32, 64)])
    assert launched == 2 * [(32, 64), (4, 64)]


def test_columns_of_a_gpu(launched: list[tuple[int, int]], capsys: pytest.CaptureFixture[str]) -> None:
    papers.figure_six(Asked(small=True, gpu=True))
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[3:]]
    assert [row[:2] for row in rows] == [["asia", "2"], ["student", "2"]]
    # CPU and GPU have the same samples.
    assert all(row[2:4] == row[4:6] for row in rows)
    papers.table_three(Asked(small=True, gpu=True))
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[3:]]
    assert [row[1] for row in rows] == 2 * ["ais-bn, exp", "ais-bn", "sis, exp", "sis"]
    assert all(float(number) >= 0 for row in rows for number in row[2:7])
    assert launched


def test_theirs_are_as_printed() -> None:
    ratios = {key: (core / wave, simple / wave) for key, (_, core, simple, wave) in papers.TABLE_THREE.items()}
    assert ratios["cpcs422b", "ais-bn"] == pytest.approx((29.60, 2.33), abs=0.06)
    assert max(core for core, _ in ratios.values()) == pytest.approx(60.46, abs=0.1)
    assert min(simple for _, simple in ratios.values()) == pytest.approx(1.38, abs=0.01)
