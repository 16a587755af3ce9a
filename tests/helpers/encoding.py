"""Whole tables of evidence, encoded."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from junctor.evidence.encode import EncodedPartition, TableEncoder
from junctor.model.network import Network


def encode_table(
    table: pa.Table | pa.RecordBatch, network: Network, first_row: int = 0, **options: Any
) -> EncodedPartition:
    """Encode a table in memory; options: of `TableEncoder`."""
    return TableEncoder(table.schema, network, **options).encode(table, first_row)
