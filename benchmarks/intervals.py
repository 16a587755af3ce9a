"""Intervals of samples from weighted mini-buckets: how many hold, and how wide they are, beside the errors of others.

    uv run python benchmarks/intervals.py grids [--sides 12 16 20] [--couplings 0.25 0.5 1 2] [--seeds 3]
    uv run python benchmarks/intervals.py known FOLDER [--networks Grids_11 ...]     networks with known answers
    uv run python benchmarks/intervals.py directed FOLDER [--samplers wmb epis-bn ais-bn]

`grids` are of binary variables with couplings of normal numbers times a factor, both signs, and fields up to 0.1; exact
answers are ours. `known` reads `MAR/NAME.uai`, `.evid` and `.MAR` (posteriors of six digits) of FOLDER, and the decimal
logarithms of Z in its INDEX.md. `directed` has the networks and rows of `benchmarks/sampling.py coverage`; of samplers
without intervals the estimate and 1.96 standard errors to either side stand for one. Widths are means; an interval
holds if the right number is in it, or outside by no more than its own last digit.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch
from junctor.formats import read_network
from junctor.model.network import Factor, Network, Variable
from junctor.model.options import ComputeOptions
from junctor.model.query import Query, Sampler, Sampling, sampler_of

sys.path.insert(0, str(Path(__file__).parent))

Hard = dict[int, int]
Tables = dict[int, npt.NDArray[np.float64]]
# What 95 % of normal numbers are within.
NORMAL = 1.96
HEAD = "what | sampler | rows | split | log P(e): hold | width | bound above | posteriors | hold | width | s a row"


@dataclass(frozen=True)
class Right:
    """Right answers to a row: the logarithm of P(e), posteriors, and how exactly each of them is known."""

    log: float
    posteriors: Tables
    log_digit: float = 1e-9
    digit: float = 1e-9


@dataclass
class Found:
    """Sums over rows: how many, split variables, intervals that hold, widths."""

    rows: int = 0
    split: int = 0
    logs: int = 0
    log_width: float = 0.0
    above: float = 0.0
    posteriors: int = 0
    hold: int = 0
    width: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Found) -> Found:
        return Found(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def line(self) -> str:
        rows, numbers = max(1, self.rows), max(1, self.posteriors)
        return (
            f"{self.rows} | {self.split / rows:.0f} | {self.logs / rows:.1%} | {self.log_width / rows:.2g} | "
            f"{self.above / rows:.2g} | {self.posteriors:,} | {self.hold / numbers:.2%} | {self.width / numbers:.3f} | "
            f"{self.seconds / rows:.2f}"
        )


def batch_of(hard: Hard) -> EvidenceBatch:
    return EvidenceBatch(1, {v: np.array([state], dtype=np.int32) for v, state in hard.items()})


def exact(network: Network, hard: Hard) -> Right:
    answers = Engine(network, Query(), ComputeOptions(device="cpu")).answer(batch_of(hard))
    return Right(float(answers.log_value[0]), {v: table[0] for v, table in answers.posteriors.items()})


def add_row(
    found: Found, network: Network, hard: Hard, right: Right, sampler: Sampler, options: Any, seed: int
) -> None:
    """Answer a row and count what holds."""
    entries = options.entries if sampler == "wmb" else None
    query = Query(method="sampling", sampling=Sampling(sampler, options.samples, seed=seed, table_entries=entries))
    engine = Engine(network, query, ComputeOptions(threads=options.threads, device="cpu"))
    start = time.perf_counter()
    answers: Any = engine.answer(batch_of(hard))
    found.seconds += time.perf_counter() - start
    if np.isnan(answers.log_value[0]):
        # Nothing is stated.
        return
    found.rows += 1
    if sampler_of(network, query) == "wmb":
        low, high, bound = answers.log_bounds[:, 0]
        found.split += engine.facts.sampler().plan(hard, {}).split  # type: ignore[union-attr]
        found.above += bound - right.log
    else:
        low, high = (answers.log_value[0] + sign * NORMAL * answers.log_error[0] for sign in (-1, 1))
    found.logs += bool(low - right.log_digit <= right.log <= high + right.log_digit)
    found.log_width += high - low
    for v, table in right.posteriors.items():
        if v in hard or len(table) == 1:
            continue
        if answers.lower:
            low, high = answers.lower[v][0], answers.upper[v][0]
        else:
            low, high = (answers.posteriors[v][0] + sign * NORMAL * answers.errors[v][0] for sign in (-1, 1))
        found.hold += int(((low - right.digit <= table) & (table <= high + right.digit)).sum())
        found.posteriors += len(table)
        found.width += float((np.minimum(high, 1.0) - np.maximum(low, 0.0)).sum())


def coupled_grid(side: int, coupling: float, seed: int) -> Network:
    """A Markov network of binary variables: fields up to 0.1, couplings of normal numbers times a factor."""
    rng, factors = np.random.default_rng([seed, side]), []
    for v in range(side * side):
        field = rng.uniform(-0.1, 0.1)
        factors.append(Factor((v,), np.exp([field, -field])))
        for u in ([v + 1] if (v + 1) % side else []) + ([v + side] if v + side < side * side else []):
            factors.append(Factor((v, u), np.exp(coupling * rng.normal() * np.array([[1.0, -1.0], [-1.0, 1.0]]))))
    return Network(
        f"grid_{side}", tuple(Variable(f"v{v}", ("a", "b")) for v in range(side * side)), tuple(factors), "markov"
    )


def grids(options: argparse.Namespace) -> Iterator[tuple[str, Found]]:
    for side in options.sides:
        for coupling in options.couplings:
            found = Found()
            for seed in range(options.seeds):
                network = coupled_grid(side, coupling, seed)
                add_row(found, network, {}, exact(network, {}), "wmb", options, seed)
            yield f"{side} x {side}, {coupling} | wmb", found


def known(options: argparse.Namespace) -> Iterator[tuple[str, Found]]:
    """Networks of a folder with answers of others."""
    listed = re.findall(r"\| MAR/(\S+)\.uai \|.*\| (\S+) \|\n", (options.file / "INDEX.md").read_text())
    for name, log in listed:
        if options.networks and name not in options.networks:
            continue
        path = next((options.file / "MAR").glob(f"{name}.uai*"))
        path = (
            path.with_name(f"{name}.uai.gz")
            if path.with_name(f"{name}.uai.gz").exists()
            else path.with_name(f"{name}.uai")
        )
        network, hard = read_network(str(path)), evidence_in(options.file / "MAR" / f"{name}.uai.evid")
        right = Right(float(log) * np.log(10), posteriors_in(options.file / "MAR" / f"{name}.uai.MAR"), 2e-6, 2e-6)
        found = Found()
        for seed in range(options.seeds):
            add_row(found, network, hard, right, "wmb", options, seed)
        yield f"{name} | wmb", found


def evidence_in(path: Path) -> Hard:
    numbers = [int(word) for word in path.read_text().split()]
    return dict(zip(numbers[1::2], numbers[2::2], strict=True))


def posteriors_in(path: Path) -> Tables:
    """Return the posteriors of a file of UAI: `MAR`, the number of variables, of each its states and their numbers."""
    words = iter(path.read_text().split()[1:])
    return {v: np.array([float(next(words)) for _ in range(int(next(words)))]) for v in range(int(next(words)))}


def directed(options: argparse.Namespace) -> Iterator[tuple[str, Found]]:
    """Bayesian networks, whose rows the other samplers answer as well."""
    from sampling import COVERED, observations

    for name in options.networks or COVERED:
        network = read_network(str(options.file / COVERED[name]))
        rows = observations(network)[: options.rows]
        truth = [exact(network, hard) for hard in rows]
        for sampler in options.samplers:
            found = Found()
            for row, (hard, right) in enumerate(zip(rows, truth, strict=True)):
                for seed in range(options.seeds):
                    add_row(found, network, hard, right, sampler, options, 100 * row + seed)
            yield f"{name} | {sampler}", found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    works = {"grids": grids, "known": known, "directed": directed}
    for name in works:
        action = actions.add_parser(name)
        if name != "grids":
            action.add_argument("file", type=Path)
        action.add_argument("--networks", nargs="+", default=[])
        action.add_argument("--sides", type=int, nargs="+", default=[12, 16, 20])
        action.add_argument("--couplings", type=float, nargs="+", default=[0.25, 0.5, 1.0, 2.0])
        action.add_argument("--samplers", nargs="+", default=["wmb", "epis-bn", "ais-bn"])
        action.add_argument("--rows", type=int, default=4, help="of each directed network")
        action.add_argument("--seeds", type=int, default=3)
        action.add_argument("--samples", type=int, default=20_000)
        action.add_argument("--entries", type=int, default=None)
        action.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print(HEAD)
    print("|".join(["---"] * 11))
    totals: dict[str, Found] = {}
    for what, found in works[options.action](options):
        print(f"{what} | {found.line()}", flush=True)
        name, sampler = what.split(" | ")
        groups = [f"all {name.split('_')[0]} | {sampler}"] if options.action == "known" else []
        for group in (*groups, f"all | {sampler}"):
            totals[group] = totals.get(group, Found()) + found
    for group, found in totals.items():
        print(f"{group} | {found.line()}")


if __name__ == "__main__":
    main()
