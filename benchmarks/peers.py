"""Junctor and pyAgrum side by side: the same networks, the same evidence, one run; do they agree, and how fast is each?

    uv run --with pyagrum==3.3.1 python benchmarks/peers.py FOLDER_OR_NETWORK ... [--seconds 60] [--threads 2]

All posteriors of all unobserved variables; a fifth of the variables observed, values from forward samples. Three kinds
of batch: `fixed` (every row observes the same variables), `missing` (5 % of those cells missing at random), `varied`
(every row its own random set). pyAgrum runs its two exact engines for hard evidence, each with evidence changed in
place and with a fresh set, and the fastest of the four counts. The two alternate, each round on new rows; times are
medians of rounds, without planning and with it. Both may save work on equal rows: we answer the different rows of a
batch once, pyAgrum keeps messages that a change of evidence does not reach. Rows that pyAgrum refuses for lack of
memory do not count in its time. pyAgrum comes with an environment of its own; Junctor does not depend on it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyagrum
from agrum import States, Tables, fastest_peer, limit_memory, peer_model, rows_of, run_peer, timed
from common import machine_record, network_files
from junctor.engine.engine import Engine
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.formats import read_network
from junctor.generate import sample
from junctor.model.answers import OK, Answers
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Precision, Query
from junctor.runtime.machine import DEFAULT_SHARE, available_memory

KINDS = ("fixed", "missing", "varied")
PRECISIONS: tuple[Precision, ...] = ("double", "single")
OBSERVED, MISSING = 0.2, 0.05
ROUNDS = 3
# Rows of one of our batches, and of one round of pyAgrum, which needs no more for a mean.
MOST_ROWS, MOST_PEER_ROWS = 20_000, 1000
# Rows of a round whose answers are compared.
COMPARED = 20
# Differences of posteriors, and of log P(e) in parts of itself, up to which answers agree.
TOLERANCE = {"double": 1e-9, "single": 1e-5}
# What our engine is told to expect in all, as in a run of many batches; decides what is worth preparing.
TO_COME = 1_000_000
RESULTS = Path(__file__).parent / "results"

Rows = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Side:
    """One engine on one batch: milliseconds a row, rows a round, and what the first use took beyond them (seconds)."""

    ms: float
    rows: int
    first_seconds: float
    engine: str

    def with_planning(self, rows: int) -> float:
        """Return milliseconds a row of so many rows, planning included."""
        return self.ms + 1e3 * self.first_seconds / rows


@dataclass(frozen=True)
class Comparison:
    """One network and kind of batch: pyAgrum, ours in each precision, and the largest differences of the answers."""

    network: str
    kind: str
    peer: Side
    ours: dict[str, Side]
    posterior_difference: dict[str, float]
    log_difference: dict[str, float]
    peer_refused: int

    def agrees(self, precision: str) -> bool:
        """Whether all answers that were compared agree."""
        return max(self.posterior_difference[precision], self.log_difference[precision]) <= TOLERANCE[precision]

    def ratio(self, precision: str) -> float:
        """Return how many times faster we are."""
        return self.peer.ms / self.ours[precision].ms

    def ratio_with_planning(self, precision: str) -> float:
        """Return how many times faster we are on one batch of ours, planning included on both sides."""
        rows = self.ours[precision].rows
        return self.peer.with_planning(rows) / self.ours[precision].with_planning(rows)


def evidence(network: Network, kind: str, rows: int, seed: int, turn: int) -> Rows:
    """Return the states [rows, variables] of a batch, UNOBSERVED where nothing is known; each turn has its rows."""
    variables = len(network.variables)
    count = max(1, int(OBSERVED * variables))
    rng = np.random.default_rng((seed, turn + 2))
    seen = np.zeros((rows, variables), dtype=np.bool_)
    if kind == "varied":
        np.put_along_axis(seen, rng.random((rows, variables)).argpartition(count, axis=1)[:, :count], True, axis=1)
    else:
        seen[:, np.random.default_rng(seed).choice(variables, count, replace=False)] = True
    if kind == "missing":
        seen &= rng.random(seen.shape) >= MISSING
    return np.where(seen, sample(network, rows, (ROUNDS + 2) * seed + turn + 2), UNOBSERVED).astype(np.int32)


class Ours:
    """Our engine, on as many threads."""

    def __init__(self, network: Network, precision: Precision, threads: int) -> None:
        # A quarter of what both sides may take together: pyAgrum keeps what it has once taken.
        memory = int(DEFAULT_SHARE * available_memory() / 4)
        self._engine = Engine(
            network,
            Query(precision=precision),
            ComputeOptions(memory=memory, threads=threads, device="cpu"),
            expected_rows=TO_COME,
        )

    def answer(self, states: Rows) -> Answers:
        """Answer a batch."""
        seen = np.flatnonzero((states != UNOBSERVED).any(axis=0))
        columns = {int(v): np.ascontiguousarray(states[:, v]) for v in seen}
        return self._engine.answer(EvidenceBatch(len(states), columns))


@dataclass(frozen=True)
class Contest:
    """One network, the seconds of each side for a kind of batch, the threads of each, and where all rows come from."""

    network: Network
    name: str
    seconds: float
    threads: int
    seed: int

    def compare(self, kind: str) -> Comparison:
        """Time both sides in alternation, each round on new rows, and compare what both answered."""
        share = self.seconds / ROUNDS
        rows = {p: self._batch_rows(kind, p, share) for p in PRECISIONS}
        most = max(*rows.values(), MOST_PEER_ROWS)
        first = self._evidence(kind, most, turn=-1)
        peer, peer_extra = fastest_peer(peer_model(self.network), rows_of(first[:MOST_PEER_ROWS]), share, self.threads)
        ours = {p: Ours(self.network, p, self.threads) for p in PRECISIONS}
        cold = {p: timed(ours[p].answer, first[: rows[p]])[1] for p in PRECISIONS}
        times: dict[str, list[float]] = {name: [] for name in ("peer", *PRECISIONS)}
        differences: dict[str, list[tuple[float, float]]] = {p: [] for p in PRECISIONS}
        for turn in range(ROUNDS):
            states = self._evidence(kind, most, turn)
            cases = rows_of(states[:MOST_PEER_ROWS])
            times["peer"].append(run_peer(peer, cases, share))
            few = max(1, min(COMPARED, int(share / times["peer"][-1])))
            truth = [(peer.answer(case), peer.log_value()) for case in cases[:few]]
            for p in PRECISIONS:
                answers, took = timed(ours[p].answer, states[: rows[p]])
                times[p].append(took / rows[p])
                differences[p].append(_difference(truth, cases, answers))
        usual = {side: statistics.median(found) for side, found in times.items()}
        return Comparison(
            self.name,
            kind,
            Side(1e3 * usual["peer"], len(cases), peer_extra, peer.name),
            {p: Side(1e3 * usual[p], rows[p], max(0.0, cold[p] - usual[p] * rows[p]), p) for p in PRECISIONS},
            {p: max(posterior for posterior, _ in differences[p]) for p in PRECISIONS},
            {p: max(log for _, log in differences[p]) for p in PRECISIONS},
            peer.refused,
        )

    def _evidence(self, kind: str, rows: int, turn: int) -> Rows:
        return evidence(self.network, kind, rows, self.seed, turn)

    def _batch_rows(self, kind: str, precision: Precision, seconds: float) -> int:
        """Return how many rows we answer in `seconds`, at most MOST_ROWS, judged by batches that grow."""
        ours, rows = Ours(self.network, precision, self.threads), 32
        while rows < MOST_ROWS:
            states = self._evidence(kind, rows, turn=-2)
            ours.answer(states)
            _, took = timed(ours.answer, states)
            if took > seconds / 8:
                return max(1, min(MOST_ROWS, int(rows * seconds / took)))
            rows *= 8
        return MOST_ROWS


def _difference(
    truth: Sequence[tuple[Tables | None, float]], cases: Sequence[States], answers: Answers
) -> tuple[float, float]:
    """Return the largest difference of a posterior and of log P(e) (in parts of itself beyond 1), on rows of both."""
    posterior = log = 0.0
    for row, ((expected, log_value), case) in enumerate(zip(truth, cases, strict=False)):
        if row == len(answers.status):
            break
        if expected is None:
            continue
        if answers.status[row] != OK:
            return math.inf, math.inf
        free = [v for v in answers.targets if v not in case]
        worst = (np.abs(answers.posteriors[v][row] - table).max() for v, table in zip(free, expected, strict=True))
        posterior = max(posterior, float(max(worst, default=0.0)))
        if not math.isnan(log_value):
            log = max(log, abs(float(answers.log_value[row]) - log_value) / max(1.0, abs(log_value)))
    return posterior, log


def table(kind: str, found: Sequence[Comparison], against: Mapping[str, float]) -> str:
    """Return the Markdown table of one kind of batch, with geometric means of the ratios and their least."""
    heads = ["network", "pyAgrum", "its engine", "double", "single", "×, double", "×, single", "×, single, planning"]
    heads += ["rows", "planning s", "difference, double", "single", *(["× best other, single"] if against else [])]
    lines = [f"| {' | '.join(heads)} |", f"|---|---:|---|{'---:|' * (len(heads) - 3)}"]
    ratios: list[list[float]] = []
    for each in found:
        single, double = each.ours["single"], each.ours["double"]
        here = [each.ratio("double"), each.ratio("single"), each.ratio_with_planning("single")]
        other = [against[each.network] / single.ms] if each.network in against else []
        ratios.append([*here, *other])
        cells = [each.network, f"{each.peer.ms:.3g}", each.peer.engine, f"{double.ms:.3g}", f"{single.ms:.3g}"]
        cells += [f"{ratio:.3g}" for ratio in here] + [f"{single.rows:,}", f"{single.first_seconds:.2g}"]
        cells += [f"{each.posterior_difference[p]:.0e}{'' if each.agrees(p) else ' **differs**'}" for p in PRECISIONS]
        lines.append(f"| {' | '.join([*cells, *(f'{ratio:.3g}' for ratio in other)])} |")
    for name, summary in (("geometric mean", statistics.geometric_mean), ("least", min)):
        cells = [_summary(summary, [row[i] for row in ratios]) for i in range(3)]
        last = [_summary(summary, [row[3] for row in ratios if len(row) > 3])] if against else []
        lines.append(f"| {' | '.join([name, '', '', '', '', *cells, '', '', '', '', *last])} |")
    return f"## {kind} (milliseconds a row)\n\n" + "\n".join(lines) + "\n"


def _summary(summary: Callable[[Sequence[float]], float], ratios: Sequence[float]) -> str:
    # Infinite where pyAgrum has no answer.
    finite = [ratio for ratio in ratios if math.isfinite(ratio)]
    return f"{summary(finite):.3g}" if finite else ""


def read_others(path: Path) -> dict[str, dict[str, float]]:
    """Return kind -> network -> best milliseconds of other tools.

    From JSON of just that form, or from Markdown: under a heading that is the kind, a table of networks (first column)
    and tools (the others; cells that are no numbers do not count). `missing` falls back to `fixed`, the harder bar.
    """
    if path.suffix == ".json":
        found: dict[str, dict[str, float]] = json.loads(path.read_text())
    else:
        found, kind = {}, ""
        for line in path.read_text().splitlines():
            cells = [cell.strip() for cell in line.strip("| \n").split("|")]
            if line.startswith("#"):
                kind = line.strip("# \n").split(" ")[0]
            elif len(cells) > 1 and (numbers := [n for n in map(_number, cells[1:]) if not math.isnan(n)]):
                found.setdefault(kind, {})[cells[0]] = min(numbers)
    return {"missing": found.get("fixed", {}), **found}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def main() -> int:
    """Run the comparison, print it, store it; 1 where answers differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", type=Path, help="network files, or folders of BIF files")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each side, network and kind")
    parser.add_argument("--threads", type=int, default=1, help="for both")
    parser.add_argument("--seed", type=int, default=1, help="of evidence values and of the variables observed")
    parser.add_argument("--against", type=Path, help="figures of other tools, Markdown or JSON")
    parser.add_argument("--output", type=Path, help="where the record goes (default: benchmarks/results)")
    options = parser.parse_args()
    against = read_others(options.against) if options.against else {}
    found: list[Comparison] = []
    for path, kind in itertools.product(network_files(options.networks), options.kinds):
        try:
            found.append(_in_a_child(path, kind, options))
        except Exception as error:
            # Such as a process that was killed. The others go on.
            print(f"{path.name}, {kind}: {type(error).__name__} {error}", flush=True)
            continue
        print(kind, table(kind, found[-1:], against.get(kind, {})).splitlines()[4], flush=True)
        _store(found, options)
    for kind in options.kinds:
        print("\n" + table(kind, [each for each in found if each.kind == kind], against.get(kind, {})))
    return 0 if all(each.agrees(p) for each in found for p in PRECISIONS) else 1


def _in_a_child(path: Path, kind: str, options: argparse.Namespace) -> Comparison:
    """Compare in a process of its own, which may run out of memory or die."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_compare, path, kind, options.seconds, options.threads, options.seed).result()


def _compare(path: Path, kind: str, seconds: float, threads: int, seed: int) -> Comparison:
    pyagrum.setNumberOfThreads(threads)
    limit_memory()
    return Contest(read_network(str(path)), path.name.split(".")[0], seconds, threads, seed).compare(kind)


def _store(found: Sequence[Comparison], options: argparse.Namespace) -> None:
    threads = "1-thread" if options.threads == 1 else f"{options.threads}-threads"
    output = options.output or RESULTS / f"peers-{threads}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    record = machine_record() | {
        "threads": options.threads,
        "seconds": options.seconds,
        "seed": options.seed,
        "comparisons": [asdict(each) for each in found],
    }
    output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
