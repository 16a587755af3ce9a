"""Benchmark networks against published and independently computed answers (skipped where they are not there)."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
from helpers.files import SHARED
from junctor.engine.engine import Engine
from junctor.evidence.batch import EvidenceBatch
from junctor.evidence.patterns import patterns_of
from junctor.evidence.read import open_evidence
from junctor.formats import read_network
from junctor.model.answers import OK
from junctor.model.network import Network
from junctor.model.query import Query

# The first takes gigabytes without evidence; of the others of its kind munin4 stands for all, of cpcs cpcs54.
LARGE = {"munin1", "munin", "munin2", "munin3", "cpcs360b", "cpcs422b"}
# Some seconds each: in single precision with --slow alone.
DEAR = {"munin4", "link", "diabetes", "barley"}
# For these, orders are searched for ten seconds or more.
SEARCHED = {*(f"Promedas_{number}.uai" for number in (43, 55, 59, 60, 61, 68, 69)), "Promedus_19.uai"}
# More than a second each, and others of their kind are enough.
LONG = {
    *(f"relational_{number}.uai" for number in (1, 2, 4, 5)),
    *(f"DBN_{number}.uai" for number in (12, 15)),
    *(f"ObjectDetection_{number}.uai" for number in (18, 22, 34, 46, 51, 61, 74)),
    *(f"Promedus_{number}.uai" for number in (13, 25, 37, 38)),
}
# Entry operations that an instance may take in the quick run.
QUICK = 1e9

ORACLES = sorted(path.name.removesuffix(".json.gz") for path in SHARED.glob("oracle/*.json.gz"))
UAI_2014 = sorted(
    path.name.removesuffix(".gz")
    for path in SHARED.glob("networks/uai2014/*/*.uai*")
    if ".uai." not in path.name.removesuffix(".gz")
)


def network_file(shared: Path, name: str) -> Path:
    return next(path for path in shared.glob(f"networks/*/{name}.*"))


def oracle_cases(shared: Path, name: str) -> list[dict]:
    with gzip.open(shared / "oracle" / f"{name}.json.gz") as file:
        record = json.load(file)
    prior = {"evidence_index": {}, "log_p_evidence": 0.0, **record["prior"]} if record.get("prior") else None
    return [case for case in (prior, *record["cases"]) if case and "posteriors" in case]


def batch_of(network: Network, cases: list[dict]) -> EvidenceBatch:
    columns = np.full((len(network.variables), len(cases)), -1, dtype=np.int32)
    for row, case in enumerate(cases):
        for name, state in case["evidence_index"].items():
            columns[network.index[name], row] = state
    return EvidenceBatch(len(cases), {v: column for v, column in enumerate(columns) if (column >= 0).any()})


@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize("name", ORACLES or ["none"])
def test_posteriors_equal_the_reference(
    shared: Path, name: str, precision: str, request: pytest.FixtureRequest
) -> None:
    if (name in LARGE or (name in DEAR and precision == "single")) and not request.config.getoption("--slow"):
        pytest.skip("run with --slow")
    network = read_network(network_file(shared, name))
    cases = oracle_cases(shared, name)
    assert len(cases) >= 5
    answers = Engine(network, Query(precision=precision)).answer(batch_of(network, cases))
    assert (answers.status == OK).all()
    tolerance = 1e-9 if precision == "double" else 1e-5
    for row, case in enumerate(cases):
        # In single precision a thousand tables and scales are rounded by 6e-8 each, and it depends on the plan whether
        # that adds up; double is limited by rows that miss 1.
        assert answers.log_value[row] == pytest.approx(
            case["log_p_evidence"], abs=1e-6 if precision == "double" else 1e-5
        )
        for variable, expected in case["posteriors"].items():
            found = answers.posteriors[network.index[variable]][row]
            np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", UAI_2014 or ["none"])
def test_uai_2014_instances_have_their_published_answers(
    shared: Path, name: str, request: pytest.FixtureRequest
) -> None:
    if name in SEARCHED | LONG and not request.config.getoption("--slow"):
        pytest.skip("takes ten seconds: run with --slow")
    path = next(path for path in shared.glob(f"networks/uai2014/*/{name}*") if path.name.removesuffix(".gz") == name)
    network = read_network(path)
    evidence = path.with_name(f"{name}.evid")
    partition = next(open_evidence(evidence, network).partitions(10), None)
    batch = partition.batch if partition else EvidenceBatch(1, {})
    engine = Engine(network, Query())
    # Whatever answers: to choose may take a search for a circuit.
    (group,) = patterns_of(batch).exact(np.arange(batch.rows))
    plan = engine.facts.plan(group.pattern)
    if plan.case_operations + plan.shared_operations > QUICK and not request.config.getoption("--slow"):
        pytest.skip(f"{plan.case_operations + plan.shared_operations:.1e} entry operations: run with --slow")
    answers = engine.answer(batch)
    assert answers.status.tolist() == [OK]
    check_marginals(path.with_name(f"{name}.MAR"), answers.posteriors)
    check_partition_function(path.with_name(f"{name}.PR"), float(answers.log_value[0]))
    check_explanation(path.with_name(f"{name}.MPE"), network, batch)


def numbers_of(path: Path, head: str) -> list[str]:
    words = path.read_text().split()
    assert words[0] == head
    return words[1:]


def check_marginals(path: Path, posteriors: dict[int, np.ndarray]) -> None:
    if not path.exists():
        return
    words = numbers_of(path, "MAR")
    if int(words[0]) != len(posteriors):
        words = words[1:]
    at = 1
    for variable in range(int(words[0])):
        size = int(words[at])
        expected = np.array(words[at + 1 : at + 1 + size], dtype=float)
        np.testing.assert_allclose(posteriors[variable][0], expected, rtol=0, atol=0.6e-6)
        at += 1 + size
    assert at == len(words)


def check_partition_function(path: Path, log_value: float) -> None:
    if path.exists():
        published = numbers_of(path, "PR")[-1]
        digits = len(published.partition(".")[2])
        assert log_value / np.log(10) == pytest.approx(float(published), abs=0.6 * 10.0**-digits)


def check_explanation(path: Path, network: Network, batch: EvidenceBatch) -> None:
    if not path.exists():
        return
    words = [int(word) for word in numbers_of(path, "MPE")]
    states = words[-len(network.variables) :]
    with np.errstate(divide="ignore"):
        optimum = sum(np.log(factor.table[tuple(states[v] for v in factor.scope)]) for factor in network.factors)
    found = Engine(network, Query(kind="mpe")).answer(batch)
    assert found.log_value[0] == pytest.approx(optimum, abs=1e-9 * max(1.0, abs(optimum)))


def test_networks_are_there_when_they_are_said_to_be() -> None:
    if os.environ.get("BENCHMARK_NETWORKS"):
        assert ORACLES
        assert UAI_2014
