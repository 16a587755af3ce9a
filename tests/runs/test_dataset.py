"""Datasets of `junctor ingest`, and runs of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import duckdb
import junctor
import polars
import pyarrow as pa
import pytest
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from helpers.growing import DAY, World
from helpers.stores import Bucket
from junctor.model.errors import EvidenceError, RunError
from junctor.model.query import Query
from junctor.runs import dataset
from junctor.runs.dataset import DatasetDirectory, IngestJob, ingest_dataset
from junctor.runs.integrity import verify
from junctor.runs.manifest import Manifest
from junctor.runs.partition import _dataset_of, read_evidence
from junctor.runs.run import run
from junctor.runs.storage import RunDirectory
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from pyarrow import parquet

HERE = Resources(workers=0)
ROWS = 50
BAD = [3, 4, 20, 49]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 16 rows, and groups of four rows in them."""
    monkeypatch.setattr(dataset, "PART_CELLS", 8 * 16)
    monkeypatch.setattr(DatasetDirectory, "group_cells", 4 * 7)


def table_of(rows: int = ROWS, shift: int = 0) -> pa.Table:
    numbers = range(shift, shift + rows)
    return pa.table(
        {
            "case_id": [f"c{row}" for row in numbers],
            "xray": ["maybe" if row in BAD else ("yes", "no", None)[row % 3] for row in numbers],
            "smoke": [[0.25, 1.0 + row] if row % 4 else None for row in numbers],
            "dysp": pa.array([None if row % 5 else "no" for row in numbers], pa.string()),
            "row": list(numbers),
            "note": [{"n": row} for row in numbers],
        }
    )


def ingested(folder: Path, table: pa.Table | None = None, **options: object) -> Manifest:
    """Write a table and make a dataset of it."""
    parquet.write_table(table_of() if table is None else table, folder / "evidence.parquet")
    asked = {"keep": ("row", "note"), **options}
    job = IngestJob(ASIA, str(folder / "evidence.parquet"), str(folder / "set"), **asked)  # type: ignore[arg-type]
    return ingest_dataset(job)


def answers(folder: Path, evidence: str = "set", output: str = "out", network: str = ASIA, **asked: object) -> bytes:
    """Run evidence; returns the answers as bytes of Arrow, without the name of the run."""
    query, asked = asked.pop("query", Query()), {"keep": ("note", "row"), **asked}
    run(Job(network, str(folder / evidence), str(folder / output), query, **asked), HERE)  # type: ignore[arg-type]
    table = junctor.read_answers(folder / output).replace_schema_metadata()
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(stream.getvalue().to_pybytes())


@pytest.mark.parametrize(
    "query", [Query(), Query("mpe"), Query(targets=("lung", "tub"), answers="scores", hide_targets=False)], ids=str
)
@pytest.mark.parametrize("rows", [7, 16, 1000])
def test_a_run_of_a_dataset_answers_as_one_of_the_evidence(tmp_path: Path, query: Query, rows: int) -> None:
    manifest = ingested(tmp_path)
    assert (manifest.rows, len(manifest.parts)) == (ROWS, 4)
    assert manifest.statuses == {"ok": ROWS - len(BAD), "impossible": 0, "invalid": len(BAD)}
    asked = {"query": query, "partition_rows": rows}
    found = answers(tmp_path, **asked, rejects=str(tmp_path / "a.csv"))
    assert found == answers(tmp_path, "evidence.parquet", "direct", **asked, rejects=str(tmp_path / "b.csv"))
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    # Not encoded again.
    assert [path.name for path in (tmp_path / "out" / "evidence").iterdir()] == ["done.json"]
    assert not verify(RunDirectory(tmp_path / "out")).faults


def test_other_programs_read_a_dataset(tmp_path: Path) -> None:
    ingested(tmp_path)
    files = str(tmp_path / "set" / "evidence" / "*.parquet")
    names = ["case_id", "xray", "dysp", "smoke_likelihood", "reason", "row", "note"]
    frame = polars.read_parquet(files)
    assert frame.columns == names
    assert frame["xray"].dtype == polars.Categorical
    assert frame["xray"].to_list()[:5] == ["yes", "no", None, None, None]
    assert frame["smoke_likelihood"].to_list()[4:6] == [None, [0.25, 6.0]]
    found = duckdb.sql(f"SELECT xray, count(*) FROM '{files}' WHERE reason IS NULL GROUP BY ALL ORDER BY ALL")
    valid = [cell for row, cell in enumerate(table_of()["xray"].to_pylist()) if row not in BAD]
    assert found.fetchall() == [("no", valid.count("no")), ("yes", valid.count("yes")), (None, valid.count(None))]
    assert duckdb.sql(f"SELECT note.n FROM '{files}' WHERE row = 17").fetchall() == [(17,)]
    rejects = polars.read_parquet(tmp_path / "set" / "rejects.parquet")
    # The evidence has a column `row` of its own.
    assert rejects.columns == ["row_", "case_id", "row", "note", "reason"]
    assert rejects["row_"].to_list() == [row + 1 for row in BAD]
    assert all("unknown state 'maybe'" in reason for reason in rejects["reason"])


def test_without_rows_and_without_rejects(tmp_path: Path) -> None:
    manifest = ingested(tmp_path, table_of(0))
    assert (manifest.rows, len(manifest.parts)) == (0, 1)
    assert polars.read_parquet(tmp_path / "set" / "rejects.parquet").is_empty()
    assert answers(tmp_path) == answers(tmp_path, "evidence.parquet", "direct")


def test_networks_share_a_dataset(tmp_path: Path) -> None:
    ingested(tmp_path)
    text = Path(ASIA).read_text()
    (tmp_path / "other.bif").write_text(text.replace("0.98, 0.02", "0.9, 0.1"))
    other = str(tmp_path / "other.bif")
    assert other != text
    found = answers(tmp_path, network=other)
    assert found == answers(tmp_path, "evidence.parquet", "direct", network=other)
    assert found != answers(tmp_path, output="asia")
    asked = {"query": Query(targets=("dysp",), hide_targets=True)}
    assert answers(tmp_path, output="hidden", **asked) == answers(tmp_path, "evidence.parquet", "shown", **asked)
    (tmp_path / "lacking.bif").write_text(text.replace("dysp", "breath"))
    lacking = str(tmp_path / "lacking.bif")
    expected = r"part-00000\.parquet: found evidence on 'dysp', which the network has not: it was encoded for another"
    with pytest.raises(EvidenceError, match=expected):
        answers(tmp_path, output="lacking", network=lacking)
    found = answers(tmp_path, output="lacking", network=lacking, ignore_extra=True)
    assert found == answers(tmp_path, "evidence.parquet", "less", network=lacking, ignore_extra=True)
    (tmp_path / "states.bif").write_text(text.replace("yes", "y"))
    with pytest.raises(EvidenceError, match="found the state 'yes' of 'xray', states are y, no: it was encoded for"):
        answers(tmp_path, output="states", network=str(tmp_path / "states.bif"))


def test_damaged_and_changed_files_are_refused_and_made_anew(tmp_path: Path) -> None:
    ingested(tmp_path)
    part = tmp_path / "set" / "evidence" / "part-00001.parquet"
    whole, record = part.read_bytes(), (tmp_path / "set" / "ingest.json").read_bytes()
    assert not verify(DatasetDirectory(tmp_path / "set")).faults
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    remade = ": the same `junctor ingest` makes it anew"
    for damage in (bytes(changed), whole[:-1], None):
        part.unlink()
        if damage is not None:
            part.write_bytes(damage)
        with pytest.raises(EvidenceError, match=f"part-00001.parquet: not as it was ingested .*{remade}"):
            answers(tmp_path)
        assert not (tmp_path / "out").exists()
        faults = verify(DatasetDirectory(tmp_path / "set")).faults
        assert [each.file for each in faults] == ["evidence/part-00001.parquet"]
        ingested(tmp_path)
        assert part.read_bytes() == whole
    (tmp_path / "set" / "ingest.json").write_text('{"parts": 1}')
    with pytest.raises(RunError, match=r"ingest\.json: not the record of a dataset"):
        answers(tmp_path)
    (tmp_path / "set" / "ingest.json").unlink()
    with pytest.raises(EvidenceError, match="set: not finished: run the same `junctor ingest` again"):
        answers(tmp_path)
    ingested(tmp_path)
    assert json.loads(record)["parts"] == json.loads((tmp_path / "set" / "ingest.json").read_bytes())["parts"]


def test_other_evidence_needs_another_dataset_or_overwrite(tmp_path: Path) -> None:
    ingested(tmp_path)
    with pytest.raises(RunError, match="holds another run: evidence_digest was"):
        ingested(tmp_path, table_of(20))
    assert ingested(tmp_path, table_of(20), overwrite=True).rows == 20
    assert len(list((tmp_path / "set" / "evidence").iterdir())) == 2


def test_a_run_does_not_go_on_with_another_dataset(tmp_path: Path) -> None:
    ingested(tmp_path)
    found = answers(tmp_path, partition_rows=10)
    out = RunDirectory(tmp_path / "out")
    spec, counts = out.read_spec(), out.counts()
    ingested(tmp_path, table_of(20), overwrite=True)
    # As a worker that starts now reads it.
    _dataset_of.cache_clear()
    with pytest.raises(RunError, match="set: another dataset than when the run began"):
        read_evidence(out, 1, spec, counts)
    with pytest.raises(RunError, match="evidence_digest was"):
        answers(tmp_path, partition_rows=10)
    ingested(tmp_path, overwrite=True)
    (tmp_path / "set").rename(tmp_path / "moved")
    (tmp_path / "out" / "posteriors" / "part-00001.parquet").unlink()
    assert answers(tmp_path, "moved", partition_rows=10) == found


def test_what_was_not_kept_and_how_cells_are_read_is_told(tmp_path: Path) -> None:
    ingested(tmp_path, table_of().drop("note"), keep=("row",))
    with pytest.raises(EvidenceError, match=r"no column 'note' was kept .* encode it anew with --keep note"):
        answers(tmp_path)
    for options in ({"case_id": "row"}, {"missing": ("no",)}):
        name = next(iter(options)).replace("_", "-")
        with pytest.raises(EvidenceError, match=f"encoded already, and --{name} says how to: leave it out"):
            answers(tmp_path, keep=("row",), **options)
    (tmp_path / "names.toml").write_text("hide_targets = true")
    with pytest.raises(EvidenceError, match="leave it to `junctor run --hide-targets`"):
        ingested(tmp_path, mapping=str(tmp_path / "names.toml"))
    with pytest.raises(EvidenceError, match=r"row 4 of .*part-00000\.parquet: column 'xray': unknown state 'maybe'"):
        answers(tmp_path, keep=("row",), strict=True)


def test_several_places_are_one_table(tmp_path: Path) -> None:
    for name, shift in (("b", 0), ("a", 30)):
        parquet.write_table(table_of(30, shift), tmp_path / f"{name}.parquet")
    places = (str(tmp_path / "b.parquet"), str(tmp_path / "a.parquet"))
    ingest_dataset(IngestJob(ASIA, places, str(tmp_path / "set"), keep=("row", "note")))
    parquet.write_table(table_of(60), tmp_path / "all.parquet")
    assert answers(tmp_path) == answers(tmp_path, "all.parquet", "direct")


def test_datasets_of_other_types_are_kept_apart(tmp_path: Path) -> None:
    table = table_of(5)
    others = {
        "found note of type string": table.set_column(5, "note", pa.array(["a"] * 5)),
        "found case ids of type int64": table.set_column(0, "case_id", pa.array(range(5))),
    }
    ingested(tmp_path, table)
    for number, (words, other) in enumerate(others.items()):
        (tmp_path / f"{number}").mkdir()
        ingested(tmp_path / f"{number}", other)
        places = (str(tmp_path / "set"), str(tmp_path / f"{number}" / "set"))
        with pytest.raises(EvidenceError, match=words):
            ingest_dataset(IngestJob(ASIA, places, str(tmp_path / "both"), keep=("row", "note")))
    places = (str(tmp_path / "set"), str(tmp_path / "evidence.parquet"))
    with pytest.raises(EvidenceError, match=r"evidence\.parquet: not encoded, as other files beside it are"):
        ingest_dataset(IngestJob(ASIA, places, str(tmp_path / "both"), keep=("row", "note")))


def test_evidence_that_grows(world: World) -> None:
    def ingest(output: str = "set", **changes: object) -> Manifest:
        job = world.job(output, **changes)
        return ingest_dataset(IngestJob(job.network, job.evidence, job.output, **job.options))

    world.days([1, 2])
    first = ingest()
    assert (first.rows, len(first.inputs)) == (10, 2)
    before = {path: path.stat().st_mtime_ns for path in (world.folder / "set" / "evidence").glob("*/*")}
    assert len(before) == 4
    asked = {"network": str(world.folder / "net.bif"), "keep": ()}
    found = answers(world.folder, output="one", **asked)
    world.days([3])
    second = ingest()
    assert (second.rows, second.increments[-1].rows) == (15, 5)
    assert (
        before.items()
        <= {path: path.stat().st_mtime_ns for path in (world.folder / "set" / "evidence").glob("*/*")}.items()
    )
    assert ingest().increment is None
    assert found != answers(world.folder, output="two", **asked)
    assert answers(world.folder, output="two", **asked) == answers(world.folder, "in", "direct", **asked)
    # A run that grows with its dataset answers what is new there.
    runs = {**asked, "incremental": True}
    shutil.copytree(world.folder / "set", world.folder / "copy")
    answers(world.folder, "copy", "grown", **runs)
    world.days([4])
    ingest("copy")
    answers(world.folder, "copy", "grown", **runs)
    assert json.loads((world.folder / "grown" / "manifest.json").read_text())["increments"][-1]["rows"] == 5
    # The part of a file that changed has another name: its answers take the place of those before.
    world.write(f"{DAY.format(3)}/a.parquet", seed=7, rows=4)
    ingest("copy")
    answers(world.folder, "copy", "grown", **runs)
    cases = parquet.read_table(world.evidence)["case_id"].to_pylist()
    assert sorted(world.answers("grown")["case_id"].to_pylist()) == sorted(cases)
    part = next((world.folder / "copy" / "evidence").glob("*-04/*"))
    part.write_bytes(part.read_bytes()[:-9] + bytes([part.read_bytes()[-9] ^ 1]) + part.read_bytes()[-8:])
    with pytest.raises(EvidenceError, match="not as it was ingested"):
        answers(world.folder, "copy", "three", **asked)


def test_a_store_has_datasets_too(bucket: Bucket, tmp_path: Path) -> None:
    parquet.write_table(table_of().drop(["row", "note"]), tmp_path / "evidence.parquet")
    for output in (f"s3://{bucket.name}/set", bucket.url("told")):
        ingest_dataset(IngestJob(ASIA, str(tmp_path / "evidence.parquet"), output))
    answers(tmp_path, "evidence.parquet", "direct", keep=())
    run(Job(ASIA, f"s3://{bucket.name}/set", str(tmp_path / "out")), HERE)
    assert [path.name for path in (tmp_path / "out" / "evidence").iterdir()] == ["done.json"]
    assert junctor.read_answers(tmp_path / "out").equals(junctor.read_answers(tmp_path / "direct"))
    # The record of the run does not tell how a URL with more in it is opened.
    assert junctor_cli("run", bucket.url("told"), "-o", str(tmp_path / "copied"), "-q").exit_code == 0
    assert len(list((tmp_path / "copied" / "evidence").glob("*.parquet"))) == 1
    assert junctor.read_answers(tmp_path / "copied").equals(junctor.read_answers(tmp_path / "direct"))


def test_the_command_line(tmp_path: Path) -> None:
    parquet.write_table(table_of().drop(["row", "note"]), tmp_path / "evidence.parquet")
    made = junctor_cli("ingest", ASIA, str(tmp_path / "evidence.parquet"), "-o", str(tmp_path / "set"), "-q")
    assert made.exit_code == 0, made.stderr
    assert "50 rows in" in made.stdout
    assert "46 ok, 4 invalid" in made.stdout
    assert f"with reasons: {tmp_path}/set/rejects.parquet" in made.stdout
    done = junctor_cli("run", str(tmp_path / "set"), "-o", str(tmp_path / "out"), "-q")
    assert done.exit_code == 0, done.stderr
    assert junctor.read_answers(tmp_path / "out").num_rows == ROWS
    assert junctor_cli("verify", str(tmp_path / "set")).exit_code == 0
    for command in ("status", "report"):
        told = junctor_cli(command, str(tmp_path / "set"))
        assert (told.exit_code, "set: a dataset, not a run" in " ".join(told.stderr.split())) == (6, True)
    alone = junctor_cli("run", ASIA, "-o", str(tmp_path / "none"))
    assert alone.exit_code == 2
    assert "would have to be a dataset of `junctor ingest`" in " ".join(alone.stderr.replace("│", " ").split())
