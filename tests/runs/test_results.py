from __future__ import annotations

import gc
import math
from dataclasses import replace
from pathlib import Path

import junctor
import numpy as np
import pyarrow as pa
import pytest
from junctor.model.answers import IMPOSSIBLE, INVALID, OK, Answers, table_bytes, unanswered
from junctor.model.errors import EvidenceError, Place
from junctor.model.network import DraftTable, DraftVariable, Network, build_network
from junctor.model.query import Query, target_names
from junctor.runs.answer_files import AnswerFiles, AnswerWriter
from junctor.runs.export import write_csv
from junctor.runs.results import (
    KEPT_ID_BYTES,
    PARTITION_BYTES,
    PARTITION_ROWS,
    AnswerTables,
    answer_width,
    default_partition_rows,
    states_of,
    statuses_of,
    tables_for,
)
from junctor.runtime.arrow import list_array, number_array, string_array
from junctor.runtime.arrow_batches import _Owner
from pyarrow import csv, parquet

HERE = Place("test")


def make_network(first: str = "rain", second: str = "grass", states: int = 3) -> Network:
    """Two variables, the second with `states` states."""
    variables = [
        DraftVariable(first, ["no", "yes"], HERE),
        DraftVariable(second, [f"s{i}" for i in range(states)], HERE),
    ]
    tables = [
        DraftTable([first], [0.7, 0.3], HERE),
        DraftTable([first, second], np.full((2, states), 1 / states), HERE),
    ]
    return build_network("two", "bayes", variables, tables)


def make_answers(query: Query) -> Answers:
    """Four rows: ok, impossible, invalid, ok."""
    status = np.array([OK, IMPOSSIBLE, INVALID, OK], dtype=np.int8)
    log = np.array([-1.5, np.nan, np.nan, 0.0])
    reasons = {1: "probability 0", 2: "unknown state"}
    if query.kind == "mpe":
        states = np.array([[1, -1, -1, 0], [2, -1, -1, 0]], np.int32)
        return Answers((0, 1), status, log, {}, dict(enumerate(states)), reasons, explained=states)
    number = np.float32 if query.precision == "single" else np.float64
    first = np.array([[0.25, 0.75], [np.nan] * 2, [np.nan] * 2, [1, 0]], number)
    second = np.array([[0.5, 0.25, 0.25], [np.nan] * 3, [np.nan] * 3, [0, 0, 1]], number)
    return Answers((0, 1), status, log, {0: first, 1: second}, {}, reasons)


def make_table(query: Query, network: Network | None = None) -> pa.Table:
    return tables_for(network or make_network(), query).table(make_answers(query), pa.array(["a", "b", "c", "d"]))


@pytest.mark.parametrize("precision", ["double", "single", "log"])
def test_posteriors_are_fixed_size_lists_and_null_where_not_ok(precision: str) -> None:
    query = Query("posteriors", None, precision)  # type: ignore[arg-type]
    table = make_table(query)
    table.validate(full=True)
    number = pa.float32() if precision == "single" else pa.float64()
    assert table.schema.field("grass").type == pa.list_(number, 3)
    assert table.to_pydict() == {
        "case_id": ["a", "b", "c", "d"],
        "rain": [[0.25, 0.75], None, None, [1.0, 0.0]],
        "grass": [[0.5, 0.25, 0.25], None, None, [0.0, 0.0, 1.0]],
        "log_evidence": [-1.5, None, None, 0.0],
        "status": ["ok", "impossible", "invalid", "ok"],
        "reason": [None, "probability 0", "unknown state", None],
    }


def test_explanations_are_state_names() -> None:
    table = make_table(Query("mpe"))
    table.validate(full=True)
    assert table["grass"].to_pylist() == ["s2", None, None, "s0"]
    assert table["log_probability"].to_pylist() == [-1.5, None, None, 0.0]


@pytest.mark.parametrize("kind", ["posteriors", "mpe"])
def test_parquet_gives_back_rows_and_metadata(kind: str, tmp_path: Path) -> None:
    query = Query(kind)  # type: ignore[arg-type]
    table = make_table(query)
    AnswerWriter(AnswerFiles()).write(table, tmp_path / "a.parquet")
    again = parquet.read_table(tmp_path / "a.parquet")
    assert again.schema.equals(table.schema)
    assert again.to_pydict() == table.to_pydict()
    assert states_of(again.schema) == {"rain": ["no", "yes"], "grass": ["s0", "s1", "s2"]}
    assert statuses_of(again.schema) == {"ok": 2, "impossible": 1, "invalid": 1}


def test_schema_is_known_before_there_are_answers() -> None:
    query = Query()
    assert tables_for(make_network(), query).schema(pa.string()).equals(make_table(query).schema)


def test_a_target_keeps_its_name_and_bookkeeping_gets_an_underscore() -> None:
    network = make_network("status", "case_id")
    table = make_table(Query(), network)
    assert table.column_names == ["case_id_", "status", "case_id", "log_evidence", "status_", "reason"]
    assert table["status_"].to_pylist() == ["ok", "impossible", "invalid", "ok"]


def test_no_rows() -> None:
    none = np.zeros(0)
    answers = Answers((0,), none.astype(np.int8), none, {0: np.zeros((0, 2))})
    query = Query("posteriors", ("rain",))
    table = tables_for(make_network(), query).table(answers, pa.array([], pa.int64()))
    table.validate(full=True)
    assert table.num_rows == 0
    assert statuses_of(table.schema) == {"ok": 0, "impossible": 0, "invalid": 0}


@pytest.mark.parametrize(
    ("targets", "message"),
    [(("rian",), "unknown target 'rian', did you mean 'rain'"), (("rain", "rain"), "twice"), ((), "no targets")],
)
def test_bad_targets_are_refused(targets: tuple[str, ...], message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        target_names(make_network(), Query("posteriors", targets))


@pytest.mark.parametrize("states", [2, 3, 1000, 2**23])
def test_partitions_are_bounded_in_rows_and_bytes(states: int) -> None:
    network = make_network(states=min(states, 1000))
    query = Query()
    rows = default_partition_rows(network, query)
    assert 1 <= rows <= PARTITION_ROWS
    assert rows == 1 or rows * answer_width(network, query) <= PARTITION_BYTES
    assert rows & (rows - 1) == 0


@pytest.mark.parametrize(("width", "rows"), [(2**20, 64), (2**22, 64), (2**24, 16), (2**40, 1)])
def test_partitions_of_long_networks_have_rows_for_all_threads(
    width: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("junctor.runs.results.answer_width", lambda network, query: width)
    assert default_partition_rows(make_network(states=2), Query()) == rows


def test_csv_has_a_column_for_each_state(tmp_path: Path) -> None:
    parts = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    for part in parts:
        AnswerWriter(AnswerFiles()).write(make_table(Query()), part)
    write_csv(parts, tmp_path / "all.csv")
    text = (tmp_path / "all.csv").read_text().splitlines()
    assert text[0] == '"case_id","rain=no","rain=yes","grass=s0","grass=s1","grass=s2","log_evidence","status","reason"'
    assert text[1] == '"a",0.25,0.75,0.5,0.25,0.25,-1.5,"ok",'
    assert text[2] == '"b",,,,,,,"impossible","probability 0"'
    assert len(text) == 9


def test_csv_of_explanations(tmp_path: Path) -> None:
    AnswerWriter(AnswerFiles()).write(make_table(Query("mpe")), tmp_path / "0.parquet")
    write_csv([tmp_path / "0.parquet"], tmp_path / "all.csv")
    assert csv.read_csv(tmp_path / "all.csv")["grass"].to_pylist() == ["s2", "", "", "s0"]


def test_arrays_are_what_pyarrow_would_make() -> None:
    rng = np.random.default_rng(0)
    null = rng.random(37) < 0.3
    numbers = rng.random((37, 3))
    assert number_array(numbers[:, 0], null).equals(pa.array(numbers[:, 0], mask=null))
    assert number_array(numbers[::-1, 1]).equals(pa.array(numbers[::-1, 1].copy()))
    lists = pa.array(
        [None if skip else row for skip, row in zip(null, numbers.tolist(), strict=True)], pa.list_(pa.float64(), 3)
    )
    assert list_array(numbers, null).equals(lists)
    words = ["", None, "Grüße", "a\nb", "x" * 100]
    assert string_array(words).equals(pa.array(words))
    assert string_array([]).equals(pa.array([], pa.string()))
    for array in (number_array(numbers[:, 0], null), list_array(numbers, null), string_array(words)):
        array.validate(full=True)


def answered(network: Network, query: Query, rows: int, seed: int) -> Answers:
    """Rows that are all answered, by numbers of no meaning, in one piece of memory."""
    targets = tuple(network.index[name] for name in target_names(network, query))
    memory = np.zeros(table_bytes(query, targets, network.cardinalities, rows), np.uint8)
    answers = unanswered(query, targets, network.cardinalities, rows, {}, memory)
    rng = np.random.default_rng(seed)
    answers.status[:] = OK
    answers.log_value[:] = rng.random(rows)
    assert answers.memory is not None
    answers.memory[:] = rng.random(answers.memory.size)
    return answers


@pytest.mark.parametrize("rows", [0, 1, 2, 5])
@pytest.mark.parametrize("precision", ["double", "single", "log"])
@pytest.mark.parametrize("targets", [None, ("grass", "rain"), ("grass",)])
def test_tables_of_one_piece_of_memory_are_tables_of_columns(
    rows: int, precision: str, targets: tuple[str, ...] | None
) -> None:
    network, query = make_network(), Query("posteriors", targets, precision)  # type: ignore[arg-type]
    tables, few = AnswerTables(network, query), [answered(network, query, rows, seed) for seed in range(3)]
    ids = [number_array(np.arange(rows) + 10 * n) for n in range(3)]
    found = [tables.table(answers, case_ids) for answers, case_ids in zip(few, ids, strict=True)]
    for table, answers, case_ids in zip(found, few, ids, strict=True):
        table.validate(full=True)
        expected = tables_for(network, query).table(replace(answers, memory=None), case_ids)
        assert table.equals(expected, check_metadata=True)
        assert [field.nullable for field in table.schema] == [field.nullable for field in expected.schema]


def test_one_maker_of_tables_serves_all_batches() -> None:
    network, query = make_network(), Query()
    tables = AnswerTables(network, query)
    for case_ids in (pa.array([1, 2, 3, 4]), pa.array(["a", "b", "c", "d"]), pa.array([1, None, 3, 4])):
        for answers in (answered(network, query, 4, 1), make_answers(query), answered(network, query, 4, 2)):
            expected = tables_for(network, query).table(answers, case_ids)
            assert tables.table(answers, case_ids).equals(expected, check_metadata=True)
    reasons = answered(network, query, 1, 1)
    reasons.reasons[0] = "a word"
    assert tables.table(reasons, pa.array([1]))["reason"].to_pylist() == ["a word"]


def test_case_ids_that_are_many_do_not_stay() -> None:
    network, query = make_network(), Query()
    tables = AnswerTables(network, query)
    for rows in (3, KEPT_ID_BYTES // 8, KEPT_ID_BYTES // 8 + 1, 3):
        ids = [number_array(np.arange(rows) + 10 * n) for n in (0, 1, 1)]
        for case_ids in [*ids, ids[0], ids[0]]:
            assert tables.table(answered(network, query, rows, 1), case_ids)["case_id"].to_pylist() == case_ids.tolist()
            assert (tables._known_ids[0] is case_ids) == (8 * rows <= KEPT_ID_BYTES)
    # Few that are a part of many.
    part = number_array(np.arange(KEPT_ID_BYTES)).slice(0, 3)
    assert tables.table(answered(network, query, 3, 1), part)["case_id"].to_pylist() == [0, 1, 2]
    assert tables._known_ids[0] is not part


def owners() -> int:
    """Return how many batches there are whose memory is not Arrow's."""
    gc.collect()
    return sum(isinstance(each, _Owner) for each in gc.get_objects())


@pytest.mark.parametrize("query", [Query(), Query(answers="scores")])
def test_who_keeps_a_column_of_logarithms_does_not_keep_all_answers(query: Query) -> None:
    network = make_network()
    before = owners()
    rows = [{"rain": "yes"}] * 200
    table = junctor.posteriors(network, rows, answers=query.answers)
    names = [name for name in ("case_id", "log_evidence", "status", "reason") if name in table.column_names]
    kept = [table.column(name) for name in names]
    assert owners() == before + 1
    del table
    assert owners() == before
    assert len(names) == len(kept) == 4
    assert kept[0].to_pylist() == list(range(200))
    (logarithm,) = set(kept[1].to_pylist())
    assert logarithm == pytest.approx(math.log(0.3), rel=1e-15)
    assert set(kept[2].to_pylist()) == {"ok"}
