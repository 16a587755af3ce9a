"""Speed from Parquet to Parquet, as users call it, and where the time goes.

    uv run python benchmarks/end_to_end.py NETWORKS [--scale 0.01] [--flow] [-- --precision single]
    uv run python benchmarks/end_to_end.py alarm.bif [--rows 1000000] [--workers 0 2] [--flow] [--encodings]

With a folder of networks: engine, reader and writer alone, and the run, side by side, for munin2 (20,000 rows of one
pattern, and a second run of 1,000), alarm (a million rows) and asia (10 million from CSV); what comes after `--` are
options of `junctor run`. With a network:

Makes a table of evidence with one pattern, a fifth of the variables observed, in a temporary folder. Prints the seconds
and the rows a second of the whole command by the clock on the wall, interpreter and all, median of the repeats, and the
stages that its manifest names. With --flow also as a Prefect flow: on a server that is there already (the one that
PREFECT_API_URL names, or one that runs while the benchmark does), and on one that the command starts for itself. Then
the share of each stage of a run in this process, where files are read and written beside propagation on one thread.
With --encodings, what Parquet's encodings and compressions make of one partition of answers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from junctor import generate
from junctor.backends import cpu as compiled
from junctor.backends import numpy as propagation
from junctor.backends import row_trees as rowwise
from junctor.cli.prefect_server import EmbeddedServer, embed
from junctor.engine import choose, engine
from junctor.evidence.encoded import read_partition
from junctor.formats import read_network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.runs import run as steps
from junctor.runs.results import numbers_of_scores, states_of, tables_for
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from junctor.runtime.progress import Silence
from junctor.strategies import number_ladder as execution
from pyarrow import parquet
from side_by_side import print_jobs

# What propagation consists of: the functions whose time is taken, without changing what they do.
INSIDE: dict[str, tuple[Any, str]] = {
    "choice of groups, plans and equal rows included": (engine, "choose"),
    "gathering evidence": (execution, "block_of"),
    "contraction and marginals, compiled": (compiled.CompiledProgram, "run"),
    "contraction and marginals, NumPy": (propagation.Program, "run"),
    "rows one by one": (rowwise.RowEngine, "answer"),
    "collecting answers": (execution, "write"),
    "looking for equal rows": (choose, "find_equal_rows"),
    "copying answers of equal rows": (engine, "copy_answers"),
}
COMPRESSIONS = [("none", None), ("snappy", None), ("lz4", None), ("zstd", 1), ("zstd", 3)]


def make_evidence(network: str, rows: int, path: Path) -> None:
    batches = generate.evidence_batches(read_network(network), rows, observed=0.2, pattern="fixed", seed=0)
    first = next(batches)
    with parquet.ParquetWriter(path, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)


def command_stages(job: Job, workers: int, how: str, server: str) -> dict[str, float]:
    """Return the wall time of `junctor run`, from a new interpreter to its end, and what it says of its stages."""
    command = [sys.executable, "-c", "from junctor.cli import main; main()", "run", job.network, job.evidence]
    command += ["--output", job.output, "--precision", job.query.precision, "--workers", str(workers), "--quiet"]
    command.append("--no-prefect" if how == "plain" else "--prefect")
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    environment["PREFECT_LOGGING_LEVEL"] = "CRITICAL"
    if how == "flow":
        environment["PREFECT_API_URL"] = server
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    seconds = time.perf_counter() - started
    manifest = steps.read_manifest(job.directory)
    return {"seconds": seconds, "its steps": manifest.seconds, **asdict(manifest.stages)}


@contextmanager
def prefect_server(folder: Path) -> Iterator[str]:
    """Yield the address of the user's Prefect server, or of one that runs as long as the block."""
    if (address := os.environ.get("PREFECT_API_URL")) is None:
        server = EmbeddedServer(embed(folder))
        server.wait()
        yield os.environ["PREFECT_API_URL"]
        server.stop()
    else:
        yield address


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    result = function()
    return result, time.perf_counter() - started


@contextmanager
def stopwatches() -> Iterator[dict[str, float]]:
    """Add up the seconds of the functions in INSIDE while the block runs."""
    found = dict.fromkeys(INSIDE, 0.0)
    originals = {name: getattr(owner, function) for name, (owner, function) in INSIDE.items()}

    def watched(name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            result, seconds = timed(lambda: originals[name](*args, **options))
            found[name] += seconds
            return result

        return call

    for name, (owner, function) in INSIDE.items():
        setattr(owner, function, watched(name))
    try:
        yield found
    finally:
        for name, (owner, function) in INSIDE.items():
            setattr(owner, function, originals[name])


def stage_seconds(job: Job) -> dict[str, float]:
    """Run all in this process; return the seconds of each stage, those inside propagation too."""
    resources, silence = Resources(workers=0, compute=ComputeOptions(threads=1)), Silence()
    with job.directory.locked(), stopwatches() as inside:
        _, network = timed(lambda: steps.ingest_model(job, silence))
        _, evidence = timed(lambda: steps.ingest_inputs(job, silence))
        estimate, planning = timed(lambda: steps.plan(job, resources, silence))
        work, wall = timed(lambda: steps.propagate(job, resources, estimate, silence))
    stages = asdict(work.stages)
    rest = stages["propagating"] - sum(inside.values())
    return {
        "network: reading": network,
        "evidence: reading, encoding, writing": evidence,
        "planning ahead": planning,
        "all partitions": wall,
        "- reading (beside propagation)": stages["reading"],
        "- propagating": stages["propagating"],
        **{f"  - {name}": seconds for name, seconds in inside.items()},
        "  - the rest (loading compiled code, memory, Arrow)": rest,
        "- writing (beside propagation)": stages["writing"],
        "- propagation waiting for files": stages["waiting"],
    }


def encodings(network_file: str, evidence: Path, query: Query, folder: Path) -> Iterator[str]:
    """Yield a row of a table for each way to write one partition of answers: MB and CPU seconds for a million rows."""
    network = read_network(network_file)
    partition = read_partition(evidence, read_network(network_file))
    answers = engine.Engine(network, query, expected_rows=10**7).answer(partition.batch)
    table = tables_for(network, query).table(answers, partition.case_ids)
    posteriors = [field.name for field in table.schema if pa.types.is_fixed_size_list(field.type)]
    numbers = [*posteriors, *numbers_of_scores(table.schema)]
    words = [name for name in table.column_names if name not in numbers]
    leaves = [f"{name}.list.element" if name in posteriors else name for name in numbers]
    minima = [name for name in words if name not in states_of(table.schema)]
    million = 10**6 / table.num_rows
    for encoding in ("plain", "dictionary", "byte_stream_split"):
        options: dict[str, Any] = {"use_dictionary": words, "write_statistics": minima}
        if encoding == "dictionary":
            options["use_dictionary"] = words + leaves
        elif encoding == "byte_stream_split":
            options["use_byte_stream_split"] = leaves
        for compression, level in COMPRESSIONS:
            options |= {"compression": compression, "compression_level": level}
            seconds, size = written(table, folder / "encoded.parquet", options)
            name = compression if level is None else f"{compression}-{level}"
            yield f"{query.precision} | {encoding} | {name} | {million * size / 1e6:,.0f} | {million * seconds:.2f}"


def written(table: pa.Table, path: Path, options: dict[str, Any]) -> tuple[float, int]:
    """Return the fewest CPU seconds of three, and the bytes."""
    seconds = []
    for _ in range(3):
        started = time.process_time()
        parquet.write_table(table, path, **options)
        seconds.append(time.process_time() - started)
    return min(seconds), path.stat().st_size


def print_commands(job_for: Callable[[], Job], options: argparse.Namespace, server: str) -> None:
    ways = ("plain", "flow", "flow, own server") if options.flow else ("plain",)
    kinds = [(workers, how) for workers in options.workers for how in ways]
    # In turns, so that a machine that is busy for a while slows all of them down.
    found: dict[tuple[int, str], list[dict[str, float]]] = {kind: [] for kind in kinds}
    for _ in range(options.repeats):
        for kind in kinds:
            found[kind].append(command_stages(job_for(), *kind, server))
    stages = list(found[kinds[0]][0])
    print(
        " | ".join(["workers", "how", "rows/s", "fewest seconds", *stages]) + "\n" + "---|" * (3 + len(stages)) + "---"
    )
    for (workers, how), runs in found.items():
        medians = [statistics.median(run[stage] for run in runs) for stage in stages]
        fewest = min(run["seconds"] for run in runs)
        cells = [f"{options.rows / medians[0]:,.0f}", f"{fewest:.2f}", *(f"{seconds:.2f}" for seconds in medians)]
        print(" | ".join([str(workers), how, *cells]), flush=True)


def print_stages(job: Job) -> None:
    found = stage_seconds(job)
    steps_of_all = ("network", "evidence", "planning", "all")
    total = sum(seconds for name, seconds in found.items() if name.startswith(steps_of_all))
    print(f"\nstage | seconds | share of {total:.2f} s\n---|---|---")
    for name, seconds in found.items():
        print(f"{name} | {seconds:.2f} | {seconds / total:.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", help="network file, or folder of them")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--precision", choices=("double", "single"), default="double")
    parser.add_argument("--flow", action="store_true", help="the Prefect flow as well")
    parser.add_argument("--encodings", action="store_true", help="measure encodings of the answers instead")
    parser.add_argument("--answers", choices=("posteriors", "scores"), default="posteriors", help="of --encodings")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the rows of the jobs of a folder")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:end])
    with tempfile.TemporaryDirectory() as folder:
        # Where nobody has a server, the flow starts one; its settings are not the user's.
        os.environ.setdefault("PREFECT_PROFILES_PATH", str(Path(folder) / "profiles.toml"))
        if Path(options.network).is_dir():
            with prefect_server(Path(folder)) if options.flow else nullcontext() as server:
                print_jobs(
                    Path(options.network), Path(folder), options.scale, options.repeats, server, words[end + 1 :]
                )
            return
        make_evidence(options.network, options.rows, Path(folder) / "evidence.parquet")
        numbers = iter(range(10**6))

        query = Query(precision=options.precision, answers=options.answers)

        def job_for() -> Job:
            output = str(Path(folder) / f"out{next(numbers)}")
            return Job(options.network, str(Path(folder) / "evidence.parquet"), output, query)

        if options.encodings:
            job = job_for()
            with job.directory.locked():
                steps.ingest_model(job, Silence())
                steps.ingest_inputs(job, Silence())
            print("precision | encoding | compression | MB | CPU seconds\n---|---|---|---|---")
            for line in encodings(options.network, job.directory.evidence_part(0), job.query, Path(folder)):
                print(line, flush=True)
        else:
            with prefect_server(Path(folder)) if options.flow else nullcontext("") as server:
                print_commands(job_for, options, server)
            print_stages(job_for())


if __name__ == "__main__":
    main()
