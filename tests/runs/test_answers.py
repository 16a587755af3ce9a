"""Answers read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import junctor
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from helpers.hmm_models import random_model
from junctor.hmm import posteriors, viterbi
from junctor.model.errors import EvidenceError, RunError
from junctor.model.query import Query
from junctor.runs.results import PART_KEY
from junctor.runs.run import run
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from pyarrow import parquet

ASIA = str(Path(__file__).parents[2] / "data" / "asia.bif")
ROWS = {"smoke": ["yes", None, "no", "what", "yes"], "xray": ["yes", "no", None, None, "no"]}


def answered(folder: Path, **options: Any) -> str:
    evidence = folder / "rows.csv"
    lines = [",".join("" if cell is None else cell for cell in row) for row in zip(*ROWS.values(), strict=True)]
    evidence.write_text("\n".join([",".join(ROWS), *lines]) + "\n")
    output = str(folder / "out")
    run(Job(ASIA, str(evidence), output, partition_rows=2, **options), Resources(workers=0))
    return output


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_all_parts_in_order(tmp_path: Path, format: Any) -> None:
    output = answered(tmp_path, output_format=format)
    expected = junctor.posteriors(ASIA, ROWS, device="cpu")
    table = junctor.read_answers(output)
    assert table.to_pylist() == expected.to_pylist()
    some = junctor.read_answers(Path(output), ["status", "lung"])
    assert some.equals(table.select(["status", "lung"]))
    batches = list(junctor.answer_batches(output, "lung", rows=1))
    assert all(batch.num_rows <= 1 for batch in batches)
    assert pa.Table.from_batches(batches)["lung"].to_pylist() == table["lung"].to_pylist()


def test_named_columns(tmp_path: Path) -> None:
    output = answered(tmp_path)
    table = junctor.read_answers(output, ["case_id", "lung", "status"], named=True)
    assert table.column_names == ["case_id", "lung=yes", "lung=no", "status"]
    lists = junctor.read_answers(output)["lung"].to_pylist()
    assert table["lung=yes"].to_pylist() == [None if cell is None else cell[0] for cell in lists]
    assert table.to_pandas()["lung=no"][0] == lists[0][1]
    direct = junctor.named_columns(junctor.posteriors(ASIA, ROWS, targets=["lung"], device="cpu"))
    assert direct["lung=yes"].to_pylist() == table["lung=yes"].to_pylist()
    with pytest.raises(EvidenceError, match="no names of states"):
        junctor.named_columns(pa.table({"x": [1]}))
    batches = junctor.answer_batches(output, ["case_id", "lung", "status"], rows=2)
    assert pa.concat_tables(map(junctor.named_columns, batches)).equals(table)


@pytest.mark.parametrize("other", [pd.DataFrame({"lung": [1.0]}), {"lung": [1.0]}, [], None, "answers"])
def test_named_columns_of_what_is_no_table(other: Any) -> None:
    with pytest.raises(EvidenceError, match=f"found {type(other).__name__}, expected answers of Junctor as an Arrow"):
        junctor.named_columns(other)


def test_answers_about_sequences_stay_as_they_are() -> None:
    for answer in (viterbi, posteriors):
        table = answer(random_model(2, 3), [[0, 1], [2]], device="cpu")
        assert junctor.named_columns(table).equals(table)


def test_rows_of_a_batch_may_be_a_number_of_numpy(tmp_path: Path) -> None:
    rows: Any = np.int64(2)
    assert [batch.num_rows for batch in junctor.answer_batches(answered(tmp_path), rows=rows)] == [2, 2, 1]


def test_a_run_without_rows_has_one_empty_batch(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("smoke\n")
    run(Job(ASIA, str(tmp_path / "rows.csv"), str(tmp_path / "out")), Resources(workers=0))
    (batch,) = junctor.answer_batches(tmp_path / "out", ["lung", "status"])
    assert (batch.num_rows, batch.schema.names) == (0, ["lung", "status"])


@pytest.mark.parametrize("rows", [0, -1, None])
def test_a_batch_has_rows(tmp_path: Path, rows: Any) -> None:
    with pytest.raises(EvidenceError, match="expected at least 1"):
        next(junctor.answer_batches(answered(tmp_path), rows=rows))


@pytest.mark.parametrize("columns", [5, [1], [None]])
def test_columns_are_texts(tmp_path: Path, columns: Any) -> None:
    with pytest.raises(EvidenceError, match=r"found columns 5, expected a list of texts|in columns, expected texts"):
        junctor.read_answers(answered(tmp_path), columns)


@pytest.mark.parametrize(
    "query", [Query("mpe"), Query(answers="scores"), Query(answers="scores", top=2)], ids=["mpe", "scores", "top"]
)
def test_other_answers(tmp_path: Path, query: Query) -> None:
    output = answered(tmp_path, query=query)
    whole = junctor.read_answers(output, named=True)
    assert whole.num_rows == 5
    few = junctor.read_answers(output, ["lung", "status"], named=True)
    assert few["status"].to_pylist() == ["ok", "ok", "ok", "invalid", "ok"]
    for name in few.column_names:
        assert few[name].to_pylist() == whole[name].to_pylist()


def test_named_columns_of_the_layout_in_columns(tmp_path: Path) -> None:
    table = junctor.read_answers(answered(tmp_path, layout="columns"), named=True)
    assert "lung=yes" in table.column_names


def test_increments(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    job = Job(ASIA, str(folder), str(tmp_path / "out"), incremental=True)
    for name in ("b", "a"):
        (folder / f"{name}.csv").write_text(f"case_id,smoke\n{name},yes\n")
        run(job, Resources(workers=0))
    assert sorted(junctor.read_answers(job.output)["case_id"].to_pylist()) == ["a", "b"]


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_a_run_that_is_replaced_meanwhile(tmp_path: Path, format: Any) -> None:
    output = answered(tmp_path, output_format=format)
    batches = junctor.answer_batches(output, ["smoke"])
    assert next(batches).num_rows == 2
    # Parts of the same names, rows and columns.
    answered(tmp_path, output_format=format, overwrite=True, missing=("what",))
    with pytest.raises(RunError, match=r"part-00001.*not the file that manifest.json named.*read them again"):
        list(batches)
    # The same run made anew is the same answers.
    batches = junctor.answer_batches(output, ["smoke"])
    first = [next(batches)]
    (Path(output) / "manifest.json").unlink()
    (Path(output) / "posteriors" / f"part-00002.{format}").unlink()
    answered(tmp_path, output_format=format, missing=("what",))
    whole = junctor.read_answers(output, ["smoke"])
    assert pa.Table.from_batches([*first, *batches]).equals(whole)


def test_parts_of_versions_that_named_no_run(tmp_path: Path) -> None:
    output = Path(answered(tmp_path))
    before = junctor.read_answers(output)
    manifest = json.loads((output / "manifest.json").read_text())
    for part in manifest["parts"]:
        table = parquet.read_table(output / part["file"])
        counts = json.loads(table.schema.metadata[PART_KEY])
        del counts["run"]
        metadata = {**table.schema.metadata, PART_KEY: json.dumps(counts)}
        parquet.write_table(table.replace_schema_metadata(metadata), output / part["file"])
        part["bytes"] = (output / part["file"]).stat().st_size
    (output / "manifest.json").write_text(json.dumps(manifest))
    assert junctor.read_answers(output).equals(before)
    (output / manifest["parts"][1]["file"]).write_bytes((output / manifest["parts"][2]["file"]).read_bytes())
    with pytest.raises(RunError, match=r"part-00001.*not the file that manifest.json named.*junctor verify"):
        junctor.read_answers(output)


def test_what_is_no_finished_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no finished run"):
        junctor.read_answers(tmp_path)
    output = answered(tmp_path)
    with pytest.raises(EvidenceError, match="no column 'lungs', did you mean 'lung'"):
        junctor.read_answers(output, ["lungs"])
    for columns in ([], ["lung", "lung"]):
        with pytest.raises(EvidenceError, match="expected at least one, and each once"):
            junctor.read_answers(output, columns)
    (Path(output) / "posteriors" / "part-00001.parquet").unlink()
    with pytest.raises(RunError, match=r"part-00001.*junctor verify"):
        junctor.read_answers(output)
    for record in ({}, {"parts": []}, {"parts": [1]}):
        (Path(output) / "manifest.json").write_text(json.dumps(record))
        with pytest.raises(RunError):
            junctor.read_answers(output)
