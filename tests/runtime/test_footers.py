"""What footers of Parquet files say of column chunks, also of those that contradict their schema."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzz.footers import read_footer, with_footer
from helpers.hmm_models import random_model
from junctor.evidence.read import open_evidence
from junctor.generate import random_network
from junctor.hmm import build_model, read_model, write_model
from junctor.model.errors import EvidenceError, ModelError
from junctor.runtime.footers import chunks_of

NETWORK = random_network(4, seed=1)


def table() -> pa.Table:
    numbers = np.arange(300)
    texts = pa.array([f"text {n % 7}" for n in numbers])
    columns = {
        "n": numbers,
        "a.b": texts.take(pa.array(numbers[::-1])),
        "null": pa.nulls(300, pa.string()),
        "flags": numbers % 2 == 0,
        "lists": pa.array([[1.0] * (n % 3) for n in numbers]),
        "record": pa.array([{"x": n, "y": "z"} for n in range(300)]),
        "bytes": pa.array([bytes(n % 200) for n in range(300)]),
    }
    return pa.table(columns, metadata={"k": "v" * 1000})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_dictionary": False, "compression": "zstd", "write_statistics": False},
        {"use_dictionary": False, "column_encoding": {"a.b": "DELTA_BYTE_ARRAY", "n": "DELTA_BINARY_PACKED"}},
        {"data_page_version": "2.0", "write_page_index": True, "row_group_size": 1000},
        # Dictionaries that get too large, behind which cells are plain.
        {"dictionary_pagesize_limit": 20, "data_page_size": 20, "write_batch_size": 4},
    ],
)
def test_chunks_are_told_as_by_arrow(options: dict[str, Any], tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "t.parquet", **{"row_group_size": 128, **options})
    with pq.ParquetFile(tmp_path / "t.parquet") as file:
        groups = chunks_of(io.BytesIO((tmp_path / "t.parquet").read_bytes()))
        assert len(groups) == file.num_row_groups
        for number, chunks in enumerate(groups):
            group = file.metadata.row_group(number)
            assert len(chunks) == group.num_columns
            for at, chunk in enumerate(chunks):
                column = group.column(at)
                sizes = column.num_values, column.total_compressed_size, column.total_uncompressed_size
                assert (chunk.column, chunk.values, chunk.stored, chunk.decoded) == (column.path_in_schema, *sizes)
                assert chunk.has_differences == any(name.startswith("DELTA") for name in column.encodings)
                if not any(name.endswith("DICTIONARY") for name in column.encodings):
                    assert not chunk.has_words
        texts = next(chunk for chunk in groups[0] if chunk.column == "a.b")
        assert texts.text == 6 * (300 if "row_group_size" in options else 128)
        assert texts.has_words == (options.get("use_dictionary", True) and "dictionary_pagesize_limit" not in options)


def contradicting(path: Path) -> None:
    """Let the counts of levels in a footer be of another depth than the schema is, by one changed number."""
    data = path.read_bytes()
    footer = read_footer(data)
    groups = next(value for _, value, number in footer if number == 4)
    for _, group in groups:
        for _, chunk in next(value for _, value, number in group if number == 1):
            meta = next(value for _, value, number in chunk if number == 3)
            for sizes in (value for _, value, number in meta if number == 16):
                sizes += [[9, [[6, 1]] * 9, number] for number in (2, 3)]
    path.write_bytes(with_footer(data, footer))


def test_a_footer_against_its_schema_is_refused(tmp_path: Path) -> None:
    # Whoever asks Arrow for the metadata of such a column ends with the process, which no exception handler stops.
    names = [variable.name for variable in NETWORK.variables]
    pq.write_table(
        pa.table({name: [state] * 3 for name, state in zip(names, "0101", strict=True)}), tmp_path / "t.parquet"
    )
    contradicting(tmp_path / "t.parquet")
    with pytest.raises(EvidenceError, match=r"t\.parquet: cannot be read: .*histogram size mismatch"):
        list(open_evidence(tmp_path / "t.parquet", NETWORK).partitions(10))

    bare = random_model(3, 2, 1)
    write_model(build_model(bare.start, bare.transition, bare.emission), tmp_path / "m.parquet")
    contradicting(tmp_path / "m.parquet")
    with pytest.raises(ModelError, match=r"m\.parquet: cannot be read as .*histogram size mismatch"):
        read_model(tmp_path / "m.parquet")


def test_sizes_that_cannot_be(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "t.parquet")
    data = (tmp_path / "t.parquet").read_bytes()
    footer = read_footer(data)
    groups = next(value for _, value, number in footer if number == 4)
    chunk = next(value for _, value, number in groups[0][1] if number == 1)[0][1]
    meta = next(value for _, value, number in chunk if number == 3)
    next(field for field in meta if field[2] == 5)[1] = -4
    with pytest.raises(ValueError, match=r"column 'n': found -4 values"):
        chunks_of(io.BytesIO(with_footer(data, footer)))
