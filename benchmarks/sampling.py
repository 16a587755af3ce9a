"""Importance sampling: the evaluation of Yu and van Engelen, rates, and pyAgrum's weighted sampling beside ours.

    uv run python benchmarks/sampling.py prepare FOLDER --output cases      networks, evidence, exact posteriors
    uv run python benchmarks/sampling.py evaluate cases [--device gpu]      errors and times of all samplers
    uv run python benchmarks/sampling.py times cases                        a core, simple and wavefront, on a GPU
    uv run python benchmarks/sampling.py waves cases                        simple against wavefront, on a GPU
    uv run python benchmarks/sampling.py rate cases [--device gpu]          likelihood weighting, large runs
    uv run --with pyagrum==3.3.1 python benchmarks/sampling.py peer cases   pyAgrum at equal error
    uv run python benchmarks/sampling.py coverage FOLDER                    stated errors against exact answers

FOLDER holds `bnlearn/andes.bif` and `cpcs/cpcs*.uai*`. Each network has 50 cases of evidence on leaves (25, 10, 20 and
50 variables), once with states from forward samples (`likely`), once with states drawn uniformly among those that are
possible (`unlikely`). Errors are means of squared differences from exact posteriors over all states of all unobserved
variables. Every case gets 120,000 samples, of which half teach the importance function.

The tables and figures of Yu and van Engelen as they define them: `papers.py yu`, sampling_paper.py.

`coverage` has ten rows of its own of each of seven networks: five that observe a tenth of all variables, five a fifth.
"""

from __future__ import annotations

import argparse
import gzip
import pickle
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from multiprocessing import TimeoutError, get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor.formats import read_network
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query, Sampler, Sampling
from junctor.sampling.engine import SamplingEngine
from junctor_kernels.sampling.philox import RandomStream

NETWORKS = {
    "andes": ("bnlearn/andes.bif", 25),
    "cpcs179": ("cpcs/cpcs179.uai", 10),
    "cpcs360b": ("cpcs/cpcs360b.uai.gz", 20),
    "cpcs422b": ("cpcs/cpcs422b.uai.gz", 50),
}
CASES, SAMPLES = 50, 120_000
SAMPLERS: tuple[Sampler, ...] = ("lw", "sis", "epis-bn", "ais-bn")
KINDS = ("likely", "unlikely")

Hard = dict[int, int]
Tables = dict[int, npt.NDArray[np.float64]]


@dataclass(frozen=True)
class Prepared:
    """A network with cases of evidence and their exact posteriors, by kind."""

    name: str
    network: Network
    cases: dict[str, list[Hard]]
    exact: dict[str, list[Tables]]
    log_evidence: dict[str, list[float]]


def prepare(folder: Path, output: Path, seed: int, also: Sequence[Path]) -> None:
    found = []
    works = [(name, folder / file, count, KINDS) for name, (file, count) in NETWORKS.items()] if not also else []
    works += [(path.name.split(".")[0], path, 0, KINDS[:1]) for path in also]
    for name, path, count, kinds in works:
        network = read_network(str(path))
        cases = {kind: list(evidence(network, kind, count, seed)) for kind in kinds}
        answers = {kind: exact(network, cases[kind]) for kind in kinds}
        tables = {kind: [each[0] for each in answers[kind]] for kind in kinds}
        logs = {kind: [each[1] for each in answers[kind]] for kind in kinds}
        found.append(Prepared(name, network, cases, tables, logs))
        shown = ", ".join(f"{kind} {statistics.median(logs[kind]):.1f}" for kind in kinds)
        print(f"{name}: median log P(e): {shown}", flush=True)
    output.write_bytes(gzip.compress(pickle.dumps(found)))


def evidence(network: Network, kind: str, count: int, seed: int, anywhere: bool = False) -> Iterator[Hard]:
    """Yield cases whose evidence is possible, on leaves or anywhere; a count of 0 is a tenth of all, anywhere."""
    from junctor.generate import sample

    rng = np.random.default_rng((seed, count))
    parents = {p for factor in network.factors for p in factor.scope[:-1]}
    leaves = [v for v in range(len(network.variables)) if v not in parents or not count or anywhere]
    count = count or max(1, len(leaves) // 10)
    drawn = sample(network, CASES * 20, seed)
    made = turn = 0
    while made < CASES:
        chosen = rng.choice(leaves, min(count, len(leaves)), replace=False)
        case = {int(v): int(drawn[turn, v]) for v in chosen}
        if kind == "unlikely":
            case = {v: int(rng.integers(network.cardinalities[v])) for v in case}
        turn += 1
        if kind == "likely" or exact(network, [case], check=True):
            made += 1
            yield case


def exact(network: Network, cases: Sequence[Hard], check: bool = False) -> list[tuple[Tables, float]]:
    """Return exact posteriors and log P(e); with `check` only of cases that are possible."""
    from junctor.engine.engine import Engine
    from junctor.evidence.batch import UNOBSERVED, EvidenceBatch

    columns = {v: np.array([case.get(v, UNOBSERVED) for case in cases], dtype=np.int32) for v in set().union(*cases)}
    answers = Engine(network, Query(), ComputeOptions(threads=2, device="cpu")).answer(
        EvidenceBatch(len(cases), columns)
    )
    rows = [row for row in range(len(cases)) if answers.status[row] == 0]
    if not check and len(rows) < len(cases):
        raise SystemExit("evidence that is impossible")
    return [
        ({v: answers.posteriors[v][row].astype(np.float64) for v in answers.targets if v not in cases[row]},
         float(answers.log_value[row])) for row in rows
    ]  # fmt: skip


def engine_for(each: Prepared, sampler: Sampler, options: argparse.Namespace, **how: Any) -> SamplingEngine:
    settings = {"samples": SAMPLES, "seed": options.seed, "stages": "last", **how}
    query = Query(method="sampling", sampling=Sampling(sampler, **settings))
    return SamplingEngine(each.network, query, ComputeOptions(threads=options.threads, device=options.device))


def ask(engine: SamplingEngine, case: Hard, row: int) -> tuple[Tables, Any]:
    """Return the posteriors of a case, and all that the samples say."""
    layout, what, found = engine.estimate(case, {}, row)
    if found is None:
        return {}, None
    ends = np.cumsum(what.nodes[:, 2])[:-1]
    return dict(zip(layout.drawn, np.split(found.posteriors, ends), strict=True)), found


def squared(found: Tables, truth: Tables) -> float:
    return float(np.mean(np.concatenate([(found[v] - table) ** 2 for v, table in truth.items()])))


def evaluate(options: argparse.Namespace) -> None:
    """Errors and milliseconds of all samplers."""
    print(
        "network | evidence | log P(e) | sampler | mean squared error, median | mean | worst | effective | missed | ms"
    )
    print("|".join(["---"] * 10))
    for each in chosen(options):
        for kind in options.kinds:
            for sampler, stages in (*((s, "last") for s in SAMPLERS), ("ais-bn", "all")):
                engine = engine_for(each, sampler, options, stages=stages)
                ask(engine, each.cases[kind][0], 0)
                errors, times, effective, missed = [], [], [], 0
                for row, case in enumerate(each.cases[kind][: options.cases]):
                    start = time.perf_counter()
                    found, estimate = ask(engine, case, row)
                    times.append(time.perf_counter() - start)
                    if estimate is None:
                        missed += 1
                        continue
                    errors.append(squared(found, each.exact[kind][row]))
                    effective.append(estimate.effective)
                log = statistics.median(each.log_evidence[kind])
                numbers = "none | | | " if not errors else (
                    f"{statistics.median(errors):.2e} | {statistics.mean(errors):.2e} | {max(errors):.2e} | "
                    f"{statistics.median(effective):,.0f}"
                )  # fmt: skip
                name = sampler if stages == "last" else f"{sampler}, all stages"
                ms = 1e3 * statistics.median(times)
                print(f"{each.name} | {kind} | {log:.1f} | {name} | {numbers} | {missed} | {ms:.2f}", flush=True)


def times(options: argparse.Namespace) -> None:
    """Milliseconds on a core, and on a GPU by either kernel and by the one that is chosen."""
    print(
        "network | sampler | a core ms | simple ms | wavefront ms | chosen ms | speed-up: simple | wavefront | chosen"
    )
    print("|".join(["---"] * 9))
    learners: tuple[Sampler, ...] = ("ais-bn", "epis-bn")
    for each, sampler in product(chosen(options), learners):
        options.device, options.threads = "cpu", 1
        found = [middle(engine_for(each, sampler, options), each, 3)]
        options.device = "gpu"
        for group in (0, 32, None):
            engine = engine_for(each, sampler, options)
            if group is not None:
                gpu: Any = engine.gpu
                gpu.way = lambda *_, group=group: group
            found.append(middle(engine, each, options.cases))
        ratios = " | ".join(f"{found[0] / ms:.0f}" for ms in found[1:])
        print(f"{each.name} | {sampler} | {' | '.join(f'{ms:.2f}' for ms in found)} | {ratios}", flush=True)


def middle(engine: SamplingEngine, each: Prepared, cases: int) -> float:
    """Return the median of milliseconds of some cases, their patterns known."""
    rows = [(row, case) for row, case in enumerate(each.cases["unlikely"][:cases])]
    for row, case in rows:
        ask(engine, case, row)
    taken = []
    for row, case in rows:
        start = time.perf_counter()
        ask(engine, case, row)
        taken.append(1e3 * (time.perf_counter() - start))
    return statistics.median(taken)


def waves(options: argparse.Namespace) -> None:
    """Milliseconds of samples alone, by how many there are at once, and by how many a block takes."""
    print("network | samples at once | simple ms | " + " | ".join(f"wavefront, {g} a block" for g in GROUPS))
    print("|".join(["---"] * (3 + len(GROUPS))))
    for each in chosen(options):
        engine = engine_for(each, options.sampler, options)
        for count in COUNTS:
            cells = [f"{draws(engine, each, group, count):.4f}" for group in (0, *GROUPS)]
            print(f"{each.name} | {count:,} | {' | '.join(cells)}", flush=True)


GROUPS = (1, 2, 4, 8, 16, 32)
COUNTS = (1, 10, 100, 1000, 4096, 10_000, 32_768, 100_000, 1_000_000)


def draws(engine: SamplingEngine, each: Prepared, group: int, count: int) -> float:
    """Return milliseconds that a device takes to draw and weigh so many samples, 0: a thread a sample."""
    row = gpu_row(engine, each, group)
    return on_device(row, lambda: row._draw(RandomStream(1, 0, 0), 0, count, 0.25), 5 if count > 100_000 else 9)


def gpu_row(engine: SamplingEngine, each: Prepared, group: int) -> Any:
    from junctor.sampling.rows import Evidence
    from junctor.sampling.sampler import SamplingRequest

    gpu: Any = engine.gpu
    gpu.way = lambda *_: group
    case = each.cases["unlikely"][0]
    layout = engine._layout(Evidence(frozenset(case), frozenset()))
    learns = engine.query.sampling.sampler != "lw"
    return gpu.row(SamplingRequest(layout, layout.case(case, {}, learns), engine.query.sampling.sampler, (), learns))


def on_device(row: Any, work: Callable[[], Any], repeats: int) -> float:
    """Return the median of milliseconds between events around the work."""
    device = row._device
    work()
    times = []
    for _ in range(repeats):
        begin, end = device.event(timing=True), device.event(timing=True)
        begin.record(device.main)
        work()
        end.record(device.main)
        end.synchronize()
        times.append(1e3 * device.elapsed(begin, end))
    return statistics.median(times)


def rate(options: argparse.Namespace) -> None:
    """Samples a second of likelihood weighting, sums included, and where the time goes on a GPU."""
    print("network | samples | s | samples/s | draws/s | draw ms | sum ms of a chunk")
    print("|".join(["---"] * 7))
    for each in chosen(options):
        engine = engine_for(each, "lw", options, samples=options.samples)
        case = each.cases["unlikely"][0]
        ask(engine, case, 0)
        start = time.perf_counter()
        ask(engine, case, 1)
        seconds = time.perf_counter() - start
        parts = "|"
        if options.device == "gpu":
            from junctor.sampling import gpu

            row = gpu_row(engine, each, 0)
            result = row._device.empty((row._slots + 1, 2), np.float64)
            drawn = on_device(row, lambda row=row: row._draw(RandomStream(1, 0, 0), 0, gpu.CHUNK, 0.25), 5)
            summed = on_device(row, lambda row=row, result=result: row._sum(gpu.CHUNK, result, 0), 5)
            parts = f"{drawn:.3f} | {summed:.3f}"
        per = options.samples / seconds
        nodes = len(each.network.variables) - len(case)
        print(
            f"{each.name} | {options.samples:,} | {seconds:.3f} | {per:.3g} | {per * nodes:.3g} | {parts}", flush=True
        )


def peer(options: argparse.Namespace) -> None:
    """Seconds and errors of pyAgrum's weighted sampling and of ours; how much faster an equal error is reached."""
    import pyagrum
    from agrum import peer_model

    pyagrum.setNumberOfThreads(options.threads)
    print("network | evidence | pyAgrum s | its error | ours s | error | x at equal error | AIS-BN s | error | x")
    print("|".join(["---"] * 10))
    for each in chosen(options):
        model = peer_model(each.network)
        for kind in options.kinds:
            theirs, ours, learned = [], [], []
            for row in range(options.cases):
                case, truth = each.cases[kind][row], each.exact[kind][row]
                theirs.append(at_most(PEER_PATIENCE, weighted_sampling, model, case, truth))
                for sampler, into in (("lw", ours), ("ais-bn", learned)):
                    engine = engine_for(each, sampler, options, samples=options.samples)
                    if row == 0:
                        ask(engine, case, row)
                    start = time.perf_counter()
                    found, _ = ask(engine, case, row)
                    into.append((time.perf_counter() - start, squared(found, truth) if found else np.nan))
            a, b, c = (np.nanmedian(np.array(side), axis=0) for side in (theirs, ours, learned))
            # An error falls with the square root of samples, its square as 1 over the time.
            cells = [f"{a[0]:.3f} | {a[1]:.2e} | {b[0]:.3f} | {b[1]:.2e} | {a[0] * a[1] / (b[0] * b[1]):.0f}"]
            cells.append(f"{c[0]:.3f} | {c[1]:.2e} | {a[0] * a[1] / (c[0] * c[1]):.0f}")
            print(f"{each.name} | {kind} | {' | '.join(cells)}", flush=True)


def weighted_sampling(model: Any, case: Hard, truth: Tables) -> tuple[float, float]:
    """Return seconds and error of pyAgrum on a case."""
    import pyagrum

    inference = pyagrum.WeightedSampling(model)
    inference.setEvidence(dict(case))
    inference.setEpsilon(1e-9)
    inference.setMinEpsilonRate(1e-9)
    inference.setMaxTime(PEER_SECONDS)
    inference.setMaxIter(10**7)
    start = time.perf_counter()
    inference.makeInference()
    found = {v: inference.posterior(v).toarray() for v in truth}
    return time.perf_counter() - start, squared(found, truth)


def at_most(seconds: float, work: Callable[..., tuple[float, float]], *arguments: Any) -> tuple[float, float]:
    """Return what work in a process of its own does, two NaN where it does not come back."""
    with get_context("fork").Pool(1) as pool:
        try:
            return pool.apply_async(work, arguments).get(seconds)
        except TimeoutError:
            return np.nan, np.nan


COVERED = {
    "alarm": "bnlearn/alarm.bif",
    "win95pts": "bnlearn/win95pts.bif",
    "hailfinder": "bnlearn/hailfinder.bif",
    "munin1": "bnlearn/munin1.bif.gz",
    "pathfinder": "bnlearn/pathfinder.bif.gz",
    "andes": "bnlearn/andes.bif",
    "cpcs360b": "cpcs/cpcs360b.uai.gz",
}
COVERED_ROWS, COVERED_SAMPLES = 10, 20_000
# A state with fewer expected effective samples has an upper bound in place of an error.
LEAST_EXPECTED = 10


def coverage(options: argparse.Namespace) -> None:
    """Share of quantities further from the exact ones than two and three stated errors; rows that are `ok` alone."""
    print(
        "network | sampler | rows ok | quantities | beyond 2 sigma | 3 sigma | furthest | rarer states | above | "
        "root mean square error | ms a row"
    )
    print("|".join(["---"] * 11))
    totals: dict[str, list[Counted]] = {}
    for name in options.networks or COVERED:
        network = read_network(str(options.file / COVERED[name]))
        rows = observations(network)
        truth = exact(network, rows)
        for sampler in options.samplers:
            totals.setdefault(sampler, []).append(covered(network, rows, truth, sampler, options))
            print(f"{name} | {sampler} | {totals[sampler][-1].line()}", flush=True)
    for sampler, found in totals.items():
        print(f"all | {sampler} | {added(found).line()}")


def observations(network: Network) -> list[Hard]:
    """Return rows with states from forward samples."""
    from junctor.generate import sample

    rng = np.random.default_rng(7)
    drawn, size = sample(network, COVERED_ROWS, 7), len(network.variables)
    counts = [max(1, round(size * (0.1 if row < COVERED_ROWS // 2 else 0.2))) for row in range(COVERED_ROWS)]
    chosen = [rng.choice(size, count, replace=False) for count in counts]
    return [{int(v): int(drawn[row, v]) for v in each} for row, each in enumerate(chosen)]


@dataclass(frozen=True)
class Counted:
    """What was found of rows: how many, those that are ok; quantities of these, and how far they are off."""

    rows: int
    ok: int
    quantities: int
    beyond: tuple[int, int]
    furthest: float
    rare: int
    above: int
    squares: tuple[float, ...]
    seconds: float

    def line(self) -> str:
        two, three = (f"{count / max(1, self.quantities):.2%}" for count in self.beyond)
        return (
            f"{self.ok / self.rows:.1%} | {self.quantities:,} | {two} | {three} | {self.furthest:.1f} | "
            f"{self.rare:,} | {self.above / max(1, self.rare):.2%} | "
            f"{statistics.mean(self.squares or (np.nan,)) ** 0.5:.2e} | {1e3 * self.seconds / self.rows:.1f}"
        )


def added(parts: Sequence[Counted]) -> Counted:
    total = parts[0]
    for part in parts[1:]:
        total = Counted(
            total.rows + part.rows, total.ok + part.ok, total.quantities + part.quantities,
            (total.beyond[0] + part.beyond[0], total.beyond[1] + part.beyond[1]), max(total.furthest, part.furthest),
            total.rare + part.rare, total.above + part.above, total.squares + part.squares,
            total.seconds + part.seconds,
        )  # fmt: skip
    return total


def covered(
    network: Network, rows: list[Hard], truth: list[tuple[Tables, float]], sampler: Sampler, options: argparse.Namespace
) -> Counted:
    """Sample all rows with every seed."""
    from junctor.engine.engine import Engine
    from junctor.evidence.batch import UNOBSERVED, EvidenceBatch

    columns = {v: np.array([row.get(v, UNOBSERVED) for row in rows], dtype=np.int32) for v in set().union(*rows)}
    batch, found = EvidenceBatch(len(rows), columns), []
    for seed in range(options.seeds):
        query = Query(method="sampling", sampling=Sampling(sampler, COVERED_SAMPLES, seed=seed))
        engine = Engine(network, query, ComputeOptions(threads=options.threads, device=options.device))
        # Tables and compiled code are there when the clock starts.
        engine.facts.sampler().estimate(rows[0], {})
        start = time.perf_counter()
        answers = engine.answer(batch)
        seconds = (time.perf_counter() - start) / len(rows)
        found += [one_row(answers, row, rows[row], *truth[row], seconds, options) for row in range(len(rows))]
    return added(found)


def one_row(
    answers: Any, row: int, hard: Hard, tables: Tables, log: float, seconds: float, options: argparse.Namespace
) -> Counted:
    """Return what one row of answers is worth."""
    if np.isnan(answers.log_value[row]):
        return Counted(1, 0, 0, (0, 0), 0.0, 0, 0, (), seconds)
    hidden = [v for v in tables if v not in hard]
    right = np.concatenate([tables[v] for v in hidden])
    mine, errors = (
        np.concatenate([arrays[v][row] for v in hidden]).astype(np.float64)
        for arrays in (answers.posteriors, answers.errors)
    )
    square = float(np.mean((mine - right) ** 2))
    if answers.status[row] != 0:
        return Counted(1, 0, 0, (0, 0), 0.0, 0, 0, (square,), seconds)
    common = right * answers.effective[row] >= LEAST_EXPECTED
    off = [abs(answers.log_value[row] - log) / max(answers.log_error[row], 1e-12)]
    # A variable of one state is certain, without an error.
    stated = common & (errors > 0)
    off = np.concatenate([off, np.abs(mine - right)[stated] / errors[stated]])
    above = int((right[~common] > (mine + 2 * errors)[~common]).sum())
    if options.far and off.max() > 5:
        print(f"    row {row}: {off.max():.1f} off, {answers.effective[row]:.0f} effective", flush=True)
    beyond = int((off > 2).sum()), int((off > 3).sum())
    return Counted(1, 1, len(off), beyond, float(off.max()), int((~common).sum()), above, (square,), seconds)


# Seconds that pyAgrum gets for a case, and that it may take in spite of that: where no sample has a weight it goes on.
PEER_SECONDS, PEER_PATIENCE = 5.0, 20.0


def chosen(options: argparse.Namespace) -> Iterator[Prepared]:
    for each in pickle.loads(gzip.decompress(options.file.read_bytes())):
        if not options.networks or each.name in options.networks:
            yield each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    first = actions.add_parser("prepare")
    first.add_argument("folder", type=Path)
    first.add_argument("--output", type=Path, required=True)
    first.add_argument("--seed", type=int, default=1)
    first.add_argument(
        "--also", type=Path, nargs="+", default=[], help="instead: these, a tenth of all variables observed"
    )
    works = {"evaluate": evaluate, "times": times, "waves": waves, "rate": rate, "peer": peer}
    works |= {"coverage": coverage}
    for name in works:
        action = actions.add_parser(name)
        action.add_argument("file", type=Path)
        action.add_argument("--networks", nargs="+", default=[])
        action.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
        action.add_argument("--cases", type=int, default=CASES)
        action.add_argument("--samples", type=int, default=SAMPLES)
        action.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=SAMPLERS, help="of coverage")
        action.add_argument("--seeds", type=int, default=20, help="of coverage")
        action.add_argument(
            "--far", action="store_true", help="of coverage: show the rows with the largest differences"
        )
        action.add_argument("--sampler", choices=SAMPLERS, default="lw")
        action.add_argument("--device", choices=("cpu", "gpu"), default="gpu" if name in ("waves", "times") else "cpu")
        action.add_argument("--threads", type=int, default=2)
        action.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.action == "prepare":
        prepare(options.folder, options.output, options.seed, options.also)
    else:
        works[options.action](options)


if __name__ == "__main__":
    main()
