from __future__ import annotations

import json
from itertools import pairwise, permutations
from pathlib import Path

import junctor
import numpy as np
import pyarrow as pa
import pytest
from helpers.files import ASIA
from helpers.options import on_cpu
from hypothesis import given
from hypothesis import strategies as st
from junctor.generate import evidence_table, random_network, sample
from junctor.model.errors import Place, RunError
from junctor.model.network import DraftTable, DraftVariable, build_network
from junctor.model.query import Query, Sampling
from junctor.runs import run as steps
from junctor.runs import statistics as counting
from junctor.runs.outcome import outcome_of
from junctor.runs.partition import propagate_partition
from junctor.runs.run import run
from junctor.runs.statistics import (
    BINS,
    EXAMPLES,
    LOWEST,
    Cells,
    Logarithms,
    Reason,
    RowKey,
    RowKeys,
    Sampled,
    Spread,
    Statistics,
    count_logarithms,
    edges_of,
    kind_of_reason,
    merged,
    spaced,
    statistics_of,
)
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from pyarrow import parquet

HERE = Resources(workers=0)
COUNTS = st.integers(0, 10**6)
ROWS = st.integers(1, 10**9).map(lambda row: RowKey(row, f"case {row}"))


def spreads() -> st.SearchStrategy[Spread]:
    values = st.lists(st.floats(-1e4, 1e4), max_size=8)
    return values.map(lambda found: Spread.of(np.array(found)))


@st.composite
def statistics(draw: st.DrawFn) -> Statistics:
    """Statistics of a part of one network: a variable has two states, another one three."""
    # Rows of different parts are different.
    rows = draw(st.lists(ROWS, max_size=6, unique_by=lambda each: each.row))
    names = draw(st.lists(st.sampled_from(["one", "two", "three"]), unique=True))
    by_row = tuple(sorted(rows, key=lambda each: each.row)[:EXAMPLES])
    lowest = sorted(((float(-each.row), each) for each in rows), key=lambda pair: pair[0])[:LOWEST]
    cells = {name: Cells(tuple(draw(st.tuples(*[COUNTS] * size))), draw(COUNTS), draw(COUNTS)) for name, size in SIZES}
    bins = {"a": tuple(tuple(draw(st.tuples(*[COUNTS] * BINS))) for _ in range(2))}
    return Statistics(
        draw(COUNTS),
        {"ok": draw(COUNTS), "invalid": draw(COUNTS)},
        {name: Reason("invalid", draw(COUNTS), by_row) for name in names},
        draw(COUNTS),
        draw(st.sampled_from([cells, {}])),
        Logarithms(draw(spreads()), tuple(lowest)),
        draw(st.sampled_from([bins, {}])),
        draw(COUNTS),
        {name: draw(COUNTS) for name in names},
        {"log": draw(COUNTS)},
        Sampled(draw(COUNTS), draw(COUNTS), draw(COUNTS), *(draw(spreads()) for _ in range(4))),
    )


SIZES = (("a", 2), ("b", 3))


@given(st.lists(statistics(), min_size=3, max_size=3))
def test_merging_is_associative_and_has_no_order(parts: list[Statistics]) -> None:
    one, two, three = parts
    whole = merged(parts)
    assert (one + two) + three == one + (two + three) == whole
    for order in permutations(parts):
        assert merged(order) == whole
    assert Statistics() + one == one


@given(statistics())
def test_a_record_is_the_same_statistics(found: Statistics) -> None:
    assert statistics_of(json.loads(json.dumps(found.to_record()))) == found


@pytest.mark.parametrize("record", [{}, {"format_version": 2}, {"format_version": 1, "rows": 1}])
def test_other_records_are_refused(record: dict[str, object]) -> None:
    with pytest.raises(RunError):
        statistics_of(record)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_bins_have_fixed_edges(values: list[float]) -> None:
    spread = Spread.of(np.array(values))
    assert spread.rows == len(values)
    assert spread.mean == pytest.approx(np.mean(values), abs=1e-5 * max(1, abs(np.mean(values))))
    for value in values:
        assert any(
            low - 1e-6 * abs(low) <= value <= high + 1e-6 * abs(high) or abs(value) < 1e-5
            for low, high in map(edges_of, spread.counts)
        )
    middle = float(np.sort(values)[(len(values) - 1) // 2])
    assert spread.quantile(0.5) == pytest.approx(middle, rel=0.02, abs=1e-5)


def test_no_numbers_have_no_mean() -> None:
    assert np.isnan(Spread().mean)
    assert np.isnan(Spread().quantile(0.5))


def job_of(folder: Path, table: pa.Table, network: object = None, **changes: object) -> Job:
    parquet.write_table(table, folder / "evidence.parquet")
    if network is not None:
        junctor.write_network(network, folder / "net.bif")
    path = ASIA if network is None else str(folder / "net.bif")
    asked = {"partition_rows": 40, **changes}
    return Job(path, str(folder / "evidence.parquet"), str(folder / "out"), **asked)  # type: ignore[arg-type]


def statistics_in(job: Job) -> Statistics:
    return outcome_of(job.directory, steps.read_manifest(job.directory)).statistics


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_counts_are_those_of_pandas(tmp_path: Path, seed: int, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if small:
        # Blocks of sixteen rows; some columns have more states.
        for name, value in (("COMPARED_STATES", 2), ("COMPARED_CELLS", 80), ("SUMMED_CELLS", 16)):
            monkeypatch.setattr(counting, name, value)
    network = random_network(7, seed=seed, zeros=0.3)
    table = evidence_table(network, sample(network, 150, seed=seed), observed=0.5, pattern="random", seed=seed)
    rng = np.random.default_rng(seed)
    names = [name for name in table.column_names if name in network.index]
    cells = {name: table[name].to_pylist() for name in names}
    for name in names[:2]:
        states = network.variables[network.index[name]].states
        cells[name] = [states[rng.integers(len(states))] if rng.random() < 0.5 else cell for cell in cells[name]]
    for row in rng.choice(150, 9, replace=False):
        cells[names[3]][row] = f"no state {row}"
    ids = [f"case {row}" for row in range(150)]
    frame = pa.table({"case_id": ids, **cells})
    job = job_of(tmp_path, frame, network)
    run(job, HERE)
    found = statistics_in(job)
    answers = parquet.read_table(job.directory.path / "posteriors").to_pandas()
    assert found.rows == 150
    assert {name: n for name, n in found.statuses.items() if n} == answers["status"].value_counts().to_dict()
    ok = answers[answers["status"] == "ok"]
    lowest = ok.sort_values("log_evidence", kind="stable").head(LOWEST)
    assert [value for value, _ in found.logarithms.lowest] == lowest["log_evidence"].tolist()
    assert found.logarithms.spread.mean == pytest.approx(ok["log_evidence"].mean(), abs=1e-5)
    valid = frame.to_pandas()[(answers["status"] != "invalid").to_numpy()]
    for name in names:
        states = network.variables[network.index[name]].states
        seen = valid[name].value_counts()
        assert found.columns[name] == Cells(
            tuple(int(seen.get(state, 0)) for state in states), 0, int(valid[name].isna().sum())
        )
    for name, bins in found.targets.items():
        posteriors = np.stack(ok[name].to_numpy())
        for state, counts in enumerate(bins):
            at = np.minimum((posteriors[:, state] * BINS).astype(int), BINS - 1)
            assert counts == tuple(np.bincount(at, minlength=BINS).tolist())
    assert set(found.targets) == {variable.name for variable in network.variables}
    assert found.counted == len(ok)
    kind = f"column {names[3]!r}: unknown state …"
    reason = next(each for text, each in found.reasons.items() if text.startswith(kind))
    bad = answers.index[answers["status"] == "invalid"]
    assert reason.rows == 9
    assert reason.examples == tuple(RowKey(row + 1, f"case {row}") for row in bad[:EXAMPLES])
    assert sum(each.rows for each in found.reasons.values()) == answers["reason"].notna().sum()
    assert sum(found.rows_by_strategy.values()) == 141


def test_soft_evidence_is_counted(tmp_path: Path) -> None:
    soft = pa.array([[0.5, 0.5], None, [0.1, 0.2]] * 5, pa.list_(pa.float64()))
    job = job_of(tmp_path, pa.table({"smoke": soft, "xray": ["yes", None, "no"] * 5}))
    run(job, HERE)
    assert statistics_in(job).columns == {"smoke": Cells((0, 0), 10, 5), "xray": Cells((5, 5), 0, 5)}


def test_scores_explanations_and_samples_are_counted(tmp_path: Path) -> None:
    table = pa.table({"smoke": ["yes", "no", None] * 30})
    kinds = {
        "scores": Query(answers="scores", targets=("lung", "bronc")),
        "mpe": Query("mpe", targets=("lung",)),
        "sampled": Query(targets=("lung",), method="sampling", sampling=Sampling(samples=500)),
        "bounded": Query(targets=("lung",), method="sampling", sampling=Sampling("wmb", 500)),
        "bounded scores": Query(
            answers="scores", top=2, targets=("lung",), method="sampling", sampling=Sampling("wmb", 500)
        ),
    }
    found = {}
    for name, query in kinds.items():
        (folder := tmp_path / name).mkdir()
        job = job_of(folder, table, query=query)
        run(job, HERE)
        found[name] = statistics_in(job)
    assert list(found["scores"].targets) == ["lung", "bronc"]
    assert np.sum(found["scores"].targets["bronc"]) == 90
    assert np.shape(found["mpe"].targets["lung"]) == (2, 1)
    assert found["mpe"].targets["lung"] == ((0,), (90,))
    sampled = found["sampled"].sampled
    assert (sampled.rows, sampled.samples, sampled.short) == (90, 90 * 500, 0)
    assert sampled.errors.rows == sampled.effective.rows == 90
    assert 0 < sampled.errors.quantile(0.5) < 0.1
    assert sampled.widths.rows == sampled.gaps.rows == 0
    bounded = found["bounded"].sampled
    assert bounded.widths.rows == bounded.gaps.rows == 90
    assert 0 < bounded.errors.quantile(0.5) < bounded.widths.quantile(0.5) < 0.3
    assert found["bounded scores"].sampled == bounded


def test_a_resumed_run_has_the_same_bytes(tmp_path: Path, scheduler: str) -> None:
    network = random_network(6, seed=1)
    table = evidence_table(network, sample(network, 200, seed=1), observed=0.4, pattern="random", seed=1)
    job = job_of(tmp_path, table, network)
    run(job, HERE)
    folder = job.directory.path / "statistics"
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(whole) == 5
    for lost in ("part-00001", "part-00004"):
        (job.directory.path / "posteriors" / f"{lost}.parquet").unlink()
        (folder / f"{lost}.json").unlink()
    run(job, Resources(scheduler=scheduler, compute=on_cpu(threads=1)))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole


def test_statistics_are_there_before_their_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(tmp_path, pa.table({"smoke": ["yes", "no"]}))
    with job.directory.locked():
        steps.ingest_model(job, steps.Silence())
        steps.ingest_inputs(job, steps.Silence())
        spec = job.directory.read_spec()
        task = job.task(job.directory, 0, spec, job.directory.counts(), on_cpu(threads=1))

        def broken(*_: object) -> None:
            raise OSError("no")

        monkeypatch.setattr(type(task), "write", broken)
        with pytest.raises(RunError):
            propagate_partition(task, 2**30)
    assert job.directory.statistics(job.directory.answers_part("posteriors", 0)).exists()
    assert not job.directory.answers_part("posteriors", 0).exists()


def test_overwriting_removes_them(tmp_path: Path) -> None:
    job = job_of(tmp_path, pa.table({"smoke": ["yes", "no"] * 50}))
    run(job.but(report=True), HERE)
    assert job.directory.statistics(job.directory.answers_part("posteriors", 2)).exists()
    run(job.but(overwrite=True, partition_rows=100), HERE)
    assert sorted(path.name for path in (job.directory.path / "statistics").iterdir()) == ["part-00000.json"]
    assert not job.directory.report.exists()


@pytest.mark.parametrize(
    ("text", "status", "kind"),
    [
        ("column 'a': unknown state 'x y'; states are yes, no", 2, "column 'a': unknown state …; states are yes, no"),
        (
            "column 'a': unknown state 'yse', did you mean 'yes'?; states are yes, no",
            2,
            "column 'a': unknown state …; states are yes, no",
        ),
        ("column 'a': unknown state 17.5; states are 1, 2", 2, "column 'a': unknown state …; states are 1, 2"),
        (
            "column 'a': found 3 likelihoods, expected 2, one for each state",
            2,
            "column 'a': found … likelihoods, expected 2, one for each state",
        ),
        (
            "column 'a': likelihood of 'yes': found abc, expected a number",
            2,
            "column 'a': likelihood of 'yes': found …, expected a number",
        ),
        ("impossible: x_3 = 1 with x_4 = 0", 1, "impossible: x_3 = 1 with x_4 = 0"),
        ("the largest error is 0.12 after 1,000 samples", 0, "the largest error is … after … samples"),
        ("none of 2,000 samples agrees with the evidence", 3, "none of … samples agrees with the evidence"),
    ],
)
def test_reasons_of_a_kind(text: str, status: int, kind: str) -> None:
    assert kind_of_reason(text, status) == kind


@pytest.mark.parametrize("rows", [3, 400])
@pytest.mark.parametrize("query", [Query(), Query(answers="scores")])
def test_rows_that_climb_are_counted(tmp_path: Path, rows: int, query: Query) -> None:
    here, names = Place("chain"), [f"x_{i}" for i in range(60)]
    variables = [DraftVariable(name, ("a", "b"), here) for name in names]
    tables = [DraftTable(pair, [1e-300, 1.0, 1.0, 1e-300], here) for pair in pairwise(names)]
    junctor.write_network(build_network("chain", "markov", variables, tables), tmp_path / "net.parquet")
    # Both ends alike, in a chain that changes at each of 59 steps: some step does not.
    parquet.write_table(pa.table({"x_0": ["a"] * rows, "x_59": ["a"] * rows}), tmp_path / "evidence.parquet")
    job = Job(str(tmp_path / "net.parquet"), str(tmp_path / "evidence.parquet"), str(tmp_path / "out"), query)
    run(job, HERE)
    found = statistics_in(job)
    assert found.statuses["ok"] == rows
    assert sum(found.rows_by_wider_format.values()) > 0


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (pa.array([7, 8]), [RowKey(8), RowKey(9)]),
        (pa.array([8, None]), [RowKey(8, "8"), RowKey(9)]),
        (pa.array(["7", ""]), [RowKey(8, "7"), RowKey(9, "")]),
        (
            pa.array([1, 2], pa.timestamp("ns")),
            [RowKey(8, "1970-01-01 00:00:00.000000001"), RowKey(9, "1970-01-01 00:00:00.000000002")],
        ),
        (pa.array([7, 8], pa.int32()), [RowKey(8, "7"), RowKey(9, "8")]),
        (pa.array([b"a" * 16, None], pa.uuid()), [RowKey(8, "61616161-6161-6161-6161-616161616161"), RowKey(9)]),
        (pa.array([b"a", b"\xff"], pa.binary()), [RowKey(8, "a"), RowKey(9, "b'\\xff'")]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_names_of_rows(ids: pa.Array, expected: list[RowKey]) -> None:
    keys = RowKeys(ids, 7)
    assert [keys[0], keys[1]] == expected


def test_numbers_that_are_none_do_no_harm() -> None:
    values = np.array([-1.0, np.nan, -np.inf, -3.0, np.inf])
    found = count_logarithms(values, np.arange(5), RowKeys(pa.array(range(5)), 0))
    assert found.spread.rows == 2
    assert [value for value, _ in found.lowest] == [-3.0, -1.0]


def test_rows_side_by_side_are_counted_in_large_partitions() -> None:
    rows = np.arange(0, 60_000, 3)
    found = spaced(rows)
    assert len(found) == len(set(found.tolist())) == counting.COUNTED_ROWS
    assert set(found.tolist()) <= set(rows.tolist())
    assert (found[0], found[-1]) == (rows[0], rows[-1])
    assert spaced(rows[:100]).tolist() == rows[:100].tolist()
    assert len(spaced(rows[: counting.COUNTED_ROWS + 1])) == counting.COUNTED_ROWS
