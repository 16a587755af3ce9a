"""Evidence that grows: only what is new is answered, and all of it is committed at once."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import junctor
import pyarrow as pa
import pytest
from helpers.growing import DAY, ROWS, World
from helpers.options import on_cpu
from junctor.model.errors import EvidenceError, RunError
from junctor.model.query import Query, Sampling
from junctor.runs.run import read_manifest, run
from junctor.runtime.dask_cluster import Resources
from pyarrow import parquet


def test_of_forty_partitions_only_four_are_answered(world: World, answered: list[int]) -> None:
    for i in range(40):
        world.write(f"{DAY.format(i // 4)}/{i:03d}.parquet", seed=i, rows=3)
    assert world.run().increment == 1
    assert answered == [3] * 40
    answered.clear()
    before = world.tree()
    for i in range(3):
        world.write(f"{DAY.format(20)}/{i:03d}.parquet", seed=500 + i, rows=3)
    world.write(f"{DAY.format(7)}/030.parquet", seed=600, rows=3)
    manifest = world.run()
    assert answered == [3] * 4
    assert manifest.increments[-1].new == 3
    assert manifest.increments[-1].changed == (f"{DAY.format(7)}/030.parquet",)
    assert (len(manifest.parts), manifest.reused_parts, manifest.rows) == (43, 39, 129)
    assert len(before.keys() & world.tree().keys()) == 39
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


def test_workers_of_a_scheduler(world: World, scheduler: str) -> None:
    world.days([1, 2])
    world.run()
    world.days([3, 4])
    manifest = run(world.job(), Resources(scheduler=scheduler, compute=replace(on_cpu(), threads=1)))
    assert manifest.rows == 20
    world.equals_one_run()
