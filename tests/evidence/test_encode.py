"""Tables in memory to evidence: the reference reader, and every error's words."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
from helpers.encoding import encode_table
from helpers.evidence_reference import (
    STATES,
    DrawnTable,
    as_rows,
    assert_same,
    drawn_tables,
    reference_rows,
    small_network,
)
from hypothesis import assume, given
from hypothesis import strategies as st
from junctor.evidence.batch import UNOBSERVED
from junctor.evidence.encode import EncodedPartition, as_arrow
from junctor.evidence.mapping import read_mapping
from junctor.model.errors import EvidenceError
from junctor.model.network import Network

NETWORK = small_network()


def encode(evidence: Any, network: Network = NETWORK, **options: Any) -> EncodedPartition:
    return encode_table(as_arrow(evidence), network, **options)


def states(encoded: EncodedPartition, name: str, network: Network = NETWORK) -> list[int]:
    return encoded.batch.states[network.index[name]].tolist()


@given(drawn_tables())
def test_equals_the_row_by_row_reference(table: DrawnTable) -> None:
    encoded = encode_table(table.arrow(), NETWORK)
    for found, expected in zip(as_rows(encoded.batch), reference_rows(table), strict=True):
        # Where a variable makes its row invalid, what its cells were is nobody's business.
        wrong = expected[2]
        assert found[2] == wrong
        for i in (0, 1):
            assert {k: v for k, v in found[i].items() if k not in wrong} == {
                k: v for k, v in expected[i].items() if k not in wrong
            }
        assert not set(found[0]) & set(found[1])
    if "case_id" in table.columns:
        assert encoded.case_ids.to_pylist() == table.columns["case_id"][0]
    else:
        assert encoded.case_ids.equals(pa.array(range(table.rows), pa.int64()))


@given(drawn_tables(), st.data())
def test_chunks_of_a_table_do_not_matter(table: DrawnTable, data: st.DataObject) -> None:
    assume(table.columns)  # Arrow forgets how many rows there are when it puts tables without columns together
    whole = table.arrow()
    cuts = sorted(data.draw(st.lists(st.integers(0, table.rows), max_size=3)))
    pieces = [whole.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, table.rows], strict=True)]
    assert_same(encode_table(pa.concat_tables(pieces), NETWORK), encode_table(whole, NETWORK))


@given(drawn_tables())
def test_strict_raises_for_the_first_invalid_row(table: DrawnTable) -> None:
    bad = [row for row, (_, _, wrong) in enumerate(reference_rows(table)) if wrong]
    if not bad:
        encode_table(table.arrow(), NETWORK, strict=True)
        return
    with pytest.raises(EvidenceError, match=rf"row {bad[0] + 1}: column"):
        encode_table(table.arrow(), NETWORK, strict=True)


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.uint64(), pa.large_string()),
    ],
    ids=str,
)
def test_types_of_text(kind: pa.DataType) -> None:
    table = pa.table({"grade": pa.array(["high", None, "?", "low", "hihg"]).cast(kind)})
    encoded = encode_table(table, NETWORK)
    assert states(encoded, "grade") == [2, UNOBSERVED, UNOBSERVED, 0, UNOBSERVED]
    assert encoded.batch.invalid == {
        4: "column 'grade': unknown state 'hihg', did you mean 'high'?; states are low, mid, high"
    }


@pytest.mark.parametrize("rows", [2, 20])
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view(), None], ids=str)
def test_bytes_that_are_not_utf8_make_their_row_invalid(kind: pa.DataType | None, rows: int) -> None:
    column = pa.array([b"high", "h\xefgh".encode("latin-1")] * (rows // 2), kind or pa.binary())
    table = pa.table({"grade": column if kind else column.dictionary_encode()})
    reason = r"column 'grade': unknown state 'h\\xefgh'; states are low, mid, high"
    encoded = encode_table(table, NETWORK)
    assert states(encoded, "grade")[:2] == [2, UNOBSERVED]
    assert encoded.batch.invalid[1] == reason
    assert len(encoded.batch.invalid) == rows // 2
    with pytest.raises(EvidenceError) as caught:
        encode_table(table, NETWORK, strict=True, file="t.parquet")
    assert str(caught.value) == f"t.parquet: row 2: {reason}"


def test_bytes_that_are_not_utf8_are_no_numbers() -> None:
    table = pa.table({"smoke=yes": [b"1", b"\xff"], "smoke=no": [1, 1]})
    reason = encode_table(table, NETWORK).batch.invalid[1]
    assert reason == r"column 'smoke': likelihood of 'yes': found '\\xff', expected a number"


@pytest.mark.parametrize("words", [pa.string_view(), pa.binary_view()], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_dictionaries_of_views(rows: int, words: pa.DataType) -> None:
    cells = ([0, 1, None] * rows)[:rows]
    # More words than a batch of few rows has.
    names = pa.array(["high", "low", *(f"word {i}" for i in range(8))]).cast(words)
    column = pa.DictionaryArray.from_arrays(pa.array(cells, pa.uint32()), names)
    expected = [UNOBSERVED if cell is None else (2, 0)[cell] for cell in cells]
    table = pa.table({"grade": column, "case_id": column, "other": column})
    for evidence in (table, table.to_batches()[0], {name: table[name] for name in table.column_names}):
        encoded = encode(evidence, keep=["other"])
        assert states(encoded, "grade") == expected
        assert encoded.case_ids.type == (pa.string() if words == pa.string_view() else pa.binary())
        assert encoded.case_ids.to_pylist() == column.to_pylist()
        assert encoded.kept is not None
        assert encoded.kept["other"].to_pylist() == column.to_pylist()
    pieces = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    assert_same(encode(pieces, keep=["other"]), encode(table, keep=["other"]))


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64()),
        *(pa.decimal32(4, 1), pa.decimal64(9, 2), pa.decimal128(20, 3), pa.decimal256(50, 0)),
        *(pa.dictionary(pa.int32(), pa.int64()), pa.dictionary(pa.uint8(), pa.float32())),
    ],
    ids=str,
)
def test_types_of_numbers(kind: pa.DataType) -> None:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    cells = [Decimal(1), None, Decimal(2)] if pa.types.is_decimal(kind) else [1, None, 2]
    column = pa.array(cells, plain)
    if pa.types.is_dictionary(kind):
        column = column.dictionary_encode().cast(kind)
    encoded = encode_table(pa.table({"grade": column, "number": column}), NETWORK)
    assert states(encoded, "grade") == [1, UNOBSERVED, 2]
    assert states(encoded, "number") == [0, UNOBSERVED, 1]
    assert not encoded.batch.invalid


def test_a_float32_means_its_shortest_digits() -> None:
    network = small_network({"x": ["0.1", "0.2"]})
    assert states(encode({"x": np.array([0.2, 0.1], np.float32)}, network), "x", network) == [1, 0]


def test_a_dictionary_may_hold_more_than_the_table_uses() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([3, None, 0]), pa.array(["low", "bad", "worse", "mid", None]))
    encoded = encode_table(pa.table({"grade": column}), NETWORK)
    assert states(encoded, "grade") == [1, UNOBSERVED, 0]
    assert not encoded.batch.invalid
    assert states(encode_table(pa.table({"grade": column.slice(1, 1)}), NETWORK), "grade") == [UNOBSERVED]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.float64()),
        pa.list_(pa.float32()),
        pa.list_(pa.int16()),
        pa.list_(pa.float64(), 2),
        pa.large_list(pa.float64()),
        pa.list_view(pa.float64()),
        pa.large_list_view(pa.float64()),
    ],
    ids=str,
)
def test_types_of_likelihoods(kind: pa.DataType) -> None:
    table = pa.table({"smoke": pa.array([None, [1, 0], [2, 3]], kind)})
    for piece in (table, table.slice(0, 2), table.slice(1)):
        likelihood = encode_table(piece, NETWORK).batch.likelihoods[0]
        assert likelihood.rows.tolist() == [row for row in range(piece.num_rows) if piece["smoke"][row].is_valid]
        assert likelihood.values.tolist() == [cell for cell in piece["smoke"].to_pylist() if cell is not None]


def test_what_is_wrong_with_likelihoods() -> None:
    lists = [[1.0], [1.0, -1.0], [math.nan, 1.0], [0.0, 0.0], [None, 1.0], []]
    assert encode({"smoke": lists}).batch.invalid == {
        0: "column 'smoke': found 1 likelihoods, expected 2, one for each state",
        1: "column 'smoke': a likelihood is negative",
        2: "column 'smoke': a likelihood is missing or not finite",
        3: "column 'smoke': all likelihoods are 0, so no state is possible",
        4: "column 'smoke': a likelihood is missing or not finite",
        5: "column 'smoke': found 0 likelihoods, expected 2, one for each state",
    }


def test_likelihoods_in_columns_of_their_own() -> None:
    encoded = encode(
        {
            "smoke": ["yes", None, None, None, None, None],
            "smoke=no": [0.5, 0.5, None, 0.5, "x", math.inf],
            "smoke=yes": [0.5, 0.25, math.nan, None, 1, 1],
        }
    )
    likelihood = encoded.batch.likelihoods[0]
    assert likelihood.rows.tolist() == [1]
    assert likelihood.values.tolist() == [[0.25, 0.5]]
    assert states(encoded, "smoke") == [0] + [UNOBSERVED] * 5
    assert encoded.batch.invalid == {
        0: "column 'smoke': both a state and a likelihood",
        3: "column 'smoke': no likelihood of 'yes', but of other states",
        4: "column 'smoke': likelihood of 'no': found 'x', expected a number",
        5: "column 'smoke': likelihood of 'no': found 'inf', expected a number",
    }
    assert encode({"smoke=yes": [1.0], "smoke=no": [math.inf]}).batch.invalid == {
        0: "column 'smoke': a likelihood is missing or not finite"
    }


@pytest.mark.parametrize("kind", [pa.int32(), pa.float32(), pa.bool_(), pa.string(), pa.decimal128(5, 2)], ids=str)
def test_types_of_likelihood_columns(kind: pa.DataType) -> None:
    yes, no = (pa.array([cell, None], pa.int8()).cast(kind) for cell in (1, 0))
    likelihood = encode({"smoke=yes": yes, "smoke=no": no}).batch.likelihoods[0]
    assert likelihood.values.tolist() == [[1.0, 0.0]]


def test_names_with_equal_signs() -> None:
    encoded = encode({"x=y=01": [0.5], "x=y=0.5": [0.25], "odd=a=b": [1], "odd=NA": [2], "odd= x ": [3]})
    assert encoded.batch.likelihoods[NETWORK.index["x=y"]].values.tolist() == [[0.25, 0.5]]
    assert encoded.batch.likelihoods[NETWORK.index["odd"]].values.tolist() == [[2.0, 3.0, 1.0]]


def test_reasons_of_a_row_are_joined() -> None:
    encoded = encode([{"grade": "x", "smoke": 5}, {"smoke": 5}])
    assert encoded.batch.invalid == {
        0: "column 'smoke': unknown state 5; states are yes, no; "
        "column 'grade': unknown state 'x'; states are low, mid, high",
        1: "column 'smoke': unknown state 5; states are yes, no",
    }


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"smok": ["yes"]}, {}, "t.csv: unknown column 'smok', did you mean 'smoke'? "),
        ({"qqq": [1]}, {}, "t.csv: unknown column 'qqq': no variable of the network has such a name "),
        ({"": [1]}, {}, "t.csv: column 1 has no name, expected a variable of the network (pandas writes its index so"),
        ({"smoke;grade": [1]}, {}, "t.csv: found one column, 'smoke;grade': is another separator meant?"),
        ({"smoke=maybe": [1]}, {}, "t.csv: column 'smoke=maybe': unknown state 'maybe'; states are yes, no"),
        ({"smoke=maybe": [1]}, {"ignore_extra": True}, "or to stand under ignore in a mapping file"),
        ({"smoke;grade": ["yes;low"]}, {"ignore_extra": True}, "t.csv: found one column, 'smoke;grade': is another"),
        ({"a;smoke": ["1;2"], "5;b": ["3"]}, {"ignore_extra": True}, "found columns such as 'a;smoke': is another sep"),
        (
            {"grade=low": [1]},
            {},
            "t.csv: the likelihood of 'grade' needs a column for each of its 3 states, missing: 'grade=mid', "
            "'grade=high'",
        ),
        ({"smoke=yes": [1], "smoke= yes": [1], "smoke=no": [1]}, {}, "'smoke= yes' (number 2) says again what column"),
        ({"smoke": [[1, 1]], "smoke=yes": [1], "smoke=no": [1]}, {}, "'smoke=yes' (number 2) says again what column"),
        ({"smoke": [[1, 1]], " smoke": [1]}, {}, "column 'smoke' (number 2) says again what column 'smoke' (number 1)"),
        ({"smoke": [{"yes": 1}]}, {}, "column 'smoke': found cells of type struct<yes: int64>, expected text or num"),
        ({"smoke": [datetime.date(2026, 1, 1)]}, {}, "column 'smoke': found cells of type date32[day], expected"),
        ({"smoke": [["yes"]]}, {}, "column 'smoke': found lists of string, expected lists of numbers"),
        (
            {"smoke": pa.array([[1.0] * 3], pa.list_(pa.float64(), 3))},
            {},
            "column 'smoke': found lists of 3 numbers, expected 2, one for each state",
        ),
        ({"case_id": ["a"], "smoke": ["yes"]}, {"case_id": "case_ids"}, "no column 'case_ids' for the case ids"),
        ({"smoke": ["yes"]}, {"case_id": "smokee"}, "no column 'smokee' for the case ids, did you mean 'smoke'?"),
        ({"case_id": [[1]]}, {}, "case ids of type list<item: int64> cannot be carried through"),
    ],
)
def test_columns_that_cannot_be(columns: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(EvidenceError) as raised:
        encode_table(as_arrow(columns), NETWORK, file="t.csv", **options)
    assert message in str(raised.value)


def test_extra_columns_can_be_ignored() -> None:
    encoded = encode({"smok": ["yes"], "smoke": ["no"], "": [1]}, ignore_extra=True)
    assert states(encoded, "smoke") == [1]
    assert list(encoded.batch.states) == [0]


def test_missing_numbers_of_likelihoods_in_any_spelling() -> None:
    for cells in (["-9.0", " -9 ", "1"], [-9.0, -9.0, 1.0], [-9, -9, 1]):
        encoded = encode({"smoke=yes": cells, "smoke=no": cells}, missing=["-9"])
        assert encoded.batch.likelihoods[0].rows.tolist() == [2]
        assert not encoded.batch.invalid


def test_a_table_without_evidence_is_told(caplog: pytest.LogCaptureFixture) -> None:
    encode({"smok": ["yes"], "case_id": [1]}, ignore_extra=True)
    assert [record.getMessage() for record in caplog.records] == [
        "no column is evidence, so all rows have the same answers; columns are 'smok', 'case_id'"
    ]
    caplog.clear()
    # Signs in names matter only where nothing else is evidence.
    encode_table(as_arrow({"a;b": [1], "smoke": ["yes"]}), NETWORK, ignore_extra=True, file="t.csv")
    assert not caplog.records


def test_a_column_of_case_ids_that_the_mapping_takes_away() -> None:
    table = pa.table({"k": ["a"], "smoke": ["yes"]})
    for content, how in (({"ignore": ["k"]}, "ignores it"), ({"columns": {"k": "grade"}}, "reads it as 'grade'")):
        with pytest.raises(EvidenceError, match=f"no column 'k' for the case ids: the mapping {how} .remove that line"):
            encode_table(table, NETWORK, case_id="k", mapping=read_mapping(content, NETWORK))


def test_case_ids() -> None:
    ids = {"case_id": ["b", None], "name": [1.5, 2.5]}
    assert encode(ids, ignore_extra=True).case_ids.to_pylist() == ["b", None]
    assert encode(ids, ignore_extra=True, case_id="name").case_ids.to_pylist() == [1.5, 2.5]
    network = small_network({"case_id": ["yes", "no"]})
    encoded = encode({"case_id": ["no"]}, network, first_row=7)
    assert encoded.case_ids.to_pylist() == [7]
    assert states(encoded, "case_id", network) == [1]
    assert encode({"case_id": ["no"]}, network, case_id="case_id").case_ids.to_pylist() == ["no"]
    dictionary = pa.array(["a", "b"]).dictionary_encode()
    assert encode({"case_id": dictionary}).case_ids.type == pa.string()


def test_strict_names_file_row_and_column() -> None:
    table = as_arrow({"grade": ["low", "lwo", "x"]})
    message = "t.arrow: row 2: column 'grade': unknown state 'lwo', did you mean 'low'?; states are low, mid, high"
    with pytest.raises(EvidenceError) as raised:
        encode_table(table, NETWORK, strict=True, file="t.arrow")
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("evidence", "rows"),
    [([], 0), ([{}, {}], 2), ({"smoke": []}, 0), ({"smoke": [None]}, 1), ({"case_id": [1, 2]}, 2)],
)
def test_tables_with_little_in_them(evidence: Any, rows: int) -> None:
    encoded = encode(evidence)
    assert encoded.batch.rows == rows == len(encoded.case_ids)
    assert all(codes.tolist() == [UNOBSERVED] * rows for codes in encoded.batch.states.values())
    assert not encoded.batch.likelihoods
    assert not encoded.batch.invalid


class Stream:
    """What polars and others offer."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "make", [pd.Series, polars.Series, np.array, pa.array, lambda cells: pa.chunked_array([cells])]
)
def test_a_column_alone_is_told_how_to_be_a_table(make: Any) -> None:
    column = make(["yes", "no"])
    with pytest.raises(EvidenceError) as raised:
        as_arrow(column)
    advice = str(raised.value).partition("; of a column: ")[2].partition(";")[0]
    assert as_arrow(eval(advice, {"series": column, "array": column})).to_pydict() == {"smoke": ["yes", "no"]}


def test_a_case_or_an_array_of_two_axes_is_told_how_to_be_a_table() -> None:
    series, array = pd.Series({"smoke": "yes"}), np.array([["yes"]])
    for found, before in ((series, "; of a case of pandas: "), (array, "names: ")):
        with pytest.raises(EvidenceError) as raised:
            as_arrow(found)
        advice = str(raised.value).partition(before)[2].replace(", ...", "")
        assert as_arrow(eval(advice, {"series": series, "array": array})).to_pydict() == {"smoke": ["yes"]}


def test_lazy_frames_and_arrays_with_names_are_tables() -> None:
    columns = {"smoke": ["yes", "no"], "grade": [2, 0]}
    assert as_arrow(polars.LazyFrame(columns)).to_pydict() == as_arrow(polars.DataFrame(columns)).to_pydict() == columns
    array = np.array(list(zip(*columns.values(), strict=True)), dtype=[("smoke", "U3"), ("grade", "i4")])
    assert as_arrow(array).to_pydict() == columns


def test_tables_of_all_makes_are_the_same() -> None:
    columns = {"smoke": ["yes", None, "no"], "grade": [2, 0, None], "number": [[1.0, 0.0, 0.5], None, [1.0, 1.0, 1.0]]}
    table = pa.table(columns)
    rows = [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]
    makes = [columns, table, table.to_batches()[0], table.to_reader(), rows, Stream(table), table.to_pandas()]
    encoded = [encode(make) for make in makes]
    for other in encoded[1:]:
        assert_same(encoded[0], other)


def test_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "smoke": pandas.Categorical(["yes", None, "no", "yes"], categories=["no", "yes", "?"]),
            "grade": [1, np.nan, 2, 0],
            "number": pandas.array([1, None, 3, 2], dtype="Int64"),
            "flag": pandas.Series([True, None, False, True], dtype="boolean"),
            "odd": pandas.Series(["NA", pandas.NA, 1, None], dtype=object),  # mixed
            "one": pandas.Series([[1.0], None, np.array([2.0]), None], dtype=object),
        }
    )
    frame.index = [9, 8, 7, 6]
    encoded = encode(frame)
    assert states(encoded, "smoke") == [0, UNOBSERVED, 1, 0]
    assert states(encoded, "grade") == [1, UNOBSERVED, 2, 0]
    assert states(encoded, "number") == [0, UNOBSERVED, 2, 1]
    assert states(encoded, "flag") == [0, UNOBSERVED, 1, 0]
    assert states(encoded, "odd") == [0, UNOBSERVED, 1, UNOBSERVED]
    assert encoded.batch.likelihoods[NETWORK.index["one"]].rows.tolist() == [0, 2]
    assert encode(frame.iloc[:0]).batch.rows == 0
    assert encode(pandas.DataFrame(index=[1, 2])).batch.rows == 2
    numbered = pandas.DataFrame({0: [1, 0]})
    assert states(encode(numbered, small_network({"0": ["0", "1"]})), "0", small_network({"0": ["0", "1"]})) == [1, 0]


@pytest.mark.parametrize(
    "cells",
    [
        [True, False, None],
        [np.True_, np.False_, None],
        np.array([True, False, None], dtype=object),
        pd.Series([True, False, None]),
        pd.Series([True, False, None], dtype="boolean"),
        pd.Series([True, False, None], dtype="category"),
        pd.Series([1.0, 0.0, None]),
        pa.array([True, False, None]),
        pa.array([True, False, None]).dictionary_encode(),
        ["TRUE", "False", "*"],
        ["T", "F", "NA"],
        ["true", "f", "."],
        [1, 0, None],
    ],
)
def test_of_the_states_0_and_1_what_is_true_is_1(cells: Any) -> None:
    network = small_network({"leak": ["0", "1"], "alarm": ["1", "0"], "door": ["no", "yes"]})
    encoded = encode({"leak": cells, "alarm": cells, "door": cells}, network)
    assert [states(encoded, name, network) for name in ("leak", "alarm", "door")] == [
        [1, 0, UNOBSERVED],
        [0, 1, UNOBSERVED],
        [1, 0, UNOBSERVED],
    ]
    assert not encoded.batch.invalid


def test_scalars_of_arrow_and_bytes_beside_other_cells() -> None:
    texts = ["yes", "no", "yes", "5", None, "no"]
    cells = [pa.scalar("yes"), b"no", np.bytes_(b"yes"), 5, pa.scalar(None), pa.scalar(b"no")]
    found, expected = encode([{"smoke": cell} for cell in cells]), encode({"smoke": texts})
    assert states(found, "smoke") == states(expected, "smoke")
    assert found.batch.invalid == expected.batch.invalid
    assert "unknown state '\\\\xff'" in encode({"smoke": [b"\xff", 1]}).batch.invalid[0]


def test_only_columns_of_objects_are_looked_at_cell_by_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: type) -> bool:
        raise AssertionError

    assert np.ma
    monkeypatch.setattr("junctor.evidence.tables._can_be_masked", refuse)
    frame = pd.DataFrame({"smoke": ["yes", None], "grade": pd.Categorical(["low", None])}).astype({"smoke": "string"})
    assert as_arrow(frame).to_pydict() == {"smoke": ["yes", None], "grade": ["low", None]}


def test_a_matrix_is_a_column_of_likelihoods() -> None:
    for kind in ("f8", ">f8", "f4", np.longdouble):
        likelihood = encode({"smoke": np.array([[1.0, 0.5], [0.0, 2.0]], kind)}).batch.likelihoods[0]
        assert likelihood.values.tolist() == [[1.0, 0.5], [0.0, 2.0]]


@pytest.mark.parametrize(
    ("evidence", "message"),
    [
        (3, "evidence: found int, expected an Arrow table"),
        (None, "evidence: found NoneType, expected"),
        ("smoke.csv", "evidence: found str, expected"),
        *((each, "evidence: found Series, expected an Arrow table") for each in (pd.Series([1]), polars.Series([1]))),
        (pa.chunked_array([["yes", "no"]]), "evidence: found ChunkedArray, expected an Arrow table"),
        (np.zeros((2, 2)), "evidence: found ndarray, expected an Arrow table"),
        (
            {"smoke": "yes"},
            "evidence: column 'smoke' is 'yes', expected a list of cells (one case is a list of one row",
        ),
        ({"smoke": 1}, "evidence: column 'smoke' is 1, expected a list of cells"),
        ({"smoke": np.array(1)}, "evidence: column 'smoke' is array(1), expected a list of cells"),
        ({"smoke": {"yes"}}, "evidence: column 'smoke' is {'yes'}, expected a list of cells"),
        ({"smoke": [1], "grade": [1, 2]}, "evidence: columns of different lengths: 'smoke': 1, 'grade': 2"),
        ({1: [1, 2], "1": [1]}, "evidence: columns of different lengths: '1': 2, '1': 1"),
        ([{"smoke": "yes"}, {"smoke": [0.5, 0.5]}], "evidence: column 'smoke' mixes list with other cells"),
        ({"smoke": [[1, 2**63], None]}, "evidence: column 'smoke': found lists of other than numbers of 64 bits ("),
        ({"smoke": [10**5000]}, "evidence: column 'smoke' has a number that is too long (Exceeds the limit (4300"),
        ([{"smoke": [1, "x"]}], "evidence: column 'smoke': found lists of other than numbers of 64 bits ("),
    ],
)
def test_what_is_no_table(evidence: Any, message: str) -> None:
    with pytest.raises(EvidenceError) as raised:
        as_arrow(evidence)
    assert str(raised.value).startswith(message)


@pytest.mark.slow
def test_very_many_different_bad_cells() -> None:
    cells = pa.array([f"bad {i}" for i in range(200_000)])
    encoded = encode_table(pa.table({"smoke": cells, "grade": cells}), NETWORK)
    assert len(encoded.batch.invalid) == 200_000


def test_the_states_of_the_reference_are_those_of_the_network() -> None:
    assert [list(variable.states) for variable in NETWORK.variables] == list(STATES.values())


def test_the_index_of_a_pandas_frame_is_no_evidence() -> None:
    frame = pd.DataFrame({"smoke": ["yes", None], "grade": ["low", "high"]}, index=["a", "b"])
    table = pa.Table.from_pandas(frame)
    assert table.schema.names[-1] == "__index_level_0__"
    encoded = encode_table(table, NETWORK)
    assert encoded.batch.states.keys() == {0, 1}
    assert encoded.case_ids.to_pylist() == [0, 1]
    named = encode_table(table, NETWORK, case_id="__index_level_0__")
    assert named.case_ids.to_pylist() == ["a", "b"]
    assert encode_table(table, NETWORK, keep=["__index_level_0__"]).kept.column(0).to_pylist() == ["a", "b"]
    # Without metadata as well: tools in between drop them.
    assert encode_table(table.replace_schema_metadata(), NETWORK).batch.states.keys() == {0, 1}


def test_a_named_index_is_no_evidence_unless_it_is_a_variable() -> None:
    frame = pd.DataFrame({"smoke": ["yes", "no"], "patient": ["p", "q"], "grade": ["low", "high"]})
    table = pa.Table.from_pandas(frame.set_index(["patient", "grade"]))
    assert encode_table(table, NETWORK).batch.states.keys() == {0, 1}
    assert encode_table(table, NETWORK, case_id="patient").case_ids.to_pylist() == ["p", "q"]
    with pytest.raises(EvidenceError, match="unknown column 'patient'"):
        encode_table(table.replace_schema_metadata(), NETWORK)


@pytest.mark.parametrize(
    "metadata", [b"", b"[]", b"{", b'{"index_columns": 7}', b'{"index_columns": [["x"]]}', b"\xff"]
)
def test_damaged_metadata_of_pandas_name_no_index(metadata: bytes) -> None:
    table = pa.table({"smoke": ["yes"], "patient": ["p"]}).replace_schema_metadata({b"pandas": metadata})
    with pytest.raises(EvidenceError, match="unknown column 'patient'"):
        encode_table(table, NETWORK)


def test_further_missing_texts_of_all_columns() -> None:
    table = pa.table(
        {"smoke": ["yes", "Refused"], "number": [1, -9], "grade=low": [1, -9], "grade=mid": [2, -9]}
    ).append_column("grade=high", pa.array(["3", "REFUSED"]))
    encoded = encode_table(table, NETWORK, missing=["refused", "-9"])
    assert not encoded.batch.invalid
    assert states(encoded, "smoke") == [0, UNOBSERVED]
    assert states(encoded, "number") == [0, UNOBSERVED]
    assert encoded.batch.likelihoods[1].rows.tolist() == [0]
    assert len(encode_table(table, NETWORK).batch.invalid) == 1


@pytest.mark.parametrize("rows", [1, 1000])
def test_tables_with_an_arrow_stream(rows: int) -> None:
    # The types of polars: views of texts, categories with unsigned indices.
    grades = pa.array(["low", "high"] * rows).dictionary_encode().cast(pa.dictionary(pa.uint32(), pa.string()))
    table = pa.table({"smoke": pa.array(["yes", None] * rows, pa.string_view()), "grade": grades})
    assert_same(encode(Stream(table)), encode(table.cast(pa.schema([("smoke", pa.string()), ("grade", pa.string())]))))


@pytest.mark.parametrize("tz", [None, "Europe/Berlin"])
def test_times_of_pandas_in_lists_keep_their_nanoseconds(tz: str | None) -> None:
    times = [pd.Timestamp("2026-01-01 00:00:00.123456789", tz=tz), None, pd.Timestamp("2026-01-02", tz=tz)]
    for cells in (times, pd.Series(times, dtype=object)):
        column = as_arrow({"time": cells})["time"]
        assert column.type == pa.timestamp("ns", tz)
        assert column.to_pylist() == [times[0], None, times[2]]
    assert as_arrow({"time": [datetime.datetime(2026, 1, 1)]})["time"].type == pa.timestamp("us")


def test_masked_likelihoods_are_as_masked_cells() -> None:
    numbers = [[0.2, 0.8], [0.5, 0.5], [0.1, 0.9]]
    masked = np.ma.array(numbers, mask=[[False, False], [True, True], [False, True]])
    for cells in (masked, list(masked), masked.astype(np.float32)):
        encoded = encode({"smoke": cells})
        assert encoded.batch.likelihoods[NETWORK.index["smoke"]].rows.tolist() == [0]
        assert encoded.batch.invalid.keys() == {2}
    assert states(encode({"grade": [1, np.ma.masked]}), "grade") == [1, UNOBSERVED]
