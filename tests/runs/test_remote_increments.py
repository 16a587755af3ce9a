"""Evidence that grows in a store: the same parts as on a disk, whatever fails on the way and whoever is killed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path

import junctor
import pyarrow as pa
import pytest
from helpers.command_line import junctor_cli
from helpers.stores import Bucket, MemoryStore
from junctor.generate import evidence_table, random_network, sample
from junctor.model.errors import EvidenceError
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.runs import new_inputs
from junctor.runs import run as steps
from junctor.runs.run import read_manifest, run
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from pyarrow import parquet

HERE = Resources(workers=0, compute=ComputeOptions(memory=1 << 30, device="cpu"))
ROWS = 5


@pytest.fixture(scope="module")
def network() -> Network:
    return random_network(6, seed=3, zeros=0.2)


class StopError(Exception):
    pass


def stop(*_: object) -> None:
    raise StopError


class Twins:
    """Evidence that grows on a disk and in a bucket, with a job for each."""

    def __init__(self, folder: Path, bucket: Bucket, network: Network) -> None:
        self.folder, self.bucket, self.network = folder, bucket, network
        junctor.write_network(network, folder / "net.bif")
        bucket.put("net.bif", (folder / "net.bif").read_bytes())
        paths = (str(folder / name) for name in ("net.bif", "in", "out"))
        self.local = Job(*paths, incremental=True, partition_rows=3)
        urls = (bucket.url(name) for name in ("net.bif", "in", "out"))
        self.remote = self.local.but(**dict(zip(("network", "evidence", "output"), urls, strict=True)))

    def write(self, name: str, seed: int) -> None:
        path = self.folder / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        table = evidence_table(
            self.network, sample(self.network, ROWS, seed=seed), observed=0.5, pattern="random", seed=seed
        )
        cases = pa.array([f"{seed}-{i}" for i in range(ROWS)])
        parquet.write_table(table.set_column(table.column_names.index("case_id"), "case_id", cases), path)
        self.bucket.put(f"in/{name}", path.read_bytes())

    def remove(self, name: str) -> None:
        (self.folder / "in" / name).unlink()
        self.bucket.delete(f"in/{name}")

    def are_equal(self) -> None:
        """Assert that both outputs have the same parts, and that nothing else is left."""
        found, expected = self.bucket.objects("out/posteriors/"), self.parts()
        assert found == expected
        ours, theirs = (read_manifest(job.directory) for job in (self.local, self.remote))
        assert ours.parts == theirs.parts
        assert [replace(each, modified=None) for each in ours.inputs] == [
            replace(each, modified=None) for each in theirs.inputs
        ]
        assert {f"out/{part.file}" for part in theirs.parts} == found.keys()
        assert not self.bucket.names("out/evidence")

    def parts(self) -> dict[str, bytes]:
        folder = self.folder / "out"
        return {f"out/{path.relative_to(folder)}": path.read_bytes() for path in folder.glob("posteriors/**/*.parquet")}


@pytest.fixture
def twins(tmp_path: Path, bucket: Bucket, store: MemoryStore, network: Network) -> Twins:
    # Objects are old enough that their times, with milliseconds, tell whether they were written to since.
    seconds = count(time.time() // 1 - 1e5 + 0.821)
    store.clock = lambda: next(seconds)
    return Twins(tmp_path, bucket, network)


def test_increments_in_a_store_are_those_on_a_disk(twins: Twins) -> None:
    for seed in range(4):
        twins.write(f"date=2026-11-{20 + seed}/a%20b.parquet", seed)
    run(twins.local, HERE)
    twins.bucket.proxy.share = 0.05
    assert run(twins.remote, HERE).rows == 20
    twins.are_equal()
    twins.write("date=2026-11-21/a%20b.parquet", 7)
    twins.write("date=2026-11-21/c.parquet", 8)
    twins.remove("date=2026-11-22/a%20b.parquet")
    ours, theirs = run(twins.local, HERE), run(twins.remote, HERE)
    assert theirs.increments[-1].late == ours.increments[-1].late == ("date=2026-11-21/c.parquet",)
    assert theirs.increments[-1].changed == ("date=2026-11-21/a%20b.parquet",)
    assert theirs.increments[-1].removed == ("date=2026-11-22/a%20b.parquet",)
    twins.are_equal()
    before = twins.bucket.get("out/manifest.json")
    assert run(twins.remote, HERE).increment is None
    assert twins.bucket.get("out/manifest.json") == before
    backfill = {"backfill": ("date=2026-11-20..2026-11-21",), "drop_removed": True}
    for job in (twins.local, twins.remote):
        assert len(run(job.but(**backfill), HERE).increments[-1].backfilled) == 3
    twins.are_equal()


def test_requests_that_an_increment_takes_do_not_grow_with_what_is_there(twins: Twins) -> None:
    def requests() -> Counter[str]:
        seen: Counter[str] = Counter()
        twins.bucket.proxy.watch = lambda method, path: seen.update([method])
        run(twins.remote, HERE)
        twins.bucket.proxy.watch = lambda method, path: None
        return seen

    twins.write("date=2026-11-20/a.parquet", 0)
    run(twins.remote, HERE)
    twins.write("date=2026-11-20/b.parquet", 1)
    few = requests()
    for seed in range(2, 14):
        twins.write(f"date=2026-11-{seed % 4:02d}/{seed}.parquet", seed)
    run(twins.remote, HERE)
    twins.write("date=2026-11-20/c.parquet", 40)
    run(twins.remote, HERE)
    twins.write("date=2026-11-20/d.parquet", 41)
    many = requests()
    assert many["PUT"] == few["PUT"]
    assert many.total() <= few.total() + 10


def test_globs_and_status_in_a_store(twins: Twins) -> None:
    for seed in range(3):
        twins.write(f"date=2026-11-{20 + seed}/a.parquet", seed)
    glob = twins.bucket.url("in/date=*/*.parquet")
    assert run(twins.remote.but(evidence=glob), HERE).rows == 15
    one = twins.remote.but(evidence=twins.bucket.url("in/date=2026-11-2[01]/*"), output=twins.bucket.url("two"))
    assert [each.path for each in run(one, HERE).inputs] == [f"date=2026-11-{day}/a.parquet" for day in (20, 21)]
    ordinary = one.but(incremental=False, keep=("date",), output=twins.bucket.url("three"))
    assert run(ordinary, HERE).rows == 10
    with pytest.raises(EvidenceError, match="no file has such a name"):
        run(one.but(evidence=twins.bucket.url("in/date=2027-*")), HERE)
    for output, rows in (("out", 15), ("three", 10)):
        record = json.loads(junctor_cli("status", twins.bucket.url(output), "--json").stdout)
        assert (record["state"], record["rows"]) == ("finished", rows)


def test_names_in_a_store_begin_where_they_did_before(twins: Twins) -> None:
    base = twins.remote.but(evidence=twins.bucket.url("in/a%23b"))
    for seed, name in enumerate(("x.parquet", "date=1/y.parquet", "z/y.parquet")):
        twins.write(f"a#b/{name}", seed)
    first = run(base, HERE)
    twins.write("a#b/z/y.parquet", 9)
    for name in ("z/*.parquet", "z", "z/y.parquet", "date=1"):
        manifest = run(base.but(evidence=twins.bucket.url(f"in/a%23b/{name}")), HERE)
        assert [each.path for each in manifest.inputs] == [each.path for each in first.inputs]
        assert manifest.increments[-1].changed == ("z/y.parquet",)
        assert manifest.root == twins.bucket.url("in/a%23b").partition("?")[0]
    with pytest.raises(EvidenceError, match=r"the inputs so far are in s3://.*/in/a#b, and still there"):
        run(base.but(evidence=twins.bucket.url("in")), HERE)


def test_increments_go_on_without_the_right_to_delete(
    twins: Twins, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, place = twins.bucket, f"s3://{twins.bucket.name}/out"

    def told() -> int:
        found = [each.message for each in caplog.records if "left there" in each.message]
        caplog.clear()
        assert all(each.startswith(f"{place}/") and "the right to delete is missing" in each for each in found)
        return len(found)

    def state() -> str:
        return str(json.loads(junctor_cli("status", place, "--json").stdout)["state"])

    bucket.proxy.denies = lambda method, path: method == "DELETE"
    first, backfill = "date=2026-11-20/a.parquet", twins.remote.but(backfill=("date=2026-11-20",))
    for seed in range(2):
        twins.write(f"date=2026-11-{20 + seed}/a.parquet", seed)
    run(twins.remote, HERE)
    assert (told(), state()) == (1, "finished")
    # Of the size that it had, and with readable metadata.
    old = next(each.parts[0] for each in read_manifest(twins.remote.directory).inputs if each.path == first)
    data = bucket.get(f"out/{old}")
    damaged = b"PAR1damaged!" + data[12:]
    bucket.put(f"out/{old}", damaged)
    assert run(backfill, HERE).increments[-1].backfilled == (first,)
    assert (told(), state()) == (1, "finished")
    assert bucket.get(f"out/{old}") == damaged
    # The key of the damaged part is free, but for what was left; also for an increment that was interrupted.
    with monkeypatch.context() as patch:
        patch.setattr(steps, "merge", stop)
        with pytest.raises(StopError):
            run(backfill, HERE)
    assert (told(), state()) == (0, "finished, with an unfinished increment")
    assert run(backfill, HERE).increments[-1].backfilled == (first,)
    assert run(twins.remote, HERE).increment is None
    assert (told(), state()) == (2, "finished")
    twins.write("date=2026-11-21/b.parquet", 7)
    twins.remove("date=2026-11-21/a.parquet")
    manifest = run(twins.remote.but(drop_removed=True), HERE)
    assert (manifest.rows, told()) == (10, 1)
    assert len(bucket.names("out/posteriors")) > len(manifest.parts)
    bucket.proxy.denies = lambda method, path: False
    assert run(twins.remote, HERE).increment is None
    assert not told()
    run(twins.local, HERE)
    found = bucket.objects("out/posteriors/")
    assert sorted(found.values()) == sorted(twins.parts().values())
    assert {f"out/{part.file}" for part in read_manifest(twins.remote.directory).parts} == found.keys()
    assert not bucket.names("out/evidence")


def test_keys_that_are_no_paths_are_told_and_the_others_answered(twins: Twins) -> None:
    twins.write("a.parquet", 0)
    twins.bucket.put("in//a.parquet", twins.bucket.get("in/a.parquet"))
    with pytest.raises(EvidenceError, match=r"1 could not be read, 1 answered .*/in//a\.parquet: .* is not read"):
        run(twins.remote, HERE)
    run(twins.local, HERE)
    twins.are_equal()


def test_listings_may_have_milliseconds(twins: Twins) -> None:
    # Those of MinIO and Ceph, and of the tests, whose answers about one object have whole seconds.
    twins.write("a.parquet", 0)
    manifest = run(twins.remote, HERE)
    assert (manifest.rows, manifest.inputs[0].modified) == (ROWS, int(manifest.inputs[0].modified or 0))
    seen: list[str] = []
    twins.bucket.proxy.watch = lambda method, path: seen.append(f"{method} {path}")
    for evidence in ("in", "in/a.parquet"):
        assert run(twins.remote.but(evidence=twins.bucket.url(evidence)), HERE).increment is None
    # Size and time tell that it is the same, whether it was listed or asked for alone.
    assert not [each for each in seen if each.startswith("GET") and each.endswith("/in/a.parquet")]


def test_an_object_that_is_replaced_within_a_second_is_told(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = twins.network.variables[0]
    first = f"case_id,{variable.name}\n1,{variable.states[0]}\n".encode()
    twins.bucket.put("in/a.csv", first)
    monkeypatch.setattr(new_inputs, "stamp_of", lambda path: (len(first), 1.0, 0))
    seen: list[str] = []

    def replace_it(method: str, path: str) -> None:
        if method == "GET" and path.endswith("/in/a.csv"):
            seen.append(path)
            if len(seen) == 2:
                # After its digest was made.
                twins.bucket.put("in/a.csv", first.replace(b"\n1,", b"\n2,"))

    twins.bucket.proxy.watch = replace_it
    with pytest.raises(EvidenceError, match="was written to while it was read"):
        run(twins.remote, HERE)
    assert run(twins.remote, HERE).rows == 1
    assert cases_of(twins.bucket.get(*twins.bucket.names("out/posteriors"))) == ["2"]


@pytest.mark.slow
def test_kills_in_a_store_lose_and_double_nothing(twins: Twins) -> None:
    kills, chance = 6, random.Random(1)
    for seed in range(10):
        twins.write(f"date=2026-11-{seed:02d}/a.parquet", seed)
    twins.bucket.proxy.share = 0.05
    job = twins.remote
    words = ["run", job.network, job.evidence, "-o", job.output, "--incremental", "--partition-rows", "3"]
    words += ["--workers", "0", "--device", "cpu", "--no-prefect", "--quiet"]
    command = [sys.executable, "-c", "from junctor.cli import main; main()", *words]
    environment = {**os.environ, **twins.bucket.environment}
    started = time.monotonic()
    assert subprocess.run([*command[:7], twins.bucket.url("warm"), *command[8:]], env=environment).returncode == 0
    seconds = time.monotonic() - started
    killed = done = 0
    while killed < kills and done < 10 * kills:
        twins.write(f"date=2026-11-{chance.randrange(12):02d}/{chance.choice('abc')}.parquet", 100 + done)
        process = subprocess.Popen(command, env=environment)
        try:
            process.wait(seconds * (0.2 + 0.8 * chance.random()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed += 1
        done += 1
        if "out/manifest.json" in twins.bucket.names("out"):
            manifest = read_manifest(job.directory)
            cases = [case for part in manifest.parts for case in cases_of(twins.bucket.get(f"out/{part.file}"))]
            assert len(set(cases)) == len(cases) == manifest.rows
    assert killed == kills
    run(job, HERE)
    run(twins.local, HERE)
    found = twins.bucket.objects("out/posteriors/")
    assert sorted(found.values()) == sorted(twins.parts().values())
    assert {f"out/{part.file}" for part in read_manifest(job.directory).parts} == found.keys()


def cases_of(data: bytes) -> list[str]:
    cases: list[str] = parquet.read_table(pa.BufferReader(data), columns=["case_id"])["case_id"].to_pylist()
    return cases
