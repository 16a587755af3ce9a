from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from hypothesis import given
from hypothesis import strategies as st
from junctor.model.errors import InputError, RunError, ThresholdError
from junctor.runs.run import read_manifest, run
from junctor.runs.statistics import Cells, Logarithms, Spread, Statistics
from junctor.runs.thresholds import Threshold, parse_threshold, refuse_unknown, verdicts
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from pyarrow import parquet

HERE = Resources(workers=0)
SPACE = st.text(" \t", max_size=2)
COMPARISONS = st.sampled_from([">", ">=", "<", "<="])
NAMES = st.text(min_size=1, max_size=12).map(str.strip).filter(bool)


@given(COMPARISONS, st.integers(0, 10**9), st.tuples(*[SPACE] * 4), st.sampled_from(["ok", "impossible", "rows"]))
def test_counts(how: str, value: int, space: tuple[str, ...], subject: str) -> None:
    text = f"{space[0]}{subject}{space[1]}{how}{space[2]}{value}{space[3]}"
    assert parse_threshold(text) == Threshold(text.strip(), subject, None, how, value, False)


@given(COMPARISONS, st.floats(0, 100), st.sampled_from(["invalid", "missed"]))
def test_percentages_are_shares(how: str, value: float, subject: str) -> None:
    found = parse_threshold(f"{subject} {how} {value!r}%")
    assert (found.value, found.percent) == (value / 100, True)


@given(NAMES, COMPARISONS, st.floats(0, 1))
def test_columns_have_any_name(name: str, how: str, value: float) -> None:
    found = parse_threshold(f"drift({name}) {how} {value!r}")
    assert (found.subject, found.name, found.comparison, found.value) == ("drift", name, how, value)


@given(st.text(max_size=30))
def test_other_texts_are_refused_and_nothing_else_happens(text: str) -> None:
    try:
        found = parse_threshold(text)
    except InputError:
        return
    assert parse_threshold(found.text).text == found.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a threshold such as"),
        ("impossible", "expected a threshold such as"),
        ("impossible = 1", "expected a threshold such as"),
        ("imposible > 1%", "did you mean 'impossible'"),
        ("invalid(xray) > 1", "expected ok, impossible"),
        ("drift > 0.1", "expected ok, impossible"),
        ("drift() > 0.1", "no name in the parentheses"),
        ("drift(xray) > 20%", "found a percentage"),
        ("drift(xray) > 2", "a distance from 0 to 1"),
        ("rows < 1%", "found a percentage"),
        ("rows < 1.5", "a whole number or a percentage"),
        ("invalid > 0.01", "a whole number or a percentage"),
        ("invalid > 101%", "expected 0 to 100%"),
        ("invalid > many", "a number or a percentage"),
        ("invalid > 1e999", "a number or a percentage"),
        ("invalid > nan", "a number or a percentage"),
        ("invalid > -inf", "a number or a percentage"),
        ("mean(xray) < 1", "expected log_evidence, log_probability"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        parse_threshold(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("missed > 0", "never missed"),
        ("mean(log_probability) < 1", r"expected mean\(log_evidence\)"),
        ("drift(xry) > 0.1", "did you mean 'xray'"),
        ("missing(lung) > 0", "no column 'lung'"),
    ],
)
def test_what_the_run_has_not_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        refuse_unknown([parse_threshold(text)], ("ok", "impossible", "invalid"), "log_evidence", lambda: ["xray"])


STATISTICS = Statistics(
    200,
    {"ok": 190, "impossible": 8, "invalid": 2},
    columns={"xray": Cells((10, 30), 0, 158), "a": Cells((0, 0), 0, 0)},
    logarithms=Logarithms(Spread({-8400: 4}, -(2**23))),
)


@pytest.mark.parametrize(
    ("text", "crossed"),
    [
        ("ok < 95%", False),
        ("ok <= 95%", True),
        ("impossible > 4%", False),
        ("impossible >= 4%", True),
        ("invalid > 1", True),
        ("invalid > 2", False),
        ("rows < 200", False),
        ("rows <= 200", True),
        ("missing(xray) > 80%", False),
        ("missing(xray) >= 158", True),
        ("missing(a) >= 0", True),
        ("missing(a) > 0%", False),
        ("drift(xray) > 0.2", True),
        ("drift(xray) > 0.31", False),
        ("drift(a) >= 0", False),
        ("mean(log_evidence) < -1.9", True),
        ("mean(log_evidence) < -2", False),
    ],
)
def test_conditions(text: str, crossed: bool) -> None:
    distances = {"xray": 0.3, "a": float("nan")}
    found = verdicts([parse_threshold(text)], STATISTICS, lambda names: {name: distances[name] for name in names})
    assert [each.crossed for each in found] == [crossed]


@pytest.fixture
def evidence(tmp_path: Path) -> str:
    table = pa.table(
        {"case_id": [f"c{i}" for i in range(8)], "xray": ["yes", "maybe", "no", None, "no", "?", "x", "no"]}
    )
    parquet.write_table(table, tmp_path / "evidence.parquet")
    return str(tmp_path / "evidence.parquet")


def test_the_command_fails_with_a_code_of_its_own_and_keeps_the_answers(tmp_path: Path, evidence: str) -> None:
    out = tmp_path / "out"
    command = ["run", ASIA, evidence, "-o", str(out), "--workers", "0", "--quiet", "--no-prefect"]
    checks = ["--fail-if", "invalid > 20%", "--fail-if", "impossible > 0", "--rejects", str(tmp_path / "bad.csv")]
    found = junctor_cli(*command, *checks)
    assert found.exit_code == 7
    assert "invalid > 20%: found 2 of 8 rows, 25% (row 2 (c1), row 7 (c6))" in found.stderr
    assert "the answers are kept" in found.stderr
    assert "bad.csv" in found.stderr
    assert "impossible > 0" not in found.stderr
    assert "8 rows in" in found.stdout
    assert (out / "manifest.json").exists()
    assert not (out / "report.html").exists()
    # Everything is done: it is judged again, and differently by another condition.
    assert junctor_cli(*command, *checks, "--json").exit_code == 7
    assert json.loads(junctor_cli(*command, *checks, "--json").stdout)["rows"] == 8
    assert junctor_cli(*command, "--fail-if", "invalid > 2").exit_code == 0


@pytest.mark.parametrize("condition", ["invalid >", "drift(xray) > 20%"])
def test_a_condition_that_cannot_be_read_is_refused_before_anything(
    tmp_path: Path, evidence: str, condition: str
) -> None:
    found = junctor_cli("run", ASIA, evidence, "-o", str(tmp_path / "out"), "--fail-if", condition)
    assert found.exit_code == 2
    assert "--fail-if" in found.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("condition", ["drift(xry) > 0.1", "missing(lung) > 1%", "missed > 0"])
def test_an_unknown_column_is_refused_before_work(tmp_path: Path, evidence: str, condition: str) -> None:
    command = ["run", ASIA, evidence, "-o", str(tmp_path / "out"), "--no-prefect", "--quiet"]
    assert junctor_cli(*command, "--fail-if", condition).exit_code == 3
    assert not (tmp_path / "out" / "run.json").exists()


def test_drift_and_missing_cells_fail_a_run(tmp_path: Path, evidence: str) -> None:
    job = Job(ASIA, evidence, str(tmp_path / "out"), fail_if=("drift(xray) > 0.01", "missing(xray) >= 2"))
    with pytest.raises(
        ThresholdError, match=r"drift\(xray\) > 0.01: found 0\.\d+; missing\(xray\) >= 2: found 2 of 6 cells"
    ):
        run(job, HERE)
    assert read_manifest(job.directory).rows == 8


def test_parts_without_statistics_cannot_be_judged_by_columns(tmp_path: Path, evidence: str) -> None:
    job = Job(ASIA, evidence, str(tmp_path / "out"))
    run(job, HERE)
    # As of an earlier version.
    record = json.loads(job.directory.manifest.read_bytes())
    for part in record["parts"]:
        del part["statistics"]
    job.directory.manifest.write_bytes(json.dumps(record).encode())
    job.directory.statistics(job.directory.answers_part("posteriors", 0)).unlink()
    run(Job(ASIA, evidence, job.output, fail_if=("invalid > 2", "rows < 8")), HERE)
    with pytest.raises(RunError, match="without statistics"):
        run(Job(ASIA, evidence, job.output, fail_if=("drift(xray) > 0.1",)), HERE)
