"""Arrow arrays from NumPy arrays and strings, by their buffers, and back; called by readers and writers of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

# Not `pyarrow.array` and `to_numpy`: both import pandas wherever it is installed, whatever they are given. That takes
# most of a second, more than ten rows take to answer.

_Column = TypeVar("_Column", pa.Array, pa.ChunkedArray)
_Table = TypeVar("_Table", pa.Table, pa.RecordBatch)
_PLAIN_WORDS = {pa.lib.Type_STRING_VIEW: pa.string(), pa.lib.Type_BINARY_VIEW: pa.binary()}
# Types that are, or may hold, dictionaries.
_WITH_WORDS = {
    *(pa.lib.Type_DICTIONARY, pa.lib.Type_STRUCT),
    *(pa.lib.Type_LIST, pa.lib.Type_LARGE_LIST, pa.lib.Type_FIXED_SIZE_LIST),
}


def number_array(values: npt.NDArray[Any], null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return a column of the numbers in `values` [n], null where `null` [n] says so; shares the memory."""
    # A buffer has no strides.
    values = np.ascontiguousarray(values)
    buffers = [_validity(null), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def list_array(values: npt.NDArray[Any], null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return a column of fixed-size lists, the rows of `values` [n, size], null where `null` [n] says so."""
    rows, size = values.shape
    numbers = number_array(np.ascontiguousarray(values).reshape(-1))
    return pa.Array.from_buffers(pa.list_(numbers.type, size), rows, [_validity(null)], children=[numbers])


def columns_of_lists(lists: pa.Array) -> list[pa.Array]:
    """Return fixed-size lists of floats as columns, one for each place in a list, null where the list is."""
    # Five to thirty times as fast as a kernel of Arrow for each place.
    rows, size, number, values = len(lists), lists.type.list_size, lists.type.value_type, lists.values
    kind = np.dtype(np.float32 if number == pa.float32() else np.float64)
    start = lists.offset * size + values.offset
    numbers = np.frombuffer(values.buffers()[1] or b"", kind, start + rows * size)[start:].reshape(rows, size)
    validity, columns = _validity(nulls_of(lists)), pa.py_buffer(np.ascontiguousarray(numbers.T))
    width = rows * kind.itemsize
    pieces = [columns.slice(place * width, width) for place in range(size)]
    return [pa.Array.from_buffers(number, rows, [validity, piece]) for piece in pieces]


def string_array(values: Sequence[str | None], escaping: bool = False) -> pa.Array:
    """Return a column of strings, null for None.

    escaping: whether halves of characters, which JSON may have, become escapes; they raise UnicodeEncodeError if not.
    """
    errors = "backslashreplace" if escaping else "strict"
    encoded = [b"" if value is None else value.encode(errors=errors) for value in values]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int32)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    null = np.array([value is None for value in values], dtype=np.bool_)
    buffers = [_validity(null), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def string_list_array(values: Sequence[Sequence[str] | None]) -> pa.Array:
    """Return a column of lists of strings, null for None."""
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum([len(value or ()) for value in values], out=offsets[1:])
    strings = string_array([text for value in values for text in value or ()])
    buffers = [_validity(np.array([value is None for value in values], dtype=np.bool_)), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.list_(pa.string()), len(values), buffers, children=[strings])


def ragged_array(values: pa.Array, lengths: npt.NDArray[Any], null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return a column of lists, `lengths` [n] entries of `values` each, null where `null` [n] says so."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    buffers = [_validity(null), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.large_list(values.type), len(lengths), buffers, children=[values])


def reason_array(reasons: Mapping[int, str], rows: int) -> pa.Array:
    """Return a column of the reason of each row, null where there is none."""
    # Most batches have none, and 65,536 rows of None take longer than the answers of small networks.
    if not reasons:
        return pa.nulls(rows, pa.string())
    return string_array([reasons.get(row) for row in range(rows)], escaping=True)


def table_of(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.Table:
    """Return a table of columns in one piece each."""
    # By way of a batch: of thousands of columns in a third of the time.
    return pa.Table.from_batches([pa.RecordBatch.from_arrays(columns, schema=schema)])


def free_names(taken: Iterable[str]) -> Callable[[str], str]:
    """Return what gives a name that is taken trailing underscores; what it gives is taken as well."""
    names = set(taken)

    def free(name: str) -> str:
        while name in names:
            name += "_"
        names.add(name)
        return name

    return free


def no_rows(schema: pa.Schema) -> pa.Table:
    """Return a table without rows; unlike `empty_table` of Arrow, of unions too."""
    return pa.Table.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)


def without_null_words(column: pa.Array) -> pa.Array:
    """Return a column with no null among the words of its dictionary, but null indices; within records and lists too.

    column: Arrow neither writes such dictionaries to Parquet nor joins them.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _without_null_words(column) if column.dictionary.null_count else column
    if pa.types.is_struct(kind):
        fields = [column.field(i) for i in range(kind.num_fields)]
        found = [without_null_words(field) for field in fields]
        own = [_validity(nulls_of(column))], 0
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        fields, found = [column.values], [without_null_words(column.values)]
        own = column.buffers()[: kind.num_buffers], column.offset
    else:
        return column
    if all(one is other for one, other in zip(fields, found, strict=True)):
        return column
    buffers, offset = own
    return pa.Array.from_buffers(kind, len(column), buffers, offset=offset, children=found)


def texts_of_bytes(column: pa.Array | pa.ChunkedArray) -> list[str | None]:
    """Return the cells of a column of bytes as text; bytes that are not UTF-8 become \\xff."""
    return [None if cell is None else cell.decode(errors="backslashreplace") for cell in column.to_pylist()]


def plain_words(column: _Column) -> _Column:
    """Return a column whose dictionaries hold no views, but text or bytes; within records and lists too.

    column: Arrow neither takes words that are views nor writes them to Parquet.
    """
    kind = plain_words_type(column.type)
    return column if kind == column.type else column.cast(kind)


def plain_words_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of `plain_words`."""
    if pa.types.is_dictionary(kind):
        plain = _PLAIN_WORDS.get(kind.value_type.id)
        return kind if plain is None else pa.dictionary(kind.index_type, plain, kind.ordered)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(plain_words_type(field.type)) for field in kind])
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return kind
    cell = kind.value_field.with_type(plain_words_type(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(cell, kind.list_size)
    return pa.list_(cell) if pa.types.is_list(kind) else pa.large_list(cell)


def cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column of another type; dictionaries may become views, which Arrow itself does not do."""
    if pa.types.is_dictionary(column.type) and kind.id in _PLAIN_WORDS:
        column = column.dictionary_decode()
    return column.cast(kind)


def with_plain_words(table: _Table) -> _Table:
    """Return a table or record batch with the columns of `plain_words`; itself where these are its own."""
    found = table.schema
    schema = plain_words_schema(found)
    if schema is found:
        return table
    return type(table).from_arrays([plain_words(column) for column in table.columns], schema=schema)


def plain_words_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of `with_plain_words`; itself where nothing differs."""
    for at, kind in enumerate(schema.types):
        # Networks have thousands of columns, and calls a row.
        if kind.id in _WITH_WORDS and (plain := plain_words_type(kind)) != kind:
            schema = schema.set(at, schema.field(at).with_type(plain))
    return schema


def parquet_batches(
    file: ParquetFile,
    rows: int,
    groups: Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
    use_threads: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yield batches of a Parquet file, of any types.

    rows: of a batch, at the most.
    groups: row groups that are read, None for all.
    columns: names of those that are read, None for all.
    use_threads: whether Arrow has threads of its own.
    """
    schema = file.schema_arrow
    names = schema.names if columns is None else columns
    together = [groups]
    # Arrow joins no row groups with dictionaries within lists and records.
    if any(_has_inner_words(schema.field(name).type) for name in names):
        together = [[group] for group in (range(file.num_row_groups) if groups is None else groups)]
    for some in together:
        yield from file.iter_batches(rows, some, columns, use_threads=use_threads)


def _has_inner_words(kind: pa.DataType) -> bool:
    return any(
        pa.types.is_dictionary(inner) or _has_inner_words(inner)
        for inner in (kind.field(i).type for i in range(kind.num_fields))
    )


def _without_null_words(column: pa.Array) -> pa.Array:
    kind, words = column.type, column.dictionary
    # Of its own type, null has no bits that say so.
    some = None if pa.types.is_null(words.type) else nulls_of(words)
    null = np.ones(len(words), np.bool_) if some is None else some
    places = number_array(np.cumsum(~null) - 1, null).cast(kind.index_type)
    return pa.DictionaryArray.from_arrays(places.take(column.indices), words.drop_null(), ordered=kind.ordered)


def in_one_piece(column: pa.ChunkedArray) -> pa.Array:
    """Return a column of a table as one array."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])


def numbers_of(column: pa.Array, null: int) -> npt.NDArray[Any]:
    """Return the integers or doubles of a column, `null` where there is none; shares the memory where none is null."""
    # Slices share the buffers of the whole column: everything starts at the offset.
    data = column.buffers()[1]
    end = column.offset + len(column)
    values = np.frombuffer(data or b"", np.dtype(str(column.type)), end)[column.offset :]
    nulls = nulls_of(column)
    if nulls is None:
        return values
    if null == -1 and values.dtype.kind == "i":
        # All bits set: ten times as fast as a choice.
        return values | -nulls.view(np.int8)
    return np.where(nulls, values.dtype.type(null), values)


def nulls_of(column: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return where a column is null, bool [rows]; None for nowhere."""
    if not column.null_count:
        return None
    bits = np.frombuffer(column.buffers()[0], np.uint8)
    end = column.offset + len(column)
    return ~np.unpackbits(bits, count=end, bitorder="little")[column.offset :].view(np.bool_)


def _validity(null: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    if null is None or not null.any():
        return None
    return pa.py_buffer(np.packbits(~null, bitorder="little"))
