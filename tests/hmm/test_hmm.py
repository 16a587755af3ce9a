"""Hidden Markov models: what is refused, how they are written and read, and two-slice networks that are one."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.hmm_models import random_model, sparse_of
from junctor.hmm import SparseMatrix, build_model, from_slices, read_model, write_model
from junctor.model.errors import ModelError, Place
from junctor.model.network import DraftTable, DraftVariable, Network, build_network

HALF = [[0.5, 0.5], [0.5, 0.5]]
HERE = Place("here")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": [0.5, 0.6]}, "start sums to 1.1, expected 1"),
        ({"start": []}, "start: found an array of shape"),
        ({"start": ["a", 1]}, "start: not an array of numbers"),
        ({"transition": [[0.5, 0.5], [0.7, 0.5]]}, "transition: row 1 sums to 1.2"),
        ({"transition": [[0.5, 0.5]]}, r"transition: found shape \(1, 2\), expected \(2, 2\)"),
        ({"transition": [[1.5, -0.5], [1, 0]]}, r"transition\[0, 1\]: found -0.5, expected a number from 0 to 1"),
        ({"emission": [[1.0]]}, "emission: found shape"),
        ({"emission": [[np.nan], [1]]}, r"emission\[0, 0\]: found nan"),
        ({"states": ["a"]}, "found 1 state names, expected 2"),
        ({"states": ["a", "a"]}, "found the state name 'a', expected texts, none empty, all different"),
        ({"states": [1, 2]}, "found the state name 1, expected texts, none empty, all different"),
        ({"states": ["a", "\ud800"]}, r"found the state name '\\ud800', whose characters no file can hold"),
        ({"symbols": ["x"]}, "symbols have names, but there is no emission matrix"),
        ({"transition": SparseMatrix(np.array([0, 1]), np.array([0]), np.ones(1))}, "does not fit 2 states"),
        ({"transition": SparseMatrix(np.array([0, 1, 2]), np.array([0, 2]), np.ones(2))}, "no state between 0 and 1"),
        ({"transition": SparseMatrix(np.array([0, 2, 3]), np.array([1, 1, 0]), np.ones(3) / 2)}, "stands there twice"),
        ({"transition": SparseMatrix(np.array([0, 1, 1]), np.array([1]), np.ones(1))}, "transition: row 1 sums to 0"),
    ],
)
def test_bad_models_are_refused(changes: dict[str, Any], message: str) -> None:
    arguments = {"start": [0.5, 0.5], "transition": HALF, **changes}
    with pytest.raises(ModelError, match=message) as error:
        build_model(**arguments, place=HERE)
    assert str(error.value).startswith("here: ")


def test_rows_that_nearly_sum_to_one_are_divided() -> None:
    model = build_model([1, 0], [[0.333, 0.666], [0, 1 + 1e-7]])
    assert model.transition[0].sum() == pytest.approx(1, abs=1e-15)  # type: ignore[index]
    assert model.transition[1, 1] == 1 + 1e-7  # type: ignore[index]


@pytest.mark.parametrize("name", ["model.parquet", "model.json", "model.json.gz"])
@pytest.mark.parametrize("sparse", [False, True])
def test_what_is_written_is_read(tmp_path: Path, name: str, sparse: bool) -> None:
    bare = random_model(5, 3, 1, 0.5, sparse)
    named = build_model(bare.start, bare.transition, bare.emission, list("abcde"), ["x", "y", "ø"])
    silent = build_model(bare.start, bare.transition)
    for model in (bare, named, silent):
        write_model(model, tmp_path / name)
        found = read_model(tmp_path / name)
        assert found.digest == model.digest
        assert (found.sparse, found.state_names, found.symbols) == (sparse, model.state_names, model.symbols)


def test_a_sparse_matrix_of_scipy_is_taken_as_it_is() -> None:
    model = random_model(6, 2, 3, 0.7)
    rows = sparse_of(model.transition)
    scipy = SimpleNamespace(
        tocsr=lambda copy: SimpleNamespace(
            sum_duplicates=lambda: None,
            eliminate_zeros=lambda: None,
            indptr=rows.starts.astype(np.int32),
            indices=rows.columns,
            data=rows.values,
        )
    )
    found = build_model(model.start, scipy, model.emission)
    np.testing.assert_array_equal(found.transition.dense(), model.transition)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "cannot be read as JSON"),
        ('{"start": [1]}', "expected an object with start, transition"),
        ('{"start": [1], "transition": {"to": [[0]]}}', "expected 'to' and 'probability'"),
        ('{"start": [1], "transition": {"to": [[0]], "probability": [[1, 2]]}}', "more or fewer probabilities"),
        ('{"start": [1], "transition": {"to": [["a"]], "probability": [[1]]}}', "next states have to be numbers"),
        ('{"start": [1], "transition": {"to": [[0.0]], "probability": [[1]]}}', "next states have to be numbers"),
        ('{"start": [1], "transition": {"to": [[-1]], "probability": [[1]]}}', "no state between 0 and 0"),
        ('{"start": [1], "transition": {"to": [[4294967296]], "probability": [[1]]}}', "no state between 0 and 0"),
        (f'{{"start": [1], "transition": {{"to": [[{2**70}]], "probability": [[1]]}}}}', "no state between 0 and 0"),
        ('{"start": [1], "transition": [[1]], "emisson": [[1]]}', "emisson"),
        ('{"start": [1], "start": [1], "transition": [[1]]}', "the key 'start' stands twice in an object"),
        ('{"start": [1], "transition": {"to": [[0]], "probability": [[1]], "to": [[0]]}}', "the key 'to' stands twice"),
    ],
)
def test_bad_json_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(ModelError, match=message):
        read_model(tmp_path / "m.json")


@pytest.mark.parametrize(
    ("to", "probability", "message"),
    [
        ([[2**32, 1], [0, 1]], [[0.7, 0.3], [0.4, 0.6]], "no state between 0 and 1"),
        ([[0, 1], [0, 1]], [[1.0], [0.7, 0.3, 0.0]], "more or fewer probabilities than next states"),
    ],
)
def test_bad_sparse_parquet_is_refused(tmp_path: Path, to: Any, probability: Any, message: str) -> None:
    columns = {"start": [0.6, 0.4], "to": to, "probability": probability}
    pq.write_table(pa.table(columns, metadata={b"junctor.hmm": b'{"format_version": 1}'}), tmp_path / "m.parquet")
    with pytest.raises(ModelError, match=message):
        read_model(tmp_path / "m.parquet")


def test_a_sparse_matrix_of_scipy_with_states_beyond_int32_is_refused() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.csr_matrix((np.ones(2), np.array([2**32, 0]), np.array([0, 1, 2])), shape=(2, 2**33))
    with pytest.raises(ModelError, match="no state between 0 and 1"):
        build_model([0.5, 0.5], matrix)


def test_bad_parquet_is_refused(tmp_path: Path) -> None:
    from pyarrow import parquet

    lists = pa.array([[1.0], [0.5, 0.5]])
    for version, message in [(1, "found lists of lengths"), (9, "found format_version 9, expected 1")]:
        facts = {b"junctor.hmm": json.dumps({"format_version": version}).encode()}
        parquet.write_table(
            pa.table({"start": [1.0, 0.0], "transition": lists}, metadata=facts), tmp_path / "m.parquet"
        )
        with pytest.raises(ModelError, match=message):
            read_model(tmp_path / "m.parquet")


def network(tables: dict[tuple[str, ...], Any], states: int = 2) -> Network:
    names = list(dict.fromkeys(name for scope in tables for name in scope))
    variables = [DraftVariable(name, [f"s{i}" for i in range(states)], HERE) for name in names]
    return build_network("n", "bayes", variables, [DraftTable(scope, v, HERE) for scope, v in tables.items()], HERE)


RAIN: dict[tuple[str, ...], Any] = {
    ("Rain_0",): [0.5, 0.5],
    ("Rain_0", "Rain_1"): [0.7, 0.3, 0.4, 0.6],
    ("Rain_1", "Umbrella_1"): [0.9, 0.1, 0.2, 0.8],
}


def test_a_two_slice_network_is_a_model() -> None:
    for more in ({}, {("Rain_0", "Umbrella_0"): [0.9, 0.1, 0.2, 0.8]}):
        model = from_slices(network(RAIN | more))
        np.testing.assert_array_equal(model.transition, [[0.7, 0.3], [0.4, 0.6]])
        np.testing.assert_array_equal(model.emission, [[0.9, 0.1], [0.2, 0.8]])  # type: ignore[arg-type]
        assert model.state_names == model.symbol_names == ("s0", "s1")


def test_variables_of_a_slice_make_one_state() -> None:
    rng = np.random.default_rng(0)

    def table(*shape: int) -> Any:
        found = rng.random(shape)
        return found / found.sum(axis=-1, keepdims=True)

    a0, b0, a1, b1, o, p = table(2), table(2, 2), table(2, 2, 2), table(2, 2), table(2, 2), table(2, 2, 2)
    model = from_slices(
        network(
            {
                ("A",): a0,
                ("A", "B"): b0,
                ("A", "B", "A'"): a1,
                ("B", "A'", "B'"): np.broadcast_to(b1, (2, 2, 2)),
                ("A'", "o"): o,
                ("o", "B'", "p"): p,
            }
        )
    )
    assert model.state_names == ("s0,s0", "s0,s1", "s1,s0", "s1,s1")
    np.testing.assert_allclose(model.start, (a0[:, None] * b0).reshape(-1))
    transition = np.einsum("abc,cd->abcd", a1, b1).reshape(4, 4)
    np.testing.assert_allclose(model.transition, transition)  # type: ignore[arg-type]
    np.testing.assert_allclose(model.emission, np.einsum("co,odp->cdop", o, p).reshape(4, 4))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({("Rain_0", "Rain_1"): None, ("Rain_1",): [0.5, 0.5]}, "not a two-slice network"),
        ({("Rain_0", "late"): [0.5, 0.5, 0.5, 0.5]}, "'late' depends on 'Rain_0'"),
        ({("Rain_0", "Umbrella_0"): [0.8, 0.2, 0.2, 0.8]}, "'Umbrella_0' and 'Umbrella_1' have different tables"),
    ],
)
def test_other_networks_are_refused(more: dict[Any, Any], message: str) -> None:
    tables = {scope: table for scope, table in (RAIN | more).items() if table is not None}
    with pytest.raises(ModelError, match=message):
        from_slices(network(tables))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Rain_1", "not a two-slice network: the states of 'Rain_0' and 'Rain_1' differ in their order "),
        (
            "Umbrella_0",
            "'Umbrella_0' depends on 'Rain_0'; the states of 'Umbrella_0' and 'Umbrella_1' differ",
        ),
    ],
)
def test_states_in_another_order_are_told_as_the_cause(name: str, message: str) -> None:
    made = network(RAIN | {("Rain_0", "Umbrella_0"): [0.9, 0.1, 0.2, 0.8]})
    variables = [replace(v, states=v.states[::-1]) if v.name == name else v for v in made.variables]
    with pytest.raises(ModelError, match=message):
        from_slices(replace(made, variables=tuple(variables)))


def test_a_network_file_is_read_as_a_model(tmp_path: Path) -> None:
    from junctor.formats import write_network

    for name in ("net.bif", "net.parquet"):
        write_network(network(RAIN), tmp_path / name)
        assert read_model(tmp_path / name).states == 2


def test_model_files_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A small compressed file may hold a gigabyte of zeros.
    path = tmp_path / "m.json.gz"
    path.write_bytes(gzip.compress(b"[" + b"0," * 2**21 + b"0]"))
    monkeypatch.setattr("junctor.formats.files.MAX_BYTES", 2**21)
    with pytest.raises(ModelError, match=r"m.json.gz: .*more than the 2,097,152 bytes that are allowed"):
        read_model(path)


def test_model_files_of_repeated_numbers_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {b"junctor.hmm": b'{"format_version": 1}'}
    rows = pa.table({"start": [1.0], "transition": [[1.0] * 2**20]}, metadata=facts)
    pq.write_table(rows, tmp_path / "m.parquet")
    monkeypatch.setattr("junctor.hmm.formats.MAX_BYTES", 0)
    with pytest.raises(ModelError, match=r"m.parquet: the file's .* bytes would become"):
        read_model(tmp_path / "m.parquet")
