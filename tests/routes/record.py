"""The record: for each batch of a fixed set, the routes of its rows.

Batches are small; networks are such that each way to answer rows occurs. Prices are those of one shipped data set, so
that the record is the same on all machines. Main functions: `routes`, `differences`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from junctor.cost.model import CostModels, local_cost_models
from junctor.engine.engine import Engine
from junctor.engine.forecast import forecast
from junctor.evidence.batch import UNOBSERVED, EvidenceBatch
from junctor.formats import read_network
from junctor.generate import chain, dynamic, grid, random_network, sample
from junctor.model.errors import JunctorError
from junctor.model.network import Network
from junctor.model.options import ComputeOptions
from junctor.model.query import Query
from junctor.strategies.strategy import Route

RECORD = Path(__file__).parent / "record.json"
DATA = Path(__file__).parents[2] / "data"
MIB = 1 << 20
# Rows of a batch, rows that are to come, device.
FEW = ((1, 1, "cpu"), (40, 40, "cpu"), (40, 10**6, "cpu"), (40, 10**6, "gpu"))
ROWS = (*FEW, (3000, 3000, "cpu"), (3000, 10**7, "cpu"), (3000, 3000, "gpu"))
# Shares of the variables that are observed, and patterns: None for one a row.
EVIDENCE = ((0.0, 1), (0.3, 3), (0.6, None), (0.3, 1))
QUERIES = {
    "double": Query(),
    "single": Query(precision="single"),
    "log": Query(precision="log"),
    "mpe": Query(kind="mpe"),
    "scores": Query(answers="scores"),
    "target": Query(targets=("?",)),
}
Choices = dict[str, list[str]]


def networks() -> dict[str, tuple[Network, tuple[int, ...], tuple[tuple[int, int, str], ...]]]:
    """Return networks by name, each with sizes of memory in MiB, and rows that it is asked with."""
    usual = (1024, 24)
    return {
        "asia": (read_network(DATA / "asia.bif"), usual, ROWS),
        "random-40": (random_network(40, seed=1), usual, ROWS),
        "many-states": (random_network(40, states=(8, 12), parents=3, seed=1), (1024,), FEW),
        "zeros": (random_network(30, zeros=0.4, seed=2), usual, ROWS),
        "large-tables": (random_network(12, states=(16, 20), parents=3, window=4, seed=1), (1024,), FEW),
        "chain": (chain(2000, seed=1), (1024,), FEW),
        "dynamic": (dynamic(30, 4, seed=1), (1024,), ROWS),
        # Chunks: what the plan needs exceeds the memory.
        "grid": (grid(14, 14, seed=1), (1024, 4), FEW),
    }


def routes(only: str = "*") -> Choices:
    """Return the routes of each batch, named by what is asked; only: pattern of names of networks."""
    return dict(_all(only))


def _all(only: str) -> Iterator[tuple[str, list[str]]]:
    for name, (network, memories, counts) in networks().items():
        if not fnmatch(name, only):
            continue
        for (rows, to_come, device), ((share, patterns), kind, memory) in itertools.product(counts, asked(memories)):
            query = QUERIES[kind]
            if kind == "target":
                query = Query(targets=(network.variables[-1].name,))
            what = f"{rows} of {to_come} rows, {share:g} observed in {patterns or 'as many'} patterns"
            options = ComputeOptions(memory * MIB, threads=2, device=device, device_memory=1 << 32, spill_bytes=1 << 30)
            batch = evidence(network, rows, share, patterns)
            yield f"{name}, {what}, {kind}, {memory} MiB, {device}", chosen(network, batch, query, options, to_come)


def asked(memories: tuple[int, ...]) -> Iterator[tuple[tuple[float, int | None], str, int]]:
    """Yield evidence, query and memory: each with the first of the others, and memory with each evidence."""
    for some in EVIDENCE:
        yield from ((some, "double", memory) for memory in memories)
    yield from ((EVIDENCE[1], kind, memories[0]) for kind in list(QUERIES)[1:])
    yield EVIDENCE[2], "mpe", memories[0]


def evidence(network: Network, rows: int, share: float, patterns: int | None) -> EvidenceBatch:
    """Return rows of evidence, every fourth of which may be impossible; share: of the variables that are observed."""
    rng = np.random.default_rng(rows)
    observed = rng.random((patterns or rows, len(network.variables))) < share
    states = rng.integers(0, network.cardinalities, (rows, len(network.variables)))
    if network.kind == "bayes":
        states = np.where(np.arange(rows)[:, None] % 4 == 3, states, sample(network, rows, seed=1))
    states = np.where(observed[np.arange(rows) % len(observed)], states, UNOBSERVED)
    columns = {v: np.ascontiguousarray(states[:, v], dtype=np.int32) for v in np.flatnonzero(observed.any(axis=0))}
    return EvidenceBatch(rows, {int(v): column for v, column in columns.items()})


def chosen(network: Network, batch: EvidenceBatch, query: Query, options: ComputeOptions, to_come: int) -> list[str]:
    """Return a line for each route, or one for a refusal."""
    engine = Engine(network, query, options, costs, expected_rows=to_come)
    try:
        return [line_of(route) for route in forecast(engine, batch)]
    except JunctorError as error:
        return [f"{type(error).__name__}: {error}"[:80]]


@cache
def costs() -> CostModels:
    """Return the cost models of the first CPU and the first GPU of the package."""
    devices = local_cost_models(own=False).devices
    return CostModels(tuple(next(each for each in devices if each.device.is_gpu is gpu) for gpu in (False, True)))


def line_of(route: Route) -> str:
    """Return who answers which rows, with what, and what is forecast."""
    plan = "-" if route.plan is None else hashlib.sha256(str(route.plan.digest).encode()).hexdigest()[:8]
    rows = hashlib.sha256(route.group.rows.tobytes()).hexdigest()[:8]
    refused = "" if route.refused is None else f" refused: {route.refused}"[:60]
    return (
        f"{route.strategy.value}: {len(route.group.rows)} rows {rows}, plan {plan} for {route.uses}, "
        f"{route.block_cases} cases a block, {route.threads} threads, {route.memory.needed} to "
        f"{route.memory.projected} bytes, {route.operations} operations, {route.seconds:.4g} s{refused}"
    )


def read() -> dict[str, str]:
    """Return the record of the project: the digest of the routes of each batch."""
    found: dict[str, str] = json.loads(RECORD.read_text())
    return found


def write(found: Choices, file: Path) -> None:
    """Write digests to the record of the project, and whole lines to any other file."""
    kept: Mapping[str, Any] = {case: digest(lines) for case, lines in found.items()} if file == RECORD else found
    file.write_text(json.dumps(kept, indent=1) + "\n")


def digest(lines: list[str]) -> str:
    """Return names of ways, and the beginning of the digest of all else."""
    ways = "+".join(dict.fromkeys(line.split(":")[0].replace(" ", "-") for line in lines))
    return f"{ways} {hashlib.sha256(json.dumps(lines).encode()).hexdigest()[:10]}"


def differences(found: Choices, file: Path = RECORD, only: str = "*") -> list[str]:
    """Return what differs from a record, for each batch; with whole lines where the record has them.

    only: pattern of names of networks.
    """
    recorded: dict[str, Any] = json.loads(file.read_text())
    old = {case: said for case, said in recorded.items() if fnmatch(case.split(",")[0], only)}
    told = []
    for case in {**old, **found}:
        before, after = old.get(case), found.get(case)
        if isinstance(before, str) and after is not None:
            after = digest(after)
        if before != after:
            told.append(f"{case}\n  - {before}\n  + {after}")
    return told
