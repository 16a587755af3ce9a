"""Evidence that grows: columns that inputs lack, and types of what is carried through."""

from __future__ import annotations

import os

import junctor
import pyarrow as pa
import pytest
from helpers.growing import World, write_notes
from junctor.model.errors import EvidenceError, InputError, ThresholdError
from pyarrow import parquet


def test_conditions_on_columns_ask_for_no_file_that_has_all_of_them(world: World) -> None:
    world.evidence.mkdir()
    first, second = world.network.variables[:2]
    (world.evidence / "a.csv").touch()
    os.mkfifo(world.evidence / "b.csv")
    (world.evidence / "c.csv").write_text(f"{first.name}\n{first.states[0]}\n")
    (world.evidence / "d.csv").write_text(f"{second.name}\n{second.states[0]}\n")
    fail_if = (f"missing({first.name}) > 50%", f"drift({second.name}) < 0")
    with pytest.raises(EvidenceError, match="2 could not be read, 2 answered"):
        world.run(fail_if=fail_if)
    with pytest.raises(InputError, match=f"no column {world.network.variables[2].name!r} of the network"):
        world.run(fail_if=(f"missing({world.network.variables[2].name}) > 50%",))
    # Its header can be read, its rows cannot: nothing that is committed has its column.
    third = world.network.variables[2].name
    (world.evidence / "e.csv").write_text(f"{third}\n0,1,2\n")
    with pytest.raises(EvidenceError, match="3 could not be read, 0 answered") as error:
        world.run(fail_if=(f"missing({third}) > 50%", f"drift({third}) >= 0"))
    assert "drift" not in str(error.value)
    for name in "cde":
        (world.evidence / f"{name}.csv").unlink()
    # What columns there would be is not known.
    with pytest.raises(EvidenceError, match="2 could not be read, 0 answered"):
        world.run(fail_if=fail_if)


def test_a_column_is_missing_in_files_without_it(world: World) -> None:
    world.evidence.mkdir()
    first, second = world.network.variables[:2]
    (world.evidence / "a.csv").write_text(f'{first.name}\n{first.states[0]}\n""\nmaybe\n')
    (world.evidence / "b.csv").write_text(f"{second.name}\n{second.states[0]}\n{second.states[0]}\nmaybe\n")
    with pytest.raises(ThresholdError, match=r"found 3 of 4 cells, 75%.*found 2 of 4 cells, 50%"):
        world.run(fail_if=(f"missing({first.name}) >= 75%", f"missing({second.name}) >= 2"))


def test_columns_may_be_missing_and_are_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.evidence.mkdir()
    (world.evidence / "a.csv").write_text("case_id,x_0,x_1\na,,\n")
    world.run()
    (world.evidence / "b.csv").write_text("case_id,x_0\nb,\n")
    (world.evidence / "c.csv").write_text("x_2,case_id\n,c\n")
    manifest = world.run()
    assert "2 inputs without columns that others have" in caplog.text
    assert "b.csv lacks x_1" in caplog.text
    assert manifest.columns is not None
    assert manifest.columns.evidence == ("x_0", "x_1", "x_2")
    assert world.answers()["case_id"].to_pylist() == ["a", "b", "c"]
    posteriors = world.answers()["x_1"].to_pylist()
    assert posteriors[0] == posteriors[1] == posteriors[2]
    (world.folder / "strict").mkdir()
    with pytest.raises(EvidenceError, match="no column 'x_1', but other inputs have one"):
        world.run("strict", strict=True)


def test_types_of_carried_columns_are_those_of_the_first_input(world: World) -> None:
    world.evidence.mkdir()
    parquet.write_table(pa.table({"case_id": [1], "x_0": [None], "k": ["a"]}), world.evidence / "a.parquet")
    world.run(keep=("k",))
    parquet.write_table(pa.table({"case_id": ["1"], "x_0": [None], "k": ["a"]}), world.evidence / "b.parquet")
    parquet.write_table(pa.table({"case_id": [1], "x_0": [None], "k": [1.0]}), world.evidence / "c.parquet")
    with pytest.raises(EvidenceError, match="case ids of type string, but of type int64 in other inputs") as error:
        world.run(keep=("k",))
    assert "column 'k' of type double, but of type string in other inputs" in str(error.value)


@pytest.mark.parametrize("output_format", ["parquet", "arrow"])
@pytest.mark.parametrize("first", [pa.string(), pa.large_string(), pa.null()], ids=str)
def test_text_has_the_type_of_the_first_input_with_some(world: World, first: pa.DataType, output_format: str) -> None:
    world.evidence.mkdir()
    options = {"keep": ("k",), "output_format": output_format}
    kinds = [first, pa.large_string(), pa.string(), pa.null(), pa.string()]
    expected: list[str | None] = []
    for number, kind in enumerate(kinds):
        ids = [None] if pa.types.is_null(kind) else [f"{number}"]
        table = pa.table({"case_id": pa.array(ids, kind), "x_0": [None], "k": pa.array(ids, kind)})
        parquet.write_table(table, world.evidence / f"{number}.parquet")
        expected += ids
        # The first two together.
        if number:
            world.run(**options)
    found = junctor.read_answers(world.folder / "out")
    kind = pa.large_string() if pa.types.is_null(first) else first
    assert found.schema.field("case_id").type == found.schema.field("k").type == kind
    assert found["case_id"].to_pylist() == found["k"].to_pylist() == expected


def write_ids(world: World, **ids: object) -> None:
    """Write a file for each case id."""
    world.evidence.mkdir(exist_ok=True)
    for name, each in ids.items():
        parquet.write_table(
            pa.table({"case_id": [each], "x_0": [None], "k": [each]}), world.evidence / f"{name}.parquet"
        )


def test_types_go_with_the_answers_that_have_them(world: World) -> None:
    write_ids(world, a="1")
    world.run(keep=("k",))
    write_ids(world, b=2)
    with pytest.raises(EvidenceError, match=r"b.parquet: case ids of type int64, but of type string in other"):
        world.run(keep=("k",))
    write_ids(world, a=1)
    assert world.run(keep=("k",)).rows == 2
    assert world.answers()["case_id"].to_pylist() == world.answers()["k"].to_pylist() == [1, 2]
    for name in "ab":
        (world.evidence / f"{name}.parquet").unlink()
    write_ids(world, c="3")
    with pytest.raises(EvidenceError, match="of type string, but of type int64"):
        world.run(keep=("k",))
    assert world.run(keep=("k",), drop_removed=True).rows == 1
    assert world.answers()["case_id"].to_pylist() == ["3"]


def test_types_stay_with_the_answers_to_what_cannot_be_read(world: World) -> None:
    write_ids(world, a="1", b="2")
    world.run(keep=("k",))
    write_ids(world, a=1)
    (world.evidence / "b.parquet").write_bytes(b"PAR1")
    with pytest.raises(EvidenceError, match=r"b.parquet: case ids .* have other types now, .*damaged.*mend or remove"):
        world.run(keep=("k",))
    assert world.answers()["case_id"].to_pylist() == ["1", "2"]
    write_ids(world, a="3")
    with pytest.raises(EvidenceError, match="1 could not be read, 1 answered"):
        world.run(keep=("k",))
    assert world.answers()["case_id"].to_pylist() == ["3", "2"]
    write_ids(world, a=1, b=2)
    world.run(keep=("k",))
    assert world.answers()["case_id"].to_pylist() == [1, 2]


@pytest.mark.parametrize("output_format", ["parquet", "arrow"])
def test_a_column_that_is_missing_in_all_rows_has_the_type_of_others(world: World, output_format: str) -> None:
    options = {"keep": ("k",), "output_format": output_format}
    write_notes(world, a=[None] * 4, b=["x", None], c=[None])
    manifest = world.run(**options)
    assert manifest.columns is not None
    assert manifest.columns.kept == {"k": "string"}
    write_notes(world, d=[None] * 2)
    world.run(**options)
    write_notes(world, e=["y"])
    world.run(**options)
    found = junctor.read_answers(world.folder / "out")
    assert found.schema.field("k").type == pa.string()
    assert found["k"].to_pylist() == [None] * 4 + ["x", None] + [None] + [None] * 2 + ["y"]
    write_notes(world, f=[1])
    with pytest.raises(EvidenceError, match="'k' of type int64, but of type string in other inputs: write"):
        world.run(**options)


def test_a_column_without_a_type_is_answered_anew_with_one(world: World) -> None:
    write_notes(world, a=[None] * 4)
    world.run(keep=("k",))
    write_notes(world, b=[None])
    assert world.run(keep=("k",)).rows == 5
    write_notes(world, c=["x"])
    with pytest.raises(EvidenceError, match=r"'k' of type string, but .* have no type: .* another --output"):
        world.run(keep=("k",))
    assert world.run("other", keep=("k",)).rows == 6
    write_notes(world, d=["y"])
    world.run("other", keep=("k",))
    assert junctor.read_answers(world.folder / "other")["k"].to_pylist() == [None] * 5 + ["x", "y"]
