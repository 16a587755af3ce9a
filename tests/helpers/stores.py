"""An S3 server in a process of its own (moto's), and a proxy before it that fails as networks and stores do."""

from __future__ import annotations

import http.client
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import unescape

# Of any kind: moto does not check them.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "s3cr3t/plus+more"}
ENVIRONMENT = {**CREDENTIALS, "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
START_SECONDS = 60
HANG_SECONDS = 5.0
# Ends with its standard input, which ends with the tests, however they do.
_SERVER = """
import os, socketserver, sys, threading
# Answers in two pieces would wait for each other's receipt, 40 ms.
socketserver.StreamRequestHandler.disable_nagle_algorithm = True
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
from moto.server import main
main()
"""


class S3Server:
    """moto's server, for buckets in its memory; `stop` ends it."""

    def __init__(self, log: Path) -> None:
        self.port = free_port()
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVER, "-H", "127.0.0.1", "-p", str(self.port)],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.request("GET", "/")
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise
                time.sleep(0.05)

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Return status and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            # Any credentials, which tell moto that S3 is meant.
            who = {"Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request, Signature=b"}
            connection.request(method, path, body, who)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


class FlakyProxy:
    """Passes requests on to a server and fails for a share of them, as `faults` names them, by its own random numbers.

    drop: the connection ends before the request is passed on.
    lose: it ends when the server has done what was asked.
    cut: it ends within the answer.
    delay: the answer is late.
    500, 503: answers of a store with troubles.
    hang: the answer is later than anyone waits; only where it is asked for.
    """

    FAULTS = ("drop", "lose", "cut", "delay", "500", "503")

    def __init__(self, port: int, share: float = 0.0, seed: int = 0) -> None:
        self.upstream, self.share = port, share
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
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

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
        disable_nagle_algorithm = True

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            body = self._body()
            proxy.watch(self.command, self.path)
            if proxy.denies(self.command, self.path):
                self._say(403, "AccessDenied")
                return
            fault = proxy.fault()
            if fault == "drop":
                self.close_connection = True
                return
            if fault in ("500", "503"):
                self._say(int(fault), "InternalError" if fault == "500" else "SlowDown")
                return
            if fault in ("delay", "hang"):
                time.sleep(0.3 if fault == "delay" else HANG_SECONDS)
            self._pass_on(body, fault)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            pieces = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)

        def _pass_on(self, body: bytes, fault: str) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", proxy.upstream, timeout=60)
            try:
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in ("connection", "expect", "transfer-encoding", "content-length"):
                        connection.putheader(name, value)
                connection.putheader("Content-Length", str(len(body)))
                connection.endheaders(body)
                answer = connection.getresponse()
                data = proxy.rewrites(answer.read())
            finally:
                connection.close()
            if fault == "lose":
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                    self.send_header(name, value)
            # That of a HEAD is the size of an object, without a body.
            size = answer.headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", size)
            self.end_headers()
            if fault == "cut" and data:
                data = data[: len(data) // 2]
                self.close_connection = True
            self.wfile.write(data)

        def _say(self, status: int, code: str) -> None:
            body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Handler


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class Bucket:
    """A bucket of its own on an S3 server, behind a proxy; `url` and `environment` for those who use it."""

    def __init__(self, server: S3Server, proxy: FlakyProxy, name: str) -> None:
        self.server, self.proxy, self.name = server, proxy, name
        status, said = server.request("PUT", f"/{name}")
        assert status == 200, said

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

    def put(self, key: str, data: bytes) -> None:
        """Write an object past the proxy."""
        status, said = self.server.request("PUT", f"/{self.name}/{quote(key)}", data)
        assert status == 200, said

    def get(self, key: str) -> bytes:
        """Return an object, read past the proxy."""
        status, data = self.server.request("GET", f"/{self.name}/{quote(key)}")
        assert status == 200, data
        return data

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all objects, without marks of folders."""
        found: list[str] = []
        after = ""
        while True:
            _, said = self.server.request(
                "GET", f"/{self.name}?list-type=2&prefix={quote(prefix)}&start-after={quote(after)}"
            )
            names = [unescape(name) for name in re.findall(r"<Key>([^<]*)</Key>", said.decode())]
            found += names
            if "<IsTruncated>true" not in said.decode():
                return [name for name in found if not name.endswith("/")]
            after = names[-1]

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Return all objects by name."""
        return {key: self.get(key) for key in self.names(prefix)}
