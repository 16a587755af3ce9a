"""Evidence that grows: inputs that cannot be read, are empty, or change hold up no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers.growing import DAY, World
from junctor.evidence import encoded
from junctor.model.errors import EvidenceError, ThresholdError
from junctor.model.network import Network
from junctor.model.query import Query
from junctor.runs import new_inputs
from junctor.runs.run import read_manifest
from junctor.runtime.files import Checksum


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


def test_files_that_grow_while_they_are_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.days([1, 2])
    real = encoded.write_partition

    def write_partition(
        partition: encoded.EncodedPartition, network: Network, path: Path, cells: int | None
    ) -> Checksum:
        checksum = real(partition, network, path, cells)
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
