"""A slow and obvious reader of evidence tables, and tables drawn for it and for the real one. No code is shared."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from junctor.evidence.batch import EvidenceBatch, SoftEvidence
from junctor.evidence.encode import EncodedPartition
from junctor.model.errors import Place
from junctor.model.network import DraftVariable, Network, build_network

STATES = {
    "smoke": ["yes", "no"],
    "grade": ["low", "mid", "high"],
    "number": ["1", "2", "3"],
    "flag": ["TRUE", "FALSE"],
    "odd": ["NA", " x ", "a=b"],
    "one": ["only"],
    "x=y": ["0.5", "01"],
}
MISSING = {
    *("", "-", "?", "*", ".", "na", "n/a", "<na>", "nan", "-nan", "nat", "none", "null", "(null)"),
    *("\\n", "#na", "#n/a", "#n/a n/a", "#null!", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),
}
ROLES = ("text", "integers", "floats", "booleans", "lists", "null")
TEXTS = (
    *(
        "yes",
        "no",
        " yes ",
        "low",
        "high",
        "1",
        "2",
        "3",
        "01",
        "1.0",
        "0",
        "NA",
        "na",
        "-",
        "None",
        "?",
        "*",
        "",
        "null",
        "x",
        " x ",
        "a=b",
    ),
    *("true", "False", "TRUE", "T", "only", "0.5", "yess", "-1", "7", '"', "a,b", "line\nbreak", "é", "nan", "+1"),
    "1_0",
)
NUMBERS = ["0", "1", "0.5", " 2 ", "1e-3", "0.0", "-1", "", "NA", "n/a", "-", "?", "abc", "1_0", "nan", "1e999"]


def small_network(states: dict[str, list[str]] | None = None) -> Network:
    drafts = [DraftVariable(name, names, Place("drawn")) for name, names in (states or STATES).items()]
    return build_network("small", "markov", drafts, [])


@dataclass
class DrawnTable:
    """Columns by name: cells as Python values, and their Arrow type."""

    rows: int
    columns: dict[str, tuple[list[Any], pa.DataType]] = field(default_factory=dict)

    def arrow(self) -> pa.Table:
        if not self.columns:
            return pa.table({"": pa.nulls(self.rows)}).select([])
        return pa.table({name: pa.array(cells, kind) for name, (cells, kind) in self.columns.items()})

    def texts(self) -> list[list[str]]:
        """Header and rows as a CSV file has them."""
        columns = [["" if cell is None else str(cell) for cell in cells] for cells, _ in self.columns.values()]
        return [list(self.columns), *map(list, zip(*columns, strict=True))]


@st.composite
def drawn_tables(draw: st.DrawFn, lists: bool = True, min_rows: int = 0) -> DrawnTable:
    table = DrawnTable(draw(st.integers(min_rows, 8)))
    roles = [role for role in ROLES if lists or role != "lists"]
    for name in draw(st.permutations(list(STATES))):
        kind = draw(st.sampled_from(["absent", "hard", "hard", "hard and soft", "soft"]))
        if kind.startswith("hard"):
            role = draw(st.sampled_from(roles))
            if role == "lists" and "soft" in kind:
                continue
            table.columns[name] = draw(_column(role, len(STATES[name]), table.rows))
        if kind.endswith("soft"):
            for state in draw(st.permutations(STATES[name])):
                cells = draw(st.lists(st.sampled_from(NUMBERS), min_size=table.rows, max_size=table.rows))
                table.columns[f"{name}={state}"] = cells, pa.string()
    if draw(st.booleans()):
        table.columns["case_id"] = [f"id {i} " for i in range(table.rows)], pa.string()
    return table


def _column(role: str, cardinality: int, rows: int) -> st.SearchStrategy[tuple[list[Any], pa.DataType]]:
    entries = st.sampled_from([0.0, 1.0, 0.25, 1e-300, -1.0, math.nan, math.inf, None])
    cells: dict[str, tuple[st.SearchStrategy[Any], pa.DataType]] = {
        "text": (st.sampled_from([*TEXTS, None]), pa.string()),
        "integers": (st.sampled_from([0, 1, 2, 3, -1, None]), pa.int8()),
        "floats": (st.sampled_from([0.0, 1.0, 2.0, 3.0, 0.5, -1.0, math.nan, None]), pa.float64()),
        "booleans": (st.sampled_from([True, False, None]), pa.bool_()),
        "lists": (
            st.none() | st.lists(entries, min_size=cardinality, max_size=cardinality) | st.lists(entries, max_size=2),
            pa.list_(pa.float64()),
        ),
        "null": (st.none(), pa.null()),
    }
    cell, kind = cells[role]
    return st.lists(cell, min_size=rows, max_size=rows).map(lambda drawn: (drawn, kind))


def reference_rows(table: DrawnTable) -> list[tuple[dict[str, int], dict[str, list[float]], set[str]]]:
    """For each row: states, likelihoods, and the variables that make it invalid."""
    found = []
    for row in range(table.rows):
        states: dict[str, int] = {}
        soft: dict[str, list[float]] = {}
        bad: set[str] = set()
        for name, names in STATES.items():
            cells, kind = table.columns.get(name, ([None] * table.rows, pa.null()))
            if pa.types.is_list(kind):
                _read_list(cells[row], name, len(names), soft, bad)
            else:
                state = _read_state(cells[row], names)
                if state == "unknown":
                    bad.add(name)
                elif state is not None:
                    states[name] = names.index(state)
            if f"{name}={names[0]}" in table.columns:
                _read_entries([table.columns[f"{name}={state}"][0][row] for state in names], name, states, soft, bad)
        found.append((states, soft, bad))
    return found


def _read_state(cell: Any, names: list[str]) -> str | None:
    """The name of the state, None for nothing, "unknown" (which is no state's name here) for anything else."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return None
    text = str(cell)
    if not isinstance(cell, bool):
        for name in (text, text.strip()):
            if name in names:
                return name
    text = text.strip()
    if text == "+1" and "1" in names:
        return "1"
    if isinstance(cell, str) and text.lower() in MISSING - {name.strip().lower() for name in names}:
        return None
    if text.lower() in ("true", "false", "t", "f"):
        word = {"t": "true", "f": "false"}.get(text.lower(), text.lower())
        meant = {"true": "yes", "false": "no"}[word] if names == ["yes", "no"] else word
        return next((name for name in names if name.lower() == meant), "unknown")
    if text.removesuffix(".0") not in [str(i) for i in range(10)]:
        return "unknown"
    whole = text.removesuffix(".0")
    if whole in names:
        return whole
    if names in (["yes", "no"], ["TRUE", "FALSE"]):
        return "unknown"
    has_numbers = any(name.strip().replace(".", "").isdigit() for name in names)
    return names[int(whole)] if not has_numbers and int(whole) < len(names) else "unknown"


def _read_list(cell: Any, name: str, cardinality: int, soft: dict[str, list[float]], bad: set[str]) -> None:
    if cell is None:
        return
    if len(cell) != cardinality or not _is_likelihood(cell):
        bad.add(name)
    else:
        soft[name] = cell


def _read_entries(
    cells: list[str], name: str, states: dict[str, int], soft: dict[str, list[float]], bad: set[str]
) -> None:
    texts = [cell.strip() for cell in cells]
    missing = [text.lower() in MISSING for text in texts]
    if all(missing):
        return
    readable = not any(missing) and "abc" not in texts and "1_0" not in texts
    values = [float(text) for text in texts] if readable else []
    if name in states or not readable or not _is_likelihood(values):
        bad.add(name)
    else:
        soft[name] = values


def _is_likelihood(values: list[Any]) -> bool:
    return all(value is not None and math.isfinite(value) and value >= 0 for value in values) and any(values)


def as_rows(batch: EvidenceBatch) -> list[tuple[dict[str, int], dict[str, list[float]], set[str]]]:
    """What a batch says, in the form of `reference_rows`; bad variables are those that the reasons name."""
    names = list(STATES)
    found: list[tuple[dict[str, int], dict[str, list[float]], set[str]]] = [({}, {}, set()) for _ in range(batch.rows)]
    for variable, codes in batch.states.items():
        assert codes.dtype == np.int32
        for row, code in enumerate(codes.tolist()):
            if code >= 0:
                found[row][0][names[variable]] = code
    for variable, likelihood in batch.likelihoods.items():
        assert likelihood.rows.dtype == np.int64
        assert (np.diff(likelihood.rows) > 0).all()
        for row, values in zip(likelihood.rows.tolist(), likelihood.values.tolist(), strict=True):
            found[row][1][names[variable]] = values
    for row, reason in batch.invalid.items():
        found[row][2].update(name for name in names if f"column '{name}': " in reason)
    return found


def assert_same(left: EncodedPartition, right: EncodedPartition, reasons: bool = True) -> None:
    """Equal in everything; without `reasons` only the rows that are invalid have to be the same."""
    assert left.first_row == right.first_row
    assert left.case_ids.type == right.case_ids.type
    assert left.case_ids.equals(right.case_ids)
    a, b = left.batch, right.batch
    assert a.rows == b.rows
    assert a.states.keys() == b.states.keys()
    for variable in a.states:
        np.testing.assert_array_equal(a.states[variable], b.states[variable], strict=True)
    assert a.likelihoods.keys() == b.likelihoods.keys()
    for variable in a.likelihoods:
        _assert_same_likelihood(a.likelihoods[variable], b.likelihoods[variable])
    assert list(a.invalid) == list(b.invalid)
    if reasons:
        assert a.invalid == b.invalid


def _assert_same_likelihood(left: SoftEvidence, right: SoftEvidence) -> None:
    np.testing.assert_array_equal(left.rows, right.rows, strict=True)
    np.testing.assert_array_equal(left.values, right.values, strict=True)
