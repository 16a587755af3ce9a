"""Runs with network, evidence and output in a store: the same bytes as on a disk, whatever fails on the way."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import junctor
import pyarrow as pa
import pytest
from helpers.command_line import junctor_cli
from helpers.stores import CREDENTIALS, Bucket
from junctor.generate import evidence_table, random_network, sample
from junctor.hmm.results import read_sequences
from junctor.model.errors import EvidenceError, InputError, ModelError, RunError
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.runs.run import run
from junctor.runs.workload import Job
from junctor.runtime import remote, remote_lock
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.remote import RemotePath, location
from junctor.runtime.remote_lock import RemoteLock
from pyarrow import csv, feather, parquet

HERE = Resources(workers=0, compute=ComputeOptions(memory=1 << 30, device="cpu"))
ROWS = 30


@pytest.fixture(scope="module")
def network() -> Network:
    return random_network(8, seed=3, zeros=0.2)


@pytest.fixture(scope="module")
def evidence(network: Network) -> pa.Table:
    return evidence_table(network, sample(network, ROWS, seed=1), observed=0.5, pattern="random", seed=2)


@pytest.fixture
def local(network: Network, evidence: pa.Table, tmp_path: Path) -> Job:
    """The job on a disk."""
    junctor.write_network(network, tmp_path / "net.bif")
    (tmp_path / "rows").mkdir()
    parquet.write_table(evidence.slice(0, 13), tmp_path / "rows" / "a.parquet")
    parquet.write_table(evidence.slice(13), tmp_path / "rows" / "b.parquet")
    (tmp_path / "rows" / "_SUCCESS").write_bytes(b"")
    places = (str(tmp_path / name) for name in ("net.bif", "rows", "out"))
    return Job(*places, partition_rows=12, case_id="case_id")


@pytest.fixture
def job(local: Job, bucket: Bucket) -> Job:
    """The same job in a bucket."""
    return in_bucket(local, bucket)


def in_bucket(local: Job, bucket: Bucket, **changes: Any) -> Job:
    upload(bucket, Path(local.network).parent)
    return local.but(network=bucket.url("net.bif"), evidence=bucket.url("rows"), output=bucket.url("out"), **changes)


def upload(bucket: Bucket, folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and "out" not in path.relative_to(folder).parts:
            bucket.put(path.relative_to(folder).as_posix(), path.read_bytes())


def parts_of(folder: str, kind: str = "posteriors") -> dict[str, bytes]:
    return {f"out/{kind}/{path.name}": path.read_bytes() for path in (Path(folder) / kind).iterdir()}


def message(error: pytest.ExceptionInfo[Exception]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert not any(secret in text for secret in CREDENTIALS.values())
    return text


def test_a_url_is_no_local_folder(local: Job, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = junctor_cli(
        "run", local.network, local.evidence, "--output", f"s3://{bucket.name}/out", "--workers", "0", "--no-prefect"
    )
    assert result.exit_code == 0, result.output
    assert not (tmp_path / "s3:").exists()
    assert "out/manifest.json" in bucket.names()
    assert f"s3://{bucket.name}/out/posteriors" in result.output


def test_a_run_in_a_store_has_the_bytes_of_one_on_a_disk(
    local: Job, job: Job, bucket: Bucket, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    expected, manifest = run(local, HERE), run(job, HERE)
    assert manifest.parts == expected.parts
    assert manifest.statuses == expected.statuses
    found = bucket.objects("out")
    assert found == {
        key: found[key] if key.endswith(("json", ".lock")) else (Path(local.output) / key[4:]).read_bytes()
        for key in (f"out/{path.relative_to(local.output)}" for path in Path(local.output).rglob("*") if path.is_file())
    }
    assert json.loads(found["out/run.json"]) == json.loads((Path(local.output) / "run.json").read_bytes())
    assert run(job, HERE).reused_parts == 3
    assert bucket.objects("out")["out/manifest.json"] == found["out/manifest.json"]
    assert not list(temporary.glob("junctor-put-*"))


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "tsv", "arrow", "evid"])
def test_evidence_of_all_formats_is_read(bucket: Bucket, local: Job, evidence: pa.Table, kind: str) -> None:
    folder = Path(local.network).parent
    path = folder / f"one.{kind}"
    if kind == "arrow":
        feather.write_feather(evidence, str(path))
    elif kind == "evid":
        path.write_text("2\n1 0 1\n2 1 0 3 0\n")
    else:
        with pa.CompressedOutputStream(str(path), "gzip") if kind.endswith("gz") else path.open("wb") as file:
            csv.write_csv(evidence, file, csv.WriteOptions(delimiter="\t" if kind == "tsv" else ","))
    upload(bucket, folder)
    case_id = None if kind == "evid" else "case_id"
    expected = local.but(evidence=str(path), case_id=case_id)
    run(expected, HERE)
    run(expected.but(evidence=bucket.url(path.name), output=bucket.url("out")), HERE)
    assert bucket.objects("out/posteriors") == parts_of(expected.output)


def test_other_files_of_answers_and_csv(local: Job, bucket: Bucket) -> None:
    changes: dict[str, Any] = {"csv": True, "output_format": "arrow", "layout": "columns"}
    expected = local.but(**changes)
    run(expected, HERE)
    run(in_bucket(local, bucket, **changes), HERE)
    assert bucket.objects("out/posteriors/") == parts_of(expected.output)
    assert bucket.get("out/posteriors.csv") == (Path(expected.output) / "posteriors.csv").read_bytes()


def test_credentials_of_a_url_are_told_to_nobody(
    local: Job, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    in_bucket(local, bucket)
    bucket.put("one.evid", b"1 0 1\n")
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    # No other ones, of this machine.
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))

    def secret(key: str) -> str:
        return bucket.url(key).replace("s3://", "s3://AKIAEXAMPLE:s3cr3t%2Fplus%2Bmore@")

    caplog.set_level(logging.DEBUG)
    places = secret("net.bif"), secret("rows"), "--output", secret("out")
    told = ""
    for options in ((), ("--csv", "--overwrite"), ("--targets", "nobody"), ("--precision", "single")):
        result = junctor_cli("run", *places, "--workers", "0", "--no-prefect", *options)
        told += result.output + result.stderr
    told += junctor_cli("validate", *places[:2]).output + junctor_cli("inspect", *places[:2]).output
    told += junctor_cli("convert", secret("net.bif"), secret("copy.bif")).output
    rejected = ("run", *places, "--workers", "0", "--no-prefect", "--overwrite", "--fail-if", "ok > 0", "--rejects")
    fit = ("learn", *places[:2], "--case-id", "case_id", "--prior")
    crossed = ("--report", secret("fit.html"), "--fail-if", "ok > 0")
    for command, code in (
        ((*rejected, secret("bad.csv")), 7),
        ((*rejected, secret("bad.txt")), 3),
        ((*fit, "bdeu:1", "--output", secret("fit.bif"), "--json"), 0),
        ((*fit, "bdeu:1", "--output", secret("fit.bif"), *crossed), 7),
        ((*fit, f"dirichlet:{secret('net.bif')}@0", "--output", secret("other.bif")), 3),
        ((*fit, f"dirichle:{secret('net.bif')}", "--output", secret("other.bif")), 3),
        (("counts", *places[:2], "--case-id", "case_id", "--output", secret("counts.csv"), "--json"), 0),
        (("map", *places[:2], "--output", secret("map.toml")), 0),
        (("map", *places[:2], "--output", secret("map.toml")), 3),
        (("map", secret("net.bif"), secret("one.evid")), 3),
    ):
        result = junctor_cli(*command)
        assert result.exit_code == code, result.output
        told += result.output
    bucket.proxy.denies = lambda method, path: "out" in path or "rows" in path
    denied = junctor_cli("run", *places, "--workers", "0", "--no-prefect")
    assert denied.exit_code == 6
    assert "access denied" in denied.stderr
    assert f"s3://{bucket.name}/out" in denied.stderr
    denied_rows = junctor_cli("run", *places[:2], "--output", str(tmp_path / "o"), "--workers", "0", "--no-prefect")
    assert denied_rows.exit_code == 3
    written = b" ".join(bucket.objects().values())
    for text in (told, denied.stderr, denied_rows.stderr, caplog.text, written.decode("latin-1")):
        assert "AKIAEXAMPLE" not in text
        assert "s3cr3t" not in text
    assert bucket.get("copy.bif")


def test_flows_refuse_credentials_that_they_would_keep(bucket: Bucket) -> None:
    place = bucket.url("out").replace("s3://", "s3://AKIAEXAMPLE:s3cr3t@")
    result = junctor_cli("run", "net.bif", "rows", "--output", place, "--prefect")
    assert result.exit_code == 3
    assert "Prefect's server would keep them" in result.stderr
    assert "s3cr3t" not in result.stderr


@pytest.mark.parametrize("place", ["network", "evidence", "output"])
def test_an_unknown_scheme_is_refused_before_work(local: Job, place: str) -> None:
    with pytest.raises(InputError, match="unknown kind of URL ftp://") as caught:
        run(local.but(**{place: "ftp://host/x"}), HERE)  # type: ignore[arg-type]
    message(caught)
    assert not Path(local.output).exists()


def test_file_urls_are_local_paths(local: Job) -> None:
    run(local, HERE)
    other = local.but(
        network=f"file://{local.network}", evidence=f"file://{local.evidence}", output=f"file://{local.output}-2"
    )
    run(other, HERE)
    assert parts_of(f"{local.output}-2") == parts_of(local.output)


def test_an_interrupted_run_goes_on(job: Job, bucket: Bucket, local: Job) -> None:
    run(local, HERE)
    whole = parts_of(local.output) | parts_of(local.output, "evidence") | parts_of(local.output, "statistics")
    del whole["out/evidence/done.json"], whole["out/evidence/checksums.json"]
    for lost in (["manifest.json"], ["manifest.json", "posteriors/part-00002.parquet"], ["evidence/done.json"]):
        run(job, HERE)
        for name in lost:
            bucket.delete(f"out/{name}")
        manifest = run(job, HERE)
        assert manifest.reused_parts == 3 - (len(lost) == 2)
        assert {key: data for key, data in bucket.objects("out").items() if "part-" in key} == whole


def test_damaged_and_missing_objects_are_made_again(job: Job, bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    def parts() -> dict[str, bytes]:
        return {key: data for key, data in bucket.objects("out").items() if "part-" in key}

    run(job, HERE)
    whole = parts()
    part, rows = "out/posteriors/part-00001.parquet", "out/evidence/part-00001.parquet"
    for name, data in ((part, whole[part][:-100]), (rows, b""), (rows, b"PAR1 no"), (rows, None)):
        bucket.delete("out/manifest.json")
        bucket.delete(part)
        if data is None:
            bucket.delete(name)
        else:
            bucket.put(name, data)
        caplog.clear()
        run(job, HERE)
        assert f"s3://{bucket.name}/{name}" in caplog.text
        assert "made again" in caplog.text
        assert parts() == whole
    bucket.put("out/run.json", b"{")
    with pytest.raises(RunError, match="not JSON") as caught:
        run(job, HERE)
    message(caught)


def test_a_part_that_a_store_refuses_is_no_damage(job: Job, bucket: Bucket) -> None:
    run(job, HERE)
    part = "out/posteriors/part-00001.parquet"
    whole = bucket.get(part)
    bucket.delete("out/manifest.json")
    bucket.proxy.denies = lambda method, path: method == "GET" and part in path
    with pytest.raises(RunError, match="access denied") as denied:
        run(job, HERE)
    assert f"s3://{bucket.name}/{part}" in message(denied)
    bucket.proxy.denies = lambda method, path: False
    assert bucket.get(part) == whole
    assert run(job, HERE).reused_parts == 3


def test_damage_that_may_not_be_removed_is_told(job: Job, bucket: Bucket) -> None:
    run(job, HERE)
    bucket.proxy.denies = lambda method, path: method == "DELETE"
    # Whatever is whole needs no such right.
    run(job, HERE)
    part = "out/posteriors/part-00001.parquet"
    whole = bucket.get(part)
    bucket.put(part, whole[:-100])
    with pytest.raises(RunError, match="access denied") as denied:
        run(job, HERE)
    assert f"s3://{bucket.name}/{part}" in message(denied)
    # The manifest gives way before a part is made again.
    bucket.delete(part)
    with pytest.raises(RunError, match="access denied") as denied:
        run(job, HERE)
    assert f"s3://{bucket.name}/out/manifest.json" in message(denied)
    bucket.proxy.denies = lambda method, path: False
    run(job, HERE)
    assert bucket.get(part) == whole


def test_a_run_in_a_store_is_verified(job: Job, bucket: Bucket) -> None:
    run(job, HERE)
    place = f"s3://{bucket.name}/out"
    assert junctor_cli("verify", place).exit_code == 0
    whole = bucket.get("out/posteriors/part-00001.parquet")
    bucket.put("out/posteriors/part-00001.parquet", whole[:100] + b"x" + whole[101:])
    damaged = junctor_cli("verify", place)
    assert damaged.exit_code == 6
    assert "damaged posteriors/part-00001.parquet" in damaged.output
    bucket.put("out/posteriors/part-00001.parquet", whole[:-100])
    run(job, HERE)
    assert bucket.get("out/posteriors/part-00001.parquet") == whole
    assert junctor_cli("verify", place).exit_code == 0


def test_missing_and_denied_inputs_are_told(job: Job, bucket: Bucket) -> None:
    with pytest.raises(ModelError, match="there is no such file") as model:
        run(job.but(network=bucket.url("nothing.bif")), HERE)
    message(model)
    with pytest.raises(EvidenceError, match="no such file or folder") as rows:
        run(job.but(evidence=bucket.url("nothing.parquet")), HERE)
    message(rows)
    bucket.proxy.denies = lambda method, path: "rows" in path
    with pytest.raises(EvidenceError, match="access denied") as rows:
        run(job, HERE)
    assert f"s3://{bucket.name}/rows" in message(rows)
    bucket.proxy.denies = lambda method, path: "net.bif" in path
    with pytest.raises(ModelError, match="access denied") as model:
        run(job, HERE)
    message(model)
    bucket.proxy.denies = lambda method, path: method == "PUT"
    with pytest.raises(RunError, match="access denied") as denied:
        run(job, HERE)
    message(denied)


@pytest.mark.parametrize(
    ("key", "source"),
    [
        ("rows//a.parquet", "rows"),
        ("rows/./a.parquet", "rows"),
        ("rows/x/../a.parquet", "rows"),
        ("rows/a.parquet/", "rows"),
        ("rows//a.parquet", "rows/*"),
        ("rows//a.parquet", "rows/*.parquet"),
        ("rows/x//a.parquet", "rows/**/*.parquet"),
    ],
)
def test_keys_that_are_no_paths_are_refused_by_name(job: Job, bucket: Bucket, key: str, source: str) -> None:
    # The twin of a file that is there, which was read twice in its place.
    bucket.put(key, bucket.get("rows/a.parquet"))
    with pytest.raises(EvidenceError, match=r"a key with an empty, '\.' or '\.\.' part is not read") as caught:
        run(job.but(evidence=bucket.url(source)), HERE)
    assert message(caught).startswith(f"s3://{bucket.name}/{key}: ")


def test_hidden_keys_and_marks_of_folders_are_passed_over(local: Job, job: Job, bucket: Bucket) -> None:
    run(local, HERE)
    for key in ("rows/", "rows//", "rows/x//", "rows/_tmp//a.parquet", "rows/.x/../a.parquet"):
        bucket.put(key, b"" if key.endswith("/") else b"other")
    run(job, HERE)
    assert parts_of(local.output) == bucket.objects("out/posteriors")


@pytest.mark.parametrize("lost", [False, True])
def test_a_store_that_fails_on_encoded_evidence_needs_no_new_run(job: Job, bucket: Bucket, lost: bool) -> None:
    part = "out/evidence/part-00001.parquet"

    def lose(method: str, path: str) -> None:
        if lost and method == "HEAD" and part in path and "out/evidence/done.json" in bucket.names("out"):
            bucket.delete(part)

    bucket.proxy.watch = lose
    bucket.proxy.denies = lambda method, path: not lost and method == "GET" and part in path
    said = "no such object: run the same command again" if lost else "access denied .*: see to the credentials"
    with pytest.raises(RunError, match=said) as caught:
        run(job, HERE)
    assert f"s3://{bucket.name}/{part}: " in message(caught)
    assert "anew" not in message(caught)
    bucket.proxy.watch = lambda method, path: None
    bucket.proxy.denies = lambda method, path: False
    assert run(job, HERE).rows == ROWS


def test_a_store_that_fails_on_encoded_sequences_is_told(bucket: Bucket) -> None:
    bucket.put("part.parquet", bytes(100_000))
    path = location(bucket.url("part.parquet"))
    with pytest.raises(RunError, match=r"cannot be read as encoded sequences .*: start the run anew"):
        read_sequences(path)
    bucket.proxy.denies = lambda method, path: method == "GET"
    with pytest.raises(RunError, match=r"part\.parquet: access denied") as caught:
        read_sequences(path)
    assert "anew" not in message(caught)


def test_a_missing_bucket_is_told_wherever_it_is_read(job: Job, bucket: Bucket) -> None:
    def elsewhere(url: str) -> str:
        return url.replace(bucket.name, "no-such-bucket")

    told = r"^s3://no-such-bucket/[^:]*: no such bucket: make it, or mend its name$"
    for changes in (
        {"network": elsewhere(job.network)},
        {"evidence": elsewhere(job.evidence)},
        {"evidence": elsewhere(bucket.url("rows/*.parquet"))},
        {"output": elsewhere(job.output)},
    ):
        with pytest.raises((InputError, RunError), match=told):
            run(job.but(**changes), HERE)  # type: ignore[arg-type]
    for command in ("status", "verify"):
        result = junctor_cli(command, elsewhere(job.output))
        assert (result.exit_code, "no such bucket" in result.stderr) == (6, True)
    result = junctor_cli("map", job.network, elsewhere(job.evidence))
    assert (result.exit_code, "no such bucket" in result.stderr) == (3, True)
    with pytest.raises(ModelError, match="no such bucket"):
        junctor.read_network("s3://no-such-bucket")
    # Rights that do not reach to the bucket say nothing of it.
    bucket.proxy.denies = lambda method, path: path.strip("/") == bucket.name
    with pytest.raises(ModelError, match="there is no such file"):
        run(job.but(network=bucket.url("nothing.bif")), HERE)


def test_a_store_that_stays_away_is_told_in_one_line(job: Job, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "WAITS", (0.01,))
    bucket.proxy.faults, bucket.proxy.share = ("503",), 1.0
    with pytest.raises(RunError, match="no success in 2 tries") as caught:
        run(job, HERE)
    assert f"s3://{bucket.name}/out" in message(caught)
    assert "run the same command again" in message(caught)


def test_another_run_is_refused_and_replaced(job: Job, bucket: Bucket) -> None:
    run(job, HERE)
    other = job.but(query=Query("mpe"))
    with pytest.raises(RunError, match="holds another run: query was 'posteriors', now 'mpe'"):
        run(other, HERE)
    bucket.put("out/notes.txt", b"mine")
    run(other.but(overwrite=True), HERE)
    keys = bucket.names("out")
    assert not any("posteriors" in key for key in keys)
    assert "out/notes.txt" in keys
    assert "out/mpe/part-00000.parquet" in keys
    bucket.delete("out/run.json")
    with pytest.raises(RunError, match=r"has 'network.parquet' but no run.json"):
        run(other, HERE)


def test_one_run_at_a_time(job: Job, bucket: Bucket) -> None:
    path = job.directory.path / ".lock"
    assert isinstance(path, RemotePath)
    first = RemoteLock(path)
    first.acquire()
    with pytest.raises(
        RunError, match=r"in use by another junctor \(process \d+ on .*seen \d s ago\); .* in \d+ s"
    ) as used:
        run(job, HERE)
    message(used)
    first.release()
    with job.directory.locked():
        pass
    record = {"owner": "x", "process": os.getpid(), "host": "elsewhere", "place": "elsewhere", "time": time.time()}
    bucket.put("out/.lock", json.dumps(record).encode())
    with pytest.raises(RunError, match="on elsewhere"), job.directory.locked():
        pass
    # Nobody renewed it.
    bucket.put("out/.lock", json.dumps(record | {"time": time.time() - 61}).encode())
    with job.directory.locked():
        pass
    # A process of this machine that was killed.
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE, check=True)
    here = record | {"place": remote_lock._place(), "process": int(dead.stdout)}
    bucket.put("out/.lock", json.dumps(here).encode())
    with job.directory.locked():
        pass
    for strange in (b"", b"{", b"[]", b"{}"):
        bucket.put("out/.lock", strange)
        with job.directory.locked():
            pass


def test_a_lock_is_renewed_and_its_loss_is_told(job: Job, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_lock, "RENEWAL", 0.05)
    path = job.directory.path / ".lock"
    assert isinstance(path, RemotePath)
    lock = RemoteLock(path)
    lock.acquire()
    first = json.loads(bucket.get("out/.lock"))
    until(lambda: json.loads(bucket.get("out/.lock"))["time"] > first["time"])
    remote_lock.check_lock(job.directory.path)
    bucket.put("out/.lock", json.dumps(first | {"owner": "other", "time": time.time()}).encode())
    until(lambda: lock._lost_to is not None)
    with pytest.raises(RunError, match="taken over by another junctor"):
        remote_lock.check_lock(job.directory.path)
    lock.release()
    assert json.loads(bucket.get("out/.lock"))["owner"] == "other"


def test_the_last_of_two_at_once_has_the_lock(job: Job, bucket: Bucket) -> None:
    path = job.directory.path / ".lock"
    assert isinstance(path, RemotePath)
    other = {"owner": "other", "process": 1, "host": "h", "place": "p", "time": time.time()}
    seen: list[str] = []

    def overtake(method: str, key: str) -> None:
        # The other one writes between this one's writing and looking again.
        if key.endswith(".lock") and method == "PUT":
            seen.append(key)
        elif seen:
            bucket.put("out/.lock", json.dumps(other).encode())

    bucket.proxy.watch = overtake
    with pytest.raises(RunError, match="process 1 on h"):
        RemoteLock(path).acquire()


def test_runs_with_failing_requests_have_the_same_bytes(local: Job, job: Job, bucket: Bucket) -> None:
    run(local, HERE)
    bucket.proxy.share = 0.05
    for seed in range(2):
        bucket.proxy._random = random.Random(seed)
        run(job.but(output=bucket.url(f"out-{seed}")), HERE)
        found = {key.replace(f"out-{seed}", "out"): data for key, data in bucket.objects(f"out-{seed}/pos").items()}
        assert found == parts_of(local.output)
        assert not [key for key in bucket.names(f"out-{seed}") if "tmp" in key]
    assert sum(bucket.proxy.seen.values()) - bucket.proxy.seen[""] > 5


@pytest.mark.slow
def test_workers_read_and_write_the_store_themselves(local: Job, job: Job, bucket: Bucket) -> None:
    run(local, HERE)
    bucket.proxy.share = 0.02
    run(job, Resources(workers=2, compute=ComputeOptions(memory=1 << 30, device="cpu")))
    assert bucket.objects("out/posteriors") == parts_of(local.output)


def test_workers_of_a_scheduler_need_no_shared_disk(local: Job, job: Job, bucket: Bucket, scheduler: str) -> None:
    run(local, HERE)
    bucket.proxy.share = 0.02
    run(job, Resources(scheduler=scheduler, compute=HERE.compute))
    assert bucket.objects("out/posteriors") == parts_of(local.output)


def test_the_python_api_reads_networks(bucket: Bucket, job: Job, network: Network, evidence: pa.Table) -> None:
    assert junctor.posteriors(bucket.url("net.bif"), evidence).equals(junctor.posteriors(network, evidence))
    assert junctor.Model(bucket.url("net.bif")).network.digest == network.digest
    junctor.write_network(network, bucket.url("copy.parquet"))
    assert junctor.read_network(bucket.url("copy.parquet")).digest == network.digest


def test_sequences_are_decoded_in_a_store(bucket: Bucket, tmp_path: Path) -> None:
    record = {"start": [0.6, 0.4], "transition": [[0.7, 0.3], [0.4, 0.6]], "emission": [[0.9, 0.1], [0.2, 0.8]]}
    (tmp_path / "model.json").write_text(json.dumps(record))
    parquet.write_table(pa.table({"s": [[0, 1, 1], [1], [0, 0]]}), tmp_path / "s.parquet")
    upload(bucket, tmp_path)
    for query in ("", "--posteriors"):
        folder = "posteriors" if query else "viterbi"
        common = [*filter(None, [query]), "--workers", "0", "--no-prefect", "--partition-rows", "2", "--output"]
        here = junctor_cli(
            "viterbi", str(tmp_path / "model.json"), str(tmp_path / "s.parquet"), *common, f"{tmp_path}/o{query}"
        )
        there = junctor_cli(
            "viterbi", bucket.url("model.json"), bucket.url("s.parquet"), *common, bucket.url(f"o{query}")
        )
        assert (here.exit_code, there.exit_code) == (0, 0), there.output
        found = bucket.objects(f"o{query}/{folder}")
        assert [*found.values()] == [path.read_bytes() for path in sorted((tmp_path / f"o{query}" / folder).iterdir())]


def test_a_run_killed_at_random_moments_ends_with_the_same_bytes(local: Job, job: Job, bucket: Bucket) -> None:
    kill_and_compare(local, job, bucket, kills=2, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_million_rows_killed_at_random_moments(bucket: Bucket, tmp_path: Path, network: Network) -> None:
    junctor.write_network(network, tmp_path / "net.bif")
    (tmp_path / "rows").mkdir()
    for i in range(4):
        table = evidence_table(network, sample(network, 250_000, seed=i), observed=0.5, pattern="random", seed=i)
        parquet.write_table(table.drop_columns(["case_id"]), tmp_path / "rows" / f"{i}.parquet")
    places = (str(tmp_path / name) for name in ("net.bif", "rows", "out"))
    local = Job(*places, partition_rows=65_536)
    kill_and_compare(local, in_bucket(local, bucket), bucket, kills=20, seed=2)


def kill_and_compare(local: Job, job: Job, bucket: Bucket, kills: int, seed: int) -> None:
    """Kill a run after random numbers of requests, of which 5 % fail, and compare the last one with a local run."""
    run(local, HERE)
    chance = random.Random(seed)
    bucket.proxy.share = 0.05
    command = [sys.executable, "-c", "from junctor.cli import main; main()", "run", job.network, job.evidence]
    command += [
        "--output",
        job.output,
        "--partition-rows",
        str(job.options["partition_rows"]),
        "--workers",
        "0",
        "--no-prefect",
    ]
    command += ["--case-id", case_id] if (case_id := job.options["case_id"]) else []
    # Of its own: tests beside this one have files on their way in the usual one.
    temporary = Path(local.output).parent / "temporary"
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary)}
    killed = 0
    for _ in range(kills):
        now = threading.Event()
        bucket.proxy.watch = count_down(chance.randint(5, 60), now)
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not now.wait(0.01):
            pass
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        keys = bucket.names("out")
        assert not [key for key in keys if "tmp" in key]
        if "out/manifest.json" in keys:
            bucket.delete("out/manifest.json")
    bucket.proxy.watch = lambda method, path: None
    last = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr
    assert killed
    assert bucket.objects("out/posteriors") == parts_of(local.output)
    assert bucket.objects("out/evidence/part") == {
        key: data for key, data in parts_of(local.output, "evidence").items() if "part-" in key
    }
    assert not list(temporary.glob("junctor-put-*"))


def count_down(requests: int, now: threading.Event) -> Callable[[str, str], None]:
    """Return what sets an event after so many requests."""
    left = iter(range(requests))

    def watch(method: str, path: str) -> None:
        if next(left, None) is None:
            now.set()

    return watch


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
