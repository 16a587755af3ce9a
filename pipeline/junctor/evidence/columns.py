"""Columns of an Arrow table as arrays: state numbers, likelihoods, plain numbers.

Main functions: `encode_states`, `encode_lists`, `encode_entries`; called by `junctor.evidence.encode`. Only distinct
cells, a handful among millions, are read in Python; the rest is NumPy. Errors are pairs of row and reason, unordered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from junctor.evidence.batch import UNOBSERVED, SoftEvidence
from junctor.evidence.mapping import MappedCells
from junctor.evidence.states import DECIMAL_COMMA, UNKNOWN, Cell, StateCells, comma_hint, missing_texts
from junctor.runtime.arrow import numbers_of, texts_of_bytes

Bad = list[tuple[int, str]]
_FAMILIES: dict[tuple[int, str], bool] = {}
# Text that Arrow can factorise as it is.
_STRINGS = "string large_string"
Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

# Columns of at most so many rows are read cell by cell: there may be a hundred thousand of them.
FEW_ROWS = 8
# Stricter than Arrow's cast, which also takes `inf`.
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def is_text(kind: pa.DataType) -> bool:
    """Return True if cells of this type are text, or bytes: old tools write UTF-8 to Parquet without declaring it."""
    return _is_one_of(_cell_type(kind), "string large_string string_view binary large_binary binary_view")


def is_string(kind: pa.DataType) -> bool:
    """Return True for text in any type of Arrow: pandas, polars and Arrow itself write different ones."""
    return _is_one_of(kind, "string large_string string_view")


def is_number(kind: pa.DataType) -> bool:
    """Return True if cells of this type are numbers or booleans, or all null."""
    return _is_one_of(_cell_type(kind), "integer floating decimal boolean null")


def is_list(kind: pa.DataType) -> bool:
    """Return True if cells of this type are lists."""
    return _is_one_of(kind, "list large_list fixed_size_list list_view large_list_view")


def encode_states(column: pa.Array, cells: StateCells, explain: bool = True) -> tuple[npt.NDArray[np.int32], Bad]:
    """Return the state of each row, int32 [rows], UNOBSERVED for empty and bad cells, and the bad rows with reasons.

    column: cells of any type.
    cells: what they mean; with `explain` also the suggestions made so far, so that tables are explained in their order.
    explain: False for empty reasons.
    """
    distinct, indices = _factorised(column)
    found = [*map(cells.code, distinct), UNOBSERVED]
    codes = np.array(found, dtype=np.int32).take(indices)  # a null has index -1, the last entry
    bad: Bad = []
    if UNKNOWN in found:
        rows = np.flatnonzero(codes == UNKNOWN)
        codes[rows] = UNOBSERVED
        bad = _named(rows, indices[rows], lambda at: cells.reason(distinct[at]) if explain else "")
    return codes, bad


def unknown_cells(column: pa.Array, cells: StateCells) -> list[str]:
    """Return the texts of the different cells that name no state."""
    distinct, _ = _factorised(column)
    unknown = [cell for cell in distinct if cells.code(cell) == UNKNOWN]
    return [str(int(cell) if isinstance(cell, float) and cell.is_integer() else cell).strip() for cell in unknown]


def encode_binned(column: pa.Array, cells: MappedCells, explain: bool = True) -> tuple[npt.NDArray[np.int32], Bad]:
    """Return what `encode_states` does, of a variable whose numbers are put into bins; no number is read in Python."""
    # Imported where it is needed, as below: a twentieth of a second, which states alone do without.
    from pyarrow import compute as pc

    if pa.types.is_dictionary(column.type):
        lookup, unknown = encode_binned(column.dictionary, cells, False)
        wrong = np.zeros(len(lookup) + 1, dtype=np.bool_)
        wrong[[row for row, _ in unknown]] = True
        indices = _indices(column.indices)
        codes = np.append(lookup, np.int32(UNOBSERVED))[indices]
        return codes, _explained(column.dictionary, np.flatnonzero(wrong[indices]), indices, cells, explain)
    assert cells.bins is not None
    if pa.types.is_boolean(column.type):
        return encode_states(column, cells, explain)
    if not is_text(column.type):
        codes = cells.bins.states(_shortest(column))
    else:
        texts = _with_points(pc.utf8_trim_whitespace(_plain(column)))
        numeric = pc.match_substring_regex(texts, _NUMBER)
        codes = cells.bins.states(_doubles(pc.if_else(numeric, texts, None)))
        others = np.flatnonzero(~_booleans(pc.fill_null(numeric, True)))
        if others.size:
            codes[others] = _codes(texts.take(pa.array(others)), cells)
    bad = np.flatnonzero(codes == UNKNOWN)
    codes[bad] = UNOBSERVED
    return codes, _explained(column, bad, np.arange(len(column)), cells, explain)


def _with_points(texts: pa.Array) -> pa.Array:
    """Return texts, those that are numbers with a decimal comma with a point."""
    from pyarrow import compute as pc

    commas = pc.match_substring(texts, ",")
    if not _booleans(commas).any():
        return texts
    decimal = pc.fill_null(pc.match_substring_regex(texts, f"^{DECIMAL_COMMA}$"), False)
    return pc.if_else(decimal, pc.replace_substring(texts, ",", "."), texts)


def _codes(column: pa.Array, cells: StateCells) -> npt.NDArray[np.int32]:
    distinct, indices = _factorised(column)
    return np.array([*map(cells.code, distinct), UNOBSERVED], dtype=np.int32)[indices]


def _explained(values: pa.Array, rows: Integers, indices: Integers, cells: StateCells, explain: bool) -> Bad:
    """Return bad rows with reasons; indices: of the cell of each row among `values`."""
    if not explain or not rows.size:
        return [(row, "") for row in rows.tolist()]
    distinct, which = _factorised(_plain(values).take(pa.array(indices[rows])))
    return _named(rows, which, lambda at: cells.reason(distinct[at]))


def _shortest(column: pa.Array) -> Doubles:
    # 0.7 of four bytes is 0.7, and not below it.
    return _doubles(column.cast(pa.string()) if pa.types.is_float32(column.type) else column)


def plain_cells(column: pa.Array) -> pa.Array:
    """Return the cells without a dictionary, of a type that Arrow can factorise."""
    return _plain(_decoded(column))


def encode_numbers(column: pa.Array, missing: Sequence[str] = ()) -> tuple[Doubles, Bad]:
    """Return the number of each row, float64 [rows], NaN for empty and bad cells, and the bad rows with reasons.

    missing: texts that stand for no number, beside the usual ones.
    """
    from pyarrow import compute as pc

    none = [float(text) for text in missing if re.fullmatch(_NUMBER, text.strip())]
    if not is_text(column.type):
        numbers = _doubles(_decoded(column))
        return (np.where(np.isin(numbers, none), np.nan, numbers) if none else numbers), []
    distinct, indices = _factorised(column)
    texts = _with_points(pc.utf8_trim_whitespace(pa.array(distinct, pa.large_string())))
    lacking = pc.is_in(pc.utf8_lower(texts), pa.array([*missing_texts(missing), None], pa.large_string()))
    numeric = pc.and_not(pc.match_substring_regex(texts, _NUMBER), lacking)
    lookup = np.append(_doubles(pc.if_else(numeric, texts, None)), np.nan)
    # -9.0 is `-9`, as in a column of numbers.
    if none:
        lookup[np.isin(lookup, none)] = np.nan
    wrong = np.append(~_booleans(pc.or_(numeric, lacking)), False)
    rows = np.flatnonzero(wrong[indices])
    bad = _named(
        rows, indices[rows], lambda at: f"found {_short(distinct[at])}, expected a number{comma_hint(distinct[at])}"
    )
    return lookup[indices], bad


def encode_lists(column: pa.Array, states: Sequence[str]) -> tuple[SoftEvidence, Bad]:
    """Return the likelihoods of a list column (none for null rows), and the bad rows with reasons."""
    from pyarrow import compute as pc

    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
    fits = lengths == len(states)
    wrong = np.flatnonzero(~fits & (lengths >= 0))
    expected = f"expected {len(states)}, one for each state"
    bad: Bad = [(row, f"found {lengths[row]} likelihoods, {expected}") for row in wrong.tolist()]
    values = _doubles(_plain(column.filter(pa.array(fits)).flatten())).reshape(-1, len(states))
    likelihood, more = checked_likelihood(np.flatnonzero(fits), values)
    return likelihood, bad + more


def encode_entries(
    columns: Sequence[pa.Array], states: Sequence[str], missing: Sequence[str] = ()
) -> tuple[SoftEvidence, Bad]:
    """Return the likelihoods of columns that hold one entry each, and the bad rows with reasons.

    columns: one for each state.
    states: their names.
    missing: texts that stand for no number, beside the usual ones.
    """
    values = np.empty((len(columns[0]), len(states)))
    unreadable = np.zeros(len(values), dtype=np.bool_)
    bad: Bad = []
    for state, column in enumerate(columns):
        values[:, state], wrong = encode_numbers(column, missing)
        unreadable[[row for row, _ in wrong]] = True
        bad += [(row, f"likelihood of {states[state]!r}: {reason}") for row, reason in wrong]
    absent = np.isnan(values)
    # A row without any entry has no likelihood. One with some but not all is bad: 0 and 1 are both plausible guesses.
    partial = np.flatnonzero(absent.any(axis=1) & ~absent.all(axis=1) & ~unreadable)
    lacking = absent[partial].argmax(axis=1)
    bad += [
        (row, f"no likelihood of {states[state]!r}, but of other states")
        for row, state in zip(partial.tolist(), lacking.tolist(), strict=True)
    ]
    whole = np.flatnonzero(~absent.any(axis=1))
    likelihood, more = checked_likelihood(whole, values[whole])
    return likelihood, bad + more


def checked_likelihood(rows: Integers, values: Doubles) -> tuple[SoftEvidence, Bad]:
    """Return the valid likelihoods (finite, not negative, not all zero), and the bad rows with reasons.

    rows: int64 [n].
    values: float64 [n, states].
    """
    finite = np.isfinite(values).all(axis=1)
    negative = (values < 0).any(axis=1)
    zero = ~values.any(axis=1)
    bad: Bad = [(row, "a likelihood is missing or not finite") for row in rows[~finite].tolist()]
    bad += [(row, "a likelihood is negative") for row in rows[finite & negative].tolist()]
    bad += [(row, "all likelihoods are 0, so no state is possible") for row in rows[zero].tolist()]
    good = finite & ~negative & ~zero
    return SoftEvidence(rows[good], values[good]), bad


def _factorised(column: pa.Array) -> tuple[list[Any], Integers]:
    """Return the distinct cells of a column and the index of each row's cell among them, -1 for null."""
    if len(column) <= FEW_ROWS:
        # A cell may occur twice: it is read again, to the same effect.
        cells = column.to_pylist() if _is_one_of(_cell_type(column.type), _STRINGS) else _cells(_decoded(column))
        return cells, np.array([-1 if cell is None else row for row, cell in enumerate(cells)], dtype=np.int64)
    if pa.types.is_dictionary(column.type):
        indices = _indices(column.indices)
        if len(column.dictionary) <= len(column):
            return _cells(column.dictionary), indices
        # A slice of a column shares the dictionary of all of it: cells that do not occur in the slice are left out.
        used, compact = np.unique(indices, return_inverse=True)
        distinct = _cells(column.dictionary.take(pa.array(used[used >= 0])))
        # np.unique numbers null, -1, as 0; everything moves down by one where there is a null.
        return distinct, compact - np.count_nonzero(used < 0)
    encoded = _plain(column).dictionary_encode()
    return _cells(encoded.dictionary), _indices(encoded.indices)


def _indices(indices: pa.Array) -> Integers:
    if not pa.types.is_signed_integer(indices.type):
        indices = indices.cast(pa.int64())
    return numbers_of(indices, -1)


def _cells(distinct: pa.Array) -> list[Cell]:
    plain = _plain(distinct)
    cells: list[Cell] = plain.to_pylist()
    if pa.types.is_float32(plain.type):
        # The shortest digits that mean this float: 0.1 is the state "0.1", not 0.10000000149011612.
        return [None if cell is None else float(str(np.float32(cell))) for cell in cells]
    return cells


def _plain(column: pa.Array) -> pa.Array:
    """Cast to a type that Arrow can factorise."""
    kind = column.type
    if pa.types.is_float16(kind):
        return column.cast(pa.float32())
    if pa.types.is_decimal(kind) and kind.bit_width < 128:
        return column.cast(pa.decimal128(kind.precision, kind.scale))
    if not is_text(kind) or _is_one_of(kind, _STRINGS):
        return column
    try:
        return column.cast(pa.large_string())
    except pa.ArrowInvalid:
        # Bytes that are not UTF-8 become \xff: such a cell is unknown, and its row invalid, as with any other text.
        return pa.array(texts_of_bytes(column), pa.large_string())


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _doubles(column: pa.Array) -> Doubles:
    from pyarrow import compute as pc

    # An unsafe cast: integers above 2^53 lose digits that no likelihood needs.
    doubles: Doubles = pc.fill_null(column.cast(pa.float64(), safe=False), np.nan).to_numpy(zero_copy_only=False)
    return doubles


def _booleans(column: pa.Array) -> npt.NDArray[np.bool_]:
    from pyarrow import compute as pc

    booleans: npt.NDArray[np.bool_] = pc.fill_null(column, False).to_numpy(zero_copy_only=False)
    return booleans


def _named(rows: Integers, which: Integers, reason: Any) -> Bad:
    """Pair rows with the reason of their cell.

    rows: bad rows.
    which: index of the distinct cell of each row.
    reason: function of such an index, called once for each.
    """
    distinct, first, inverse = np.unique(which, return_index=True, return_inverse=True)
    reasons = [""] * len(distinct)
    # In the order of the table: suggestions are limited, and the first errors are the ones that people read.
    for at in np.argsort(first).tolist():
        reasons[at] = reason(int(distinct[at]))
    return list(zip(rows.tolist(), map(reasons.__getitem__, inverse.tolist()), strict=True))


def _short(cell: str) -> str:
    return repr(cell if len(cell) <= 40 else f"{cell[:40]}...")


def _is_one_of(kind: pa.DataType, families: str) -> bool:
    # By the number of the type, which decides: each of thousands of columns is asked several times.
    known = _FAMILIES.get((kind.id, families))
    if known is None:
        known = any(getattr(pa.types, f"is_{family}")(kind) for family in families.split())
        _FAMILIES[kind.id, families] = known
    return known


def _cell_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
