"""What `junctor inspect` says of choices."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from junctor import posteriors, write_network
from junctor.generate import grid, layered
from junctor.out_of_core import memory_splits


def choices(*args: str, of: str = "no_evidence") -> dict[str, str]:
    told = junctor_cli("inspect", *args, "--json")
    assert told.exit_code == 0, told.output
    found: dict[str, str] = json.loads(told.stdout)[of]["choices"]
    shown = junctor_cli("inspect", *args).stdout
    assert all(line in shown for line in found.values())
    return found


def test_small_work_goes_to_numpy() -> None:
    found = choices(ASIA, "--device", "cpu", "--query", "mpe")
    assert found["device"] == "CPU: asked for"
    assert found["patterns"] == "one"
    assert found["loops"].startswith("NumPy")
    assert found["tables"] == "of messages: posteriors need no others"
    assert "chunk variables" not in found


def test_loops_follow_the_rows(tmp_path: Path) -> None:
    path, rows = tmp_path / "layered.uai", tmp_path / "rows.csv"
    network = layered(layers=12, width=8, states=3, parents=2, seed=1)
    write_network(network, path)
    states = np.random.default_rng(1).integers(0, 2, (2000, 14)).astype(str)
    states[::3, 0] = ""
    lines = [",".join(map(str, range(82, 96))), *(",".join(row) for row in states)]
    rows.write_text("\n".join(lines) + "\n")
    found = choices(str(path), str(rows), "--device", "cpu", of="evidence")
    assert found["loops"].startswith("compiled, blocks of")
    assert found["patterns"].startswith("2 in ")


@pytest.mark.parametrize(("device", "memory"), [("cpu", "3MiB"), ("gpu", "64MiB")])
def test_chunks_are_told(tmp_path: Path, device: str, memory: str) -> None:
    path = tmp_path / "grid.uai"
    write_network(grid(12, 12, states=2, seed=1), path)
    if device == "gpu":
        # What is refused has no loops.
        found = choices(str(path), "--memory", memory, "--device", device, "--device-memory", "64KiB")
        assert (found["device"], "loops" in found) == ("GPU: asked for", False)
        return
    found = choices(str(path), "--memory", memory, "--disk", "1GiB", "--device", device)
    assert found["device"] == "CPU: asked for"
    peaks = r"at the peak \S+ MiB of memory, \S+ KiB in files; --memory binds"
    assert re.fullmatch(f"in chunks, NumPy: the plan exceeds the memory; {peaks}", found["loops"])
    assert found["chunk variables"] == "those whose tasks take least by the prices of the device"


def test_what_is_done_for_the_memory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Records of a grid as small as this take more than its tables.
    monkeypatch.setattr(memory_splits, "fixed_bytes", lambda plan: 0)
    path, rows, output = tmp_path / "grid.uai", tmp_path / "rows.csv", tmp_path / "out"
    write_network(grid(12, 12, states=2, seed=1), path)
    rows.write_text("0\n1\n")
    limits = ["--device", "cpu", "--memory", "610KB", "--disk", "1B"]
    inspected = junctor_cli("inspect", str(path), str(rows), *limits)
    # Of the plan without evidence, then of the row.
    *_, made = re.findall(r"for the memory    (\d+ messages made again, .* x the operations)\n", inspected.stdout)
    assert "      binds             --memory, of which more would help first\n" in inspected.stdout
    ran = junctor_cli("run", str(path), str(rows), "-o", str(output), *limits, "--explain", "--no-prefect", "-q")
    said = f"{made}; at the peak "
    reasons = [each["reason"] for each in json.loads((output / "manifest.json").read_text())["choices"]]
    assert said in ran.stdout
    assert any(said in reason and reason.endswith(" of memory, 0 B in files; --memory binds") for reason in reasons)
    assert junctor_cli("report", str(output)).exit_code == 0
    assert said in (output / "report.html").read_text()


@pytest.mark.parametrize("precision", ["log", "single"])
def test_kernels_of_a_gpu_that_need_not_be_here(precision: str) -> None:
    found = choices(ASIA, "--device", "gpu", "--precision", precision)
    assert found["device"] == "GPU: asked for"
    assert found["loops"].startswith("kernels for")
    assert "cases" in found["loops"]


def test_the_device_asked_for_without_rows(tmp_path: Path) -> None:
    rows = tmp_path / "none.csv"
    rows.write_text("asia,smoke\n")
    assert choices(ASIA, str(rows), "--device", "gpu", of="evidence")["device"] == "GPU: asked for"


def test_samples_are_told_as_other_strategies_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, rows = tmp_path / "layered.bif", tmp_path / "rows.csv"
    network = layered(layers=6, width=6, states=3, parents=2, seed=2)
    write_network(network, path)
    # Of the first row all is known but one variable.
    names = [variable.name for variable in network.variables]
    cells = [network.variables[v].states[0] for v in range(len(names) - 1)]
    rows.write_text(f"{','.join(names[:-1])}\n{','.join(cells)}\n{',' * len(cells[1:])}\n")
    auto = ["--method", "auto", "--samples", "200", "--memory", "300KiB", "--disk", "1KiB", "--device", "cpu"]
    shown = junctor_cli("inspect", str(path), str(rows), *auto)
    assert shown.exit_code == 0, shown.output
    assert "        1 rows by samples of each\n            by samples\n              not " in shown.stdout
    assert "not samples: exact answers are within their budget" in shown.stdout
    output = str(tmp_path / "out")
    ran = junctor_cli("run", str(path), str(rows), "-o", output, *auto, "--explain", "--no-prefect", "-q")
    assert "1 rows of the first part: samples: exact answers exceed their budget" in ran.stdout
    kept = json.loads((tmp_path / "out" / "manifest.json").read_text())["choices"]
    (chosen,) = (each for each in kept if each["strategy"] == "samples")
    assert chosen["rows"] == 1
    assert f"1 of 2 rows are sampled: {chosen['others'][0]['reason']}" in caplog.messages
    idle = junctor_cli("inspect", str(path), "--samples", "200")
    assert (idle.exit_code, "exact answers take no samples" in " ".join(idle.output.split())) == (2, True)


def test_mini_buckets_and_their_bound_are_told_before_a_run(tmp_path: Path) -> None:
    path = str(tmp_path / "grid.uai")
    write_network(grid(3, 3, states=2, seed=1), path)
    words = ("inspect", path, "--method", "sampling", "--table-entries", "60", "--device", "cpu")
    found = json.loads(junctor_cli(*words, "--json").stdout)["no_evidence"]["mini_buckets"]
    assert (found["variables"], found["split"] > 0, found["entries"] <= 60) == (9, True, True)
    exact = posteriors(path, [{}])["log_evidence"][0].as_py()
    assert exact < found["bound"] < exact + 2
    told = f"bound       {found['bound']:.6g} on the log of the sum: {found['split']} of 9 variables split into"
    assert told in junctor_cli(*words).stdout
    others = json.loads(junctor_cli("inspect", ASIA, "--method", "sampling", "--json").stdout)
    assert others["no_evidence"]["mini_buckets"] is None


def test_mini_buckets_load_no_compiled_code() -> None:
    code = (
        "import sys, junctor\n"
        "from junctor.generate import grid\n"
        "junctor.posteriors(grid(3, 3, states=2), [{}], method='sampling', samples=200)\n"
        "assert 'junctor.sampling.bounded' in sys.modules\n"
        "assert 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_exact_answers_load_no_samplers() -> None:
    code = (
        "import sys, junctor\n"
        f"junctor.posteriors({str(ASIA)!r}, {{'smoke': ['yes', None]}}, threads=1)\n"
        "assert not [name for name in sys.modules if 'sampling' in name or name.endswith('samples')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
