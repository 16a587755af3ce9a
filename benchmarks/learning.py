"""Expectation maximisation beside pyAgrum's, on the same rows, from the same start, in one process after the other.

    uv run --with pyagrum==3.3.1 python benchmarks/learning.py NETWORK.bif [--rows 100000] [--missing 0.1]

Rows are samples of the network, without a share of their cells. Both start from the network's tables mixed with uniform
ones, use no prior, and take the same number of iterations. Prints seconds of preparation and of an iteration, all
threads together, the ratio of both, and how far tables are apart.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
from junctor import generate
from junctor.evidence.batch import EvidenceBatch
from junctor.formats import read_network
from junctor.learning.observations import observe
from junctor.model.network import Factor, Network
from junctor.model.options import ComputeOptions

Floats = npt.NDArray[np.float64]
UNIFORM_SHARE = 0.5


def started(network: Network) -> Network:
    """Return the network with tables halfway to uniform ones, zeros kept."""
    factors = []
    for factor in network.factors:
        support = factor.table > 0
        table = (1 - UNIFORM_SHARE) * factor.table + UNIFORM_SHARE * support / support.sum(axis=-1, keepdims=True)
        factors.append(Factor(factor.scope, table / table.sum(axis=-1, keepdims=True)))
    return Network(network.name, network.variables, tuple(factors))


def cells_of(network: Network, rows: int, missing: float) -> npt.NDArray[np.int32]:
    """Return samples, int32 [rows, variables], -1 where a cell is missing."""
    cells = generate.sample(network, rows, 1)
    cells[np.random.default_rng(2).random(cells.shape) < missing] = -1
    return cells


def ours(
    network: Network, cells: npt.NDArray[np.int32], iterations: int, threads: int
) -> tuple[float, float, list[float], list[Floats]]:
    """Return seconds of preparation and of an iteration, the logarithms of the likelihood, and the tables."""
    batch = EvidenceBatch(len(cells), {v: cells[:, v].copy() for v in range(cells.shape[1])})
    begin = time.perf_counter()
    rows = observe(network, [batch], options=ComputeOptions(threads=threads, device="cpu"))
    prepared = time.perf_counter()
    tables, history = [factor.table for factor in network.factors], []
    ends = np.cumsum([table.size for table in tables])[:-1]
    for _ in range(iterations):
        expected = rows.expect(np.concatenate([table.ravel() for table in tables]))
        history.append(expected.log_likelihood)
        counts = [c.reshape(t.shape) for c, t in zip(np.split(expected.counts, ends), tables, strict=True)]
        totals = [count.sum(axis=-1, keepdims=True) for count in counts]
        tables = [
            np.where(total > 0, count / np.where(total > 0, total, 1.0), table)
            for count, total, table in zip(counts, totals, tables, strict=True)
        ]
    return prepared - begin, (time.perf_counter() - prepared) / iterations, history, tables


def peers(network: Network, cells: npt.NDArray[np.int32], iterations: int) -> tuple[float, list[Floats]]:
    """Return what pyAgrum takes for an iteration, and its tables."""
    import pyagrum
    from agrum import peer_model

    model = peer_model(network)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        names = [variable.name for variable in network.variables]
        states = [[*variable.states, "?"] for variable in network.variables]
        lines = [",".join(states[v][state] for v, state in enumerate(row)) for row in cells.tolist()]
        path.write_text("\n".join([",".join(names), *lines]) + "\n")
        template = pyagrum.BayesNet()
        for variable in network.variables:
            template.add(pyagrum.LabelizedVariable(variable.name, "", list(variable.states)))
        learner = pyagrum.BNLearner(str(path), template, ["?"])
    named = pyagrum.BayesNet(template)
    for i, factor in enumerate(network.factors):
        for parent in reversed(factor.scope[:-1]):
            named.addArc(parent, i)
        named.cpt(i).fillWith(model.cpt(i).toarray().ravel().tolist())
    learner.useNoPrior()
    learner.useEMWithDiffCriterion(1e-300, 0.0)
    learner.EMsetMaxIter(iterations)
    begin = time.perf_counter()
    learned = learner.learnParameters(named, False)
    seconds = (time.perf_counter() - begin) / iterations
    tables = []
    for i, factor in enumerate(network.factors):
        # Its parents are in an order of their own; the array has the variables from last to first.
        names = list(reversed(learned.cpt(i).names))
        axes = [names.index(network.variables[v].name) for v in factor.scope]
        tables.append(learned.cpt(i).toarray().transpose(axes))
    return seconds, tables


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--missing", type=float, default=0.1)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--alone", action="store_true", help="without pyAgrum")
    options = parser.parse_args()
    network = started(read_network(options.network))
    cells = cells_of(read_network(options.network), options.rows, options.missing)
    # Once beforehand: the first call loads compiled code.
    ours(network, cells[:100], 1, options.threads)
    prepared, taken, history, tables = ours(network, cells, options.iterations, options.threads)
    share, iterations = f"{options.missing:.0%} missing", f"{options.iterations} iterations"
    print(f"{Path(options.network).name}, {options.rows:,} rows, {share}, {iterations}")
    print(f"ours: {prepared:.3f} s to prepare, {taken:.4f} s an iteration, log-likelihood {history[-1]:.6f}")
    if not options.alone:
        seconds, other = peers(network, cells, options.iterations)
        apart = max(float(np.abs(a - b).max()) for a, b in zip(tables, other, strict=True))
        print(f"pyAgrum: {seconds:.3f} s an iteration")
        whole = (prepared + options.iterations * taken) / options.iterations
        print(f"ratio: {seconds / taken:.0f}, preparation included {seconds / whole:.0f}; tables apart {apart:.1e}")


if __name__ == "__main__":
    main()
