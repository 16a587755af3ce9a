"""`junctor learn` and `junctor counts`: files in, files out, interrupted fits, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import junctor
import numpy as np
import pyarrow as pa
import pytest
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from helpers.stores import Bucket
from junctor import generate
from junctor.cli.fits import FitLines
from junctor.learning import checkpoint
from junctor.learning.learn import learn
from junctor.runtime.devices import has_gpu
from pyarrow import csv, parquet
from typer.testing import Result


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    """300 rows of Asia, a fifth of the cells empty, and no column of `lung`."""
    network = junctor.read_network(ASIA)
    cells = generate.sample(network, 300, 1)
    missing = np.random.default_rng(2).random(cells.shape) < 0.2
    lines = [",".join(["id", "weight", *(v.name for v in network.variables if v.name != "lung")])]
    for row, states in enumerate(cells.tolist()):
        named = [
            "" if missing[row, v] else each.states[states[v]]
            for v, each in enumerate(network.variables)
            if each.name != "lung"
        ]
        lines.append(",".join([f"r{row}", str(1 + row % 3), *named]))
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


COLUMNS = ("--case-id", "id", "--weight", "weight")
RANDOM = ("--start", "random", "--restarts", "3", "--seed", "4", "--tolerance", "1e-8", "--impossible", "skip")


def fitted(rows: str, out: Path, *options: str) -> Result:
    done: Result = junctor_cli("learn", ASIA, rows, "-o", str(out), *COLUMNS, *options)
    return done


def test_the_file_is_what_python_learns(rows: str, tmp_path: Path) -> None:
    out = tmp_path / "fitted.bif"
    done = fitted(rows, out, "--prior", "bdeu:2", "--holdout", "10%", "--fix", "asia,xr*", "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    expected = learn(ASIA, rows, prior="bdeu:2", holdout=0.1, fix=["asia", "xray"], weight="weight", case_id="id")
    written = junctor.read_network(out)
    for found, wanted in zip(written.factors, expected.network.factors, strict=True):
        np.testing.assert_allclose(found.table, wanted.table, rtol=1e-15)
    assert record["log_likelihood"] == expected.log_likelihood
    assert record["latent"] == ["lung"]
    assert record["rows"] == expected.rows
    assert record["holdout"]["rows"] == expected.rows["held_out"]
    assert [each["number"] for each in record["trace"]] == list(range(record["iterations"] + 1))
    assert record["trace"][0]["change"] is None
    assert not list(tmp_path.glob("*.checkpoint"))


def test_a_fit_that_crosses_a_threshold_is_not_written(rows: str, tmp_path: Path) -> None:
    out, bad = tmp_path / "fitted.bif", tmp_path / "bad.csv"
    bad.write_text(Path(rows).read_text().replace("r9,1,", "r9,1,perhaps", 1))
    out.write_text("of yesterday")
    plain = json.loads(fitted(rows, tmp_path / "plain.bif", "--json").stdout)
    mean = plain["log_likelihood"] / plain["weight"]
    for condition, words in (
        ("rows < 301", "rows < 301: found 300"),
        ("missing(xray) > 10%", "missing(xray) > 10%: found "),
        ("missing(lung) >= 300", "found 300 of 300 cells, 100%"),
        (f"mean(log_likelihood) < {mean + 0.01}", f"found {mean:.4g}"),
    ):
        done = fitted(rows, out, "--fail-if", "ok < 99%", "--fail-if", condition)
        assert (done.exit_code, words in done.stderr) == (7, True), done.output
        assert "nothing is written: the same command without --fail-if writes the fit" in done.stderr
        assert out.read_text() == "of yesterday"
    done = fitted(str(bad), out, "--fail-if", "invalid > 0", "--overwrite", "--quiet")
    assert (done.exit_code, "invalid > 0: found 1 of 300 rows, 0.333% (row 10)" in done.stderr) == (7, True)
    conditions = ("--fail-if", "rows < 300", "--fail-if", "invalid > 0")
    assert fitted(rows, out, *conditions, "--overwrite").exit_code == 0
    assert out.read_bytes() == (tmp_path / "plain.bif").read_bytes()
    for condition, words in (
        ("drift(xray) > 0.1", "a fit has no drift"),
        ("missed > 0", "are never missed"),
        ("mean(log_evidence) < 0", "expected mean(log_likelihood)"),
        ("missing(xrays) > 0", "did you mean 'xray'"),
        ("many", "expected a threshold"),
    ):
        done = fitted(rows, tmp_path / "other.bif", "--fail-if", condition)
        assert done.exit_code in (2, 3), done.output
        assert words in done.stderr
    assert not (tmp_path / "other.bif").exists()


def test_lines_for_people(rows: str, tmp_path: Path) -> None:
    done = fitted(rows, tmp_path / "fitted.net", *RANDOM)
    assert done.exit_code == 0, done.output
    assert "start 1 of 3, iteration 0: log-likelihood -" in done.stderr
    assert "8 variables; rows: 300 ok" in done.stdout
    assert "objectives of the starts: -" in done.stdout
    assert "latent: lung" in done.stdout
    quiet = fitted(rows, tmp_path / "fitted.net", "--quiet")
    assert quiet.stderr == ""
    told = fitted(rows, tmp_path / "fitted.net", "--log-format", "json")
    lines = [json.loads(line) for line in told.stderr.splitlines()]
    assert {"iteration", "log_likelihood", "log_posterior"} <= set(lines[-1])


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each iteration leaves a checkpoint, however fast it was."""
    monkeypatch.setattr(checkpoint, "LEAST_SECONDS", 0.0)


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Press Ctrl-C after so many iterations of all starts."""
    calls = []

    def tell(*args: Any) -> None:
        calls.append(args)
        if len(calls) == after:
            raise KeyboardInterrupt

    monkeypatch.setattr(FitLines, "tell", tell)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("after", [1, 2, 5, 8, 20])
def test_an_interrupted_fit_goes_on_to_the_same_bytes(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    whole, out = tmp_path / "whole.bif", tmp_path / "fitted.bif"
    assert fitted(rows, whole, *RANDOM).exit_code == 0
    with monkeypatch.context() as patched:
        interrupt(patched, after)
        stopped = fitted(rows, out, *RANDOM)
    assert stopped.exit_code == 130
    assert "run the same command again to go on" in stopped.stderr
    assert not out.exists()
    assert (tmp_path / "fitted.bif.checkpoint").exists()
    again = fitted(rows, out, *RANDOM, "--json")
    assert again.exit_code == 0, again.output
    assert "going on with the fit" in again.stderr
    assert out.read_bytes() == whole.read_bytes()
    assert not (tmp_path / "fitted.bif.checkpoint").exists()
    record = json.loads(again.stdout)
    assert len(record["restarts"]) == 3
    assert [each["number"] for each in record["trace"]] == list(range(record["iterations"] + 1))


@pytest.mark.usefixtures("often")
def test_standard_errors_may_be_interrupted_and_asked_for_later(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = tmp_path / "whole.bif", tmp_path / "fitted.bif"
    assert fitted(rows, whole, *RANDOM, "--errors").exit_code == 0

    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(FitLines, "tell_extra", stop)
        assert fitted(rows, out, *RANDOM, "--errors").exit_code == 130
    assert (tmp_path / "fitted.bif.checkpoint").exists()
    # A page that cannot be written loses nothing either.
    assert fitted(rows, out, *RANDOM, "--report", "/proc/nowhere/fit.html").exit_code == 6
    again = fitted(rows, out, *RANDOM, "--errors", "--report", str(tmp_path / "fit.html"))
    assert again.exit_code == 0, again.output
    assert "going on with the fit" in again.stderr
    assert out.read_bytes() == whole.read_bytes()
    tables = [parquet.read_table(tmp_path / f"{name}.parameters.parquet") for name in ("whole", "fitted")]
    assert tables[0].equals(tables[1])
    # Traces of starts that ended before the interruption are there.
    assert "The best of 3 starts is kept" in (tmp_path / "fit.html").read_text()


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("option", "with other options"),
        ("rows", "with other rows"),
        ("network", "with other network"),
        ("reading", "with other reading"),
        ("damage", "damaged (its checksum is wrong)"),
        ("garbage", "damaged"),
    ],
)
def test_a_checkpoint_of_another_fit_is_refused(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str, message: str
) -> None:
    out, state = tmp_path / "fitted.bif", tmp_path / "fitted.bif.checkpoint"
    with monkeypatch.context() as patched:
        interrupt(patched, 2)
        assert fitted(rows, out).exit_code == 130
    given = {"network": ASIA, "rows": rows}
    options = [*COLUMNS]
    if changed == "option":
        options += ["--tolerance", "1e-4"]
    elif changed == "reading":
        options += ["--missing", "zzz"]
    elif changed == "rows":
        given["rows"] = str(tmp_path / "other.csv")
        Path(given["rows"]).write_text(Path(rows).read_text() + "r300,1,,,,,,,\n")
    elif changed == "network":
        given["network"] = str(tmp_path / "other.bif")
        found = learn(ASIA, rows, weight="weight", case_id="id", max_iterations=1)
        junctor.write_network(found.network, given["network"])
    else:
        data = state.read_bytes()
        state.write_bytes(data[:200] + b"!" + data[201:] if changed == "damage" else b"nothing")
    call = ("learn", given["network"], given["rows"], "-o", str(out), *options)
    refused = junctor_cli(*call)
    assert refused.exit_code == 6, refused.output
    assert message in refused.stderr
    assert "--overwrite" in refused.stderr
    assert not out.exists()
    done = junctor_cli(*call, "--overwrite")
    assert done.exit_code == 0, done.output
    assert out.exists()
    assert not state.exists()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("-o", "fitted.txt"), 3, "no known format"),
        (("--report", ""), 3, "--report is empty"),
        (("--report", "fitted.bif"), 3, "fitted.bif of the same command"),
        (("--report", ASIA), 3, "asia.bif of the same command"),
        (("--mapping", "map.bif", "-o", "map.bif"), 3, "map.bif of the same command"),
        (("--prior", "dirichlet:p.parquet@3", "--report", "p.parquet"), 3, "p.parquet of the same command"),
        (("--prior", "dirichlet:p.parquet", "-o", "p.parquet"), 3, "p.parquet of the same command"),
        (("--prior", "dirichlet:p.parameters.parquet", "-o", "p.bif", "--errors"), 3, "--errors, whose table is"),
        (("--mapping", "p.bif.checkpoint", "-o", "p.bif"), 3, "--output, whose checkpoint is"),
        (("--report", "fitted.bif.checkpoint", "-o", "fitted.bif"), 3, "fitted.bif.checkpoint of the same command"),
        (("--report", "p.parameters.parquet", "-o", "p.bif", "--errors"), 3, "p.parameters.parquet of the same"),
        (("--report", __file__), 3, "a file is there that is no page"),
        (("--prior", "dirichlet:nowhere.json"), 3, "No such file"),
        (("--prior", "bdeu:x"), 3, "expected a number from 1e-100"),
        (("--fix", "A,,B"), 2, "a name is empty"),
        (("--fix", "smok"), 3, "did you mean 'smoke'"),
        (("--tie", "smoke"), 3, "expected two variables as A=B"),
        (("--tie", "smoke=either"), 3, "cannot be tied"),
        (("--tie", "smoke=bronc", "--fix", "smoke"), 3, "one of them is fixed"),
        (("--start", "zero"), 2, "'zero' is not one of"),
        (("--restarts", "3"), 3, "add --start random"),
        (("--restarts", "0"), 2, "restarts"),
        (("--tolerance", "-1"), 2, "tolerance"),
        (("--tolerance", "nan"), 2, "tolerance"),
        (("--max-iterations", "0"), 2, "max-iterations"),
        (("--acceleration", "aitken"), 2, "acceleration"),
        (("--seed", "-1"), 2, "seed"),
        (("--holdout", "100%"), 2, "expected a share such as 10%"),
        (("--holdout", "some"), 2, "expected a share such as 10%"),
        (("--impossible", "ignore"), 2, "impossible"),
        (("--weight", "wait"), 3, "there is no column 'wait'"),
        (("--weight", "id", "--ignore-extra"), 3, "expected a weight of 0, or from 1e-100 to 1e100"),
        (("--case-id", "number", "--ignore-extra"), 3, "no column 'number'"),
        (("--mapping", "nowhere.toml"), 3, "cannot read the mapping"),
        (("--format", "excel"), 3, "unknown format 'excel'"),
        (("--evidence-format", "excel"), 3, "excel"),
        (("--memory", "lots"), 2, "lots"),
        (("--threads", "0"), 2, "threads"),
        (("--workers", "-1"), 2, "workers"),
        (("--scheduler", "tcp://10.0.0.1:8786"), 6, "not encrypted"),
    ],
)
def test_bad_options_are_refused(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = fitted(rows, tmp_path / "fitted.bif", *options)
    assert done.exit_code == code, done.output
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert not list(tmp_path.glob("fitted*"))


def test_the_table_of_errors_takes_no_place_of_the_rows(rows: str, tmp_path: Path) -> None:
    evidence = tmp_path / "fitted.parameters.parquet"
    parquet.write_table(csv.read_csv(rows), evidence)
    before = evidence.read_bytes()
    done = fitted(str(evidence), tmp_path / "fitted.bif", "--errors")
    assert (done.exit_code, "--errors, whose table is" in done.stderr) == (3, True)
    assert evidence.read_bytes() == before


def test_rows_that_cannot_be_used(tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("smoke\nperhaps\n")
    done = junctor_cli("learn", ASIA, str(bad), "-o", str(tmp_path / "f.bif"))
    assert done.exit_code == 3
    why = "row 1 is invalid, column 'smoke': unknown state 'perhaps'"
    assert f"found no row to learn from: 1 of 1 rows are invalid; {why}" in done.stderr
    counted = junctor_cli("counts", ASIA, str(bad), "-o", str(tmp_path / "counts.csv"))
    assert counted.exit_code == 4
    assert f"the only row is invalid: {why}" in counted.stderr
    impossible = tmp_path / "impossible.csv"
    impossible.write_text("lung,either\nyes,no\nyes,no\n")
    skipped = ("-o", str(tmp_path / "f.bif"), "--impossible", "skip")
    done = junctor_cli("learn", ASIA, str(impossible), *skipped)
    assert done.exit_code == 3
    assert "found no row to learn from: 2 of 2 rows are impossible" in done.stderr
    bad.write_text("smoke\nyes\nperhaps\nno\n")
    done = junctor_cli("learn", ASIA, str(bad), "-o", str(tmp_path / "f.bif"), "-q")
    assert done.exit_code == 0
    assert "2 ok, 1 invalid" in done.stdout
    assert "left out: row 2: column 'smoke': unknown state 'perhaps'" in done.stderr
    added = junctor_cli("learn", ASIA, str(bad), "-o", str(tmp_path / "f.bif"), "--new-states")
    assert added.exit_code == 0, added.output
    grown = junctor.read_network(tmp_path / "f.bif")
    assert grown.variables[grown.index["smoke"]].states == ("yes", "no", "perhaps")
    bad.write_text("tub,lung,either\nyes,yes,no\n")
    done = junctor_cli("learn", ASIA, str(bad), "-o", str(tmp_path / "g.bif"))
    assert done.exit_code == 3
    assert "row 1 is impossible by zeros of the network: --impossible skip" in done.stderr
    lifted = junctor_cli("learn", ASIA, str(bad), "-o", str(tmp_path / "g.bif"), "--impossible", "smooth")
    assert lifted.exit_code == 0, lifted.output


def test_counts_are_those_of_python(rows: str, tmp_path: Path) -> None:
    expected = junctor.expected_counts(ASIA, rows, weight="weight", case_id="id")
    out = tmp_path / "counts.parquet"
    done = junctor_cli("counts", ASIA, rows, "-o", str(out), *COLUMNS)
    assert done.exit_code == 0, done.output
    assert "36 entries; rows: 300 ok" in done.stdout
    found = parquet.read_table(out)
    assert found.equals(expected)
    assert found["count"].to_numpy()[:2].sum() == pytest.approx(sum(1 + row % 3 for row in range(300)))
    text = tmp_path / "counts.csv"
    assert junctor_cli("counts", ASIA, rows, "-o", str(text), *COLUMNS, "--quiet").exit_code == 0
    table = csv.read_csv(text)
    assert table["parents"].to_pylist()[-1] == "bronc=no, either=no"
    assert table["count"].to_pylist() == expected["count"].to_pylist()
    # Either is a prior.
    for prior in (out, text):
        done = fitted(rows, tmp_path / "f.bif", "--prior", f"dirichlet:{prior}", "--json")
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("command", "change"), [("learn", "grows"), ("learn", "goes"), ("learn", "comes"), ("counts", "grows")]
)
def test_rows_that_change_while_they_are_read_are_refused(
    rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, change: str
) -> None:
    from junctor.learning import counts, learn

    folder = tmp_path / "rows"
    folder.mkdir()
    for name in ("a.csv", "b.csv"):
        (folder / name).write_bytes(Path(rows).read_bytes())
    # A fit names the files by their digest: from there on they stay.
    module, moment = (learn, "digest_of") if command == "learn" else (counts, "read_rows")
    real = getattr(module, moment)

    def then_change(*args: Any, **more: Any) -> Any:
        found = real(*args, **more)
        if change == "goes":
            (folder / "a.csv").unlink()
        else:
            lines = Path(rows).read_text().splitlines(keepends=True)
            (folder / ("b.csv" if change == "grows" else "c.csv")).write_text("".join([*lines, lines[-1]]))
        return found

    monkeypatch.setattr(module, moment, then_change)
    out = tmp_path / ("f.bif" if command == "learn" else "counts.csv")
    done = junctor_cli(command, ASIA, str(folder), "-o", str(out), *COLUMNS)
    assert done.exit_code == 3, done.output
    name = {"grows": "b.csv", "goes": "a.csv", "comes": "c.csv"}[change]
    assert f"{name}: was written to while it was read" in " ".join(done.stderr.split())
    assert not out.exists()


def test_a_separator_can_be_named(tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.csv", tmp_path / "counts.parquet"
    rows.write_text("smoke:xray\nyes:NA\nNA:yes\n")
    done = junctor_cli("counts", ASIA, str(rows), "-o", str(out), "--separator", ":")
    assert done.exit_code == 0, done.output
    expected = junctor.expected_counts(ASIA, [{"smoke": "yes"}, {"xray": "yes"}])["count"].to_pylist()
    assert parquet.read_table(out)["count"].to_pylist() == expected
    assert junctor.expected_counts(ASIA, rows, separator=":")["count"].to_pylist() == expected
    options = ["--prior", "bdeu:1", "--max-iterations", "1", "--json"]
    done = junctor_cli("learn", ASIA, str(rows), "-o", str(tmp_path / "f.bif"), "--separator", ":", *options)
    assert json.loads(done.stdout)["rows"]["ok"] == 2, done.output
    assert junctor.learn(ASIA, rows, separator=":", prior="bdeu:1", max_iterations=1).rows["ok"] == 2


def test_counts_that_are_refused(rows: str, tmp_path: Path) -> None:
    done = junctor_cli("counts", ASIA, rows, "-o", str(tmp_path / "counts.txt"))
    assert done.exit_code == 3
    assert "expected a file .parquet or .csv" in done.stderr
    bad = tmp_path / "bad.csv"
    bad.write_text("smoke\nperhaps\n")
    done = junctor_cli("counts", ASIA, str(bad), "-o", str(tmp_path / "counts.csv"), "--json")
    assert done.exit_code == 4
    assert json.loads(done.stdout)["rows"] == {"ok": 0, "impossible": 0, "invalid": 1}


@pytest.mark.usefixtures("often")
def test_files_may_lie_in_a_store(rows: str, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitted(rows, tmp_path / "whole.bif", *RANDOM).exit_code == 0
    out = bucket.url("fits/fitted.bif")
    call = ("learn", ASIA, rows, "-o", out, *COLUMNS, *RANDOM)
    with monkeypatch.context() as patched:
        interrupt(patched, 6)
        assert junctor_cli(*call).exit_code == 130
    assert bucket.names() == ["fits/fitted.bif.checkpoint"]
    done = junctor_cli(*call)
    assert done.exit_code == 0, done.output
    assert bucket.get("fits/fitted.bif") == (tmp_path / "whole.bif").read_bytes()
    assert bucket.names() == ["fits/fitted.bif"]
    counts = bucket.url("fits/counts.parquet")
    assert junctor_cli("counts", ASIA, rows, "-o", counts, *COLUMNS).exit_code == 0
    again = junctor_cli("learn", ASIA, rows, "-o", out, *COLUMNS, "--prior", f"dirichlet:{counts}")
    assert again.exit_code == 0, again.output


def test_rows_from_standard_input(rows: str, tmp_path: Path) -> None:
    done = fitted(rows, tmp_path / "file.bif", "--new-states")
    assert done.exit_code == 0, done.output
    command = [sys.executable, "-c", "from junctor.cli import main; main()", "learn", ASIA, "-"]
    with Path(rows).open("rb") as file:
        piped = subprocess.run(
            [*command, "-o", str(tmp_path / "pipe.bif"), "--new-states", *COLUMNS], stdin=file, capture_output=True
        )
    assert piped.returncode == 0, piped.stderr
    assert (tmp_path / "pipe.bif").read_bytes() == (tmp_path / "file.bif").read_bytes()


def test_threads_change_nothing(rows: str, tmp_path: Path) -> None:
    for threads in ("1", "3"):
        done = fitted(rows, tmp_path / f"{threads}.bif", *RANDOM, "--threads", threads)
        assert done.exit_code == 0, done.output
    assert (tmp_path / "1.bif").read_bytes() == (tmp_path / "3.bif").read_bytes()


@pytest.mark.skipif(has_gpu(), reason="it would be used")
def test_a_gpu_that_is_not_there_is_refused(rows: str, tmp_path: Path) -> None:
    done = fitted(rows, tmp_path / "fitted.bif", "--device", "gpu")
    assert (done.exit_code, "found no NVIDIA GPU" in done.stderr) == (5, True)
    done = junctor_cli("counts", ASIA, rows, "-o", str(tmp_path / "counts.csv"), *COLUMNS, "--device", "gpu")
    assert (done.exit_code, "found no NVIDIA GPU" in done.stderr) == (5, True)
    assert not list(tmp_path.iterdir())
    # Where there is none, nothing is lost.
    assert fitted(rows, tmp_path / "fitted.bif", "--device", "auto").exit_code == 0


def test_workers_write_the_same_bytes(rows: str, tmp_path: Path, scheduler: str) -> None:
    for name, options in (("here", ()), ("there", ("--scheduler", scheduler))):
        done = fitted(rows, tmp_path / f"{name}.bif", *RANDOM, "--holdout", "10%", *options)
        assert done.exit_code == 0, done.output
        counts = ("counts", ASIA, rows, "-o", str(tmp_path / f"{name}.csv"), *COLUMNS, *options)
        assert junctor_cli(*counts).exit_code == 0
    for form in ("bif", "csv"):
        assert (tmp_path / f"there.{form}").read_bytes() == (tmp_path / f"here.{form}").read_bytes()


@pytest.mark.usefixtures("often")
def test_overwriting_gives_up_other_fits_alone(rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        interrupt(patched, 5)
        assert fitted(rows, tmp_path / "fitted.bif", *RANDOM, "--overwrite").exit_code == 130
    again = fitted(rows, tmp_path / "fitted.bif", *RANDOM, "--overwrite")
    assert again.exit_code == 0, again.output
    assert "going on with the fit" in again.stderr


def test_states_of_uai_evidence_are_never_new(tmp_path: Path) -> None:
    file = tmp_path / "rows.evid"
    file.write_text("2\n1 0 1\n2 1 0 2 0\n")
    done = junctor_cli("learn", ASIA, str(file), "-o", str(tmp_path / "f.bif"))
    assert done.exit_code == 0, done.output
    refused = junctor_cli("learn", ASIA, str(file), "-o", str(tmp_path / "f.bif"), "--new-states")
    assert refused.exit_code == 3
    assert "UAI evidence names no states" in refused.stderr


@pytest.mark.parametrize("name", ["c.csv", "c.parquet"])
def test_counts_in_a_folder_called_as_a_home(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("~").mkdir()
    Path("~/rows.csv").write_text("smoke\nyes\n")
    done = junctor_cli("counts", ASIA, "./~/rows.csv", "-o", f"./~/{name}")
    assert done.exit_code == 0, done.stderr
    assert [each.name for each in Path("~").iterdir() if each.name.startswith("c")] == [name]


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_rows_of_a_folder_are_named_by_file(tmp_path: Path, suffix: str, workers: str) -> None:
    (tmp_path / "in").mkdir()
    write = csv.write_csv if suffix == "csv" else parquet.write_table
    for name, lung, weight in (("a", ["no", "no"], [1, 1]), ("b", ["no", "yes", "yes"], [1, 2, -1])):
        table = pa.table({"lung": lung, "either": ["no"] * len(lung), "w": weight})
        write(table, tmp_path / f"in/{name}.{suffix}")
    fit = ("learn", ASIA, str(tmp_path / "in"), "-o", str(tmp_path / "f.bif"), "--workers", workers)
    refused = junctor_cli(*fit, "--weight", "w", "--impossible", "skip")
    where = f"of {tmp_path}/in/b.{suffix}"
    assert refused.exit_code == 3
    assert f"row 3 {where}: column 'w': found -1" in refused.stderr
    refused = junctor_cli(*fit, "--ignore-extra")
    assert refused.exit_code == 3
    assert f"2 rows are impossible (2 {where}, 3 {where}) by zeros" in refused.stderr
    counts = ("counts", ASIA, str(tmp_path / "in"), "-o", str(tmp_path / "c.csv"), "--weight", "w")
    assert f"row 3 {where}: column 'w'" in junctor_cli(*counts).stderr
