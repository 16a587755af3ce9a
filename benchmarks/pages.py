"""What the statistics of a run cost, and its page.

    uv run python benchmarks/pages.py alarm.bif [--rows 1000000] [--repeats 3] [--answers scores]

Prints CPU seconds of a run in this process on one thread, those of counting within it, and those of making the page,
without the imports that only the first one pays. Evidence has one pattern, a fifth of the variables observed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from end_to_end import make_evidence
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.runs import partition
from junctor.runs import statistics as counts
from junctor.runs.outcome import outcome_of
from junctor.runs.report.page import write_page
from junctor.runs.run import run
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources

# What counting consists of.
COUNTING: tuple[tuple[Any, str], ...] = (
    (counts, "count_cells"),
    (counts, "count"),
    (partition, "write_statistics"),
)


def watched(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        started = time.thread_time()
        try:
            return function(*args)
        finally:
            spent.append(time.thread_time() - started)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--answers", choices=("posteriors", "scores"), default="posteriors")
    options = parser.parse_args()
    spent: list[float] = []
    for owner, name in COUNTING:
        setattr(owner, name, watched(getattr(owner, name), spent))
    resources = Resources(workers=0, compute=ComputeOptions(threads=1))
    print("run, CPU s | counting, s | share | page, s\n---:|---:|---:|---:")
    with tempfile.TemporaryDirectory() as folder:
        evidence = Path(folder) / "evidence.parquet"
        make_evidence(options.network, options.rows, evidence)
        for number in range(options.repeats):
            output = str(Path(folder) / f"out{number}")
            job = Job(options.network, str(evidence), output, Query(answers=options.answers))
            spent.clear()
            started = time.process_time()
            manifest = run(job, resources)
            ended = time.process_time()
            write_page(outcome_of(job.directory, manifest), [], job.directory.report)
            page = time.process_time() - ended
            whole, part = ended - started, sum(spent)
            print(f"{whole:.2f} | {part:.3f} | {part / (whole - part):.1%} | {page:.2f}", flush=True)


if __name__ == "__main__":
    main()
