"""Partitions that are read ahead and written behind: what overlaps, what is alive at once, and what fails."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import junctor
import numpy as np
import pyarrow as pa
import pytest
from helpers.options import on_cpu
from helpers.signals import COMMAND, hear_ctrl_c
from junctor.engine import engine
from junctor.engine.engine import Engine
from junctor.engine.forecast import forecast
from junctor.evidence.batch import EvidenceBatch
from junctor.evidence.encoded import read_partition
from junctor.generate import evidence_table, random_network, sample
from junctor.model.errors import BudgetError, RunError
from junctor.model.network import Network
from junctor.model.options import ONE_THREAD
from junctor.model.query import Query, Sampling
from junctor.runs import partition as partitions
from junctor.runs.answer_files import AnswerWriter
from junctor.runs.partition import (
    EXPLAINING_BYTES,
    MOST_WRITERS,
    PLENTY_BYTES,
    WRITERS,
    PartTask,
    StageTimings,
    propagate_here,
    propagate_partition,
)
from junctor.runs.results import answer_width
from junctor.runs.run import ingest_inputs, ingest_model, run
from junctor.runs.storage import Ingested
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.progress import Silence
from junctor.sampling.engine import SamplingEngine
from pyarrow import parquet

PARTS, PARTITION_ROWS = 6, 20
ROWS = (PARTS - 1) * PARTITION_ROWS + 7
MEMORY = 1 << 30
# Seconds that a test waits for what has to happen anyway.
PATIENCE = 20.0


@pytest.fixture(scope="module")
def network() -> Network:
    return random_network(8, seed=3, zeros=0.2)


@pytest.fixture
def job(network: Network, tmp_path: Path) -> Job:
    """A run whose evidence is there and encoded."""
    table = evidence_table(network, sample(network, ROWS, seed=1), observed=0.5, pattern="fixed", seed=2)
    junctor.write_network(network, tmp_path / "net.bif")
    parquet.write_table(table, tmp_path / "evidence.parquet")
    job = prepared(tmp_path, "out")
    assert len(tasks_of(job)) == PARTS
    return job


def prepared(folder: Path, output: str, query: Query | None = None) -> Job:
    paths = (str(folder / name) for name in ("net.bif", "evidence.parquet", output))
    job = Job(*paths, query or Query(), partition_rows=PARTITION_ROWS)
    with job.directory.locked():
        ingest_model(job, Silence())
        ingest_inputs(job, Silence())
    return job


def tasks_of(job: Job) -> list[PartTask]:
    spec, counts = job.directory.read_spec(), job.directory.counts()
    return [PartTask(job.directory.path, part, spec, counts, ONE_THREAD) for part in range(counts.partitions)]


def parts_of(job: Job) -> dict[str, bytes]:
    """All files of the answers, unfinished ones too."""
    return {path.name: path.read_bytes() for path in (job.directory.path / "posteriors").iterdir()}


def no_thread_is_left() -> bool:
    return not [thread for thread in threading.enumerate() if thread.name.startswith("junctor-files")]


Hook = Callable[[PartTask], None]


def on(monkeypatch: pytest.MonkeyPatch, step: str, before: Hook | None = None, after: Hook | None = None) -> None:
    """Call hooks around a step of every partition."""
    real = getattr(partitions._Partition, step)

    def hooked(self: Any, *args: Any, **options: Any) -> Any:
        if before is not None:
            before(self.task)
        result = real(self, *args, **options)
        if after is not None:
            after(self.task)
        return result

    monkeypatch.setattr(partitions._Partition, step, hooked)


def test_the_parts_are_those_of_one_after_the_other(job: Job) -> None:
    here = list(propagate_here(tasks_of(job), MEMORY))
    other = prepared(Path(job.network).parent, "one by one")
    one_by_one = [propagate_partition(task, MEMORY) for task in tasks_of(other)]
    assert [part for part, _ in here] == [part for part, _ in one_by_one]
    assert parts_of(job) == parts_of(other)
    assert no_thread_is_left()


@pytest.mark.parametrize(
    ("kind", "query"), [(Engine, Query()), (SamplingEngine, Query(method="sampling", sampling=Sampling("lw", 100)))]
)
def test_who_is_alone_takes_all_gpus(job: Job, monkeypatch: pytest.MonkeyPatch, kind: Any, query: Query) -> None:
    found: list[bool] = []
    real = kind.answer

    def answer(engine: Any, *of: Any) -> Any:
        found.append(engine.options.all_gpus)
        return real(engine, *of)

    monkeypatch.setattr(kind, "answer", answer)
    first, *others = tasks_of(prepared(Path(job.network).parent, "alone", query))
    list(propagate_here([first], MEMORY))
    propagate_partition(others[0], MEMORY)
    assert found == [True, False]


def contradicted(folder: Path, network: Network, output: str) -> Job:
    """A run with rows that are impossible, and others."""
    path = folder / "evidence.parquet"
    if not (folder / "net.bif").exists():
        junctor.write_network(network, folder / "net.bif")
        rng = np.random.default_rng(4)
        columns = {
            v.name: pa.array([v.states[n] for n in rng.integers(0, v.cardinality, ROWS)]) for v in network.variables[:6]
        }
        parquet.write_table(pa.table(columns), path)
    return prepared(folder, output)


def test_reasons_found_beside_the_next_partitions_are_the_same(
    tmp_path: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []
    real = Engine.explain

    def explain(self: Engine, batch: EvidenceBatch, answers: Any, memory: int, threads: int) -> None:
        asked.append((threading.current_thread().name, memory))
        real(self, batch, answers, memory, threads)

    monkeypatch.setattr(Engine, "explain", explain)
    at_once, beside = (contradicted(tmp_path, network, name) for name in ("at once", "beside"))
    statuses = [part.statuses for part, _ in propagate_here(tasks_of(at_once), PLENTY_BYTES - 1)]
    assert all(0 < each["impossible"] < sum(each.values()) for each in statuses)
    assert {name for name, _ in asked} == {threading.main_thread().name}
    asked.clear()
    list(propagate_here(tasks_of(beside), PLENTY_BYTES))
    assert len(asked) == PARTS
    assert all(name.startswith("junctor-files") and memory == EXPLAINING_BYTES for name, memory in asked)
    assert parts_of(at_once) == parts_of(beside)
    reasons = parquet.read_table(beside.directory.path / "posteriors").column("reason")
    assert sum(reason is not None and " with " in reason for reason in reasons.to_pylist())


def test_a_search_for_reasons_that_fails_ends_the_run(
    tmp_path: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explain(self: Engine, *of: Any) -> None:
        raise RunError("no reasons")

    job = contradicted(tmp_path, network, "out")
    real = Engine.explain
    monkeypatch.setattr(Engine, "explain", lambda self, *of, **how: explain(self))
    with pytest.raises(RunError, match="no reasons"):
        list(propagate_here(tasks_of(job), PLENTY_BYTES))
    assert no_thread_is_left()
    monkeypatch.setattr(Engine, "explain", real)
    list(propagate_here(tasks_of(job), PLENTY_BYTES))
    assert len(parts_of(job)) >= PARTS


def test_groups_are_chosen_while_an_earlier_partition_is_answered(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    list(propagate_here(tasks_of(job), MEMORY))
    expected = parts_of(job)
    chosen: list[str] = []
    real = engine.choose

    def choose(batch: EvidenceBatch, facts: Any) -> Any:
        chosen.append(threading.current_thread().name)
        return real(batch, facts)

    monkeypatch.setattr(engine, "choose", choose)
    list(propagate_here(tasks_of(job), MEMORY))
    # The first two by who answers: the engine is there from then on. Once for each partition.
    assert len(chosen) == PARTS
    assert sum(name.startswith("junctor-files") for name in chosen) == PARTS - 2
    assert parts_of(job) == expected


def test_what_does_not_fit_is_refused_when_it_is_answered(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    real, refused = Engine.prepare, list[EvidenceBatch]()

    def prepare(self: Engine, batch: EvidenceBatch) -> None:
        if not any(batch is each for each in refused):
            refused.append(batch)
            raise BudgetError("too large")
        real(self, batch)

    monkeypatch.setattr(Engine, "prepare", prepare)
    assert len(list(propagate_here(tasks_of(job), MEMORY))) == PARTS
    # The first two are chosen by who answers them.
    assert len(refused) == PARTS - 2


def test_stages_add_up() -> None:
    assert StageTimings(1.0, 2.0, 3.0, 4.0) + StageTimings(0.5, waiting=1.00049) == StageTimings(1.5, 2.0, 3.0, 5.00049)
    assert StageTimings(waiting=1.00049).rounded() == StageTimings(waiting=1.0)
    stages = StageTimings()
    with pytest.raises(KeyError), stages.time("reading"):
        raise KeyError
    assert stages.reading > 0


def test_one_is_read_and_one_written_while_one_is_propagated(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    propagating = [threading.Event() for _ in range(PARTS)]
    files_done = [threading.Event() for _ in range(PARTS)]

    def begin(task: PartTask) -> None:
        propagating[task.part].set()
        # Propagation of each partition waits until the last one is written: it would for ever if nobody wrote.
        if task.part:
            assert files_done[task.part - 1].wait(PATIENCE)

    def write(task: PartTask) -> None:
        # And a partition is only written when the next one is under way, which has to be read for that.
        if task.part + 1 < PARTS:
            assert propagating[task.part + 1].wait(PATIENCE)

    on(monkeypatch, "answer", before=begin)
    on(monkeypatch, "write", before=write, after=lambda task: files_done[task.part].set())
    assert len(list(propagate_here(tasks_of(job), MEMORY))) == PARTS


@pytest.mark.parametrize("slow", ["read", "answer", "write"])
def test_four_partitions_are_alive_at_the_most(job: Job, slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: set[int] = set()
    most: list[int] = []

    def begin(task: PartTask) -> None:
        alive.add(task.part)
        most.append(len(alive))

    on(monkeypatch, "read", before=begin)
    on(monkeypatch, "write", after=lambda task: alive.remove(task.part))
    on(monkeypatch, slow, before=lambda _: time.sleep(0.02))
    list(propagate_here(tasks_of(job), MEMORY))
    assert max(most) <= 4


def test_memory_does_not_grow_with_the_number_of_partitions(
    tmp_path: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 20_000
    table = evidence_table(network, sample(network, 8 * rows, seed=1), observed=0.5, pattern="fixed", seed=2)
    junctor.write_network(network, tmp_path / "net.bif")
    parquet.write_table(table, tmp_path / "evidence.parquet")
    job = Job(str(tmp_path / "net.bif"), str(tmp_path / "evidence.parquet"), str(tmp_path / "out"), partition_rows=rows)
    with job.directory.locked():
        ingest_model(job, Silence())
        ingest_inputs(job, Silence())
    tasks = tasks_of(job)
    list(propagate_here(tasks[:1], MEMORY))  # what is imported and planned is no part of it
    # So slow that all which may wait does.
    on(monkeypatch, "write", before=lambda _: time.sleep(0.1))
    peaks = []
    for some in (tasks[:4], tasks):
        tracemalloc.start()
        list(propagate_here(some, MEMORY))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + rows * answer_width(network, job.query)


@pytest.mark.parametrize("step", ["read", "answer", "write"])
def test_a_part_that_fails_is_tried_again_alone(
    job: Job, step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[str, bool]] = []

    class Heard(Silence):
        def advance(self, rows: int) -> None:
            heard.append(rows)

        def part(self, name: str, seconds: float | None = None) -> None:
            told.append((name, seconds is not None))

    heard: list[int] = []
    failures = iter([OSError("the disk went"), RuntimeError("the device went")])
    written: list[int] = []

    def fail(task: PartTask) -> None:
        if task.part == 2 and (error := next(failures, None)) is not None:
            raise error

    on(monkeypatch, step, before=fail)
    on(monkeypatch, "write", after=lambda task: written.append(task.part))
    with pytest.raises((OSError, RuntimeError), match="the device went"):
        run(job, Resources(workers=0), retries=1)
    failures = iter([OSError("the disk went"), RuntimeError("the device went")])
    for part in (job.directory.path / "posteriors").iterdir():
        part.unlink()
    written.clear()
    manifest = run(job, Resources(workers=0), Heard(), retries=2)
    assert sorted(written) == list(range(PARTS))
    assert (sum(heard), manifest.rows, manifest.reused_parts) == (ROWS, ROWS, 0)
    assert sum("tried again alone" in line for line in caplog.messages) == 3
    names = [part.file for part in manifest.parts]
    assert sorted(name for name, is_finished in told if is_finished) == names
    assert set(names) == {name for name, is_finished in told if not is_finished}


def test_what_the_user_has_to_mend_is_not_tried_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def refuse(task: PartTask) -> None:
        tried.append(task.part)
        raise BudgetError("too much")

    on(monkeypatch, "answer", before=refuse)
    for retries in (0, 2):
        with pytest.raises(BudgetError, match="too much"):
            run(job, Resources(workers=0), retries=retries)
    # Beside parts that are being written, and without them.
    assert tried == 2 * [0, 0]


def test_an_evidence_file_that_cannot_be_read_stops_it_there(job: Job) -> None:
    damaged = job.directory.evidence_part(2)
    whole = damaged.read_bytes()
    damaged.write_bytes(b"no Parquet")
    with pytest.raises(RunError, match=r"part-00002\.parquet: cannot be read as encoded evidence"):
        list(propagate_here(tasks_of(job), MEMORY))
    assert sorted(parts_of(job)) == ["part-00000.parquet", "part-00001.parquet"]
    assert no_thread_is_left()
    damaged.write_bytes(whole)
    assert run(job, Resources(workers=0)).reused_parts == 2


def test_an_error_of_the_writer_comes_through_and_leaves_no_half_part(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(self: AnswerWriter, table: Any, path: Path) -> None:
        if "part-00001" in path.name:
            path.write_bytes(b"some of it")
            raise ValueError("the writer stumbled")
        real(self, table, path)

    real = AnswerWriter.write
    with monkeypatch.context() as patch:
        patch.setattr(AnswerWriter, "write", write)
        with pytest.raises(ValueError, match="the writer stumbled"):
            run(job, Resources(workers=0))
    # Others that were under way are finished.
    whole = parts_of(job)
    assert "part-00000.parquet" in whole
    assert "part-00001.parquet" not in whole
    assert no_thread_is_left()
    assert run(job, Resources(workers=0)).reused_parts == len(whole)


def test_the_last_part_can_fail_too(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(task: PartTask) -> None:
        if task.part == PARTS - 1:
            raise RunError("no space left")

    on(monkeypatch, "write", before=full)
    with pytest.raises(RunError, match="no space left"):
        list(propagate_here(tasks_of(job), MEMORY))
    assert len(parts_of(job)) == PARTS - 1


def test_an_interruption_lets_the_part_that_is_written_be_finished(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(task: PartTask) -> None:
        if task.part == 2:
            raise KeyboardInterrupt

    on(monkeypatch, "answer", before=interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(propagate_here(tasks_of(job), MEMORY))
    assert sorted(parts_of(job)) == ["part-00000.parquet", "part-00001.parquet"]
    assert no_thread_is_left()


def test_whoever_stops_asking_stops_it(job: Job) -> None:
    results = propagate_here(tasks_of(job), MEMORY)
    next(results)
    results.close()
    assert no_thread_is_left()
    assert all(name.startswith("part-") for name in parts_of(job))


def least_memory(job: Job, network: Network) -> int:
    found = read_partition(job.directory.evidence_part(0), network).batch
    assert isinstance(found, EvidenceBatch)
    return max(
        route.memory.needed
        for route in forecast(
            Engine(network, job.query, on_cpu(MEMORY), expected_rows=ROWS),
            found,
        )
    )


def test_answers_that_wait_are_part_of_the_memory(job: Job, network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    list(propagate_here(tasks_of(job), MEMORY))
    expected = parts_of(job)
    least, waiting = least_memory(job, network), WRITERS * PARTITION_ROWS * answer_width(network, Query())
    writing: set[int] = set()
    beside: list[int] = []
    held: list[int] = []
    real = Engine.answer

    def answer(self: Engine, batch: EvidenceBatch, others: int = 0, explain: bool = True, first: int = 0) -> Any:
        answers = real(self, batch, others)
        held.append(others)
        beside.append(len(writing))
        return answers

    monkeypatch.setattr(Engine, "answer", answer)
    on(monkeypatch, "write", lambda task: writing.add(task.part), lambda task: writing.remove(task.part))
    for memory, what in ((least + waiting, waiting), (least + waiting - 1, 0), (least, 0)):
        held.clear()
        list(propagate_here(tasks_of(job), memory))
        # The last partition is shorter, so answers may wait beside it also where they may not beside the others.
        assert held[:-1] == [what] * (PARTS - 1)
        assert what or not any(beside[-PARTS:-1])
        assert parts_of(job) == expected
    with pytest.raises(BudgetError, match="allowed are"):
        list(propagate_here(tasks_of(job), 1000))


def test_threads_of_a_worker_share_the_memory_in_the_same_way(
    job: Job, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(propagate_here(tasks_of(job), MEMORY))
    expected = parts_of(job)
    least, waiting = least_memory(job, network), WRITERS * PARTITION_ROWS * answer_width(network, Query())
    writing: set[int] = set()
    beside: dict[int, int] = {}
    real = Engine.answer

    def answer(self: Engine, batch: EvidenceBatch, others: int = 0, explain: bool = True, first: int = 0) -> Any:
        answers = real(self, batch, others)
        assert others or batch.rows < PARTITION_ROWS or not writing
        beside[others] = max(beside.get(others, 0), len(writing))
        return answers

    monkeypatch.setattr(partitions, "threads_here", lambda: 4)
    monkeypatch.setattr(Engine, "answer", answer)
    on(monkeypatch, "write", lambda task: writing.add(task.part), lambda task: writing.remove(task.part))
    for memory, what in ((least + waiting, waiting), (least + waiting - 1, 0), (least, 0)):
        for path in (job.directory.path / "posteriors").iterdir():
            path.unlink()
        beside.clear()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda task, memory=memory: propagate_partition(task, memory), tasks_of(job)))
        assert what in beside
        assert parts_of(job) == expected


def test_threads_of_a_worker_give_way_soon(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = list[float]()
    for stage in ("read", "write"):
        on(monkeypatch, stage, lambda task: turns.append(sys.getswitchinterval()), lambda task: None)
    propagate_partition(tasks_of(job)[0], MEMORY)
    assert len(turns) == 2
    assert max(turns) < sys.getswitchinterval()


def test_more_are_written_at_a_time_where_there_is_plenty_of_memory(
    job: Job, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = partitions._Partition(tasks_of(job)[0])
    each = PARTITION_ROWS * answer_width(network, Query())
    assert [partition.writers(memory) for memory in (0, 1 << 31, 1 << 40)] == [2, 2, MOST_WRITERS]
    assert partition.writers((1 << 31) + 16 * 5 * each) == 5
    monkeypatch.setattr(partitions, "usable_cores", lambda: PARTS)
    at_once: list[int] = []
    writing: set[int] = set()

    def begin(task: PartTask) -> None:
        writing.add(task.part)
        at_once.append(len(writing))
        time.sleep(0.1)

    on(monkeypatch, "write", begin, lambda task: writing.remove(task.part))
    list(propagate_here(tasks_of(job), 1 << 40))
    assert max(at_once) > WRITERS
    assert no_thread_is_left()


def test_workers_with_many_threads_write_as_many_too(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "threads_here", lambda: PARTS + 2)
    together = threading.Barrier(PARTS)
    # Passed by all of them at once or by none.
    on(monkeypatch, "write", lambda task: together.wait(PATIENCE) and None)
    with ThreadPoolExecutor(PARTS + 2) as pool:
        results = list(pool.map(lambda task: propagate_partition(task, 1 << 40), tasks_of(job)))
    assert [part.rows for part, _ in results] == [PARTITION_ROWS] * (PARTS - 1) + [7]
    assert not partitions._with_inputs._count
    assert not partitions._writing._count


@pytest.mark.parametrize("layout", ["lists", "columns"])
def test_kept_columns_and_copies_are_taken_off_the_memory_of_plans(
    job: Job, network: Network, layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = parquet.read_table(job.evidence)
    evidence = evidence.append_column("note", pa.array(np.arange(len(evidence))))
    parquet.write_table(evidence, job.evidence)
    job = job.but(output=job.output + layout, keep=("note",), layout=layout)
    with job.directory.locked():
        ingest_model(job, Silence())
        ingest_inputs(job, Silence())
    found: list[int] = []
    real = Engine.answer

    def answer(self: Engine, batch: EvidenceBatch, reserved: int = 0, explain: bool = True, first: int = 0) -> Any:
        found.append(reserved)
        return real(self, batch, reserved)

    monkeypatch.setattr(Engine, "answer", answer)
    list(propagate_here(tasks_of(job), MEMORY))
    # Columns are a copy of the lists.
    each = PARTITION_ROWS * answer_width(network, Query()) * (2 if layout == "columns" else 1)
    # Numbers, and a bit for each of them that says it is there.
    kept = [8 * n + -(-n // 8) for n in [PARTITION_ROWS] * (PARTS - 1) + [7]]
    assert found == [WRITERS * (each + bytes) + bytes for bytes in kept]


def test_a_single_partition_gets_all_the_memory(job: Job, network: Network) -> None:
    alone = replace(tasks_of(job)[0], counts=Ingested(PARTITION_ROWS, 1))
    assert len(list(propagate_here([alone], least_memory(job, network)))) == 1


def test_ctrl_c_stops_promptly(tmp_path: Path) -> None:
    network = random_network(30, seed=5)
    junctor.write_network(network, tmp_path / "net.bif")
    table = evidence_table(network, sample(network, 200_000), observed=0.3, pattern="fixed")
    parquet.write_table(table, tmp_path / "evidence.parquet")
    command = [*COMMAND, "run", str(tmp_path / "net.bif"), str(tmp_path / "evidence.parquet")]
    command += ["-o", str(tmp_path / "out"), "--no-prefect", "-q", "--workers", "0"]
    command += ["--partition-rows", "2000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=hear_ctrl_c) as process:
        while not list((tmp_path / "out").glob("posteriors/part-*.parquet")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        assert process.wait(PATIENCE) == 130
        assert time.monotonic() - started < PATIENCE / 2
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert not list((tmp_path / "out").glob("posteriors/.*.tmp"))
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_the_bytes_of_answers_are_what_the_table_takes(job: Job, network: Network) -> None:
    evidence = read_partition(job.directory.evidence_part(0), network).batch
    answers = Engine(network, Query()).answer(evidence)
    assert answers.nbytes == PARTITION_ROWS * answer_width(network, Query())
    assert np.isfinite(answers.log_value).all()
