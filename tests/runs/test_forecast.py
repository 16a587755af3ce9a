"""Forecasts of runs from samples: parts as in the run, seconds and bytes of all rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from helpers.options import on_cpu
from junctor.backends.row_trees import room_bytes
from junctor.cost.figures import shipped_figures
from junctor.engine.engine import Engine
from junctor.engine.forecast import forecast
from junctor.engine.run import estimate
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.evidence.compiled_cells import evidence_cells
from junctor.evidence.encode import EncodedPartition
from junctor.generate import random_network, sample
from junctor.model.answers import answer_width
from junctor.model.network import Network
from junctor.model.query import Query
from junctor.model.strategies import Strategy
from junctor.runs.forecast import RunSeconds, forecast_run, sampled_rows
from junctor.strategies.strategy import Route

NETWORK = random_network(40, seed=3)


def encoded(network: Network, rows: int, hidden: float = 0.6) -> EncodedPartition:
    states = sample(network, rows, 1).astype(np.int32)
    states[np.random.default_rng(1).random(states.shape) < hidden] = UNOBSERVED
    columns = {v: np.ascontiguousarray(states[:, v]) for v in range(states.shape[1])}
    return EncodedPartition(EvidenceBatch(rows, columns), pa.nulls(rows), 0)


def answering(engine: Engine, batch: EvidenceBatch) -> float:
    """Return the seconds of rows that have a plan, without those of files."""
    return sum(route.seconds - route.rows * shipped_figures().files.row for route in forecast(engine, batch))


def test_a_sample_is_forecast_in_the_parts_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("junctor.runs.forecast.default_partition_rows", lambda network, query: 30)
    engine, rows = Engine(NETWORK, Query(), on_cpu(1 << 28)), encoded(NETWORK, 70)
    assert sampled_rows(NETWORK, Query(), 1_000) == 120
    batches = [rows.rows(start, count).batch for start, count in ((0, 30), (30, 30), (60, 10))]
    whole = forecast_run(engine, rows, 70)
    assert whole.sampled == 70
    each = sum(answering(engine, batch) for batch in batches)
    assert whole.seconds.answering == pytest.approx(each)
    # Of a larger table the last part is none: it would stand for others.
    larger = forecast_run(engine, rows, 6_000)
    assert (larger.sampled, larger.seconds.parts) == (60, 200)
    whole_parts = sum(answering(engine, batch) for batch in batches[:2])
    assert larger.seconds.answering == pytest.approx(100 * whole_parts)
    assert larger.seconds.reading == pytest.approx(6_000 / 70 * whole.seconds.reading)
    # Two parts of answers wait to be written, whatever the sample is.
    few = forecast_run(engine, encoded(NETWORK, 10), 6_000)
    assert few.held > 2.6 * 30 * answer_width(NETWORK, Query())
    assert larger.held > 2 * 30 * answer_width(NETWORK, Query())


def test_files_are_written_beside_the_next_part() -> None:
    assert RunSeconds(1, 2, 8, 4, parts=1).total == 15
    assert RunSeconds(1, 2, 8, 4, parts=4).total == 12
    assert RunSeconds(1, 2, 4, 8, parts=4).total == 12


def alone(engine: Engine, batch: EvidenceBatch) -> Route:
    """Return the forecast of the rows of a batch with a tree for each."""
    first, *_ = engine.routes(batch)
    group = replace(first.group, rows=np.arange(batch.rows), strategy=Strategy.ROW_TREES, shared=False)
    return estimate(engine.facts, replace(first, group=group, strategy=Strategy.ROW_TREES, plan=None), batch)


def test_more_rows_are_looked_at_where_their_work_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network(60, seed=1)
    engine = Engine(network, Query(), on_cpu(1 << 28))
    batch = encoded(network, 64, 0.4).batch
    works = engine.facts.row_engine.works_alone(evidence_cells(batch), np.arange(64))
    monkeypatch.setattr("junctor.strategies.row_trees.SAMPLED_SHARE", 1.0)
    monkeypatch.setattr("junctor.strategies.row_trees.SAMPLED_ERROR", 0.001)
    assert alone(engine, batch).operations == sum(work.operations for work in works)
    # Few are enough where they are all alike to within the error.
    monkeypatch.setattr("junctor.strategies.row_trees.SAMPLED_ERROR", 10.0)
    assert alone(engine, batch).operations != sum(work.operations for work in works)


def test_memory_of_rows_with_own_trees_is_that_of_messages_at_a_time() -> None:
    network = random_network(60, seed=1)
    engine = Engine(network, Query(), on_cpu(1 << 28))
    batch, held = encoded(network, 16).batch, np.zeros(16, dtype=np.int64)
    works = engine.facts.row_engine.works_alone(evidence_cells(batch), np.arange(16), held)
    memory = alone(engine, batch).memory
    assert memory.needed - memory.reserved == room_bytes(network, int(held.max()))
    # A message down takes the place of one up, where it can.
    assert all(0 < entries < work.room for entries, work in zip(held.tolist(), works, strict=True))
