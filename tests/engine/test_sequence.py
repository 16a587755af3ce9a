"""Tables of several batches: the same answers as batch after batch, whoever reads, explains and answers when."""

from __future__ import annotations

import threading
from typing import Any

import junctor
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junctor.engine.engine import Engine
from junctor.engine.sequence import answer_in_sequence
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.generate import random_network, sample
from junctor.model.answers import Answers
from junctor.model.errors import BudgetError, EvidenceError
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.planning.budget import EXPLAINING_BYTES, PLENTY_BYTES

ROWS = 3000


@pytest.fixture(scope="module")
def network() -> Network:
    return random_network(40, (2, 3), 3, 8, seed=1, zeros=0.3)


def states_of(network: Network, seed: int) -> np.ndarray:
    """States of twelve columns: some are unknown, and some rows impossible."""
    rng = np.random.default_rng(seed)
    states = sample(network, ROWS, seed=seed)[:, :12].astype(np.int32)
    other = rng.integers(0, 2, states.shape)
    return np.where(
        rng.random(states.shape) < 0.05, UNOBSERVED, np.where(rng.random(states.shape) < 0.05, other, states)
    )


def table_of(network: Network, states: np.ndarray) -> pa.Table:
    columns = {}
    for v in range(states.shape[1]):
        names = [*network.variables[v].states, None]
        columns[network.variables[v].name] = [names[state] for state in states[:, v]]
    return pa.table(columns)


@pytest.mark.parametrize("how", [{}, {"answers": "scores"}, {"memory": "1GiB"}, {"precision": "single"}])
def test_pieces_side_by_side(network: Network, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As with one thread, which takes piece after piece, and finds reasons at once."""
    monkeypatch.setattr("junctor.runs.results.PARTITION_ROWS", 700)
    table = table_of(network, states_of(network, 3))
    alone = junctor.posteriors(network, table, threads=1, device="cpu", **how)
    beside = junctor.posteriors(network, table, threads=2, device="cpu", **how)
    assert beside.equals(alone)
    assert {"ok", "impossible"} == set(alone["status"].to_pylist())
    assert any("with" in (reason or "") for reason in alone["reason"].to_pylist())


def test_a_bad_row_in_a_later_piece(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is that of the encoder, and the next call finds everything in order."""
    monkeypatch.setattr("junctor.runs.results.PARTITION_ROWS", 700)
    table = table_of(network, states_of(network, 4))
    name = network.variables[0].name
    column = table[name].to_pylist()
    column[1500] = "nonsense"
    bad = table.set_column(0, name, pa.array(column))
    with pytest.raises(EvidenceError, match=r"row 150[01]\b"):
        junctor.posteriors(network, bad, threads=2, device="cpu", strict=True)
    assert junctor.posteriors(network, table, threads=2, device="cpu").equals(
        junctor.posteriors(network, table, threads=1, device="cpu")
    )


class Recorder:
    """An engine that notes who did what."""

    def __init__(self, allowed: int = PLENTY_BYTES, refuses: bool = False) -> None:
        self.allowed = allowed
        self.refuses = refuses
        self.steps: list[tuple[str, int, bool]] = []

    def note(self, step: str, batch: EvidenceBatch) -> None:
        self.steps.append((step, batch.rows, threading.current_thread() is threading.main_thread()))

    def prepare(self, batch: EvidenceBatch) -> None:
        self.note("prepare", batch)

    def answer(self, batch: EvidenceBatch, reserved: int = 0, explain: bool = True) -> Answers:
        if reserved and self.refuses:
            raise BudgetError("too little")
        self.note("answer, explain" if explain else "answer", batch)
        return Answers((), np.zeros(batch.rows, dtype=np.int8), np.zeros(batch.rows))

    def explain(self, batch: EvidenceBatch, answers: Answers, memory: int, threads: int) -> None:
        assert (memory, threads) == (EXPLAINING_BYTES, 1)
        self.note("explain", batch)


@given(count=st.integers(1, 9), plenty=st.booleans(), refuses=st.booleans())
def test_order_of_results_and_steps(count: int, plenty: bool, refuses: bool) -> None:
    recorder: Any = Recorder(PLENTY_BYTES if plenty else PLENTY_BYTES - 1, refuses)
    sources = range(1, count + 1)
    found = answer_in_sequence(
        sources, EvidenceBatch, lambda batch: batch, lambda: recorder, lambda batch, _: batch.rows
    )
    assert found == [*sources]
    answered = "answer" if plenty and not refuses else "answer, explain"
    steps = [(step, rows) for step, rows, _ in recorder.steps]
    for step in (answered, "prepare"):
        assert [rows for name, rows in steps if name == step] == [*sources]
    assert sorted(rows for name, rows in steps if name == "explain") == ([*sources] if answered == "answer" else [])
    # The caller answers, others prepare all but the first batch and explain.
    assert all(
        is_main == (step.startswith("answer") or rows == 1)
        for step, rows, is_main in recorder.steps
        if step != "explain"
    )
    assert not any(is_main for step, _, is_main in recorder.steps if step == "explain")


@pytest.mark.parametrize("where", ["read", "answer", "finish"])
def test_failures_end_it(where: str, network: Network) -> None:
    """No thread is left at work, and the error is the one that was raised."""
    engine = Engine(network, Query(), ComputeOptions(threads=2, device="cpu"))
    states = states_of(network, 5)
    done: list[str] = []

    def fail(step: str, n: int) -> None:
        if step == where and n == 2:
            raise ValueError(step)
        done.append(step)

    def read(n: int) -> EvidenceBatch:
        fail("read", n)
        return EvidenceBatch(500, {v: np.ascontiguousarray(states[500 * n : 500 * n + 500, v]) for v in range(12)})

    def engine_for() -> Engine:
        fail("answer", done.count("answer"))
        return engine

    def finish(batch: EvidenceBatch, answers: Answers) -> int:
        fail("finish", done.count("finish"))
        return batch.rows

    before = threading.active_count()
    with pytest.raises(ValueError, match=where):
        answer_in_sequence(range(6), read, lambda batch: batch, engine_for, finish)
    assert not [each for each in threading.enumerate() if each.name.startswith("junctor-batches")]
    assert threading.active_count() <= before + 2
