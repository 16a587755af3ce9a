"""Metrics of runs, received by an OTLP collector of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from helpers.files import ASIA
from junctor.runs.metrics import metrics

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed")
COMMAND = [sys.executable, "-c", "from junctor.cli import main; main()"]


@pytest.fixture
def collector() -> Iterator[tuple[str, list[Any]]]:
    """Address of a collector, and the metrics that it was sent."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    found: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                found.extend(metric for scope in resource.scope_metrics for metric in scope.metrics)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}", found
        http.shutdown()


def score(folder: Path, endpoint: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "rows.csv").write_text("smoke,xray\nyes,no\n,yes\nperhaps,\n")
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"}
    command = [*COMMAND, "run", ASIA, "rows.csv", "-o", "out", "--no-prefect", "--workers", "0", "-q", *options]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=200)


def points(found: list[Any], name: str, by: str) -> dict[str, Any]:
    """The points of a metric by one of their attributes."""
    return {
        next(each.value.string_value for each in point.attributes if each.key == by): point
        for metric in found
        if metric.name == name
        for point in (metric.sum if metric.HasField("sum") else metric.histogram).data_points
    }


def test_a_run_sends_its_rows_and_seconds(collector: tuple[str, list[Any]], tmp_path: Path) -> None:
    endpoint, found = collector
    done = score(tmp_path, endpoint)
    assert done.returncode == 0, done.stderr
    rows = points(found, "junctor.rows", "status")
    assert {status: point.as_int for status, point in rows.items()} == {"ok": 2, "impossible": 0, "invalid": 1}
    assert points(found, "junctor.rows.answered", "junctor.run")["rows.csv on asia.bif"].as_int == 3
    assert points(found, "junctor.runs", "outcome")["completed"].as_int == 1
    stages = points(found, "junctor.stage.duration", "stage")
    assert {"reading the network", "reading the evidence", "planning", "propagating", "writing the manifest"} <= set(
        stages
    )
    whole = points(found, "junctor.run.duration", "outcome")["completed"].sum
    assert whole >= sum(point.sum for point in stages.values()) > 0
    failed = score(tmp_path, endpoint, "--strict", "--overwrite")
    assert failed.returncode == 3
    assert points(found, "junctor.runs", "outcome")["failed"].as_int == 1


def test_a_collector_that_is_away_costs_little(tmp_path: Path) -> None:
    done = score(tmp_path, "http://127.0.0.1:9")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_without_a_collector_nothing_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    assert metrics() == []
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert metrics() == []
    code = "from junctor.runs.metrics import metrics; metrics(); import sys; print('opentelemetry' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout == "False\n"
