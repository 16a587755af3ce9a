"""Arrow arrays from buffers and back, and what a run does not import."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from helpers.files import ASIA
from hypothesis import given
from hypothesis import strategies as st
from junctor.runtime import arrow_batches
from junctor.runtime.arrow import list_array, number_array, numbers_of, string_list_array
from junctor.runtime.arrow_batches import BatchMaker, starts_of, table_around
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
    gc.collect()
    before = len(arrow_batches._held)
    found = maker.batch(rows, starts, columns, null)
    del maker, columns
    found.validate(full=True)
    assert found.equals(pa.RecordBatch.from_arrays(expected, schema=schema))
    # As long as any part of it is there, and no longer.
    part = found.column(len(sizes) - 1)
    del found
    assert part.equals(expected[-1])
    assert len(arrow_batches._held) == before + 1
    del part
    assert len(arrow_batches._held) == before


def test_a_column_is_sent_without_its_neighbours() -> None:
    numbers = np.zeros(100_000)
    schema = pa.schema([("one", pa.list_(pa.float64(), 1)), ("others", pa.list_(pa.float64(), 99_999))])
    starts = numbers.ctypes.data + 8 * np.array([0, 1])
    assert len(pickle.dumps(BatchMaker(schema).batch(1, starts, numbers).column(0))) < 1000


def test_columns_around_a_batch() -> None:
    numbers = np.arange(6.0).reshape(2, 3)
    middle = BatchMaker(pa.schema([("x", pa.float64()), ("y", pa.float64())]))
    status = pa.field("status", pa.int8(), nullable=False)
    schema = pa.schema([pa.field("id", pa.string()), *middle.schema, status], {b"a": b"b"})
    batch = middle.batch(3, starts_of(numbers), numbers)
    table = table_around(batch, [pa.array(["a", "b", "c"])], [pa.array([0, 1, 2], pa.int8())], schema)
    assert table.schema.equals(schema, check_metadata=True)
    assert table.to_pydict() == {"id": ["a", "b", "c"], "x": [0, 1, 2], "y": [3, 4, 5], "status": [0, 1, 2]}


def test_batches_that_outlive_their_module() -> None:
    # Arrow releases them when the interpreter takes its modules apart, or not at all.
    code = (
        "import numpy as np, pyarrow as pa\nfrom junctor.runtime.arrow_batches import BatchMaker, starts_of\n"
        "numbers = np.zeros((1, 9)); keep = BatchMaker(pa.schema([('x', pa.float64())]))\n"
        "pa.keep = [keep.batch(9, starts_of(numbers), numbers)]; print(pa.keep[0].num_rows)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("9", "")


def test_a_run_imports_nothing_that_states_do_without(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"smoke": ["yes", None, "no"]}), tmp_path / "evidence.parquet")
    code = (
        "import sys; from junctor.cli import app\n"
        "unwanted = {'pandas', 'pyarrow.compute', 'scipy.linalg', 'dask', 'prefect', 'junctor.out_of_core.cluster'}\n"
        f"try: app(['run', {ASIA!r}, 'evidence.parquet', '-o', 'out', '--no-prefect', '--quiet'])\n"
        "except SystemExit: print(sorted(unwanted & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
