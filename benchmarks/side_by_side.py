"""Engine, reader and writer alone, and the run that needs all three: seconds side by side, with their ratios.

Main function: `print_jobs`, called by `end_to_end.py`. All figures of a line are of one machine within a minute or two,
because ratios say more than seconds on a machine that is shared.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from common import in_a_child
from junctor import generate
from junctor.engine.engine import Engine
from junctor.evidence.read import open_evidence
from junctor.formats import read_network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.runs.results import default_partition_rows
from junctor.runs.run import read_manifest
from junctor.runs.storage import RunDirectory
from junctor.runtime.machine import usable_cores
from pyarrow import csv, parquet

# Batches that the engine's rate is taken from, after the first one: it makes plans and loads compiled code.
BATCHES = 8
# Most bytes of answers that are written again.
WRITTEN_BYTES = 2 << 30
# Measurements in a process, the fewest seconds of which count, and seconds of silence that mean it hangs.
REPEATS = 3
SILENCE = 900.0


@dataclass(frozen=True, slots=True)
class Case:
    """A network, a number of rows, the ending of the evidence file; `observed`: share of the variables."""

    name: str
    network: str
    rows: int
    ending: str = ".parquet"
    observed: float = 0.2


CASES = (
    Case("munin2", "munin2", 20_000),
    Case("munin2, second run", "munin2", 1_000),
    Case("alarm", "alarm", 1_000_000),
    Case("asia from CSV", "asia", 10_000_000, ".csv", 0.5),
)


def print_jobs(
    networks: Path, folder: Path, scale: float, repeats: int, server: str | None, run_options: Sequence[str]
) -> None:
    """Print a line for each of CASES.

    networks: folder of BIF files.
    folder: for evidence and answers.
    scale: factor on the numbers of rows.
    repeats: runs, of which the fastest counts.
    server: address of a Prefect server, for a flow as well; None for none.
    run_options: for `junctor run`.
    """
    titles = "job | rows | engine | Arrow reads | read, encoded | Arrow writes | run | CPU | rows/s"
    titles += " | of the engine's rate | of the writer's"
    print(f"{titles}\n{'---|' * titles.count('|')}---")
    for case in CASES:
        network = next(networks.glob(f"{case.network}.bif*"))
        rows = max(1, int(case.rows * scale))
        evidence = folder / f"{case.network}-{rows}{case.ending}"
        _make_evidence(network, rows, case.observed, evidence)
        for way, address in [("plain", None), ("flow", server)][: 1 if server is None else 2]:
            # The first run is of a model that the machine may not have seen.
            runs = [_run(network, evidence, folder / "out", address, run_options) for _ in range(1 + repeats)]
            seconds, cpu = min(runs[1:])
            engine = _alone(_engine_seconds, network, evidence, rows)
            reads, encodes = _alone(_arrow_reads, evidence), _alone(_encodes, network, evidence)
            writes = _alone(_arrow_writes, folder / "out", folder)
            figures = " | ".join(f"{each:.2f}" for each in (engine, reads, encodes, writes, seconds, cpu))
            ratios = f"{rows / seconds:,.0f} | {engine / seconds:.0%} | {writes / seconds:.0%}"
            print(f"{case.name}, {way} | {rows:,} | {figures} | {ratios}", flush=True)
        evidence.unlink()


def _make_evidence(network: Path, rows: int, observed: float, path: Path) -> None:
    """Write evidence of one pattern; CSV without quotes, as most programs do."""
    batches = generate.evidence_batches(read_network(network), rows, observed=observed, pattern="fixed", seed=0)
    if path.suffix == ".csv":
        plain = csv.WriteOptions(quoting_style="none")
        texts = (pa.RecordBatch.from_arrays([c.cast(pa.string()) for c in b.columns], b.schema.names) for b in batches)
        first = next(texts)
        with csv.CSVWriter(path, first.schema, write_options=plain) as writer:
            for batch in chain([first], texts):
                writer.write_batch(batch)
    else:
        first = next(batches)
        with parquet.ParquetWriter(path, first.schema) as writer:
            for batch in chain([first], batches):
                writer.write_batch(batch)


def _run(
    network: Path, evidence: Path, output: Path, server: str | None, run_options: Sequence[str]
) -> tuple[float, float]:
    """Return the seconds of `junctor run` in a new directory, by the clock on the wall and of all cores."""
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "-c", "from junctor.cli import main; main()", "run", str(network), str(evidence)]
    command += ["--output", str(output), "--quiet", "--no-prefect" if server is None else "--prefect", *run_options]
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    if server is not None:
        environment |= {"PREFECT_API_URL": server, "PREFECT_LOGGING_LEVEL": "CRITICAL"}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _alone(work: Callable[..., Iterator[float]], *arguments: Any) -> float:
    """Return the fewest seconds of a process of its own."""
    return min(in_a_child(work, *arguments, silence=SILENCE))


def _engine_seconds(network_file: Path, evidence: Path, rows: int) -> Iterator[float]:
    """Yield the seconds of the engine for all rows, all posteriors, plans made and evidence in memory."""
    network, query = read_network(network_file), Query()
    partitions = open_evidence(evidence, network).partitions(default_partition_rows(network, query))
    batches = [partition.batch for partition in islice(partitions, BATCHES)]
    engine = Engine(network, query, ComputeOptions(threads=usable_cores()), expected_rows=rows)
    engine.answer(batches[0])
    for _ in range(REPEATS):
        started = time.perf_counter()
        for batch in batches:
            engine.answer(batch)
        yield (time.perf_counter() - started) * rows / sum(batch.rows for batch in batches)


def _arrow_reads(evidence: Path) -> Iterator[float]:
    """Yield the seconds of Arrow's own reader, all cores."""
    read = csv.read_csv if evidence.suffix == ".csv" else parquet.read_table
    for _ in range(REPEATS):
        started = time.perf_counter()
        read(evidence)
        yield time.perf_counter() - started


def _encodes(network_file: Path, evidence: Path) -> Iterator[float]:
    """Yield the seconds of reading and encoding, as a run does it, without writing."""
    network = read_network(network_file)
    rows = default_partition_rows(network, Query())
    for _ in range(REPEATS):
        started = time.perf_counter()
        deque(open_evidence(evidence, network).partitions(rows, usable_cores()), maxlen=0)
        yield time.perf_counter() - started


def _arrow_writes(output: Path, folder: Path) -> Iterator[float]:
    """Yield the seconds in which Arrow writes the same tables in the same format, with all cores."""
    files = [output / part.file for part in read_manifest(RunDirectory(output)).parts]
    tables, size = [], 0
    for path in files:
        table, options = _table_of(path)
        tables.append((table, options, folder / f"again-{path.name}"))
        size += table.nbytes
        if size > WRITTEN_BYTES:
            break
    for _ in range(REPEATS):
        started = time.perf_counter()
        with ThreadPoolExecutor(usable_cores()) as threads:
            deque(threads.map(_write, tables), maxlen=0)
        yield (time.perf_counter() - started) * len(files) / len(tables)
    for _, _, path in tables:
        path.unlink()


def _table_of(path: Path) -> tuple[pa.Table, dict[str, Any]]:
    """Return a table of answers, and the options with which it was written."""
    if path.suffix != ".parquet":
        with pa.ipc.open_file(path) as file:
            return file.read_all(), {}
    with parquet.ParquetFile(path) as file:
        group = file.metadata.row_group(0)
        columns = [group.column(i) for i in range(group.num_columns)]
        words = [column.path_in_schema for column in columns if column.has_dictionary_page]
        minima = [column.path_in_schema for column in columns if column.is_stats_set]
        options = {"compression": columns[0].compression, "use_dictionary": words, "write_statistics": minima}
        if columns[0].compression == "ZSTD":
            options["compression_level"] = 1
        return file.read(), options


def _write(item: tuple[pa.Table, dict[str, Any], Path]) -> None:
    table, options, path = item
    if path.suffix == ".parquet":
        parquet.write_table(table, path, **options)
    else:
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
