"""`junctor calibrate` and `junctor ask`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from emulation.stored import EmulatedStored
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from junctor import posteriors
from junctor.cliques import on_gpu
from junctor.cliques.parts import PARTS
from junctor_kernels.gpu import stored_tasks


def test_kept_cliques_answer_later(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    made = junctor_cli(
        "calibrate", ASIA, "--keep-cliques", kept, "--given", "dysp=yes", "--given", "smoke=no", "--json"
    )
    assert made.exit_code == 0, made.output
    expected = posteriors(ASIA, [{"dysp": "yes", "smoke": "no"}])
    facts = json.loads(made.stdout)
    assert facts["log_evidence"] == pytest.approx(expected["log_evidence"][0].as_py(), abs=1e-12)
    asked = json.loads(junctor_cli("ask", kept, "lung", "--json").stdout)
    found = [each["probability"] for each in asked["posterior"]]
    assert found == pytest.approx(expected["lung"][0].as_py(), abs=1e-12)
    table = junctor_cli("ask", kept, "either", "lung").stdout.splitlines()
    assert table[0] == "either,lung,probability"
    assert [line.rsplit(",", 1)[0] for line in table[1:]] == ["yes,yes", "yes,no", "no,yes", "no,no"]
    assert sum(float(line.rsplit(",", 1)[1]) for line in table[1:]) == pytest.approx(1)


def parts_of(stderr: str) -> tuple[str, dict[str, list[str]]]:
    """Where the tables were, and the cells of the table of parts by their names."""
    first, *lines = stderr.splitlines()
    return first, {cells[0]: cells[1:] for cells in map(str.split, lines) if cells[0] in PARTS}


def test_tables_need_no_file_to_be_calibrated() -> None:
    made = junctor_cli("calibrate", ASIA, "--given", "smoke=yes", "--in-flight", "2")
    assert made.exit_code == 0, made.output
    assert made.stdout == "6 cliques, 40 entries (double), log P(e) = -0.693147181\n"
    place, parts = parts_of(made.stderr)
    assert place == "tables in memory:"
    assert list(parts) == list(PARTS)
    assert [cells[1] for cells in parts.values()] == ["ms"] * 4
    assert sum(float(cells[2].rstrip("%")) for cells in parts.values()) == pytest.approx(100, abs=0.3)
    assert "note: --pipeline and --in-flight are for tables that exceed the GPU (--device-memory)\n" in made.stderr
    facts = json.loads(junctor_cli("calibrate", ASIA, "--json").stdout)
    assert facts["place"] == "in memory"
    assert list(facts["milliseconds"]) == list(PARTS)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to compile the kernels for the CPU")
@pytest.mark.parametrize("precision", ["double", "log"])
def test_all_three_take_a_gpu(tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {}
    # What does not fit goes through it; by a question the tables of files always do.
    for device, memory in (("cpu", "1GiB"), ("gpu", "1GiB"), ("gpu", "10KiB")):
        if device == "gpu":
            monkeypatch.setattr(on_gpu, "check_device", lambda _: None)
            monkeypatch.setattr("junctor_kernels.gpu.stored.CudaCliqueDevice", EmulatedStored)
            for name, few in (("THREADS", 64), ("TILE", 256), ("BLOCKS", 8)):
                monkeypatch.setattr(stored_tasks, name, few)
        options = "--device", device, "--device-memory", memory, "--pipeline", "one", "--in-flight", "2"
        given, kept = ("--given", "dysp=yes"), str(tmp_path / f"{device} {memory}")
        told = [
            junctor_cli("calibrate", ASIA, *given, "--keep-cliques", kept, *options, "--precision", precision),
            junctor_cli("ask", kept, "lung", "either", *options),
            junctor_cli("joint", ASIA, "lung,either", *given, "--architecture", "stored", *options),
        ]
        assert [each.exit_code for each in told] == [0, 0, 0], told
        answers = [told[0].stdout.partition(": ")[2], told[1].stdout, told[2].stdout]
        assert answers == expected.setdefault("cpu", answers)
        through = r"tables through the GPU, pipeline one, 2 chunks of [\d.]+ (B|KiB) in flight:"
        where = "tables in memory:" if device == "cpu" else "tables on the GPU:" if memory == "1GiB" else through
        places = where, "tables in files:" if device == "cpu" else through, where
        stderrs = told[0].stderr, told[1].stderr, told[2].stderr.removeprefix("from stored clique tables\n")
        for place, stderr in zip(places, stderrs, strict=True):
            said, parts = parts_of(stderr)
            assert re.fullmatch(place, said), (device, memory, stderr)
            assert (float(parts["transfers"][0]) > 0) is (device == "gpu")
            assert float(parts["reduction"][0]) > 0
    refused = junctor_cli("calibrate", ASIA, "--device", "gpu", "--device-memory", "1KiB")
    assert refused.exit_code == 5
    assert len(refused.stderr.splitlines()) == 1
    needed = re.match(r"error: streaming stored .* needs (.*), allowed are 1.0 KiB .*--device-memory", refused.stderr)
    assert needed
    # So much does.
    enough = ["--device-memory", needed[1].partition("(")[2].partition(" ")[0].replace(",", "") + "B"]
    assert junctor_cli("calibrate", ASIA, "--device", "gpu", *enough).exit_code == 0


def test_mistakes_are_told(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    assert (
        "expected VARIABLE=STATE" in junctor_cli("calibrate", ASIA, "--keep-cliques", kept, "--given", "smoke").stderr
    )
    twice = junctor_cli("calibrate", ASIA, "--keep-cliques", kept, "--given", "smoke=no", "--given", "smoke=no")
    assert twice.exit_code == 2
    for command in (["calibrate", ASIA], ["joint", ASIA, "lung", "--architecture", "stored"]):
        small = junctor_cli(*command, "--memory", "100B")
        assert (small.exit_code, small.stderr.count("\n")) == (5, 1), small.stderr
        assert re.match(r"error: storing 6 cliques needs .*, allowed are 100 B .*; allow more memory", small.stderr)
    missing = junctor_cli("ask", kept, "lung")
    assert missing.exit_code == 3
    assert "no calibrated cliques" in missing.stderr
    impossible = junctor_cli("calibrate", ASIA, "--keep-cliques", kept, "--given", "either=no", "--given", "lung=yes")
    assert "log P(e) = -inf" in impossible.stdout
    asked = junctor_cli("ask", kept, "smoke")
    assert asked.exit_code == 3
    assert "impossible: lung = yes with either = no" in asked.stderr
