"""Kept columns, formats, layouts and compressions of answers: what goes in comes out, in every file."""

from __future__ import annotations

import datetime
import decimal
import json
import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import junctor
import numpy as np
import pyarrow as pa
import pytest
from helpers.files import ROOT
from hypothesis import example, given
from hypothesis import strategies as st
from junctor.evidence.encoded import read_partition
from junctor.model.errors import EvidenceError, Place, RunError
from junctor.model.network import DraftTable, DraftVariable, Network, build_network
from junctor.model.options import AnswerFiles, OutputFormat
from junctor.model.query import Query, Sampling
from junctor.runs.answer_files import AnswerWriter, batches_of, column_names, in_columns, read_facts
from junctor.runs.results import METADATA_KEY, answer_width, default_partition_rows, tables_for, with_kept
from junctor.runs.run import read_manifest, run
from junctor.runs.storage import RunSpec, spec_record
from junctor.runs.workload import Job
from junctor.runtime.arrow import columns_of_lists
from junctor.runtime.dask_cluster import Resources
from pyarrow import csv, parquet
from runs.test_results import make_answers, make_network

ASIA = str(ROOT / "data" / "asia.bif")
HERE = Resources(workers=0)
WAYS = [AnswerFiles(*way) for way in product(("parquet", "arrow"), ("lists", "columns"), ("zstd", "lz4", "none"))]
UTC = datetime.UTC
LINES = csv.ParseOptions(newlines_in_values=True)

# An Arrow type, and cells of it.
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint8(), st.integers(0, 255)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.float32(), st.floats(allow_nan=False, width=32)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=5)),
    (pa.large_string(), st.text(max_size=5)),
    (pa.string_view(), st.text(max_size=20)),
    (pa.binary_view(), st.binary(max_size=20)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.decimal128(9, 2), st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: decimal.Decimal(n).scaleb(-2))),
    (pa.date32(), st.dates()),
    (pa.time64("us"), st.times()),
    (
        pa.timestamp("us", "Europe/Berlin"),
        st.datetimes(datetime.datetime(1970, 1, 1), datetime.datetime(2100, 1, 1)).map(lambda t: t.replace(tzinfo=UTC)),
    ),
    (pa.duration("ms"), st.integers(0, 10**9).map(lambda n: datetime.timedelta(milliseconds=n))),
    (pa.list_(pa.string()), st.lists(st.none() | st.text(max_size=2), max_size=3)),
    (pa.list_(pa.float64(), 2), st.lists(st.floats(allow_nan=False), min_size=2, max_size=2)),
    (
        pa.struct([("a", pa.int32()), ("b", pa.list_(pa.list_(pa.bool_())))]),
        st.fixed_dictionaries(
            {"a": st.none() | st.integers(0, 9), "b": st.lists(st.lists(st.booleans(), max_size=2), max_size=2)}
        ),
    ),
    (pa.map_(pa.string(), pa.int64()), st.lists(st.tuples(st.text(max_size=2), st.integers(0, 9)), max_size=2)),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "b", "c"])),
    (pa.dictionary(pa.int32(), pa.string(), ordered=True), st.sampled_from(["a", "b"])),
    (pa.null(), st.none()),
]


@st.composite
def kept_columns(draw: st.DrawFn, rows: int) -> pa.Table:
    """Some columns of any types, with nulls, in one or several pieces."""
    columns = {}
    for i, (kind, cells) in enumerate(draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))):
        column = pa.array(draw(st.lists(st.none() | cells, min_size=rows, max_size=rows)), kind)
        cut = draw(st.integers(0, rows))
        columns[f"k.{i}"] = pa.chunked_array([column.slice(0, cut), column.slice(cut)], kind)
    return pa.table(columns)


def read(path: Path) -> pa.Table:
    """An independent reader."""
    return pa.ipc.open_file(str(path)).read_all() if path.suffix == ".arrow" else parquet.read_table(path)


def part_of(job: Job, number: int = 0) -> Path:
    return job.directory.answers_part("posteriors", number, job.options["output_format"])


def write_evidence(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table.unify_dictionaries())


@given(st.data())
def test_kept_columns_come_out_as_they_went_in(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, 7))
    kept = data.draw(kept_columns(rows))
    smoke = data.draw(st.lists(st.sampled_from(["yes", "no", None, "bad"]), min_size=rows, max_size=rows))
    evidence = kept.append_column("smoke", pa.array(smoke, pa.string()))
    files = data.draw(st.sampled_from(WAYS))
    folder = tmp_path_factory.mktemp("kept")
    write_evidence(evidence, folder / "in.arrow")
    # In another order than the file's, one of them evidence too.
    keep = tuple(data.draw(st.permutations([*kept.column_names, "smoke"])))
    job = Job(
        ASIA,
        str(folder / "in.arrow"),
        str(folder / "out"),
        Query(targets=("lung", "xray")),
        partition_rows=data.draw(st.integers(1, 8)),
        keep=keep,
        output_format=files.format,
        layout=files.layout,
        compression=files.compression,
        csv=True,
    )
    manifest = run(job, HERE)
    parts = [read(job.directory.path / part.file) for part in manifest.parts]
    assert [part.rows for part in manifest.parts] == [part.num_rows for part in parts]
    assert {part.column_names[1 : 1 + len(keep)] == list(keep) for part in parts} == {True}
    found = pa.concat_tables(parts).select(list(keep))
    for name in keep:
        # Parquet has no null cells within maps, nor the milliseconds of a duration: only Arrow gives the very type.
        if files.format == "arrow":
            assert found[name].type == evidence[name].type
        assert found[name].to_pylist() == evidence[name].to_pylist()
    if rows:
        assert csv.read_csv(job.directory.csv("posteriors"), parse_options=LINES).num_rows == rows
    if "map" not in str(kept.schema):
        named = junctor.posteriors(ASIA, evidence, ["lung", "xray"], keep=keep)
        assert named.select(list(keep)).to_pylist() == found.to_pylist()
        assert named.select(list(keep)).schema.types == evidence.select(list(keep)).schema.types


@pytest.mark.parametrize("files", WAYS, ids=lambda files: "-".join((files.format, files.layout, files.compression)))
@pytest.mark.parametrize("precision", ["double", "single"])
def test_files_hold_what_the_table_has(files: AnswerFiles, precision: Any, tmp_path: Path) -> None:
    query = Query(precision=precision)
    table = tables_for(make_network(), query).table(make_answers(query), pa.array(["a", "b", "c", "d"]))
    path = tmp_path / f"part.{files.format}"
    AnswerWriter(files).write(table, path)
    found = read(path)
    assert read_facts(path) == (4, {"ok": 2, "impossible": 1, "invalid": 1}, None)
    expected = in_columns(table) if files.layout == "columns" else table
    assert found.schema.equals(expected.schema)
    assert found.schema.metadata == expected.schema.metadata
    assert found.to_pydict() == expected.to_pydict()
    pieces = list(batches_of(path, 3))
    assert max(piece.num_rows for piece in pieces) == 3
    assert pa.concat_tables(pieces).to_pydict() == expected.to_pydict()


@given(
    values=st.lists(st.sampled_from(["yes", "no", None, "bad"]), max_size=24),
    top=st.sampled_from([None, 2]),
    precision=st.sampled_from(["double", "single"]),
    layout=st.sampled_from(["lists", "columns"]),
)
@example(["yes", "no"] * 8, None, "double", "lists")
@example(["yes", "no"] * 8, 2, "single", "columns")
@example(["yes"] * 6 + [None, "bad"], None, "double", "lists")
def test_scores_of_rows_that_repeat_have_dictionaries(values: list[Any], top: Any, precision: Any, layout: Any) -> None:
    query: dict[str, Any] = {"precision": precision, "answers": "scores", "top": top, "probabilities": ["lung=yes"]}
    table = junctor.posteriors(ASIA, {"smoke": values}, ["lung", "xray"], device="cpu", **query)
    files = AnswerFiles("parquet", layout, "lz4")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.parquet"
        AnswerWriter(files).write(table, path)
        found, group = read(path), parquet.ParquetFile(path).metadata
    expected = in_columns(table) if layout == "columns" else table
    assert found.schema.equals(expected.schema)
    assert found.to_pydict() == expected.to_pydict()
    columns = [group.row_group(0).column(i) for i in range(group.num_columns)] if values else []
    # A null counts as zero.
    repeat = len({log or 0.0 for log in table["log_evidence"].to_pylist()}) <= len(values) / 4
    for column in columns:
        name = column.path_in_schema.removesuffix(".list.element")
        is_number = "_probability" in name or "_entropy" in name
        words = name.partition(".")[0] in ("lung", "xray", "status", "reason")
        assert column.has_dictionary_page == (words or (is_number and repeat))
        # Minima of what is asked serve nobody.
        assert column.is_stats_set == (name in ("case_id", "lung=yes", "log_evidence", "status", "reason"))


@pytest.mark.parametrize(("query", "expected"), [(Query(), "zstd"), (Query(answers="scores"), "lz4")])
def test_compression_suits_the_answers(query: Query, expected: str, job: Job) -> None:
    asked = job.but(query=query)
    run(asked, HERE)
    assert read_manifest(asked.directory).spec.compression == expected
    # Named, it is the same run.
    assert run(asked.but(compression=expected), HERE).reused_parts == 3


@given(rows=st.integers(0, 9), first=st.integers(0, 9), size=st.integers(1, 4), seed=st.integers(0, 99))
def test_columns_are_the_places_of_lists(rows: int, first: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for number in (pa.float32(), pa.float64()):
        cells = [None if rng.random() < 0.3 else [float(n) for n in rng.integers(0, 9, size)] for _ in range(rows)]
        lists = pa.array(cells, pa.list_(number, size)).slice(first)
        columns = columns_of_lists(lists)
        assert [column.type for column in columns] == [number] * size
        for place, column in enumerate(columns):
            column.validate(full=True)
            assert column.to_pylist() == [None if cell is None else cell[place] for cell in lists.to_pylist()]


def two(first: tuple[str, str], second: tuple[str, str]) -> Network:
    """Two variables with a name and a second state each."""
    drafts = [DraftVariable(name, ["s", state], Place("test")) for name, state in (first, second)]
    return build_network("two", "bayes", drafts, [DraftTable([d.name], [0.5, 0.5], Place("test")) for d in drafts])


def test_columns_of_states_have_names_of_their_own() -> None:
    network = two(("a", "b=c"), ("a=b", "c"))
    table = junctor.posteriors(network, [{}], device="cpu")
    kept = with_kept(table, pa.table({"a=s": [7]}))
    assert column_names(table.schema) == {"a": ["a=s", "a=b=c"], "a=b": ["a=b=s", "a=b=c_"]}
    assert column_names(kept.schema)["a"] == ["a=s_", "a=b=c"]
    columns = in_columns(table)
    assert columns.column_names == ["case_id", "a=s", "a=b=c", "a=b=s", "a=b=c_", "log_evidence", "status", "reason"]
    assert json.loads(columns.schema.metadata[METADATA_KEY])["columns"] == column_names(table.schema)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    table = pa.table({"smoke": ["yes", "no", None, "yes", "no"], "note": [1, 2, None, 4, 5], "status": list("abcde")})
    parquet.write_table(table, tmp_path / "in.parquet")
    targets = Query(targets=("lung", "dysp"))
    return Job(ASIA, str(tmp_path / "in.parquet"), str(tmp_path / "out"), targets, partition_rows=2, ignore_extra=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep": ("noet",)}, "there is no column 'noet', did you mean 'note'"),
        ({"keep": ("note", "note")}, "column 'note' to keep is named twice"),
        ({"keep": ("status",)}, "'status': the answers have a column of that name; rename it"),
        ({"keep": ("case_id",)}, "'case_id': the answers have a column of that name; case ids are in them anyway"),
        ({"keep": ("smoke",), "query": Query()}, "'smoke': .* for the target 'smoke'; name the targets without it"),
        ({"output_format": "parket"}, "found output format 'parket', expected 'parquet' or 'arrow'"),
        ({"layout": "wide"}, "found layout 'wide', expected 'lists' or 'columns'"),
        ({"compression": "gzip"}, "found compression 'gzip', expected 'zstd' or 'lz4' or 'none'"),
        ({"part_size": 100}, "found both a number of rows and a size"),
    ],
)
def test_what_cannot_be_written_is_refused(job: Job, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        run(job.but(**changes), HERE)


def test_kept_columns_that_are_there_twice_are_refused(job: Job, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("smoke,note,note\nyes,1,2\n")
    with pytest.raises(EvidenceError, match="there are 2 columns 'note', expected one"):
        run(job.but(evidence=str(tmp_path / "in.csv"), keep=("note",)), HERE)


def test_files_of_a_folder_agree_on_the_types_of_kept_columns(job: Job, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, note in (("a", [1]), ("b", ["x"])):
        parquet.write_table(pa.table({"smoke": ["yes"], "note": note}), folder / f"{name}.parquet")
    with pytest.raises(EvidenceError, match=r"'note' to keep is of type string, but .*a.parquet has int64"):
        run(job.but(evidence=str(folder), keep=("note",)), HERE)


def test_columns_without_a_type_have_that_of_other_files(job: Job, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, cells in {"a": [None, None], "b": [[1], None], "c": [None]}.items():
        table = pa.table({"smoke": ["yes"] * len(cells), "note": cells})
        write_evidence(table, folder / f"{name}.arrow")
    asked = job.but(evidence=str(folder), keep=("note",), partition_rows=2)
    run(asked, HERE)
    assert junctor.read_answers(asked.directory.path)["note"].to_pylist() == [None, None, [1], None, None]


def test_uai_evidence_has_no_columns_to_keep(job: Job, tmp_path: Path) -> None:
    (tmp_path / "in.evid").write_text("1\n1 0 0\n")
    with pytest.raises(EvidenceError, match="UAI evidence has no columns"):
        run(job.but(evidence=str(tmp_path / "in.evid"), keep=("note",)), HERE)


def test_types_that_parquet_has_not_need_the_other_format(job: Job, tmp_path: Path) -> None:
    spans = pa.array([pa.MonthDayNano([1, 2, 3])])
    write_evidence(pa.table({"smoke": ["yes"], "span": spans}), tmp_path / "in.arrow")
    asked = job.but(evidence=str(tmp_path / "in.arrow"), keep=("span",))
    with pytest.raises(
        EvidenceError, match=r"'span': Parquet has no cells of type month_day_nano.*--output-format arrow"
    ):
        run(asked, HERE)
    run(asked.but(output_format="arrow"), HERE)
    assert read(part_of(asked.but(output_format="arrow")))["span"].combine_chunks().equals(spans)


@pytest.mark.parametrize("kind", [pa.binary(0), pa.dictionary(pa.int8(), pa.binary(0))], ids=str)
def test_cells_of_no_bytes_need_the_other_format(job: Job, tmp_path: Path, kind: pa.DataType) -> None:
    empty = pa.array([b"", None], pa.binary(0))
    cells = empty.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else empty
    write_evidence(pa.table({"smoke": ["yes", "no"], "k": cells}), tmp_path / "in.arrow")
    asked = job.but(evidence=str(tmp_path / "in.arrow"), keep=("k",), csv=True)
    with pytest.raises(EvidenceError, match=r"'k': Parquet has no cells of type .*--output-format arrow"):
        run(asked, HERE)
    run(asked.but(output_format="arrow"), HERE)
    assert junctor.read_answers(asked.directory.path)["k"].to_pylist() == [b"", None]


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_dictionaries_of_views_are_kept(job: Job, tmp_path: Path, format: Any) -> None:
    words = pa.array(["yes", "no", "a word of more than twelve bytes"], pa.string_view())
    cells = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2, 0], pa.uint32()), words)
    lists = pa.ListArray.from_arrays([0, 2, 2, 3, 5, 5], cells)
    table = pa.table(
        {"smoke": cells, "id": cells, "record": pa.StructArray.from_arrays([cells], ["a"]), "lists": lists}
    )
    write_evidence(table, tmp_path / "in.arrow")
    kept = ("smoke", "record", "lists")
    asked = job.but(evidence=str(tmp_path / "in.arrow"), keep=kept, case_id="id", csv=True)
    asked = asked.but(query=Query("posteriors", ("lung",)), partition_rows=2, output_format=format)
    run(asked, HERE)
    found = junctor.read_answers(asked.directory.path)
    assert found["case_id"].to_pylist() == cells.to_pylist()
    for name in kept:
        assert found[name].to_pylist() == table[name].to_pylist()
    assert found["status"].to_pylist() == ["ok", "ok", "ok", "invalid", "ok"]
    assert csv.read_csv(asked.directory.csv("posteriors")).num_rows == 5


@pytest.mark.parametrize("words", [[[1, 2], [3]], [{"a": 1}, {"a": 2}]], ids=["lists", "records"])
def test_dictionaries_of_nested_cells_need_the_other_format(job: Job, tmp_path: Path, words: list[Any]) -> None:
    cells = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(words))
    write_evidence(pa.table({"smoke": ["yes", "no", "yes"], "k": cells}), tmp_path / "in.arrow")
    asked = job.but(evidence=str(tmp_path / "in.arrow"), keep=("k",), csv=True)
    with pytest.raises(EvidenceError, match=r"'k': Parquet has no cells of type .*--output-format arrow"):
        run(asked, HERE)
    run(asked.but(output_format="arrow"), HERE)
    assert junctor.read_answers(asked.directory.path)["k"].to_pylist() == [*words, None]
    assert csv.read_csv(asked.directory.csv("posteriors"))["k"].to_pylist() == [*map(json.dumps, words), ""]


WORDS = pa.array(["b", "d"])
SPARSE = pa.UnionArray.from_sparse(
    pa.array([0, 1, 0, 1, 0], pa.int8()), [pa.array(range(5)), pa.array(["a", "b", None, "d", "e"])]
)
UNIONS = {
    "sparse": SPARSE,
    "dense": pa.UnionArray.from_dense(
        pa.array([0, 1, 0, 1, 0], pa.int8()), pa.array([0, 0, 1, 1, 2], pa.int32()), [pa.array([0, 2, 4]), WORDS]
    ),
    "record": pa.StructArray.from_arrays([SPARSE], ["u"]),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2, 5], pa.int32()), WORDS),
    "words": pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 1, 1, 0]), pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), WORDS)
    ),
}


@pytest.mark.parametrize("rejects", ["bad.csv", "bad.parquet"])
@pytest.mark.parametrize("kind", UNIONS)
def test_unions_and_runs_go_to_arrow(job: Job, tmp_path: Path, kind: str, rejects: str) -> None:
    cells = UNIONS[kind]
    table = pa.table({"smoke": ["yes", "no", "bad", "yes", "bad"], "k": cells})
    write_evidence(table, tmp_path / "in.arrow")
    file = tmp_path / rejects
    asked = job.but(evidence=str(tmp_path / "in.arrow"), keep=("k",), partition_rows=2, rejects=str(file))
    with pytest.raises(EvidenceError, match=r"'k': Parquet has no cells of type .*--output-format arrow"):
        run(asked, HERE)
    asked = asked.but(output_format="arrow", csv=True)
    run(asked, HERE)
    found = junctor.read_answers(asked.directory.path)["k"]
    assert found.type == cells.type
    assert found.to_pylist() == cells.to_pylist()
    assert csv.read_csv(asked.directory.csv("posteriors")).num_rows == 5
    bad = csv.read_csv(file) if rejects.endswith("csv") else parquet.read_table(file)
    # Few functions of Arrow take such cells.
    texts = [json.dumps(cells[row].as_py()) for row in (2, 4)]
    assert [str(cell) for cell in bad["k"].to_pylist()] == texts


@pytest.mark.parametrize("layout", ["plain", "record", "list", "slice"])
@pytest.mark.parametrize("output_format", ["parquet", "arrow"])
@pytest.mark.parametrize(
    "words", [[5, None, 7], ["a", None, "b"], [None, None, None]], ids=["numbers", "texts", "null"]
)
def test_null_in_a_dictionary_is_null(
    job: Job, tmp_path: Path, words: list[object], output_format: OutputFormat, layout: str
) -> None:
    cells = pa.DictionaryArray.from_arrays(pa.array([2, 1, None, 0, 1, 2, 0], pa.uint8()), pa.array(words))
    expected = [None if at is None else words[at] for at in (2, 1, None, 0, 1, 2, 0)]
    column: pa.Array = cells
    if layout == "record":
        column = pa.StructArray.from_arrays([cells], ["x"])
    elif layout == "list":
        column = pa.ListArray.from_arrays(pa.array(range(8), pa.int32()), cells)
    start = 2 if layout == "slice" else 0
    table = pa.table({"smoke": ["yes"] * 7, "k": column}).slice(start)
    # Batches of a stream have dictionaries of their own.
    with pa.ipc.new_stream(str(tmp_path / "in.arrows"), table.schema) as stream:
        stream.write_table(table, max_chunksize=3)
        if layout == "plain":
            other = pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.uint8()), pa.array([words[0], None]))
            stream.write_table(pa.table({"smoke": ["yes"] * 2, "k": other}, table.schema))
            expected += [None, words[0]]
    asked = job.but(
        evidence=str(tmp_path / "in.arrows"), keep=("k",), partition_rows=4, output_format=output_format, csv=True
    )
    run(asked, HERE)
    found = junctor.read_answers(asked.directory.path)["k"].to_pylist()
    wrapped = {"record": lambda cell: {"x": cell}, "list": lambda cell: [cell]}.get(layout, lambda cell: cell)
    assert found == [wrapped(cell) for cell in expected[start:]]
    named = junctor.posteriors(ASIA, table, ["lung"], keep="k")
    assert named["k"].to_pylist() == column.slice(start).to_pylist()


def test_words_within_lists_are_kept_from_several_row_groups(job: Job, tmp_path: Path) -> None:
    cells = pa.ListArray.from_arrays([0, 1, 1, 3, 4], pa.array(["a", "b", None, "c"]).dictionary_encode())
    parquet.write_table(pa.table({"smoke": ["yes"] * 4, "k": cells}), tmp_path / "in.parquet", row_group_size=1)
    asked = job.but(evidence=str(tmp_path / "in.parquet"), keep=("k",), partition_rows=4)
    run(asked, HERE)
    assert junctor.read_answers(asked.directory.path)["k"].to_pylist() == [["a"], [], ["b", None], ["c"]]


def test_cells_of_csv_are_kept_as_text(job: Job, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text('smoke,note\nyes,01\nno,\n,"a,b"\n')
    asked = job.but(evidence=str(tmp_path / "in.csv"), keep=("note", "smoke"))
    run(asked, HERE)
    parts = pa.concat_tables([read(part_of(asked, i)) for i in range(2)])
    assert parts["note"].type == parts["smoke"].type == pa.string()
    assert parts["note"].to_pylist() == ["01", "", "a,b"]
    assert parts["smoke"].to_pylist() == ["yes", "no", ""]


@pytest.mark.parametrize("method", ["sampling", "auto"])
def test_sampled_answers_too(job: Job, method: Any) -> None:
    sampled = replace(job.query, method=method, sampling=Sampling("lw", 200))
    asked = job.but(query=sampled, keep=("note",), layout="columns", output_format="arrow", csv=True)
    run(asked, HERE)
    names = read(part_of(asked)).column_names
    assert names[:6] == ["case_id", "note", "lung=yes", "lung=no", "lung_error=yes", "lung_error=no"]
    text = (asked.directory.path / "posteriors.csv").read_text().splitlines()
    assert len(text) == 6
    assert text[0].startswith('"case_id","note","lung=yes"')


def test_explanations_keep_columns_too(job: Job) -> None:
    asked = job.but(query=replace(job.query, kind="mpe"), keep=("smoke", "note"), output_format="arrow")
    run(asked, HERE)
    assert pa.concat_tables([read(asked.directory.answers_part("mpe", i, "arrow")) for i in range(3)]).column_names[
        :4
    ] == ["case_id", "smoke", "note", "lung"]
    table = junctor.most_probable(ASIA, {"smoke": ["yes"], "x": [{"y": 1}]}, ["lung"], keep="x")
    assert table.column_names == ["case_id", "x", "lung", "log_probability", "status", "reason"]
    assert junctor.Model(ASIA).posteriors({"smoke": ["yes"]}, ["lung"], keep=["smoke"])["smoke"].to_pylist() == ["yes"]


@pytest.mark.parametrize("files", WAYS[::5])
def test_a_lost_part_is_made_again_byte_for_byte(job: Job, files: AnswerFiles) -> None:
    asked = job.but(
        keep=("note",), output_format=files.format, layout=files.layout, compression=files.compression, csv=True
    )
    manifest = run(asked, HERE)
    whole = {path: path.read_bytes() for path in asked.directory.path.rglob("part-*")}
    # Evidence, statistics and answers.
    assert len(whole) == 3 * 3
    part_of(asked, 1).unlink()
    again = run(asked, HERE)
    assert again.reused_parts == 2
    assert {path: path.read_bytes() for path in asked.directory.path.rglob("part-*")} == whole
    assert read_manifest(asked.directory).parts == manifest.parts


def test_another_way_to_write_is_another_run(job: Job) -> None:
    run(job.but(keep=("note",)), HERE)
    for changes, message in [
        ({"keep": ()}, "keep was note, now"),
        ({"output_format": "arrow"}, "output_format was 'parquet', now 'arrow'"),
        ({"layout": "columns"}, "layout was 'lists', now 'columns'"),
        ({"compression": "lz4"}, "compression was 'zstd', now 'lz4'"),
    ]:
        with pytest.raises(RunError, match=message):
            run(job.but(**{"keep": ("note",), **changes}), HERE)
    other = job.but(output_format="arrow", overwrite=True)
    run(other, HERE)
    assert not list(job.directory.path.rglob("posteriors/*.parquet"))
    assert read_partition(job.directory.evidence_part(1), junctor.read_network(ASIA), kept=True).kept is None


@pytest.mark.parametrize("name", ["posteriors/part-00001.arrow", "evidence/part-00001.parquet"])
def test_a_damaged_file_is_named_and_made_again(job: Job, name: str, caplog: pytest.LogCaptureFixture) -> None:
    asked = job.but(keep=("note",), output_format="arrow")
    made = run(asked, HERE).parts
    damaged = asked.directory.path / name
    damaged.write_bytes(damaged.read_bytes()[:100])
    asked.directory.manifest.unlink()
    if name.startswith("evidence"):
        part_of(asked, 1).unlink()
    assert run(asked, HERE).parts == made
    assert "part-00001" in caplog.text


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("files", WAYS[::3])
def test_no_row_and_one(job: Job, tmp_path: Path, rows: int, files: AnswerFiles) -> None:
    evidence = read(Path(job.evidence)).slice(0, rows)
    parquet.write_table(evidence, tmp_path / "few.parquet")
    asked = job.but(evidence=str(tmp_path / "few.parquet"), keep=("note",), csv=True)
    asked = asked.but(output_format=files.format, layout=files.layout, compression=files.compression)
    assert run(asked, HERE).rows == rows
    table = read(part_of(asked))
    assert table.num_rows == rows
    assert table["note"].type == pa.int64()
    assert len((asked.directory.path / "posteriors.csv").read_text().splitlines()) == 1 + rows


def test_the_record_of_an_old_run_stays_as_it_was() -> None:
    spec = RunSpec("n", "e", "posteriors", None, "double", 7, None, False, False, "0")
    assert not {"keep", "output_format", "layout", "compression"} & spec_record(spec).keys()
    assert spec_record(replace(spec, keep=("a",)))["keep"] == ("a",)


@given(size=st.integers(1, 2**40), states=st.integers(2, 50))
@example(size=1, states=2)
def test_parts_have_the_size_that_was_asked(size: int, states: int) -> None:
    network, query = make_network(states=states), Query()
    rows = default_partition_rows(network, query, size)
    assert rows & (rows - 1) == 0
    width = answer_width(network, query)
    assert rows == 1 or rows * width <= size < 2 * rows * width
