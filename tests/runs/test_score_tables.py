"""Tables of scores: columns, their names and types, nulls, and the files of whole runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import junctor
import numpy as np
import pyarrow as pa
import pytest
from helpers.files import ASIA
from junctor.model.errors import EvidenceError, Place, RunError
from junctor.model.network import DraftTable, DraftVariable, Network, build_network
from junctor.model.query import Query, Sampling, as_posteriors
from junctor.runs.results import METADATA_KEY, PARTITION_ROWS, default_partition_rows, states_of, statuses_of
from junctor.runs.run import run
from junctor.runs.score_tables import ScoreTables, score_columns
from junctor.runs.storage import RunDirectory
from junctor.runs.workload import Job
from junctor.runtime.dask_cluster import Resources
from pyarrow import csv, parquet

HERE = Place("test")
SCORES = Query(answers="scores")
EVIDENCE = "id,smoke,xray,either,lung\na,yes,no,,\nb,,yes,,\nc,,,no,yes\nd,perhaps,,,\n" + "e,yes,yes,,\n" * 20


def network_of(*names: str) -> Network:
    variables = [DraftVariable(name, ["no", "yes"], HERE) for name in names]
    return build_network("n", "markov", variables, [DraftTable([name], [0.25, 0.75], HERE) for name in names])


def make_job(folder: Path, query: Query, **changes: Any) -> Job:
    evidence = folder / "evidence.csv"
    evidence.write_text(EVIDENCE)
    return Job(ASIA, str(evidence), str(folder / "out"), query, **{"partition_rows": 10, "case_id": "id", **changes})


def answers(job: Job) -> pa.Table:
    return parquet.read_table(job.directory.path / "scores")


def plain(table: pa.Table) -> list[dict[str, Any]]:
    return [dict(row) for row in table.to_pylist()]


def alike(one: Any, other: Any) -> bool:
    """Return True if cells are equal but for roundings."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(other == pytest.approx(one, abs=1e-6) if isinstance(one, float) else one == other)


def test_columns_of_scores() -> None:
    table = junctor.posteriors(ASIA, [{"smoke": "yes"}], ["lung", "tub"], answers="scores", probabilities=["dysp=no"])
    names = ["lung", "lung_probability", "lung_entropy", "tub", "tub_probability", "tub_entropy", "dysp=no"]
    assert table.column_names == ["case_id", *names, "log_evidence", "status", "reason"]
    row = table.to_pylist()[0]
    # P(lung = yes | smoke) = 0.1, from the published tables.
    assert (row["lung"], row["status"], row["reason"]) == ("no", "ok", None)
    assert row["lung_probability"] == pytest.approx(0.9)
    assert row["lung_entropy"] == pytest.approx(-0.9 * math.log(0.9) - 0.1 * math.log(0.1))
    assert table.schema.field("lung").type == pa.dictionary(pa.int32(), pa.string())
    assert states_of(table.schema) == {"lung": ["yes", "no"], "tub": ["yes", "no"]}
    assert statuses_of(table.schema) == {"ok": 1, "impossible": 0, "invalid": 0}
    assert json.loads(table.schema.metadata[METADATA_KEY])["answers"] == "scores"


def test_lists_of_states() -> None:
    table = junctor.posteriors(ASIA, [{}, {"tub": "maybe"}], "tub", precision="single", answers="scores", top=3)
    found, bad = table.to_pylist()
    assert found["tub"] == ["no", "yes", None]
    assert found["tub_probability"] == [pytest.approx(0.9896), pytest.approx(0.0104), None]
    assert (bad["tub"], bad["tub_probability"], bad["tub_entropy"], bad["status"]) == (None, None, None, "invalid")
    assert table.schema.field("tub_probability").type == pa.list_(pa.float32(), 3)
    assert table.schema.field("tub_entropy").type == pa.float32()
    one = junctor.posteriors(ASIA, [{}], "tub", answers="scores", top=1)
    assert one.to_pylist()[0]["tub"] == ["no"]


def test_names_that_are_taken_get_an_underscore() -> None:
    targets = ("a", "a_probability", "a_entropy", "a=yes", "status", "case_id_")
    query = Query(answers="scores", probabilities=("a=yes", "a_probability=no"))
    names = score_columns(query, targets)
    assert names.chosen == ("a=yes_", "a_probability=no")
    assert names.probabilities[:2] == ("a_probability_", "a_probability_probability")
    assert names.entropies[0] == "a_entropy_"
    assert (names.beside.status, names.beside.case_id) == ("status_", "case_id")
    schema = ScoreTables(network_of(*targets), query).schema(pa.int64())
    assert len(set(schema.names)) == len(schema.names)
    columns = json.loads(schema.metadata[METADATA_KEY])
    assert columns["probabilities"] == {"a=yes": "a=yes_", "a_probability=no": "a_probability=no"}
    assert columns["probability_columns"]["a"] == "a_probability_"
    table = junctor.posteriors(network_of(*targets), [{}], answers="scores", probabilities=query.probabilities)
    row = table.to_pylist()[0]
    assert (row["a"], row["a=yes"], row["a_probability"]) == ("yes", "yes", "yes")
    assert row["a=yes_"] == row["a_probability_"] == 0.75


def test_errors_may_not_collide_either() -> None:
    query = Query(answers="scores", method="sampling", probabilities=("x=no", "x=no_error=no"))
    schema = ScoreTables(network_of("x", "x_error", "x=no_error", "samples"), query).schema(pa.int64())
    assert len(set(schema.names)) == len(schema.names)


def test_no_rows() -> None:
    table = junctor.posteriors(ASIA, pa.table({"smoke": pa.array([], pa.string())}), answers="scores", top=2)
    assert table.num_rows == 0
    assert table.schema.field("lung").type.list_size == 2


def test_partitions_are_longer_than_those_of_posteriors() -> None:
    network = network_of(*(f"x{i}" for i in range(300)))
    few = Query(answers="scores", targets=("x1",), probabilities=("x7=no",))
    assert default_partition_rows(network, few) > default_partition_rows(network, Query())
    wide = build_network(
        "wide",
        "markov",
        [DraftVariable("w", [f"s{i}" for i in range(2000)], HERE)],
        [DraftTable(["w"], [1.0] * 2000, HERE)],
    )
    assert default_partition_rows(wide, SCORES) == PARTITION_ROWS > default_partition_rows(wide, Query())
    # Columns cost more than the numbers in a few thousand rows.
    many = network_of(*(f"x{i}" for i in range(1000)))
    assert default_partition_rows(many, Query(answers="scores", precision="single")) == 16_384
    sampled = Query(answers="scores", method="sampling")
    assert default_partition_rows(many, sampled) == default_partition_rows(many, Query(method="sampling")) == 512


@pytest.mark.parametrize(
    "query",
    [
        Query(answers="scores", targets=("l*", "dysp"), probabilities=("lung=no", "tub=yes")),
        Query(answers="scores", precision="single", top=2),
        Query(answers="scores", method="sampling", sampling=Sampling(samples=300), targets=("tub",), top=3),
        Query(answers="scores", method="auto", sampling=Sampling(samples=300), probabilities=("tub=yes",)),
    ],
    ids=["chosen", "single", "sampling", "auto"],
)
@pytest.mark.parametrize("over_workers", [False, True])
def test_files_hold_what_the_api_returns(
    tmp_path: Path, query: Query, over_workers: bool, request: pytest.FixtureRequest
) -> None:
    job = make_job(tmp_path, query)
    scheduler = request.getfixturevalue("scheduler") if over_workers else None
    manifest = run(job, Resources(workers=0, scheduler=scheduler))
    assert manifest.statuses["ok"] == 22
    assert manifest.statuses["invalid"] == 1
    assert manifest.statuses["impossible"] + manifest.statuses.get("missed", 0) == 1
    found, sampling = answers(job), query.sampling
    expected = junctor.posteriors(
        ASIA,
        csv.read_csv(job.evidence, convert_options=csv.ConvertOptions(strings_can_be_null=True)),
        query.targets,
        query.precision,
        case_id="id",
        method=query.method,
        samples=sampling.samples,
        answers="scores",
        top=query.top,
        probabilities=query.probabilities,
    )
    assert found.column_names == expected.column_names
    assert found.schema.types == expected.schema.types
    for one, other in zip(plain(found), plain(expected), strict=True):
        for name, value in one.items():
            assert alike(value, other[name]), name
        if one["status"] != "ok":
            assert {name for name, value in one.items() if value is not None} == {"case_id", "status", "reason"}


@pytest.mark.parametrize("sampler", ["epis-bn", "wmb"])
@pytest.mark.parametrize("top", [None, 3])
def test_scores_of_sampled_rows_are_those_of_their_posteriors(sampler: Any, top: int | None) -> None:
    options: dict[str, Any] = {"method": "sampling", "samples": 400, "seed": 3, "sampler": sampler}
    rows = [{"smoke": "yes"}, {}, {"dysp": "yes"}]
    posteriors = junctor.posteriors(ASIA, rows, "bronc", **options).to_pylist()
    shown: dict[str, Any] = {"answers": "scores", "probabilities": "bronc=no", "top": top}
    scores = junctor.posteriors(ASIA, rows, "bronc", **shown, **options).to_pylist()
    beside = ("error",) if sampler == "epis-bn" else ("error", "lower", "upper")
    for wanted, found in zip(posteriors, scores, strict=True):
        best = int(np.argmax(wanted["bronc"]))
        if top is None:
            first = {name: found[name] for name in ("bronc", "bronc_probability")}
            first |= {f"bronc_{kind}": found[f"bronc_{kind}"] for kind in beside}
        else:
            assert all(
                found[name][2] is None for name in ("bronc", "bronc_probability", *(f"bronc_{kind}" for kind in beside))
            )
            first = {name: value[0] for name, value in found.items() if isinstance(value, list)}
        assert first["bronc"] == ["yes", "no"][best]
        assert first["bronc_probability"] == wanted["bronc"][best]
        assert found["bronc=no"] == wanted["bronc"][1]
        for kind in beside:
            assert first[f"bronc_{kind}"] == wanted[f"bronc_{kind}"][best]
            assert found[f"bronc=no_{kind}"] == wanted[f"bronc_{kind}"][1]
        for name in wanted.keys() - {"bronc", *(f"bronc_{kind}" for kind in beside)}:
            assert found[name] == wanted[name]


def test_parts_do_not_depend_on_partitions_of_a_narrow_network(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    jobs = [make_job(tmp_path / name, SCORES, partition_rows=rows) for name, rows in (("a", 7), ("b", 24))]
    for job in jobs:
        run(job, Resources(workers=0))
    assert plain(answers(jobs[0])) == plain(answers(jobs[1]))


def test_a_run_with_other_scores_is_another_run(tmp_path: Path) -> None:
    job = make_job(tmp_path, SCORES)
    assert run(job, Resources(workers=0)).reused_parts == 0
    (job.directory.path / "scores" / "part-00001.parquet").unlink()
    assert run(job, Resources(workers=0)).reused_parts == 2
    for query, message in [
        (Query(), "answers was 'scores', now 'posteriors'"),
        (Query(answers="scores", top=2), "top was not set, now 2"),
        (Query(answers="scores", probabilities=("lung=yes",)), "probabilities was not set, now lung=yes"),
        (Query(answers="scores", targets=("l*",)), "targets was not set"),
    ]:
        with pytest.raises(RunError, match=message):
            run(make_job(tmp_path, query), Resources(workers=0))
    run(make_job(tmp_path, Query(), overwrite=True), Resources(workers=0))
    assert not (job.directory.path / "scores").exists()


def test_the_record_of_a_run(tmp_path: Path) -> None:
    query = Query(answers="scores", top=2, probabilities=("lung=yes",), targets=("l*",))
    job = make_job(tmp_path, query)
    run(job, Resources(workers=0))
    assert RunDirectory(job.directory.path).read_spec().as_query() == query
    (tmp_path / "other").mkdir()
    other = make_job(tmp_path / "other", Query())
    run(other, Resources(workers=0))
    record = json.loads(other.directory.spec_file.read_text())
    assert not {"answers", "top", "probabilities"} & record.keys()
    assert as_posteriors(junctor.read_network(ASIA), Query()) == Query()


def test_scores_as_csv(tmp_path: Path) -> None:
    job = make_job(tmp_path, Query(answers="scores", targets=("lung",), top=2, probabilities=("tub=no",)), csv=True)
    run(job, Resources(workers=0))
    table = csv.read_csv(job.directory.path / "scores.csv")
    lists = ["lung.1", "lung.2", "lung_probability.1", "lung_probability.2", "lung_entropy"]
    assert table.column_names == ["case_id", *lists, "tub=no", "log_evidence", "status", "reason"]
    assert table["lung.1"].to_pylist()[0] == "no"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": ["Z*"]}, "matches no variable"),
        ({"probabilities": ["lungs=yes"]}, "did you mean 'lung'"),
        ({"probabilities": ["lung=sure"]}, "unknown state 'sure'"),
        ({"top": "two"}, "found top 'two'"),
    ],
)
def test_bad_options_are_refused_before_any_work(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        junctor.posteriors(ASIA, [{}], answers="scores", **options)
    if "top" not in options:
        query = Query(answers="scores", **{name: tuple(names) for name, names in options.items()})
        with pytest.raises(EvidenceError, match=message):
            run(make_job(tmp_path, query), Resources(workers=0))
        assert not (tmp_path / "out" / "run.json").exists()
