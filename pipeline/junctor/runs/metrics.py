"""Counters and durations of runs by OpenTelemetry, where its environment variables name a collector.

Main function: `metrics`, for the command line and deployed flows.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from junctor.runs.manifest import Manifest
from junctor.runs.watch import Watcher
from junctor.runs.workload import Workload
from junctor.runtime.progress import Silence

# The variables of OpenTelemetry's specification; its others (headers, timeout, OTEL_SERVICE_NAME) are read by its SDK.
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
# Milliseconds for the last figures: a collector that is away must not hold a run.
_LAST_MILLISECONDS = 3_000

logger = logging.getLogger("junctor")


def metrics() -> list[Watcher]:
    """Return the watcher that sends metrics, or none where no collector is named."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or not any(map(os.environ.get, _ENDPOINTS)):
        return []
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
    except ImportError:
        logger.warning("a collector of metrics is named, but OpenTelemetry is not there: pip install 'junctor[otel]'")
        return []
    # In the order of the specification: what the user says comes last.
    name = os.environ.get("OTEL_SERVICE_NAME") or "junctor"
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    return [RunMetrics(MeterProvider([reader], resource=Resource.create({"service.name": name})))]


class RunMetrics(Silence):
    """Counts rows and measures the seconds of a run and of its stages.

    provider: an OpenTelemetry MeterProvider of this run alone; it is shut down at the end.
    """

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        meter = provider.get_meter("junctor")
        self._answered = meter.create_counter("junctor.rows.answered", "{row}", "Rows answered, while a run goes on")
        self._rows = meter.create_counter("junctor.rows", "{row}", "Rows of finished runs, by status")
        self._runs = meter.create_counter("junctor.runs", "{run}", "Runs, by outcome")
        self._stage_seconds = meter.create_histogram("junctor.stage.duration", "s", "Seconds of a stage of a run")
        self._run_seconds = meter.create_histogram("junctor.run.duration", "s", "Seconds of a run, by outcome")
        self._facts: dict[str, str] = {}
        self._stage: str | None = None
        self._counts = False
        self._started = self._stage_started = time.monotonic()

    def begin(self, job: Workload) -> None:
        """Begin to measure."""
        self._facts = {"junctor.run": job.label}
        self._started = time.monotonic()

    def stage(self, name: str, rows: int | None = None, done: int = 0) -> None:
        """Measure the last stage, and begin one."""
        self._end_stage()
        self._stage, self._counts, self._stage_started = name, rows is not None, time.monotonic()

    def advance(self, rows: int) -> None:
        """Count rows that were answered."""
        if self._counts:
            self._answered.add(rows, self._facts)

    def end(self, manifest: Manifest | None, error: BaseException | None) -> None:
        """Measure the run, and send what is left."""
        self._end_stage()
        ended = "completed" if error is None else "failed" if isinstance(error, Exception) else "interrupted"
        for status, rows in (manifest.statuses if manifest is not None else {}).items():
            self._rows.add(rows, {**self._facts, "status": status})
        facts = {**self._facts, "outcome": ended}
        self._runs.add(1, facts)
        self._run_seconds.record(time.monotonic() - self._started, facts)
        self._provider.shutdown(_LAST_MILLISECONDS)

    def _end_stage(self) -> None:
        if self._stage is not None:
            seconds = time.monotonic() - self._stage_started
            self._stage_seconds.record(seconds, {**self._facts, "stage": self._stage})
            self._stage = None
