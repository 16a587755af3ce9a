"""Mapping files: bins against searchsorted, synonyms, all formats, and every error's words."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from helpers.encoding import encode_table
from helpers.evidence_reference import small_network
from hypothesis import given
from hypothesis import strategies as st
from junctor.evidence.batch import UNOBSERVED
from junctor.evidence.encode import EncodedPartition
from junctor.evidence.mapping import EvidenceMapping, read_mapping
from junctor.evidence.read import open_evidence
from junctor.model.errors import EvidenceError
from pyarrow import feather, parquet

NETWORK = small_network({"smoke": ["yes", "no"], "age": ["child", "adult", "old"], "range": ["0-10", "10-20"]})
SMOKE, AGE = NETWORK.index["smoke"], NETWORK.index["age"]
AGES = {"edges": [0, 18, 65, 120], "labels": ["child", "adult", "old"]}


def mapping(content: dict[str, Any]) -> EvidenceMapping:
    found = read_mapping(content, NETWORK)
    assert found is not None
    return found


def encoded(columns: Any, content: dict[str, Any], **options: Any) -> EncodedPartition:
    return encode_table(pa.table(columns), NETWORK, mapping=mapping(content), **options)


def ages(cells: pa.Array, **entry: Any) -> tuple[list[int], dict[int, str]]:
    batch = encoded({"age": cells}, {"variables": {"age": AGES | entry}}).batch
    return batch.states[AGE].tolist(), batch.invalid


NUMBERS = st.floats(-1e6, 1e6) | st.integers(-200, 200).map(float) | st.sampled_from([0.0, 18.0, 65.0, 120.0])
FORMS = st.sampled_from(["float64", "string", "large_string", "dictionary", "decimal"])


@given(
    st.lists(st.none() | NUMBERS, max_size=40),
    st.lists(st.integers(-100, 100), min_size=2, max_size=7, unique=True).map(sorted),
    st.data(),
)
def test_bins_are_those_of_searchsorted(cells: list[float | None], edges: list[int], data: st.DataObject) -> None:
    labels = data.draw(
        st.lists(st.sampled_from(["child", "adult", "old"]), min_size=len(edges) - 1, max_size=len(edges) - 1)
    )
    factor = data.draw(st.sampled_from([1.0, 0.5, -2.0]))
    offset = data.draw(st.sampled_from([0.0, 3.0]))
    form = data.draw(FORMS)
    column = pa.array(cells, pa.float64())
    if form == "decimal":
        cells = [None if x is None else float(round(x)) for x in cells]
        column = pa.array(cells, pa.float64()).cast(pa.decimal128(20, 3))
    elif form == "dictionary":
        column = column.cast(pa.string()).dictionary_encode()
    else:
        column = column.cast(getattr(pa, form)())
    entry = {"edges": edges, "labels": labels, "factor": factor, "offset": offset}
    batch = encoded({"age": column}, {"variables": {"age": entry}}).batch
    for row, cell in enumerate(cells):
        if cell is None:
            expected = UNOBSERVED
        else:
            at = np.searchsorted(edges, cell * factor + offset, side="right") - 1
            outside = not 0 <= at < len(labels)
            assert (row in batch.invalid) == outside
            expected = UNOBSERVED if outside else ["child", "adult", "old"].index(labels[at])
        assert batch.states[AGE][row] == expected


def test_an_edge_belongs_to_the_bin_that_it_begins() -> None:
    found, invalid = ages(pa.array([0.0, 17.999, 18.0, 65.0, 119.9, 120.0, -0.1, None, float("nan")]))
    assert found == [0, 0, 1, 2, 2, -1, -1, -1, -1]
    assert sorted(invalid) == [5, 6]
    assert invalid[5] == "column 'age': found 120.0, expected a number from 0 to below 120"


def test_what_lies_outside_is_a_state_or_missing() -> None:
    cells = pa.array([-1, 30, 200, 999])
    assert ages(cells, outside="old") == ([2, 1, 2, 2], {})
    assert ages(cells, outside_is_missing=True) == ([-1, 1, -1, -1], {})
    assert ages(cells, other="child") == ([0, 1, 0, 0], {})
    assert ages(cells, missing=[999], outside="old") == ([2, 1, 2, -1], {})
    assert ages(cells, edges=[float("-inf"), 18, 65, float("inf")]) == ([0, 1, 2, 2], {})


@pytest.mark.parametrize(
    "column",
    [
        pa.array([float("inf"), float("-inf"), float("nan"), 1e308, -1e308]),
        pa.array([float("inf"), float("-inf"), float("nan"), 3e38, -3e38], pa.float32()),
        pa.array(["inf", "-Inf", None, "1e400", "-1e400"]),
        pa.array([" +Infinity ", "-inf", "NA", "9" * 400, "-INF"]).dictionary_encode(),
    ],
)
def test_infinite_numbers_are_in_bins_that_infinite_edges_bound(column: pa.Array) -> None:
    infinite = float("inf")
    assert ages(column, edges=[-infinite, 18, 65, infinite]) == ([2, 0, -1, 2, 0], {})
    assert ages(column, edges=[-infinite, 18, 65, infinite], factor=-2) == ([0, 2, -1, 0, 2], {})
    found, invalid = ages(column, edges=[0, 18, 65, infinite])
    assert (found, sorted(invalid)) == ([2, -1, -1, 2, -1], [1, 4])
    assert invalid[1].lower().endswith("inf, expected a number from 0 to inf")
    assert ages(column, edges=[-infinite, 18, 65, infinite], missing=["inf"])[0][:2] == [-1, 0]
    assert sorted(ages(column)[1]) == [0, 1, 3, 4]


def test_texts_stand_beside_numbers() -> None:
    column = pa.array(["17", " 18 ", "NA", "grown", "old", "x", None] * 3)
    found, invalid = ages(column, states={"grown": "adult"})
    assert found == [0, 1, -1, 1, 2, -1, -1] * 3
    assert sorted(invalid) == [5, 12, 19]
    assert ages(column.dictionary_encode(), states={"grown": "adult"}) == (found, invalid)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int8(), pa.string())]
)
def test_any_type_of_text_is_binned(kind: pa.DataType) -> None:
    cells = ["5", None, "zz", "1e999", "old", "+70"] * 3
    column = pa.array(cells, kind) if kind != pa.binary() else pa.array(cells, pa.string()).cast(kind)
    for piece, first in ((column, 0), (column.slice(6, 6), 0)):
        found, invalid = ages(piece)
        assert found == [0, -1, -1, -1, 2, 2] * (len(piece) // 6)
        assert sorted(invalid)[:2] == [first + 2, first + 3]
        assert "unknown state 'zz'" in invalid[2]


def test_a_float_of_four_bytes_is_its_shortest_digits() -> None:
    entry = {"edges": [0, 0.7, 1], "labels": ["child", "adult"]}
    for kind in (pa.float32(), pa.float64()):
        batch = encoded({"age": pa.array([0.7, None, 0.1], kind)}, {"variables": {"age": entry}}).batch
        assert batch.states[AGE].tolist() == [1, -1, 0]
        assert not batch.invalid


@given(st.lists(st.sampled_from(["yes", "no", None]), min_size=1, max_size=30), st.booleans())
def test_synonyms_round_trip(cells: list[str | None], as_dictionary: bool) -> None:
    other = {"yes": "ja", "no": "nein"}
    column = pa.array([None if cell is None else other[cell] for cell in cells], pa.string())
    renamed = {"Raucher?": column.dictionary_encode() if as_dictionary else column}
    content = {
        "columns": {"Raucher?": "smoke"},
        "variables": {"smoke": {"states": {text: state for state, text in other.items()}}},
    }
    found = encoded(renamed, content).batch
    expected = encode_table(pa.table({"smoke": pa.array(cells, pa.string())}), NETWORK).batch
    assert found.states[SMOKE].tolist() == expected.states[SMOKE].tolist()
    assert not found.invalid


def test_synonyms_go_before_states_and_numbers_are_compared_by_their_digits() -> None:
    entry = {"states": {"yes": "no", "2": "yes"}, "missing": [-9, "?"]}
    for cells in ([2, -9], [2.0, -9.0], ["2", "-9"]):
        assert encoded({"smoke": cells}, {"variables": {"smoke": entry}}).batch.states[SMOKE].tolist() == [0, -1]
    assert encoded({"smoke": ["yes", " ? "]}, {"variables": {"smoke": entry}}).batch.states[SMOKE].tolist() == [1, -1]


SPELLINGS = st.sampled_from(["{:.3f}", "{:+.2f}", "{:e}", " {} ", "0{}", "{}"])


@given(st.integers(0, 99), SPELLINGS, SPELLINGS)
def test_numbers_of_a_mapping_match_in_every_spelling(number: int, key: str, spelling: str) -> None:
    # Halves: text, floats and decimals have them all exactly.
    half = Decimal(number) / 2
    columns = [
        pa.array([spelling.format(half)]),
        pa.array([spelling.format(half)]).dictionary_encode(),
        pa.array([float(half)]),
        pa.array([half], pa.decimal128(10, 4)),
    ]
    if number % 2 == 0:
        columns.append(pa.array([number // 2]))
    for column in columns:
        for entry in (
            {"states": {key.format(half): "yes"}},
            {"missing": [key.format(half)]},
            {"missing": [float(half)]},
        ):
            found = encoded({"smoke": column}, {"variables": {"smoke": entry | {"other": "no"}}}).batch
            assert found.states[SMOKE].tolist() == [0 if "states" in entry else UNOBSERVED]


def test_keys_that_are_one_number_are_told_apart_by_their_digits() -> None:
    entry = {"states": {"1": "yes", "1.0": "no"}, "other": "no"}
    found = encoded({"smoke": ["1", "1.0", "+1", "01", "2"]}, {"variables": {"smoke": entry}}).batch
    assert found.states[SMOKE].tolist() == [0, 1, -1, -1, 1]
    assert sorted(found.invalid) == [2, 3]
    assert "'+1' may mean '1' or '1.0' of the mapping: give it as one of them" in found.invalid[2]
    # Equal numbers of one meaning leave nothing to choose.
    entry = {"states": {"1": "yes", "1.0": "yes"}}
    assert encoded({"smoke": ["+1"]}, {"variables": {"smoke": entry}}).batch.states[SMOKE].tolist() == [0]


def test_states_that_are_one_number_stay_apart_with_a_mapping() -> None:
    network = small_network({"dose": ["1", "1.0", "2"]})
    known = read_mapping({"variables": {"dose": {"missing": [1], "other": "2"}}}, network)
    found = encode_table(pa.table({"dose": ["1", "1.0", "+1", "x"]}), network, mapping=known).batch
    assert found.states[0].tolist() == [-1, 1, -1, 2]
    assert [*found.invalid] == [2]


@pytest.mark.parametrize(("true", "false"), [("true", "false"), ("True", "False"), ("TRUE", "FALSE")])
def test_true_and_false_of_a_mapping_are_texts_of_any_case_and_booleans(true: str, false: str) -> None:
    # The opposite of what true and false mean without a mapping.
    entry = {"states": {true: "no", false: "yes"}}
    for cells in (["True", "FALSE"], ["TRUE", " false "], ["true", "False"], [True, False]):
        found = encoded({"smoke": cells}, {"variables": {"smoke": entry}}).batch
        assert found.states[SMOKE].tolist() == [1, 0]
    missing = encoded({"smoke": ["tRUE", "False"]}, {"variables": {"smoke": {"missing": [true]}}}).batch
    assert missing.states[SMOKE].tolist() == [-1, 1]


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.decimal128(10, 2), pa.decimal128(30, 9)]
)
def test_missing_numbers_are_in_no_bin(kind: pa.DataType) -> None:
    column = pa.array([-9, 20, None, 5], pa.int16()).cast(kind)
    content = {"variables": {"age": AGES | {"edges": [-20, 18, 65, 120]}}}
    for each in (column, column.dictionary_encode()):
        found = encoded({"age": each}, content, missing=["-9", "refused", "20.0"]).batch
        assert (found.states[AGE].tolist(), found.invalid) == ([-1, -1, -1, 0], {})
    # The mapping goes first.
    content["variables"]["age"]["states"] = {"-9": "old"}
    assert encoded({"age": column}, content, missing=["-9"]).batch.states[AGE].tolist() == [2, 1, -1, 0]


def test_edges_are_told_with_all_their_digits() -> None:
    _, invalid = ages(pa.array([0.0, 20.0, 21.0]), edges=[5e-324, 10, 15.5, 20.000000000000004])
    assert sorted(invalid) == [0, 2]
    assert invalid[0] == "column 'age': found 0.0, expected a number from 5e-324 to below 20.000000000000004"


def test_other_takes_what_is_unknown() -> None:
    cells = {"smoke": ["yes", "perhaps", "", None]}
    assert encoded(cells, {"variables": {"smoke": {"other": "no"}}}).batch.states[SMOKE].tolist() == [0, 1, -1, -1]
    found = encoded(cells, {"variables": {"smoke": {"other_is_missing": True}}}).batch
    assert found.states[SMOKE].tolist() == [0, -1, -1, -1]
    assert not found.invalid


def test_columns_are_left_out_renamed_and_kept_under_their_own_names() -> None:
    table = {"id": ["a", "b"], "note": ["x", "y"], "p1": [0.5, 1.0], "p0": [0.5, 0.0]}
    content = {"ignore": ["note"], "columns": {"id": "case_id", "p1": "smoke=yes", "p0": "smoke=no"}}
    found = encoded(table, content, keep=("note",))
    assert found.case_ids.to_pylist() == ["a", "b"]
    assert found.batch.likelihoods[SMOKE].values.tolist() == [[0.5, 0.5], [1.0, 0.0]]
    assert found.kept is not None
    assert found.kept.column_names == ["note"]


def test_one_digest_for_one_content(tmp_path: Path) -> None:
    path = tmp_path / "map.toml"
    path.write_text('# mine\n[variables.age]\nlabels = ["child", "adult", "old"]\nedges = [0, 18, 65, 120]\n')
    found = read_mapping(path, NETWORK)
    assert found is not None
    assert found.digest == mapping({"variables": {"age": AGES}}).digest
    assert found.digest != mapping({"variables": {"age": AGES | {"factor": 2}}}).digest


@pytest.mark.parametrize("threads", [1, 2])
def test_all_formats_are_mapped(tmp_path: Path, threads: int) -> None:
    values = np.random.default_rng(1).uniform(0, 119.99, 5000)
    table = pa.table({"Alter": values, "R": ["ja", "nein"] * 2500})
    content = {"columns": {"Alter": "age", "R": "smoke"}}
    content["variables"] = {"age": AGES, "smoke": {"states": {"ja": "yes", "nein": "no"}}}  # type: ignore[assignment]
    parquet.write_table(table, tmp_path / "e.parquet")
    feather.write_feather(table, str(tmp_path / "e.arrow"), compression="uncompressed")
    text = "".join(f"{x!r},{r}\n" for x, r in zip(values.tolist(), table["R"].to_pylist(), strict=True))
    (tmp_path / "e.csv").write_text("Alter,R\n" + text)
    (tmp_path / "e.tsv").write_text("Alter\tR\n" + text.replace(",", "\t"))
    expected = np.searchsorted([0, 18, 65, 120], values, side="right") - 1
    for name in ("e.parquet", "e.arrow", "e.csv", "e.tsv"):
        source = open_evidence(tmp_path / name, NETWORK, mapping=content)
        parts = list(source.partitions(777, threads))
        assert np.concatenate([part.batch.states[AGE] for part in parts]).tolist() == expected.tolist()
        assert not any(part.batch.invalid for part in parts)
    (tmp_path / "e.evid").write_text("1\n1 0 0\n")
    with pytest.raises(EvidenceError, match="no columns, so none to map"):
        open_evidence(tmp_path / "e.evid", NETWORK, mapping=content)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"column": {}}, r"map: column: found an unknown key, did you mean 'columns'\?, expected ignore, columns, var"),
    ({"hide_targets": 1}, "map: hide_targets: found 1, expected true or false"),
    ({"columns": {"a": "smoek"}}, r"columns.a: found 'smoek', did you mean 'smoke'\?, expected a variable"),
    ({"columns": {"a": 1}}, "columns.a: found 1, expected the name"),
    ({"columns": ["a"]}, r"columns: found \['a'\], expected a table"),
    ({"columns": {"a": "smoke"}, "ignore": ["a"]}, "columns.a: found 'a' in ignore as well"),
    ({"ignore": "a"}, "ignore: found 'a', expected a list"),
    ({"variables": {"smoek": {}}}, r"variables.smoek: found 'smoek', did you mean 'smoke'"),
    ({"variables": {"age": 3}}, "variables.age: found 3, expected a table"),
    ({"variables": {"age": {"edge": []}}}, r"variables.age.edge: found an unknown key, did you mean 'edges'"),
    ({"variables": {"smoke": {"states": {"ja !": "yess"}}}}, r'smoke.states."ja !": found \'yess\', did you mean'),
    ({"variables": {"smoke": {"states": {"a": ["yes"]}}}}, r"found \['yes'\], expected a state of 'smoke': yes, no"),
    ({"variables": {"smoke": {"states": {"a": "yes"}, "missing": ["a"]}}}, "missing: found 'a', which is a state"),
    (
        {"variables": {"smoke": {"states": {" a": "yes", "a": "no"}}}},
        "smoke.states: found two meanings of 'a', expected",
    ),
    ({"variables": {"smoke": {"missing": [True]}}}, "missing: found True, expected text in quotes or a number"),
    ({"variables": {"smoke": {"missing": [float("nan")]}}}, "smoke.missing: found nan, expected a number"),
    ({"variables": {"smoke": {"missing": [2**20_000]}}}, r"missing: found 0x1000*\.\.\., expected a number of double"),
    ({"variables": {"smoke": {"factor": 2}}}, "smoke.factor: found no edges, expected edges as well"),
    ({"variables": {"smoke": {"other": "x"}}}, "smoke.other: found 'x', expected a state"),
    ({"variables": {"smoke": {"other": "no", "other_is_missing": True}}}, "beside other_is_missing, expected one"),
    ({"variables": {"smoke": {"other_is_missing": "yes"}}}, "other_is_missing: found 'yes', expected true or false"),
    ({"variables": {"age": AGES | {"edges": [0, 18, 17, 20]}}}, "age.edges: found 17 after 18, expected ascending"),
    ({"variables": {"age": AGES | {"edges": [0, 18, 18, 20]}}}, "edges: found 18 after 18"),
    ({"variables": {"age": AGES | {"edges": [0, "x"]}}}, "edges: found 'x', expected a number, inf or -inf"),
    ({"variables": {"age": AGES | {"edges": [0, 10**400]}}}, r"edges: found 1000*\.\.\., expected a number of double"),
    ({"variables": {"age": AGES | {"edges": [0]}}}, "edges: found 1, expected at least two"),
    ({"variables": {"age": {"edges": [0, 1, 2], "labels": ["old"]}}}, "labels: found 1 labels, expected 2"),
    (
        {"variables": {"age": AGES | {"labels": ["child", "adult", "alt"]}}},
        "labels: found 'alt', did you mean 'adult'",
    ),
    (
        {"variables": {"age": AGES | {"states": {"1": "old"}, "missing": ["1.0"]}}},
        r"age.states: found two meanings of the number 1.0, expected one, where there are edges",
    ),
    ({"variables": {"age": AGES | {"factor": 0}}}, "factor: found 0"),
    ({"variables": {"age": AGES | {"factor": 10**400}}}, "factor: found 1000"),
    ({"variables": {"age": AGES | {"offset": float("inf")}}}, "offset: found inf, expected a number"),
]


@pytest.mark.parametrize(("content", "words"), BAD)
def test_errors_name_key_found_and_expected(content: dict[str, Any], words: str) -> None:
    with pytest.raises(EvidenceError, match=words.removeprefix("map: ")):
        read_mapping(content, NETWORK)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "map.toml"
    with pytest.raises(EvidenceError, match=r"map.toml: cannot read the mapping: No such file"):
        read_mapping(path, NETWORK)
    for content in (b"[columns\n", b"\xff\xfe", b"\0", b"ignore = " + b"[" * 5000):
        path.write_bytes(content)
        with pytest.raises(EvidenceError, match=r"map.toml: the mapping is not TOML"):
            read_mapping(path, NETWORK)


def test_a_column_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text("Rauch,age\nyes,old\n")
    with pytest.raises(
        EvidenceError, match=r"columns: found 'Raucher' for 'smoke', but .*e.csv has no such column, did"
    ):
        open_evidence(path, NETWORK, mapping={"columns": {"Raucher": "smoke"}})
    # Several spellings of one column, of which one is there.
    source = open_evidence(path, NETWORK, mapping={"columns": {"Raucher": "smoke", "Rauch": "smoke"}})
    assert source.columns == sorted([SMOKE, AGE])
    with pytest.raises(EvidenceError, match=r"column 'age' \(number 2\) says again what column 'Rauch' \(number 1\)"):
        open_evidence(path, NETWORK, mapping={"columns": {"Rauch": "age"}})
