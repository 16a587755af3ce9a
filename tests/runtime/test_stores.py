"""Objects on an S3 server, behind a proxy that fails: what is there is whole, and what cannot be is told."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from helpers.signals import ctrl_c_is_heard
from helpers.stores import NO_HEADERS, Answer, Bucket, MemoryStore, Store, free_port
from junctor.runtime import remote
from junctor.runtime.remote import RemotePath, location

# Ends with its standard input, which ends with the tests, however they do.
_MOTO = """
import os, socketserver, sys, threading
# Answers in two pieces would wait for each other's receipt, 40 ms.
socketserver.StreamRequestHandler.disable_nagle_algorithm = True
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
from moto.server import main
main()
"""


class MotoStore:
    """moto's server, in a process of its own, which other authors have held against S3."""

    def __init__(self, log: Path) -> None:
        self._port = free_port()
        words = [sys.executable, "-c", _MOTO, "-H", "127.0.0.1", "-p", str(self._port)]
        with log.open("wb") as said:
            self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=said, stderr=said)
        deadline = time.monotonic() + 60
        while not self._listens():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1.0):
            return True
        return False

    def answer(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = NO_HEADERS) -> Answer:
        # Any credentials, which tell moto that S3 is meant.
        who = {"authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request, Signature=b"}
        own = {name: value for name, value in headers.items() if name not in ("connection", "expect", "content-length")}
        own.pop("transfer-encoding", None)
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        with closing(connection):
            connection.request(method, path, body, {**who, **own})
            found = connection.getresponse()
            left_out = ("connection", "transfer-encoding", "date", "server")
            kept = {name: value for name, value in found.headers.items() if name.lower() not in left_out}
            return Answer(found.status, found.read(), kept)


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoStore]:
    pytest.importorskip("moto")
    store = MotoStore(tmp_path_factory.mktemp("s3") / "server.log")
    yield store
    store.process.terminate()
    store.process.wait()


@pytest.fixture(params=["memory", pytest.param("moto", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest) -> Store:
    """The store of all other tests, and moto's."""
    return MemoryStore() if request.param == "memory" else request.getfixturevalue("moto")


PIECES = {"content-encoding": "aws-chunked", "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER"}
REQUESTS: list[tuple[str, str, bytes, dict[str, str]]] = [
    ("HEAD", "", b"", {}),
    ("PUT", "", b"", {}),
    ("HEAD", "", b"", {}),
    *(("PUT", f"/{quote(key)}", key.encode(), {}) for key in ("a", "in/x", "in/d=1/y", "in/d=1/z", "in//z", "in/ü &<")),
    ("PUT", "/chunked", b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", PIECES | {"x-amz-decoded-content-length": "5"}),
    ("GET", "/chunked", b"", {}),
    ("HEAD", "/in/x", b"", {}),
    ("HEAD", "/nothing", b"", {}),
    ("GET", "/nothing", b"", {}),
    *(("GET", "/in/x", b"", {"range": f"bytes={span}"}) for span in ("0-1", "2-", "3-99", "4-", "9-12")),
    *(
        ("GET", f"?list-type=2&{query}", b"", {})
        for query in (
            "",
            "prefix=in/",
            "delimiter=%2F",
            "delimiter=%2F&prefix=in%2F",
            "prefix=in/d",
            "max-keys=2",
            "delimiter=%2F&max-keys=1&prefix=in%2F",
            "start-after=in/d%3D1/y",
            "prefix=nothing",
        )
    ),
    ("DELETE", "/a", b"", {}),
    ("DELETE", "/a", b"", {}),
    ("GET", "/a", b"", {}),
]


def seen(answer: Answer) -> object:
    """Return of an answer what Arrow reads."""
    text = answer.body.decode()
    tags = "Code" if answer.status >= 400 else "Key|Size|CommonPrefixes><Prefix|IsTruncated|KeyCount"
    said = sorted(re.findall(rf"<({tags})>([^<]*)</", text)) if "<?xml" in text else text
    headers = {name.lower(): value for name, value in answer.headers.items()}
    return answer.status, said, {name: headers.get(name) for name in ("etag", "content-range")}


@pytest.mark.slow
def test_the_store_of_the_tests_answers_as_motos(moto: MotoStore) -> None:
    memory = MemoryStore()
    for method, path, body, headers in REQUESTS:
        ours, theirs = (seen(store.answer(method, f"/bucket{path}", body, headers)) for store in (memory, moto))
        assert ours == theirs, (method, path)


def at(bucket: Bucket, key: str) -> RemotePath:
    path = location(bucket.url(key))
    assert isinstance(path, RemotePath)
    return path


def test_objects_are_written_read_listed_and_removed(bucket: Bucket) -> None:
    path = at(bucket, "out/a%20b/x.bin")
    path.write_bytes(b"hello")
    assert bucket.objects() == {"out/a b/x.bin": b"hello"}
    assert path.read_bytes() == b"hello"
    assert path.stat().st_size == 5
    assert path.stat().st_mtime > 1e9
    assert [str(each) for each in at(bucket, "").rglob("*.bin")] == [f"s3://{bucket.name}/out/a b/x.bin"]
    first = path.etag()
    path.write_bytes(b"other")
    assert first
    assert path.etag() != first
    path.unlink()
    assert not path.exists()
    assert bucket.names() == []


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("**/*.csv", ("in//a.csv", "in/b.csv", "in/b.csv/", "in/d=1/../c.csv", "in/d=1/c.csv", "in/x/./y//z.csv")),
        ("*.csv", ("in//a.csv", "in/b.csv", "in/b.csv/")),
        ("d=*/*.csv", ("in/d=1/../c.csv", "in/d=1/c.csv")),
        ("x/y/*", ("in/x/./y//z.csv",)),
    ],
)
def test_keys_that_are_no_paths_are_listed_and_refused(bucket: Bucket, pattern: str, expected: tuple[str, ...]) -> None:
    for key in ("in/b.csv", "in/d=1/c.csv", "in//a.csv", "in/b.csv/", "in/d=1/../c.csv", "in/x/./y//z.csv"):
        bucket.put(key, key.encode())
    for mark in ("in/", "in//", "in/d=1/", "in/x/./"):
        bucket.put(mark, b"")
    found = [path for path in at(bucket, "in").glob(pattern) if path.is_file()]
    assert [str(path) for path in found] == [f"s3://{bucket.name}/{key}" for key in expected]
    for path, key in zip(found, expected, strict=True):
        if key in ("in/b.csv", "in/d=1/c.csv"):
            assert path.read_bytes() == key.encode()
            continue
        for work in (path.read_bytes, path.open, path.exists, path.unlink, lambda: path.write_bytes(b"")):  # noqa: B023
            with pytest.raises(OSError, match="part is not read or written: copy what is there") as caught:
                work()
            assert caught.value.filename == str(path)


def test_the_environment_names_the_endpoint(bucket: Bucket) -> None:
    path = location(f"s3://{bucket.name}/x")
    assert isinstance(path, RemotePath)
    path.write_bytes(b"1")
    assert bucket.objects() == {"x": b"1"}


@pytest.mark.parametrize("fault", ["drop", "lose", "cut", "503", pytest.param("500", marks=pytest.mark.slow)])
def test_objects_are_whole_whatever_fails(bucket: Bucket, fault: str, tmp_path: Path) -> None:
    bucket.proxy.faults, bucket.proxy.share = (fault,), 0.3
    # Of several parts: uploads of which one fails.
    large, small = os.urandom(21 << 20), os.urandom(1000)
    (tmp_path / "large").write_bytes(large)
    at(bucket, "large").put(tmp_path / "large")
    for i in range(5):
        at(bucket, f"small/{i}").write_bytes(small)
    assert at(bucket, "large").read_bytes() == large
    with at(bucket, "large").open() as file:
        assert file.read() == large
    assert [each.name for each in at(bucket, "small").glob("*")] == list("01234")
    at(bucket, "small/0").unlink(missing_ok=True)
    assert bucket.proxy.seen[fault] > 0
    assert bucket.objects() == {"large": large, **{f"small/{i}": small for i in range(1, 5)}}


@pytest.mark.slow
def test_an_upload_that_never_succeeds_leaves_nothing(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "WAITS", (0.01,))
    at(bucket, "x").write_bytes(b"old")
    bucket.proxy.denies = lambda method, path: "partNumber=2" in path
    (tmp_path / "large").write_bytes(os.urandom(21 << 20))
    with pytest.raises(PermissionError, match="access denied"):
        at(bucket, "x").put(tmp_path / "large")
    bucket.proxy.denies = lambda method, path: False
    bucket.proxy.faults, bucket.proxy.share = ("503",), 1.0
    with pytest.raises(OSError, match="no success in 2 tries") as caught:
        at(bucket, "x").put(tmp_path / "large")
    assert f"s3://{bucket.name}/x" in str(caught.value)
    assert bucket.objects() == {"x": b"old"}


@pytest.mark.parametrize("moment", ["POST", "partNumber=2"])
def test_an_upload_that_is_interrupted_is_whole_or_nothing(bucket: Bucket, tmp_path: Path, moment: str) -> None:
    at(bucket, "x").write_bytes(b"old")
    large = os.urandom(21 << 20)
    (tmp_path / "large").write_bytes(large)
    awaited = [moment]

    def interrupt(method: str, path: str) -> None:
        if awaited and awaited[0] in f"{method} {path}":
            awaited.clear()
            os.kill(os.getpid(), signal.SIGINT)

    bucket.proxy.watch = interrupt
    with ctrl_c_is_heard(), pytest.raises(KeyboardInterrupt):
        at(bucket, "x").put(tmp_path / "large")
    assert bucket.get("x") in (b"old", large)
    # What was begun ends by itself, and a stream that is dropped must not become an object.
    for thread in threading.enumerate():
        if thread.name == "junctor-put":
            thread.join()
    assert bucket.get("x") == large


def test_nobody_there_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, bucket: Bucket) -> None:
    monkeypatch.setattr(remote, "WAITS", (0.01,))
    with pytest.raises(OSError, match="no success in 2 tries") as caught:
        location("s3://bucket/x?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1").exists()
    assert "\n" not in str(caught.value)


def test_a_store_that_never_answers_is_told(monkeypatch: pytest.MonkeyPatch, bucket: Bucket) -> None:
    monkeypatch.setattr(remote, "LONGEST", 0.0)
    monkeypatch.setitem(remote._OPTIONS, "s3", {"request_timeout": 1.0})
    bucket.proxy.faults, bucket.proxy.share = ("hang",), 1.0
    with pytest.raises(OSError, match=r"no success in 1 tries and \d+ s \(AWS Error NETWORK_CONNECTION"):
        at(bucket, "x").read_bytes()


def test_no_bucket_and_no_permission_are_told(bucket: Bucket) -> None:
    nowhere = location(bucket.url("x").replace(bucket.name, "no-such-bucket"))
    assert not nowhere.exists()
    with pytest.raises(OSError, match="no such bucket"):
        nowhere.write_bytes(b"x")
    bucket.put("there", b"1")
    bucket.proxy.denies = lambda method, path: True
    for work in (at(bucket, "there").read_bytes, at(bucket, "there").exists, lambda: at(bucket, "y").write_bytes(b"")):
        with pytest.raises(PermissionError, match="access denied"):
            work()
