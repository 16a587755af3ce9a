"""An S3 store in the memory of the tests, behind a server that fails as networks and stores do."""

from __future__ import annotations

import hashlib
import io
import random
import re
import socket
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, BinaryIO, NamedTuple, Protocol
from urllib.parse import parse_qsl, quote, unquote
from xml.sax.saxutils import escape, unescape

# Of any kind: no store of the tests checks them.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "s3cr3t/plus+more"}
ENVIRONMENT = {**CREDENTIALS, "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
HANG_SECONDS = 5.0
NO_HEADERS: Mapping[str, str] = {}


class Answer(NamedTuple):
    """What a store says to a request; of a HEAD its headers have the size, and there is no body."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = NO_HEADERS


class Store(Protocol):
    """What answers requests, with the path and the query as they were sent."""

    def answer(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = NO_HEADERS) -> Answer: ...


class _Object(NamedTuple):
    data: bytes
    etag: str
    time: float

    @property
    def headers(self) -> dict[str, str]:
        changed = formatdate(self.time, usegmt=True)
        return {"ETag": f'"{self.etag}"', "Last-Modified": changed, "Accept-Ranges": "bytes"}


class MemoryStore:
    """Buckets of objects, and of S3 what Arrow asks for: objects, also in parts and by ranges, and listings."""

    def __init__(self) -> None:
        self._buckets: dict[str, dict[str, _Object]] = {}
        self._uploads: dict[str, dict[int, _Object]] = {}
        # Seconds from the epoch, of what is written next.
        self.clock = time.time
        self._numbers, self._lock = count(), threading.Lock()

    def answer(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = NO_HEADERS) -> Answer:
        """Return the answer to a request; header names are in small letters."""
        answer = self._answer(method, path, body, headers)
        return answer._replace(body=b"") if method == "HEAD" else answer

    def _answer(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        place, _, query = path.partition("?")
        bucket, _, key = unquote(place[1:]).partition("/")
        asked = dict(parse_qsl(query, keep_blank_values=True))
        if headers.get("content-encoding") == "aws-chunked":
            body = b"".join(chunks(io.BytesIO(body)))
        with self._lock:
            if not key and method == "PUT":
                self._buckets.setdefault(bucket, {})
                return Answer(200)
            objects = self._buckets.get(bucket)
            if objects is None:
                return _error(404, "NoSuchBucket")
            if not key:
                return _listing(bucket, objects, asked) if method == "GET" else Answer(200)
            if "uploads" in asked or "uploadId" in asked:
                return self._upload(method, objects, key, asked, body)
            if method == "PUT":
                objects[key] = self._made(body)
                return Answer(200, b"", objects[key].headers)
            return _object(method, objects, key, headers.get("range", ""))

    def _upload(
        self, method: str, objects: dict[str, _Object], key: str, asked: Mapping[str, str], body: bytes
    ) -> Answer:
        name = asked.get("uploadId") or f"upload-{next(self._numbers)}"
        if "uploads" in asked:
            self._uploads[name] = {}
            return _xml("InitiateMultipartUploadResult", f"<Key>{escape(key)}</Key><UploadId>{name}</UploadId>")
        if name not in self._uploads:
            return _error(404, "NoSuchUpload")
        parts = self._uploads[name]
        if method == "PUT":
            made = parts[int(asked["partNumber"])] = self._made(body)
            return Answer(200, b"", made.headers)
        del self._uploads[name]
        if method == "DELETE":
            return Answer(204)
        wanted = [parts[int(number)] for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
        digest = hashlib.md5(b"".join(bytes.fromhex(part.etag) for part in wanted)).hexdigest()
        made = objects[key] = self._made(b"".join(part.data for part in wanted), f"{digest}-{len(wanted)}")
        return _xml("CompleteMultipartUploadResult", f"<Key>{escape(key)}</Key><ETag>{made.etag}</ETag>")

    def _made(self, data: bytes, etag: str | None = None) -> _Object:
        return _Object(data, etag or hashlib.md5(data).hexdigest(), self.clock())


def _object(method: str, objects: dict[str, _Object], key: str, span: str) -> Answer:
    if method == "DELETE":
        objects.pop(key, None)
        return Answer(204)
    found = objects.get(key)
    if found is None:
        return _error(404, "NoSuchKey")
    size, data = len(found.data), found.data
    if method == "HEAD":
        return Answer(200, b"", found.headers | {"Content-Length": str(size)})
    if not (asked := re.fullmatch(r"bytes=(\d+)-(\d*)", span)):
        return Answer(200, data, found.headers)
    first, last = int(asked[1]), min(int(asked[2] or size), size - 1)
    if first >= size:
        return _error(416, "InvalidRange")
    return Answer(206, data[first : last + 1], found.headers | {"Content-Range": f"bytes {first}-{last}/{size}"})


def _listing(bucket: str, objects: dict[str, _Object], asked: Mapping[str, str]) -> Answer:
    """Return a page of keys, and of what they have in common before the delimiter, in the order of their bytes."""
    prefix, delimiter, most = asked.get("prefix", ""), asked.get("delimiter", ""), int(asked.get("max-keys", 1000))
    names: dict[str, str] = {}
    for key in sorted((key for key in objects if key.startswith(prefix)), key=str.encode):
        head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        names.setdefault(f"{prefix}{head}{cut}" if cut else key, key if not cut else "")
    first = bisect_right(
        [*names], asked.get("continuation-token", asked.get("start-after", "")).encode(), key=str.encode
    )
    page = [*names.items()][first : first + most]
    is_cut = first + most < len(names)
    said = f"<Name>{bucket}</Name><KeyCount>{len(page)}</KeyCount><IsTruncated>{str(is_cut).lower()}</IsTruncated>"
    said += f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>" if is_cut and page else ""
    return _xml("ListBucketResult", said + "".join(_entry(name, objects.get(key)) for name, key in page))


def _entry(name: str, found: _Object | None) -> str:
    if found is None:
        return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
    changed = datetime.fromtimestamp(found.time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    said = f"<LastModified>{changed}</LastModified><ETag>&quot;{found.etag}&quot;</ETag><Size>{len(found.data)}</Size>"
    return f"<Contents><Key>{escape(name)}</Key>{said}<StorageClass>STANDARD</StorageClass></Contents>"


def _xml(name: str, said: str) -> Answer:
    body = f'<?xml version="1.0" encoding="UTF-8"?><{name}>{said}</{name}>'.encode()
    return Answer(200, body, {"Content-Type": "application/xml"})


def _error(status: int, code: str) -> Answer:
    return _xml("Error", f"<Code>{code}</Code><Message>{code}</Message>")._replace(status=status)


def chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the pieces of a body in chunks, and read what follows them up to an empty line."""
    while size := int(file.readline().split(b";")[0], 16):
        yield file.read(size)
        file.readline()
    while file.readline().strip():
        pass


class FlakyProxy:
    """A server before a store that fails for a share of requests, as `faults` names them, by its own random numbers.

    drop: the connection ends before the request is passed on.
    lose: it ends when the store has done what was asked.
    cut: it ends within the answer.
    delay: the answer is late.
    500, 503: answers of a store with troubles.
    hang: the answer is later than anyone waits; only where it is asked for.
    """

    FAULTS = ("drop", "lose", "cut", "delay", "500", "503")

    def __init__(self, store: Store, share: float = 0.0, seed: int = 0) -> None:
        self.store, self.share = store, share
        self.seen: Counter[str] = Counter()
        self.faults: tuple[str, ...] = self.FAULTS
        # Answers 403 where it says so, of a method and a path.
        self.denies: Callable[[str, str], bool] = lambda method, path: False
        # Makes another answer of the body of each.
        self.rewrites: Callable[[bytes], bytes] = lambda body: body
        # Called with each request before it is passed on.
        self.watch: Callable[[str, str], None] = lambda method, path: None
        self._random, self._lock = random.Random(seed), threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler_of(self))
        self.port = self._server.server_address[1]
        # It looks for its end so often.
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def endpoint(self) -> str:
        """The value of AWS_ENDPOINT_URL."""
        return f"http://127.0.0.1:{self.port}"

    def fault(self) -> str:
        """Return the fault of the next request, "" for none."""
        with self._lock:
            fault = self._random.choice(self.faults) if self._random.random() < self.share else ""
            self.seen[fault] += 1
            return fault

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients are killed in tests."""


def _handler_of(proxy: FlakyProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Answers in two pieces would wait for each other's receipt, 40 ms.
        disable_nagle_algorithm = True

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            is_chunked = headers.get("transfer-encoding", "").lower() == "chunked"
            size = int(headers.get("content-length", 0))
            body = b"".join(chunks(self.rfile)) if is_chunked else self.rfile.read(size)
            proxy.watch(self.command, self.path)
            if proxy.denies(self.command, self.path):
                self._say(_error(403, "AccessDenied"))
                return
            fault = proxy.fault()
            if fault in ("500", "503"):
                self._say(_error(int(fault), "InternalError" if fault == "500" else "SlowDown"))
                return
            if fault in ("delay", "hang"):
                time.sleep(0.3 if fault == "delay" else HANG_SECONDS)
            self.close_connection = fault in ("drop", "lose", "cut")
            if fault != "drop":
                answer = proxy.store.answer(self.command, self.path, body, headers)
                if fault != "lose":
                    self._say(answer._replace(body=proxy.rewrites(answer.body)), fault == "cut")

        def _say(self, answer: Answer, is_cut: bool = False) -> None:
            """Send an answer, or its first half."""
            is_head = self.command == "HEAD"
            size = answer.headers.get("Content-Length", "0") if is_head else str(len(answer.body))
            self.send_response(answer.status)
            for name, value in {**answer.headers, "Content-Length": size}.items():
                self.send_header(name, value)
            self.end_headers()
            if not is_head:
                self.wfile.write(answer.body[: len(answer.body) // 2] if is_cut else answer.body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Handler


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class Bucket:
    """A bucket of its own in a store, behind a proxy; `url` and `environment` for those who use it."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.proxy, self.name = store, FlakyProxy(store), name
        self.ask("PUT")

    @property
    def environment(self) -> dict[str, str]:
        return {**ENVIRONMENT, "AWS_ENDPOINT_URL": self.proxy.endpoint}

    def url(self, key: str = "", **options: str) -> str:
        """Return the URL of an object, with the endpoint in it, by which processes tell the stores of tests apart."""
        query = {
            "endpoint_override": f"127.0.0.1:{self.proxy.port}",
            "scheme": "http",
            "region": "us-east-1",
            **options,
        }
        return f"s3://{self.name}/{key}?" + "&".join(f"{name}={value}" for name, value in query.items())

    def ask(self, method: str, key: str = "", body: bytes = b"", query: str = "") -> bytes:
        """Return what the store says to a request past the proxy."""
        answer = self.store.answer(method, f"/{self.name}/{quote(key)}?{query}", body)
        assert answer.status in (200, 204), answer
        return answer.body

    def put(self, key: str, data: bytes) -> None:
        """Write an object past the proxy."""
        self.ask("PUT", key, data)

    def get(self, key: str) -> bytes:
        """Return an object, read past the proxy."""
        return self.ask("GET", key)

    def delete(self, *keys: str) -> None:
        """Remove objects past the proxy."""
        for key in keys:
            self.ask("DELETE", key)

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all objects, without marks of folders."""
        found: list[str] = []
        after = ""
        while True:
            said = self.ask("GET", query=f"list-type=2&prefix={quote(prefix)}&start-after={quote(after)}").decode()
            names = [unescape(name) for name in re.findall(r"<Key>([^<]*)</Key>", said)]
            found += names
            if "<IsTruncated>true" not in said:
                return [name for name in found if not name.endswith("/")]
            after = names[-1]

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Return all objects by name."""
        return {key: self.get(key) for key in self.names(prefix)}
