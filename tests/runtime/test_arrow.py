"""Arrow arrays from buffers and back, and what a run does not import."""

from __future__ import annotations

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
from junctor.runtime.arrow import BatchTemplate, list_array, list_arrays, number_array, numbers_of, string_list_array
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
def test_lists_in_one_piece_of_memory(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([np.float32, np.float64]))
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    rows = data.draw(st.integers(0, 5))
    memory = np.arange(rows * sum(sizes), dtype=kind)
    null = data.draw(st.none() | st.lists(st.booleans(), min_size=rows, max_size=rows).map(np.array))
    ends = np.cumsum([0, *sizes]) * rows
    found = list_arrays(memory, sizes, rows, None if null is None else null.astype(np.bool_))
    for column, size, start, end in zip(found, sizes, ends[:-1], ends[1:], strict=True):
        column.validate(full=True)
        expected = list_array(memory[start:end].reshape(rows, size), None if null is None else null.astype(np.bool_))
        assert column.equals(expected)
        assert column.type == expected.type


def test_a_column_is_sent_without_its_neighbours() -> None:
    columns = list_arrays(np.zeros(100_000), [1, 99_999], 1)
    assert len(pickle.dumps(columns[0])) < 1000


def batch_of(numbers: np.ndarray, sizes: list[int], rows: int, first: np.ndarray) -> pa.RecordBatch:
    columns = [number_array(first), *list_arrays(numbers, sizes, rows)]
    return pa.RecordBatch.from_arrays(columns, [f"c{i}" for i in range(len(columns))])


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_templates_are_batches_of_other_numbers(rows: int, kind: type) -> None:
    rng, sizes = np.random.default_rng(rows), [2, 4, 6, 1]
    empty = batch_of(np.zeros(rows * sum(sizes), kind), sizes, rows, np.zeros(rows, np.int64))
    if kind is np.float32 and rows % 2:
        # Four bytes of the last column are alone.
        sizes = sizes[:-1]
        empty = batch_of(np.zeros(rows * sum(sizes), kind), sizes, rows, np.zeros(rows, np.int64))
    template = BatchTemplate(empty, (1, len(sizes)))
    kept = []
    for _ in range(3):
        numbers, first = rng.random(rows * sum(sizes)).astype(kind), rng.integers(0, 9, rows)
        kept.append((template.filled(first, numbers), batch_of(numbers, sizes, rows, first)))
    for found, expected in kept:
        found.validate(full=True)
        assert found.equals(expected)


def test_a_template_needs_columns_without_gaps() -> None:
    batch = batch_of(np.zeros(4, np.float32), [1, 3], 1, np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="gaps"):
        BatchTemplate(batch, (1, 2))
    BatchTemplate(batch, (1, 1, 1))


def test_a_run_imports_nothing_that_states_do_without(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"smoke": ["yes", None, "no"]}), tmp_path / "evidence.parquet")
    code = (
        "import sys; from junctor.cli import app\n"
        "unwanted = {'pandas', 'pyarrow.compute', 'asyncio', 'scipy.linalg', 'dask', 'prefect'}\n"
        f"try: app(['run', {ASIA!r}, 'evidence.parquet', '-o', 'out', '--no-prefect', '--quiet'])\n"
        "except SystemExit: print(sorted(unwanted & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
