"""Speed of the engine on network files: one evidence pattern, a fifth of the variables observed.

    uv run python benchmarks/engine.py NETWORK ... [--rows 2000] [--precision double single] [--threads 2] [--distinct]
    JUNCTOR_CACHE=off uv run python benchmarks/engine.py NETWORK --plans [--rows 20000] [--repeats 5]

Prints, for each network and precision: cases a second (median of three runs, plan and program made before; CPU seconds
of one thread, seconds of the clock for more), entry operations a case (exact) and those of them that are not zero
whatever the evidence, operations a second (zeros counted as done), and how many rows climbed to a wider number format.
Equal rows are answered one by one, unless --distinct.

With --plans what comes before: the fewest seconds of some new processes, by the clock and of all cores, for the order
and the plan, its binding to numbers, its zeros, and its lowering.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from common import in_a_child
from junctor.backends.cpu import CompiledProgram
from junctor.backends.numpy import Program
from junctor.backends.plan_memory import MOST_LANES, ProgramCache
from junctor.engine.engine import Engine
from junctor.evidence import deduplicate as distinct
from junctor.evidence.batch import EvidenceBatch
from junctor.formats import read_network
from junctor.generate import sample
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Precision, Query
from junctor.planning.shape import Pattern
from junctor.strategies import number_ladder as execution
from junctor_kernels.tables.reference import Algebra

# Seconds of silence of a process that mean it hangs.
SILENCE = 300.0

Result = TypeVar("Result")


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
    nonzero = prepared.program(engine.facts.ladder[0]).nonzero_operations
    rate = batch.rows / statistics.median(seconds)
    return f"{precision} | {rate:,.0f} | {operations:,} | {nonzero:,} | {rate * operations:.2e} | {sum(rows[1:]):,}"


def plan_seconds(path: str, rows: int, precision: Precision) -> Iterator[list[tuple[float, float]]]:
    """Yield the seconds of each step from a pattern to bytecode, by the clock and of all cores."""
    network = read_network(path)
    pattern = Pattern(frozenset(batch_of(network, 1, seed=1).states), frozenset())
    facts = Engine(network, Query(precision=precision), ComputeOptions(device="cpu"), expected_rows=rows).facts
    found = []

    def timed(step: Callable[[], Result]) -> Result:
        begin = time.perf_counter(), time.process_time()
        result = step()
        found.append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
        return result

    plan = timed(lambda: facts.plan(pattern, rows))
    program = timed(lambda: Program(plan, network, facts.ladder[0]))
    timed(lambda: program.support)
    timed(lambda: CompiledProgram(program, MOST_LANES))
    yield found


def measure_plans(path: str, rows: int, precision: Precision, repeats: int) -> str:
    runs = [found for _ in range(repeats) for found in in_a_child(plan_seconds, path, rows, precision, silence=SILENCE)]
    steps = [[min(figures) for figures in zip(*step, strict=True)] for step in zip(*runs, strict=True)]
    steps.append([sum(figures) for figures in zip(*steps, strict=True)])
    return f"{precision} | " + " | ".join(f"{wall:.3f} ({cpu:.3f})" for wall, cpu in steps)


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
    parser.add_argument("--plans", action="store_true", help="seconds to make plans, none to answer")
    parser.add_argument("--repeats", type=int, default=5, help="processes for the seconds of plans")
    options = parser.parse_args()
    if options.plans:
        print("network | precision | plan, s (CPU) | binding | zeros | lowering | all")
        print("---|---|---|---|---|---|---")
        for path in options.networks:
            for precision in options.precision:
                figures = measure_plans(path, options.rows, precision, options.repeats)
                print(f"{path.rsplit('/', 1)[-1].split('.')[0]} | {figures}", flush=True)
        return
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
