"""Arrow arrays from buffers and back, and what a run does not import."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from helpers.files import ASIA
from hypothesis import given
from hypothesis import strategies as st
from junctor.runtime.arrow import (
    list_array,
    number_array,
    numbers_of,
    parquet_batches,
    plain_words,
    string_list_array,
    with_plain_words,
)
from junctor.runtime.arrow_batches import ArrayStruct, BatchMaker
from pyarrow import parquet


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.float64()])
@given(cells=st.lists(st.none() | st.integers(0, 100), max_size=40), start=st.integers(0, 20))
def test_numbers_of_a_column(kind: pa.DataType, cells: list[int | None], start: int) -> None:
    found = numbers_of(pa.array(cells, kind).slice(start), 101)
    assert found.tolist() == [101 if cell is None else cell for cell in cells[start:]]
    assert found.dtype == np.dtype(str(kind))


@given(st.lists(st.none() | st.lists(st.text(max_size=3), max_size=3)))
def test_lists_of_strings_come_back(cells: list[list[str] | None]) -> None:
    column = string_list_array(cells)
    column.validate(full=True)
    assert column.equals(pa.array(cells, pa.list_(pa.string())))


WORDS = pa.array(["a", None, "b", "a", "c"]).dictionary_encode()
VIEWS = pa.DictionaryArray.from_arrays(
    pa.array([0, 1, None, 2, 1, 0], pa.uint8()),
    pa.array(["yes", "a word of more than twelve bytes", None], pa.string_view()),
)
BYTES = pa.DictionaryArray.from_arrays(
    pa.array([1, 0, None]), pa.array([b"\xff", b"b"], pa.binary_view()), ordered=True
)
PLAIN = pa.dictionary(pa.uint8(), pa.string())


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (VIEWS, PLAIN),
        (VIEWS.slice(1, 3), PLAIN),
        (VIEWS.slice(0, 0), PLAIN),
        (BYTES, pa.dictionary(pa.int64(), pa.binary(), ordered=True)),
        (pa.ListArray.from_arrays([0, 2, 2, 6], VIEWS).slice(1), pa.list_(PLAIN)),
        (pa.LargeListArray.from_arrays([0, 2, None, 6], VIEWS), pa.large_list(PLAIN)),
        (pa.FixedSizeListArray.from_arrays(VIEWS, 2).slice(1), pa.list_(PLAIN, 2)),
        (pa.StructArray.from_arrays([VIEWS, VIEWS], ["a", "b"]).slice(2), pa.struct([("a", PLAIN), ("b", PLAIN)])),
        (pa.chunked_array([VIEWS, VIEWS.slice(2)]), PLAIN),
        (pa.chunked_array([], VIEWS.type), PLAIN),
    ],
)
def test_views_in_dictionaries_become_text(column: pa.Array, kind: pa.DataType) -> None:
    found = plain_words(column)
    found.validate(full=True)
    assert found.type == kind
    assert found.to_pylist() == column.to_pylist()
    fields = pa.schema([pa.field("k", column.type, metadata={"of": "k"}), ("other", pa.int64())], {"of": "all"})
    table = pa.Table.from_arrays([column, pa.nulls(len(column), pa.int64())], schema=fields)
    plain = with_plain_words(table)
    assert plain.schema.equals(fields.set(0, fields.field(0).with_type(kind)), check_metadata=True)
    assert plain.to_pylist() == table.to_pylist()
    assert with_plain_words(plain) is plain


@pytest.mark.parametrize(
    "kind",
    [
        pa.string_view(),
        pa.list_(pa.string_view()),
        pa.dictionary(pa.int8(), pa.large_string()),
        pa.dictionary(pa.int8(), pa.dictionary(pa.int8(), pa.string_view())),
        pa.map_(pa.string(), pa.int64()),
        pa.uuid(),
    ],
    ids=str,
)
def test_other_columns_stay_as_they_are(kind: pa.DataType) -> None:
    column = pa.nulls(2, kind)
    assert plain_words(column) is column


class Memory:
    """What a batch is made of."""

    def __init__(self, arrays: object) -> None:
        self.arrays = arrays


@given(data=st.data())
def test_batches_of_columns_in_memory(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([np.float32, np.float64]))
    # Names, numbers (0) and lists of numbers.
    sizes = data.draw(st.lists(st.none() | st.integers(0, 4), min_size=1, max_size=5))
    rows = data.draw(st.integers(0, 20))
    marks = data.draw(st.none() | st.lists(st.booleans(), min_size=rows, max_size=rows))
    null = None if marks is None else np.array(marks, np.bool_)
    rng, names = np.random.default_rng(0), pa.array(["a", "", "ccc"])
    columns, expected = [], []
    for size in sizes:
        if size is None:
            columns.append(rng.integers(0, 3, rows).astype(np.int32))
            expected.append(pa.DictionaryArray.from_arrays(number_array(columns[-1], null), names))
        else:
            columns.append(rng.random((rows, size) if size else rows).astype(kind))
            expected.append(list_array(columns[-1], null) if size else number_array(columns[-1], null))
    schema = pa.schema([(f"c{i}", column.type) for i, column in enumerate(expected)])
    maker = BatchMaker(schema, {i: names for i, size in enumerate(sizes) if size is None})
    starts = np.array([column.ctypes.data for column in columns], np.int64)
    memory = Memory(columns)
    is_there = weakref.ref(memory)
    found = maker.batch(schema, rows, starts, memory, null)
    del maker, columns, memory
    found.validate(full=True)
    assert found.equals(pa.RecordBatch.from_arrays(expected, schema=schema))
    # As long as any part of it is there, and no longer.
    part = found.column(len(sizes) - 1)
    del found
    assert part.equals(expected[-1])
    assert is_there() is not None
    del part
    assert is_there() is None


@pytest.mark.parametrize(
    "cells",
    [
        WORDS,
        pa.ListArray.from_arrays([0, 1, 1, 3, 4, 5], WORDS),
        pa.StructArray.from_arrays([pa.FixedSizeListArray.from_arrays(WORDS, 1)], ["x"]),
        pa.MapArray.from_arrays([0, 1, 1, 3, 4, 5], pa.array(["k"] * 5), WORDS),
    ],
    ids=lambda cells: str(cells.type),
)
def test_words_of_several_row_groups(tmp_path: Path, cells: pa.Array) -> None:
    table = pa.table({"n": range(5), "k": cells})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    with parquet.ParquetFile(tmp_path / "t.parquet") as file:
        found = list(parquet_batches(file, 4))
        assert [row for batch in found for row in batch.to_pylist()] == table.to_pylist()
        [last] = parquet_batches(file, 4, [2], ["k"])
        assert last.to_pydict() == {"k": table["k"].to_pylist()[4:]}


@given(data=st.data())
def test_lists_whose_last_entries_are_not_there(data: st.DataObject) -> None:
    names, size = pa.array(["a", "", "ccc"]), data.draw(st.integers(1, 4))
    filled = data.draw(st.lists(st.integers(1, size), min_size=1, max_size=4))
    kinds = [pa.list_(pa.dictionary(pa.int32(), pa.string()), size), pa.list_(pa.float32(), size)]
    schema = pa.schema([(f"{kind}{n}", kinds[kind]) for n in range(len(filled)) for kind in (0, 1)])
    places = range(2 * len(filled))
    maker = BatchMaker(schema, dict.fromkeys(places[::2], names), (), {place: filled[place // 2] for place in places})
    # Numbers of rows, and which are null, change from batch to batch and back.
    for rows, marks in data.draw(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["none", "some", "all"])))):
        null = {"none": None, "some": np.arange(rows) % 3 == 1, "all": np.ones(rows, np.bool_)}[marks]
        columns, expected = [], []
        for place in places:
            there = np.broadcast_to(np.arange(size) < filled[place // 2], (rows, size))
            if null is not None:
                there = there & ~null[:, None]
            values = np.arange(rows * size).reshape(rows, size) % 3
            columns.append(np.where(there, values, -1).astype(np.float32 if place % 2 else np.int32))
            cells = values.tolist() if place % 2 else [[names[i].as_py() for i in row] for row in values.tolist()]
            shown = [
                [cell if is_there else None for cell, is_there in zip(*both, strict=True)]
                for both in zip(cells, there.tolist(), strict=True)
            ]
            expected.append([None if null is not None and null[row] else shown[row] for row in range(rows)])
        starts = np.array([column.ctypes.data for column in columns], np.int64)
        found = maker.batch(schema, rows, starts, columns, null)
        found.validate(full=True)
        assert [column.to_pylist() for column in found.columns] == expected
        assert found.column(0).values.null_count == np.count_nonzero(columns[0] < 0)


def test_a_column_is_sent_without_its_neighbours() -> None:
    numbers = np.zeros(100_000)
    schema = pa.schema([("one", pa.list_(pa.float64(), 1)), ("others", pa.list_(pa.float64(), 99_999))])
    starts = numbers.ctypes.data + 8 * np.array([0, 1])
    assert len(pickle.dumps(BatchMaker(schema).batch(schema, 1, starts, numbers).column(0))) < 1000


@given(data=st.data())
def test_columns_that_come_as_arrays(data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, 6))
    kinds = [pa.string(), pa.int64(), pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.int8()), pa.null()]
    values = [["a", None, "c"], [1, None, 3], ["x", "y", None], [[1], None, [2, 3]], [None]]
    # A maker knows which columns these are, and each batch has its own of any type; one field is never null.
    places = data.draw(st.sets(st.integers(0, 3), max_size=4))
    fields = [pa.field(f"c{i}", pa.float64(), nullable=i != 1) for i in range(4)]
    maker = BatchMaker(pa.schema(fields), arrays=places)
    kept, are_there = [], []
    for number in range(data.draw(st.integers(1, 3))):
        null = np.array(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), np.bool_)
        columns, starts, given_columns, schema = [], [], [], pa.schema([])
        memory = np.random.default_rng(number).random((4, rows))
        for place, field in enumerate(fields):
            if place in places:
                kind = data.draw(st.integers(0, len(kinds) - 1))
                cells = (values[kind] * (rows + 1))[: rows + 1]
                # A slice has an offset.
                columns.append(pa.array(cells, kinds[kind]).slice(1))
                given_columns.append(columns[-1])
            else:
                columns.append(number_array(memory[place], null if field.nullable else None))
                starts.append(memory[place].ctypes.data)
            nullable = place in places or field.nullable
            schema = schema.append(pa.field(f"n{number}-{place}", columns[-1].type, nullable))
        schema = schema.with_metadata({b"a": b"%d" % number})
        expected = pa.RecordBatch.from_arrays(columns, schema=schema)
        arrays = [ArrayStruct(column) for column in given_columns]
        held = Memory(memory)
        are_there.append(weakref.ref(held))
        found = maker.batch(schema, rows, np.array(starts, np.int64), held, null, arrays)
        del arrays, given_columns, memory, columns, held
        kept.append((found, expected))
    for found, expected in kept:
        found.validate(full=True)
        assert found.equals(expected, check_metadata=True)
    assert all(is_there() is not None for is_there in are_there)
    del found, expected
    kept.clear()
    assert all(is_there() is None for is_there in are_there)


def test_structs_of_arrays_go_with_their_last_batch() -> None:
    gc.collect()
    before = pa.total_allocated_bytes()
    column = pa.nulls(100_000, pa.int64())
    maker, schema = BatchMaker(pa.schema([("x", pa.int64())]), arrays=[0]), pa.schema([("x", pa.int64())])
    batches = [maker.batch(schema, 100_000, np.zeros(0, np.int64), None, None, [ArrayStruct(column)]) for _ in range(3)]
    del column
    assert pa.total_allocated_bytes() >= before + 800_000
    assert [batch.column(0).null_count for batch in batches] == 3 * [100_000]
    del batches
    assert pa.total_allocated_bytes() == before


MAKE = (
    "import numpy as np, pyarrow as pa\nfrom junctor.runtime.arrow_batches import BatchMaker, starts_of\n"
    "numbers = np.zeros((1, 9)); schema = pa.schema([('x', pa.float64())])\n"
    "def make(): return BatchMaker(schema).batch(schema, 9, starts_of(numbers), numbers)\n"
)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        # When the interpreter takes its modules apart, or not at all.
        ("pa.keep = [make()]; print(pa.keep[0].num_rows)", "9"),
        ("class Kept: batch = make()\nprint(Kept.batch.num_rows)", "9"),
        # With an exception under way, in what C++ and C destroy.
        ("try: [make(), 1 / 0]\nexcept ZeroDivisionError: print('divided')", "divided"),
        ("try: make().column('y')\nexcept KeyError: print('no y')", "no y"),
        ("try: print([make() if n < 2 else {}[n] for n in range(3)])\nexcept KeyError: print('no 2')", "no 2"),
        # With no room left for a call.
        (
            "def deeper(batch):\n    kept = make()\n    deeper(kept)\n"
            "try: deeper(None)\nexcept RecursionError: print('deep')",
            "deep",
        ),
        # With a signal that waits.
        (
            "import signal\ndef stop(*_): raise InterruptedError\nsignal.signal(signal.SIGALRM, stop)\n"
            "maker, seen = BatchMaker(schema), 0\nwhile seen < 500:\n    try:\n"
            "        signal.setitimer(signal.ITIMER_REAL, 2e-4 + 1e-7 * seen)\n"
            "        while True: [maker.batch(schema, 9, starts_of(numbers), numbers), make()]\n"
            "    except InterruptedError: seen += 1\n"
            "print(seen, maker.batch(schema, 9, starts_of(numbers), numbers).num_rows)",
            "500 9",
        ),
    ],
)
def test_batches_go_at_any_moment(code: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", MAKE + code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr


def test_a_run_imports_nothing_that_states_do_without(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"smoke": ["yes", None, "no"]}), tmp_path / "evidence.parquet")
    code = (
        "import sys; from junctor.cli import app_for\n"
        "unwanted = {'pandas', 'pyarrow.compute', 'scipy.linalg', 'dask', 'prefect', 'junctor.out_of_core.cluster'}\n"
        f"try: app_for()(['run', {ASIA!r}, 'evidence.parquet', '-o', 'out', '--no-prefect', '--quiet'])\n"
        "except SystemExit: print(sorted(unwanted & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
