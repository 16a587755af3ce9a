"""The benchmark of circuits: formulas and circuits that peers get mean what the network does, and the table.

uv run --with pyganak==2.9.0 pytest tests/benchmarks/test_circuit_peers.py
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from circuit_cnf import weighted_cnf
from circuit_networks import diagnosis, gates
from circuit_peers import Circuit, ganak
from circuit_report import text, worst
from common import benchmark_networks
from helpers.oracle import enumerate_posteriors
from junctor.formats import write_network
from junctor.generate import random_network, sample
from junctor.model.network import Factor, Network
from table_cells import evidence


@pytest.fixture
def circuits() -> ModuleType:
    return importlib.import_module("circuits")


def weighted_count(formula: str) -> float:
    """Return the sum of the weights of all models, one assignment after the other."""
    lines = [line.split() for line in formula.splitlines()]
    (count,) = [int(words[2]) for words in lines if words[:2] == ["p", "cnf"]]
    weights = {int(words[3]): float(words[4]) for words in lines if words[:3] == ["c", "p", "weight"]}
    clauses = [{int(word) for word in words[:-1]} for words in lines if words[0] not in ("c", "p")]
    total = 0.0
    for signs in itertools.product((-1, 1), repeat=count):
        model = {sign * number for number, sign in enumerate(signs, 1)}
        if all(clause & model for clause in clauses):
            total += math.prod(weights.get(literal, 1.0) for literal in model)
    return total


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("observed", [{}, {3: 1}, {0: 0, 2: 1}])
def test_weights_of_all_models_are_the_probability(seed: int, observed: Mapping[int, int]) -> None:
    network = random_network(4, (1, 3) if seed % 2 else 2, 1, 2, seed=seed, zeros=0.4)
    observed = {v: min(state, network.cardinalities[v] - 1) for v, state in observed.items()}
    log, _ = enumerate_posteriors(network, observed, {})
    assert weighted_count(weighted_cnf(network, observed)) == pytest.approx(math.exp(log), rel=1e-12)


def asked(**other: Any) -> argparse.Namespace:
    known = {"precision": ("double",), "threads": (1,), "devices": ("cpu",), "peers": (), "seconds": 0.01}
    return argparse.Namespace(**known | {"python": None, "peer_rows": 2, "peer_device": "cpu"} | other)


def measured(module: ModuleType, network: Network, folder: Path, **other: Any) -> dict[str, Any]:
    path = folder / "made.parquet"
    write_network(network, path)
    found: dict[str, Any] = {}
    for more in module.measured(path, asked(**other), folder):
        found |= more
    return found


def test_a_network_is_measured_and_peers_get_its_circuit(
    circuits: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: list[Path] = []
    monkeypatch.setattr(circuits.Peers, "_run", lambda self, peer, file, *of: files.append(file) or {"error": peer})
    found = measured(circuits, diagnosis(8, 3, 6), tmp_path, peers=("klay",))
    assert found["edges"] > found["decisions"] > 0
    assert found["rates"]["double, 1"] > 0
    assert found["klay"] == {"error": "klay"}
    circuit = Circuit(files[0])
    values = list(circuit.indicators().T)
    for is_sum, terms in circuit.nodes():
        parts = [weight * values[child] for child, weight in terms.items()]
        values.append(np.sum(parts, axis=0) if is_sum else np.prod(parts, axis=0))
    assert len(circuit.logs) > 10
    assert circuit.compared(np.log(values[-1]), circuit.posteriors)["log_difference"] < 1e-12


def test_of_fixed_evidence_a_few_cells_come_and_go(
    circuits: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = gates(20)
    states = sample(network, 1)[0].tolist()
    said = [number for v in range(0, 400, 2) for number in (v, states[v])]
    (tmp_path / "made.uai.evid").write_text(f"200 {' '.join(map(str, said))}\n")
    monkeypatch.setattr(circuits, "FIXED", ("made",))
    rows, _ = circuits.rows_of(network, tmp_path / "made.parquet", is_fixed=True)
    assert rows.columns.tolist() == list(range(0, 400, 2))
    loose = (rows.states != rows.states[:, :1]).any(axis=1)
    assert 0 < loose.sum() < 10
    assert len(np.unique(rows.states, axis=1).T) == rows.count > 1
    found = measured(circuits, network, tmp_path)
    assert found["rates"]["double, 1"] > 0


def test_the_table_tells_ratios_and_what_is_missing(circuits: ModuleType) -> None:
    rates = {"double, 1": 2000.0, "double, 2": 3000.0}
    one = {"network": "a", "edges": 1234, "decisions": 5, "compile": 0.5, "rates": rates}
    one["ganak"] = {"seconds": [1.0, 2.0], "log_difference": [1e-15, 3e-15]}
    one["klay"] = {"rows_a_second": 150.0, "log_difference": 0.0, "posterior_difference": 2e-8}
    other = {"network": "b", "compile": 9.0, "refused": "no circuit"}
    lines = text([one, other]).splitlines()
    assert lines[2] == "| a | 1,234 | 5 | 0.500 | 2,000 | 3,000 | 1.50 | 3,000 | 150 | 20.0 | 2e-08 |"
    assert lines[3] == "| b | – | – | 9.00 | – | – | – | – | – | – | no circuit |"
    assert worst(one) > circuits.TOLERANCE > worst(other)


def test_ganak_counts_the_same(tmp_path: Path) -> None:
    pytest.importorskip("pyganak", reason="Ganak comes with an environment of its own")
    network = diagnosis(6, 2, 4, states=3)
    (row,) = evidence(network, "diagnosis", "varied", sample(network, 1)).rows(1)
    (tmp_path / "one.cnf").write_text(weighted_cnf(network, row))
    log, _ = enumerate_posteriors(network, row, {})
    assert ganak(tmp_path / "one.cnf")["log"] == pytest.approx(log, rel=1e-12)


def test_networks_are_found_by_name_and_evidence_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.uai.evid", "a.uai.gz", "b.uai", "b.uai.evid", "c.bif", "c.uai", "d.rows.csv.gz"):
        (tmp_path / name).touch()
    monkeypatch.setenv("BENCHMARK_NETWORKS", str(tmp_path))
    assert {name: path.name for name, path in benchmark_networks().items()} == {
        "a": "a.uai.gz",
        "b": "b.uai",
        "c": "c.bif",
    }


def test_tables_of_few_digits_are_normalised(circuits: ModuleType) -> None:
    network = gates(2)
    first = Factor((0,), np.array([0.3, 0.6999]))
    (table, *others) = circuits.normalised(replace(network, factors=(first, *network.factors[1:]))).factors
    np.testing.assert_allclose(table.table, [0.3 / 0.9999, 0.6999 / 0.9999], rtol=1e-15)
    assert [factor.scope for factor in others] == [factor.scope for factor in network.factors[1:]]
