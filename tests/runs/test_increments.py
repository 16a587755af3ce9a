"""Evidence that grows: only what is new is answered, and all of it is committed at once."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import junctor
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from helpers.options import on_cpu
from junctor.engine.engine import Engine
from junctor.evidence import encoded
from junctor.generate import evidence_table, random_network, sample
from junctor.model.errors import EvidenceError, InputError, RunError, ThresholdError
from junctor.model.network import Network
from junctor.model.query import Query, Sampling
from junctor.runs import new_inputs
from junctor.runs import run as steps
from junctor.runs.increments import IncrementDirectory
from junctor.runs.integrity import verify
from junctor.runs.partition import Part, PartitionTask, PartTask, StageTimings
from junctor.runs.run import Manifest, read_manifest, run
from junctor.runs.share import finish
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.files import Checksum
from junctor.runtime.progress import Silence
from pyarrow import csv, parquet

HERE = Resources(workers=0, compute=on_cpu())
DAY = "date=2026-11-{:02d}"
ROWS = 5


@pytest.fixture(scope="module")
def network() -> Network:
    return random_network(6, seed=3, zeros=0.2)


def rows_of(network: Network, seed: int, rows: int = ROWS) -> pa.Table:
    table = evidence_table(network, sample(network, rows, seed=seed), observed=0.5, pattern="random", seed=seed)
    return table.set_column(
        table.column_names.index("case_id"), "case_id", pa.array([f"{seed}-{i}" for i in range(rows)])
    )


class World:
    """A folder of evidence that grows, and the outputs of runs beside it."""

    def __init__(self, folder: Path, network: Network) -> None:
        self.folder = folder
        self.network = network
        self.evidence = folder / "in"
        junctor.write_network(network, folder / "net.bif")

    def write(self, name: str, seed: int, rows: int = ROWS) -> Path:
        path = self.evidence / name
        path.parent.mkdir(parents=True, exist_ok=True)
        table = rows_of(self.network, seed, rows)
        if path.suffix == ".csv":
            csv.write_csv(table, path)
        else:
            parquet.write_table(table, path)
        return path

    def days(self, days: Sequence[int], names: Sequence[str] = ("a.parquet",)) -> None:
        for day in days:
            for name in names:
                self.write(f"{DAY.format(day)}/{name}", seed=100 * day + ord(name[0]))

    def job(self, output: str = "out", **changes: object) -> Job:
        asked = {"incremental": True, "partition_rows": 3, **changes}
        paths = str(self.folder / "net.bif"), str(asked.pop("evidence", self.evidence)), str(self.folder / output)
        return Job(*paths, **asked)  # type: ignore[arg-type]

    def run(self, output: str = "out", **changes: object) -> Manifest:
        return run(self.job(output, **changes), HERE)

    def tree(self, output: str = "out") -> dict[str, bytes]:
        """Return the files of the answers, by their names."""
        folder = self.folder / output / "posteriors"
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("**/*") if path.is_file()}

    def answers(self, output: str = "out") -> pa.Table:
        """Return the answers as readers find them."""
        folder = self.folder / output
        manifest = json.loads((folder / "manifest.json").read_text())
        files = [str(folder / part["file"]) for part in manifest["parts"]]
        dataset = ds.dataset(files, partitioning="hive", partition_base_dir=str(folder / "posteriors"))
        return dataset.to_table()

    def equals_one_run(self, output: str = "out") -> None:
        """Assert that the answers are those of one run of all that is there now, byte for byte."""
        shutil.rmtree(self.folder / "whole", ignore_errors=True)
        whole = self.run("whole")
        found = read_manifest(IncrementDirectory(self.folder / output))
        # Copies of one content are told apart by their keys, whose numbers depend on the order in which they came.
        assert sorted(self.tree(output).values()) == sorted(self.tree("whole").values())
        assert [(each.path, each.digest, each.rows, each.statuses) for each in found.inputs] == [
            (each.path, each.digest, each.rows, each.statuses) for each in whole.inputs
        ]
        assert {part.file for part in found.parts} == {f"posteriors/{name}" for name in self.tree(output)}
        cases = self.answers(output)["case_id"].to_pylist()
        assert cases == self.answers("whole")["case_id"].to_pylist()
        assert not [path for path in (self.folder / output).glob("**/*") if path.suffix == ".tmp"]
        assert not (self.folder / output / "evidence").exists()


@pytest.fixture
def world(tmp_path: Path, network: Network) -> World:
    return World(tmp_path, network)


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every batch that an engine answers."""
    batches: list[int] = []
    real = Engine.answer

    def answer(self: Engine, batch: encoded.EvidenceBatch, *args: object) -> object:
        batches.append(batch.rows)
        return real(self, batch, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "answer", answer)
    return batches


def test_of_two_hundred_partitions_only_four_are_answered(world: World, answered: list[int]) -> None:
    for i in range(200):
        world.write(f"{DAY.format(i // 10)}/{i:03d}.parquet", seed=i, rows=3)
    assert world.run().increment == 1
    assert answered == [3] * 200
    answered.clear()
    before = world.tree()
    for i in range(3):
        world.write(f"{DAY.format(20)}/{i:03d}.parquet", seed=500 + i, rows=3)
    world.write(f"{DAY.format(7)}/070.parquet", seed=600, rows=3)
    manifest = world.run()
    assert answered == [3] * 4
    assert manifest.increments[-1].new == 3
    assert manifest.increments[-1].changed == (f"{DAY.format(7)}/070.parquet",)
    assert (len(manifest.parts), manifest.reused_parts, manifest.rows) == (203, 199, 609)
    assert len(before.keys() & world.tree().keys()) == 199
    world.equals_one_run()


def test_nothing_new_leaves_everything_as_it_is(world: World, answered: list[int]) -> None:
    world.days([1, 2])
    first = world.run()
    answered.clear()
    times = (world.folder / "out" / "manifest.json").stat().st_mtime_ns
    again = world.run()
    assert (again.increment, again.inputs, again.reused_parts) == (None, first.inputs, 4)
    assert not answered
    assert (world.folder / "out" / "manifest.json").stat().st_mtime_ns == times
    assert read_manifest(world.job().directory) == first


def test_answers_lie_under_their_partitions(world: World) -> None:
    world.days([1, 2])
    world.write("date=2026-11-03/site=a%20b/late/x.csv", seed=7)
    world.write("plain.csv", seed=8)
    manifest = world.run()
    folders = {"/".join(part.file.split("/")[1:-1]) for part in manifest.parts}
    assert folders == {DAY.format(1), DAY.format(2), "date=2026-11-03/site=a%20b", ""}
    assert [(each.path, each.partition) for each in manifest.inputs] == [
        (DAY.format(1) + "/a.parquet", DAY.format(1)),
        (DAY.format(2) + "/a.parquet", DAY.format(2)),
        ("date=2026-11-03/site=a%20b/late/x.csv", "date=2026-11-03/site=a%20b"),
        ("plain.csv", ""),
    ]
    table = world.answers()
    assert table.num_rows == manifest.rows == 20
    site = table.filter(pa.compute.equal(table["site"], "a b"))
    assert site["case_id"].to_pylist() == [f"7-{i}" for i in range(ROWS)]


def test_answers_are_those_of_an_ordinary_run(world: World) -> None:
    world.days([1, 2], names=("a.parquet", "b.parquet"))
    world.run()
    ordinary = world.run("ordinary", incremental=False, keep=("date",))
    assert not ordinary.increments
    found, expected = world.answers(), parquet.read_table(world.folder / "ordinary" / "posteriors")
    assert found["case_id"].equals(expected["case_id"])
    assert found["date"].cast(pa.string()).equals(expected["date"])
    assert found["status"].to_pylist() == expected["status"].to_pylist()
    logs = zip(found["log_evidence"].to_pylist(), expected["log_evidence"].to_pylist(), strict=True)
    assert all(one == other or abs(one - other) < 1e-12 for one, other in logs)


def test_late_changed_renamed_and_removed_inputs_are_named(world: World, answered: list[int]) -> None:
    world.days([1, 2, 3], names=("a.parquet", "b.parquet"))
    world.run()
    answered.clear()
    folder = world.evidence / DAY.format(2)
    (folder / "a.parquet").rename(folder / "z.parquet")
    (folder / "b.parquet").unlink()
    world.days([1], names=("c.parquet",))
    world.write(f"{DAY.format(3)}/a.parquet", seed=9)
    os.utime(world.evidence / DAY.format(3) / "b.parquet", ns=(1, 1))
    manifest = world.run()
    last = manifest.increments[-1]
    assert answered == [3, 2, 3, 2]
    assert last.late == (f"{DAY.format(1)}/c.parquet",)
    assert last.changed == (f"{DAY.format(3)}/a.parquet",)
    assert last.renamed == {f"{DAY.format(2)}/z.parquet": f"{DAY.format(2)}/a.parquet"}
    assert last.removed == (f"{DAY.format(2)}/b.parquet",)
    assert (last.number, last.rows, last.new) == (2, 10, 1)
    # Answers to removed inputs stay, and they are named once.
    assert {each.path for each in manifest.inputs if each.removed} == set(last.removed)
    assert world.run().increment is None
    # What comes back is not answered again.
    answered.clear()
    world.days([2], names=("b.parquet",))
    manifest = world.run()
    assert not answered
    assert manifest.rows == 35
    assert manifest.increments[-1].returned == (f"{DAY.format(2)}/b.parquet",)
    assert not [each.path for each in manifest.inputs if each.removed]
    assert read_manifest(world.job().directory) == manifest
    assert world.run().increment is None
    (folder / "b.parquet").unlink()
    dropped = world.run(drop_removed=True)
    assert dropped.increments[-1].dropped == (f"{DAY.format(2)}/b.parquet",)
    assert dropped.rows == 30
    world.equals_one_run()
    assert world.run(drop_removed=True).increment is None


def test_removed_before_and_dropped_later(world: World) -> None:
    world.days([1, 2])
    world.run()
    shutil.rmtree(world.evidence / DAY.format(1))
    assert world.run().rows == 10
    manifest = world.run(drop_removed=True)
    assert (manifest.rows, manifest.increments[-1].dropped) == (5, (f"{DAY.format(1)}/a.parquet",))
    assert not (world.folder / "out" / "posteriors" / DAY.format(1)).exists()
    world.equals_one_run()


def test_files_of_equal_content(world: World) -> None:
    for name in ("a.parquet", "b.parquet", "c.parquet"):
        world.write(f"{DAY.format(1)}/{name}", seed=1)
    assert world.run().rows == 15
    world.write(f"{DAY.format(1)}/d.parquet", seed=1)
    assert world.run().rows == 20
    (world.evidence / DAY.format(1) / "b.parquet").unlink()
    assert world.run(drop_removed=True).rows == 15
    world.write(f"{DAY.format(1)}/e.parquet", seed=1)
    assert world.run().rows == 20
    world.equals_one_run()


def test_content_of_a_removed_input_is_new_under_another_name(world: World) -> None:
    first = world.write(f"{DAY.format(1)}/a.parquet", seed=1)
    world.write(f"{DAY.format(1)}/b.parquet", seed=2)
    world.run()
    first.unlink()
    assert world.run().increments[-1].removed == (f"{DAY.format(1)}/a.parquet",)
    world.write(f"{DAY.format(1)}/c.parquet", seed=1)
    manifest = world.run()
    assert (manifest.rows, manifest.increments[-1].new, manifest.increments[-1].renamed) == (15, 1, {})
    assert [each.removed for each in manifest.inputs] == [True, False, False]
    world.write(f"{DAY.format(1)}/a.parquet", seed=1)
    assert world.run().increments[-1].returned == (f"{DAY.format(1)}/a.parquet",)
    world.equals_one_run()


def test_backfills_do_partitions_again(world: World, answered: list[int]) -> None:
    world.days([1, 2, 3])
    first = world.run()
    before = world.tree()
    answered.clear()
    manifest = world.run(backfill=("date=2026-11-01..2026-11-02",))
    assert answered == [3, 2] * 2
    assert manifest.increments[-1].backfilled == tuple(each.path for each in first.inputs[:2])
    assert sorted(before.values()) == sorted(world.tree().values())
    # New files under new names: nothing is written over.
    assert len(before.keys() & world.tree().keys()) == 2
    assert [each.increment for each in manifest.inputs] == [2, 2, 1]
    world.run(backfill=("date=2026-11-01",))
    assert before.keys() & world.tree().keys() != before.keys()
    world.equals_one_run()
    with pytest.raises(EvidenceError, match="no input is in date=2027-01-01"):
        world.run(backfill=("date=2027-01-01",))


def test_broken_inputs_hold_up_no_others(world: World) -> None:
    world.days([1, 2])
    world.run()
    world.days([3])
    broken = world.evidence / DAY.format(3) / "b.csv"
    broken.write_text("x_0,no such variable\n0,1\n")
    (world.evidence / DAY.format(1) / "a.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(EvidenceError, match=r"2 could not be read, 1 answered and committed") as error:
        world.run()
    assert "unknown column 'no such variable'" in str(error.value)
    assert "date=2026-11-01/a.parquet" in str(error.value)
    manifest = read_manifest(world.job().directory)
    # The old answers to what is broken now stay.
    assert [each.path for each in manifest.inputs] == [f"{DAY.format(day)}/a.parquet" for day in (1, 2, 3)]
    assert (manifest.rows, manifest.increments[-1].new) == (15, 1)
    with pytest.raises(EvidenceError, match="2 could not be read, 0 answered"):
        world.run()
    assert read_manifest(world.job().directory) == manifest
    world.write(f"{DAY.format(3)}/b.csv", seed=5)
    world.days([1])
    assert world.run().rows == 20
    world.equals_one_run()


@pytest.mark.parametrize("fail_if", [(), ("invalid > 40%",), ("invalid > 90%",)])
def test_a_broken_input_leaves_rejects_page_and_thresholds(world: World, fail_if: tuple[str, ...]) -> None:
    world.evidence.mkdir()
    variable = world.network.variables[0]
    (world.evidence / "a.csv").write_text(f"case_id,{variable.name}\n1,maybe\n2,{variable.states[0]}\n")
    (world.evidence / "b.csv").touch()
    rejects, page = world.folder / "rejects.csv", world.folder / "out" / "report.html"
    for answered in (1, 0):
        rejects.unlink(missing_ok=True)
        page.unlink(missing_ok=True)
        with pytest.raises(EvidenceError, match=f"1 could not be read, {answered} answered") as error:
            world.run(fail_if=fail_if, rejects=str(rejects), report=True)
        assert ("; and invalid > 40%: found 1 of 2 rows, 50% " in str(error.value)) == (fail_if == ("invalid > 40%",))
        assert [line.split(",")[:2] for line in rejects.read_text().replace('"', "").splitlines()[1:]] == [["1", "1"]]
        assert page.exists()
        # Nothing is left of the increment.
        assert not (world.folder / "out" / "evidence").exists()
    (world.evidence / "b.csv").unlink()
    if fail_if == ("invalid > 40%",):
        with pytest.raises(ThresholdError, match=r"^invalid > 40%: found 1 of 2 rows"):
            world.run(fail_if=fail_if)


def test_conditions_on_columns_ask_for_no_file_that_has_all_of_them(world: World) -> None:
    world.evidence.mkdir()
    first, second = world.network.variables[:2]
    (world.evidence / "a.csv").touch()
    os.mkfifo(world.evidence / "b.csv")
    (world.evidence / "c.csv").write_text(f"{first.name}\n{first.states[0]}\n")
    (world.evidence / "d.csv").write_text(f"{second.name}\n{second.states[0]}\n")
    fail_if = (f"missing({first.name}) > 50%", f"drift({second.name}) < 0")
    with pytest.raises(EvidenceError, match="2 could not be read, 2 answered"):
        world.run(fail_if=fail_if)
    with pytest.raises(InputError, match=f"no column {world.network.variables[2].name!r} of the network"):
        world.run(fail_if=(f"missing({world.network.variables[2].name}) > 50%",))
    # Its header can be read, its rows cannot: nothing that is committed has its column.
    third = world.network.variables[2].name
    (world.evidence / "e.csv").write_text(f"{third}\n0,1,2\n")
    with pytest.raises(EvidenceError, match="3 could not be read, 0 answered") as error:
        world.run(fail_if=(f"missing({third}) > 50%", f"drift({third}) >= 0"))
    assert "drift" not in str(error.value)
    for name in "cde":
        (world.evidence / f"{name}.csv").unlink()
    # What columns there would be is not known.
    with pytest.raises(EvidenceError, match="2 could not be read, 0 answered"):
        world.run(fail_if=fail_if)


def test_a_column_is_missing_in_files_without_it(world: World) -> None:
    world.evidence.mkdir()
    first, second = world.network.variables[:2]
    (world.evidence / "a.csv").write_text(f'{first.name}\n{first.states[0]}\n""\nmaybe\n')
    (world.evidence / "b.csv").write_text(f"{second.name}\n{second.states[0]}\n{second.states[0]}\nmaybe\n")
    with pytest.raises(ThresholdError, match=r"found 3 of 4 cells, 75%.*found 2 of 4 cells, 50%"):
        world.run(fail_if=(f"missing({first.name}) >= 75%", f"missing({second.name}) >= 2"))


def test_links_that_lead_nowhere_hold_up_no_others(world: World) -> None:
    world.days([1, 2])
    world.run()
    world.days([3])
    before = world.evidence / DAY.format(1) / "a.parquet"
    before.unlink()
    before.symlink_to("nothing.parquet")
    (world.evidence / "b.csv").symlink_to("b.csv")
    for name in (world.evidence, world.evidence / "**" / "*"):
        with pytest.raises(EvidenceError, match="2 could not be read") as error:
            world.run(evidence=name)
        assert f"{DAY.format(1)}/a.parquet: no such file or folder" in str(error.value)
        assert "b.csv: cannot be read: Too many levels of symbolic links" in str(error.value)
    manifest = read_manifest(world.job().directory)
    assert [(each.path, each.removed) for each in manifest.inputs] == [
        (f"{DAY.format(day)}/a.parquet", False) for day in (1, 2, 3)
    ]
    assert manifest.rows == 15
    with pytest.raises(EvidenceError, match=r"in/b\.csv: cannot be read"):
        world.run("strict", strict=True)
    before.unlink()
    (world.evidence / "b.csv").unlink()
    world.days([1])
    assert world.run().rows == 15


def test_standard_input_cannot_grow(world: World) -> None:
    with pytest.raises(EvidenceError, match="found standard input for an incremental run, expected files that stay"):
        world.run(evidence="-")


def test_a_pipe_holds_up_no_others(world: World) -> None:
    world.days([1])
    os.mkfifo(world.evidence / "z.csv")
    with pytest.raises(EvidenceError, match=r"1 could not be read, 1 answered .*z\.csv: found a pipe"):
        world.run()
    assert world.answers().num_rows == 5
    # Another question, whose check before the old answers leave stops at the first file that can be read.
    os.mkfifo(world.evidence / "a.csv")
    with pytest.raises(EvidenceError, match=r"2 could not be read, 1 answered .*a\.csv: found a pipe"):
        world.run(query=Query(targets=("x_0",)), overwrite=True)


def test_files_that_go_after_the_listing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.days([1, 2])
    real = new_inputs.input_files

    def list_files(*args: object, **options: object) -> object:
        found = real(*args, **options)  # type: ignore[arg-type]
        (world.evidence / DAY.format(1) / "a.parquet").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(new_inputs, "input_files", list_files)
    with pytest.raises(EvidenceError, match=r"1 could not be read, 1 answered .*a\.parquet: no such file or folder"):
        world.run()
    assert world.run().rows == 5


def test_strict_runs_commit_nothing_beside_broken_inputs(world: World) -> None:
    world.days([1])
    world.run(strict=True)
    before = (world.folder / "out" / "manifest.json").read_bytes()
    world.days([2])
    (world.evidence / "b.csv").write_text("x_0,x_1\nno such state,\n")
    with pytest.raises(EvidenceError, match=r"b\.csv"):
        world.run(strict=True)
    (world.evidence / "b.csv").write_text("")
    with pytest.raises(EvidenceError, match=r"b\.csv"):
        world.run(strict=True)
    assert (world.folder / "out" / "manifest.json").read_bytes() == before
    (world.evidence / "b.csv").unlink()
    assert world.run(strict=True).rows == 10


def test_all_inputs_are_broken(world: World) -> None:
    world.evidence.mkdir()
    (world.evidence / "a.csv").write_text("")
    with pytest.raises(EvidenceError, match="1 could not be read, 0 answered"):
        world.run()
    assert not (world.folder / "out" / "manifest.json").exists()
    world.write("a.csv", seed=1)
    assert world.run().increment == 1


def test_inputs_without_rows_or_files(world: World) -> None:
    world.evidence.mkdir()
    with pytest.raises(EvidenceError, match="the folder has no evidence files"):
        world.run()
    world.write("a.csv", seed=1, rows=0)
    manifest = world.run()
    assert (manifest.rows, len(manifest.parts)) == (0, 1)
    assert world.answers().schema.field("x_0").type.list_size >= 1
    world.write("b.csv", seed=1)
    assert world.run().rows == 5
    world.equals_one_run()
    for path in world.evidence.iterdir():
        path.unlink()
    # A disk that is not mounted looks like this: nothing is taken for removed.
    with pytest.raises(EvidenceError, match="the folder has no evidence files"):
        world.run(drop_removed=True)
    assert world.answers().num_rows == 5


def test_columns_may_be_missing_and_are_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.evidence.mkdir()
    (world.evidence / "a.csv").write_text("case_id,x_0,x_1\na,,\n")
    world.run()
    (world.evidence / "b.csv").write_text("case_id,x_0\nb,\n")
    (world.evidence / "c.csv").write_text("x_2,case_id\n,c\n")
    manifest = world.run()
    assert "2 inputs without columns that others have" in caplog.text
    assert "b.csv lacks x_1" in caplog.text
    assert manifest.columns is not None
    assert manifest.columns.evidence == ("x_0", "x_1", "x_2")
    assert world.answers()["case_id"].to_pylist() == ["a", "b", "c"]
    posteriors = world.answers()["x_1"].to_pylist()
    assert posteriors[0] == posteriors[1] == posteriors[2]
    (world.folder / "strict").mkdir()
    with pytest.raises(EvidenceError, match="no column 'x_1', but other inputs have one"):
        world.run("strict", strict=True)


def test_types_of_carried_columns_are_those_of_the_first_input(world: World) -> None:
    world.evidence.mkdir()
    parquet.write_table(pa.table({"case_id": [1], "x_0": [None], "k": ["a"]}), world.evidence / "a.parquet")
    world.run(keep=("k",))
    parquet.write_table(pa.table({"case_id": ["1"], "x_0": [None], "k": ["a"]}), world.evidence / "b.parquet")
    parquet.write_table(pa.table({"case_id": [1], "x_0": [None], "k": [1.0]}), world.evidence / "c.parquet")
    with pytest.raises(EvidenceError, match="case ids of type string, but of type int64 in other inputs") as error:
        world.run(keep=("k",))
    assert "column 'k' of type double, but of type string in other inputs" in str(error.value)


@pytest.mark.parametrize("output_format", ["parquet", "arrow"])
@pytest.mark.parametrize("first", [pa.string(), pa.large_string(), pa.null()], ids=str)
def test_text_has_the_type_of_the_first_input_with_some(world: World, first: pa.DataType, output_format: str) -> None:
    world.evidence.mkdir()
    options = {"keep": ("k",), "output_format": output_format}
    kinds = [first, pa.large_string(), pa.string(), pa.null(), pa.string()]
    expected: list[str | None] = []
    for number, kind in enumerate(kinds):
        ids = [None] if pa.types.is_null(kind) else [f"{number}"]
        table = pa.table({"case_id": pa.array(ids, kind), "x_0": [None], "k": pa.array(ids, kind)})
        parquet.write_table(table, world.evidence / f"{number}.parquet")
        expected += ids
        # The first two together.
        if number:
            world.run(**options)
    found = junctor.read_answers(world.folder / "out")
    kind = pa.large_string() if pa.types.is_null(first) else first
    assert found.schema.field("case_id").type == found.schema.field("k").type == kind
    assert found["case_id"].to_pylist() == found["k"].to_pylist() == expected


def write_ids(world: World, **ids: object) -> None:
    """Write a file for each case id."""
    world.evidence.mkdir(exist_ok=True)
    for name, each in ids.items():
        parquet.write_table(
            pa.table({"case_id": [each], "x_0": [None], "k": [each]}), world.evidence / f"{name}.parquet"
        )


def test_types_go_with_the_answers_that_have_them(world: World) -> None:
    write_ids(world, a="1")
    world.run(keep=("k",))
    write_ids(world, b=2)
    with pytest.raises(EvidenceError, match=r"b.parquet: case ids of type int64, but of type string in other"):
        world.run(keep=("k",))
    write_ids(world, a=1)
    assert world.run(keep=("k",)).rows == 2
    assert world.answers()["case_id"].to_pylist() == world.answers()["k"].to_pylist() == [1, 2]
    for name in "ab":
        (world.evidence / f"{name}.parquet").unlink()
    write_ids(world, c="3")
    with pytest.raises(EvidenceError, match="of type string, but of type int64"):
        world.run(keep=("k",))
    assert world.run(keep=("k",), drop_removed=True).rows == 1
    assert world.answers()["case_id"].to_pylist() == ["3"]


def test_types_stay_with_the_answers_to_what_cannot_be_read(world: World) -> None:
    write_ids(world, a="1", b="2")
    world.run(keep=("k",))
    write_ids(world, a=1)
    (world.evidence / "b.parquet").write_bytes(b"PAR1")
    with pytest.raises(EvidenceError, match=r"b.parquet: case ids .* have other types now, .*damaged.*mend or remove"):
        world.run(keep=("k",))
    assert world.answers()["case_id"].to_pylist() == ["1", "2"]
    write_ids(world, a="3")
    with pytest.raises(EvidenceError, match="1 could not be read, 1 answered"):
        world.run(keep=("k",))
    assert world.answers()["case_id"].to_pylist() == ["3", "2"]
    write_ids(world, a=1, b=2)
    world.run(keep=("k",))
    assert world.answers()["case_id"].to_pylist() == [1, 2]


def write_notes(world: World, **notes: list[object]) -> None:
    """Write a file for each column of notes; all of them missing, they have no type."""
    world.evidence.mkdir(exist_ok=True)
    for name, cells in notes.items():
        ids = [f"{name}{i}" for i in range(len(cells))]
        table = pa.table({"case_id": ids, "x_0": pa.nulls(len(cells), pa.string()), "k": cells})
        parquet.write_table(table, world.evidence / f"{name}.parquet")


@pytest.mark.parametrize("output_format", ["parquet", "arrow"])
def test_a_column_that_is_missing_in_all_rows_has_the_type_of_others(world: World, output_format: str) -> None:
    options = {"keep": ("k",), "output_format": output_format}
    write_notes(world, a=[None] * 4, b=["x", None], c=[None])
    manifest = world.run(**options)
    assert manifest.columns is not None
    assert manifest.columns.kept == {"k": "string"}
    write_notes(world, d=[None] * 2)
    world.run(**options)
    write_notes(world, e=["y"])
    world.run(**options)
    found = junctor.read_answers(world.folder / "out")
    assert found.schema.field("k").type == pa.string()
    assert found["k"].to_pylist() == [None] * 4 + ["x", None] + [None] + [None] * 2 + ["y"]
    write_notes(world, f=[1])
    with pytest.raises(EvidenceError, match="'k' of type int64, but of type string in other inputs: write"):
        world.run(**options)


def test_a_column_without_a_type_is_answered_anew_with_one(world: World) -> None:
    write_notes(world, a=[None] * 4)
    world.run(keep=("k",))
    write_notes(world, b=[None])
    assert world.run(keep=("k",)).rows == 5
    write_notes(world, c=["x"])
    with pytest.raises(EvidenceError, match=r"'k' of type string, but .* have no type: .* another --output"):
        world.run(keep=("k",))
    assert world.run("other", keep=("k",)).rows == 6
    write_notes(world, d=["y"])
    world.run("other", keep=("k",))
    assert junctor.read_answers(world.folder / "other")["k"].to_pylist() == [None] * 5 + ["x", "y"]


def test_files_that_grow_while_they_are_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.days([1, 2])
    real = encoded.write_partition

    def write_partition(partition: encoded.EncodedPartition, path: Path) -> Checksum:
        checksum = real(partition, path)
        if DAY.format(1) in str(path):
            world.write(f"{DAY.format(1)}/a.parquet", seed=77, rows=8)
        return checksum

    with monkeypatch.context() as patch:
        patch.setattr(encoded, "write_partition", write_partition)
        patch.setattr("junctor.runs.new_inputs.usable_cores", lambda: 1)
        with pytest.raises(EvidenceError, match="was written to while it was read"):
            world.run()
    assert world.answers().num_rows == 5
    assert world.run().rows == 13
    world.equals_one_run()


def test_another_question_is_refused(world: World) -> None:
    world.days([1])
    world.run()
    with pytest.raises(RunError, match="targets was not set, now x_0"):
        world.run(query=Query(targets=("x_0",)))
    with pytest.raises(RunError, match="incremental was True, now False"):
        world.run(incremental=False)
    other = world.run(query=Query(targets=("x_0",)), overwrite=True)
    assert (other.increment, other.rows) == (1, 5)
    ordinary = world.run(incremental=False, overwrite=True)
    assert ordinary.rows == 5
    assert not list((world.folder / "out" / "posteriors").glob("date=*"))
    with pytest.raises(RunError, match="incremental was False, now True"):
        world.run()
    assert world.run(overwrite=True).rows == 5
    world.equals_one_run()


def test_another_version_goes_on(world: World, monkeypatch: pytest.MonkeyPatch, answered: list[int]) -> None:
    world.days([1])
    world.run()
    world.days([2])
    answered.clear()
    monkeypatch.setattr("junctor.runs.workload.version", lambda _: "9.9")
    monkeypatch.setattr("junctor.runtime.dask_cluster._loaded_version", lambda: "9.9")
    manifest = world.run()
    assert answered == [3, 2]
    assert [each.junctor_version for each in manifest.increments] == [junctor.__version__, "9.9"]
    assert manifest.spec.junctor_version == world.job().directory.read_spec().junctor_version == "9.9"


def test_globs_leave_other_inputs_alone(world: World, answered: list[int]) -> None:
    world.days([1, 2])
    world.run()
    world.days([3])
    shutil.rmtree(world.evidence / DAY.format(2))
    answered.clear()
    manifest = world.run(evidence=world.evidence / DAY.format(3) / "*.parquet")
    assert answered == [3, 2]
    assert [each.path for each in manifest.inputs] == [f"{DAY.format(day)}/a.parquet" for day in (1, 2, 3)]
    assert not manifest.increments[-1].removed
    assert world.run(evidence=world.evidence / "date=*/*.parquet").increments[-1].removed


@pytest.mark.parametrize("evidence", ["in/y", "in/y/b*", "in/y/b.parquet", "in/*/b.parquet"])
def test_files_elsewhere_are_not_renamed_while_they_are_there(world: World, evidence: str) -> None:
    old = world.write("x/a.parquet", seed=1)
    world.run()
    world.write("y/b.parquet", seed=1)
    last = world.run(evidence=world.folder / evidence).increments[-1]
    assert (last.new, last.renamed) == (1, {})
    assert world.run().increment is None
    world.equals_one_run()
    old.rename(world.evidence / "y" / "b2.parquet")
    # One that is not there any more moved, wherever it was.
    last = world.run(evidence=world.evidence / "y").increments[-1]
    assert last.renamed == {"y/b2.parquet": "x/a.parquet"}
    world.equals_one_run()


def test_what_cannot_be_looked_at_counts_as_there(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    old = world.write("x/a.parquet", seed=1)
    world.run()
    old.rename(world.write("y/a.parquet", seed=2).with_name("b.parquet"))

    def denied(*_: object, **__: object) -> bool:
        raise PermissionError(13, "denied", "a.parquet")

    real = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: denied() if path == old else real(path))
    last = world.run(evidence=world.evidence / "y").increments[-1]
    assert (last.new, last.renamed) == (2, {})


@pytest.mark.parametrize("evidence", ["in/y", "in/y/b*", "in/y/b.parquet", "in/c.parquet"])
def test_answers_to_files_elsewhere_are_not_dropped(world: World, evidence: str) -> None:
    for seed, name in enumerate(("x/a.parquet", "x/gone.parquet", "y/b.parquet", "c.parquet")):
        world.write(name, seed)
    assert world.run().rows == 20
    for name in ("x/a.parquet", "x/gone.parquet"):
        (world.evidence / name).unlink()
    assert len(world.run().increments[-1].removed) == 2
    world.write("x/a.parquet", seed=0)
    manifest = world.run(evidence=world.folder / evidence, drop_removed=True)
    assert (manifest.increment, manifest.rows) == (None, 20)
    assert world.run(drop_removed=True).rows == 15
    world.equals_one_run()


PARTS_OF_EVIDENCE = ("in/y/*.parquet", "in/y", "in/y/b.parquet", "in/y/../y", "link/y/?.parquet", "y")


@pytest.mark.parametrize("evidence", PARTS_OF_EVIDENCE)
@pytest.mark.parametrize("here", [True, False])
def test_names_begin_where_they_did_before(
    world: World, monkeypatch: pytest.MonkeyPatch, evidence: str, here: bool
) -> None:
    for i, name in enumerate(("x/b.parquet", "y/a.parquet", "y/b.parquet", "y/date=1/a.parquet")):
        world.write(name, seed=i)
    first = world.run()
    monkeypatch.chdir(world.folder)
    Path("link").symlink_to("in")
    Path("y").symlink_to("in/y")
    (world.evidence / "x" / "b.parquet").unlink()
    world.write("y/b.parquet", seed=9)
    given = evidence if here else str(world.folder / evidence)
    manifest = world.run(evidence=given)
    last = manifest.increments[-1]
    assert (last.new, last.changed, last.removed) == (0, ("y/b.parquet",), ())
    assert [each.path for each in manifest.inputs] == [each.path for each in first.inputs]
    assert manifest.root == first.root == str(world.evidence)
    assert world.run(evidence=given).increment is None
    assert world.run().increments[-1].removed == ("x/b.parquet",)


def test_a_partition_alone_has_the_columns_of_its_folders(world: World) -> None:
    world.days([1, 2])
    world.run(keep=("date",))
    world.write(f"{DAY.format(1)}/b.csv", seed=9)
    for name in (DAY.format(1), f"{DAY.format(1)}/b.csv"):
        manifest = world.run(evidence=world.evidence / name, keep=("date",))
        assert [each.partition for each in manifest.inputs] == [DAY.format(day) for day in (1, 1, 2)]
    found = junctor.read_answers(world.folder / "out")["date"].to_pylist()
    assert found == ["2026-11-01"] * 10 + ["2026-11-02"] * 5


def test_another_folder_is_refused_while_the_old_one_is_there(world: World, answered: list[int]) -> None:
    world.write("y/a.parquet", seed=1)
    world.write("z/a.parquet", seed=2)
    first = world.run(evidence=world.evidence / "y")
    answered.clear()
    for evidence in (world.evidence, world.evidence / "*" / "*.parquet", world.evidence / "z"):
        with pytest.raises(EvidenceError, match=r"/in.*: the inputs so far are in .*in/y, and still there: give that"):
            world.run(evidence=evidence)
    assert not answered
    assert read_manifest(world.job().directory) == first
    assert world.run(evidence=world.evidence / "y" / "*").increment is None


@pytest.mark.parametrize("place", ["elsewhere", "in", "in/y/z"])
def test_a_folder_that_was_moved_is_the_same(world: World, answered: list[int], place: str) -> None:
    world.write("y/date=1/a.parquet", seed=1)
    world.write("y/date=1/b.parquet", seed=2)
    world.run(evidence=world.evidence / "y")
    answered.clear()
    moved = world.folder / place
    moved.mkdir(exist_ok=True)
    (world.evidence / "y" / "date=1").rename(moved / "date=1")
    parquet.write_table(rows_of(world.network, 3), moved / "date=1" / "c.parquet")
    manifest = world.run(evidence=moved)
    assert answered == [3, 2]
    assert [each.path.split("/")[-2:] for each in manifest.inputs] == [["date=1", f"{name}.parquet"] for name in "abc"]
    assert not any(each.removed for each in manifest.inputs)
    assert world.run(evidence=moved).increment is None


@pytest.mark.parametrize(
    "changes",
    [{"csv": True}, {"incremental": False, "backfill": ("date=1",)}, {"incremental": False, "drop_removed": True}],
)
def test_options_that_do_not_go_together(world: World, changes: dict[str, object]) -> None:
    world.days([1])
    with pytest.raises(EvidenceError, match="incremental"):
        world.run(**changes)
    assert not (world.folder / "out" / "run.json").exists()


def test_a_single_file_grows(world: World, answered: list[int]) -> None:
    path = world.write("a.csv", seed=1)
    world.run(evidence=path)
    world.write("a.csv", seed=1, rows=7)
    answered.clear()
    manifest = world.run(evidence=path)
    assert answered == [3, 3, 1]
    assert (manifest.rows, manifest.increments[-1].changed) == (7, ("a.csv",))


@pytest.mark.parametrize("method", ["sampling", "auto"])
def test_sampled_answers_do_not_depend_on_increments(world: World, method: str) -> None:
    query = Query("posteriors", None, "double", method, Sampling(samples=2000))  # type: ignore[arg-type]
    world.days([1, 2])
    world.run(query=query)
    world.days([3])
    world.run(query=query)
    world.run("whole", query=query)
    assert world.tree() == world.tree("whole")


def test_answers_of_all_kinds(world: World) -> None:
    world.days([1])
    forms = {
        "mpe": {"query": Query("mpe")},
        "scores": {"query": Query(answers="scores"), "output_format": "arrow"},
        "columns": {"layout": "columns", "keep": ("date", "x_1"), "query": Query(targets=("x_0",))},
    }
    for name, form in forms.items():
        world.run(name, **form)
    world.days([2])
    for name, form in forms.items():
        manifest = world.run(name, **form)
        assert (manifest.rows, manifest.reused_parts) == (10, 2)
        assert all((world.folder / name / part.file).exists() for part in manifest.parts)


class StopError(Exception):
    pass


def stop(*_: object) -> None:
    raise StopError


def stopping(after: int) -> Callable[..., Iterator[tuple[Part, StageTimings]]]:
    real = steps.propagate_here

    def propagate_here(tasks: Sequence[PartitionTask], memory: int) -> Iterator[tuple[Part, StageTimings]]:
        yield from real(tasks[:after], memory)
        raise StopError

    return propagate_here


def test_an_interrupted_increment_goes_on(world: World, monkeypatch: pytest.MonkeyPatch, answered: list[int]) -> None:
    world.days([1, 2])
    world.run()
    before, table = world.tree(), world.answers()
    world.days([3, 4, 5])
    world.write(f"{DAY.format(1)}/a.parquet", seed=99)
    with monkeypatch.context() as patch:
        patch.setattr(steps, "propagate_here", stopping(5))
        with pytest.raises(StopError):
            world.run()
    # Readers of the manifest see the last increment.
    assert world.answers().equals(table)
    assert before.items() <= world.tree().items()
    half = world.tree()
    # More arrives, and one that is answered already changes again.
    world.days([6])
    world.write(f"{DAY.format(3)}/a.parquet", seed=98)
    answered.clear()
    manifest = world.run()
    assert sum(answered) == sum(each.rows for each in manifest.inputs if each.increment == 2) - 8
    assert manifest.rows == 30
    assert len(half.keys() - world.tree().keys()) >= 2
    world.equals_one_run()


@pytest.mark.parametrize("typed", ["a", "c"])
def test_an_interrupted_increment_goes_on_with_a_type(
    world: World, monkeypatch: pytest.MonkeyPatch, answered: list[int], typed: str
) -> None:
    write_notes(world, b=[None] * 2)
    with monkeypatch.context() as patch:
        patch.setattr(steps, "merge", stop)
        with pytest.raises(StopError):
            world.run(keep=("k",))
    write_notes(world, **{typed: [1]})
    answered.clear()
    assert world.run(keep=("k",)).rows == 3
    assert sorted(answered) == [1, 2]
    assert sorted(junctor.read_answers(world.folder / "out")["k"].to_pylist(), key=str) == [1, None, None]
    world.run("whole", keep=("k",))
    assert world.tree() == world.tree("whole")


@pytest.mark.parametrize("step", ["sweep", "forget", "merge"])
def test_stops_around_the_commit(world: World, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    world.days([1, 2])
    world.run()
    world.write(f"{DAY.format(1)}/a.parquet", seed=99)

    with monkeypatch.context() as patch:
        patch.setattr(*((steps, step) if step == "merge" else (IncrementDirectory, step)), stop)
        with pytest.raises(StopError):
            world.run()
    manifest = world.run()
    assert manifest.increment == (2 if step == "merge" else None)
    assert len(manifest.increments) == 2
    world.equals_one_run()


@pytest.mark.parametrize("again", ["backfill", "change"])
def test_answers_that_a_killed_sweep_left_are_made_again(
    world: World, monkeypatch: pytest.MonkeyPatch, answered: list[int], again: str
) -> None:
    world.days([1])
    first = world.run()
    old = world.folder / "out" / first.parts[0].file
    # Of the size that it had, and with readable metadata.
    old.write_bytes(b"PAR1damaged!" + old.read_bytes()[12:])
    options = {"backfill": ("date=2026-11-01",)} if again == "backfill" else {}

    if again == "change":
        world.write(f"{DAY.format(1)}/a.parquet", seed=99)
    with monkeypatch.context() as patch:
        patch.setattr(IncrementDirectory, "sweep", stop)
        with pytest.raises(StopError):
            world.run(**options)
    assert old.exists()
    # The content of before, whose parts had the names of those that were left.
    world.days([1])
    answered.clear()
    manifest = world.run(**options)
    assert manifest.parts[0].file != first.parts[0].file
    assert answered == [3, 2]
    assert not verify(world.job().directory).faults
    world.equals_one_run()


def test_a_part_of_the_manifest_is_not_removed_for_its_damage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.days([1])
    with monkeypatch.context() as patch:
        patch.setattr(IncrementDirectory, "sweep", stop)
        with pytest.raises(StopError):
            world.run()
    directory = world.job().directory
    damaged = read_manifest(directory).parts[0].file
    os.truncate(directory.path / damaged, 100)
    assert world.run().increment is None
    # A backfill makes it again, and nothing else does.
    assert [(fault.kind, fault.file) for fault in verify(directory).faults] == [("damaged", damaged)]
    world.run(backfill=("date=2026-11-01",))
    assert not verify(directory).faults
    world.equals_one_run()


def test_workers_of_a_scheduler(world: World, scheduler: str) -> None:
    world.days([1, 2])
    world.run()
    world.days([3, 4])
    manifest = run(world.job(), Resources(scheduler=scheduler, compute=replace(on_cpu(), threads=1)))
    assert manifest.rows == 20
    world.equals_one_run()


def test_increments_are_verified(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.days([1, 2])
    manifest = world.run()
    directory = world.job().directory
    assert all(part.sha256 for part in manifest.parts)
    assert not verify(directory).faults
    world.days([3])
    with monkeypatch.context() as patch:
        patch.setattr(steps, "propagate_here", stopping(1))
        with pytest.raises(StopError):
            world.run()
    # Parts of an interrupted increment are its own.
    assert not verify(world.job().directory).faults
    world.run()
    first = directory.path / manifest.parts[0].file
    first.write_bytes(first.read_bytes()[:-1] + b"x")
    stranger = first.with_name(f"{'0' * 24}-00000.parquet")
    stranger.write_bytes(b"")
    faults = {fault.file: fault.kind for fault in verify(world.job().directory).faults}
    assert faults == {manifest.parts[0].file: "damaged", directory.name_of(stranger): "foreign"}
    world.run(backfill=("date=2026-11-01",))
    assert not verify(world.job().directory).faults
    world.equals_one_run()


def test_increments_need_no_finalise(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.days([1])
    with monkeypatch.context() as patch:
        patch.setattr(steps, "merge", stop)
        with pytest.raises(StopError):
            world.run()
    for rows in (5, 10):
        # All parts are there, but it is not the list of parts of an ordinary run that is missing.
        with pytest.raises(RunError, match=r"increments need no finalise"):
            finish(world.job().directory, Silence())
        assert world.run().rows == rows
        world.days([2])


def test_readers_of_answers_that_were_swept_read_again(world: World) -> None:
    world.days([1, 2])
    world.run()
    batches = junctor.answer_batches(world.folder / "out")
    next(batches)
    world.run(backfill=("date=2026-11-01..2026-11-02",))
    with pytest.raises(RunError, match="a run has changed the answers meanwhile: read them again"):
        list(batches)
    assert junctor.read_answers(world.folder / "out").num_rows == 10


def test_a_full_disk_leaves_the_last_increment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.days([1])
    world.run()
    table = world.answers()
    world.days([2])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(PartTask, "write", full)
        with pytest.raises(RunError, match="no space left"):
            world.run()
    assert world.answers().equals(table)
    assert world.run().rows == 10
    world.equals_one_run()


def test_one_run_at_a_time(world: World) -> None:
    world.days([1])
    with world.job().directory.locked(), pytest.raises(RunError, match="is in use by another junctor"):
        world.run()
    assert world.run().rows == 5


def kill_once(job: Job, seconds: float) -> bool:
    """Run a job in a process of its own and kill it after some time; returns whether it was killed."""
    process = multiprocessing.get_context("fork").Process(target=run, args=(job, HERE))
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(("kills", "inputs"), [(3, 10), pytest.param(20, 200, marks=pytest.mark.slow)])
def test_kills_lose_and_double_nothing(world: World, kills: int, inputs: int) -> None:
    chance = random.Random(kills)
    world.days(range(1, 11), names=[f"{i}.parquet" for i in range(inputs // 10)])
    # Compiled code is loaded here, and forks have it.
    started = time.monotonic()
    world.run("warm")
    seconds = min(2.0, time.monotonic() - started)
    killed = done = 0
    while killed < kills and done < 10 * kills:
        world.write(f"{DAY.format(chance.randrange(1, 12))}/{chance.choice('abc')}.parquet", seed=1000 + done)
        killed += kill_once(world.job(), chance.random() * seconds)
        done += 1
        manifest = world.folder / "out" / "manifest.json"
        if manifest.exists():
            cases = world.answers()["case_id"].to_pylist()
            assert len(set(cases)) == len(cases) == json.loads(manifest.read_text())["rows"]
    assert killed == kills
    world.run()
    world.equals_one_run()
