"""`junctor warmup`: afterwards runs compile nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command_line import junctor_cli
from junctor.cli import display, warmup
from junctor.runtime.devices import has_gpu
from junctor_kernels.cpu.compilation import Compilation
from junctor_kernels.gpu import blocks
from junctor_kernels.gpu.device import KernelModule

RUNS = """
import junctor
import numpy as np
from junctor import Model, draws, generate, hmm
from junctor_kernels.cpu.compilation import compilation

network = generate.random_network(40, seed=5, zeros=0.3)
samples = generate.sample(network, 2000, seed=1)
for pattern in ("fixed", "missing", "random"):
    for precision in ("double", "single", "log"):
        evidence = generate.evidence_table(network, samples, 0.3, pattern, seed=1)
        Model(network).posteriors(evidence, precision=precision, case_id="case_id")
    Model(network).most_probable(evidence, case_id="case_id")
layered = generate.layered(4, 9, zeros=0.6, seed=3)
first = layered.variables[0].name
rows = [{}, {first: [1e-310, 1.0]}] * 10
for precision in ("double", "single"):
    junctor.posteriors(layered, rows, precision=precision, strategy="circuit")
junctor.most_probable(layered, rows, strategy="circuit")
draws.MANY_ENTRIES = draws.EDGE_ENTRIES = 0
assert layered.sample(5, rows).num_rows == 100
model = hmm.build_model([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.1, 0.9]])
for sequences in ([[0, 1, 1]], [[0] * 500] * 40):
    hmm.viterbi(model, sequences)
    hmm.posteriors(model, sequences)
rows = generate.evidence_table(network, samples, 1.0, "missing", seed=1)
junctor.learn(network, rows, case_id="case_id", max_iterations=2)
hmm.learn(model, [[0, 1, 1], [0]], max_iterations=3, threads=2)
hmm.learn(hmm.build_model([0, 1], [[1, 0], [0, 1]], [[1e-5, 1 - 1e-5], [1 - 1e-5, 1e-5]]), [[0] * 99 + [1]] * 2)
print(compilation.functions)
"""


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_runs_compile_nothing_afterwards(tmp_path: Path, device: str) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", "from junctor.cli import main; main()", "warmup", "--device", device]
    first = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    assert "functions compiled" in first.stdout
    then = subprocess.run([sys.executable, "-c", RUNS], env=environment, capture_output=True, text=True, check=True)
    assert then.stdout.split() == ["0"]


def test_all_kernels_for_rows_of_a_plan_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    from emulation import cupy_memory

    cupy_memory.stand_in(monkeypatch)
    loaded = []
    monkeypatch.setattr(KernelModule, "load", lambda kernels, _, algebra: loaded.append((kernels, algebra)))
    name, load = next(warmup._ways("gpu"))
    load()
    assert name == "rows of a plan"
    kinds = blocks.FEW_CASES, blocks.MANY_CASES, blocks.ANSWERS, blocks.SCORES
    assert len(loaded) == len(kinds) * 4
    assert set(loaded) == {(kind, algebra) for kind in kinds for algebra in ("single", "double", "log", "max")}
    assert all(name != "rows of a plan" for name, _ in warmup._ways("cpu"))


@pytest.mark.skipif(has_gpu(), reason="it would be used")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    answer = junctor_cli("warmup", "--device", "gpu")
    assert answer.exit_code == 5


def test_compilation_is_told_and_left_out_of_rates(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compilation = Compilation()
    monkeypatch.setattr(display, "compilation", compilation)
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with display.progress_display() as progress:
        progress.stage("propagating", 1_000)
        # Rates begin with the end of the first part.
        progress.advance(100)
        compilation.begin()
        now = 130.0
        compilation.end()
        now = 140.0
        progress.advance(500)
    told = capsys.readouterr().err
    assert told.count("compiling for this machine, once") == 1
    assert "50 rows/s" in told
