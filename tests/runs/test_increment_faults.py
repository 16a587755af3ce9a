"""Evidence that grows: interrupted, killed and damaged increments lose and double nothing."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence

import junctor
import pytest
from helpers.growing import DAY, HERE, World, write_notes
from junctor.model.errors import RunError
from junctor.runs import run as steps
from junctor.runs.increments import IncrementDirectory
from junctor.runs.integrity import verify
from junctor.runs.partition import Part, PartitionTask, PartTask, StageTimings
from junctor.runs.run import read_manifest, run
from junctor.runs.share import finish
from junctor.runs.workload import Job
from junctor.runtime.progress import Silence


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
