"""Circuits beside Ganak, and on a GPU beside KLay and PyJuice: edges, seconds to compile, rows a second.

    uv run python benchmarks/circuits.py [NETWORK ...] [--seconds 3] [--json FILE]
    uv run python benchmarks/circuits.py --small                           in seconds, on networks made by code
    uv run python benchmarks/circuits.py --devices gpu --peers klay pyjuice -- mastermind_10_08_03

NETWORK is a file, or a name of one in the folder BENCHMARK_NETWORKS (default: those of `EVERY` and `FIXED` that are
there). Rows observe a fifth of the variables, other ones each, forward sampled, and get all posteriors, by an engine
that is told to use circuits. Of networks in `FIXED` all rows observe what the file NETWORK.uai.evid says, but for one
in a hundred of its cells, which come and go.

Ganak counts the formula of `circuit_cnf.py` for the first rows, and for the evidence of NETWORK.uai.evid; KLay and
PyJuice evaluate the very circuit (`circuit_peers.py`). Each runs with this interpreter where it is installed in it, and
else in an environment of its own, which uv makes. Seconds to compile, of one core and of Ganak are CPU seconds, so that
a busy machine says little less; of more cores and of GPUs, of the clock. Exits with 1 where answers differ. Tables
are normalised first: where rows sum to 1 in seven digits, P(e) depends on what is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from circuit_cnf import weighted_cnf
from circuit_networks import diagnosis, gates
from circuit_report import text, worst
from common import benchmark_networks, in_a_child, machine_record
from junctor.circuits.compile import first_indicators
from junctor.circuits.evaluate import CircuitProgram
from junctor.circuits.limits import MOST_DECISIONS
from junctor.engine.engine import Engine
from junctor.evidence.batch import UNOBSERVED
from junctor.formats import read_network, write_network
from junctor.generate import sample
from junctor.model.answers import OK, Answers
from junctor.model.errors import JunctorError
from junctor.model.network import Factor, Network
from junctor.model.options import ComputeOptions, DeviceChoice
from junctor.model.query import Precision, Query
from junctor.model.strategies import Strategy
from junctor.strategies.circuit import program_of
from junctor.strategies.facts import PlanStore
from table_cells import Evidence, evidence

EVERY = (
    *("BN_65", "BN_53", "blockmap_10_03", "mastermind_04_08_03", "mastermind_10_08_03"),
    *("grid-90-26-1", "grid-90-30-1", "pathfinder", "water", "alarm"),
)
FIXED = ("fs-13",)
# Of cells that come and go in rows of `FIXED`.
LOOSE = 0.01
# What uv installs for a peer.
PACKAGES = {
    "ganak": ("pyganak==2.9.0",),
    "klay": ("klaycircuits==0.1.2", "torch"),
    "pyjuice": ("pyjuice==2.6.3", "torch"),
}
MODULES = {"ganak": "pyganak", "klay": "klay", "pyjuice": "pyjuice"}
PRECISIONS: tuple[Precision, ...] = ("double", "single")
# What an engine is told to expect, rows of a measurement at most, and rows that are compared.
TO_COME, MOST_ROWS, COMPARED = 1_000_000, 10_000, 256
# Most bytes of the answers to a batch, and of the answers that a peer compares its own with.
MOST_BYTES = 1 << 30
TOLERANCE = 1e-9
# Seconds in which a search, or a peer, has to say something.
SILENCE = 900.0

Found = dict[str, Any]


def main() -> int:
    asked = _asked()
    # What an earlier run kept would be read, not searched for.
    os.environ["JUNCTOR_CACHE"] = "off"
    record: Found = machine_record() | {"networks": []}
    with tempfile.TemporaryDirectory() as folder:
        for path in _made(Path(folder)) if asked.small else _files(asked.networks):
            found: Found = {"network": path.name.split(".")[0]}
            try:
                for more in in_a_child(measured, path, asked, Path(folder), silence=SILENCE):
                    found |= more
            except (TimeoutError, RuntimeError) as error:
                found["error"] = str(error).strip().splitlines()[-1]
            record["networks"].append(found)
            print(json.dumps(found), file=sys.stderr, flush=True)
            if asked.json:
                asked.json.write_text(json.dumps(record, indent=1) + "\n")
    if not record["networks"]:
        print("no networks: name files, or a folder of them in BENCHMARK_NETWORKS", file=sys.stderr)
        return 2
    print(f"{record['device']}, {record['date']}\n\n{text(record['networks'])}")
    return int(any("error" in found or worst(found) > TOLERANCE for found in record["networks"]))


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("networks", nargs="*", help="network files, or names in BENCHMARK_NETWORKS")
    add("--small", action="store_true", help="networks made by code instead")
    add("--precision", nargs="+", choices=PRECISIONS, default=("double",))
    add("--threads", nargs="+", type=int, default=(1, 2))
    add("--devices", nargs="+", choices=("cpu", "gpu"), default=("cpu",))
    add("--peers", nargs="*", choices=tuple(PACKAGES), default=("ganak",))
    add("--peer-rows", type=int, default=3, help="that Ganak counts")
    add("--peer-seconds", type=float, default=120.0, help="most for a row of Ganak")
    add("--peer-device", default="cuda", help="of PyTorch, for KLay and PyJuice")
    add("--python", help="an interpreter that has the peers")
    add("--seconds", type=float, default=3.0, help="of a measurement")
    add("--json", type=Path, help="where the record goes")
    return parser.parse_args()


def _files(names: Sequence[str]) -> Iterator[Path]:
    """Yield network files: those named, or the ones of `EVERY` and `FIXED` that are there."""
    there = benchmark_networks()
    for name in names or (*EVERY, *FIXED):
        if Path(name).is_file():
            yield Path(name)
        elif name in there:
            yield there[name]
        else:
            print(f"{name}: no file, and not in BENCHMARK_NETWORKS", file=sys.stderr)


def _made(folder: Path) -> Iterator[Path]:
    """Yield files of networks made by code."""
    for name, network in (("gates", gates(8)), ("diagnosis", diagnosis(12, 4, 8))):
        path = folder / f"{name}.parquet"
        write_network(network, path)
        yield path


def measured(path: Path, asked: argparse.Namespace, folder: Path) -> Iterator[Found]:
    """Yield what is found of a network, piece by piece; first of all nothing, once code is loaded."""
    loading = gates(4)
    for precision in asked.precision:
        list(_rates(loading, evidence(loading, "gates", "varied", sample(loading, 64)), precision, asked, PlanStore()))
    yield {}
    name, network = path.name.split(".")[0], normalised(read_network(path))
    rows, store = rows_of(network, path, name in FIXED)
    start = time.process_time()
    engine = _engine(network, store=store)
    batch = rows.batch(0, rows.count)
    program = program_of(np.arange(rows.count), batch, engine.facts, MOST_DECISIONS)
    seconds = time.process_time() - start
    if isinstance(program, str):
        yield {"compile": seconds, "refused": program}
        return
    (program, *_) = program.programs
    circuit = program.circuit
    yield {"edges": circuit.edges, "decisions": circuit.decisions, "order": circuit.order, "compile": seconds}
    rates: dict[str, float] = {}
    for precision in asked.precision:
        for found in _rates(network, rows, precision, asked, store):
            rates |= found
            yield {"rates": rates}
    answers = engine.answer(rows.batch(0, min(rows.count, COMPARED)))
    peers = Peers(network, asked, folder, name)
    if "ganak" in asked.peers:
        yield {"ganak": peers.count(rows.rows(asked.peer_rows), answers.log_value)}
        if (file := evidence_file(path)) is not None:
            observed = read_evid(file)
            cells = {v: np.array([state], dtype=np.int32) for v, state in observed.items()}
            own = Evidence(np.array(list(cells)), np.array(list(cells.values())).reshape(-1, 1)).batch(0, 1)
            yield {"ganak, own evidence": peers.count([observed], engine.answer(own).log_value)}
    for peer in asked.peers:
        if peer != "ganak":
            yield {peer: peers.evaluate(peer, program, rows, answers)}


def normalised(network: Network) -> Network:
    """Return a Bayesian network whose tables sum to one."""
    tables = ((factor.scope, factor.table / factor.table.sum(axis=-1, keepdims=True)) for factor in network.factors)
    return replace(network, factors=tuple(Factor(scope, table) for scope, table in tables))


def _engine(
    network: Network,
    precision: Precision = "double",
    threads: int = 1,
    device: DeviceChoice = "cpu",
    store: PlanStore | None = None,
) -> Engine:
    options = ComputeOptions(threads=threads, device=device, strategy=Strategy.CIRCUIT)
    return Engine(network, Query(precision=precision), options, expected_rows=TO_COME, store=store)


def rows_of(network: Network, path: Path, is_fixed: bool) -> tuple[Evidence, PlanStore]:
    """Return rows, and what is known of circuits.

    is_fixed: whether rows observe what the evidence file of the network says.
    """
    count = int(min(MOST_ROWS, MOST_BYTES / (8 * sum(network.cardinalities))))
    file = evidence_file(path) if is_fixed else None
    if file is None:
        return _different(evidence(network, path.name.split(".")[0], "varied", sample(network, count))), PlanStore()
    rng, observed = np.random.default_rng(1), read_evid(file)
    states = np.repeat(np.array(list(observed.values()), dtype=np.int32)[:, None], count, axis=1)
    loose = rng.random(len(states)) < LOOSE
    states[loose] = np.where(rng.random((int(loose.sum()), count)) < 0.5, UNOBSERVED, states[loose])
    # Of a circuit for whatever rows observe nobody is to ask.
    every = (), tuple(range(len(network.public))), ()
    rows = _different(Evidence(np.array(list(observed)), states))
    return rows, PlanStore(circuits={every: (MOST_DECISIONS, "not asked for")})


def _different(rows: Evidence) -> Evidence:
    """Return rows without those that are equal to an earlier one, which engines answer once."""
    _, first = np.unique(rows.states, axis=1, return_index=True)
    return rows.only(np.sort(first))


def evidence_file(path: Path) -> Path | None:
    """Return the file NAME.uai.evid beside a network, if there is one."""
    file = path.with_name(f"{path.name.split('.')[0]}.uai.evid")
    return file if file.exists() else None


def read_evid(path: Path) -> dict[int, int]:
    """Return variable -> state of a file of one case."""
    numbers = list(map(int, path.read_text().split()))
    return dict(zip(numbers[1::2], numbers[2::2], strict=True))


def _rates(
    network: Network, rows: Evidence, precision: Precision, asked: argparse.Namespace, store: PlanStore
) -> Iterator[dict[str, float]]:
    """Yield rows a second, by precision and cores or device, as they are found."""
    found: dict[str, float] = {}
    known = PlanStore(circuits=store.circuits)
    for device in asked.devices:
        for threads in asked.threads if device == "cpu" else asked.threads[-1:]:
            key = f"{precision}, {threads}" if device == "cpu" else f"{precision}, gpu"
            # One core by what it has worked: others may want it.
            clock = time.process_time if device == "cpu" and threads == 1 else time.perf_counter
            try:
                engine = _engine(network, precision, threads, device, known)
                found[key] = _rate(engine, rows, asked.seconds, clock)
            except JunctorError as error:
                print(f"{network.name}, {key}: {error}", file=sys.stderr)
            yield dict(found)


def _rate(engine: Engine, rows: Evidence, seconds: float, clock: Callable[[], float]) -> float:
    """Return the rows a second of the best of three batches that take so many seconds together, first ones apart."""
    count = min(rows.count, 64)
    # The first one makes what stays.
    for _ in range(2):
        took = _seconds(engine, rows, count, clock)
    count = int(max(count, min(rows.count, count * seconds / 4 / took)))
    return count / min(_seconds(engine, rows, count, clock) for _ in range(4))


def _seconds(engine: Engine, rows: Evidence, count: int, clock: Callable[[], float]) -> float:
    batch = rows.batch(0, count)
    start = clock()
    answers = engine.answer(batch)
    took = clock() - start
    assert (answers.status == OK).all()
    return took


class Peers:
    """Peers on one network."""

    def __init__(self, network: Network, asked: argparse.Namespace, folder: Path, name: str) -> None:
        self._network = network
        self._asked = asked
        self._stem = folder / name

    def count(self, rows: Sequence[Mapping[int, int]], logs: np.ndarray) -> Found:
        """Return the seconds of Ganak for P(e) of each row, and differences of log P(e)."""
        found: Found = {"seconds": [], "log_difference": []}
        for row, log in zip(rows, logs, strict=False):
            file = self._stem.with_suffix(".cnf")
            file.write_text(weighted_cnf(self._network, row))
            said = self._run("ganak", file, self._asked.peer_seconds)
            if "error" in said:
                return found | said
            found["seconds"].append(said["seconds"])
            found["log_difference"].append(abs(said["log"] - log) / max(1.0, abs(log)))
        return found

    def evaluate(self, peer: str, program: CircuitProgram, rows: Evidence, answers: Answers) -> Found:
        """Return the rows a second of a peer with the same circuit, and differences of answers."""
        file = self._stem.with_suffix(".npz")
        np.savez(file, **circuit_of(self._network, program, rows, answers))
        options = "--device", self._asked.peer_device, "--seconds", str(self._asked.seconds)
        return self._run(peer, file, SILENCE, *options)

    def _run(self, peer: str, file: Path, seconds: float, *options: str) -> Found:
        command = [*self._interpreter(peer), str(Path(__file__).with_name("circuit_peers.py")), peer, str(file)]
        try:
            done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            return {"error": f"over {seconds:.0f} s"}
        except FileNotFoundError as error:
            return {"error": str(error)}
        if done.returncode:
            return {"error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
        said: Found = json.loads(done.stdout.strip().splitlines()[-1])
        return said

    def _interpreter(self, peer: str) -> list[str]:
        """Return the command of a Python that has a peer."""
        if self._asked.python or find_spec(MODULES[peer]):
            return [self._asked.python or sys.executable]
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        packages = [word for package in ("numpy", *PACKAGES[peer]) for word in ("--with", package)]
        return ["uv", "run", "-q", "--no-project", "--python", version, *packages, "python"]


def circuit_of(network: Network, program: CircuitProgram, rows: Evidence, answers: Answers) -> dict[str, np.ndarray]:
    """Return what `circuit_peers.py` reads: a circuit, rows and what answers to them are."""
    flat, starts = program.circuit.flat, first_indicators(network)
    variables = np.searchsorted(starts, flat.indicators, side="right") - 1
    states = flat.indicators - starts[variables]
    compared = len(answers.status)
    observed = np.full((compared, len(network.variables)), UNOBSERVED, dtype=np.int32)
    observed[:, rows.columns] = rows.states[:, :compared].T
    posteriors = np.zeros((compared, len(flat.indicators)))
    for leaf, (v, state) in enumerate(zip(variables.tolist(), states.tolist(), strict=True)):
        if v >= 0:
            posteriors[:, leaf] = answers.posteriors[v][:, state]
    logs = answers.log_value - program.circuit.log
    return flat._asdict() | {
        "variables": variables,
        "states": states,
        "observed": observed,
        "logs": logs,
        "posteriors": posteriors,
    }


if __name__ == "__main__":
    sys.exit(main())
