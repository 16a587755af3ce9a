"""Runs of sequences from files to files: what lies where, interruptions, workers, the command line, the flow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from helpers.hmm_models import random_model
from junctor.hmm import build_model, viterbi, write_model
from junctor.hmm import run as module
from junctor.hmm.run import SequenceJob
from junctor.model.errors import EvidenceError, RunError
from junctor.model.options import ComputeOptions
from junctor.runs.integrity import verify
from junctor.runs.run import read_manifest, run
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from pyarrow import parquet


def make_job(folder: Path, **changes: Any) -> SequenceJob:
    bare = random_model(6, 3, 1)
    model = build_model(bare.start, bare.transition, bare.emission, list("uvwxyz"), ["one", "two", "three"])
    write_model(model, folder / "model.parquet")
    rng = np.random.default_rng(0)
    words = [[model.symbol_names[s] for s in rng.integers(0, 3, n)] for n in rng.integers(1, 9, 22)]  # type: ignore[index]
    words += [[], ["uno"], None]  # type: ignore[list-item]
    table = pa.table({"case_id": [f"c{n}" for n in range(25)], "words": pa.array(words)})
    parquet.write_table(table, folder / "words.parquet")
    paths = (str(folder / each) for each in ("model.parquet", "words.parquet", "out"))
    return SequenceJob(*paths, **{"partition_rows": 10, **changes})


def answers(job: SequenceJob) -> pa.Table:
    return parquet.read_table(job.directory.path / job.query)


def test_files_of_a_run(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    manifest = run(job)
    assert manifest.statuses == {"ok": 22, "impossible": 0, "invalid": 3}
    assert [part.rows for part in manifest.parts] == [10, 10, 5]
    table = answers(job)
    assert table.column_names == ["case_id", "path", "log_probability", "status", "reason"]
    assert table.column("case_id").to_pylist() == [f"c{n}" for n in range(25)]
    wanted = viterbi(job.model, parquet.read_table(job.sequences))
    for name in ("case_id", "path", "log_probability", "status", "reason"):
        assert table.column(name).to_pylist() == wanted.column(name).to_pylist()
    smooth = job.but(query="posteriors", output=str(tmp_path / "smooth"))
    assert run(smooth).statuses == manifest.statuses
    row = answers(smooth).to_pylist()[0]
    assert [sum(step) for step in row["posterior"]] == pytest.approx([1.0] * len(row["posterior"]))


def test_a_damaged_part_is_named_and_made_again(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    run(job)
    assert verify(job.directory).faults == ()
    path = job.directory.path / "viterbi" / "part-00001.parquet"
    content = path.read_bytes()
    path.write_bytes(b"")
    assert [fault.file for fault in verify(job.directory).faults] == ["viterbi/part-00001.parquet"]
    assert run(job).reused_parts == 2
    assert path.read_bytes() == content


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(tmp_path)
    whole = job.but(output=str(tmp_path / "whole"))
    run(whole)
    answer = module.SequenceTask.answer

    def fail(self: module.SequenceTask, *args: Any) -> Any:
        if self.part == 1:
            raise KeyboardInterrupt
        return answer(self, *args)

    monkeypatch.setattr(module.SequenceTask, "answer", fail)
    with pytest.raises(KeyboardInterrupt):
        run(job, Resources(workers=0))
    monkeypatch.undo()
    manifest = run(job)
    assert (manifest.reused_parts, read_manifest(job.directory).rows) == (1, 25)
    for part in manifest.parts:
        assert (job.directory.path / part.file).read_bytes() == (whole.directory.path / part.file).read_bytes()
    assert run(job).reused_parts == 3


def test_another_run_is_not_mixed_with(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    run(job)
    with pytest.raises(RunError, match="precision was 'double', now 'single'"):
        run(job.but(precision="single"))
    with pytest.raises(EvidenceError, match="row 23: the sequence is empty"):
        run(job.but(strict=True, overwrite=True))
    assert run(job).reused_parts == 3
    assert run(job.but(precision="single", overwrite=True)).reused_parts == 0
    (tmp_path / "e.csv").write_text("smoke\nyes\n")
    evidence = Job(ASIA, str(tmp_path / "e.csv"), job.output)
    with pytest.raises(RunError, match="one of another kind"):
        run(evidence)
    run(evidence.but(overwrite=True))
    assert not (tmp_path / "out" / "viterbi").exists()
    with pytest.raises(RunError, match="one of another kind"):
        run(job)


def test_what_changed_below_a_run_is_noticed(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    run(job)
    (job.directory.path / "manifest.json").unlink()
    (job.directory.path / "viterbi" / "part-00000.parquet").unlink()
    module.model_for.cache_clear()
    module.engine_for.cache_clear()
    write_model(random_model(3, 2), job.directory.network)
    with pytest.raises(RunError, match="is not the model that this run began with"):
        run(job)


def test_a_file_without_rows(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    parquet.write_table(parquet.read_table(job.sequences).slice(0, 0), job.sequences)
    assert run(job).rows == 0
    assert answers(job).schema.field("case_id").type == pa.string()


def test_a_model_without_emissions(tmp_path: Path) -> None:
    model = build_model([0.5, 0.5], [[0.7, 0.3], [0.3, 0.7]])
    write_model(model, tmp_path / "m.parquet")
    logs = [[[-0.1, -2.0], [-3.0, -0.1]], None, [[-0.1, -0.2]], []]
    for rows, name in ((logs, "some"), ([], "none")):
        table = pa.table({"x": pa.array(rows, pa.list_(pa.list_(pa.float64())))})
        parquet.write_table(table, tmp_path / "s.parquet")
        for query in ("viterbi", "posteriors"):
            output = str(tmp_path / f"{name}-{query}")
            job = SequenceJob(str(tmp_path / "m.parquet"), str(tmp_path / "s.parquet"), output, query, partition_rows=2)
            found = run(job)
            assert found.statuses == {"ok": len(rows) // 2, "impossible": 0, "invalid": len(rows) // 2}
            if query == "viterbi" and rows:
                assert answers(job).column("path").to_pylist() == [[0, 1], None, [0], None]


def test_workers_write_the_same_bytes(tmp_path: Path, scheduler: str) -> None:
    job = make_job(tmp_path)
    other = job.but(output=str(tmp_path / "other"))
    first, second = run(job, Resources(workers=0)), run(other, Resources(scheduler=scheduler))
    assert first.parts == second.parts
    # Too little memory for answers that wait while others are made.
    little = job.but(output=str(tmp_path / "little"))
    assert run(little, Resources(workers=0, compute=ComputeOptions(1 << 20))).parts == first.parts
    for part in first.parts:
        assert (job.directory.path / part.file).read_bytes() == (other.directory.path / part.file).read_bytes()


def test_the_command_line(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    command = ["viterbi", job.model, job.sequences, "-o", job.output, "--no-prefect"]
    result = junctor_cli(*command, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["statuses"]["ok"] == 22
    result = junctor_cli(*command, "--strict", "--overwrite")
    assert result.exit_code == EvidenceError.exit_code
    assert "row 23: the sequence is empty" in result.output
    result = junctor_cli(*command, "--posteriors", "--overwrite", "-q")
    assert result.exit_code == 0, result.output
    assert "posteriors: 1 part" in result.output
    result = junctor_cli("viterbi", str(tmp_path / "no.json"), job.sequences, "-o", job.output)
    assert result.exit_code == EvidenceError.exit_code
