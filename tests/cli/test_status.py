"""`junctor run --incremental` and `junctor status`: what they show, and their codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from helpers.hmm_models import random_model
from junctor.hmm import write_model
from junctor.runs.run import read_manifest
from junctor.runs.workload import Job
from pyarrow import parquet, table
from typer.testing import Result

CELLS = "case_id,smoke,xray\n{0}1,yes,no\n{0}2,,\n"
OPTIONS = ("-o", "out", "--no-prefect", "--quiet", "--workers", "0", "--device", "cpu")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: str, name: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(CELLS.format(name))


def run(*words: str, evidence: str = "in") -> Result:
    return junctor_cli("run", str(ASIA), evidence, *OPTIONS, *words)


def test_a_nightly_run_says_what_is_new() -> None:
    for day in ("20", "21", "22"):
        write(f"in/date=2026-11-{day}/a.csv", day)
    first = run("--incremental")
    assert first.exit_code == 0
    assert "6 rows of 3 inputs in" in first.stdout
    assert "  new: date=2026-11-20/a.csv, 2 rows\n" in first.stdout
    assert "nothing is new" in run("--incremental").stdout
    write("in/date=2026-11-23/a.csv", "23")
    write("in/date=2026-11-21/a.csv", "changed")
    write("in/date=2026-11-20/b.csv", "late")
    Path("in/date=2026-11-22/a.csv").unlink()
    second = run("--incremental").stdout.splitlines()
    assert second[1:5] == [
        "  removed: date=2026-11-22/a.csv, its answers stay",
        "  late: date=2026-11-20/b.csv, 2 rows",
        "  changed: date=2026-11-21/a.csv, 2 rows",
        "  new: date=2026-11-23/a.csv, 2 rows",
    ]
    assert second[5] == "10 rows of 5 inputs in all"
    again = json.loads(run("--incremental", "--backfill", "date=2026-11-20..2026-11-21", "--json").stdout)
    assert again["increments"][-1]["backfilled"] == [f"date=2026-11-{name}.csv" for name in ("20/a", "20/b", "21/a")]
    shown = junctor_cli("status", "out")
    assert shown.exit_code == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert "10 rows: 10 ok; 5 parts" in shown.stdout
    assert [line[2:9] for line in lines if line[:1] == ["2"]] == [["6", "2", "1", "1", "0", "0", "1"]]
    assert ["date=2026-11-22", "1", "1", "2", "2", "ok"] in lines
    assert "b.csv" not in shown.stdout
    assert "date=2026-11-20/b.csv" in junctor_cli("status", "out", "--all").stdout
    record = json.loads(junctor_cli("status", "out", "--json").stdout)
    assert (record["state"], record["rows"], len(record["inputs"]), len(record["increments"])) == ("finished", 10, 5, 3)
    assert sum(each["rows"] for each in record["partitions"]) == 10


def test_broken_inputs_have_a_code_of_their_own() -> None:
    write("in/a.csv", "a")
    Path("in/b.csv").write_text("smoking\nyes\n")
    failed = run("--incremental")
    assert failed.exit_code == 3
    assert "1 could not be read, 1 answered and committed" in failed.stderr
    assert "did you mean 'smoke'" in failed.stderr
    assert json.loads(junctor_cli("status", "out", "--json").stdout)["rows"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--backfill", "date=1"], "belongs to --incremental"),
        (["--drop-removed"], "belongs to --incremental"),
        (["--incremental", "--csv"], "does not grow"),
        (["--incremental", "--backfill", "date"], "expected COLUMN=VALUE"),
    ],
)
def test_options_that_do_not_go_together(words: list[str], message: str) -> None:
    refused = run(*words)
    assert refused.exit_code == 2
    assert message in " ".join(refused.stderr.replace("│", " ").split())


def test_status_of_ordinary_runs() -> None:
    write("in.csv", "a")
    assert run("--partition-rows", "1", evidence="in.csv").exit_code == 0
    shown = junctor_cli("status", "out").stdout
    assert "posteriors, double precision" in shown
    assert "2 rows: 2 ok; 2 parts" in shown
    assert "increments" not in shown
    # As after an interruption.
    job = Job(str(ASIA), "in.csv", "out")
    job.directory.manifest.unlink()
    job.directory.answers_part("posteriors", 1).unlink()
    shown = junctor_cli("status", "out").stdout
    assert "unfinished: 1 of 2 parts (2 rows in all)" in shown
    assert run("--partition-rows", "1", evidence="in.csv").exit_code == 0
    assert read_manifest(job.directory).reused_parts == 1


def test_status_of_sequences() -> None:
    write_model(random_model(3, 2, 1), "model.parquet")
    parquet.write_table(table({"words": [[0, 1], [1, 1, 0]]}), "words.parquet")
    assert junctor_cli("viterbi", "model.parquet", "words.parquet", *OPTIONS).exit_code == 0
    shown = junctor_cli("status", "out").stdout
    assert "viterbi, double precision" in shown
    assert "2 rows: 2 ok; 1 part," in shown


def test_no_status() -> None:
    nothing = junctor_cli("status", "nowhere")
    assert (nothing.exit_code, "no run here" in nothing.stderr) == (6, True)
    write("in.csv", "a")
    run(evidence="in.csv")
    manifest = json.loads(Path("out/manifest.json").read_text())
    odd = [
        {**manifest, name: value} for name in ("rows", "seconds", "statuses", "parts") for value in (None, "x", ["x"])
    ]
    for text in ("{}", "", "[]", '{"parts": [1], "statuses": 1}', *map(json.dumps, odd)):
        Path("out/manifest.json").write_text(text)
        broken = junctor_cli("status", "out")
        assert broken.exit_code == 6
        assert re.fullmatch(
            r"error: out/manifest.json: not a manifest( \(.+\))?: the same command again makes a new one\n",
            broken.stderr,
        )


@pytest.mark.parametrize("text", ["{}", '{"incremental": true}', '{"format_version": 2}'])
def test_run_json_of_another_kind(text: str) -> None:
    write("in.csv", "a")
    run(evidence="in.csv")
    Path("out/run.json").write_text(text)
    broken = junctor_cli("status", "out")
    assert broken.exit_code == 6
    assert "out/run.json: found format_version" in broken.stderr


@pytest.mark.parametrize("name", ["rows", "partitions"])
def test_damaged_amount_of_the_evidence(name: str) -> None:
    write("in.csv", "a")
    run(evidence="in.csv")
    Path("out/manifest.json").unlink()
    done = Path("out/evidence/done.json")
    amount = json.loads(done.read_text())
    for odd in ({**amount, name: "x"}, {name: 1}):
        done.write_text(json.dumps(odd))
        broken = junctor_cli("status", "out")
        assert (broken.exit_code, "out/evidence/done.json: not the amount" in broken.stderr) == (6, True)


def test_a_damaged_manifest_of_increments_is_to_be_restored() -> None:
    """Without it a run that starts afresh has no answers to inputs that are gone."""
    write("in/a.csv", "a")
    assert run("--incremental").exit_code == 0
    manifest = json.loads(Path("out/manifest.json").read_text())
    odd = [
        ("inputs", "rows"),
        ("inputs", "statuses"),
        ("inputs", "removed"),
        ("increments", "rows"),
        ("increments", "renamed"),
    ]
    damaged = [{**manifest, each: [{**manifest[each][0], name: None}]} for each, name in odd]
    for text in ("", *map(json.dumps, damaged)):
        Path("out/manifest.json").write_text(text)
        broken = junctor_cli("status", "out")
        assert broken.exit_code == 6
        assert re.fullmatch(
            r"error: out/manifest.json: not a manifest( \(.+\))?: restore it from a copy\n", broken.stderr
        )
