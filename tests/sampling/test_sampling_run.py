"""Sampling from the command line and from Python: columns, statuses, interruptions, exact answers where they fit."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import junctor
import numpy as np
import pyarrow as pa
import pytest
from helpers.command_line import junctor_cli
from helpers.files import ASIA
from helpers.options import on_cpu
from helpers.sampling_cases import network_of
from junctor.engine.engine import Engine
from junctor.engine.forecast import survey, warn_of_samples
from junctor.evidence.batch import EvidenceBatch
from junctor.evidence.patterns import PatternGroup
from junctor.formats import write_network
from junctor.generate import grid, layered, sample
from junctor.model.answers import SampledAnswers
from junctor.model.errors import EvidenceError, ModelError, RunError
from junctor.model.network import Network, Variable
from junctor.model.options import ComputeOptions
from junctor.model.query import Method, Query, Sampling
from junctor.model.strategies import Rejected, Strategy
from junctor.runs.results import tables_for
from junctor.runs.run import run
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from junctor.strategies import exact_budget
from junctor.strategies.exact_budget import ExactBudget
from junctor.strategies.facts import PlanStore
from pyarrow import parquet

METHODS: tuple[Method, ...] = ("auto", "sampling", "exact")
ROWS = "case_id,smoke,xray\na,yes,no\nb,,yes\nc,no,\nd,maybe,no\n"


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    path = tmp_path / "evidence.csv"
    path.write_text(ROWS)
    return path


def job(evidence: Path, output: Path, method: Any = "sampling", **how: Any) -> Job:
    sampling = Sampling(**{"samples": 2_000, "seed": 5, **how})
    query = Query(targets=("lung", "smoke"), method=method, sampling=sampling)
    return Job(ASIA, str(evidence), str(output), query, case_id="case_id", partition_rows=2)


def table_of(output: Path) -> pa.Table:
    return pa.concat_tables([parquet.read_table(part) for part in sorted((output / "posteriors").glob("*.parquet"))])


def test_a_run_has_errors_beside_its_posteriors(evidence: Path, tmp_path: Path) -> None:
    manifest = run(job(evidence, tmp_path / "out"))
    assert manifest.statuses == {"ok": 3, "impossible": 0, "invalid": 1, "missed": 0, "unreliable": 0}
    assert (manifest.spec.method, manifest.spec.samples, manifest.spec.seed) == ("sampling", 2_000, 5)
    table = table_of(tmp_path / "out")
    assert table.column_names == [
        *("case_id", "lung", "lung_error", "smoke", "smoke_error", "log_evidence", "log_evidence_error"),
        *("effective_samples", "samples", "method", "status", "reason"),
    ]
    exact = junctor.posteriors(ASIA, {"smoke": ["yes", None], "xray": ["no", "yes"]}, ["lung"])
    for row in range(2):
        off = np.array(table["lung"][row].as_py()) - exact["lung"][row].as_py()
        assert (np.abs(off) < 6 * np.array(table["lung_error"][row].as_py())).all()
        assert table["log_evidence"][row].as_py() == pytest.approx(exact["log_evidence"][row].as_py(), abs=0.1)
    assert table["smoke_error"][0].as_py() == [0.0, 0.0]
    assert table["samples"].to_pylist() == [2_000, 2_000, 2_000, None]
    assert table["method"].to_pylist() == ["sampling"] * 3 + [None]
    assert table["lung_error"][3].as_py() is None


@pytest.mark.parametrize("over_workers", [False, True])
def test_an_interrupted_run_goes_on_and_is_the_same_byte_for_byte(
    evidence: Path, tmp_path: Path, over_workers: bool, request: pytest.FixtureRequest
) -> None:
    # Workers of the fixture have no GPU.
    here = Resources(compute=ComputeOptions(threads=1, device="cpu"))
    run(job(evidence, tmp_path / "one"), here)
    scheduler = request.getfixturevalue("scheduler") if over_workers else None
    compute = ComputeOptions(threads=3 if over_workers else 1, device="cpu")
    run(job(evidence, tmp_path / "two"), Resources(workers=0, scheduler=scheduler, compute=compute))
    parts = [sorted((tmp_path / name / "posteriors").glob("*.parquet")) for name in ("one", "two")]
    for mine, its in zip(*parts, strict=True):
        assert mine.read_bytes() == its.read_bytes()
    parts[0][1].unlink()
    assert run(job(evidence, tmp_path / "one"), here).reused_parts == 1
    assert parts[0][1].read_bytes() == parts[1][1].read_bytes()


@pytest.mark.parametrize("changed", [{"seed": 6}, {"samples": 3_000}, {"sampler": "lw"}, {"stages": "last"}])
def test_another_way_to_sample_is_another_run(evidence: Path, tmp_path: Path, changed: dict[str, Any]) -> None:
    run(job(evidence, tmp_path / "out"))
    with pytest.raises(RunError, match=f"{next(iter(changed))} was"):
        run(job(evidence, tmp_path / "out", **changed))


def test_runs_from_before_sampling_go_on(evidence: Path, tmp_path: Path) -> None:
    run(job(evidence, tmp_path / "out", method="exact"))
    spec = tmp_path / "out" / "run.json"
    record = json.loads(spec.read_text())
    for name in ("method", "sampler", "samples", "error", "seed", "stages"):
        del record[name]
    spec.write_text(json.dumps(record))
    assert run(job(evidence, tmp_path / "out", method="exact")).reused_parts == 2


def test_command_line(evidence: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    sampled = ["--method", "sampling", "--sampler", "lw", "--error", "0.02", "--case-id", "case_id", "-q", "--csv"]
    result = junctor_cli("run", ASIA, str(evidence), "-o", out, *sampled, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["spec"]["error"] == 0.02
    assert "lung_error=yes" in (tmp_path / "out" / "posteriors.csv").read_text().splitlines()[0]
    both = junctor_cli("run", ASIA, str(evidence), "-o", out, *sampled, "--samples", "1000")
    assert both.exit_code == 3
    for given in (["--samples", "1000"], ["--seed", "7"], ["--sampler", "lw"], ["--stages", "last"]):
        idle = junctor_cli("run", ASIA, str(evidence), "-o", out, *given)
        assert idle.exit_code == 2
    assert "exact answers take no samples" in " ".join(idle.output.replace("│", " ").split())


def test_markov_networks_and_explanations_are_refused(evidence: Path, tmp_path: Path) -> None:
    write_network(grid(2, 2, states=2, seed=1), str(tmp_path / "grid.uai"))
    (tmp_path / "cells.csv").write_text("v0\n0\n")
    asked = Query(method="sampling", sampling=Sampling("lw"))
    what = Job(str(tmp_path / "grid.uai"), str(tmp_path / "cells.csv"), str(tmp_path / "out"), asked)
    with pytest.raises(ModelError, match=r"Markov network: lw draws .*; use --sampler wmb"):
        run(what)
    with pytest.raises(EvidenceError, match="explanations"):
        Query("mpe", method="auto")


def test_a_run_of_a_markov_network_has_intervals(tmp_path: Path) -> None:
    write_network(grid(3, 3, states=2, seed=1), str(tmp_path / "grid.uai"))
    (tmp_path / "cells.csv").write_text("0,4\n1,\n,0\n1,\n")
    words = ("--method", "sampling", "--samples", "2000", "--table-entries", "40", "--targets", "2", "-q", "--csv")
    given = str(tmp_path / "grid.uai"), str(tmp_path / "cells.csv"), "-o", str(tmp_path / "out")
    result = junctor_cli("run", *given, *words, "--json")
    assert result.exit_code == 0, result.output
    spec = json.loads(result.stdout)["spec"]
    assert (spec["sampler"], spec["confidence"], spec["table_entries"]) == ("wmb", 0.95, 40)
    table = table_of(tmp_path / "out")
    assert table.column_names[1:5] == ["2", "2_error", "2_lower", "2_upper"]
    assert table["2"][0] == table["2"][2] != table["2"][1]
    exact = junctor.posteriors(str(tmp_path / "grid.uai"), {"0": ["1", None, "1"], "4": [None, "0", None]}, ["2"])
    for row in range(3):
        low, high, truth = (
            np.array(each[name][row].as_py())
            for each, name in zip((table, table, exact), ("2_lower", "2_upper", "2"), strict=True)
        )
        assert ((low < truth) & (truth < high)).all()
        ends = [table[f"log_evidence_{which}"][row].as_py() for which in ("lower", "upper", "bound")]
        assert ends[0] < exact["log_evidence"][row].as_py() < ends[1] <= ends[2]
    assert "2_lower=1" in (tmp_path / "out" / "posteriors.csv").read_text().splitlines()[0]
    # The options are part of the run: with others it is another one.
    other = junctor_cli("run", *given, *words, "--confidence", "0.9")
    assert other.exit_code == 6
    assert "confidence was" in other.output
    refused = junctor_cli("run", *given, *words, "--sampler", "epis-bn")
    assert "'wmb'" in refused.output


def test_markov_networks_are_sampled_beyond_their_budget_and_exact_rows_have_intervals_of_one_number() -> None:
    network, how = grid(4, 4, states=2, seed=1), Sampling(samples=500, table_entries=200)
    query = Query(targets=("x_3_3",), method="auto", sampling=how)
    batch = EvidenceBatch(2, {0: np.array([1, -1], np.int32)})
    tables = {}
    for seconds in (1e-9, 1e4):
        store = PlanStore(budget=ExactBudget(1 << 28, 0, seconds))
        answers = Engine(network, query, on_cpu(1 << 28), store=store).answer(batch)
        tables[seconds] = tables_for(network, query).table(answers, pa.array(["a", "b"]))
    sampled, exact = tables.values()
    assert exact["method"].to_pylist() == ["exact"] * 2
    assert exact["x_3_3_lower"] == exact["x_3_3"] == exact["x_3_3_upper"]
    for end in ("lower", "upper", "bound"):
        assert exact[f"log_evidence_{end}"] == exact["log_evidence"]
    assert sampled["method"].to_pylist() == ["sampling"] * 2
    lower, truth, upper = (
        np.array(table[name].to_pylist())
        for table, name in ((sampled, "x_3_3_lower"), (exact, "x_3_3"), (sampled, "x_3_3_upper"))
    )
    assert ((lower < truth) & (truth < upper)).all()


def test_python_gives_what_a_run_gives(evidence: Path, tmp_path: Path) -> None:
    run(job(evidence, tmp_path / "out"))
    cells = {"smoke": ["yes", None, "no", "maybe"], "xray": ["no", "yes", None, "no"]}
    table = junctor.posteriors(ASIA, cells, ["lung", "smoke"], method="sampling", samples=2_000, seed=5)
    assert table.drop_columns("case_id").equals(table_of(tmp_path / "out").drop_columns("case_id"))


def test_names_that_are_taken_stay() -> None:
    network = network_of([((0,), [0.5, 0.5]), ((0, 1), [[0.5, 0.5], [0.1, 0.9]])], [2, 2])
    named = Network("n", (Variable("a", ("x", "y")), Variable("a_error", ("x", "y"))), network.factors)
    table = junctor.posteriors(named, [{}], method="sampling", samples=1_000)
    assert table.column_names[1:5] == ["a", "a_error_", "a_error", "a_error_error"]


def lattice(side: int) -> Network:
    """A directed grid, whose exact answers take a table of 2^side."""
    tables, rng = [], np.random.default_rng(3)
    for v in range(side * side):
        scope = [p for p in (v - side, v - 1 if v % side else -1) if p >= 0]
        values = rng.dirichlet([1.0, 1.0], size=(2,) * len(scope))
        tables.append(((*scope, v), values))
    return network_of(tables, [2] * (side * side))


def sampled_groups(engine: Engine, batch: EvidenceBatch | None = None) -> list[PatternGroup]:
    choice = engine.choice(batch or EvidenceBatch(1))
    return [group for group in choice.groups if group.strategy is Strategy.SAMPLES]


def test_of_many_reasons_a_few_are_told(caplog: pytest.LogCaptureFixture) -> None:
    # Patterns have plans, and sizes, of their own.
    engine = Engine(lattice(2), Query(method="sampling"), on_cpu(2 << 20))
    (route,) = engine.routes(EvidenceBatch(1))
    told = [(Rejected(Strategy.ENTRIES, f"reason {row % 6}"),) for row in range(9)]
    found = [replace(route, group=replace(route.group, rejected=each)) for each in told]
    with caplog.at_level(logging.WARNING, logger="junctor"):
        warn_of_samples(found, 9)
        warn_of_samples(found[:3], 3)
    assert caplog.messages == [
        *(f"2 of 9 rows are sampled: reason {n}" for n in range(3)),
        "9 of 9 rows are sampled in all, for 3 more reasons",
        *(f"1 of 3 rows are sampled: reason {n}" for n in range(3)),
    ]


@pytest.mark.slow
def test_auto_is_exact_where_that_fits_and_says_why_not(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    network = lattice(13)
    # The first row has its middle observed: what is left is narrow. Records of the other one take all of the memory.
    rows = 3
    states = {v: np.array([0, -1, -1], dtype=np.int32) for v in range(13 * 3, 13 * 10)}
    states[168] = np.array([1, 1, 0], dtype=np.int32)
    batch = EvidenceBatch(rows, states, invalid={2: "bad"})
    query = Query(targets=("v0", "v84"), method="auto", sampling=Sampling(samples=2_000))
    options = on_cpu(7 << 18, spill_dir=tmp_path, spill_bytes=0)
    engine = Engine(network, query, options, store=PlanStore(budget_file=tmp_path / "budget.json"))
    with caplog.at_level(logging.WARNING, logger="junctor"):
        survey(engine, [batch], 1)
    assert "1 of 3 rows are sampled" in caplog.text
    answers = engine.answer(batch)
    assert isinstance(answers, SampledAnswers)
    assert answers.ways["samples"] == 1
    assert answers.sampled.tolist() == [False, True, False]
    assert answers.status.tolist() == [0, 0, 2]
    assert answers.samples.tolist() == [0, 2_000, 0]
    assert (answers.errors[0][0] == 0).all()
    assert (answers.errors[0][1] > 0).all()
    truth = Engine(network, Query(targets=("v0", "v84"))).answer(batch)
    np.testing.assert_allclose(answers.posteriors[0][0], truth.posteriors[0][0], atol=1e-12)
    assert np.abs(answers.posteriors[84][1] - truth.posteriors[84][1]).max() < 6 * answers.errors[84][1].max()
    # Whoever goes on takes the budget that was settled.
    large = on_cpu(1 << 34, spill_dir=tmp_path)
    other = Engine(network, query, large, store=PlanStore(budget_file=tmp_path / "budget.json"))
    for each in (engine, engine.with_options(large), other):
        (found,) = sampled_groups(each, batch)
        assert found.rows.tolist() == [1]


def test_rows_of_auto_have_the_numbers_of_runs_of_one_kind() -> None:
    """Also equal rows: copies where they are exact, with random numbers of their own where they are sampled."""
    network, budget = layered(layers=5, width=5, states=3, parents=2, seed=1), ExactBudget(1 << 28, 0, 2e-5)
    wide = np.arange(100) % 4 == 0
    columns = sample(network, 40, seed=1)[np.arange(100) * 40 // 100].T.astype(np.int32)
    states = {v: np.where(wide & (v > 0), -1, column) for v, column in enumerate(columns[:-1])}
    batch = EvidenceBatch(100, states, invalid={5: "bad"})
    queries = (Query(method=each, sampling=Sampling(samples=200)) for each in METHODS)
    engines = (Engine(network, each, on_cpu(1 << 28), store=PlanStore(budget=budget)) for each in queries)
    found, sampled, exact = (each.answer(batch, first_row=5) for each in engines)
    assert isinstance(found, SampledAnswers)
    assert found.ways == {"samples": 25, "entries": 74}
    assert found.sampled.tolist() == wide.tolist()
    assert found.reasons == {5: "bad"}
    assert len(set(found.posteriors[24][wide, 0].tolist())) > 12
    others = np.setdiff1d(np.flatnonzero(~wide), [5])
    for v in range(25):
        assert (found.posteriors[v][wide] == sampled.posteriors[v][wide]).all()
        np.testing.assert_allclose(found.posteriors[v][others], exact.posteriors[v][others], rtol=0, atol=1e-12)
        assert (found.errors[v][others] == 0).all()


def test_auto_samples_rows_that_would_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_budget, "EXACT_ROW", 1e-9)
    table = junctor.posteriors(ASIA, {"smoke": ["yes", "no"]}, ["lung"], method="auto", samples=1_000)
    assert table["method"].to_pylist() == ["sampling", "sampling"]
    monkeypatch.setattr(exact_budget, "EXACT_ROW", 60.0)
    table = junctor.posteriors(ASIA, {"smoke": ["yes", "no"]}, ["lung"], method="auto", samples=1_000)
    assert table["method"].to_pylist() == ["exact", "exact"]
    assert table["effective_samples"].null_count == 2


def test_auto_samples_rows_beyond_the_limit_that_is_given(tmp_path: Path) -> None:
    network, kept = lattice(6), tmp_path / "budget.json"
    query = Query(targets=("v0",), method="auto", sampling=Sampling(samples=200))

    def beyond(seconds: float, budget: Path | None = None) -> list[PatternGroup]:
        store = PlanStore(budget_file=budget)
        return sampled_groups(Engine(network, query, on_cpu(1 << 34, time_limit=seconds), store=store))

    (found,) = beyond(1e-6, kept)
    assert "allowed are 1e-06 s (--time-limit)" in found.rejected[0].reason
    assert not beyond(1e4)
    # Whoever goes on takes the limit that is kept.
    assert beyond(1e4, kept)
    limits = json.loads(kept.read_text())
    assert limits.pop("seconds") == 1e-6
    # A budget without a limit has the default.
    kept.write_text(json.dumps(limits))
    assert not beyond(1e-6, kept)
