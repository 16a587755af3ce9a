"""Slices in memory files: what readers find is what was written, or an error, whoever ends and whenever."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from distributed.protocol import deserialize, serialize
from junctor.out_of_core.cluster import shared_memory as sharing
from junctor.out_of_core.cluster import tasks
from junctor.out_of_core.cluster.tasks import PartOrigin

pytestmark = pytest.mark.skipif(sharing.machine() is None, reason="no memory files here")

KEPT = 1 << 20
HERE = {"sender": {"address": "tcp://10.0.0.1:1"}, "recipient": {"address": "tcp://10.0.0.1:2"}}
ELSEWHERE = {"sender": {"address": "tcp://10.0.0.1:1"}, "recipient": {"address": "tcp://10.0.0.2:2"}}


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    sharing.forget()
    yield
    gc.collect()
    sharing.forget()


def sent(*shapes: tuple[int, ...], seed: int = 0, kept: int = KEPT) -> tuple[sharing.SentSlices, list[Any]]:
    """Return slices that can be read, and what they are."""
    found, rng = sharing.room_for(shapes, np.dtype(np.float64), kept), np.random.default_rng(seed)
    values = [rng.uniform(size=shape) for shape in shapes]
    for target, value in zip(found.arrays, values, strict=True):
        target[...] = value
    found.show()
    return found, values


def received(slices: sharing.SentSlices, context: Any = HERE) -> tuple[bool, list[Any]]:
    """Return whether slices go by name, and what another worker gets."""
    header, frames = serialize(slices, serializers=["dask"], context=context)
    return header["sub-header"]["named"], deserialize(header, frames)


def start_of(slices: sharing.SentSlices) -> int:
    """Return where the first slice lies: two files of this process lie in two places."""
    return int(slices.arrays[0].ctypes.data)


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert [each.tobytes() for each in found] == [each.tobytes() for each in expected]
    assert [each.shape for each in found] == [each.shape for each in expected]


def test_a_name_is_enough_once() -> None:
    slices, values = sent((3, 5), (7,), (2, 1, 4))
    for named in (True, False):
        by_name, found = received(slices)
        assert by_name == named
        assert_same(found, values)
    assert_same(list(slices), values)
    assert sys.getsizeof(slices) >= sum(each.nbytes for each in values)


def test_names_that_nobody_finds_are_given_up() -> None:
    for n in range(sharing.MOST_MISSED):
        slices, values = sent((3,), seed=n)
        assert [received(slices)[0] for _ in range(2)] == [True, False]
    by_name, found = received(sent((3,), seed=n)[0])
    assert not by_name
    assert_same(found, values)


@pytest.mark.parametrize("context", [ELSEWHERE, {}, None])
def test_bytes_go_to_other_machines_and_to_disks(context: Any) -> None:
    slices, values = sent((3, 5), (7,))
    by_name, found = received(slices, context)
    assert not by_name
    assert_same(found, values)
    assert_same(pickle.loads(pickle.dumps(slices)), values)


def test_a_file_is_written_again_when_nobody_reads_it() -> None:
    slices, values = sent((100,), seed=1)
    file = start_of(slices)
    _, found = received(slices)
    del slices
    other, _ = sent((100,), seed=2)
    assert start_of(other) != file
    assert_same(found, values)
    one = found[0][3:5]
    del found
    assert start_of(sent((100,), seed=3)[0]) != file
    assert one.tobytes() == values[0][3:5].tobytes()
    del one
    assert start_of(sent((90,), seed=4)[0]) == file


def test_a_name_whose_content_is_gone() -> None:
    slices, _ = sent((100,))
    name = slices.name()
    assert name is not None
    del slices
    other = sharing.room_for([(100,)], np.dtype(np.float64), KEPT)
    with pytest.raises(OSError, match="another content"):
        sharing.opened(name)
    # Nor while it is written.
    written = other.name()
    assert written is not None
    with pytest.raises(OSError, match="another content"):
        sharing.opened(written)


def test_a_number_that_is_something_else_by_now() -> None:
    reading, writing = os.pipe()
    name = (os.getpid(), reading, bytes(sharing.TOKEN_BYTES), [(256, (1,), "<f8")])
    with pytest.raises(OSError, match="another content"):
        sharing.opened(name)
    os.close(reading)
    os.close(writing)
    with pytest.raises(FileNotFoundError):
        sharing.opened(name)


def test_files_that_wait_are_bounded() -> None:
    several = [sent((1000,), seed=n)[0] for n in range(5)]
    assert len(sharing.own_files) == 5
    del several
    sent((2000,), kept=40_000)
    assert sum(file.memory.nbytes for file in sharing.own_files) <= 40_000


def files_of_memory() -> set[str]:
    """Names in shared memory, without semaphores, which other processes make and remove meanwhile."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}


@pytest.mark.parametrize("before", [True, False])
def test_an_owner_that_is_killed(before: bool) -> None:
    code = (
        "import sys, pickle, numpy as np; from junctor.out_of_core.cluster import shared_memory as sharing\n"
        "s = sharing.room_for([(1000,)], np.dtype('f8'), 0); s.arrays[0][:] = 7; s.show()\n"
        "sys.stdout.buffer.write(pickle.dumps(s.name())); sys.stdout.flush(); sys.stdin.read()"
    )
    left = files_of_memory()
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as owner:
        assert owner.stdout is not None
        name = pickle.load(owner.stdout)
        found = sharing.opened(name) if before else []
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    if before:
        # As long as somebody reads it, and no longer.
        assert found[0].tolist() == [7.0] * 1000
    else:
        with pytest.raises(OSError):
            sharing.opened(name)
    assert files_of_memory() <= left
    sent((10,))
    received(sent((10,), seed=1)[0])
    assert not any(process == owner.pid for process, *_ in sharing.others_files)


def test_slices_go_as_bytes_without_memory_for_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, source = np.arange(6.0), PartOrigin(0, {}, {4: 2})
    (expected,) = tasks.slices_of({4: 1}, [source], None, whole)
    (found,) = tasks.slices_of({4: 1}, [source], KEPT, whole)
    assert found.tobytes() == expected.tobytes() == whole[3:].tobytes()

    def full(*_: Any) -> None:
        raise OSError("no space")

    sharing.forget()
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert type(tasks.slices_of({4: 1}, [source], KEPT, whole)) is list


def test_no_file_is_made_without_memory_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "available_memory", lambda: 1 << 20)
    with pytest.raises(OSError, match="of memory for a file"):
        sharing.room_for([(1 << 20,)], np.dtype(np.float64), 0)


def test_a_device_reaches_all_files() -> None:
    slices, _ = sent((1000,))
    received(slices)
    reached: list[Any] = []
    sharing.reach(reached.append)
    assert len(reached) == 2
    other, _ = sent((3000,))
    received(other)
    assert len(reached) == 4
    sharing.reach(None)
    sent((5000,))
    assert len(reached) == 4
