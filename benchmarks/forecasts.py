"""Forecasts of `junctor inspect` beside the run: seconds and peak memory of the whole process, files included.

    uv run python benchmarks/forecasts.py [CASE ...]
    uv run python benchmarks/forecasts.py --network munin1.bif.gz --evidence rows.parquet

Five cases on generated networks, or a network with evidence of your own; each as the command line does it, on one
thread. Prints the forecast, what was measured (seconds by the clock and of the process, the most resident memory), and
the ratios: measured over forecast. On a busy machine the seconds of the process say more than those of the clock; they
count what is written beside propagation as well.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from common import machine_record
from junctor import generate
from junctor.formats import write_network
from junctor.generate import Pattern
from junctor.model.network import Network
from pyarrow import parquet

COMMAND = [sys.executable, "-c", "from junctor.cli import main; main()"]


@dataclass(frozen=True, slots=True)
class Case:
    """A network and rows of evidence on it.

    network: makes it.
    rows: number of them.
    observed, pattern: as of `evidence_table`.
    query: what is asked.
    """

    network: Callable[[], Network]
    rows: int
    observed: float
    pattern: Pattern
    query: str = "posteriors"


CASES = {
    "one pattern": Case(lambda: generate.random_network(200, seed=1), 60_000, 0.2, "fixed"),
    "a pattern a row": Case(lambda: generate.random_network(300, seed=2), 8_000, 0.2, "random"),
    "wide": Case(lambda: generate.random_network(3_000, seed=3), 3_000, 0.3, "missing"),
    "many states": Case(lambda: generate.tree(100, states=30, seed=4), 10_000, 0.2, "missing"),
    "explanations": Case(lambda: generate.random_network(300, seed=5), 8_000, 0.2, "random", "mpe"),
}


def measured(arguments: list[str]) -> tuple[dict[str, Any], float, float, int]:
    """Return the record of a command, its seconds by the clock and of the process, and its most bytes of memory."""
    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        process = subprocess.Popen([*COMMAND, *arguments, "--json", "--device", "cpu"], stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        if status:
            raise RuntimeError(f"{arguments}: ended with {os.waitstatus_to_exitcode(status)}")
        output.seek(0)
        return json.load(output), seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


def compare(name: str, network: str, evidence: str, query: str, folder: Path) -> str:
    """Return a line of the table."""
    record, looking, *_ = measured(["inspect", network, evidence, "--query", query])
    work = record["evidence"]
    options = ["--query", query, "--output", str(folder / "out"), "--overwrite", "--no-prefect"]
    _, wall, process, peak = measured(["run", network, evidence, *options, "--threads", "1", "--workers", "0"])
    seconds, memory = work["seconds"], work["process_bytes"]
    return (
        f"| {name} | {work['rows']:,} | {looking:.1f} | {seconds:.1f} | {wall:.1f}, {process:.1f} | "
        f"{wall / seconds:.2f}, {process / seconds:.2f} | {memory >> 20:,} | {peak >> 20:,} | {peak / memory:.2f} |"
    )


def write_case(case: Case, folder: Path) -> tuple[str, str]:
    """Write network and evidence of a case; return the names of their files."""
    network = case.network()
    write_network(network, folder / "network.bif")
    samples = generate.sample(network, case.rows, seed=0)
    table: pa.Table = generate.evidence_table(network, samples, case.observed, case.pattern, seed=0)
    parquet.write_table(table, folder / "evidence.parquet")
    return str(folder / "network.bif"), str(folder / "evidence.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all of them by default")
    parser.add_argument("--network", help="a network file, with --evidence, instead of generated ones")
    parser.add_argument("--evidence", help="evidence on it")
    parser.add_argument("--query", default="posteriors", help="what is asked of it: posteriors or mpe")
    options = parser.parse_args()
    print(machine_record())
    print("| case | rows | inspect, s | forecast, s | run: clock, process | ratios | forecast, MiB | peak | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.network:
            files = options.network, options.evidence
            print(compare(Path(options.evidence).name, *files, options.query, folder), flush=True)
            return
        for each in options.cases or CASES:
            files = write_case(CASES[each], folder)
            print(compare(each, *files, CASES[each].query, folder), flush=True)


if __name__ == "__main__":
    main()
