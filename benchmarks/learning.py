"""Expectation maximisation beside pyAgrum's, on the same rows, from the same start, in one process after the other.

    uv run --with pyagrum==3.3.1 python benchmarks/learning.py NETWORK.bif [--rows 100000] [--missing 0.1]
    uv run python benchmarks/learning.py NETWORK.bif --alone --gpu --latent LVFAILURE,HYPOVOLEMIA
    uv run python benchmarks/learning.py --classes 8 --gpu --rows 1000000 --missing 0
    uv run python benchmarks/learning.py alarm.bif --rows 10000000 --workers 0 2 4 8 [--text]

Rows are samples of the network, without a share of their cells and without latent variables; `--classes` makes a latent
class model in place of a network. All start from the network's tables mixed with uniform ones, use no prior, and take
the same number of iterations. Prints seconds of preparation and of an iteration, all threads together, the ratio of
both, and how far tables are apart. The first E-step is told apart: lists for a GPU are made there.

With --workers, a fit to the same rows in a file (Parquet, or CSV with --text) by this process (0) and by so many worker
processes: seconds until the rows are prepared, and in all; seconds of CPU of this process and of the workers; and
whether the fitted network has the same bytes.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
from junctor import generate
from junctor.evidence.batch import EvidenceBatch
from junctor.formats import read_network
from junctor.learning.em import FitOptions, Iteration
from junctor.learning.learn import LearnOptions, learn_rows
from junctor.learning.observations import observe
from junctor.learning.rows import row_options
from junctor.model.network import Factor, Network, Variable
from junctor.model.options import ComputeOptions, DeviceChoice
from junctor.runtime.dask_cluster import Resources
from pyarrow import csv, parquet

Floats = npt.NDArray[np.float64]
UNIFORM_SHARE = 0.5
# Features of a latent class model, and states of each.
FEATURES, FEATURE_STATES = 20, 4


def class_model(classes: int) -> Network:
    """Return a latent class model: features that are independent given the class."""
    random = np.random.default_rng(1)
    variables, factors = [named("class", classes)], [Factor((0,), random.dirichlet(np.ones(classes)))]
    for v in range(1, FEATURES + 1):
        variables.append(named(f"x{v}", FEATURE_STATES))
        factors.append(Factor((0, v), random.dirichlet(np.ones(FEATURE_STATES), size=classes)))
    return Network(f"{classes} latent classes", tuple(variables), tuple(factors))


def named(name: str, states: int) -> Variable:
    """Return a variable with numbers for states."""
    return Variable(name, tuple(map(str, range(states))))


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
    network: Network, cells: npt.NDArray[np.int32], iterations: int, threads: int, device: DeviceChoice = "cpu"
) -> tuple[float, float, float, list[float], list[Floats]]:
    """Return seconds of preparation, of a first E-step and of an iteration, log-likelihoods, and the tables."""
    batch = EvidenceBatch(len(cells), {v: cells[:, v].copy() for v in range(cells.shape[1])})
    begin = time.perf_counter()
    rows = observe(network, [batch], options=ComputeOptions(threads=threads, device=device))
    prepared = time.perf_counter()
    tables, history = [factor.table for factor in network.factors], []
    rows.expect(np.concatenate([table.ravel() for table in tables]))
    started = time.perf_counter()
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
    return prepared - begin, started - prepared, (time.perf_counter() - started) / iterations, history, tables


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


def write_rows(network: Network, cells: npt.NDArray[np.int32], path: Path) -> None:
    """Write states by name, as Parquet in row groups of Arrow's size or as CSV."""
    columns = {}
    for v, variable in enumerate(network.variables):
        states = pa.array(cells[:, v], mask=cells[:, v] < 0)
        columns[variable.name] = pa.DictionaryArray.from_arrays(states, pa.array(variable.states))
    table = pa.table(columns)
    if path.suffix == ".csv":
        csv.write_csv(table.cast(pa.schema([(name, pa.string()) for name in columns])), path)
    else:
        parquet.write_table(table, path)


def with_workers(network: Network, path: Path, workers: int, threads: int | None, iterations: int) -> str:
    """Fit to the rows of a file, print what it took, and return a digest of the fitted network."""
    told: list[float] = []

    def watch(number: int, iteration: Iteration) -> None:
        if not iteration.number:
            told.append(time.perf_counter() - begin - iteration.seconds)

    resources = Resources(workers, compute=ComputeOptions(threads=threads, device="cpu"))
    options = LearnOptions(fit=FitOptions(0.0, iterations))
    cpu, begin = cpu_seconds(), time.perf_counter()
    found = learn_rows(network, path, options, row_options({}), resources, watch)
    seconds, (here, there) = time.perf_counter() - begin, np.subtract(cpu_seconds(), cpu)
    prepared = f"{told[0]:.2f} s to read and prepare, {seconds:.2f} s with {iterations} iterations"
    print(f"{workers} workers: {prepared}; CPU: {here:.2f} s here, {there:.2f} s of workers")
    return found.network.digest


def cpu_seconds() -> tuple[float, float]:
    """Return the seconds of CPU of this process, and of those that fork workers for it and of workers that ended."""
    servers = [child for child in psutil.Process().children() if "forkserver" in " ".join(child.cmdline())]
    return time.process_time(), sum(sum(server.cpu_times()[:4]) for server in servers)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", nargs="?", help="network file")
    parser.add_argument("--classes", type=int, help="a latent class model of so many classes in its place")
    parser.add_argument("--latent", default="", help="variables without a column: A,B,...")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--missing", type=float, default=0.1)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--threads", type=int, help="2 if not given; with --workers, all cores together")
    parser.add_argument("--gpu", action="store_true", help="on a GPU, too")
    parser.add_argument("--alone", action="store_true", help="without pyAgrum")
    parser.add_argument("--workers", type=int, nargs="+", help="worker processes that read the rows from a file")
    parser.add_argument("--text", action="store_true", help="the file is CSV")
    options = parser.parse_args()
    if (options.network is None) == (options.classes is None):
        parser.error("expected either a network or --classes")
    model = class_model(options.classes) if options.classes else read_network(options.network)
    network, cells = started(model), cells_of(model, options.rows, options.missing)
    latent = [name for name in options.latent.split(",") if name] or ["class"] * bool(options.classes)
    cells[:, [model.index[name] for name in latent]] = -1
    threads = options.threads or 2
    if options.workers:
        # Once beforehand: the first call loads compiled code.
        ours(network, cells[:100], 1, threads, "cpu")
        with TemporaryDirectory() as folder:
            path = Path(folder) / ("rows.csv" if options.text else "rows.parquet")
            write_rows(network, cells, path)
            del cells
            size = f"{path.stat().st_size / 1e6:,.0f} MB {path.suffix}"
            print(f"{model.name}, {options.rows:,} rows, {size}")
            fits = [with_workers(network, path, n, options.threads, options.iterations) for n in options.workers]
        print("the same bytes" if len(set(fits)) == 1 else "DIFFERENT bytes")
        return
    share, iterations = f"{options.missing:.0%} missing", f"{options.iterations} iterations"
    name = model.name if options.classes else Path(options.network).name
    print(f"{name}, {options.rows:,} rows, {share}, {len(latent)} latent, {iterations}")
    found: list[list[Floats]] = []
    devices: list[DeviceChoice] = ["cpu", "gpu"] if options.gpu else ["cpu"]
    for device in devices:
        # Once beforehand: the first call loads compiled code, and starts a device.
        ours(network, cells[:100], 1, options.threads, device)
        prepared, first, taken, history, tables = ours(network, cells, options.iterations, options.threads, device)
        found.append(tables)
        apart = max(float(np.abs(a - b).max()) for a, b in zip(tables, found[0], strict=True))
        print(
            f"{device}: {prepared:.3f} s to prepare, {first:.3f} s the first E-step, {taken:.4f} s an iteration, "
            f"log-likelihood {history[-1]:.6f}, tables apart {apart:.1e}",
            flush=True,
        )
    if not (options.alone or options.classes or latent):
        seconds, other = peers(network, cells, options.iterations)
        apart = max(float(np.abs(a - b).max()) for a, b in zip(tables, other, strict=True))
        print(f"pyAgrum: {seconds:.3f} s an iteration")
        whole = (prepared + options.iterations * taken) / options.iterations
        print(f"ratio: {seconds / taken:.0f}, preparation included {seconds / whole:.0f}; tables apart {apart:.1e}")


if __name__ == "__main__":
    main()
