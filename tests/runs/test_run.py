from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import junctor
import numpy as np
import pyarrow as pa
import pytest
from helpers.options import on_cpu
from junctor.backends import cpu, row_trees
from junctor.engine.choose import Choice
from junctor.engine.engine import Engine
from junctor.engine.forecast import forecast, forecast_of, survey
from junctor.evidence.batch import EvidenceBatch
from junctor.evidence.files import lists
from junctor.evidence.patterns import patterns_of
from junctor.generate import Pattern, evidence_table, grid, random_network, sample
from junctor.model.errors import BudgetError, EvidenceError, InputError, RunError
from junctor.model.network import Factor, Network, Variable
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.runs import part_sizes
from junctor.runs import run as steps
from junctor.runs.partition import Part, PartTask, StageTimings, propagate_partition
from junctor.runs.placement import RunEstimate
from junctor.runs.run import Manifest, run
from junctor.runs.share import Share, finish, run_share
from junctor.runs.storage import Ingested, RunDirectory
from junctor.runs.workload import ENDINGS, Job
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.files import Checksum
from junctor.runtime.progress import Silence
from junctor.runtime.remote import location
from junctor.runtime.threads import in_threads
from junctor.strategies import number_ladder as blocks
from junctor.strategies.strategy import Route
from pyarrow import csv, parquet

HERE = Resources(workers=0)
ROWS = 50


@pytest.fixture(scope="module")
def network() -> Network:
    return random_network(8, seed=3, zeros=0.2)


@pytest.fixture(scope="module")
def evidence(network: Network) -> pa.Table:
    """Rows with many patterns, one impossible or not as it comes, one invalid."""
    table = evidence_table(network, sample(network, ROWS, seed=1), observed=0.5, pattern="random", seed=2)
    column = table.column_names[2]
    cells = table[column].cast(pa.string()).to_pylist()
    cells[7] = "no such state"
    return table.set_column(2, column, pa.array(cells))


@pytest.fixture
def job(network: Network, evidence: pa.Table, tmp_path: Path) -> Job:
    junctor.write_network(network, tmp_path / "net.bif")
    parquet.write_table(evidence, tmp_path / "evidence.parquet")
    return make_job(tmp_path)


def make_job(folder: Path, **changes: object) -> Job:
    asked = {"partition_rows": 12, "case_id": "case_id", **changes}
    return Job(str(folder / "net.bif"), str(folder / "evidence.parquet"), str(folder / "out"), **asked)  # type: ignore[arg-type]


def answers(job: Job) -> pa.Table:
    return parquet.read_table(job.directory.path / job.query.kind)


def part_times(job: Job) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (job.directory.path / job.query.kind).iterdir()}


@pytest.mark.parametrize(
    "query", [Query(), Query("posteriors", ("x_3", "x_1"), "single"), Query("mpe"), Query("mpe", ("x_2",))]
)
def test_files_hold_what_the_api_returns(job: Job, network: Network, evidence: pa.Table, query: Query) -> None:
    job = make_job(Path(job.network).parent, query=query)
    manifest = run(job, HERE)
    answer = junctor.posteriors if query.kind == "posteriors" else junctor.most_probable
    expected = answer(network, evidence, query.targets, query.precision, case_id="case_id")
    found = answers(job)
    assert found["case_id"].to_pylist() == evidence["case_id"].to_pylist()
    close_tables(found, expected)
    assert manifest.rows == ROWS
    assert manifest.statuses["invalid"] == 1
    assert len(manifest.parts) == 5


def close_tables(found: pa.Table, expected: pa.Table) -> None:
    """Check that tables of answers are equal but for rounding."""
    assert found.schema.equals(expected.schema)
    for name in expected.column_names:
        if pa.types.is_fixed_size_list(expected.schema.field(name).type):
            close(found[name], expected[name])
        elif pa.types.is_floating(expected.schema.field(name).type):
            np.testing.assert_allclose(numbers(found[name]), numbers(expected[name]), rtol=1e-6)
        else:
            assert found[name].to_pylist() == expected[name].to_pylist()


def numbers(column: pa.ChunkedArray) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in column.to_pylist()])


def close(found: pa.ChunkedArray, expected: pa.ChunkedArray) -> None:
    assert found.is_null().equals(expected.is_null())
    np.testing.assert_allclose(found.combine_chunks().flatten(), expected.combine_chunks().flatten(), atol=1e-6)


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_partitions_do_not_show_in_the_answers(job: Job, rows: int) -> None:
    run(job, HERE)
    other = job.but(output=job.output + "2", partition_rows=rows)
    run(other, HERE)
    one, two = answers(job), answers(other)
    assert one.drop_columns(["x_0"]).column_names == two.drop_columns(["x_0"]).column_names
    assert one["status"].to_pylist() == two["status"].to_pylist()
    np.testing.assert_allclose(numbers(one["log_evidence"]), numbers(two["log_evidence"]), rtol=1e-12)
    for name in (f"x_{i}" for i in range(8)):
        close(one[name], two[name])


def test_no_rows(job: Job, evidence: pa.Table) -> None:
    parquet.write_table(evidence.slice(0, 0), job.evidence)
    manifest = run(job.but(csv=True), HERE)
    assert manifest.rows == 0
    assert len(manifest.parts) == 1
    assert answers(job).num_rows == 0
    assert answers(job).schema.field("x_0").type.list_size >= 1
    assert csv.read_csv(job.directory.csv("posteriors")).num_rows == 0
    assert run(job, HERE).reused_parts == 1


def test_one_row(job: Job, evidence: pa.Table) -> None:
    parquet.write_table(evidence.slice(3, 1), job.evidence)
    assert run(job, HERE).statuses["ok"] == 1


def test_csv_has_all_rows(job: Job) -> None:
    run(job.but(csv=True), HERE)
    table = csv.read_csv(job.directory.csv("posteriors"))
    assert table["status"].to_pylist() == answers(job)["status"].to_pylist()


def test_manifest_says_what_was_done(job: Job) -> None:
    manifest = run(job, HERE)
    record = json.loads(job.directory.manifest.read_text())
    assert record["format_version"] == 1
    assert record["spec"]["network_digest"] == junctor.read_network(job.network).digest
    for part in record["parts"]:
        path = job.directory.path / part["file"]
        assert part["bytes"] == path.stat().st_size
        assert part["rows"] == parquet.read_metadata(path).num_rows == sum(part["statuses"].values())
    assert sum(part["rows"] for part in record["parts"]) == record["rows"] == ROWS
    assert steps.read_manifest(job.directory) == manifest
    assert min(manifest.stages.reading, manifest.stages.propagating, manifest.stages.writing) > 0


class StopError(Exception):
    pass


def stop_after(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run answer so many `parts`, then break."""
    real = steps.propagate_here

    def propagate_here(tasks: Sequence[PartTask], memory: int) -> Iterator[tuple[Part, StageTimings]]:
        yield from real(tasks[:parts], memory)
        raise StopError

    monkeypatch.setattr(steps, "propagate_here", propagate_here)


def test_a_run_goes_on_where_it_stopped(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(StopError):
            run(job, HERE)
    assert not job.directory.manifest.exists()
    before = part_times(job)
    assert len(before) == 2
    manifest = run(job, HERE)
    assert manifest.reused_parts == 2
    assert before.items() <= part_times(job).items()
    whole = job.but(output=str(tmp_path / "whole"))
    run(whole, HERE)
    for path in (whole.directory.path / "posteriors").iterdir():
        assert path.read_bytes() == (job.directory.path / "posteriors" / path.name).read_bytes()


def test_a_finished_run_is_not_done_again(job: Job) -> None:
    run(job, HERE)
    before, manifest = part_times(job), job.directory.manifest.read_bytes()
    assert run(job, HERE).reused_parts == 5
    assert part_times(job) == before
    assert job.directory.manifest.read_bytes() == manifest


def test_a_part_that_went_missing_is_made_again(job: Job) -> None:
    first = run(job, HERE)
    lost = job.directory.answers_part("posteriors", 3)
    content = lost.read_bytes()
    lost.unlink()
    again = run(job, HERE)
    assert again.reused_parts == 4
    assert again.parts == first.parts
    assert lost.read_bytes() == content


def test_reading_evidence_goes_on_too(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    from junctor.evidence import encoded

    real, left = encoded.write_partition, iter(range(2))

    def write_partition(*args: object) -> Checksum:
        if next(left, None) is None:
            raise StopError
        return real(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(encoded, "write_partition", write_partition)
        with pytest.raises(StopError):
            run(job, HERE)
    # Threads write the partitions: the two need not be the first two.
    written = {part: part.stat().st_mtime_ns for part in job.directory.evidence_part(0).parent.glob("part-*")}
    assert written
    assert run(job, HERE).rows == ROWS
    assert {part: part.stat().st_mtime_ns for part in written} == written


def csv_job(folder: Path, network: Network, evidence: pa.Table, name: str) -> Job:
    """A job of two CSV files in a folder, or of the first of them."""
    junctor.write_network(network, folder / "net.bif")
    (folder / "in").mkdir()
    for part in ("a.csv", "b.csv"):
        csv.write_csv(evidence, folder / "in" / part)
    return make_job(folder).but(evidence=str(folder / name))


@pytest.mark.parametrize("name", ["in/a.csv", "in", pytest.param("in/*.csv", marks=pytest.mark.slow)])
@pytest.mark.parametrize("change", ["append", "truncate", "rewrite", "replace", "remove"])
def test_files_that_change_while_they_are_encoded(
    network: Network, evidence: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: str
) -> None:
    from junctor.evidence import encoded

    job, file, real = csv_job(tmp_path, network, evidence, name), tmp_path / "in" / "a.csv", encoded.write_partition
    whole = job.but(output=str(tmp_path / "whole"))
    rows, content, left = run(whole, HERE).rows, file.read_bytes(), iter([change])

    def write_partition(*args: object) -> Checksum:
        # Once: a third file may have the inode of the first.
        if next(left, None) is None:
            return real(*args)  # type: ignore[arg-type]
        if change == "append":
            file.write_bytes(content + content.splitlines(keepends=True)[-1])
        elif change == "truncate":
            os.truncate(file, len(content) // 2)
        elif change == "rewrite":
            file.write_bytes(content.swapcase())
        elif change == "replace":
            os.utime(shutil.copy(file, tmp_path / "new"), ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
            (tmp_path / "new").rename(file)
        else:
            file.unlink()
        return real(*args)  # type: ignore[arg-type]

    message = "no such file" if change == "remove" else "was written to while it was read"
    with monkeypatch.context() as patch:
        patch.setattr(encoded, "write_partition", write_partition)
        job.directory.path.mkdir()
        with pytest.raises(EvidenceError, match=rf"a\.csv: {message}"):
            run(job, HERE)
    assert not (job.directory.path / "evidence").exists()
    # Nothing of what was encoded then is taken for what is there again.
    file.write_bytes(content)
    assert run(job, HERE).rows == rows
    assert answers(job).equals(answers(whole))


def test_files_that_look_damaged_because_they_change(
    network: Network, evidence: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from junctor.evidence.read import TableSource

    job, real = csv_job(tmp_path, network, evidence, "in/a.csv"), TableSource.partitions

    def partitions(self: TableSource, *args: int) -> Iterator[object]:
        yield from real(self, *args)
        Path(job.evidence).write_text("x_0,x_1\n0\n")
        raise EvidenceError("found 1 cells, expected 2 as in the header")

    monkeypatch.setattr(TableSource, "partitions", partitions)
    with pytest.raises(EvidenceError, match=r"a\.csv: was written to while it was read"):
        run(job, HERE)


@pytest.mark.parametrize("change", ["new file", "file", "mapping"])
def test_inputs_that_change_between_digest_and_rows(
    network: Network, evidence: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    from junctor.evidence import read

    (tmp_path / "map.toml").write_text('[variables.x_1]\nmissing = ["a"]\n')
    job = csv_job(tmp_path, network, evidence, "in").but(mapping=str(tmp_path / "map.toml"))
    changed = {"new file": "in/c.csv", "file": "in/b.csv", "mapping": "map.toml"}[change]
    real = read.digest_of

    def digest_of(path: str) -> str:
        digest = real(path)
        if change == "mapping":
            Path(str(job.options["mapping"])).write_text('[variables.x_1]\nmissing = ["b"]\n')
        else:
            csv.write_csv(evidence.slice(1), tmp_path / changed)
        return digest

    monkeypatch.setattr(read, "digest_of", digest_of)
    with pytest.raises(EvidenceError, match=rf"{changed}: was written to while it was read"):
        run(job, HERE)


def test_a_file_that_comes_while_others_are_encoded(
    network: Network, evidence: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from junctor.evidence import encoded

    job, real = csv_job(tmp_path, network, evidence, "in"), encoded.write_partition

    def write_partition(*args: object) -> Checksum:
        csv.write_csv(evidence, tmp_path / "in" / "c.csv")
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(encoded, "write_partition", write_partition)
    monkeypatch.setattr(steps, "usable_cores", lambda: 1)
    assert run(job, HERE).rows == 2 * ROWS


@pytest.mark.parametrize(
    ("name", "output", "refused"),
    [
        ("in", "in", True),
        ("in", "in/out", True),
        ("in", "link/out", True),
        ("link", "in/out", True),
        ("in", "in/../in/out", True),
        ("in", "in/x/y", True),
        ("in/**/*.csv", "in/out", False),
        ("in/**/*", "in/out", True),
        ("in/**/*.parquet", "in/out", True),
        ("in/*/*.parquet", "in/out", True),
        ("in/*.parquet", "in", True),
        ("in/*", "in/out", True),
        ("in/**/*.p*", "in/out", True),
        ("in", "in/_out", False),
        ("in", "inner", False),
        ("in", "out", False),
        ("in/x", "in/out", False),
        ("in/a.csv", "in", False),
        ("in/*.csv", "in", False),
        ("in/*.csv", "in/out", False),
        ("in/*.parquet", "in/out", False),
        ("in/d=*/*.parquet", "in/out", False),
        ("in/**/*.parquet", "in/.out", False),
        ("-", "in", False),
        # By the links in it.
        ("in", "far", True),
        ("in", "far/out", True),
        ("in", "far/_out", False),
        ("in/**/*.parquet", "far", True),
        ("in/*/*.parquet", "far", False),
        ("in/d=*/*.parquet", "far", False),
        ("in/**/*.csv", "far", False),
        ("in", "link/x/far/out", True),
        ("in", "work", False),
        ("in", "work/raw", True),
        ("in", "done", True),
        ("in/x/*", "done", True),
        ("in/*", "done", True),
        ("in/**/*.csv", "done", False),
        ("done/posteriors", "done", True),
        ("done/posteriors/*.parquet", "done", True),
        ("work/raw", "work", False),
    ],
)
def test_an_output_among_the_evidence_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, output: str, refused: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("in/x", "in/d=1", "far", "work/raw", "done/posteriors"):
        Path(folder).mkdir(parents=True)
    for folder in ("far", "work/raw", "done/posteriors"):
        Path("in/x", Path(folder).name).symlink_to(tmp_path / folder)
    Path("in/x/up").symlink_to("..")
    Path("in/a.csv").write_text("x_0\n0\n")
    Path("link").symlink_to("in")
    for evidence in (name, str(tmp_path / name)) if name != "-" else (name,):
        job = Job("net.bif", evidence, output)
        if not refused:
            job.check_places()
            continue
        with pytest.raises(InputError, match="what the run writes there would be among the evidence"):
            run(job, HERE)
        with pytest.raises(InputError, match="what the run writes there would be among the evidence"):
            run_share(job, Share(1, 1), HERE, Silence())
    assert {path.name for path in Path("in").iterdir()} == {"x", "d=1", "a.csv"}
    # A table of all answers ends as the evidence does.
    assert lists("in/**/*.csv", tmp_path / "in" / "out", Job("", "", "", csv=True).endings)


@pytest.mark.parametrize(
    ("name", "output", "listed"),
    [
        ("s3://b/in", "s3://b/in/out", True),
        ("s3://b/in/**/*.parquet", "s3://b/in/out", True),
        ("s3://b/in", "s3://b/out", False),
        ("s3://b/in/*.parquet", "s3://b/in/out", False),
        ("s3://b/in", "s3://c/in/out", False),
        ("s3://b/in", "in/out", False),
        ("in", "s3://b/in/out", False),
    ],
)
def test_outputs_of_stores_are_told_by_their_names(name: str, output: str, listed: bool) -> None:
    assert lists(name, location(output), ENDINGS) == listed


def test_changed_input_is_noticed(job: Job, evidence: pa.Table) -> None:
    run(job, HERE)
    parquet.write_table(evidence.slice(0, 20), job.evidence)
    with pytest.raises(RunError, match="evidence_digest was"):
        run(job, HERE)
    junctor.write_network(random_network(8, seed=4), job.network)
    with pytest.raises(RunError, match="network_digest was"):
        run(job, HERE)
    with pytest.raises(RunError, match="query was 'posteriors', now 'mpe'"):
        run(job.but(query=Query("mpe")), HERE)


@pytest.mark.parametrize("changes", [{}, {"incremental": True}, {"incremental": True, "strict": True}], ids=str)
def test_a_finished_run_stays_until_the_evidence_in_its_place_was_read(
    tmp_path: Path, network: Network, evidence: pa.Table, changes: dict[str, Any]
) -> None:
    done = csv_job(tmp_path, network, evidence, "in/a.csv")
    run(done, HERE)
    kept = {path: path.read_bytes() for path in Path(done.output).rglob("*") if path.is_file()}
    folder = tmp_path / "other"
    folder.mkdir()
    name = network.variables[0].name
    other = done.but(evidence=str(folder), case_id=None, overwrite=True, **changes)
    refused = {"": "no evidence files", "nobody\nyes\n": "nobody", f'{name}\n{"x" * 99}\n"no\n': r"bad\.csv"}
    for text, message in refused.items():
        if text:
            (folder / "bad.csv").write_text(text)
        with pytest.raises(EvidenceError, match=message):
            run(other, HERE)
        assert {path: path.read_bytes() for path in kept} == kept
    assert run(done, HERE).reused_parts == len(run(done, HERE).parts)
    # Of evidence that grows one file is enough, unless the first bad one ends the run.
    (folder / "good.csv").write_text(f"{name}\n{network.variables[0].states[0]}\n")
    if other.grows and not other.options["strict"]:
        with pytest.raises(EvidenceError, match="1 could not be read, 1 answered"):
            run(other, HERE)
        assert junctor.read_answers(other.output).num_rows == 1
    else:
        with pytest.raises(EvidenceError, match=r"bad\.csv"):
            run(other, HERE)
        assert {path: path.read_bytes() for path in kept} == kept
        (folder / "bad.csv").unlink()
        assert run(other, HERE).rows == 1


def test_evidence_that_changes_while_it_is_checked_leaves_the_finished_run(
    tmp_path: Path, network: Network, evidence: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = csv_job(tmp_path, network, evidence, "in/a.csv")
    run(done, HERE)
    other, real = done.but(overwrite=True, partition_rows=20), Job.check_inputs

    def growing(self: Job, *args: Any) -> None:
        real(self, *args)
        with open(done.evidence, "a") as file:
            file.write("\n")

    monkeypatch.setattr(Job, "check_inputs", growing)
    with pytest.raises(EvidenceError, match="written to while it was read"):
        run(other, HERE)
    assert done.directory.manifest.exists()


def test_a_full_disk_stops_the_run_which_then_goes_on(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    real = parquet.write_table

    def full(table: pa.Table, path: Path, **options: object) -> None:
        if "part-00002" in path.name and path.parent.name == "posteriors":
            path.write_bytes(b"some of it")
            raise OSError(errno.ENOSPC, "No space left on device")
        real(table, path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(parquet, "write_table", full)
        with pytest.raises(RunError, match=r"part-00002\.parquet: no space left"):
            run(job, HERE)
    # Others that were under way are finished.
    whole = part_times(job)
    assert "part-00002.parquet" not in whole
    assert run(job, HERE).reused_parts == len(whole) >= 2


def test_a_path_that_is_not_utf8_is_refused_before_any_work(job: Job, tmp_path: Path) -> None:
    place = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    for changes in ({"output": place}, {"rejects": f"{place}.csv"}):
        with pytest.raises(RunError, match=r"caf\\udce9.*the path is not UTF-8"):
            run(job.but(**changes), HERE)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="the path is not UTF-8"):
        run_share(job.but(output=place), Share(1, 2), HERE, Silence())
    assert not Path(place).exists()
    assert not job.directory.path.exists()


def test_strict_refuses_the_row(job: Job) -> None:
    with pytest.raises(EvidenceError, match="no such state"):
        run(job.but(strict=True), HERE)
    # What failed answered nothing, so the same directory takes the corrected command.
    assert run(job, HERE).statuses["invalid"] == 1


def test_too_little_memory_is_refused_before_anything_runs(job: Job) -> None:
    with pytest.raises(BudgetError, match="allowed are"):
        run(job, Resources(workers=0, compute=ComputeOptions(1000)))
    assert not (job.directory.path / "posteriors").exists()
    # Memory does not change the answers, so the same run can go on with more.
    assert run(job, HERE).rows == ROWS


def grid_job(folder: Path, rows: list[int], query: Query, partition_rows: int = 2) -> tuple[Network, Job]:
    """A grid whose rows observe the first so many variables."""
    network = grid(12, 12)
    columns = {
        variable.name: pa.array([0 if i < observed else None for observed in rows], pa.int32())
        for i, variable in enumerate(network.variables)
    }
    folder.mkdir(exist_ok=True)
    junctor.write_network(network, folder / "net.parquet")
    parquet.write_table(pa.table(columns), folder / "evidence.parquet")
    names, output = [str(folder / name) for name in ("net.parquet", "evidence.parquet")], str(folder / "out")
    return network, Job(names[0], names[1], output, query, partition_rows=partition_rows)


def needed(network: Network, observed: int, query: Query) -> int:
    evidence = EvidenceBatch(1, {i: np.zeros(1, np.int32) for i in range(observed)})
    engine = Engine(network, query, ComputeOptions(memory=1 << 40, device="cpu"))
    return forecast(engine, evidence)[0].memory.needed


@pytest.mark.parametrize("query", [Query(), Query("posteriors", ("x_11_11",)), Query("mpe")])
def test_a_last_row_that_is_too_large_is_refused_before_anything_runs(tmp_path: Path, query: Query) -> None:
    network, job = grid_job(tmp_path, [130, 130, 131, 130, 130, 0], query)
    enough, too_little = needed(network, 0, query), needed(network, 130, query)
    assert enough > 2 * too_little
    # In chunks posteriors need less.
    memory = (enough + too_little) // 2 if query.kind == "mpe" else too_little
    with pytest.raises(BudgetError, match="allowed are"):
        run(job, Resources(workers=0, compute=ComputeOptions(memory)))
    assert not (job.directory.path / query.kind).exists()
    assert run(job, Resources(workers=0, compute=ComputeOptions(2 * enough))).rows == 6


def test_partitions_alike_are_planned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[int] = []

    def counting(engine: Engine, choice: Choice) -> list[Route]:
        planned.append(len(patterns_of(choice.batch).counts))
        return forecast_of(engine, choice)

    monkeypatch.setattr("junctor.engine.forecast.forecast_of", counting)
    _, job = grid_job(tmp_path, [130, 130, 140, 135, 130, 130, 100, 100, 130, 100], Query())
    run(job, HERE)
    assert planned == [1, 1]  # the first partition, and the one that observes less
    monkeypatch.setattr("junctor.engine.forecast.SURVEY_SECONDS", 0.0)
    monkeypatch.setattr("junctor.engine.forecast.SURVEY_SHARE", 0.0)
    _, job = grid_job(tmp_path / "2", [130, 130, 100, 100], Query())
    run(job, HERE)
    assert planned == [1, 1, 1]  # out of time


def test_with_targets_more_evidence_can_need_more_memory() -> None:
    # Seeing a common descendant makes parents depend on each other, so the row that observes more needs more.
    parents = [Variable(f"p{i}", tuple("abcdefgh")) for i in range(6)]
    factors = [Factor((i,), np.full(8, 1 / 8)) for i in range(6)]
    on = np.random.default_rng(0).random((8,) * 6)
    child = Factor((*range(6), 6), np.stack([on, 1 - on], axis=-1))
    network = Network("v", (*parents, Variable("child", ("no", "yes"))), (*factors, child))
    engine = Engine(network, Query("posteriors", ("p0",)), on_cpu(1 << 20))
    nothing = EvidenceBatch(1)
    seen = EvidenceBatch(1, {6: np.zeros(1, np.int32)})
    assert survey(engine, [nothing, nothing], 2).needed < 1 << 20
    with pytest.raises(BudgetError):
        survey(engine, [nothing, seen], 2)


def test_damaged_files_are_named_and_made_again(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    made = run(job, HERE).parts
    job.directory.manifest.unlink()
    job.directory.answers_part("posteriors", 1).write_bytes(b"not parquet")
    assert run(job, HERE).parts == made
    assert "part-00001.parquet: damaged" in caplog.text


def test_another_version_on_a_worker_is_refused(job: Job) -> None:
    spec = replace(steps.ingest_model(job, Silence())[0], junctor_version="0.0.0")
    task = PartTask(job.directory.path, 0, spec, Ingested(1, 1), ComputeOptions())
    with pytest.raises(RunError, match=r"this run needs 0\.0\.0"):
        propagate_partition(task, 10**9)


def test_progress_hears_of_every_row(job: Job) -> None:
    class Heard(Silence):
        def __init__(self) -> None:
            self.rows: dict[str, int] = {}
            self.name = ""

        def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
            self.name = name
            self.rows[name] = done

        def advance(self, rows: int) -> None:
            self.rows[self.name] += rows

        def within(self, rows: Callable[[], int]) -> None:
            pass

        def passes(self, done: int, of: int) -> None:
            raise AssertionError("no row of this run has passes")

    heard = Heard()
    run(job, HERE, heard)
    assert heard.rows["reading the evidence"] == heard.rows["propagating"] == ROWS
    assert list(heard.rows)[-2:] == ["verifying the parts", "writing the manifest"]


@pytest.mark.parametrize(
    ("pattern", "copies", "options"),
    [
        ("random", 1, {}),
        ("random", 4, {}),
        ("fixed", 1, {}),
        ("fixed", 1, {"precision": "log"}),
        ("fixed", 1, {"kind": "mpe"}),
    ],
)
def test_progress_counts_rows_within_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: Pattern, copies: int, options: dict[str, Any]
) -> None:
    class Asking(Silence):
        def within(self, rows: Callable[[], int]) -> None:
            self.rows = rows

    asking, seen = Asking(), list[int]()

    def asked(*args: Any) -> Any:
        found = in_threads(*args)
        seen.append(asking.rows())
        return found

    for module in (row_trees, cpu, blocks):
        monkeypatch.setattr(module, "in_threads", asked)
    network, rows = random_network(30, seed=5), 2_000
    table = evidence_table(network, sample(network, rows // copies), observed=0.4, pattern=pattern)
    junctor.write_network(network, tmp_path / "net.bif")
    parquet.write_table(pa.concat_tables([table] * copies), tmp_path / "evidence.parquet")
    job = make_job(tmp_path, partition_rows=rows // 2, query=Query(**options))
    run(job, Resources(workers=0, compute=ComputeOptions(threads=1)), asking)
    # Of the second part, beside the first one; blocks that threads are at do not count yet.
    assert seen
    assert rows * 3 // 4 < max(seen) <= rows
    assert asking.rows() == 0


@pytest.fixture
def dear(job: Job, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job whose parts nobody has chosen, with rows that are forecast to take seconds, whatever they share."""
    monkeypatch.setattr(part_sizes, "MOST_SHARED", math.inf)
    monkeypatch.setattr(Job, "estimate", lambda *_: RunEstimate(seconds=2.0 * ROWS))
    return job.but(partition_rows=None)


def spec_rows(job: Job) -> int:
    return job.directory.read_spec().partition_rows


def test_parts_hold_at_most_twenty_seconds_of_work(dear: Job, tmp_path: Path) -> None:
    manifest = run(dear, HERE)
    # Eight rows of two seconds; a power of two.
    assert [part.rows for part in manifest.parts] == [8, 8, 8, 8, 8, 8, 2]
    assert spec_rows(dear) == 8
    assert not list(dear.directory.path.rglob("*.tmp"))
    # The answers are those of one part.
    whole = dear.but(output=str(tmp_path / "whole"), partition_rows=100)
    assert len(run(whole, HERE).parts) == 1
    close_tables(answers(dear), answers(whole))


def test_parts_that_somebody_wants_stay_as_they_are(dear: Job) -> None:
    assert len(run(dear.but(partition_rows=100), HERE).parts) == 1
    assert len(run(dear.but(part_size=1 << 20, overwrite=True), HERE).parts) == 1


def test_parts_of_a_begun_run_stay_as_they_are(dear: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    run(dear, HERE)
    dear.directory.manifest.unlink()
    dear.directory.answers_part("posteriors", 3).unlink()
    times = part_times(dear)
    # On a machine that is as slow as anything.
    monkeypatch.setattr(Job, "estimate", lambda *_: RunEstimate(seconds=20.0 * ROWS))
    manifest = run(dear, HERE)
    assert (len(manifest.parts), manifest.reused_parts) == (7, 6)
    assert part_times(dear).items() > times.items()
    # Finished, it is found done; with other parts it is another run.
    assert run(dear, HERE).reused_parts == 7
    with pytest.raises(RunError, match="partition_rows was 8, now 4"):
        run(dear.but(partition_rows=4), HERE)


@pytest.mark.parametrize("step", ["forget", "write_json", "ingest_inputs"])
def test_a_run_that_ends_while_its_parts_are_cut_goes_on(dear: Job, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def end(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    def cut(*args: Any, **named: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(*((RunDirectory, step) if step == "forget" else (steps, step)), end)
            real(*args, **named)

    real = steps.cut
    with monkeypatch.context() as patch:
        patch.setattr(steps, "cut", cut)
        with pytest.raises(KeyboardInterrupt):
            run(dear, HERE)
    manifest = run(dear, HERE)
    assert [part.rows for part in manifest.parts] == [8, 8, 8, 8, 8, 8, 2]
    assert sorted(answers(dear)["case_id"].to_pylist()) == list(range(ROWS))


def test_shares_of_dear_work_agree_on_its_parts(dear: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        done = run_share(dear, Share(number, 2), HERE, Silence())
        assert (done.all_partitions, done.partitions) == (7, 5 - number)
        monkeypatch.setattr(Job, "estimate", lambda *_: RunEstimate(seconds=20.0 * ROWS))
    assert finish(dear.directory, Silence()).rows == ROWS


def test_increments_have_parts_of_one_size(dear: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows").mkdir()
    shutil.copyfile(dear.evidence, tmp_path / "rows" / "1.parquet")
    grows = dear.but(evidence=str(tmp_path / "rows"), incremental=True)
    assert len(run(grows, HERE).parts) == 7
    shutil.copyfile(dear.evidence, tmp_path / "rows" / "2.parquet")
    monkeypatch.setattr(Job, "estimate", lambda *_: RunEstimate(seconds=0.1))
    manifest = run(grows, HERE)
    assert [part.rows for part in manifest.parts] == 2 * [8, 8, 8, 8, 8, 8, 2]


def test_progress_hears_of_the_passes_of_a_large_row(tmp_path: Path) -> None:
    class Heard(Silence):
        def __init__(self) -> None:
            self.heard: list[tuple[int, int]] = []

        def passes(self, done: int, of: int) -> None:
            self.heard.append((done, of))

    network, job = grid_job(tmp_path, [0], Query())
    heard, memory = Heard(), needed(network, 0, Query()) // 2
    run(job, Resources(workers=0, compute=ComputeOptions(memory)), heard)
    passes = heard.heard[-1][1]
    assert passes > 1
    assert heard.heard == [(done, passes) for done in range(1, passes + 1)]


@pytest.fixture
def big(tmp_path: Path) -> Job:
    """A few hundred thousand rows, some seconds of work."""
    network = random_network(30, seed=5)
    junctor.write_network(network, tmp_path / "net.bif")
    table = evidence_table(network, sample(network, 300_000), observed=0.3, pattern="missing", missing=0.01)
    parquet.write_table(table, tmp_path / "evidence.parquet")
    return make_job(tmp_path, partition_rows=10_000)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_kill_9_and_the_same_command_again(big: Job, tmp_path: Path, workers: str) -> None:
    command = [sys.executable, "-c", "from junctor.cli import main; main()", "run", big.network, big.evidence]
    command += [
        "--no-prefect",
        "--case-id",
        "case_id",
        "--partition-rows",
        "10000",
        "--workers",
        workers,
        "-q",
        "--json",
    ]
    whole = tmp_path / "whole"
    subprocess.run([*command, "--output", str(whole)], check=True, capture_output=True)
    parts = tmp_path / "out" / "posteriors"
    with subprocess.Popen([*command, "--output", big.output], stdout=subprocess.DEVNULL) as process:
        while len(list(parts.glob("part-*.parquet"))) < 5:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    before = {path.name: path.stat().st_mtime_ns for path in parts.glob("part-*.parquet")}
    again = subprocess.run([*command, "--output", big.output], check=True, capture_output=True)
    assert json.loads(again.stdout)["reused_parts"] == len(before)
    for path in sorted((whole / "posteriors").iterdir()):
        assert path.read_bytes() == (parts / path.name).read_bytes()
        assert before.get(path.name) in (None, (parts / path.name).stat().st_mtime_ns)
    assert sorted(os.listdir(parts)) == sorted(os.listdir(whole / "posteriors"))
    assert len(os.listdir(parts)) == 30


def test_manifest_round_trip(job: Job) -> None:
    manifest = run(job, HERE)
    assert isinstance(manifest, Manifest)
    with pytest.raises(RunError, match="not finished"):
        steps.read_manifest(RunDirectory(Path(job.output) / "nowhere"))


@pytest.mark.parametrize("workers", [0, 2])
def test_memory_of_the_process_is_not_that_of_the_plan(job: Job, workers: int) -> None:
    manifest = run(job, Resources(workers=workers, compute=ComputeOptions(memory=64 << 20)))
    own, of_workers = manifest.peak_bytes
    # The interpreter and Arrow alone take more than half of it.
    assert own > 64 << 20
    assert (of_workers > 64 << 20) or not workers
    assert steps.read_manifest(job.directory).peak_bytes == (own, of_workers)


def test_missing_texts_belong_to_the_identity_of_a_run(tmp_path: Path) -> None:
    evidence = tmp_path / "rows.csv"
    evidence.write_text("smoke\nyes\nrefused\n")
    asia = str(Path(__file__).parents[2] / "data" / "asia.bif")
    plain = Job(asia, str(evidence), str(tmp_path / "out"))
    job = plain.but(missing=(" Refused", "NA", "-9"))
    model = job.read_model()
    assert job.spec_of(model).missing == ("-9", "refused")
    # What is missing anyway makes no other run.
    assert plain.but(missing=("null",)).spec_of(model) == plain.spec_of(model)
    run(job, Resources(workers=0))
    assert parquet.read_table(tmp_path / "out" / "posteriors")["status"].to_pylist() == ["ok", "ok"]
    with pytest.raises(RunError, match="missing"):
        run(plain, Resources(workers=0))
