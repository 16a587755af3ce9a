"""Speed of the engine on network files: one evidence pattern, a fifth of the variables observed.

    uv run python benchmarks/engine.py NETWORK ... [--rows 2000] [--precision double single] [--threads 2] [--distinct]

Prints, for each network and precision: cases a second (median of three runs, plan and program made before; CPU seconds
of one thread, seconds of the clock for more), entry operations a case (exact) and those of them that are not zero
whatever the evidence, operations a second (zeros counted as done), and how many rows climbed to a wider number format.
Equal rows are answered one by one, unless --distinct.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from junctor.backends import blocks as execution
from junctor.backends.plan_memory import ProgramCache
from junctor.engine.engine import Engine
from junctor.evidence import deduplicate as distinct
from junctor.evidence.batch import EvidenceBatch
from junctor.formats import read_network
from junctor.generate import sample
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor_kernels.tables.reference import Algebra


def batch_of(network: Network, rows: int, seed: int) -> EvidenceBatch:
    states = sample(network, rows, seed)
    rng = np.random.default_rng(seed)
    observed = rng.choice(len(network.variables), max(1, len(network.variables) // 5), replace=False)
    return EvidenceBatch(rows, {int(v): np.ascontiguousarray(states[:, v]) for v in sorted(observed)})


def measure(network: Network, batch: EvidenceBatch, precision: str, threads: int) -> str:
    # As in a run of millions of rows, for which the compiled backend is loaded.
    engine = Engine(
        network, Query(precision=precision), ComputeOptions(threads=threads, device="cpu"), expected_rows=10**7
    )
    with counted_rows() as rows:
        engine.answer(batch)
    clock = time.process_time if threads == 1 else time.perf_counter
    seconds = []
    for _ in range(3):
        start = clock()
        engine.answer(batch)
        seconds.append(clock() - start)
    (prepared,) = engine.programs
    operations = prepared.plan.case_operations
    nonzero = prepared.program(engine.router.ladder[0]).nonzero_operations
    rate = batch.rows / statistics.median(seconds)
    return f"{precision} | {rate:,.0f} | {operations:,} | {nonzero:,} | {rate * operations:.2e} | {sum(rows[1:]):,}"


@contextmanager
def counted_rows() -> Iterator[list[int]]:
    """Count the rows that each number format is asked for."""
    counts: list[int] = []
    answer_in = execution.answer_in

    def counting(prepared: ProgramCache, algebra: Algebra, batch: EvidenceBatch, rows: np.ndarray, *rest: Any) -> Any:
        counts.append(len(rows))
        return answer_in(prepared, algebra, batch, rows, *rest)

    execution.answer_in = counting
    try:
        yield counts
    finally:
        execution.answer_in = answer_in


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--precision", nargs="+", default=["double", "single"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--distinct", action="store_true", help="answer equal rows once")
    options = parser.parse_args()
    if not options.distinct:
        distinct.LEAST_ROWS = options.rows + 1
    print("network | precision | cases/s | operations a case | not zero | operations/s | rows that climbed")
    print("---|---|---|---|---|---|---")
    for path in options.networks:
        network = read_network(path)
        batch = batch_of(network, options.rows, seed=1)
        for precision in options.precision:
            print(
                f"{path.rsplit('/', 1)[-1].split('.')[0]} | {measure(network, batch, precision, options.threads)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
