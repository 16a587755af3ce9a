"""Arrow arrays from buffers and back, and what a run does not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from helpers.files import ASIA
from hypothesis import given
from hypothesis import strategies as st
from junctor.runtime.arrow import numbers_of, string_list_array
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


def test_a_run_does_not_import_pandas(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"smoke": ["yes", None, "no"]}), tmp_path / "evidence.parquet")
    code = (
        "import sys; from junctor.runs.run import run; from junctor.runs.workload import Job\n"
        "from junctor.runtime.dask_cluster import Resources\n"
        f"run(Job({ASIA!r}, 'evidence.parquet', 'out'), Resources(workers=0)); print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
