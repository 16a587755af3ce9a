from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.format_helpers import assert_same, error_of, fuzz, odd_networks
from hypothesis import given
from junctor import generate
from junctor.formats import read_network, store, write_network
from junctor.model.errors import Place
from junctor.model.network import DraftTable, DraftVariable, Network, Variable, build_network
from junctor.runtime.cache import Cache, user_cache

NETWORK = build_network(
    "Lawn",
    "bayes",
    [
        DraftVariable("rain", ["no", "some", "much"], Place()),
        DraftVariable("only", ["one"], Place()),
        DraftVariable("grass", ["dry", "wet"], Place()),
    ],
    [
        DraftTable(["rain"], [0.7, 0.2, 0.1], Place()),
        DraftTable(["only"], [1.0], Place()),
        DraftTable(["rain", "only", "grass"], [1.0, 0.0, 1e-300, 1.0, 1 / 3, 2 / 3], Place()),
    ],
)


@given(odd_networks())
def test_everything_survives(network: Network) -> None:
    again = store.read(store.to_bytes(network), "f")
    assert_same(again, network)
    assert again.name == network.name


def test_a_file_is_the_same_every_time(tmp_path: Path) -> None:
    store.write(NETWORK, tmp_path / "n.parquet")
    assert (tmp_path / "n.parquet").read_bytes() == store.to_bytes(NETWORK)
    assert [path.name for path in tmp_path.iterdir()] == ["n.parquet"]
    assert_same(store.read(tmp_path / "n.parquet"), NETWORK)


def test_a_stranger_can_read_it(tmp_path: Path) -> None:
    store.write(NETWORK, tmp_path / "n.parquet")
    table = pq.read_table(tmp_path / "n.parquet")
    assert table.schema.metadata[b"format"] == b"junctor-network"
    assert table.schema.metadata[b"format_version"] == b"1"
    assert table.schema.metadata[b"kind"] == b"bayes"
    rows = table.to_pylist()
    assert rows[0] == {
        "record": "variable",
        "name": "rain",
        "states": ["no", "some", "much"],
        "scope": None,
        "values": None,
    }
    assert rows[5] == {
        "record": "factor",
        "name": None,
        "states": None,
        "scope": ["rain", "only", "grass"],
        "values": [1.0, 0.0, 1e-300, 1.0, 1 / 3, 2 / 3],
    }
    frame = table.to_pandas()
    assert list(frame[frame.record == "variable"].name) == ["rain", "only", "grass"]


def test_many_factors_go_to_several_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_GROUP_ENTRIES", 3)
    data = store.to_bytes(NETWORK)
    assert pq.ParquetFile(pa.BufferReader(data)).num_row_groups == 4
    assert_same(store.read(data), NETWORK)


NO_SEAL = "sha256:" + "0" * 64


def test_wider_types_more_columns_and_other_encodings_are_read() -> None:
    large = pa.schema(
        [
            pa.field("values", pa.large_list(pa.float64())),
            pa.field("scope", pa.large_list(pa.large_string())),
            pa.field("states", pa.list_(pa.large_string())),
            pa.field("name", pa.large_string()),
            pa.field("record", pa.large_string()),
            pa.field("more", pa.int64()),
        ]
    )
    table = pq.read_table(pa.BufferReader(store.to_bytes(NETWORK)))
    table = table.append_column("more", pa.array(range(6))).select(large.names).cast(large)
    about = {"format": "junctor-network", "format_version": "1", "kind": "bayes", "seal": NO_SEAL}
    again = store.read(_bytes(table.replace_schema_metadata(about), compression="gzip"))
    assert_same(again, NETWORK)
    assert again.name == ""


def _bytes(table: pa.Table, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    data = bytes(sink.getvalue())
    return store.sealed(data) if b"sha256:" in data else data


def _changed(**about: str | None) -> bytes:
    """The file of NETWORK with other metadata, sealed anew; None leaves an entry out."""
    table = pq.read_table(pa.BufferReader(store.to_bytes(NETWORK)))
    metadata = {key.decode(): value.decode() for key, value in table.schema.metadata.items()} | about
    return _bytes(table.replace_schema_metadata({key: value for key, value in metadata.items() if value is not None}))


def _with_column(name: str, values: list[object], kind: pa.DataType | None = None) -> bytes:
    table = pq.read_table(pa.BufferReader(store.to_bytes(NETWORK)))
    i = table.schema.get_field_index(name)
    changed = table.set_column(i, pa.field(name, kind or table.schema.field(i).type), pa.array(values, kind))
    return _bytes(changed.replace_schema_metadata(table.schema.metadata))


VALUES = [None, None, None, [0.7, 0.2, 0.1], [1.0], [1.0, 0.0, 0.5, 0.5, 0.5, 0.5]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "f: this is no Parquet file, or it is cut short"),
        (b"PAR1", "f: this Parquet file holds no network that Junctor wrote: it has no seal"),
        (b"network x { }", "f: this is no Parquet file, or it is cut short"),
        (store.to_bytes(NETWORK)[:-20], "f: this is no Parquet file, or it is cut short"),
        (
            store.to_bytes(NETWORK).replace(b"Lawn", b"Lown"),
            "f: the file does not fit its seal: it is damaged, or an",
        ),
        (store.sealed(b"PAR1" + NO_SEAL.encode() + b"PAR1"), "f: the file cannot be read as Parquet ("),
        (_bytes(pa.table({"a": [1]})), "f: this Parquet file holds no network that Junctor wrote: it has no seal"),
        (_changed(format=None), "f: this Parquet file holds no network"),
        (_changed(format_version="3"), "f: the file has format_version 3, this Junctor reads up to 2; update Junctor"),
        (_changed(format_version="9" * 5000), "f: the file has format_version 999"),
        (_changed(format_version="one"), "f: found format_version 'one', expected a whole number"),
        (_changed(format_version=None), "f: found format_version '', expected a whole number"),
        (_changed(kind="limid"), "f: found kind 'limid', expected 'bayes' or 'markov'"),
        (_changed(seal=None), "f: this Parquet file holds no network that Junctor wrote: it has no seal"),
        (_with_column("values", list(range(6)), pa.int64()), "f: column 'values' is of type int64, expected list<"),
        (_with_column("name", [b"\xff"] * 6, pa.binary()), "f: column 'name' is of type binary, expected string"),
        (_with_column("record", ["variable"] * 6), "f (variable 3): found null in 'name', expected a value"),
        (_with_column("record", ["factor"] * 6), "f (factor 0): found null in 'values', expected a value"),
        (_with_column("record", ["edge"] * 6), "f: found the record 'edge', expected 'variable' or 'factor'"),
        (_with_column("name", ["a", None, "b", None, None, None]), "f (variable 1): found null in 'name'"),
        (_with_column("name", ["a", "a", "b", None, None, None]), "f (variable 1): variable 'a' is defined twice"),
        (_with_column("states", [["a"], ["b", None], ["c"], None, None, None]), "f (variable 1): found null in 'stat"),
        (_with_column("states", [["a"], [], ["c"], None, None, None]), "f (variable 1): variable 'only' has no states"),
        (_with_column("scope", [None] * 3 + [["rain"], ["only"], ["rain", "snow"]]), "f (factor 2): table of 'snow'"),
        (_with_column("values", [*VALUES[:5], [1.0]]), "f (factor 2): table of 'grass': found 1 entries, expected 6"),
        (_with_column("values", [*VALUES[:5], [1.0, None]]), "f (factor 2): found a null among the entries"),
        (_with_column("values", [*VALUES[:5], [-1.0, 2, 1, 0, 1, 0]]), "f (factor 2): table of 'grass': found -1.0"),
        (_with_column("values", [*VALUES[:4], [np.nan], VALUES[5]]), "f (factor 1): table of 'only': found nan"),
    ],
)
def test_errors_say_what_and_where(data: bytes, message: str) -> None:
    assert error_of(lambda: store.read(data, "f")).startswith(message)


def test_a_missing_file_is_an_error_of_ours(tmp_path: Path) -> None:
    assert "there is no such file" in error_of(lambda: store.read(tmp_path / "none.parquet"))
    assert "found a directory" in error_of(lambda: store.read(tmp_path))


def test_a_bomb_is_refused_before_it_goes_off() -> None:
    sink = pa.BufferOutputStream()
    about = {"format": "junctor-network", "format_version": "1", "kind": "markov", "seal": NO_SEAL}
    schema = store._SCHEMA.with_metadata(about)
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        size = 2**24
        for _ in range(2):
            columns = {
                "record": ["factor"],
                "scope": [["a"]],
                "values": pa.ListArray.from_arrays(np.array([0, size], np.int32), np.zeros(size)),
            }
            writer.write_table(store.rows_of(1, columns))
    data = store.sealed(bytes(sink.getvalue()))
    assert len(data) < 100_000
    assert "bytes would become" in error_of(lambda: store.read(data, "f"))


def test_names_that_no_file_can_hold_are_refused() -> None:
    network = Network("n", (Variable("\ud800", ("a",)),), (), "markov")
    assert "half of a surrogate pair" in error_of(lambda: store.to_bytes(network))


def test_a_network_may_be_called_like_a_seal() -> None:
    network = Network("sha256:" + "f" * 64, NETWORK.variables, NETWORK.factors)
    assert store.read(store.to_bytes(network)).name == network.name


def test_damage_is_never_read_as_another_network() -> None:
    def read(data: bytes) -> Network:
        again = store.read(data, "f")
        assert again.digest == NETWORK.digest
        return again

    read_well, refused = fuzz(read, [store.to_bytes(NETWORK)], 600)
    assert refused > 400
    assert read_well > 2


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A cache of its own, for small networks as well."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JUNCTOR_CACHE")
    monkeypatch.setattr("junctor.formats.LEAST_KEPT", 1)
    return user_cache()


@pytest.mark.parametrize("format", ["bif", "uai"])
def test_networks_from_the_cache_are_equal(
    format: str, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"kept.{format}"
    write_network(generate.chain(30, (2, 4), seed=3), path)
    monkeypatch.setenv("JUNCTOR_CACHE", "off")
    expected = read_network(path)
    monkeypatch.delenv("JUNCTOR_CACHE")
    found = read_network(path)
    assert (found.digest, found.name, found.kind) == (expected.digest, expected.name, expected.kind)
    assert [entry.kind for entry in cache.entries()] == ["network"]
    monkeypatch.setattr("junctor.formats._read", None)
    again = read_network(path)
    assert (again.digest, again.name, again.kind) == (expected.digest, expected.name, expected.kind)
    # At once, and then made anew.
    assert store.to_bytes(again) == store.to_bytes(again) == store.to_bytes(expected)


def test_a_changed_file_is_read_anew(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.bif"
    networks = [generate.chain(20, 3, seed=seed) for seed in (1, 2)]
    for network in networks:
        write_network(network, path)
        assert read_network(path).digest == network.digest
    for entry in cache.entries():
        entry.path.write_bytes(b"damaged")
    assert read_network(path).digest == networks[1].digest
