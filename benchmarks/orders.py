"""Total table sizes of elimination orders: greedy, a second of search, ten seconds; no evidence, one core.

    uv run python benchmarks/orders.py NETWORK ... [--seed 0]

Prints, for each network, the entries of all maximal cliques, the processor seconds that both searches really took, and
the milliseconds of one greedy elimination where a fifth of the variables is observed, as for one row of evidence.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import numpy as np
from junctor.formats import read_network
from junctor.planning.elimination import GreedyElimination, moral_graph
from junctor.planning.shape import Shape, mask_of, shape_of
from junctor_kernels.orders.annealing import SECOND, search
from junctor_kernels.orders.greedy import WEIGHTED_MIN_FILL, Words, greedy, pack, weights_of, work_for


def measure(shape: Shape, seed: int) -> list[str]:
    n = len(shape.cardinalities)
    neighbours = moral_graph(n, shape.scopes)
    everything = set(range(n))
    start = GreedyElimination(neighbours, everything, shape.cardinalities).by("min-weight").variables
    graph, members = pack([*map(mask_of, neighbours)], n), pack([mask_of(everything)], n)[0]
    # Without steps only the greedy criteria are left.
    cells = [f"{search(graph, members, shape.cardinalities, start, 0, seed)[1]:,.0f}"]
    for seconds in (1, 10):
        begin = time.process_time()
        total = search(graph, members, shape.cardinalities, start, seconds * SECOND, seed)[1]
        cells += [f"{total:,.0f}", f"{time.process_time() - begin:.2f}"]
    return [*cells, f"{1e3 * row_seconds(graph, shape, seed):.3f}"]


def row_seconds(graph: Words, shape: Shape, seed: int) -> float:
    n = len(shape.cardinalities)
    observed = set(random.Random(seed).sample(range(n), n // 5))
    free = pack([mask_of(v for v in range(n) if v not in observed)], n)[0]
    weights, work, order = weights_of(shape.cardinalities), work_for(n), np.empty(n, dtype=np.int64)
    state = np.zeros(1, dtype=np.uint64)
    seconds = []
    for _ in range(20):
        begin = time.process_time()
        greedy(graph, free, weights, WEIGHTED_MIN_FILL, 0.0, state, *work, order)
        seconds.append(time.process_time() - begin)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    measure(Shape((2,) * 4, ((0, 1), (1, 2), (2, 3), (3, 0)), False), 0)  # Compiles or loads everything.
    print("network | greedy | 1 s | seconds taken | 10 s | seconds taken | greedy for a row, ms")
    print("---|---|---|---|---|---|---")
    for path in options.networks:
        shape = shape_of(read_network(path))
        print(" | ".join([path.rsplit("/", 1)[-1].split(".")[0], *measure(shape, options.seed)]), flush=True)


if __name__ == "__main__":
    main()
