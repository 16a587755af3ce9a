"""Sequences from tables: what lists mean, which sequences are invalid, how they become partitions."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from helpers.hmm_models import random_model
from junctor.hmm import build_model, posteriors, viterbi
from junctor.hmm.columns import SequenceColumns
from junctor.hmm.model import HiddenMarkovModel
from junctor.hmm.results import read_sequences, write_sequences
from junctor.hmm.sequences import encode_sequences, open_sequences
from junctor.model.errors import EvidenceError, RunError
from pyarrow import feather, parquet


def named() -> HiddenMarkovModel:
    model = random_model(2, 3)
    return build_model(model.start, model.transition, model.emission, ["hot", "cold"], ["one", "two", "three"])


WORDS = pa.DictionaryArray.from_arrays(
    pa.array([0, None, 2, 1, 3, 0, None], pa.uint32()), pa.array(["one", "two", "three", "four"], pa.string_view())
)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([["one", None, "three"], ["two"], [], None, ["four", "one"], ["?"]]),
        pa.array([[0, None, 2], [1], [], None, [4, 0], [None]], pa.large_list(pa.int8())),
        pa.array([["one", None, "three"], ["two"], [], None, ["four", "one"], [""]], pa.list_view(pa.string())),
        pa.ListArray.from_arrays([0, 3, 4, None, 4, 6, 7], WORDS),
        pa.ListViewArray.from_arrays([0, 3, 4, None, 4, 6], [3, 1, 0, 0, 2, 1], WORDS),
    ],
)
def test_symbols_by_name_and_by_index(column: pa.Array) -> None:
    batch = encode_sequences(column, named()).batch
    assert batch.symbols is not None
    assert batch.symbols.tolist()[:4] == [0, -1, 2, 1]
    assert batch.lengths.tolist() == [3, 1, 0, 0, 2, 1]
    assert batch.invalid is not None
    assert set(batch.invalid) == {2, 3, 4}
    assert batch.invalid[2] == "the sequence is empty"
    assert batch.invalid[3] == "there is no sequence"
    assert batch.invalid[4].startswith("step 0: unknown symbol ")
    assert batch.invalid[4].endswith("symbols are one, two, three")


def test_slices_of_a_column_are_read_from_where_they_begin() -> None:
    column = pa.array([["one"], ["two", "three"], None, ["three"]]).slice(1)
    batch = encode_sequences(column, named()).batch
    assert batch.symbols is not None
    assert (batch.symbols.tolist(), batch.lengths.tolist(), batch.invalid) == (
        [1, 2, 2],
        [2, 0, 1],
        {1: "there is no sequence"},
    )


def test_tables_of_any_library() -> None:
    columns = {"x": [["one", "three"], ["two"]], "case_id": ["a", "b"]}
    for table in (columns, pd.DataFrame(columns), pa.table(columns), pa.record_batch(columns)):
        encoded = encode_sequences(table, named())
        assert encoded.batch.symbols is not None
        assert encoded.batch.symbols.tolist() == [0, 2, 1]
        assert encoded.case_ids.to_pylist() == ["a", "b"]
    logs = np.zeros((2, 3, 2))
    for table in (logs, {"x": logs}, pd.DataFrame({"x": list(logs)}), pd.Series(list(logs))):
        batch = encode_sequences(table, build_model([1, 0], [[1, 0], [0, 1]])).batch
        assert batch.likelihoods is not None
        assert batch.likelihoods.shape == (6, 2)


def test_log_likelihoods() -> None:
    inf = float("inf")
    rows: list[Any] = [[[0.0, -1.0], None], [[-inf, -inf]], [[0.0]], [[0.0, inf]], [[0.0, None]], [[0.0, float("nan")]]]
    rows.append([[1e308, 0.0]])
    batch = encode_sequences(rows, build_model([1, 0], [[1, 0], [0, 1]])).batch
    assert batch.likelihoods is not None
    np.testing.assert_array_equal(batch.likelihoods[:3], [[0, -1], [0, 0], [-inf, -inf]])
    assert batch.invalid == {
        2: "step 0: found 1 log-likelihoods, expected 2, one for each state",
        **dict.fromkeys((3, 4, 5, 6), "step 0: a log-likelihood is missing, or above 1e+30"),
    }


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("answer", [viterbi, posteriors])
def test_sums_of_log_likelihoods_do_not_overflow(answer: Callable[..., pa.Table], precision: str) -> None:
    model = build_model([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]])
    lowest, lowest_single = float(np.finfo(np.float64).min), float(np.finfo(np.float32).min)
    steps = [[1e30, -1e30], [lowest, lowest], [lowest_single, 0.0], [-1e30, -1e30], [1e31, 0.0]]
    answers = answer(model, [[step] * 300 for step in steps], precision).to_pylist()
    assert [row["status"] for row in answers] == ["ok", "impossible", "ok", "ok", "invalid"]
    sums = [row.get("log_probability", row.get("log_likelihood")) for row in answers]
    np.testing.assert_allclose([sums[0], sums[2], sums[3]], [3e32, 300 * math.log(0.5), -3e32])


def test_log_likelihoods_as_arrays() -> None:
    model = build_model([1, 0], [[1, 0], [0, 1]])
    rows = np.array([[[0.0, -1.0], [-2.0, 0.0]], [[-3.0, 0.0], [0.0, 0.0]]])
    for sequences in (rows, list(rows), [rows[0].tolist(), rows[1]]):
        batch = encode_sequences(sequences, model).batch
        assert batch.likelihoods is not None
        np.testing.assert_array_equal(batch.likelihoods, rows.reshape(-1, 2))
        assert batch.lengths.tolist() == [2, 2]


def three_states() -> HiddenMarkovModel:
    transition = [[0.5, 0.2, 0.3], [0.3, 0.5, 0.2], [0.2, 0.3, 0.5]]
    return build_model([0.2, 0.4, 0.4], transition, [[0.5, 0.5], [0.4, 0.6], [0.7, 0.3]])


@pytest.mark.parametrize("kind", [np.int64, np.float64, np.bool_])
def test_arrays_whose_rows_may_be_steps_are_refused(kind: Any) -> None:
    # As hmmlearn takes them: a row for each step.
    for rows, words in (
        (np.array([[1], [1], [0]], kind), "3 rows of one step"),
        (np.eye(2, dtype=kind)[[1, 1, 0]], "3 one-hot rows"),
    ):
        with pytest.raises(
            EvidenceError, match=rf"an array of {words}, which may be one sequence, or 3: lengths=\[3\]"
        ):
            viterbi(three_states(), rows)
    for rows in (np.array([[1, 1, 0]], kind), np.array([[1, 0, 1, 0], [0, 1, 1, 0]], kind)):
        batch = encode_sequences(rows.astype(int), three_states()).batch
        assert batch.lengths.tolist() == [rows.shape[1]] * len(rows)


@pytest.mark.parametrize(
    "steps",
    [
        [1, 1, 0],
        np.array([1, 1, 0]),
        np.array([[1], [1], [0]]),
        np.eye(2)[[1, 1, 0]],
        pd.Series([1, 1, 0]),
        pd.DataFrame({"x": [1, 1, 0]}),
        pa.array([1, 1, 0]),
        pa.chunked_array([[1], [1, 0]]),
        np.log(np.array([[0.5, 0.6, 0.3], [0.5, 0.6, 0.3], [0.5, 0.4, 0.7]])),
    ],
)
def test_steps_of_sequences_one_after_the_other(steps: Any) -> None:
    (row,) = viterbi(three_states(), steps, lengths=[3]).to_pylist()
    assert row["path"] == [1, 1, 1]
    # By hand, or over all 27 paths: .4 * .6 * .5 * .6 * .5 * .4.
    assert math.exp(row["log_probability"]) == pytest.approx(0.0144, rel=1e-12)
    rows = posteriors(three_states(), steps, lengths=np.array([2, 0, 1])).to_pylist()
    assert [len(each["posterior"] or []) for each in rows] == [2, 0, 1]
    assert [each["status"] for each in rows] == ["ok", "invalid", "ok"]


def test_labels_of_steps_one_after_the_other() -> None:
    batch = encode_sequences(np.array([[1], [0], [1]]), three_states(), [2, None, 0], [2, 1]).batch
    assert batch.labels is not None
    assert (batch.labels.tolist(), batch.lengths.tolist()) == ([2, -1, 0], [2, 1])


@pytest.mark.parametrize(
    ("steps", "lengths", "message"),
    [
        ([1, 1, 0], [2], r"lengths: found \[2\], expected the steps of each sequence, 3 in all \(sequences\)"),
        ([1, 1, 0], 3, "lengths: found 3, expected"),
        ([1, 1, 0], [4, -1], "lengths: found"),
        ([1, 1, 0], [1.5, 1.5], "lengths: found"),
        (np.zeros((3, 4)), [3], r"of shape \(3, 4\) with lengths, expected one column, one-hot rows, or a log-"),
    ],
)
def test_lengths_that_do_not_fit(steps: Any, lengths: Any, message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        viterbi(three_states(), steps, lengths=lengths)


def test_groups_of_pandas() -> None:
    frame = pd.DataFrame({"who": ["b", "a", "b"], "day": [1, 1, 2], "x": ["one", "two", "three"]})
    encoded = encode_sequences(frame.groupby("who")["x"], named())
    assert (encoded.case_ids.to_pylist(), encoded.batch.lengths.tolist()) == (["a", "b"], [1, 2])
    assert encoded.batch.symbols is not None
    assert encoded.batch.symbols.tolist() == [1, 0, 2]
    assert encode_sequences(frame.groupby(["who"])["x"], named()).case_ids.to_pylist() == ["a", "b"]
    both = encode_sequences(frame.groupby(["who", "day"])["x"], named())
    assert both.case_ids.to_pylist() == ["('a', 1)", "('b', 1)", "('b', 2)"]
    with pytest.raises(EvidenceError, match=r"found groups of tables, expected those of one column: frame\.groupby"):
        encode_sequences(frame.groupby("who"), named())


def test_one_hot_rows_and_probabilities_are_no_log_likelihoods() -> None:
    rows: list[Any] = [np.eye(3)[[[0, 1], [2, 2]]], [[[0.25, 0.25, 0.5], None]], [np.eye(3)[[0, 1]]]]
    for sequences in rows:
        with pytest.raises(EvidenceError, match="the numbers of every step are shares, from 0 to 1 with the sum 1"):
            posteriors(three_states(), sequences)
    assert posteriors(three_states(), [[[0.0, 1.0, 0.0], [0.0, -1.0, 0.0]]])["status"].to_pylist() == ["ok"]


def test_shapes_that_may_be_meant_otherwise_are_told(caplog: pytest.LogCaptureFixture) -> None:
    nan = math.nan
    for sequences, told in (
        ([[1], [0]], "all 2 sequences have one step: a single sequence is a list in a list"),
        (np.array([[1, 0, nan], [1, 1, 1]]), "1 of 2 rows of the array end without an observation"),
        ([[1, 0, None], [1, 1, 1]], ""),
        ([[1]], ""),
        (np.array([[1, nan], [nan, nan]]), ""),
    ):
        caplog.clear()
        viterbi(three_states(), sequences)
        assert told in caplog.text
        assert bool(told) == bool(caplog.text)


@pytest.mark.parametrize("answer", [viterbi, posteriors])
def test_an_unknown_precision_is_refused(answer: Callable[..., pa.Table]) -> None:
    with pytest.raises(EvidenceError, match="found precision 'half', expected 'double' or 'single' or 'log'"):
        answer(build_model([1.0], [[1.0]], [[1.0]]), [["0"]], precision="half")


def test_masked_arrays_and_series_among_sequences() -> None:
    model = build_model([0.5, 0.5], [[1, 0], [0, 1]], [[0.5, 0.5], [0.1, 0.9]])
    masked = np.ma.array([[0, 1], [1, 0]], mask=[[False, True], [False, False]])  # type: ignore[no-untyped-call]
    for sequences in (masked, list(masked), [pd.Series([0, None]), pd.Series([1, 0])]):
        batch = encode_sequences(sequences, model).batch
        expected = encode_sequences([[0, None], [1, 0]], model).batch
        np.testing.assert_array_equal(batch.symbols, expected.symbols)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([1, 2], "of type int64, expected lists of steps: a single sequence is a list in a list"),
        ("01", r"of type string, expected lists of steps: .* letters of a text are list\(text\)"),
        (["01", "1"], "of type string, expected lists"),
        (pa.table({"a": [1]}), "found no column of lists; where rows are steps"),
        ([[0]], "bring"),
        ({"a": [[0], [2**64]]}, "sequences cannot be read: Python int too large"),
        ([["0", 1]], "read: sequence 0, step 1: found 1, expected text as before \\(None where nothing is observed\\)"),
        ([None, [None, 0.5], ["0"]], "sequence 2, step 0: found '0', expected numbers as before"),
        ([["0"], np.array([1])], "sequence 1, step 0: found .*1.*, expected text as before"),
        ([["0", math.nan]], "sequence 0, step 1: found nan, expected text"),
        ([[1], [True]], "sequence 1, step 0: found True, expected numbers"),
        ([[[0.0, 0.0], 1]], "sequence 0, step 1: found 1, expected lists"),
        ({"a": [["0"], "0" * 50]}, f"sequence 1: found '{'0' * 39}..., expected a list of steps"),
        ({"a": 5}, "sequences cannot be read"),
    ],
)
def test_what_is_no_sequence_is_refused(sequences: Any, message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        encode_sequences(sequences, build_model([1, 0], [[1, 0], [0, 1]]))


def write(table: pa.Table, path: Path) -> Path:
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=7)
    else:
        feather.write_feather(table, path, compression="uncompressed")
    return path


@pytest.mark.parametrize("name", ["s.parquet", "s.arrow"])
@pytest.mark.parametrize(("rows", "steps"), [(4, 10**9), (100, 9), (100, 1), (100, 10**9)])
def test_partitions_have_every_sequence_once(tmp_path: Path, name: str, rows: int, steps: int) -> None:
    rng = np.random.default_rng(0)
    lists = [rng.integers(0, 3, n).tolist() for n in rng.integers(0, 6, 30)]
    table = pa.table({"case_id": [f"c{n}" for n in range(30)], "x": pa.array(lists, pa.list_(pa.int64()))})
    source = open_sequences(write(table, tmp_path / name), named())
    parts = list(source.partitions(rows, steps))
    for n, part in enumerate(parts):
        write_sequences(part, tmp_path / f"{n}.parquet")
        again = read_sequences(tmp_path / f"{n}.parquet")
        np.testing.assert_array_equal(again.batch.symbols, part.batch.symbols)  # type: ignore[arg-type]
        assert (again.batch.invalid, again.first_row) == (part.batch.invalid, part.first_row)
        assert again.case_ids.equals(part.case_ids)
        assert len(part.batch) <= rows
        assert len(part.batch) == 1 or part.batch.starts[-1] <= steps
    found = [s for p in parts for s in np.split(p.batch.symbols, p.batch.starts[1:-1])]  # type: ignore[arg-type, call-overload]
    assert [each.tolist() for each in found] == lists
    assert pa.concat_arrays([part.case_ids for part in parts]).to_pylist() == [f"c{n}" for n in range(30)]


def test_likelihoods_survive_a_partition_file(tmp_path: Path) -> None:
    model = build_model([1, 0], [[1, 0], [0, 1]])
    part = encode_sequences([[[0.0, -1.0], [-2.0, 0.5]], [[0.0]], [[1.0, 2.0]]], model)
    write_sequences(part, tmp_path / "p.parquet")
    again = read_sequences(tmp_path / "p.parquet")
    np.testing.assert_array_equal(again.batch.likelihoods, part.batch.likelihoods)  # type: ignore[arg-type]
    assert again.batch.starts.tolist() == part.batch.starts.tolist()
    assert again.batch.invalid == part.batch.invalid


def test_columns_are_chosen(tmp_path: Path) -> None:
    table = pa.table({"a": [["one"]], "b": [["two"]], "n": [7]})
    path = write(table, tmp_path / "s.parquet")
    with pytest.raises(EvidenceError, match=r"found the list columns \['a', 'b'\], expected one; --column names it"):
        open_sequences(path, named())
    with pytest.raises(EvidenceError, match="no list column 'n'"):
        open_sequences(path, named(), SequenceColumns("n"))
    with pytest.raises(EvidenceError, match="no column 'm' for the case ids"):
        open_sequences(path, named(), SequenceColumns("a", "m"))
    (part,) = open_sequences(path, named(), SequenceColumns("b", "n")).partitions(9, 9)
    assert (part.batch.symbols.tolist(), part.case_ids.to_pylist()) == ([1], [7])  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_case_ids_may_be_views(tmp_path: Path, name: str, kind: pa.DataType) -> None:
    ids = pa.array([b"p", None]).cast(kind)
    table = pa.table({"case_id": ids, "x": [[0], [1]]})
    if name == "t.parquet":
        parquet.write_table(table, tmp_path / name)
    else:
        with pa.ipc.new_file(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
    (part,) = open_sequences(tmp_path / name, named()).partitions(9, 9)
    assert part.case_ids.equals(ids)


def test_columns_of_one_name_are_told(tmp_path: Path) -> None:
    lists, numbers = pa.array([["one"]]), pa.array([1])
    for names, columns, message in (
        (["s", "s"], [lists, lists], "found 2 columns 's', expected one"),
        (["s", "case_id", "case_id"], [lists, numbers, numbers], "found 2 columns 'case_id', expected one"),
    ):
        table = pa.table(columns, names)
        with pytest.raises(EvidenceError, match=rf"s\.parquet: {message}"):
            open_sequences(write(table, tmp_path / "s.parquet"), named())
        # A position of none would be that of the last column.
        with pytest.raises(EvidenceError, match=message):
            viterbi(named(), table)
    path = write(pa.table([lists, numbers, numbers], ["s", "w", "w"]), tmp_path / "s.parquet")
    with pytest.raises(EvidenceError, match=r"s\.parquet: found 2 columns 'w', expected one"):
        open_sequences(path, named()).weights("w")


@pytest.mark.parametrize("step", [[[0.0, 0.0]], ["a", "b"], [{"p": 0.0}, {"p": 0.0}]])
def test_steps_of_something_else_are_told(tmp_path: Path, step: Any) -> None:
    with pytest.raises(EvidenceError, match=r"found lists of .* for the steps, expected symbols, or lists of log-"):
        viterbi(named(), [[step]])
    path = write(pa.table({"s": pa.array([[step]])}), tmp_path / "s.parquet")
    with pytest.raises(EvidenceError, match=r"s\.parquet: found lists of .* for the steps"):
        list(open_sequences(path, named()).partitions(9, 9))


def test_files_may_have_text_and_lists_of_any_type(tmp_path: Path) -> None:
    texts = [pa.string(), pa.large_string(), pa.string_view()]
    lists: list[Callable[[pa.DataType], pa.DataType]] = [pa.list_, pa.large_list, pa.list_]
    for number, (text, of) in enumerate(zip(texts, lists, strict=True)):
        table = pa.table({"case_id": pa.array([f"{number}"], text), "x": pa.array([["one", "two"]], of(text))})
        parquet.write_table(table, tmp_path / f"{number}.parquet")
    (part,) = open_sequences(tmp_path, named()).partitions(9, 9)
    assert part.case_ids.equals(pa.array(["0", "1", "2"]))
    assert part.batch.symbols.tolist() == [0, 1] * 3  # type: ignore[union-attr]


def test_files_of_other_columns_say_which(tmp_path: Path) -> None:
    first = pa.table({"s": pa.array([[0]], pa.list_(pa.int64()))})
    write(first, tmp_path / "a.parquet")
    for table, message in (
        (first.append_column("n", pa.array([1])), r"found the columns \['s', 'n'\], but in .*a\.parquet \['s'\]"),
        (pa.table({"s": [[]]}), r"column 's' of type list<.*null>, but in .*a\.parquet list<.*int64>"),
    ):
        write(table, tmp_path / "b.parquet")
        with pytest.raises(EvidenceError, match=message):
            open_sequences(tmp_path, named())
    # What a writer says about itself is no difference.
    write(first.replace_schema_metadata({"writer": "another"}), tmp_path / "b.parquet")
    assert len(open_sequences(tmp_path, named()).tables) == 2


def test_strict_names_the_row(tmp_path: Path) -> None:
    path = write(pa.table({"a": [["one"], ["uno"]]}), tmp_path / "s.parquet")
    with pytest.raises(EvidenceError, match=r"s.parquet: row 2: step 0: unknown symbol 'uno'"):
        list(open_sequences(path, named(), strict=True).partitions(9, 9))
    # The row of the file that is named, also behind other files.
    write(pa.table({"a": [["one"], ["one"], ["one"]]}), tmp_path / "r.parquet")
    with pytest.raises(EvidenceError, match=r"s.parquet: row 2: step 0: unknown symbol 'uno'"):
        list(open_sequences(tmp_path, named(), strict=True).partitions(9, 9))


def test_files_that_are_something_else(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "a.evid").write_text("0\n")
    (tmp_path / "b.parquet").write_text("no")
    with pytest.raises(EvidenceError, match=r"a\.csv: found no column of lists; where rows are steps, --case-id names"):
        open_sequences(tmp_path / "a.csv", named())
    with pytest.raises(EvidenceError, match="found evid, expected sequences as Parquet, Arrow, CSV or TSV"):
        open_sequences(tmp_path / "a.evid", named())
    with pytest.raises(EvidenceError, match="damaged"):
        open_sequences(tmp_path / "b.parquet", named())
    with pytest.raises(RunError, match="cannot be read as encoded sequences"):
        read_sequences(tmp_path / "b.parquet")
