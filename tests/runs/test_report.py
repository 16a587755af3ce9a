"""The page of a run: what it says, that it opens without network, and that data of others stays text in it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import junctor
import numpy as np
import pyarrow as pa
import pytest
from helpers.browser import check_page, chromium
from helpers.command_line import junctor_cli
from helpers.files import ASIA, ROOT
from helpers.pages import EVIL, Tags, check_names_are_text, check_nothing_is_loaded
from junctor.generate import evidence_table, random_network, sample
from junctor.model.errors import Place, RunError
from junctor.model.network import DraftTable, DraftVariable, build_network
from junctor.model.query import Query, Sampling
from junctor.runs.outcome import Outcome, outcome_of
from junctor.runs.report import pictures
from junctor.runs.report.comparison import Comparison
from junctor.runs.report.page import Page, write_page
from junctor.runs.report.words import share
from junctor.runs.run import read_manifest, run
from junctor.runs.statistics import Spread
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from pyarrow import parquet

HERE = Resources(workers=0)


def make_job(folder: Path, table: pa.Table, network: str = ASIA, **changes: object) -> Job:
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, folder / "evidence.parquet")
    asked = {"report": True, **changes}
    return Job(network, str(folder / "evidence.parquet"), str(folder / "out"), **asked)  # type: ignore[arg-type]


def outcome(job: Job) -> Outcome:
    return outcome_of(job.directory, read_manifest(job.directory))


def rows_of(smokers: int, rows: int = 200) -> pa.Table:
    smoke = ["yes"] * smokers + ["no"] * (rows - smokers)
    xray = [None if row % 3 else "no" for row in range(rows)]
    return pa.table({"case_id": [f"c{row}" for row in range(rows)], "smoke": smoke, "xray": xray})


def text_of(page: Path) -> str:
    return Tags(page.read_text(), between="").text


def test_a_page_says_what_a_run_did(tmp_path: Path) -> None:
    table = rows_of(190)
    cells = table["xray"].to_pylist()
    cells[5] = cells[9] = "perhaps"
    job = make_job(tmp_path, table.set_column(2, "xray", pa.array(cells)), fail_if=("invalid > 5%",))
    run(job, HERE)
    text = text_of(job.directory.report)
    assert "200 rows, 99.0 % of them ok" in text
    assert "2 of 200 rows (1.0 %) have no answer" in text
    assert "column 'xray': unknown state …; states are yes, no" in text
    assert "row 6 (c5), row 10 (c9)" in text
    assert "2 columns drift from the network: smoke, xray" in text
    assert "invalid > 5%2 of 200 rows, 1%passed" in re.sub(r"\s*\n\s*", "", text)
    assert "Half of the rows have log_evidence above" in text
    assert "Posteriors of 8 targets" in text
    assert "No row needed a wider number format" in text
    assert read_manifest(job.directory).spec.network_digest in text


def test_the_page_is_the_same_from_the_command(tmp_path: Path) -> None:
    job = make_job(tmp_path, rows_of(100))
    run(job, HERE)
    made = job.directory.report.read_bytes()
    found = junctor_cli("report", job.output, "-o", str(tmp_path / "again.html"))
    assert found.exit_code == 0
    assert found.stdout.strip() == str(tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == made
    assert junctor_cli("report", job.output, "--fail-if", "rows < 300").exit_code == 7
    assert junctor_cli("report", job.output, "--fail-if", "drift(xry) > 0.3").exit_code == 3
    assert junctor_cli("report", job.output, job.output, "--fail-if", "rows < 300").exit_code == 2
    assert junctor_cli("report", str(tmp_path / "nothing")).exit_code == 6


def test_no_page_replaces_a_file_of_a_run(tmp_path: Path) -> None:
    job = make_job(tmp_path, pa.table({"xray": ["yes"]}), report=False)
    run(job, HERE)
    manifest = job.directory.manifest.read_bytes()
    for runs in ([job.output], [job.output, job.output]):
        for name in (f"{job.output}/manifest.json", f"{job.output}/posteriors/page.html", job.output, ""):
            refused = junctor_cli("report", *runs, "-o", name)
            assert refused.exit_code == 3
            assert "--output" in refused.stderr
        assert junctor_cli("report", *runs, "-o", f"{job.output}/page.html").exit_code == 0
    assert job.directory.manifest.read_bytes() == manifest
    assert not job.directory.report.exists()


def test_a_page_replaces_pages_alone(tmp_path: Path) -> None:
    job = make_job(tmp_path, pa.table({"xray": ["yes"]}))
    run(job, HERE)
    evidence = Path(job.evidence).read_bytes()
    (tmp_path / "empty.html").touch()
    for runs in ([job.output], [job.output, job.output]):
        refused = junctor_cli("report", *runs, "-o", job.evidence)
        assert (refused.exit_code, "a file is there that is no page" in refused.stderr) == (3, True)
        for name in ("again.html", "again.html", "empty.html"):
            assert junctor_cli("report", *runs, "-o", str(tmp_path / name)).exit_code == 0
    assert Path(job.evidence).read_bytes() == evidence


def test_two_runs_side_by_side(tmp_path: Path) -> None:
    one, other = make_job(tmp_path / "a", rows_of(100)), make_job(tmp_path / "b", rows_of(180))
    for job in (one, other):
        run(job, HERE)
    page = Comparison(outcome(one), outcome(other))
    assert page.lead.startswith("1 column and ")
    assert page.evidence_heading == "1 column drifts from A to B: smoke"
    assert page.columns[0].difference == "yes: 50.0 % in A, 90.0 % in B"
    assert any(name == "smoke" and drifted for name, _, _, drifted in page.targets)
    same = Comparison(outcome(one), outcome(one))
    assert same.lead == "Nothing drifted from A to B."
    found = junctor_cli("report", one.output, other.output)
    assert found.exit_code == 0
    text = text_of(other.directory.path / "comparison.html")
    assert "1 column drifts from A to B: smoke" in text


def test_other_networks_are_compared_as_far_as_they_are_alike(tmp_path: Path) -> None:
    network = random_network(5, seed=1)
    junctor.write_network(network, tmp_path / "net.bif")
    table = evidence_table(network, sample(network, 50, seed=1), observed=0.5, pattern="random", seed=1)
    one, other = make_job(tmp_path / "a", rows_of(100)), make_job(tmp_path / "b", table, str(tmp_path / "net.bif"))
    for job in (one, other):
        run(job, HERE)
    page = Comparison(outcome(one), outcome(other))
    assert {each.difference for each in page.columns} == {"in A alone", "in B alone"}
    assert junctor_cli("report", one.output, other.output).exit_code == 0


QUERIES = {
    "posteriors": Query(),
    "single": Query(precision="single", targets=("lung", "smoke")),
    "scores": Query(answers="scores", top=2),
    "mpe": Query("mpe"),
    "sampled": Query(method="sampling", sampling=Sampling(error=0.02), targets=("lung",)),
    "bounded": Query(method="sampling", sampling=Sampling("wmb", 500), targets=("lung",)),
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
@pytest.mark.parametrize("rows", [0, 1, 30])
def test_every_run_has_a_page(tmp_path: Path, query: Query, rows: int) -> None:
    job = make_job(tmp_path, rows_of(100).slice(0, rows), query=query)
    run(job, HERE)
    text = text_of(job.directory.report)
    assert ("No rows" if not rows else "Every row has an answer") in text
    assert ("Each interval holds" in text) == (bool(rows) and query.sampling.sampler == "wmb")
    assert junctor_cli("report", job.output, job.output).exit_code == 0


def test_a_page_of_invalid_rows_alone(tmp_path: Path) -> None:
    job = make_job(tmp_path, pa.table({"smoke": [f"no state {row}" for row in range(20)]}))
    run(job, HERE)
    text = text_of(job.directory.report)
    assert "20 of 20 rows (100 %) have no answer" in text
    assert "No log_evidence" in text
    assert "row 1, row 2, row 3" in text


def test_a_run_of_an_earlier_version_has_a_page(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests" / "digests" / "old_run", tmp_path, dirs_exist_ok=True)
    old = Job(str(tmp_path / "network.bif"), str(tmp_path / "evidence.csv"), str(tmp_path / "out"), partition_rows=3)
    run(old, HERE)
    assert Page(outcome(old), []).missing.startswith("Only 2 of 3 parts of out have statistics")
    assert junctor_cli("report", old.output).exit_code == 0
    job = make_job(tmp_path / "mine", rows_of(100), partition_rows=50)
    run(job, HERE)
    for number in range(4):
        job.directory.statistics(job.directory.answers_part("posteriors", number)).unlink()
    page = Page(outcome(job), [])
    assert page.statuses[0] == ("ok", 200, 1.0)
    assert page.missing.startswith("No part of out has statistics")
    write_page(outcome(job), [], tmp_path / "page.html")
    assert "Every row has an answer" in (tmp_path / "page.html").read_text()


def test_damaged_statistics_are_named(tmp_path: Path) -> None:
    job = make_job(tmp_path, rows_of(100))
    run(job, HERE)
    job.directory.statistics(job.directory.answers_part("posteriors", 0)).write_text('{"format_version": 1}')
    with pytest.raises(RunError, match=r"part-00000\.json"):
        outcome(job)


def evil_job(folder: Path) -> Job:
    """A run whose names of variables, states, case ids and cells try to be HTML."""
    here = Place("evil")
    names = [f"{EVIL}{n}" for n in range(2)]
    variables = [DraftVariable(name, (EVIL, "]]><b>", "</svg>$\\frac{1}{$"), here) for name in names]
    tables = [DraftTable((name,), [0.2, 0.3, 0.5], here) for name in names]
    folder.mkdir(parents=True, exist_ok=True)
    junctor.write_network(build_network(EVIL, "bayes", variables, tables), folder / "net.parquet")
    cells = [EVIL, "]]><b>", "</svg>$\\frac{1}{$", "</style><script>alert(2)</script>", None] * 6
    ids = [f"{EVIL}{row}" for row in range(30)]
    table = pa.table({"case_id": ids, names[0]: cells, names[1]: cells[::-1]})
    return make_job(folder, table, str(folder / "net.parquet"))


def test_names_and_reasons_are_text(tmp_path: Path) -> None:
    job = evil_job(tmp_path)
    run(job.but(fail_if=(f"drift({EVIL}0) > 0.9",)), HERE)
    text = job.directory.report.read_text()
    check_names_are_text(text)
    assert "frac" in Tags(text).text
    junctor_cli("report", job.output, job.output)
    assert "script" not in Tags((job.directory.path / "comparison.html").read_text()).tags


def test_names_in_any_script(recwarn: pytest.WarningsRecorder) -> None:
    # Matplotlib measures texts with fonts of its own, which lack most scripts; the page is shown by a browser's.
    group = pictures.Group("病", ("健康", "冷"), np.array([0.5, 0.5]), np.array([0.4, 0.6]))
    assert "健康" in pictures.columns([group])[0]
    assert not recwarn.list


def test_nothing_is_loaded(tmp_path: Path) -> None:
    job = make_job(tmp_path, rows_of(100))
    run(job, HERE)
    check_nothing_is_loaded(job.directory.report.read_text())


def test_a_wide_network_has_a_small_page(tmp_path: Path) -> None:
    here = Place("wide")
    names = [f"a variable with a long name, number {n}" for n in range(1000)]
    states = tuple(f"a state with a long name {n}" for n in range(4))
    variables = [DraftVariable(name, states, here) for name in names]
    tables = [DraftTable((name,), [0.1, 0.2, 0.3, 0.4], here) for name in names]
    junctor.write_network(build_network("wide", "bayes", variables, tables), tmp_path / "net.parquet")
    rng = np.random.default_rng(0)
    table = pa.table({name: [states[n] for n in rng.integers(4, size=40)] for name in names})
    job = make_job(tmp_path, table, str(tmp_path / "net.parquet"))
    run(job, HERE)
    assert job.directory.report.stat().st_size < 2 * 2**20
    found = junctor_cli("report", job.output, job.output)
    assert found.exit_code == 0
    assert (job.directory.path / "comparison.html").stat().st_size < 2 * 2**20


def test_shares_are_whole_only_where_they_are() -> None:
    numbers = [0, 1e-9, 0.00012, 0.05, 0.5, 0.9987, 0.999999, 1, float("nan")]
    assert [share(each) for each in numbers] == [
        *("0 %", "<0.01 %", "0.01 %", "5.0 %", "50.0 %", "99.87 %", ">99.99 %", "100 %", "–"),
    ]


def test_counts_move_to_other_bins_whole() -> None:
    spread = Spread.of(-np.random.default_rng(0).gamma(4.0, 2.0, 1000))
    edges = np.linspace(-60, 0, 31)
    assert pictures.rebinned(spread, edges).sum() == pytest.approx(1000)
    assert pictures.rebinned(Spread.of(np.zeros(5)), np.array([-0.5, 0.5])).tolist() == [5]
    assert "<svg" in pictures.logarithms([("", Spread.of(np.zeros(5)))], "log_evidence")


@pytest.mark.parametrize(
    "which", ["evil", pytest.param("plain", marks=pytest.mark.slow), pytest.param("compared", marks=pytest.mark.slow)]
)
def test_in_a_browser(tmp_path: Path, which: str) -> None:
    with chromium() as browser:
        job = evil_job(tmp_path) if which == "evil" else make_job(tmp_path, rows_of(150))
        run(job, HERE)
        page_file = job.directory.report
        if which == "compared":
            junctor_cli("report", job.output, job.output)
            page_file = job.directory.path / "comparison.html"
        check_page(browser, page_file, 2)
