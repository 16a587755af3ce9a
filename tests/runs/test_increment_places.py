"""Evidence that grows: folders, globs and links, and the names of inputs in them."""

from __future__ import annotations

import shutil
from pathlib import Path

import junctor
import pytest
from helpers.growing import DAY, World, rows_of
from junctor.model.errors import EvidenceError
from junctor.runs.run import read_manifest
from pyarrow import parquet


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
