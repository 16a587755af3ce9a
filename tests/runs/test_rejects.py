from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import junctor
import pyarrow as pa
import pytest
from helpers.files import ASIA
from junctor.model.errors import InputError
from junctor.model.options import Layout, OutputFormat
from junctor.runs import rejects
from junctor.runs.run import run
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from pyarrow import csv, parquet

HERE = Resources(workers=0)
ROWS = 50
BAD = [3, 4, 20, 49]


def make_job(folder: Path, bad: list[int], **changes: object) -> Job:
    cells = ["maybe" if row in bad else "yes" for row in range(ROWS)]
    notes = [{"n": row} for row in range(ROWS)]
    ids = [f"c{row}" for row in range(ROWS)]
    parquet.write_table(
        pa.table({"case_id": ids, "xray": cells, "row": ids, "note": notes}), folder / "evidence.parquet"
    )
    asked = {"partition_rows": 10, "keep": ("row", "note"), **changes}
    return Job(ASIA, str(folder / "evidence.parquet"), str(folder / "out"), **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("output_format", ["parquet", "arrow"])
@pytest.mark.parametrize("layout", ["lists", "columns"])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_rows_that_are_not_ok(
    tmp_path: Path, ending: str, layout: Layout, output_format: OutputFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejects, "BATCH_ROWS", 3)
    file = tmp_path / f"bad.{ending}"
    run(make_job(tmp_path, BAD, rejects=str(file), layout=layout, output_format=output_format), HERE)
    found = csv.read_csv(file) if ending == "csv" else parquet.read_table(file)
    # The evidence has a column `row` of its own.
    assert found.column_names == ["row_", "case_id", "row", "note", "status", "reason"]
    assert found["row_"].to_pylist() == [row + 1 for row in BAD]
    assert found["case_id"].to_pylist() == found["row"].to_pylist() == [f"c{row}" for row in BAD]
    assert found["status"].to_pylist() == ["invalid"] * len(BAD)
    assert all("unknown state 'maybe'" in reason for reason in found["reason"].to_pylist())
    assert found["note"][0].as_py() == ('{"n": 3}' if ending == "csv" else {"n": 3})


@pytest.mark.parametrize("output_format", ["parquet", "arrow"])
def test_ids_of_rows_that_are_not_ok_may_be_uuids(tmp_path: Path, output_format: OutputFormat) -> None:
    job = make_job(tmp_path, BAD, rejects=str(tmp_path / "bad.csv"), output_format=output_format, keep=())
    ids = [UUID(int=row) for row in range(ROWS)]
    table = parquet.read_table(tmp_path / "evidence.parquet").select(["xray"])
    as_bytes = pa.array([each.bytes for each in ids], pa.uuid())
    parquet.write_table(table.append_column("case_id", as_bytes), tmp_path / "evidence.parquet")
    run(job, HERE)
    assert junctor.read_answers(tmp_path / "out")["case_id"].to_pylist() == ids
    found = csv.read_csv(tmp_path / "bad.csv")["case_id"].to_pylist()
    assert found == [str(ids[row]) for row in BAD]


@pytest.mark.parametrize("output_format", ["parquet", "arrow"])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_views_of_rows_that_are_not_ok_are_texts(tmp_path: Path, output_format: OutputFormat, ending: str) -> None:
    keep = ("bytes", "record")
    job = make_job(tmp_path, BAD, rejects=str(tmp_path / f"bad.{ending}"), output_format=output_format, keep=keep)
    table = parquet.read_table(tmp_path / "evidence.parquet").select(["xray"])
    ids = [f"c{row}" for row in range(ROWS)]
    table = table.append_column("case_id", pa.array(ids, pa.string_view()))
    table = table.append_column("bytes", pa.array(map(str.encode, ids), pa.binary_view()))
    record = pa.struct([("x", pa.string_view())])
    table = table.append_column("record", pa.array([{"x": each} for each in ids], record))
    parquet.write_table(table, tmp_path / "evidence.parquet")
    run(job, HERE)
    file = tmp_path / f"bad.{ending}"
    found = csv.read_csv(file) if ending == "csv" else parquet.read_table(file)
    assert found["case_id"].to_pylist() == found["bytes"].to_pylist() == [ids[row] for row in BAD]
    # Parquet gives records back without views.
    told = [cell if isinstance(cell, dict) else json.loads(cell) for cell in found["record"].to_pylist()]
    assert told == [{"x": ids[row]} for row in BAD]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_without_any_there_are_columns(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"bad.{ending}"
    run(make_job(tmp_path, [], rejects=str(file)), HERE)
    found = csv.read_csv(file) if ending == "csv" else parquet.read_table(file)
    assert found.num_rows == 0
    assert found.column_names == ["row_", "case_id", "row", "note", "status", "reason"]


def test_another_ending_is_refused_before_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.csv or \.parquet"):
        run(make_job(tmp_path, BAD, rejects="bad.xlsx"), HERE)
    assert not (tmp_path / "out" / "run.json").exists()


@pytest.mark.parametrize(
    ("name", "evidence"),
    [
        ("evidence.csv", "evidence.csv"),
        ("sub/../link.csv", "evidence.csv"),
        ("net.parquet", "in"),
        ("map.csv", "in"),
        ("in/bad.csv", "in"),
        ("in/date=2026-11-22/bad.csv", "in"),
        ("in/date=2026-11-22/bad.csv", "in/date=2026-11-*/*.csv"),
        ("out/posteriors/part-00000.parquet", "in"),
        ("out/network.parquet", "in"),
        ("out/scores.csv", "in"),
        ("folder.csv", "in"),
        ("", "in"),
    ],
)
@pytest.mark.parametrize("incremental", [False, True])
def test_no_other_file_is_replaced(
    tmp_path: Path, name: str, evidence: str, incremental: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("in/date=2026-11-22", "sub", "folder.csv"):
        Path(folder).mkdir(parents=True)
    junctor.write_network(junctor.read_network(ASIA), "net.parquet")
    for file in ("evidence.csv", "in/a.csv", "in/date=2026-11-22/a.csv"):
        Path(file).write_text("xray\nyes\nmaybe\n")
    Path("link.csv").symlink_to("evidence.csv")
    Path("map.csv").write_text("")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    job = Job("net.parquet", evidence, "out", incremental=incremental, mapping="map.csv", rejects=name)
    with pytest.raises(InputError, match="--rejects"):
        run(job, HERE)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["out/bad.csv", "in/_bad.csv", "in/date=2026-12-01/bad.csv", "index.csv"])
def test_places_beside_other_files(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in/date=2026-11-22").mkdir(parents=True)
    Path("in/date=2026-11-22/a.csv").write_text("xray\nmaybe\n")
    for _ in range(2):
        run(Job(ASIA, "in/date=2026-11-*/*.csv", "out", incremental=True, rejects=name), HERE)
        assert csv.read_csv(name)["row"].to_pylist() == [1]


def test_sequences_too(tmp_path: Path) -> None:
    from junctor.hmm.run import SequenceJob
    from junctor.model.errors import ThresholdError

    (tmp_path / "model.json").write_text(
        '{"start": [0.5, 0.5], "transition": [[0.9, 0.1], [0.1, 0.9]], "emission": [[0.9, 0.1], [0.2, 0.8]]}'
    )
    parquet.write_table(pa.table({"sequence": [[0, 1], [5], [1, 1, 0]]}), tmp_path / "words.parquet")
    job = SequenceJob(
        str(tmp_path / "model.json"),
        str(tmp_path / "words.parquet"),
        str(tmp_path / "out"),
        rejects=str(tmp_path / "bad.parquet"),
        fail_if=("invalid > 0",),
        report=True,
    )
    with pytest.raises(ThresholdError, match="row 2"):
        run(job, HERE)
    assert parquet.read_table(tmp_path / "bad.parquet")["row"].to_pylist() == [2]
    assert "Half of the rows have log_probability" in job.directory.report.read_text()
    with pytest.raises(InputError, match=r"words\.parquet of the same command"):
        run(job.but(rejects=job.sequences), HERE)
    with pytest.raises(InputError, match="no column"):
        run(SequenceJob(job.model, job.sequences, job.output, fail_if=("drift(x) > 0.1",)), HERE)


def test_of_all_increments(tmp_path: Path) -> None:
    folder, file = tmp_path / "in", tmp_path / "bad.csv"
    folder.mkdir()
    for night, cells in enumerate((["yes", "maybe"], ["perhaps", "no"])):
        csv.write_csv(pa.table({"xray": cells}), folder / f"{night}.csv")
        job = Job(ASIA, str(folder), str(tmp_path / "out"), incremental=True, rejects=str(file), report=True)
        run(job, HERE)
        assert csv.read_csv(file)["row"].to_pylist() == [2, 3][: night + 1]
    assert "2 of 4 rows" in job.directory.report.read_text()
