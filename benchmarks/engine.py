"""Speed of the engine on network files: one evidence pattern, a fifth of the variables observed.

    uv run python benchmarks/engine.py NETWORK ... [--rows 2000] [--precision double single]

Prints, for each network and precision: cases a CPU second of one thread (median of three runs, plan and program made
before), entry operations a case (exact) and those of them that are not zero whatever the evidence, operations a second
(zeros counted as done), and how many rows climbed to a wider number format.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from junctor.engine import Engine
from junctor.evidence.batch import EvidenceBatch
from junctor.formats import read_network
from junctor.generate import sample
from junctor.model import Network
from junctor.query import Query


def batch_of(network: Network, rows: int, seed: int) -> EvidenceBatch:
    states = sample(network, rows, seed)
    rng = np.random.default_rng(seed)
    observed = rng.choice(len(network.variables), max(1, len(network.variables) // 5), replace=False)
    return EvidenceBatch(rows, {int(v): np.ascontiguousarray(states[:, v]) for v in sorted(observed)})


def measure(network: Network, batch: EvidenceBatch, precision: str) -> str:
    # As in a run of millions of rows, for which the compiled backend is loaded.
    engine = Engine(network, Query(precision=precision), rows=10**7)
    climbed = count_climbs(engine)
    engine.answer(batch)
    first = list(climbed)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        engine.answer(batch)
        seconds.append(time.process_time() - start)
    (prepared,) = engine._prepared.values()
    operations = prepared.plan.case_operations
    nonzero = prepared.program(engine._ladder[0]).nonzero_operations
    rate = batch.rows / statistics.median(seconds)
    return f"{precision} | {rate:,.0f} | {operations:,} | {nonzero:,} | {rate * operations:.2e} | {sum(first[1:]):,}"


def count_climbs(engine: Engine) -> list[int]:
    counts: list[int] = []
    climb = engine._climb

    def counting(prepared: object, batch: object, rows: np.ndarray, *rest: object) -> None:
        counts.append(len(rows))
        climb(prepared, batch, rows, *rest)

    engine._climb = counting
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--precision", nargs="+", default=["double", "single"])
    options = parser.parse_args()
    print("network | precision | cases/s | operations a case | not zero | operations/s | rows that climbed")
    print("---|---|---|---|---|---|---")
    for path in options.networks:
        network = read_network(path)
        batch = batch_of(network, options.rows, seed=1)
        for precision in options.precision:
            print(f"{path.rsplit('/', 1)[-1].split('.')[0]} | {measure(network, batch, precision)}", flush=True)


if __name__ == "__main__":
    main()
