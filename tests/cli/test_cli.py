from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import junctor
import junctor.cli as cli
import pyarrow as pa
import pytest
from helpers.command_line import junctor_cli
from helpers.engine_cases import complete
from helpers.files import ASIA, ROOT
from helpers.signals import COMMAND, hear_ctrl_c
from junctor.cli import prefect_server
from junctor.cli.display import duration
from junctor.engine import forecast
from junctor.evidence.delimited import DelimitedTable
from junctor.generate import evidence_batches, grid, random_network
from junctor.model.errors import InputError
from pyarrow import parquet
from typer.main import get_command
from typer.testing import Result


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with some evidence, and no settings of the user."""
    monkeypatch.chdir(tmp_path)
    for name in ("PREFECT_API_URL", "JUNCTOR_WORKERS", "JUNCTOR_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    Path("evidence.csv").write_text("smoke,xray\nyes,no\n,yes\nno,\n")
    Path("bad.csv").write_text("smoke,xray\nyes,no\nperhaps,yes\n")
    return tmp_path


def run(*args: str) -> Result:
    return junctor_cli("run", ASIA, "evidence.csv", "--output", "out", "--no-prefect", *args)


def fails(result: Result, code: int, *words: str) -> None:
    """Check that it ended with `code` and one line that says `words`, and without a traceback."""
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.stderr, result.stderr
    assert len([line for line in result.stderr.splitlines() if line.startswith("error: ")]) == 1


@pytest.mark.parametrize("strategy", ["joint-table", "row-trees", "entries", "cpu-blocks", "chunks", "circuit"])
def test_rows_go_the_way_that_is_asked_for(strategy: str) -> None:
    assert run("--strategy", strategy).exit_code == 0
    (part,) = json.loads(Path("out/manifest.json").read_text())["parts"]
    assert part["statuses"]["ok"] == 3
    found = parquet.read_table("out/posteriors")
    expected = junctor.posteriors(ASIA, {"smoke": ["yes", None, "no"], "xray": ["no", "yes", None]})
    for one, other in zip(found["log_evidence"].to_pylist(), expected["log_evidence"].to_pylist(), strict=True):
        assert one == pytest.approx(other, rel=1e-12)
    inspected = junctor_cli("inspect", ASIA, "evidence.csv", "--strategy", strategy)
    assert f"{strategy}: asked for" in inspected.stdout


def test_a_way_that_cannot_be_is_refused() -> None:
    fails(run("--strategy", "gpu-blocks", "--device", "cpu"), 3, "gpu-blocks: there is no GPU that may be used")
    assert run("--strategy", "chunks", "--method", "auto").exit_code == 2
    assert run("--strategy", "samples").exit_code == 2


def test_run_says_what_it_did() -> None:
    result = run()
    assert result.exit_code == 0, result.output
    assert "3 rows" in result.stdout
    assert "3 ok" in result.stdout
    assert "propagating" in result.stderr
    assert parquet.read_table("out/posteriors").num_rows == 3
    assert "1 part, 1 of them there already" in run().stdout


def test_files_of_answers_as_asked() -> None:
    Path("evidence.csv").write_text("smoke,note\nyes,01\nno,\n")
    asked = ["--keep", "note", "--keep", "smoke", "--targets", "lung", "--output-format", "arrow"]
    result = run(*asked, "--layout", "columns", "--compression", "none", "--part-size", "1KiB")
    assert result.exit_code == 0, result.output
    table = pa.ipc.open_file("out/posteriors/part-00000.arrow").read_all()
    names = ["case_id", "note", "smoke", "lung=yes", "lung=no", "log_evidence", "status", "reason"]
    assert table.column_names == names
    assert table["note"].to_pylist() == ["01", ""]
    assert junctor_cli("validate", ASIA, "evidence.csv", "--keep", "note").exit_code == 0
    assert junctor_cli("inspect", ASIA, "evidence.csv", "--keep", "note").exit_code == 0
    fails(run("--overwrite", "--keep", "nota"), 3, "there is no column 'nota'", "did you mean 'note'?")
    assert run("--part-size", "1KiB", "--partition-rows", "3").exit_code == 2
    assert run("--part-size", "much").exit_code == 2
    assert run("--output-format", "csv").exit_code == 2


def test_run_as_json() -> None:
    result = run("--json", "--quiet", "--targets", "lung, either", "--precision", "single")
    record = json.loads(result.stdout)
    assert result.stderr == ""
    assert record["statuses"] == {"ok": 3, "impossible": 0, "invalid": 0}
    assert record["spec"]["targets"] == ["lung", "either"]
    assert record["directory"] == str(Path("out").absolute())


def test_run_explanations_as_csv() -> None:
    assert run("--query", "mpe", "--csv", "--targets", "smoke").exit_code == 0
    lines = Path("out/mpe.csv").read_text().splitlines()
    assert lines[0] == '"case_id","smoke","log_probability","status","reason"'
    assert lines[1].startswith('0,"yes",')


def test_invalid_rows_are_told_and_strict_refuses_them() -> None:
    result = junctor_cli("run", ASIA, "bad.csv", "-o", "out", "--no-prefect")
    assert result.exit_code == 0
    assert "1 ok, 1 invalid" in result.stdout
    strict = junctor_cli("run", ASIA, "bad.csv", "-o", "strict", "--no-prefect", "--strict")
    fails(strict, 3, "bad.csv:3", "perhaps")


def test_another_run_in_the_directory() -> None:
    assert run().exit_code == 0
    fails(run("--query", "mpe"), 6, "query was 'posteriors', now 'mpe'", "--overwrite")
    assert run("--query", "mpe", "--overwrite").exit_code == 0
    assert not Path("out/posteriors").exists()


def test_a_command_that_failed_early_can_be_corrected() -> None:
    Path("extra.csv").write_text("smoke,foo\nyes,no\n")
    command = ["run", ASIA, "extra.csv", "-o", "out", "--no-prefect"]
    fails(junctor_cli(*command), 3, "unknown column 'foo'")
    fails(junctor_cli(*command, "--ignore-extra", "--memory", "1kB"), 5, "allowed are")
    assert junctor_cli(*command, "--ignore-extra", "--targets", "lung").exit_code == 0
    fails(junctor_cli(*command, "--ignore-extra"), 6, "targets was lung, now not set")


def test_formats_can_be_named() -> None:
    Path("asia.uai").write_text(Path(ASIA).read_text())
    Path("evidence.csv").rename("evidence.rows")
    files, formats = ["asia.uai", "evidence.rows"], ["--format", "bif", "--evidence-format", "csv"]
    for command in (["run", "-o", "out", "--no-prefect"], ["validate"], ["inspect"]):
        fails(junctor_cli(command[0], *files, *command[1:], *formats[:3], "cvs"), 3, "'cvs'", "did you mean 'csv'")
        fails(junctor_cli(command[0], *files, *command[1:]), 3, "asia.uai:1:")
        fails(junctor_cli(command[0], *files, *command[1:], "--format", "bif"), 3, "evidence.rows", "--evidence-format")
        result = junctor_cli(command[0], *files, *command[1:], *formats)
        assert result.exit_code == 0, result.output
    assert junctor_cli("convert", "asia.uai", "--format", "bif", "other.parquet").exit_code == 0


def test_a_separator_can_be_named() -> None:
    Path("t.csv").write_text("smoke:xray\nyes:NA\nNA:yes\n")
    fails(junctor_cli("validate", ASIA, "t.csv"), 3, "t.csv: unknown column 'smoke:xray'")
    fails(junctor_cli("validate", ASIA, "t.csv", "--separator", "::"), 3, "found the separator '::', expected a char")
    for command, *options in (["run", "-o", "out", "--no-prefect"], ["validate"], ["inspect"]):
        result = junctor_cli(command, ASIA, "t.csv", *options, "--separator", ":")
        assert result.exit_code == 0, result.output
    lung = [row["lung"][0] for row in parquet.read_table("out/posteriors").to_pylist()]
    assert lung == pytest.approx([0.1, 0.0539 / 0.1102900], rel=1e-6)
    assert json.loads(Path("out/manifest.json").read_text())["spec"]["separator"] == ":"
    fails(junctor_cli("run", ASIA, "t.csv", "-o", "out", "--no-prefect", "--separator", ";"), 6, "separator was")
    proposed = junctor_cli("map", ASIA, "t.csv", "--separator", ":")
    assert "xray    xray      exact" in proposed.stderr, proposed.stderr


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["run", "nowhere.bif", "evidence.csv", "-o", "out"], 3, ["nowhere.bif"]),
        (["run", ASIA, "nowhere.csv", "-o", "out"], 3, ["nowhere.csv"]),
        (["run", ASIA, "evidence.csv", "-o", "evidence.csv"], 6, ["is a file: name a directory"]),
        (["run", ASIA, "evidence.csv", "-o", "/proc/out"], 6, ["/proc/out"]),
        (["run", ASIA, "evidence.csv", "-o", "out", "--targets", "lungs"], 3, ["did you mean 'lung'"]),
        (["run", ASIA, "evidence.csv", "-o", "out", "--memory", "1kB"], 5, ["allowed are"]),
        (["run", ASIA, "evidence.csv", "-o", "out", "--scheduler", "tcp://10.0.0.1:1"], 6, ["not encrypted"]),
        (["run", ASIA, "evidence.csv", "-o", "out", "--case-id", "smokes"], 3, ["smokes"]),
        (["counts", ASIA, ".", "-o", "new.csv"], 3, ["--output new.csv", "name another file"]),
        (["map", ASIA, ".", "-o", "map.toml"], 3, ["--output map.toml", "name another file"]),
        (["validate", "evidence.csv"], 3, ["evidence.csv"]),
        (["convert", ASIA, "asia.xyz"], 3, ["asia.xyz"]),
        (["inspect", ASIA, "nowhere.csv"], 3, ["nowhere.csv"]),
    ],
)
def test_a_users_error_is_one_line(args: list[str], code: int, words: list[str]) -> None:
    fails(junctor_cli(*args, *(["--no-prefect"] if args[0] == "run" else [])), code, *words)


@pytest.mark.parametrize(
    "args",
    [
        ["run", ASIA, "evidence.csv"],
        ["run", ASIA, "evidence.csv", "-o", "out", "--precision", "half"],
        ["run", ASIA, "evidence.csv", "-o", "out", "--memory", "lots"],
        ["run", ASIA, "evidence.csv", "-o", "out", "--partition-rows", "0"],
        ["run", ASIA, "evidence.csv", "-o", ""],
        ["viterbi", "model.json", "words.parquet", "-o", ""],
        ["demo", "-o", ""],
        ["fly"],
    ],
)
def test_usage_errors_are_2(args: list[str]) -> None:
    result = junctor_cli(*args)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "args",
    [
        ["run", ASIA, "evidence.csv", "-o", ""],
        ["run", ASIA, "evidence.csv", "-o", "out", "--spill", ""],
        ["inspect", ASIA, "--spill", ""],
        ["calibrate", ASIA, "--keep-cliques", ""],
        ["ask", "", "lung"],
        ["status", ""],
        ["verify", ""],
        ["finalise", ""],
        ["report", ""],
        ["report", "out", ""],
    ],
)
def test_a_directory_without_a_name_is_not_the_current_one(args: list[str], folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    result = junctor_cli(*args)
    assert result.exit_code == 2, result.output
    assert "it is empty, expected the name of a directory" in " ".join(result.stderr.replace("│", " ").split())
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize(
    "args",
    [
        ["run", ASIA, "", "-o", "out"],
        ["run", "", "evidence.csv", "-o", "out"],
        ["validate", ASIA, ""],
        ["validate", ""],
        ["inspect", ""],
        ["counts", ASIA, "", "-o", "counts.csv"],
        ["learn", ASIA, "", "-o", "fitted.bif"],
        ["learn", "", "evidence.csv", "-o", "fitted.bif"],
        ["learn-chain", "model.json", "", "-o", "fitted.json"],
        ["viterbi", "model.json", "", "-o", "out"],
        ["viterbi", "", "words.parquet", "-o", "out"],
    ],
)
def test_a_file_without_a_name_is_not_the_current_folder(args: list[str], folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    result = junctor_cli(*args)
    assert result.exit_code in (2, 3), result.output
    assert "empty" in result.stderr
    assert "expected the name of a file or folder" in " ".join(result.stderr.replace("│", " ").split())
    assert sorted(path.name for path in folder.iterdir()) == before


def test_python_takes_no_empty_path() -> None:
    for call in (lambda: junctor.read_network(""), lambda: junctor.learn(ASIA, "")):
        with pytest.raises(InputError, match="found an empty path"):
            call()


def test_settings_are_used_and_their_slips_refused() -> None:
    Path("junctor.toml").write_text('memory = "1kB"')
    fails(run(), 5, "allowed are")
    assert run("--memory", "1GiB").exit_code == 0
    Path("junctor.toml").write_text("wokers = 1")
    fails(run(), 3, "junctor.toml", "did you mean 'workers'")


def test_convert() -> None:
    result = junctor_cli("convert", ASIA, "asia.uai")
    assert result.exit_code == 0
    assert "asia.uai: 8 variables" in result.stdout
    assert "warning: UAI files have no names" in result.stderr
    assert junctor_cli("convert", ASIA, "asia.parquet").exit_code == 0
    assert junctor.read_network("asia.parquet").digest == junctor.read_network(ASIA).digest
    # As of all that is written, not as of a network that cannot be read.
    assert junctor_cli("convert", ASIA, "no/asia.uai").exit_code == 6


def test_one_of_a_thing_is_told_in_the_singular() -> None:
    Path("one.uai").write_text("BAYES\n1\n1\n1\n1 0\n1\n1\n")
    Path("one.csv").write_text("0\n0\n")
    checked = junctor_cli("validate", "one.uai", "one.csv").stdout
    assert "1 variable, 1 state, 1 table with 1 entry\n" in checked
    assert "one.csv: 1 row, 0 invalid" in checked
    shown = junctor_cli("inspect", "one.uai").stdout
    assert "  variables   1, 1 state\n  tables      1, 1 entry, 0 zero\n" in shown
    assert "one.bif: 1 variable, 1 table\n" in junctor_cli("convert", "one.uai", "one.bif").stdout


def test_validate() -> None:
    result = junctor_cli("validate", ASIA, "evidence.csv")
    assert result.exit_code == 0
    assert "3 rows, 0 invalid" in result.stdout
    bad = junctor_cli("validate", ASIA, "bad.csv")
    assert bad.exit_code == 3
    assert "row 2: column 'smoke': unknown state 'perhaps'" in bad.stdout
    record = json.loads(junctor_cli("validate", ASIA, "bad.csv", "--json").stdout)
    assert record["network"]["variables"] == 8
    assert record["evidence"]["invalid_rows"] == 1


def inspected(*args: str) -> dict[str, Any]:
    result = junctor_cli("inspect", *args, "--json")
    assert result.exit_code == 0, result.output
    record: dict[str, Any] = json.loads(result.stdout)
    return record


def test_inspect() -> None:
    record = inspected(ASIA, "evidence.csv")
    assert record["network"]["variables"] == len(record["variables"]) == 8
    assert record["variables"][3]["parents"] == ["smoke"]
    # The published junction tree: six cliques, the largest with three variables.
    assert (record["tree"]["cliques"], record["tree"]["treewidth"]) == (6, 2)
    assert record["evidence"]["rows"] == 3
    assert record["evidence"]["fits"]
    assert record["evidence"]["needed_bytes"] <= record["evidence"]["planned_bytes"]
    assert record["evidence"]["resident_bytes"] > 64 << 20
    text = junctor_cli("inspect", ASIA, "evidence.csv", "--memory", "1kB").stdout
    assert "too much, it will be refused" in text
    assert "evidence.csv: 3 rows, " in text
    assert inspected(ASIA, "--query", "mpe")["no_evidence"]["patterns"] == 1


def test_inspect_forecasts_all_of_a_large_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("junctor.cli.inspect.SAMPLE_ROWS", 100)
    monkeypatch.setattr(DelimitedTable, "_bytes_at_once", lambda self: 500)
    Path("large.csv").write_text("smoke,xray\n" + "yes,\nno,yes\n" * 2_000)
    work = inspected(ASIA, "large.csv", "--device", "cpu")["evidence"]
    assert work["rows"] == pytest.approx(4_000, rel=0.05)
    assert (work["sampled_rows"], work["rows_counted"]) == (100, False)
    seconds = work["seconds_of"]
    assert work["seconds"] == pytest.approx(sum(seconds.values()))
    # Of all rows, not of the sample.
    Path("small.csv").write_text("smoke,xray\n" + "yes,\nno,yes\n" * 40)
    few = inspected(ASIA, "small.csv", "--device", "cpu")["evidence"]
    assert few["rows"] == few["sampled_rows"] == 80
    assert seconds["reading"] == pytest.approx(few["seconds_of"]["reading"] * work["rows"] / 80)
    assert work["operations"] > 20 * few["operations"]
    assert work["process_bytes"] > work["planned_bytes"] > 0
    text = junctor_cli("inspect", ASIA, "large.csv").stdout
    assert "large.csv: about " in text
    assert " rows, by 100 of them, 0 invalid" in text
    assert "to read evidence" in text


def test_inspect_reads_the_files_of_increments_one_by_one() -> None:
    folder = Path("in/date=2026-11-22")
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("case_id,smoke\na,yes\nb,\n")
    (folder / "b.csv").write_text("xray\nno\n")
    result = junctor_cli("inspect", ASIA, "in")
    assert (result.exit_code, "no column 'case_id'" in result.stderr) == (3, True)
    work = inspected(ASIA, "in", "--incremental", "--keep", "date")["evidence"]
    assert (work["rows"], work["invalid_rows"]) == (3, 0)
    assert inspected(ASIA, "in/date=2026-11-22/b.csv", "--incremental")["evidence"]["rows"] == 1


def test_inspect_counts_what_plans_do_not_have_to_do() -> None:
    savings = {
        each["name"]: each
        for each in inspected(ASIA, "evidence.csv", "--targets", "smoke", "--strategy", "entries")["evidence"][
            "savings"
        ]
    }
    assert next(iter(savings)) == "evidence cut out before triangulation"
    for name in ("barren variables dropped", "messages without evidence done once", "zeros of the tables skipped"):
        assert savings[name]["before"] >= savings[name]["after"] > 0
    assert inspected(ASIA)["no_evidence"]["savings"] == []
    assert (
        "operands contracted in pairs" in junctor_cli("inspect", ASIA, "evidence.csv", "--strategy", "entries").stdout
    )
    names = {each["name"] for each in inspected(ASIA, "evidence.csv", "--query", "mpe")["evidence"]["savings"]}
    assert "zeros of the tables skipped" in names
    assert "barren variables dropped" not in names


def test_inspect_tells_of_networks_that_are_too_large() -> None:
    junctor.write_network(grid(26, 26, states=4), "grid.uai")
    Path("some.csv").write_text("0,1\n0,1\n1,\n,\n")
    result = junctor_cli("inspect", "grid.uai", "some.csv")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("too much, it will be refused") == 2
    assert "far too long on one core" in result.stdout
    record = inspected("grid.uai", "--memory", "1GiB")
    assert not record["no_evidence"]["fits"]
    assert record["no_evidence"]["needed_bytes"] > 1 << 40
    assert record["allowed_bytes"] == 1 << 30


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_inspect_says_what_goes_in_chunks(device: str) -> None:
    junctor.write_network(grid(8, 8, states=3), "grid.uai")
    options = ("grid.uai", "--device-memory", "64KiB", "--device", device)
    (plan,) = inspected(*options)["no_evidence"]["plans"]
    chunks = plan["chunks"]
    assert chunks["device"] == device
    assert chunks["working_bytes"] <= 1 << 16
    assert chunks["tasks"] > chunks["passes"] > 1
    assert len(chunks["chunk_variables"]) > 0
    assert min(chunks[name] for name in ("loaded_bytes", "stored_bytes", "seconds_per_row")) > 0
    text = junctor_cli("inspect", *options).stdout
    assert f"in chunks: {chunks['passes']:,} passes, {chunks['tasks']:,} tasks a row" in text
    assert ("over the bus to the GPU" in text) == (device == "gpu")


def test_a_run_in_chunks(tmp_path: Path) -> None:
    junctor.write_network(grid(8, 8, states=3), "grid.uai")
    Path("few.csv").write_text("0,63\n0,1\n")
    options = ("grid.uai", "few.csv", "--no-prefect", "--device", "cpu", "--targets", "1")
    for output, more in (("whole", ()), ("chunks", ("--device-memory", "64KiB", "--spill", str(tmp_path)))):
        result = junctor_cli("run", *options, "--output", output, *more)
        assert result.exit_code == 0, result.output
    whole, chunks = (parquet.read_table(f"{name}/posteriors")["1"].to_pylist() for name in ("whole", "chunks"))
    assert chunks[0] == pytest.approx(whole[0], abs=1e-12)
    fails(junctor_cli("run", *options, "--output", "none", "--device-memory", "1B"), 5, "in chunks", "--device-memory")


def test_forecasts_that_no_number_holds() -> None:
    assert duration(12.3) == "about 12 s"
    assert duration(1e12) == duration(None) == "far too long"


@pytest.mark.parametrize("name", ["tree.png", "tree.svg"])
def test_inspect_draws_the_tree(name: str) -> None:
    pytest.importorskip("matplotlib")
    assert junctor_cli("inspect", ASIA, "--plot", name).exit_code == 0
    assert Path(name).stat().st_size > 1000
    fails(junctor_cli("inspect", ASIA, "--plot", "tree.xyz"), 3, "tree.xyz")


def test_demo_without_prefect() -> None:
    result = junctor_cli("demo", "--rows", "300", "--no-prefect")
    assert result.exit_code == 0, result.output
    assert "BearingWear = failed" in result.stdout
    assert "300 rows" in result.stdout
    assert "warning" not in result.output
    assert parquet.read_table("demo-run/answers/posteriors").num_rows == 300


# By Click, by Rich, and line by line.
PRINTING = [["--version"], ["run", "--help"], ["inspect", ASIA], ["joint", ASIA, "lung", "smoke"]]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_output_that_cannot_be_written_is_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    told = done.stderr.removeprefix("by messages\n")
    assert (done.returncode, told) == (6, "error: standard output: No space left on device\n")


@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_output_that_nobody_reads_ends_quietly(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([*COMMAND, *arguments], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr.removeprefix("by messages\n")) == (141, "")


def test_without_an_output_nothing_is_lost() -> None:
    done = subprocess.run(
        [*COMMAND, "joint", ASIA, "lung", "smoke"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=lambda: os.close(1),
    )
    assert (done.returncode, done.stderr) == (0, "by messages\n")


def test_errors_keep_their_codes_where_nobody_reads() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert subprocess.run([*COMMAND, "inspect", "no.bif"], stdout=writer, check=False).returncode == 3
    finally:
        os.close(writer)


def test_version_and_help() -> None:
    for flag in ("--version", "-V"):
        assert junctor_cli(flag).stdout == f"junctor {junctor.__version__}\n"
    text = junctor_cli("--help").stdout
    panels = [line.split()[1] for line in text.splitlines() if line.startswith("╭")]
    assert panels == ["Options", "Answer", "Look", "Learn", "Sequences", "Cliques", "Schedule", "Machine"]
    assert all(f"│ {command} " in text for command in cli._COMMANDS)


@pytest.mark.parametrize("name", cli._COMMANDS)
def test_help_ends_with_an_example_that_is_understood_and_a_page(name: str) -> None:
    row, text = cli._COMMANDS[name], junctor_cli(name, "--help").stdout
    assert "<bool>" not in text
    example = f"Example: junctor {name} {row.example}".strip()
    assert " ".join(text.split()).endswith(f"{example} More: docs/{row.page}")
    assert (ROOT / "docs" / row.page).is_file()
    command: Any = get_command(cli.app_for(name)).commands[name]  # type: ignore[attr-defined]
    words = shlex.split(row.example)
    if name == "deploy":
        command, words = command.commands[words[0]], words[1:]
    assert command.make_context(name, words).args == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("junctor le", {"learn", "learn-chain"}),
        ("junctor learn", {"learn", "learn-chain"}),
        ("junctor learn-chain --case", {"--case-id"}),
        ("junctor run --precision s", {"single"}),
        ("junctor deploy vi", {"viterbi"}),
    ],
)
def test_a_shell_completes_commands_options_and_choices(words: str, found: set[str]) -> None:
    asked = {"_JUNCTOR_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    program = [COMMAND[0], "-c", "import sys; sys.argv = ['junctor']; from junctor.cli import main; main()"]
    done = subprocess.run(program, env={**os.environ, **asked}, check=False, capture_output=True, text=True)
    assert (set(done.stdout.split()), done.stderr) == (found, "")


def test_a_table_without_rows_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text("smoke,xray\n")
    (tmp_path / "one.csv").write_text("smoke,xray\nyes,no\n")
    for table, warnings in (("none.csv", 1), ("one.csv", 0)):
        for words in (["run", "-o", str(tmp_path / f"{table}-answers"), "--no-prefect"], ["validate"]):
            result = junctor_cli(words[0], ASIA, str(tmp_path / table), *words[1:])
            assert result.exit_code == 0
            assert result.stderr.count("warning: ") == warnings
            assert result.stderr.count(": found no row beneath the names of the columns") == warnings


def test_the_options_of_a_run_are_in_panels() -> None:
    text = junctor_cli("run", "--help").stdout
    panels = ("Question", "Evidence", "Network", "Answers", "Sampling", "Checks and reports", "Resources")
    assert all(f"─ {panel} ─" in text for panel in panels)


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from junctor.cli import app_for\n"
        "try: app_for()(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'pyarrow', 'dask', 'distributed', 'prefect', 'pydantic', 'lark', 'matplotlib', 'psutil'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stderr.strip() == "[]"


def test_a_configured_prefect_server_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not prefect_server.is_configured()
    profiles = tmp_path / "prefect" / "profiles.toml"
    profiles.parent.mkdir()
    profiles.write_text(
        'active = "local"\n[profiles.local]\nPREFECT_API_URL = "http://127.0.0.1:4200/api"\n[profiles.none]\n'
    )
    assert prefect_server.is_configured()
    monkeypatch.setenv("PREFECT_PROFILE", "none")
    assert not prefect_server.is_configured()
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    assert prefect_server.is_configured()


def test_inspect_shows_the_network_before_it_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    def planning(_: Any) -> None:
        raise InputError("no plan yet")

    monkeypatch.setattr(forecast, "tree_of", planning)
    assert "variables   8, 16 states" in junctor_cli("inspect", ASIA).stdout
    assert not junctor_cli("inspect", ASIA, "--json").stdout


def test_rows_that_take_too_long_are_refused() -> None:
    assert run("--time-limit", "none").exit_code == 0
    wrong = run("--time-limit", "soon")
    assert (wrong.exit_code, "found the time 'soon'" in wrong.stderr) == (2, True)
    junctor.write_network(complete(*[2] * 40), "wide.uai")
    Path("none.evid").write_text("0\n")
    limit = ("--time-limit", "1s", "--device", "cpu", "--targets", "0")
    refused = junctor_cli("run", "wide.uai", "none.evid", "-o", "wide", "--no-prefect", "--workers", "0", *limit)
    fails(refused, 5, "a row is forecast to take", "allowed are 1 s (--time-limit)", "fewer targets")
    record = json.loads(junctor_cli("inspect", "wide.uai", "--json", *limit).stdout)["no_evidence"]
    assert "allowed are 1 s (--time-limit)" in record["refused"]


def test_prefect_needs_space_for_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_HOME")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    result = junctor_cli("run", ASIA, "evidence.csv", "-o", "out", "--prefect")
    fails(result, 6, str(Path("out").absolute()), "1.0 MiB are free", "64.0 MiB", "--no-prefect")
    assert "PREFECT_HOME" not in os.environ


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_ctrl_c_says_how_to_go_on(tmp_path: Path, workers: str) -> None:
    network = random_network(25, seed=5)
    junctor.write_network(network, "net.bif")
    batches = evidence_batches(network, 65_000, observed=0.3, pattern="random")
    first = next(batches)
    parquet.write_table(pa.Table.from_batches([first]), "many.parquet")
    command = [*COMMAND, "run", "net.bif", "many.parquet", "-o", "out", "--no-prefect", "--workers", workers]
    with subprocess.Popen(
        [*command, "--partition-rows", "500"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_ctrl_c,
    ) as process:
        while not list(Path("out/posteriors").glob("part-*.parquet")) and process.poll() is None:
            time.sleep(0.05)
        # As a terminal does: to the whole group, workers included.
        os.killpg(process.pid, signal.SIGINT)
        assert process.stderr is not None
        told = process.stderr.read()
    assert process.returncode == 130
    assert told.endswith("error: interrupted: run the same command again to go on\n")
    assert "Traceback" not in told


def test_scores() -> None:
    result = run("--answers", "scores", "--targets", "l*,dysp", "--probability", "tub=yes", "--probability", "lung=no")
    assert result.exit_code == 0, result.output
    assert f"out{os.sep}scores" in result.stdout
    table = parquet.read_table("out/scores")
    scores = [f"{name}{what}" for name in ("lung", "dysp") for what in ("", "_probability", "_entropy")]
    assert table.column_names == ["case_id", *scores, "tub=yes", "lung=no", "log_evidence", "status", "reason"]
    inspected = junctor_cli("inspect", ASIA, "evidence.csv", "--answers", "scores", "--targets", "l*", "--top", "2")
    assert inspected.exit_code == 0, inspected.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--answers", "scores", "--query", "mpe"], ["scores are of posteriors", "--query posteriors"]),
        (["--top", "2"], ["--answers scores"]),
        (["--probability", "lung=yes"], ["--answers scores", "--probability"]),
        (["--answers", "scores", "--probability", "lungs=yes"], ["unknown variable 'lungs'", "'lung'"]),
        (["--answers", "scores", "--probability", "lung=yess"], ["unknown state 'yess'", "'yes'"]),
        (["--targets", "DIAG_*"], ["'DIAG_*' matches no variable"]),
    ],
)
def test_scores_that_are_refused(options: list[str], words: list[str]) -> None:
    fails(run(*options), 3, *words)
    assert not Path("out/run.json").exists()


def test_the_most_frequent_reasons_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """Over all parts, also of an earlier call: three of each status, with their rows and the first of these."""
    rows = ["maybe,,", "yes,true,yes", ",,", *["possibly,,"] * 4, "no,5,", *["no,,?!"] * 3, ",x,!", "no,yes,no"]
    Path("some.csv").write_text("smoke,tub,either\n" + "\n".join(rows) + "\n")
    job = "run", ASIA, "some.csv", "-o", "out", "--no-prefect", "--partition-rows", "2"
    result = junctor_cli(*job)
    assert result.exit_code == 0
    first = [
        "  invalid: column 'smoke': unknown state 'maybe'; states are yes, no (5 rows like that, first row 1)",
        "  invalid: column 'either': unknown state '?!'; states are yes, no (3 rows like that, first row 9)",
        "  invalid: column 'tub': unknown state '5'; states are yes, no (1 row, first row 8)",
        "  impossible: tub = yes with either = no (1 row, first row 13)",
    ]
    assert result.stdout.splitlines()[-4:] == first
    assert caplog.messages == [
        "10 of 13 rows are invalid: `junctor map NETWORK EVIDENCE` proposes a file for `--mapping` that says what "
        "these cells mean; `--missing TEXT` takes a text as no observation"
    ]
    # All is there already, and without half of the parts.
    assert junctor_cli(*job).stdout.splitlines()[-4:] == first
    for part in sorted(Path("out/posteriors").glob("*.parquet"))[::2]:
        part.unlink()
    assert junctor_cli(*job).stdout.splitlines()[-4:] == first


def test_the_next_move_is_told_where_a_mapping_is_there_and_where_names_are_right(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Path("bad.csv").write_text("smoke,tub\nmaybe,\nmaybe,\nyes,\n")
    Path("map.toml").write_text("[variables.smoke]\nstates = { ja = 'yes' }\n")
    junctor_cli("run", ASIA, "bad.csv", "-o", "mapped", "--no-prefect", "--mapping", "map.toml")
    assert "2 of 3 rows are invalid: say in the mapping file (`[variables.NAME]`" in caplog.messages[0]
    Path("soft.csv").write_text("smoke=yes,smoke=no\n-1,1\n1,-2\n1,1\n")
    junctor_cli("run", ASIA, "soft.csv", "-o", "soft", "--no-prefect")
    assert "2 of 3 rows are invalid: correct what the reasons name" in caplog.messages[1]
    # Half of the rows are no warning.
    Path("half.csv").write_text("smoke\nmaybe\nyes\n")
    result = junctor_cli("run", ASIA, "half.csv", "-o", "half", "--no-prefect")
    assert len(caplog.messages) == 2
    assert "  invalid: column 'smoke': unknown state 'maybe'; states are yes, no (1 row, first row 1)" in result.stdout


LABELLED = "smoke,xray,lung\nyes,no,yes\nno,yes,no\nyes,yes,\nno,no,a label of others\n"


def test_targets_that_rows_observe_are_told(caplog: pytest.LogCaptureFixture) -> None:
    Path("rows.csv").write_text(LABELLED)
    job = "run", ASIA, "rows.csv", "-o", "out", "--no-prefect", "--targets", "lung,dysp", "--partition-rows", "2"
    assert junctor_cli(*job, "--report").exit_code == 0
    told = "target lung is observed in 2 of 3 rows: there its answers repeat the input"
    assert caplog.messages == [told, "--hide-targets takes targets as unobserved"]
    manifest = json.loads(Path("out/manifest.json").read_text())
    assert manifest["observed_targets"] == {"lung": 2}
    assert re.fullmatch(r"device cpu: about .* s by \d+ cores.*; this process: .*", manifest["placement"])
    assert told in junctor_cli("status", "out").stdout.splitlines()
    assert json.loads(junctor_cli("status", "out", "--json").stdout)["observed_targets"] == {"lung": 2}
    assert told in Path("out/report.html").read_text()
    # A call that finds all done says it again; who asks for all variables knows that some are observed.
    junctor_cli(*job)
    assert caplog.messages.count(told) == 2
    junctor_cli("run", ASIA, "rows.csv", "-o", "all", "--no-prefect")
    scores = "--answers", "scores", "--probability", "lung=no"
    junctor_cli("run", ASIA, "rows.csv", "-o", "scores", "--no-prefect", *scores)
    assert caplog.messages.count(told) == 3
    assert "observed_targets" not in json.loads(Path("all/manifest.json").read_text())


def test_hidden_targets_are_no_evidence(caplog: pytest.LogCaptureFixture) -> None:
    Path("rows.csv").write_text(LABELLED)
    Path("plain.csv").write_text("".join(f"{line.rpartition(',')[0]}\n" for line in LABELLED.splitlines()))
    job = "run", ASIA, "rows.csv", "-o", "out", "--no-prefect", "--targets", "lung"
    hidden = junctor_cli(*job, "--hide-targets", "--keep", "lung")
    assert hidden.exit_code == 0, hidden.output
    junctor_cli("run", ASIA, "plain.csv", "-o", "plain", "--no-prefect", "--targets", "lung")
    found, plain = parquet.read_table("out/posteriors"), parquet.read_table("plain/posteriors")
    assert found.column_names == ["case_id", "lung_", *plain.column_names[1:]]
    assert found["lung_"].to_pylist() == ["yes", "no", "", "a label of others"]
    assert found.drop_columns("lung_").equals(plain.replace_schema_metadata(found.schema.metadata))
    assert not caplog.messages
    # The same output is for one of both; a mapping says it as well.
    fails(junctor_cli(*job, "--keep", "smoke"), 6)
    Path("map.toml").write_text("hide_targets = true\n")
    junctor_cli(*job[:3], "-o", "mapped", *job[5:], "--mapping", "map.toml")
    assert parquet.read_table("mapped/posteriors").equals(plain)
    assert json.loads(Path("mapped/run.json").read_text())["hide_targets"] is True
    fails(junctor_cli(*job[:6], "--overwrite", "--hide-targets"), 3, "none is named", "--targets")
    fails(junctor_cli(*job[:3], "-o", "m", "--no-prefect", "--mapping", "map.toml"), 3, "map.toml", "none is named")


def test_hidden_targets_of_other_commands() -> None:
    Path("rows.csv").write_text(LABELLED)
    assert junctor_cli("validate", ASIA, "rows.csv").exit_code == 3
    asked = "rows.csv", "--targets", "lung", "--hide-targets"
    assert junctor_cli("validate", ASIA, *asked).exit_code == 0
    fails(junctor_cli("validate", ASIA, "rows.csv", "--targets", "lungs"), 3, "unknown target 'lungs'")
    planned = json.loads(junctor_cli("inspect", ASIA, *asked, "--json").stdout)
    Path("plain.csv").write_text("".join(f"{line.rpartition(',')[0]}\n" for line in LABELLED.splitlines()))
    plain = json.loads(junctor_cli("inspect", ASIA, "plain.csv", "--targets", "lung", "--json").stdout)
    assert planned["evidence"]["patterns"] == plain["evidence"]["patterns"]
    result = junctor_cli("joint", ASIA, "smoke,lung", "--given", "smoke=yes")
    assert "warning: variable smoke is observed: joint posteriors with it repeat the input" in result.stderr
    # UAI evidence has numbers in place of names: lung is variable 3.
    Path("rows.evid").write_text("2\n2 1 0 3 1\n1 3 7\n")
    seen = junctor_cli("run", ASIA, "rows.evid", "-o", "evid", "--no-prefect", "--targets", "lung", "--hide-targets")
    assert seen.exit_code == 0, seen.output
    lungs = [row[0] for row in parquet.read_table("evid/posteriors")["lung"].to_pylist()]
    assert lungs == pytest.approx([0.1, 0.055])


def test_increments_hide_targets_as_the_first_one() -> None:
    Path("in").mkdir()
    Path("in/a.csv").write_text(LABELLED)
    job = "run", ASIA, "in", "-o", "out", "--no-prefect", "--incremental", "--targets", "lung"
    assert junctor_cli(*job, "--hide-targets").exit_code == 0
    Path("in/b.csv").write_text(LABELLED)
    fails(junctor_cli(*job), 6)
    assert junctor_cli(*job, "--hide-targets").exit_code == 0
    assert json.loads(Path("out/manifest.json").read_text())["statuses"]["ok"] == 8


def test_all_rows_invalid_is_no_success() -> None:
    Path("bad.csv").write_text("smoke\nmaybe\nperhaps\n")
    result = junctor_cli("run", ASIA, "bad.csv", "-o", "out", "--no-prefect", "--json")
    assert result.exit_code == 4
    assert json.loads(result.stdout)["statuses"]["invalid"] == 2
    assert result.stderr.strip().splitlines()[-1] == (
        "error: all 2 rows are invalid: column 'smoke': unknown state 'maybe'; states are yes, no "
        "(2 rows like that, first row 1)"
    )
    (reason,) = json.loads(result.stdout)["reasons"]
    assert (reason["status"], reason["rows"], reason["examples"][0]["row"]) == ("invalid", 2, 1)
    # The end of an array job tells the same.
    share = "run", ASIA, "bad.csv", "-o", "shares", "--part", "1/1"
    assert junctor_cli(*share).exit_code == 0
    result = junctor_cli("finalise", "shares")
    assert result.exit_code == 4
    assert "2 invalid" in result.stdout
    assert "all 2 rows are invalid: column 'smoke': unknown state 'maybe'" in result.stderr
    # No rows at all are no failure.
    Path("none.csv").write_text("smoke\n")
    assert junctor_cli("run", ASIA, "none.csv", "-o", "none", "--no-prefect").exit_code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--query", "map"], ["'map' is not one of 'posteriors'"]),
        (["--targets", ""], ["found '', in which a name is empty"]),
        (["--targets", "lung,"], ["found 'lung,', in which a name is empty"]),
    ],
)
def test_usage_errors_speak_of_the_option(options: list[str], words: list[str]) -> None:
    result = junctor_cli("run", ASIA, "evidence.csv", "-o", "out", *options)
    assert result.exit_code == 2
    text = " ".join(result.output.replace("│", " ").split())
    assert all(word in text for word in words), text
    assert "Value error" not in text
    assert not Path("out").exists()


def test_too_little_memory_names_what_was_allowed() -> None:
    result = run("--memory", "1kB")
    fails(result, 5, "allowed are 1,000 bytes;", "evidence and answers")
    # With a little more than the named figure there is room for records and factors: what is left are tables.
    named = re.search(r"needs more than .* \(([\d,]+) bytes\)", " ".join(result.output.split()))
    assert named is not None
    more = run("--memory", str(int(named[1].replace(",", "")) + 1))
    assert "records and factors" not in more.output


def test_a_refused_run_leaves_no_folder() -> None:
    Path("extra.csv").write_text("smoke,foo\nyes,no\n")
    for evidence, options in (("extra.csv", []), ("evidence.csv", ["--targets", "lungs"]), ("nowhere.csv", [])):
        command = ["run", ASIA, evidence, "-o", "out", "--no-prefect", *options]
        assert junctor_cli(*command).exit_code == 3
        assert not Path("out").exists()
        # One that was there before stays.
        Path("out").mkdir()
        Path("out", "mine.txt").write_text("mine")
        assert junctor_cli(*command).exit_code == 3
        assert Path("out", "mine.txt").read_text() == "mine"
        shutil.rmtree("out")


def test_files_of_others_in_the_directory_are_told(caplog: pytest.LogCaptureFixture) -> None:
    Path("out").mkdir()
    Path("out", "mine.txt").write_text("mine")
    assert run().exit_code == 0
    assert "has files of others (mine.txt): they stay" in caplog.text
    caplog.clear()
    assert run("--query", "mpe", "--overwrite").exit_code == 0
    assert "files of others" not in caplog.text
    assert Path("out", "mine.txt").exists()


def test_an_extra_column_names_the_option() -> None:
    Path("extra.csv").write_text("smoke,foo\nyes,no\n")
    fails(junctor_cli("run", ASIA, "extra.csv", "-o", "out", "--no-prefect"), 3, "--ignore-extra", "ignore_extra=True")


def test_cliques_that_are_not_there() -> None:
    fails(junctor_cli("ask", "nosuch", "lung"), 3, "nosuch/cliques.json", "no calibrated cliques")
    assert "Errno" not in junctor_cli("ask", "nosuch", "lung").stderr


def test_whatever_asked_for_it_is_called_at_the_end_and_threads_are_waited_for() -> None:
    script = (
        "import atexit, sys, threading, time\n"
        "atexit.register(print, 'called')\n"
        "threading.Thread(target=lambda: [time.sleep(0.2), print('through')]).start()\n"
        "from junctor.cli import main\n"
        "sys.argv = ['junctor', 'rnu']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (2, ["through", "called"])
